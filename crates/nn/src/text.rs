//! Activations of models that read text.

use crate::Result;
use bessemer_ir::ops::pointwise::UnaryKind;
use bessemer_ir::{Graph, Value};
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

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_ir::reference::Interpreter;

    fn assert_gate(activation: Activation, expected: [f64; 4]) {
        let mut g = Graph::new();
        let x = g.constant_vector(&[0.0, 1.0, -2.0, 3.0]).expect("a constant");
        let y = activation.apply(&mut g, x).expect("a float");
        g.output("y", y);
        let mut run = Interpreter::new(&g);
        run.run();
        let actual = &run.output("y").data;
        assert!(actual.iter().zip(expected).all(|(a, e)| (a - e).abs() < 1e-6), "{actual:?}, not {expected:?}");
    }

    #[test]
    fn gates() {
        assert_gate(Activation::Gelu, [0.0, 0.841_344_746, -0.045_500_264, 2.995_950_306]);
        assert_gate(Activation::GeluTanh, [0.0, 0.841_191_991, -0.045_402_306, 2.996_362_607]);
    }
}
