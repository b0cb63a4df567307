//! Folds what scales and shifts the channels of a convolution or matrix product with fixed weights into the weights:
//! `(conv(x, w) - mean) * scale + shift` becomes `conv(x, w * scale) + (shift - mean * scale)`. With running statistics, a
//! batch norm disappears this way.

use super::fixed::Fixed;
use crate::graph::{Graph, GraphError, NodeId, Rewriter, Value};
use crate::ops::Op;
use crate::ops::pointwise::{Binary, BinaryKind};
use std::collections::{HashMap, HashSet};

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

/// One step of the way from a product to what is made of it, with a fixed operand for each channel, or one for all.
#[derive(Clone, Copy)]
struct Link {
    kind: BinaryKind,
    operand: Value,
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
    let fixed = Fixed::of(graph);
    let consumers = graph.consumers();
    let results: HashSet<Value> = graph.roots().collect();
    let mut chains = HashMap::new();
    for id in graph.ids() {
        let node = graph.node(id);
        let has_columns_of_weights = match &node.op {
            Op::Conv2d(_) => true,
            Op::Matmul(matmul) => !matmul.trans_b && graph.shape(node.inputs[1]).rank() == 2,
            _ => false,
        };
        if !has_columns_of_weights || !fixed.is_fixed(node.inputs[1].node) || fixed.is_fixed(id) {
            continue;
        }
        let mut chain = Chain { product: id, links: Vec::new(), inner: Vec::new() };
        let mut last = id;
        while let ([next], false) = (consumers[last.index()].as_slice(), results.contains(&first_output(last)))
            && let Some(link) = link(graph, &fixed, first_output(last), *next)
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

/// What `node` does to `value`, if that is a link.
fn link(graph: &Graph, fixed: &Fixed, value: Value, node: NodeId) -> Option<Link> {
    let Op::Binary(Binary(kind)) = graph.node(node).op else { return None };
    let inputs = &graph.node(node).inputs;
    let position = inputs.iter().position(|&v| v == value)?;
    let operand = inputs[1 - position];
    let kind_fits = match kind {
        BinaryKind::Add | BinaryKind::Mul => true,
        BinaryKind::Sub | BinaryKind::Div => position == 0,
        _ => false,
    };
    let shape = graph.shape(operand);
    let by_channel = shape.elements() == 1 || (shape.rank() == 1 && shape[0] == graph.shape(value).cols());
    let keeps_shape = graph.shape(first_output(node)) == graph.shape(value);
    (kind_fits && by_channel && keeps_shape && fixed.is_fixed(operand.node)).then_some(Link { kind, operand })
}

impl Chain {
    fn fold(&self, graph: &Graph, rewriter: &mut Rewriter<'_>) -> Result<Value, GraphError> {
        let product = graph.node(self.product);
        let operands: Vec<Value> = self.links.iter().map(|link| rewriter.get(link.operand)).collect();
        let (x, w) = (rewriter.get(product.inputs[0]), rewriter.get(product.inputs[1]));
        let path = graph.path(self.product).to_string();
        rewriter.target().at_path(&path, |g| {
            let (mut scale, mut shift): (Option<Value>, Option<Value>) = (None, None);
            for (link, &operand) in self.links.iter().zip(&operands) {
                match link.kind {
                    BinaryKind::Add => {
                        shift = Some(match shift {
                            Some(shift) => g.add_(shift, operand)?,
                            None => operand,
                        });
                    }
                    BinaryKind::Sub => {
                        shift = Some(match shift {
                            Some(shift) => g.sub(shift, operand)?,
                            None => g.neg(operand)?,
                        });
                    }
                    kind => {
                        let one = g.constant_like(operand, 1.0)?;
                        scale = Some(g.binary(kind, scale.unwrap_or(one), operand)?);
                        shift = shift.map(|shift| g.binary(kind, shift, operand)).transpose()?;
                    }
                }
            }
            let w = match scale {
                Some(scale) => g.mul(w, scale)?,
                None => w,
            };
            let y = g.add1(product.op.clone(), &[x, w])?;
            match shift {
                Some(shift) => g.add_(y, shift),
                None => Ok(y),
            }
        })
    }
}
