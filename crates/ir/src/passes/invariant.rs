//! Loop-invariant values: those that every step computes alike, so that once is enough.

use crate::graph::{Graph, NodeId, Value};
use crate::ops::Storage;
use std::collections::HashSet;

/// The values that are computed from constants and from state that the step does not replace: weights of a model that is
/// only run, and what follows from them alone.
#[derive(Clone, Debug)]
pub struct Invariant(Vec<bool>);

impl Invariant {
    /// Finds the invariant values of a graph.
    pub fn of(graph: &Graph) -> Invariant {
        let replaced: HashSet<Value> = graph.updates().iter().map(|&(state, _)| state).collect();
        let mut invariant = vec![false; graph.len()];
        for id in graph.ids() {
            let node = graph.node(id);
            invariant[id.index()] = match node.op.as_input() {
                Some(input) => input.role.is_persistent() && !replaced.contains(&Value { node: id, output: 0 }),
                None => node.inputs.iter().all(|v| invariant[v.node.index()]),
            };
        }
        Invariant(invariant)
    }

    /// Whether all outputs of the node are invariant.
    pub fn is_invariant(&self, node: NodeId) -> bool {
        self.0[node.index()]
    }

    /// Whether a kernel computes the node once before the first step, and not in every one.
    pub fn runs_once(&self, graph: &Graph, node: NodeId) -> bool {
        self.is_invariant(node) && graph.node(node).op.rule().storage() != Storage::Resident
    }
}
