//! Operations that move elements, whatever their type.

use super::{CallError, Kernel, Operands};
use crate::gemm::Ctx;
use crate::layout::{self, Repeat, StridedCopy};
use bessemer_ir::TensorType;
use bessemer_ir::ops::layout::{Broadcast, Concat, Pad, Slice, Transpose};
use bessemer_ir::ops::pool::Upsample;

pub(super) fn transpose(op: &Transpose, types: &[&TensorType]) -> Box<dyn Kernel> {
    one(StridedCopy::transpose(types[0].dtype.size(), &types[0].shape, &op.perm))
}

pub(super) fn slice(op: &Slice, types: &[&TensorType]) -> Box<dyn Kernel> {
    one(StridedCopy::slice(types[0].dtype.size(), &types[0].shape, &op.start, &op.stop, &op.step))
}

pub(super) fn broadcast(op: &Broadcast, types: &[&TensorType]) -> Box<dyn Kernel> {
    one(StridedCopy::broadcast(types[0].dtype.size(), &types[0].shape, &op.shape))
}

pub(super) fn pad(op: &Pad, types: &[&TensorType], output: &TensorType) -> Box<dyn Kernel> {
    let copy = StridedCopy::pad(types[0].dtype.size(), &types[0].shape, &op.low, &op.interior, &output.shape);
    Box::new(Copies { copies: vec![copy], zeroed_bytes: output.bytes() })
}

pub(super) fn concat(op: &Concat, types: &[&TensorType], output: &TensorType) -> Box<dyn Kernel> {
    let total = output.shape[op.axis];
    let mut start = 0;
    let mut copies = Vec::new();
    for part in types {
        copies.push(StridedCopy::concat(part.dtype.size(), &part.shape, op.axis, start, total));
        start += part.shape[op.axis];
    }
    Box::new(Copies { copies, zeroed_bytes: 0 })
}

/// For a tensor `[N, H, W, C]` of any type.
pub(super) fn upsample(op: &Upsample, types: &[&TensorType]) -> Box<dyn Kernel> {
    let shape = &types[0].shape;
    let pixel_bytes = shape[3] * types[0].dtype.size();
    Box::new(Repeats(Repeat { rows: shape[0] * shape[1], width: shape[2], pixel_bytes, factors: op.factors }))
}

/// Pixels of an image, repeated.
struct Repeats(Repeat);

impl Kernel for Repeats {
    fn name(&self) -> String {
        "pixel repetition".to_string()
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe {
            let (x, y) = (operands.input(0, self.0.input_bytes()), operands.output(self.0.output_bytes()));
            self.0.run(ctx, x, y);
        }
        Ok(())
    }
}

fn one(copy: StridedCopy) -> Box<dyn Kernel> {
    Box::new(Copies { copies: vec![copy], zeroed_bytes: 0 })
}

/// Copies of the inputs, in order, into the output, which is zeroed first if they do not fill it.
struct Copies {
    copies: Vec<StridedCopy>,
    zeroed_bytes: usize,
}

impl Kernel for Copies {
    fn name(&self) -> String {
        "strided copy".to_string()
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe {
            layout::zero(ctx, operands.output(self.zeroed_bytes));
            for (copy, &input) in self.copies.iter().zip(operands.inputs) {
                copy.run(ctx, input, operands.outputs[0]);
            }
        }
        Ok(())
    }
}
