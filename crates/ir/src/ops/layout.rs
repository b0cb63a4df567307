//! Operations that move elements and change none.

use super::{Cost, GradArgs, Gradient, MixedPrecision, Op, OpError, OpRule, Storage};
use crate::graph::{Graph, GraphError, Value};
use crate::reference::Tensor;
use crate::rules::Rules;
use crate::shape::{Shape, TensorType};

fn one<'a>(inputs: &[&'a TensorType]) -> Result<&'a TensorType, OpError> {
    match inputs {
        [x] => Ok(x),
        _ => Err(OpError::operands("one tensor")),
    }
}

fn check_rank(what: &str, list: &[usize], rank: usize) -> Result<(), OpError> {
    match list.len() == rank {
        true => Ok(()),
        false => Err(OpError::Attribute(format!("{what} has {} entries, the input has {rank} axes", list.len()))),
    }
}

/// Position, by `strides`, of the element at row-major position `index` of `shape`.
fn position(shape: &Shape, mut index: usize, strides: &[usize]) -> usize {
    let mut position = 0;
    for (&size, stride) in shape.iter().zip(strides).rev() {
        position += index % size * stride;
        index /= size;
    }
    position
}

fn dot(a: &[usize], b: &[usize]) -> usize {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// The same elements in row-major order, in another shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reshape {
    /// Shape of the output; it has as many elements as the input.
    pub shape: Shape,
}

impl OpRule for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }

    fn attributes(&self) -> String {
        self.shape.to_string()
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let x = one(inputs)?;
        let (from, to) = (x.shape.elements(), self.shape.elements());
        if from != to {
            return Err(OpError::Sizes(format!("the input has {from} elements, {} has {to}", self.shape)));
        }
        Ok(vec![TensorType::new(x.dtype, self.shape.clone())])
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        let Some(dy) = args.grads[0] else { return Ok(Gradient::Inputs(vec![None])) };
        let shape = g.shape(args.inputs[0]).clone();
        Ok(Gradient::Inputs(vec![Some(g.reshape(dy, shape)?)]))
    }

    fn cost(&self, _inputs: &[&TensorType], _outputs: &[TensorType]) -> Cost {
        Cost::default()
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        vec![Tensor::new(outputs[0].clone(), inputs[0].data.clone())]
    }

    fn storage(&self) -> Storage {
        Storage::View
    }

    fn mixed_precision(&self, _rules: &Rules) -> MixedPrecision {
        MixedPrecision::MOVES
    }

    fn folds_constants(&self) -> bool {
        true
    }

    /// `x` if it has the shape already; what `x` is another shape of, in this one.
    fn simplify(&self, g: &mut Graph, inputs: &[Value]) -> Result<Option<Value>, GraphError> {
        if *g.shape(inputs[0]) == self.shape {
            return Ok(Some(inputs[0]));
        }
        let inner = g.node(inputs[0].node);
        match (&inner.op, inner.inputs.first().copied()) {
            (Op::Reshape(_), Some(innermost)) => g.reshape(innermost, self.shape.clone()).map(Some),
            _ => Ok(None),
        }
    }
}

/// NumPy broadcasting to a shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Broadcast {
    /// Shape of the output.
    pub shape: Shape,
}

impl OpRule for Broadcast {
    fn name(&self) -> &'static str {
        "broadcast"
    }

    fn attributes(&self) -> String {
        self.shape.to_string()
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let x = one(inputs)?;
        if !x.shape.broadcasts_to(&self.shape) {
            return Err(OpError::BroadcastTo { from: x.shape.clone(), to: self.shape.clone() });
        }
        Ok(vec![TensorType::new(x.dtype, self.shape.clone())])
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        let Some(dy) = args.grads[0] else { return Ok(Gradient::Inputs(vec![None])) };
        let shape = g.shape(args.inputs[0]).clone();
        Ok(Gradient::Inputs(vec![Some(g.sum_to(dy, &shape)?)]))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(0, inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let x = inputs[0];
        vec![Tensor::from_fn(outputs[0].clone(), |i| x.data[x.broadcast_index(&self.shape, i)])]
    }

    fn folds_constants(&self) -> bool {
        true
    }
}

/// Axis `i` of the output is axis `perm[i]` of the input.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Transpose {
    /// A permutation of the input's axes.
    pub perm: Vec<usize>,
}

impl Transpose {
    /// The transposition that undoes this one.
    pub fn inverse(&self) -> Transpose {
        let mut perm = vec![0; self.perm.len()];
        for (to, &from) in self.perm.iter().enumerate() {
            perm[from] = to;
        }
        Transpose { perm }
    }
}

impl OpRule for Transpose {
    fn name(&self) -> &'static str {
        "transpose"
    }

    fn attributes(&self) -> String {
        format!("{:?}", self.perm)
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let x = one(inputs)?;
        let mut sorted = self.perm.clone();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..x.shape.rank()) {
            let problem = format!("{:?} is not an order of {} axes", self.perm, x.shape.rank());
            return Err(OpError::Attribute(problem));
        }
        let dims: Vec<usize> = self.perm.iter().map(|&axis| x.shape[axis]).collect();
        Ok(vec![TensorType::new(x.dtype, dims)])
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        let Some(dy) = args.grads[0] else { return Ok(Gradient::Inputs(vec![None])) };
        Ok(Gradient::Inputs(vec![Some(g.push1(self.inverse(), &[dy])?)]))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(0, inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let x = inputs[0];
        let strides = x.ty.shape.strides();
        let permuted: Vec<usize> = self.perm.iter().map(|&axis| strides[axis]).collect();
        let shape = &outputs[0].shape;
        vec![Tensor::from_fn(outputs[0].clone(), |i| x.data[position(shape, i, &permuted)])]
    }

    fn mixed_precision(&self, _rules: &Rules) -> MixedPrecision {
        MixedPrecision::MOVES
    }
}

/// Elements `start, start + step, ...` below `stop` along each axis; at least one of each.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    /// First element along each axis.
    pub start: Vec<usize>,
    /// End of the range along each axis, exclusive; at most the size of the axis.
    pub stop: Vec<usize>,
    /// Distance between the elements that are taken along each axis; at least 1.
    pub step: Vec<usize>,
}

impl OpRule for Slice {
    fn name(&self) -> &'static str {
        "slice"
    }

    fn attributes(&self) -> String {
        format!("{:?}..{:?} by {:?}", self.start, self.stop, self.step)
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let x = one(inputs)?;
        for (what, list) in [("start", &self.start), ("stop", &self.stop), ("step", &self.step)] {
            check_rank(what, list, x.shape.rank())?;
        }
        let length = |axis: usize| {
            let (start, stop, step) = (self.start[axis], self.stop[axis], self.step[axis]);
            if start >= stop || stop > x.shape[axis] || step == 0 {
                let size = x.shape[axis];
                let problem = format!("{start}..{stop} by {step} is no slice of axis {axis}, which has size {size}");
                return Err(OpError::Attribute(problem));
            }
            Ok((stop - start).div_ceil(step))
        };
        let dims = (0..x.shape.rank()).map(length).collect::<Result<Vec<_>, _>>()?;
        Ok(vec![TensorType::new(x.dtype, dims)])
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        let Some(dy) = args.grads[0] else { return Ok(Gradient::Inputs(vec![None])) };
        let (from, to) = (g.shape(args.inputs[0]), g.shape(dy));
        let after = |axis: usize| from[axis] - self.start[axis] - (to[axis] - 1) * self.step[axis] - 1;
        let high = (0..from.rank()).map(after).collect();
        let interior = self.step.iter().map(|step| step - 1).collect();
        let dx = g.push1(Pad { low: self.start.clone(), high, interior }, &[dy])?;
        Ok(Gradient::Inputs(vec![Some(dx)]))
    }

    fn cost(&self, _inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        let bytes: usize = outputs.iter().map(TensorType::bytes).sum();
        Cost { flops: 0, bytes: 2 * bytes as u64 }
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let x = inputs[0];
        let strides = x.ty.shape.strides();
        let first = dot(&self.start, &strides);
        let steps: Vec<usize> = strides.iter().zip(&self.step).map(|(stride, step)| stride * step).collect();
        let shape = &outputs[0].shape;
        vec![Tensor::from_fn(outputs[0].clone(), |i| x.data[first + position(shape, i, &steps)])]
    }
}

/// Zeros before, after and `interior` of them between the elements along each axis (as XLA's `Pad`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pad {
    /// Number of zeros before the first element of each axis.
    pub low: Vec<usize>,
    /// Number of zeros after the last element of each axis.
    pub high: Vec<usize>,
    /// Number of zeros between neighbouring elements of each axis.
    pub interior: Vec<usize>,
}

impl OpRule for Pad {
    fn name(&self) -> &'static str {
        "pad"
    }

    fn attributes(&self) -> String {
        let interior = match self.interior.iter().all(|&n| n == 0) {
            true => String::new(),
            false => format!(", interior={:?}", self.interior),
        };
        format!("low={:?}, high={:?}{interior}", self.low, self.high)
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let x = one(inputs)?;
        for (what, list) in [("low", &self.low), ("high", &self.high), ("interior", &self.interior)] {
            check_rank(what, list, x.shape.rank())?;
        }
        let length = |axis: usize| {
            let size = x.shape[axis];
            self.low[axis] + size + size.saturating_sub(1) * self.interior[axis] + self.high[axis]
        };
        Ok(vec![TensorType::new(x.dtype, (0..x.shape.rank()).map(length).collect::<Vec<_>>())])
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        let Some(dy) = args.grads[0] else { return Ok(Gradient::Inputs(vec![None])) };
        let stop: Vec<usize> = g.shape(dy).iter().zip(&self.high).map(|(size, high)| size - high).collect();
        let step: Vec<usize> = self.interior.iter().map(|n| n + 1).collect();
        Ok(Gradient::Inputs(vec![Some(g.slice(dy, &self.low, &stop, &step)?)]))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(0, inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let x = inputs[0];
        let mut y = Tensor::zeros(outputs[0].clone());
        let strides = outputs[0].shape.strides();
        let first = dot(&self.low, &strides);
        let steps: Vec<usize> = strides.iter().zip(&self.interior).map(|(stride, n)| stride * (n + 1)).collect();
        for (i, &element) in x.data.iter().enumerate() {
            y.data[first + position(&x.ty.shape, i, &steps)] = element;
        }
        vec![y]
    }
}

/// Any number of tensors one after the other along `axis`; the other axes are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Concat {
    /// The axis along which the tensors are joined.
    pub axis: usize,
}

impl OpRule for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn attributes(&self) -> String {
        format!("axis={}", self.axis)
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [first, ..] = inputs else { return Err(OpError::operands("at least one tensor")) };
        if self.axis >= first.shape.rank() {
            return Err(OpError::NoSuchAxis { axis: self.axis, rank: first.shape.rank() });
        }
        let mut joined = first.shape.dims().to_vec();
        joined[self.axis] = 0;
        for (number, x) in inputs.iter().enumerate() {
            let equal = |axis: usize| axis == self.axis || x.shape[axis] == first.shape[axis];
            if x.dtype != first.dtype || x.shape.rank() != joined.len() || !(0..joined.len()).all(equal) {
                return Err(OpError::Sizes(format!(
                    "input {number} differs from the first in more than the size of axis {}",
                    self.axis
                )));
            }
            joined[self.axis] += x.shape[self.axis];
        }
        Ok(vec![TensorType::new(first.dtype, joined)])
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        let Some(dy) = args.grads[0] else { return Ok(Gradient::Inputs(vec![None; args.inputs.len()])) };
        let mut grads = Vec::with_capacity(args.inputs.len());
        let mut offset = 0;
        for (&input, &wanted) in args.inputs.iter().zip(args.wanted) {
            let mut stop = g.shape(input).dims().to_vec();
            let mut start = vec![0; stop.len()];
            start[self.axis] = offset;
            stop[self.axis] += offset;
            offset = stop[self.axis];
            let step = vec![1; stop.len()];
            grads.push(wanted.then(|| g.slice(dy, &start, &stop, &step)).transpose()?);
        }
        Ok(Gradient::Inputs(grads))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(0, inputs, outputs)
    }

    fn joins_inputs(&self, inputs: &[&TensorType]) -> bool {
        inputs[0].shape[..self.axis].iter().all(|&size| size == 1)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let outer: usize = outputs[0].shape[..self.axis].iter().product();
        let mut data = Vec::with_capacity(outputs[0].shape.elements());
        for row in 0..outer {
            for x in inputs {
                let run = x.data.len() / outer;
                data.extend_from_slice(&x.data[row * run..][..run]);
            }
        }
        vec![Tensor::new(outputs[0].clone(), data)]
    }
}
