//! Trained classifiers as they are on disk, with what is needed to use them.

use super::model_options;
use super::recipe::ClassifierRecipe;
use crate::checkpoint::NamedTensor;
use crate::error::TrainError;
use crate::loaded_weights::{LoadedWeights, WhichWeights, file_of_run};
use crate::recipe::Recipe;
use crate::session::{ComputeOptions, EvalSession};
use crate::tasks::infer::read_labels;
use bessemer_data::{Exif, IMAGENET_CLASSES, ResizeCentreCrop, imagenet_classes, readable_class};
use bessemer_models::classifier::NAMES;
use bessemer_models::{Architecture, InputFormat, Model, ModelOptions, find};
use bessemer_nn::PixelScale;
use std::path::Path;

/// Names of the classes in a run folder, one a line, in the order of labels.
pub const CLASSES_FILE: &str = "classes.txt";

/// A classifier with its weights, and how pictures are prepared for it.
#[derive(Clone, Debug)]
pub struct Classifier {
    /// Name of the model.
    pub name: String,
    /// The layers of the model.
    pub architecture: Architecture,
    /// Sizes of the input and the output, and variants of the layers.
    pub options: ModelOptions,
    /// Short side before the centre crop to `options.image_size`.
    pub resize: u32,
    /// What is done with the EXIF orientation of images of data sets.
    pub exif: Exif,
    /// Outputs before that of the first class.
    pub label_offset: usize,
    /// Folders that the classes had, where the weights come from a run.
    pub classes: Option<Vec<String>>,
    /// The weights, and where they come from.
    pub trained: LoadedWeights,
}

impl Classifier {
    /// Loads model `name` from what [`load_weights`](crate::checkpoint::load_weights) reads. A run, or a checkpoint in it, says by itself how the
    /// model was trained; of a file the model is taken as published, with as many classes as the file has.
    ///
    /// # Errors
    /// A model or file that does not exist; a folder of another model; averages where there are none.
    pub fn load(name: &str, weights: &Path, which: WhichWeights) -> Result<Self, TrainError> {
        find(name)?;
        Self::of(name, weights, LoadedWeights::load(name, weights, which)?)
    }

    /// [`Classifier::load`] for weights in memory.
    pub(super) fn of(name: &str, weights: &Path, trained: LoadedWeights) -> Result<Self, TrainError> {
        match trained.recipe.clone() {
            Some(recipe) => Self::of_run(&recipe, read_classes(weights)?, trained),
            None => Self::published(name, trained),
        }
    }

    fn of_run(recipe: &Recipe, classes: Option<Vec<String>>, trained: LoadedWeights) -> Result<Self, TrainError> {
        let ClassifierRecipe { images, .. } = recipe.own()?;
        let (architecture, options) = model_options(recipe, images.eval_image_size)?;
        let (resize, label_offset) = (images.eval_resize as u32, images.label_offset as usize);
        let (name, exif) = (recipe.model.name.clone(), images.exif);
        Ok(Self { name, architecture, options, resize, exif, label_offset, classes, trained })
    }

    fn published(name: &str, trained: LoadedWeights) -> Result<Self, TrainError> {
        let spec = find(name)?;
        let mut options = spec.options();
        if let Some(classes) = classes_of(&trained.tensors) {
            options.num_classes = classes;
        }
        let resize = match spec.architecture {
            Architecture::ResNet { .. } | Architecture::EfficientNet(_) => {
                ResizeCentreCrop::imagenet(options.image_size[0] as u32).resize
            }
            Architecture::ResNetCifar { .. } => options.image_size[0] as u32,
        };
        let (name, architecture) = (name.to_owned(), spec.architecture);
        let exif = Exif::Ignore;
        Ok(Self { name, architecture, options, resize, exif, label_offset: 0, classes: None, trained })
    }

    /// How pictures become inputs.
    pub fn transform(&self) -> ResizeCentreCrop {
        ResizeCentreCrop { resize: self.resize, size: self.options.image_size[0] as u32 }
    }

    /// Classes that data can have.
    pub fn num_classes(&self) -> usize {
        self.options.num_classes.saturating_sub(self.label_offset)
    }

    /// Folders of the classes in the order of labels: those of the run, or those of ImageNet where there are as many classes.
    pub(super) fn folders(&self) -> Option<Vec<String>> {
        let of_imagenet = || imagenet_classes().iter().map(|class| class.id.to_owned()).collect();
        self.classes.clone().or_else(|| (self.num_classes() == IMAGENET_CLASSES).then(of_imagenet))
    }

    /// Names of the classes in the order of labels, as [`Classifier::folders`] but with the names of ImageNet's classes for their
    /// WordNet ids; empty where numbers have to do.
    pub(super) fn class_names(&self) -> Vec<String> {
        let folders = self.folders().unwrap_or_default();
        folders.iter().map(|folder| readable_class(folder).to_owned()).collect()
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
        let model = Model::infer(self.architecture, &self.options, batch_size)?;
        let mut session = EvalSession::new(model, batch_size, compute)?;
        session.load_weights(&self.trained.tensors, &self.trained.origin)?;
        Ok(session)
    }
}

/// Names of the last layer in the models.
const LAST_LAYERS: [&str; 3] = ["fc", "linear", "classifier"];

/// Whether a tensor belongs to the last layer, whose size is the number of classes.
pub(super) fn is_of_last_layer(tensor: &NamedTensor<'_>) -> bool {
    let name = NAMES.canonical(&tensor.name);
    let layer = name.strip_suffix(".weight").or(name.strip_suffix(".bias"));
    layer.is_some_and(|layer| LAST_LAYERS.contains(&layer))
}

/// Rows of the last layer's weight.
pub(crate) fn classes_of(tensors: &[NamedTensor<'_>]) -> Option<usize> {
    let weight = tensors.iter().find(|tensor| tensor.name.ends_with(".weight") && is_of_last_layer(tensor))?;
    weight.shape.first().copied()
}

/// The class names beside a run's checkpoints.
fn read_classes(weights: &Path) -> Result<Option<Vec<String>>, TrainError> {
    file_of_run(weights, CLASSES_FILE).map(|path| read_labels(&path)).transpose()
}
