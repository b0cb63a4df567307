//! Lets a depthwise convolution compute its input, the result of another convolution with a bias and an activation, some lines at a
//! time, where that is large and nothing else reads it. In inference, norms folded, inverted bottlenecks begin so.

use crate::dtype::DType;
use crate::graph::{Graph, GraphError, NodeId, Rewriter, Value};
use crate::ops::Op;
use crate::ops::conv::Conv2d;
use crate::ops::conv_then_depthwise::{Activation, ConvThenDepthwise};
use crate::ops::pointwise::{Binary, BinaryKind, Unary, UnaryKind};
use crate::rules::ChainRules;
use std::collections::{HashMap, HashSet};

/// # Errors
/// Only if the graph was malformed.
pub fn chain(graph: &Graph, rules: &ChainRules) -> Result<Graph, GraphError> {
    let finder = Finder { graph, rules, consumers: graph.consumers(), results: graph.roots().collect() };
    let chains: HashMap<NodeId, Chain> = graph.ids().filter_map(|id| Some((id, finder.find(id)?))).collect();
    let absorbed: HashSet<NodeId> = chains.values().flat_map(|chain| chain.absorbed.iter().copied()).collect();
    let mut rewriter = Rewriter::new(graph);
    for id in graph.ids().filter(|id| !absorbed.contains(id)) {
        let Some(chain) = chains.get(&id) else {
            rewriter.copy(id)?;
            continue;
        };
        let inputs = chain.inputs.map(|input| rewriter.get(input));
        let output = rewriter.target().at_path(graph.path(id), |g| g.push1(chain.op, &inputs))?;
        rewriter.set(Value { node: id, output: 0 }, output);
    }
    rewriter.finish()
}

/// A depthwise convolution and what computes its input.
struct Chain {
    op: ConvThenDepthwise,
    inputs: [Value; ConvThenDepthwise::INPUTS],
    /// Nodes of which nothing is left.
    absorbed: Vec<NodeId>,
}

struct Finder<'a> {
    graph: &'a Graph,
    rules: &'a ChainRules,
    consumers: Vec<Vec<NodeId>>,
    results: HashSet<Value>,
}

impl Finder<'_> {
    /// The chain that ends in a node.
    fn find(&self, id: NodeId) -> Option<Chain> {
        let Op::Conv2d(depthwise) = self.graph.node(id).op else { return None };
        let &[input, second] = &self.graph.node(id).inputs[..] else { return None };
        let (sum, activation) = self.activation(input);
        let Op::Binary(Binary(BinaryKind::Add)) = self.graph.node(sum.node).op else { return None };
        let &[a, b] = &self.graph.node(sum.node).inputs[..] else { return None };
        let channels = self.graph.shape(input).cols();
        let is_bias = |value: Value| self.graph.shape(value).rank() == 1 && self.graph.shape(value)[0] == channels;
        let (product, bias) = [(a, b), (b, a)].into_iter().find(|&(_, bias)| is_bias(bias))?;
        let Op::Conv2d(first) = self.graph.node(product.node).op else { return None };
        let &[x, weights] = &self.graph.node(product.node).inputs[..] else { return None };
        let inputs = [x, weights, second, bias];
        let absorbed: HashSet<NodeId> =
            [input, sum, product].iter().map(|value| value.node).chain(self.sigmoid(input)).collect();
        let is_read_here = |node: &NodeId| {
            let is_result = self.results.contains(&Value { node: *node, output: 0 });
            !is_result && self.consumers[node.index()].iter().all(|by| *by == id || absorbed.contains(by))
        };
        let fits = first.groups == 1
            && depthwise.groups == channels
            && inputs.iter().all(|value| self.graph.ty(*value).dtype == DType::F32)
            && self.is_worth_it(&first, x, weights, product)
            && !inputs.iter().any(|value| absorbed.contains(&value.node))
            && absorbed.iter().all(is_read_here);
        let op = ConvThenDepthwise { first, activation, depthwise };
        fits.then(|| Chain { op, inputs, absorbed: absorbed.into_iter().collect() })
    }

    /// Of what, and by which function, a value is made.
    fn activation(&self, value: Value) -> (Value, Activation) {
        let node = self.graph.node(value.node);
        match (&node.op, self.sigmoid(value)) {
            (Op::Unary(Unary(UnaryKind::Relu)), _) => (node.inputs[0], Activation::Relu),
            (_, Some(sigmoid)) => (self.graph.node(sigmoid).inputs[0], Activation::Swish),
            _ => (value, Activation::None),
        }
    }

    /// The sigmoid in a value that is `x * sigmoid(x)`.
    fn sigmoid(&self, value: Value) -> Option<NodeId> {
        let node = self.graph.node(value.node);
        let Op::Binary(Binary(BinaryKind::Mul)) = node.op else { return None };
        let &[a, b] = &node.inputs[..] else { return None };
        let is_sigmoid_of = |(x, y): &(Value, Value)| {
            let node = self.graph.node(y.node);
            node.op == Op::Unary(Unary(UnaryKind::Sigmoid)) && node.inputs[0] == *x
        };
        [(a, b), (b, a)].iter().find(|pair| is_sigmoid_of(pair)).map(|(_, sigmoid)| sigmoid.node)
    }

    /// Whether an image's result is too large to stay in cache, and cheap to compute again at the edges of tasks.
    fn is_worth_it(&self, first: &Conv2d, x: Value, weights: Value, product: Value) -> bool {
        let (x, w, y) = (self.graph.shape(x), self.graph.shape(weights), self.graph.shape(product));
        let reduction = w.elements() / y.cols().max(1);
        let of_image = y.elements() / x.dims().first().copied().unwrap_or(1).max(1);
        first.groups == 1 && of_image >= self.rules.least_elements && reduction <= self.rules.longest_reduction
    }
}
