//! Accuracy and loss of logits.

use crate::error::TrainError;
use crate::session::EvalSession;
use crate::tasks::softmax::log_sum_exp;
use crate::tasks::{Batch, Score};
use bessemer_metrics::{MeanLoss, TopK};
use std::collections::BTreeMap;

/// Top-1 and top-5 accuracy and mean cross entropy.
pub(super) struct Accuracy {
    classes: usize,
    top: TopK,
    loss: MeanLoss,
}

impl Accuracy {
    pub(super) fn new(classes: usize) -> Result<Self, TrainError> {
        Ok(Self { classes, top: TopK::new(classes, &[1, 5])?, loss: MeanLoss::new() })
    }

    /// Adds `logits [N, classes]` for `labels` of the first samples; the rest is padding.
    fn add_logits(&mut self, labels: &[i32], logits: &[f32]) -> Result<(), TrainError> {
        let logits = &logits[..labels.len() * self.classes];
        self.top.update(logits, labels)?;
        let rows = logits.chunks_exact(self.classes).zip(labels);
        let sum: f64 = rows.map(|(row, &label)| cross_entropy(row, label as usize)).sum();
        Ok(self.loss.update(sum / labels.len() as f64, labels.len())?)
    }
}

impl Score for Accuracy {
    fn add(&mut self, batch: &Batch, session: &EvalSession) -> Result<(), TrainError> {
        self.add_logits(&batch.feeds.i32("labels")[..batch.samples], session.output("logits")?)
    }

    fn metrics(&self) -> BTreeMap<String, f64> {
        let top = |k| self.top.accuracy(k).unwrap_or(0.0);
        let metrics = [("top1", top(1)), ("top5", top(5)), ("loss", self.loss.mean().unwrap_or(0.0))];
        metrics.map(|(name, value)| (name.to_owned(), value)).into()
    }

    fn counts(&self) -> BTreeMap<String, u64> {
        let counts = [("correct", self.top.correct(1).unwrap_or(0)), ("total", self.top.samples())];
        counts.map(|(name, count)| (name.to_owned(), count)).into()
    }
}

/// `-log softmax(logits)[label]`
fn cross_entropy(logits: &[f32], label: usize) -> f64 {
    log_sum_exp(logits) - f64::from(logits[label])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_not_counted() {
        let logits = [9.0, 0.0, 2.0, 9.0, 0.0, 1.0, f32::NAN, f32::NAN, f32::NAN];
        let mut score = Accuracy::new(3).unwrap();
        score.add_logits(&[2, 1], &logits).unwrap();
        let (metrics, counts) = (score.metrics(), score.counts());
        assert_eq!((counts["correct"], counts["total"], metrics["top1"], metrics["top5"]), (0, 2, 0.0, 1.0));
        let expected = (log_sum_exp(&logits[..3]) - 2.0 + log_sum_exp(&logits[3..6])) / 2.0;
        assert!((metrics["loss"] - expected).abs() < 1e-12);
    }

    #[test]
    fn cross_entropy_of_large_logits() {
        assert!((cross_entropy(&[1000.0, 1000.0], 0) - 2.0_f64.ln()).abs() < 1e-12);
    }
}
