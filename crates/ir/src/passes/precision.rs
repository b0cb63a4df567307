//! Puts a step of `f32` numbers into mixed precision: tensors lie in memory, and products read them, in a type of 16 bits.
//!
//! - Convolutions, matrix products and attention read 16-bit operands; they accumulate and give `f32`, attention 16 bits if the
//!   target's rules say so.
//!   What a matrix product gives is rounded behind its bias if these say so.
//! - Maximum pooling and its gradient read and give 16-bit numbers.
//! - What they read, and what those with weights give, is rounded once, where it is computed; gradients of the weights of
//!   convolutions if the target's rules say so. Only what softmax is made of, and results of the step that are no convolution's,
//!   stay `f32`. Everyone else who reads it reads the rounded numbers. Gradients that several operations
//!   read are rounded likewise.
//! - Parameters keep their `f32` master; products read a rounded copy. Optimizers, statistics of norms, softmax, losses and all
//!   arithmetic between loading and storing stay `f32`.
//!
//! After P. Micikevicius et al., "Mixed precision training" (2018).

use crate::autodiff::GRADIENT_PATH;
use crate::dtype::DType;
use crate::graph::{Graph, GraphError, NodeId, Rewriter, Value};
use crate::ops::pointwise::{Binary, BinaryKind};
use crate::ops::{LowOperands, LowResult, MixedPrecision, Op};
use crate::rules::Rules;
use std::collections::{HashMap, HashSet};

/// # Errors
/// Only if the graph was malformed.
pub fn lower_precision(graph: &Graph, rules: &Rules, to: DType) -> Result<Graph, GraphError> {
    let from_state = from_state(graph);
    let mut pass = Lowering {
        graph,
        rules,
        to,
        rewriter: Rewriter::new(graph),
        rounded: values_to_round(graph, rules, &from_state),
        from_state,
        copies: HashMap::new(),
    };
    for id in graph.ids() {
        pass.visit(id)?;
    }
    pass.rewriter.finish()
}

/// Nodes that depend on parameters and state alone.
fn from_state(graph: &Graph) -> Vec<bool> {
    let mut from_state = vec![false; graph.len()];
    for id in graph.ids() {
        from_state[id.index()] = match graph.node(id).op.as_input() {
            Some(input) => input.role.is_persistent(),
            None => graph.node(id).inputs.iter().all(|v| from_state[v.node.index()]),
        };
    }
    from_state
}

/// Nodes whose value a softmax, or a result of the step, is made of by pointwise operations.
fn makes_results(graph: &Graph, rules: &Rules) -> Vec<bool> {
    let mut makes = vec![false; graph.len()];
    for (_, value) in graph.outputs() {
        makes[value.node.index()] = true;
    }
    for id in graph.ids().rev() {
        let node = graph.node(id);
        let MixedPrecision { operands, result } = node.op.rule().mixed_precision(rules);
        let passes_on = makes[id.index()] && (node.op.is_pointwise() || result.is_moved());
        if passes_on || operands == LowOperands::StayF32 {
            node.inputs.iter().for_each(|v| makes[v.node.index()] = true);
        }
    }
    makes
}

/// `f32` values that are stored rounded.
fn values_to_round(graph: &Graph, rules: &Rules, from_state: &[bool]) -> HashSet<Value> {
    let consumers = graph.consumers();
    let makes_results = makes_results(graph, rules);
    let mut rounded = HashSet::new();
    for id in graph.ids().rev() {
        let node = graph.node(id);
        let own = Value { node: id, output: 0 };
        let MixedPrecision { operands, result } = node.op.rule().mixed_precision(rules);
        rounded.extend(node.inputs.iter().enumerate().filter(|&(input, _)| operands.reads(input)).map(|(_, &v)| v));
        let has_weights = || node.inputs.iter().any(|v| from_state[v.node.index()]);
        let makes_results = makes_results[id.index()];
        let is_rounded = match result {
            LowResult::Unchanged => false,
            LowResult::Rounded | LowResult::OfOperands => true,
            LowResult::RoundedWithWeights => has_weights() && !makes_results,
            LowResult::Moved => rounded.contains(&own),
            LowResult::MovedAndRounded => !makes_results || rounded.contains(&own),
        };
        if is_rounded && result.is_moved() {
            rounded.insert(node.inputs[0]);
        }
        let is_shared_gradient = matches!(node.op, Op::Select(_) | Op::Binary(Binary(BinaryKind::Add)))
            && graph.path(id).starts_with(GRADIENT_PATH)
            && graph.shape(own).rank() >= 3
            && consumers[id.index()].len() > 1;
        if is_rounded || is_shared_gradient {
            let sum = rules.biases_before_rounding.then(|| with_bias(graph, from_state, id, &consumers)).flatten();
            rounded.insert(sum.unwrap_or(own));
        }
    }
    rounded.retain(|&v| graph.dtype(v) == DType::F32);
    rounded
}

/// The sum of a matrix product with its bias, a vector by columns, where that alone reads the product, and is not computed with what
/// reduces whole rows.
fn with_bias(graph: &Graph, from_state: &[bool], id: NodeId, consumers: &[Vec<NodeId>]) -> Option<Value> {
    let (Op::Matmul(_), &[consumer]) = (&graph.node(id).op, &consumers[id.index()][..]) else { return None };
    let Op::Binary(Binary(BinaryKind::Add)) = graph.node(consumer).op else { return None };
    let (product, sum) = (Value { node: id, output: 0 }, Value { node: consumer, output: 0 });
    let other = graph.node(consumer).inputs.iter().copied().find(|&input| input != product)?;
    let is_vector = graph.shape(other).elements() == graph.shape(product).cols();
    let is_bias = is_vector && from_state[other.node.index()] && graph.shape(sum) == graph.shape(product);
    (is_bias && !meets_row_reduction(graph, consumer, consumers)).then_some(sum)
}

/// Whether a reduction along rows reads what pointwise operations make of a node.
fn meets_row_reduction(graph: &Graph, id: NodeId, consumers: &[Vec<NodeId>]) -> bool {
    let (mut open, mut seen) = (vec![id], HashSet::new());
    while let Some(id) = open.pop() {
        let rank = graph.shape(Value { node: id, output: 0 }).rank();
        for &consumer in &consumers[id.index()] {
            match &graph.node(consumer).op {
                Op::Reduce(reduce) if reduce.axes.iter().any(|&axis| axis + 1 == rank) => return true,
                op if op.is_pointwise() && seen.insert(consumer) => open.push(consumer),
                _ => (),
            }
        }
    }
    false
}

struct Lowering<'a> {
    graph: &'a Graph,
    rules: &'a Rules,
    to: DType,
    rewriter: Rewriter<'a>,
    from_state: Vec<bool>,
    rounded: HashSet<Value>,
    /// The 16-bit copy of values of the new graph.
    copies: HashMap<Value, Value>,
}

impl Lowering<'_> {
    fn visit(&mut self, id: NodeId) -> Result<(), GraphError> {
        let node = self.graph.node(id);
        let operands = node.op.rule().mixed_precision(self.rules).operands;
        let inputs = || node.inputs.iter().enumerate().map(|(input, &v)| (operands.reads(input), v));
        let mut multiplied = inputs().filter(|(is_low, _)| *is_low).map(|(_, v)| v).peekable();
        if multiplied.peek().is_none() || multiplied.any(|v| self.graph.dtype(v) != DType::F32) {
            self.rewriter.copy(id)?;
        } else {
            let path = self.graph.path(id).to_string();
            let operand = |(is_low, v)| if is_low { self.low(v) } else { Ok(self.rewriter.get(v)) };
            let inputs = inputs().map(operand).collect::<Result<Vec<_>, _>>()?;
            let op = node.op.rule().in_16_bits(self.rules, self.to).unwrap_or_else(|| node.op.clone());
            let results = self.rewriter.target().at_path(&path, |g| g.push(op, &inputs))?;
            for (output, result) in results.into_iter().enumerate() {
                let value = Value { node: id, output: output as u32 };
                if self.rewriter.target().dtype(result) == self.to {
                    self.set_low(value, result)?;
                } else {
                    self.rewriter.set(value, result);
                }
            }
        }
        for output in 0..node.outputs.len() as u32 {
            self.round(Value { node: id, output })?;
        }
        Ok(())
    }

    /// Lets all later readers of a value read its rounded form.
    fn round(&mut self, value: Value) -> Result<(), GraphError> {
        if !self.rounded.contains(&value) || self.from_state[value.node.index()] {
            return Ok(());
        }
        let low = self.low(value)?;
        self.set_low(value, low)
    }

    /// Lets all later readers of a value read this 16-bit form of it.
    fn set_low(&mut self, value: Value, low: Value) -> Result<(), GraphError> {
        let wide = self.rewriter.target().at_path(self.graph.path(value.node), |g| g.cast(low, DType::F32))?;
        self.copies.insert(wide, low);
        self.rewriter.set(value, wide);
        Ok(())
    }

    /// The 16-bit copy of a value of the source.
    fn low(&mut self, value: Value) -> Result<Value, GraphError> {
        let wide = self.rewriter.get(value);
        if let Some(&low) = self.copies.get(&wide) {
            return Ok(low);
        }
        let to = self.to;
        let target = self.rewriter.target();
        let node = target.node(wide.node);
        let widens = node.op.cast_target() == Some(DType::F32) && target.dtype(node.inputs[0]) == to;
        let moves =
            node.op.rule().mixed_precision(self.rules).result.is_moved() && self.copies.contains_key(&node.inputs[0]);
        let low = if widens {
            node.inputs[0]
        } else if moves {
            let (op, mut inputs) = (node.op.clone(), node.inputs.clone());
            inputs[0] = self.copies[&inputs[0]];
            target.at_path(self.graph.path(value.node), |g| g.push1(op, &inputs))?
        } else {
            target.at_path(self.graph.path(value.node), |g| g.cast(wide, to))?
        };
        self.copies.insert(wide, low);
        Ok(low)
    }
}
