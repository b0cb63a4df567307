//! Sequences as feeds.

use crate::tasks::loaded::{Feeder, Place};
use crate::tasks::{self, Array};
use bessemer_data::text::ElectraBatch;

/// The feeds of pre-training: `input_ids`, `segment_ids`, `input_mask` `i32[B, S]`; `masked_lm_positions`, `masked_lm_replaced`
/// `i32[B, P]`; `masked_lm_weights` `f32[B, P]`.
pub(in crate::tasks) struct Feeds {
    /// Whether `batch_number` `i32[]` is fed as well, which the samples of an evaluation are drawn by.
    pub is_numbered: bool,
}

impl Feeder<ElectraBatch> for Feeds {
    fn feeds(&self, content: ElectraBatch, place: Place) -> tasks::Feeds {
        let mut feeds = tasks::Feeds::from([
            ("input_ids", Array::I32(content.input_ids)),
            ("segment_ids", Array::I32(content.segment_ids)),
            ("input_mask", Array::I32(content.input_mask)),
            ("masked_lm_positions", Array::I32(content.masked_lm_positions)),
            ("masked_lm_replaced", Array::I32(content.masked_lm_replaced)),
            ("masked_lm_weights", Array::F32(content.masked_lm_weights)),
        ]);
        if self.is_numbered {
            feeds.push("batch_number", Array::I32(vec![place.index as i32]));
        }
        feeds
    }

    fn take_back(&self, content: &mut ElectraBatch, name: &str, array: Array) {
        match (name, array) {
            ("input_ids", Array::I32(ids)) => content.input_ids = ids,
            ("segment_ids", Array::I32(segments)) => content.segment_ids = segments,
            ("input_mask", Array::I32(mask)) => content.input_mask = mask,
            ("masked_lm_positions", Array::I32(positions)) => content.masked_lm_positions = positions,
            ("masked_lm_replaced", Array::I32(replaced)) => content.masked_lm_replaced = replaced,
            ("masked_lm_weights", Array::F32(weights)) => content.masked_lm_weights = weights,
            _ => {}
        }
    }
}
