//! `tf.train.Example` messages: named lists of numbers.

use std::collections::BTreeMap;

use prost::Message;

use super::sequence::Sequence;

pub(crate) const INPUT_IDS: [&str; 2] = ["input_ids", "input_word_ids"];
const INPUT_MASK: [&str; 1] = ["input_mask"];
const SEGMENT_IDS: [&str; 2] = ["segment_ids", "input_type_ids"];

/// `tensorflow/core/example/{example,feature}.proto`.
pub(crate) mod proto {
    use std::collections::BTreeMap;

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Example {
        #[prost(message, optional, tag = "1")]
        pub features: Option<Features>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Features {
        #[prost(btree_map = "string, message", tag = "1")]
        pub feature: BTreeMap<String, Feature>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Feature {
        #[prost(oneof = "Kind", tags = "1, 2, 3")]
        pub kind: Option<Kind>,
    }

    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(crate) enum Kind {
        #[prost(message, tag = "1")]
        Bytes(BytesList),
        #[prost(message, tag = "2")]
        Float(FloatList),
        #[prost(message, tag = "3")]
        Int64(Int64List),
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct BytesList {
        #[prost(bytes = "vec", repeated, tag = "1")]
        pub value: Vec<Vec<u8>>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct FloatList {
        #[prost(float, repeated, tag = "1")]
        pub value: Vec<f32>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Int64List {
        #[prost(int64, repeated, tag = "1")]
        pub value: Vec<i64>,
    }
}

use proto::{Example, Feature, Int64List, Kind};

/// What is wrong with a message, and what was expected.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Flaw {
    pub problem: String,
    pub expected: String,
}

pub(crate) fn flaw(problem: impl Into<String>, expected: impl Into<String>) -> Flaw {
    Flaw { problem: problem.into(), expected: expected.into() }
}

/// The message of some features.
pub(crate) fn encode(features: impl IntoIterator<Item = (&'static str, Kind)>) -> Vec<u8> {
    let feature = features.into_iter().map(|(name, kind)| (name.to_owned(), Feature { kind: Some(kind) })).collect();
    Example { features: Some(proto::Features { feature }) }.encode_to_vec()
}

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

/// The features of a message.
pub(crate) struct Features {
    map: BTreeMap<String, Feature>,
    /// What the message should hold.
    expected: &'static str,
}

impl Features {
    /// Errors: no `tf.train.Example`.
    pub(super) fn parse(payload: &[u8], expected: &'static str) -> Result<Self, Flaw> {
        match Example::decode(payload) {
            Ok(example) => Ok(Self { map: example.features.unwrap_or_default().feature, expected }),
            Err(error) => Err(flaw(format!("not a tf.train.Example: {error}"), expected)),
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    fn take(&mut self, names: &[&str]) -> Result<Kind, Flaw> {
        let found = names.iter().find_map(|&name| self.map.remove(name)?.kind);
        found.ok_or_else(|| flaw(format!("no feature `{}`", names.join("` or `")), self.expected))
    }

    /// A list of integers, which has one of these names.
    pub(super) fn ints(&mut self, names: &[&str]) -> Result<Vec<i64>, Flaw> {
        match self.take(names)? {
            Kind::Int64(list) => Ok(list.value),
            _ => Err(flaw(format!("`{}` is no list of integers", names[0]), "int64_list")),
        }
    }

    /// `length` numbers.
    pub(super) fn floats(&mut self, names: &[&str], length: usize) -> Result<Vec<f32>, Flaw> {
        match self.take(names)? {
            Kind::Float(list) if list.value.len() == length => Ok(list.value),
            Kind::Float(list) => Err(wrong_length(names[0], list.value.len(), length)),
            _ => Err(flaw(format!("`{}` is no list of floats", names[0]), "float_list")),
        }
    }

    /// `length` integers of 0 to less than `bound`.
    pub(super) fn bounded(&mut self, names: &[&str], length: usize, bound: usize) -> Result<Vec<u32>, Flaw> {
        let values = self.ints(names)?;
        if values.len() != length {
            return Err(wrong_length(names[0], values.len(), length));
        }
        let fits = |value: i64| u32::try_from(value).ok().filter(|&value| (value as usize) < bound);
        let check = |value| {
            fits(value).ok_or_else(|| flaw(format!("`{}` has {value}", names[0]), format!("0 to {}", bound - 1)))
        };
        values.into_iter().map(check).collect()
    }

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

fn wrong_length(name: &str, found: usize, expected: usize) -> Flaw {
    flaw(format!("`{name}` has {found} values"), format!("{expected}"))
}

/// How many ones precede the zeros.
pub(crate) fn ones(name: &str, values: impl Iterator<Item = f64> + Clone) -> Result<usize, Flaw> {
    let count = values.clone().take_while(|&value| value == 1.0).count();
    match values.skip(count).all(|value| value == 0.0) {
        true => Ok(count),
        false => Err(flaw(format!("`{name}` has other values than ones, then zeros"), "ones, then zeros")),
    }
}
