//! Sequences as feeds.

use crate::tasks::loaded::{Feeder, Place};
use crate::tasks::{self, Array};
use bessemer_data::text::PretrainingBatch;

/// The feeds of pre-training: `input_ids`, `segment_ids`, `input_mask` `i32[B, S]`; `masked_lm_positions`, `masked_lm_ids`
/// `i32[B, P]`; `masked_lm_weights` `f32[B, P]`; `next_sentence_labels` `i32[B]`.
#[derive(Clone)]
pub(in crate::tasks) struct Feeds;

impl Feeder<PretrainingBatch> for Feeds {
    fn feeds(&self, content: PretrainingBatch, _: Place) -> tasks::Feeds {
        tasks::Feeds::from([
            ("input_ids", Array::I32(content.input_ids)),
            ("segment_ids", Array::I32(content.segment_ids)),
            ("input_mask", Array::I32(content.input_mask)),
            ("masked_lm_positions", Array::I32(content.masked_lm_positions)),
            ("masked_lm_ids", Array::I32(content.masked_lm_ids)),
            ("masked_lm_weights", Array::F32(content.masked_lm_weights)),
            ("next_sentence_labels", Array::I32(content.next_sentence_labels)),
        ])
    }

    fn take_back(&self, content: &mut PretrainingBatch, name: &str, array: Array) {
        match (name, array) {
            ("input_ids", Array::I32(ids)) => content.input_ids = ids,
            ("segment_ids", Array::I32(segments)) => content.segment_ids = segments,
            ("input_mask", Array::I32(mask)) => content.input_mask = mask,
            ("masked_lm_positions", Array::I32(positions)) => content.masked_lm_positions = positions,
            ("masked_lm_ids", Array::I32(ids)) => content.masked_lm_ids = ids,
            ("masked_lm_weights", Array::F32(weights)) => content.masked_lm_weights = weights,
            ("next_sentence_labels", Array::I32(labels)) => content.next_sentence_labels = labels,
            _ => {}
        }
    }
}
