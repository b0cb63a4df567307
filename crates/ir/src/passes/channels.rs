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

/// The scale and the shift, as nodes of `g`, that links in their order come to, each `[channels]` or a scalar; `None` where nothing scales
/// or shifts. Operands are values of `g`.
pub(super) fn scale_and_shift(g: &mut Graph, links: &[Link]) -> Result<[Option<Value>; 2], GraphError> {
    let (mut scale, mut shift): (Option<Value>, Option<Value>) = (None, None);
    for &Link { kind, operand } in links {
        // One number for all channels may have axes, which what is computed from it and from a vector would have, too.
        let operand = if g.shape(operand).elements() == 1 { g.reshape(operand, [])? } else { operand };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Role;
    use crate::shape::TensorType;

    /// Results have no axis but that of the channels, whatever axes the operands for all channels have.
    #[test]
    fn one_number_for_all_channels_may_have_axes() {
        let mut g = Graph::new();
        let mut operand = |shape: &[usize]| {
            let name = format!("{shape:?}");
            g.input(&name, Role::Feed, TensorType::f32(shape)).unwrap()
        };
        let [vector, number] = [operand(&[4]), operand(&[1, 1, 1, 1])];
        let link = |kind, operand| Link { kind, operand };
        let (mul, add) = (BinaryKind::Mul, BinaryKind::Add);
        for (links, expected) in [
            (vec![link(mul, vector), link(add, number)], [Some(vec![4]), Some(vec![])]),
            (vec![link(add, number), link(mul, vector)], [Some(vec![4]), Some(vec![4])]),
            (vec![link(mul, vector), link(BinaryKind::Div, number)], [Some(vec![4]), None]),
            (vec![link(mul, number), link(BinaryKind::Sub, vector)], [Some(vec![]), Some(vec![4])]),
        ] {
            let made = scale_and_shift(&mut g, &links).unwrap();
            assert_eq!(made.map(|value| value.map(|value| g.shape(value).dims().to_vec())), expected);
        }
    }
}
