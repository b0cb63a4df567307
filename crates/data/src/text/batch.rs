//! Batches of instances of pre-training.

use super::{Instance, PretrainingSet};
use crate::feeds::{Field, Row, fill};
use crate::{DataError, SampleKey, Samples};

/// Sequences of an epoch; where the set makes them on the fly, each epoch has its own. The loader's seed has no part in it.
impl Samples for PretrainingSet {
    type Sample = Option<Instance>;

    fn empty_sample(&self) -> Option<Instance> {
        None
    }

    /// Instances of `S` tokens with `P` predictions each, padded with zeros: `input_ids i32[B, S]`; `segment_ids i32[B, S]`, 1
    /// for the second segment; `input_mask i32[B, S]`, 1 for tokens; `masked_lm_positions i32[B, P]`; `masked_lm_ids i32[B, P]`,
    /// the tokens to predict; `masked_lm_weights f32[B, P]`, 1 for predictions; `next_sentence_labels i32[B]`, 1 where the
    /// second segment is of another document.
    fn fields(&self) -> Vec<Field> {
        let (length, predictions) = (self.sequence_length(), self.predictions());
        vec![
            Field::i32("input_ids", length),
            Field::i32("segment_ids", length),
            Field::i32("input_mask", length),
            Field::i32("masked_lm_positions", predictions),
            Field::i32("masked_lm_ids", predictions),
            Field::f32("masked_lm_weights", predictions),
            Field::i32("next_sentence_labels", 1),
        ]
    }

    fn load_sample(&self, index: usize, draw: SampleKey, sample: &mut Option<Instance>) -> Result<(), DataError> {
        *sample = Some(self.instance(draw.epoch, index)?);
        Ok(())
    }

    fn write(&self, sample: &Option<Instance>, row: &mut Row<'_>) {
        let instance = sample.as_ref().expect("only what was loaded is written");
        fill(row.i32("input_ids"), instance.tokens.iter().map(|&id| id as i32), 0);
        fill(row.i32("segment_ids"), instance.segments.iter().map(|&segment| segment.into()), 0);
        fill(row.i32("input_mask"), instance.tokens.iter().map(|_| 1), 0);
        fill(row.i32("masked_lm_positions"), instance.masked.iter().map(|&(position, _)| position as i32), 0);
        fill(row.i32("masked_lm_ids"), instance.masked.iter().map(|&(_, id)| id as i32), 0);
        fill(row.f32("masked_lm_weights"), instance.masked.iter().map(|_| 1.0), 0.0);
        row.i32("next_sentence_labels")[0] = instance.random_next.into();
    }
}
