//! Convolutions and what is fused with them in the training of a network of convolutions and batch norms.

use super::graph::{Role, TensorTarget};
use super::{Geometry, Graph, Node, Pass, Pointwise, TensorId};
use bessemer_ir::DType;
use std::fmt;

/// A convolution of images `[N, H, W, C]` with weights `[K, R, S, C / groups]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Convolution {
    /// `[N, H, W, C]`
    pub input: [usize; 4],
    /// Output channels, `K`.
    pub filters: usize,
    /// `[R, S]`
    pub kernel: [usize; 2],
    /// Stride, padding and dilation.
    pub geometry: Geometry,
    /// Channel groups that are convolved independently; divides both channel counts.
    pub groups: usize,
}

/// What is done in one pass over memory. Sums, scales and shifts are `f32` numbers for each channel; everything else is of
/// the graph's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fusion {
    /// One product alone.
    Plain(Pass),
    /// `y = conv(x, w)`, and the sums that batch norm needs of it.
    Statistics,
    /// `y = conv(relu(scale x + shift), w)`, and the sums that batch norm needs of it.
    NormStatistics,
    /// Gradient of the weights, where the input is `relu(scale x + shift)`.
    NormWeightGradient,
    /// Gradient of the input behind `relu(norm(x))`, and what batch norm needs of it for its own gradients.
    NormDataGradient,
    /// As [`Fusion::NormDataGradient`], of the sum of the gradient and that of a residual.
    ResidualNormDataGradient,
    /// Gradient of the input behind `relu(x)`.
    ReluDataGradient,
    /// Gradient of the input and that of a residual, added.
    ResidualDataGradient,
    /// As [`Fusion::ReluDataGradient`], of the sum of the gradient and that of a residual.
    ResidualReluDataGradient,
    /// `f(scale conv(x, w) + shift + residual)`
    Shifted(Shifted),
}

/// What of `f(scale conv(x, w) + shift + residual)` is there beside the shift.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shifted {
    /// Whether there is a scale.
    pub scale: bool,
    /// Whether there is a residual.
    pub residual: bool,
    /// The function `f`.
    pub activation: Activation,
}

/// A function of each element behind a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// None.
    Nothing,
    /// `max(x, 0)`
    Relu,
    /// `x / (1 + e^-x)`
    Swish,
}

const fn shifted(scale: bool, residual: bool, activation: Activation) -> Fusion {
    Fusion::Shifted(Shifted { scale, residual, activation })
}

impl Fusion {
    /// All fusions, each once; [`Fusion::Plain`] once for each pass, and of [`Fusion::Shifted`] what models have.
    pub const ALL: [Fusion; 18] = [
        Fusion::Plain(Pass::Forward),
        Fusion::Plain(Pass::DataGradient),
        Fusion::Plain(Pass::WeightGradient),
        Fusion::Statistics,
        Fusion::NormStatistics,
        Fusion::NormWeightGradient,
        Fusion::NormDataGradient,
        Fusion::ResidualNormDataGradient,
        Fusion::ReluDataGradient,
        Fusion::ResidualDataGradient,
        Fusion::ResidualReluDataGradient,
        shifted(true, true, Activation::Relu),
        shifted(true, false, Activation::Relu),
        shifted(false, false, Activation::Nothing),
        shifted(false, false, Activation::Relu),
        shifted(false, false, Activation::Swish),
        shifted(false, true, Activation::Nothing),
        shifted(false, true, Activation::Relu),
    ];

    /// Name in tables and reports, such as `forward + statistics`.
    pub fn name(self) -> &'static str {
        match self {
            Fusion::Plain(Pass::Forward) => "forward",
            Fusion::Plain(Pass::DataGradient) => "data gradient",
            Fusion::Plain(Pass::WeightGradient) => "weight gradient",
            Fusion::Statistics => "forward + statistics",
            Fusion::NormStatistics => "norm + ReLU + forward + statistics",
            Fusion::NormWeightGradient => "norm + ReLU + weight gradient",
            Fusion::NormDataGradient => "data gradient + ReLU gradient + norm sums",
            Fusion::ResidualNormDataGradient => "data gradient + residual + ReLU gradient + norm sums",
            Fusion::ReluDataGradient => "data gradient + ReLU gradient",
            Fusion::ResidualDataGradient => "data gradient + residual",
            Fusion::ResidualReluDataGradient => "data gradient + residual + ReLU gradient",
            Fusion::Shifted(Shifted { scale, residual, activation }) => match (scale, residual, activation) {
                (false, false, Activation::Nothing) => "forward + shift",
                (false, false, Activation::Relu) => "forward + shift + ReLU",
                (false, false, Activation::Swish) => "forward + shift + swish",
                (false, true, Activation::Nothing) => "forward + shift + residual",
                (false, true, Activation::Relu) => "forward + shift + residual + ReLU",
                (false, true, Activation::Swish) => "forward + shift + residual + swish",
                (true, false, Activation::Nothing) => "forward + scale + shift",
                (true, false, Activation::Relu) => "forward + scale + shift + ReLU",
                (true, false, Activation::Swish) => "forward + scale + shift + swish",
                (true, true, Activation::Nothing) => "forward + scale + shift + residual",
                (true, true, Activation::Relu) => "forward + scale + shift + residual + ReLU",
                (true, true, Activation::Swish) => "forward + scale + shift + residual + swish",
            },
        }
    }

    /// The product that it holds.
    pub fn pass(self) -> Pass {
        match self {
            Fusion::Plain(pass) => pass,
            Fusion::Statistics | Fusion::NormStatistics | Fusion::Shifted(_) => Pass::Forward,
            Fusion::NormWeightGradient => Pass::WeightGradient,
            Fusion::NormDataGradient
            | Fusion::ResidualNormDataGradient
            | Fusion::ReluDataGradient
            | Fusion::ResidualDataGradient
            | Fusion::ResidualReluDataGradient => Pass::DataGradient,
        }
    }

    /// What is done beside the product, such as `statistics`; nothing of [`Fusion::Plain`].
    pub fn added(self) -> &'static str {
        self.name().split_once("forward + ").or(self.name().split_once("gradient + ")).map_or("", |(_, added)| added)
    }

    /// What is known without a device of cuDNN's engines for it: what the tables of version 9.19 say, of an H200 and an A100 alike.
    pub fn support(self, of: &Convolution, ty: DType) -> Support {
        const ALIGNED: usize = 8;
        let is_aligned = of.input[3].is_multiple_of(ALIGNED) && of.filters.is_multiple_of(ALIGNED);
        match self {
            Fusion::Plain(_) => Support::Precompiled,
            Fusion::Statistics if of.groups > 1 => Support::Missing,
            Fusion::Statistics if ty == DType::F16 && is_aligned => Support::Precompiled,
            Fusion::NormStatistics
            | Fusion::NormWeightGradient
            | Fusion::NormDataGradient
            | Fusion::ResidualNormDataGradient
                if ty != DType::F32 =>
            {
                let is_taken = ty == DType::F16 && of.groups == 1 && is_aligned;
                let has_stride = self == Fusion::ResidualNormDataGradient && of.geometry.stride != [1, 1];
                match (is_taken, has_stride) {
                    (true, false) => Support::Precompiled,
                    (true, true) => Support::Uncertain,
                    (false, _) => Support::Missing,
                }
            }
            _ => Support::Uncertain,
        }
    }
}

/// What is known of engines for a fusion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// There is one that needs no compiler at run time.
    Precompiled,
    /// There may be one; those that are known compile.
    Uncertain,
    /// There is none.
    Missing,
}

impl fmt::Display for Convolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([n, h, w, c], [r, s]) = (self.input, self.kernel);
        write!(f, "{n}x{h}x{w}x{c} {r}x{s}")?;
        if self.geometry.stride != [1, 1] {
            write!(f, "/{}", self.geometry.stride[0])?;
        }
        write!(f, " to {}", self.filters)?;
        if self.groups > 1 { write!(f, " in {} groups", self.groups) } else { Ok(()) }
    }
}

/// A graph while it is written.
struct Writer<'a> {
    of: &'a Convolution,
    ty: DType,
    graph: Graph,
}

impl Convolution {
    /// A square kernel whose output has the input's size divided by the stride.
    pub fn same(input: [usize; 4], filters: usize, kernel: usize, stride: usize) -> Convolution {
        let geometry = Geometry { stride: [stride; 2], padding: [kernel / 2; 2], dilation: [1; 2] };
        Convolution { input, filters, kernel: [kernel; 2], geometry, groups: 1 }
    }

    /// A kernel of its own for each channel.
    pub fn depthwise(input: [usize; 4], kernel: usize, stride: usize) -> Convolution {
        Convolution { groups: input[3], ..Convolution::same(input, input[3], kernel, stride) }
    }

    /// `[N, P, Q, K]`
    pub fn output(&self) -> [usize; 4] {
        let Geometry { stride, padding, dilation } = self.geometry;
        let along = |axis: usize| {
            let reach = dilation[axis] * (self.kernel[axis] - 1) + 1;
            (self.input[1 + axis] + 2 * padding[axis] - reach) / stride[axis] + 1
        };
        [self.input[0], along(0), along(1), self.filters]
    }

    /// `[K, R, S, C / groups]`
    pub fn weights(&self) -> [usize; 4] {
        [self.filters, self.kernel[0], self.kernel[1], self.input[3] / self.groups]
    }

    /// Multiplications and additions of any of its passes.
    pub fn operations(&self) -> f64 {
        let all = |dims: [usize; 4]| dims.iter().map(|&dim| dim as f64).product::<f64>();
        2.0 * all(self.output()) * all(self.weights()) / self.filters as f64
    }

    /// The graph of this convolution with what is fused, for activations and weights of type `ty`.
    pub fn graph(&self, fusion: Fusion, ty: DType) -> Graph {
        let mut writer = Writer { of: self, ty, graph: Graph::default() };
        match fusion {
            Fusion::Plain(Pass::Forward) => writer.forward_to_memory(false, false),
            Fusion::Statistics => writer.forward_to_memory(false, true),
            Fusion::NormStatistics => writer.forward_to_memory(true, true),
            Fusion::Plain(Pass::WeightGradient) => writer.weight_gradient(false),
            Fusion::NormWeightGradient => writer.weight_gradient(true),
            Fusion::Plain(Pass::DataGradient) => writer.plain_data_gradient(),
            Fusion::ReluDataGradient => writer.relu_data_gradient(false),
            Fusion::ResidualDataGradient => {
                let dx = writer.data_gradient();
                writer.add_residual(dx, self.input, TensorTarget::output("dx", ty));
            }
            Fusion::NormDataGradient => writer.norm_data_gradient(false),
            Fusion::ResidualNormDataGradient => writer.norm_data_gradient(true),
            Fusion::ResidualReluDataGradient => writer.relu_data_gradient(true),
            Fusion::Shifted(shifted) => writer.shifted(shifted),
        }
        writer.graph
    }
}

impl Writer<'_> {
    fn input(&mut self, name: &'static str, dims: [usize; 4]) -> TensorId {
        self.graph.tensor(name, self.ty, dims, Role::Input)
    }

    /// `f32[1, 1, 1, channels]`
    fn channels(&mut self, name: &'static str, channels: usize, role: Role) -> TensorId {
        self.graph.tensor(name, DType::F32, [1, 1, 1, channels], role)
    }

    fn inner(&mut self, name: &'static str, dims: [usize; 4]) -> TensorId {
        self.graph.tensor(name, DType::F32, dims, Role::Inner)
    }

    /// `relu(scale x + shift)`, in the graph's type, never in memory.
    fn normed(&mut self, x: TensorId) -> TensorId {
        let channels = self.of.input[3];
        let [scale, shift] = ["scale", "shift"].map(|name| self.input(name, [1, 1, 1, channels]));
        let scaled = self.graph.pointwise(Pointwise::Mul, x, Some(scale), TensorTarget::inner("scaled"));
        let shifted = self.graph.pointwise(Pointwise::Add, scaled, Some(shift), TensorTarget::inner("shifted"));
        self.graph.pointwise(Pointwise::Relu, shifted, None, TensorTarget::inner("normed"))
    }

    fn forward_to_memory(&mut self, norm: bool, statistics: bool) {
        let (x, w) = (self.input("x", self.of.input), self.input("w", self.of.weights()));
        let x = if norm { self.normed(x) } else { x };
        let y = self.graph.tensor("y", self.ty, self.of.output(), Role::Output);
        self.graph.convolve(Pass::Forward, self.of, x, w, y);
        if statistics {
            let sum = self.channels("sum", self.of.filters, Role::Output);
            let squares = self.channels("sum of squares", self.of.filters, Role::Output);
            self.graph.nodes.push(Node::Statistics { x: y, sum, squares });
        }
    }

    fn weight_gradient(&mut self, norm: bool) {
        let (x, dy) = (self.input("x", self.of.input), self.input("dy", self.of.output()));
        let x = if norm { self.normed(x) } else { x };
        let dw = self.graph.tensor("dw", self.ty, self.of.weights(), Role::Output);
        self.graph.convolve(Pass::WeightGradient, self.of, x, dw, dy);
    }

    fn plain_data_gradient(&mut self) {
        let (w, dy) = (self.input("w", self.of.weights()), self.input("dy", self.of.output()));
        let dx = self.graph.tensor("dx", self.ty, self.of.input, Role::Output);
        self.graph.convolve(Pass::DataGradient, self.of, dx, w, dy);
    }

    /// The gradient of the input, never in memory.
    fn data_gradient(&mut self) -> TensorId {
        let (w, dy) = (self.input("w", self.of.weights()), self.input("dy", self.of.output()));
        let dx = self.inner("gradient", self.of.input);
        self.graph.convolve(Pass::DataGradient, self.of, dx, w, dy);
        dx
    }

    fn add_residual(&mut self, to: TensorId, dims: [usize; 4], target: TensorTarget) -> TensorId {
        let residual = self.input("residual", dims);
        self.graph.pointwise(Pointwise::Add, to, Some(residual), target)
    }

    fn relu_data_gradient(&mut self, residual: bool) {
        let mut dx = self.data_gradient();
        if residual {
            dx = self.add_residual(dx, self.of.input, TensorTarget::inner("summed"));
        }
        let x = self.input("x", self.of.input);
        self.graph.pointwise(Pointwise::ReluGradient, dx, Some(x), TensorTarget::output("dx", self.ty));
    }

    fn norm_data_gradient(&mut self, residual: bool) {
        let (ty, channels) = (self.ty, self.of.input[3]);
        let mut dx = self.data_gradient();
        if residual {
            dx = self.add_residual(dx, self.of.input, TensorTarget::inner("summed"));
        }
        let x = self.input("x", self.of.input);
        let [mean, deviation, scale, shift] =
            ["mean", "deviation", "scale", "shift"].map(|name| self.channels(name, channels, Role::Input));
        let norm = self.graph.normed(x, [mean, deviation, scale, shift]);
        let dy =
            self.graph.pointwise(Pointwise::ReluGradient, dx, Some(norm), TensorTarget::output("dy of the norm", ty));
        let [dscale, dshift, dy_factor, x_factor, offset] = ["dscale", "dshift", "dy factor", "x factor", "offset"]
            .map(|name| self.channels(name, channels, Role::Output));
        self.graph.nodes.push(Node::NormGradients {
            x,
            dy,
            mean,
            deviation,
            scale,
            dscale,
            dshift,
            dy_factor,
            x_factor,
            offset,
        });
    }

    /// `conv(x, w)`, never in memory.
    fn forward(&mut self) -> TensorId {
        let (x, w) = (self.input("x", self.of.input), self.input("w", self.of.weights()));
        let y = self.inner("product", self.of.output());
        self.graph.convolve(Pass::Forward, self.of, x, w, y);
        y
    }

    fn shifted(&mut self, Shifted { scale, residual, activation }: Shifted) {
        let mut y = self.forward();
        let filters = self.of.filters;
        if scale {
            let scale = self.channels("scale", filters, Role::Input);
            y = self.graph.pointwise(Pointwise::Mul, y, Some(scale), TensorTarget::inner("scaled"));
        }
        let last = |is_last: bool, name| match is_last {
            true => TensorTarget::output("y", self.ty),
            false => TensorTarget::inner(name),
        };
        let is_linear = activation == Activation::Nothing;
        let (behind_shift, behind_residual) = (last(is_linear && !residual, "shifted"), last(is_linear, "summed"));
        let shift = self.channels("shift", filters, Role::Input);
        y = self.graph.pointwise(Pointwise::Add, y, Some(shift), behind_shift);
        if residual {
            y = self.add_residual(y, self.of.output(), behind_residual);
        }
        let function = match activation {
            Activation::Nothing => return,
            Activation::Relu => Pointwise::Relu,
            Activation::Swish => Pointwise::Swish,
        };
        self.graph.pointwise(function, y, None, TensorTarget::output("y", self.ty));
    }
}
