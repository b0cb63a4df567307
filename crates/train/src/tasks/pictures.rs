//! Files of pictures by what a person names: files, folders and patterns.

use super::EachInput;
use crate::error::TrainError;
use bessemer_data::{IMAGE_ENDINGS, has_image_ending};
use std::fs;
use std::path::{Path, PathBuf};

/// The files that inputs name: those of folders and of the folders in them, and links to files, by name; those that a pattern such as `photos/*.jpg`
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
        } else if is_picture(&path) {
            images.push(path);
        }
    }
    Ok(images)
}

fn matching(pattern: &str) -> Result<Vec<PathBuf>, TrainError> {
    let paths = glob::glob(pattern);
    let paths = paths.map_err(|error| TrainError::setting("the input", pattern, error.to_string()))?;
    Ok(paths.flatten().filter(|path| is_picture(path)).collect())
}

/// Whether a path is a file, or a link to one, with the ending of a picture. What is read of a pipe or of a device may never end.
fn is_picture(path: &Path) -> bool {
    has_image_ending(path) && path.is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn folders_and_patterns_name_files_and_links_to_files_alone() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("a.jpg"), "").unwrap();
        std::os::unix::fs::symlink(at("a.jpg"), at("b.jpg")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("c.jpg")).unwrap();
        fs::write(at("d.txt"), "").unwrap();
        let named = |input: &Path| -> Vec<PathBuf> {
            picture_files(&[input.display().to_string()]).into_iter().map(Result::unwrap).collect()
        };
        assert_eq!(named(folder.path()), [at("a.jpg"), at("b.jpg")]);
        assert_eq!(named(&at("*.jpg")), [at("a.jpg"), at("b.jpg")]);
    }
}
