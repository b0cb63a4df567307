//! Batches of windows of questions.

use super::{Features, Window};
use crate::feeds::{Field, Row, fill};
use crate::{DataError, SampleKey, Samples};

/// Windows of all questions. Nothing about them is random.
impl Samples for Features {
    type Sample = Option<Window>;

    fn empty_sample(&self) -> Option<Window> {
        None
    }

    /// Windows of `S` tokens, padded with zeros: `input_ids i32[B, S]`; `segment_ids i32[B, S]`, 1 for context and the `[SEP]`
    /// behind it; `input_mask i32[B, S]`, 1 for tokens; `p_mask f32[B, S]`, 1 where no answer can be, which is anywhere but in the
    /// context and at `[CLS]`; `start_positions` and `end_positions i32[B]`, the first and the last token of the answer, 0 if it
    /// is not in the window; `is_impossible f32[B]`, 1 where there is no answer; `windows i32[B]`, numbers of the windows.
    fn fields(&self) -> Vec<Field> {
        let length = self.options().max_seq_length;
        vec![
            Field::i32("input_ids", length),
            Field::i32("segment_ids", length),
            Field::i32("input_mask", length),
            Field::f32("p_mask", length),
            Field::i32("start_positions", 1),
            Field::i32("end_positions", 1),
            Field::f32("is_impossible", 1),
            Field::i32("windows", 1),
        ]
    }

    fn load_sample(&self, index: usize, _: SampleKey, sample: &mut Option<Window>) -> Result<(), DataError> {
        *sample = Some(self.window(index));
        Ok(())
    }

    fn write(&self, sample: &Option<Window>, row: &mut Row<'_>) {
        let window = sample.as_ref().expect("only what was loaded is written");
        let padding = self.specials.pad as i32;
        fill(row.i32("input_ids"), window.input_ids.iter().map(|&id| id as i32), padding);
        fill(row.i32("segment_ids"), window.segment_ids().map(i32::from), 0);
        fill(row.i32("input_mask"), window.input_ids.iter().map(|_| 1), 0);
        fill(row.f32("p_mask"), window.p_mask.iter().map(|&masked| f32::from(masked)), 1.0);
        row.i32("start_positions")[0] = window.start_position as i32;
        row.i32("end_positions")[0] = window.end_position as i32;
        row.f32("is_impossible")[0] = f32::from(u8::from(window.is_impossible));
        row.i32("windows")[0] = window.index as i32;
    }
}
