//! Rows of a table chosen by index.

use super::{Kernel, Operands, Unsupported, only_f32};
use crate::gemm::Ctx;
use crate::index::{self, IndexOutOfRange, ScatterDesc};
use bessemer_ir::TensorType;
use bessemer_ir::ops::index::ScatterAdd;

/// The kernel for a table of any type.
pub(super) fn gather(types: &[&TensorType]) -> Box<dyn Kernel> {
    let rows = types[0].shape[0].max(1);
    let (table_bytes, indices) = (types[0].bytes(), types[1].shape.elements());
    Box::new(Gather { table_bytes, row_bytes: table_bytes / rows, indices })
}

/// The kernel for `f32` updates.
///
/// # Errors
/// When they are of another type.
pub(super) fn scatter_add(scatter: &ScatterAdd, types: &[&TensorType]) -> Result<Box<dyn Kernel>, Unsupported> {
    only_f32(&types[..1])?;
    let (updates, indices) = (types[0].shape.elements(), types[1].shape.elements());
    let width = types[0].shape[types[1].shape.rank()..].iter().product();
    debug_assert_eq!(updates, indices * width);
    Ok(Box::new(Scatter(ScatterDesc { rows: scatter.rows, width, indices })))
}

struct Gather {
    table_bytes: usize,
    row_bytes: usize,
    indices: usize,
}

impl Kernel for Gather {
    fn name(&self) -> String {
        "gather".to_string()
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), IndexOutOfRange> {
        // SAFETY: the caller's promise.
        unsafe {
            let (table, list) = (operands.input(0, self.table_bytes), operands.input(1, self.indices));
            let out = operands.output(self.indices * self.row_bytes);
            index::gather(ctx, table, self.row_bytes, list, out)
        }
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

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), IndexOutOfRange> {
        let ScatterDesc { rows, width, indices } = self.0;
        // SAFETY: the caller's promise.
        unsafe {
            let (updates, list) = (operands.floats(0, indices * width), operands.input(1, indices));
            index::scatter_add(ctx, &self.0, updates, list, operands.output(rows * width), operands.scratch())
        }
    }
}
