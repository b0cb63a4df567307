use std::sync::Arc;

use super::{Instance, PretrainingSet};
use crate::{DataError, Position, Sampler, SamplerOptions};

/// Instances of one step, padded with zeros, as the model is fed.
///
/// The last batch of an epoch may hold fewer than `B` real instances; the rest is zeros.
#[derive(Debug, Clone, PartialEq)]
pub struct PretrainingBatch {
    /// `[B, S]`.
    pub input_ids: Vec<i32>,
    /// `[B, S]`: 1 for the second segment.
    pub segment_ids: Vec<i32>,
    /// `[B, S]`: 1 for tokens, 0 for padding.
    pub input_mask: Vec<i32>,
    /// `[B, P]`.
    pub masked_lm_positions: Vec<i32>,
    /// `[B, P]`: the tokens to predict.
    pub masked_lm_ids: Vec<i32>,
    /// `[B, P]`: 1 for predictions, 0 for padding.
    pub masked_lm_weights: Vec<f32>,
    /// `[B]`: 1 where the second segment is of another document.
    pub next_sentence_labels: Vec<i32>,
    /// How many instances at the front are real.
    pub real: usize,
    /// `S`.
    pub length: usize,
    /// `P`.
    pub predictions: usize,
}

impl PretrainingBatch {
    /// A batch of `batch` sequences of `length` with `predictions` each, all padding.
    pub fn padding(batch: usize, length: usize, predictions: usize) -> Self {
        Self {
            input_ids: vec![0; batch * length],
            segment_ids: vec![0; batch * length],
            input_mask: vec![0; batch * length],
            masked_lm_positions: vec![0; batch * predictions],
            masked_lm_ids: vec![0; batch * predictions],
            masked_lm_weights: vec![0.0; batch * predictions],
            next_sentence_labels: vec![0; batch],
            real: 0,
            length,
            predictions,
        }
    }

    /// Makes an instance the next real one.
    fn push(&mut self, instance: &Instance) {
        let sequence = self.real * self.length;
        for (at, (&token, &segment)) in (sequence..).zip(instance.tokens.iter().zip(&instance.segments)) {
            self.input_ids[at] = token as i32;
            self.segment_ids[at] = segment.into();
            self.input_mask[at] = 1;
        }
        for (at, &(position, id)) in (self.real * self.predictions..).zip(&instance.masked) {
            self.masked_lm_positions[at] = position as i32;
            self.masked_lm_ids[at] = id as i32;
            self.masked_lm_weights[at] = 1.0;
        }
        self.next_sentence_labels[self.real] = instance.random_next.into();
        self.real += 1;
    }
}

/// The batches of a set, any of which can be made again.
#[derive(Debug)]
pub struct PretrainingBatches {
    set: Arc<PretrainingSet>,
    sampler: Sampler,
    /// Whether instances are drawn anew in each epoch.
    fresh: bool,
    order: Option<(u32, Vec<u32>)>,
}

impl PretrainingBatches {
    /// Shuffled in each epoch, whole batches only; masks are new in each epoch where the set makes them on the fly.
    ///
    /// Errors: a set of fewer instances than a batch has.
    pub fn train(set: Arc<PretrainingSet>, batch_size: usize, seed: u64) -> Result<Self, DataError> {
        let sampler = Sampler::new(set.len(), SamplerOptions::train(batch_size, seed))?;
        Ok(Self { set, sampler, fresh: true, order: None })
    }

    /// Every instance once and in order, the same in every epoch.
    ///
    /// Errors: an empty set or batch.
    pub fn eval(set: Arc<PretrainingSet>, batch_size: usize) -> Result<Self, DataError> {
        let sampler = Sampler::new(set.len(), SamplerOptions::eval(batch_size))?;
        Ok(Self { set, sampler, fresh: false, order: None })
    }

    /// The set.
    pub fn set(&self) -> &Arc<PretrainingSet> {
        &self.set
    }

    /// Batches in an epoch.
    pub fn batches_per_epoch(&self) -> usize {
        self.sampler.batches()
    }

    /// The batch at a position, whatever was asked for before.
    ///
    /// Errors: a position beyond the epoch; data that cannot be read.
    pub fn batch(&mut self, position: Position) -> Result<PretrainingBatch, DataError> {
        let batches = self.batches_per_epoch();
        if position.batch >= batches {
            let expected = format!("less than the {batches} of an epoch");
            return Err(DataError::option("number of the batch", position.batch, expected));
        }
        let size = self.sampler.options().batch_size;
        let order = match self.order.take() {
            Some((epoch, order)) if epoch == position.epoch => order,
            _ => self.sampler.order(position.epoch),
        };
        let indices = order.iter().skip(position.batch * size).take(size);
        let (length, predictions) = (self.set.sequence_length(), self.set.predictions());
        let mut batch = PretrainingBatch::padding(size, length, predictions);
        let epoch = if self.fresh { position.epoch } else { 0 };
        for &index in indices {
            batch.push(&self.set.instance(epoch, index as usize)?);
        }
        self.order = Some((position.epoch, order));
        Ok(batch)
    }
}
