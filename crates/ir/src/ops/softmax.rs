//! Softmax and its logarithm over the innermost axis.

use super::pointwise::UnaryKind;
use super::reduce::ReduceKind;
use super::{Cost, GradArgs, Gradient, LowOperands, LowResult, MixedPrecision, OpError, OpRule, float_inputs};
use crate::graph::{Graph, GraphError, Value};
use crate::reference::Tensor;
use crate::rules::Rules;
use crate::shape::TensorType;

/// `exp(x) / sum(exp(x))` over the innermost axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Softmax;

/// `x - log(sum(exp(x)))` over the innermost axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogSoftmax;

fn infer(inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
    let [x] = float_inputs(inputs, "one tensor")?;
    if x.shape.rank() == 0 || x.shape.cols() == 0 {
        return Err(OpError::operands("a tensor with an innermost axis that is not empty"));
    }
    Ok(vec![x.clone()])
}

/// Sum over the innermost axis, which is kept with size 1.
fn row_sum(g: &mut Graph, x: Value) -> Result<Value, GraphError> {
    let axis = g.shape(x).rank() - 1;
    g.reduce(ReduceKind::Sum, x, &[axis], true)
}

/// Applies `f` to each row together with the row's maximum and the sum of `exp(x - maximum)`.
fn by_row(x: &Tensor, output: &TensorType, f: impl Fn(f64, f64, f64) -> f64) -> Vec<Tensor> {
    let mut data = Vec::with_capacity(x.data.len());
    for row in x.data.chunks(x.ty.shape.cols()) {
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|x| (x - max).exp()).sum();
        data.extend(row.iter().map(|&x| f(x, max, sum)));
    }
    vec![Tensor::new(output.clone(), data)]
}

/// Maximum, difference, exponential, sum, and the last difference or quotient.
fn cost(inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
    Cost::streaming(5 * inputs[0].shape.elements() as u64, inputs, outputs)
}

impl OpRule for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        infer(inputs)
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        let Some(dy) = args.grads[0] else { return Ok(Gradient::Inputs(vec![None])) };
        let y = args.outputs[0];
        let product = g.mul(dy, y)?;
        let sum = row_sum(g, product)?;
        let centred = g.sub(dy, sum)?;
        Ok(Gradient::Inputs(vec![Some(g.mul(y, centred)?)]))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        cost(inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        by_row(inputs[0], &outputs[0], |x, max, sum| (x - max).exp() / sum)
    }

    fn mixed_precision(&self, _rules: &Rules) -> MixedPrecision {
        MixedPrecision { operands: LowOperands::StayF32, result: LowResult::Unchanged }
    }
}

impl OpRule for LogSoftmax {
    fn name(&self) -> &'static str {
        "log_softmax"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        infer(inputs)
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        let Some(dy) = args.grads[0] else { return Ok(Gradient::Inputs(vec![None])) };
        let probabilities = g.unary(UnaryKind::Exp, args.outputs[0])?;
        let sum = row_sum(g, dy)?;
        let expected = g.mul(probabilities, sum)?;
        Ok(Gradient::Inputs(vec![Some(g.sub(dy, expected)?)]))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        cost(inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        by_row(inputs[0], &outputs[0], |x, max, sum| x - max - sum.ln())
    }

    fn mixed_precision(&self, _rules: &Rules) -> MixedPrecision {
        MixedPrecision { operands: LowOperands::StayF32, result: LowResult::Unchanged }
    }
}
