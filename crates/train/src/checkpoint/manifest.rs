use super::error::CheckpointError;
use super::hashing::sha256_hex;
use crate::number;
use bessemer_data::text::VocabularyIdentity;
use bessemer_weights::FileError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The format that is written. All before it can be read: what came later is optional.
const VERSION: u32 = 2;

/// Where a run stands. Counts are of things done: `step = 123` after the 123rd update.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingState {
    /// Number of updates done.
    pub step: u64,
    /// Epoch of the next batch, from 0.
    pub epoch: u64,
    /// The next batch to be drawn.
    pub sampler: SamplerPosition,
    /// Seed of the run.
    pub seed: u64,
    /// Step count that the learning-rate schedule sees; behind `step` where a non-finite gradient skipped an update.
    pub schedule_step: u64,
    /// The resolved recipe, TOML.
    pub recipe: String,
    /// What identifies the data set: path or kind, sizes, checksums.
    pub data: String,
    /// The vocabulary of a model of text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<VocabularyIdentity>,
    /// The last evaluation.
    #[serde(with = "number::map")]
    pub metrics: BTreeMap<String, f64>,
    /// The best evaluation so far; `None` before the first.
    pub best: Option<BestMetric>,
}

/// Position of the sampler: `batch` batches of epoch `epoch` (from 0) have been used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplerPosition {
    /// Current epoch, from 0.
    pub epoch: u64,
    /// Batches of the epoch that have been used.
    pub batch: u64,
}

/// The best evaluation of a run, by the metric that chooses the best checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BestMetric {
    /// Name of the metric.
    pub metric: String,
    /// Its value.
    #[serde(with = "number")]
    pub value: f64,
    /// The step after which it was evaluated.
    pub step: u64,
    /// Of the same evaluation, where it has one: it decides between equal values.
    #[serde(default, with = "number::option", skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
}

/// Name, size in bytes and lower-case hexadecimal SHA-256 of a file of the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Name of the file in the folder of the checkpoint.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Checksum, lower-case hexadecimal.
    pub sha256: String,
}

/// `manifest.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of the format.
    pub version: u32,
    /// Version of the program that wrote it.
    pub bessemer: String,
    /// Where the run stands.
    pub state: TrainingState,
    /// All other files of the checkpoint.
    pub files: Vec<FileEntry>,
    /// SHA-256 of this manifest as written with an empty `sha256`.
    pub sha256: String,
}

impl Manifest {
    pub(super) fn new(state: &TrainingState, files: Vec<FileEntry>) -> Self {
        let mut manifest = Self {
            version: VERSION,
            bessemer: env!("CARGO_PKG_VERSION").to_owned(),
            state: state.clone(),
            files,
            sha256: String::new(),
        };
        manifest.sha256 = manifest.own_sha256();
        manifest
    }

    pub(super) fn to_json(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("a manifest has string keys and finite numbers");
        bytes.push(b'\n');
        bytes
    }

    pub(super) fn parse(bytes: &[u8], path: &Path) -> Result<Self, CheckpointError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let not_valid = |error: serde_json::Error| FileError::damaged(path, format!("not a manifest: {error}"));
        let Versioned { version } = serde_json::from_slice(bytes).map_err(not_valid)?;
        if !(1..=VERSION).contains(&version) {
            return Err(CheckpointError::Version { path: path.to_owned(), found: version, supported: VERSION });
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(not_valid)?;
        if manifest.sha256 != manifest.own_sha256() {
            return Err(FileError::damaged(path, "the content does not match its checksum").into());
        }
        Ok(manifest)
    }

    pub(super) fn own_sha256(&self) -> String {
        sha256_hex(&Self { sha256: String::new(), ..self.clone() }.to_json())
    }
}
