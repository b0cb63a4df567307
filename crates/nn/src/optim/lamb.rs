//! LAMB.

use super::{AdamMoments, DecayExclude, EpsForm, decayed, global_norm, is_decayed};
use crate::Result;
use crate::builder::Builder;
use crate::params::ParamSpec;
use bessemer_ir::ops::pointwise::BinaryKind;
use bessemer_ir::{Graph, Value};
use serde::{Deserialize, Serialize};

/// Which tensors have a learning rate of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trust {
    /// Those that are decayed: NVIDIA's PyTorch form, and `skip_adaptive` of its ELECTRA.
    #[default]
    Decayed,
    /// All: the form of the paper and of NVIDIA's TensorFlow 1 recipes.
    All,
}

/// `u = m / (sqrt(v) + eps) + weight_decay * w`, `w -= lr * (|w| / |u|) * u`; the ratio of the norms is 1 where one of them
/// is 0 (You et al.: "Large batch optimization for deep learning", 2020).
///
/// NVIDIA's form also scales all gradients down to a global norm of 1: [`Clip`](super::Clip) with
/// [`ClipForm::TensorFlow`](super::ClipForm).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lamb {
    /// How `m` and `v` are kept.
    pub moments: AdamMoments,
    /// Factor of the decay, which is part of `u`.
    pub weight_decay: f64,
    /// Parameters that do not decay.
    pub decay_exclude: DecayExclude,
    /// Parameters whose rate is scaled by the ratio of the norms.
    pub trust: Trust,
}

impl Lamb {
    /// NVIDIA's form for PyTorch.
    pub fn nvidia(weight_decay: f64) -> Lamb {
        Lamb {
            moments: AdamMoments {
                beta1: 0.9,
                beta2: 0.999,
                eps: 1e-6,
                eps_form: EpsForm::OutsideSqrt,
                bias_correction: true,
            },
            weight_decay,
            decay_exclude: DecayExclude::LayerNormAndBias,
            trust: Trust::Decayed,
        }
    }

    /// The form for TensorFlow 1: all tensors have a ratio, and moments no bias correction.
    pub fn tensorflow(weight_decay: f64) -> Lamb {
        let nvidia = Lamb::nvidia(weight_decay);
        Lamb { moments: AdamMoments { bias_correction: false, ..nvidia.moments }, trust: Trust::All, ..nvidia }
    }

    /// The form of NVIDIA's ELECTRA: as [`Lamb::nvidia`], with shorter memories.
    pub fn electra(weight_decay: f64) -> Lamb {
        let nvidia = Lamb::nvidia(weight_decay);
        Lamb { moments: AdamMoments { beta1: 0.878, beta2: 0.974, ..nvidia.moments }, ..nvidia }
    }

    /// Replaces `param` by its next value.
    pub fn update(&self, b: &mut Builder, param: &ParamSpec, grad: Value, lr: Value, step: Value) -> Result<()> {
        let direction = self.moments.direction(b, param, grad, step)?;
        let direction = decayed(b, direction, param, self.weight_decay, self.decay_exclude)?;
        let g = &mut b.graph;
        let mut rate = lr;
        if self.trust == Trust::All || is_decayed(param, self.weight_decay, self.decay_exclude) {
            let ratio = trust_ratio(g, param.value, direction)?;
            rate = g.mul(lr, ratio)?;
        }
        let change = g.mul(direction, rate)?;
        let new = g.sub(param.value, change)?;
        g.update(param.value, new)
    }
}

/// `|w| / |u|`, or 1 where one of them is 0; `f32[]`.
fn trust_ratio(g: &mut Graph, weight: Value, direction: Value) -> Result<Value> {
    let (weight, direction) = (global_norm(g, &[weight])?, global_norm(g, &[direction])?);
    let ratio = g.div(weight, direction)?;
    let smaller = g.binary(BinaryKind::Min, weight, direction)?;
    let (zero, one) = (g.constant_like(ratio, 0.0)?, g.constant_like(ratio, 1.0)?);
    let is_usable = g.binary(BinaryKind::Gt, smaller, zero)?;
    g.select(is_usable, ratio, one)
}
