//! Steps of several micro-batches.

use crate::Result;
use crate::builder::Builder;
use crate::params::{ParamKind, ParamLayout, ParamSpec};
use bessemer_ir::ops::pointwise::BinaryKind;
use bessemer_ir::{DType, TensorType, Value};

/// The micro-batches of a step, as the accumulation phase sees them.
struct Accumulation {
    /// Share of one in the means, `1 / count`.
    share: f64,
    /// Whether this is the first of its step, `bool[]`.
    is_first: Value,
}

/// Name of the state that holds the mean of the gradients of a parameter over the micro-batches of a step.
pub fn accumulator_name(parameter: &str) -> String {
    format!("accumulate.{parameter}")
}

/// Lets the step take `count` micro-batches: returns the means of `loss f32[]` and of the gradients over those seen so far,
/// which hold for the whole step after the last one. Results of the graph that are one `f32` become means as well; all
/// updates that are there happen after every micro-batch whose loss is finite.
///
/// Each mean is kept in a state `accumulate.NAME`, those of results in `accumulate.output.NAME`; the state `accumulated`
/// counts the micro-batches of the step. None of it is read across steps.
pub fn accumulate(
    b: &mut Builder,
    count: u64,
    loss: Value,
    params: &[ParamSpec],
    grads: &[Value],
) -> Result<(Value, Vec<Value>)> {
    let finite = super::is_finite(b, loss)?;
    b.graph.guard_updates(finite)?;
    b.graph.update_all_each_micro_batch();
    let accumulation = Accumulation { share: 1.0 / count as f64, is_first: count_micro_batches(b, count)? };
    let results = b.graph.outputs().to_vec();
    for (index, (name, value)) in results.iter().enumerate() {
        if *b.graph.ty(*value) == TensorType::f32([]) {
            let mean = accumulation.mean(b, &format!("output.{name}"), *value, ParamLayout::Plain)?;
            b.graph.replace_output(index, mean);
        }
    }
    let loss = accumulation.mean(b, "output.loss", loss, ParamLayout::Plain)?;
    let named = params.iter().zip(grads);
    let grads = named.map(|(param, &grad)| accumulation.mean(b, &param.name, grad, param.layout));
    Ok((loss, grads.collect::<Result<_>>()?))
}

/// Counts micro-batches from 0 to `count - 1`, over and over, in the state `accumulated`; whether this is number 0.
fn count_micro_batches(b: &mut Builder, count: u64) -> Result<Value> {
    let ty = TensorType::new(DType::I32, []);
    let number = b.optimizer_state("accumulated", ty, ParamLayout::Plain, ParamKind::Accumulator)?;
    let g = &mut b.graph;
    let zero = g.constant_like(number, 0.0)?;
    let end = g.constant_like(number, count as f64)?;
    let next = g.add_scalar(number, 1.0)?;
    let is_last = g.binary(BinaryKind::Ge, next, end)?;
    let next = g.select(is_last, zero, next)?;
    g.update_each_micro_batch(number, next)?;
    g.binary(BinaryKind::Eq, number, zero)
}

impl Accumulation {
    /// `x` of this micro-batch added to the mean of the step.
    fn mean(&self, b: &mut Builder, name: &str, x: Value, layout: ParamLayout) -> Result<Value> {
        let ty = b.graph.ty(x).clone();
        let state = b.optimizer_state(&accumulator_name(name), ty, layout, ParamKind::Accumulator)?;
        let g = &mut b.graph;
        let zero = g.constant_like(x, 0.0)?;
        let before = g.select(self.is_first, zero, state)?;
        let part = g.mul_scalar(x, self.share)?;
        let mean = g.add(before, part)?;
        g.update_each_micro_batch(state, mean)?;
        Ok(mean)
    }
}
