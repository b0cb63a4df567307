//! The limits of the machine, measured: fused multiply-adds a second and memory bytes a second.

use crate::isa::Isa;
use crate::simd::{NEIGHBOURS, PanelFormat, Simd, SimdOp, TILE_STEPS, TileProduct};
use bessemer_ir::run::DeviceLimits;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Time for the trials of one limit. On a machine that others use as well, only uninterrupted moments show the limit
/// the limit, so that there are many short trials.
const TRIAL_TIME: Duration = Duration::from_millis(400);
/// Trials of a thread at least, however long they take.
const MIN_TRIALS: usize = 5;
const FMA_ROUNDS: usize = 100_000;
/// Accumulators, enough to cover the latency of the units.
const CHAINS: usize = 12;
/// Numbers that a thread has in memory, and those that it reads in one trial: when it comes back to the first ones, they
/// have left the cache.
const MEMORY_LEN: usize = 16 << 20;
const READ_LEN: usize = 1 << 20;

/// Measures for about a second with the given number of threads.
pub fn measure(isa: Isa, threads: usize) -> DeviceLimits {
    let threads = threads.max(1);
    let fma_flops = (FMA_ROUNDS * CHAINS * lanes(isa) * 2) as f64;
    let fp32_flops = best_rate(threads, fma_flops, &|_, _| {
        // SAFETY: the instruction set is checked by `run_on`; no memory is touched.
        black_box(unsafe { FmaChains.run_on(isa) });
    });
    let bf16_flops = match PanelFormat::of_bf16(isa) {
        PanelFormat::Tiles => Some(best_rate(threads, TILE_FLOPS, &|_, _| multiply_tiles(isa))),
        PanelFormat::Dot2 if has_bf16(isa) => Some(best_rate(threads, 2.0 * fma_flops, &|_, _| bf16_chains())),
        PanelFormat::F32 | PanelFormat::Dot2 => None,
    };
    let memory: Vec<Vec<f32>> = (0..threads).map(|t| vec![1.0 + t as f32; MEMORY_LEN]).collect();
    let read_bytes = best_rate(threads, (READ_LEN * 4) as f64, &|thread, trial| {
        let start = trial * READ_LEN % MEMORY_LEN;
        // SAFETY: the vector outlives the call.
        black_box(unsafe { Sum(&memory[thread][start..start + READ_LEN]).run_on(isa) });
    });
    DeviceLimits { fp32_flops, tf32_flops: None, bf16_flops, f16_flops: None, read_bytes }
}

/// When a trial began and ended, in seconds.
type Trial = (f64, f64);

/// Work a second of all threads at their best moment. Each of them calls `work(thread, trial)` over and over, which does
/// `amount` of work.
fn best_rate(threads: usize, amount: f64, work: &(dyn Fn(usize, usize) + Sync)) -> f64 {
    let origin = Instant::now();
    let run = |thread: usize| {
        stay_apart(thread, threads);
        let mut trials: Vec<Trial> = Vec::new();
        while trials.len() < MIN_TRIALS || origin.elapsed() < TRIAL_TIME {
            let start = origin.elapsed().as_secs_f64();
            work(thread, trials.len());
            trials.push((start, origin.elapsed().as_secs_f64()));
        }
        trials
    };
    let trials: Vec<Trial> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        handles.into_iter().flat_map(|handle| handle.join().expect("a trial does not panic")).collect()
    });
    amount * most_at_once(&trials)
}

/// Keeps the calling thread, one of `threads`, on a processor of its own if there are just as many. Threads that have
/// just been started may otherwise share one for as long as the measurement lasts.
#[cfg(target_os = "linux")]
fn stay_apart(thread: usize, threads: usize) {
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: sets of processors are plain bits, for which zero is valid; the calls get their size, and processors are
    // numbered below `CPU_SETSIZE`.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size, &mut allowed) != 0 || libc::CPU_COUNT(&allowed) as usize != threads {
            return;
        }
        let mut processors = (0..libc::CPU_SETSIZE as usize).filter(|&processor| libc::CPU_ISSET(processor, &allowed));
        let Some(processor) = processors.nth(thread) else { return };
        let mut own: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut own);
        libc::sched_setaffinity(0, size, &own);
    }
}

#[cfg(not(target_os = "linux"))]
fn stay_apart(_thread: usize, _threads: usize) {}

/// Trials a second at the moment when they go fastest: the greatest sum of the rates of those that are under way. One
/// that was interrupted has a low rate, so that threads do not count twice that take turns on one processor.
fn most_at_once(trials: &[Trial]) -> f64 {
    let rate = |(start, end): Trial| 1.0 / (end - start).max(1e-9);
    let begins = trials.iter().map(|&trial| (trial.0, rate(trial)));
    let ends = trials.iter().map(|&trial| (trial.1, -rate(trial)));
    let mut changes: Vec<(f64, f64)> = begins.chain(ends).collect();
    // Of changes at the same time the ends are first.
    changes.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let (mut current, mut most) = (0.0, 0.0_f64);
    for (_, change) in changes {
        current += change;
        most = most.max(current);
    }
    most
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
    unsafe { Lanes.run_on(isa) }
}

struct FmaChains;

impl SimdOp for FmaChains {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f32 {
        // SAFETY: run on an instruction set that the machine has; registers and one array on the stack.
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
        // SAFETY: run on an instruction set that the machine has; loads stay within whole groups of the slice.
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

/// Which instructions multiply operands of `bf16` where the instruction set has any for that here.
pub fn bf16_unit(isa: Isa) -> Option<&'static str> {
    match PanelFormat::of_bf16(isa) {
        PanelFormat::Tiles => Some("AMX tiles"),
        PanelFormat::Dot2 => Some("AVX-512 BF16"),
        PanelFormat::F32 => None,
    }
}

/// Whether vectors of the instruction set have arithmetic of `bf16` here.
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

/// Steps of the product of tiles that is repeated: its operands stay in the first-level cache.
const TILE_DEPTH: usize = 128;
/// Distance of rows, so that they fall into different cache sets.
const TILE_PITCH: usize = TILE_DEPTH + 16;
const TILE_REPEATS: usize = 100;
const TILE_BLOCK: usize = 2 * TILE_STEPS;
/// Each step is a pair of products and additions.
const TILE_FLOPS: f64 = (TILE_REPEATS * TILE_BLOCK * TILE_BLOCK * TILE_DEPTH * 4) as f64;

/// Multiplies blocks of tiles.
fn multiply_tiles(isa: Isa) {
    /// On cache lines, as packed operands are.
    #[repr(align(64))]
    struct Aligned<const LEN: usize>([f32; LEN]);
    struct Repeated<'a>(&'a Aligned<OPERAND_LEN>, &'a mut Aligned<OUTPUT_LEN>);
    impl SimdOp for Repeated<'_> {
        type Output = ();
        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            for _ in 0..TILE_REPEATS {
                let product = TileProduct {
                    row_tiles: 2,
                    col_tiles: 2,
                    depth: TILE_DEPTH,
                    a: self.0.0.as_ptr(),
                    a_stride: TILE_PITCH,
                    a_offsets: NEIGHBOURS.as_ptr(),
                    b: self.0.0.as_ptr(),
                    c: self.1.0.as_mut_ptr(),
                    c_stride: TILE_BLOCK,
                    accumulate: false,
                    prefetch: self.0.0.as_ptr(),
                    prefetch_pitch: 0,
                    prefetch_pieces: 1,
                };
                // SAFETY: run on an instruction set that the machine has; the operands have the elements.
                unsafe { S::tile_product(&product) };
            }
        }
    }
    const OPERAND_LEN: usize = TILE_BLOCK * TILE_PITCH;
    const OUTPUT_LEN: usize = TILE_BLOCK * TILE_BLOCK;
    let (operands, mut c) = (Aligned([0.0; OPERAND_LEN]), Aligned([0.0; OUTPUT_LEN]));
    // SAFETY: the slices have the elements of the operands.
    unsafe { Repeated(&operands, &mut c).run_product_on(isa, PanelFormat::Tiles) };
    black_box(c.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_moment_counts() {
        assert_eq!(most_at_once(&[(0.0, 1.0), (1.0, 1.5), (1.5, 3.5)]), 2.0, "one thread, of which one trial is fast");
        assert_eq!(most_at_once(&[(0.0, 1.0), (0.5, 1.5)]), 2.0, "two threads at once");
        let turns = [(0.0, 1.0), (1.0, 3.0), (3.0, 4.0), (0.0, 2.0), (2.0, 3.0), (3.0, 5.0)];
        assert_eq!(most_at_once(&turns), 1.5, "two threads that take turns");
    }

    #[test]
    fn all_threads_do_trials() {
        let calls = [0, 1].map(|_| std::sync::atomic::AtomicUsize::new(0));
        let rate = best_rate(2, 3.0, &|thread, trial| {
            assert_eq!(calls[thread].fetch_add(1, std::sync::atomic::Ordering::SeqCst), trial);
            std::thread::sleep(Duration::from_millis(if trial == 3 { 10 } else { 50 }));
        });
        // Each thread has one trial of 10 ms, or a little more.
        assert!((70.0..=600.0).contains(&rate), "{rate}");
        assert!(calls.into_iter().all(|count| count.into_inner() >= MIN_TRIALS));
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
