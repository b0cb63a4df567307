//! Adam and AdamW.

use super::{AdamMoments, DecayExclude, EpsForm, decayed};
use crate::Result;
use crate::builder::Builder;
use crate::params::ParamSpec;
use bessemer_ir::Value;

/// How Adam decays weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DecayForm {
    /// `weight_decay * w` is added to the gradient: a loss term `weight_decay / 2 * |w|^2`.
    Coupled,
    /// `lr * weight_decay * w` is taken from the weight, past the moments: AdamW (Loshchilov, Hutter: "Decoupled weight decay
    /// regularization", 2019).
    #[default]
    Decoupled,
}

/// `w -= lr * (m / (sqrt(v) + eps) + weight_decay * w)` (Kingma, Ba: "Adam", 2015).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// How `m` and `v` are kept.
    pub moments: AdamMoments,
    /// Factor of the decay.
    pub weight_decay: f64,
    /// Where the decay enters.
    pub decay_form: DecayForm,
    /// Parameters that do not decay.
    pub decay_exclude: DecayExclude,
}

impl Adam {
    /// Adam of the first BERT: decoupled decay, no bias correction, `eps` 1e-6.
    pub fn bert(weight_decay: f64) -> Adam {
        Adam {
            moments: AdamMoments {
                beta1: 0.9,
                beta2: 0.999,
                eps: 1e-6,
                eps_form: EpsForm::OutsideSqrt,
                bias_correction: false,
            },
            weight_decay,
            decay_form: DecayForm::Decoupled,
            decay_exclude: DecayExclude::LayerNormAndBias,
        }
    }

    /// Adam of ELECTRA's fine-tuning in TensorFlow: as [`Adam::bert`], with bias correction around `eps`.
    pub fn electra(weight_decay: f64) -> Adam {
        let bert = Adam::bert(weight_decay);
        let moments = AdamMoments { eps_form: EpsForm::BeforeCorrection, bias_correction: true, ..bert.moments };
        Adam { moments, ..bert }
    }

    /// Replaces `param` by its next value.
    pub fn update(&self, b: &mut Builder, param: &ParamSpec, grad: Value, lr: Value, step: Value) -> Result<()> {
        let decayed = |b: &mut Builder, x| decayed(b, x, param, self.weight_decay, self.decay_exclude);
        let direction = match self.decay_form {
            DecayForm::Coupled => {
                let grad = decayed(b, grad)?;
                self.moments.direction(b, param, grad, step)?
            }
            DecayForm::Decoupled => {
                let direction = self.moments.direction(b, param, grad, step)?;
                decayed(b, direction)?
            }
        };
        let g = &mut b.graph;
        let change = g.mul(direction, lr)?;
        let new = g.sub(param.value, change)?;
        g.update(param.value, new)
    }
}
