//! Chains of operations that scale and shift the channels of a value.

use crate::graph::{Graph, GraphError, NodeId, Value};
use crate::ops::Op;
use crate::ops::pointwise::{Binary, BinaryKind};

/// One step of a chain: the value, and an operand for each channel, or one for all.
#[derive(Clone, Copy)]
pub(super) struct Link {
    pub kind: BinaryKind,
    pub operand: Value,
}

/// What `node` does to `value`, if that is a link.
pub(super) fn link(graph: &Graph, value: Value, node: NodeId) -> Option<Link> {
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
    let keeps_shape = graph.shape(Value { node, output: 0 }) == graph.shape(value);
    (kind_fits && by_channel && keeps_shape).then_some(Link { kind, operand })
}

/// The scale and the shift, as nodes of `g`, that links in their order come to; `None` where nothing scales or shifts.
/// Operands are values of `g`.
pub(super) fn scale_and_shift(g: &mut Graph, links: &[Link]) -> Result<[Option<Value>; 2], GraphError> {
    let (mut scale, mut shift): (Option<Value>, Option<Value>) = (None, None);
    for &Link { kind, operand } in links {
        match (kind, shift) {
            (BinaryKind::Add, None) => shift = Some(operand),
            (BinaryKind::Sub, None) => shift = Some(g.neg(operand)?),
            (BinaryKind::Add | BinaryKind::Sub, Some(so_far)) => shift = Some(g.binary(kind, so_far, operand)?),
            _ => {
                scale = Some(match (kind, scale) {
                    (BinaryKind::Mul, None) => operand,
                    (kind, None) => {
                        let one = g.constant_like(operand, 1.0)?;
                        g.binary(kind, one, operand)?
                    }
                    (kind, Some(so_far)) => g.binary(kind, so_far, operand)?,
                });
                shift = shift.map(|shift| g.binary(kind, shift, operand)).transpose()?;
            }
        }
    }
    Ok([scale, shift])
}
