//! Products of the first items of a batch, for targets whose kernels take all of it: the items behind are zeros then.

use crate::dtype::DType;
use crate::graph::{Graph, GraphError, NodeId, Rewriter, Value};
use crate::ops::Op;
use crate::ops::Scalar;
use crate::ops::limited::Limited;
use crate::ops::pointwise::BinaryKind;
use crate::ops::source::Constant;
use std::collections::HashMap;

/// # Errors
/// Only if the graph was malformed.
pub(super) fn limits(graph: &Graph) -> Result<Graph, GraphError> {
    let mut pass = Pass { graph, rewriter: Rewriter::new(graph), masks: HashMap::new(), first: HashMap::new() };
    for id in graph.ids() {
        match &graph.node(id).op {
            Op::Limited(limited) => pass.product(id, limited)?,
            _ => pass.rewriter.copy(id)?,
        }
    }
    pass.rewriter.finish()
}

struct Pass<'a> {
    graph: &'a Graph,
    rewriter: Rewriter<'a>,
    /// For a count and a number of items, `bool[items, 1, 1, 1]`: whether an item is one of the first.
    masks: HashMap<(Value, usize), Value>,
    /// For a value of the source and a count, that value with zeros behind the first items.
    first: HashMap<(Value, Value), Value>,
}

impl Pass<'_> {
    fn product(&mut self, id: NodeId, limited: &Limited) -> Result<(), GraphError> {
        let node = self.graph.node(id);
        let (operands, count) = (&node.inputs[..2], node.inputs[2]);
        let items = limited.operands_of_items();
        let inputs = operands.iter().enumerate().map(|(operand, &value)| match operand < items {
            true => self.first(id, value, count),
            false => Ok(self.rewriter.get(value)),
        });
        let inputs = inputs.collect::<Result<Vec<Value>, _>>()?;
        let result = self.rewriter.at(id, |g| g.push1((*limited.op).clone(), &inputs))?;
        self.rewriter.set(Value { node: id, output: 0 }, result);
        Ok(())
    }

    fn first(&mut self, id: NodeId, value: Value, count: Value) -> Result<Value, GraphError> {
        if let Some(&first) = self.first.get(&(value, count)) {
            return Ok(first);
        }
        let mask = self.mask(id, count, self.graph.shape(value)[0])?;
        let all = self.rewriter.get(value);
        let first = self.rewriter.at(id, |g| {
            let zero = g.constant_like(all, 0.0)?;
            g.select(mask, all, zero)
        })?;
        self.first.insert((value, count), first);
        Ok(first)
    }

    fn mask(&mut self, id: NodeId, count: Value, items: usize) -> Result<Value, GraphError> {
        if let Some(&mask) = self.masks.get(&(count, items)) {
            return Ok(mask);
        }
        let there = self.rewriter.get(count);
        let mask = self.rewriter.at(id, |g| {
            let data = (0..items).map(|item| Scalar(item as f64)).collect();
            let item = g.push1(Constant { dtype: DType::F32, shape: [items, 1, 1, 1].into(), data }, &[])?;
            let count = g.cast(there, DType::F32)?;
            g.binary(BinaryKind::Lt, item, count)
        })?;
        self.masks.insert((count, items), mask);
        Ok(mask)
    }
}
