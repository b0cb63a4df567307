//! How well masked tokens are predicted and replaced ones detected.

use crate::error::TrainError;
use crate::session::EvalSession;
use crate::tasks::{Batch, Record, Score};
use std::collections::BTreeMap;

/// Sums over batches, by the names of outputs.
pub(super) struct RtdMetrics {
    unigram_entropy: f64,
    discriminator_weight: f64,
    sums: [(&'static str, f64); 10],
}

impl RtdMetrics {
    pub(super) fn new(unigram_entropy: f64, discriminator_weight: f64) -> Self {
        let names = [
            "mlm_loss_sum",
            "mlm_correct",
            "sampled_correct",
            "mlm_weight",
            "disc_loss_sum",
            "disc_correct",
            "disc_weight",
            "disc_replaced",
            "disc_suspected",
            "disc_found",
        ];
        Self { unigram_entropy, discriminator_weight, sums: names.map(|name| (name, 0.0)) }
    }

    fn sum(&self, name: &str) -> f64 {
        self.sums.iter().find(|(known, _)| *known == name).map_or(0.0, |known| known.1)
    }

    /// One sum over another, which is 1 where it would be less.
    fn mean(&self, sum: &str, over: &str) -> f64 {
        self.sum(sum) / self.sum(over).max(1.0)
    }
}

impl Score for RtdMetrics {
    fn record(&self, _: &Batch, session: &EvalSession) -> Result<Record, TrainError> {
        let sums = self.sums.iter().map(|(name, _)| Ok(session.output(name)?[0]));
        Ok(Record::of(&sums.collect::<Result<Vec<f32>, TrainError>>()?))
    }

    fn add(&mut self, record: &Record) -> Result<(), TrainError> {
        let of_batch: Vec<f32> = record.read()?;
        self.sums.iter_mut().zip(of_batch).for_each(|((_, sum), value)| *sum += f64::from(value));
        Ok(())
    }

    fn metrics(&self) -> BTreeMap<String, f64> {
        let (mlm, disc) = (self.mean("mlm_loss_sum", "mlm_weight"), self.mean("disc_loss_sum", "disc_weight"));
        let metrics = [
            ("loss", mlm + self.discriminator_weight * disc),
            ("mlm_loss", mlm),
            ("unigram_entropy", self.unigram_entropy),
            ("mlm_accuracy", self.mean("mlm_correct", "mlm_weight")),
            ("sampled_accuracy", self.mean("sampled_correct", "mlm_weight")),
            ("disc_loss", disc),
            ("disc_accuracy", self.mean("disc_correct", "disc_weight")),
            ("disc_precision", self.mean("disc_found", "disc_suspected")),
            ("disc_recall", self.mean("disc_found", "disc_replaced")),
        ];
        metrics.map(|(name, value)| (name.to_owned(), value)).into()
    }

    fn counts(&self) -> BTreeMap<String, u64> {
        self.sums
            .iter()
            .filter(|(name, _)| !name.ends_with("_loss_sum"))
            .map(|(name, sum)| ((*name).to_owned(), *sum as u64))
            .collect()
    }
}
