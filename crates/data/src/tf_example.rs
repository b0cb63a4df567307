//! `tf.train.Example` messages: named lists of bytes, floats or integers.

use std::collections::BTreeMap;

use prost::Message;

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

use proto::{Example, Feature, Kind};

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

/// The features of a message.
pub(crate) struct Features {
    map: BTreeMap<String, Feature>,
    /// What the message should hold.
    expected: &'static str,
}

impl Features {
    /// Errors: no `tf.train.Example`.
    pub(crate) fn parse(payload: &[u8], expected: &'static str) -> Result<Self, Flaw> {
        match Example::decode(payload) {
            Ok(example) => Ok(Self { map: example.features.unwrap_or_default().feature, expected }),
            Err(error) => Err(flaw(format!("not a tf.train.Example: {error}"), expected)),
        }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    fn take(&mut self, names: &[&str]) -> Result<Kind, Flaw> {
        let found = names.iter().find_map(|&name| self.map.remove(name)?.kind);
        found.ok_or_else(|| flaw(format!("no feature `{}`", names.join("` or `")), self.expected))
    }

    /// A list of integers, which has one of these names.
    pub(crate) fn ints(&mut self, names: &[&str]) -> Result<Vec<i64>, Flaw> {
        match self.take(names)? {
            Kind::Int64(list) => Ok(list.value),
            _ => Err(flaw(format!("`{}` is no list of integers", names[0]), "int64_list")),
        }
    }

    /// A list of floats.
    pub(crate) fn float_list(&mut self, names: &[&str]) -> Result<Vec<f32>, Flaw> {
        match self.take(names)? {
            Kind::Float(list) => Ok(list.value),
            _ => Err(flaw(format!("`{}` is no list of floats", names[0]), "float_list")),
        }
    }

    /// A list of byte strings.
    pub(crate) fn bytes_list(&mut self, names: &[&str]) -> Result<Vec<Vec<u8>>, Flaw> {
        match self.take(names)? {
            Kind::Bytes(list) => Ok(list.value),
            _ => Err(flaw(format!("`{}` is no list of bytes", names[0]), "bytes_list")),
        }
    }

    /// `length` numbers.
    pub(crate) fn floats(&mut self, names: &[&str], length: usize) -> Result<Vec<f32>, Flaw> {
        let values = self.float_list(names)?;
        if values.len() == length { Ok(values) } else { Err(wrong_length(names[0], values.len(), length)) }
    }

    /// `length` integers of 0 to less than `bound`.
    pub(crate) fn bounded(&mut self, names: &[&str], length: usize, bound: usize) -> Result<Vec<u32>, Flaw> {
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
}

fn wrong_length(name: &str, found: usize, expected: usize) -> Flaw {
    flaw(format!("`{name}` has {found} values"), format!("{expected}"))
}
