//! Batches of sequences for ELECTRA.

use super::{ElectraInstance, ElectraSet};
use crate::feeds::{Field, Row, fill};
use crate::{DataError, SampleKey, Samples};

/// Sequences of an epoch; each epoch has its own masks. The loader's seed has no part in it.
impl Samples for ElectraSet {
    type Sample = Option<ElectraInstance>;

    fn empty_sample(&self) -> Option<ElectraInstance> {
        None
    }

    /// Sequences of `S` tokens with up to `P` predictions each, padded with zeros: `input_ids i32[B, S]`, of which nothing is
    /// hidden; `segment_ids i32[B, S]`, 1 for the second segment; `input_mask i32[B, S]`, 1 for tokens; `masked_lm_positions
    /// i32[B, P]`, where the tokens to predict are, some of which may come more than once in a sequence; `masked_lm_replaced
    /// i32[B, P]`, 1 where `[MASK]` takes the token's place, for which one is enough where a position comes more than once;
    /// `masked_lm_weights f32[B, P]`, 1 for predictions.
    fn fields(&self) -> Vec<Field> {
        let (length, predictions) = (self.sequence_length(), self.predictions());
        vec![
            Field::i32("input_ids", length),
            Field::i32("segment_ids", length),
            Field::i32("input_mask", length),
            Field::i32("masked_lm_positions", predictions),
            Field::i32("masked_lm_replaced", predictions),
            Field::f32("masked_lm_weights", predictions),
        ]
    }

    fn load_sample(
        &self,
        index: usize,
        draw: SampleKey,
        sample: &mut Option<ElectraInstance>,
    ) -> Result<(), DataError> {
        *sample = Some(self.instance(draw.epoch, index)?);
        Ok(())
    }

    fn write(&self, sample: &Option<ElectraInstance>, row: &mut Row<'_>) {
        let ElectraInstance { tokens, segments, predictions } =
            sample.as_ref().expect("only what was loaded is written");
        fill(row.i32("input_ids"), tokens.iter().map(|&id| id as i32), 0);
        fill(row.i32("segment_ids"), segments.iter().map(|&segment| segment.into()), 0);
        fill(row.i32("input_mask"), tokens.iter().map(|_| 1), 0);
        fill(row.i32("masked_lm_positions"), predictions.iter().map(|word| word.position as i32), 0);
        fill(row.i32("masked_lm_replaced"), predictions.iter().map(|word| word.is_replaced.into()), 0);
        fill(row.f32("masked_lm_weights"), predictions.iter().map(|_| 1.0), 0.0);
    }
}
