//! Tensors as views of storages: shape, strides and offset, checked against the storage's size.

use super::pickle::{Object, Tensor, Unpickled, Value};
use crate::tensor::byte_size;
use safetensors::Dtype;

/// As many dimensions as PyTorch has.
const MAX_DIMS: usize = 64;

/// A tensor whose elements all lie within its storage.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct View {
    pub dtype: Dtype,
    /// The storage's name in the archive.
    pub storage: String,
    /// Size of the storage in bytes.
    pub storage_bytes: u64,
    pub shape: Vec<usize>,
    /// In elements.
    strides: Vec<usize>,
    offset: usize,
    /// Bytes of the dense tensor.
    pub bytes: usize,
}

impl View {
    /// # Errors
    /// Extents, strides or an offset that are no sizes, or that lead out of the storage.
    pub(super) fn new<'a>(pickle: &Unpickled<'a>, tensor: &Tensor<'a>) -> Result<Self, String> {
        let storage = tensor.storage;
        let shape = sizes(pickle, tensor.shape).ok_or("its shape is no tuple of at most 64 sizes")?;
        let strides = sizes(pickle, tensor.strides).ok_or("its strides are no tuple of at most 64 sizes")?;
        if shape.len() != strides.len() {
            return Err(format!("it has {} dimensions and {} strides", shape.len(), strides.len()));
        }
        let dtype = storage.dtype;
        let elements = usize::try_from(storage.elements).ok();
        let storage_bytes = elements.and_then(|elements| byte_size(dtype, &[elements]));
        let (Some(elements), Some(storage_bytes)) = (elements, storage_bytes) else {
            return Err(format!("its storage has an impossible size ({} elements)", storage.elements));
        };
        let bytes = byte_size(dtype, &shape).ok_or_else(|| format!("its shape {shape:?} is impossible"))?;
        let offset = usize::try_from(tensor.offset).map_err(|_| format!("its offset is {}", tensor.offset))?;
        let last = if bytes == 0 { Some(0) } else { last_element(&shape, &strides, offset) };
        if bytes > 0 && last.is_none_or(|last| last >= elements) {
            return Err(format!(
                "shape {shape:?}, strides {strides:?} and offset {offset} lead beyond its storage of {elements} elements"
            ));
        }
        let (storage, storage_bytes) = (storage.key.to_owned(), storage_bytes as u64);
        Ok(Self { dtype, storage, storage_bytes, shape, strides, offset, bytes })
    }

    /// Whether the elements lie one after another, as in a dense tensor.
    fn is_dense(&self) -> bool {
        let mut dense = 1;
        self.shape.iter().zip(&self.strides).rev().all(|(&extent, &stride)| {
            let fits = extent == 1 || stride == dense;
            dense *= extent;
            fits
        })
    }

    /// The bytes of the dense tensor, row-major. A storage that is nothing else is passed on as it is.
    ///
    /// # Panics
    /// If the storage is smaller than `storage_bytes`.
    pub(super) fn gather(&self, storage: &mut Vec<u8>, is_last: bool) -> Vec<u8> {
        let width = self.dtype.bitsize() / 8;
        if self.bytes == 0 {
            return Vec::new();
        }
        if self.is_dense() {
            if is_last && self.bytes == storage.len() {
                return std::mem::take(storage);
            }
            return storage[self.offset * width..][..self.bytes].to_vec();
        }
        let mut dense = Vec::with_capacity(self.bytes);
        let mut index = vec![0; self.shape.len()];
        let mut element = self.offset;
        while dense.len() < self.bytes {
            dense.extend_from_slice(&storage[element * width..][..width]);
            for axis in (0..index.len()).rev() {
                index[axis] += 1;
                element += self.strides[axis];
                if index[axis] < self.shape[axis] {
                    break;
                }
                element -= self.strides[axis] * self.shape[axis];
                index[axis] = 0;
            }
        }
        dense
    }
}

/// The position of the last element of a tensor that has elements; `None` if it overflows.
fn last_element(shape: &[usize], strides: &[usize], offset: usize) -> Option<usize> {
    shape
        .iter()
        .zip(strides)
        .try_fold(offset, |last, (extent, stride)| last.checked_add((extent - 1).checked_mul(*stride)?))
}

fn sizes<'a>(pickle: &Unpickled<'a>, value: Value<'a>) -> Option<Vec<usize>> {
    let Some(Object::Tuple(items)) = pickle.object(value) else { return None };
    let size = |item: &Value<'_>| if let Value::Int(size) = item { usize::try_from(*size).ok() } else { None };
    if items.len() > MAX_DIMS { None } else { items.iter().map(size).collect() }
}
