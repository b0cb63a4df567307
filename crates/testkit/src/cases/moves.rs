//! Pooling, and operations that move elements.

use crate::problem::{Draw, Input, Problem};
use bessemer_ir::ops::collective::{AllReduce, AllReduceStart, AllReduceWait, Wire};
use bessemer_ir::ops::conv::Conv2d;
use bessemer_ir::ops::index::{Gather, ScatterAdd};
use bessemer_ir::ops::matmul::Matmul;
use bessemer_ir::ops::pool::{AvgPool2d, MaxPool2d};
use bessemer_ir::ops::reduce::ReduceKind;
use bessemer_ir::{DType, GraphError, TensorType, Value};

/// Input, window, stride and padding of a pooling.
type Pooled = (Value, [usize; 2], [usize; 2], [[usize; 2]; 2]);

pub(super) fn slice_pad(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let shape = [d.int(1, 3), d.int(4, 9), d.int(4, 9), d.int(1, 20)];
    let x = p.input(&shape)?;
    let y = p.graph.slice(x, &[0, 1, 0, 0], &shape, &[1, 2, 2, 1])?;
    p.graph.pad(y, &[0, 0, d.int(0, 2), d.int(0, 9)], &[0, 1, 0, d.int(0, 9)])
}

pub(super) fn transpose_concat(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (a, b, c, e) = (d.int(1, 5), d.int(1, 17), d.int(1, 19), d.int(1, 9));
    let (x, y) = (p.input(&[a, b, c])?, p.input(&[a, c, e])?);
    let turned = p.graph.transpose(x, &[0, 2, 1])?;
    p.graph.concat(&[turned, y], 2)
}

/// Parts that lie where the whole is, in a nested concatenation; one of them is read afterwards as well, while the whole is overwritten.
pub(super) fn concat_of_products(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (inner, cols) = (d.int(1, 30), 64 * d.int(1, 2));
    let w = p.input(&[inner, cols])?;
    let mut parts = Vec::new();
    for _ in 0..3 {
        let x = p.input(&[d.int(1, 12), inner])?;
        let product = p.graph.push1(Matmul { trans_a: false, trans_b: false }, &[x, w])?;
        parts.push(p.graph.mul_scalar(product, 0.5)?);
    }
    let pair = p.graph.concat(&parts[..2], 0)?;
    let whole = p.graph.concat(&[pair, parts[2]], 0)?;
    let doubled = p.graph.mul_scalar(whole, 2.0)?;
    let top = p.graph.reduce(ReduceKind::Max, parts[1], &[0], false)?;
    p.graph.add(doubled, top)
}

pub(super) fn gather(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let table = p.input(&[d.int(8, 40), d.int(1, 70)])?;
    let rows = p.indices("rows", &[d.int(1, 30)])?;
    p.graph.push1(Gather::ROWS, &[table, rows])
}

/// Of tables that share leading axes with the indices, along an axis behind others.
pub(super) fn gather_along_axis(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (batch, outer) = (d.int(0, 2), d.int(0, 1));
    let sizes = [d.int(1, 4), d.int(1, 3), d.int(1, 5)];
    let (inner, items) = (d.int(1, 20), d.int(1, 30));
    let axes = &sizes[..batch + outer];
    let table = p.input(&[axes, &[d.int(8, 20), inner]].concat())?;
    let rows = p.indices("rows", &[&sizes[..batch], &[items]].concat())?;
    p.graph.gather(table, rows, batch, batch + outer)
}

pub(super) fn upsample(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let x = p.input(&[d.int(1, 3), d.int(1, 9), d.int(1, 9), d.int(1, 40)])?;
    p.graph.upsample(x, [d.int(1, 3), d.int(1, 3)])
}

/// Between arithmetic, and read by a convolution, as in a feature pyramid.
pub(super) fn upsample_in_pyramid(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (n, h, w, c) = (d.int(1, 2), d.int(2, 6), d.int(2, 6), d.int(1, 40));
    let (coarse, fine) = (p.input(&[n, h, w, c])?, p.input(&[n, 2 * h, 2 * w, c])?);
    let weights = p.input(&[1, 1, c, d.int(1, 30)])?;
    let coarse = p.graph.mul_scalar(coarse, 0.75)?;
    let up = p.graph.upsample(coarse, [2, 2])?;
    let sum = p.graph.add(up, fine)?;
    p.graph.push1(Conv2d::new([1, 1], [[0; 2]; 2]), &[sum, weights])
}

fn pooled(p: &mut Problem, d: &mut Draw) -> Result<Pooled, GraphError> {
    let window = [d.int(1, 4), d.int(1, 4)];
    let stride = [d.int(1, 3), d.int(1, 3)];
    let pad = window.map(|w| [d.int(0, w - 1), d.int(0, w - 1)]);
    let x = p.input(&[d.int(1, 3), d.int(4, 13), d.int(4, 13), d.int(1, 40)])?;
    Ok((x, window, stride, pad))
}

pub(super) fn max_pool(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (x, window, stride, pad) = pooled(p, d)?;
    p.graph.push1(MaxPool2d { window, stride, pad }, &[x])
}

pub(super) fn avg_pool(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (x, window, stride, pad) = pooled(p, d)?;
    p.graph.push1(AvgPool2d { window, stride, pad, count_include_pad: d.flip() }, &[x])
}

/// A table of more rows than one task has, of which some are added to many times.
pub(super) fn scatter_add(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (rows, width, count) = (d.int(300, 3000), d.int(1, 70), d.int(1, 90));
    let updates = p.input(&[count, width])?;
    let indices = p.feed("indices", DType::I32, &[count], Input::Integers { first: 270, count: 30 })?;
    p.graph.push1(ScatterAdd::to_rows(rows), &[updates, indices])
}

/// A convolution of several groups whose operands are of 16 bits.
pub(super) fn grouped_16(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let dtype = [DType::Bf16, DType::F16][d.int(0, 1)];
    let groups = d.int(2, 4);
    let x = p.feed("x", dtype, &[1, 6, 7, groups], Input::Normal)?;
    let w = p.feed("w", dtype, &[3, 3, 1, 2 * groups], Input::Normal)?;
    p.graph.push1(Conv2d { groups, ..Conv2d::new([1, 1], [[1, 1], [1, 1]]) }, &[x, w])
}

/// Of a rank that is alone.
const SUM: AllReduce = AllReduce { ranks: 1, wire: Wire::F32 };

/// Two tensors in one sum, of which one is scaled before.
pub(super) fn all_reduce(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let shape = [d.int(1, 9), d.int(1, 40)];
    let (x, y) = (p.input(&shape)?, p.input(&shape)?);
    let scaled = p.graph.mul_scalar(x, 0.5)?;
    let sums = p.graph.push(SUM, &[scaled, y])?;
    p.graph.add(sums[0], sums[1])
}

/// The same in the form that the compiler gives it.
pub(super) fn all_reduce_in_two(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let types = [0, 1].map(|_| TensorType::f32([d.int(1, 9), d.int(1, 40)]));
    let x = p.feed("x", DType::F32, types[0].shape.dims(), Input::Normal)?;
    let y = p.feed("y", DType::F32, types[1].shape.dims(), Input::Normal)?;
    let number = p.graph.push1(AllReduceStart { op: SUM }, &[x, y])?;
    let sums = p.graph.push(AllReduceWait { types: types.to_vec() }, &[number])?;
    let sums = [p.graph.sum(sums[0], &[0, 1])?, p.graph.sum(sums[1], &[0, 1])?];
    p.graph.add(sums[0], sums[1])
}
