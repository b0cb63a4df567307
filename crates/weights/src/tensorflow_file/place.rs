//! Where a checkpoint of TensorFlow lies.

use super::with_suffix;
use crate::error::FileError;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Component, Path, PathBuf};

const INDEX_SUFFIX: &str = ".index";
/// The file that names the newest checkpoint of a folder.
const NEWEST_FILE: &str = "checkpoint";
const NEWEST_FIELD: &str = "model_checkpoint_path";
const MAX_NEWEST_BYTES: u64 = 1 << 20;
const SAVED_MODEL_FILE: &str = "saved_model.pb";
const VARIABLES: &str = "variables/variables";

/// The prefix of the files of the checkpoint that a path stands for: the prefix itself, one of its files, a SavedModel, or a folder
/// with a file `checkpoint` or one index. `None` for a path that is nothing of TensorFlow.
///
/// # Errors
/// A folder that cannot be read, has several checkpoints without saying which, or not the one that it names; files without their index.
pub(crate) fn find_prefix(path: &Path) -> Result<Option<PathBuf>, FileError> {
    let missing = |expected: String| Err(FileError::NotFound { path: path.to_owned(), expected });
    if path.is_dir() {
        return in_folder(path);
    }
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return Ok(None) };
    let stem = match name.strip_suffix(INDEX_SUFFIX) {
        Some(stem) => stem,
        None => match of_shard(name) {
            Some(stem) => stem,
            None if path.exists() => return Ok(None),
            None => name,
        },
    };
    let prefix = path.with_file_name(stem);
    if with_suffix(&prefix, INDEX_SUFFIX).is_file() {
        return Ok(Some(prefix));
    }
    if stem == name || !path.exists() {
        return Ok(None);
    }
    missing(format!("there is no {stem}{INDEX_SUFFIX} beside it, without which a TensorFlow checkpoint is not read"))
}

/// The prefix in the name of a file of elements, `PREFIX.data-00000-of-00001`.
fn of_shard(name: &str) -> Option<&str> {
    let (stem, numbers) = name.rsplit_once(".data-")?;
    let (shard, shards) = numbers.split_once("-of-")?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(shard) && is_number(shards)).then_some(stem)
}

fn in_folder(folder: &Path) -> Result<Option<PathBuf>, FileError> {
    let missing = |expected: String| Err(FileError::NotFound { path: folder.to_owned(), expected });
    if folder.join(SAVED_MODEL_FILE).is_file() {
        let prefix = folder.join(VARIABLES);
        return match with_suffix(&prefix, INDEX_SUFFIX).is_file() {
            true => Ok(Some(prefix)),
            false => missing(format!("a SavedModel without {VARIABLES}{INDEX_SUFFIX}")),
        };
    }
    let newest = folder.join(NEWEST_FILE);
    if newest.is_file() {
        let name = newest_name(&newest)?;
        let prefix = folder.join(&name);
        return match with_suffix(&prefix, INDEX_SUFFIX).is_file() {
            true => Ok(Some(prefix)),
            false => missing(format!("its file `{NEWEST_FILE}` names {}, which is not there", name.display())),
        };
    }
    let io_error = |source| FileError::reading(folder, source);
    let mut found = Vec::new();
    for file in fs::read_dir(folder).map_err(io_error)? {
        let file = file.map_err(io_error)?;
        if let Some(stem) = file.file_name().to_str().and_then(|name| name.strip_suffix(INDEX_SUFFIX)) {
            found.push(stem.to_owned());
        }
    }
    found.sort();
    match found.as_slice() {
        [] => Ok(None),
        [stem] => Ok(Some(folder.join(stem))),
        several => missing(format!("there are several TensorFlow checkpoints in it, name one: {}", several.join(", "))),
    }
}

/// The checkpoint that a file `checkpoint` names, relative to its folder. Of an absolute path the last part counts, so that folders can be
/// moved.
fn newest_name(file: &Path) -> Result<PathBuf, FileError> {
    let damaged = |reason: &str| FileError::damaged(file, reason);
    let mut text = String::new();
    let read = File::open(file).and_then(|file| file.take(MAX_NEWEST_BYTES).read_to_string(&mut text));
    read.map_err(|source| FileError::reading(file, source))?;
    let value = text.lines().find_map(|line| line.trim().strip_prefix(NEWEST_FIELD)?.trim_start().strip_prefix(':'));
    let quoted = value.and_then(|value| value.trim().strip_prefix('"')?.strip_suffix('"'));
    let Some(name) = quoted.filter(|name| !name.is_empty()) else {
        return Err(damaged(
            "has no line model_checkpoint_path: \"NAME\", by which TensorFlow names the newest checkpoint",
        ));
    };
    let name = Path::new(name);
    if name.is_absolute() {
        return name.file_name().map(PathBuf::from).ok_or_else(|| damaged("names no file"));
    }
    match name.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        true => Ok(name.to_owned()),
        false => Err(damaged("names a checkpoint outside of its folder")),
    }
}
