//! Reductions over axes.

use super::pointwise::{Binary, BinaryKind, Unary, UnaryKind};
use super::{Cost, FusedOp, GradArgs, Gradient, Op, OpError, OpRule, RecomputeCost, RowSum, float_inputs};
use crate::dtype::DType;
use crate::graph::{Graph, GraphError, Value};
use crate::reference::{Tensor, broadcast_index};
use crate::shape::{Shape, TensorType};

/// How the elements of a reduction are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceKind {
    /// Sum of the elements; 0 for none.
    Sum,
    /// Largest element; NaN if one is NaN.
    Max,
    /// Smallest element; NaN if one is NaN.
    Min,
}

impl ReduceKind {
    /// All reductions, each once.
    pub const ALL: [ReduceKind; 3] = [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min];

    /// As printed.
    pub fn name(self) -> &'static str {
        match self {
            ReduceKind::Sum => "sum",
            ReduceKind::Max => "max",
            ReduceKind::Min => "min",
        }
    }

    /// The result for no elements.
    pub fn identity(self) -> f64 {
        match self {
            ReduceKind::Sum => 0.0,
            ReduceKind::Max => f64::NEG_INFINITY,
            ReduceKind::Min => f64::INFINITY,
        }
    }

    /// A NaN on either side gives NaN.
    pub fn combine(self, a: f64, b: f64) -> f64 {
        match self {
            ReduceKind::Sum => a + b,
            ReduceKind::Max if b > a || b.is_nan() => b,
            ReduceKind::Min if b < a || b.is_nan() => b,
            ReduceKind::Max | ReduceKind::Min => a,
        }
    }
}

/// Reduction of a number tensor over ascending `axes`, which are removed or kept with size 1. NaN propagates.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reduce {
    /// How two elements are combined.
    pub kind: ReduceKind,
    /// The axes that are reduced, in ascending order.
    pub axes: Vec<usize>,
    /// Whether reduced axes stay, with size 1.
    pub keep_dims: bool,
}

/// `shape` with `axes` of size 1.
fn kept(shape: &Shape, axes: &[usize]) -> Shape {
    let size = |axis| if axes.contains(&axis) { 1 } else { shape[axis] };
    (0..shape.rank()).map(size).collect::<Vec<_>>().into()
}

/// `shape` without `axes`.
fn removed(shape: &Shape, axes: &[usize]) -> Shape {
    (0..shape.rank()).filter(|axis| !axes.contains(axis)).map(|axis| shape[axis]).collect::<Vec<_>>().into()
}

fn check_axes(shape: &Shape, axes: &[usize]) -> Result<(), OpError> {
    if !axes.is_sorted_by(|a, b| a < b) {
        return Err(OpError::Attribute(format!("the axes {axes:?} must be ascending")));
    }
    match axes.last() {
        Some(&axis) if axis >= shape.rank() => Err(OpError::NoSuchAxis { axis, rank: shape.rank() }),
        _ => Ok(()),
    }
}

fn check_not_empty(shape: &Shape, axes: &[usize]) -> Result<(), OpError> {
    match axes.iter().find(|&&axis| shape[axis] == 0) {
        Some(&axis) => Err(OpError::EmptyAxis { axis, shape: shape.clone() }),
        None => Ok(()),
    }
}

/// Combines the elements that fall on the same position once `axes` are reduced; `f` sees that position and an element.
fn fold(x: &Tensor, axes: &[usize], kind: ReduceKind, f: impl Fn(usize, f64) -> f64) -> Vec<f64> {
    let kept = kept(&x.ty.shape, axes);
    let mut result = vec![kind.identity(); kept.elements()];
    for (i, &element) in x.data.iter().enumerate() {
        let position = broadcast_index(&kept, &x.ty.shape, i);
        result[position] = kind.combine(result[position], f(position, element));
    }
    result
}

/// Whether the axes are the innermost one alone, of several.
pub(crate) fn is_along_rows(shape: &Shape, axes: &[usize]) -> bool {
    shape.rank() >= 2 && axes == [shape.rank() - 1]
}

/// Runs of consecutive rows that a reduction of an `f32` tensor sums one by one: over all row axes but leading ones, and not
/// over columns.
fn row_groups(x: &TensorType, axes: &[usize]) -> Option<usize> {
    let rank = x.shape.rank();
    if x.dtype != DType::F32 || rank < 2 || axes.is_empty() {
        return None;
    }
    let is_trailing = axes.iter().copied().eq(rank - 1 - axes.len().min(rank - 1)..rank - 1);
    is_trailing.then(|| x.shape[..rank - 1 - axes.len()].iter().product())
}

/// Whether `value`, broadcast to `rank` axes, has size 1 along all of `axes`.
fn is_fixed_along(g: &Graph, value: Value, rank: usize, axes: &[usize]) -> bool {
    let shape = g.shape(value);
    let missing = rank - shape.rank();
    axes.iter().all(|&axis| axis < missing || shape[axis - missing] == 1)
}

impl Reduce {
    /// `value`, which broadcasts to `rank` axes, with the axes removed that the reduction removes.
    fn without_axes(&self, g: &mut Graph, value: Value, rank: usize) -> Result<Value, GraphError> {
        if self.keep_dims {
            return Ok(value);
        }
        let shape = g.shape(value).clone();
        let missing = rank - shape.rank();
        let kept: Vec<usize> =
            (missing..rank).filter(|axis| !self.axes.contains(axis)).map(|axis| shape[axis - missing]).collect();
        g.reshape(value, kept)
    }
}

impl OpRule for Reduce {
    fn name(&self) -> &'static str {
        match self.kind {
            ReduceKind::Sum => "reduce_sum",
            ReduceKind::Max => "reduce_max",
            ReduceKind::Min => "reduce_min",
        }
    }

    fn attributes(&self) -> String {
        format!("axes={:?}{}", self.axes, if self.keep_dims { ", keep_dims" } else { "" })
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [x] = inputs else { return Err(OpError::operands("one tensor")) };
        if x.dtype == DType::Bool {
            return Err(OpError::operands("a tensor of numbers"));
        }
        check_axes(&x.shape, &self.axes)?;
        if self.kind != ReduceKind::Sum {
            check_not_empty(&x.shape, &self.axes)?;
        }
        let shape = if self.keep_dims { kept(&x.shape, &self.axes) } else { removed(&x.shape, &self.axes) };
        Ok(vec![TensorType::new(x.dtype, shape)])
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        let Some(dy) = args.grads[0] else { return Ok(Gradient::Inputs(vec![None])) };
        let (x, y) = (args.inputs[0], args.outputs[0]);
        let shape = g.shape(x).clone();
        let kept = kept(&shape, &self.axes);
        let dy = g.reshape(dy, kept.clone())?;
        if self.kind == ReduceKind::Sum {
            return Ok(Gradient::Inputs(vec![Some(g.broadcast(dy, &shape)?)]));
        }
        let y = g.reshape(y, kept)?;
        let chosen = g.binary(BinaryKind::Eq, x, y)?;
        let chosen = g.cast(chosen, g.dtype(x))?;
        let ties = g.reduce(ReduceKind::Sum, chosen, &self.axes, true)?;
        let share = g.div(dy, ties)?;
        Ok(Gradient::Inputs(vec![Some(g.mul(chosen, share)?)]))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(inputs[0].shape.elements() as u64, inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        vec![Tensor::new(outputs[0].clone(), fold(inputs[0], &self.axes, self.kind, |_, x| x))]
    }

    fn fused(&self, inputs: &[&TensorType]) -> Option<FusedOp> {
        let x = inputs[0];
        let is_of_rows = self.keep_dims && x.dtype == DType::F32 && is_along_rows(&x.shape, &self.axes);
        is_of_rows.then_some(FusedOp::RowReduce(self.kind))
    }

    fn row_sum(&self, inputs: &[&TensorType]) -> Option<RowSum> {
        let groups = row_groups(inputs[0], &self.axes).filter(|_| self.kind == ReduceKind::Sum)?;
        Some(RowSum::Sum { groups })
    }

    fn recompute_cost(&self) -> RecomputeCost {
        RecomputeCost::Pass
    }

    fn folds_constants(&self) -> bool {
        true
    }

    /// `sum(-x) = -sum(x)` and `sum(x * v) = sum(x) * v` where `v` does not vary along the axes summed.
    fn simplify(&self, g: &mut Graph, inputs: &[Value]) -> Result<Option<Value>, GraphError> {
        let x = inputs[0];
        if self.kind != ReduceKind::Sum || g.dtype(x) != DType::F32 {
            return Ok(None);
        }
        let node = g.node(x.node).clone();
        match node.op {
            Op::Unary(Unary(UnaryKind::Neg)) => {
                let sum = g.push1(self.clone(), &[node.inputs[0]])?;
                g.neg(sum).map(Some)
            }
            Op::Binary(Binary(kind @ (BinaryKind::Mul | BinaryKind::Div))) => {
                let (a, b) = (node.inputs[0], node.inputs[1]);
                let order: &[(Value, Value)] = if kind == BinaryKind::Mul { &[(a, b), (b, a)] } else { &[(a, b)] };
                for &(varying, fixed) in order {
                    if g.shape(varying) == g.shape(x) && is_fixed_along(g, fixed, g.shape(x).rank(), &self.axes) {
                        let sum = g.push1(self.clone(), &[varying])?;
                        let factor = self.without_axes(g, fixed, g.shape(x).rank())?;
                        return g.binary(kind, sum, factor).map(Some);
                    }
                }
                Ok(None)
            }
            _ => Ok(None),
        }
    }
}

/// Mean and biased variance of a float tensor over ascending `axes`, which are removed: two outputs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MeanVar {
    /// The axes that are reduced, in ascending order.
    pub axes: Vec<usize>,
}

impl MeanVar {
    /// Number of elements that make one mean.
    pub fn count(&self, x: &Shape) -> usize {
        self.axes.iter().map(|&axis| x[axis]).product()
    }

    /// `2 * dvar * (x - mean)`, the variance's share of `count * dx`.
    fn of_variance(&self, g: &mut Graph, args: &GradArgs<'_>, dvar: Value) -> Result<Value, GraphError> {
        let (x, mean) = (args.inputs[0], args.outputs[0]);
        let kept = kept(g.shape(x), &self.axes);
        let mean = g.reshape(mean, kept.clone())?;
        let centred = g.sub(x, mean)?;
        let double = g.mul_scalar(dvar, 2.0)?;
        let double = g.reshape(double, kept)?;
        g.mul(centred, double)
    }
}

impl OpRule for MeanVar {
    fn name(&self) -> &'static str {
        "moments"
    }

    fn attributes(&self) -> String {
        format!("axes={:?}", self.axes)
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [x] = float_inputs(inputs, "one tensor")?;
        check_axes(&x.shape, &self.axes)?;
        check_not_empty(&x.shape, &self.axes)?;
        Ok(vec![TensorType::new(x.dtype, removed(&x.shape, &self.axes)); 2])
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        let shape = g.shape(args.inputs[0]).clone();
        let share = 1.0 / self.count(&shape) as f64;
        let mut dx = None;
        if let Some(dmean) = args.grads[0] {
            let scaled = g.mul_scalar(dmean, share)?;
            dx = Some(g.reshape(scaled, kept(&shape, &self.axes))?);
        }
        if let Some(dvar) = args.grads[1] {
            let scaled = g.mul_scalar(dvar, share)?;
            let term = self.of_variance(g, args, scaled)?;
            dx = Some(match dx {
                Some(other) => g.add(term, other)?,
                None => term,
            });
        }
        let dx = dx.map(|dx| g.broadcast(dx, &shape)).transpose()?;
        Ok(Gradient::Inputs(vec![dx]))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(4 * inputs[0].shape.elements() as u64, inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let x = inputs[0];
        let count = self.count(&x.ty.shape) as f64;
        let mean: Vec<f64> = fold(x, &self.axes, ReduceKind::Sum, |_, x| x).iter().map(|s| s / count).collect();
        let squares = fold(x, &self.axes, ReduceKind::Sum, |position, x| (x - mean[position]).powi(2));
        let variance = squares.iter().map(|s| s / count).collect();
        vec![Tensor::new(outputs[0].clone(), mean), Tensor::new(outputs[1].clone(), variance)]
    }

    fn row_sum(&self, inputs: &[&TensorType]) -> Option<RowSum> {
        row_groups(inputs[0], &self.axes).filter(|&groups| groups == 1).map(|_| RowSum::MeanVar)
    }
}
