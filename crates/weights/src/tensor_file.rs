//! Tensors of a safetensors file, read one by one: nothing is held but what is used.

use crate::error::FileError;
use crate::safetensors_file::{read_layout, read_tensor};
use crate::tensor::NamedTensor;
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// An open file.
pub struct TensorFile {
    path: PathBuf,
    file: File,
    /// Where the data begin.
    start: u64,
    /// In the order in which they lie.
    infos: Vec<(String, TensorInfo)>,
}

impl TensorFile {
    /// Opens a file and reads what stands before the data.
    ///
    /// # Errors
    /// An unreadable, truncated or contradictory file.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let io_error = |source| FileError::reading(path, source);
        let mut file = File::open(path).map_err(io_error)?;
        let length = file.metadata().map_err(io_error)?.len();
        let (start, infos) = read_layout(&mut file, length, path)?;
        Ok(Self { path: path.to_owned(), file, start, infos })
    }

    /// Names of the tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.infos.iter().map(|(name, _)| name.as_str())
    }

    /// Size of each axis of a tensor.
    ///
    /// # Errors
    /// There is no such tensor.
    pub fn shape(&self, name: &str) -> Result<&[usize], FileError> {
        self.info(name).map(|info| info.shape.as_slice())
    }

    fn info(&self, name: &str) -> Result<&TensorInfo, FileError> {
        let found = self.infos.iter().find(|(known, _)| known == name);
        let expected = || format!("there is no tensor `{name}`");
        found.map(|(_, info)| info).ok_or_else(|| FileError::NotFound { path: self.path.clone(), expected: expected() })
    }

    /// Reads a tensor.
    ///
    /// # Errors
    /// There is no such tensor; a file that cannot be read.
    pub fn read(&self, name: &str) -> Result<NamedTensor<'static>, FileError> {
        let info = self.info(name)?.clone();
        let place = SeekFrom::Start(self.start + info.data_offsets.0 as u64);
        let mut file = &self.file;
        file.seek(place).map_err(|source| FileError::reading(&self.path, source))?;
        read_tensor(&mut file, name.to_owned(), info, &self.path)
    }

    /// The numbers of a tensor of `f32`.
    ///
    /// # Errors
    /// As [`TensorFile::read`]; a tensor of another type.
    pub fn read_f32(&self, name: &str) -> Result<Vec<f32>, FileError> {
        let dtype = self.info(name)?.dtype;
        if dtype != Dtype::F32 {
            let (path, reason) = (self.path.clone(), format!("it is {dtype:?}, not F32"));
            return Err(FileError::Tensor { path, tensor: name.to_owned(), reason });
        }
        Ok(self.read(name)?.data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }
}
