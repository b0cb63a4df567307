//! Checkpoints: complete training states on disk, and weights from them or from elsewhere.
//!
//! ```text
//! checkpoints/
//!   step-000123/manifest.json           position, recipe, metrics; name, size and SHA-256 of each file below
//!   step-000123/model.safetensors       parameters and running statistics
//!   step-000123/optimizer.safetensors   optimizer state
//!   step-000123/ema.safetensors         averaged weights, where the recipe asks for them
//!   latest, best                        text files that hold the name of one folder (no links: they survive copying)
//! ```
//!
//! A folder named `step-*` is always whole: it is written under another name, synced, then renamed. Names that begin
//! with a dot are work in progress and are removed by the next [`CheckpointStore::open`], but for a `.replaced-step-*`
//! whose successor is not in place: that one becomes `step-*` again.

mod choice;
mod disk;
mod error;
pub(crate) mod hashing;
mod load;
mod manifest;
mod store;

#[cfg(test)]
mod tests;

use bessemer_weights::{MODEL_FILE, NamedTensor};
pub use choice::{CheckpointChoice, ChoiceReason, ChosenCheckpoint, find_checkpoint};
pub(crate) use disk::publish_content;
pub use error::{CheckpointError, Damage};
pub(crate) use load::is_tensorflow;
pub use load::load_weights;
pub use manifest::{BestMetric, FileEntry, Manifest, SamplerPosition, TrainingState};
pub use store::{CheckpointStore, Loaded, Saved, load_checkpoint, load_newest};

/// Everything needed to continue a run as if it had never stopped.
///
/// Random numbers have no state of their own: they come from a counter-based generator keyed by the seed and the step.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint<'a> {
    /// Where the run stands.
    pub state: TrainingState,
    /// Weights and running statistics, by their names in the model.
    pub model: Vec<NamedTensor<'a>>,
    /// State of the optimizer; empty if it has none.
    pub optimizer: Vec<NamedTensor<'a>>,
    /// Averaged weights, by the names of the weights; `None` if the run keeps none.
    pub ema: Option<Vec<NamedTensor<'a>>>,
}

impl<'a> Checkpoint<'a> {
    /// The files of this checkpoint: `(name, tensors)`.
    fn parts(&self) -> impl Iterator<Item = (&'static str, &[NamedTensor<'a>])> {
        [(MODEL_FILE, Some(&self.model)), (OPTIMIZER_FILE, Some(&self.optimizer)), (EMA_FILE, self.ema.as_ref())]
            .into_iter()
            .filter_map(|(name, tensors)| tensors.map(|tensors| (name, tensors.as_slice())))
    }
}

pub(crate) const MANIFEST_FILE: &str = "manifest.json";
const OPTIMIZER_FILE: &str = "optimizer.safetensors";
const EMA_FILE: &str = "ema.safetensors";
