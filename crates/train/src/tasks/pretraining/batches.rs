//! Sequences as feeds.

use crate::error::TrainError;
use crate::tasks::{Array, Batch, Batches, Feeds, LoadOptions};
use bessemer_data::text::{PretrainingBatch, PretrainingSet};
use bessemer_data::{DataError, Loader, Position, Sampler, SamplerOptions, SkippedSample};
use std::sync::Arc;
use std::time::Duration;

/// The feeds of pre-training: `input_ids`, `segment_ids`, `input_mask` `i32[B, S]`; `masked_lm_positions`, `masked_lm_ids`
/// `i32[B, P]`; `masked_lm_weights` `f32[B, P]`; `next_sentence_labels` `i32[B]`.
pub(super) struct SequenceBatches {
    loader: Loader<PretrainingSet>,
}

impl SequenceBatches {
    /// Batches of a sampler from a position up to an epoch.
    pub fn training(
        set: Arc<PretrainingSet>,
        sampler: Sampler,
        load: &LoadOptions,
        start: Position,
        end_epoch: u32,
    ) -> Result<Self, DataError> {
        let options = load.loader(sampler.options().seed, start, end_epoch);
        Ok(Self { loader: Loader::new(set, sampler, options)? })
    }

    /// Every sequence of a set once, in order; the last batch is filled up with zeros.
    pub fn evaluation(set: Arc<PretrainingSet>, load: &LoadOptions, batch_size: usize) -> Result<Self, DataError> {
        let sampler = Sampler::new(set.len(), SamplerOptions::eval(batch_size))?;
        Self::training(set, sampler, load, Position::default(), 1)
    }
}

impl Batches for SequenceBatches {
    fn next(&mut self, _: u64) -> Option<Result<Batch, TrainError>> {
        let batch = self.loader.next_batch()?;
        Some(batch.map(fed).map_err(TrainError::from))
    }

    fn recycle(&mut self, batch: Batch) {
        let mut sequences = PretrainingBatch::default();
        for feed in batch.feeds {
            match feed {
                ("input_ids", Array::I32(ids)) => sequences.input_ids = ids,
                ("segment_ids", Array::I32(segments)) => sequences.segment_ids = segments,
                ("input_mask", Array::I32(mask)) => sequences.input_mask = mask,
                ("masked_lm_positions", Array::I32(positions)) => sequences.masked_lm_positions = positions,
                ("masked_lm_ids", Array::I32(ids)) => sequences.masked_lm_ids = ids,
                ("masked_lm_weights", Array::F32(weights)) => sequences.masked_lm_weights = weights,
                ("next_sentence_labels", Array::I32(labels)) => sequences.next_sentence_labels = labels,
                _ => {}
            }
        }
        self.loader.recycle(sequences);
    }

    fn position(&self) -> Position {
        self.loader.position()
    }

    fn waited(&self) -> Duration {
        self.loader.stats().waited
    }

    fn skipped(&self) -> Vec<SkippedSample> {
        self.loader.skipped().cloned().collect()
    }
}

fn fed(batch: bessemer_data::Batch<PretrainingBatch>) -> Batch {
    let bessemer_data::Batch { content, real, epoch, index, skipped } = batch;
    let feeds = Feeds::from([
        ("input_ids", Array::I32(content.input_ids)),
        ("segment_ids", Array::I32(content.segment_ids)),
        ("input_mask", Array::I32(content.input_mask)),
        ("masked_lm_positions", Array::I32(content.masked_lm_positions)),
        ("masked_lm_ids", Array::I32(content.masked_lm_ids)),
        ("masked_lm_weights", Array::F32(content.masked_lm_weights)),
        ("next_sentence_labels", Array::I32(content.next_sentence_labels)),
    ]);
    Batch { feeds, samples: real, epoch, index, skipped }
}
