//! Depthwise convolutions that compute their input some lines at a time give the bits of the two convolutions one after the other.

#[allow(dead_code, reason = "other test programs use more")]
mod common;

use bessemer_cpu::conv::chained::{self, ChainDesc};
use bessemer_cpu::conv::grouped::{self, GroupedDesc};
use bessemer_cpu::conv::{self, ConvDesc};
use bessemer_cpu::gemm::{Activation, Ctx, Epilogue, Output, Store, TypedSlice, Weights};
use bessemer_cpu::isa::Isa;
use bessemer_cpu::threads::ThreadPool;
use bessemer_ir::DType;
use common::convolution::Windows;
use common::{Coverage, Random};
use std::ops::Range;

/// A store that is left to the kernel.
struct Stored(Store);

impl Epilogue for Stored {
    fn block(&self, _: usize, _: usize, _: Range<usize>, _: Range<usize>) {
        panic!("the kernel stores by itself");
    }

    fn as_store(&self) -> Option<&Store> {
        Some(&self.0)
    }
}

/// A store with this bias to this output.
fn store(bias: &[f32], activation: Activation, output: &mut [f32]) -> Stored {
    let output = output.as_mut_ptr().cast();
    Stored(Store { bias: Some(bias.as_ptr()), addend: None, activation, output, output_type: DType::F32 })
}

fn check(random: &mut Random, d: &ChainDesc) {
    let ChainDesc { first, activation, depthwise } = d;
    let nan = |len: usize| vec![f32::NAN; len];
    let channels = first.c_out;
    let x = random.vector(first.n * first.h * first.w * first.c_in);
    let w = random.vector(first.kh * first.kw * first.c_in * channels);
    let v = random.vector(depthwise.kh * depthwise.kw * channels);
    let [bias, last_bias] = [random.vector(channels), random.vector(channels)];
    let rows = depthwise.n * depthwise.oh * depthwise.ow;
    for isa in Isa::available() {
        for threads in [1, 2] {
            let pool = ThreadPool::new(threads);
            let ctx = Ctx::alone(isa, &pool);
            let (mut middle, mut sums) = (nan(first.n * first.oh * first.ow * channels), nan(rows * channels));
            let stored = store(&bias, *activation, &mut middle);
            let mut c = nan(stored_len(first));
            let scratch = &mut nan(conv::forward_scratch_len(first, threads));
            let (inputs, weights) = (TypedSlice::from(&x[..]), TypedSlice::from(&w[..]));
            conv::forward(ctx, first, inputs, weights, Output::new(&mut c), scratch, Some(&stored));
            let of_groups = GroupedDesc { conv: *depthwise, groups: channels, dtype: DType::F32 };
            grouped::forward(ctx, &of_groups, &middle, &v, Output::new(&mut sums), &mut [], None);

            let mut got = nan(rows * channels);
            let scratch = &mut nan(chained::forward_scratch_len(d, threads));
            let coverage = Coverage::new(rows, channels, chained::forward_row_blocks(d));
            chained::forward(ctx, d, &x, weights, &v, &bias, Output::new(&mut got), scratch, Some(&coverage));
            coverage.assert_once();
            let same = |a: &[f32], b: &[f32]| a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits());
            assert_eq!(same(&got, &sums), None, "{isa}, {threads} threads, {d:?}: the first element that differs");

            let mut expected = nan(rows * channels);
            let stored = store(&last_bias, Activation::Swish, &mut expected);
            grouped::forward(ctx, &of_groups, &middle, &v, Output::new(&mut sums), &mut [], Some(&stored));
            let mut packed = nan(conv::packed_forward_len(first));
            conv::pack_forward(ctx, first, weights, &mut packed);
            let (mut stored_here, mut c) = (nan(rows * channels), nan(rows * channels));
            let stored = store(&last_bias, Activation::Swish, &mut stored_here);
            let weights = Weights::Packed(&packed);
            chained::forward(ctx, d, &x, weights, &v, &bias, Output::new(&mut c), scratch, Some(&stored));
            assert_eq!(same(&stored_here, &expected), None, "{isa}, {threads} threads, {d:?}: stored");
        }
    }
}

fn stored_len(d: &ConvDesc) -> usize {
    d.n * d.oh * d.ow * d.c_out
}

/// The chain of two convolutions with such windows, on `n` images with `channels` of the input and the result.
fn chain(
    n: usize,
    first: Windows,
    channels: [usize; 2],
    depthwise: Windows,
    activation: Activation,
) -> Option<ChainDesc> {
    let first = first.conv(n, channels)?;
    let depthwise = Windows { hw: [first.oh, first.ow], ..depthwise }.conv(n, [channels[1]; 2])?;
    Some(ChainDesc { first, activation, depthwise })
}

#[test]
fn random_chains() {
    let mut random = Random(21);
    let mut done = 0;
    while done < 40 {
        let mut pair = |low, high| [random.between(low, high), random.between(low, high)];
        let first = Windows {
            hw: pair(1, 90),
            kernel: pair(1, 3),
            stride: pair(1, 2),
            dilation: [1; 2],
            pads: [pair(0, 1), pair(0, 1)],
        };
        let depthwise = Windows {
            hw: [0; 2],
            kernel: pair(1, 6),
            stride: pair(1, 3),
            dilation: pair(1, 2),
            pads: [pair(0, 4), pair(0, 4)],
        };
        let channels = [pair(1, 11)[0], pair(1, 150)[0]];
        let activation = [Activation::None, Activation::Relu, Activation::Swish][pair(0, 2)[0]];
        if let Some(d) = chain(random.between(1, 2), first, channels, depthwise, activation) {
            check(&mut random, &d);
            done += 1;
        }
    }
}

/// Sizes of EfficientDet, on images that are less high: several blocks of lines a task.
#[test]
fn network_shapes() {
    let mut random = Random(22);
    let same = |hw, kernel: usize, stride: usize| Windows {
        hw,
        kernel: [kernel; 2],
        stride: [stride; 2],
        dilation: [1; 2],
        pads: [[(kernel - 1) / 2; 2], [kernel / 2; 2]],
    };
    let sizes =
        [([32, 256], 16, 96, 3, 2), ([48, 128], 24, 144, 3, 1), ([24, 128], 24, 144, 5, 2), ([64, 64], 40, 240, 5, 1)];
    for (hw, c_in, channels, kernel, stride) in sizes {
        let d = chain(2, same(hw, 1, 1), [c_in, channels], same(hw, kernel, stride), Activation::Swish);
        check(&mut random, &d.expect("the windows fit"));
    }
    let stem = chain(1, same([64, 512], 3, 2), [3, 32], same([32, 256], 3, 1), Activation::Swish);
    check(&mut random, &stem.expect("the windows fit"));
}
