//! SGD with momentum, and AdamW with or without bias correction.

use crate::parameters::Weight;
use burn_tensor::Tensor;
use peer::{Optimizer, Training};

/// What is done to each weight in one step.
pub(crate) struct Rule<'a> {
    training: &'a Training,
    /// The number of the step, from 1.
    count: i32,
    /// What gradients are multiplied by, to clip them.
    factor: f64,
}

/// A weight before a step, without gradients of its own.
struct Before<const D: usize> {
    value: Tensor<D>,
    moments: Vec<Tensor<D>>,
    gradient: Tensor<D>,
    decay: f64,
}

impl<'a> Rule<'a> {
    pub(crate) fn new(training: &'a Training, count: i32, factor: f64) -> Self {
        Self { training, count, factor }
    }

    pub(crate) fn apply<const D: usize>(&self, name: &str, weight: &mut Weight<D>, gradient: Tensor<D>) {
        let before = Before {
            value: weight.value.clone().inner(),
            moments: std::mem::take(&mut weight.moments),
            gradient: if self.factor < 1.0 { gradient * self.factor } else { gradient },
            decay: self.training.decay(name),
        };
        let (value, moments) = match self.training.optimizer {
            Optimizer::Sgd { momentum, nesterov } => self.sgd(before, momentum, nesterov),
            Optimizer::AdamW { betas, eps, bias_correction } => {
                let corrections = betas.map(|beta| if bias_correction { 1.0 - beta.powi(self.count) } else { 1.0 });
                self.adamw(before, betas, corrections, eps)
            }
        };
        *weight = Weight { value: value.autodiff().require_grad(), moments };
    }

    /// By PyTorch's formula: `v = momentum v + (g + decay w)`, `w -= rate v`.
    fn sgd<const D: usize>(&self, before: Before<D>, momentum: f64, nesterov: bool) -> (Tensor<D>, Vec<Tensor<D>>) {
        let Before { value, moments, gradient, decay } = before;
        let direction = if decay > 0.0 { gradient + value.clone() * decay } else { gradient };
        let velocity = match moments.into_iter().next() {
            Some(velocity) => velocity * momentum + direction.clone(),
            None => direction.clone(),
        };
        let ahead = if nesterov { direction + velocity.clone() * momentum } else { velocity.clone() };
        (value - ahead * self.training.lr, vec![velocity])
    }

    /// Decoupled weight decay, <https://arxiv.org/abs/1711.05101>.
    fn adamw<const D: usize>(
        &self,
        before: Before<D>,
        betas: [f64; 2],
        corrections: [f64; 2],
        eps: f64,
    ) -> (Tensor<D>, Vec<Tensor<D>>) {
        let Before { value, moments, gradient, decay } = before;
        let rate = self.training.lr;
        let mut moments = moments.into_iter();
        let mut next = |beta: f64, now: Tensor<D>| match moments.next() {
            Some(moment) => moment * beta + now * (1.0 - beta),
            None => now * (1.0 - beta),
        };
        let first = next(betas[0], gradient.clone());
        let second = next(betas[1], gradient.square());
        let root = (second.clone() / corrections[1]).sqrt() + eps;
        let direction = first.clone() / corrections[0] / root;
        (value * (1.0 - rate * decay) - direction * rate, vec![first, second])
    }
}
