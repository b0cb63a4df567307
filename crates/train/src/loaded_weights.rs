//! Trained weights as they are on disk, with the recipe that made them.

use crate::checkpoint::{MANIFEST_FILE, Manifest, find_checkpoint, is_tensorflow, load_weights};
use crate::error::TrainError;
use crate::provenance::Provenance;
use crate::recipe::Recipe;
use crate::tasks::family::Family;
use crate::tasks::huggingface::vocabulary_in_config;
use crate::tasks::registry;
use bessemer_data::read_text;
use bessemer_data::text::VocabularyIdentity;
use bessemer_weights::{NamedTensor, WeightOptions};
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
    /// How the run that made the weights was set up, where they come from one or from a file that says it.
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
        let Training { recipe, is_tensorflow, vocabulary } = Training::of(weights)?;
        let ema = match which {
            WhichWeights::AsEvaluated => holds_averages(weights, recipe.as_ref()),
            WhichWeights::Averaged => true,
            WhichWeights::Last => false,
        };
        let tensors = load_weights(weights, WeightOptions { to_f32: true, reject_non_finite: true, ema })?;
        let origin = weights.display().to_string();
        if let Some(other) = recipe.as_ref().map(|recipe| &recipe.model.name).filter(|other| *other != name) {
            return Err(TrainError::setting("the model", name, format!("{origin} holds {other}")));
        }
        Ok(Self { family, tensors, origin, recipe, is_tensorflow, vocabulary })
    }
}

/// How the weights of a path were trained, as far as their run, their folder or their file says it.
pub(crate) struct Training {
    pub recipe: Option<Recipe>,
    pub is_tensorflow: bool,
    pub vocabulary: Option<VocabularyIdentity>,
}

impl Training {
    /// # Errors
    /// A path that cannot be read; a recipe or a note that is damaged.
    pub(crate) fn of(weights: &Path) -> Result<Self, TrainError> {
        if let Some(said) = Provenance::in_file(weights)? {
            let recipe = said.recipe(weights)?;
            return Ok(Self { recipe, is_tensorflow: said.is_tensorflow, vocabulary: said.vocabulary });
        }
        let recipe = recipe_in(weights)?;
        // Weights of a run are its own, whatever it began with.
        let is_tensorflow = recipe.is_none() && is_tensorflow(weights)?;
        Ok(Self { is_tensorflow, vocabulary: vocabulary_in(weights)?, recipe })
    }
}

/// Whether a path holds averaged weights beside the last ones: a run that keeps them. A file holds one kind, whatever the run kept.
pub(crate) fn holds_averages(weights: &Path, recipe: Option<&Recipe>) -> bool {
    weights.is_dir() && recipe.is_some_and(Recipe::keeps_averages)
}

/// The vocabulary that a checkpoint's manifest or a configuration names.
fn vocabulary_in(weights: &Path) -> Result<Option<VocabularyIdentity>, TrainError> {
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

/// A text that a run keeps in its folder.
pub(crate) struct RunText {
    /// Where it was found.
    pub origin: PathBuf,
    pub text: String,
}

/// The text that a run keeps as `name`, for weights that are the run, a checkpoint in it, or a file that says it.
///
/// # Errors
/// A file that cannot be read.
pub(crate) fn text_of_run(weights: &Path, name: &str) -> Result<Option<RunText>, TrainError> {
    if let Some(said) = Provenance::in_file(weights)? {
        return Ok(said.files.get(name).map(|text| RunText { origin: weights.to_owned(), text: text.clone() }));
    }
    let found = weights.ancestors().take(3).map(|folder| folder.join(name)).find(|path| path.is_file());
    found.map(|origin| Ok(RunText { text: read_text(&origin)?, origin })).transpose()
}

/// The recipe that a checkpoint or run folder holds; `None` for anything else.
fn recipe_in(weights: &Path) -> Result<Option<Recipe>, TrainError> {
    if weights.join(MANIFEST_FILE).exists() {
        let origin = weights.display().to_string();
        let recipe = manifest_in(weights).map(|manifest| Recipe::from_toml(&manifest.state.recipe, &origin, &[]));
        return Ok(recipe.transpose()?);
    }
    let recipe = weights.join("recipe.toml");
    if recipe.is_file() { Ok(Some(Recipe::load(&recipe.to_string_lossy(), &[])?)) } else { Ok(None) }
}
