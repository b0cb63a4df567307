//! Tensors of a safetensors file, read one by one: nothing is held but what is used.

use safetensors::tensor::{Metadata, TensorInfo};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// An open file.
pub struct TensorFile {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    /// Where the data begin.
    start: u64,
}

/// Bytes of the length in front of the header.
const LENGTH_BYTES: usize = 8;
/// No header is longer.
const MOST_HEADER: u64 = 100_000_000;

impl TensorFile {
    /// # Errors
    /// A file that cannot be read or is not in the format.
    pub fn open(path: &Path) -> io::Result<Self> {
        let damaged = |what: String| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", path.display()));
        let mut file = File::open(path).map_err(|error| damaged(error.to_string()))?;
        let mut head = vec![0; LENGTH_BYTES];
        file.read_exact(&mut head).map_err(|error| damaged(error.to_string()))?;
        let length = u64::from_le_bytes(head[..].try_into().expect("eight bytes"));
        if length > MOST_HEADER {
            return Err(damaged("not a safetensors file".to_owned()));
        }
        head.resize(LENGTH_BYTES + length as usize, 0);
        file.read_exact(&mut head[LENGTH_BYTES..]).map_err(|error| damaged(error.to_string()))?;
        let metadata = serde_json::from_slice(&head[LENGTH_BYTES..]).map_err(|error| damaged(error.to_string()))?;
        Ok(Self { path: path.to_owned(), file, metadata, start: head.len() as u64 })
    }

    pub fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// # Errors
    /// There is no such tensor.
    pub fn info(&self, name: &str) -> io::Result<TensorInfo> {
        let missing = || io::Error::other(format!("{}: there is no tensor `{name}`", self.path.display()));
        self.metadata.info(name).cloned().ok_or_else(missing)
    }

    /// The bytes of a tensor.
    ///
    /// # Errors
    /// There is no such tensor; a file that cannot be read.
    pub fn read(&mut self, name: &str) -> io::Result<Vec<u8>> {
        let (from, to) = self.info(name)?.data_offsets;
        self.file.seek(SeekFrom::Start(self.start + from as u64))?;
        let mut bytes = vec![0; to - from];
        self.file.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// The numbers of a tensor of `f32`.
    ///
    /// # Errors
    /// As [`TensorFile::read`]; a tensor of another type.
    pub fn read_f32(&mut self, name: &str) -> io::Result<Vec<f32>> {
        let dtype = self.info(name)?.dtype;
        if dtype != safetensors::Dtype::F32 {
            return Err(io::Error::other(format!("{}: `{name}` is {dtype:?}, not F32", self.path.display())));
        }
        Ok(self.read(name)?.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }
}
