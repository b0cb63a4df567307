//! Sums over ranks: what is computed is done by the device's [`Collectives`](bessemer_ir::run::Collectives).

use super::{CallError, Kernel, Operands};
use crate::gemm::Ctx;
use bessemer_ir::TensorType;
use bessemer_ir::ops::collective::AllReduce;

pub(super) fn all_reduce(op: AllReduce, types: &[&TensorType]) -> Box<dyn Kernel> {
    Box::new(Whole {
        start: Start { op, lens: lens(types.iter().copied()) },
        wait: Wait { lens: lens(types.iter().copied()) },
    })
}

pub(super) fn start(op: AllReduce, types: &[&TensorType]) -> Box<dyn Kernel> {
    Box::new(Start { op, lens: lens(types.iter().copied()) })
}

pub(super) fn wait(types: &[TensorType]) -> Box<dyn Kernel> {
    Box::new(Wait { lens: lens(types.iter()) })
}

/// Number of elements of each tensor.
fn lens<'a>(types: impl Iterator<Item = &'a TensorType>) -> Vec<usize> {
    types.map(|ty| ty.shape.elements()).collect()
}

struct Start {
    op: AllReduce,
    lens: Vec<usize>,
}

struct Wait {
    lens: Vec<usize>,
}

/// Both at once.
struct Whole {
    start: Start,
    wait: Wait,
}

impl Start {
    /// # Safety
    /// The inputs have the lengths that it was lowered for.
    unsafe fn begin(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<i32, CallError> {
        // SAFETY: the caller's promise.
        let tensor = |(index, &len): (usize, &usize)| unsafe { operands.floats(index, len) };
        let tensors: Vec<&[f32]> = self.lens.iter().enumerate().map(tensor).collect();
        ctx.collectives.start(&self.op, &tensors).map_err(CallError::Ranks)
    }
}

impl Wait {
    /// # Safety
    /// The outputs have the lengths that it was lowered for, and nothing else uses them meanwhile.
    unsafe fn finish(&self, ctx: Ctx<'_>, operands: &Operands<'_>, number: i32) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        let tensor = |(index, &len): (usize, &usize)| unsafe { operands.output_at(index, len) };
        let mut tensors: Vec<&mut [f32]> = self.lens.iter().enumerate().map(tensor).collect();
        ctx.collectives.wait(number, &mut tensors).map_err(CallError::Ranks)
    }
}

impl Kernel for Start {
    fn name(&self) -> String {
        "start of a sum over ranks".to_owned()
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe { operands.output(1)[0] = self.begin(ctx, operands)? };
        Ok(())
    }
}

impl Kernel for Wait {
    fn name(&self) -> String {
        "wait for a sum over ranks".to_owned()
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe { self.finish(ctx, operands, operands.input(0, 1)[0]) }
    }
}

impl Kernel for Whole {
    fn name(&self) -> String {
        "sum over ranks".to_owned()
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe { self.wait.finish(ctx, operands, self.start.begin(ctx, operands)?) }
    }
}
