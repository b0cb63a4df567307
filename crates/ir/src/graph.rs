//! The graph: one step with static shapes, as an append-only list of nodes.

use crate::dtype::DType;
use crate::ops::{Op, OpError, source};
use crate::plan::UnsupportedOps;
use crate::shape::{Shape, TensorType};
use std::collections::{HashMap, HashSet};

/// Index of a node in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl NodeId {
    /// Position in [`Graph::nodes`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One output of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value {
    /// The node that computes it.
    pub node: NodeId,
    /// Position in [`Node::outputs`].
    pub output: u32,
}

/// What an input of the graph is to the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Written by the caller before each step (images, labels).
    Feed,
    /// A trained weight: kept between steps, receives a gradient, replaced by the step.
    Parameter,
    /// Kept between steps without a gradient: running statistics, momenta, averages, the step counter.
    State,
}

impl Role {
    /// Whether the tensor lives from step to step.
    pub fn is_persistent(self) -> bool {
        self != Role::Feed
    }
}

/// An operation applied to values, at a path of the model.
#[derive(Clone, Debug)]
pub struct Node {
    /// The operation with its attributes.
    pub op: Op,
    /// Operands in the order that the operation defines; all belong to earlier nodes.
    pub inputs: Vec<Value>,
    /// Type of each output.
    pub outputs: Vec<TensorType>,
    path: u32,
}

/// What can be wrong with a graph.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum GraphError {
    #[error(transparent)]
    Op(Box<RefusedOp>),
    #[error("two inputs of the graph are named `{0}`")]
    DuplicateName(String),
    #[error("`{name}` is {state} but is to be replaced by {new}")]
    UpdateType { name: String, state: TensorType, new: TensorType },
    #[error("`{0}` is replaced twice in one step")]
    DoubleUpdate(String),
    #[error("`{0}` is not state: only parameters and state can be replaced by the step")]
    NotState(String),
    #[error("the loss must be one f32 number, it is {0}")]
    LossType(TensorType),
    #[error("no gradient: {op} at `{path}` is not differentiable, and lies between the loss and {wanted}")]
    NotDifferentiable { op: String, path: String, wanted: String },
    #[error("the loss does not depend on these trainable parameters: {}", .0.join(", "))]
    Unreached(Vec<String>),
    #[error(transparent)]
    Unsupported(UnsupportedOps),
    #[error("malformed graph after {pass}: {problem}")]
    Malformed { pass: String, problem: String },
}

/// An operation that does not accept its inputs.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{op} at `{path}`: {problem} (inputs: {})", list(.inputs))]
pub struct RefusedOp {
    /// The operation with its attributes, as printed.
    pub op: String,
    /// Path of the model at which it was added.
    pub path: String,
    /// What the operation rejected.
    pub problem: OpError,
    /// Types of its inputs.
    pub inputs: Vec<TensorType>,
}

/// Types one after the other, as in messages.
fn list(types: &[TensorType]) -> String {
    types.iter().map(TensorType::to_string).collect::<Vec<_>>().join(", ")
}

/// A step: nodes in an order in which every node comes after those it reads.
///
/// A step may take several micro-batches. Updates then are of two kinds: those done after every micro-batch, and those done
/// once, after the last one. What the former are computed from is the *accumulation
/// phase*, which runs for each micro-batch; the rest of the step, the *update phase*, runs once after it.
#[derive(Clone, Debug)]
pub struct Graph {
    nodes: Vec<Node>,
    /// Paths of nodes, each once; the first is the root.
    paths: Vec<String>,
    scopes: Vec<Scope>,
    current_path: u32,
    inputs: Vec<NodeId>,
    names: HashMap<String, NodeId>,
    updates: Vec<(Value, Value)>,
    /// State that is replaced after every micro-batch.
    per_micro_batch: HashSet<Value>,
    outputs: Vec<(String, Value)>,
}

/// A scope that was entered.
#[derive(Clone, Debug)]
struct Scope {
    name: String,
    /// The path at which it was entered.
    outer_path: u32,
}

impl Default for Graph {
    /// [`Graph::new`].
    fn default() -> Self {
        Graph::new()
    }
}

impl Graph {
    /// A graph without nodes, at the root path.
    pub fn new() -> Self {
        Graph {
            nodes: Vec::new(),
            paths: vec![String::new()],
            scopes: Vec::new(),
            current_path: 0,
            inputs: Vec::new(),
            names: HashMap::new(),
            updates: Vec::new(),
            per_micro_batch: HashSet::new(),
            outputs: Vec::new(),
        }
    }

    /// Appends a node at the current path and returns its outputs.
    ///
    /// # Errors
    /// [`GraphError::Op`] when the operation does not accept the inputs.
    pub fn push(&mut self, op: impl Into<Op>, inputs: &[Value]) -> Result<Vec<Value>, GraphError> {
        let op = op.into();
        let types: Vec<&TensorType> = inputs.iter().map(|&v| self.ty(v)).collect();
        let outputs = op.rule().infer(&types).map_err(|problem| {
            GraphError::Op(Box::new(RefusedOp {
                op: op.to_string(),
                path: self.paths[self.current_path as usize].clone(),
                problem,
                inputs: types.iter().copied().cloned().collect(),
            }))
        })?;
        let node = NodeId(self.nodes.len() as u32);
        let count = outputs.len() as u32;
        self.nodes.push(Node { op, inputs: inputs.to_vec(), outputs, path: self.current_path });
        Ok((0..count).map(|output| Value { node, output }).collect())
    }

    /// [`Graph::push`] for an operation with one output.
    pub fn push1(&mut self, op: impl Into<Op>, inputs: &[Value]) -> Result<Value, GraphError> {
        self.push(op, inputs).map(|outputs| outputs[0])
    }

    /// Declares an input of the step, named as in checkpoints.
    ///
    /// # Errors
    /// [`GraphError::DuplicateName`].
    pub fn input(&mut self, name: &str, role: Role, ty: TensorType) -> Result<Value, GraphError> {
        self.declare(source::Input { name: name.to_string(), role, ty, axes: None })
    }

    /// [`Graph::input`] of a tensor that may lie in memory in another order.
    pub(crate) fn declare(&mut self, input: source::Input) -> Result<Value, GraphError> {
        let name = input.name.clone();
        if self.names.contains_key(&name) {
            return Err(GraphError::DuplicateName(name));
        }
        let value = self.push1(input, &[])?;
        self.inputs.push(value.node);
        self.names.insert(name, value.node);
        Ok(value)
    }

    /// The input named `name`.
    pub fn find_input(&self, name: &str) -> Option<Value> {
        self.names.get(name).map(|&node| Value { node, output: 0 })
    }

    /// Inputs in the order of their declaration.
    pub fn inputs(&self) -> impl Iterator<Item = (Value, &source::Input)> {
        let input = |node| self.node(node).op.as_input().expect("the node is listed as an input");
        self.inputs.iter().map(move |&node| (Value { node, output: 0 }, input(node)))
    }

    /// Makes the step replace `state` by `new`, after everything that reads the old content has run.
    ///
    /// # Errors
    /// If `state` is not a parameter or state, has another type than `new`, or is replaced already.
    pub fn update(&mut self, state: Value, new: Value) -> Result<(), GraphError> {
        let Some(input) = self.node(state.node).op.as_input() else {
            return Err(GraphError::NotState(self.node(state.node).op.to_string()));
        };
        if !input.role.is_persistent() {
            return Err(GraphError::NotState(input.name.clone()));
        }
        if self.ty(state) != self.ty(new) {
            let (name, state, new) = (input.name.clone(), self.ty(state).clone(), self.ty(new).clone());
            return Err(GraphError::UpdateType { name, state, new });
        }
        if self.updates.iter().any(|&(s, _)| s == state) {
            return Err(GraphError::DoubleUpdate(input.name.clone()));
        }
        self.updates.push((state, new));
        Ok(())
    }

    /// Replaces the value by which the update at `index` of [`Graph::updates`] replaces its state.
    ///
    /// # Errors
    /// If it has another type.
    ///
    /// # Panics
    /// If there are not that many updates.
    pub fn replace_update(&mut self, index: usize, new: Value) -> Result<(), GraphError> {
        let (state, _) = self.updates.remove(index);
        self.update(state, new)?;
        let moved = self.updates.pop().expect("it was just added");
        self.updates.insert(index, moved);
        Ok(())
    }

    /// [`Graph::update`] after every micro-batch of a step.
    ///
    /// # Errors
    /// As [`Graph::update`].
    pub fn update_each_micro_batch(&mut self, state: Value, new: Value) -> Result<(), GraphError> {
        self.update(state, new)?;
        self.per_micro_batch.insert(state);
        Ok(())
    }

    /// Makes every update added so far happen after each micro-batch.
    pub fn update_all_each_micro_batch(&mut self) {
        self.per_micro_batch.extend(self.updates.iter().map(|&(state, _)| state));
    }

    /// Pairs of state and the value that replaces it.
    pub fn updates(&self) -> &[(Value, Value)] {
        &self.updates
    }

    /// Whether `state` is replaced after every micro-batch.
    pub fn is_per_micro_batch(&self, state: Value) -> bool {
        self.per_micro_batch.contains(&state)
    }

    /// For each node whether it belongs to the accumulation phase: a replacement after every micro-batch is computed from it.
    pub fn accumulation_phase(&self) -> Vec<bool> {
        let per_micro_batch = self.updates.iter().filter(|&&(state, _)| self.is_per_micro_batch(state));
        self.ancestors(per_micro_batch.map(|&(_, new)| new.node))
    }

    /// For each node whether it is one of `nodes` or one of them is computed from it.
    pub(crate) fn ancestors(&self, nodes: impl Iterator<Item = NodeId>) -> Vec<bool> {
        let mut reached = vec![false; self.len()];
        nodes.for_each(|id| reached[id.index()] = true);
        for id in self.ids().rev() {
            if reached[id.index()] {
                self.node(id).inputs.iter().for_each(|input| reached[input.node.index()] = true);
            }
        }
        reached
    }

    /// Makes the step leave its state unchanged if `condition`, `bool[]`, is false. State that is replaced after every
    /// micro-batch is not guarded.
    ///
    /// # Errors
    /// When the condition has another type.
    pub fn guard_updates(&mut self, condition: Value) -> Result<(), GraphError> {
        for index in 0..self.updates.len() {
            let (state, new) = self.updates[index];
            if !self.is_per_micro_batch(state) {
                self.updates[index].1 = self.select(condition, new, state)?;
            }
        }
        Ok(())
    }

    /// Names a result of the step.
    pub fn output(&mut self, name: &str, value: Value) {
        self.outputs.push((name.to_string(), value));
    }

    /// Named results of the step, in the order in which they were added.
    pub fn outputs(&self) -> &[(String, Value)] {
        &self.outputs
    }

    /// Replaces the value of the result at `index` of [`Graph::outputs`]; its name stays.
    ///
    /// # Panics
    /// If there are not that many results.
    pub fn replace_output(&mut self, index: usize, value: Value) {
        self.outputs[index].1 = value;
    }

    /// The value of the result named `name`; the first one if several have that name.
    pub fn find_output(&self, name: &str) -> Option<Value> {
        self.outputs.iter().find(|(n, _)| n == name).map(|&(_, v)| v)
    }

    /// All nodes; [`NodeId::index`] is the position of a node.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether the graph has no nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// All nodes in order: operands come before the nodes that read them.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        (0..self.nodes.len() as u32).map(NodeId)
    }

    /// The node with this identifier.
    ///
    /// # Panics
    /// If the graph has fewer nodes.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// A node that a test makes malformed.
    #[cfg(test)]
    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.index()]
    }

    /// Element type and shape of a value.
    ///
    /// # Panics
    /// If the value belongs to another graph.
    pub fn ty(&self, value: Value) -> &TensorType {
        &self.nodes[value.node.index()].outputs[value.output as usize]
    }

    /// Shape of a value.
    ///
    /// # Panics
    /// As [`Graph::ty`].
    pub fn shape(&self, value: Value) -> &Shape {
        &self.ty(value).shape
    }

    /// Element type of a value.
    ///
    /// # Panics
    /// As [`Graph::ty`].
    pub fn dtype(&self, value: Value) -> DType {
        self.ty(value).dtype
    }

    /// The number that every element of a constant equals.
    pub fn uniform(&self, value: Value) -> Option<f64> {
        self.node(value.node).op.as_constant()?.uniform()
    }

    /// Types of the inputs of a node, in their order.
    pub fn input_types(&self, id: NodeId) -> Vec<&TensorType> {
        self.node(id).inputs.iter().map(|&value| self.ty(value)).collect()
    }

    /// Path of the model at which the node was added, e.g. `layer1.0.conv2`.
    pub fn path(&self, id: NodeId) -> &str {
        &self.paths[self.node(id).path as usize]
    }

    /// Appends `name` to the path that new nodes get, until [`Graph::leave_scope`].
    pub fn enter_scope(&mut self, name: &str) {
        self.scopes.push(Scope { name: name.to_string(), outer_path: self.current_path });
        let path = self.scope().collect::<Vec<_>>().join(".");
        self.current_path = self.intern(path);
    }

    /// Ends the scope that was entered last.
    ///
    /// # Panics
    /// If none was.
    pub fn leave_scope(&mut self) {
        let scope = self.scopes.pop().expect("a scope was entered");
        self.current_path = scope.outer_path;
    }

    /// Names of the scopes that new nodes are in, outermost first.
    pub fn scope(&self) -> impl Iterator<Item = &str> {
        self.scopes.iter().map(|scope| scope.name.as_str())
    }

    /// Runs `body` with `name` appended to the path that new nodes get.
    pub fn scoped<T>(&mut self, name: &str, body: impl FnOnce(&mut Graph) -> T) -> T {
        self.enter_scope(name);
        let result = body(self);
        self.leave_scope();
        result
    }

    /// Runs `body` with new nodes placed at `path` as a whole; used by passes, which place what they add where the
    /// original stood.
    pub fn at_path<T>(&mut self, path: &str, body: impl FnOnce(&mut Graph) -> T) -> T {
        let outer = self.current_path;
        self.current_path = self.intern(path.to_string());
        let result = body(self);
        self.current_path = outer;
        result
    }

    fn intern(&mut self, path: String) -> u32 {
        match self.paths.iter().rposition(|p| *p == path) {
            Some(index) => index as u32,
            None => {
                self.paths.push(path);
                self.paths.len() as u32 - 1
            }
        }
    }

    /// Every value that must exist when the step ends: outputs and replacements of state.
    pub fn roots(&self) -> impl Iterator<Item = Value> {
        self.outputs.iter().map(|&(_, v)| v).chain(self.updates.iter().map(|&(_, new)| new))
    }

    /// For each node the nodes that read it, in order, each once.
    pub fn consumers(&self) -> Vec<Vec<NodeId>> {
        let mut consumers = vec![Vec::new(); self.len()];
        for id in self.ids() {
            for input in &self.node(id).inputs {
                let list: &mut Vec<NodeId> = &mut consumers[input.node.index()];
                if list.last() != Some(&id) {
                    list.push(id);
                }
            }
        }
        consumers
    }
}

/// Copies a graph node by node into a new one. Passes rewrite graphs with it.
pub struct Rewriter<'a> {
    source: &'a Graph,
    target: Graph,
    map: HashMap<Value, Value>,
}

impl<'a> Rewriter<'a> {
    /// Starts with an empty target graph and no value rewritten.
    pub fn new(source: &'a Graph) -> Self {
        Rewriter { source, target: Graph::new(), map: HashMap::new() }
    }

    /// The graph written so far.
    pub fn target(&mut self) -> &mut Graph {
        &mut self.target
    }

    /// Runs `body` on the graph written so far, at the path of a node of the source.
    pub(crate) fn at<T>(&mut self, id: NodeId, body: impl FnOnce(&mut Graph) -> T) -> T {
        self.target.at_path(self.source.path(id), body)
    }

    /// Where a value of the source went.
    ///
    /// # Panics
    /// If it was not written yet: a bug of the pass.
    pub fn get(&self, value: Value) -> Value {
        match self.map.get(&value) {
            Some(&mapped) => mapped,
            None => panic!(
                "value {}.{} ({} at `{}`) was not rewritten yet",
                value.node.0,
                value.output,
                self.source.node(value.node).op,
                self.source.path(value.node)
            ),
        }
    }

    /// Maps `value` of the source to `replacement` in the target.
    pub fn set(&mut self, value: Value, replacement: Value) {
        self.map.insert(value, replacement);
    }

    /// Copies a node as it is, its inputs being mapped.
    pub fn copy(&mut self, id: NodeId) -> Result<(), GraphError> {
        let node = self.source.node(id);
        let outputs = if let Some(input) = node.op.as_input() {
            let path = self.source.path(id);
            vec![self.target.at_path(path, |g| g.declare(input.clone()))?]
        } else {
            let inputs: Vec<Value> = node.inputs.iter().map(|&v| self.get(v)).collect();
            self.target.at_path(self.source.path(id), |g| g.push(node.op.clone(), &inputs))?
        };
        for (output, new) in outputs.into_iter().enumerate() {
            self.set(Value { node: id, output: output as u32 }, new);
        }
        Ok(())
    }

    /// Carries outputs and updates over and returns the new graph.
    pub fn finish(self) -> Result<Graph, GraphError> {
        self.finish_with(&HashMap::new())
    }

    /// [`Rewriter::finish`], where updates take and give other values of the target than what reads those of the source.
    pub(crate) fn finish_with(mut self, updated: &HashMap<Value, Value>) -> Result<Graph, GraphError> {
        for (name, value) in self.source.outputs() {
            let value = self.get(*value);
            self.target.output(name, value);
        }
        for &(state, new) in self.source.updates() {
            let per_micro_batch = self.source.is_per_micro_batch(state);
            let [state, new] =
                [state, new].map(|value| updated.get(&value).copied().unwrap_or_else(|| self.get(value)));
            if per_micro_batch {
                self.target.update_each_micro_batch(state, new)?;
            } else {
                self.target.update(state, new)?;
            }
        }
        Ok(self.target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_graph_is_one_without_nodes_at_the_root_path() {
        let mut graph = Graph::default();
        let x = graph.input("x", Role::Feed, TensorType::f32([2])).unwrap();
        assert_eq!(graph.path(x.node), "");
        let layer = graph.scoped("layer", |g| g.relu(x)).unwrap();
        assert_eq!((graph.path(x.node), graph.path(layer.node)), ("", "layer"));
        assert!(graph.add(x, x).is_ok_and(|sum| graph.path(sum.node).is_empty()));
    }

    #[test]
    fn scopes_end_where_they_were_entered() {
        let mut graph = Graph::new();
        let x = graph.input("x", Role::Feed, TensorType::f32([2])).unwrap();
        graph.enter_scope("layer1");
        let inner = graph.scoped("0", |g| g.relu(x)).unwrap();
        let placed = graph.at_path("elsewhere", |g| g.scoped("1", |g| g.relu(x))).unwrap();
        let after = graph.relu(x).unwrap();
        assert_eq!(graph.scope().collect::<Vec<_>>(), ["layer1"]);
        graph.leave_scope();
        let outside = graph.relu(x).unwrap();
        let paths = [inner, placed, after, outside].map(|value| graph.path(value.node));
        assert_eq!(paths, ["layer1.0", "layer1.1", "layer1", ""]);
        assert_eq!(graph.scope().count(), 0);
    }
}
