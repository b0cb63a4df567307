//! Winograd convolutions in all three directions against plain loops in `f64`.

#[allow(dead_code, reason = "helpers of other tests too")]
mod common;

use bessemer_cpu::conv::winograd::{
    Direction, applies, row_blocks, run, scratch_len, transform_weights, weight_grad, weight_grad_applies,
    weight_grad_scratch_len, weights_len,
};
use bessemer_cpu::conv::{self, ConvDesc};
use bessemer_cpu::gemm::{Affine, Ctx, Input, Output};
use bessemer_cpu::isa::Isa;
use bessemer_cpu::threads::ThreadPool;
use bessemer_ir::DType;
use common::convolution::Operands;
use common::{Coverage, Random};

/// Largest error allowed, of the largest element of what is computed. The largest of these tests is 2.8e-6.
const TOLERANCE: f64 = 8e-6;

struct Case {
    d: ConvDesc,
    direction: Direction,
    input: Vec<f32>,
    weights: Vec<f32>,
}

impl Case {
    fn new(random: &mut Random, d: ConvDesc, direction: Direction) -> Case {
        let pixels = match direction {
            Direction::Forward => d.n * d.h * d.w * d.c_in,
            Direction::DataGrad => d.n * d.oh * d.ow * d.c_out,
        };
        Case { d, direction, input: random.vector(pixels), weights: random.vector(9 * d.c_in * d.c_out) }
    }

    /// Pixels and channels of what is computed.
    fn output(&self) -> (usize, usize) {
        let d = &self.d;
        match self.direction {
            Direction::Forward => (d.n * d.oh * d.ow, d.c_out),
            Direction::DataGrad => (d.n * d.h * d.w, d.c_in),
        }
    }

    fn expected(&self) -> Vec<f64> {
        let d = &self.d;
        let (pixels, channels) = self.output();
        let mut output = vec![0.0; pixels * channels];
        for (out, tap) in (0..d.n * d.oh * d.ow).flat_map(|out| (0..9).map(move |tap| (out, tap))) {
            let (n, p, q) = (out / (d.oh * d.ow), out / d.ow % d.oh, out % d.ow);
            let (y, x) = ((p + tap / 3).wrapping_sub(d.pad[0]), (q + tap % 3).wrapping_sub(d.pad[1]));
            if y >= d.h || x >= d.w {
                continue;
            }
            let pixel = (n * d.h + y) * d.w + x;
            for (ci, co) in (0..d.c_in).flat_map(|ci| (0..d.c_out).map(move |co| (ci, co))) {
                let weight = f64::from(self.weights[(tap * d.c_in + ci) * d.c_out + co]);
                let (x, y) = (pixel * d.c_in + ci, out * d.c_out + co);
                match self.direction {
                    Direction::Forward => output[y] += f64::from(self.input[x]) * weight,
                    Direction::DataGrad => output[x] += f64::from(self.input[y]) * weight,
                }
            }
        }
        output
    }

    fn transformed(&self, ctx: Ctx<'_>) -> Vec<f32> {
        let mut transformed = vec![f32::NAN; weights_len(&self.d, self.direction)];
        transform_weights(ctx, &self.d, self.direction, &self.weights, &mut transformed);
        transformed
    }

    fn run(&self, isa: Isa, threads: usize) -> Vec<f32> {
        self.run_on((&self.input).into(), isa, threads)
    }

    fn run_on(&self, input: Input<'_>, isa: Isa, threads: usize) -> Vec<f32> {
        let pool = ThreadPool::new(threads);
        let (ctx, d, direction) = (Ctx::alone(isa, &pool), &self.d, self.direction);
        let weights = self.transformed(ctx);
        let (pixels, channels) = self.output();
        let coverage = Coverage::new(pixels, channels, row_blocks(d, direction));
        let mut output = vec![f32::NAN; pixels * channels];
        let scratch = &mut vec![f32::NAN; scratch_len(d, direction, threads)];
        run(ctx, d, direction, input, &weights, Output::new(&mut output), scratch, Some(&coverage));
        coverage.assert_once();
        output
    }

    fn check(&self) {
        let expected = self.expected();
        for isa in Isa::available() {
            let what = format!("{isa} {:?} {:?}", self.direction, self.d);
            let one = self.run(isa, 1);
            let error = largest_error(&one, &expected);
            assert!(error <= TOLERANCE, "{what}: error {error:e}");
            assert!(one == self.run(isa, 3), "{what} depends on the number of threads");
        }
    }
}

/// Largest difference, of the largest element expected. NaN counts as infinite.
fn largest_error(got: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let largest = expected.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    let difference = |(&x, &y): (&f32, &f64)| if x.is_nan() { f64::INFINITY } else { (f64::from(x) - y).abs() };
    let error = got.iter().zip(expected).map(difference).fold(0.0, f64::max);
    if error == 0.0 { 0.0 } else { error / largest }
}

/// A 3x3 convolution with paddings `[top, left]` and `[bottom, right]`.
fn conv(n: usize, hw: [usize; 2], channels: [usize; 2], pads: [[usize; 2]; 2]) -> Option<ConvDesc> {
    let out = |i: usize| (hw[i] + pads[0][i] + pads[1][i]).checked_sub(2).filter(|&size| size > 0);
    let [c_in, c_out] = channels;
    let (oh, ow) = (out(0)?, out(1)?);
    let (stride, dilation) = ([1; 2], [1; 2]);
    Some(ConvDesc { n, h: hw[0], w: hw[1], c_in, kh: 3, kw: 3, c_out, oh, ow, stride, dilation, pad: pads[0] })
}

#[test]
fn random_shapes() {
    let mut random = Random(17);
    let mut cases = 0;
    while cases < 150 {
        let mut pair = |low, high| [random.between(low, high), random.between(low, high)];
        let (hw, channels, pads) = (pair(1, 19), pair(1, 70), [pair(0, 2), pair(0, 2)]);
        let n = random.between(1, 3);
        if let Some(d) = conv(n, hw, channels, pads) {
            Case::new(&mut random, d, Direction::Forward).check();
            Case::new(&mut random, d, Direction::DataGrad).check();
            cases += 1;
        }
    }
}

#[test]
fn network_shapes() {
    let same = [[1; 2]; 2];
    let cases = [
        conv(1, [56, 56], [16, 16], same),
        conv(2, [28, 28], [40, 24], same),
        conv(3, [14, 14], [64, 96], same),
        conv(16, [7, 7], [48, 48], same),
        conv(1, [9, 9], [300, 70], same),
        conv(1, [8, 8], [70, 520], same),
        conv(20, [4, 24], [16, 33], same),
    ];
    let mut random = Random(18);
    for d in cases {
        Case::new(&mut random, d.unwrap(), Direction::Forward).check();
        Case::new(&mut random, d.unwrap(), Direction::DataGrad).check();
    }
}

/// Inputs that are scaled while they are read are those that were scaled before, bit for bit; the padding is zeros.
#[test]
fn affine_inputs() {
    let mut random = Random(21);
    let cases = [([16, 16], 16, [[1; 2]; 2]), ([9, 13], 37, [[2, 0], [1, 2]]), ([4, 7], 70, [[1; 2]; 2])];
    for (hw, channels, pads) in cases {
        let mut case = Case::new(&mut random, conv(2, hw, [channels, 24], pads).unwrap(), Direction::Forward);
        let plain = case.input.clone();
        let by_image = channels == 37;
        let (scale, shift) = (random.vector(if by_image { 2 * channels } else { channels }), random.vector(channels));
        let image = plain.len() / 2;
        for (i, x) in case.input.iter_mut().enumerate() {
            let own = if by_image { i / image * channels } else { 0 };
            *x = (*x * scale[own + i % channels] + shift[i % channels]).max(0.0);
        }
        let input = Input::affine(&plain, Affine { scale: &scale, by_image, shift: &shift, relu: true });
        for isa in Isa::available() {
            assert!(case.run_on(input, isa, 2) == case.run(isa, 2), "{isa} {:?}", case.d);
        }
    }
}

#[test]
fn output_size_may_leave_input_unread_or_pad_beyond_it() {
    let mut random = Random(19);
    for (oh, ow) in [(2, 3), (12, 13)] {
        let base = conv(2, [8, 9], [5, 6], [[3, 0], [1, 1]]).unwrap();
        Case::new(&mut random, ConvDesc { oh, ow, ..base }, Direction::Forward).check();
        Case::new(&mut random, ConvDesc { oh, ow, ..base }, Direction::DataGrad).check();
    }
}

#[test]
fn applies_where_tiles_pay_for_transforms() {
    let same = [[1; 2]; 2];
    let both = |d: ConvDesc| [Direction::Forward, Direction::DataGrad].map(|direction| applies(&d, direction, false));
    let resnet = conv(16, [7, 7], [512, 512], same).unwrap();
    assert_eq!(both(resnet), [true; 2]);
    assert_eq!(both(ConvDesc { n: 1, ..resnet }), [false; 2], "weights are more work than the image");
    assert_eq!(both(conv(16, [5, 5], [256, 256], same).unwrap()), [false; 2], "tiles are mostly empty");
    assert_eq!(both(conv(16, [56, 56], [3, 64], same).unwrap()), [false; 2], "few channels");
    assert_eq!(both(ConvDesc { stride: [2; 2], oh: 4, ow: 4, ..resnet }), [false; 2], "stride");
    assert_eq!(both(ConvDesc { dilation: [2; 2], oh: 5, ow: 5, ..resnet }), [false; 2], "dilation");
    assert_eq!(both(ConvDesc { kh: 1, oh: 9, ..resnet }), [false; 2], "kernel");
}

/// The gradient of the weights of `d`, from an input that may be scaled.
fn gradient(d: &ConvDesc, x: Input<'_>, dy: &[f32], isa: Isa, threads: usize) -> Vec<f32> {
    let pool = ThreadPool::new(threads);
    let mut dw = vec![f32::NAN; 9 * d.c_in * d.c_out];
    let scratch = &mut vec![f32::NAN; weight_grad_scratch_len(d, threads)];
    weight_grad(Ctx::alone(isa, &pool), d, x, dy, Output::new(&mut dw), scratch);
    dw
}

fn check_gradient(random: &mut Random, d: &ConvDesc) {
    let operands = Operands::random(random, d, 1);
    let expected = operands.expected(d, 1).dw;
    for isa in Isa::available() {
        let run = |threads| gradient(d, (&operands.x).into(), &operands.dy, isa, threads);
        let one = run(1);
        let error = largest_error(&one, &expected);
        assert!(error <= TOLERANCE, "{isa} weight gradient {d:?}: error {error:e}");
        assert!([2, 3].iter().all(|&threads| one == run(threads)), "{isa} {d:?} depends on the number of threads");
    }
}

#[test]
fn weight_gradients_of_random_shapes() {
    let mut random = Random(22);
    let mut cases = 0;
    while cases < 60 {
        let mut pair = |low, high| [random.between(low, high), random.between(low, high)];
        let (hw, channels, pads) = (pair(1, 19), pair(1, 70), [pair(0, 2), pair(0, 2)]);
        let n = random.between(1, 3);
        if let Some(d) = conv(n, hw, channels, pads) {
            check_gradient(&mut random, &d);
            cases += 1;
        }
    }
}

/// One tile, whole and cut ones, several blocks of channels, several parts of the tiles with several groups in each.
#[test]
fn weight_gradients_of_network_shapes() {
    let same = [[1; 2]; 2];
    let cases = [
        conv(1, [4, 4], [16, 16], same),
        conv(1, [6, 6], [64, 64], [[0; 2]; 2]),
        conv(16, [7, 7], [64, 64], same),
        conv(2, [9, 9], [300, 70], same),
        conv(1, [8, 8], [70, 260], same),
        conv(3, [28, 30], [24, 40], same),
        conv(1, [130, 131], [16, 17], same),
    ];
    let mut random = Random(23);
    for d in cases {
        check_gradient(&mut random, &d.unwrap());
    }
    let base = conv(2, [8, 9], [20, 22], [[3, 0], [1, 1]]).unwrap();
    for (oh, ow) in [(2, 3), (12, 13)] {
        check_gradient(&mut random, &ConvDesc { oh, ow, ..base });
    }
}

/// As for convolutions: inputs that are scaled while they are read.
#[test]
fn weight_gradients_of_affine_inputs() {
    let mut random = Random(24);
    for (hw, channels, pads) in [([16, 16], 16, [[1; 2]; 2]), ([9, 13], 37, [[2, 0], [1, 2]])] {
        let d = conv(2, hw, [channels, 24], pads).unwrap();
        let Operands { x, dy, .. } = Operands::random(&mut random, &d, 1);
        let (scale, shift) = (random.vector(channels), random.vector(channels));
        let scaled = |(i, x): (usize, &f32)| (x * scale[i % channels] + shift[i % channels]).max(0.0);
        let applied: Vec<f32> = x.iter().enumerate().map(scaled).collect();
        let input = Input::affine(&x, Affine { scale: &scale, by_image: false, shift: &shift, relu: true });
        for isa in Isa::available() {
            assert!(gradient(&d, input, &dy, isa, 2) == gradient(&d, (&applied).into(), &dy, isa, 2), "{isa} {d:?}");
        }
    }
}

#[test]
fn weight_gradients_apply_where_tiles_pay_for_sums() {
    let same = [[1; 2]; 2];
    let resnet = conv(16, [7, 7], [512, 512], same).unwrap();
    let region = conv(1, [14, 14], [256, 256], same).unwrap();
    assert!([resnet, region, ConvDesc { n: 256, ..region }].iter().all(weight_grad_applies));
    assert!(!weight_grad_applies(&ConvDesc { n: 2, ..resnet }), "sums are more work than the images");
    assert!(!weight_grad_applies(&conv(16, [5, 5], [256, 256], same).unwrap()), "tiles are mostly empty");
    assert!(!weight_grad_applies(&conv(16, [56, 56], [3, 64], same).unwrap()), "few channels");
    assert!(!weight_grad_applies(&ConvDesc { stride: [2; 2], oh: 4, ow: 4, ..resnet }), "stride");
}

/// The error table of the documentation: `cargo test --profile checked --test winograd -- --ignored --nocapture`.
#[test]
#[ignore = "prints a table"]
fn errors_by_channels() {
    let mut random = Random(20);
    for channels in [64, 128, 256, 512] {
        let case = Case::new(&mut random, conv(1, [14, 14], [channels, 64], [[1; 2]; 2]).unwrap(), Direction::Forward);
        let (got, expected) = (case.run(Isa::detect(), 1), case.expected());
        let square = |sum: f64, x: f64| sum + x * x;
        let difference = got.iter().zip(&expected).map(|(&x, &y)| f64::from(x) - y).fold(0.0, square);
        let l2 = (difference / expected.iter().copied().fold(0.0, square)).sqrt();
        println!("{channels:4} channels: largest {:.1e}, L2 {l2:.1e}", largest_error(&got, &expected));
    }
}

/// The errors of weight gradients that the documentation states: run as the above.
#[test]
#[ignore = "prints a table"]
fn errors_of_weight_gradients() {
    let mut random = Random(25);
    for (n, hw) in [(1, [14, 14]), (16, [56, 56]), (2, [200, 336])] {
        let d = conv(n, hw, [16, 16], [[1; 2]; 2]).unwrap();
        let operands = Operands::random(&mut random, &d, 1);
        let (expected, isa, pool) = (operands.expected(&d, 1).dw, Isa::detect(), ThreadPool::new(1));
        let mut direct = vec![f32::NAN; expected.len()];
        let scratch = &mut vec![0.0; conv::weight_grad_scratch_len(&d, DType::F32, 1)];
        let ctx = Ctx::alone(isa, &pool);
        conv::weight_grad(ctx, &d, &operands.x, &operands.dy, Output::new(&mut direct), scratch);
        let got = gradient(&d, (&operands.x).into(), &operands.dy, isa, 1);
        let [got, direct] = [got, direct].map(|dw| largest_error(&dw, &expected));
        println!("{n} x {hw:?}: Winograd {got:.1e}, direct {direct:.1e} of the largest element");
    }
}
