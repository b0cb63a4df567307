//! Convolutions, and norms behind and before them.

use crate::problem::{Draw, Input, Problem};
use bessemer_ir::ops::conv::{Conv2d, Conv2dDataGrad, same_padding};
use bessemer_ir::ops::conv_then_depthwise::{Activation, ConvThenDepthwise};
use bessemer_ir::ops::limited::Limited;
use bessemer_ir::ops::pointwise::UnaryKind;
use bessemer_ir::{DType, GraphError, Value};

pub(super) fn conv2d(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
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
    let conv = Conv2d { dilation: [dilation; 2], ..Conv2d::new([stride; 2], pad) };
    p.graph.push1(conv, &[x, weights])
}

/// A convolution and a transposed one of some items of a batch, with a bias and ReLU between them.
pub(super) fn limited(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (items, channels) = (d.int(1, 9), [d.int(1, 36), 16 * d.int(1, 4), d.int(1, 8)]);
    let side = d.int(5, 14);
    let x = p.input(&[items, side, side, channels[0]])?;
    let [first, second] = [p.input(&[3, 3, channels[0], channels[1]])?, p.input(&[2, 2, channels[2], channels[1]])?];
    let bias = p.input(&[channels[1]])?;
    let range = Input::Integers { first: -1, count: items as u32 + 3 };
    let count = p.feed("count", DType::I32, &[], range)?;
    let conv = Conv2d::new([1; 2], [[1; 2]; 2]);
    let g = &mut p.graph;
    let y = g.push1(Limited::new(conv), &[x, first, count])?;
    let y = g.add(y, bias)?;
    let y = g.relu(y)?;
    let transposed = Conv2dDataGrad { conv: Conv2d::new([2; 2], [[0; 2]; 2]), input: [2 * side; 2] };
    g.push1(Limited::new(transposed), &[y, second, count])
}

fn batch_norm(p: &mut Problem, x: Value) -> Result<Value, GraphError> {
    let channels = p.graph.shape(x).cols();
    let (gamma, beta) = (p.input(&[channels])?, p.input(&[channels])?);
    let g = &mut p.graph;
    let axes: Vec<usize> = (0..g.shape(x).rank() - 1).collect();
    let (mean, var) = g.moments(x, &axes)?;
    let var = g.add_scalar(var, 1e-3)?;
    let rstd = g.rsqrt(var)?;
    let scale = g.mul(gamma, rstd)?;
    let centred = g.sub(x, mean)?;
    let scaled = g.mul(centred, scale)?;
    g.add(scaled, beta)
}

pub(super) fn conv_norm_relu(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let shape = [d.int(1, 3), d.int(5, 13), d.int(5, 13), d.int(1, 20)];
    conv_norm_relu_of(p, d, shape)
}

/// With so many rows that norms do not amplify roundings.
pub(super) fn conv_norm_relu_of_many_rows(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let shape = [d.int(4, 6), d.int(14, 18), d.int(14, 18), d.int(8, 20)];
    conv_norm_relu_of(p, d, shape)
}

fn conv_norm_relu_of(p: &mut Problem, d: &mut Draw, shape: [usize; 4]) -> Result<Value, GraphError> {
    let (cin, mid, cout) = (shape[3], d.int(1, 40), d.int(1, 40));
    let x = p.input(&shape)?;
    let first = p.input(&[3, 3, cin, mid])?;
    let kernel = [1, 3][d.int(0, 1)];
    let second = p.input(&[kernel, kernel, mid, cout])?;
    let y = p.graph.push1(Conv2d::new([1 + d.int(0, 1); 2], [[1; 2]; 2]), &[x, first])?;
    let y = batch_norm(p, y)?;
    let y = p.graph.relu(y)?;
    let y = p.graph.push1(Conv2d::new([1 + d.int(0, 1); 2], [[kernel / 2; 2]; 2]), &[y, second])?;
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
    ([kh, kw], Conv2d { dilation: [dilation; 2], ..Conv2d::new([stride; 2], pad) })
}

pub(super) fn depthwise(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (h, w, channels) = (d.int(11, 17), d.int(11, 31), d.int(1, 90));
    let ([kh, kw], conv) = window(d, h, w);
    let x = p.input(&[d.int(1, 3), h, w, channels])?;
    let weights = p.input(&[kh, kw, 1, channels])?;
    p.graph.push1(Conv2d { groups: channels, ..conv }, &[x, weights])
}

pub(super) fn depthwise_norm_relu(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (cin, mid, cout) = (d.int(1, 20), d.int(1, 70), d.int(1, 40));
    let (h, w) = (d.int(9, 13), d.int(9, 13));
    let x = p.input(&[d.int(1, 3), h, w, cin])?;
    let expand = p.input(&[1, 1, cin, mid])?;
    let y = p.graph.push1(Conv2d::new([1, 1], [[0; 2]; 2]), &[x, expand])?;
    let y = batch_norm(p, y)?;
    let y = p.graph.relu(y)?;
    let ([kh, kw], conv) = window(d, h, w);
    let weights = p.input(&[kh, kw, 1, mid])?;
    let y = p.graph.push1(Conv2d { groups: mid, ..conv }, &[y, weights])?;
    let y = batch_norm(p, y)?;
    let y = p.graph.relu(y)?;
    let project = p.input(&[1, 1, mid, cout])?;
    p.graph.push1(Conv2d::new([1, 1], [[0; 2]; 2]), &[y, project])
}

/// An inverted bottleneck with fixed norms: expansion, depthwise convolution, gates of squeeze and excite, projection with a shortcut.
pub(super) fn inverted_bottleneck(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (channels, mid, squeezed) = (8 * d.int(2, 4), 8 * d.int(2, 9) + d.int(0, 1), d.int(1, 6));
    let (n, h, w) = (d.int(1, 3), d.int(5, 13), d.int(5, 27));
    let x = p.input(&[n, h, w, channels])?;
    let pointwise = Conv2d::new([1, 1], [[0; 2]; 2]);
    let y = biased(p, pointwise, x, [1, 1, channels, mid])?;
    let y = swish(p, y)?;
    let kernel = [3, 5][d.int(0, 1)];
    let depthwise = Conv2d { groups: mid, ..Conv2d::new([1, 1], [[kernel / 2; 2]; 2]) };
    let y = biased(p, depthwise, y, [kernel, kernel, 1, mid])?;
    let y = swish(p, y)?;
    let pooled = p.graph.mean(y, &[1, 2])?;
    let pooled = p.graph.reshape(pooled, [n, 1, 1, mid])?;
    let gate = biased(p, pointwise, pooled, [1, 1, mid, squeezed])?;
    let gate = swish(p, gate)?;
    let gate = biased(p, pointwise, gate, [1, 1, squeezed, mid])?;
    let gate = p.graph.unary(UnaryKind::Sigmoid, gate)?;
    let y = p.graph.mul(y, gate)?;
    let y = biased(p, pointwise, y, [1, 1, mid, channels])?;
    p.graph.add(y, x)
}

/// A depthwise convolution that computes its input, with a fusion behind it.
pub(super) fn conv_then_depthwise(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (channels, mid) = (d.int(1, 20), 8 * d.int(2, 9) + d.int(0, 1));
    let feed = |p: &mut Problem, name: &str, shape: &[usize]| p.feed(name, DType::F32, shape, Input::Normal);
    let x = feed(p, "x", &[d.int(1, 2), d.int(9, 40), d.int(9, 60), channels])?;
    let same = |kernel: usize, stride: usize| Conv2d::new([stride; 2], [[(kernel - 1) / 2, kernel / 2]; 2]);
    let [kernel, second] = [[1, 3][d.int(0, 1)], [3, 5][d.int(0, 1)]];
    let (first, depthwise) = (same(kernel, d.int(1, 2)), Conv2d { groups: mid, ..same(second, d.int(1, 2)) });
    let activation = [Activation::None, Activation::Relu, Activation::Swish][d.int(0, 2)];
    let mut scaled = |name: &str, shape: [usize; 4]| {
        let w = feed(p, name, &shape)?;
        p.graph.mul_scalar(w, 1.0 / (shape[..3].iter().product::<usize>() as f64).sqrt())
    };
    let (w, v) = (scaled("w", [kernel, kernel, channels, mid])?, scaled("v", [second, second, 1, mid])?);
    let (bias, last_bias) = (feed(p, "bias", &[mid])?, feed(p, "last bias", &[mid])?);
    let y = p.graph.push1(ConvThenDepthwise { first, activation, depthwise }, &[x, w, v, bias])?;
    let y = p.graph.add(y, last_bias)?;
    let y = swish(p, y)?;
    if d.int(0, 1) == 0 {
        return Ok(y);
    }
    let [n, ..] = p.graph.shape(y).dims() else { unreachable!("it is of images") };
    let shape = [*n, 1, 1, mid];
    let mean = p.graph.mean(y, &[1, 2])?;
    let mean = p.graph.reshape(mean, shape)?;
    p.graph.mul(y, mean)
}

/// A convolution with a bias, whose results are about as large as its input: functions of large ones would magnify roundings.
fn biased(p: &mut Problem, conv: Conv2d, x: Value, weights: [usize; 4]) -> Result<Value, GraphError> {
    let (w, bias) = (p.input(&weights)?, p.input(&weights[3..])?);
    let w = p.graph.mul_scalar(w, 1.0 / (weights[..3].iter().product::<usize>() as f64).sqrt())?;
    let y = p.graph.push1(conv, &[x, w])?;
    p.graph.add(y, bias)
}

fn swish(p: &mut Problem, x: Value) -> Result<Value, GraphError> {
    let sigmoid = p.graph.unary(UnaryKind::Sigmoid, x)?;
    p.graph.mul(x, sigmoid)
}

pub(super) fn grouped(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (h, w, groups) = (d.int(11, 14), d.int(11, 14), d.int(2, 6));
    let (cin, cout) = (d.int(1, 9), d.int(1, 20));
    let ([kh, kw], conv) = window(d, h, w);
    let x = p.input(&[d.int(1, 2), h, w, groups * cin])?;
    let weights = p.input(&[kh, kw, cin, groups * cout])?;
    let y = p.graph.push1(Conv2d { groups, ..conv }, &[x, weights])?;
    p.graph.relu(y)
}

/// Large enough for Winograd's algorithm in all three directions, with sums before and behind.
pub(super) fn conv_by_winograd(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (cin, mid) = (d.int(16, 36), d.int(16, 36));
    let x = p.input(&[d.int(2, 4), d.int(12, 19), d.int(12, 19), cin])?;
    let (first, second) = (p.input(&[3, 3, cin, mid])?, p.input(&[3, 3, mid, d.int(16, 20)])?);
    let conv = Conv2d::new([1, 1], [[d.int(0, 2), 1], [1, d.int(0, 2)]]);
    let y = p.graph.push1(conv, &[x, first])?;
    let y = batch_norm(p, y)?;
    let y = p.graph.relu(y)?;
    p.graph.push1(conv, &[y, second])
}

pub(super) fn norm_shortcut(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let shape = [d.int(1, 4), d.int(2, 9), d.int(2, 9), d.int(1, 70)];
    let (x, shortcut) = (p.input(&shape)?, p.input(&shape)?);
    let y = batch_norm(p, x)?;
    let sum = p.graph.add(y, shortcut)?;
    p.graph.relu(sum)
}

pub(super) fn global_average(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let x = p.input(&[d.int(1, 5), d.int(1, 9), d.int(1, 9), d.int(1, 70)])?;
    let y = p.graph.relu(x)?;
    p.graph.mean(y, &[1, 2])
}
