use half::{bf16, f16};
use safetensors::Dtype;
use std::borrow::Cow;

/// A tensor with its name: dense, row-major, little-endian.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor<'a> {
    /// Name in the file.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Size of each axis, outermost first.
    pub shape: Vec<usize>,
    /// Elements in row-major order, little-endian.
    pub data: Cow<'a, [u8]>,
}

/// Why a tensor of a file cannot be converted.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TensorError {
    #[error("tensor `{name}` holds {dtype:?}; only F16, BF16, F32 and F64 convert to F32")]
    NotFloat { name: String, dtype: Dtype },
    #[error("tensor `{name}`: element {index} is {value}, which F32 cannot hold")]
    OutOfRange { name: String, index: usize, value: f64 },
    #[error("tensor `{name}`: {dtype:?} of shape {shape:?} needs {expected}, found {found} bytes")]
    Size { name: String, dtype: Dtype, shape: Vec<usize>, expected: String, found: usize },
}

impl<'a> NamedTensor<'a> {
    /// A tensor over bytes that exist already.
    ///
    /// # Errors
    /// [`TensorError::Size`] if the bytes are not exactly those of `shape` elements of `dtype`.
    pub fn new(
        name: impl Into<String>,
        dtype: Dtype,
        shape: impl Into<Vec<usize>>,
        data: impl Into<Cow<'a, [u8]>>,
    ) -> Result<Self, TensorError> {
        let tensor = Self { name: name.into(), dtype, shape: shape.into(), data: data.into() };
        let expected = byte_size(dtype, &tensor.shape);
        if expected == Some(tensor.data.len()) {
            return Ok(tensor);
        }
        let expected = expected.map_or("an impossible size".to_owned(), |bytes| format!("{bytes} bytes"));
        let Self { name, dtype, shape, data } = tensor;
        Err(TensorError::Size { name, dtype, shape, expected, found: data.len() })
    }

    /// An F32 tensor that borrows `values`.
    ///
    /// # Errors
    /// [`TensorError::Size`] if `shape` does not have `values.len()` elements.
    pub fn from_f32(
        name: impl Into<String>,
        shape: impl Into<Vec<usize>>,
        values: &'a [f32],
    ) -> Result<Self, TensorError> {
        Self::new(name, Dtype::F32, shape, bytemuck::cast_slice::<f32, u8>(values))
    }

    /// The elements as F32. F16 and BF16 convert exactly, F64 rounds to nearest.
    ///
    /// # Errors
    /// Integer and other types, and F64 values beyond the range of F32.
    pub fn to_f32(&self) -> Result<Vec<f32>, TensorError> {
        match self.dtype {
            Dtype::F16 => Ok(self.map_elements(|b| f16::from_le_bytes(b).to_f32())),
            Dtype::BF16 => Ok(self.map_elements(|b| bf16::from_le_bytes(b).to_f32())),
            Dtype::F32 => Ok(self.map_elements(f32::from_le_bytes)),
            Dtype::F64 => {
                let overflows = |b| {
                    let value = f64::from_le_bytes(b);
                    value.is_finite() && (value as f32).is_infinite()
                };
                if let Some((index, bytes)) = self.find_element(overflows) {
                    let value = f64::from_le_bytes(bytes);
                    return Err(TensorError::OutOfRange { name: self.name.clone(), index, value });
                }
                Ok(self.map_elements(|b| f64::from_le_bytes(b) as f32))
            }
            dtype => Err(TensorError::NotFloat { name: self.name.clone(), dtype }),
        }
    }

    /// The same tensor as F32; one that is F32 already is passed on as it is.
    ///
    /// # Errors
    /// As [`NamedTensor::to_f32`].
    pub fn into_f32(self) -> Result<Self, TensorError> {
        if self.dtype == Dtype::F32 {
            return Ok(self);
        }
        let data = bytemuck::cast_slice(&self.to_f32()?).to_vec();
        Ok(Self { dtype: Dtype::F32, data: Cow::Owned(data), ..self })
    }

    /// Index of the first NaN or infinity; `None` also for types that are not floating point.
    pub fn first_non_finite(&self) -> Option<usize> {
        match self.dtype {
            Dtype::F16 => self.find_element(|b| !f16::from_le_bytes(b).is_finite()).map(|(index, _)| index),
            Dtype::BF16 => self.find_element(|b| !bf16::from_le_bytes(b).is_finite()).map(|(index, _)| index),
            Dtype::F32 => self.find_element(|b| !f32::from_le_bytes(b).is_finite()).map(|(index, _)| index),
            Dtype::F64 => self.find_element(|b| !f64::from_le_bytes(b).is_finite()).map(|(index, _)| index),
            _ => None,
        }
    }

    fn map_elements<const N: usize, T>(&self, convert: impl Fn([u8; N]) -> T) -> Vec<T> {
        self.data.as_chunks().0.iter().map(|bytes| convert(*bytes)).collect()
    }

    fn find_element<const N: usize>(&self, found: impl Fn([u8; N]) -> bool) -> Option<(usize, [u8; N])> {
        self.data.as_chunks().0.iter().copied().enumerate().find(|(_, bytes)| found(*bytes))
    }
}

/// Bytes of a dense tensor, `None` if they overflow or end inside a byte.
pub(crate) fn byte_size(dtype: Dtype, shape: &[usize]) -> Option<usize> {
    let elements = shape.iter().try_fold(1_usize, |product, extent| product.checked_mul(*extent))?;
    let bits = elements.checked_mul(dtype.bitsize())?;
    (bits % 8 == 0).then_some(bits / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts_to_f32() {
        let halves: Vec<u8> = [1.5_f32, -0.25].iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
        let tensor = NamedTensor::new("h", Dtype::F16, [2], halves).unwrap();
        assert_eq!(tensor.to_f32().unwrap(), [1.5, -0.25]);

        let brains: Vec<u8> = [3.0_f32, 0.5].iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
        let tensor = NamedTensor::new("b", Dtype::BF16, [2, 1], brains).unwrap().into_f32().unwrap();
        assert_eq!((tensor.dtype, tensor.shape.as_slice()), (Dtype::F32, [2, 1].as_slice()));
        assert_eq!(tensor.to_f32().unwrap(), [3.0, 0.5]);

        let doubles: Vec<u8> = [0.1_f64, f64::NEG_INFINITY].iter().flat_map(|v| v.to_le_bytes()).collect();
        let tensor = NamedTensor::new("d", Dtype::F64, [2], doubles).unwrap();
        assert_eq!(tensor.to_f32().unwrap(), [0.1, f32::NEG_INFINITY]);
    }

    #[test]
    fn refuses_what_f32_cannot_hold() {
        let doubles: Vec<u8> = [0.1_f64, 1e300].iter().flat_map(|v| v.to_le_bytes()).collect();
        let tensor = NamedTensor::new("d", Dtype::F64, [2], doubles).unwrap();
        assert!(matches!(tensor.to_f32(), Err(TensorError::OutOfRange { index: 1, .. })));
        let tensor = NamedTensor::new("i", Dtype::I32, [1], vec![0; 4]).unwrap();
        assert!(matches!(tensor.into_f32(), Err(TensorError::NotFloat { .. })));
    }

    #[test]
    fn finds_the_first_non_finite_element() {
        let values = [0.0, 1.0, f32::NAN, f32::INFINITY];
        assert_eq!(NamedTensor::from_f32("x", [4], &values).unwrap().first_non_finite(), Some(2));
        assert_eq!(NamedTensor::from_f32("x", [2], &values[..2]).unwrap().first_non_finite(), None);
    }

    #[test]
    fn size_must_fit() {
        let error = NamedTensor::from_f32("w", [3, 2], &[0.0; 5]).unwrap_err();
        assert_eq!(error.to_string(), "tensor `w`: F32 of shape [3, 2] needs 24 bytes, found 20 bytes");
        assert!(NamedTensor::new("w", Dtype::F32, [usize::MAX, 2], vec![]).is_err());
    }
}
