//! Trained detectors as they are on disk, with what is needed to use them.

use super::kind::{DetectorKind, DetectorSettings, DetectorWeights};
use crate::checkpoint::publish_content;
use crate::error::TrainError;
use crate::loaded_weights::{LoadedWeights, RunText, WhichWeights, text_of_run};
use crate::recipe::Recipe;
use crate::session::{ComputeOptions, EvalSession, TrainSession};
use crate::tasks::InitialWeights;
use bessemer_data::Split;
use bessemer_weights::NamedTensor;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The classes of a run, in their order, in its folder.
pub(super) const CATEGORIES_FILE: &str = "categories.json";

/// What a class is in files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClassCategory {
    /// Id of the category; `None` for a class without one.
    pub id: Option<i64>,
    pub name: String,
}

/// Writes the classes of a data set to the folder of a run.
pub(super) fn write_categories(run: &Path, categories: &[ClassCategory]) -> Result<(), TrainError> {
    let text = serde_json::to_string_pretty(categories).expect("categories have string keys") + "\n";
    Ok(publish_content(&run.join(CATEGORIES_FILE), text.as_bytes())?)
}

/// The classes in the folder of a run, or in one that its weights lie in.
fn read_categories(weights: &Path) -> Result<Option<Vec<ClassCategory>>, TrainError> {
    let Some(RunText { origin, text }) = text_of_run(weights, CATEGORIES_FILE)? else { return Ok(None) };
    let parsed = serde_json::from_str(&text);
    parsed.map(Some).map_err(|error| TrainError::setting("the categories", origin.display(), error.to_string()))
}

/// A detector with its weights, and the recipe that says what its images are like.
pub(super) struct Detector {
    pub kind: &'static dyn DetectorKind,
    /// That of the run, or that of a file with as many classes as the weights have.
    pub recipe: Recipe,
    pub settings: DetectorSettings,
    /// The classes, where the weights come from a run or a file that says them.
    pub categories: Option<Vec<ClassCategory>>,
    pub trained: LoadedWeights,
}

impl Detector {
    /// Loads model `name` from what [`load_weights`](crate::checkpoint::load_weights) reads. A run, a checkpoint in it, or a file that was
    /// converted from one, says by itself how the model was trained; another file is taken as one of the package that publishes them.
    ///
    /// # Errors
    /// A model or file that does not exist; a folder of another model; averages where there are none.
    pub(super) fn load(
        kind: &'static dyn DetectorKind,
        name: &str,
        weights: &Path,
        which: WhichWeights,
    ) -> Result<Self, TrainError> {
        let trained = LoadedWeights::load(name, weights, which)?;
        let recipe = match trained.recipe.clone() {
            Some(recipe) => recipe,
            None => kind.recipe_of_file(name, &trained.tensors, trained.is_tensorflow)?,
        };
        let categories = if trained.recipe.is_some() { read_categories(weights)? } else { None };
        Ok(Self { kind, settings: kind.settings(&recipe)?, recipe, categories, trained })
    }

    /// What a class is in files; those of published weights have the ids 1, 2, and so on.
    pub(super) fn category(&self, class: usize) -> ClassCategory {
        let known = self.categories.as_ref().and_then(|categories| categories.get(class));
        known.cloned().unwrap_or_else(|| ClassCategory { id: Some(class as i64 + 1), name: format!("class {class}") })
    }

    /// The compiled network with the weights in it, for each canvas of evaluation.
    ///
    /// # Errors
    /// Weights that do not fit the model.
    pub(super) fn session(&self, batch_size: usize, compute: &ComputeOptions) -> Result<EvalSession, TrainError> {
        let canvases = self.settings.framing(Split::Val).canvases.into_iter();
        let step =
            |canvas: [u32; 2]| self.kind.detection_step(&self.recipe, canvas.map(|side| side as usize), batch_size);
        let mut session = EvalSession::of_parts(canvases.map(step).collect::<Result<_, _>>()?, batch_size, compute)?;
        session.load_weights(&self.trained.tensors, &self.trained.origin)?;
        Ok(session)
    }
}

/// Whether weights are those of a whole detector, and not of its backbone alone.
pub(super) fn are_of_detector(rules: &DetectorWeights, given: &[NamedTensor<'_>]) -> bool {
    given.iter().any(|tensor| rules.names.canonical(&tensor.name).starts_with(rules.detector))
}

/// What a run begins with: all tensors of a detector; those of a classifier's backbone, with all else drawn at random; or, with
/// `new_heads`, all but those that depend on the number of classes.
pub(super) fn initial_weights(
    rules: &DetectorWeights,
    given: Vec<NamedTensor<'static>>,
    origin: &str,
    session: &TrainSession,
    new_heads: bool,
) -> Result<InitialWeights, TrainError> {
    let DetectorWeights { names, backbone, classifier, of_classes, rest, .. } = *rules;
    let drawn: BTreeMap<String, NamedTensor<'static>> =
        session.weights()?.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
    let is_detector = are_of_detector(rules, &given);
    let is_class_bias = |tensor: &&NamedTensor<'_>| names.canonical(&tensor.name) == of_classes[0];
    let outputs = given.iter().find(is_class_bias).and_then(|tensor| tensor.shape.first().copied());
    let mut tensors = Vec::with_capacity(drawn.len());
    let mut notes = Vec::new();
    let mut replaced = BTreeSet::new();
    for tensor in given {
        let name = names.canonical(&tensor.name);
        let name = match is_detector {
            true => name,
            false if classifier.iter().any(|part| name.starts_with(part)) || names.ignores(&name) => continue,
            false => format!("{backbone}.{}", rules.in_backbone(&name)),
        };
        // Outputs are the first axis in PyTorch's layout: in the others a network of another size differs.
        let other_classes = |drawn: &NamedTensor<'_>| {
            drawn.shape != tensor.shape
                && drawn.shape.get(1..) == tensor.shape.get(1..)
                && of_classes.contains(&name.as_str())
        };
        if drawn.get(&name).is_some_and(other_classes) {
            if !new_heads {
                let (found, wanted) = (outputs.unwrap_or(0), drawn[of_classes[0]].shape[0]);
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
    let is_random = |name: &str| match is_detector {
        true => of_classes.contains(&name),
        false => !name.strip_prefix(backbone).is_some_and(|tensor| tensor.starts_with('.')),
    };
    let kept: Vec<NamedTensor<'static>> =
        drawn.into_values().filter(|tensor| is_random(&tensor.name) && !replaced.contains(&tensor.name)).collect();
    if !kept.is_empty() {
        let what = if is_detector { of_classes.join(", ") } else { rest.to_owned() };
        notes.push(format!("{origin} has no weights for {what}: they are drawn at random"));
    }
    tensors.extend(kept);
    Ok(InitialWeights { tensors, notes })
}
