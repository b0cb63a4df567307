//! Accuracy and loss of logits.

use crate::error::TrainError;
use crate::session::EvalSession;
use crate::tasks::softmax::log_sum_exp;
use crate::tasks::{Batch, Record, Score};
use bessemer_metrics::{MeanLoss, TopK};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Top-1 and top-5 accuracy and mean cross entropy.
pub(super) struct Accuracy {
    classes: usize,
    correct: [u64; 2],
    loss: MeanLoss,
}

/// One batch.
#[derive(Serialize, Deserialize)]
struct BatchAccuracy {
    /// Samples whose label is the best, and among the best five.
    correct: [u64; 2],
    samples: usize,
    mean_loss: f64,
}

impl Accuracy {
    pub(super) fn new(classes: usize) -> Result<Self, TrainError> {
        Ok(Self { classes, correct: [0; 2], loss: MeanLoss::new() })
    }

    /// Of `logits [N, classes]` for `labels` of the first samples; the rest is padding.
    fn of_logits(&self, labels: &[i32], logits: &[f32]) -> Result<BatchAccuracy, TrainError> {
        let logits = &logits[..labels.len() * self.classes];
        let mut top = TopK::new(self.classes, &[1, 5])?;
        top.update(logits, labels)?;
        let rows = logits.chunks_exact(self.classes).zip(labels);
        let sum: f64 = rows.map(|(row, &label)| cross_entropy(row, label as usize)).sum();
        let correct = [1, 5].map(|k| top.correct(k).unwrap_or(0));
        Ok(BatchAccuracy { correct, samples: labels.len(), mean_loss: sum / labels.len() as f64 })
    }
}

impl Score for Accuracy {
    fn record(&self, batch: &Batch, session: &EvalSession) -> Result<Record, TrainError> {
        let labels = &batch.feeds.i32("labels")[..batch.samples];
        Ok(Record::of(&self.of_logits(labels, session.output("logits")?)?))
    }

    fn add(&mut self, record: &Record) -> Result<(), TrainError> {
        let BatchAccuracy { correct, samples, mean_loss } = record.read()?;
        self.loss.update(mean_loss, samples)?;
        self.correct.iter_mut().zip(correct).for_each(|(sum, count)| *sum += count);
        Ok(())
    }

    fn metrics(&self) -> BTreeMap<String, f64> {
        let [top1, top5] = self.correct.map(|correct| correct as f64 / self.loss.samples().max(1) as f64);
        let metrics = [("top1", top1), ("top5", top5), ("loss", self.loss.mean().unwrap_or(0.0))];
        metrics.map(|(name, value)| (name.to_owned(), value)).into()
    }

    fn counts(&self) -> BTreeMap<String, u64> {
        let counts = [("correct", self.correct[0]), ("total", self.loss.samples())];
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
        let record = Record::of(&score.of_logits(&[2, 1], &logits).unwrap());
        score.add(&record).unwrap();
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
