//! Convolutions in groups in all three directions against plain loops in `f64`.

mod common;

use bessemer_cpu::conv::ConvDesc;
use bessemer_cpu::conv::grouped::{
    GroupedDesc, data_grad, data_grad_row_blocks, data_grad_scratch_len, forward, forward_row_blocks,
    forward_scratch_len, weight_grad, weight_grad_scratch_len,
};
use bessemer_cpu::gemm::{Activation, Ctx, Epilogue, Output, Store, TypedSlice};
use bessemer_cpu::isa::Isa;
use bessemer_cpu::threads::ThreadPool;
use bessemer_cpu::vector;
use bessemer_ir::DType;
use bessemer_ir::ops::pointwise::UnaryKind;
use common::convolution::{Operands, Results, Windows};
use common::{Coverage, Random, assert_close};
use half::{bf16, f16};
use std::ops::Range;

struct Case {
    d: GroupedDesc,
    operands: Operands,
}

impl Case {
    fn new(random: &mut Random, d: GroupedDesc) -> Case {
        Case { d, operands: Operands::random(random, &d.conv, d.groups) }
    }

    fn run(&self, isa: Isa, pool: &ThreadPool) -> Results<f32> {
        let Operands { x, w, dy } = &self.operands;
        self.run_on(&self.d, isa, pool, [x, w, dy].map(TypedSlice::from))
    }

    /// With operands of any one type.
    fn run_on(&self, d: &GroupedDesc, isa: Isa, pool: &ThreadPool, [x, w, dy]: [TypedSlice<'_>; 3]) -> Results<f32> {
        let (ctx, threads) = (Ctx::alone(isa, pool), pool.threads());
        let nan = |len: usize| vec![f32::NAN; len];
        let mut r = self.operands.unfilled();

        let coverage = Coverage::new(d.conv.n * d.conv.oh * d.conv.ow, d.conv.c_out, forward_row_blocks(d));
        let scratch = &mut nan(forward_scratch_len(d, threads));
        forward(ctx, d, x, w, Output::new(&mut r.y), scratch, Some(&coverage));
        coverage.assert_once();

        let coverage = Coverage::new(d.conv.n * d.conv.h * d.conv.w, d.conv.c_in, data_grad_row_blocks(d));
        let scratch = &mut nan(data_grad_scratch_len(d, threads));
        data_grad(ctx, d, dy, w, Output::new(&mut r.dx), scratch, Some(&coverage));
        coverage.assert_once();

        let scratch = &mut nan(weight_grad_scratch_len(d, threads));
        weight_grad(ctx, d, x, dy, Output::new(&mut r.dw), scratch);
        r
    }

    fn check(&self) {
        let GroupedDesc { conv: d, groups, .. } = &self.d;
        let expected = self.operands.expected(d, *groups);
        for isa in Isa::available() {
            let one = self.run(isa, &ThreadPool::new(1));
            let two = self.run(isa, &ThreadPool::new(2));
            let taps = d.kh * d.kw;
            let what = |direction: &str| format!("{isa} {direction} {:?}", self.d);
            assert_close(&one.y, &expected.y, taps * d.c_in / groups, &what("forward"));
            assert_close(&one.dx, &expected.dx, taps * d.c_out / groups, &what("data gradient"));
            assert_close(&one.dw, &expected.dw, d.n * d.oh * d.ow, &what("weight gradient"));
            assert_eq!(one.y, two.y, "{} depends on the number of threads", what("forward"));
            assert_eq!(one.dx, two.dx, "{} depends on the number of threads", what("data gradient"));
            assert_eq!(one.dw, two.dw, "{} depends on the number of threads", what("weight gradient"));
        }
    }

    /// Operands of 16 bits give the bits of the numbers that they stand for.
    fn check_16_bits<T: Copy>(&self, dtype: DType, low: impl Fn(f32) -> T, high: impl Fn(T) -> f32)
    where
        for<'a> &'a [T]: Into<TypedSlice<'a>>,
    {
        let Operands { x, w, dy } = &self.operands;
        let [x, w, dy] = [x, w, dy].map(|all| all.iter().map(|&x| low(x)).collect::<Vec<T>>());
        let wide = |all: &[T]| all.iter().map(|&x| high(x)).collect::<Vec<f32>>();
        let exact = Case { d: self.d, operands: Operands { x: wide(&x), w: wide(&w), dy: wide(&dy) } };
        let d = GroupedDesc { dtype, ..self.d };
        for isa in Isa::available() {
            let pool = ThreadPool::new(2);
            let expected = exact.run(isa, &pool);
            let got = exact.run_on(&d, isa, &pool, [(&x[..]).into(), (&w[..]).into(), (&dy[..]).into()]);
            let what = |direction: &str| format!("{isa} {dtype} {direction} {:?}", self.d);
            assert_eq!(got.y, expected.y, "{}", what("forward"));
            assert_eq!(got.dx, expected.dx, "{}", what("data gradient"));
            assert_eq!(got.dw, expected.dw, "{}", what("weight gradient"));
        }
    }
}

/// A convolution whose output covers the image with paddings `[top, left]` and `[bottom, right]`.
fn grouped(
    [n, h, w]: [usize; 3],
    [groups, c_in, c_out]: [usize; 3],
    kernel: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    pads: [[usize; 2]; 2],
) -> Option<GroupedDesc> {
    let conv = Windows { hw: [h, w], kernel, stride, dilation, pads }.conv(n, [groups * c_in, groups * c_out])?;
    Some(GroupedDesc { conv, groups, dtype: DType::F32 })
}

/// Checks `cases` random problems with `[groups, channels in, channels out]` of the groups up to those.
fn check_random(seed: u64, cases: usize, most: [usize; 3]) {
    let mut random = Random(seed);
    let mut done = 0;
    while done < cases {
        let mut pair = |low, high| [random.between(low, high), random.between(low, high)];
        let ([h, _], [w, _], kernel) = (pair(1, 19), pair(1, 33), pair(1, 6));
        let (stride, dilation, pads) = (pair(1, 3), pair(1, 2), [pair(0, 4), pair(0, 4)]);
        let n = random.between(1, 3);
        let channels = most.map(|most| random.between(1, most));
        if let Some(d) = grouped([n, h, w], channels, kernel, stride, dilation, pads) {
            let case = Case::new(&mut random, d);
            case.check();
            case.check_16_bits(DType::Bf16, bf16::from_f32, bf16::to_f32);
            case.check_16_bits(DType::F16, f16::from_f32, f16::to_f32);
            done += 1;
        }
    }
}

#[test]
fn random_depthwise() {
    check_random(11, 150, [150, 1, 1]);
}

#[test]
fn random_groups() {
    check_random(12, 80, [9, 5, 20]);
}

/// Sizes of networks: square windows and strides, neighbouring taps, some vectors of channels.
#[test]
fn network_shapes() {
    let mut random = Random(13);
    for kernel in [3, 5] {
        for stride in [1, 2] {
            for (size, channels) in [(7, 208), (14, 96), (28, 40), (31, 13), (64, 16)] {
                for pads in [[[kernel / 2; 2]; 2], [[kernel / 2 - 1; 2], [kernel / 2; 2]], [[0; 2]; 2]] {
                    let d = grouped([2, size, size], [channels, 1, 1], [kernel; 2], [stride; 2], [1; 2], pads);
                    let case = Case::new(&mut random, d.expect("the window fits"));
                    case.check();
                    case.check_16_bits(DType::Bf16, bf16::from_f32, bf16::to_f32);
                }
            }
        }
    }
}

/// A store that is left to the convolution, and what remains to be done with its blocks.
struct Stored {
    store: Store,
    coverage: Coverage,
}

impl Epilogue for Stored {
    fn block(&self, _: usize, _: usize, _: Range<usize>, _: Range<usize>) {
        panic!("the convolution stores by itself");
    }

    fn as_store(&self) -> Option<&Store> {
        Some(&self.store)
    }

    fn stored_block(&self, worker: usize, block: usize, rows: Range<usize>, cols: Range<usize>) {
        self.coverage.block(worker, block, rows, cols);
    }
}

/// What depthwise convolutions store is, bit for bit, what follows them computes from their results.
#[test]
fn depthwise_convolutions_store_what_follows_them() {
    let mut random = Random(15);
    for (size, channels, kernel, stride) in [(9, 208, 3, 1), (14, 31, 5, 2), (31, 16, 3, 2), (5, 7, 5, 1)] {
        let d = grouped([2, size, size], [channels, 1, 1], [kernel; 2], [stride; 2], [1; 2], [[kernel / 2; 2]; 2]);
        let case = Case::new(&mut random, d.expect("the window fits"));
        let (d, Operands { x, w, .. }) = (&case.d, &case.operands);
        let bias = random.vector(channels);
        let pool = ThreadPool::new(2);
        for isa in Isa::available() {
            let ctx = Ctx::alone(isa, &pool);
            let mut plain = vec![f32::NAN; d.output_len()];
            forward(ctx, d, x, w, Output::new(&mut plain), &mut [], None);
            for activation in [Activation::None, Activation::Relu, Activation::Swish, Activation::Gelu] {
                let mut stored = vec![f32::NAN; d.output_len()];
                let store = Store {
                    bias: Some(bias.as_ptr()),
                    addend: None,
                    activation,
                    output: stored.as_mut_ptr().cast(),
                    output_type: DType::F32,
                };
                let coverage = Coverage::new(d.output_len() / channels, channels, forward_row_blocks(d));
                let epilogue = Stored { store, coverage };
                let mut sums = vec![f32::NAN; d.output_len()];
                forward(ctx, d, x, w, Output::new(&mut sums), &mut [], Some(&epilogue));
                epilogue.coverage.assert_once();
                for (i, (&got, &sum)) in stored.iter().zip(&plain).enumerate() {
                    let sum = sum + bias[i % channels];
                    let want = match activation {
                        Activation::None => sum,
                        Activation::Relu => sum.max(0.0),
                        Activation::Swish => sum * vector::unary(UnaryKind::Sigmoid, sum),
                        Activation::Gelu => {
                            let scaled = sum * std::f32::consts::FRAC_1_SQRT_2;
                            sum * 0.5 * (1.0 + vector::unary(UnaryKind::Erf, scaled))
                        }
                    };
                    assert_eq!(got.to_bits(), want.to_bits(), "{isa} {activation:?} {d:?}: element {i}: {got}, {want}");
                }
            }
        }
    }
}

#[test]
fn output_size_may_leave_input_unread_or_pad_beyond_it() {
    let mut random = Random(14);
    for (oh, ow) in [(2, 3), (6, 7)] {
        let d = grouped([2, 8, 9], [20, 1, 1], [3, 3], [2, 2], [1, 1], [[1, 0], [1, 1]]).expect("the window fits");
        Case::new(&mut random, GroupedDesc { conv: ConvDesc { oh, ow, ..d.conv }, ..d }).check();
    }
}
