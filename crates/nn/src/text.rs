//! Activations and dropout of models that read text.

use crate::Result;
use crate::builder::{Builder, Mode};
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::ops::source::{Distribution, Random};
use bessemer_ir::{DType, Graph, Value};
use serde::{Deserialize, Serialize};

/// The smooth gate `x * P(X <= x)` of a standard normal X, and its approximation (Hendrycks, Gimpel: "Gaussian error linear
/// units", 2016).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x / 2 * (1 + erf(x / sqrt(2)))`; Hugging Face's `gelu`.
    #[default]
    Gelu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))`; Hugging Face's `gelu_new`.
    GeluTanh,
}

impl Activation {
    /// # Errors
    /// For a tensor that is no float.
    pub fn apply(self, g: &mut Graph, x: Value) -> Result<Value> {
        let bend = match self {
            Activation::Gelu => {
                let scaled = g.mul_scalar(x, std::f64::consts::FRAC_1_SQRT_2)?;
                g.unary(UnaryKind::Erf, scaled)?
            }
            Activation::GeluTanh => {
                let square = g.square(x)?;
                let cube = g.mul(square, x)?;
                let small = g.mul_scalar(cube, 0.044715)?;
                let sum = g.add(x, small)?;
                let scaled = g.mul_scalar(sum, (2.0 / std::f64::consts::PI).sqrt())?;
                g.unary(UnaryKind::Tanh, scaled)?
            }
        };
        let gate = g.add_scalar(bend, 1.0)?;
        let half = g.mul_scalar(x, 0.5)?;
        g.mul(half, gate)
    }
}

/// Which random numbers: a seed, and what distinguishes the random nodes of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomStream {
    /// Seed of the run.
    pub seed: u64,
    /// Number of the random node, different for each one of a step.
    pub stream: u32,
}

impl Builder {
    /// In training, zeros for a share `rate` of the elements, chosen again for each micro-batch, and the others divided by
    /// `1 - rate` (Srivastava et al.: "Dropout", 2014).
    pub fn dropout(&mut self, x: Value, rate: f64, random: RandomStream) -> Result<Value> {
        if rate == 0.0 || self.mode() == Mode::Infer {
            return Ok(x);
        }
        let counter = self.micro_step()?;
        let g = &mut self.graph;
        let (distribution, shape) = (Distribution::Uniform, g.shape(x).clone());
        let random = Random { distribution, shape, seed: random.seed, stream: random.stream };
        let uniform = g.push1(random, &[counter])?;
        let limit = g.constant(DType::F32, [], f64::from(rate as f32))?;
        let is_kept = g.binary(BinaryKind::Ge, uniform, limit)?;
        let kept = g.mul_scalar(x, 1.0 / (1.0 - rate))?;
        let zero = g.constant_like(x, 0.0)?;
        g.select(is_kept, kept, zero)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_ir::philox;
    use bessemer_ir::reference::Interpreter;

    /// What `build` makes of the numbers of `x`.
    fn run(mode: Mode, x: &[f64], build: impl FnOnce(&mut Builder, Value) -> Result<Value>) -> Vec<f64> {
        let mut b = Builder::new(mode);
        let input = b.feed("x", DType::F32, [x.len() / 2, 2]).expect("a new name");
        let y = build(&mut b, input).expect("a legal graph");
        b.graph.output("y", y);
        let mut run = Interpreter::new(&b.graph);
        run.set("x", x);
        for (name, data) in [("norm.weight", [2.0, 3.0]), ("norm.bias", [0.5, -0.5])] {
            if b.graph.find_input(name).is_some() {
                run.set(name, &data);
            }
        }
        run.run();
        run.output("y").data.clone()
    }

    fn assert_close(actual: &[f64], expected: &[f64]) {
        let close = actual.len() == expected.len() && actual.iter().zip(expected).all(|(a, e)| (a - e).abs() < 1e-6);
        assert!(close, "{actual:?}, not {expected:?}");
    }

    #[test]
    fn gates() {
        let x = [0.0, 1.0, -2.0, 3.0];
        let erf = run(Mode::Infer, &x, |b, x| Activation::Gelu.apply(&mut b.graph, x));
        assert_close(&erf, &[0.0, 0.841_344_746, -0.045_500_264, 2.995_950_306]);
        let tanh = run(Mode::Infer, &x, |b, x| Activation::GeluTanh.apply(&mut b.graph, x));
        assert_close(&tanh, &[0.0, 0.841_191_991, -0.045_402_306, 2.996_362_607]);
    }

    #[test]
    fn dropout_follows_the_stream() {
        let x: Vec<f64> = (1..=200).map(f64::from).collect();
        let random = RandomStream { seed: 5, stream: 9 };
        let y = run(Mode::Train, &x, |b, x| b.dropout(x, 0.25, random));
        let expected = |i: usize| if philox::uniform(5, 0, 9, i as u64) >= 0.25 { x[i] / 0.75 } else { 0.0 };
        assert_close(&y, &(0..200).map(expected).collect::<Vec<_>>());
        let dropped = y.iter().filter(|&&y| y == 0.0).count();
        assert!((30..70).contains(&dropped), "{dropped} of 200 are dropped");
        assert_eq!(run(Mode::Infer, &x, |b, x| b.dropout(x, 0.25, random)), x);
    }
}
