//! Methods of the graph that add one operation each: the vocabulary in which layers and models are written. All of them fail
//! as [`Graph::push`] does.

use crate::dtype::DType;
use crate::graph::{Graph, GraphError, Value};
use crate::ops::index::{Gather, TopK};
use crate::ops::layout::{Broadcast, Concat, Pad, Reshape, Slice, Transpose};
use crate::ops::pointwise::{Binary, BinaryKind, Cast, Select, Unary, UnaryKind};
use crate::ops::pool::Upsample;
use crate::ops::reduce::{MeanVar, Reduce, ReduceKind};
use crate::ops::source::Constant;
use crate::ops::{Scalar, softmax};
use crate::shape::Shape;

type Result<T> = std::result::Result<T, GraphError>;

impl Graph {
    /// A tensor of which every element is `value`.
    pub fn constant(&mut self, dtype: DType, shape: impl Into<Shape>, value: f64) -> Result<Value> {
        self.push1(Constant::splat(dtype, shape, value), &[])
    }

    /// A scalar of the element type of `x`.
    pub fn constant_like(&mut self, x: Value, value: f64) -> Result<Value> {
        self.constant(self.dtype(x), Shape::scalar(), value)
    }

    /// A constant vector, `f32[n]`.
    pub fn constant_vector(&mut self, data: &[f64]) -> Result<Value> {
        let data = data.iter().map(|&x| Scalar(x)).collect::<Vec<_>>();
        self.push1(Constant { dtype: DType::F32, shape: [data.len()].into(), data }, &[])
    }

    /// Applies `kind` to every element of a float tensor.
    pub fn unary(&mut self, kind: UnaryKind, x: Value) -> Result<Value> {
        self.push1(Unary(kind), &[x])
    }

    /// Combines two tensors of one element type, broadcast to their common shape; comparisons give `bool`.
    pub fn binary(&mut self, kind: BinaryKind, a: Value, b: Value) -> Result<Value> {
        self.push1(Binary(kind), &[a, b])
    }

    /// `-x`
    pub fn neg(&mut self, x: Value) -> Result<Value> {
        self.unary(UnaryKind::Neg, x)
    }

    /// `max(x, 0)`; NaN stays NaN.
    pub fn relu(&mut self, x: Value) -> Result<Value> {
        self.unary(UnaryKind::Relu, x)
    }

    /// `x * x`
    pub fn square(&mut self, x: Value) -> Result<Value> {
        self.unary(UnaryKind::Square, x)
    }

    /// `1 / sqrt(x)`
    pub fn rsqrt(&mut self, x: Value) -> Result<Value> {
        self.unary(UnaryKind::Rsqrt, x)
    }

    /// `a + b`, broadcast to their common shape.
    pub fn add(&mut self, a: Value, b: Value) -> Result<Value> {
        self.binary(BinaryKind::Add, a, b)
    }

    /// `a - b`, broadcast to their common shape.
    pub fn sub(&mut self, a: Value, b: Value) -> Result<Value> {
        self.binary(BinaryKind::Sub, a, b)
    }

    /// `a * b`, broadcast to their common shape.
    pub fn mul(&mut self, a: Value, b: Value) -> Result<Value> {
        self.binary(BinaryKind::Mul, a, b)
    }

    /// `a / b`, broadcast to their common shape.
    pub fn div(&mut self, a: Value, b: Value) -> Result<Value> {
        self.binary(BinaryKind::Div, a, b)
    }

    /// `factor * x`
    pub fn mul_scalar(&mut self, x: Value, factor: f64) -> Result<Value> {
        let factor = self.constant_like(x, factor)?;
        self.mul(x, factor)
    }

    /// `x + offset`
    pub fn add_scalar(&mut self, x: Value, offset: f64) -> Result<Value> {
        let offset = self.constant_like(x, offset)?;
        self.add(x, offset)
    }

    /// `condition ? a : b`
    pub fn select(&mut self, condition: Value, a: Value, b: Value) -> Result<Value> {
        self.push1(Select, &[condition, a, b])
    }

    /// Converts to element type `to`; adds no node if `x` has it already.
    pub fn cast(&mut self, x: Value, to: DType) -> Result<Value> {
        if self.dtype(x) == to { Ok(x) } else { self.push1(Cast { to }, &[x]) }
    }

    /// The same elements in row-major order, in another shape; adds no node if `x` has that shape already.
    pub fn reshape(&mut self, x: Value, shape: impl Into<Shape>) -> Result<Value> {
        let shape = shape.into();
        if *self.shape(x) == shape { Ok(x) } else { self.push1(Reshape { shape }, &[x]) }
    }

    /// NumPy broadcasting to `shape`; adds no node if `x` has that shape already.
    pub fn broadcast(&mut self, x: Value, shape: &Shape) -> Result<Value> {
        if self.shape(x) == shape { Ok(x) } else { self.push1(Broadcast { shape: shape.clone() }, &[x]) }
    }

    /// Axis `i` of the result is axis `perm[i]` of `x`.
    pub fn transpose(&mut self, x: Value, perm: &[usize]) -> Result<Value> {
        self.push1(Transpose { perm: perm.to_vec() }, &[x])
    }

    /// Elements `start, start + step, ...` below `stop`, along each axis.
    pub fn slice(&mut self, x: Value, start: &[usize], stop: &[usize], step: &[usize]) -> Result<Value> {
        self.push1(Slice { start: start.to_vec(), stop: stop.to_vec(), step: step.to_vec() }, &[x])
    }

    /// Zeros before and after each axis.
    pub fn pad(&mut self, x: Value, low: &[usize], high: &[usize]) -> Result<Value> {
        let interior = vec![0; low.len()];
        self.push1(Pad { low: low.to_vec(), high: high.to_vec(), interior }, &[x])
    }

    /// Each pixel of `[N, H, W, C]` repeated `factors` times along height and width.
    pub fn upsample(&mut self, x: Value, factors: [usize; 2]) -> Result<Value> {
        self.push1(Upsample { factors }, &[x])
    }

    /// Elements of `table` along `axis`, chosen by `i32` indices that share its first `batch` axes.
    pub fn gather(&mut self, table: Value, indices: Value, batch: usize, axis: usize) -> Result<Value> {
        self.push1(Gather { batch, axis }, &[table, indices])
    }

    /// The `k` largest elements over the innermost axis, or the innermost two: values, then positions along each of these axes.
    pub fn top_k(&mut self, x: Value, k: usize, axes: usize) -> Result<Vec<Value>> {
        self.push(TopK { k, axes }, &[x])
    }

    /// Joins tensors of one element type along `axis`; all other axes must be equal.
    pub fn concat(&mut self, parts: &[Value], axis: usize) -> Result<Value> {
        self.push1(Concat { axis }, parts)
    }

    /// Reduces `axes` to size 1 each, or removes them.
    pub fn reduce(&mut self, kind: ReduceKind, x: Value, axes: &[usize], keep_dims: bool) -> Result<Value> {
        self.push1(Reduce { kind, axes: axes.to_vec(), keep_dims }, &[x])
    }

    /// Sum over `axes`, which are removed.
    pub fn sum(&mut self, x: Value, axes: &[usize]) -> Result<Value> {
        self.reduce(ReduceKind::Sum, x, axes, false)
    }

    /// Mean over `axes`, which are removed.
    pub fn mean(&mut self, x: Value, axes: &[usize]) -> Result<Value> {
        let count: usize = axes.iter().map(|&axis| self.shape(x)[axis]).product();
        let sum = self.sum(x, axes)?;
        self.mul_scalar(sum, 1.0 / count as f64)
    }

    /// Mean and biased variance over `axes`, which are removed.
    pub fn moments(&mut self, x: Value, axes: &[usize]) -> Result<(Value, Value)> {
        let outputs = self.push(MeanVar { axes: axes.to_vec() }, &[x])?;
        Ok((outputs[0], outputs[1]))
    }

    /// Softmax over the innermost axis.
    pub fn softmax(&mut self, x: Value) -> Result<Value> {
        self.push1(softmax::Softmax, &[x])
    }

    /// Logarithm of the softmax over the innermost axis.
    pub fn log_softmax(&mut self, x: Value) -> Result<Value> {
        self.push1(softmax::LogSoftmax, &[x])
    }

    /// Undoes broadcasting: sums `x` over the axes along which `shape` was expanded.
    pub fn sum_to(&mut self, x: Value, shape: &Shape) -> Result<Value> {
        if self.shape(x) == shape {
            return Ok(x);
        }
        let from = self.shape(x).clone();
        let missing = from.rank() - shape.rank();
        let axes: Vec<usize> =
            (0..from.rank()).filter(|&a| a < missing || (shape[a - missing] == 1 && from[a] != 1)).collect();
        let sum = if axes.is_empty() { x } else { self.sum(x, &axes)? };
        self.reshape(sum, shape.clone())
    }
}
