use super::{Features, Window};
use crate::{DataError, Draw, Samples};

/// Windows of one step of `B` sequences of `S` tokens, padded with zeros, as the model is fed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SquadBatch {
    /// `[B, S]`.
    pub input_ids: Vec<i32>,
    /// `[B, S]`: 1 for context and the `[SEP]` behind it.
    pub segment_ids: Vec<i32>,
    /// `[B, S]`: 1 for tokens, 0 for padding.
    pub input_mask: Vec<i32>,
    /// `[B, S]`: 1 where no answer can be, which is anywhere but in the context and at `[CLS]`.
    pub p_mask: Vec<f32>,
    /// `[B]`: where the answer begins, 0 if it is not in the window.
    pub start_positions: Vec<i32>,
    /// `[B]`: where its last token is, 0 if it is not in the window.
    pub end_positions: Vec<i32>,
    /// `[B]`: 1 where there is no answer.
    pub is_impossible: Vec<f32>,
    /// `[B]`: numbers of the windows.
    pub windows: Vec<u32>,
}

/// Windows of all questions. Nothing about them is random.
impl Samples for Features {
    type Sample = Option<Window>;
    type Content = SquadBatch;

    fn empty_sample(&self) -> Option<Window> {
        None
    }

    fn room(&self, batch_size: usize) -> SquadBatch {
        let tokens = batch_size * self.options().max_seq_length;
        SquadBatch {
            input_ids: vec![0; tokens],
            segment_ids: vec![0; tokens],
            input_mask: vec![0; tokens],
            p_mask: vec![0.0; tokens],
            start_positions: vec![0; batch_size],
            end_positions: vec![0; batch_size],
            is_impossible: vec![0.0; batch_size],
            windows: vec![0; batch_size],
        }
    }

    fn fits(&self, content: &SquadBatch, batch_size: usize) -> bool {
        let tokens = batch_size * self.options().max_seq_length;
        [&content.input_ids, &content.segment_ids, &content.input_mask].iter().all(|array| array.len() == tokens)
            && content.p_mask.len() == tokens
            && [&content.start_positions, &content.end_positions].iter().all(|array| array.len() == batch_size)
            && content.is_impossible.len() == batch_size
            && content.windows.len() == batch_size
    }

    fn load_sample(&self, index: usize, _: Draw, sample: &mut Option<Window>) -> Result<(), DataError> {
        *sample = Some(self.window(index));
        Ok(())
    }

    fn put(&self, content: &mut SquadBatch, place: usize, sample: &Option<Window>) {
        let window = sample.as_ref().expect("only what was loaded is put");
        let length = self.options().max_seq_length;
        let row = place * length..(place + 1) * length;
        fill(
            &mut content.input_ids[row.clone()],
            window.input_ids.iter().map(|&id| id as i32),
            self.specials.pad as i32,
        );
        fill(&mut content.segment_ids[row.clone()], window.segment_ids().map(i32::from), 0);
        fill(&mut content.input_mask[row.clone()], window.input_ids.iter().map(|_| 1), 0);
        fill(&mut content.p_mask[row], window.p_mask.iter().map(|&masked| f32::from(masked)), 1.0);
        content.start_positions[place] = window.start_position as i32;
        content.end_positions[place] = window.end_position as i32;
        content.is_impossible[place] = f32::from(u8::from(window.is_impossible));
        content.windows[place] = window.index as u32;
    }

    fn pad(&self, content: &mut SquadBatch, real: usize) {
        let tokens = real * self.options().max_seq_length;
        for array in [&mut content.input_ids, &mut content.segment_ids, &mut content.input_mask] {
            array[tokens..].fill(0);
        }
        content.p_mask[tokens..].fill(0.0);
        for array in [&mut content.start_positions, &mut content.end_positions] {
            array[real..].fill(0);
        }
        content.is_impossible[real..].fill(0.0);
        content.windows[real..].fill(0);
    }
}

/// The values, then padding.
fn fill<T: Copy>(row: &mut [T], mut values: impl Iterator<Item = T>, padding: T) {
    row.fill_with(|| values.next().unwrap_or(padding));
}
