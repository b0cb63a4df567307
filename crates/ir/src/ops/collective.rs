//! Operations over all ranks of a job: every rank runs the same graph, and meets the same collectives in the same order.

use super::{Cost, GradArgs, Gradient, OpError, OpRule};
use crate::dtype::DType;
use crate::graph::{Graph, GraphError};
use crate::reference::Tensor;
use crate::shape::TensorType;

/// Element type in which tensors travel between ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wire {
    /// Nothing is rounded.
    #[default]
    F32,
    /// Elements are rounded to bfloat16 before they are sent, and their sum once more.
    Bf16,
    /// The same with IEEE half precision.
    F16,
}

impl Wire {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Wire::F32 => 4,
            Wire::Bf16 | Wire::F16 => 2,
        }
    }
}

/// Each `f32` tensor added to those of the other ranks, in `f32` from +0 in the order of ranks; all ranks get the same bits. Several
/// tensors are one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllReduce {
    /// Number of ranks.
    pub ranks: usize,
    /// Type of elements on the way.
    pub wire: Wire,
}

impl AllReduce {
    /// The reference kernel: one tensor of all ranks, in their order, added in `f64`.
    pub(crate) fn reduce(parts: &[&Tensor]) -> Tensor {
        Tensor::from_fn(parts[0].ty.clone(), |index| parts.iter().map(|part| part.data[index]).sum())
    }

    fn check(inputs: &[&TensorType]) -> Result<(), OpError> {
        match !inputs.is_empty() && inputs.iter().all(|ty| ty.dtype == DType::F32) {
            true => Ok(()),
            false => Err(OpError::operands("f32 tensors, at least one")),
        }
    }

    /// Bytes that a rank sends, and as many that it receives: `2 (N - 1) / N` of the elements.
    pub fn wire_bytes(&self, inputs: &[&TensorType]) -> u64 {
        let elements: usize = inputs.iter().map(|ty| ty.shape.elements()).sum();
        (2 * elements * self.wire.bytes() * (self.ranks - 1) / self.ranks) as u64
    }

    fn describe(&self) -> String {
        let wire = match self.wire {
            Wire::F32 => "",
            Wire::Bf16 => ", wire=bf16",
            Wire::F16 => ", wire=f16",
        };
        format!("ranks={}{wire}", self.ranks)
    }
}

impl OpRule for AllReduce {
    fn name(&self) -> &'static str {
        "all_reduce"
    }

    fn attributes(&self) -> String {
        self.describe()
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        AllReduce::check(inputs)?;
        Ok(inputs.iter().map(|&ty| ty.clone()).collect())
    }

    /// The loss of the job is the sum of the ranks' losses, so that the gradient of the sum is the sum of the gradients.
    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        let given: Vec<_> = args.grads.iter().flatten().copied().collect();
        let mut reduced = g.push(*self, &given)?.into_iter();
        Ok(Gradient::Inputs(args.grads.iter().map(|grad| grad.and_then(|_| reduced.next())).collect()))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        let elements: usize = inputs.iter().map(|ty| ty.shape.elements()).sum();
        Cost::streaming(elements as u64, inputs, outputs)
    }

    fn evaluate(&self, _: &[&Tensor], _: &[TensorType]) -> Vec<Tensor> {
        unreachable!("interpreters combine the tensors of all ranks")
    }

    fn folds_constants(&self) -> bool {
        false
    }
}

/// Sends what an [`AllReduce`] reads, and returns while it is under way. The result, `i32[]`, is for the [`AllReduceWait`] of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AllReduceStart {
    /// What is computed.
    pub op: AllReduce,
}

impl OpRule for AllReduceStart {
    fn name(&self) -> &'static str {
        "all_reduce_start"
    }

    fn attributes(&self) -> String {
        self.op.describe()
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        AllReduce::check(inputs)?;
        Ok(vec![TensorType::new(DType::I32, [])])
    }

    fn gradient(&self, _: &mut Graph, _: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        Ok(Gradient::NotDifferentiable)
    }

    fn cost(&self, inputs: &[&TensorType], _outputs: &[TensorType]) -> Cost {
        Cost::streaming(0, inputs, &[])
    }

    fn evaluate(&self, _: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        vec![Tensor::zeros(outputs[0].clone())]
    }

    fn folds_constants(&self) -> bool {
        false
    }
}

/// Waits for the [`AllReduceStart`] whose result it reads, and gives the combined tensors.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AllReduceWait {
    /// Types of the tensors, as the start reads them.
    pub types: Vec<TensorType>,
}

impl OpRule for AllReduceWait {
    fn name(&self) -> &'static str {
        "all_reduce_wait"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        match inputs {
            [number] if **number == TensorType::new(DType::I32, []) => Ok(self.types.clone()),
            _ => Err(OpError::operands("the result of a start, i32[]")),
        }
    }

    fn gradient(&self, _: &mut Graph, _: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        Ok(Gradient::NotDifferentiable)
    }

    fn cost(&self, _inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(0, &[], outputs)
    }

    fn evaluate(&self, _: &[&Tensor], _: &[TensorType]) -> Vec<Tensor> {
        unreachable!("interpreters take the result from what the start reads")
    }

    fn folds_constants(&self) -> bool {
        false
    }
}
