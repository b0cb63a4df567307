//! Results and operands in 16 bits of kernels that compute `f32`: they are widened before and rounded behind.

use bessemer_ir::DType;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Scratch elements for tensors of these lengths in `f32`, where they are of another type.
pub(super) fn widened_len(ty: DType, lengths: &[usize]) -> usize {
    if ty == DType::F32 { 0 } else { lengths.iter().sum() }
}

/// # Safety
/// As many elements of a type of 16 bits lie at `from`.
pub(super) unsafe fn widen(ty: DType, from: *const u8, to: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe {
        match ty {
            DType::Bf16 => std::slice::from_raw_parts(from.cast::<bf16>(), to.len()).convert_to_f32_slice(to),
            _ => std::slice::from_raw_parts(from.cast::<f16>(), to.len()).convert_to_f32_slice(to),
        }
    }
}

/// # Safety
/// As many elements of a type of 16 bits have room at `to`, and nothing else uses them.
pub(super) unsafe fn round(ty: DType, from: &[f32], to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        match ty {
            DType::Bf16 => std::slice::from_raw_parts_mut(to.cast::<bf16>(), from.len()).convert_from_f32_slice(from),
            _ => std::slice::from_raw_parts_mut(to.cast::<f16>(), from.len()).convert_from_f32_slice(from),
        }
    }
}
