//! Orders nodes: what frees memory runs as soon as it can, everything else in the order it was written.

use crate::graph::{Graph, GraphError, NodeId, Rewriter, Value};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

/// Reorders a graph. Replacements of state come after everything that reads the old content, where that is possible.
///
/// # Errors
/// Only if the graph was malformed.
pub fn schedule(graph: &Graph) -> Result<Graph, GraphError> {
    let live = super::simplify::live_nodes(graph);
    let order = order(graph, &live, readers_and_waiters(graph));
    let mut rewriter = Rewriter::new(graph);
    for id in order {
        rewriter.copy(id)?;
    }
    rewriter.finish()
}

/// For each node those that must come after it: its readers, and writers of state that it reads in its old form, as far
/// as that makes no cycle.
fn readers_and_waiters(graph: &Graph) -> Vec<Vec<NodeId>> {
    let consumers = graph.consumers();
    let mut after = consumers.clone();
    for &(state, new) in graph.updates() {
        for &reader in &consumers[state.node.index()] {
            if reader != new.node && !reaches(&after, new.node, reader) {
                after[reader.index()].push(new.node);
            }
        }
    }
    after
}

fn reaches(after: &[Vec<NodeId>], from: NodeId, to: NodeId) -> bool {
    let mut seen = HashSet::new();
    let mut stack = vec![from];
    while let Some(id) = stack.pop() {
        if id == to {
            return true;
        }
        stack.extend(after[id.index()].iter().filter(|&&c| seen.insert(c)));
    }
    false
}

/// Bytes of the value that the node's own outputs add while they live, less those it is the last to read.
struct Pressure<'a> {
    graph: &'a Graph,
    /// Readers of each value that have not run.
    remaining: HashMap<Value, usize>,
    kept: HashSet<Value>,
}

impl Pressure<'_> {
    fn of(&self, id: NodeId) -> i64 {
        let node = self.graph.node(id);
        let made: i64 = node
            .outputs
            .iter()
            .enumerate()
            .map(|(o, ty)| {
                let value = Value { node: id, output: o as u32 };
                let replaces_state = self.kept.contains(&value);
                if replaces_state { 0 } else { ty.bytes() as i64 }
            })
            .sum();
        let freed: i64 = distinct_inputs(self.graph, id)
            .iter()
            .filter(|v| self.remaining.get(v) == Some(&1) && self.graph.node(v.node).op.as_input().is_none())
            .map(|&v| self.graph.ty(v).bytes() as i64)
            .sum();
        made - freed
    }
}

/// The inputs of a node, each once.
fn distinct_inputs(graph: &Graph, id: NodeId) -> Vec<Value> {
    let mut inputs = graph.node(id).inputs.clone();
    inputs.sort_unstable();
    inputs.dedup();
    inputs
}

/// An order of the live nodes in which each comes before those listed for it.
fn order(graph: &Graph, live: &[bool], readers: Vec<Vec<NodeId>>) -> Vec<NodeId> {
    let mut waiting = vec![0usize; graph.len()];
    for id in graph.ids().filter(|id| live[id.index()]) {
        for reader in readers[id.index()].iter().filter(|r| live[r.index()]) {
            waiting[reader.index()] += 1;
        }
    }
    let mut pressure =
        Pressure { graph, remaining: HashMap::new(), kept: graph.updates().iter().map(|&(_, new)| new).collect() };
    for id in graph.ids().filter(|id| live[id.index()]) {
        for input in distinct_inputs(graph, id) {
            *pressure.remaining.entry(input).or_default() += 1;
        }
    }
    let mut ready: BinaryHeap<Reverse<NodeId>> =
        graph.ids().filter(|id| live[id.index()] && waiting[id.index()] == 0).map(Reverse).collect();
    let mut eager: Vec<NodeId> = Vec::new();
    let mut order = Vec::new();
    loop {
        let id = match eager.pop() {
            Some(id) => id,
            None => match ready.pop() {
                Some(Reverse(id)) => id,
                None => break,
            },
        };
        order.push(id);
        for input in distinct_inputs(graph, id) {
            *pressure.remaining.get_mut(&input).expect("counted above") -= 1;
        }
        for &reader in readers[id.index()].iter().filter(|r| live[r.index()]) {
            waiting[reader.index()] -= 1;
            if waiting[reader.index()] == 0 {
                if pressure.of(reader) < 0 { eager.push(reader) } else { ready.push(Reverse(reader)) }
            }
        }
    }
    assert_eq!(order.len(), live.iter().filter(|&&l| l).count(), "the order has a cycle");
    order
}
