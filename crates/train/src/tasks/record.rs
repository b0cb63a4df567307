//! What an evaluation keeps of a batch.

use crate::error::TrainError;
use bessemer_comm::CommError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What a [`Score`](super::Score) keeps of a batch, as bytes that one rank can send to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record(Vec<u8>);

impl Record {
    /// The bytes of a value.
    pub fn of<T: Serialize>(value: &T) -> Record {
        Record(postcard::to_allocvec(value).expect("plain data has a form in bytes"))
    }

    /// The value.
    ///
    /// # Errors
    /// Bytes of another type of value.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, TrainError> {
        postcard::from_bytes(&self.0).map_err(|error| {
            CommError::Malformed { reason: format!("{error}, in a record of {} bytes", self.0.len()) }.into()
        })
    }
}
