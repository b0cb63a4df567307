//! Sequences as feeds.

use crate::error::TrainError;
use crate::tasks::{Array, Batch, Batches, Feeds};
use bessemer_data::text::{PretrainingBatch, PretrainingBatches};
use bessemer_data::{Position, SkippedSample};
use std::time::{Duration, Instant};

/// The feeds of pre-training: `input_ids`, `segment_ids`, `input_mask` `i32[B, S]`; `masked_lm_positions`, `masked_lm_ids`
/// `i32[B, P]`; `masked_lm_weights` `f32[B, P]`; `next_sentence_labels` `i32[B]`.
pub(super) struct SequenceBatches {
    batches: PretrainingBatches,
    position: Position,
    end_epoch: u32,
    waited: Duration,
}

impl SequenceBatches {
    /// From a position up to an epoch.
    pub fn new(batches: PretrainingBatches, start: Position, end_epoch: u32) -> Self {
        Self { batches, position: start, end_epoch, waited: Duration::ZERO }
    }
}

impl Batches for SequenceBatches {
    fn next(&mut self, _: u64) -> Option<Result<Batch, TrainError>> {
        if self.position.epoch >= self.end_epoch {
            return None;
        }
        if self.position.batch == self.batches.batches_per_epoch() {
            self.position = Position { epoch: self.position.epoch + 1, batch: 0 };
            return None;
        }
        let (started, position) = (Instant::now(), self.position);
        let batch = self.batches.batch(position);
        self.waited += started.elapsed();
        self.position.batch += 1;
        Some(batch.map(|batch| fed(batch, position)).map_err(TrainError::from))
    }

    fn recycle(&mut self, _: Batch) {}

    fn position(&self) -> Position {
        self.position
    }

    fn waited(&self) -> Duration {
        self.waited
    }

    fn skipped(&self) -> Vec<SkippedSample> {
        Vec::new()
    }
}

fn fed(batch: PretrainingBatch, position: Position) -> Batch {
    let feeds = Feeds::from([
        ("input_ids", Array::I32(batch.input_ids)),
        ("segment_ids", Array::I32(batch.segment_ids)),
        ("input_mask", Array::I32(batch.input_mask)),
        ("masked_lm_positions", Array::I32(batch.masked_lm_positions)),
        ("masked_lm_ids", Array::I32(batch.masked_lm_ids)),
        ("masked_lm_weights", Array::F32(batch.masked_lm_weights)),
        ("next_sentence_labels", Array::I32(batch.next_sentence_labels)),
    ]);
    Batch { feeds, samples: batch.real, epoch: position.epoch, index: position.batch, skipped: Vec::new() }
}
