//! Folds what scales and shifts the channels of a convolution or matrix product with invariant weights into the weights:
//! `(conv(x, w) - mean) * scale + shift` becomes `conv(x, w * scale) + (shift - mean * scale)`. With running statistics, a
//! batch norm disappears this way.

use super::channels::{Link, link, scale_and_shift};
use super::invariant::Invariant;
use crate::graph::{Graph, GraphError, NodeId, Rewriter, Value};
use crate::ops::pointwise::BinaryKind;
use std::collections::{HashMap, HashSet};

/// Folds the scales and shifts behind products with invariant weights into those weights.
///
/// # Errors
/// Only if the graph was malformed.
pub fn fold(graph: &Graph) -> Result<Graph, GraphError> {
    let chains = find_chains(graph);
    let inside: HashSet<NodeId> = chains.values().flat_map(|c| c.inner.iter().copied()).collect();
    let mut rewriter = Rewriter::new(graph);
    for id in graph.ids().filter(|id| !inside.contains(id)) {
        match chains.get(&id) {
            None => rewriter.copy(id)?,
            Some(chain) => {
                let folded = chain.fold(graph, &mut rewriter)?;
                rewriter.set(first_output(id), folded);
            }
        }
    }
    rewriter.finish()
}

/// A product and the links behind it.
struct Chain {
    product: NodeId,
    links: Vec<Link>,
    /// Product and links but for the last, which are read by nobody else.
    inner: Vec<NodeId>,
}

fn first_output(node: NodeId) -> Value {
    Value { node, output: 0 }
}

/// The chains that scale, by their last node.
fn find_chains(graph: &Graph) -> HashMap<NodeId, Chain> {
    let invariant = Invariant::of(graph);
    let consumers = graph.consumers();
    let results: HashSet<Value> = graph.roots().collect();
    let mut chains = HashMap::new();
    for id in graph.ids() {
        let node = graph.node(id);
        let has_weight_columns = node.op.rule().scales_with_weight_columns(&graph.input_types(id));
        if !has_weight_columns || !invariant.is_invariant(node.inputs[1].node) || invariant.is_invariant(id) {
            continue;
        }
        let mut chain = Chain { product: id, links: Vec::new(), inner: Vec::new() };
        let mut last = id;
        while let ([next], false) = (consumers[last.index()].as_slice(), results.contains(&first_output(last)))
            && let Some(link) =
                link(graph, first_output(last), *next).filter(|link| invariant.is_invariant(link.operand.node))
        {
            chain.inner.push(last);
            chain.links.push(link);
            last = *next;
        }
        if chain.links.iter().any(|link| matches!(link.kind, BinaryKind::Mul | BinaryKind::Div)) {
            chains.insert(last, chain);
        }
    }
    chains
}

impl Chain {
    fn fold(&self, graph: &Graph, rewriter: &mut Rewriter<'_>) -> Result<Value, GraphError> {
        let product = graph.node(self.product);
        let links: Vec<Link> =
            self.links.iter().map(|link| Link { operand: rewriter.get(link.operand), ..*link }).collect();
        let (x, w) = (rewriter.get(product.inputs[0]), rewriter.get(product.inputs[1]));
        let path = graph.path(self.product).to_string();
        rewriter.target().at_path(&path, |g| {
            let [scale, shift] = scale_and_shift(g, &links)?;
            let w = match scale {
                Some(scale) => g.mul(w, scale)?,
                None => w,
            };
            let y = g.push1(product.op.clone(), &[x, w])?;
            match shift {
                Some(shift) => g.add(y, shift),
                None => Ok(y),
            }
        })
    }
}
