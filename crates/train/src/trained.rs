//! Trained weights as they are on disk, with the recipe that made them.

use crate::checkpoint::{Manifest, NamedTensor, WeightOptions, load_weights};
use crate::error::TrainError;
use crate::recipe::Recipe;
use std::fs;
use std::path::Path;

/// Which weights of a checkpoint or run folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhichWeights {
    /// The averages if the run kept them, as its evaluations did; else the last ones.
    #[default]
    AsEvaluated,
    Last,
    Averaged,
}

/// Weights and where they come from.
#[derive(Clone, Debug)]
pub struct Trained {
    pub tensors: Vec<NamedTensor<'static>>,
    /// Where the weights come from, for messages.
    pub origin: String,
    /// How the run that made the weights was set up, where they come from one.
    pub recipe: Option<Recipe>,
}

impl Trained {
    /// Loads weights of model `name` as [`load_weights`] does.
    ///
    /// # Errors
    /// A file that does not exist; a folder of another model; averages where there are none.
    pub fn load(name: &str, weights: &Path, which: WhichWeights) -> Result<Self, TrainError> {
        let recipe = recipe_of(weights)?;
        let averaged = recipe.as_ref().is_some_and(|recipe| recipe.train.ema_decay.is_some());
        let ema = which == WhichWeights::Averaged || (which == WhichWeights::AsEvaluated && averaged);
        let tensors = load_weights(weights, WeightOptions { to_f32: true, reject_non_finite: true, ema })?;
        let origin = weights.display().to_string();
        match recipe {
            Some(recipe) if recipe.model.name != name => {
                let allowed = format!("{origin} holds {}", recipe.model.name);
                Err(TrainError::setting("the model", name, allowed))
            }
            recipe => Ok(Self { tensors, origin, recipe }),
        }
    }
}

/// The recipe that a checkpoint or run folder holds; `None` for anything else.
pub(crate) fn recipe_of(weights: &Path) -> Result<Option<Recipe>, TrainError> {
    if let Ok(bytes) = fs::read(weights.join("manifest.json")) {
        // One that is damaged is reported by the loading of the weights.
        let Ok(manifest) = serde_json::from_slice::<Manifest>(&bytes) else { return Ok(None) };
        return Ok(Some(Recipe::from_toml(&manifest.state.recipe, &weights.display().to_string(), &[])?));
    }
    let recipe = weights.join("recipe.toml");
    if recipe.is_file() { Ok(Some(Recipe::load(&recipe.to_string_lossy(), &[])?)) } else { Ok(None) }
}
