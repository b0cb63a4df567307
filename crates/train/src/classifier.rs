//! Trained models as they are on disk, with what is needed to use them.

use crate::checkpoint::{Manifest, NamedTensor, WeightOptions, load_weights};
use crate::error::TrainError;
use crate::recipe::Recipe;
use crate::session::{ComputeOptions, EvalSession};
use crate::setup::model_options;
use bessemer_data::ResizeCentreCrop;
use bessemer_models::{Architecture, InputFormat, ModelOptions, find};
use bessemer_nn::PixelScale;
use std::fs;
use std::path::Path;

/// Names of the classes in a run folder, one a line, in the order of labels.
pub const CLASSES_FILE: &str = "classes.txt";

/// Which weights of a checkpoint or run folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhichWeights {
    /// The averages if the run kept them, as its evaluations did; else the last ones.
    #[default]
    AsEvaluated,
    Last,
    Averaged,
}

/// A classifier with its weights, and how pictures are prepared for it.
#[derive(Clone, Debug)]
pub struct Classifier {
    pub name: String,
    pub architecture: Architecture,
    pub options: ModelOptions,
    /// Short side before the centre crop to `options.image_size`.
    pub resize: u32,
    /// Outputs before that of the first class.
    pub label_offset: usize,
    /// Names of the classes, where the weights come from a run.
    pub classes: Option<Vec<String>>,
    pub tensors: Vec<NamedTensor<'static>>,
    /// Where the weights come from, for messages.
    pub origin: String,
    /// How the run that made the weights was set up, where they come from one.
    pub recipe: Option<Recipe>,
}

impl Classifier {
    /// Loads model `name` from a `.safetensors` file, a checkpoint folder or a run folder. A folder says by itself how the
    /// model was trained; of a file the model is taken as published, with as many classes as the file has.
    ///
    /// # Errors
    /// A model or file that does not exist; a folder of another model; averages where there are none.
    pub fn load(name: &str, weights: &Path, which: WhichWeights) -> Result<Self, TrainError> {
        find(name)?;
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
            Some(recipe) => Self::of_run(recipe, read_classes(weights)?, tensors, origin),
            None => Self::published(name, tensors, origin),
        }
    }

    fn of_run(
        recipe: Recipe,
        classes: Option<Vec<String>>,
        tensors: Vec<NamedTensor<'static>>,
        origin: String,
    ) -> Result<Self, TrainError> {
        let (architecture, options) = model_options(&recipe, recipe.data.eval_image_size)?;
        let (resize, label_offset) = (recipe.data.eval_resize as u32, recipe.data.label_offset as usize);
        let name = recipe.model.name.clone();
        let recipe = Some(recipe);
        Ok(Self { name, architecture, options, resize, label_offset, classes, tensors, origin, recipe })
    }

    fn published(name: &str, tensors: Vec<NamedTensor<'static>>, origin: String) -> Result<Self, TrainError> {
        let spec = find(name)?;
        let mut options = spec.options();
        if let Some(classes) = classes_of(&tensors) {
            options.num_classes = classes;
        }
        let resize = match spec.architecture {
            Architecture::ResNet { .. } => ResizeCentreCrop::imagenet(options.image_size[0] as u32).resize,
            Architecture::ResNetCifar { .. } => options.image_size[0] as u32,
        };
        let (name, architecture) = (name.to_owned(), spec.architecture);
        Ok(Self { name, architecture, options, resize, label_offset: 0, classes: None, tensors, origin, recipe: None })
    }

    /// How pictures become inputs.
    pub fn transform(&self) -> ResizeCentreCrop {
        ResizeCentreCrop { resize: self.resize, size: self.options.image_size[0] as u32 }
    }

    /// Classes that data can have.
    pub fn num_classes(&self) -> usize {
        self.options.num_classes.saturating_sub(self.label_offset)
    }

    /// Normalises pixels by these constants instead.
    pub fn normalise_by(&mut self, mean: [f32; 3], std: [f32; 3]) {
        let scale = PixelScale { mean: mean.map(f64::from), std: std.map(f64::from) };
        self.options.input = InputFormat::Bytes(scale);
    }

    /// The compiled forward pass with the weights in it.
    ///
    /// # Errors
    /// Weights that do not fit the model.
    pub fn session(&self, batch_size: usize, compute: &ComputeOptions) -> Result<EvalSession, TrainError> {
        let mut session = EvalSession::new(self.architecture, &self.options, batch_size, compute)?;
        session.load_weights(&self.tensors, &self.origin)?;
        Ok(session)
    }
}

/// The recipe that a checkpoint or run folder holds; `None` for anything else.
fn recipe_of(weights: &Path) -> Result<Option<Recipe>, TrainError> {
    if let Ok(bytes) = fs::read(weights.join("manifest.json")) {
        // One that is damaged is reported by the loading of the weights.
        let Ok(manifest) = serde_json::from_slice::<Manifest>(&bytes) else { return Ok(None) };
        return Ok(Some(Recipe::from_toml(&manifest.state.recipe, &weights.display().to_string(), &[])?));
    }
    let recipe = weights.join("recipe.toml");
    if recipe.is_file() { Ok(Some(Recipe::load(&recipe.to_string_lossy(), &[])?)) } else { Ok(None) }
}

/// Rows of the last layer's weight.
pub(crate) fn classes_of(tensors: &[NamedTensor<'_>]) -> Option<usize> {
    let is_last = |name: &str| ["fc.weight", "linear.weight"].contains(&name.strip_prefix("module.").unwrap_or(name));
    tensors.iter().find(|tensor| is_last(&tensor.name)).and_then(|tensor| tensor.shape.first().copied())
}

/// The class names beside a run's checkpoints.
fn read_classes(weights: &Path) -> Result<Option<Vec<String>>, TrainError> {
    let found = weights.ancestors().take(3).map(|folder| folder.join(CLASSES_FILE)).find(|path| path.is_file());
    found.map(|path| read_labels(&path)).transpose()
}

/// One label a line.
///
/// # Errors
/// A file that cannot be read.
pub fn read_labels(path: &Path) -> Result<Vec<String>, TrainError> {
    let text = fs::read_to_string(path).map_err(TrainError::io(path, "read the labels"))?;
    Ok(text.lines().map(|line| line.trim_end().to_owned()).collect())
}
