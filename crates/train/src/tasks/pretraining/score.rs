//! How well masked tokens and following sentences are guessed.

use crate::error::TrainError;
use crate::session::EvalSession;
use crate::tasks::{Batch, Record, Score};
use std::collections::BTreeMap;

/// Sums over batches.
#[derive(Default)]
pub(super) struct MlmMetrics {
    unigram_entropy: f64,
    mlm_loss: f64,
    mlm_correct: f64,
    /// Words to predict.
    mlm_weight: f64,
    nsp_loss: f64,
    nsp_correct: f64,
    sequences: u64,
}

impl MlmMetrics {
    pub(super) fn new(unigram_entropy: f64) -> Self {
        Self { unigram_entropy, ..Self::default() }
    }
}

impl Score for MlmMetrics {
    fn record(&self, batch: &Batch, session: &EvalSession) -> Result<Record, TrainError> {
        let outputs = ["mlm_loss_sum", "mlm_correct", "mlm_weight", "nsp_loss_sum", "nsp_correct"];
        let sums = outputs.iter().map(|name| Ok(session.output(name)?[0]));
        Ok(Record::of(&(sums.collect::<Result<Vec<f32>, TrainError>>()?, batch.samples)))
    }

    fn add(&mut self, record: &Record) -> Result<(), TrainError> {
        let (of_batch, sequences): (Vec<f32>, u64) = record.read()?;
        let sums = [
            &mut self.mlm_loss,
            &mut self.mlm_correct,
            &mut self.mlm_weight,
            &mut self.nsp_loss,
            &mut self.nsp_correct,
        ];
        sums.into_iter().zip(of_batch).for_each(|(sum, value)| *sum += f64::from(value));
        self.sequences += sequences;
        Ok(())
    }

    fn metrics(&self) -> BTreeMap<String, f64> {
        let (tokens, sequences) = (self.mlm_weight.max(1.0), (self.sequences as f64).max(1.0));
        let metrics = [
            ("mlm_loss", self.mlm_loss / tokens),
            ("mlm_accuracy", self.mlm_correct / tokens),
            ("nsp_loss", self.nsp_loss / sequences),
            ("nsp_accuracy", self.nsp_correct / sequences),
            ("unigram_entropy", self.unigram_entropy),
        ];
        metrics.map(|(name, value)| (name.to_owned(), value)).into()
    }

    fn counts(&self) -> BTreeMap<String, u64> {
        let counts = [
            ("mlm_correct", self.mlm_correct as u64),
            ("mlm_total", self.mlm_weight as u64),
            ("nsp_correct", self.nsp_correct as u64),
            ("nsp_total", self.sequences),
        ];
        counts.map(|(name, count)| (name.to_owned(), count)).into()
    }
}
