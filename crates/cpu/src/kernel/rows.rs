//! Elements of tables chosen by index.

use super::{CallError, Kernel, Operands, Unsupported, only_f32};
use crate::gemm::Ctx;
use crate::index::{self, ScatterDesc};
use bessemer_ir::TensorType;
use bessemer_ir::ops::index::{Gather, IndexGeometry, ScatterAdd};

/// The kernel for a table of any type.
///
/// # Errors
/// What does not fit.
pub(super) fn gather(gather: &Gather, types: &[&TensorType]) -> Result<Box<dyn Kernel>, Unsupported> {
    let geometry = gather.geometry(&types[0].shape, &types[1].shape)?;
    Ok(Box::new(RowGather { geometry, row_bytes: geometry.width * types[0].dtype.size() }))
}

/// The kernel for `f32` updates.
///
/// # Errors
/// When they are of another type.
pub(super) fn scatter_add(scatter: &ScatterAdd, types: &[&TensorType]) -> Result<Box<dyn Kernel>, Unsupported> {
    only_f32(&types[..1])?;
    Ok(Box::new(Scatter(ScatterDesc(scatter.geometry(&types[0].shape, &types[1].shape)?))))
}

struct RowGather {
    geometry: IndexGeometry,
    row_bytes: usize,
}

impl Kernel for RowGather {
    fn name(&self) -> String {
        "gather".to_string()
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        let RowGather { geometry, row_bytes } = self;
        // SAFETY: the caller's promise.
        unsafe {
            let table = operands.input(0, geometry.table_rows() * row_bytes);
            let list = operands.input(1, geometry.batches * geometry.items);
            index::gather(ctx, geometry, table, *row_bytes, list, operands.output(geometry.chosen() * row_bytes))?;
        }
        Ok(())
    }
}

struct Scatter(ScatterDesc);

impl Kernel for Scatter {
    fn name(&self) -> String {
        "scatter-add".to_string()
    }

    fn scratch_len(&self, _threads: usize) -> usize {
        self.0.scratch_len()
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        let geometry = &self.0.0;
        // SAFETY: the caller's promise.
        unsafe {
            let updates = operands.floats(0, geometry.chosen() * geometry.width);
            let list = operands.input(1, geometry.batches * geometry.items);
            let out = operands.output(geometry.table_rows() * geometry.width);
            index::scatter_add(ctx, &self.0, updates, list, out, operands.scratch())?;
        }
        Ok(())
    }
}
