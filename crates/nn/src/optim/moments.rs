//! Running moments of gradients, the common part of Adam and LAMB.

use crate::Result;
use crate::builder::Builder;
use crate::params::{ParamKind, ParamSpec};
use bessemer_ir::ops::pointwise::UnaryKind;
use bessemer_ir::{DType, Graph, Value};
use serde::{Deserialize, Serialize};

/// Where `eps` is added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EpsForm {
    /// To the root: `m / (sqrt(v) + eps)` of moments that are corrected, where they are: the paper's and PyTorch's form.
    #[default]
    #[serde(alias = "past_root")]
    OutsideSqrt,
    /// Below the root: `m / sqrt(v + eps)`.
    #[serde(alias = "in_root")]
    InsideSqrt,
    /// To the root of the moment as it is; the corrections are a factor of the whole: TensorFlow's form, the last of section 2
    /// in the paper. Without correction it is `OutsideSqrt`.
    BeforeCorrection,
}

/// Running means of gradients and of their squares: `m = beta1 * m + (1 - beta1) * g`,
/// `v = beta2 * v + (1 - beta2) * g^2`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamMoments {
    /// In `[0, 1)`.
    pub beta1: f64,
    /// In `[0, 1)`.
    pub beta2: f64,
    /// What keeps the direction finite where `v` is 0.
    pub eps: f64,
    /// Where `eps` is added.
    pub eps_form: EpsForm,
    /// Whether step `t`, counted from 1, divides `m` by `1 - beta1^t` and `v` by `1 - beta2^t`, which makes up for their
    /// start at zero.
    pub bias_correction: bool,
}

impl AdamMoments {
    /// The direction `m / (sqrt(v) + eps)` of this step. Keeps `m` and `v` in the states `exp_avg.NAME` and
    /// `exp_avg_sq.NAME`; `step i32[]` counts the steps done.
    pub(super) fn direction(&self, b: &mut Builder, param: &ParamSpec, grad: Value, step: Value) -> Result<Value> {
        let mut mean = running_mean(b, "exp_avg", param, grad, self.beta1)?;
        let square = b.graph.square(grad)?;
        let mut variance = running_mean(b, "exp_avg_sq", param, square, self.beta2)?;
        let g = &mut b.graph;
        if !self.bias_correction {
            return self.quotient(g, mean, variance);
        }
        let (of_mean, of_variance) = (bias_correction(g, self.beta1, step)?, bias_correction(g, self.beta2, step)?);
        if self.eps_form == EpsForm::BeforeCorrection {
            let quotient = self.quotient(g, mean, variance)?;
            let root = g.unary(UnaryKind::Sqrt, of_variance)?;
            let factor = g.div(of_mean, root)?;
            return g.mul(quotient, factor);
        }
        mean = g.mul(mean, of_mean)?;
        variance = g.mul(variance, of_variance)?;
        self.quotient(g, mean, variance)
    }

    /// `m / (sqrt(v) + eps)`, or with `eps` in the root.
    fn quotient(&self, g: &mut Graph, mean: Value, variance: Value) -> Result<Value> {
        let divisor = if self.eps_form == EpsForm::InsideSqrt {
            let stable = g.add_scalar(variance, self.eps)?;
            g.unary(UnaryKind::Sqrt, stable)?
        } else {
            let root = g.unary(UnaryKind::Sqrt, variance)?;
            g.add_scalar(root, self.eps)?
        };
        g.div(mean, divisor)
    }
}

/// Replaces the state `PREFIX.NAME` by `beta * state + (1 - beta) * x`, which it returns.
fn running_mean(b: &mut Builder, prefix: &str, param: &ParamSpec, x: Value, beta: f64) -> Result<Value> {
    let name = format!("{prefix}.{}", param.name);
    let state = b.optimizer_state(&name, param.ty.clone(), param.layout, ParamKind::Optimizer)?;
    let g = &mut b.graph;
    let kept = g.mul_scalar(state, beta)?;
    let added = g.mul_scalar(x, 1.0 - beta)?;
    let moved = g.add(kept, added)?;
    g.update(state, moved)?;
    Ok(moved)
}

/// `1 / (1 - beta^t)` with `t = step + 1`, `f32[]`, written as `(1 + 1 / tanh(-t ln(beta) / 2)) / 2`, which cancels nothing
/// where `beta` is near 1.
fn bias_correction(g: &mut Graph, beta: f64, step: Value) -> Result<Value> {
    let step = g.cast(step, DType::F32)?;
    let count = g.add_scalar(step, 1.0)?;
    let exponent = g.mul_scalar(count, -0.5 * beta.ln())?;
    let tanh = g.unary(UnaryKind::Tanh, exponent)?;
    let half = g.constant_like(tanh, 0.5)?;
    let rest = g.div(half, tanh)?;
    g.add_scalar(rest, 0.5)
}
