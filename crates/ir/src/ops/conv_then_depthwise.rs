//! A convolution and the depthwise convolution behind it, so that what is between them need not be in memory as a whole.

use super::conv::Conv2d;
use super::{Cost, GradArgs, Gradient, OpError, OpRule, Producer};
use crate::graph::{Graph, GraphError};
use crate::reference::Tensor;
use crate::shape::TensorType;

/// `depthwise(f(first(x, w) + bias), v)`, all in `f32`: in inference the expansion of an inverted bottleneck (Sandler et al.:
/// "MobileNetV2", 2018) with its depthwise convolution. Inputs: x `[N, H, W, C]`, w `[KH, KW, C, E]`, v `[KH, KW, 1, E]` and the bias,
/// `f32[E]`. The padding of the depthwise convolution stays zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvThenDepthwise {
    /// The first convolution, of one group.
    pub first: Conv2d,
    /// The function `f`.
    pub activation: Activation,
    /// The second convolution, of as many groups as there are channels `E`.
    pub depthwise: Conv2d,
}

/// What is done with the result of the first convolution and its bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Nothing.
    None,
    /// Negative ones become 0.
    Relu,
    /// `x * sigmoid(x)`.
    Swish,
}

impl ConvThenDepthwise {
    /// Number of inputs.
    pub const INPUTS: usize = 4;

    /// The type of what is between the convolutions.
    ///
    /// # Errors
    /// What is wrong with the first two inputs.
    pub fn between(&self, inputs: &[&TensorType]) -> Result<TensorType, OpError> {
        let [x, w, ..] = inputs else { return Err(OpError::operands("an input and the weights of two convolutions")) };
        Ok(TensorType::f32(self.first.geometry(&x.shape, &w.shape)?.y_shape()))
    }
}

impl OpRule for ConvThenDepthwise {
    fn name(&self) -> &'static str {
        "conv2d+depthwise"
    }

    fn attributes(&self) -> String {
        let activation = match self.activation {
            Activation::None => "",
            Activation::Relu => "; relu",
            Activation::Swish => "; swish",
        };
        format!("{}{activation}; {}", self.first.attributes(), self.depthwise.attributes())
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let &[x, w, v, bias] = inputs else {
            return Err(OpError::operands("an input, the weights of two convolutions and a bias"));
        };
        let between = self.between(inputs)?;
        let channels = between.shape.cols();
        if self.first.groups != 1 || self.depthwise.groups != channels {
            return Err(OpError::Attribute(format!(
                "the convolutions have {} and {} groups, not 1 and {channels}",
                self.first.groups, self.depthwise.groups
            )));
        }
        let vector = TensorType::f32([channels]);
        let floats = |ty: &TensorType| TensorType::f32(ty.shape.clone());
        let wanted =
            [("input", x, floats(x)), ("weights", w, floats(w)), ("weights", v, floats(v)), ("bias", bias, vector)];
        for (operand, actual, expected) in wanted {
            if *actual != expected {
                return Err(OpError::Type { operand, expected, actual: actual.clone() });
            }
        }
        self.depthwise.infer(&[&between, v])
    }

    fn gradient(&self, _graph: &mut Graph, _args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        Ok(Gradient::NotDifferentiable)
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        let Ok(between) = self.between(inputs) else { return Cost::default() };
        let steps = match self.activation {
            Activation::None => 1,
            Activation::Relu => 2,
            Activation::Swish => 5,
        };
        let flops = self.contraction_flops(inputs) + (steps * between.shape.elements()) as u64;
        Cost::streaming(flops, inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let [x, w, v, bias] = inputs else { unreachable!("types were inferred") };
        let between = self.between(&[&x.ty, &w.ty]).expect("types were inferred");
        let mut middle = self.first.evaluate(&[x, w], &[between]).remove(0);
        for (i, element) in middle.data.iter_mut().enumerate() {
            let sum = *element + bias.data[i % bias.data.len()];
            *element = match self.activation {
                Activation::None => sum,
                Activation::Relu => sum.max(0.0),
                Activation::Swish => sum / (1.0 + (-sum).exp()),
            };
        }
        self.depthwise.evaluate(&[&middle, v], outputs)
    }

    fn producer(&self, _inputs: &[&TensorType]) -> Producer {
        Producer::Yes
    }

    fn contraction_flops(&self, inputs: &[&TensorType]) -> u64 {
        let Ok(between) = self.between(inputs) else { return 0 };
        self.first.contraction_flops(&inputs[..2]) + self.depthwise.contraction_flops(&[&between, inputs[2]])
    }

    fn fused_kernel_name(&self) -> &'static str {
        "conv2d+depthwise+fusion"
    }
}
