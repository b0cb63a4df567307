//! Steps of several micro-batches, on one rank or several.

use crate::Result;
use crate::builder::Builder;
use crate::params::{ParamKind, ParamLayout, ParamSpec};
use crate::ranks::{Ranks, over_ranks};
use bessemer_ir::ops::collective::Wire;
use bessemer_ir::ops::pointwise::BinaryKind;
use bessemer_ir::{DType, Role, TensorType, Value};

/// The feed, `f32[]`, by which a rank of several says that it wishes to stop, and the result of the step that counts those that do.
pub const STOP: &str = "stop";

/// The micro-batches of a step.
struct Means {
    /// Share of one micro-batch, `1 / count`.
    share: f64,
    /// Whether this is the first that this rank has of the step, `bool[]`; `None` where it has one.
    is_first: Option<Value>,
}

/// Name of the state that holds the mean of the gradients of a parameter over the micro-batches of a step.
pub fn accumulator_name(parameter: &str) -> String {
    format!("accumulate.{parameter}")
}

/// Lets the step take `count` micro-batches, of which each rank has as many as the others: returns the means of `loss f32[]` and of
/// the gradients over all of them, which hold for the whole step after the last one. Results of the graph that are one `f32`
/// become means as well.
///
/// Each mean is kept in a state `accumulate.NAME`, those of results in `accumulate.output.NAME`; the state `accumulated`
/// counts the micro-batches of the step. None of it is read across steps, and nothing of it is there where a rank has one.
///
/// With one rank, all updates that are there happen after every micro-batch whose loss is finite. With several they happen
/// once a step, to the mean of what each micro-batch would have replaced the state by.
///
/// # Errors
/// None, for a graph without gradients of other types.
///
/// # Panics
/// If the number of ranks does not divide `count`.
pub fn accumulate(
    b: &mut Builder,
    count: u64,
    ranks: Ranks,
    loss: Value,
    params: &[ParamSpec],
    grads: &[Value],
) -> Result<(Value, Vec<Value>)> {
    assert!(count.is_multiple_of(ranks.count as u64), "{count} micro-batches for {} ranks", ranks.count);
    let own = count / ranks.count as u64;
    if ranks.count == 1 {
        let finite = super::is_finite(b, loss)?;
        b.graph.guard_updates(finite)?;
        b.graph.update_all_each_micro_batch();
    }
    let statistics = b.graph.updates().len();
    let is_first = if own > 1 { Some(count_micro_batches(b, own)?) } else { None };
    let means = Means { share: 1.0 / count as f64, is_first };
    let results = b.graph.outputs().to_vec();
    for (index, (name, value)) in results.iter().enumerate() {
        if *b.graph.ty(*value) == TensorType::f32([]) {
            let mean = means.of(b, &format!("output.{name}"), *value, ParamLayout::Plain)?;
            let mean = over_ranks(&mut b.graph, ranks.count, Wire::F32, mean)?;
            b.graph.replace_output(index, mean);
        }
    }
    let loss = means.of(b, "output.loss", loss, ParamLayout::Plain)?;
    let loss = over_ranks(&mut b.graph, ranks.count, Wire::F32, loss)?;
    let named = params.iter().zip(grads);
    let grads = named.map(|(param, &grad)| {
        let mean = means.of(b, &param.name, grad, param.layout)?;
        over_ranks(&mut b.graph, ranks.count, ranks.wire, mean)
    });
    let grads = grads.collect::<Result<_>>()?;
    if ranks.count > 1 {
        average_statistics(b, &means, statistics, ranks.count)?;
        let wish = b.graph.input(STOP, Role::Feed, TensorType::f32([]))?;
        let wishes = over_ranks(&mut b.graph, ranks.count, Wire::F32, wish)?;
        b.graph.output(STOP, wishes);
    }
    Ok((loss, grads))
}

/// Lets the first `count` updates, those of running statistics, replace by the mean of what each micro-batch would replace by.
fn average_statistics(b: &mut Builder, means: &Means, count: usize, ranks: usize) -> Result<()> {
    for index in 0..count {
        let (state, new) = b.graph.updates()[index];
        let name = b.graph.node(state.node).op.as_input().map_or(String::new(), |input| input.name.clone());
        let mean = means.of(b, &name, new, ParamLayout::Plain)?;
        let mean = over_ranks(&mut b.graph, ranks, Wire::F32, mean)?;
        b.graph.replace_update(index, mean)?;
    }
    Ok(())
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

impl Means {
    /// The share of `x` of this micro-batch, added to those of the micro-batches that this rank had before.
    fn of(&self, b: &mut Builder, name: &str, x: Value, layout: ParamLayout) -> Result<Value> {
        let Some(is_first) = self.is_first else { return b.graph.mul_scalar(x, self.share) };
        let ty = b.graph.ty(x).clone();
        let state = b.optimizer_state(&accumulator_name(name), ty, layout, ParamKind::Accumulator)?;
        let g = &mut b.graph;
        let zero = g.constant_like(x, 0.0)?;
        let before = g.select(is_first, zero, state)?;
        let part = g.mul_scalar(x, self.share)?;
        let mean = g.add(before, part)?;
        g.update_each_micro_batch(state, mean)?;
        Ok(mean)
    }
}
