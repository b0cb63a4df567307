//! SGD with momentum, and AdamW: those of `candle-nn` have no momentum, or always correct biases.

use crate::parameters::Parameters;
use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor, Var};
use peer::{Optimizer, Training};

/// Weights with the optimizer's tensors.
pub(crate) struct Updates {
    training: Training,
    weights: Vec<Weight>,
    count: i32,
}

struct Weight {
    var: Var,
    decay: f64,
    /// The velocity, or mean and mean square of gradients.
    moments: Vec<Tensor>,
}

impl Updates {
    pub(crate) fn new(training: &Training, parameters: &Parameters) -> Result<Self> {
        let moments = if matches!(training.optimizer, Optimizer::Sgd { .. }) { 1 } else { 2 };
        let weight = |(name, var): &(String, Var)| {
            let moments = (0..moments).map(|_| var.zeros_like()).collect::<Result<_>>()?;
            Ok(Weight { var: var.clone(), decay: training.decay(name), moments })
        };
        let weights = parameters.trained().iter().map(weight).collect::<Result<_>>()?;
        Ok(Self { training: training.clone(), weights, count: 0 })
    }

    pub(crate) fn apply(&mut self, gradients: &GradStore) -> Result<()> {
        self.count += 1;
        let factor = match self.training.clip_norm {
            Some(limit) => (limit / self.norm(gradients)?).min(1.0),
            None => 1.0,
        };
        let (optimizer, rate) = (&self.training.optimizer, self.training.lr);
        for weight in &mut self.weights {
            if let Some(gradient) = gradients.get(&weight.var) {
                let gradient = if factor < 1.0 { (gradient * factor)? } else { gradient.clone() };
                weight.apply(optimizer, rate, self.count, &gradient)?;
            }
        }
        Ok(())
    }

    /// Of all gradients together.
    fn norm(&self, gradients: &GradStore) -> Result<f64> {
        let found = self.weights.iter().filter_map(|weight| gradients.get(&weight.var));
        let squares = found.map(|gradient| gradient.sqr()?.sum_all()?.to_scalar::<f32>().map(f64::from));
        Ok(squares.sum::<Result<f64>>()?.sqrt())
    }
}

impl Weight {
    fn apply(&mut self, optimizer: &Optimizer, rate: f64, count: i32, gradient: &Tensor) -> Result<()> {
        let gradient = gradient.detach();
        match *optimizer {
            Optimizer::Sgd { momentum, nesterov } => self.sgd(&gradient, rate, momentum, nesterov),
            Optimizer::AdamW { betas, eps, bias_correction } => {
                let corrections = betas.map(|beta| if bias_correction { 1.0 - beta.powi(count) } else { 1.0 });
                self.adamw(&gradient, rate, betas, corrections, eps)
            }
        }
    }

    /// By PyTorch's formula: `v = momentum v + (g + decay w)`, `w -= rate v`.
    fn sgd(&mut self, gradient: &Tensor, rate: f64, momentum: f64, nesterov: bool) -> Result<()> {
        let weight = self.var.as_detached_tensor();
        let direction = if self.decay > 0.0 { (gradient + (&weight * self.decay)?)? } else { gradient.clone() };
        let velocity = ((&self.moments[0] * momentum)? + &direction)?;
        let ahead = if nesterov { (direction + (&velocity * momentum)?)? } else { velocity.clone() };
        self.var.set(&(weight - (ahead * rate)?)?)?;
        self.moments[0] = velocity;
        Ok(())
    }

    /// Decoupled weight decay, <https://arxiv.org/abs/1711.05101>.
    fn adamw(&mut self, gradient: &Tensor, rate: f64, betas: [f64; 2], corrections: [f64; 2], eps: f64) -> Result<()> {
        let weight = self.var.as_detached_tensor();
        let [first, second] = [gradient.clone(), gradient.sqr()?];
        let first = ((&self.moments[0] * betas[0])? + (first * (1.0 - betas[0]))?)?;
        let second = ((&self.moments[1] * betas[1])? + (second * (1.0 - betas[1]))?)?;
        let root = ((&second / corrections[1])?.sqrt()? + eps)?;
        let direction = (&first / corrections[0])?.div(&root)?;
        self.var.set(&((weight * (1.0 - rate * self.decay))? - (direction * rate)?)?)?;
        self.moments = vec![first, second];
        Ok(())
    }
}
