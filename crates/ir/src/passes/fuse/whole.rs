//! Sums of all elements of a tensor that one fusion computes: what it adds depends on the elements' own positions and on single
//! numbers alone, so that it can take the tensor as one run of elements.

use crate::dtype::DType;
use crate::graph::{Graph, NodeId, Value};
use crate::ops::Op;
use crate::ops::reduce::{Reduce, ReduceKind};
use std::collections::HashSet;

/// Whether the node adds a tensor of several elements over all its axes, which are computed from others at the same position and from
/// single numbers.
pub(super) fn is_whole_sum(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    let Op::Reduce(Reduce { kind: ReduceKind::Sum, axes, .. }) = &node.op else { return false };
    let x = node.inputs[0];
    let (shape, elements) = (graph.shape(x), graph.shape(x).elements());
    graph.dtype(x) == DType::F32 && elements > 1 && axes.len() == shape.rank() && is_of_elements(graph, x, elements)
}

/// Whether the value's elements, of which there are so many, are computed by pointwise operations from others at the same position
/// and from single numbers.
fn is_of_elements(graph: &Graph, value: Value, elements: usize) -> bool {
    let mut stack = vec![value];
    let mut seen = HashSet::new();
    while let Some(value) = stack.pop() {
        let node = graph.node(value.node);
        match graph.shape(value).elements() {
            1 => continue,
            own if own != elements => return false,
            _ => (),
        }
        match &node.op {
            op if op.is_pointwise() => stack.extend(node.inputs.iter().filter(|input| seen.insert(**input))),
            Op::Broadcast(_) if graph.shape(node.inputs[0]).elements() != 1 => return false,
            Op::Softmax(_) | Op::LogSoftmax(_) | Op::OneHot(_) => return false,
            _ => (),
        }
    }
    true
}
