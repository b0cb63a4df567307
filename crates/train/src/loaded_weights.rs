//! Trained weights as they are on disk, with the recipe that made them.

use crate::checkpoint::{
    MANIFEST_FILE, Manifest, NamedTensor, WeightOptions, find_checkpoint, is_tensorflow, load_weights,
};
use crate::error::TrainError;
use crate::recipe::Recipe;
use crate::tasks::family::Family;
use crate::tasks::huggingface::vocabulary_in_config;
use crate::tasks::registry;
use bessemer_data::text::VocabularyIdentity;
use std::fs;
use std::path::{Path, PathBuf};

/// Which weights of a checkpoint or run folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhichWeights {
    /// The averages if the run kept them, as its evaluations did; else the last ones.
    #[default]
    AsEvaluated,
    /// The weights after the last update.
    Last,
    /// The averages; only runs with `train.ema_decay` keep them.
    Averaged,
}

/// Weights and where they come from.
#[derive(Clone, Debug)]
pub struct LoadedWeights {
    /// Of the model that they are for.
    pub family: &'static dyn Family,
    /// Weights and running statistics, by their names in the model.
    pub tensors: Vec<NamedTensor<'static>>,
    /// Where the weights come from, for messages.
    pub origin: String,
    /// How the run that made the weights was set up, where they come from one.
    pub recipe: Option<Recipe>,
    /// Whether TensorFlow wrote them.
    pub is_tensorflow: bool,
    /// The vocabulary that they were trained with, where their run or folder says it.
    pub vocabulary: Option<VocabularyIdentity>,
}

impl LoadedWeights {
    /// Loads weights of model `name` as [`load_weights`] does.
    ///
    /// # Errors
    /// A file that does not exist; a folder of another model; averages where there are none.
    pub fn load(name: &str, weights: &Path, which: WhichWeights) -> Result<Self, TrainError> {
        let family = registry::find(name)?.family();
        let recipe = recipe_of(weights)?;
        let averaged = recipe.as_ref().is_some_and(Recipe::keeps_averages);
        let ema = which == WhichWeights::Averaged || (which == WhichWeights::AsEvaluated && averaged);
        let tensors = load_weights(weights, WeightOptions { to_f32: true, reject_non_finite: true, ema })?;
        let origin = weights.display().to_string();
        match recipe {
            Some(recipe) if recipe.model.name != name => {
                let allowed = format!("{origin} holds {}", recipe.model.name);
                Err(TrainError::setting("the model", name, allowed))
            }
            recipe => {
                let is_tensorflow = recipe.is_none() && is_tensorflow(weights)?;
                let vocabulary = vocabulary_of(weights)?;
                Ok(Self { family, tensors, origin, recipe, is_tensorflow, vocabulary })
            }
        }
    }
}

/// The vocabulary that the weights of a path were trained with, where a checkpoint's manifest or a configuration has it.
pub(crate) fn vocabulary_of(weights: &Path) -> Result<Option<VocabularyIdentity>, TrainError> {
    let chosen = find_checkpoint(weights, None)?;
    match manifest_in(chosen.as_ref().map_or(weights, |chosen| &chosen.path)) {
        Some(manifest) => Ok(manifest.state.vocabulary),
        None => vocabulary_in_config(weights),
    }
}

/// The manifest of a checkpoint. One that is damaged is reported by the loading of the weights.
fn manifest_in(checkpoint: &Path) -> Option<Manifest> {
    serde_json::from_slice(&fs::read(checkpoint.join(MANIFEST_FILE)).ok()?).ok()
}

/// A file that a run keeps in its folder, for weights that are the run or a checkpoint in it.
pub(crate) fn file_of_run(weights: &Path, name: &str) -> Option<PathBuf> {
    weights.ancestors().take(3).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// The recipe that a checkpoint or run folder holds; `None` for anything else.
pub(crate) fn recipe_of(weights: &Path) -> Result<Option<Recipe>, TrainError> {
    if weights.join(MANIFEST_FILE).exists() {
        let origin = weights.display().to_string();
        let recipe = manifest_in(weights).map(|manifest| Recipe::from_toml(&manifest.state.recipe, &origin, &[]));
        return Ok(recipe.transpose()?);
    }
    let recipe = weights.join("recipe.toml");
    if recipe.is_file() { Ok(Some(Recipe::load(&recipe.to_string_lossy(), &[])?)) } else { Ok(None) }
}
