//! Gradient descent with momentum.

use super::{DecayExclude, decayed};
use crate::Result;
use crate::builder::Builder;
use crate::params::{ParamKind, ParamSpec};
use bessemer_ir::Value;

/// Stochastic gradient descent: `v = momentum * v + (g + weight_decay * w)`, `w -= lr * v`, and with Nesterov's form
/// `w -= lr * (g + weight_decay * w + momentum * v)`. PyTorch's form; TensorFlow's `MomentumOptimizer` with the decay as a
/// loss term `weight_decay / 2 * |w|^2` is the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Share of the last change in the next one, in `[0, 1)`.
    pub momentum: f64,
    /// Whether the change looks one step ahead: Nesterov's form.
    pub nesterov: bool,
    /// Factor of the decay, which is added to the gradient.
    pub weight_decay: f64,
    /// Parameters that do not decay.
    pub decay_exclude: DecayExclude,
}

impl Sgd {
    /// Replaces `param` by its next value. Keeps `v` in the state `momentum.NAME`.
    pub fn update(&self, b: &mut Builder, param: &ParamSpec, grad: Value, lr: Value) -> Result<()> {
        let mut direction = decayed(b, grad, param, self.weight_decay, self.decay_exclude)?;
        if self.momentum != 0.0 {
            let name = format!("momentum.{}", param.name);
            let state = b.optimizer_state(&name, param.ty.clone(), param.layout, ParamKind::Optimizer)?;
            let kept = b.graph.mul_scalar(state, self.momentum)?;
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
}
