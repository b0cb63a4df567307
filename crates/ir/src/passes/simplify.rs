//! Constant folding, common subexpressions, dead code, algebraic identities.

use crate::dtype::DType;
use crate::graph::{Graph, GraphError, NodeId, Rewriter, Value};
use crate::ops::layout::Reshape;
use crate::ops::pointwise::{Binary, BinaryKind, Cast, Unary, UnaryKind};
use crate::ops::reduce::{Reduce, ReduceKind};
use crate::ops::source::Constant;
use crate::ops::{Op, Scalar};
use crate::reference::Tensor;
use std::collections::HashMap;

/// Constants above this many elements are not folded.
const FOLD_LIMIT: usize = 4096;

/// Rewrites until nothing changes any more.
///
/// # Errors
/// Only if the graph was malformed.
pub fn simplify(graph: &Graph) -> Result<Graph, GraphError> {
    let (mut current, mut changed) = round(graph)?;
    while changed {
        (current, changed) = round(&current)?;
    }
    Ok(current)
}

/// One sweep; whether it changed anything.
fn round(graph: &Graph) -> Result<(Graph, bool), GraphError> {
    let live = live_nodes(graph);
    let mut pass = Simplifier { rewriter: Rewriter::new(graph), seen: HashMap::new(), changed: live.contains(&false) };
    for id in graph.ids() {
        if live[id.index()] {
            pass.visit(graph, id)?;
        }
    }
    Ok((pass.rewriter.finish()?, pass.changed))
}

/// Nodes that a root depends on; inputs of the graph always live.
pub(crate) fn live_nodes(graph: &Graph) -> Vec<bool> {
    let mut live = graph.ancestors(graph.roots().map(|root| root.node));
    graph.inputs().for_each(|(input, _)| live[input.node.index()] = true);
    live
}

struct Simplifier<'a> {
    rewriter: Rewriter<'a>,
    seen: HashMap<(Op, Vec<Value>), NodeId>,
    changed: bool,
}

impl Simplifier<'_> {
    fn visit(&mut self, source: &Graph, id: NodeId) -> Result<(), GraphError> {
        let node = source.node(id);
        let own = Value { node: id, output: 0 };
        if matches!(node.op, Op::Input(_)) {
            return self.rewriter.copy(id);
        }
        let inputs: Vec<Value> = node.inputs.iter().map(|&v| self.rewriter.get(v)).collect();
        let path = source.path(id).to_string();
        if node.outputs.len() == 1 {
            let replacement = self.rewriter.target().at_path(&path, |g| rewrite(g, &node.op, &inputs))?;
            if let Some(value) = replacement {
                self.changed = true;
                self.rewriter.set(own, value);
                return Ok(());
            }
        }
        let key = (node.op.clone(), inputs.clone());
        let target = match self.seen.get(&key) {
            Some(&earlier) => {
                self.changed = true;
                earlier
            }
            None => {
                let outputs = self.rewriter.target().at_path(&path, |g| g.add(node.op.clone(), &inputs))?;
                self.seen.insert(key, outputs[0].node);
                outputs[0].node
            }
        };
        for output in 0..node.outputs.len() as u32 {
            self.rewriter.set(Value { node: id, output }, Value { node: target, output });
        }
        Ok(())
    }
}

/// A value equal to `op(inputs)` that is cheaper or opens the way to other rewrites, if there is one.
fn rewrite(g: &mut Graph, op: &Op, inputs: &[Value]) -> Result<Option<Value>, GraphError> {
    if let Some(folded) = fold(g, op, inputs)? {
        return Ok(Some(folded));
    }
    match op {
        Op::Binary(Binary(kind)) => identity(g, *kind, inputs[0], inputs[1]),
        Op::Unary(Unary(UnaryKind::Neg)) => Ok(match g.node(inputs[0].node).op {
            Op::Unary(Unary(UnaryKind::Neg)) => Some(g.node(inputs[0].node).inputs[0]),
            _ => None,
        }),
        Op::Cast(Cast { to }) => Ok(cast_back(g, *to, inputs[0])),
        Op::Reshape(Reshape { shape }) => {
            let inner = inputs[0];
            if g.shape(inner) == shape {
                return Ok(Some(inner));
            }
            match &g.node(inner.node).op {
                Op::Reshape(_) => {
                    let innermost = g.node(inner.node).inputs[0];
                    g.reshape(innermost, shape.clone()).map(Some)
                }
                _ => Ok(None),
            }
        }
        Op::Reduce(reduce) if reduce.kind == ReduceKind::Sum => pull_out_of_sum(g, reduce, inputs[0]),
        _ => Ok(None),
    }
}

/// The result of an operation on constants alone, as a constant.
fn fold(g: &mut Graph, op: &Op, inputs: &[Value]) -> Result<Option<Value>, GraphError> {
    if inputs.is_empty() || !(op.is_pointwise() || matches!(op, Op::Reshape(_) | Op::Broadcast(_) | Op::Reduce(_))) {
        return Ok(None);
    }
    let mut tensors = Vec::new();
    for &input in inputs {
        match &g.node(input.node).op {
            Op::Constant(c) if g.shape(input).elements() <= FOLD_LIMIT => {
                tensors.push(Tensor::from_fn(g.ty(input).clone(), |i| c.at(i)));
            }
            _ => return Ok(None),
        }
    }
    let types: Vec<_> = inputs.iter().map(|&v| g.ty(v)).collect();
    let Ok(outputs) = op.rule().infer(&types) else { return Ok(None) };
    if outputs[0].shape.elements() > FOLD_LIMIT {
        return Ok(None);
    }
    let refs: Vec<&Tensor> = tensors.iter().collect();
    let result = op.rule().evaluate(&refs, &outputs).remove(0);
    let mut data: Vec<Scalar> = result.data.iter().map(|&x| Scalar(x)).collect();
    if !data.is_empty() && data.iter().all(|&s| s == data[0]) {
        data.truncate(1);
    }
    let constant = Constant { dtype: result.ty.dtype, shape: result.ty.shape, data };
    g.add1(constant, &[]).map(Some)
}

/// `x` for a conversion of `x` to its own type, directly or by way of `f32`, which holds all floats.
fn cast_back(g: &Graph, to: DType, x: Value) -> Option<Value> {
    if g.dtype(x) == to {
        return Some(x);
    }
    match g.node(x.node).op {
        Op::Cast(Cast { to: DType::F32 }) => {
            let original = g.node(x.node).inputs[0];
            (to.is_float() && g.dtype(original) == to).then_some(original)
        }
        _ => None,
    }
}

fn uniform(g: &Graph, value: Value) -> Option<f64> {
    match &g.node(value.node).op {
        Op::Constant(c) => c.uniform(),
        _ => None,
    }
}

/// `x + 0`, `x - 0`, `x * 1`, `x / 1`, where the other operand does not widen the shape.
fn identity(g: &Graph, kind: BinaryKind, a: Value, b: Value) -> Result<Option<Value>, GraphError> {
    let keeps = |x: Value, other: Value| g.shape(other).broadcasts_to(g.shape(x));
    let neutral = match kind {
        BinaryKind::Add | BinaryKind::Sub => 0.0,
        BinaryKind::Mul | BinaryKind::Div => 1.0,
        _ => return Ok(None),
    };
    if uniform(g, b) == Some(neutral) && keeps(a, b) {
        return Ok(Some(a));
    }
    if kind.is_commutative() && uniform(g, a) == Some(neutral) && keeps(b, a) {
        return Ok(Some(b));
    }
    Ok(None)
}

/// `sum(-x) = -sum(x)` and `sum(x * v) = sum(x) * v` where `v` does not vary along the axes summed.
fn pull_out_of_sum(g: &mut Graph, reduce: &Reduce, x: Value) -> Result<Option<Value>, GraphError> {
    if g.dtype(x) != DType::F32 {
        return Ok(None);
    }
    let node = g.node(x.node).clone();
    match node.op {
        Op::Unary(Unary(UnaryKind::Neg)) => {
            let sum = g.add1(reduce.clone(), &[node.inputs[0]])?;
            g.neg(sum).map(Some)
        }
        Op::Binary(Binary(kind @ (BinaryKind::Mul | BinaryKind::Div))) => {
            let (a, b) = (node.inputs[0], node.inputs[1]);
            let order: &[(Value, Value)] = if kind == BinaryKind::Mul { &[(a, b), (b, a)] } else { &[(a, b)] };
            for &(varying, fixed) in order {
                if g.shape(varying) == g.shape(x) && is_fixed_along(g, fixed, g.shape(x).rank(), &reduce.axes) {
                    let sum = g.add1(reduce.clone(), &[varying])?;
                    let factor = without_axes(g, fixed, g.shape(x).rank(), reduce)?;
                    return g.binary(kind, sum, factor).map(Some);
                }
            }
            Ok(None)
        }
        _ => Ok(None),
    }
}

/// Whether `value`, broadcast to `rank` axes, has size 1 along all of `axes`.
fn is_fixed_along(g: &Graph, value: Value, rank: usize, axes: &[usize]) -> bool {
    let shape = g.shape(value);
    let missing = rank - shape.rank();
    axes.iter().all(|&axis| axis < missing || shape[axis - missing] == 1)
}

/// `value` with the axes removed that the reduction removes.
fn without_axes(g: &mut Graph, value: Value, rank: usize, reduce: &Reduce) -> Result<Value, GraphError> {
    if reduce.keep_dims {
        return Ok(value);
    }
    let shape = g.shape(value).clone();
    let missing = rank - shape.rank();
    let kept: Vec<usize> =
        (missing..rank).filter(|axis| !reduce.axes.contains(axis)).map(|axis| shape[axis - missing]).collect();
    g.reshape(value, kept)
}
