//! Files to write to that appear whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A file that is written beside its place and gets its name when it is whole: what was there before stays until then. One that is dropped
/// before leaves nothing.
///
/// It is created as any file is, with the usual permissions. The name that it has meanwhile is the caller's, so that what a killed program
/// left under it is overwritten by the next one; two writers of one file must not take the same.
#[derive(Debug)]
pub struct NewFile {
    // Closed before it is removed: the order of these two matters.
    out: BufWriter<File>,
    beside: Beside,
    path: PathBuf,
}

/// The file until it has its name; removed at the end, unless it is placed.
#[derive(Debug)]
struct Beside {
    path: PathBuf,
    is_placed: bool,
}

impl NewFile {
    /// Creates `beside`, in the folder of `path`, which it will be.
    ///
    /// # Errors
    /// A file that cannot be created.
    pub fn create(path: &Path, beside: &Path) -> io::Result<Self> {
        let out = BufWriter::with_capacity(1 << 18, File::create(beside)?);
        let beside = Beside { path: beside.to_owned(), is_placed: false };
        Ok(Self { out, beside, path: path.to_owned() })
    }

    /// Where the file is until it has its name.
    pub fn beside(&self) -> &Path {
        &self.beside.path
    }

    /// Returns when all that was written is durable.
    ///
    /// # Errors
    /// A full disk or another failure to write.
    pub fn sync(&mut self) -> io::Result<()> {
        self.out.flush()?;
        self.out.get_ref().sync_all()
    }

    /// Gives the file its name, in the place of one that has it. What is returned is the file, open behind its end.
    ///
    /// # Errors
    /// A failure to write what is left, or to rename.
    pub fn place(self) -> io::Result<File> {
        let Self { out, mut beside, path } = self;
        let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        fs::rename(&beside.path, path)?;
        beside.is_placed = true;
        Ok(file)
    }

    /// [`NewFile::place`] that returns when content and name are durable.
    ///
    /// # Errors
    /// As [`NewFile::sync`] and [`NewFile::place`]. Where the name alone cannot be made durable, the file has it.
    pub fn place_durably(mut self) -> io::Result<File> {
        self.sync()?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).to_owned();
        let file = self.place()?;
        sync_folder(&folder)?;
        Ok(file)
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Seek for NewFile {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.out.seek(position)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if !self.is_placed {
            // What cannot be removed stays; the error that led here is the one to report.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A name for a file or folder until it is whole: `.NAME.new` in the same folder, which lists do not show.
pub fn hidden_beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    path.with_file_name(name)
}

/// Makes `content` that of the file at `path`, by way of the file `beside` it (see [`NewFile`]).
///
/// # Errors
/// A failure to write; the file is as it was then.
pub fn replace_file(path: &Path, beside: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = NewFile::create(path, beside)?;
    file.write_all(content)?;
    file.place().map(drop)
}

/// Returns when the names of the files in a folder are durable.
///
/// # Errors
/// A folder that cannot be opened; a failure to write.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    // Windows cannot open folders; its renames are journalled.
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let (path, beside) = (folder.path().join("file"), folder.path().join("file.new"));
        let names = || {
            let mut names: Vec<_> =
                fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
            names.sort();
            names
        };
        // What a killed program left.
        fs::write(&beside, "longer than what follows").unwrap();
        replace_file(&path, &beside, b"first").unwrap();
        assert_eq!((names(), fs::read(&path).unwrap()), (vec!["file".into()], b"first".to_vec()));

        let mut dropped = NewFile::create(&path, &beside).unwrap();
        dropped.write_all(b"second").unwrap();
        assert_eq!((names().len(), fs::read(&path).unwrap()), (2, b"first".to_vec()));
        drop(dropped);
        assert_eq!((names(), fs::read(&path).unwrap()), (vec!["file".into()], b"first".to_vec()));

        let mut placed = NewFile::create(&path, &beside).unwrap();
        placed.write_all(b"_hird").unwrap();
        placed.seek(SeekFrom::Start(0)).unwrap();
        placed.write_all(b"t").unwrap();
        placed.seek(SeekFrom::End(0)).unwrap();
        let mut file = placed.place_durably().unwrap();
        file.write_all(b", and more").unwrap();
        assert_eq!((names(), fs::read(&path).unwrap()), (vec!["file".into()], b"third, and more".to_vec()));
    }

    #[test]
    fn what_cannot_have_its_name_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, beside) = (folder.path().join("taken"), folder.path().join("taken.new"));
        fs::create_dir(&path).unwrap();
        assert!(replace_file(&path, &beside, b"content").is_err());
        assert!(path.is_dir() && !beside.exists());
        assert!(replace_file(&folder.path().join("none/file"), &folder.path().join("none/file.new"), b"").is_err());
    }

    #[cfg(unix)]
    #[test]
    fn permissions_are_those_of_other_files() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("other"), "").unwrap();
        replace_file(&path("file"), &path("file.new"), b"").unwrap();
        let mode = |name: &str| fs::metadata(path(name)).unwrap().permissions().mode();
        assert_eq!(mode("file"), mode("other"));
    }
}
