//! What is done with convolutions in their pass, on the mock of a GPU.

use crate::common::{Knobs, mock_or_skip};
use crate::device::{bytes, elements, f32s, gpu, kernel_that_agrees, load, options, plan};
use bessemer_cuda::{CudaDevice, CudaOptions};
use bessemer_ir::ops::conv::{Conv2d, Conv2dDataGrad, same_padding};
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::ops::reduce::MeanVar;
use bessemer_ir::run::{Device, Executor, HALT, StateBinding, StateLayout, read_f32};
use bessemer_ir::{DType, Graph, NodeId, Op, Role, TensorType, Value, philox};
use std::path::Path;

/// Types of 16 bits with what results may differ from the reference, of the largest element: some roundings.
const TYPES: [(DType, f64); 2] = [(DType::F16, 3e-3), (DType::Bf16, 2e-2)];

const PLAIN: &str = "convolution by cuDNN, then region";
const EVEN: Conv2d = Conv2d::new([1, 1], [[1, 1], [1, 1]]);

fn convolution_of(gpu: &CudaDevice, graph: &Graph, allowed: f64) -> String {
    kernel_that_agrees(gpu, graph, allowed, "convolution")
}

/// A tensor of normal numbers in a type.
fn typed(g: &mut Graph, name: &str, shape: &[usize], ty: DType) -> Value {
    let wide = f32s(g, name, shape);
    g.cast(wide, ty).unwrap()
}

/// A tensor of normal numbers in a type, in memory that nothing but what follows reads.
fn passing(g: &mut Graph, name: &str, shape: [usize; 4], ty: DType) -> Value {
    let [n, h, w, c] = shape;
    let x = typed(g, name, &[c, n, h, w], ty);
    g.transpose(x, &[1, 2, 3, 0]).unwrap()
}

/// `[2, 6, 5, 8]` by 16 filters of 3 x 3, rounded to the type of the operands, and read as `f32`: the rounded result, and that.
fn convolved(g: &mut Graph, ty: DType, conv: Conv2d) -> [Value; 2] {
    let (x, w) = (typed(g, "x", &[2, 6, 5, 8], ty), typed(g, "w", &[3, 3, 8 / conv.groups, 16], ty));
    let y = g.push1(conv, &[x, w]).unwrap();
    let y = g.cast(y, ty).unwrap();
    [y, g.cast(y, DType::F32).unwrap()]
}

/// The same of a gradient of `[2, 6, 5, 16]` by the input, of eight channels.
fn gradient(g: &mut Graph, ty: DType) -> Value {
    let (dy, w) = (typed(g, "dy", &[2, 6, 5, 16], ty), typed(g, "w", &[3, 3, 8, 16], ty));
    let dx = g.push1(Conv2dDataGrad { conv: EVEN, input: [6, 5] }, &[dy, w]).unwrap();
    let dx = g.cast(dx, ty).unwrap();
    g.cast(dx, DType::F32).unwrap()
}

fn keep(g: &mut Graph, name: &str, value: Value) {
    g.output(name, value);
}

fn rounded(g: &mut Graph, name: &str, value: Value, ty: DType) -> Value {
    let value = g.cast(value, ty).unwrap();
    g.output(name, value);
    value
}

fn moments(g: &mut Graph, value: Value) {
    let both = g.push(Op::from(MeanVar { axes: vec![0, 1, 2] }), &[value]).unwrap();
    g.output("mean", both[0]);
    g.output("variance", both[1]);
}

/// Runs a graph with what cuDNN fuses, switched off, and without an engine: the name of what runs where it is fused.
struct Ways<'a> {
    fused: CudaDevice,
    off: CudaDevice,
    folder: &'a Path,
    knobs: &'a Knobs,
}

impl Ways<'_> {
    fn check(&self, what: &str, graph: &Graph, allowed: f64, expected: &str) {
        assert_eq!(convolution_of(&self.fused, graph, allowed), expected, "{what}");
        assert_eq!(convolution_of(&self.off, graph, allowed), PLAIN, "{what}, switched off");
        self.knobs.set("no_fusions", 1);
        let without = gpu(self.folder);
        assert_eq!(convolution_of(&without, graph, allowed), PLAIN, "{what}, without an engine");
        self.knobs.set("no_fusions", 0);
    }
}

fn ways<'a>(folder: &'a Path, knobs: &'a Knobs) -> Ways<'a> {
    let off = CudaDevice::open(&CudaOptions { no_epilogues: true, ..options(folder, false) }).unwrap();
    Ways { fused: gpu(folder), off, folder, knobs }
}

/// Mean and variance are made of the sums that cuDNN gives, of the result as it is and of what is a multiple of it and a number for each
/// column.
#[test]
fn statistics_are_taken_in_the_pass_of_a_convolution() {
    let Some(folder) = mock_or_skip("statistics_are_taken_in_the_pass_of_a_convolution") else { return };
    let knobs = Knobs::of(folder, "libcudnn.so.9");
    let ways = ways(folder, &knobs);
    let fused = "convolution by cuDNN with statistics, then region";
    let same = Conv2d::new([2, 2], [6, 5].map(|size| same_padding(size, 3, 2, 1)));
    for (ty, allowed) in TYPES {
        for (what, conv) in [("even padding", EVEN), ("uneven padding", same)] {
            let mut g = Graph::new();
            let [y, wide] = convolved(&mut g, ty, conv);
            keep(&mut g, "y", y);
            moments(&mut g, wide);
            ways.check(&format!("{what}, {ty}"), &g, allowed, fused);
        }
        let mut g = Graph::new();
        let [y, wide] = convolved(&mut g, ty, EVEN);
        keep(&mut g, "y", y);
        let (bias, factor) = (f32s(&mut g, "bias", &[16]), f32s(&mut g, "factor", &[16]));
        let scaled = g.mul(factor, wide).unwrap();
        let sum = g.sub(bias, scaled).unwrap();
        moments(&mut g, sum);
        ways.check(&format!("of a multiple, {ty}"), &g, allowed, fused);
        let mut g = Graph::new();
        let [y, wide] = convolved(&mut g, ty, Conv2d { groups: 8, ..EVEN });
        keep(&mut g, "y", y);
        moments(&mut g, wide);
        assert_eq!(convolution_of(&ways.fused, &g, allowed), PLAIN, "a depthwise convolution, {ty}");
        let mut g = Graph::new();
        let [y, wide] = convolved(&mut g, ty, EVEN);
        keep(&mut g, "y", y);
        let bent = g.relu(wide).unwrap();
        moments(&mut g, bent);
        assert_eq!(convolution_of(&ways.fused, &g, allowed), PLAIN, "of another function, {ty}");
    }
    let mut g = Graph::new();
    let [y, wide] = convolved(&mut g, DType::F32, EVEN);
    keep(&mut g, "y", y);
    moments(&mut g, wide);
    assert_eq!(convolution_of(&ways.fused, &g, 2e-5), PLAIN, "f32");
}

/// What follows a convolution in inference.
type Follows = fn(&mut Graph, Value, DType) -> Value;

#[test]
fn shifts_residuals_and_activations_are_done_in_the_pass_of_a_convolution() {
    let test = "shifts_residuals_and_activations_are_done_in_the_pass_of_a_convolution";
    let Some(folder) = mock_or_skip(test) else { return };
    let knobs = Knobs::of(folder, "libcudnn.so.9");
    let ways = ways(folder, &knobs);
    fn biased(g: &mut Graph, y: Value) -> Value {
        let bias = f32s(g, "bias", &[16]);
        g.add(y, bias).unwrap()
    }
    fn other(g: &mut Graph, ty: DType) -> Value {
        let other = passing(g, "other", [2, 6, 5, 16], ty);
        g.cast(other, DType::F32).unwrap()
    }
    fn normed(g: &mut Graph, y: Value) -> Value {
        let [mean, factor, shift] = ["mean", "factor", "shift"].map(|name| f32s(g, name, &[16]));
        let y = g.sub(y, mean).unwrap();
        let y = g.mul(y, factor).unwrap();
        g.add(y, shift).unwrap()
    }
    let follows: [(&str, Follows); 9] = [
        ("shift", |g, y, _| biased(g, y)),
        ("shift + ReLU", |g, y, _| {
            let y = biased(g, y);
            g.relu(y).unwrap()
        }),
        ("shift + ReLU", |g, y, _| {
            let y = biased(g, y);
            let zero = g.mul_scalar(y, 0.0).unwrap();
            g.binary(BinaryKind::Max, zero, y).unwrap()
        }),
        ("shift + swish", |g, y, _| {
            let y = biased(g, y);
            let gate = g.unary(UnaryKind::Sigmoid, y).unwrap();
            g.mul(gate, y).unwrap()
        }),
        ("shift + residual", |g, y, ty| {
            let (y, other) = (biased(g, y), other(g, ty));
            g.add(other, y).unwrap()
        }),
        ("shift + residual + ReLU", |g, y, ty| {
            let (y, other) = (biased(g, y), other(g, ty));
            let y = g.add(y, other).unwrap();
            g.relu(y).unwrap()
        }),
        ("shift + residual + ReLU", |g, y, ty| {
            let (y, other, more) = (biased(g, y), other(g, ty), f32s(g, "more", &[16]));
            let other = g.add(more, other).unwrap();
            let y = g.add(y, other).unwrap();
            g.relu(y).unwrap()
        }),
        ("scale + shift + ReLU", |g, y, _| {
            let y = normed(g, y);
            g.relu(y).unwrap()
        }),
        ("scale + shift + residual + ReLU", |g, y, ty| {
            let (y, other) = (normed(g, y), other(g, ty));
            let y = g.add(y, other).unwrap();
            g.relu(y).unwrap()
        }),
    ];
    for (ty, allowed) in TYPES {
        for (what, follows) in follows {
            let mut g = Graph::new();
            let [_, wide] = convolved(&mut g, ty, EVEN);
            let y = follows(&mut g, wide, ty);
            let y = rounded(&mut g, "y", y, ty);
            ways.check(&format!("{what}, {ty}"), &g, allowed, &format!("convolution by cuDNN with {what}"));
            // What is made of the rounded result is left to a kernel.
            let wide = g.cast(y, DType::F32).unwrap();
            let sums = g.sum(wide, &[0, 1, 2]).unwrap();
            keep(&mut g, "sums", sums);
            let expected = format!("convolution by cuDNN with {what}, then region");
            ways.check(&format!("{what}, summed, {ty}"), &g, allowed, &expected);
        }
        let mut g = Graph::new();
        let [_, wide] = convolved(&mut g, ty, EVEN);
        let bias = f32s(&mut g, "bias", &[2, 1, 1, 16]);
        let y = g.add(wide, bias).unwrap();
        rounded(&mut g, "y", y, ty);
        assert_eq!(convolution_of(&ways.fused, &g, allowed), PLAIN, "a bias for each image, {ty}");
        let mut g = Graph::new();
        let [_, wide] = convolved(&mut g, ty, EVEN);
        let y = biased(&mut g, wide);
        let gate = g.unary(UnaryKind::Sigmoid, y).unwrap();
        let y = g.mul(gate, wide).unwrap();
        rounded(&mut g, "y", y, ty);
        assert_eq!(convolution_of(&ways.fused, &g, allowed), PLAIN, "a gate of something else, {ty}");
    }
}

/// How the gradient of `relu((x - mean) factor + shift)` is written.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Written {
    /// As models do.
    Usual,
    /// As an affine function of `x`, compared the other way round.
    Affine,
    /// With sums that are multiples of the usual one.
    Scaled,
}

/// Its gradient, its sums, and those of it times `x - mean`; with a residual that is added before.
fn norm_gradient(ty: DType, residual: bool, written: Written) -> Graph {
    let mut g = Graph::new();
    let dx = gradient(&mut g, ty);
    let x = passing(&mut g, "before", [2, 6, 5, 8], ty);
    let x = g.cast(x, DType::F32).unwrap();
    let [mean, factor, shift] = ["mean", "factor", "shift"].map(|name| f32s(&mut g, name, &[8]));
    let centred = g.sub(x, mean).unwrap();
    let scaled = g.mul(centred, factor).unwrap();
    let is_kept = match written {
        Written::Affine => {
            let (scaled, offset) = (g.mul(factor, x).unwrap(), g.mul(mean, factor).unwrap());
            let offset = g.sub(shift, offset).unwrap();
            let normed = g.add(offset, scaled).unwrap();
            let zero = g.mul_scalar(normed, 0.0).unwrap();
            g.binary(BinaryKind::Lt, zero, normed).unwrap()
        }
        _ => {
            let normed = g.add(scaled, shift).unwrap();
            let kept = g.relu(normed).unwrap();
            let zero = g.mul_scalar(normed, 0.0).unwrap();
            g.binary(BinaryKind::Gt, kept, zero).unwrap()
        }
    };
    let mut sum = dx;
    if residual {
        let other = passing(&mut g, "other", [2, 6, 5, 8], ty);
        let other = g.cast(other, DType::F32).unwrap();
        sum = g.add(other, dx).unwrap();
    }
    let zeros = g.mul_scalar(sum, 0.0).unwrap();
    let dy = g.select(is_kept, sum, zeros).unwrap();
    let dy = rounded(&mut g, "dy of the norm", dy, ty);
    let dy = g.cast(dy, DType::F32).unwrap();
    let by = if written == Written::Scaled { scaled } else { centred };
    let product = g.mul(dy, by).unwrap();
    for (name, value) in [("dshift", dy), ("dscale", product)] {
        let sums = g.sum(value, &[0, 1, 2]).unwrap();
        keep(&mut g, name, sums);
    }
    g
}

#[test]
fn gradients_of_norms_are_taken_in_the_pass_of_a_convolution() {
    let Some(folder) = mock_or_skip("gradients_of_norms_are_taken_in_the_pass_of_a_convolution") else { return };
    let knobs = Knobs::of(folder, "libcudnn.so.9");
    let ways = ways(folder, &knobs);
    for written in [Written::Usual, Written::Affine, Written::Scaled] {
        for residual in [false, true] {
            let graph = norm_gradient(DType::F16, residual, written);
            let added = if residual { "residual + " } else { "" };
            let rest = if written == Written::Scaled { ", then region" } else { "" };
            let expected = format!("convolution by cuDNN with {added}ReLU gradient + norm sums{rest}");
            ways.check(&format!("{written:?}, residual {residual}"), &graph, 4e-3, &expected);
        }
    }
    let graph = norm_gradient(DType::Bf16, false, Written::Usual);
    assert_eq!(convolution_of(&ways.fused, &graph, 3e-2), PLAIN, "bf16");
}

/// The gradient of ReLU of a tensor in memory, a residual, and both, with what is left to a kernel behind. The result lies where none of
/// what is read lies.
#[test]
fn gradients_of_relu_and_residuals_are_taken_in_the_pass_of_a_convolution() {
    let test = "gradients_of_relu_and_residuals_are_taken_in_the_pass_of_a_convolution";
    let Some(folder) = mock_or_skip(test) else { return };
    let knobs = Knobs::of(folder, "libcudnn.so.9");
    let ways = ways(folder, &knobs);
    for (ty, allowed) in TYPES {
        for (residual, relu, what) in
            [(true, false, "residual"), (false, true, "ReLU gradient"), (true, true, "residual + ReLU gradient")]
        {
            for summed in [false, true] {
                let mut g = Graph::new();
                let mut dx = gradient(&mut g, ty);
                if residual {
                    let other = passing(&mut g, "other", [2, 6, 5, 8], ty);
                    let other = g.cast(other, DType::F32).unwrap();
                    dx = g.add(dx, other).unwrap();
                }
                if relu {
                    let y = passing(&mut g, "kept", [2, 6, 5, 8], ty);
                    let y = g.cast(y, DType::F32).unwrap();
                    let zeros = g.mul_scalar(y, 0.0).unwrap();
                    let is_kept = g.binary(BinaryKind::Gt, y, zeros).unwrap();
                    dx = g.select(is_kept, dx, zeros).unwrap();
                }
                let dx = rounded(&mut g, "dx", dx, ty);
                if summed {
                    let x = passing(&mut g, "before", [2, 6, 5, 8], ty);
                    let [dx, x] = [dx, x].map(|value| g.cast(value, DType::F32).unwrap());
                    let product = g.mul(dx, x).unwrap();
                    let sums = g.sum(product, &[0, 1, 2]).unwrap();
                    keep(&mut g, "sums", sums);
                }
                let rest = if summed { ", then region" } else { "" };
                let expected = format!("convolution by cuDNN with {what}{rest}");
                ways.check(&format!("{what}, summed {summed}, {ty}"), &g, allowed, &expected);
                let plan = plan(&g);
                let has_product =
                    |id: &NodeId| plan.graph.node(*id).op.as_fusion().is_some_and(|f| f.producer.is_some());
                let node = plan.graph.ids().find(has_product).unwrap();
                let result = plan.location(Value { node, output: 0 });
                let inputs = &plan.graph.node(node).inputs;
                assert!(inputs.iter().all(|&input| plan.location(input) != result), "{what}, summed {summed}, {ty}");
            }
        }
    }
}

fn with_statistics() -> Graph {
    let mut g = Graph::new();
    let [y, wide] = convolved(&mut g, DType::F16, EVEN);
    keep(&mut g, "y", y);
    moments(&mut g, wide);
    g
}

/// Images of the next convolution.
const FAR: [usize; 4] = [4, 32, 32, 16];

/// A convolution of 1 x 1 with its moments.
fn far_from_zero() -> Graph {
    let mut g = Graph::new();
    let (x, w) = (typed(&mut g, "x", &FAR, DType::F16), typed(&mut g, "w", &[1, 1, 16, 8], DType::F16));
    let y = g.push1(Conv2d::new([1, 1], [[0; 2]; 2]), &[x, w]).unwrap();
    let y = g.cast(y, DType::F16).unwrap();
    let wide = g.cast(y, DType::F32).unwrap();
    keep(&mut g, "y", y);
    moments(&mut g, wide);
    g
}

/// Largest errors of means, of the deviation, and of variances, of the variance, against those of the rounded results in `f64`, and of the
/// variances' reciprocal roots, of themselves.
fn errors_of_moments(gpu: &CudaDevice, mean: f32) -> [f64; 3] {
    let mut executor = load(gpu, &far_from_zero());
    let draw = |stream: u32, i: usize| philox::normal(21, 0, stream, i as u64);
    // The first channel is 1 everywhere, and its weights are the mean.
    let x: Vec<f32> = (0..FAR.iter().product()).map(|i| if i % 16 == 0 { 1.0 } else { draw(0, i) }).collect();
    let w: Vec<f32> = (0..16 * 8).map(|i| if i < 8 { mean } else { draw(1, i) / 15f32.sqrt() }).collect();
    executor.feed(&[("x", &bytes(&x)), ("w", &bytes(&w))]).unwrap();
    executor.run().unwrap();
    let y = elements(&*executor, "y", DType::F16);
    let [means, variances] = ["mean", "variance"].map(|name| elements(&*executor, name, DType::F32));
    let mut worst = [0.0f64; 3];
    for column in 0..8 {
        let rows: Vec<f64> = y.iter().skip(column).step_by(8).copied().collect();
        let mean = rows.iter().sum::<f64>() / rows.len() as f64;
        let variance = rows.iter().map(|y| (y - mean).powi(2)).sum::<f64>() / rows.len() as f64;
        let errors = [
            (means[column] - mean).abs() / variance.sqrt(),
            (variances[column] / variance - 1.0).abs(),
            ((variance / variances[column]).sqrt() - 1.0).abs(),
        ];
        worst.iter_mut().zip(errors).for_each(|(worst, error)| *worst = worst.max(error));
    }
    worst
}

/// Sums of squares lose digits where the mean is far from 0; moments that are merged do not.
#[test]
fn statistics_of_sums_lose_digits_where_means_are_far_from_0() {
    let Some(folder) = mock_or_skip("statistics_of_sums_lose_digits_where_means_are_far_from_0") else { return };
    let off = CudaDevice::open(&CudaOptions { no_epilogues: true, ..options(folder, false) }).unwrap();
    let fused = gpu(folder);
    for (mean, allowed) in [(0.0, 2e-5), (1.0, 3e-5), (3.0, 6e-5), (10.0, 3e-4), (30.0, 2e-3)] {
        let [by_sums, merged] = [&fused, &off].map(|gpu| errors_of_moments(gpu, mean));
        let shown = |errors: [f64; 3]| errors.map(|error| format!("{error:.1e}")).join(", ");
        let both = format!("mean {mean}: by sums {}; merged {}", shown(by_sums), shown(merged));
        println!("{both}");
        assert!(merged.iter().all(|error| *error <= 1e-6 * f64::from(1.0 + mean)), "{both}");
        assert!(by_sums.iter().all(|error| *error <= allowed), "{both}");
    }
}

/// A library cannot be kept from replacing state: a mean that becomes state is taken by kernels, which a halt keeps from writing.
#[test]
fn convolutions_that_replace_state_are_plain() {
    let Some(folder) = mock_or_skip("convolutions_that_replace_state_are_plain") else { return };
    for (halts, name) in [(true, PLAIN), (false, "convolution by cuDNN with statistics, then region")] {
        let mut g = with_statistics();
        let state = g.input("state", Role::State, TensorType::f32([16])).unwrap();
        let mean = g.outputs().iter().find(|(name, _)| name == "mean").unwrap().1;
        g.update(state, mean).unwrap();
        if halts {
            let halt = f32s(&mut g, HALT, &[]);
            let halt = g.mul_scalar(halt, 1.0).unwrap();
            keep(&mut g, HALT, halt);
        }
        let gpu = gpu(folder);
        let plan = plan(&g);
        let store = gpu.new_state(StateLayout::of_plan(&plan)).unwrap();
        let mut executor = gpu.load(plan, &store, &StateBinding::default()).unwrap();
        assert!(executor.kernels().iter().any(|kernel| kernel.name == name), "{:?}", executor.kernels());
        let w: Vec<f32> = (0..9 * 8 * 16).map(|i| philox::normal(3, 0, 1, i)).collect();
        let submit = |executor: &mut dyn Executor, number: f32, halt: f32| {
            executor.feed(&[("x", &bytes(&vec![number; 2 * 6 * 5 * 8])), ("w", &bytes(&w))]).unwrap();
            if halts {
                executor.feed(&[(HALT, &bytes(&[halt]))]).unwrap();
            }
            executor.submit().unwrap()
        };
        let first = submit(&mut *executor, 1.0, 1.0);
        let second = submit(&mut *executor, -2.0, 0.0);
        executor.collect(first).unwrap();
        let mean = read_f32(&*store, "state").unwrap();
        assert_eq!(executor.collect(second).is_ok(), !halts);
        let third = submit(&mut *executor, if halts { 1.0 } else { -2.0 }, 0.0);
        executor.collect(third).unwrap();
        assert_eq!(read_f32(&*store, "state").unwrap(), mean, "halts {halts}");
        assert!(mean.iter().any(|x| x.abs() > 0.1), "{mean:?}");
    }
}

/// What is fused is taken if it was measured to be as fast as the plain convolution and the bytes that kernels behind it move; where
/// nothing is measured, if its engine is there without a compiler. A file of measurements decides the same again.
#[test]
fn what_is_fused_is_taken_where_it_is_faster() {
    let Some(folder) = mock_or_skip("what_is_fused_is_taken_where_it_is_faster") else { return };
    let knobs = Knobs::of(folder, "libcudnn.so.9");
    let (graph, scratch) = (with_statistics(), tempfile::tempdir().unwrap());
    let fused = "convolution by cuDNN with statistics, then region";
    for (number, (slow, expected)) in [("slow_plain", fused), ("slow_fusions", PLAIN)].into_iter().enumerate() {
        let file = scratch.path().join(format!("{number}.json"));
        let tuned = || CudaDevice::open(&CudaOptions { tuning: Some(file.clone()), ..options(folder, false) }).unwrap();
        knobs.set(slow, 1);
        assert_eq!(convolution_of(&tuned(), &graph, 3e-3), expected, "{slow}");
        knobs.set(slow, 0);
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains("\"forward, f16, ") && text.contains("\"forward + statistics, f16, "), "{text}");
        let other = if number == 0 { "slow_fusions" } else { "slow_plain" };
        knobs.set(other, 1);
        knobs.set("plans", 0);
        assert_eq!(convolution_of(&tuned(), &graph, 3e-3), expected, "{slow}, as it was kept");
        assert_eq!(knobs.get("plans"), 2, "what was kept is not measured again");
        knobs.set(other, 0);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    }
    knobs.set("fusions_compile", 1);
    assert_eq!(convolution_of(&gpu(folder), &graph, 3e-3), PLAIN, "an engine that compiles");
    let file = scratch.path().join("compiled.json");
    let tuned = CudaDevice::open(&CudaOptions { tuning: Some(file), ..options(folder, false) }).unwrap();
    knobs.set("slow_plain", 1);
    assert_eq!(convolution_of(&tuned, &graph, 3e-3), fused, "an engine that compiles, measured");
    knobs.set("slow_plain", 0);
    knobs.set("fusions_compile", 0);
}
