//! Lets convolutions scale, shift and rectify their input while they read it, where it would have to be written to memory for
//! them otherwise: `conv(relu(norm(x)), w)` with a batch norm of `x` itself. Its statistics are known only when all of `x` is,
//! so that the norm cannot run on `x` block by block; with it in the consumer, and in the weight gradient of the consumer,
//! nothing but `x` is kept for the backward pass. The gates of squeeze and excite, a scale for each channel of each image that
//! depends on all of it, go the same way.

use super::channels::{Link, link, scale_and_shift};
use crate::dtype::DType;
use crate::graph::{Graph, GraphError, NodeId, Rewriter, Value};
use crate::ops::Op;
use crate::ops::conv_with_prologue::{ConvWithPrologue, scales_by_image};
use crate::ops::pointwise::{Binary, BinaryKind, Unary, UnaryKind};
use crate::rules::PrologueRules;
use std::collections::{HashMap, HashSet};

/// # Errors
/// Only if the graph was malformed.
pub fn prologue(graph: &Graph, rules: &PrologueRules) -> Result<Graph, GraphError> {
    let consumers = graph.consumers();
    let results: HashSet<Value> = graph.roots().collect();
    let maps: HashMap<Value, Map> = graph
        .ids()
        .map(|node| Value { node, output: 0 })
        .filter(|value| !results.contains(value) && is_read_by_products(graph, *value, &consumers[value.node.index()]))
        .filter_map(|value| Some((value, Map::find(graph, rules, value)?)))
        .collect();
    let mut vectors: HashMap<Value, [Value; 2]> = HashMap::new();
    let mut rewriter = Rewriter::new(graph);
    for id in graph.ids() {
        let node = graph.node(id);
        let input = node.inputs.first().copied().filter(|_| node.op.rule().takes_prologue());
        let Some((input, map)) = input.and_then(|input| Some((input, maps.get(&input)?))) else {
            rewriter.copy(id)?;
            continue;
        };
        let [scale, shift] = match vectors.get(&input) {
            Some(&vectors) => vectors,
            None => *vectors.entry(input).or_insert(map.vectors(graph, input.node, &mut rewriter)?),
        };
        let (x, second) = (rewriter.get(map.x), rewriter.get(node.inputs[1]));
        let op = ConvWithPrologue { op: Box::new(node.op.clone()), relu: map.relu };
        let output = rewriter.target().at_path(graph.path(id), |g| g.push1(op, &[x, second, scale, shift]))?;
        rewriter.set(Value { node: id, output: 0 }, output);
    }
    rewriter.finish()
}

/// Whether products that take a prologue read the value, and otherwise pointwise operations alone.
fn is_read_by_products(graph: &Graph, value: Value, consumers: &[NodeId]) -> bool {
    let is_product = |id: &&NodeId| {
        let node = graph.node(**id);
        node.op.rule().takes_prologue() && node.inputs[0] == value && node.inputs[1] != value
    };
    consumers.iter().any(|id| is_product(&id))
        && consumers.iter().all(|id| is_product(&id) || graph.node(*id).op.is_pointwise())
}

/// How a value is made from another one by channels.
struct Map {
    x: Value,
    scales: Scales,
    relu: bool,
}

/// Where scale and shift come from.
enum Scales {
    /// Links in the order in which they are applied.
    Links(Vec<Link>),
    /// A scale for each channel of each image.
    Gate(Value),
}

impl Map {
    /// The map that makes `value` from what depends on all of what it is applied to.
    fn find(graph: &Graph, rules: &PrologueRules, value: Value) -> Option<Map> {
        let ty = graph.ty(value);
        if ty.dtype != rules.dtype || ty.shape.cols() < rules.least_channels {
            return None;
        }
        if let Some(map) = Map::of_gate(graph, value) {
            return Some(map);
        }
        let node = graph.node(value.node);
        let relu = node.op == Op::Unary(Unary(UnaryKind::Relu));
        let mut x = if relu { node.inputs[0] } else { value };
        let mut links = Vec::new();
        while let Some((inner, link)) =
            graph.node(x.node).inputs.iter().find_map(|&inner| Some((inner, link(graph, inner, x.node)?)))
        {
            links.push(link);
            x = inner;
        }
        links.reverse();
        let in_memory = !graph.node(x.node).op.is_pointwise();
        let needs_all = || graph.ancestors(links.iter().map(|link| link.operand.node))[x.node.index()];
        (in_memory && needs_all()).then_some(Map { x, scales: Scales::Links(links), relu })
    }

    /// That of a gate: it depends on all of what it is applied to, which is in memory therefore.
    fn of_gate(graph: &Graph, value: Value) -> Option<Map> {
        let Op::Binary(Binary(BinaryKind::Mul)) = graph.node(value.node).op else { return None };
        let [a, b] = graph.node(value.node).inputs[..] else { return None };
        let shape = graph.shape(value);
        let is_gate = |x: Value, gate: Value| {
            let fits = shape.rank() == 4 && graph.shape(x) == shape && *graph.shape(gate) == scales_by_image(shape);
            fits && graph.ancestors([gate.node].into_iter())[x.node.index()]
        };
        let (x, gate) = [(a, b), (b, a)].into_iter().find(|&(x, gate)| is_gate(x, gate))?;
        Some(Map { x, scales: Scales::Gate(gate), relu: false })
    }

    /// Scale and shift in the new graph.
    fn vectors(&self, graph: &Graph, node: NodeId, rewriter: &mut Rewriter<'_>) -> Result<[Value; 2], GraphError> {
        let channels = graph.shape(self.x).cols();
        let path = graph.path(node);
        let links: Vec<Link> = match &self.scales {
            Scales::Links(links) => {
                links.iter().map(|link| Link { operand: rewriter.get(link.operand), ..*link }).collect()
            }
            Scales::Gate(gate) => {
                let gate = rewriter.get(*gate);
                return rewriter.target().at_path(path, |g| Ok([gate, g.constant(DType::F32, [channels], 0.0)?]));
            }
        };
        rewriter.target().at_path(path, |g| {
            let [scale, shift] = scale_and_shift(g, &links)?;
            let mut vector = |value: Option<Value>, neutral: f64| match value {
                Some(value) if g.shape(value).rank() == 1 => Ok(value),
                Some(value) => {
                    let zeros = g.constant(DType::F32, [channels], 0.0)?;
                    g.add(zeros, value)
                }
                None => g.constant(DType::F32, [channels], neutral),
            };
            Ok([vector(scale, 1.0)?, vector(shift, 0.0)?])
        })
    }
}
