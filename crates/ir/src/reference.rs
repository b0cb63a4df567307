//! The reference interpreter: runs a graph node by node with the reference kernels, all numbers in `f64`.

use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::ops::Op;
use crate::ops::collective::AllReduce;
use crate::shape::TensorType;
use std::collections::HashMap;

/// A dense row-major tensor whose elements are held as `f64`, whatever their type.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Element type and shape.
    pub ty: TensorType,
    /// Elements in row-major order.
    pub data: Vec<f64>,
}

impl Tensor {
    /// A tensor of these elements, in row-major order.
    ///
    /// # Panics
    /// If `data` does not fill the shape.
    pub fn new(ty: TensorType, data: Vec<f64>) -> Self {
        assert_eq!(ty.shape.elements(), data.len(), "data does not fill {ty}");
        Tensor { ty, data }
    }

    /// Elements as a function of their row-major position.
    pub fn from_fn(ty: TensorType, f: impl FnMut(usize) -> f64) -> Self {
        let data = (0..ty.shape.elements()).map(f).collect();
        Tensor { ty, data }
    }

    /// A tensor of zeros.
    pub fn zeros(ty: TensorType) -> Self {
        Tensor::from_fn(ty, |_| 0.0)
    }

    /// A tensor of rank 0.
    pub fn scalar(dtype: DType, value: f64) -> Self {
        Tensor::new(TensorType::new(dtype, []), vec![value])
    }

    /// Row-major position of the element that stands at `index` of `target` when this tensor is broadcast to it.
    pub fn broadcast_index(&self, target: &[usize], index: usize) -> usize {
        broadcast_index(&self.ty.shape, target, index)
    }
}

/// Row-major position in `shape` of the element at position `index` of the shape it broadcasts to.
pub fn broadcast_index(shape: &[usize], target: &[usize], mut index: usize) -> usize {
    let mut position = 0;
    let mut stride = 1;
    for (axis, &size) in target.iter().enumerate().rev() {
        let coordinate = index % size;
        index /= size;
        let missing = target.len() - shape.len();
        if axis >= missing {
            let own = shape[axis - missing];
            if own != 1 {
                position += coordinate * stride;
            }
            stride *= own;
        }
    }
    position
}

/// Runs steps of a graph, keeping its state.
pub struct Interpreter<'a> {
    graph: &'a Graph,
    inputs: HashMap<Value, Tensor>,
    outputs: HashMap<String, Tensor>,
}

impl<'a> Interpreter<'a> {
    /// All inputs start as zeros.
    pub fn new(graph: &'a Graph) -> Self {
        let inputs = graph.inputs().map(|(value, input)| (value, Tensor::zeros(input.ty.clone()))).collect();
        Interpreter { graph, inputs, outputs: HashMap::new() }
    }

    /// Sets an input by name.
    ///
    /// # Panics
    /// If there is no such input or it has another size.
    pub fn set(&mut self, name: &str, data: &[f64]) {
        let value = self.graph.find_input(name).unwrap_or_else(|| panic!("no input named {name}"));
        let ty = self.graph.ty(value).clone();
        self.inputs.insert(value, Tensor::new(ty, data.to_vec()));
    }

    /// The present content of an input.
    ///
    /// # Panics
    /// If there is no such input.
    pub fn input(&self, name: &str) -> &Tensor {
        let value = self.graph.find_input(name).unwrap_or_else(|| panic!("no input named {name}"));
        &self.inputs[&value]
    }

    /// A result of the last step.
    ///
    /// # Panics
    /// If there is no such output or no step ran.
    pub fn output(&self, name: &str) -> &Tensor {
        &self.outputs[name]
    }

    /// Runs a micro-batch that is not the last of its step: computes the accumulation phase, then replaces the state that is
    /// replaced after every micro-batch.
    pub fn accumulate(&mut self) {
        accumulate_ranks(std::slice::from_mut(self));
    }

    /// Runs one step, or the last micro-batch of one: computes every node, then replaces the state.
    pub fn run(&mut self) {
        run_ranks(std::slice::from_mut(self));
    }

    fn replace_state(&mut self, values: &HashMap<Value, Tensor>, is_due: impl Fn(&Graph, Value) -> bool) {
        for (state, new) in self.graph.updates().iter().filter(|(state, _)| is_due(self.graph, *state)) {
            self.inputs.insert(*state, values[new].clone());
        }
    }
}

/// Runs a micro-batch that is not the last of its step on each rank of a job: see [`Interpreter::accumulate`].
pub fn accumulate_ranks(ranks: &mut [Interpreter<'_>]) {
    let chosen = ranks[0].graph.accumulation_phase();
    let values = compute(&ranks.iter().collect::<Vec<_>>(), &chosen);
    for (rank, values) in ranks.iter_mut().zip(&values) {
        rank.replace_state(values, |graph, state| graph.is_per_micro_batch(state));
    }
}

/// Runs one step, or the last micro-batch of one, of all ranks of a job, which exchange what their collectives read. All have the
/// same graph.
pub fn run_ranks(ranks: &mut [Interpreter<'_>]) {
    let chosen = vec![true; ranks[0].graph.len()];
    let values = compute(&ranks.iter().collect::<Vec<_>>(), &chosen);
    for (rank, values) in ranks.iter_mut().zip(&values) {
        rank.outputs = rank.graph.outputs().iter().map(|(name, v)| (name.clone(), values[v].clone())).collect();
        rank.replace_state(values, |_, _| true);
    }
}

/// For each rank the values of the chosen nodes that are results or replace state.
fn compute(ranks: &[&Interpreter<'_>], chosen: &[bool]) -> Vec<HashMap<Value, Tensor>> {
    let graph = ranks[0].graph;
    let mut values: Vec<HashMap<Value, Tensor>> = vec![HashMap::new(); ranks.len()];
    let last_use = last_uses(graph);
    for id in graph.ids().filter(|id| chosen[id.index()]) {
        let node = graph.node(id);
        for (number, rank) in ranks.iter().enumerate() {
            let outputs = match &node.op {
                Op::Input(_) => vec![rank.inputs[&Value { node: id, output: 0 }].clone()],
                Op::AllReduce(_) => reduced(&node.inputs, &values),
                Op::AllReduceWait(_) => reduced(&graph.node(node.inputs[0].node).inputs, &values),
                op => {
                    let inputs: Vec<&Tensor> = node.inputs.iter().map(|v| &values[number][v]).collect();
                    op.rule().evaluate(&inputs, &node.outputs)
                }
            };
            for (output, tensor) in outputs.into_iter().enumerate() {
                debug_assert_eq!(tensor.ty, node.outputs[output], "{} returned another type", node.op);
                values[number].insert(Value { node: id, output: output as u32 }, tensor);
            }
        }
        for values in &mut values {
            values.retain(|v, _| last_use[v.node.index()] > id.index() || v.node == id);
        }
    }
    values
}

/// The sums of tensors over all ranks.
fn reduced(inputs: &[Value], values: &[HashMap<Value, Tensor>]) -> Vec<Tensor> {
    let of_all = |v: &Value| values.iter().map(|values| &values[v]).collect::<Vec<_>>();
    inputs.iter().map(|v| AllReduce::reduce(&of_all(v))).collect()
}

/// For each node the last one that reads it.
fn last_uses(graph: &Graph) -> Vec<usize> {
    let mut last_use = vec![0; graph.len()];
    for id in graph.ids() {
        for input in &graph.node(id).inputs {
            last_use[input.node.index()] = id.index();
            // What a start reads is looked up by the wait for it.
            if let Op::AllReduceStart(_) = &graph.node(input.node).op {
                graph.node(input.node).inputs.iter().for_each(|read| last_use[read.node.index()] = id.index());
            }
        }
    }
    graph.roots().for_each(|root| last_use[root.node.index()] = usize::MAX);
    last_use
}
