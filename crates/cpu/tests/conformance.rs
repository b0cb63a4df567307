//! The conformance suite: each operation, with random shapes and attributes, forward and gradient, fused and op by op, on
//! every instruction set of this machine, against the reference interpreter.

use bessemer_cpu::{CpuOptions, Executor, Isa};
use bessemer_ir::autodiff::gradients;
use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::attention::{Attention, AttentionDropout};
use bessemer_ir::ops::conv::{Conv2d, same_padding};
use bessemer_ir::ops::index::{ArgMax, Gather, OneHot};
use bessemer_ir::ops::matmul::Matmul;
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::ops::pool::{AvgPool2d, MaxPool2d};
use bessemer_ir::ops::reduce::ReduceKind;
use bessemer_ir::ops::source::{Constant, Distribution, Random};
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::reference::Interpreter;
use bessemer_ir::{DType, Graph, GraphError, Op, Role, TensorType, Value, philox};
use std::collections::BTreeMap;

/// Largest error of an element, relative to the largest element of its tensor.
const TOLERANCE: f64 = 2e-5;
/// Largest distance of the results of a problem taken together, relative to their Euclidean norm, where tensors are stored in
/// 16 bits: some units in the last of the 8 or 11 places.
const TOLERANCE_16: [(DType, f64); 2] = [(DType::Bf16, 1e-2), (DType::F16, 1.5e-3)];
/// The same behind a ReLU: rounding moves about as large a share of the numbers past zero as the rounding is large, and each of
/// them changes its gradient wholly, so that the distance goes with the square root.
fn behind_relu(tolerance: f64) -> f64 {
    1.5 * tolerance.sqrt()
}
/// Random problems of each case.
const PROBLEMS: u64 = 10;

/// A source of small random numbers.
struct Draw {
    seed: u64,
    next: u64,
}

impl Draw {
    /// A whole number in `low..=high`.
    fn int(&mut self, low: usize, high: usize) -> usize {
        self.next += 1;
        low + (philox::uniform(self.seed, 0, 77, self.next) * (high - low + 1) as f32) as usize
    }

    fn flip(&mut self) -> bool {
        self.int(0, 1) == 1
    }
}

/// One problem under construction: inputs are feeds whose gradients are compared.
struct Problem {
    graph: Graph,
    differentiable: Vec<Value>,
}

impl Problem {
    fn input(&mut self, shape: &[usize]) -> Result<Value, GraphError> {
        let name = format!("x{}", self.differentiable.len());
        let value = self.graph.input(&name, Role::Parameter, TensorType::f32(shape))?;
        self.differentiable.push(value);
        Ok(value)
    }

    fn indices(&mut self, name: &str, shape: &[usize]) -> Result<Value, GraphError> {
        self.graph.input(name, Role::Feed, TensorType::new(DType::I32, shape))
    }
}

type Build = fn(&mut Problem, &mut Draw) -> Result<Value, GraphError>;

const CASES: &[(&str, Build)] = &[
    ("conv2d", conv2d),
    ("conv2d with norm and relu", conv_norm_relu),
    ("depthwise conv2d", depthwise),
    ("depthwise conv2d with norm and relu", depthwise_norm_relu),
    ("grouped conv2d", grouped),
    ("conv2d 3x3 of many channels", conv_by_winograd),
    ("matmul", matmul),
    ("matmul of batches", matmul_batched),
    ("linear with bias and relu", linear),
    ("max_pool2d", max_pool),
    ("avg_pool2d", avg_pool),
    ("batch norm, shortcut and relu", norm_shortcut),
    ("global average", global_average),
    ("softmax", softmax),
    ("log_softmax with one_hot", cross_entropy),
    ("layer norm", layer_norm),
    ("layer norm of bias, dropout and shortcut", layer_norm_dropout),
    ("cross-entropy of weighted rows", weighted_cross_entropy),
    ("linear with gelu", linear_gelu),
    ("unary", unary),
    ("binary with broadcasting", binary),
    ("reduce", reduce),
    ("slice and pad", slice_pad),
    ("transpose and concat", transpose_concat),
    ("gather", gather),
    ("attention", attention),
    ("attention with dropout", attention_dropout),
    ("attention over many keys", attention_many_keys),
    ("u8 pixels", pixels),
];

fn conv2d(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (kh, kw, stride, dilation) = (d.int(1, 5), d.int(1, 4), d.int(1, 3), d.int(1, 2));
    let (h, w) = (d.int(8, 17), d.int(8, 15));
    let (cin, cout) = (d.int(1, 37), d.int(1, 70));
    let x = p.input(&[d.int(1, 3), h, w, cin])?;
    let weights = p.input(&[kh, kw, cin, cout])?;
    let pad = if d.flip() {
        [same_padding(h, kh, stride, dilation), same_padding(w, kw, stride, dilation)]
    } else {
        [[d.int(0, kh), d.int(0, kh)], [d.int(0, kw), d.int(0, kw)]]
    };
    let conv = Conv2d { stride: [stride; 2], dilation: [dilation; 2], pad, groups: 1 };
    p.graph.add1(conv, &[x, weights])
}

fn batch_norm(p: &mut Problem, x: Value) -> Result<Value, GraphError> {
    let channels = p.graph.shape(x).cols();
    let (gamma, beta) = (p.input(&[channels])?, p.input(&[channels])?);
    let g = &mut p.graph;
    let axes: Vec<usize> = (0..g.shape(x).rank() - 1).collect();
    let (mean, var) = g.moments(x, &axes)?;
    let var = g.offset(var, 1e-3)?;
    let rstd = g.rsqrt(var)?;
    let scale = g.mul(gamma, rstd)?;
    let centred = g.sub(x, mean)?;
    let scaled = g.mul(centred, scale)?;
    g.add_(scaled, beta)
}

fn conv_norm_relu(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let shape = [d.int(1, 3), d.int(5, 13), d.int(5, 13), d.int(1, 20)];
    conv_norm_relu_of(p, d, shape)
}

/// With so many rows that norms do not amplify roundings.
fn conv_norm_relu_of_many_rows(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let shape = [d.int(4, 6), d.int(14, 18), d.int(14, 18), d.int(8, 20)];
    conv_norm_relu_of(p, d, shape)
}

fn conv_norm_relu_of(p: &mut Problem, d: &mut Draw, shape: [usize; 4]) -> Result<Value, GraphError> {
    let (cin, mid, cout) = (shape[3], d.int(1, 40), d.int(1, 40));
    let x = p.input(&shape)?;
    let first = p.input(&[3, 3, cin, mid])?;
    let kernel = [1, 3][d.int(0, 1)];
    let second = p.input(&[kernel, kernel, mid, cout])?;
    let y = p.graph.add1(Conv2d::new([1 + d.int(0, 1); 2], [[1; 2]; 2]), &[x, first])?;
    let y = batch_norm(p, y)?;
    let y = p.graph.relu(y)?;
    let y = p.graph.add1(Conv2d::new([1 + d.int(0, 1); 2], [[kernel / 2; 2]; 2]), &[y, second])?;
    batch_norm(p, y)
}

/// Kernel, stride, dilation and padding for an image of `[h, w]`.
fn window(d: &mut Draw, h: usize, w: usize) -> ([usize; 2], Conv2d) {
    let [kh, kw] = [[3, 3], [5, 5], [d.int(1, 6), d.int(1, 4)]][d.int(0, 2)];
    let (stride, dilation) = (d.int(1, 3), if d.int(0, 3) == 0 { 2 } else { 1 });
    let pad = if d.flip() {
        [same_padding(h, kh, stride, dilation), same_padding(w, kw, stride, dilation)]
    } else {
        [[d.int(0, kh), d.int(0, kh)], [d.int(0, kw), d.int(0, kw)]]
    };
    ([kh, kw], Conv2d { stride: [stride; 2], dilation: [dilation; 2], pad, groups: 1 })
}

fn depthwise(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (h, w, channels) = (d.int(11, 17), d.int(11, 31), d.int(1, 90));
    let ([kh, kw], conv) = window(d, h, w);
    let x = p.input(&[d.int(1, 3), h, w, channels])?;
    let weights = p.input(&[kh, kw, 1, channels])?;
    p.graph.add1(Conv2d { groups: channels, ..conv }, &[x, weights])
}

fn depthwise_norm_relu(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (cin, mid, cout) = (d.int(1, 20), d.int(1, 70), d.int(1, 40));
    let (h, w) = (d.int(9, 13), d.int(9, 13));
    let x = p.input(&[d.int(1, 3), h, w, cin])?;
    let expand = p.input(&[1, 1, cin, mid])?;
    let y = p.graph.add1(Conv2d::new([1, 1], [[0; 2]; 2]), &[x, expand])?;
    let y = batch_norm(p, y)?;
    let y = p.graph.relu(y)?;
    let ([kh, kw], conv) = window(d, h, w);
    let weights = p.input(&[kh, kw, 1, mid])?;
    let y = p.graph.add1(Conv2d { groups: mid, ..conv }, &[y, weights])?;
    let y = batch_norm(p, y)?;
    let y = p.graph.relu(y)?;
    let project = p.input(&[1, 1, mid, cout])?;
    p.graph.add1(Conv2d::new([1, 1], [[0; 2]; 2]), &[y, project])
}

fn grouped(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (h, w, groups) = (d.int(11, 14), d.int(11, 14), d.int(2, 6));
    let (cin, cout) = (d.int(1, 9), d.int(1, 20));
    let ([kh, kw], conv) = window(d, h, w);
    let x = p.input(&[d.int(1, 2), h, w, groups * cin])?;
    let weights = p.input(&[kh, kw, cin, groups * cout])?;
    let y = p.graph.add1(Conv2d { groups, ..conv }, &[x, weights])?;
    p.graph.relu(y)
}

/// Large enough for Winograd's algorithm in both directions, with sums before and behind.
fn conv_by_winograd(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (cin, mid) = (d.int(16, 36), d.int(16, 36));
    let x = p.input(&[d.int(2, 4), d.int(12, 19), d.int(12, 19), cin])?;
    let (first, second) = (p.input(&[3, 3, cin, mid])?, p.input(&[3, 3, mid, d.int(16, 20)])?);
    let conv = Conv2d::new([1, 1], [[d.int(0, 2), 1], [1, d.int(0, 2)]]);
    let y = p.graph.add1(conv, &[x, first])?;
    let y = batch_norm(p, y)?;
    let y = p.graph.relu(y)?;
    p.graph.add1(conv, &[y, second])
}

fn matmul(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (m, k, n) = (d.int(1, 90), d.int(1, 300), d.int(1, 90));
    let op = Matmul { trans_a: d.flip(), trans_b: d.flip() };
    let a = p.input(&if op.trans_a { [k, m] } else { [m, k] })?;
    let b = p.input(&if op.trans_b { [n, k] } else { [k, n] })?;
    p.graph.add1(op, &[a, b])
}

fn matmul_batched(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (batch, m, k, n) = (d.int(1, 7), d.int(1, 40), d.int(1, 70), d.int(1, 40));
    let op = Matmul { trans_a: d.flip(), trans_b: d.flip() };
    let a = p.input(&if op.trans_a { [batch, k, m] } else { [batch, m, k] })?;
    let b = p.input(&if op.trans_b { [batch, n, k] } else { [batch, k, n] })?;
    p.graph.add1(op, &[a, b])
}

fn linear(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (m, k, n) = (d.int(1, 60), d.int(1, 200), d.int(1, 90));
    let (x, w, bias) = (p.input(&[m, k])?, p.input(&[n, k])?, p.input(&[n])?);
    let y = p.graph.add1(Matmul { trans_a: false, trans_b: true }, &[x, w])?;
    let y = p.graph.add_(y, bias)?;
    p.graph.relu(y)
}

/// Input, window, stride and padding of a pooling.
type Pooled = (Value, [usize; 2], [usize; 2], [[usize; 2]; 2]);

fn pooled(p: &mut Problem, d: &mut Draw) -> Result<Pooled, GraphError> {
    let window = [d.int(1, 4), d.int(1, 4)];
    let stride = [d.int(1, 3), d.int(1, 3)];
    let pad = window.map(|w| [d.int(0, w - 1), d.int(0, w - 1)]);
    let x = p.input(&[d.int(1, 3), d.int(4, 13), d.int(4, 13), d.int(1, 40)])?;
    Ok((x, window, stride, pad))
}

fn max_pool(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (x, window, stride, pad) = pooled(p, d)?;
    p.graph.add1(MaxPool2d { window, stride, pad }, &[x])
}

fn avg_pool(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (x, window, stride, pad) = pooled(p, d)?;
    p.graph.add1(AvgPool2d { window, stride, pad, count_include_pad: d.flip() }, &[x])
}

fn norm_shortcut(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let shape = [d.int(1, 4), d.int(2, 9), d.int(2, 9), d.int(1, 70)];
    let (x, shortcut) = (p.input(&shape)?, p.input(&shape)?);
    let y = batch_norm(p, x)?;
    let sum = p.graph.add_(y, shortcut)?;
    p.graph.relu(sum)
}

fn global_average(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let x = p.input(&[d.int(1, 5), d.int(1, 9), d.int(1, 9), d.int(1, 70)])?;
    let y = p.graph.relu(x)?;
    p.graph.mean(y, &[1, 2])
}

fn softmax(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let x = p.input(&[d.int(1, 9), d.int(1, 300)])?;
    p.graph.softmax(x)
}

fn cross_entropy(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (n, classes) = (d.int(1, 9), d.int(8, 300));
    let x = p.input(&[n, classes])?;
    let labels = p.indices("labels", &[n])?;
    let log = p.graph.log_softmax(x)?;
    let target = p.graph.add1(OneHot { depth: classes }, &[labels])?;
    p.graph.mul(log, target)
}

/// Over the innermost axis, scaled and shifted.
fn normalised(p: &mut Problem, x: Value) -> Result<Value, GraphError> {
    let cols = p.graph.shape(x).cols();
    let (gamma, beta) = (p.input(&[cols])?, p.input(&[cols])?);
    let g = &mut p.graph;
    let axis = g.shape(x).rank() - 1;
    let (mean, variance) = g.moments(x, &[axis])?;
    let mut kept = g.shape(x).dims().to_vec();
    kept[axis] = 1;
    let stable = g.offset(variance, 0.1)?;
    let inverse = g.rsqrt(stable)?;
    let (mean, inverse) = (g.reshape(mean, kept.clone())?, g.reshape(inverse, kept)?);
    let centred = g.sub(x, mean)?;
    let scaled = g.mul(centred, inverse)?;
    let scaled = g.mul(scaled, gamma)?;
    g.add_(scaled, beta)
}

fn layer_norm(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let x = p.input(&[d.int(1, 4), d.int(1, 9), d.int(2, 200)])?;
    normalised(p, x)
}

fn layer_norm_dropout(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (rows, inner, cols) = (d.int(1, 70), d.int(1, 40), d.int(2, 90));
    let (x, w) = (p.input(&[rows, inner])?, p.input(&[inner, cols])?);
    let (bias, shortcut) = (p.input(&[cols])?, p.input(&[rows, cols])?);
    let step = p.indices("step", &[])?;
    let g = &mut p.graph;
    let y = g.add1(Matmul { trans_a: false, trans_b: false }, &[x, w])?;
    let y = g.add_(y, bias)?;
    let uniform = Random { distribution: Distribution::Uniform, shape: [rows, cols].into(), seed: 11, stream: 4 };
    let uniform = g.add1(uniform, &[step])?;
    let rate = g.constant(DType::F32, [], 0.25)?;
    let kept = g.binary(BinaryKind::Ge, uniform, rate)?;
    let scaled = g.scale(y, 1.0 / 0.75)?;
    let zero = g.constant_like(scaled, 0.0)?;
    let dropped = g.select(kept, scaled, zero)?;
    let sum = g.add_(dropped, shortcut)?;
    let y = normalised(p, sum)?;
    p.graph.relu(y)
}

/// Of some rows of a table, by weight.
fn weighted_cross_entropy(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (n, classes) = (d.int(1, 12), d.int(8, 400));
    let (x, weights) = (p.input(&[n, classes])?, p.input(&[n])?);
    let labels = p.indices("labels", &[n])?;
    let g = &mut p.graph;
    let log = g.log_softmax(x)?;
    let target = g.add1(OneHot { depth: classes }, &[labels])?;
    let picked = g.mul(log, target)?;
    let picked = g.sum(picked, &[1])?;
    g.mul(picked, weights)
}

fn linear_gelu(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (n, seq, inner, cols) = (d.int(1, 3), d.int(1, 40), d.int(1, 50), d.int(1, 80));
    let (x, w, bias) = (p.input(&[n, seq, inner])?, p.input(&[cols, inner])?, p.input(&[cols])?);
    let g = &mut p.graph;
    let y = g.add1(Matmul { trans_a: false, trans_b: true }, &[x, w])?;
    let y = g.add_(y, bias)?;
    let scaled = g.scale(y, std::f64::consts::FRAC_1_SQRT_2)?;
    let erf = g.unary(UnaryKind::Erf, scaled)?;
    let above = g.offset(erf, 1.0)?;
    let half = g.scale(y, 0.5)?;
    g.mul(half, above)
}

fn unary(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let x = p.input(&[d.int(1, 9), d.int(1, 60)])?;
    let g = &mut p.graph;
    // Away from zero, where some of them have a pole or a kink.
    let square = g.square(x)?;
    let positive = g.offset(square, 0.5)?;
    let mut total = positive;
    for kind in UnaryKind::ALL.into_iter().filter(|&k| k != UnaryKind::Floor && k != UnaryKind::Exp) {
        let y = g.unary(kind, positive)?;
        total = g.add_(total, y)?;
    }
    let small = g.scale(x, 0.2)?;
    let exp = g.unary(UnaryKind::Exp, small)?;
    g.add_(total, exp)
}

fn binary(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let full = [d.int(1, 4), d.int(1, 5), d.int(1, 6), d.int(1, 30)];
    let mut some: Vec<usize> = full.to_vec();
    for size in &mut some {
        if d.flip() {
            *size = 1;
        }
    }
    let cut = d.int(0, 2);
    let (a, b) = (p.input(&full)?, p.input(&some[cut..])?);
    let g = &mut p.graph;
    let square = g.square(b)?;
    let divisor = g.offset(square, 1.0)?;
    let mut total = a;
    for kind in [BinaryKind::Mul, BinaryKind::Sub, BinaryKind::Max, BinaryKind::Min, BinaryKind::Div] {
        let y = g.binary(kind, a, divisor)?;
        total = g.add_(total, y)?;
    }
    let greater = g.binary(BinaryKind::Gt, a, b)?;
    g.select(greater, total, b)
}

fn reduce(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let x = p.input(&[d.int(1, 7), d.int(1, 9), d.int(1, 40)])?;
    let kind = [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min][d.int(0, 2)];
    let axes: &[usize] = [[0].as_slice(), &[1], &[2], &[0, 1], &[1, 2], &[0, 1, 2]][d.int(0, 5)];
    p.graph.reduce(kind, x, axes, d.flip())
}

fn slice_pad(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let shape = [d.int(1, 3), d.int(4, 9), d.int(4, 9), d.int(1, 20)];
    let x = p.input(&shape)?;
    let y = p.graph.slice(x, &[0, 1, 0, 0], &shape, &[1, 2, 2, 1])?;
    p.graph.pad(y, &[0, 0, d.int(0, 2), d.int(0, 9)], &[0, 1, 0, d.int(0, 9)])
}

fn transpose_concat(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (a, b, c, e) = (d.int(1, 5), d.int(1, 17), d.int(1, 19), d.int(1, 9));
    let (x, y) = (p.input(&[a, b, c])?, p.input(&[a, c, e])?);
    let turned = p.graph.transpose(x, &[0, 2, 1])?;
    p.graph.concat(&[turned, y], 2)
}

fn gather(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let table = p.input(&[d.int(8, 40), d.int(1, 70)])?;
    let rows = p.indices("rows", &[d.int(1, 30)])?;
    p.graph.add1(Gather, &[table, rows])
}

fn attention(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let lengths = [d.int(1, 70), d.int(1, 70)];
    attention_of(p, d, lengths, None)
}

fn attention_dropout(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let lengths = [d.int(1, 70), d.int(1, 70)];
    let rate = Scalar([0.1, 0.5][d.int(0, 1)]);
    attention_of(p, d, lengths, Some(AttentionDropout { rate, seed: 11, stream: 3 }))
}

/// With keys that are worked on in several pieces, and queries as well.
fn attention_many_keys(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let lengths = [d.int(1, 150), d.int(250, 530)];
    let dropout = AttentionDropout { rate: Scalar(0.25), seed: 12, stream: 4 };
    let dropout = d.flip().then_some(dropout);
    attention_of(p, d, lengths, dropout)
}

/// Attention of numbers of queries and keys, of which some are masked.
fn attention_of(
    p: &mut Problem,
    d: &mut Draw,
    [queries, keys]: [usize; 2],
    dropout: Option<AttentionDropout>,
) -> Result<Value, GraphError> {
    let (batch, heads) = (d.int(1, 2), if queries * keys > 5000 { d.int(1, 2) } else { d.int(1, 12) });
    let depth = [8, 16, 19, 64, 128][d.int(0, if heads > 4 { 2 } else { 4 })];
    let width = heads * depth;
    let inputs = [queries, keys, keys].map(|length| p.input(&[batch, length, width]));
    let [q, k, v] = inputs;
    let masked = d.flip();
    let bias = |i: usize| if i % keys % 3 == 1 && masked { -10000.0 } else { (i % 7) as f64 / 7.0 };
    let data = (0..batch * keys).map(|i| Scalar(bias(i))).collect();
    let bias = p.graph.add1(Constant { dtype: DType::F32, shape: [batch, keys].into(), data }, &[])?;
    let mut inputs = vec![q?, k?, v?, bias];
    if dropout.is_some() {
        inputs.push(p.indices("counter", &[])?);
    }
    p.graph.add1(Attention { heads, scale: Scalar(1.0 / (depth as f64).sqrt()), dropout }, &inputs)
}

fn pixels(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let shape = [d.int(1, 3), d.int(1, 9), d.int(1, 9), 3];
    let images = p.graph.input("images", Role::Feed, TensorType::new(DType::U8, shape))?;
    let gain = p.input(&[3])?;
    let g = &mut p.graph;
    let x = g.cast(images, DType::F32)?;
    let mean = g.constant_vector(&[123.0, 116.0, 103.0])?;
    let x = g.sub(x, mean)?;
    let x = g.scale(x, 1.0 / 58.0)?;
    g.mul(x, gain)
}

/// The problem's graph with outputs: the result, and the gradient of each input.
fn problem(build: Build, seed: u64) -> Graph {
    let mut p = Problem { graph: Graph::new(), differentiable: Vec::new() };
    let y = build(&mut p, &mut Draw { seed, next: 0 }).expect("the case is legal");
    let Problem { graph: mut g, differentiable } = p;
    g.output("y", y);
    let shape = g.shape(y).clone();
    let weights = g.input("weights", Role::Feed, TensorType::f32(shape.clone())).expect("a new name");
    let product = g.mul(y, weights).expect("one shape");
    let axes: Vec<usize> = (0..shape.rank()).collect();
    let loss = if axes.is_empty() { product } else { g.sum(product, &axes).expect("all axes") };
    let grads = gradients(&mut g, loss, &differentiable).expect("the case is differentiable");
    for (index, grad) in grads.into_iter().enumerate() {
        g.output(&format!("gradient of x{index}"), grad);
    }
    g
}

fn data(ty: &TensorType, stream: u32, seed: u64) -> Vec<f64> {
    let uniform = |i: usize| philox::uniform(seed, 1, stream, i as u64);
    (0..ty.shape.elements())
        .map(|i| match ty.dtype {
            DType::U8 => f64::from((uniform(i) * 256.0).floor()),
            DType::I32 => f64::from((uniform(i) * 8.0).floor()),
            _ => f64::from(philox::normal(seed, 1, stream, i as u64)),
        })
        .collect()
}

fn bytes(ty: &TensorType, data: &[f64]) -> Vec<u8> {
    data.iter()
        .flat_map(|&x| match ty.dtype {
            DType::U8 | DType::Bool => vec![x as u8],
            DType::I32 => (x as i32).to_ne_bytes().to_vec(),
            _ => (x as f32).to_ne_bytes().to_vec(),
        })
        .collect()
}

fn run_reference(graph: &Graph, seed: u64) -> BTreeMap<String, Vec<f64>> {
    let mut interpreter = Interpreter::new(graph);
    for (stream, (_, input)) in graph.inputs().enumerate() {
        interpreter.set(&input.name, &data(&input.ty, stream as u32, seed));
    }
    interpreter.run();
    graph.outputs().iter().map(|(name, _)| (name.clone(), interpreter.output(name).data.clone())).collect()
}

fn run_cpu(graph: &Graph, seed: u64, isa: Isa, threads: usize, options: &CompileOptions) -> BTreeMap<String, Vec<f32>> {
    let cpu = CpuOptions { isa, threads };
    let plan = compile(graph, &cpu, options).expect("the graph compiles");
    let mut executor = Executor::new(plan, cpu).expect("every operation has a kernel");
    for (stream, (_, input)) in graph.inputs().enumerate() {
        let data = data(&input.ty, stream as u32, seed);
        executor.write(&input.name, &bytes(&input.ty, &data)).expect("the input exists");
    }
    executor.run().expect("the step runs");
    let output = |name: &str| executor.output_f32(name).expect("the output exists").to_vec();
    graph.outputs().iter().map(|(name, _)| (name.clone(), output(name))).collect()
}

fn compare(what: &str, expected: &BTreeMap<String, Vec<f64>>, actual: &BTreeMap<String, Vec<f32>>) {
    for (name, expected) in expected {
        let scale = expected.iter().fold(1e-3f64, |m, x| m.max(x.abs()));
        for (index, (&e, &a)) in expected.iter().zip(&actual[name]).enumerate() {
            let error = (e - f64::from(a)).abs() / scale;
            assert!(error <= TOLERANCE, "{what}: {name}[{index}] is {a}, the reference has {e} (error {error:.2e})");
        }
    }
}

#[test]
fn every_operation_on_every_instruction_set() {
    let isas = Isa::available();
    for (name, build) in CASES {
        for seed in 0..PROBLEMS {
            let graph = problem(*build, seed);
            let expected = run_reference(&graph, seed);
            for &isa in &isas {
                for fuse in [true, false] {
                    let options = CompileOptions { fuse, ..CompileOptions::default() };
                    let one = run_cpu(&graph, seed, isa, 1, &options);
                    compare(&format!("{name}, problem {seed}, {isa}, fuse {fuse}"), &expected, &one);
                    let three = run_cpu(&graph, seed, isa, 3, &options);
                    assert!(one == three, "{name}, problem {seed}, {isa}: the result depends on the number of threads");
                }
            }
        }
        let ran: Vec<&str> = isas.iter().map(|isa| isa.name()).collect();
        println!("{name}: {PROBLEMS} problems, forward and gradient, on {}", ran.join(", "));
    }
}

/// Products with what is around them, stored in 16 bits.
#[test]
fn sixteen_bits_on_every_instruction_set() {
    let cases: [(&str, Build); 8] = [
        ("conv2d", conv2d),
        ("conv2d with norm and relu", conv_norm_relu_of_many_rows),
        ("matmul", matmul),
        ("matmul of batches", matmul_batched),
        ("linear with bias and relu", linear),
        ("attention", attention),
        ("attention with dropout", attention_dropout),
        ("attention over many keys", attention_many_keys),
    ];
    for (name, build) in &cases {
        for (seed, (precision, tolerance)) in (0..PROBLEMS).flat_map(|seed| TOLERANCE_16.map(|t| (seed, t))) {
            let graph = problem(*build, seed);
            let expected = run_reference(&graph, seed);
            for (isa, fuse) in Isa::available().into_iter().flat_map(|isa| [(isa, true), (isa, false)]) {
                let options = CompileOptions { fuse, precision, ..CompileOptions::default() };
                let one = run_cpu(&graph, seed, isa, 1, &options);
                let what = format!("{name}, problem {seed}, {isa}, {precision}, fuse {fuse}");
                let tolerance = if name.contains("relu") { behind_relu(tolerance) } else { tolerance };
                let pairs = || expected.iter().flat_map(|(name, tensor)| tensor.iter().zip(&one[name]));
                let norm: f64 = pairs().map(|(e, _)| e * e).sum();
                let distance: f64 = pairs().map(|(e, &a)| (e - f64::from(a)).powi(2)).sum();
                let error = (distance / norm.max(1e-12)).sqrt();
                assert!(error <= tolerance, "{what}: {error:.2e} from the reference");
                assert!(one == run_cpu(&graph, seed, isa, 3, &options), "{what}: depends on the number of threads");
            }
        }
    }
}

#[test]
fn random_numbers_are_the_same_everywhere() {
    let mut g = Graph::new();
    let step = g.input("step", Role::Feed, TensorType::new(DType::I32, [])).unwrap();
    for (stream, distribution) in [Distribution::Uniform, Distribution::Normal].into_iter().enumerate() {
        let random = Random { distribution, shape: [9, 11].into(), seed: 5, stream: stream as u32 };
        let value = g.add1(random, &[step]).unwrap();
        g.output(&format!("{distribution:?}"), value);
    }
    let expected = run_reference(&g, 3);
    for isa in Isa::available() {
        let actual = run_cpu(&g, 3, isa, 2, &CompileOptions::default());
        for (name, expected) in &expected {
            let exact: Vec<f32> = expected.iter().map(|&x| x as f32).collect();
            assert_eq!(actual[name], exact, "{name} on {isa}");
        }
    }
}

#[test]
fn arg_max_and_indices_out_of_range() {
    let mut g = Graph::new();
    let x = g.input("x", Role::Feed, TensorType::f32([3, 5])).unwrap();
    let best = g.add1(ArgMax, &[x]).unwrap();
    g.output("best", best);
    let cpu = CpuOptions { isa: Isa::detect(), threads: 1 };
    let mut executor = Executor::new(compile(&g, &cpu, &CompileOptions::default()).unwrap(), cpu).unwrap();
    executor.write_f32("x", &[0., 2., 2., 1., 0., 5., 4., 3., 2., 1., 0., 0., 0., 0., 9.]).unwrap();
    executor.run().unwrap();
    let indices: Vec<i32> =
        executor.output("best").unwrap().chunks_exact(4).map(|b| i32::from_ne_bytes(b.try_into().unwrap())).collect();
    assert_eq!(indices, [1, 0, 4]);

    let mut g = Graph::new();
    let table = g.input("table", Role::Feed, TensorType::f32([4, 2])).unwrap();
    let rows = g.input("rows", Role::Feed, TensorType::new(DType::I32, [2])).unwrap();
    let y = g.scoped("embedding", |g| g.add1(Gather, &[table, rows])).unwrap();
    g.output("y", y);
    let mut executor = Executor::new(compile(&g, &cpu, &CompileOptions::default()).unwrap(), cpu).unwrap();
    executor.write("rows", &[1i32, 4].map(i32::to_ne_bytes).concat()).unwrap();
    let message = executor.run().unwrap_err().to_string();
    assert!(message.contains("gather at `embedding`") && message.contains('4'), "{message}");
}

#[test]
fn what_has_no_kernel_is_listed() {
    let mut g = Graph::new();
    let half = |shape: [usize; 4]| TensorType::new(DType::F16, shape);
    let x = g.input("x", Role::Feed, half([1, 4, 4, 6])).unwrap();
    let w = g.input("w", Role::Feed, half([3, 3, 3, 6])).unwrap();
    let conv = Conv2d { groups: 2, ..Conv2d::new([1, 1], [[1, 1], [1, 1]]) };
    let y = g.scoped("stem", |g| g.add1(Op::from(conv), &[x, w])).unwrap();
    g.output("y", y);
    let cpu = CpuOptions { isa: Isa::detect(), threads: 1 };
    let plan = compile(&g, &cpu, &CompileOptions::default()).unwrap();
    let message = Executor::new(plan, cpu).err().expect("grouped convolutions have no f16 kernel").to_string();
    assert!(message.contains("conv2d") && message.contains("stem") && message.contains("f16"), "{message}");
}
