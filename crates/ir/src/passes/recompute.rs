//! Trades arithmetic for memory: activations that only the backward pass reads late are computed again there instead of being
//! kept. After T. Chen et al., "Training deep nets with sublinear memory cost" (2016).

use crate::autodiff::GRADIENT_PATH;
use crate::graph::{Graph, GraphError, Node, NodeId, Rewriter, Value};
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

/// Which activations the backward pass computes a second time instead of keeping them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recompute {
    /// Nothing.
    #[default]
    None,
    /// Pointwise chains behind one large tensor: the normalised activations of a convolutional network.
    Pointwise,
    /// Everything between two values that join several large tensors, such as the outputs of residual blocks, convolutions
    /// included.
    Blocks,
}

impl Recompute {
    /// All choices, in the order of falling memory.
    pub const ALL: [Recompute; 3] = [Recompute::None, Recompute::Pointwise, Recompute::Blocks];

    /// Name in recipes and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Recompute::None => "none",
            Recompute::Pointwise => "pointwise",
            Recompute::Blocks => "blocks",
        }
    }
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Recompute {
    type Err = String;

    fn from_str(text: &str) -> Result<Recompute, String> {
        let found = Recompute::ALL.into_iter().find(|level| level.name() == text);
        found.ok_or_else(|| format!("`{text}` is none of none, pointwise, blocks"))
    }
}

/// Prefix of the path of what is computed again; what follows is the path of the original.
pub const RECOMPUTE_PATH: &str = "recompute";

/// Whether a node is computed a second time.
pub(crate) fn is_recomputed(graph: &Graph, node: NodeId) -> bool {
    is_below(graph.path(node), RECOMPUTE_PATH)
}

fn is_below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// # Errors
/// Only if the graph was malformed.
pub fn recompute(graph: &Graph, level: Recompute) -> Result<Graph, GraphError> {
    let largest = graph.ids().filter_map(|id| activation_bytes(graph, id)).max().unwrap_or(0);
    let mut pass = Pass {
        graph,
        level,
        large: largest / SMALL_SHARE,
        joins: joins(graph, largest / SMALL_SHARE),
        rewriter: Rewriter::new(graph),
        again: HashMap::new(),
    };
    for id in graph.ids() {
        pass.visit(id)?;
    }
    pass.rewriter.finish()
}

/// Tensors below this share of the largest activation are not worth computing again.
const SMALL_SHARE: usize = 256;

/// Whether a node belongs to the backward pass.
fn is_backward(graph: &Graph, id: NodeId) -> bool {
    is_below(graph.path(id), GRADIENT_PATH)
}

/// Size of the first output of a forward node that is computed.
fn activation_bytes(graph: &Graph, id: NodeId) -> Option<usize> {
    let is_computed = !graph.node(id).op.rule().is_source();
    (is_computed && !is_backward(graph, id)).then(|| graph.node(id).outputs[0].bytes())
}

/// For each node whether it joins large tensors, or is computed from such a join alone by pointwise operations.
fn joins(graph: &Graph, large: usize) -> Vec<bool> {
    let mut joins = vec![false; graph.len()];
    for id in graph.ids().filter(|&id| graph.node(id).op.is_pointwise()) {
        let size = graph.node(id).outputs[0].shape.elements();
        let inputs = graph.node(id).inputs.iter();
        let tensors: Vec<Value> =
            inputs.copied().filter(|&v| graph.ty(v).bytes() > large && graph.shape(v).elements() == size).collect();
        joins[id.index()] = match tensors.as_slice() {
            [one] => joins[one.node.index()],
            several => several.len() > 1,
        };
    }
    joins
}

struct Pass<'a> {
    graph: &'a Graph,
    level: Recompute,
    /// Tensors up to this size are kept.
    large: usize,
    joins: Vec<bool>,
    rewriter: Rewriter<'a>,
    /// Values of the source that are computed again, in the new graph.
    again: HashMap<Value, Value>,
}

impl Pass<'_> {
    fn visit(&mut self, id: NodeId) -> Result<(), GraphError> {
        if !is_backward(self.graph, id) {
            return self.rewriter.copy(id);
        }
        let node = self.graph.node(id);
        let inputs = node.inputs.iter().map(|&v| self.late(v)).collect::<Result<Vec<_>, _>>()?;
        let path = self.graph.path(id);
        let outputs = self.rewriter.target().at_path(path, |g| g.push(node.op.clone(), &inputs))?;
        for (output, new) in outputs.into_iter().enumerate() {
            self.rewriter.set(Value { node: id, output: output as u32 }, new);
        }
        Ok(())
    }

    /// Whether the value stays in memory until the backward pass.
    fn is_kept(&self, value: Value) -> bool {
        let id = value.node;
        let Node { op, inputs, .. } = self.graph.node(id);
        // What a product is stored as.
        let is_rounded_product = op.cast_target().is_some() && !self.graph.node(inputs[0].node).op.is_pointwise();
        let repeatable = match self.level {
            Recompute::None => false,
            Recompute::Pointwise => op.is_pointwise() && !is_rounded_product,
            Recompute::Blocks => op.rule().is_recomputed_in_blocks(),
        };
        let is_small = activation_bytes(self.graph, id).is_none_or(|bytes| bytes <= self.large);
        is_small || !repeatable || self.joins[id.index()]
    }

    /// What the backward pass reads for a value of the source.
    fn late(&mut self, value: Value) -> Result<Value, GraphError> {
        if is_backward(self.graph, value.node) || self.is_kept(value) {
            return Ok(self.rewriter.get(value));
        }
        if let Some(&again) = self.again.get(&value) {
            return Ok(again);
        }
        let node = self.graph.node(value.node);
        let inputs = node.inputs.iter().map(|&v| self.late(v)).collect::<Result<Vec<_>, _>>()?;
        let path = match self.graph.path(value.node) {
            "" => RECOMPUTE_PATH.to_string(),
            path => format!("{RECOMPUTE_PATH}.{path}"),
        };
        let again = self.rewriter.target().at_path(&path, |g| g.push1(node.op.clone(), &inputs))?;
        self.again.insert(value, again);
        Ok(again)
    }
}
