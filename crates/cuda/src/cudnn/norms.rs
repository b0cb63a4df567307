//! Batch norm by itself, with what is done in the same pass: where nothing of it is fused with convolutions.

use super::graph::{Role, TensorTarget};
use super::{Graph, Node, Pointwise, TensorId};
use bessemer_ir::DType;

/// What is done in one pass. Factors for each channel are `f32`, everything else is of the graph's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchNorm {
    /// `y = norm(x)`
    Forward,
    /// `y = relu(norm(x) + residual)`
    ResidualRelu,
    /// Gradients of `norm(x)`.
    Gradient,
    /// Gradients of `relu(norm(x))`.
    ReluGradient,
}

/// Added to the variance.
const EPSILON: f32 = 1e-5;

impl BatchNorm {
    /// All graphs, each once.
    pub const ALL: [BatchNorm; 4] =
        [BatchNorm::Forward, BatchNorm::ResidualRelu, BatchNorm::Gradient, BatchNorm::ReluGradient];

    /// Name in tables and reports.
    pub fn name(self) -> &'static str {
        match self {
            BatchNorm::Forward => "batch norm",
            BatchNorm::ResidualRelu => "batch norm + residual + ReLU",
            BatchNorm::Gradient => "batch norm gradient",
            BatchNorm::ReluGradient => "ReLU gradient + batch norm gradient",
        }
    }

    /// The graph for `x` of `[N, H, W, C]`.
    pub fn graph(self, shape: [usize; 4], ty: DType) -> Graph {
        let mut graph = Graph::default();
        let x = graph.tensor("x", ty, shape, Role::Input);
        match self {
            BatchNorm::Forward => forward(&mut graph, x, TensorTarget::output("y", ty)),
            BatchNorm::ResidualRelu => {
                let y = forward(&mut graph, x, TensorTarget::inner("norm"));
                let residual = graph.tensor("residual", ty, shape, Role::Input);
                let summed = graph.pointwise(Pointwise::Add, y, Some(residual), TensorTarget::inner("summed"));
                graph.pointwise(Pointwise::Relu, summed, None, TensorTarget::output("y", ty))
            }
            BatchNorm::Gradient => backward(&mut graph, x, false),
            BatchNorm::ReluGradient => backward(&mut graph, x, true),
        };
        graph
    }
}

/// Factors for each channel of `x`.
fn channels<const N: usize>(graph: &mut Graph, x: TensorId, names: [&'static str; N], role: Role) -> [TensorId; N] {
    let channels = graph.get(x).dims[3];
    names.map(|name| graph.tensor(name, DType::F32, [1, 1, 1, channels], role))
}

fn forward(graph: &mut Graph, x: TensorId, to: TensorTarget) -> TensorId {
    let [scale, shift] = channels(graph, x, ["scale", "shift"], Role::Input);
    let [mean, deviation] = channels(graph, x, ["mean", "deviation"], Role::Output);
    let epsilon = graph.tensor("epsilon", DType::F32, [1; 4], Role::Value(EPSILON));
    let y = graph.tensor(to.name, to.ty, graph.get(x).dims, to.role);
    graph.nodes.push(Node::Norm { x, scale, shift, epsilon: Some(epsilon), mean, deviation, y });
    y
}

fn backward(graph: &mut Graph, x: TensorId, relu: bool) -> TensorId {
    let (ty, shape) = (graph.get(x).ty, graph.get(x).dims);
    let mut dy = graph.tensor("dy", ty, shape, Role::Input);
    let [mean, deviation, scale] = channels(graph, x, ["mean", "deviation", "scale"], Role::Input);
    if relu {
        let [shift] = channels(graph, x, ["shift"], Role::Input);
        let norm = graph.tensor("norm", DType::F32, shape, Role::Inner);
        graph.nodes.push(Node::Norm { x, scale, shift, epsilon: None, mean, deviation, y: norm });
        // The library takes it in the type of the others only.
        let of_norm = TensorTarget { ty, ..TensorTarget::inner("dy of the norm") };
        dy = graph.pointwise(Pointwise::ReluGradient, dy, Some(norm), of_norm);
    }
    let [dscale, dshift] = channels(graph, x, ["dscale", "dshift"], Role::Output);
    let dx = graph.tensor("dx", ty, shape, Role::Output);
    graph.nodes.push(Node::NormBackward { x, dy, mean, deviation, scale, dscale, dshift, dx });
    dx
}
