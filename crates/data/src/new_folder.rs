//! Folders to write to.

use std::fs;
use std::path::Path;

use crate::DataError;

/// Creates a folder and those above it, unless they are there.
pub(crate) fn create(folder: &Path) -> Result<(), DataError> {
    fs::create_dir_all(folder).map_err(DataError::io(folder, "create the folder"))
}

/// Creates a folder, or makes sure that it is empty.
pub(crate) fn require_empty(root: &Path) -> Result<(), DataError> {
    create(root)?;
    let mut entries = fs::read_dir(root).map_err(DataError::io(root, "list the folder"))?;
    match entries.next() {
        None => Ok(()),
        Some(_) => Err(DataError::layout(root, "the folder is not empty", "a new or empty folder to write to")),
    }
}
