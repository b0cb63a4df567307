//! Files of pictures by what a person names: files, folders and patterns.

use super::EachInput;
use crate::error::TrainError;
use bessemer_data::{IMAGE_ENDINGS, has_image_ending};
use std::fs;
use std::path::{Path, PathBuf};

/// The files that inputs name: those of folders and of the folders in them, by name; those that a pattern such as `photos/*.jpg`
/// matches; and all others as they are.
pub(super) fn picture_files(inputs: &[String]) -> EachInput<PathBuf> {
    let mut found = Vec::new();
    for input in inputs {
        let path = Path::new(input);
        let listed = match path {
            _ if path.is_dir() => images_in(path),
            _ if !path.exists() && input.contains(['*', '?', '[']) => matching(input),
            _ => Ok(vec![path.to_owned()]),
        };
        match listed {
            Ok(paths) if paths.is_empty() => {
                let allowed = format!("no file with an ending of {} is there", IMAGE_ENDINGS.join(", "));
                found.push(Err(TrainError::setting("the input", input, allowed)));
            }
            Ok(paths) => found.extend(paths.into_iter().map(Ok)),
            Err(error) => found.push(Err(error)),
        }
    }
    found
}

fn images_in(folder: &Path) -> Result<Vec<PathBuf>, TrainError> {
    let list = || TrainError::io(folder, "list the folder");
    let entries: Result<Vec<_>, _> = fs::read_dir(folder).map_err(list())?.collect();
    let mut paths: Vec<PathBuf> = entries.map_err(list())?.into_iter().map(|entry| entry.path()).collect();
    paths.sort();
    let mut images = Vec::new();
    for path in paths {
        if path.is_dir() {
            images.extend(images_in(&path)?);
        } else if has_image_ending(&path) {
            images.push(path);
        }
    }
    Ok(images)
}

fn matching(pattern: &str) -> Result<Vec<PathBuf>, TrainError> {
    let paths = glob::glob(pattern);
    let paths = paths.map_err(|error| TrainError::setting("the input", pattern, error.to_string()))?;
    Ok(paths.flatten().filter(|path| has_image_ending(path)).collect())
}
