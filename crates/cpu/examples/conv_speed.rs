//! Times the convolutions of ResNet-50 in all three directions, beside the machine's multiply-add peak, and where
//! Winograd's convolution applies that one too: with weights transformed in the call, and before.
//!
//! `conv_speed [batch] [threads] [repeats] [isa] [name filter]`

use std::alloc::{Layout, alloc};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};

use bessemer_cpu::conv::winograd::{self, Direction};
use bessemer_cpu::conv::{
    ConvDesc, data_grad, data_grad_scratch_len, forward, forward_scratch_len, weight_grad, weight_grad_scratch_len,
};
use bessemer_cpu::gemm::{Ctx, Output};
use bessemer_cpu::isa::Isa;
use bessemer_cpu::simd::{Simd, SimdOp, dispatch};
use bessemer_cpu::threads::ThreadPool;

/// Input size, input channels, output channels, kernel, stride, occurrences.
const LAYERS: [[usize; 6]; 21] = [
    [224, 3, 64, 7, 2, 1],
    [56, 64, 64, 1, 1, 1],
    [56, 256, 64, 1, 1, 2],
    [56, 64, 64, 3, 1, 3],
    [56, 64, 256, 1, 1, 4],
    [56, 256, 128, 1, 1, 1],
    [56, 128, 128, 3, 2, 1],
    [56, 256, 512, 1, 2, 1],
    [28, 128, 512, 1, 1, 4],
    [28, 512, 128, 1, 1, 3],
    [28, 128, 128, 3, 1, 3],
    [28, 512, 256, 1, 1, 1],
    [28, 256, 256, 3, 2, 1],
    [28, 512, 1024, 1, 2, 1],
    [14, 256, 1024, 1, 1, 6],
    [14, 1024, 256, 1, 1, 5],
    [14, 256, 256, 3, 1, 5],
    [14, 1024, 512, 1, 1, 1],
    [14, 512, 512, 3, 2, 1],
    [14, 1024, 2048, 1, 2, 1],
    [7, 512, 2048, 1, 1, 3],
];
const LAST_LAYERS: [[usize; 6]; 2] = [[7, 2048, 512, 1, 1, 2], [7, 512, 512, 3, 1, 2]];

const HUGE_PAGE: usize = 2 << 20;

/// Memory on huge pages, where the system has them, filled with small varied numbers.
fn buffer(len: usize) -> &'static mut [f32] {
    let layout = Layout::from_size_align((len.max(1) * 4).next_multiple_of(HUGE_PAGE), HUGE_PAGE).unwrap();
    // SAFETY: the layout is not empty, and all numbers of the slice are written first.
    unsafe {
        let memory = alloc(layout);
        assert!(!memory.is_null(), "out of memory");
        libc::madvise(memory.cast(), layout.size(), libc::MADV_HUGEPAGE);
        let numbers = memory.cast::<f32>();
        for i in 0..len.max(1) {
            numbers.add(i).write((i * 7919 % 1024) as f32 / 1024.0 - 0.5);
        }
        std::slice::from_raw_parts_mut(numbers, len)
    }
}

/// Seconds on a clock: with one thread its processor time, which other processes disturb less than the wall clock.
fn now(threads: usize) -> f64 {
    let clock = if threads == 1 { libc::CLOCK_THREAD_CPUTIME_ID } else { libc::CLOCK_MONOTONIC };
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the call.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// The fastest of some calls.
#[derive(Clone, Copy)]
struct Timing {
    seconds: f64,
    /// Best share of the peak, each call against the peak just before and after it, so that changes of the clock
    /// rate cancel.
    share: f64,
}

fn fastest(ctx: Ctx<'_>, repeats: usize, flops: f64, mut f: impl FnMut()) -> Timing {
    let threads = ctx.pool.threads();
    let mut best = Timing { seconds: f64::INFINITY, share: 0.0 };
    let mut before = peak(ctx);
    for _ in 0..=repeats {
        let start = now(threads);
        f();
        let seconds = now(threads) - start;
        let after = peak(ctx);
        let share = flops / seconds / before.max(after);
        before = after;
        best = Timing { seconds: best.seconds.min(seconds), share: best.share.max(share) };
    }
    best
}

const CHAINS: usize = 12;
const ROUNDS: usize = 10_000;

struct Peak;

impl SimdOp for Peak {
    type Output = usize;

    /// Runs independent chains of multiply-adds; the number of multiply-adds.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> usize {
        // SAFETY: `dispatch` calls this under `S::vectorize`; the array holds the stored vector.
        unsafe {
            let mut sums = [S::splat(black_box(1.0)); CHAINS];
            let factor = S::splat(black_box(0.5));
            for _ in 0..ROUNDS {
                for sum in &mut sums {
                    *sum = S::mul_add(*sum, factor, factor);
                }
            }
            let mut out = [0.0f32; 16];
            for sum in sums {
                S::store(out.as_mut_ptr(), sum);
                black_box(&out);
            }
            CHAINS * ROUNDS * S::LANES
        }
    }
}

/// Floating-point operations per second of all threads.
fn peak(ctx: Ctx<'_>) -> f64 {
    let threads = ctx.pool.threads();
    let macs = AtomicUsize::new(0);
    let once = |_| {
        let start = now(threads);
        ctx.pool.run(threads, &|_, _| {
            // SAFETY: `Peak` has no conditions.
            let count = unsafe { dispatch(ctx.isa, Peak) };
            macs.store(count, Ordering::Relaxed);
        });
        now(threads) - start
    };
    let seconds = (0..5).map(once).fold(f64::INFINITY, f64::min);
    2.0 * (macs.into_inner() * threads) as f64 / seconds
}

fn describe([size, c_in, c_out, kernel, stride, _]: [usize; 6], n: usize) -> ConvDesc {
    let pad = kernel / 2;
    let out = (size + 2 * pad - kernel) / stride + 1;
    ConvDesc {
        n,
        h: size,
        w: size,
        c_in,
        kh: kernel,
        kw: kernel,
        c_out,
        oh: out,
        ow: out,
        stride: [stride; 2],
        dilation: [1; 2],
        pad: [pad; 2],
    }
}

/// Times the three directions.
fn time(ctx: Ctx<'_>, d: &ConvDesc, repeats: usize) -> [Timing; 3] {
    let flops = 2.0 * d.macs() as f64;
    let threads = ctx.pool.threads();
    let x = buffer(d.n * d.h * d.w * d.c_in);
    let w = buffer(d.kh * d.kw * d.c_in * d.c_out);
    let y = buffer(d.n * d.oh * d.ow * d.c_out);
    let scratch = buffer(
        forward_scratch_len(d, threads).max(data_grad_scratch_len(d, threads)).max(weight_grad_scratch_len(d, threads)),
    );
    let result = [
        fastest(ctx, repeats, flops, || forward(ctx, d, &*x, &*w, Output::new(y), scratch, None)),
        fastest(ctx, repeats, flops, || weight_grad(ctx, d, &*x, &*y, Output::new(w), scratch)),
        fastest(ctx, repeats, flops, || data_grad(ctx, d, &*y, &*w, Output::new(x), scratch, None)),
    ];
    [x, w, y, scratch].into_iter().for_each(free);
    [result[0], result[2], result[1]]
}

/// Frees a [`buffer`] that is not used any more.
fn free(memory: &'static mut [f32]) {
    // SAFETY: the memory came from `buffer` with this layout, and its last use is over.
    unsafe {
        let bytes = (memory.len().max(1) * 4).next_multiple_of(HUGE_PAGE);
        std::alloc::dealloc(memory.as_mut_ptr().cast(), Layout::from_size_align(bytes, HUGE_PAGE).unwrap());
    }
}

/// Times Winograd's convolution in one direction: with the transform of the weights, and without.
fn time_winograd(ctx: Ctx<'_>, d: &ConvDesc, direction: Direction, repeats: usize) -> [Timing; 2] {
    let flops = 2.0 * d.macs() as f64;
    let x = buffer(d.n * d.h * d.w * d.c_in);
    let w = buffer(9 * d.c_in * d.c_out);
    let y = buffer(d.n * d.oh * d.ow * d.c_out);
    let transformed = buffer(winograd::weights_len(d, direction));
    let scratch = buffer(winograd::scratch_len(d, direction, ctx.pool.threads()));
    let (from, to) = if direction == Direction::Forward { (&*x, &mut *y) } else { (&*y, &mut *x) };
    let mut run = |weights: &[f32]| {
        winograd::run(ctx, d, direction, from, weights, Output::new(to), scratch, None);
    };
    let both = fastest(ctx, repeats, flops, || {
        winograd::transform_weights(ctx, d, direction, w, transformed);
        run(transformed);
    });
    let result = [both, fastest(ctx, repeats, flops, || run(transformed))];
    [x, w, y, transformed, scratch].into_iter().for_each(free);
    result
}

fn print_winograd(ctx: Ctx<'_>, d: &ConvDesc, repeats: usize) {
    let directions = [Direction::Forward, Direction::DataGrad];
    if !directions.into_iter().all(|direction| winograd::applies(d, direction, true)) {
        return;
    }
    let times = directions.map(|direction| time_winograd(ctx, d, direction, repeats));
    for (i, name) in ["  Winograd", "  Winograd, transformed weights"].into_iter().enumerate() {
        print!("{name:32}");
        for t in times {
            print_timing(t[i], 2.0 * d.macs() as f64);
        }
        println!();
    }
}

fn print_timing(t: Timing, work: f64) {
    print!("{:9.2} ms{:6.0}{:6.1} % ", t.seconds * 1e3, work / t.seconds / 1e9, 100.0 * t.share);
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: usize| args.get(i).map_or(default, |a| a.parse().expect("a number"));
    let (batch, threads, repeats) = (number(0, 16), number(1, 1), number(2, 5));
    let isa = args.get(3).map_or_else(Isa::detect, |name| name.parse().expect("an instruction set"));
    let filter = args.get(4).map_or("", String::as_str);

    let pool = ThreadPool::new(threads);
    let ctx = Ctx { isa, pool: &pool };
    println!("batch {batch}, {threads} threads, {isa}, peak {:.0} GFLOP/s", peak(ctx) / 1e9);
    println!("{:32}{:>26}{:>26}{:>26}", "", "forward", "data gradient", "weight gradient");
    // Seconds, floating-point operations, operations that the peak would have done.
    let mut total = [(0.0, 0.0, 0.0); 3];
    for layer in LAYERS.into_iter().chain(LAST_LAYERS) {
        let [size, c_in, c_out, kernel, stride, count] = layer;
        let name = format!("{size}x{size} {c_in}->{c_out} {kernel}x{kernel} s{stride} x{count}");
        if !name.contains(filter) {
            continue;
        }
        let d = describe(layer, batch);
        let work = 2.0 * d.macs() as f64;
        print!("{name:32}");
        for (i, t) in time(ctx, &d, repeats).into_iter().enumerate() {
            print_timing(t, work);
            if i != 1 || c_in != 3 {
                total[i].0 += t.seconds * count as f64;
                total[i].1 += work * count as f64;
                total[i].2 += work * count as f64 / t.share;
            }
        }
        println!();
        print_winograd(ctx, &d, repeats);
    }
    print!("{:32}", "total (no data gradient of stem)");
    for (t, work, possible) in total {
        print!("{:9.2} ms{:6.0}{:6.1} % ", t * 1e3, work / t / 1e9, 100.0 * work / possible);
    }
    println!();
}
