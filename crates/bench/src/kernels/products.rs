//! Convolutions and matrix products, collected from the graph of a training step.

use super::{Bound, Identity, PRECISIONS, Problem, brackets};
use bessemer_ir::autodiff::GRADIENT_PATH;
use bessemer_ir::ops::conv::{Conv2d, Geometry};
use bessemer_ir::ops::matmul;
use bessemer_ir::{Graph, GraphError, NodeId, Op, TensorType};
use std::collections::{BTreeMap, HashMap};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Direction {
    Forward,
    /// Gradient of the first operand.
    First,
    /// Gradient of the second operand: the weights, if there are any.
    Second,
}

/// What the forward nodes of equal layers have in common.
struct Layer {
    path: String,
    op: Op,
    inputs: Vec<TensorType>,
}

/// Each distinct convolution and matrix product of a training step of `model` and its gradients, in each precision, with
/// the number of times that the step calls it. Equal layers are one, named after the first.
pub(super) fn of_step(model: &'static str, graph: &Graph) -> Result<Vec<Problem>, GraphError> {
    let mut layers: Vec<Layer> = Vec::new();
    // Forward node and layer by path.
    let mut forward: HashMap<&str, (NodeId, usize)> = HashMap::new();
    // A node of each kind and the number of them.
    let mut kinds: BTreeMap<(usize, Direction), (NodeId, usize)> = BTreeMap::new();
    for id in graph.ids().filter(|&id| is_product(&graph.node(id).op)) {
        let (layer, direction) = match forward_path(graph.path(id)).and_then(|path| forward.get(path)) {
            Some(&(node, layer)) => (layer, gradient(graph, node, id)),
            None => {
                let layer = layer_of(graph, id, &mut layers);
                forward.insert(graph.path(id), (id, layer));
                (layer, Direction::Forward)
            }
        };
        kinds.entry((layer, direction)).or_insert((id, 0)).1 += 1;
    }
    let mut problems = Vec::with_capacity(kinds.len() * PRECISIONS.len());
    for ((layer, direction), (id, calls)) in kinds {
        let layer = &layers[layer];
        let description = layer.describe();
        let identity = Identity {
            model,
            layer: &layer.path,
            shapes: &description.shapes,
            direction: description.direction(direction),
            family: description.family,
            bound: description.bound,
        };
        let types = types(graph, id);
        for dtype in PRECISIONS {
            problems.push(Problem::single(identity, &graph.node(id).op, &types, dtype, calls)?);
        }
    }
    Ok(problems)
}

fn is_product(op: &Op) -> bool {
    matches!(op, Op::Conv2d(_) | Op::Conv2dDataGrad(_) | Op::Conv2dWeightGrad(_) | Op::Matmul(_))
}

/// Path of the node that a gradient node was made for.
fn forward_path(path: &str) -> Option<&str> {
    path.strip_prefix(GRADIENT_PATH)?.strip_prefix('.')
}

fn types(graph: &Graph, id: NodeId) -> Vec<TensorType> {
    graph.node(id).inputs.iter().map(|&value| graph.ty(value).clone()).collect()
}

/// Number of the layer that equals a forward node, which is added if there is none.
fn layer_of(graph: &Graph, id: NodeId, layers: &mut Vec<Layer>) -> usize {
    let (op, inputs) = (graph.node(id).op.clone(), types(graph, id));
    layers.iter().position(|layer| layer.op == op && layer.inputs == inputs).unwrap_or_else(|| {
        layers.push(Layer { path: graph.path(id).to_string(), op, inputs });
        layers.len() - 1
    })
}

/// Which gradient of `forward` a node is: that of the first operand reads the second one.
fn gradient(graph: &Graph, forward: NodeId, id: NodeId) -> Direction {
    let second = graph.node(forward).inputs[1];
    if graph.node(id).inputs.contains(&second) { Direction::First } else { Direction::Second }
}

struct Description {
    shapes: String,
    family: &'static str,
    bound: Bound,
    /// Whether the second operand are weights.
    weights: bool,
}

impl Description {
    fn direction(&self, direction: Direction) -> &'static str {
        match (direction, self.weights) {
            (Direction::Forward, _) => "forward",
            (Direction::First, true) => "data gradient",
            (Direction::Second, true) => "weight gradient",
            (Direction::First, false) => "left gradient",
            (Direction::Second, false) => "right gradient",
        }
    }
}

impl Layer {
    fn describe(&self) -> Description {
        let (a, b) = (&self.inputs[0].shape, &self.inputs[1].shape);
        let accepted = "the node was accepted with these shapes";
        match &self.op {
            Op::Conv2d(conv) => describe_convolution(conv, &conv.geometry(a, b).expect(accepted)),
            Op::Matmul(product) => describe_matmul(&product.geometry(a, b).expect(accepted)),
            other => unreachable!("{other} is the gradient of a layer at another path"),
        }
    }
}

/// `3x3/2 [16,56,56,128]->128`
fn describe_convolution(conv: &Conv2d, geometry: &Geometry) -> Description {
    let Geometry { height, width, groups, .. } = geometry;
    let stride = if conv.stride == [1, 1] { String::new() } else { format!("/{}", conv.stride[0]) };
    let x = brackets(&geometry.x_shape());
    let (family, bound) = match *groups {
        1 => ("convolution", Bound::Arithmetic),
        n if n == geometry.channels => ("depthwise convolution", Bound::Memory),
        _ => ("grouped convolution", Bound::Arithmetic),
    };
    let shapes = format!("{}x{}{stride} {x}->{}", height.kernel, width.kernel, geometry.out_channels);
    Description { shapes, family, bound, weights: true }
}

/// `[2048,768]x[768,768]`, or `192 [128,64]x[64,128]` for a batch of 192
fn describe_matmul(geometry: &matmul::Geometry) -> Description {
    let &matmul::Geometry { batch, m, k, n } = geometry;
    let product = format!("{}x{}", brackets(&[m, k]), brackets(&[k, n]));
    let (shapes, family) =
        if batch == 1 { (product, "matmul") } else { (format!("{batch} {product}"), "batched matmul") };
    Description { shapes, family, bound: Bound::Arithmetic, weights: batch == 1 }
}
