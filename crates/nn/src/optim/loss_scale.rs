//! Scaling of the loss.

use crate::Result;
use crate::builder::Builder;
use crate::init::Init;
use bessemer_ir::Value;
use bessemer_ir::ops::pointwise::BinaryKind;

/// Scaling of the loss, so that small gradients survive storage in `f16`. After P. Micikevicius et al., "Mixed precision
/// training" (2018), section 3.2; with growth, PyTorch's `GradScaler`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScale {
    /// Scale of the first step.
    pub initial: f64,
    /// Steps in a row without overflow after which the scale doubles. An overflow halves it, but not below 1. `None`: it
    /// never changes.
    pub growth_steps: Option<u64>,
}

/// Largest loss scale.
const MAX_LOSS_SCALE: f64 = 16_777_216.0;

impl LossScale {
    /// The scale of this step, `f32[]`, kept in the state `loss_scale`.
    pub fn current(&self, b: &mut Builder) -> Result<Value> {
        let init = Init::Constant(self.initial);
        b.scalar_state("loss_scale", init)
    }

    /// Replaces the scale for the next step by what follows from whether this one was without overflow, `bool[]`. Keeps
    /// the steps in a row without one in the state `loss_scale.good_steps`. To be called when the other updates are
    /// guarded, because it happens in any case.
    pub fn adapt(&self, b: &mut Builder, scale: Value, finite: Value) -> Result<()> {
        let Some(growth_steps) = self.growth_steps else { return Ok(()) };
        let good_steps = b.scalar_state("loss_scale.good_steps", Init::Zeros)?;
        let g = &mut b.graph;
        let (zero, one) = (g.constant_like(scale, 0.0)?, g.constant_like(scale, 1.0)?);
        let (limit, wanted) = (g.constant_like(scale, MAX_LOSS_SCALE)?, g.constant_like(scale, growth_steps as f64)?);
        let counted = g.add_scalar(good_steps, 1.0)?;
        let grows = g.binary(BinaryKind::Ge, counted, wanted)?;
        let doubled = g.mul_scalar(scale, 2.0)?;
        let doubled = g.binary(BinaryKind::Min, doubled, limit)?;
        let halved = g.mul_scalar(scale, 0.5)?;
        let halved = g.binary(BinaryKind::Max, halved, one)?;
        let kept = g.select(grows, doubled, scale)?;
        let next = g.select(finite, kept, halved)?;
        let count = g.select(grows, zero, counted)?;
        let count = g.select(finite, count, zero)?;
        g.update(scale, next)?;
        g.update(good_steps, count)
    }
}
