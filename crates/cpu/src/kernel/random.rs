//! Random numbers outside fused kernels.

use super::{CallError, Kernel, Operands, Unsupported};
use crate::gemm::Ctx;
use crate::random::{self, Stream};
use bessemer_ir::ops::source::{Distribution, Random};

/// The kernel of a distribution.
///
/// # Errors
/// When fused kernels draw from it.
pub(super) fn lower(random: &Random) -> Result<Box<dyn Kernel>, Unsupported> {
    match random.distribution {
        Distribution::Normal => {
            Ok(Box::new(Normal { seed: random.seed, stream: random.stream, elements: random.shape.elements() }))
        }
        Distribution::Uniform => Err(Unsupported::OutsideFusion),
    }
}

struct Normal {
    seed: u64,
    stream: u32,
    elements: usize,
}

impl Kernel for Normal {
    fn name(&self) -> String {
        "normal random numbers".to_string()
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe {
            let step: &[i32] = operands.input(0, 1);
            let stream = Stream { seed: self.seed, step: step[0] as u32, stream: self.stream };
            random::normal(ctx, stream, operands.output(self.elements));
        }
        Ok(())
    }
}
