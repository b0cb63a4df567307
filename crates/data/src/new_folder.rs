//! Folders to write to.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::DataError;

/// Creates a folder and those above it, unless they are there.
pub(crate) fn create(folder: &Path) -> Result<(), DataError> {
    fs::create_dir_all(folder).map_err(DataError::writing(folder, "create the folder"))
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

/// A folder that is being filled. Unless it is kept, all that is in it is removed at the end, and the folder itself and those
/// above it if they were not there before.
#[derive(Debug)]
pub struct Unfinished {
    folder: PathBuf,
    /// The folder and those above it that were not there, the innermost first.
    new: Vec<PathBuf>,
    is_kept: bool,
}

impl Unfinished {
    /// Creates a folder, or makes sure that it is empty.
    pub(crate) fn in_empty(folder: &Path) -> Result<Self, DataError> {
        let unfinished = Self::begin(folder);
        match require_empty(folder) {
            Ok(()) => Ok(unfinished),
            Err(error) => {
                unfinished.keep();
                Err(error)
            }
        }
    }

    /// To be called before the folder is created.
    pub fn begin(folder: &Path) -> Self {
        let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
        let new = folder.ancestors().take_while(is_missing).map(Path::to_owned).collect();
        Self { folder: folder.to_owned(), new, is_kept: false }
    }

    /// Gives the folder its name, `path`, where it was filled beside its place: until then, nothing is at `path`, even if the program is killed.
    ///
    /// # Errors
    /// A folder that cannot be renamed; it is removed.
    pub fn place(self, path: &Path) -> io::Result<()> {
        fs::rename(&self.folder, path)?;
        self.keep();
        Ok(())
    }

    /// Leaves the folder as it is.
    pub fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        // What cannot be removed stays; the error that led here is the one to report.
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        }
        for folder in &self.new {
            let _ = fs::remove_dir(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_filled_beside_is_placed_whole_or_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let (path, beside) = (root.path().join("above/folder"), root.path().join("above/folder.new"));
        let filled = || {
            let unfinished = Unfinished::begin(&beside);
            fs::create_dir_all(beside.join("inner")).unwrap();
            fs::write(beside.join("inner/file"), "content").unwrap();
            unfinished
        };
        drop(filled());
        assert!(!root.path().join("above").exists(), "nor a folder above it");
        let unfinished = filled();
        assert!(!path.exists());
        unfinished.place(&path).unwrap();
        assert!(path.join("inner/file").is_file() && !beside.exists());
        assert!(filled().place(&path).is_err(), "the place is taken");
        assert!(path.join("inner/file").is_file() && !beside.exists());
    }
}
