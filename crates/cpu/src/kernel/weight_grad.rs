//! Gradients of convolutions with respect to their weights.

use super::contraction::{AffineOperands, conv_desc, limit};
use super::rounded::{round, widened_len};
use super::{CallError, Kernel, Operands, Unsupported};
use crate::conv::grouped::{self, GroupedDesc};
use crate::conv::winograd::{self, Direction};
use crate::conv::{self, ConvDesc};
use crate::gemm::{Ctx, Output};
use bessemer_ir::ops::conv::Conv2dWeightGrad;
use bessemer_ir::{DType, TensorType};

/// The kernel for an input and an output gradient of these types.
///
/// # Errors
/// Operands that do not fit each other.
pub(super) fn lower(
    grad: &Conv2dWeightGrad,
    prologue: Option<AffineOperands>,
    is_limited: bool,
    types: &[&TensorType],
) -> Result<Box<dyn Kernel>, Unsupported> {
    let geometry = grad.geometry(&types[0].shape, &types[1].shape)?;
    let conv = conv_desc(&geometry, &grad.conv);
    match (geometry.groups, types[0].dtype) {
        (1, dtype) => Ok(Box::new(Whole { conv, dtype, output: grad.output, prologue, is_limited })),
        (groups, dtype) => Ok(Box::new(Grouped(GroupedDesc { conv, groups, dtype }))),
    }
}

/// Of a convolution of one group.
struct Whole {
    conv: ConvDesc,
    dtype: DType,
    output: DType,
    prologue: Option<AffineOperands>,
    /// Whether the third operand says how many items of the batch there are.
    is_limited: bool,
}

impl Whole {
    /// Elements of the result.
    fn weights(&self) -> usize {
        self.conv.kh * self.conv.kw * self.conv.c_in * self.conv.c_out
    }

    /// Whether Winograd's algorithm computes `conv`, with all or some of the batch.
    fn by_winograd(&self, conv: &ConvDesc) -> bool {
        self.dtype == DType::F32 && winograd::weight_grad_applies(conv)
    }
}

impl Kernel for Whole {
    fn name(&self) -> String {
        let name = if self.by_winograd(&self.conv) { winograd::NAME } else { "outer product of windows" };
        name.to_string()
    }

    fn own_flops(&self) -> Option<u64> {
        self.by_winograd(&self.conv).then(|| winograd::flops(&self.conv, Direction::Forward))
    }

    fn scratch_len(&self, threads: usize) -> usize {
        let least = if self.is_limited { 1 } else { self.conv.n };
        let of_first = |n: usize| {
            let conv = ConvDesc { n, ..self.conv };
            match self.by_winograd(&conv) {
                true => winograd::weight_grad_scratch_len(&conv, threads),
                false => conv::weight_grad_scratch_len(&conv, self.dtype, threads),
            }
        };
        (least..=self.conv.n).map(of_first).max().unwrap_or(0) + widened_len(self.output, &[self.weights()])
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        let Whole { mut conv, dtype, output, prologue, is_limited } = *self;
        // SAFETY: the caller's promise; the operands have the elements the description states.
        unsafe {
            if is_limited {
                conv.n = limit(operands, conv.n);
            }
            let x = operands.elements(0, dtype, conv.n * conv.h * conv.w * conv.c_in);
            let dy = operands.elements(1, dtype, conv.n * conv.oh * conv.ow * conv.c_out);
            let (wide, scratch) = operands.scratch().split_at_mut(widened_len(output, &[self.weights()]));
            let to = if output == DType::F32 { operands.outputs[0].cast() } else { wide.as_mut_ptr() };
            let dw = Output::from_raw(to, self.weights());
            let x = prologue.map_or(x.into(), |prologue| prologue.apply_to(x, operands));
            if conv.n == 0 {
                dw.zero_behind(ctx, 0);
            } else if self.by_winograd(&conv) {
                winograd::weight_grad(ctx, &conv, x, dy, dw, scratch);
            } else {
                conv::weight_grad(ctx, &conv, x, dy, dw, scratch);
            }
            if output != DType::F32 {
                round(output, wide, operands.outputs[0]);
            }
        }
        Ok(())
    }
}

struct Grouped(GroupedDesc);

impl Kernel for Grouped {
    fn name(&self) -> String {
        self.0.name().to_string()
    }

    fn scratch_len(&self, threads: usize) -> usize {
        grouped::weight_grad_scratch_len(&self.0, threads)
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        let d = &self.0;
        // SAFETY: the caller's promise; the operands have the elements the description states.
        unsafe {
            let x = operands.elements(0, d.dtype, d.input_len());
            let dy = operands.elements(1, d.dtype, d.output_len());
            let dw = Output::from_raw(operands.outputs[0].cast(), d.weight_len());
            grouped::weight_grad(ctx, d, x, dy, dw, operands.scratch());
        }
        Ok(())
    }
}
