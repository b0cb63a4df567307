use crate::text::batch::fill;
use crate::{DataError, Draw, Samples};

use super::{ElectraInstance, ElectraSet};

/// Sequences of one step of `B` with `S` tokens and up to `P` predictions each, padded with zeros, as the model is fed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ElectraBatch {
    /// `[B, S]`: nothing is hidden.
    pub input_ids: Vec<i32>,
    /// `[B, S]`: 1 for the second segment.
    pub segment_ids: Vec<i32>,
    /// `[B, S]`: 1 for tokens, 0 for padding.
    pub input_mask: Vec<i32>,
    /// `[B, P]`: the tokens to predict are those that `input_ids` has there; some may come more than once in a sequence.
    pub masked_lm_positions: Vec<i32>,
    /// `[B, P]`: 1 for predictions, 0 for padding.
    pub masked_lm_weights: Vec<f32>,
    /// `[B, P]`: 1 where `[MASK]` takes the token's place. One is enough where a position comes more than once.
    pub masked_lm_replaced: Vec<i32>,
}

impl ElectraBatch {
    /// Arrays of `[B, S]`.
    fn of_tokens(&self) -> [&Vec<i32>; 3] {
        [&self.input_ids, &self.segment_ids, &self.input_mask]
    }

    /// Arrays of `[B, P]`, without the weights.
    fn of_predictions(&self) -> [&Vec<i32>; 2] {
        [&self.masked_lm_positions, &self.masked_lm_replaced]
    }
}

/// Sequences of an epoch; each epoch has its own masks. The loader's seed has no part in it.
impl Samples for ElectraSet {
    type Sample = Option<ElectraInstance>;
    type Content = ElectraBatch;

    fn empty_sample(&self) -> Option<ElectraInstance> {
        None
    }

    fn room(&self, batch_size: usize) -> ElectraBatch {
        let (tokens, words) = (batch_size * self.sequence_length(), batch_size * self.predictions());
        ElectraBatch {
            input_ids: vec![0; tokens],
            segment_ids: vec![0; tokens],
            input_mask: vec![0; tokens],
            masked_lm_positions: vec![0; words],
            masked_lm_weights: vec![0.0; words],
            masked_lm_replaced: vec![0; words],
        }
    }

    fn fits(&self, content: &ElectraBatch, batch_size: usize) -> bool {
        let (tokens, words) = (batch_size * self.sequence_length(), batch_size * self.predictions());
        content.of_tokens().iter().all(|array| array.len() == tokens)
            && content.of_predictions().iter().all(|array| array.len() == words)
            && content.masked_lm_weights.len() == words
    }

    fn load_sample(&self, index: usize, draw: Draw, sample: &mut Option<ElectraInstance>) -> Result<(), DataError> {
        *sample = Some(self.instance(draw.epoch, index)?);
        Ok(())
    }

    fn put(&self, content: &mut ElectraBatch, place: usize, sample: &Option<ElectraInstance>) {
        let ElectraInstance { tokens, segments, predictions } = sample.as_ref().expect("only what was loaded is put");
        let (length, most) = (self.sequence_length(), self.predictions());
        let (row, words) = (place * length..(place + 1) * length, place * most..(place + 1) * most);
        fill(&mut content.input_ids[row.clone()], tokens.iter().map(|&id| id as i32));
        fill(&mut content.segment_ids[row.clone()], segments.iter().map(|&segment| segment.into()));
        fill(&mut content.input_mask[row], tokens.iter().map(|_| 1));
        let predicted = || predictions.iter();
        fill(&mut content.masked_lm_positions[words.clone()], predicted().map(|word| word.position as i32));
        fill(&mut content.masked_lm_weights[words.clone()], predicted().map(|_| 1.0));
        fill(&mut content.masked_lm_replaced[words], predicted().map(|word| word.is_replaced.into()));
    }

    fn pad(&self, content: &mut ElectraBatch, real: usize) {
        let (tokens, words) = (real * self.sequence_length(), real * self.predictions());
        for array in [&mut content.input_ids, &mut content.segment_ids, &mut content.input_mask] {
            array[tokens..].fill(0);
        }
        for array in [&mut content.masked_lm_positions, &mut content.masked_lm_replaced] {
            array[words..].fill(0);
        }
        content.masked_lm_weights[words..].fill(0.0);
    }
}
