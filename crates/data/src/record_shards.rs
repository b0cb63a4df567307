//! Data sets that are cut into TFRecord files: their names, and writing them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::DataError;
use crate::tfrecord::frame;

/// Most shards of a set: their numbers have five digits.
pub(crate) const MOST_SHARDS: usize = 99_999;

/// Shards `NAME-NNNNN-of-NNNNN.tfrecord` of a folder, none where there are none.
pub(crate) fn shards_of(folder: &Path, name: &str) -> Result<Vec<PathBuf>, DataError> {
    let mut found: Vec<(usize, usize, PathBuf)> = Vec::new();
    for path in entries(folder)? {
        let numbers = path.file_name().and_then(OsStr::to_str).and_then(|file| shard_numbers(file, name));
        found.extend(numbers.map(|(number, count)| (number, count, path)));
    }
    found.sort();
    let Some(&(_, count, _)) = found.first() else { return Ok(Vec::new()) };
    if let Some((_, other, path)) = found.iter().find(|(_, other, _)| *other != count) {
        let problem = format!("a shard of {other}, beside shards of {count}");
        return Err(DataError::layout(path, problem, "the shards of one data set"));
    }
    let present: Vec<usize> = found.iter().map(|&(number, ..)| number).collect();
    if let Some(missing) = (0..count).find(|number| present.binary_search(number).is_err()) {
        let path = folder.join(shard_name(name, missing, count));
        return Err(DataError::layout(&path, "no such file", format!("all {count} shards of `{name}`")));
    }
    Ok(found.into_iter().map(|(.., path)| path).collect())
}

/// Name of a shard.
pub(crate) fn shard_name(name: &str, number: usize, count: usize) -> String {
    format!("{name}-{number:05}-of-{count:05}.tfrecord")
}

/// Number and count in the name of a shard; the extension may be absent.
fn shard_numbers(file: &str, name: &str) -> Option<(usize, usize)> {
    let stem = file.strip_suffix(".tfrecord").unwrap_or(file);
    let (number, count) = stem.strip_prefix(name)?.strip_prefix('-')?.split_once("-of-")?;
    let (number, count) = (number.parse().ok()?, count.parse().ok()?);
    (number < count).then_some((number, count))
}

/// What a folder holds.
pub(crate) fn entries(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let entries = fs::read_dir(folder).map_err(DataError::io(folder, "list the folder"))?;
    let paths: Result<Vec<PathBuf>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    paths.map_err(DataError::io(folder, "list the folder"))
}

/// A shard that is being written.
pub(crate) struct ShardWriter {
    path: PathBuf,
    file: BufWriter<File>,
    bytes: u64,
}

impl ShardWriter {
    pub(crate) fn create(path: PathBuf) -> Result<Self, DataError> {
        let file = File::create(&path).map_err(DataError::writing(&path, "create the file"))?;
        Ok(Self { path, file: BufWriter::with_capacity(1 << 20, file), bytes: 0 })
    }

    pub(crate) fn add(&mut self, payload: &[u8]) -> Result<(), DataError> {
        let record = frame(payload);
        self.bytes += record.len() as u64;
        self.file.write_all(&record).map_err(DataError::writing(&self.path, "write the file"))
    }

    /// Returns the bytes of the whole shard.
    pub(crate) fn finish(self) -> Result<u64, DataError> {
        let Self { path, file, bytes } = self;
        let written = file.into_inner().map_err(|error| error.into_error()).and_then(|file| file.sync_all());
        written.map_err(DataError::writing(&path, "write the file"))?;
        Ok(bytes)
    }
}
