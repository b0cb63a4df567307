//! Constant folding, common subexpressions, dead code, algebraic identities.

use crate::graph::{Graph, GraphError, NodeId, Rewriter, Value};
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
        if node.op.as_input().is_some() {
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
                let outputs = self.rewriter.target().at_path(&path, |g| g.push(node.op.clone(), &inputs))?;
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
    op.rule().simplify(g, inputs)
}

/// The result of an operation on constants alone, as a constant.
fn fold(g: &mut Graph, op: &Op, inputs: &[Value]) -> Result<Option<Value>, GraphError> {
    if inputs.is_empty() || !op.rule().folds_constants() {
        return Ok(None);
    }
    let mut tensors = Vec::new();
    for &input in inputs {
        match g.node(input.node).op.as_constant() {
            Some(constant) if g.shape(input).elements() <= FOLD_LIMIT => {
                tensors.push(Tensor::from_fn(g.ty(input).clone(), |i| constant.at(i)));
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
    g.push1(constant, &[]).map(Some)
}
