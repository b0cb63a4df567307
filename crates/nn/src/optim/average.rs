//! Moving averages of a model's tensors.

use crate::Result;
use crate::builder::Builder;
use crate::params::{ParamKind, ParamSpec};
use bessemer_ir::Value;
use bessemer_ir::ops::pointwise::BinaryKind;
use std::collections::HashMap;

/// Keeps a moving average of every tensor of the model that the step replaces in the state `ema.NAME`:
/// `ema = decay * ema + (1 - decay) * new`. In step 0 the tensor's content before the step takes the place of `ema`. To be
/// called when all updates are in the graph.
pub fn average(b: &mut Builder, decay: f64, step: Value) -> Result<()> {
    let replaced: HashMap<Value, Value> = b.graph.updates().iter().copied().collect();
    let zero = b.graph.constant_like(step, 0.0)?;
    let first = b.graph.binary(BinaryKind::Eq, step, zero)?;
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
        let kept = g.mul_scalar(old, decay)?;
        let added = g.mul_scalar(new, 1.0 - decay)?;
        let moved = g.add(kept, added)?;
        g.update(state, moved)?;
    }
    Ok(())
}
