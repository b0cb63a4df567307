//! Checks that a graph is well formed; run after every pass in debug and test builds.

use crate::graph::{Graph, GraphError, Value};
use crate::shape::TensorType;

/// Checks the order of nodes, the types that each operation infers from its inputs, outputs and updates.
///
/// # Errors
/// [`GraphError::Malformed`] with the first problem; `pass` is named in it.
pub fn verify(graph: &Graph, pass: &str) -> Result<(), GraphError> {
    let malformed = |problem: String| GraphError::Malformed { pass: pass.to_string(), problem };
    for id in graph.ids() {
        let node = graph.node(id);
        for input in &node.inputs {
            if input.node >= id {
                return Err(malformed(format!("{} at `{}` reads a later node", node.op, graph.path(id))));
            }
            if input.output as usize >= graph.node(input.node).outputs.len() {
                return Err(malformed(format!(
                    "{} at `{}` reads an output that is not there",
                    node.op,
                    graph.path(id)
                )));
            }
        }
        let types: Vec<&TensorType> = node.inputs.iter().map(|&v| graph.ty(v)).collect();
        let inferred = node
            .op
            .rule()
            .infer(&types)
            .map_err(|problem| malformed(format!("{} at `{}`: {problem}", node.op, graph.path(id))))?;
        if inferred != node.outputs {
            return Err(malformed(format!("{} at `{}` has other output types than inferred", node.op, graph.path(id))));
        }
    }
    let exists = |v: Value| v.node.index() < graph.len() && (v.output as usize) < graph.node(v.node).outputs.len();
    for (name, value) in graph.outputs() {
        if !exists(*value) {
            return Err(malformed(format!("output `{name}` does not exist")));
        }
    }
    for &(state, new) in graph.updates() {
        if !exists(state) || !exists(new) || graph.ty(state) != graph.ty(new) {
            return Err(malformed(format!("update of {} by another type", graph.node(state.node).op)));
        }
    }
    Ok(())
}
