//! Elements of tensors as they lie in memory.

use crate::dtype::DType;
use crate::ops::source::Constant;

/// A constant's elements, row-major.
pub fn constant_bytes(constant: &Constant) -> Vec<u8> {
    let size = constant.dtype.size();
    let mut bytes = vec![0; constant.shape.elements() * size];
    for (index, element) in bytes.chunks_exact_mut(size).enumerate() {
        let x = constant.at(index);
        match constant.dtype {
            DType::F32 => element.copy_from_slice(&(x as f32).to_ne_bytes()),
            DType::I32 => element.copy_from_slice(&(x as i32).to_ne_bytes()),
            DType::Bf16 => element.copy_from_slice(&half::bf16::from_f64(x).to_ne_bytes()),
            DType::F16 => element.copy_from_slice(&half::f16::from_f64(x).to_ne_bytes()),
            DType::U8 => element[0] = x as u8,
            DType::Bool => element[0] = u8::from(x != 0.0),
        }
    }
    bytes
}

/// Least and greatest finite element of a tensor of floats, and whether all are finite.
///
/// # Panics
/// If the bytes are not aligned to elements of the type.
pub fn finite_range(dtype: DType, bytes: &[u8]) -> ((f32, f32), bool) {
    match dtype {
        DType::Bf16 => range(bytemuck::cast_slice(bytes).iter().map(|&x| half::bf16::from_bits(x).to_f32())),
        DType::F16 => range(bytemuck::cast_slice(bytes).iter().map(|&x| half::f16::from_bits(x).to_f32())),
        _ => range(bytemuck::cast_slice::<u8, f32>(bytes).iter().copied()),
    }
}

fn range(data: impl Iterator<Item = f32>) -> ((f32, f32), bool) {
    let mut finite = true;
    let mut bounds = (f32::INFINITY, f32::NEG_INFINITY);
    for x in data {
        if x.is_finite() {
            bounds = (bounds.0.min(x), bounds.1.max(x));
        } else {
            finite = false;
        }
    }
    (bounds, finite)
}
