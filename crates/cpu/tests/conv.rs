//! Convolutions in all three directions against plain loops in `f64`.

mod common;

use bessemer_cpu::conv::{
    ConvDesc, data_grad, data_grad_row_blocks, data_grad_scratch_len, forward, forward_row_blocks, forward_scratch_len,
    pack_data_grad, pack_forward, packed_data_grad_len, packed_forward_len, weight_grad, weight_grad_scratch_len,
};
use bessemer_cpu::gemm::{Affine, Ctx, Input, Output, TypedSlice, Weights};
use bessemer_cpu::isa::Isa;
use bessemer_cpu::peak::has_bf16;
use bessemer_cpu::threads::ThreadPool;
use bessemer_ir::DType;
use common::convolution::{Operands, Results, Windows};
use common::{Coverage, Random, assert_close};

struct Case {
    d: ConvDesc,
    operands: Operands,
}

impl Case {
    fn new(random: &mut Random, d: ConvDesc) -> Case {
        Case { d, operands: Operands::random(random, &d, 1) }
    }

    fn run(&self, isa: Isa, pool: &ThreadPool) -> Results<f32> {
        let (d, ctx, threads) = (&self.d, Ctx::alone(isa, pool), pool.threads());
        let nan = |len: usize| vec![f32::NAN; len];
        let Operands { x, w, dy } = &self.operands;
        let mut r = self.operands.unfilled();

        let coverage = Coverage::new(d.n * d.oh * d.ow, d.c_out, forward_row_blocks(d));
        let scratch = &mut nan(forward_scratch_len(d, threads));
        forward(ctx, d, x, w, Output::new(&mut r.y), scratch, Some(&coverage));
        coverage.assert_once();

        let coverage = Coverage::new(d.n * d.h * d.w, d.c_in, data_grad_row_blocks(d));
        let scratch = &mut nan(data_grad_scratch_len(d, threads));
        data_grad(ctx, d, dy, w, Output::new(&mut r.dx), scratch, Some(&coverage));
        coverage.assert_once();

        let scratch = &mut nan(weight_grad_scratch_len(d, DType::F32, threads));
        weight_grad(ctx, d, x, dy, Output::new(&mut r.dw), scratch);
        r
    }

    fn check(&self) {
        let d = &self.d;
        let expected = self.operands.expected(d, 1);
        for isa in Isa::available() {
            let one = self.run(isa, &ThreadPool::new(1));
            let two = self.run(isa, &ThreadPool::new(2));
            let taps = d.kh * d.kw;
            assert_close(&one.y, &expected.y, taps * d.c_in, &format!("{isa} forward {d:?}"));
            assert_close(&one.dx, &expected.dx, taps * d.c_out, &format!("{isa} data gradient {d:?}"));
            assert_close(&one.dw, &expected.dw, d.n * d.oh * d.ow, &format!("{isa} weight gradient {d:?}"));
            assert_eq!(one.y, two.y, "{isa} forward {d:?} depends on the number of threads");
            assert_eq!(one.dx, two.dx, "{isa} data gradient {d:?} depends on the number of threads");
            assert_eq!(one.dw, two.dw, "{isa} weight gradient {d:?} depends on the number of threads");
        }
    }
}

fn conv(
    n: usize,
    hw: [usize; 2],
    channels: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    pads: [[usize; 2]; 2],
) -> Option<ConvDesc> {
    Windows { hw, kernel, stride, dilation, pads }.conv(n, channels)
}

#[test]
fn random_shapes() {
    let mut random = Random(7);
    let mut cases = 0;
    while cases < 150 {
        let mut pair = |low, high| [random.between(low, high), random.between(low, high)];
        let (hw, channels, kernel) = (pair(1, 13), pair(1, 40), pair(1, 7));
        let (stride, dilation, pads) = (pair(1, 3), pair(1, 2), [pair(0, 3), pair(0, 3)]);
        let n = random.between(1, 3);
        if let Some(d) = conv(n, hw, channels, kernel, stride, dilation, pads) {
            Case::new(&mut random, d).check();
            cases += 1;
        }
    }
}

#[test]
fn network_shapes() {
    let same = |k: usize| [[k / 2; 2]; 2];
    let cases = [
        conv(2, [31, 29], [3, 64], [7, 7], [2, 2], [1, 1], same(7)),
        conv(2, [24, 24], [3, 32], [3, 3], [2, 2], [1, 1], [[0, 0], [1, 1]]),
        conv(2, [14, 14], [64, 96], [3, 3], [1, 1], [1, 1], same(3)),
        conv(1, [14, 14], [64, 64], [3, 3], [2, 2], [1, 1], same(3)),
        conv(2, [14, 14], [96, 200], [1, 1], [2, 2], [1, 1], same(1)),
        conv(1, [7, 7], [160, 300], [1, 1], [1, 1], [1, 1], same(1)),
        conv(1, [9, 9], [70, 40], [3, 3], [1, 1], [2, 2], [[2; 2]; 2]),
        conv(1, [50, 40], [8, 8], [5, 5], [2, 2], [1, 1], [[1, 1], [2, 2]]),
    ];
    let mut random = Random(8);
    for d in cases {
        Case::new(&mut random, d.unwrap()).check();
    }
}

#[test]
fn output_size_may_leave_input_unread_or_pad_beyond_it() {
    let mut random = Random(9);
    for (oh, ow) in [(2, 3), (6, 7)] {
        let base = conv(2, [8, 9], [5, 6], [3, 3], [2, 2], [1, 1], [[1, 0], [1, 1]]).unwrap();
        Case::new(&mut random, ConvDesc { oh, ow, ..base }).check();
    }
}

#[test]
fn packed_weights_give_the_same_bits() {
    let mut random = Random(10);
    let pool = ThreadPool::new(2);
    let d = conv(1, [9, 9], [20, 130], [3, 3], [2, 1], [1, 1], [[1; 2]; 2]).unwrap();
    let case = Case::new(&mut random, d);
    for isa in Isa::available() {
        let (ctx, expected) = (Ctx::alone(isa, &pool), case.run(isa, &pool));
        let mut packed = vec![f32::NAN; packed_forward_len(&d)];
        pack_forward(ctx, &d, (&case.operands.w).into(), &mut packed);
        let mut y = vec![f32::NAN; case.operands.dy.len()];
        let scratch = &mut vec![f32::NAN; forward_scratch_len(&d, 2)];
        forward(ctx, &d, &case.operands.x, Weights::Packed(&packed), Output::new(&mut y), scratch, None);
        assert_eq!(y, expected.y, "{isa}");

        let mut packed = vec![f32::NAN; packed_data_grad_len(&d)];
        pack_data_grad(ctx, &d, (&case.operands.w).into(), &mut packed);
        let mut dx = vec![f32::NAN; case.operands.x.len()];
        let scratch = &mut vec![f32::NAN; data_grad_scratch_len(&d, 2)];
        data_grad(ctx, &d, &case.operands.dy, Weights::Packed(&packed), Output::new(&mut dx), scratch, None);
        assert_eq!(dx, expected.dx, "{isa}");
    }
}

/// Operands of 16 bits are the numbers they stand for: bit for bit where they are multiplied as `f32`, within rounding where the
/// processor multiplies pairs of them; and on any number of threads the same.
#[test]
fn operands_of_16_bits() {
    let mut random = Random(11);
    let pools = [ThreadPool::new(1), ThreadPool::new(2)];
    // Channels of whole steps of tiles are read in place: pixels of a matrix, windows on images.
    let channels = [[20, 38], [64, 32], [32, 160]];
    let windows = [(3, 2, 1), (1, 1, 1), (3, 1, 1), (3, 1, 2), (1, 2, 1)];
    for (channels, (kernel, stride, dilation)) in
        channels.into_iter().flat_map(|channels| windows.map(|window| (channels, window)))
    {
        let pad = kernel / 2 * dilation;
        let d = conv(3, [9, 11], channels, [kernel; 2], [stride; 2], [dilation; 2], [[pad; 2]; 2]).unwrap();
        let mut case = Case::new(&mut random, d);
        let low = |v: &[f32]| v.iter().map(|&x| half::bf16::from_f32(x)).collect::<Vec<_>>();
        let (x, w, dy) = (low(&case.operands.x), low(&case.operands.w), low(&case.operands.dy));
        let high = |v: &[half::bf16]| v.iter().map(|x| x.to_f32()).collect::<Vec<_>>();
        case.operands = Operands { x: high(&x), w: high(&w), dy: high(&dy) };
        for isa in Isa::available() {
            let expected = case.run(isa, &pools[1]);
            let (x, w, dy) =
                (TypedSlice::from(x.as_slice()), TypedSlice::from(w.as_slice()), TypedSlice::from(dy.as_slice()));
            let results = pools.each_ref().map(|pool| {
                let (ctx, threads) = (Ctx::alone(isa, pool), pool.threads());
                let nan = |len: usize| vec![f32::NAN; len];
                let mut y = nan(case.operands.dy.len());
                forward(ctx, &d, x, w, Output::new(&mut y), &mut nan(forward_scratch_len(&d, threads)), None);
                let mut dx = nan(case.operands.x.len());
                data_grad(ctx, &d, dy, w, Output::new(&mut dx), &mut nan(data_grad_scratch_len(&d, threads)), None);
                let mut dw = nan(case.operands.w.len());
                weight_grad(
                    ctx,
                    &d,
                    x,
                    dy,
                    Output::new(&mut dw),
                    &mut nan(weight_grad_scratch_len(&d, DType::Bf16, threads)),
                );
                [y, dx, dw]
            });
            let expected = [expected.y, expected.dx, expected.dw];
            for (pass, name) in ["forward", "data gradient", "weight gradient"].into_iter().enumerate() {
                let what = format!("{isa} {name} {d:?}");
                assert_eq!(results[0][pass], results[1][pass], "{what} depends on the number of threads");
                if has_bf16(isa) {
                    let exact: Vec<f64> = expected[pass].iter().map(|&x| f64::from(x)).collect();
                    assert_close(&results[0][pass], &exact, kernel * kernel * d.c_out.max(d.c_in), &what);
                } else {
                    assert_eq!(results[0][pass], expected[pass], "{what}");
                }
            }
        }
    }
}

/// Inputs that are scaled while they are read, by channels or by channels of each image, are those that were scaled before, bit for
/// bit; the padding is zeros.
#[test]
fn affine_inputs() {
    let mut random = Random(12);
    let pool = ThreadPool::new(2);
    for (kernel, stride, channels, relu) in
        [(3, 2, 20, true), (1, 1, 33, true), (3, 1, 16, false), (5, 1, 7, true), (1, 2, 64, false)]
    {
        let d = conv(2, [9, 11], [channels, 37], [kernel; 2], [stride; 2], [1, 1], [[kernel / 2; 2]; 2]).unwrap();
        let mut case = Case::new(&mut random, d);
        let plain = case.operands.x.clone();
        let by_image = kernel == 1;
        let (scale, shift) = (random.vector(if by_image { d.n * channels } else { channels }), random.vector(channels));
        let image = plain.len() / d.n;
        for (i, x) in case.operands.x.iter_mut().enumerate() {
            let own = if by_image { i / image * channels } else { 0 };
            *x = *x * scale[own + i % channels] + shift[i % channels];
            *x = if relu { x.max(0.0) } else { *x };
        }
        let x = Input::affine(&plain, Affine { scale: &scale, by_image, shift: &shift, relu });
        for isa in Isa::available() {
            let (ctx, expected) = (Ctx::alone(isa, &pool), case.run(isa, &pool));
            let nan = |len: usize| vec![f32::NAN; len];
            let mut y = nan(case.operands.dy.len());
            let scratch = &mut nan(forward_scratch_len(&d, 2));
            forward(ctx, &d, x, &case.operands.w, Output::new(&mut y), scratch, None);
            assert_eq!(y, expected.y, "{isa} forward {d:?}");
            let mut dw = nan(case.operands.w.len());
            let scratch = &mut nan(weight_grad_scratch_len(&d, DType::F32, 2));
            weight_grad(ctx, &d, x, &case.operands.dy, Output::new(&mut dw), scratch);
            assert_eq!(dw, expected.dw, "{isa} weight gradient {d:?}");
        }
    }
}
