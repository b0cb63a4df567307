//! The file that `prepare` and `run` are given.

use crate::{Cannot, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Version of the protocol.
pub(crate) const VERSION: u64 = 1;

#[derive(Clone, Debug, Deserialize)]
pub struct Request {
    pub variant: String,
    pub model: String,
    pub mode: Mode,
    pub batch_size: usize,
    pub precision: String,
    pub threads: usize,
    pub warmup: usize,
    pub steps: usize,
    pub seed: u64,
    pub purpose: Purpose,
    /// The folder with weights and batches.
    pub work: PathBuf,
    /// Where what came out of inference is written.
    pub outputs: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Train,
    Infer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    Time,
    /// Without dropout and warm-up.
    Check,
}

impl Request {
    /// # Errors
    /// A file that cannot be read, is of another version or of another form.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let known: Value = serde_json::from_str(&fs::read_to_string(path).map_err(|error| at(path, error))?)?;
        if known["protocol"] != VERSION {
            return Cannot::because(format!(
                "{}: protocol {}, but this adapter speaks {VERSION}",
                path.display(),
                known["protocol"]
            ));
        }
        let request = serde_json::from_value(known);
        request.or_else(|error| Cannot::because(format!("{}: {error}", path.display())))
    }

    pub fn trains(&self) -> bool {
        self.mode == Mode::Train
    }

    pub fn checks(&self) -> bool {
        self.purpose == Purpose::Check
    }
}

/// An error with the file where it happened.
pub(crate) fn at(path: &Path, error: impl std::fmt::Display) -> String {
    format!("{}: {error}", path.display())
}
