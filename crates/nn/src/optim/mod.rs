//! Optimizers, as nodes of the step.

mod accumulate;
mod adam;
mod average;
mod clip;
mod lamb;
mod loss_scale;
mod moments;
mod sgd;

pub use accumulate::{STOP, accumulate, accumulator_name};
pub use adam::{Adam, DecayForm};
pub use average::Average;
pub use clip::{Clip, ClipForm, ClipOf, clip_each, global_norm};
pub use lamb::{Lamb, Trust};
pub use loss_scale::LossScale;
pub use moments::{AdamMoments, EpsForm};
pub use sgd::{Sgd, Velocity};

use crate::Result;
use crate::builder::Builder;
use crate::params::{ParamKind, ParamLayout, ParamSpec};
use bessemer_ir::ops::pointwise::BinaryKind;
use bessemer_ir::{DType, TensorType, Value};
use serde::{Deserialize, Serialize};

/// How gradients become changes of parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// Gradient descent with momentum.
    Sgd(Sgd),
    /// Adam, or AdamW.
    Adam(Adam),
    /// LAMB.
    Lamb(Lamb),
}

impl Optimizer {
    /// Replaces `param` by its next value, with the learning rate `lr f32[]`; `step i32[]` counts the steps done.
    pub fn update(&self, b: &mut Builder, param: &ParamSpec, grad: Value, lr: Value, step: Value) -> Result<()> {
        match self {
            Optimizer::Sgd(sgd) => sgd.update(b, param, grad, lr),
            Optimizer::Adam(adam) => adam.update(b, param, grad, lr, step),
            Optimizer::Lamb(lamb) => lamb.update(b, param, grad, lr, step),
        }
    }
}

/// Parameters without weight decay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecayExclude {
    /// None: all are decayed.
    None,
    /// Those with `bn` in their name. The batch norms of ResNet's shortcuts are named `downsample.1`, and are decayed.
    BnSubstring,
    /// Scale and offset of every batch norm.
    #[default]
    #[serde(rename = "bn")]
    BatchNorm,
    /// Scale and offset of every batch norm, and every bias.
    #[serde(rename = "bn_and_bias")]
    BatchNormAndBias,
    /// Those with `bias`, `gamma`, `beta` or `LayerNorm` in their name, as in the recipes of BERT.
    LayerNormAndBias,
}

impl DecayExclude {
    /// Whether this parameter is one that does not decay.
    pub fn excludes(self, spec: &ParamSpec) -> bool {
        match self {
            DecayExclude::None => false,
            DecayExclude::BnSubstring => spec.name.contains("bn"),
            DecayExclude::BatchNorm => spec.kind == ParamKind::Norm,
            DecayExclude::BatchNormAndBias => matches!(spec.kind, ParamKind::Norm | ParamKind::Bias),
            DecayExclude::LayerNormAndBias => {
                ["bias", "gamma", "beta", "LayerNorm"].iter().any(|part| spec.name.contains(part))
            }
        }
    }
}

/// `x + weight_decay * w`; `x` where nothing of the parameter `w` decays.
fn decayed(b: &mut Builder, x: Value, param: &ParamSpec, weight_decay: f64, exclude: DecayExclude) -> Result<Value> {
    if !is_decayed(param, weight_decay, exclude) {
        return Ok(x);
    }
    let pull = b.graph.mul_scalar(param.value, weight_decay)?;
    b.graph.add(x, pull)
}

fn is_decayed(param: &ParamSpec, weight_decay: f64, exclude: DecayExclude) -> bool {
    weight_decay != 0.0 && !exclude.excludes(param)
}

/// The number of steps done, `i32[]`, in the state `step`; the step adds one.
pub fn step_counter(b: &mut Builder) -> Result<Value> {
    let step = b.optimizer_state("step", TensorType::new(DType::I32, []), ParamLayout::Plain, ParamKind::Optimizer)?;
    let next = b.graph.add_scalar(step, 1.0)?;
    b.graph.update(step, next)?;
    Ok(step)
}

/// Whether a number is neither NaN nor infinite, `bool[]`.
pub(crate) fn is_finite(b: &mut Builder, x: Value) -> Result<Value> {
    let nothing = b.graph.mul_scalar(x, 0.0)?;
    let zero = b.graph.constant_like(x, 0.0)?;
    b.graph.binary(BinaryKind::Eq, nothing, zero)
}

/// Whether a run that goes on from another one's state, as the second phase of a pre-training does, starts with this tensor
/// over: the counters `step` and `micro_step`, the loss scale, and sums within a step. Weights, moments and averages are kept.
pub fn is_reset_by_phase(spec: &ParamSpec) -> bool {
    match spec.kind {
        ParamKind::Optimizer => spec.ty.shape.rank() == 0,
        ParamKind::Accumulator => true,
        ParamKind::Weight | ParamKind::Bias | ParamKind::Norm | ParamKind::Statistic | ParamKind::Average => false,
    }
}

#[cfg(test)]
mod tests;
