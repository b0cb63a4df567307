//! A product that computes its first operand while it reads it.

use super::{Cost, GradArgs, Gradient, Op, OpError, OpRule, Producer};
use crate::graph::{Graph, GraphError};
use crate::reference::Tensor;
use crate::shape::{Shape, TensorType};

/// `op(f(x * scale + shift), second)`, where `f` is ReLU or nothing. Inputs: x `[N, H, W, C]`, the second operand of `op`, the scale,
/// `f32[C]` or one for each image, `f32[N, 1, 1, C]`, and the shift, `f32[C]`. The padding of a convolution stays zero.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConvWithPrologue {
    /// A [`Conv2d`](super::conv::Conv2d) or [`Conv2dWeightGrad`](super::conv::Conv2dWeightGrad).
    pub op: Box<Op>,
    /// Whether `f` is ReLU.
    pub relu: bool,
}

impl ConvWithPrologue {
    /// Number of inputs.
    pub const INPUTS: usize = 4;
}

/// The shape `[N, 1, 1, C]` of separate scales per image, for images `[N, H, W, C]`.
pub fn scales_by_image(images: &Shape) -> Shape {
    Shape::from([images.dims().first().copied().unwrap_or(1), 1, 1, images.cols()])
}

impl OpRule for ConvWithPrologue {
    fn name(&self) -> &'static str {
        match *self.op {
            Op::Conv2d(_) => "prologue+conv2d",
            _ => "prologue+conv2d_weight_grad",
        }
    }

    fn attributes(&self) -> String {
        let relu = if self.relu { ", relu" } else { "" };
        format!("{}{relu}", self.op.rule().attributes())
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [x, second, scale, shift] = inputs else {
            return Err(OpError::operands("an input, the other operand, a scale and a shift"));
        };
        if !matches!(*self.op, Op::Conv2d(_) | Op::Conv2dWeightGrad(_)) {
            return Err(OpError::Attribute(format!("{} has no prologue", self.op)));
        }
        let vector = TensorType::f32([x.shape.cols()]);
        let input = TensorType::f32(x.shape.clone());
        let by_image = TensorType::f32(scales_by_image(&x.shape));
        let scales = if scale.shape.rank() == 1 { &vector } else { &by_image };
        for (operand, actual, expected) in [("scale", scale, scales), ("shift", shift, &vector), ("input", x, &input)] {
            if *actual != expected {
                return Err(OpError::Type { operand, expected: expected.clone(), actual: (*actual).clone() });
            }
        }
        self.op.rule().infer(&[x, second])
    }

    fn gradient(&self, _graph: &mut Graph, _args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        Ok(Gradient::NotDifferentiable)
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        let steps = if self.relu { 3 } else { 2 };
        let own = Cost::streaming((steps * inputs[0].shape.elements()) as u64, &inputs[2..], &[]);
        self.op.rule().cost(&inputs[..2], outputs) + own
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let (x, scale, shift) = (inputs[0], &inputs[2].data, &inputs[3].data);
        let image = x.data.len() / inputs[2].ty.shape.rows().max(1);
        let map = |(i, &x): (usize, &f64)| {
            let y = x * scale[i / image * shift.len() + i % shift.len()] + shift[i % shift.len()];
            if self.relu { y.max(0.0) } else { y }
        };
        let mapped = Tensor::new(x.ty.clone(), x.data.iter().enumerate().map(map).collect());
        self.op.rule().evaluate(&[&mapped, inputs[1]], outputs)
    }

    fn producer(&self, inputs: &[&TensorType]) -> Producer {
        self.op.rule().producer(&inputs[..2])
    }

    fn contraction_flops(&self, inputs: &[&TensorType]) -> u64 {
        self.op.rule().contraction_flops(&inputs[..2])
    }

    fn fused_kernel_name(&self) -> &'static str {
        "prologue+conv2d+fusion"
    }
}
