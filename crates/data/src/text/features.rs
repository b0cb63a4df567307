//! The features of sequences in `tf.train.Example` messages.

use super::sequence::Sequence;
use crate::tf_example::proto::{Int64List, Kind};
use crate::tf_example::{Features, Flaw, flaw};

pub(crate) const INPUT_IDS: [&str; 2] = ["input_ids", "input_word_ids"];
pub(crate) const INPUT_MASK: [&str; 1] = ["input_mask"];
pub(crate) const SEGMENT_IDS: [&str; 2] = ["segment_ids", "input_type_ids"];

/// A list of integers, padded with zeros.
pub(crate) fn integers(values: impl Iterator<Item = i64>, length: usize) -> Kind {
    let mut value: Vec<i64> = values.collect();
    value.resize(length, 0);
    Kind::Int64(Int64List { value })
}

/// The features of a sequence, padded with zeros.
pub(crate) fn of_sequence(tokens: &[u32], segments: &[u8], length: usize) -> [(&'static str, Kind); 3] {
    [
        (INPUT_IDS[0], integers(tokens.iter().map(|&id| id.into()), length)),
        (INPUT_MASK[0], integers(tokens.iter().map(|_| 1), length)),
        (SEGMENT_IDS[0], integers(segments.iter().map(|&segment| segment.into()), length)),
    ]
}

impl Features {
    /// A sequence without its padding to `length`.
    ///
    /// Errors: a feature that is missing, has another type or length; ids not below `vocabulary_size`, segments other
    /// than two, a mask other than ones before zeros.
    pub(super) fn sequence(&mut self, length: usize, vocabulary_size: usize) -> Result<Sequence, Flaw> {
        let mask = self.bounded(&INPUT_MASK, length, 2)?;
        let tokens_there = ones(INPUT_MASK[0], mask.iter().map(|&value| f64::from(value)))?;
        let mut tokens = self.bounded(&INPUT_IDS, length, vocabulary_size)?;
        let mut segments = self.bounded(&SEGMENT_IDS, length, 2)?;
        tokens.truncate(tokens_there);
        segments.truncate(tokens_there);
        Ok(Sequence { tokens, segments: segments.into_iter().map(|segment| segment as u8).collect() })
    }
}

/// How many ones precede the zeros.
pub(crate) fn ones(name: &str, values: impl Iterator<Item = f64> + Clone) -> Result<usize, Flaw> {
    let count = values.clone().take_while(|&value| value == 1.0).count();
    match values.skip(count).all(|value| value == 0.0) {
        true => Ok(count),
        false => Err(flaw(format!("`{name}` has other values than ones, then zeros"), "ones, then zeros")),
    }
}
