//! The few operations on files whose order and durability matter, behind a trait so that tests can stop between any
//! two of them.

use bessemer_data::sync_folder;
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
