//! The few operations on files whose order and durability matter, behind a trait so that tests can stop between any
//! two of them.

use bessemer_data::{hidden_beside, sync_folder};
use bessemer_weights::{FileError, publish_file};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// A file being written.
pub(super) trait Sink: Write {
    /// Returns when all bytes are durable.
    fn sync(&mut self) -> io::Result<()>;
}

impl Sink for BufWriter<File> {
    fn sync(&mut self) -> io::Result<()> {
        self.flush()?;
        self.get_ref().sync_all()
    }
}

/// What a checkpoint asks of the file system when it is written.
pub(super) trait Disk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn Sink>>;
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove_folder(&self, path: &Path) -> io::Result<()>;
}

pub(super) struct RealDisk;

impl Disk for RealDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn Sink>> {
        Ok(Box::new(BufWriter::with_capacity(1 << 20, File::create(path)?)))
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        sync_folder(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }
}

/// Makes `content` that of the file at `path`, which is left alone if it has it already.
pub(crate) fn publish_content(path: &Path, content: &[u8]) -> Result<(), FileError> {
    match fs::read(path) {
        Ok(present) if present == content => Ok(()),
        _ => publish_file(path, |sink| sink.write_all(content)),
    }
}

/// Replaces the file at `path` by what `write` produces, or leaves it as it was.
pub(super) fn publish(
    disk: &dyn Disk,
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), FileError> {
    let beside = hidden_beside(path);
    let result = write_and_rename(disk, &beside, path, write);
    if result.is_err() {
        let _ = fs::remove_file(&beside);
    }
    result.map_err(|source| FileError::writing(path, source))
}

fn write_and_rename(
    disk: &dyn Disk,
    beside: &Path,
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut sink = disk.create(beside)?;
    write(&mut sink)?;
    sink.sync()?;
    drop(sink);
    disk.rename(beside, path)?;
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    disk.sync_folder(folder.unwrap_or(Path::new(".")))
}
