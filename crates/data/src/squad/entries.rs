use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::marker::PhantomData;
use std::path::Path;

use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::DataError;
use crate::json::parse;

const PREDICTIONS: &str = "an object with the answer of each question, {\"id\": \"text\"}";
const PROBABILITIES: &str = "an object with a number for each question, {\"id\": 0.5}";

/// Predicted answers by question, `{"id": "text"}`, in the order of the file.
///
/// Errors: a file that cannot be read, is not JSON or of another form, or has an id twice.
pub fn read_predictions(path: &Path) -> Result<Vec<(String, String)>, DataError> {
    read_entries(path, PREDICTIONS)
}

/// How likely questions have no answer, `{"id": probability}`, in the order of the file.
///
/// Errors: as of [`read_predictions`].
pub fn read_no_answer_probabilities(path: &Path) -> Result<Vec<(String, f64)>, DataError> {
    read_entries(path, PROBABILITIES)
}

fn read_entries<T: DeserializeOwned>(path: &Path, expected: &str) -> Result<Vec<(String, T)>, DataError> {
    let bytes = fs::read(path).map_err(DataError::io(path, "read the file"))?;
    let Entries(entries) = parse(path, &bytes, expected)?;
    let mut seen = HashSet::new();
    match entries.iter().find(|(id, _)| !seen.insert(id)) {
        None => Ok(entries),
        Some((id, _)) => Err(DataError::layout(path, format!("id `{id}` is there twice"), expected)),
    }
}

/// An object as pairs, so that nothing that is there twice is lost.
struct Entries<T>(Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Pairs<T> {
            type Value = Entries<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<T>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(Pairs(PhantomData))
    }
}
