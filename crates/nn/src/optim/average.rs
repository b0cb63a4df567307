//! Moving averages of a model's tensors.

use crate::Result;
use crate::builder::Builder;
use crate::params::{ParamKind, ParamSpec};
use bessemer_ir::ops::pointwise::BinaryKind;
use bessemer_ir::{DType, Graph, Value};
use std::collections::HashMap;

/// A moving average of every tensor of the model that the step replaces, in the state `ema.NAME`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Average {
    /// Share of the average in the next one, in `(0, 1)`.
    pub decay: f64,
    /// Whether the decay of the `t`-th step, counted from 1, is at most `(1 + t) / (10 + t)`, so that the first weights are
    /// soon forgotten: TensorFlow's `ExponentialMovingAverage` with `num_updates`.
    pub ramp: bool,
}

impl Average {
    /// Adds `ema = decay * ema + (1 - decay) * new` to the graph, where `step i32[]` counts the steps done. In step 0 the
    /// tensor's content before the step takes the place of `ema`. To be called when all updates are in the graph.
    pub fn add_to(&self, b: &mut Builder, step: Value) -> Result<()> {
        let replaced: HashMap<Value, Value> = b.graph.updates().iter().copied().collect();
        let zero = b.graph.constant_like(step, 0.0)?;
        let first = b.graph.binary(BinaryKind::Eq, step, zero)?;
        let decay = if self.ramp { Some(self.ramped(&mut b.graph, step)?) } else { None };
        let tensors: Vec<(ParamSpec, Value)> = b
            .specs()
            .iter()
            .filter(|spec| spec.kind.is_model())
            .filter_map(|spec| Some((spec.clone(), *replaced.get(&spec.value)?)))
            .collect();
        for (spec, new) in tensors {
            let name = format!("ema.{}", spec.name);
            let state = b.optimizer_state(&name, spec.ty.clone(), spec.layout, ParamKind::Average)?;
            let g = &mut b.graph;
            let old = g.select(first, spec.value, state)?;
            let [kept, added] = match decay {
                None => [g.mul_scalar(old, self.decay)?, g.mul_scalar(new, 1.0 - self.decay)?],
                Some([decay, rest]) => [g.mul(old, decay)?, g.mul(new, rest)?],
            };
            let moved = g.add(kept, added)?;
            g.update(state, moved)?;
        }
        Ok(())
    }

    /// The decay of this step and what is left to 1, `f32[]` each.
    fn ramped(&self, g: &mut Graph, step: Value) -> Result<[Value; 2]> {
        let done = g.cast(step, DType::F32)?;
        let [above, below] = [g.add_scalar(done, 2.0)?, g.add_scalar(done, 11.0)?];
        let ratio = g.div(above, below)?;
        let limit = g.constant_like(ratio, self.decay)?;
        let decay = g.binary(BinaryKind::Min, ratio, limit)?;
        let one = g.constant_like(decay, 1.0)?;
        Ok([decay, g.sub(one, decay)?])
    }
}
