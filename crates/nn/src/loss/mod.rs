//! Losses, all in `f32`.

mod detection;

pub use detection::{SigmoidFocal, huber, huber_of_targets, l2_sum, sigmoid_cross_entropy, sum_all};

use crate::Result;
use crate::builder::Builder;
use crate::preprocess::mix;
use bessemer_ir::ops::index::OneHot;
use bessemer_ir::ops::pointwise::BinaryKind;
use bessemer_ir::ops::reduce::ReduceKind;
use bessemer_ir::{DType, Graph, Value};
use serde::{Deserialize, Serialize};

/// The classes that samples should be given.
#[derive(Clone, Copy, Debug)]
pub struct Targets {
    /// `i32[N]`
    pub labels: Value,
    /// The second class of each sample, where samples are mixed.
    pub mixup: Option<Mixup>,
}

/// Second class of each sample.
#[derive(Clone, Copy, Debug)]
pub struct Mixup {
    /// `i32[N]`
    pub labels: Value,
    /// Share of the first class, `f32[]` or `f32[N]`.
    pub weight: Value,
}

impl Targets {
    /// One class for each sample, `labels i32[N]`.
    pub fn new(labels: Value) -> Self {
        Targets { labels, mixup: None }
    }

    /// Distribution over `classes` for each sample, `f32[N, classes]`: one-hot labels, mixed, of which `smoothing` is
    /// spread evenly over all classes.
    pub fn distribution(&self, g: &mut Graph, classes: usize, smoothing: f64) -> Result<Value> {
        let mut target = g.push1(OneHot { depth: classes }, &[self.labels])?;
        if let Some(mixup) = self.mixup {
            let second = g.push1(OneHot { depth: classes }, &[mixup.labels])?;
            target = mix(g, target, second, mixup.weight)?;
        }
        if smoothing == 0.0 {
            return Ok(target);
        }
        let kept = g.mul_scalar(target, 1.0 - smoothing)?;
        g.add_scalar(kept, smoothing / classes as f64)
    }
}

/// Cross entropy between the targets and `softmax(logits [N, K])`, mean over the batch, `f32[]`.
///
/// With label smoothing `s` it is `(1 - s) * nll + s * mean over classes of -log p`, PyTorch's form. TensorFlow's, one-hot
/// times `1 - s` plus `s / K`, is the same function.
pub fn cross_entropy(g: &mut Graph, logits: Value, targets: &Targets, smoothing: f64) -> Result<Value> {
    let logits = g.cast(logits, DType::F32)?;
    let (batch, classes) = (g.shape(logits).rows(), g.shape(logits).cols());
    let target = targets.distribution(g, classes, smoothing)?;
    let log_p = g.log_softmax(logits)?;
    let products = g.mul(target, log_p)?;
    let sum = g.sum(products, &[0, 1])?;
    g.mul_scalar(sum, -1.0 / batch as f64)
}

/// Rows of logits with a label and a weight each.
#[derive(Clone, Copy, Debug)]
pub struct WeightedRows {
    /// `f32[N, K]`
    pub logits: Value,
    /// `i32[N]`
    pub labels: Value,
    /// `f32[N]`
    pub weights: Value,
}

/// What sums over weighted rows are divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MaskedMean {
    /// The sum of the weights, or next to nothing where it is 0: PyTorch's mean over what is not ignored.
    #[default]
    Torch,
    /// The sum of the weights and 1e-5: Google's.
    TensorFlow,
    /// The sum of the weights and 1e-6: ELECTRA's.
    #[serde(skip)]
    Electra,
}

impl MaskedMean {
    /// The mean of a sum, `f32[]`, over so much weight, `f32[]`; over all ranks if the builder's means are.
    ///
    /// # Errors
    /// None for numbers.
    pub fn of(self, b: &mut Builder, sum: Value, weight: Value) -> Result<Value> {
        let (weight, factor) = b.weight_of_mean(weight)?;
        let mean = self.of_rank(&mut b.graph, sum, weight)?;
        if factor == 1.0 { Ok(mean) } else { b.graph.mul_scalar(mean, factor) }
    }

    /// The sums of this micro-batch divided by so much weight, `f32[]`.
    ///
    /// # Errors
    /// None for floats.
    pub fn of_rank(self, g: &mut Graph, sum: Value, weight: Value) -> Result<Value> {
        let divisor = match self {
            MaskedMean::Torch => {
                let least = g.constant_like(weight, f64::from(f32::MIN_POSITIVE))?;
                g.binary(BinaryKind::Max, weight, least)?
            }
            MaskedMean::TensorFlow => g.add_scalar(weight, 1e-5)?,
            MaskedMean::Electra => g.add_scalar(weight, 1e-6)?,
        };
        g.div(sum, divisor)
    }
}

impl WeightedRows {
    /// The sum of the weights, `f32[]`.
    ///
    /// # Errors
    /// None for operands of the shapes stated.
    pub fn weight(&self, g: &mut Graph) -> Result<Value> {
        g.sum(self.weights, &[0])
    }

    /// The sum of each row's weight times the cross entropy of its label, `f32[]`.
    ///
    /// # Errors
    /// As [`WeightedRows::weight`].
    pub fn loss_sum(&self, g: &mut Graph) -> Result<Value> {
        let logits = g.cast(self.logits, DType::F32)?;
        let target = g.push1(OneHot { depth: g.shape(logits).cols() }, &[self.labels])?;
        let log_p = g.log_softmax(logits)?;
        let products = g.mul(target, log_p)?;
        let by_row = g.sum(products, &[1])?;
        let weighted = g.mul(by_row, self.weights)?;
        let sum = g.sum(weighted, &[0])?;
        g.neg(sum)
    }

    /// The sum of the weights of the rows in which no logit is larger than that of the label, `f32[]`.
    ///
    /// # Errors
    /// As [`WeightedRows::weight`].
    pub fn correct(&self, g: &mut Graph) -> Result<Value> {
        let logits = g.cast(self.logits, DType::F32)?;
        let target = g.push1(OneHot { depth: g.shape(logits).cols() }, &[self.labels])?;
        let products = g.mul(target, logits)?;
        let chosen = g.sum(products, &[1])?;
        let largest = g.reduce(ReduceKind::Max, logits, &[1], false)?;
        let is_right = g.binary(BinaryKind::Eq, chosen, largest)?;
        let hits = g.cast(is_right, DType::F32)?;
        let weighted = g.mul(hits, self.weights)?;
        g.sum(weighted, &[0])
    }
}

/// Cross entropy of the labels, the mean over rows by their weights, `f32[]`.
///
/// # Errors
/// None for operands of the shapes stated.
pub fn masked_cross_entropy(b: &mut Builder, rows: &WeightedRows, mean: MaskedMean) -> Result<Value> {
    let (sum, weight) = (rows.loss_sum(&mut b.graph)?, rows.weight(&mut b.graph)?);
    mean.of(b, sum, weight)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::Mode;
    use bessemer_ir::reference::Interpreter;

    const LOGITS: [f64; 6] = [0.5, -1.0, 2.0, 0.0, 1.5, 0.25];

    fn log_p(row: usize, class: usize) -> f64 {
        let row = &LOGITS[3 * row..][..3];
        row[class] - row.iter().map(|x| x.exp()).sum::<f64>().ln()
    }

    fn run(smoothing: f64, mixup_weight: Option<&[f64]>) -> f64 {
        let mut b = Builder::new(Mode::Train);
        let logits = b.feed("logits", DType::F32, [2, 3]).expect("a new name");
        let labels = b.feed("labels", DType::I32, [2]).expect("a new name");
        let mut targets = Targets::new(labels);
        if let Some(weight) = mixup_weight {
            let shape = if weight.len() == 1 { vec![] } else { vec![weight.len()] };
            let labels = b.feed("second", DType::I32, [2]).expect("a new name");
            let weight = b.feed("weight", DType::F32, shape).expect("a new name");
            targets.mixup = Some(Mixup { labels, weight });
        }
        let loss = cross_entropy(&mut b.graph, logits, &targets, smoothing).expect("a legal graph");
        b.graph.output("loss", loss);
        let mut run = Interpreter::new(&b.graph);
        run.set("logits", &LOGITS);
        run.set("labels", &[2.0, 0.0]);
        if let Some(weight) = mixup_weight {
            run.set("second", &[0.0, 1.0]);
            run.set("weight", weight);
        }
        run.run();
        run.output("loss").data[0]
    }

    #[test]
    fn plain() {
        let expected = -(log_p(0, 2) + log_p(1, 0)) / 2.0;
        assert!((run(0.0, None) - expected).abs() < 1e-12);
    }

    #[test]
    fn smoothed() {
        let nll = -(log_p(0, 2) + log_p(1, 0)) / 2.0;
        let even = -(0..2).flat_map(|r| (0..3).map(move |c| log_p(r, c))).sum::<f64>() / 6.0;
        assert!((run(0.1, None) - (0.9 * nll + 0.1 * even)).abs() < 1e-12);
    }

    #[test]
    fn mixed() {
        let (first, second) = ([-log_p(0, 2), -log_p(1, 0)], [-log_p(0, 0), -log_p(1, 1)]);
        let mixed = |w: [f64; 2]| (0..2).map(|i| (w[i] * first[i] + (1.0 - w[i]) * second[i]) / 2.0).sum::<f64>();
        assert!((run(0.0, Some(&[0.3])) - mixed([0.3, 0.3])).abs() < 1e-12);
        assert!((run(0.0, Some(&[0.3, 0.8])) - mixed([0.3, 0.8])).abs() < 1e-12);
    }

    fn run_masked(mean: MaskedMean, weights: [f64; 2]) -> [f64; 2] {
        let mut b = Builder::new(Mode::Train);
        let logits = b.feed("logits", DType::F32, [2, 3]).expect("a new name");
        let labels = b.feed("labels", DType::I32, [2]).expect("a new name");
        let rows = WeightedRows { logits, labels, weights: b.feed("weights", DType::F32, [2]).expect("a new name") };
        let loss = masked_cross_entropy(&mut b, &rows, mean).expect("a legal graph");
        let correct = rows.correct(&mut b.graph).expect("a legal graph");
        b.graph.output("loss", loss);
        b.graph.output("correct", correct);
        let mut run = Interpreter::new(&b.graph);
        run.set("logits", &LOGITS);
        run.set("labels", &[2.0, 0.0]);
        run.set("weights", &weights);
        run.run();
        [run.output("loss").data[0], run.output("correct").data[0]]
    }

    #[test]
    fn weighted_rows() {
        let sum = -3.0 * log_p(0, 2) - 0.5 * log_p(1, 0);
        let [torch, correct] = run_masked(MaskedMean::Torch, [3.0, 0.5]);
        assert!((torch - sum / 3.5).abs() < 1e-12, "{torch}");
        assert_eq!(correct, 3.0, "the first row's label has the largest logit, the second's has not");
        let [google, _] = run_masked(MaskedMean::TensorFlow, [3.0, 0.5]);
        assert!((google - sum / 3.500_01).abs() < 1e-12, "{google}");
        let [electra, _] = run_masked(MaskedMean::Electra, [3.0, 0.5]);
        assert!((electra - sum / 3.500_001).abs() < 1e-12, "{electra}");
        assert_eq!(run_masked(MaskedMean::Torch, [0.0; 2]), [0.0; 2]);
    }
}
