//! Times the depthwise convolutions of EfficientNet-B0 in all three directions: milliseconds, GFLOP/s, GB/s and the share
//! of the time that is the least for their multiply-adds at the peak, or for their memory traffic, whichever is longer.
//! Where all data fits into a cache, it may be above 100 %.
//!
//! `depthwise_speed [batch] [image size] [threads] [repeats] [isa]`

use std::alloc::{Layout, alloc};

use bessemer_cpu::conv::ConvDesc;
use bessemer_cpu::conv::grouped::{
    GroupedDesc, data_grad, data_grad_scratch_len, forward, forward_scratch_len, weight_grad, weight_grad_scratch_len,
};
use bessemer_cpu::gemm::{Ctx, Output};
use bessemer_cpu::isa::Isa;
use bessemer_cpu::peak::{self, Peaks};
use bessemer_cpu::threads::ThreadPool;

/// Input size for images of 224 pixels, channels, kernel, stride, occurrences.
const LAYERS: [[usize; 5]; 12] = [
    [112, 32, 3, 1, 1],
    [112, 96, 3, 2, 1],
    [56, 144, 3, 1, 1],
    [56, 144, 5, 2, 1],
    [28, 240, 5, 1, 1],
    [28, 240, 3, 2, 1],
    [14, 480, 3, 1, 2],
    [14, 480, 5, 1, 1],
    [14, 672, 5, 1, 2],
    [14, 672, 5, 2, 1],
    [7, 1152, 5, 1, 3],
    [7, 1152, 3, 1, 1],
];

/// Padding and output size of an axis as TensorFlow's `SAME` has them.
fn same(size: usize, kernel: usize, stride: usize) -> (usize, usize) {
    let out = size.div_ceil(stride);
    (((out - 1) * stride + kernel).saturating_sub(size) / 2, out)
}

fn describe(n: usize, size: usize, channels: usize, kernel: usize, stride: usize) -> GroupedDesc {
    let (pad, out) = same(size, kernel, stride);
    let conv = ConvDesc {
        n,
        h: size,
        w: size,
        c_in: channels,
        kh: kernel,
        kw: kernel,
        c_out: channels,
        oh: out,
        ow: out,
        stride: [stride; 2],
        dilation: [1; 2],
        pad: [pad; 2],
    };
    GroupedDesc { conv, groups: channels }
}

/// Floating-point operations, without those on padding.
fn flops(d: &GroupedDesc) -> f64 {
    let c = &d.conv;
    let inside =
        |position: usize| (0..c.kw).filter(|tap| (c.pad[1]..c.pad[1] + c.w).contains(&(position + tap))).count();
    let along: usize = (0..c.ow).map(|position| inside(position * c.stride[1])).sum();
    2.0 * (c.n * c.c_in * along * along) as f64
}

const HUGE_PAGE: usize = 2 << 20;

/// Small varied numbers on huge pages, where the system has them. Never freed.
fn buffer(len: usize) -> &'static mut [f32] {
    let layout = Layout::from_size_align((len.max(1) * 4).next_multiple_of(HUGE_PAGE), HUGE_PAGE).expect("a size");
    // SAFETY: the layout is not empty, and all numbers of the slice are written first.
    unsafe {
        let memory = alloc(layout);
        assert!(!memory.is_null(), "out of memory");
        libc::madvise(memory.cast(), layout.size(), libc::MADV_HUGEPAGE);
        let numbers = memory.cast::<f32>();
        for i in 0..len {
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

/// Seconds of the fastest of some calls.
fn fastest(threads: usize, repeats: usize, mut f: impl FnMut()) -> f64 {
    let mut once = || {
        let start = now(threads);
        f();
        now(threads) - start
    };
    once();
    (0..repeats).map(|_| once()).fold(f64::INFINITY, f64::min)
}

/// Seconds of the forward pass and of the gradients of data and weights.
fn time(ctx: Ctx<'_>, d: &GroupedDesc, repeats: usize) -> [f64; 3] {
    let threads = ctx.pool.threads();
    let (x, w, y) = (buffer(d.input_len()), buffer(d.weight_len()), buffer(d.output_len()));
    let lens =
        [forward_scratch_len(d, threads), data_grad_scratch_len(d, threads), weight_grad_scratch_len(d, threads)];
    let scratch = buffer(lens.into_iter().max().unwrap_or(0));
    let of_output = fastest(threads, repeats, || forward(ctx, d, x, w, Output::new(y), scratch, None));
    let of_weights = fastest(threads, repeats, || weight_grad(ctx, d, x, y, Output::new(w), scratch));
    let of_data = fastest(threads, repeats, || data_grad(ctx, d, y, w, Output::new(x), scratch, None));
    [of_output, of_data, of_weights]
}

/// The least seconds for work and traffic.
fn least(peaks: &Peaks, flops: f64, bytes: f64) -> f64 {
    (flops / peaks.fp32_flops).max(bytes / peaks.read_bytes)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: usize| args.get(i).map_or(default, |a| a.parse().expect("a number"));
    let (batch, image, threads, repeats) = (number(0, 8), number(1, 224), number(2, 2), number(3, 10));
    let isa = args.get(4).map_or_else(Isa::detect, |name| name.parse().expect("an instruction set"));
    let peaks = peak::measure(isa, threads);
    let pool = ThreadPool::new(threads);
    let ctx = Ctx { isa, pool: &pool };
    println!(
        "batch {batch}, {image} pixels, {threads} threads, {isa}, {:.0} GFLOP/s, {:.0} GB/s",
        peaks.fp32_flops / 1e9,
        peaks.read_bytes / 1e9
    );
    println!("{:24}{:>34}{:>34}{:>34}", "", "forward", "data gradient", "weight gradient");
    let mut total = [[0.0; 2]; 3];
    for [size, channels, kernel, stride, count] in LAYERS {
        let size = size * image / 224;
        let d = describe(batch, size, channels, kernel, stride);
        let (flops, bytes) = (flops(&d), 4.0 * (d.input_len() + d.output_len() + d.weight_len()) as f64);
        let least = least(&peaks, flops, bytes);
        print!("{:24}", format!("{size}x{size} {channels} {kernel}x{kernel} s{stride} x{count}"));
        for (seconds, total) in time(ctx, &d, repeats).into_iter().zip(&mut total) {
            let (gflops, gbytes) = (flops / seconds / 1e9, bytes / seconds / 1e9);
            print!("{:9.3} ms{gflops:7.1}{gbytes:6.1}{:7.0} %", seconds * 1e3, 100.0 * least / seconds);
            total[0] += count as f64 * seconds;
            total[1] += count as f64 * least;
        }
        println!();
    }
    print!("{:24}", "total");
    for [seconds, least] in total {
        print!("{:9.3} ms{:13}{:7.0} %", seconds * 1e3, "", 100.0 * least / seconds);
    }
    println!();
}
