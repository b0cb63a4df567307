//! Field types with checks that serde's derived ones lack.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

/// A list of a fixed number of values.
pub(super) struct FixedList<T, const N: usize>(pub [T; N]);

/// A box `[x, y, width, height]`, or an empty list.
pub(super) struct OptionalBox(pub Option<[f64; 4]>);

impl<'de, T: Deserialize<'de> + Default + Copy, const N: usize> Deserialize<'de> for FixedList<T, N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let values = deserializer.deserialize_seq(List::<T, N> { or_none: false, values: PhantomData })?;
        Ok(Self(values.expect("only a list that may be empty has no values")))
    }
}

impl<'de> Deserialize<'de> for OptionalBox {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(List::<f64, 4> { or_none: true, values: PhantomData }).map(Self)
    }
}

struct List<T, const N: usize> {
    or_none: bool,
    values: PhantomData<T>,
}

impl<'de, T: Deserialize<'de> + Default + Copy, const N: usize> Visitor<'de> for List<T, N> {
    type Value = Option<[T; N]>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of {N} numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Option<[T; N]>, A::Error> {
        let mut values = [T::default(); N];
        let mut count = 0;
        while let Some(value) = list.next_element()? {
            if let Some(place) = values.get_mut(count) {
                *place = value;
            }
            count += 1;
        }
        match count {
            0 if self.or_none => Ok(None),
            _ if count == N => Ok(Some(values)),
            _ => Err(A::Error::invalid_length(count, &self)),
        }
    }
}

/// 0, 1, or a boolean.
pub(super) fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    struct Flag;

    impl Visitor<'_> for Flag {
        type Value = bool;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("0 or 1")
        }

        fn visit_bool<E: Error>(self, value: bool) -> Result<bool, E> {
            Ok(value)
        }

        fn visit_u64<E: Error>(self, value: u64) -> Result<bool, E> {
            match value {
                0 | 1 => Ok(value == 1),
                _ => Err(E::invalid_value(Unexpected::Unsigned(value), &self)),
            }
        }
    }

    deserializer.deserialize_any(Flag)
}
