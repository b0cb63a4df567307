//! Sequences as feeds.

use crate::tasks::loaded::{Feeder, Place};
use crate::tasks::{self, Array};
use bessemer_data::text::ElectraBatch;

/// The feeds of pre-training: `input_ids`, `segment_ids`, `input_mask` `i32[B, S]`; `masked_lm_positions`, `masked_lm_replaced`
/// `i32[B, P]`; `masked_lm_weights` `f32[B, P]`.
#[derive(Clone, Default)]
pub(in crate::tasks) struct Feeds {
    pub evaluation: Option<EvaluationFeeds>,
}

/// What the samples of an evaluation are drawn by: `first_example` `i32[]`, the number of the first sequence of the batch in the
/// data set, and where words come by their frequencies `log_frequencies` `f32[V]`.
#[derive(Clone)]
pub(in crate::tasks) struct EvaluationFeeds {
    pub batch_size: usize,
    pub log_frequencies: Option<Vec<f32>>,
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
        if let Some(EvaluationFeeds { batch_size, log_frequencies }) = &self.evaluation {
            feeds.push("first_example", Array::I32(vec![(place.index * batch_size) as i32]));
            if let Some(logs) = log_frequencies {
                feeds.push("log_frequencies", Array::F32(logs.clone()));
            }
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
