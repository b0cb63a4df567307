//! Norms of gradients, and their limits.

use crate::Result;
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::{DType, Graph, Value};
use serde::{Deserialize, Serialize};

/// Euclidean norm of all gradients taken together, `f32[]`.
pub fn global_norm(g: &mut Graph, grads: &[Value]) -> Result<Value> {
    let mut total = g.constant(DType::F32, [], 0.0)?;
    for &grad in grads {
        let squares = g.square(grad)?;
        let axes: Vec<usize> = (0..g.shape(grad).rank()).collect();
        let sum = g.sum(squares, &axes)?;
        total = g.add(total, sum)?;
    }
    g.unary(UnaryKind::Sqrt, total)
}

/// Scales each gradient whose own Euclidean norm is above `limit` down to it: TensorFlow's `clip_by_norm`.
pub fn clip_each(g: &mut Graph, limit: f64, grads: &[Value]) -> Result<Vec<Value>> {
    let clip = Clip { limit, form: ClipForm::TensorFlow, of: ClipOf::Step };
    let each = grads.iter().map(|&grad| {
        let norm = global_norm(g, &[grad])?;
        let factor = clip.factor(g, norm)?;
        g.mul(grad, factor)
    });
    each.collect()
}

/// Limit of the global norm: larger gradients are scaled down to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clip {
    /// The largest global norm that is left as it is.
    pub limit: f64,
    /// The factor of larger gradients.
    pub form: ClipForm,
    /// Whether the gradients of a step or those of each micro-batch are limited.
    pub of: ClipOf,
}

/// Whose gradients are limited, in steps of several micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClipOf {
    /// Their mean.
    #[default]
    Step,
    /// Those of each micro-batch, before their mean: NVIDIA's BERT for TensorFlow 1.
    MicroBatch,
}

/// What gradients are multiplied with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClipForm {
    /// `min(1, limit / (norm + 1e-6))`: PyTorch's `clip_grad_norm_`.
    #[default]
    PyTorch,
    /// `limit / max(norm, limit)`: TensorFlow's `clip_by_global_norm`; with the limit 1, what NVIDIA's LAMB does to gradients
    /// before anything else.
    TensorFlow,
}

impl Clip {
    /// Scales gradients, whose global norm is `norm f32[]`.
    pub fn apply(&self, g: &mut Graph, norm: Value, grads: &[Value]) -> Result<Vec<Value>> {
        let factor = self.factor(g, norm)?;
        grads.iter().map(|&grad| g.mul(grad, factor)).collect()
    }

    /// The factor of gradients whose global norm is `norm f32[]`. A norm that is not finite gives one of no meaning: the
    /// guard of the step keeps the result from being used.
    pub fn factor(&self, g: &mut Graph, norm: Value) -> Result<Value> {
        let limit = g.constant_like(norm, self.limit)?;
        match self.form {
            ClipForm::PyTorch => {
                let stable = g.add_scalar(norm, 1e-6)?;
                let ratio = g.div(limit, stable)?;
                let one = g.constant_like(norm, 1.0)?;
                g.binary(BinaryKind::Min, ratio, one)
            }
            ClipForm::TensorFlow => {
                let larger = g.binary(BinaryKind::Max, norm, limit)?;
                g.div(limit, larger)
            }
        }
    }
}
