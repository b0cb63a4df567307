//! Checkpoints: complete training states on disk, and the weight files that come from elsewhere.
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
mod hdf5_file;
mod manifest;
mod safetensors_file;
mod store;
mod tensor;
mod tensor_file;
pub(crate) mod tensorflow_file;
mod torch_file;
mod weights;

#[cfg(test)]
mod tests;

pub use choice::{CheckpointChoice, ChoiceReason, ChosenCheckpoint, find_checkpoint};
pub(crate) use disk::{publish_content, publish_file};
pub use error::{CheckpointError, Damage};
pub use manifest::{BestMetric, FileEntry, Manifest, SamplerPosition, TrainingState};
pub use safetensors::Dtype;
pub(crate) use safetensors_file::{note_of_safetensors, write_safetensors_with_note};
pub use safetensors_file::{read_safetensors, write_safetensors};
pub use store::{CheckpointStore, Loaded, Saved, load_checkpoint, load_newest};
pub use tensor::{NamedTensor, TensorError};
pub use tensor_file::TensorFile;
pub use torch_file::{StateDictChoice, state_dict_choice};
pub(crate) use weights::is_tensorflow;
pub use weights::{WeightOptions, load_weights};

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
/// What Hugging Face has beside weights.
pub(crate) const CONFIG_FILE: &str = "config.json";
pub(crate) const MODEL_FILE: &str = "model.safetensors";
/// The same as older tools of Hugging Face wrote it.
const TORCH_MODEL_FILE: &str = "pytorch_model.bin";
/// Weights in a folder of Hugging Face or NVIDIA that TensorFlow wrote.
const KERAS_MODEL_FILE: &str = "tf_model.h5";
const OPTIMIZER_FILE: &str = "optimizer.safetensors";
const EMA_FILE: &str = "ema.safetensors";

const _: () =
    assert!(cfg!(target_endian = "little"), "safetensors are little-endian and are written as they lie in memory");
