//! The shape rule of every operation: the types it gives, the inputs it refuses and what it says of them, and its cost.

use bessemer_ir::graph::RefusedOp;
use bessemer_ir::ops::conv::{Conv2d, Conv2dDataGrad, Conv2dWeightGrad, same_padding, symmetric};
use bessemer_ir::ops::index::{ArgMax, Gather, OneHot, ScatterAdd};
use bessemer_ir::ops::layout::{Broadcast, Concat, Pad, Reshape, Slice, Transpose};
use bessemer_ir::ops::matmul::Matmul;
use bessemer_ir::ops::pointwise::{Binary, BinaryKind, Cast, Select, Unary, UnaryKind};
use bessemer_ir::ops::pool::{AvgPool2d, AvgPool2dGrad, MaxPool2d, MaxPool2dGrad, Upsample};
use bessemer_ir::ops::reduce::{MeanVar, Reduce, ReduceKind};
use bessemer_ir::ops::softmax::{LogSoftmax, Softmax};
use bessemer_ir::ops::source::{Constant, Distribution, Random};
use bessemer_ir::ops::{Op, OpError, Scalar};
use bessemer_ir::{Cost, DType, Graph, GraphError, Role, TensorType, Value};

fn f32s<const N: usize>(dims: [usize; N]) -> TensorType {
    TensorType::f32(dims)
}

fn bf16s<const N: usize>(dims: [usize; N]) -> TensorType {
    TensorType::new(DType::Bf16, dims)
}

fn i32s<const N: usize>(dims: [usize; N]) -> TensorType {
    TensorType::new(DType::I32, dims)
}

fn bools<const N: usize>(dims: [usize; N]) -> TensorType {
    TensorType::new(DType::Bool, dims)
}

fn add(op: &Op, inputs: &[TensorType]) -> Result<Vec<TensorType>, GraphError> {
    let mut g = Graph::new();
    let declare = |(i, ty): (usize, &TensorType)| g.input(&format!("x{i}"), Role::Feed, ty.clone()).unwrap();
    let values: Vec<Value> = inputs.iter().enumerate().map(declare).collect();
    let outputs = g.scoped("layer1.0", |g| g.push(op.clone(), &values))?;
    Ok(outputs.into_iter().map(|v| g.ty(v).clone()).collect())
}

#[track_caller]
fn gives(op: impl Into<Op>, inputs: &[TensorType], expected: &[TensorType]) {
    let op = op.into();
    assert_eq!(add(&op, inputs).unwrap(), expected, "{op}");
}

/// The error must name the operation, its path, the problem and all types seen.
#[track_caller]
fn refuses(op: impl Into<Op>, inputs: &[TensorType], problem: &str) {
    let op = op.into();
    let message = match add(&op, inputs) {
        Ok(outputs) => panic!("{op} accepts {inputs:?} and gives {outputs:?}"),
        Err(error) => error.to_string(),
    };
    let types: Vec<String> = inputs.iter().map(TensorType::to_string).collect();
    assert_eq!(message, format!("{op} at `layer1.0`: {problem} (inputs: {})", types.join(", ")));
}

fn cost(op: impl Into<Op>, inputs: &[TensorType]) -> Cost {
    let op = op.into();
    op.rule().cost(&inputs.iter().collect::<Vec<_>>(), &add(&op, inputs).unwrap())
}

/// The kind of error can be read from its type without reading its text.
#[test]
fn refusals_are_typed() {
    let inputs = [f32s([2]), f32s([3])];
    let Err(GraphError::Op(refused)) = add(&Op::from(Binary(BinaryKind::Add)), &inputs) else {
        panic!("shapes that do not broadcast are accepted");
    };
    let expected = RefusedOp {
        op: "add".to_string(),
        path: "layer1.0".to_string(),
        problem: OpError::Broadcast([2].into(), [3].into()),
        inputs: inputs.to_vec(),
    };
    assert_eq!(*refused, expected);
}

#[test]
fn pointwise() {
    gives(Unary(UnaryKind::Relu), &[bf16s([2, 3])], &[bf16s([2, 3])]);
    refuses(Unary(UnaryKind::Relu), &[i32s([2])], "takes one float tensor");
    gives(Binary(BinaryKind::Add), &[f32s([2, 1]), f32s([3])], &[f32s([2, 3])]);
    gives(Binary(BinaryKind::Lt), &[i32s([2]), i32s([])], &[bools([2])]);
    refuses(Binary(BinaryKind::Add), &[f32s([2]), f32s([3])], "[2] and [3] do not broadcast to one shape");
    let one_type = "takes two number tensors of one element type";
    refuses(Binary(BinaryKind::Add), &[f32s([2]), bf16s([2])], one_type);
    refuses(Binary(BinaryKind::Add), &[bools([2]), bools([2])], one_type);
    refuses(Binary(BinaryKind::Add), &[f32s([2])], "takes two tensors");
    gives(Select, &[bools([2, 1]), f32s([3]), f32s([])], &[f32s([2, 3])]);
    refuses(Select, &[f32s([2]), f32s([2]), f32s([2])], "takes a bool condition and two tensors of one element type");
    refuses(Select, &[bools([2]), f32s([2]), f32s([3])], "[2] and [3] do not broadcast to one shape");
    gives(Cast { to: DType::I32 }, &[f32s([2])], &[i32s([2])]);
    refuses(Cast { to: DType::I32 }, &[], "takes one tensor");
}

#[test]
fn sources() {
    let constant = |shape: [usize; 1], n: usize| Constant {
        dtype: DType::F32,
        shape: shape.into(),
        data: (0..n).map(|i| Scalar(i as f64)).collect(),
    };
    gives(constant([3], 3), &[], &[f32s([3])]);
    gives(constant([3], 1), &[], &[f32s([3])]);
    refuses(constant([3], 2), &[], "2 numbers do not fill [3]");
    let random = Random { distribution: Distribution::Uniform, shape: [4].into(), seed: 1, stream: 0 };
    gives(random.clone(), &[i32s([])], &[f32s([4])]);
    refuses(random, &[f32s([])], "takes the step counter, i32[]");
}

#[test]
fn convolution() {
    let conv = Conv2d::new([2, 2], symmetric(3));
    gives(conv, &[f32s([8, 224, 224, 3]), f32s([7, 7, 3, 64])], &[f32s([8, 112, 112, 64])]);
    let uneven = Conv2d { dilation: [2, 1], ..Conv2d::new([3, 1], [[0, 1], [2, 0]]) };
    gives(uneven, &[bf16s([1, 10, 5, 2]), bf16s([3, 2, 2, 4])], &[f32s([1, 3, 6, 4])]);
    let depthwise = Conv2d { groups: 6, ..Conv2d::new([1, 1], symmetric(1)) };
    gives(depthwise, &[f32s([1, 5, 5, 6]), f32s([3, 3, 1, 6])], &[f32s([1, 5, 5, 6])]);

    let plain = Conv2d::new([1, 1], symmetric(0));
    let (x, w) = (f32s([1, 5, 5, 4]), f32s([3, 3, 4, 6]));
    let operands = "takes an input and weights, of one float element type";
    refuses(plain, &[x.clone(), bf16s([3, 3, 4, 6])], operands);
    refuses(plain, std::slice::from_ref(&x), operands);
    refuses(plain, &[f32s([5, 5, 4]), w.clone()], "the input must be [N, H, W, C], not [5, 5, 4]");
    refuses(plain, &[x.clone(), f32s([36, 6])], "the weights must be [KH, KW, C / groups, O], not [36, 6]");
    let channels = "the input has 4 channels a group, the weights are for 3";
    refuses(plain, &[x.clone(), f32s([3, 3, 3, 6])], channels);
    let split = "4 input and 6 output channels do not split into 4 groups";
    refuses(Conv2d { groups: 4, ..plain }, &[x.clone(), w.clone()], split);
    let none = "4 input and 6 output channels do not split into 0 groups";
    refuses(Conv2d { groups: 0, ..plain }, &[x.clone(), w.clone()], none);
    let tall = "the window extends over 6 along the height, the padded input has 5";
    refuses(plain, &[x.clone(), f32s([6, 3, 4, 6])], tall);
    let wide = "the window extends over 7 along the width, the padded input has 6";
    refuses(Conv2d { dilation: [1, 3], ..Conv2d::new([1, 1], [[0, 0], [1, 0]]) }, &[x.clone(), w.clone()], wide);
    let zero = "window, stride and dilation along the width must be at least 1";
    refuses(Conv2d::new([1, 0], symmetric(0)), &[x.clone(), w.clone()], zero);
    refuses(Conv2d { dilation: [1, 0], ..plain }, &[x.clone(), w], zero);
    refuses(plain, &[x, f32s([3, 0, 4, 6])], zero);
    let empty = "the input has no elements along the height";
    refuses(Conv2d::new([1, 1], symmetric(1)), &[f32s([1, 0, 5, 4]), f32s([3, 3, 4, 6])], empty);
}

#[test]
fn convolution_gradients() {
    let conv = Conv2d { groups: 2, ..Conv2d::new([2, 2], symmetric(1)) };
    let (x, w, dy) = (f32s([2, 8, 7, 4]), f32s([3, 3, 2, 6]), f32s([2, 4, 4, 6]));
    gives(conv, &[x.clone(), w.clone()], std::slice::from_ref(&dy));
    let data = |input| Conv2dDataGrad { conv, input };
    gives(data([8, 7]), &[dy.clone(), w.clone()], std::slice::from_ref(&x));
    gives(data([7, 8]), &[dy.clone(), w.clone()], &[f32s([2, 7, 8, 4])]);
    let height = "the output gradient has size 4 along the height, the convolution gives 5";
    refuses(data([9, 8]), &[dy.clone(), w.clone()], height);
    let width = "the output gradient has size 4 along the width, the convolution gives 3";
    refuses(data([8, 6]), &[dy.clone(), w.clone()], width);
    let channels = "the output gradient has size 6 along the channels, the convolution gives 8";
    refuses(data([8, 7]), &[dy.clone(), f32s([3, 3, 2, 8])], channels);
    let rank = "the output gradient must be [N, OH, OW, O], not [6]";
    refuses(data([8, 7]), &[f32s([6]), w.clone()], rank);

    let weights = |kernel| Conv2dWeightGrad::new(conv, kernel);
    gives(weights([3, 3]), &[x.clone(), dy.clone()], &[w]);
    gives(weights([4, 4]), &[f32s([2, 8, 8, 4]), dy.clone()], &[f32s([4, 4, 2, 6])]);
    let height = "the output gradient has size 4 along the height, the convolution gives 3";
    refuses(weights([5, 3]), &[x.clone(), dy.clone()], height);
    let batch = "the output gradient has size 1 along the batch, the convolution gives 2";
    refuses(weights([3, 3]), &[x.clone(), f32s([1, 4, 4, 6])], batch);
    let split = "4 input and 5 output channels do not split into 2 groups";
    refuses(weights([3, 3]), &[x, f32s([2, 4, 4, 5])], split);
    refuses(weights([3, 3]), &[dy], "takes an input and an output gradient, of one float element type");
}

#[test]
fn same_padding_is_that_of_tensorflow() {
    assert_eq!(same_padding(224, 7, 2, 1), [2, 3]);
    assert_eq!(same_padding(56, 3, 1, 1), [1, 1]);
    assert_eq!(same_padding(56, 3, 2, 1), [0, 1]);
    assert_eq!(same_padding(57, 3, 2, 1), [1, 1]);
    assert_eq!(same_padding(10, 3, 1, 2), [2, 2]);
    assert_eq!(same_padding(9, 1, 2, 1), [0, 0]);
    assert_eq!(same_padding(8, 1, 4, 1), [0, 0]);
}

#[test]
fn matmul() {
    let op = |trans_a, trans_b| Matmul { trans_a, trans_b };
    let plain = op(false, false);
    gives(plain, &[f32s([2, 3]), f32s([3, 4])], &[f32s([2, 4])]);
    gives(op(true, true), &[f32s([3, 2]), f32s([4, 3])], &[f32s([2, 4])]);
    gives(op(false, true), &[bf16s([5, 6, 2, 3]), bf16s([5, 6, 4, 3])], &[f32s([5, 6, 2, 4])]);
    gives(plain, &[f32s([5, 6, 2, 3]), f32s([3, 4])], &[f32s([5, 6, 2, 4])]);
    refuses(plain, &[f32s([2, 3]), f32s([4, 3])], "the inner sizes differ: 3 and 4");
    refuses(op(true, false), &[f32s([2, 3]), f32s([3, 4])], "the inner sizes differ: 2 and 3");
    refuses(plain, &[f32s([3]), f32s([3, 4])], "both operands must have at least two axes");
    refuses(plain, &[f32s([5, 2, 3]), f32s([6, 3, 4])], "the leading axes differ: [5] and [6]");
    refuses(plain, &[f32s([2, 3]), f32s([6, 3, 4])], "the leading axes differ: [] and [6]");
    let transposed = "a of a higher rank than b must not be transposed";
    refuses(op(true, false), &[f32s([5, 3, 2]), f32s([3, 4])], transposed);
    refuses(plain, &[f32s([2, 3]), bf16s([3, 4])], "takes two operands, of one float element type");
}

#[test]
fn reductions() {
    let op = |kind, axes: &[usize], keep_dims| Reduce { kind, axes: axes.to_vec(), keep_dims };
    let x = f32s([2, 3, 4]);
    let sum = |axes: &[usize], keep_dims| op(ReduceKind::Sum, axes, keep_dims);
    gives(sum(&[0, 2], false), std::slice::from_ref(&x), &[f32s([3])]);
    gives(sum(&[0, 2], true), std::slice::from_ref(&x), &[f32s([1, 3, 1])]);
    gives(sum(&[0, 1, 2], false), std::slice::from_ref(&x), &[f32s([])]);
    gives(sum(&[0], false), &[i32s([0, 2])], &[i32s([2])]);
    refuses(sum(&[1, 3], false), std::slice::from_ref(&x), "there is no axis 3: the input has 3 axes");
    refuses(sum(&[1, 0], false), std::slice::from_ref(&x), "the axes [1, 0] must be ascending");
    refuses(sum(&[1, 1], false), std::slice::from_ref(&x), "the axes [1, 1] must be ascending");
    refuses(sum(&[0], false), &[bools([2])], "takes a tensor of numbers");
    refuses(op(ReduceKind::Max, &[0], false), &[f32s([0, 2])], "axis 0 of [0, 2] has no elements");
    let moments = |axes: &[usize]| MeanVar { axes: axes.to_vec() };
    gives(moments(&[0, 1]), std::slice::from_ref(&x), &[f32s([4]), f32s([4])]);
    refuses(moments(&[3]), &[x], "there is no axis 3: the input has 3 axes");
    refuses(moments(&[0]), &[i32s([2])], "takes one tensor, of one float element type");
    refuses(moments(&[1]), &[f32s([2, 0])], "axis 1 of [2, 0] has no elements");
}

#[test]
fn softmax() {
    gives(Softmax, &[f32s([2, 3])], &[f32s([2, 3])]);
    gives(LogSoftmax, &[bf16s([3])], &[bf16s([3])]);
    let empty = "takes a tensor with an innermost axis that is not empty";
    refuses(Softmax, &[f32s([])], empty);
    refuses(LogSoftmax, &[f32s([2, 0])], empty);
    refuses(Softmax, &[i32s([2])], "takes one tensor, of one float element type");
}

#[test]
fn pooling() {
    let max = MaxPool2d { window: [3, 3], stride: [2, 2], pad: symmetric(1) };
    let (x, y) = (f32s([8, 112, 112, 64]), f32s([8, 56, 56, 64]));
    gives(max, std::slice::from_ref(&x), std::slice::from_ref(&y));
    gives(MaxPool2dGrad { pool: max }, &[x.clone(), y.clone(), y.clone()], std::slice::from_ref(&x));
    refuses(
        MaxPool2dGrad { pool: max },
        &[x.clone(), y.clone(), f32s([8, 55, 56, 64])],
        "the output gradient must be f32[8, 56, 56, 64], not f32[8, 55, 56, 64]",
    );
    let tall = MaxPool2d { window: [200, 1], ..max };
    refuses(tall, std::slice::from_ref(&x), "the window extends over 200 along the height, the padded input has 114");
    let padded = MaxPool2d { window: [3, 1], ..max };
    let too_much = "the padding [[1, 1], [1, 1]] must be smaller than the window [3, 1]";
    refuses(padded, std::slice::from_ref(&x), too_much);
    refuses(max, &[f32s([112, 112, 64])], "the input must be [N, H, W, C], not [112, 112, 64]");

    let avg = AvgPool2d { window: [7, 7], stride: [1, 1], pad: symmetric(0), count_include_pad: true };
    gives(avg, &[f32s([8, 7, 8, 2])], &[f32s([8, 1, 2, 2])]);
    gives(AvgPool2dGrad { pool: avg, input: [7, 8] }, &[f32s([8, 1, 2, 2])], &[f32s([8, 7, 8, 2])]);
    let other = AvgPool2dGrad { pool: avg, input: [8, 8] };
    refuses(other, &[f32s([8, 1, 2, 2])], "the output gradient must be [8, 2, 2, 2], not [8, 1, 2, 2]");
    refuses(avg, &[i32s([8, 7, 8, 2])], "takes one tensor, of one float element type");

    let upsample = Upsample { factors: [2, 3] };
    gives(upsample, &[bf16s([8, 7, 8, 2])], &[bf16s([8, 14, 24, 2])]);
    refuses(upsample, &[f32s([7, 8, 2])], "the input must be [N, H, W, C], not [7, 8, 2]");
    refuses(upsample, &[i32s([8, 7, 8, 2])], "takes one tensor, of one float element type");
    let none = "the factors [0, 3] must be at least 1";
    refuses(Upsample { factors: [0, 3] }, &[f32s([8, 7, 8, 2])], none);
}

#[test]
fn layout() {
    let x = [f32s([2, 3])];
    gives(Reshape { shape: [6].into() }, &x, &[f32s([6])]);
    refuses(Reshape { shape: [2, 2].into() }, &x, "the input has 6 elements, [2, 2] has 4");
    gives(Broadcast { shape: [4, 2, 3].into() }, &x, &[f32s([4, 2, 3])]);
    refuses(Broadcast { shape: [2, 4].into() }, &x, "[2, 3] does not broadcast to [2, 4]");
    refuses(Broadcast { shape: [3].into() }, &x, "[2, 3] does not broadcast to [3]");
    gives(Transpose { perm: vec![1, 0] }, &x, &[f32s([3, 2])]);
    refuses(Transpose { perm: vec![0, 0] }, &x, "[0, 0] is not an order of 2 axes");
    refuses(Transpose { perm: vec![0] }, &x, "[0] is not an order of 2 axes");

    let slice = |start: [usize; 2], stop: [usize; 2], step: [usize; 2]| Slice {
        start: start.to_vec(),
        stop: stop.to_vec(),
        step: step.to_vec(),
    };
    gives(slice([1, 0], [2, 3], [1, 2]), &x, &[f32s([1, 2])]);
    let size = "which has size 3";
    refuses(slice([0, 0], [2, 4], [1, 1]), &x, &format!("0..4 by 1 is no slice of axis 1, {size}"));
    refuses(slice([0, 3], [2, 3], [1, 1]), &x, &format!("3..3 by 1 is no slice of axis 1, {size}"));
    refuses(slice([0, 0], [2, 3], [1, 0]), &x, &format!("0..3 by 0 is no slice of axis 1, {size}"));
    let short = Slice { start: vec![0], stop: vec![1, 1], step: vec![1, 1] };
    refuses(short, &x, "start has 1 entries, the input has 2 axes");

    gives(Pad { low: vec![1, 0], high: vec![0, 2], interior: vec![2, 1] }, &x, &[f32s([5, 7])]);
    let short = Pad { low: vec![1, 0], high: vec![0], interior: vec![0, 0] };
    refuses(short, &x, "high has 1 entries, the input has 2 axes");

    gives(Concat { axis: 1 }, &[f32s([2, 3]), f32s([2, 4]), f32s([2, 1])], &[f32s([2, 8])]);
    let differs = "input 1 differs from the first in more than the size of axis 1";
    refuses(Concat { axis: 1 }, &[f32s([2, 3]), f32s([3, 3])], differs);
    refuses(Concat { axis: 1 }, &[f32s([2, 3]), bf16s([2, 3])], differs);
    refuses(Concat { axis: 1 }, &[f32s([2, 3]), f32s([2, 3, 1])], differs);
    refuses(Concat { axis: 2 }, &x, "there is no axis 2: the input has 2 axes");
    refuses(Concat { axis: 0 }, &[], "takes at least one tensor");
}

#[test]
fn indexing() {
    gives(Gather::ROWS, &[f32s([10, 4, 2]), i32s([3, 5])], &[f32s([3, 5, 4, 2])]);
    gives(Gather::ROWS, &[i32s([10]), i32s([])], &[i32s([])]);
    let table = "takes a table of at least one axis and i32 indices";
    refuses(Gather::ROWS, &[f32s([]), i32s([3])], table);
    refuses(Gather::ROWS, &[f32s([10]), f32s([3])], table);
    gives(ScatterAdd::to_rows(10), &[f32s([3, 5, 4]), i32s([3, 5])], &[f32s([10, 4])]);
    let leading = "the leading axes of the updates must be those of the indices";
    refuses(ScatterAdd::to_rows(10), &[f32s([3, 5]), i32s([5])], leading);
    let numbers = "takes updates that are numbers, and i32 indices";
    refuses(ScatterAdd::to_rows(10), &[f32s([3]), f32s([3])], numbers);
    let per_image = Gather { batch: 1, axis: 1 };
    gives(per_image, &[f32s([2, 10, 4]), i32s([2, 3, 5])], &[f32s([2, 3, 5, 4])]);
    gives(Gather { batch: 1, axis: 3 }, &[f32s([2, 8, 9, 7]), i32s([2])], &[f32s([2, 8, 9])]);
    refuses(per_image, &[f32s([2, 10, 4]), i32s([3])], "the first 1 axes of [2, 10, 4] and [3] must be the same");
    refuses(per_image, &[f32s([2, 10, 4]), i32s([])], "the first 1 axes of [2, 10, 4] and [] must be the same");
    refuses(per_image, &[f32s([2]), i32s([2])], "there is no axis 1: the input has 1 axes");
    let before = "the axis 0 must lie behind the 1 batch axes";
    refuses(Gather { batch: 1, axis: 0 }, &[f32s([2, 10]), i32s([2])], before);
    let to_columns = ScatterAdd { rows: 10, batch: 1, axis: 2 };
    gives(to_columns, &[f32s([2, 4, 3, 5]), i32s([2, 3])], &[f32s([2, 4, 10, 5])]);
    let behind = "axes 0..1 and 2..3 of the updates must be those of the indices";
    refuses(to_columns, &[f32s([2, 4, 5]), i32s([2, 3])], behind);
    refuses(to_columns, &[f32s([3, 4, 3]), i32s([2, 3])], behind);
    refuses(to_columns, &[f32s([2, 4]), i32s([2, 3])], behind);
    gives(OneHot { depth: 7 }, &[i32s([3])], &[f32s([3, 7])]);
    refuses(OneHot { depth: 7 }, &[f32s([3])], "takes one i32 tensor");
    gives(ArgMax, &[f32s([3, 7])], &[i32s([3])]);
    let scalar = "takes a tensor of numbers with an innermost axis that is not empty";
    refuses(ArgMax, &[f32s([])], scalar);
}

#[test]
fn costs() {
    let conv = Conv2d { groups: 2, ..Conv2d::new([2, 2], symmetric(1)) };
    let (x, w, dy) = (f32s([2, 8, 8, 4]), f32s([3, 3, 2, 6]), f32s([2, 4, 4, 6]));
    let expected =
        Cost { flops: 2 * (2 * 4 * 4 * 6) * (3 * 3 * 2), bytes: 4 * (2 * 8 * 8 * 4 + 3 * 3 * 2 * 6 + 2 * 4 * 4 * 6) };
    assert_eq!(cost(conv, &[x.clone(), w.clone()]), expected);
    assert_eq!(cost(Conv2dDataGrad { conv, input: [8, 8] }, &[dy.clone(), w]), expected);
    assert_eq!(cost(Conv2dWeightGrad::new(conv, [3, 3]), &[x, dy]), expected);

    let plain = Matmul { trans_a: false, trans_b: false };
    let expected = Cost { flops: 2 * 30 * 2 * 3 * 4, bytes: 2 * (30 * 2 * 3 + 3 * 4) + 4 * (30 * 2 * 4) };
    assert_eq!(cost(plain, &[bf16s([5, 6, 2, 3]), bf16s([3, 4])]), expected);
    let batched = cost(Matmul { trans_a: true, trans_b: true }, &[f32s([7, 3, 2]), f32s([7, 4, 3])]);
    assert_eq!(batched.flops, 2 * 7 * 2 * 3 * 4);

    let rows = cost(Gather::ROWS, &[f32s([30_000, 8]), i32s([4])]);
    assert_eq!(rows, Cost { flops: 0, bytes: 4 * 4 + 2 * 4 * 8 * 4 });
    assert_eq!(cost(Reshape { shape: [6].into() }, &[f32s([2, 3])]), Cost::default());
    let part = Slice { start: vec![0], stop: vec![2], step: vec![1] };
    assert_eq!(cost(part, &[f32s([100])]), Cost { flops: 0, bytes: 16 });
    let sum = Reduce { kind: ReduceKind::Sum, axes: vec![0], keep_dims: false };
    assert_eq!(cost(sum, &[f32s([10, 2])]), Cost { flops: 20, bytes: 4 * 22 });
    let pool = MaxPool2d { window: [3, 3], stride: [2, 2], pad: symmetric(1) };
    assert_eq!(cost(pool, &[f32s([1, 8, 8, 2])]), Cost { flops: 32 * 9, bytes: 4 * (128 + 32) });
}
