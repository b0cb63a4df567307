//! Instances as `tf.train.Example` messages with the features of Google's BERT.

use super::Instance;
use super::features::{self, INPUT_IDS, integers, ones};
use super::maker::{ExampleShape, Record};
use super::sequence::Sequence;
use crate::tf_example::proto::{FloatList, Kind};
use crate::tf_example::{self, Features, Flaw, flaw};

pub(crate) const POSITIONS: [&str; 1] = ["masked_lm_positions"];
pub(crate) const IDS: [&str; 1] = ["masked_lm_ids"];
pub(crate) const WEIGHTS: [&str; 1] = ["masked_lm_weights"];
pub(crate) const NEXT_SENTENCE: [&str; 1] = ["next_sentence_labels"];

impl Record for Instance {
    const EXPECTED: &'static str = "the seven features of BERT's pre-training";

    fn shape(payload: &[u8]) -> Result<ExampleShape, Flaw> {
        let mut features = Features::parse(payload, Self::EXPECTED)?;
        let sequence_length = features.ints(&INPUT_IDS)?.len();
        let predictions = features.ints(&POSITIONS)?.len();
        Ok(ExampleShape { sequence_length, predictions })
    }

    /// Positions must rise and lie before the padding.
    fn decode(payload: &[u8], shape: ExampleShape, vocabulary_size: usize) -> Result<Self, Flaw> {
        let mut features = Features::parse(payload, Self::EXPECTED)?;
        let ExampleShape { sequence_length, predictions } = shape;
        let Sequence { tokens, segments } = features.sequence(sequence_length, vocabulary_size)?;
        let positions = features.bounded(&POSITIONS, predictions, sequence_length)?;
        let ids = features.bounded(&IDS, predictions, vocabulary_size)?;
        let weights = features.floats(&WEIGHTS, predictions)?;
        let label = features.bounded(&NEXT_SENTENCE, 1, 2)?[0];
        let wanted = ones(WEIGHTS[0], weights.into_iter().map(f64::from))?;
        let masked: Vec<(u32, u32)> = positions.into_iter().zip(ids).take(wanted).collect();
        check_positions(&masked, tokens.len())?;
        Ok(Self { tokens, segments, masked, random_next: label == 1 })
    }

    fn encode(&self, shape: ExampleShape) -> Vec<u8> {
        let ExampleShape { sequence_length, predictions } = shape;
        let Self { tokens, segments, masked, random_next } = self;
        let mut weights = vec![1.0; masked.len()];
        weights.resize(predictions, 0.0);
        let targets = [
            (POSITIONS[0], integers(masked.iter().map(|&(position, _)| position.into()), predictions)),
            (IDS[0], integers(masked.iter().map(|&(_, id)| id.into()), predictions)),
            (WEIGHTS[0], Kind::Float(FloatList { value: weights })),
            (NEXT_SENTENCE[0], integers([i64::from(*random_next)].into_iter(), 1)),
        ];
        tf_example::encode(features::of_sequence(tokens, segments, sequence_length).into_iter().chain(targets))
    }

    fn words(&self) -> impl Iterator<Item = u32> {
        self.masked.iter().map(|&(_, id)| id)
    }
}

/// Errors: positions that do not rise, or lie behind a sequence of `length` tokens.
pub(crate) fn check_positions(masked: &[(u32, u32)], length: usize) -> Result<(), Flaw> {
    if masked.is_sorted_by(|a, b| a.0 < b.0) && masked.last().is_none_or(|&(last, _)| (last as usize) < length) {
        return Ok(());
    }
    let found: Vec<u32> = masked.iter().map(|&(position, _)| position).collect();
    let expected = format!("rising numbers below {length}, the length of the sequence");
    Err(flaw(format!("`{}` are {found:?}", POSITIONS[0]), expected))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tf_example::proto::{Example, Feature, Int64List};
    use prost::Message;

    const SHAPE: ExampleShape = ExampleShape { sequence_length: 8, predictions: 3 };

    fn instance() -> Instance {
        let (tokens, segments) = (vec![2, 4, 6, 3, 300, 3], vec![0, 0, 0, 0, 1, 1]);
        Instance { tokens, segments, masked: vec![(1, 5), (4, 7)], random_next: true }
    }

    fn changed(name: &str, kind: Option<Kind>) -> Vec<u8> {
        let mut example = Example::decode(&instance().encode(SHAPE)[..]).unwrap();
        let feature = &mut example.features.as_mut().unwrap().feature;
        match kind {
            Some(kind) => feature.insert(name.to_owned(), Feature { kind: Some(kind) }),
            None => feature.remove(name),
        };
        example.encode_to_vec()
    }

    fn int64(value: &[i64]) -> Option<Kind> {
        Some(Kind::Int64(Int64List { value: value.to_vec() }))
    }

    #[test]
    fn instances_come_back() {
        let payload = instance().encode(SHAPE);
        assert_eq!(Instance::shape(&payload), Ok(SHAPE));
        assert_eq!(Instance::decode(&payload, SHAPE, 301), Ok(instance()));
    }

    /// Lists are packed as TensorFlow writes them, and keys in their order.
    #[test]
    fn bytes_are_those_of_tensorflow() {
        let payload = instance().encode(SHAPE);
        let ids = b"\x0a\x18\x0a\x09input_ids\x12\x0b\x1a\x09\x0a\x07\x02\x04\x06\x03\xac\x02\x03";
        let found = payload.windows(11).position(|window| window == b"\x0a\x09input_ids").unwrap();
        assert_eq!(payload[found..found + 11], ids[2..13]);
        assert_eq!(payload[found + 11..][..2], [0x12, 0x0d]);
        assert_eq!(payload[found + 13..][..13], *b"\x1a\x0b\x0a\x09\x02\x04\x06\x03\xac\x02\x03\x00\x00");
        let weights = payload.windows(19).position(|window| window == b"\x0a\x11masked_lm_weights").unwrap();
        assert_eq!(payload[weights + 19..][..6], [0x12, 0x10, 0x12, 0x0e, 0x0a, 0x0c]);
        assert_eq!(payload[weights + 25..][..4], 1.0_f32.to_le_bytes());
    }

    #[test]
    fn lists_that_are_not_packed_and_new_names_are_read() {
        let mut features = Vec::new();
        let mut put = |name: &str, list: &[u8], kind: u8| {
            let feature = [&[kind, list.len() as u8], list].concat();
            let entry = [&[0x0a, name.len() as u8], name.as_bytes(), &[0x12, feature.len() as u8], &feature].concat();
            features.extend([&[0x0a, entry.len() as u8], &entry[..]].concat());
        };
        put("next_sentence_labels", &[0x08, 1], 0x1a);
        put("masked_lm_weights", &[&[0x0d][..], &1.0_f32.to_le_bytes()].concat(), 0x12);
        put("masked_lm_ids", &[0x08, 5], 0x1a);
        put("masked_lm_positions", &[0x08, 1], 0x1a);
        put("input_word_ids", &[0x08, 2, 0x08, 4], 0x1a);
        put("input_type_ids", &[0x08, 0, 0x08, 1], 0x1a);
        put("input_mask", &[0x08, 1, 0x08, 1], 0x1a);
        let payload =
            [&[0x0a, 0x80 | (features.len() & 0x7f) as u8, (features.len() >> 7) as u8], &features[..]].concat();
        let shape = ExampleShape { sequence_length: 2, predictions: 1 };
        let expected = Instance { tokens: vec![2, 4], segments: vec![0, 1], masked: vec![(1, 5)], random_next: true };
        assert_eq!(Instance::decode(&payload, shape, 10), Ok(expected));
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        let problem = |payload: &[u8]| Instance::decode(payload, SHAPE, 301).unwrap_err();
        let check = |name: &str, kind: Option<Kind>, expected: &str| {
            let found = problem(&changed(name, kind)).problem;
            assert!(found.contains(expected), "{name}: {found}");
        };
        check("input_ids", None, "no feature `input_ids` or `input_word_ids`");
        check("input_ids", int64(&[1; 7]), "`input_ids` has 7 values");
        check("input_ids", int64(&[301; 8]), "`input_ids` has 301");
        check("masked_lm_ids", int64(&[-1, 0, 0]), "`masked_lm_ids` has -1");
        check("input_mask", int64(&[1, 1, 0, 1, 0, 0, 0, 0]), "`input_mask` has other values than ones, then zeros");
        check("segment_ids", int64(&[2; 8]), "`segment_ids` has 2");
        check("masked_lm_positions", int64(&[4, 1, 0]), "`masked_lm_positions` are [4, 1]");
        check("masked_lm_positions", int64(&[1, 6, 0]), "`masked_lm_positions` are [1, 6]");
        check("next_sentence_labels", int64(&[2]), "`next_sentence_labels` has 2");
        check("masked_lm_weights", int64(&[1, 1, 0]), "`masked_lm_weights` is no list of floats");
        check(
            "masked_lm_weights",
            Some(Kind::Float(FloatList { value: vec![0.5; 3] })),
            "`masked_lm_weights` has other",
        );
        check("masked_lm_ids", Some(Kind::Float(FloatList { value: vec![1.0; 3] })), "`masked_lm_ids` is no list");
        assert!(problem(b"\xff\xff\xff").problem.starts_with("not a tf.train.Example: "));
    }
}
