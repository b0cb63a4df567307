use super::{Instance, PretrainingSet};
use crate::{DataError, Draw, Samples};

/// Instances of one step of `B` sequences of `S` tokens with `P` predictions each, padded with zeros, as the model is fed.
#[derive(Debug, Clone, Default, PartialEq)]
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
}

/// Sequences of an epoch; where the set makes them on the fly, each epoch has its own. The loader's seed has no part in it.
impl Samples for PretrainingSet {
    type Sample = Option<Instance>;
    type Content = PretrainingBatch;

    fn empty_sample(&self) -> Option<Instance> {
        None
    }

    fn room(&self, batch_size: usize) -> PretrainingBatch {
        let (tokens, words) = (batch_size * self.sequence_length(), batch_size * self.predictions());
        PretrainingBatch {
            input_ids: vec![0; tokens],
            segment_ids: vec![0; tokens],
            input_mask: vec![0; tokens],
            masked_lm_positions: vec![0; words],
            masked_lm_ids: vec![0; words],
            masked_lm_weights: vec![0.0; words],
            next_sentence_labels: vec![0; batch_size],
        }
    }

    fn fits(&self, content: &PretrainingBatch, batch_size: usize) -> bool {
        let (tokens, words) = (batch_size * self.sequence_length(), batch_size * self.predictions());
        [&content.input_ids, &content.segment_ids, &content.input_mask].iter().all(|array| array.len() == tokens)
            && [&content.masked_lm_positions, &content.masked_lm_ids].iter().all(|array| array.len() == words)
            && content.masked_lm_weights.len() == words
            && content.next_sentence_labels.len() == batch_size
    }

    fn load_sample(&self, index: usize, draw: Draw, sample: &mut Option<Instance>) -> Result<(), DataError> {
        *sample = Some(self.instance(draw.epoch, index)?);
        Ok(())
    }

    fn put(&self, content: &mut PretrainingBatch, place: usize, sample: &Option<Instance>) {
        let instance = sample.as_ref().expect("only what was loaded is put");
        let (length, predictions) = (self.sequence_length(), self.predictions());
        let (tokens, words) = (place * length..(place + 1) * length, place * predictions..(place + 1) * predictions);
        fill(&mut content.input_ids[tokens.clone()], instance.tokens.iter().map(|&id| id as i32));
        fill(&mut content.segment_ids[tokens.clone()], instance.segments.iter().map(|&segment| segment.into()));
        fill(&mut content.input_mask[tokens], instance.tokens.iter().map(|_| 1));
        fill(&mut content.masked_lm_positions[words.clone()], instance.masked.iter().map(|&(place, _)| place as i32));
        fill(&mut content.masked_lm_ids[words.clone()], instance.masked.iter().map(|&(_, id)| id as i32));
        fill(&mut content.masked_lm_weights[words], instance.masked.iter().map(|_| 1.0));
        content.next_sentence_labels[place] = instance.random_next.into();
    }

    fn pad(&self, content: &mut PretrainingBatch, real: usize) {
        let (tokens, words) = (real * self.sequence_length(), real * self.predictions());
        for array in [&mut content.input_ids, &mut content.segment_ids, &mut content.input_mask] {
            array[tokens..].fill(0);
        }
        for array in [&mut content.masked_lm_positions, &mut content.masked_lm_ids] {
            array[words..].fill(0);
        }
        content.masked_lm_weights[words..].fill(0.0);
        content.next_sentence_labels[real..].fill(0);
    }
}

/// The values, then zeros.
pub(crate) fn fill<T: Default>(row: &mut [T], mut values: impl Iterator<Item = T>) {
    row.fill_with(|| values.next().unwrap_or_default());
}
