//! What is the same in every step.

use crate::graph::{Graph, NodeId, Value};
use crate::ops::Storage;
use std::collections::HashSet;

/// The values that are computed from constants and from state that the step does not replace: weights of a model that is
/// only run, and what follows from them alone.
#[derive(Clone, Debug)]
pub struct Fixed(Vec<bool>);

impl Fixed {
    pub fn of(graph: &Graph) -> Fixed {
        let replaced: HashSet<Value> = graph.updates().iter().map(|&(state, _)| state).collect();
        let mut fixed = vec![false; graph.len()];
        for id in graph.ids() {
            let node = graph.node(id);
            fixed[id.index()] = match node.op.as_input() {
                Some(input) => input.role.is_persistent() && !replaced.contains(&Value { node: id, output: 0 }),
                None => node.inputs.iter().all(|v| fixed[v.node.index()]),
            };
        }
        Fixed(fixed)
    }

    pub fn is_fixed(&self, node: NodeId) -> bool {
        self.0[node.index()]
    }

    /// Whether a kernel computes the node once before the first step, and not in every one.
    pub fn is_prepared(&self, graph: &Graph, node: NodeId) -> bool {
        self.is_fixed(node) && graph.node(node).op.rule().storage() != Storage::Resident
    }
}
