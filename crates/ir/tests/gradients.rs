//! Every reference kernel against values worked out by hand, and every gradient rule against central differences.

use bessemer_ir::autodiff::gradients;
use bessemer_ir::ops::attention::{Attention, AttentionDropout};
use bessemer_ir::ops::conv::{Conv2d, Conv2dDataGrad, Conv2dWeightGrad, Filter, symmetric};
use bessemer_ir::ops::detection::roi::{RoiAlign, RoiBorder, RoiLevels, RoiSamples};
use bessemer_ir::ops::index::{ArgMax, Gather, OneHot, ScatterAdd};
use bessemer_ir::ops::layout::{Broadcast, Concat, Pad, Reshape, Slice, Transpose};
use bessemer_ir::ops::matmul::Matmul;
use bessemer_ir::ops::pointwise::{Binary, BinaryKind, Cast, Select, Unary, UnaryKind};
use bessemer_ir::ops::pool::{AvgPool2d, AvgPool2dGrad, MaxPool2d, MaxPool2dGrad, Upsample};
use bessemer_ir::ops::reduce::{MeanVar, Reduce, ReduceKind};
use bessemer_ir::ops::softmax::{LogSoftmax, Softmax};
use bessemer_ir::ops::source::Constant;
use bessemer_ir::ops::{Op, Scalar};
use bessemer_ir::reference::{Interpreter, Tensor};
use bessemer_ir::verify::verify;
use bessemer_ir::{DType, Graph, GraphError, Role, Shape, TensorType, Value, philox};
use proptest::prelude::*;

fn f32s(shape: impl Into<Shape>, data: &[f64]) -> Tensor {
    Tensor::new(TensorType::f32(shape), data.to_vec())
}

fn i32s(shape: impl Into<Shape>, data: &[f64]) -> Tensor {
    Tensor::new(TensorType::new(DType::I32, shape), data.to_vec())
}

fn bools(shape: impl Into<Shape>, data: &[f64]) -> Tensor {
    Tensor::new(TensorType::new(DType::Bool, shape), data.to_vec())
}

fn uniform(stream: u32, i: usize) -> f64 {
    f64::from(philox::uniform(1, 0, stream, i as u64))
}

/// Numbers between -1 and 1.
fn random(shape: impl Into<Shape>, stream: u32) -> Tensor {
    Tensor::from_fn(TensorType::f32(shape), |i| 2.0 * uniform(stream, i) - 1.0)
}

/// Numbers between 0.5 and 1.5.
fn positive(shape: impl Into<Shape>, stream: u32) -> Tensor {
    Tensor::from_fn(TensorType::f32(shape), |i| 0.5 + uniform(stream, i))
}

/// Numbers of either sign, at least 0.2 away from zero.
fn nonzero(shape: impl Into<Shape>, stream: u32) -> Tensor {
    let sign = |i| if uniform(stream + 1000, i) < 0.5 { -1.0 } else { 1.0 };
    Tensor::from_fn(TensorType::f32(shape), |i| sign(i) * (0.2 + uniform(stream, i)))
}

/// Numbers in random order, at least 0.1 apart from each other.
fn distinct(shape: impl Into<Shape>, stream: u32) -> Tensor {
    let ty = TensorType::f32(shape);
    let n = ty.shape.elements();
    let keys: Vec<f64> = (0..n).map(|i| uniform(stream, i)).collect();
    let rank = |i: usize| keys.iter().filter(|&&key| key < keys[i]).count();
    Tensor::from_fn(ty, |i| 0.1 * rank(i) as f64 - 0.05 * n as f64)
}

fn evaluate(op: impl Into<Op>, inputs: &[Tensor]) -> Vec<Tensor> {
    let op = op.into();
    let types: Vec<&TensorType> = inputs.iter().map(|t| &t.ty).collect();
    let outputs = op.rule().infer(&types).unwrap_or_else(|problem| panic!("{op}: {problem}"));
    op.rule().evaluate(&inputs.iter().collect::<Vec<_>>(), &outputs)
}

/// Asserts the outputs of `op`: the data of each, within rounding.
fn assert_gives(op: impl Into<Op>, inputs: &[Tensor], expected: &[&[f64]]) {
    let op = op.into();
    let outputs = evaluate(op.clone(), inputs);
    assert_eq!(outputs.len(), expected.len(), "{op}: outputs");
    for (output, expected) in outputs.iter().zip(expected) {
        let equal = |(a, b): (&f64, &f64)| (a.is_nan() && b.is_nan()) || a == b || (a - b).abs() < 1e-12;
        let all = output.data.len() == expected.len() && output.data.iter().zip(*expected).all(equal);
        assert!(all, "{op} gives {:?}, expected {expected:?}", output.data);
    }
}

type Built = Result<Vec<Value>, GraphError>;

/// A graph whose loss is the sum of all outputs of `build`, each element times a fixed random weight.
fn loss_graph(inputs: &[Tensor], build: &dyn Fn(&mut Graph, &[Value]) -> Built) -> (Graph, Vec<Value>, Value) {
    let mut g = Graph::new();
    let values: Vec<Value> =
        (0..inputs.len()).map(|i| g.input(&format!("x{i}"), Role::Parameter, inputs[i].ty.clone()).unwrap()).collect();
    let outputs = build(&mut g, &values).unwrap();
    let mut loss = g.constant(DType::F32, [], 0.0).unwrap();
    for (number, output) in outputs.into_iter().enumerate() {
        let shape = g.shape(output).clone();
        let data = positive(shape.clone(), 500 + number as u32).data.into_iter().map(Scalar).collect();
        let weights = g.push1(Constant { dtype: DType::F32, shape: shape.clone(), data }, &[]).unwrap();
        let output = g.cast(output, DType::F32).unwrap();
        let weighted = g.mul(output, weights).unwrap();
        let sum = g.sum(weighted, &(0..shape.rank()).collect::<Vec<_>>()).unwrap();
        loss = g.add(loss, sum).unwrap();
    }
    g.output("loss", loss);
    (g, values, loss)
}

fn run<'a>(graph: &'a Graph, inputs: &[Tensor]) -> Interpreter<'a> {
    let mut interpreter = Interpreter::new(graph);
    for (i, input) in inputs.iter().enumerate() {
        interpreter.set(&format!("x{i}"), &input.data);
    }
    interpreter.run();
    interpreter
}

/// Gradients of the loss with respect to the inputs numbered in `wrt`.
fn analytic(inputs: &[Tensor], wrt: &[usize], build: &dyn Fn(&mut Graph, &[Value]) -> Built) -> Vec<Tensor> {
    let (mut g, values, loss) = loss_graph(inputs, build);
    let wrt: Vec<Value> = wrt.iter().map(|&i| values[i]).collect();
    for (i, grad) in gradients(&mut g, loss, &wrt).unwrap().into_iter().enumerate() {
        assert_eq!(g.ty(grad), g.ty(wrt[i]));
        g.output(&format!("d{i}"), grad);
    }
    verify(&g, "gradients").unwrap();
    let interpreter = run(&g, inputs);
    (0..wrt.len()).map(|i| interpreter.output(&format!("d{i}")).clone()).collect()
}

fn numeric(inputs: &[Tensor], input: usize, build: &dyn Fn(&mut Graph, &[Value]) -> Built) -> Vec<f64> {
    const STEP: f64 = 1e-5;
    let (g, _, _) = loss_graph(inputs, build);
    let loss_at = |element: usize, offset: f64| {
        let mut moved = inputs.to_vec();
        moved[input].data[element] += offset;
        run(&g, &moved).output("loss").data[0]
    };
    (0..inputs[input].data.len()).map(|i| (loss_at(i, STEP) - loss_at(i, -STEP)) / (2.0 * STEP)).collect()
}

/// Checks the gradient with respect to every float input against central differences, and that asking for one alone
/// gives the same.
fn check_build(what: &str, inputs: &[Tensor], build: &dyn Fn(&mut Graph, &[Value]) -> Built) {
    let wrt: Vec<usize> = (0..inputs.len()).filter(|&i| inputs[i].ty.dtype.is_float()).collect();
    let all = analytic(inputs, &wrt, build);
    for (&input, analytic_grad) in wrt.iter().zip(&all) {
        let expected = numeric(inputs, input, build);
        let largest = expected.iter().fold(0.0f64, |max, x| max.max(x.abs()));
        for (element, (&a, &n)) in analytic_grad.data.iter().zip(&expected).enumerate() {
            assert!(
                (a - n).abs() <= 1e-6 * largest + 1e-9,
                "{what}: gradient of element {element} of input {input} is {a}, by differences {n}"
            );
        }
        assert_eq!(analytic(inputs, &[input], build)[0], *analytic_grad, "{what}: input {input} alone");
    }
}

fn check(op: impl Into<Op>, inputs: &[Tensor]) {
    let op = op.into();
    check_build(&op.to_string(), inputs, &|g, values| g.push(op.clone(), values));
}

#[test]
fn unary_gradients() {
    for kind in UnaryKind::ALL {
        match kind {
            UnaryKind::Floor => continue,
            UnaryKind::Log | UnaryKind::Sqrt | UnaryKind::Rsqrt => check(Unary(kind), &[positive([2, 3], 1)]),
            _ => check(Unary(kind), &[nonzero([2, 3], 1)]),
        }
    }
    check(Unary(UnaryKind::Square), &[nonzero([], 1)]);
}

#[test]
fn unary_values() {
    let x = [-2.0, 0.0, 0.25];
    let expect = |kind, values: [f64; 3]| assert_gives(Unary(kind), &[f32s([3], &x)], &[&values]);
    expect(UnaryKind::Neg, [2.0, 0.0, -0.25]);
    expect(UnaryKind::Abs, [2.0, 0.0, 0.25]);
    expect(UnaryKind::Exp, [0.135_335_283_236_612_7, 1.0, 1.284_025_416_687_741_5]);
    expect(UnaryKind::Log, [f64::NAN, f64::NEG_INFINITY, -1.386_294_361_119_890_6]);
    expect(UnaryKind::Sqrt, [f64::NAN, 0.0, 0.5]);
    expect(UnaryKind::Rsqrt, [f64::NAN, f64::INFINITY, 2.0]);
    expect(UnaryKind::Recip, [-0.5, f64::INFINITY, 4.0]);
    expect(UnaryKind::Square, [4.0, 0.0, 0.0625]);
    expect(UnaryKind::Relu, [0.0, 0.0, 0.25]);
    expect(UnaryKind::Sigmoid, [0.119_202_922_022_117_56, 0.5, 0.562_176_500_885_798_1]);
    expect(UnaryKind::Tanh, [-0.964_027_580_075_816_9, 0.0, 0.244_918_662_403_709_13]);
    expect(UnaryKind::Erf, [-0.995_322_265_018_952_7, 0.0, 0.276_326_390_168_236_93]);
    expect(UnaryKind::Sin, [-0.909_297_426_825_681_7, 0.0, 0.247_403_959_254_522_93]);
    expect(UnaryKind::Cos, [-0.416_146_836_547_142_4, 1.0, 0.968_912_421_710_644_7]);
    expect(UnaryKind::Floor, [-2.0, 0.0, 0.0]);
    assert_gives(Unary(UnaryKind::Relu), &[f32s([1], &[f64::NAN])], &[&[f64::NAN]]);
}

#[test]
fn binary_gradients() {
    let shapes: [(&[usize], &[usize]); 5] =
        [(&[2, 3], &[2, 3]), (&[2, 3], &[]), (&[3], &[2, 3]), (&[2, 1], &[1, 3]), (&[], &[])];
    for kind in BinaryKind::ALL.into_iter().filter(|kind| !kind.is_comparison()) {
        for (a, b) in shapes {
            check(Binary(kind), &[positive(a, 1), positive(b, 2)]);
        }
    }
    check(Binary(BinaryKind::Div), &[nonzero([4], 3), nonzero([4], 4)]);
}

#[test]
fn a_value_used_twice_sums_its_gradients() {
    check_build("x * x + x", &[nonzero([3], 1)], &|g, v| {
        let square = g.mul(v[0], v[0])?;
        Ok(vec![g.add(square, v[0])?])
    });
}

#[test]
fn binary_values() {
    let (a, b) = (f32s([2, 1], &[3.0, -2.0]), f32s([2], &[2.0, 3.0]));
    let expect = |kind, values: [f64; 4]| assert_gives(Binary(kind), &[a.clone(), b.clone()], &[&values]);
    expect(BinaryKind::Add, [5.0, 6.0, 0.0, 1.0]);
    expect(BinaryKind::Sub, [1.0, 0.0, -4.0, -5.0]);
    expect(BinaryKind::Mul, [6.0, 9.0, -4.0, -6.0]);
    expect(BinaryKind::Div, [1.5, 1.0, -1.0, -2.0 / 3.0]);
    expect(BinaryKind::Max, [3.0, 3.0, 2.0, 3.0]);
    expect(BinaryKind::Min, [2.0, 3.0, -2.0, -2.0]);
    expect(BinaryKind::Pow, [9.0, 27.0, 4.0, -8.0]);
    expect(BinaryKind::Eq, [0.0, 1.0, 0.0, 0.0]);
    expect(BinaryKind::Lt, [0.0, 0.0, 1.0, 1.0]);
    expect(BinaryKind::Le, [0.0, 1.0, 1.0, 1.0]);
    expect(BinaryKind::Gt, [1.0, 0.0, 0.0, 0.0]);
    expect(BinaryKind::Ge, [1.0, 1.0, 0.0, 0.0]);
}

#[test]
fn select_and_cast() {
    let condition = bools([2, 1], &[1.0, 0.0]);
    check(Select, &[condition.clone(), nonzero([2, 3], 1), nonzero([3], 2)]);
    check(Select, &[condition.clone(), nonzero([], 1), nonzero([2, 1], 2)]);
    let branches = [f32s([2], &[1.0, 2.0]), f32s([], &[9.0])];
    assert_gives(Select, &[condition, branches[0].clone(), branches[1].clone()], &[&[1.0, 2.0, 9.0, 9.0]]);

    for to in [DType::Bf16, DType::F16, DType::F32] {
        check(Cast { to }, &[nonzero([4], 1)]);
    }
    let x = f32s([4], &[-1.5, 0.0, 0.5, 2.7]);
    assert_gives(Cast { to: DType::I32 }, std::slice::from_ref(&x), &[&[-1.0, 0.0, 0.0, 2.0]]);
    assert_gives(Cast { to: DType::Bool }, &[x], &[&[1.0, 0.0, 1.0, 1.0]]);
}

#[test]
fn reduce_gradients() {
    for kind in ReduceKind::ALL {
        for axes in [vec![0], vec![1], vec![2], vec![0, 2], vec![0, 1, 2], vec![]] {
            for keep_dims in [false, true] {
                check(Reduce { kind, axes: axes.clone(), keep_dims }, &[distinct([2, 3, 4], 1)]);
            }
        }
    }
    for axes in [vec![0], vec![0, 1], vec![0, 1, 2], vec![2], vec![]] {
        let op = Op::from(MeanVar { axes });
        check(op.clone(), &[random([2, 3, 4], 1)]);
        for output in 0..2 {
            check_build(&format!("output {output} of {op}"), &[random([2, 3, 4], 2)], &|g, v| {
                Ok(vec![g.push(op.clone(), v)?[output]])
            });
        }
    }
}

#[test]
fn reduce_values() {
    let x = f32s([2, 3], &[1.0, 5.0, 3.0, -1.0, 5.0, 2.0]);
    let reduce = |kind, axes: &[usize]| Reduce { kind, axes: axes.to_vec(), keep_dims: false };
    let expect = |op: Reduce, values: &[f64]| assert_gives(op, std::slice::from_ref(&x), &[values]);
    expect(reduce(ReduceKind::Sum, &[1]), &[9.0, 6.0]);
    expect(reduce(ReduceKind::Sum, &[0]), &[0.0, 10.0, 5.0]);
    expect(reduce(ReduceKind::Max, &[1]), &[5.0, 5.0]);
    expect(reduce(ReduceKind::Min, &[0, 1]), &[-1.0]);
    assert_gives(reduce(ReduceKind::Max, &[0]), &[f32s([3], &[1.0, f64::NAN, 2.0])], &[&[f64::NAN]]);
    assert_gives(reduce(ReduceKind::Min, &[0]), &[f32s([2], &[f64::NAN, 2.0])], &[&[f64::NAN]]);
    assert_gives(MeanVar { axes: vec![0] }, std::slice::from_ref(&x), &[&[0.0, 5.0, 2.5], &[1.0, 0.0, 0.25]]);
    assert_gives(MeanVar { axes: vec![1] }, &[x], &[&[3.0, 2.0], &[8.0 / 3.0, 6.0]]);
}

#[test]
fn tied_extremes_share_the_gradient() {
    let x = f32s([4], &[2.0, 1.0, 2.0, 0.0]);
    let grad = |kind| {
        analytic(std::slice::from_ref(&x), &[0], &|g, v| Ok(vec![g.reduce(kind, v[0], &[0], false)?]))[0].data.clone()
    };
    let weight = positive([], 500).data[0];
    assert_eq!(grad(ReduceKind::Max), [weight / 2.0, 0.0, weight / 2.0, 0.0]);
    assert_eq!(grad(ReduceKind::Min), [0.0, 0.0, 0.0, weight]);
}

#[test]
fn softmax_gradients_and_values() {
    check(Softmax, &[random([2, 5], 1)]);
    check(LogSoftmax, &[random([2, 5], 1)]);
    check(Softmax, &[random([5], 1)]);
    check(LogSoftmax, &[random([2, 2, 3], 1)]);
    let x = f32s([2, 2], &[1000.0, 1000.0, 0.0, 3f64.ln()]);
    assert_gives(Softmax, std::slice::from_ref(&x), &[&[0.5, 0.5, 0.25, 0.75]]);
    assert_gives(LogSoftmax, &[x], &[&[0.5f64.ln(), 0.5f64.ln(), 0.25f64.ln(), 0.75f64.ln()]]);
}

#[test]
fn matmul_gradients() {
    for (trans_a, trans_b) in [(false, false), (true, false), (false, true), (true, true)] {
        let matrix = |rows: usize, cols: usize, transposed| if transposed { [cols, rows] } else { [rows, cols] };
        let (a, b) = (matrix(2, 3, trans_a), matrix(3, 4, trans_b));
        let op = Matmul { trans_a, trans_b };
        check(op, &[random(a, 1), random(b, 2)]);
        let batched = |m: [usize; 2]| [2, 2, m[0], m[1]];
        check(op, &[random(batched(a), 1), random(batched(b), 2)]);
        if !trans_a {
            check(op, &[random(batched(a), 1), random(b, 2)]);
        }
    }
}

#[test]
fn matmul_values() {
    let a = f32s([2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let b = f32s([2, 2], &[5.0, 6.0, 7.0, 8.0]);
    let expect = |trans_a, trans_b, values: [f64; 4]| {
        assert_gives(Matmul { trans_a, trans_b }, &[a.clone(), b.clone()], &[&values]);
    };
    expect(false, false, [19.0, 22.0, 43.0, 50.0]);
    expect(true, false, [26.0, 30.0, 38.0, 44.0]);
    expect(false, true, [17.0, 23.0, 39.0, 53.0]);
    expect(true, true, [23.0, 31.0, 34.0, 46.0]);
    let plain = Matmul { trans_a: false, trans_b: false };
    let (row, column) = (f32s([2, 1, 2], &[1.0, 2.0, 3.0, 4.0]), [1.0, 1.0, 10.0, 1.0]);
    assert_gives(plain, &[row.clone(), f32s([2, 2, 1], &column)], &[&[3.0, 34.0]]);
    assert_gives(plain, &[row, f32s([2, 1], &[1.0, 10.0])], &[&[21.0, 43.0]]);
}

/// Attention of q, k and v, with dropout where a counter follows.
fn attend(g: &mut Graph, inputs: &[Value], attention: Attention) -> Built {
    let keys = g.shape(inputs[1]).clone();
    let bias = (0..keys[0] * keys[1]).map(|i| Scalar(if i % 5 == 1 { -10000.0 } else { 0.3 * (i % 3) as f64 }));
    let bias = Constant { dtype: DType::F32, shape: [keys[0], keys[1]].into(), data: bias.collect() };
    let bias = g.push1(bias, &[])?;
    let (common, counter) = inputs.split_at(3);
    Ok(vec![g.push(attention, &[common, &[bias], counter].concat())?[0]])
}

#[test]
fn attention_gradients() {
    let tensors = |queries: usize, keys: usize| {
        vec![random([2, queries, 6], 1), random([2, keys, 6], 2), random([2, keys, 6], 3)]
    };
    let plain = Attention { heads: 2, scale: Scalar(0.6), dropout: None, output: DType::F32 };
    check_build("attention", &tensors(3, 4), &|g, v| attend(g, v, plain));
    check_build("attention to itself", &tensors(5, 5), &|g, v| attend(g, v, plain));
    let dropout = Some(AttentionDropout { rate: Scalar(0.4), seed: 3, stream: 2, keeps_mask: false });
    let with_counter = [tensors(4, 3), vec![i32s([], &[6.0])]].concat();
    check_build("attention with dropout", &with_counter, &|g, v| attend(g, v, Attention { dropout, ..plain }));
}

/// Two keys whose scores differ by the logarithm of 3, and a third that is masked.
#[test]
fn attention_values() {
    let q = f32s([1, 1, 2], &[1.0, 0.0]);
    let k = f32s([1, 3, 2], &[0.0, 5.0, 2.0 * 3f64.ln(), 7.0, 0.0, 0.0]);
    let v = f32s([1, 3, 2], &[1.0, 10.0, 2.0, 20.0, 3.0, 30.0]);
    let bias = f32s([1, 3], &[0.0, 0.0, -10000.0]);
    let attention = Attention { heads: 1, scale: Scalar(0.5), dropout: None, output: DType::F32 };
    let inputs = [q, k, v, bias];
    assert_gives(attention, &inputs, &[&[1.75, 17.5], &[4f64.ln()]]);

    let kept = |seed: u64| [0, 1].map(|i| if philox::uniform(seed, 4, 1, i) >= 0.5 { 2.0 } else { 0.0 });
    let seed = (0..).find(|&seed| kept(seed) == [0.0, 2.0]).expect("one in four");
    let kept = kept(seed);
    let dropout = Some(AttentionDropout { rate: Scalar(0.5), seed, stream: 1, keeps_mask: false });
    let out = [1.0, 10.0].map(|unit| unit * (kept[0] * 0.25 + 2.0 * kept[1] * 0.75));
    let inputs = [&inputs[..], &[i32s([], &[4.0])]].concat();
    assert_gives(Attention { dropout, ..attention }, &inputs, &[&out, &[4f64.ln()]]);
}

#[test]
fn layout_gradients() {
    let x = random([2, 3, 4], 1);
    let check_x = |op: Op| check(op, std::slice::from_ref(&x));
    check_x(Reshape { shape: [6, 4].into() }.into());
    check_x(Broadcast { shape: [5, 2, 3, 4].into() }.into());
    check(Broadcast { shape: [2, 3, 4].into() }, &[random([3, 1], 1)]);
    check(Broadcast { shape: [2].into() }, &[random([], 1)]);
    for perm in [[0, 1, 2], [2, 0, 1], [1, 2, 0], [1, 0, 2]] {
        check_x(Transpose { perm: perm.to_vec() }.into());
    }
    check_x(Slice { start: vec![0, 1, 0], stop: vec![2, 3, 4], step: vec![1, 1, 3] }.into());
    check_x(Slice { start: vec![1, 0, 1], stop: vec![2, 3, 4], step: vec![1, 2, 2] }.into());
    check_x(Pad { low: vec![1, 0, 2], high: vec![0, 1, 3], interior: vec![0, 2, 1] }.into());
    for axis in 0..3 {
        let mut other = [2, 3, 4];
        other[axis] = 2;
        check(Concat { axis }, &[x.clone(), random(other, 2), random([2, 3, 4], 3)]);
    }
}

#[test]
fn layout_values() {
    let x = f32s([2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let expect = |op: Op, values: &[f64]| assert_gives(op, std::slice::from_ref(&x), &[values]);
    expect(Reshape { shape: [3, 2].into() }.into(), &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    expect(Transpose { perm: vec![1, 0] }.into(), &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    expect(Slice { start: vec![1, 0], stop: vec![2, 3], step: vec![1, 2] }.into(), &[4.0, 6.0]);
    let padded = [0.0, 1.0, 0.0, 2.0, 0.0, 3.0, 0.0, 4.0, 0.0, 5.0, 0.0, 6.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    expect(Pad { low: vec![0, 1], high: vec![1, 0], interior: vec![0, 1] }.into(), &padded);
    let column = f32s([2, 1], &[8.0, 9.0]);
    assert_gives(Broadcast { shape: [2, 2].into() }, std::slice::from_ref(&column), &[&[8.0, 8.0, 9.0, 9.0]]);
    assert_gives(Concat { axis: 1 }, &[x.clone(), column], &[&[1.0, 2.0, 3.0, 8.0, 4.0, 5.0, 6.0, 9.0]]);
    let transposed = evaluate(Transpose { perm: vec![2, 0, 1] }, &[f32s([1, 2, 3], &x.data)]);
    assert_eq!(transposed[0], f32s([3, 1, 2], &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]));
}

#[test]
fn index_gradients() {
    let indices = i32s([2, 2], &[3.0, 0.0, 3.0, 1.0]);
    check(Gather::ROWS, &[random([4, 3], 1), indices.clone()]);
    check(Gather::ROWS, &[random([4], 1), indices.clone()]);
    check(ScatterAdd::to_rows(5), &[random([2, 2, 3], 1), indices.clone()]);
    check(ScatterAdd::to_rows(5), &[random([2, 2], 1), indices]);
    check(Gather::ROWS, &[random([4, 3], 1), i32s([], &[2.0])]);
    let pairs = i32s([2, 3], &[0.0, 2.0, 2.0, 1.0, 1.0, 0.0]);
    check(Gather { batch: 1, axis: 1 }, &[random([2, 3, 2], 1), pairs.clone()]);
    check(Gather { batch: 1, axis: 2 }, &[random([2, 2, 3], 1), pairs.clone()]);
    check(Gather { batch: 2, axis: 3 }, &[random([2, 3, 2, 3], 1), pairs.clone()]);
    check(Gather { batch: 0, axis: 1 }, &[random([2, 3, 2], 1), pairs.clone()]);
    check(ScatterAdd { rows: 4, batch: 1, axis: 1 }, &[random([2, 3, 2], 1), pairs.clone()]);
    check(ScatterAdd { rows: 3, batch: 1, axis: 2 }, &[random([2, 2, 3, 2], 1), pairs.clone()]);
    check(ScatterAdd { rows: 3, batch: 2, axis: 2 }, &[random([2, 3, 4], 1), pairs]);
}

#[test]
fn index_values() {
    let indices = i32s([3], &[1.0, 0.0, 1.0]);
    let rows = f32s([2, 2], &[1.0, 2.0, 3.0, 4.0]);
    assert_gives(Gather::ROWS, &[rows, indices.clone()], &[&[3.0, 4.0, 1.0, 2.0, 3.0, 4.0]]);
    let table = f32s([2, 2, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let of_each = i32s([2, 1], &[1.0, 0.0]);
    assert_gives(Gather { batch: 1, axis: 1 }, &[table.clone(), of_each.clone()], &[&[3.0, 4.0, 5.0, 6.0]]);
    assert_gives(Gather { batch: 1, axis: 2 }, &[table.clone(), of_each.clone()], &[&[2.0, 4.0, 5.0, 7.0]]);
    assert_gives(Gather { batch: 0, axis: 2 }, &[table, i32s([], &[1.0])], &[&[2.0, 4.0, 6.0, 8.0]]);
    let updates = f32s([2, 2, 1], &[1.0, 2.0, 3.0, 4.0]);
    let columns = ScatterAdd { rows: 2, batch: 1, axis: 2 };
    assert_gives(columns, &[updates, of_each], &[&[0.0, 1.0, 0.0, 2.0, 3.0, 0.0, 4.0, 0.0]]);
    let updates = f32s([3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_gives(ScatterAdd::to_rows(3), &[updates, indices], &[&[3.0, 4.0, 6.0, 8.0, 0.0, 0.0]]);
    assert_gives(
        OneHot { depth: 2 },
        &[i32s([4], &[1.0, 0.0, -1.0, 2.0])],
        &[&[0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]],
    );
    let scores = f32s([3, 3], &[1.0, 3.0, 3.0, 5.0, 5.0, 2.0, 1.0, f64::NAN, 9.0]);
    assert_gives(ArgMax, &[scores], &[&[1.0, 0.0, 1.0]]);
}

#[test]
fn top_k_gradients() {
    let values = |k, axes| move |g: &mut Graph, v: &[Value]| Ok(vec![g.top_k(v[0], k, axes)?[0]]);
    check_build("top_k", &[distinct([2, 5], 1)], &values(3, 1));
    check_build("top_k of a vector", &[distinct([5], 1)], &values(5, 1));
    check_build("top_k over two axes", &[distinct([2, 3, 4], 1)], &values(5, 2));
}

#[test]
#[should_panic(expected = "index 2 is outside 0..2")]
fn gather_outside_the_table() {
    evaluate(Gather::ROWS, &[f32s([2], &[0.0; 2]), i32s([1], &[2.0])]);
}

#[test]
#[should_panic(expected = "index -1 is outside 0..2")]
fn scatter_outside_the_table() {
    evaluate(ScatterAdd::to_rows(2), &[f32s([1], &[0.0]), i32s([1], &[-1.0])]);
}

#[test]
fn pool_gradients() {
    let poolings = [([2, 2], [2, 2], symmetric(0)), ([3, 3], [2, 2], symmetric(1)), ([3, 2], [1, 3], [[0, 2], [1, 0]])];
    for (window, stride, pad) in poolings {
        check(MaxPool2d { window, stride, pad }, &[distinct([2, 5, 6, 2], 1)]);
        for count_include_pad in [false, true] {
            let pool = AvgPool2d { window, stride, pad, count_include_pad };
            let x = random([2, 5, 6, 2], 1);
            let dy = random(evaluate(pool, std::slice::from_ref(&x))[0].ty.shape.clone(), 2);
            check(pool, &[x]);
            check(AvgPool2dGrad { pool, input: [5, 6] }, &[dy]);
        }
    }
}

#[test]
fn pool_values() {
    let x = f32s([1, 3, 3, 1], &[1.0, 2.0, 3.0, 4.0, 9.0, 9.0, 7.0, 8.0, 5.0]);
    let (window, stride, pad) = ([2, 2], [2, 2], [[1, 0], [0, 1]]);
    let max = MaxPool2d { window, stride, pad };
    let y = [2.0, 3.0, 9.0, 9.0];
    assert_gives(max, std::slice::from_ref(&x), &[&y]);
    let grads = [x.clone(), f32s([1, 2, 2, 1], &y), f32s([1, 2, 2, 1], &[1.0, 10.0, 100.0, 1000.0])];
    let dx = [0.0, 1.0, 10.0, 0.0, 100.0, 1000.0, 0.0, 0.0, 0.0];
    assert_gives(MaxPool2dGrad { pool: max }, &grads, &[&dx]);

    let avg = |count_include_pad| AvgPool2d { window, stride, pad, count_include_pad };
    assert_gives(avg(true), std::slice::from_ref(&x), &[&[0.75, 0.75, 7.0, 3.5]]);
    assert_gives(avg(false), std::slice::from_ref(&x), &[&[1.5, 3.0, 7.0, 7.0]]);
    let shares = [0.5, 0.5, 10.0, 25.0, 25.0, 500.0, 25.0, 25.0, 500.0];
    assert_gives(AvgPool2dGrad { pool: avg(false), input: [3, 3] }, &grads[2..], &[&shares]);

    let negative = f32s([1, 1, 2, 1], &[-3.0, f64::NAN]);
    let pool = MaxPool2d { window: [2, 2], stride: [1, 1], pad: [[1, 0], [1, 0]] };
    assert_gives(pool, std::slice::from_ref(&negative), &[&[-3.0, f64::NAN]]);
    let grads = [negative, f32s([1, 1, 2, 1], &[-3.0, f64::NAN]), f32s([1, 1, 2, 1], &[1.0, 10.0])];
    assert_gives(MaxPool2dGrad { pool }, &grads, &[&[1.0, 10.0]]);
}

#[test]
fn upsampling() {
    check(Upsample { factors: [2, 3] }, &[random([2, 2, 3, 2], 1)]);
    check(Upsample { factors: [1, 1] }, &[random([1, 2, 2, 1], 1)]);
    let x = f32s([1, 2, 2, 1], &[1.0, 2.0, 3.0, 4.0]);
    let wide = [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 4.0, 4.0, 4.0];
    assert_gives(Upsample { factors: [1, 3] }, std::slice::from_ref(&x), &[&wide]);
    let both = [1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 3.0, 3.0, 4.0, 4.0];
    assert_gives(Upsample { factors: [2, 2] }, &[x], &[&both]);
}

#[test]
fn the_first_maximum_takes_the_gradient() {
    let pool = MaxPool2d { window: [2, 2], stride: [1, 1], pad: symmetric(0) };
    let grads = [f32s([1, 2, 2, 1], &[1.0, 4.0, 4.0, 4.0]), f32s([1, 1, 1, 1], &[4.0]), f32s([1, 1, 1, 1], &[6.0])];
    assert_gives(MaxPool2dGrad { pool }, &grads, &[&[0.0, 6.0, 0.0, 0.0]]);
}

/// On two maps, at the border and beyond it.
#[test]
fn region_gradients() {
    let maps = [random([2, 5, 6, 3], 80), random([2, 3, 3, 3], 81)];
    let boxes = [[0.3, -1.1, 3.2, 3.9], [1.0, 1.0, 5.5, 4.4], [-3.0, 2.0, 9.0, 8.0], [2.0, 2.0, 2.0, 2.0]];
    for samples in [RoiSamples::Fixed(2), RoiSamples::Adaptive] {
        for border in [RoiBorder::Torch, RoiBorder::Clamp] {
            let levels = RoiLevels { canonical_size: Scalar(4.0), first: 3, ..RoiLevels::standard(0.0) };
            let op = RoiAlign { size: [2, 3], samples, border, levels, strides: vec![Scalar(1.0), Scalar(2.0)] };
            check_build(&Op::from(op.clone()).to_string(), &maps, &|g, maps| {
                let data = boxes.as_flattened().iter().map(|&x| Scalar(x)).collect();
                let boxes = g.push1(Constant { dtype: DType::F32, shape: [4, 4].into(), data }, &[])?;
                let data = [0.0, 1.0, 1.0, 0.0].map(Scalar).to_vec();
                let images = g.push1(Constant { dtype: DType::I32, shape: [4].into(), data }, &[])?;
                g.push(op.clone(), &[maps[0], maps[1], boxes, images])
            });
        }
    }
}

#[test]
fn operations_without_a_gradient_say_so() {
    let loss_through = |op: Op, inputs: &[Tensor]| {
        let (mut g, values, loss) = loss_graph(inputs, &|g, v| g.scoped("head", |g| g.push(op.clone(), v)));
        gradients(&mut g, loss, &values).unwrap_err().to_string()
    };
    let floor = loss_through(Unary(UnaryKind::Floor).into(), &[nonzero([2], 1)]);
    assert!(floor.contains("floor at `head` is not differentiable") && floor.contains("x0"), "{floor}");
    let pool = MaxPool2d { window: [1, 1], stride: [1, 1], pad: symmetric(0) };
    let x = nonzero([1, 1, 1, 1], 1);
    let pool = loss_through(MaxPool2dGrad { pool }.into(), &[x.clone(), x.clone(), x]);
    assert!(pool.contains("max_pool2d_grad") && pool.contains("not differentiable"), "{pool}");
    let attention = Attention { heads: 1, scale: Scalar(1.0), dropout: None, output: DType::F32 };
    let rows = random([1, 2, 3], 1);
    let log_sums = loss_through(attention.into(), &[rows.clone(), rows.clone(), rows, random([1, 2], 2)]);
    assert!(log_sums.contains("attention") && log_sums.contains("not differentiable"), "{log_sums}");
}

/// A convolution, the shape of its input and of its weights.
#[derive(Clone, Debug)]
struct ConvCase {
    conv: Conv2d,
    x: [usize; 4],
    w: [usize; 4],
}

impl ConvCase {
    fn inputs(&self) -> (Tensor, Tensor, Tensor) {
        let (x, w) = (random(self.x, 1), random(self.w, 2));
        let dy = random(evaluate(self.conv, &[x.clone(), w.clone()])[0].ty.shape.clone(), 3);
        (x, w, dy)
    }

    fn data_grad(&self) -> Conv2dDataGrad {
        Conv2dDataGrad { conv: self.conv, input: [self.x[1], self.x[2]] }
    }

    fn weight_grad(&self) -> Conv2dWeightGrad {
        Conv2dWeightGrad::new(self.conv, [self.w[0], self.w[1]])
    }

    /// The convolution by its definition, one output element at a time.
    fn definition(&self, x: &Tensor, w: &Tensor, y: &Shape) -> Vec<f64> {
        let Conv2d { stride, dilation, pad, groups, .. } = self.conv;
        let [_, height, width, channels] = self.x;
        let [kh, kw, group_channels, out] = self.w;
        let x_at = |n: usize, row: usize, col: usize, c: usize| {
            let inside =
                (pad[0][0]..pad[0][0] + height).contains(&row) && (pad[1][0]..pad[1][0] + width).contains(&col);
            let index = || ((n * height + row - pad[0][0]) * width + col - pad[1][0]) * channels + c;
            if inside { x.data[index()] } else { 0.0 }
        };
        let element = |index: usize| {
            let (o, ow, oh, n) =
                (index % out, index / out % y[2], index / out / y[2] % y[1], index / out / y[2] / y[1]);
            let first_channel = o / (out / groups) * group_channels;
            let mut sum = 0.0;
            for (i, &weight) in w.data.iter().enumerate().filter(|(i, _)| i % out == o) {
                let (c, tap) = (i / out % group_channels, i / out / group_channels);
                let row = oh * stride[0] + tap / kw * dilation[0];
                let col = ow * stride[1] + tap % kw * dilation[1];
                sum += weight * x_at(n, row, col, first_channel + c);
            }
            sum
        };
        assert_eq!(w.data.len(), kh * kw * group_channels * out);
        (0..y.elements()).map(element).collect()
    }
}

fn dot(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.ty, b.ty);
    a.data.iter().zip(&b.data).map(|(x, y)| x * y).sum()
}

fn conv_case() -> impl Strategy<Value = ConvCase> {
    let axis = || (1usize..=3, 1usize..=3, 1usize..=2, 0usize..=2, 0usize..=2, 0usize..=4);
    let channels = (1usize..=3, 1usize..=3, 1usize..=2);
    (1usize..=2, axis(), axis(), channels).prop_map(|(batch, height, width, (groups, group_channels, group_out))| {
        let size = |(kernel, _, dilation, low, high, extra): (usize, usize, usize, usize, usize, usize)| {
            ((kernel - 1) * dilation + 1).saturating_sub(low + high).max(1) + extra
        };
        ConvCase {
            conv: Conv2d {
                dilation: [height.2, width.2],
                groups,
                ..Conv2d::new([height.1, width.1], [[height.3, height.4], [width.3, width.4]])
            },
            x: [batch, size(height), size(width), groups * group_channels],
            w: [height.0, width.0, group_channels, groups * group_out],
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn convolutions_follow_the_definition_and_their_gradients_are_adjoint(case in conv_case()) {
        let (x, w, dy) = case.inputs();
        let y = evaluate(case.conv, &[x.clone(), w.clone()]).remove(0);
        for (a, b) in y.data.iter().zip(case.definition(&x, &w, &y.ty.shape)) {
            prop_assert!((a - b).abs() < 1e-12, "{} is {}, by definition {}", case.conv.groups, a, b);
        }
        let dx = evaluate(case.data_grad(), &[dy.clone(), w.clone()]).remove(0);
        let dw = evaluate(case.weight_grad(), &[x.clone(), dy.clone()]).remove(0);
        let forward = dot(&y, &dy);
        prop_assert!((forward - dot(&x, &dx)).abs() < 1e-10, "data gradient");
        prop_assert!((forward - dot(&w, &dw)).abs() < 1e-10, "weight gradient");

        let turned = ConvCase { conv: Conv2d { filter: Filter::Ohwi, ..case.conv }, ..case };
        let ohwi = |w: Tensor| evaluate(Transpose { perm: Filter::TO_OHWI.to_vec() }, &[w]).remove(0);
        let w = ohwi(w);
        prop_assert_eq!(&evaluate(turned.conv, &[x.clone(), w.clone()])[0], &y);
        prop_assert_eq!(&evaluate(turned.data_grad(), &[dy.clone(), w])[0], &dx);
        prop_assert_eq!(&evaluate(turned.weight_grad(), &[x, dy])[0], &ohwi(dw));
    }
}

#[test]
fn convolution_gradients() {
    let case = |stride, dilation, pad, groups, x, w| {
        let conv = Conv2d { dilation, groups, ..Conv2d::new(stride, pad) };
        ConvCase { conv, x, w }
    };
    let cases = [
        case([1, 1], [1, 1], symmetric(0), 1, [2, 2, 3, 3], [1, 1, 3, 2]),
        case([2, 2], [1, 1], symmetric(1), 1, [1, 5, 4, 2], [3, 3, 2, 3]),
        case([1, 2], [2, 1], [[0, 2], [1, 0]], 2, [1, 4, 4, 4], [2, 3, 2, 2]),
        case([3, 1], [1, 2], [[2, 0], [0, 1]], 3, [1, 5, 4, 3], [3, 2, 1, 3]),
        case([1, 1], [1, 1], symmetric(1), 2, [1, 3, 3, 2], [3, 3, 1, 4]),
    ];
    for case in cases {
        let (x, w, dy) = case.inputs();
        check(case.conv, &[x.clone(), w.clone()]);
        check(case.data_grad(), &[dy.clone(), w]);
        check(case.weight_grad(), &[x, dy]);
    }
    // Weights `[O, KH, KW, C / groups]`.
    let conv = Conv2d { groups: 2, filter: Filter::Ohwi, ..Conv2d::new([1, 2], [[0, 2], [1, 0]]) };
    let [x, w, dy] = [random([1, 4, 4, 4], 1), random([2, 2, 3, 2], 2), random([1, 5, 2, 2], 3)];
    check(conv, &[x.clone(), w.clone()]);
    check(Conv2dDataGrad { conv, input: [4, 4] }, &[dy.clone(), w]);
    check(Conv2dWeightGrad::new(conv, [2, 3]), &[x, dy]);
}

#[test]
fn convolution_values() {
    let x = f32s([1, 3, 3, 1], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
    let w = f32s([2, 2, 1, 1], &[1.0, 10.0, 100.0, 1000.0]);
    let plain = Conv2d::new([1, 1], symmetric(0));
    assert_gives(plain, &[x.clone(), w.clone()], &[&[5421.0, 6532.0, 8754.0, 9865.0]]);
    let padded = Conv2d::new([2, 2], [[1, 0], [1, 0]]);
    assert_gives(padded, &[x.clone(), w.clone()], &[&[1000.0, 3200.0, 7040.0, 9865.0]]);
    let dilated = Conv2d { dilation: [2, 2], ..plain };
    assert_gives(dilated, &[x.clone(), w.clone()], &[&[9731.0]]);

    let dy = f32s([1, 1, 1, 1], &[2.0]);
    let spread = [2.0, 0.0, 20.0, 0.0, 0.0, 0.0, 200.0, 0.0, 2000.0];
    assert_gives(Conv2dDataGrad { conv: dilated, input: [3, 3] }, &[dy.clone(), w], &[&spread]);
    assert_gives(Conv2dWeightGrad::new(dilated, [2, 2]), &[x, dy], &[&[2.0, 6.0, 14.0, 18.0]]);

    let pixel = f32s([1, 1, 1, 4], &[1.0, 2.0, 3.0, 4.0]);
    let depthwise = Conv2d { groups: 4, ..plain };
    assert_gives(
        depthwise,
        &[pixel.clone(), f32s([1, 1, 1, 4], &[1.0, 10.0, 100.0, 1000.0])],
        &[&[1.0, 20.0, 300.0, 4000.0]],
    );
    let grouped = Conv2d { groups: 2, ..plain };
    assert_gives(grouped, &[pixel, f32s([1, 1, 2, 2], &[1.0, 10.0, 100.0, 1000.0])], &[&[201.0, 4030.0]]);
}
