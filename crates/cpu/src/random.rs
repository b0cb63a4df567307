//! Random numbers: the streams of [`bessemer_ir::philox`], bit for bit, several blocks of four at a time.

use crate::gemm::Ctx;
use crate::parts::{CHUNK, for_chunks};
use bessemer_ir::philox::{self, MULTIPLIERS, ROUNDS, WEYL};

/// Blocks computed at a time.
const BLOCKS: usize = 8;

/// Random numbers of the given number of blocks.
const NUMBERS: usize = 4 * BLOCKS;

/// Key of a stream of random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Seed of the run.
    pub seed: u64,
    /// Step counter: each step draws different numbers.
    pub step: u32,
    /// Distinguishes the random nodes of one step.
    pub stream: u32,
}

/// What `of` makes of the words of the blocks `first..first + BLOCKS`. A word is the low half of its 64 bits: what stands above it
/// is cut off where it is read, which the vector multiplication of 32-bit numbers does by itself.
#[inline(always)]
fn numbers<T: Copy + Default>(stream: Stream, first: u64, of: impl Fn(u32) -> T) -> [T; NUMBERS] {
    let mut numbers = [T::default(); NUMBERS];
    let mut keys = [[u64::from(stream.seed as u32), stream.seed >> 32]; ROUNDS];
    for round in 1..ROUNDS {
        for half in 0..2 {
            keys[round][half] = u64::from((keys[round - 1][half] as u32).wrapping_add(WEYL[half]));
        }
    }
    for b in 0..BLOCKS {
        let index = first + b as u64;
        let mut c = [index, index >> 32, u64::from(stream.step), u64::from(stream.stream)];
        for key in &keys {
            let p0 = u64::from(MULTIPLIERS[0]) * u64::from(c[0] as u32);
            let p1 = u64::from(MULTIPLIERS[1]) * u64::from(c[2] as u32);
            c = [p1 >> 32 ^ c[1] ^ key[0], p1, p0 >> 32 ^ c[3] ^ key[1], p0];
        }
        for w in 0..4 {
            numbers[4 * b + w] = of(c[w] as u32);
        }
    }
    numbers
}

/// Fills `out` with the elements from `first` on of a uniform stream, under the instruction set of the caller.
#[inline(always)]
pub(crate) fn fill_uniform(seed: u64, step: u32, stream: u32, first: u64, out: &mut [f32]) {
    let of = |word: u32| (word >> 8) as i32 as f32 * (1.0 / 16_777_216.0);
    fill(Stream { seed, step, stream }, first, out, of);
}

/// Fills `out` with the elements from `first` on of a stream of words, under the instruction set of the caller.
#[inline(always)]
pub(crate) fn fill_words(stream: Stream, first: u64, out: &mut [u32]) {
    fill(stream, first, out, |word| word);
}

#[inline(always)]
fn fill<T: Copy + Default>(stream: Stream, first: u64, out: &mut [T], of: impl Fn(u32) -> T) {
    let mut block = first / 4;
    // Numbers of the first block that come before `first`.
    let mut skipped = (first % 4) as usize;
    let mut done = 0;
    while done < out.len() {
        let numbers = numbers(stream, block, &of);
        let rest = &mut out[done..];
        if skipped == 0 && rest.len() >= NUMBERS {
            rest[..NUMBERS].copy_from_slice(&numbers);
            done += NUMBERS;
        } else {
            let len = rest.len().min(NUMBERS - skipped);
            rest[..len].copy_from_slice(&numbers[skipped..][..len]);
            done += len;
            skipped = 0;
        }
        block += BLOCKS as u64;
    }
}

/// Fills `out` with the standard normal stream.
pub fn normal(ctx: Ctx<'_>, stream: Stream, out: &mut [f32]) {
    let Stream { seed, step, stream } = stream;
    for_chunks(ctx, out, CHUNK, &|task, out| {
        for (i, x) in out.iter_mut().enumerate() {
            *x = philox::normal(seed, step, stream, (task * CHUNK + i) as u64);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::simd::{Simd, SimdOp};

    /// The elements from `first` on of a uniform stream.
    struct Uniform<'a> {
        stream: Stream,
        first: u64,
        out: &'a mut [f32],
    }

    impl SimdOp for Uniform<'_> {
        type Output = ();

        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            let Stream { seed, step, stream } = self.stream;
            fill_uniform(seed, step, stream, self.first, self.out);
        }
    }

    /// Every beginning and end within the blocks, and counters on both sides of 32 bits.
    #[test]
    fn pieces_are_those_of_the_stream() {
        let stream = Stream { seed: 0x1234_5678_9ABC_DEF0, step: 7, stream: 3 };
        for start in [0, 1, 2, 3, 5, 64, (1 << 34) - 9] {
            for len in [0, 1, 2, 3, 4, 31, 32, 33, 70, 131] {
                let expected: Vec<f32> =
                    (start..start + len).map(|i| philox::uniform(stream.seed, stream.step, stream.stream, i)).collect();
                for isa in Isa::available() {
                    let mut out = vec![-1.0; len as usize];
                    // SAFETY: the kernel has no conditions.
                    unsafe { Uniform { stream, first: start, out: &mut out }.run_on(isa) };
                    assert_eq!(out, expected, "{isa}, {len} from {start}");
                }
            }
        }
    }
}
