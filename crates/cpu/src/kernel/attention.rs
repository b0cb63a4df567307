//! Attention and its gradient.

use super::{CallError, Kernel, Operands, Unsupported};
use crate::attention::AttentionDesc;
use crate::gemm::Ctx;
use bessemer_ir::TensorType;
use bessemer_ir::ops::attention::{Attention, AttentionGrad};

/// # Errors
/// When heads are too deep.
pub(super) fn forward(attention: &Attention, types: &[&TensorType]) -> Result<Box<dyn Kernel>, Unsupported> {
    Ok(Box::new(Forward(AttentionDesc::new(attention, types)?)))
}

/// # Errors
/// When heads are too deep.
pub(super) fn backward(grad: &AttentionGrad, types: &[&TensorType]) -> Result<Box<dyn Kernel>, Unsupported> {
    Ok(Box::new(Backward(AttentionDesc::new(&grad.attention, types)?)))
}

struct Forward(AttentionDesc);

impl Kernel for Forward {
    fn name(&self) -> String {
        "attention by blocks of queries".to_string()
    }

    fn scratch_len(&self, threads: usize) -> usize {
        self.0.forward_scratch_len(threads)
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe { self.0.run_forward(ctx, operands) };
        Ok(())
    }
}

struct Backward(AttentionDesc);

impl Kernel for Backward {
    fn name(&self) -> String {
        "attention gradient by blocks of queries".to_string()
    }

    fn scratch_len(&self, threads: usize) -> usize {
        self.0.backward_scratch_len(threads)
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe { self.0.run_backward(ctx, operands) };
        Ok(())
    }
}
