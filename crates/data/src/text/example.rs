//! Instances as `tf.train.Example` messages with the features of Google's BERT.

use std::collections::BTreeMap;

use prost::Message;

use super::Instance;

/// Sizes of the arrays of an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExampleShape {
    pub sequence_length: usize,
    pub predictions: usize,
}

const INPUT_IDS: [&str; 2] = ["input_ids", "input_word_ids"];
const INPUT_MASK: [&str; 1] = ["input_mask"];
const SEGMENT_IDS: [&str; 2] = ["segment_ids", "input_type_ids"];
const POSITIONS: [&str; 1] = ["masked_lm_positions"];
const IDS: [&str; 1] = ["masked_lm_ids"];
const WEIGHTS: [&str; 1] = ["masked_lm_weights"];
const NEXT_SENTENCE: [&str; 1] = ["next_sentence_labels"];

/// `tensorflow/core/example/{example,feature}.proto`.
mod proto {
    use std::collections::BTreeMap;

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Example {
        #[prost(message, optional, tag = "1")]
        pub features: Option<Features>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Features {
        #[prost(btree_map = "string, message", tag = "1")]
        pub feature: BTreeMap<String, Feature>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Feature {
        #[prost(oneof = "Kind", tags = "1, 2, 3")]
        pub kind: Option<Kind>,
    }

    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Kind {
        #[prost(message, tag = "1")]
        Bytes(BytesList),
        #[prost(message, tag = "2")]
        Float(FloatList),
        #[prost(message, tag = "3")]
        Int64(Int64List),
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct BytesList {
        #[prost(bytes = "vec", repeated, tag = "1")]
        pub value: Vec<Vec<u8>>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct FloatList {
        #[prost(float, repeated, tag = "1")]
        pub value: Vec<f32>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Int64List {
        #[prost(int64, repeated, tag = "1")]
        pub value: Vec<i64>,
    }
}

use proto::{Example, Feature, Features, FloatList, Int64List, Kind};

/// The message of an instance, padded with zeros.
pub(crate) fn encode(instance: &Instance, shape: ExampleShape) -> Vec<u8> {
    let ints = |values: &mut dyn Iterator<Item = i64>, length: usize| {
        let mut value: Vec<i64> = values.collect();
        value.resize(length, 0);
        Kind::Int64(Int64List { value })
    };
    let mut weights = vec![1.0; instance.masked.len()];
    weights.resize(shape.predictions, 0.0);
    let (length, predictions) = (shape.sequence_length, shape.predictions);
    let Instance { tokens, segments, masked, random_next } = instance;
    let feature = [
        (INPUT_IDS[0], ints(&mut tokens.iter().map(|&id| id.into()), length)),
        (INPUT_MASK[0], ints(&mut tokens.iter().map(|_| 1), length)),
        (SEGMENT_IDS[0], ints(&mut segments.iter().map(|&segment| segment.into()), length)),
        (POSITIONS[0], ints(&mut masked.iter().map(|&(position, _)| position.into()), predictions)),
        (IDS[0], ints(&mut masked.iter().map(|&(_, id)| id.into()), predictions)),
        (WEIGHTS[0], Kind::Float(FloatList { value: weights })),
        (NEXT_SENTENCE[0], ints(&mut [i64::from(*random_next)].into_iter(), 1)),
    ];
    let feature: BTreeMap<_, _> =
        feature.into_iter().map(|(name, kind)| (name.to_owned(), Feature { kind: Some(kind) })).collect();
    Example { features: Some(Features { feature }) }.encode_to_vec()
}

/// What is wrong with a message, and what was expected.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Flaw {
    pub problem: String,
    pub expected: String,
}

fn flaw(problem: impl Into<String>, expected: impl Into<String>) -> Flaw {
    Flaw { problem: problem.into(), expected: expected.into() }
}

/// Sizes of the arrays of a message.
pub(crate) fn shape(payload: &[u8]) -> Result<ExampleShape, Flaw> {
    let mut features = parse(payload)?;
    let sequence_length = ints(&mut features, &INPUT_IDS)?.len();
    let predictions = ints(&mut features, &POSITIONS)?.len();
    Ok(ExampleShape { sequence_length, predictions })
}

/// The instance of a message.
///
/// Errors: no such message, a feature that is missing, has another type or length, or values that make no sense: ids
/// not below `vocabulary_size`, masks other than ones before zeros, positions that do not rise or lie in the padding.
pub(crate) fn decode(payload: &[u8], shape: ExampleShape, vocabulary_size: usize) -> Result<Instance, Flaw> {
    let mut features = parse(payload)?;
    let (sequence, predictions) = (shape.sequence_length, shape.predictions);
    let mask = bounded(&mut features, &INPUT_MASK, sequence, 2)?;
    let length = ones(INPUT_MASK[0], mask.iter().map(|&value| f64::from(value)))?;
    let mut tokens = bounded(&mut features, &INPUT_IDS, sequence, vocabulary_size)?;
    let mut segments = bounded(&mut features, &SEGMENT_IDS, sequence, 2)?;
    let positions = bounded(&mut features, &POSITIONS, predictions, sequence)?;
    let ids = bounded(&mut features, &IDS, predictions, vocabulary_size)?;
    let weights = floats(&mut features, &WEIGHTS, predictions)?;
    let label = bounded(&mut features, &NEXT_SENTENCE, 1, 2)?[0];
    let masked = ones(WEIGHTS[0], weights.into_iter().map(f64::from))?;
    tokens.truncate(length);
    segments.truncate(length);
    let masked: Vec<(u32, u32)> = positions.into_iter().zip(ids).take(masked).collect();
    if !masked.is_sorted_by(|a, b| a.0 < b.0) || masked.last().is_some_and(|&(last, _)| last as usize >= length) {
        let expected = format!("rising numbers below {length}, the length of the sequence");
        return Err(flaw(
            format!("`{}` are {:?}", POSITIONS[0], masked.iter().map(|m| m.0).collect::<Vec<_>>()),
            expected,
        ));
    }
    let segments = segments.into_iter().map(|segment| segment as u8).collect();
    Ok(Instance { tokens, segments, masked, random_next: label == 1 })
}

type Map = BTreeMap<String, Feature>;

fn parse(payload: &[u8]) -> Result<Map, Flaw> {
    match Example::decode(payload) {
        Ok(example) => Ok(example.features.unwrap_or_default().feature),
        Err(error) => Err(flaw(format!("not a tf.train.Example: {error}"), "examples of BERT's pre-training")),
    }
}

fn take(features: &mut Map, names: &[&str]) -> Result<Kind, Flaw> {
    let found = names.iter().find_map(|&name| features.remove(name)?.kind);
    found.ok_or_else(|| {
        flaw(format!("no feature `{}`", names.join("` or `")), "the seven features of BERT's pre-training")
    })
}

fn ints(features: &mut Map, names: &[&str]) -> Result<Vec<i64>, Flaw> {
    match take(features, names)? {
        Kind::Int64(list) => Ok(list.value),
        _ => Err(flaw(format!("`{}` is no list of integers", names[0]), "int64_list")),
    }
}

fn floats(features: &mut Map, names: &[&str], length: usize) -> Result<Vec<f32>, Flaw> {
    match take(features, names)? {
        Kind::Float(list) if list.value.len() == length => Ok(list.value),
        Kind::Float(list) => Err(wrong_length(names[0], list.value.len(), length)),
        _ => Err(flaw(format!("`{}` is no list of floats", names[0]), "float_list")),
    }
}

/// `length` integers of 0 to less than `bound`.
fn bounded(features: &mut Map, names: &[&str], length: usize, bound: usize) -> Result<Vec<u32>, Flaw> {
    let values = ints(features, names)?;
    if values.len() != length {
        return Err(wrong_length(names[0], values.len(), length));
    }
    let fits = |value: i64| u32::try_from(value).ok().filter(|&value| (value as usize) < bound);
    let check =
        |value| fits(value).ok_or_else(|| flaw(format!("`{}` has {value}", names[0]), format!("0 to {}", bound - 1)));
    values.into_iter().map(check).collect()
}

fn wrong_length(name: &str, found: usize, expected: usize) -> Flaw {
    flaw(format!("`{name}` has {found} values"), format!("{expected}"))
}

/// How many ones precede the zeros.
fn ones(name: &str, values: impl Iterator<Item = f64> + Clone) -> Result<usize, Flaw> {
    let count = values.clone().take_while(|&value| value == 1.0).count();
    match values.skip(count).all(|value| value == 0.0) {
        true => Ok(count),
        false => Err(flaw(format!("`{name}` has other values than ones, then zeros"), "ones, then zeros")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: ExampleShape = ExampleShape { sequence_length: 8, predictions: 3 };

    fn instance() -> Instance {
        let (tokens, segments) = (vec![2, 4, 6, 3, 300, 3], vec![0, 0, 0, 0, 1, 1]);
        Instance { tokens, segments, masked: vec![(1, 5), (4, 7)], random_next: true }
    }

    fn changed(name: &str, kind: Option<Kind>) -> Vec<u8> {
        let mut example = Example::decode(&encode(&instance(), SHAPE)[..]).unwrap();
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
        let payload = encode(&instance(), SHAPE);
        assert_eq!(shape(&payload), Ok(SHAPE));
        assert_eq!(decode(&payload, SHAPE, 301), Ok(instance()));
    }

    /// Lists are packed as TensorFlow writes them, and keys in their order.
    #[test]
    fn bytes_are_those_of_tensorflow() {
        let payload = encode(&instance(), SHAPE);
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
        assert_eq!(decode(&payload, shape, 10), Ok(expected));
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        let problem = |payload: &[u8]| decode(payload, SHAPE, 301).unwrap_err();
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
