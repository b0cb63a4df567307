//! Losses of object detectors, element by element.

use crate::Result;
use crate::params::{ParamKind, ParamSpec};
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::{Graph, Value};

/// Focal loss of independent classes (Lin et al. 2017, arXiv:1708.02002):
/// `alpha_t * (1 - p_t)^gamma * -ln(p_t)`, where `p_t` is the sigmoid of the logit for the class of an element, and one minus it
/// for all others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SigmoidFocal {
    /// Weight of positive elements; that of negative ones is `1 - alpha`.
    pub alpha: f64,
    /// Exponent by which elements that are predicted well lose weight.
    pub gamma: f64,
}

impl SigmoidFocal {
    /// The loss of each element of `logits` with `targets`, which are 0 or 1, all `f32` of the same shape.
    ///
    /// With `a = ln(1 + exp(-x))` and the target `z` it is `alpha_t * exp(-gamma * (z * x + a)) * (a + (1 - z) * x)`, the
    /// stable form of the reference implementation of EfficientDet.
    ///
    /// # Errors
    /// Shapes that differ.
    pub fn elements(&self, g: &mut Graph, logits: Value, targets: Value) -> Result<Value> {
        let a = log_of_one_plus_exp_of_negative(g, logits)?;
        let hit = g.mul(targets, logits)?;
        let exponent = g.add(hit, a)?;
        let exponent = g.mul_scalar(exponent, -self.gamma)?;
        let modulator = g.unary(UnaryKind::Exp, exponent)?;
        let miss = g.sub(logits, hit)?;
        let entropy = g.add(a, miss)?;
        let loss = g.mul(modulator, entropy)?;
        let weight = g.mul_scalar(targets, 2.0 * self.alpha - 1.0)?;
        let weight = g.add_scalar(weight, 1.0 - self.alpha)?;
        g.mul(loss, weight)
    }
}

/// `ln(1 + exp(-x))` without overflow: `max(-x, 0) + ln(1 + exp(-|x|))`.
fn log_of_one_plus_exp_of_negative(g: &mut Graph, x: Value) -> Result<Value> {
    let size = g.unary(UnaryKind::Abs, x)?;
    let negative = g.neg(size)?;
    let e = g.unary(UnaryKind::Exp, negative)?;
    let sum = g.add_scalar(e, 1.0)?;
    let log = g.unary(UnaryKind::Log, sum)?;
    let opposite = g.neg(x)?;
    let linear = g.relu(opposite)?;
    g.add(linear, log)
}

/// Cross entropy of independent probabilities, `-z * ln(p) - (1 - z) * ln(1 - p)` with the sigmoid `p` of a logit and the target `z`
/// in `[0, 1]`, of each element.
///
/// # Errors
/// Shapes that differ.
pub fn sigmoid_cross_entropy(g: &mut Graph, logits: Value, targets: Value) -> Result<Value> {
    let a = log_of_one_plus_exp_of_negative(g, logits)?;
    let hit = g.mul(targets, logits)?;
    let miss = g.sub(logits, hit)?;
    g.add(a, miss)
}

/// [`huber`], and 0 for elements whose target is 0.
///
/// # Errors
/// Shapes that differ.
pub fn huber_of_targets(g: &mut Graph, predictions: Value, targets: Value, delta: f64) -> Result<Value> {
    let loss = huber(g, predictions, targets, delta)?;
    let zero = g.constant_like(targets, 0.0)?;
    let is_empty = g.binary(BinaryKind::Eq, targets, zero)?;
    g.select(is_empty, zero, loss)
}

/// Huber loss (1964) of each element: `q^2 / 2 + delta * (|e| - q)` with `e = prediction - target` and `q = min(|e|, delta)`.
///
/// # Errors
/// Shapes that differ.
pub fn huber(g: &mut Graph, predictions: Value, targets: Value, delta: f64) -> Result<Value> {
    let error = g.sub(predictions, targets)?;
    let size = g.unary(UnaryKind::Abs, error)?;
    let limit = g.constant_like(size, delta)?;
    let quadratic = g.binary(BinaryKind::Min, size, limit)?;
    let square = g.square(quadratic)?;
    let half = g.mul_scalar(square, 0.5)?;
    let rest = g.sub(size, quadratic)?;
    let linear = g.mul_scalar(rest, delta)?;
    g.add(half, linear)
}

/// Half the sum of the squares of all trained weights that are neither biases nor of norms: what weight decay is the gradient of.
/// `exclude` leaves out others by their names.
///
/// # Errors
/// None for parameters of the graph.
pub fn l2_sum(g: &mut Graph, specs: &[ParamSpec], exclude: impl Fn(&str) -> bool) -> Result<Value> {
    let is_counted = |spec: &&ParamSpec| spec.is_trainable() && spec.kind == ParamKind::Weight && !exclude(&spec.name);
    let mut total = None;
    for spec in specs.iter().filter(is_counted) {
        let squares = g.square(spec.value)?;
        let sum = sum_all(g, squares)?;
        total = Some(match total {
            None => sum,
            Some(total) => g.add(total, sum)?,
        });
    }
    match total {
        Some(total) => g.mul_scalar(total, 0.5),
        None => g.constant(bessemer_ir::DType::F32, [], 0.0),
    }
}

/// The sum of all elements, `f32[]`.
///
/// # Errors
/// None for a float.
pub fn sum_all(g: &mut Graph, x: Value) -> Result<Value> {
    let axes: Vec<usize> = (0..g.shape(x).rank()).collect();
    g.sum(x, &axes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::{Builder, Mode};
    use crate::init::Init;
    use bessemer_ir::DType;
    use bessemer_ir::autodiff::gradients;
    use bessemer_ir::reference::Interpreter;

    const LOGITS: [f64; 6] = [-90.0, -2.0, -0.5, 0.25, 3.0, 80.0];

    /// Loss and gradient of the first input.
    fn run(inputs: [&[f64]; 2], build: impl Fn(&mut Graph, Value, Value) -> Result<Value>) -> (f64, Vec<f64>) {
        let mut b = Builder::new(Mode::Train);
        let [x, targets] =
            ["x", "targets"].map(|name| b.feed(name, DType::F32, [inputs[0].len()]).expect("a new name"));
        let elements = build(&mut b.graph, x, targets).expect("a legal graph");
        let loss = sum_all(&mut b.graph, elements).expect("a legal graph");
        let grad = gradients(&mut b.graph, loss, &[x]).expect("it has a gradient")[0];
        b.graph.output("loss", loss);
        b.graph.output("grad", grad);
        let mut run = Interpreter::new(&b.graph);
        run.set("x", inputs[0]);
        run.set("targets", inputs[1]);
        run.run();
        (run.output("loss").data[0], run.output("grad").data.clone())
    }

    /// By the definition, with the gradient of `p_t` written out.
    #[test]
    fn focal_loss_is_its_definition() {
        let focal = SigmoidFocal { alpha: 0.25, gamma: 1.5 };
        for z in [0.0, 1.0] {
            let (loss, grad) = run([&LOGITS, &[z; 6]], |g, x, z| focal.elements(g, x, z));
            let one = |x: f64| {
                let sign = if z == 1.0 { 1.0 } else { -1.0 };
                // p_t and its complement, each without cancellation.
                let [p, rest] = [-sign * x, sign * x].map(|x: f64| 1.0 / (1.0 + x.exp()));
                let alpha = if z == 1.0 { 0.25 } else { 0.75 };
                let log = if p > 0.5 { (-rest).ln_1p() } else { p.ln() };
                let loss = -alpha * rest.powf(1.5) * log;
                let slope = alpha * sign * rest.powf(1.5) * (1.5 * p * log - rest);
                (loss, slope)
            };
            let expected: f64 = LOGITS.iter().map(|&x| one(x).0).sum();
            assert!((loss - expected).abs() < 1e-9 * expected.max(1.0), "{loss} is not {expected}");
            for (grad, &x) in grad.iter().zip(&LOGITS) {
                assert!((grad - one(x).1).abs() < 1e-9, "at {x}: {grad} is not {}", one(x).1);
            }
        }
    }

    #[test]
    fn huber_loss_leaves_out_targets_of_zero() {
        let predictions = [0.05, 2.0, -1.0, 7.0];
        let targets = [0.1, 1.0, 0.5, 0.0];
        let (loss, grad) = run([&predictions, &targets], |g, x, z| huber_of_targets(g, x, z, 0.1));
        let expected = 0.05f64.powi(2) / 2.0 + (0.1 * (1.0 - 0.05)) + 0.1 * (1.5 - 0.05);
        assert!((loss - expected).abs() < 1e-12, "{loss} is not {expected}");
        let slopes = [-0.05, 0.1, -0.1, 0.0];
        assert!(grad.iter().zip(slopes).all(|(grad, slope)| (grad - slope).abs() < 1e-12), "{grad:?}");
    }

    #[test]
    fn sigmoid_cross_entropy_is_its_definition() {
        for z in [0.0, 0.25, 1.0] {
            let (loss, grad) = run([&LOGITS, &[z; 6]], sigmoid_cross_entropy);
            // ln(p) and ln(1 - p) without cancellation.
            let one = |x: f64| z * (-x).exp().ln_1p() + (1.0 - z) * x.exp().ln_1p();
            let expected: f64 = LOGITS.iter().map(|&x| one(x)).sum();
            assert!((loss - expected).abs() < 1e-9 * expected, "{loss} is not {expected}");
            for (grad, &x) in grad.iter().zip(&LOGITS) {
                assert!((grad - (1.0 / (1.0 + (-x).exp()) - z)).abs() < 1e-9, "at {x}: {grad}");
            }
        }
    }

    #[test]
    fn l2_counts_weights_alone() {
        let mut b = Builder::new(Mode::Train);
        b.weight("fc.weight", [1, 2], Init::Ones).expect("a new name");
        b.weight("edge", [1, 1], Init::Ones).expect("a new name");
        b.bias("fc.bias", 3, Init::Ones).expect("a new name");
        b.norm("bn.weight", 3, Init::Ones).expect("a new name");
        let specs = b.specs().to_vec();
        let sum = l2_sum(&mut b.graph, &specs, |name| name == "edge").expect("a legal graph");
        b.graph.output("l2", sum);
        let mut run = Interpreter::new(&b.graph);
        run.set("fc.weight", &[3.0, 4.0]);
        run.run();
        assert_eq!(run.output("l2").data, [12.5]);
    }
}
