//! Orders nodes: what frees memory runs as soon as it can, everything else in the order it was written. Where the target runs
//! regions alike together, a region takes along those like it that could run too, and regions that only replace state come last.

use super::alike::Form;
use crate::graph::{Graph, GraphError, NodeId, Rewriter, Value};
use crate::rules::Rules;
use std::collections::{BTreeSet, HashMap, HashSet};

/// Reorders a graph by the rules of a target. Replacements of state come after everything that reads the old content, where that
/// is possible.
///
/// # Errors
/// Only if the graph was malformed.
pub fn schedule(graph: &Graph, rules: &Rules) -> Result<Graph, GraphError> {
    let live = super::simplify::live_nodes(graph);
    let alike = if rules.alike_regions_together { Alike::of(graph) } else { Alike::nothing(graph) };
    let order = order(graph, &live, readers_and_waiters(graph), &alike);
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

/// Which nodes are regions of one form.
struct Alike {
    /// Number of the form of each node that has one.
    forms: Vec<Option<usize>>,
    /// Those of them that only replace state.
    last: Vec<bool>,
}

impl Alike {
    fn nothing(graph: &Graph) -> Alike {
        Alike { forms: vec![None; graph.len()], last: vec![false; graph.len()] }
    }

    fn of(graph: &Graph) -> Alike {
        let mut known: HashMap<Form, usize> = HashMap::new();
        let mut number = |form: Form| {
            let next = known.len();
            *known.entry(form).or_insert(next)
        };
        let forms: Vec<Option<usize>> = graph.ids().map(|id| Form::of(graph, id).map(&mut number)).collect();
        let (consumers, new) = (graph.consumers(), graph.updates().iter().map(|&(_, new)| new));
        let new: HashSet<Value> = new.collect();
        let only_replaces = |id: NodeId| {
            let outputs = 0..graph.node(id).outputs.len() as u32;
            consumers[id.index()].is_empty()
                && outputs.into_iter().all(|output| new.contains(&Value { node: id, output }))
        };
        let last = graph.ids().map(|id| forms[id.index()].is_some() && only_replaces(id)).collect();
        Alike { forms, last }
    }
}

/// Nodes that could run, by when they are to: those that come last behind all others, then in the order they were written.
struct Ready<'a> {
    alike: &'a Alike,
    nodes: BTreeSet<(bool, NodeId)>,
    /// The nodes of each form.
    of_form: HashMap<usize, BTreeSet<NodeId>>,
}

impl Ready<'_> {
    fn add(&mut self, id: NodeId) {
        self.nodes.insert((self.alike.last[id.index()], id));
        if let Some(form) = self.alike.forms[id.index()] {
            self.of_form.entry(form).or_default().insert(id);
        }
    }

    fn remove(&mut self, id: NodeId) {
        self.nodes.remove(&(self.alike.last[id.index()], id));
        if let Some(form) = self.alike.forms[id.index()] {
            self.of_form.entry(form).or_default().remove(&id);
        }
    }

    fn next(&mut self) -> Option<NodeId> {
        let &(_, id) = self.nodes.first()?;
        self.remove(id);
        Some(id)
    }

    /// The nodes of the form of this one, in the order they were written.
    fn take_alike(&mut self, id: NodeId) -> Vec<NodeId> {
        let form = self.alike.forms[id.index()].and_then(|form| self.of_form.get(&form));
        let alike: Vec<NodeId> = form.into_iter().flatten().copied().collect();
        alike.iter().for_each(|&other| self.remove(other));
        alike
    }
}

/// An order of the live nodes in which each comes before those listed for it.
fn order(graph: &Graph, live: &[bool], readers: Vec<Vec<NodeId>>, alike: &Alike) -> Vec<NodeId> {
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
    let mut ready = Ready { alike, nodes: BTreeSet::new(), of_form: HashMap::new() };
    graph.ids().filter(|id| live[id.index()] && waiting[id.index()] == 0).for_each(|id| ready.add(id));
    let mut eager: Vec<NodeId> = Vec::new();
    let mut order = Vec::new();
    while let Some(first) = eager.pop().or_else(|| ready.next()) {
        let run = [vec![first], ready.take_alike(first)].concat();
        for id in run {
            order.push(id);
            for input in distinct_inputs(graph, id) {
                *pressure.remaining.get_mut(&input).expect("counted above") -= 1;
            }
            for &reader in readers[id.index()].iter().filter(|r| live[r.index()]) {
                waiting[reader.index()] -= 1;
                if waiting[reader.index()] == 0 {
                    let is_eager = !alike.last[reader.index()] && pressure.of(reader) < 0;
                    if is_eager { eager.push(reader) } else { ready.add(reader) }
                }
            }
        }
    }
    assert_eq!(order.len(), live.iter().filter(|&&l| l).count(), "the order has a cycle");
    order
}
