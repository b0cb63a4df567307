//! The limits of the machine, measured: fused multiply-adds a second and memory bytes a second.

use crate::isa::Isa;
use crate::simd::{Simd, SimdOp, dispatch};
use crate::threads::ThreadPool;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Limits of the machine with a number of threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peaks {
    /// FLOP/s of fused multiply-adds in registers, `f32`.
    pub fp32_flops: f64,
    /// FLOP/s of pairwise `bf16` products added to `f32`, where the processor has them.
    pub bf16_flops: Option<f64>,
    /// Bytes a second read from memory.
    pub read_bytes: f64,
}

/// Time for the trials of one limit. On a machine that others use as well, only a trial that nobody interrupts tells the
/// limit, so that there are many short ones, of which the best counts.
const TRIAL_TIME: Duration = Duration::from_millis(350);
/// Trials at least, however long they take.
const MIN_TRIALS: usize = 5;
const FMA_ROUNDS: usize = 400_000;
/// Accumulators, enough to cover the latency of the units.
const CHAINS: usize = 12;
/// Numbers that a thread has in memory, and those that it reads in one trial: when it comes back to the first ones, they
/// have left the cache.
const MEMORY_LEN: usize = 16 << 20;
const READ_LEN: usize = 2 << 20;

/// Measures for about a second.
pub fn measure(isa: Isa, threads: usize) -> Peaks {
    let pool = ThreadPool::new(threads);
    let rate = |work: f64, run: &(dyn Fn(usize, usize) + Sync)| {
        let start = Instant::now();
        pool.run(threads, run);
        work * threads as f64 / start.elapsed().as_secs_f64()
    };
    let lanes = lanes(isa);
    let fma_flops = (FMA_ROUNDS * CHAINS * lanes * 2) as f64;
    let fp32_flops = best(|_| {
        rate(fma_flops, &|_, _| {
            // SAFETY: the instruction set is checked by `dispatch`; no memory is touched.
            black_box(unsafe { dispatch(isa, FmaChains) });
        })
    });
    let bf16_flops = has_bf16(isa).then(|| best(|_| rate(2.0 * fma_flops, &|_, _| bf16_chains())));
    let memory: Vec<Vec<f32>> = (0..threads).map(|t| vec![1.0 + t as f32; MEMORY_LEN]).collect();
    let read_bytes = best(|trial| {
        let start = trial * READ_LEN % MEMORY_LEN;
        rate((READ_LEN * 4) as f64, &|task, _| {
            // SAFETY: the vector outlives the call.
            black_box(unsafe { dispatch(isa, Sum(&memory[task][start..start + READ_LEN])) });
        })
    });
    Peaks { fp32_flops, bf16_flops, read_bytes }
}

/// The best rate of the trials, which are numbered.
fn best(mut trial: impl FnMut(usize) -> f64) -> f64 {
    let start = Instant::now();
    let mut best: f64 = 0.0;
    let mut trials = 0;
    while trials < MIN_TRIALS || start.elapsed() < TRIAL_TIME {
        best = best.max(trial(trials));
        trials += 1;
    }
    best
}

fn lanes(isa: Isa) -> usize {
    struct Lanes;
    impl SimdOp for Lanes {
        type Output = usize;
        #[inline(always)]
        unsafe fn run<S: Simd>(self) -> usize {
            S::LANES
        }
    }
    // SAFETY: only the constant is read.
    unsafe { dispatch(isa, Lanes) }
}

struct FmaChains;

impl SimdOp for FmaChains {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f32 {
        // SAFETY: dispatched; registers and one array on the stack.
        unsafe {
            let mut chains = [S::splat(1.0); CHAINS];
            let (factor, term) = (S::splat(black_box(0.999)), S::splat(black_box(1e-3)));
            for _ in 0..FMA_ROUNDS {
                for chain in &mut chains {
                    *chain = S::mul_add(*chain, factor, term);
                }
            }
            let mut sum = chains[0];
            for &chain in &chains[1..] {
                sum = S::add(sum, chain);
            }
            let mut out = [0.0f32; 16];
            S::store(out.as_mut_ptr(), sum);
            out[0]
        }
    }
}

struct Sum<'a>(&'a [f32]);

impl SimdOp for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f32 {
        // SAFETY: dispatched; loads stay within whole groups of the slice.
        unsafe {
            let mut sums = [S::splat(0.0); 8];
            let group = 8 * S::LANES;
            for start in (0..self.0.len() / group).map(|g| g * group) {
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = S::add(*sum, S::load(self.0.as_ptr().add(start + i * S::LANES)));
                }
            }
            let mut out = [0.0f32; 16];
            for sum in sums {
                S::store(out.as_mut_ptr(), sum);
                black_box(out[0]);
            }
            out[0]
        }
    }
}

/// Whether the instruction set comes with `bf16` dot products here.
pub fn has_bf16(isa: Isa) -> bool {
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx512 {
        return is_x86_feature_detected!("avx512bf16");
    }
    let _ = isa;
    false
}

#[cfg(target_arch = "x86_64")]
fn bf16_chains() {
    // SAFETY: called where `has_bf16` holds.
    unsafe { bf16_chains_avx512() }
}

#[cfg(not(target_arch = "x86_64"))]
fn bf16_chains() {}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
fn bf16_chains_avx512() {
    use std::arch::x86_64::{_mm512_cvtne2ps_pbh, _mm512_dpbf16_ps, _mm512_reduce_add_ps, _mm512_set1_ps};
    let ones = _mm512_set1_ps(black_box(1e-3));
    let pairs = _mm512_cvtne2ps_pbh(ones, ones);
    let mut chains = [_mm512_set1_ps(1.0); CHAINS];
    for _ in 0..FMA_ROUNDS {
        for chain in &mut chains {
            *chain = _mm512_dpbf16_ps(*chain, pairs, pairs);
        }
    }
    for chain in chains {
        black_box(_mm512_reduce_add_ps(chain));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_trial_counts() {
        let rates = [3.0, 1.0, 7.0, 2.0];
        let mut seen = 0;
        let most = best(|trial| {
            seen += 1;
            rates[trial % rates.len()]
        });
        assert!(most == 7.0 && seen >= MIN_TRIALS, "{most} of {seen} trials");
    }

    #[test]
    fn every_instruction_set_has_a_peak() {
        for isa in Isa::available() {
            let peaks = measure(isa, 1);
            assert!(peaks.fp32_flops > 1e8, "{isa}: {peaks:?}");
            assert!(peaks.read_bytes > 1e8, "{isa}: {peaks:?}");
        }
    }
}
