//! Brings a graph into the form that fusions are grown in.
//!
//! - Softmax and moments along rows become reductions and pointwise operations.
//! - Reductions along rows keep their axis, with size 1, and so do the pointwise operations on their results, so that they
//!   broadcast to the rows they come from.
//! - Broadcasts are explicit where a fusion cannot express them.
//! - Reductions are split that no kernel does at once, but for those of whole tensors that one fusion adds.

use super::whole::is_whole_sum;
use crate::graph::{Graph, GraphError, NodeId, Rewriter, Value};
use crate::ops::fusion::IndexMap;
use crate::ops::layout::Reshape;
use crate::ops::pointwise::UnaryKind;
use crate::ops::reduce::{MeanVar, Reduce, ReduceKind, is_along_rows};
use crate::ops::{Op, Storage};
use crate::rules::Rules;
use crate::shape::Shape;

/// Rewrites a graph into the form described in this module's documentation.
///
/// # Errors
/// Only if the graph was malformed.
pub(super) fn canonicalise(graph: &Graph, rules: &Rules) -> Result<Graph, GraphError> {
    let mut canonicaliser =
        Canonicaliser { graph, adds_whole: rules.sums_of_whole_tensors, rewriter: Rewriter::new(graph) };
    for id in graph.ids() {
        canonicaliser.visit(id)?;
    }
    without_dead_nodes(&canonicaliser.rewriter.finish()?)
}

fn without_dead_nodes(graph: &Graph) -> Result<Graph, GraphError> {
    let live = crate::passes::simplify::live_nodes(graph);
    let mut rewriter = Rewriter::new(graph);
    for id in graph.ids().filter(|id| live[id.index()]) {
        rewriter.copy(id)?;
    }
    rewriter.finish()
}

/// The shape with an innermost axis of size 1 in place of its own: one number for each row.
pub(super) fn row_form(shape: &Shape) -> Shape {
    let mut dims = shape.dims().to_vec();
    if let Some(last) = dims.last_mut() {
        *last = 1;
    }
    dims.into()
}

struct Canonicaliser<'a> {
    graph: &'a Graph,
    /// Whether fusions add all elements of a tensor.
    adds_whole: bool,
    rewriter: Rewriter<'a>,
}

impl Canonicaliser<'_> {
    fn visit(&mut self, id: NodeId) -> Result<(), GraphError> {
        let node = self.graph.node(id);
        let own = Value { node: id, output: 0 };
        let along_rows = |axes: &[usize]| is_along_rows(self.graph.shape(node.inputs[0]), axes);
        let outputs = match &node.op {
            op if op.is_pointwise() => vec![self.pointwise(id)?],
            Op::Softmax(_) => vec![self.softmax(id)?],
            Op::LogSoftmax(_) => vec![self.log_softmax(id)?],
            Op::MeanVar(MeanVar { axes }) if along_rows(axes) => self.moments(id)?.to_vec(),
            Op::Reduce(_) if self.adds_whole && is_whole_sum(self.graph, id) => return self.rewriter.copy(id),
            Op::Reduce(Reduce { kind, axes, .. }) if along_rows(axes) => {
                let x = self.rewriter.get(node.inputs[0]);
                let reduced = self.row_reduce(id, *kind, x)?;
                vec![self.reshape(id, reduced, &node.outputs[0].shape)?]
            }
            Op::Reduce(_) if split_reduction(self.graph, id).is_some() => vec![self.split(id)?],
            Op::Reshape(Reshape { shape }) => {
                let x = self.rewriter.get(node.inputs[0]);
                vec![self.reshape(id, x, shape)?]
            }
            _ => return self.rewriter.copy(id),
        };
        for (output, value) in outputs.into_iter().enumerate() {
            self.rewriter.set(Value { output: output as u32, ..own }, value);
        }
        Ok(())
    }

    fn row_reduce(&mut self, id: NodeId, kind: ReduceKind, x: Value) -> Result<Value, GraphError> {
        self.rewriter.at(id, |g| {
            let axis = g.shape(x).rank() - 1;
            g.reduce(kind, x, &[axis], true)
        })
    }

    /// A view of a view is one of what the first one views.
    fn reshape(&mut self, id: NodeId, x: Value, shape: &Shape) -> Result<Value, GraphError> {
        let x = self.viewed(x);
        self.rewriter.at(id, |g| g.reshape(x, shape.clone()))
    }

    /// What a value of the new graph is another shape of.
    fn viewed(&mut self, x: Value) -> Value {
        let node = self.rewriter.target().node(x.node);
        if node.op.rule().storage() == Storage::View { node.inputs[0] } else { x }
    }

    /// The value, with its row axis of size 1, that a value of the new graph is without it.
    fn kept_rows(&mut self, x: Value) -> Option<Value> {
        let viewed = self.viewed(x);
        let g = self.rewriter.target();
        let (shape, kept) = (g.shape(x).dims(), g.shape(viewed).dims());
        (viewed != x && kept.split_last() == Some((&1, shape))).then_some(viewed)
    }

    /// Without a row axis only where something that reads it has none either.
    fn pointwise(&mut self, id: NodeId) -> Result<Value, GraphError> {
        let node = self.graph.node(id);
        let mapped: Vec<Value> = node.inputs.iter().map(|&input| self.rewriter.get(input)).collect();
        let domain = node.outputs[0].shape.clone();
        if let Some(rows) = self.all_kept_rows(&mapped, &domain)? {
            let value = self.rewriter.at(id, |g| g.push1(node.op.clone(), &rows))?;
            return self.reshape(id, value, &domain);
        }
        let mut inputs = Vec::new();
        for value in self.without_broadcasts(mapped, &domain) {
            let expressible = IndexMap::of(self.rewriter.target().shape(value), &domain).is_some();
            inputs.push(if expressible { value } else { self.rewriter.at(id, |g| g.broadcast(value, &domain))? });
        }
        self.rewriter.at(id, |g| g.push1(node.op.clone(), &inputs))
    }

    /// The operands before they were broadcast, as long as one of them has the shape of the result.
    fn without_broadcasts(&mut self, mut operands: Vec<Value>, domain: &Shape) -> Vec<Value> {
        let g = self.rewriter.target();
        for index in 0..operands.len() {
            let node = g.node(operands[index].node);
            let others = || operands.iter().enumerate().any(|(other, &v)| other != index && g.shape(v) == domain);
            if matches!(node.op, Op::Broadcast(_))
                && IndexMap::of(g.shape(node.inputs[0]), domain).is_some()
                && others()
            {
                operands[index] = node.inputs[0];
            }
        }
        operands
    }

    /// The operands with a row axis of size 1, if any of the result's shape is made of reductions along rows.
    fn all_kept_rows(&mut self, operands: &[Value], domain: &Shape) -> Result<Option<Vec<Value>>, GraphError> {
        let kept: Vec<Option<Value>> = operands.iter().map(|&operand| self.kept_rows(operand)).collect();
        let g = self.rewriter.target();
        if !operands.iter().zip(&kept).any(|(&operand, kept)| kept.is_some() && g.shape(operand) == domain) {
            return Ok(None);
        }
        let mut rows = Vec::with_capacity(operands.len());
        for (&operand, kept) in operands.iter().zip(&kept) {
            let g = self.rewriter.target();
            let number = g.uniform(operand);
            rows.push(match (kept, number) {
                (Some(kept), _) => *kept,
                (None, Some(number)) => g.constant(g.dtype(operand), [], number)?,
                (None, None) if g.shape(operand) == domain => {
                    let shape = [domain.dims(), &[1]].concat();
                    g.reshape(operand, shape)?
                }
                (None, None) if g.shape(operand).rank() == 0 => operand,
                (None, None) => return Ok(None),
            });
        }
        Ok(Some(rows))
    }

    /// `max(x)`, `e = exp(x - max(x))` and `sum(e)` of each row of the node's input.
    fn powers(&mut self, id: NodeId) -> Result<[Value; 3], GraphError> {
        let x = self.rewriter.get(self.graph.node(id).inputs[0]);
        let top = self.row_reduce(id, ReduceKind::Max, x)?;
        let powers = self.rewriter.at(id, |g| {
            let shifted = g.sub(x, top)?;
            g.unary(UnaryKind::Exp, shifted)
        })?;
        Ok([top, powers, self.row_reduce(id, ReduceKind::Sum, powers)?])
    }

    /// `e / sum(e)` with `e = exp(x - max(x))`.
    fn softmax(&mut self, id: NodeId) -> Result<Value, GraphError> {
        let [_, powers, sum] = self.powers(id)?;
        self.rewriter.at(id, |g| {
            let scale = g.unary(UnaryKind::Recip, sum)?;
            g.mul(powers, scale)
        })
    }

    /// `x - (max(x) + log(sum(exp(x - max(x)))))`.
    fn log_softmax(&mut self, id: NodeId) -> Result<Value, GraphError> {
        let x = self.rewriter.get(self.graph.node(id).inputs[0]);
        let [top, _, sum] = self.powers(id)?;
        self.rewriter.at(id, |g| {
            let log = g.unary(UnaryKind::Log, sum)?;
            let norm = g.add(top, log)?;
            g.sub(x, norm)
        })
    }

    /// Mean, and mean square of the distance from it.
    fn moments(&mut self, id: NodeId) -> Result<[Value; 2], GraphError> {
        let node = self.graph.node(id);
        let x = self.rewriter.get(node.inputs[0]);
        let share = 1.0 / self.graph.shape(node.inputs[0]).cols() as f64;
        let sum = self.row_reduce(id, ReduceKind::Sum, x)?;
        let (mean, squares) = self.rewriter.at(id, |g| {
            let mean = g.mul_scalar(sum, share)?;
            let centred = g.sub(x, mean)?;
            Ok((mean, g.square(centred)?))
        })?;
        let sum = self.row_reduce(id, ReduceKind::Sum, squares)?;
        let variance = self.rewriter.at(id, |g| g.mul_scalar(sum, share))?;
        let shape = &node.outputs[0].shape;
        Ok([self.reshape(id, mean, shape)?, self.reshape(id, variance, shape)?])
    }

    fn split(&mut self, id: NodeId) -> Result<Value, GraphError> {
        let node = self.graph.node(id);
        let (kind, runs) = split_reduction(self.graph, id).expect("asked before");
        let mut value = self.rewriter.get(node.inputs[0]);
        for axes in runs {
            value = self.rewriter.at(id, |g| g.reduce(kind, value, &axes, true))?;
        }
        self.reshape(id, value, &node.outputs[0].shape)
    }
}

/// Reductions that do the same as the node one after the other, each over neighbouring axes, which it keeps, and none over all
/// axes of a tensor of several; `None` if the node is so itself. The innermost come first.
fn split_reduction(graph: &Graph, id: NodeId) -> Option<(ReduceKind, Vec<Vec<usize>>)> {
    let node = graph.node(id);
    let Op::Reduce(Reduce { kind, axes, .. }) = &node.op else { return None };
    let rank = graph.shape(node.inputs[0]).rank();
    if axes.len() == rank && rank > 1 {
        return Some((*kind, vec![(0..rank - 1).collect(), vec![rank - 1]]));
    }
    let mut runs: Vec<Vec<usize>> = Vec::new();
    for &axis in axes.iter().rev() {
        match runs.last_mut() {
            Some(run) if run[0] == axis + 1 => run.insert(0, axis),
            _ => runs.push(vec![axis]),
        }
    }
    (runs.len() > 1).then_some((*kind, runs))
}
