//! Reductions that no fused kernel does, and positions of maxima.

use super::{CallError, Kernel, Operands, Unsupported, only_f32};
use crate::gemm::Ctx;
use crate::rowwise;
use bessemer_ir::ops::reduce::{Reduce, ReduceKind};
use bessemer_ir::{Shape, TensorType};

/// The shape as `[outer, middle, inner]` with the reduced axes in the middle, if these are neighbours.
fn in_three(shape: &Shape, axes: &[usize]) -> Option<[usize; 3]> {
    let (first, last) = (*axes.first()?, *axes.last()?);
    (last - first + 1 == axes.len()).then(|| {
        let product = |dims: &[usize]| dims.iter().product();
        [product(&shape[..first]), product(&shape[first..=last]), product(&shape[last + 1..])]
    })
}

/// The kernel for an `f32` operand.
///
/// # Errors
/// When it is of another type, or the axes are not neighbours.
pub(super) fn reduce(reduce: &Reduce, types: &[&TensorType]) -> Result<Box<dyn Kernel>, Unsupported> {
    only_f32(types)?;
    let Reduce { kind, axes, .. } = reduce;
    match in_three(&types[0].shape, axes) {
        Some(dims) => Ok(Box::new(Reduction { kind: *kind, dims })),
        None => Err(Unsupported::Axes { axes: axes.clone(), rank: types[0].shape.rank() }),
    }
}

/// The kernel for an `f32` operand.
///
/// # Errors
/// When it is of another type.
pub(super) fn arg_max(types: &[&TensorType]) -> Result<Box<dyn Kernel>, Unsupported> {
    only_f32(types)?;
    Ok(Box::new(ArgMax { rows: types[0].shape.rows(), cols: types[0].shape.cols() }))
}

/// `[outer, middle, inner]` over the middle axis.
struct Reduction {
    kind: ReduceKind,
    dims: [usize; 3],
}

impl Kernel for Reduction {
    fn name(&self) -> String {
        "reduction".to_string()
    }

    fn scratch_len(&self, _threads: usize) -> usize {
        rowwise::reduce_scratch_len(self.dims)
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        let dims = self.dims;
        // SAFETY: the caller's promise.
        unsafe {
            let x = operands.floats(0, dims.iter().product());
            rowwise::reduce(ctx, self.kind, dims, x, operands.output(dims[0] * dims[2]), operands.scratch());
        }
        Ok(())
    }
}

struct ArgMax {
    rows: usize,
    cols: usize,
}

impl Kernel for ArgMax {
    fn name(&self) -> String {
        "arg-max by rows".to_string()
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe {
            let x = operands.floats(0, self.rows * self.cols);
            rowwise::arg_max(ctx, x, self.cols, operands.output(self.rows));
        }
        Ok(())
    }
}
