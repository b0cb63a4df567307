//! Trained detectors as they are on disk, with what is needed to use them.

use super::model;
use super::recipe::DetectorRecipe;
use crate::checkpoint::NamedTensor;
use crate::error::TrainError;
use crate::loaded_weights::{LoadedWeights, WhichWeights, file_of_run};
use crate::recipe::{Override, Recipe};
use crate::session::{ComputeOptions, EvalSession, TrainSession};
use crate::tasks::InitialWeights;
use bessemer_models::efficientdet::{self, BACKBONE, DetectionOptions, NAMES};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The classes of a run, in their order, in its folder.
const CATEGORIES_FILE: &str = "categories.json";

/// What a class is in files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClassCategory {
    /// Id of the category; `None` for a class without one.
    pub id: Option<i64>,
    pub name: String,
}

/// Writes the classes of a data set to the folder of a run.
pub(super) fn write_categories(run: &Path, categories: &[ClassCategory]) -> Result<(), TrainError> {
    let path = run.join(CATEGORIES_FILE);
    let text = serde_json::to_string_pretty(categories).expect("categories have string keys");
    fs::write(&path, text + "\n").map_err(TrainError::io(&path, "write the categories"))
}

/// The classes in the folder of a run, or in one that its weights lie in.
fn read_categories(weights: &Path) -> Result<Option<Vec<ClassCategory>>, TrainError> {
    let Some(path) = file_of_run(weights, CATEGORIES_FILE) else { return Ok(None) };
    let text = fs::read(&path).map_err(TrainError::io(&path, "read the categories"))?;
    let parsed = serde_json::from_slice(&text);
    parsed.map(Some).map_err(|error| TrainError::setting("the categories", path.display(), error.to_string()))
}

/// The bias of the layer that predicts classes: as many elements as classes times boxes of a position.
const CLASS_BIAS: &str = "class_net.predict.conv_pw.bias";
/// Tensors whose shapes follow from the number of classes.
const OF_CLASSES: [&str; 2] = ["class_net.predict.conv_pw.weight", CLASS_BIAS];
/// Tensors of a classifier that are not of its backbone.
const CLASSIFIER: [&str; 3] = ["conv_head.", "bn2.", "classifier."];

/// The recipe of a model in the form of the package `effdet`, which files of weights alone come from; `classes` if they are not as
/// many as are usual.
fn recipe_of_file(model: &str, classes: Option<usize>) -> Result<Recipe, TrainError> {
    let mut overrides = vec![
        Override::new("model.name", model),
        Override::new("model.edge_weights", "positive"),
        Override::new("model.normalise_twice", false),
        Override::new("data.resampling", "antialias"),
        Override::new("detection.suppression", "hard"),
        Override::new("detection.score_floor", 0.0),
        Override::new("detection.clip", true),
    ];
    overrides.extend(classes.map(|classes| Override::new("model.num_classes", classes as i64)));
    Ok(Recipe::load(efficientdet::find(model)?.recipe, &overrides)?)
}

/// A detector with its weights, and the recipe that says what its images are like.
pub(super) struct Detector {
    /// That of the run, or that of a file with as many classes as the weights have.
    pub recipe: Recipe,
    /// The classes, where the weights come from a run.
    categories: Option<Vec<ClassCategory>>,
    pub trained: LoadedWeights,
}

impl Detector {
    /// Loads model `name` from a `.safetensors` or PyTorch file, a checkpoint folder or a run folder. A folder says by itself how the
    /// model was trained; a file is taken as one of the package `effdet`.
    ///
    /// # Errors
    /// A model or file that does not exist; a folder of another model; averages where there are none.
    pub(super) fn load(name: &str, weights: &Path, which: WhichWeights) -> Result<Self, TrainError> {
        let spec = efficientdet::find(name)?;
        let trained = LoadedWeights::load(name, weights, which)?;
        let recipe = match trained.recipe.clone() {
            Some(recipe) => recipe,
            None => recipe_of_file(name, classes_of(&trained.tensors, spec.options().anchors.count()))?,
        };
        let categories = if trained.recipe.is_some() { read_categories(weights)? } else { None };
        Ok(Self { recipe, categories, trained })
    }

    /// What a class is in files; those of published weights have the ids 1, 2, and so on.
    pub(super) fn category(&self, class: usize) -> ClassCategory {
        let known = self.categories.as_ref().and_then(|categories| categories.get(class));
        known.cloned().unwrap_or_else(|| ClassCategory { id: Some(class as i64 + 1), name: format!("class {class}") })
    }

    /// Classes that the network predicts.
    pub(super) fn num_classes(&self) -> Result<usize, TrainError> {
        Ok(model::options(&self.recipe)?.num_classes)
    }

    /// Height and width of the canvas in pixels.
    pub(super) fn canvas(&self) -> Result<[usize; 2], TrainError> {
        Ok(model::options(&self.recipe)?.canvas)
    }

    /// The compiled network with the weights in it.
    ///
    /// # Errors
    /// Weights that do not fit the model.
    pub(super) fn session(
        &self,
        detection: &DetectionOptions,
        batch_size: usize,
        compute: &ComputeOptions,
    ) -> Result<EvalSession, TrainError> {
        let model = efficientdet::detect(&model::options(&self.recipe)?, detection, batch_size)?;
        let mut session = EvalSession::new(model, batch_size, compute)?;
        session.load_weights(&self.trained.tensors, &self.trained.origin)?;
        Ok(session)
    }

    /// How the recipe makes detections of the network's outputs.
    pub(super) fn detection(&self) -> Result<DetectionOptions, TrainError> {
        model::detection(&self.recipe)
    }

    /// How images are put on the canvas.
    pub(super) fn resampling(&self) -> Result<bessemer_data::Resampling, TrainError> {
        let DetectorRecipe { images, .. } = self.recipe.own()?;
        Ok(images.resampling)
    }
}

/// Classes of the layer that predicts them.
pub(super) fn classes_of(tensors: &[NamedTensor<'_>], anchors: usize) -> Option<usize> {
    let bias = tensors.iter().find(|tensor| NAMES.canonical(&tensor.name) == CLASS_BIAS)?;
    bias.shape.first().map(|outputs| outputs / anchors)
}

/// What a run begins with: all tensors of a detector; those of a classifier's backbone, with a pyramid and heads drawn at random;
/// or, with `new_heads`, all but those that depend on the number of classes.
pub(super) fn initial_weights(
    given: Vec<NamedTensor<'static>>,
    origin: &str,
    session: &TrainSession,
    new_heads: bool,
) -> Result<InitialWeights, TrainError> {
    let drawn: BTreeMap<String, NamedTensor<'static>> =
        session.weights()?.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
    let is_detector = given.iter().any(|tensor| NAMES.canonical(&tensor.name).starts_with("class_net."));
    let mut tensors = Vec::with_capacity(drawn.len());
    let mut notes = Vec::new();
    let mut replaced = BTreeSet::new();
    for tensor in given {
        let name = NAMES.canonical(&tensor.name);
        let name = match is_detector {
            true => name,
            false if CLASSIFIER.iter().any(|part| name.starts_with(part)) || NAMES.ignores(&name) => continue,
            false => format!("{BACKBONE}.{name}"),
        };
        let other_classes =
            |drawn: &NamedTensor<'_>| drawn.shape != tensor.shape && OF_CLASSES.contains(&name.as_str());
        if drawn.get(&name).is_some_and(other_classes) {
            if !new_heads {
                let [found, wanted] = [&tensor.shape, &drawn[&name].shape].map(|shape| shape[0]);
                let allowed = format!(
                    "{origin} predicts {found} outputs for classes and the model {wanted}: model.new_heads = true draws \
                     these layers at random"
                );
                return Err(TrainError::setting("model.new_heads", false, allowed));
            }
            continue;
        }
        replaced.insert(name.clone());
        tensors.push(NamedTensor { name, ..tensor });
    }
    let kept: Vec<NamedTensor<'static>> = drawn
        .into_values()
        .filter(|tensor| is_random(&tensor.name, is_detector) && !replaced.contains(&tensor.name))
        .collect();
    if !kept.is_empty() {
        let what = if is_detector { OF_CLASSES.join(", ") } else { "the feature pyramid and both heads".to_owned() };
        notes.push(format!("{origin} has no weights for {what}: they are drawn at random"));
    }
    tensors.extend(kept);
    Ok(InitialWeights { tensors, notes })
}

/// Whether a tensor may be drawn at random where weights do not have it.
fn is_random(name: &str, is_detector: bool) -> bool {
    if is_detector { OF_CLASSES.contains(&name) } else { !name.starts_with(&format!("{BACKBONE}.")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_models::efficientdet::{DetectionOptions, DetectorOptions, ZOO};

    #[test]
    fn files_are_of_the_form_of_effdet() {
        for spec in &ZOO {
            let recipe = recipe_of_file(spec.name, Some(90)).unwrap();
            assert_eq!(model::detection(&recipe).unwrap(), DetectionOptions::default());
            let DetectorOptions { edges, normalise_twice, num_classes, .. } = model::options(&recipe).unwrap();
            let published = spec.options();
            assert_eq!((edges, normalise_twice, num_classes), (published.edges, published.normalise_twice, 90));
        }
    }
}
