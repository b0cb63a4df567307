//! Random numbers: the streams of [`bessemer_ir::philox`], bit for bit, a block of four at a time.

use crate::gemm::Ctx;
use crate::parts::{PIECE, for_pieces};
use crate::simd::{self, Simd, SimdOp};
use bessemer_ir::philox;

/// Blocks computed at a time.
const BLOCKS: usize = 16;

/// Which stream: the seed, the step, and the number of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    pub seed: u64,
    pub step: u32,
    pub stream: u32,
}

/// The elements from `4 * first_block` on of a uniform stream.
struct Uniform<'a> {
    stream: Stream,
    first_block: u64,
    out: &'a mut [f32],
}

impl SimdOp for Uniform<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Stream { seed, step, stream } = self.stream;
        let key = [seed as u32, (seed >> 32) as u32];
        for (i, out) in self.out.chunks_mut(4 * BLOCKS).enumerate() {
            let first = self.first_block + (i * BLOCKS) as u64;
            let mut numbers = [0.0; 4 * BLOCKS];
            for (b, four) in numbers.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let index = first + b as u64;
                let words = philox::block([index as u32, (index >> 32) as u32, step, stream], key);
                *four = words.map(|word| (word >> 8) as f32 * (1.0 / 16_777_216.0));
            }
            out.copy_from_slice(&numbers[..out.len()]);
        }
    }
}

/// Fills `out` with the uniform stream: numbers in `[0, 1)`.
pub fn uniform(ctx: Ctx<'_>, stream: Stream, out: &mut [f32]) {
    for_pieces(ctx, out, PIECE, &|task, out| {
        let first_block = (task * PIECE / 4) as u64;
        // SAFETY: the kernel has no conditions.
        unsafe { simd::dispatch(ctx.isa, Uniform { stream, first_block, out }) }
    });
}

/// Fills `out` with the standard normal stream.
pub fn normal(ctx: Ctx<'_>, stream: Stream, out: &mut [f32]) {
    let Stream { seed, step, stream } = stream;
    for_pieces(ctx, out, PIECE, &|task, out| {
        for (i, x) in out.iter_mut().enumerate() {
            *x = philox::normal(seed, step, stream, (task * PIECE + i) as u64);
        }
    });
}
