//! Gradient descent with momentum.

use super::{DecayExclude, decayed};
use crate::Result;
use crate::builder::Builder;
use crate::params::{ParamKind, ParamSpec};
use bessemer_ir::Value;
use serde::{Deserialize, Serialize};

/// Stochastic gradient descent with the gradient `d = g + weight_decay * w`. See [`Velocity`] for the forms of momentum.
/// By default there is neither momentum nor decay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sgd {
    /// Share of the last change in the next one, in `[0, 1)`.
    pub momentum: f64,
    /// Whether the change looks one step ahead: Nesterov's form.
    pub nesterov: bool,
    /// What the momentum keeps.
    pub velocity: Velocity,
    /// Factor of the decay, which is added to the gradient.
    pub weight_decay: f64,
    /// Parameters that do not decay.
    pub decay_exclude: DecayExclude,
}

/// What the state of the momentum holds. Both are the same as long as the learning rate stays the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Velocity {
    /// Gradients: `v = momentum * v + d`, `w -= lr * v`; Nesterov: `w -= lr * (d + momentum * v)`. PyTorch's form, and that of
    /// TensorFlow's `MomentumOptimizer`.
    #[default]
    Gradients,
    /// Changes of the parameter, with the rate at which they were made: `v = momentum * v - lr * d`, `w += v`; Nesterov:
    /// `w += momentum * v - lr * d`. Keras' form.
    Changes,
}

impl Sgd {
    /// Replaces `param` by its next value. Keeps `v` in the state `momentum.NAME`.
    pub fn update(&self, b: &mut Builder, param: &ParamSpec, grad: Value, lr: Value) -> Result<()> {
        let mut direction = decayed(b, grad, param, self.weight_decay, self.decay_exclude)?;
        if self.momentum != 0.0 {
            let name = format!("momentum.{}", param.name);
            let state = b.optimizer_state(&name, param.ty.clone(), param.layout, ParamKind::Optimizer)?;
            let kept = b.graph.mul_scalar(state, self.momentum)?;
            if self.velocity == Velocity::Changes {
                return self.move_by_changes(b, param, state, [kept, direction, lr]);
            }
            let velocity = b.graph.add(kept, direction)?;
            b.graph.update(state, velocity)?;
            direction = if self.nesterov {
                let ahead = b.graph.mul_scalar(velocity, self.momentum)?;
                b.graph.add(direction, ahead)?
            } else {
                velocity
            };
        }
        let change = b.graph.mul(direction, lr)?;
        let new = b.graph.sub(param.value, change)?;
        b.graph.update(param.value, new)
    }

    /// [`Velocity::Changes`]: `kept` is `momentum * v`.
    fn move_by_changes(
        &self,
        b: &mut Builder,
        param: &ParamSpec,
        state: Value,
        [kept, direction, lr]: [Value; 3],
    ) -> Result<()> {
        let change = b.graph.mul(direction, lr)?;
        let velocity = b.graph.sub(kept, change)?;
        b.graph.update(state, velocity)?;
        let moved = if self.nesterov {
            let ahead = b.graph.mul_scalar(velocity, self.momentum)?;
            b.graph.sub(ahead, change)?
        } else {
            velocity
        };
        let new = b.graph.add(param.value, moved)?;
        b.graph.update(param.value, new)
    }
}
