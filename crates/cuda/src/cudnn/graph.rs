//! Graphs of operations as this program describes them: tensors of four axes and the operations between them.

use super::Convolution;
use bessemer_ir::DType;

/// Number of a tensor in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorId(pub usize);

/// Where the elements of a tensor are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Role {
    /// Read from memory that the caller binds.
    Input,
    /// Written to memory that the caller binds.
    Output,
    /// An intermediate result that is never in memory.
    Inner,
    /// One number, known when the graph is written.
    Value(f32),
}

/// `[N, H, W, C]`, rows one after the other; weights are `[K, R, S, C]`, numbers for each channel `[1, 1, 1, C]`.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphTensor {
    /// Name in cuDNN's messages.
    pub name: &'static str,
    /// Element type.
    pub ty: DType,
    /// `[N, H, W, C]`, or `[K, R, S, C]` for weights.
    pub dims: [usize; 4],
    /// Where the elements are.
    pub role: Role,
}

impl GraphTensor {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Bytes of the dense tensor.
    pub fn bytes(&self) -> usize {
        self.elements() * self.ty.size()
    }
}

/// Which product a convolution is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// `y = conv(x, w)`
    Forward,
    /// `x` becomes the gradient of the input.
    DataGradient,
    /// `w` becomes the gradient of the weights.
    WeightGradient,
}

/// How a kernel moves over an image, down and across.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// Step of the kernel, down and across; at least 1.
    pub stride: [usize; 2],
    /// The same before and behind.
    pub padding: [usize; 2],
    /// Distance between neighbouring elements of the kernel, down and across; 1 is a dense kernel.
    pub dilation: [usize; 2],
}

/// A function of each element of one tensor or two, of which the second one may have one element along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pointwise {
    Add,
    Sub,
    Mul,
    Relu,
    Swish,
    /// `a` where `b > 0`, otherwise 0: the gradient of `relu(b)`.
    ReluGradient,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Convolution {
        pass: Pass,
        x: TensorId,
        w: TensorId,
        y: TensorId,
        geometry: Geometry,
    },
    Pointwise {
        function: Pointwise,
        a: TensorId,
        b: Option<TensorId>,
        y: TensorId,
    },
    /// Sums of `x` and of its squares for each channel.
    Statistics {
        x: TensorId,
        sum: TensorId,
        squares: TensorId,
    },
    /// Gradients of batch norm `(x - mean) * deviation * scale + shift`, where `deviation` is the reciprocal one:
    /// those of scale and shift, and factors for each channel with which
    /// `dx = dy_factor * dy + x_factor * x + offset`.
    NormGradients {
        x: TensorId,
        dy: TensorId,
        mean: TensorId,
        deviation: TensorId,
        scale: TensorId,
        dscale: TensorId,
        dshift: TensorId,
        dy_factor: TensorId,
        x_factor: TensorId,
        offset: TensorId,
    },
    /// Batch norm `y = (x - mean) * deviation * scale + shift`. Where there is an `epsilon`, mean and reciprocal deviation
    /// `1 / sqrt(variance + epsilon)` become those of `x` over all positions of each channel; otherwise they are given.
    Norm {
        x: TensorId,
        scale: TensorId,
        shift: TensorId,
        epsilon: Option<TensorId>,
        mean: TensorId,
        deviation: TensorId,
        y: TensorId,
    },
    /// All gradients of batch norm.
    NormBackward {
        x: TensorId,
        dy: TensorId,
        mean: TensorId,
        deviation: TensorId,
        scale: TensorId,
        dscale: TensorId,
        dshift: TensorId,
        dx: TensorId,
    },
}

/// Operations between tensors, each after those that it reads from. All arithmetic is in `f32`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// All tensors; a [`TensorId`] is a position in this list.
    pub tensors: Vec<GraphTensor>,
    pub(crate) nodes: Vec<Node>,
}

impl Graph {
    pub(crate) fn tensor(&mut self, name: &'static str, ty: DType, dims: [usize; 4], role: Role) -> TensorId {
        self.tensors.push(GraphTensor { name, ty, dims, role });
        TensorId(self.tensors.len() - 1)
    }

    pub(crate) fn get(&self, id: TensorId) -> &GraphTensor {
        &self.tensors[id.0]
    }

    /// Tensors that are in memory.
    pub fn in_memory(&self) -> impl Iterator<Item = TensorId> {
        (0..self.tensors.len()).map(TensorId).filter(|id| matches!(self.get(*id).role, Role::Input | Role::Output))
    }

    /// Tensors that are numbers, with these.
    pub(crate) fn values(&self) -> impl Iterator<Item = (TensorId, f32)> {
        let value = |(index, tensor): (usize, &GraphTensor)| match tensor.role {
            Role::Value(value) => Some((TensorId(index), value)),
            _ => None,
        };
        self.tensors.iter().enumerate().filter_map(value)
    }

    /// Tensors of this role, in the order in which they were made.
    pub(crate) fn of_role(&self, role: Role) -> impl Iterator<Item = TensorId> {
        (0..self.tensors.len()).map(TensorId).filter(move |id| self.get(*id).role == role)
    }

    /// Whether the last operation is ReLU.
    pub(crate) fn ends_with_relu(&self) -> bool {
        matches!(self.nodes.last(), Some(Node::Pointwise { function: Pointwise::Relu, .. }))
    }

    /// `function(a, b)`, or `function(a)`, which is like `a`.
    pub(crate) fn pointwise(
        &mut self,
        function: Pointwise,
        a: TensorId,
        b: Option<TensorId>,
        to: TensorTarget,
    ) -> TensorId {
        let y = self.tensor(to.name, to.ty, self.get(a).dims, to.role);
        self.nodes.push(Node::Pointwise { function, a, b, y });
        y
    }

    /// `(x - mean) * deviation * scale + shift` of those factors for each channel, never in memory.
    pub(crate) fn normed(&mut self, x: TensorId, [mean, deviation, scale, shift]: [TensorId; 4]) -> TensorId {
        let steps = [
            (Pointwise::Sub, mean, "centred"),
            (Pointwise::Mul, deviation, "normal"),
            (Pointwise::Mul, scale, "scaled"),
            (Pointwise::Add, shift, "normed"),
        ];
        let step = |x, (function, factor, name)| self.pointwise(function, x, Some(factor), TensorTarget::inner(name));
        steps.into_iter().fold(x, step)
    }

    /// One pass of the convolution, from and to whichever of its tensors are given.
    pub(crate) fn convolve(&mut self, pass: Pass, of: &Convolution, x: TensorId, w: TensorId, y: TensorId) {
        self.nodes.push(Node::Convolution { pass, x, w, y, geometry: of.geometry });
    }
}

/// A tensor that an operation makes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorTarget {
    pub(crate) name: &'static str,
    pub(crate) ty: DType,
    pub(crate) role: Role,
}

impl TensorTarget {
    /// In memory, of this type.
    pub(crate) fn output(name: &'static str, ty: DType) -> TensorTarget {
        TensorTarget { name, ty, role: Role::Output }
    }

    /// Never in memory.
    pub(crate) fn inner(name: &'static str) -> TensorTarget {
        TensorTarget { name, ty: DType::F32, role: Role::Inner }
    }
}
