//! Orders nodes: what frees memory runs as soon as it can, everything else in the order it was written. Where the target runs
//! fusions alike together, a fusion takes along those like it that could run too, and those of one element those of one element; sums
//! for the norm of a gradient wait for each other, fusions of one element run when nothing else can, and those that only replace state
//! come last.

use super::alike::{Form, is_scalar, viewed};
use crate::graph::{Graph, GraphError, NodeId, Rewriter, Value};
use crate::ops::Storage;
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

/// When a node runs that could, the earlier turns first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    AsWritten,
    /// A fusion that adds tensors which stay in memory in any case, for what needs all such sums at once: the norm of a gradient.
    Sum,
    /// A fusion of one element.
    Scalar,
    /// A fusion that only replaces state, or one of one element that replaces some and is read by such.
    Last,
}

/// Which nodes are fusions that may run as one with others, and when they run so that they can.
struct Alike {
    /// Number of the form of each node that has one.
    forms: Vec<Option<usize>>,
    turns: Vec<Turn>,
    is_scalar: Vec<bool>,
    in_accumulation: Vec<bool>,
}

impl Alike {
    fn nothing(graph: &Graph) -> Alike {
        Alike {
            forms: vec![None; graph.len()],
            turns: vec![Turn::AsWritten; graph.len()],
            is_scalar: vec![false; graph.len()],
            in_accumulation: vec![false; graph.len()],
        }
    }

    fn of(graph: &Graph) -> Alike {
        let own: Vec<Option<Form>> = graph.ids().map(|id| Form::of(graph, id)).collect();
        let is_scalar: Vec<bool> = graph.ids().map(|id| is_scalar(graph, id)).collect();
        let turns = turns(graph, &own, &is_scalar);
        let mut known: HashMap<Form, usize> = HashMap::new();
        let mut number = |form: Form| {
            let next = known.len();
            *known.entry(form).or_insert(next)
        };
        let forms = own.into_iter().map(|form| form.map(&mut number)).collect();
        Alike { forms, turns, is_scalar, in_accumulation: graph.accumulation_phase() }
    }

    fn turn(&self, id: NodeId) -> Turn {
        self.turns[id.index()]
    }

    /// Whether a scalar may run in one kernel with another.
    fn goes_on(&self, id: NodeId, scalar: NodeId) -> bool {
        self.is_scalar[id.index()] && self.in_accumulation[id.index()] == self.in_accumulation[scalar.index()]
    }
}

fn turns(graph: &Graph, forms: &[Option<Form>], is_scalar: &[bool]) -> Vec<Turn> {
    let consumers = graph.consumers();
    let new: HashSet<Value> = graph.updates().iter().map(|&(_, new)| new).collect();
    let only_replaces = |id: NodeId| {
        let outputs = 0..graph.node(id).outputs.len() as u32;
        consumers[id.index()].is_empty() && outputs.into_iter().all(|output| new.contains(&Value { node: id, output }))
    };
    let mut turns = vec![Turn::AsWritten; graph.len()];
    for id in graph.ids().rev() {
        let Some(form) = &forms[id.index()] else { continue };
        let readers = |id: NodeId| readers_of(graph, &consumers, id);
        let comes_late = |reader: &NodeId| *reader > id && turns[reader.index()] != Turn::AsWritten;
        // What it reads is in memory until the end in any case, or what it writes has as many elements.
        let stays = |input: &Value| {
            let source = viewed(graph, input.node);
            let elements = graph.shape(*input).elements();
            let is_state = graph.node(source).op.as_input().is_some_and(|input| input.role.is_persistent());
            elements == 1
                || is_state
                || graph.node(id).outputs.iter().any(|ty| ty.shape.elements() == elements)
                || readers(source).iter().any(comes_late)
        };
        let replaces =
            || (0..graph.node(id).outputs.len() as u32).any(|output| new.contains(&Value { node: id, output }));
        let is_read_last = || readers(id).iter().all(|reader| turns[reader.index()] == Turn::Last);
        turns[id.index()] = if only_replaces(id) || is_scalar[id.index()] && replaces() && is_read_last() {
            Turn::Last
        } else if is_scalar[id.index()] {
            Turn::Scalar
        } else if form.adds() && readers(id).iter().all(comes_late) && graph.node(id).inputs.iter().all(stays) {
            Turn::Sum
        } else {
            Turn::AsWritten
        };
    }
    turns
}

/// The nodes that read a result of a node, or a view of one.
fn readers_of(graph: &Graph, consumers: &[Vec<NodeId>], id: NodeId) -> Vec<NodeId> {
    let mut stack = consumers[id.index()].clone();
    let mut readers = Vec::new();
    while let Some(reader) = stack.pop() {
        match graph.node(reader).op.rule().storage() {
            Storage::View => stack.extend(&consumers[reader.index()]),
            _ => readers.push(reader),
        }
    }
    readers
}

/// Nodes that could run, by when they are to: by their turns, then in the order they were written.
struct Ready<'a> {
    alike: &'a Alike,
    nodes: BTreeSet<(Turn, NodeId)>,
    /// The nodes of each form.
    of_form: HashMap<usize, BTreeSet<NodeId>>,
    /// Those of one element.
    scalars: BTreeSet<NodeId>,
}

impl<'a> Ready<'a> {
    fn new(alike: &'a Alike) -> Ready<'a> {
        Ready { alike, nodes: BTreeSet::new(), of_form: HashMap::new(), scalars: BTreeSet::new() }
    }

    fn add(&mut self, id: NodeId) {
        self.nodes.insert((self.alike.turn(id), id));
        if let Some(form) = self.alike.forms[id.index()] {
            self.of_form.entry(form).or_default().insert(id);
        }
        if self.alike.is_scalar[id.index()] {
            self.scalars.insert(id);
        }
    }

    fn remove(&mut self, id: NodeId) {
        self.nodes.remove(&(self.alike.turn(id), id));
        if let Some(form) = self.alike.forms[id.index()] {
            self.of_form.entry(form).or_default().remove(&id);
        }
        self.scalars.remove(&id);
    }

    /// The next node.
    fn next(&mut self) -> Option<NodeId> {
        let &(_, id) = self.nodes.first()?;
        self.remove(id);
        Some(id)
    }

    /// If `before` has one element, the next node that has too and may run in one kernel with it.
    fn next_scalar(&mut self, before: NodeId) -> Option<NodeId> {
        if !self.alike.is_scalar[before.index()] {
            return None;
        }
        let mut scalars = self.scalars.iter().copied();
        let goes_on = |id: &NodeId| self.alike.goes_on(*id, before) && self.alike.turn(*id) <= self.alike.turn(before);
        let id = scalars.find(goes_on)?;
        self.remove(id);
        Some(id)
    }

    /// The nodes of the form of this one, in the order they were written, which have the same turn or an earlier one.
    fn take_alike(&mut self, id: NodeId) -> Vec<NodeId> {
        let form = self.alike.forms[id.index()].and_then(|form| self.of_form.get(&form));
        let turn = self.alike.turn(id);
        let alike: Vec<NodeId> =
            form.into_iter().flatten().copied().filter(|&other| self.alike.turn(other) <= turn).collect();
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
    let mut ready = Ready::new(alike);
    graph.ids().filter(|id| live[id.index()] && waiting[id.index()] == 0).for_each(|id| ready.add(id));
    let mut eager: Vec<NodeId> = Vec::new();
    let mut order: Vec<NodeId> = Vec::new();
    loop {
        let scalar = order.last().and_then(|&before| ready.next_scalar(before));
        let Some(first) = scalar.or_else(|| eager.pop()).or_else(|| ready.next()) else { break };
        let run = [vec![first], ready.take_alike(first)].concat();
        for id in run {
            order.push(id);
            for input in distinct_inputs(graph, id) {
                *pressure.remaining.get_mut(&input).expect("counted above") -= 1;
            }
            for &reader in readers[id.index()].iter().filter(|r| live[r.index()]) {
                waiting[reader.index()] -= 1;
                if waiting[reader.index()] == 0 {
                    let is_eager = alike.turn(reader) == Turn::AsWritten && pressure.of(reader) < 0;
                    if is_eager { eager.push(reader) } else { ready.add(reader) }
                }
            }
        }
    }
    assert_eq!(order.len(), live.iter().filter(|&&l| l).count(), "the order has a cycle");
    order
}
