//! Operations with kernels that are written by hand, as plans launch them, on shapes that reach every path of theirs.

use super::case::{Case, Expected, tolerance};
use super::cases::{Maker, Size};
use crate::cudnn::Pass;
use crate::kernels::index::REPORT_WORDS;
use crate::kgen::{KernelError, Launch, Launches, Operand};
use crate::lower::{Place, Step, lower};
use bessemer_ir::ops::conv::{Conv2d, Conv2dDataGrad, Conv2dWeightGrad};
use bessemer_ir::ops::index::{ArgMax, ScatterAdd};
use bessemer_ir::ops::pool::{AvgPool2d, AvgPool2dGrad, MaxPool2d, MaxPool2dGrad};
use bessemer_ir::ops::reduce::{Reduce, ReduceKind};
use bessemer_ir::reference::{Interpreter, Tensor};
use bessemer_ir::shape::TensorType;
use bessemer_ir::{DType, Graph, Op, Role, philox};

/// What makes the cases of this size.
pub(super) fn makers(size: Size) -> Vec<Maker> {
    let both: [Maker; 8] = [
        |size| max_pool_gradient("max_pool_gradient", size, DType::F16, size.pick([2, 15, 13, 16], [32, 112, 112, 64])),
        |size| arg_max("arg_max", size, DType::F32, size.pick([5, 4100], [512, 30_522])),
        |size| {
            let [items, rows, width] = size.pick([300, 350, 24], [32_768, 30_522, 768]);
            scatter_add("scatter_add", size, DType::F32, ScatterAdd::to_rows(rows), [vec![], vec![items], vec![width]])
        },
        |size| {
            let [items, width] = size.pick([1000, 8], [32_768, 768]);
            scatter_add("scatter_add_two", size, DType::F32, ScatterAdd::to_rows(2), [vec![], vec![items], vec![width]])
        },
        |size| {
            let shape = size.pick([2, 9, 11, 16], [32, 64, 64, 240]);
            depthwise("depthwise", size, DType::F16, Pass::Forward, SAME_5, shape)
        },
        |size| {
            let shape = size.pick([2, 15, 14, 16], [32, 256, 256, 96]);
            depthwise("depthwise_data_gradient", size, DType::F16, Pass::DataGradient, HALVED_3, shape)
        },
        |size| {
            let shape = size.pick([2, 15, 14, 16], [32, 256, 256, 96]);
            depthwise("depthwise_weight_gradient", size, DType::F16, Pass::WeightGradient, HALVED_3, shape)
        },
        |size| reduce("reduce_columns", size, ReduceKind::Sum, &size.pick([2, 37, 5, 40], [64, 56, 56, 64]), &[1, 2]),
    ];
    let small: [Maker; 28] = [
        |size| max_pool_gradient("max_pool_gradient_3", size, DType::F32, [2, 9, 11, 3]),
        |size| max_pool_gradient("max_pool_gradient_12", size, DType::Bf16, [1, 9, 11, 12]),
        |size| max_pool("max_pool", size, DType::F32, [2, 11, 13, 16]),
        |size| max_pool("max_pool_10", size, DType::F16, [2, 11, 13, 10]),
        |size| average_pool("average_pool", size, DType::F16, false, [2, 9, 11, 24]),
        |size| average_pool("average_pool_5", size, DType::F32, true, [2, 9, 11, 5]),
        |size| average_pool_gradient("average_pool_gradient", size, DType::Bf16, false, [2, 9, 11, 16]),
        |size| average_pool_gradient("average_pool_gradient_6", size, DType::F32, true, [1, 9, 11, 6]),
        |size| arg_max("arg_max_short", size, DType::Bf16, [37, 104]),
        |size| arg_max("arg_max_of_3", size, DType::F32, [300, 3]),
        |size| arg_max("arg_max_odd", size, DType::F16, [3, 3001]),
        |size| {
            scatter_add(
                "scatter_add_few",
                size,
                DType::Bf16,
                ScatterAdd { rows: 7, batch: 1, axis: 1 },
                [vec![3], vec![20], vec![6]],
            )
        },
        |size| {
            scatter_add(
                "scatter_add_batches",
                size,
                DType::F32,
                ScatterAdd { rows: 6, batch: 1, axis: 2 },
                [vec![3, 2], vec![150], vec![5]],
            )
        },
        |size| {
            scatter_add(
                "scatter_add_40",
                size,
                DType::F16,
                ScatterAdd { rows: 9, batch: 0, axis: 1 },
                [vec![2], vec![5, 8], vec![16]],
            )
        },
        |size| depthwise("depthwise_halved", size, DType::F32, Pass::Forward, HALVED_3, [2, 9, 14, 12]),
        |size| depthwise("depthwise_6", size, DType::Bf16, Pass::Forward, SAME_3, [1, 5, 13, 6]),
        |size| depthwise("depthwise_3", size, DType::F32, Pass::Forward, (WIDE, [7, 6]), [1, 12, 9, 3]),
        |size| depthwise("depthwise_data_gradient_5", size, DType::Bf16, Pass::DataGradient, SAME_5, [2, 6, 10, 8]),
        |size| {
            depthwise("depthwise_data_gradient_3", size, DType::F32, Pass::DataGradient, (WIDE, [7, 6]), [1, 12, 9, 3])
        },
        |size| depthwise("depthwise_weight_gradient_5", size, DType::Bf16, Pass::WeightGradient, SAME_5, [3, 6, 10, 8]),
        |size| {
            depthwise(
                "depthwise_weight_gradient_3",
                size,
                DType::F32,
                Pass::WeightGradient,
                (WIDE, [7, 6]),
                [1, 12, 9, 3],
            )
        },
        |size| {
            depthwise(
                "depthwise_weight_gradient_of_parts",
                size,
                DType::F32,
                Pass::WeightGradient,
                SAME_3,
                [4, 64, 16, 10],
            )
        },
        |size| reduce("reduce_all", size, ReduceKind::Sum, &[33_000], &[0]),
        |size| reduce("reduce_rows", size, ReduceKind::Max, &[2, 50_001], &[1]),
        |size| reduce("reduce_long_columns", size, ReduceKind::Sum, &[20_000, 9], &[0]),
        |size| reduce("reduce_apart", size, ReduceKind::Min, &[70, 3, 90], &[0, 2]),
        |size| reduce("reduce_apart_columns", size, ReduceKind::Sum, &[5, 3, 30, 35], &[0, 2]),
        |size| reduce("reduce_few", size, ReduceKind::Sum, &[50, 7], &[1]),
    ];
    let more = if size == Size::Small { &small[..] } else { &[] };
    both.iter().chain(more).copied().collect()
}

/// Whole numbers, most of them -2 to 2, so that many are equal and sums are exact.
fn whole(ty: DType, shape: &[usize], stream: u32) -> Tensor {
    const PERIOD: usize = 100_003;
    let ty = TensorType::new(ty, shape);
    let normal = |i: usize| f64::from(philox::normal(6, 0, stream, i as u64)).round();
    let first: Vec<f64> = (0..ty.shape.elements().min(PERIOD)).map(normal).collect();
    Tensor::from_fn(ty, |i| first[i % PERIOD])
}

/// An operation as it is lowered, whose results are those of the reference, if the case is small.
pub(super) fn case(name: &str, size: Size, op: Op, inputs: Vec<Tensor>) -> Result<Case, KernelError> {
    let refused = |error: &dyn std::error::Error| KernelError(error.to_string());
    let mut graph = Graph::new();
    let named = inputs.iter().enumerate().map(|(index, input)| (format!("x{index}"), input));
    let named: Vec<(String, &Tensor)> = named.collect();
    let values = named.iter().map(|(name, input)| graph.input(name, Role::Feed, input.ty.clone()));
    let values = values.collect::<Result<Vec<_>, _>>().map_err(|error| refused(&error))?;
    let results = graph.push(op, &values).map_err(|error| refused(&error))?;
    let named_results: Vec<String> = (0..results.len()).map(|number| format!("y{number}")).collect();
    named_results.iter().zip(&results).for_each(|(name, &result)| graph.output(name, result));
    let mut after: Vec<Tensor> = results.iter().map(|&result| Tensor::zeros(graph.ty(result).clone())).collect();
    if size == Size::Small {
        let mut reference = Interpreter::new(&graph);
        named.iter().for_each(|(name, input)| reference.set(name, &input.data));
        reference.run();
        after = named_results.iter().map(|name| reference.output(name).clone()).collect();
    }
    let lowered = lower(&graph, results[0].node).map_err(|error| refused(&error))?;
    let (mut work, mut offsets) = (Launches::default(), Vec::new());
    for step in &lowered.steps {
        let Step::Launch { kernel, operands } = step else {
            return Err(KernelError("a step of it is no launch".to_owned()));
        };
        if operands.iter().any(|place| matches!(place, Place::Message { .. } | Place::Lost | Place::Halt)) {
            return Err(KernelError("it needs other ranks".to_owned()));
        }
        let mut operand = |place: &Place| match *place {
            Place::Input(input) => Operand::Input(input),
            Place::Output(output) => Operand::Output(output),
            Place::Report | Place::Message { .. } | Place::Lost | Place::Halt => Operand::Output(results.len()),
            Place::Arrivals => Operand::Arrivals,
            Place::Scratch { offset, bytes } => {
                let known = offsets.iter().position(|&known| known == offset);
                Operand::Scratch(known.unwrap_or_else(|| {
                    offsets.push(offset);
                    work.scratch.push(bytes.div_ceil(4));
                    offsets.len() - 1
                }))
            }
        };
        let operands = operands.iter().map(&mut operand).collect();
        work.launches.push(Launch { kernel: kernel.clone(), operands });
    }
    let expected = |after: Tensor| Expected { before: None, tolerance: tolerance(after.ty.dtype), after };
    let mut outputs: Vec<Expected> = after.into_iter().map(expected).collect();
    if !lowered.index_limits.is_empty() {
        let nothing = vec![-1.0; REPORT_WORDS];
        let after = Tensor::new(TensorType::new(DType::I32, [REPORT_WORDS]), nothing.clone());
        outputs.push(Expected { before: Some(nothing), tolerance: 0.0, after });
    }
    Ok(Case { name: name.to_owned(), work, inputs, outputs })
}

const MAX_POOL: MaxPool2d = MaxPool2d { window: [3, 3], stride: [2, 2], pad: [[1, 1], [1, 0]] };

fn max_pool(name: &str, size: Size, ty: DType, shape: [usize; 4]) -> Result<Case, KernelError> {
    case(name, size, Op::from(MAX_POOL), vec![whole(ty, &shape, 0)])
}

/// Windows that overlap, with several largest elements.
fn max_pool_gradient(name: &str, size: Size, ty: DType, shape: [usize; 4]) -> Result<Case, KernelError> {
    let x = whole(ty, &shape, 0);
    let [n, h, w, c] = shape;
    let pooled = [n, (h + 2 - 3) / 2 + 1, (w + 1 - 3) / 2 + 1, c];
    let y = match size {
        Size::Small => case("", size, Op::from(MAX_POOL), vec![x.clone()])?.outputs.swap_remove(0).after,
        Size::Large => whole(ty, &pooled, 1),
    };
    case(name, size, Op::from(MaxPool2dGrad { pool: MAX_POOL }), vec![x, y, whole(ty, &pooled, 2)])
}

/// A depthwise convolution, but for its groups, and the size of its window.
type Windows = (Conv2d, [usize; 2]);

const SAME_3: Windows = (Conv2d::new([1, 1], [[1, 1], [1, 1]]), [3, 3]);
const SAME_5: Windows = (Conv2d::new([1, 1], [[2, 2], [2, 2]]), [5, 5]);
/// By the rule of TensorFlow, with less padding before than behind.
const HALVED_3: Windows = (Conv2d::new([2, 2], [[0, 1], [0, 1]]), [3, 3]);
/// Longer than it is wide, with strides that differ, and padding on one side alone.
const WIDE: Conv2d = Conv2d::new([2, 4], [[3, 0], [1, 3]]);

/// A pass of a depthwise convolution of images of this shape.
fn depthwise(
    name: &str,
    size: Size,
    ty: DType,
    pass: Pass,
    (conv, kernel): Windows,
    shape: [usize; 4],
) -> Result<Case, KernelError> {
    let [n, height, width, c] = shape;
    let along = |axis: usize, input: usize| {
        (input + conv.pad[axis].iter().sum::<usize>() - kernel[axis]) / conv.stride[axis] + 1
    };
    let conv = Conv2d { groups: c, ..conv };
    let (x, weights) = (|| whole(ty, &shape, 0), || whole(ty, &[kernel[0], kernel[1], 1, c], 1));
    let dy = || whole(ty, &[n, along(0, height), along(1, width), c], 2);
    match pass {
        Pass::Forward => case(name, size, Op::from(conv), vec![x(), weights()]),
        Pass::DataGradient => {
            case(name, size, Op::from(Conv2dDataGrad { conv, input: [height, width] }), vec![dy(), weights()])
        }
        Pass::WeightGradient => case(name, size, Op::from(Conv2dWeightGrad::new(conv, kernel)), vec![x(), dy()]),
    }
}

/// Windows that overlap, and end within the padding.
fn average(count_include_pad: bool) -> AvgPool2d {
    AvgPool2d { window: [3, 2], stride: [2, 1], pad: [[1, 1], [1, 0]], count_include_pad }
}

fn average_pool(name: &str, size: Size, ty: DType, pad: bool, shape: [usize; 4]) -> Result<Case, KernelError> {
    case(name, size, Op::from(average(pad)), vec![whole(ty, &shape, 0)])
}

fn average_pool_gradient(name: &str, size: Size, ty: DType, pad: bool, shape: [usize; 4]) -> Result<Case, KernelError> {
    let [n, h, w, c] = shape;
    let pooled = [n, (h + 2 - 3) / 2 + 1, (w + 1 - 2) + 1, c];
    let grad = AvgPool2dGrad { pool: average(pad), input: [h, w] };
    case(name, size, Op::from(grad), vec![whole(ty, &pooled, 0)])
}

/// Many equal largest elements, a largest one in a late column, a row of infinities, a row of NaN.
fn arg_max(name: &str, size: Size, ty: DType, [rows, cols]: [usize; 2]) -> Result<Case, KernelError> {
    let mut x = whole(ty, &[rows, cols], 0);
    x.data[cols - cols.min(10)] = 100.0;
    x.data[cols..2 * cols].fill(f64::NEG_INFINITY);
    x.data[2 * cols + 1..3 * cols].fill(f64::NAN);
    case(name, size, Op::from(ArgMax), vec![x])
}

/// Indices of which some are equal, and some rows have none.
fn scatter_add(
    name: &str,
    size: Size,
    ty: DType,
    op: ScatterAdd,
    [above, items, below]: [Vec<usize>; 3],
) -> Result<Case, KernelError> {
    let updates = whole(ty, &[above.clone(), items.clone(), below].concat(), 0);
    let indices = TensorType::new(DType::I32, [above[..op.batch].to_vec(), items].concat());
    let draw = |i: usize| f64::from(philox::uniform(6, 0, 1, i as u64)) * op.rows as f64;
    case(name, size, Op::from(op), vec![updates, Tensor::from_fn(indices, |i| draw(i).floor())])
}

fn reduce(name: &str, size: Size, kind: ReduceKind, shape: &[usize], axes: &[usize]) -> Result<Case, KernelError> {
    let op = Reduce { kind, axes: axes.to_vec(), keep_dims: false };
    case(name, size, Op::from(op), vec![whole(DType::F32, shape, 0)])
}
