//! Windows as feeds.

use crate::tasks::loaded::{Feeder, Place};
use crate::tasks::{Array, Feeds};
use bessemer_data::squad::SquadBatch;

/// The number of each window, which no step takes: outputs are told apart by it.
pub(super) const WINDOWS: &str = "windows";

/// The feeds of questions: `input_ids`, `segment_ids`, `input_mask` `i32[B, S]`; `p_mask` `f32[B, S]`; `start_positions`,
/// `end_positions` `i32[B]`; `is_impossible` `f32[B]`; and [`WINDOWS`] `i32[B]`.
pub(super) struct Windows;

/// The feeds of a batch.
pub(super) fn feeds(content: SquadBatch) -> Feeds {
    Feeds::from([
        ("input_ids", Array::I32(content.input_ids)),
        ("segment_ids", Array::I32(content.segment_ids)),
        ("input_mask", Array::I32(content.input_mask)),
        ("p_mask", Array::F32(content.p_mask)),
        ("start_positions", Array::I32(content.start_positions)),
        ("end_positions", Array::I32(content.end_positions)),
        ("is_impossible", Array::F32(content.is_impossible)),
        (WINDOWS, Array::I32(content.windows.into_iter().map(|window| window as i32).collect())),
    ])
}

impl Feeder<SquadBatch> for Windows {
    fn feeds(&self, content: SquadBatch, _: Place) -> Feeds {
        feeds(content)
    }

    fn take_back(&self, content: &mut SquadBatch, name: &str, array: Array) {
        match (name, array) {
            ("input_ids", Array::I32(ids)) => content.input_ids = ids,
            ("segment_ids", Array::I32(segments)) => content.segment_ids = segments,
            ("input_mask", Array::I32(mask)) => content.input_mask = mask,
            ("p_mask", Array::F32(mask)) => content.p_mask = mask,
            ("start_positions", Array::I32(positions)) => content.start_positions = positions,
            ("end_positions", Array::I32(positions)) => content.end_positions = positions,
            ("is_impossible", Array::F32(impossible)) => content.is_impossible = impossible,
            (WINDOWS, Array::I32(windows)) => {
                content.windows = windows.into_iter().map(|window| window as u32).collect()
            }
            _ => {}
        }
    }
}
