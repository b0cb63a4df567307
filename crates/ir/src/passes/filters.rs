//! Gives weights of convolutions the order of axes that the target's kernels read: state that has the shape of such weights lies so, and
//! all that is computed from it element by element (copies of fewer bits, gradients, optimizers, averages) does too. What needs
//! another order is transposed.

use crate::graph::{Graph, GraphError, NodeId, Rewriter, Value};
use crate::ops::conv::{Conv2d, Conv2dDataGrad, Conv2dWeightGrad, Filter, Geometry};
use crate::ops::source::{Constant, Input};
use crate::ops::{Op, OpError};
use crate::plan::StateTensor;
use crate::rules::Rules;
use crate::shape::Shape;
use std::collections::{HashMap, HashSet};

/// # Errors
/// Only if the graph was malformed.
pub(super) fn filters(graph: &Graph, rules: &Rules) -> Result<Graph, GraphError> {
    if rules.filters == Filter::Hwio {
        return Ok(graph.clone());
    }
    let mut pass = Pass { graph, rules, rewriter: Rewriter::new(graph), there: HashMap::new(), plain: HashSet::new() };
    for id in graph.ids() {
        if !pass.rewritten(id)? {
            graph.node(id).inputs.iter().try_for_each(|&input| pass.plain(input))?;
            pass.rewriter.copy(id)?;
        }
    }
    graph.outputs().iter().try_for_each(|(_, value)| pass.plain(*value))?;
    let mut updated = HashMap::new();
    for &(state, new) in graph.updates() {
        match pass.turned(state).is_some() {
            true => updated.extend([(state, pass.ohwi(state)?), (new, pass.ohwi(new)?)]),
            false => pass.plain(new)?,
        }
    }
    pass.rewriter.finish_with(&updated)
}

struct Pass<'a> {
    graph: &'a Graph,
    rules: &'a Rules,
    rewriter: Rewriter<'a>,
    /// Values `[KH, KW, C, O]` that the new graph has as `[O, KH, KW, C]`: what they are there.
    there: HashMap<Value, Value>,
    /// Those of them that the new graph has as they were, too.
    plain: HashSet<Value>,
}

impl Pass<'_> {
    /// Lets the new graph have a value as it was.
    fn plain(&mut self, value: Value) -> Result<(), GraphError> {
        let Some(&there) = self.there.get(&value) else { return Ok(()) };
        if self.plain.insert(value) {
            let plain = self.rewriter.at(value.node, |g| g.transpose(there, &Filter::TO_HWIO))?;
            self.rewriter.set(value, plain);
        }
        Ok(())
    }

    /// A value as `[O, KH, KW, C]`.
    fn ohwi(&mut self, value: Value) -> Result<Value, GraphError> {
        if let Some(&there) = self.there.get(&value) {
            return Ok(there);
        }
        let plain = self.rewriter.get(value);
        let there = self.rewriter.at(value.node, |g| g.transpose(plain, &Filter::TO_OHWI))?;
        self.there.insert(value, there);
        self.plain.insert(value);
        Ok(there)
    }

    /// Computes a node on values in the other order; `false` where it is to be copied.
    fn rewritten(&mut self, id: NodeId) -> Result<bool, GraphError> {
        let node = self.graph.node(id);
        match &node.op {
            Op::Input(_) => self.state(id),
            Op::Reduce(reduce) if reduce.axes.len() == 4 => self.reduction(id),
            Op::AllReduce(_) => self.sum_over_ranks(id),
            op if op.is_pointwise() => self.pointwise(id),
            op => match self.with_filter(id, op) {
                Some(op) => self.convolution(id, op),
                None => Ok(false),
            },
        }
    }

    /// State that lies in another order, as it does.
    fn turned(&self, state: Value) -> Option<Input> {
        let input = self.graph.node(state.node).op.as_input().filter(|input| input.role.is_persistent())?;
        let StateTensor { name, ty, axes } = StateTensor::new(&input.name, &input.ty, self.rules);
        axes.is_some().then_some(Input { name, ty, axes, role: input.role })
    }

    fn state(&mut self, id: NodeId) -> Result<bool, GraphError> {
        let own = Value { node: id, output: 0 };
        let Some(input) = self.turned(own) else { return Ok(false) };
        let there = self.rewriter.at(id, |g| g.declare(input))?;
        self.there.insert(own, there);
        Ok(true)
    }

    /// A sum of all elements, whatever their order.
    fn reduction(&mut self, id: NodeId) -> Result<bool, GraphError> {
        let node = self.graph.node(id);
        let Some(&there) = self.there.get(&node.inputs[0]) else { return Ok(false) };
        let result = self.rewriter.at(id, |g| g.push1(node.op.clone(), &[there]))?;
        self.rewriter.set(Value { node: id, output: 0 }, result);
        Ok(true)
    }

    fn sum_over_ranks(&mut self, id: NodeId) -> Result<bool, GraphError> {
        let node = self.graph.node(id);
        let inputs: Vec<Value> = node.inputs.iter().map(|&input| self.either(input)).collect();
        let outputs = self.rewriter.at(id, |g| g.push(node.op.clone(), &inputs))?;
        for ((&input, new), output) in node.inputs.iter().zip(outputs).zip(0..) {
            let own = Value { node: id, output };
            match self.there.contains_key(&input) {
                true => drop(self.there.insert(own, new)),
                false => self.rewriter.set(own, new),
            }
        }
        Ok(true)
    }

    /// A value of the new graph, in the other order if it has that.
    fn either(&self, value: Value) -> Value {
        self.there.get(&value).copied().unwrap_or_else(|| self.rewriter.get(value))
    }

    fn pointwise(&mut self, id: NodeId) -> Result<bool, GraphError> {
        let (graph, own) = (self.graph, Value { node: id, output: 0 });
        let (node, shape) = (graph.node(id), graph.shape(own));
        let is_there = |input: &Value| self.there.contains_key(input) && graph.shape(*input) == shape;
        if !node.inputs.iter().any(is_there) {
            return Ok(false);
        }
        let numbers: Vec<Option<Number>> = node.inputs.iter().map(|&input| self.number(input)).collect();
        if !node.inputs.iter().zip(&numbers).all(|(input, number)| number.is_some() || is_there(input)) {
            return Ok(false);
        }
        let inputs = node.inputs.iter().zip(numbers).map(|(&input, number)| match number {
            Some(Number::Constant(constant)) => self.rewriter.at(id, |g| g.push1(constant, &[])),
            Some(Number::Value(value)) => Ok(self.rewriter.get(value)),
            None => Ok(self.either(input)),
        });
        let inputs = inputs.collect::<Result<Vec<Value>, _>>()?;
        let result = self.rewriter.at(id, |g| g.push1(node.op.clone(), &inputs))?;
        self.there.insert(own, result);
        Ok(true)
    }

    /// What is the same for all elements of a tensor.
    fn number(&self, value: Value) -> Option<Number> {
        let is_one = |value: &Value| self.graph.shape(*value).elements() == 1;
        if is_one(&value) && !self.there.contains_key(&value) {
            return Some(Number::Value(value));
        }
        let node = self.graph.node(value.node);
        match &node.op {
            Op::Broadcast(_) => node.inputs.first().copied().filter(is_one).map(Number::Value),
            Op::Constant(constant) => {
                let (dtype, number) = (constant.dtype, constant.uniform()?);
                Some(Number::Constant(Constant::splat(dtype, Shape::scalar(), number)))
            }
            _ => None,
        }
    }

    /// A convolution or one of its gradients with filters in the other order; `None` for depthwise ones, and other operations.
    fn with_filter(&self, id: NodeId, op: &Op) -> Option<Op> {
        let shapes = [0, 1].map(|input| self.graph.node(id).inputs.get(input).map(|&value| self.graph.shape(value)));
        let [Some(a), Some(b)] = shapes else { return None };
        let turned = |conv: &Conv2d| Conv2d { filter: Filter::Ohwi, ..*conv };
        let is_dense = |geometry: Result<_, OpError>| geometry.is_ok_and(|of: Geometry| !of.is_depthwise());
        match op {
            Op::Conv2d(conv) => is_dense(conv.geometry(a, b)).then(|| turned(conv).into()),
            Op::Conv2dDataGrad(grad) => {
                is_dense(grad.geometry(a, b)).then(|| Conv2dDataGrad { conv: turned(&grad.conv), ..*grad }.into())
            }
            Op::Conv2dWeightGrad(grad) => {
                is_dense(grad.geometry(a, b)).then(|| Conv2dWeightGrad { conv: turned(&grad.conv), ..*grad }.into())
            }
            _ => None,
        }
    }

    fn convolution(&mut self, id: NodeId, op: Op) -> Result<bool, GraphError> {
        let node = self.graph.node(id);
        let gives_filter = matches!(op, Op::Conv2dWeightGrad(_));
        let mut inputs = node.inputs.clone();
        for (number, input) in inputs.iter_mut().enumerate() {
            *input = match number == 1 && !gives_filter {
                true => self.ohwi(*input)?,
                false => {
                    self.plain(*input)?;
                    self.rewriter.get(*input)
                }
            };
        }
        let result = self.rewriter.at(id, |g| g.push1(op, &inputs))?;
        let own = Value { node: id, output: 0 };
        match gives_filter {
            true => drop(self.there.insert(own, result)),
            false => self.rewriter.set(own, result),
        }
        Ok(true)
    }
}

/// A number for all elements.
enum Number {
    /// The only element of a value of the source.
    Value(Value),
    /// All elements of a constant.
    Constant(Constant),
}
