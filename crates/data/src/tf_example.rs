//! `tf.train.Example` messages: named lists of bytes, floats or integers.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use prost::Message;

use crate::{DataError, FilePosition};

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

use proto::{BytesList, Example, Feature, FloatList, Int64List, Kind};

/// Values of a list that an error shows.
const MOST_SHOWN: usize = 4;

/// Names of features that records of pictures share.
pub(crate) mod picture {
    pub(crate) const HEIGHT: &str = "image/height";
    pub(crate) const WIDTH: &str = "image/width";
    pub(crate) const FILE_NAME: &str = "image/filename";
    pub(crate) const FORMAT: &str = "image/format";
    /// The image file.
    pub(crate) const ENCODED: &str = "image/encoded";
    /// Sides of boxes as shares of the image, in the order of a box `[x1, y1, x2, y2]`.
    pub(crate) const SIDES: [&str; 4] =
        ["image/object/bbox/xmin", "image/object/bbox/ymin", "image/object/bbox/xmax", "image/object/bbox/ymax"];
}

impl Kind {
    pub(crate) fn bytes(value: Vec<Vec<u8>>) -> Self {
        Self::Bytes(BytesList { value })
    }

    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::bytes(vec![text.into().into_bytes()])
    }

    pub(crate) fn integers(value: Vec<i64>) -> Self {
        Self::Int64(Int64List { value })
    }

    pub(crate) fn floats(value: Vec<f32>) -> Self {
        Self::Float(FloatList { value })
    }
}

/// What is wrong with a message, and what was expected.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Flaw {
    pub problem: String,
    pub expected: String,
}

impl Flaw {
    /// The error of a message at a place of a file.
    pub(crate) fn at(self, path: &Path, place: FilePosition) -> DataError {
        DataError::content(path, place, self.problem, self.expected)
    }
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

    /// The one byte string of a list.
    pub(crate) fn single(&mut self, name: &str) -> Result<Vec<u8>, Flaw> {
        let values = self.bytes_list(&[name])?;
        let count = values.len();
        let [value] =
            <[Vec<u8>; 1]>::try_from(values).map_err(|_| flaw(format!("`{name}` has {count} values"), "one"))?;
        Ok(value)
    }

    /// The one integer of a list, within a range.
    pub(crate) fn number(&mut self, name: &str, range: RangeInclusive<i64>) -> Result<i64, Flaw> {
        let values = self.ints(&[name])?;
        match values[..] {
            [value] if range.contains(&value) => Ok(value),
            _ => {
                let expected = format!("one number of {} to {}", range.start(), range.end());
                Err(flaw(format!("`{name}` is {}", shown(&values)), expected))
            }
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

/// A list as an error shows it: of a long one, the first values and how many there are.
fn shown(values: &[i64]) -> String {
    match values.split_at_checked(MOST_SHOWN) {
        Some((first, rest)) if !rest.is_empty() => {
            format!("{first:?} and {} more ({} in all)", rest.len(), values.len())
        }
        _ => format!("{values:?}"),
    }
}

fn wrong_length(name: &str, found: usize, expected: usize) -> Flaw {
    flaw(format!("`{name}` has {found} values"), format!("{expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_show_the_first_values_of_a_list() {
        let problem = |values: Vec<i64>| {
            let message = encode([("size", Kind::integers(values))]);
            Features::parse(&message, "a size").unwrap().number("size", 1..=9).unwrap_err().problem
        };
        assert_eq!(problem(Vec::new()), "`size` is []");
        assert_eq!(problem(vec![1, 2, 3, 4]), "`size` is [1, 2, 3, 4]");
        assert_eq!(problem(vec![7; 1000]), "`size` is [7, 7, 7, 7] and 996 more (1000 in all)");
    }
}
