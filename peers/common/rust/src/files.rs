//! Files of tensors.

use crate::Result;
use crate::request::at;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Values in order, the last axis fastest.
#[derive(Clone, Debug, PartialEq)]
pub struct Array<T = f32> {
    pub shape: Vec<usize>,
    pub values: Vec<T>,
}

impl<T: Copy> Array<T> {
    /// The parts along the first axis.
    pub(crate) fn split(&self) -> Vec<Self> {
        let shape = self.shape[1..].to_vec();
        let size = shape.iter().product::<usize>().max(1);
        self.values.chunks(size).map(|part| Self { shape: shape.clone(), values: part.to_vec() }).collect()
    }
}

/// Tensors of a file, as bytes.
pub(crate) struct Tensors(BTreeMap<String, Raw>);

struct Raw {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Tensors {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let content = fs::read(path).map_err(|error| at(path, error))?;
        let found = SafeTensors::deserialize(&content).map_err(|error| at(path, error))?;
        let raw = |view: &TensorView<'_>| Raw {
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            bytes: view.data().to_vec(),
        };
        Ok(Self(found.iter().map(|(name, view)| (name.to_owned(), raw(&view))).collect()))
    }

    /// All of them, f32.
    pub(crate) fn into_floats(self) -> Result<BTreeMap<String, Array>> {
        let names: Vec<String> = self.0.keys().cloned().collect();
        names.into_iter().map(|name| Ok((name.clone(), self.get(&name, Dtype::F32, f32::from_le_bytes)?))).collect()
    }

    pub(crate) fn floats(&self, name: &str) -> Result<Array> {
        self.get(name, Dtype::F32, f32::from_le_bytes)
    }

    pub(crate) fn integers(&self, name: &str) -> Result<Array<i32>> {
        self.get(name, Dtype::I32, i32::from_le_bytes)
    }

    pub(crate) fn bytes(&self, name: &str) -> Result<Array<u8>> {
        self.get(name, Dtype::U8, u8::from_le_bytes)
    }

    fn get<T, const SIZE: usize>(&self, name: &str, dtype: Dtype, value: fn([u8; SIZE]) -> T) -> Result<Array<T>> {
        let raw = self.0.get(name).ok_or_else(|| format!("there is no tensor `{name}`"))?;
        if raw.dtype != dtype {
            return Err(format!("`{name}` is {:?}, not {dtype:?}", raw.dtype).into());
        }
        let (chunks, _) = raw.bytes.as_chunks();
        Ok(Array { shape: raw.shape.clone(), values: chunks.iter().copied().map(value).collect() })
    }
}

/// Writes f32 tensors.
pub(crate) fn write(path: &Path, tensors: &[(&str, Array)]) -> Result<()> {
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|(_, array)| array.values.iter().flat_map(|value| value.to_le_bytes()).collect()).collect();
    let views = tensors
        .iter()
        .zip(&bytes)
        .map(|((name, array), bytes)| Ok((*name, TensorView::new(Dtype::F32, array.shape.clone(), bytes)?)));
    let views = views.collect::<Result<Vec<_>>>()?;
    Ok(safetensors::serialize_to_file(views, None, path).map_err(|error| at(path, error))?)
}
