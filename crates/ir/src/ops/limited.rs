//! Convolutions of the first items of a batch.

use super::conv::gradient_of_product;
use super::{Cost, GradArgs, Gradient, MixedPrecision, Op, OpError, OpRule, Producer};
use crate::dtype::DType;
use crate::graph::{Graph, GraphError};
use crate::reference::Tensor;
use crate::rules::Rules;
use crate::shape::TensorType;

/// `op` on the first `count` items of a batch, for batches that are filled to a part only. Inputs: those of `op`, and the count
/// `i32[]`. The results of items behind the last one are zeros; a gradient of weights sums over the items before it. A count
/// that is out of range stands for none, or for all.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Limited {
    /// A [`Conv2d`](super::conv::Conv2d), [`Conv2dDataGrad`](super::conv::Conv2dDataGrad) or
    /// [`Conv2dWeightGrad`](super::conv::Conv2dWeightGrad) of one group.
    pub op: Box<Op>,
}

impl Limited {
    /// Number of inputs.
    pub const INPUTS: usize = 3;

    /// `op` on some items of its batch.
    pub fn new(op: impl Into<Op>) -> Self {
        Self { op: Box::new(op.into()) }
    }

    /// How many of the first operands have items of the batch.
    pub fn operands_of_items(&self) -> usize {
        if matches!(*self.op, Op::Conv2dWeightGrad(_)) { 2 } else { 1 }
    }

    fn groups(&self) -> Option<usize> {
        match &*self.op {
            Op::Conv2d(conv) => Some(conv.groups),
            Op::Conv2dDataGrad(grad) => Some(grad.conv.groups),
            Op::Conv2dWeightGrad(grad) => Some(grad.conv.groups),
            _ => None,
        }
    }
}

impl OpRule for Limited {
    fn name(&self) -> &'static str {
        match *self.op {
            Op::Conv2d(_) => "limited_conv2d",
            Op::Conv2dDataGrad(_) => "limited_conv2d_data_grad",
            _ => "limited_conv2d_weight_grad",
        }
    }

    fn attributes(&self) -> String {
        self.op.rule().attributes()
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [a, b, count] = inputs else {
            return Err(OpError::operands("the operands of a convolution and a count"));
        };
        if self.groups() != Some(1) {
            return Err(OpError::Attribute(format!("{} has no limited form", self.op)));
        }
        let expected = TensorType::new(DType::I32, []);
        if **count != expected {
            return Err(OpError::Type { operand: "count", expected, actual: (*count).clone() });
        }
        self.op.rule().infer(&[a, b])
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        gradient_of_product(&self.op, g, args, Some(args.inputs[2]))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        self.op.rule().cost(&inputs[..2], outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let count = inputs[2].data[0].max(0.0) as usize;
        let first = |tensor: &Tensor| {
            let item: usize = tensor.ty.shape.dims()[1..].iter().product();
            let mut data = tensor.data.clone();
            data.iter_mut().skip(count * item).for_each(|element| *element = 0.0);
            Tensor::new(tensor.ty.clone(), data)
        };
        // The gradient of weights is one of the items, and all else is zero for items that are zero.
        self.op.rule().evaluate(&[&first(inputs[0]), inputs[1]], outputs)
    }

    fn producer(&self, inputs: &[&TensorType]) -> Producer {
        self.op.rule().producer(&inputs[..2])
    }

    fn contraction_flops(&self, inputs: &[&TensorType]) -> u64 {
        self.op.rule().contraction_flops(&inputs[..2])
    }

    fn is_recomputed_in_blocks(&self) -> bool {
        self.op.rule().is_recomputed_in_blocks()
    }

    fn mixed_precision(&self, rules: &Rules) -> MixedPrecision {
        self.op.rule().mixed_precision(rules)
    }

    fn in_16_bits(&self, rules: &Rules, to: DType) -> Option<Op> {
        self.op.rule().in_16_bits(rules, to).map(|op| Limited::new(op).into())
    }

    fn fused_kernel_name(&self) -> &'static str {
        match *self.op {
            Op::Conv2d(_) => "limited_conv2d+fusion",
            _ => "limited_conv2d_data_grad+fusion",
        }
    }
}
