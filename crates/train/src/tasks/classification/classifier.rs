//! Trained classifiers as they are on disk, with what is needed to use them.

use super::model_options;
use super::recipe::ClassifierRecipe;
use crate::error::TrainError;
use crate::loaded_weights::{LoadedWeights, WhichWeights, text_of_run};
use crate::recipe::{Override, Recipe};
use crate::session::{ComputeOptions, EvalSession};
use crate::tasks::infer::labels;
use bessemer_data::{Exif, IMAGENET_CLASSES, Resampling, ResizeCentreCrop, imagenet_classes, readable_class};
use bessemer_models::classifier::NAMES;
use bessemer_models::{Architecture, InputFormat, Model, ModelOptions, find};
use bessemer_nn::PixelScale;
use bessemer_weights::NamedTensor;
use std::ops::Range;
use std::path::Path;

/// Names of the classes in a run folder, one a line, in the order of labels.
pub const CLASSES_FILE: &str = "classes.txt";

/// What NVIDIA's sample for TensorFlow 1 was trained by.
const TENSORFLOW_RECIPE: &str = "resnet50-90e-tf1";

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
    /// How pixels are computed.
    pub resampling: Resampling,
    /// What is done with the EXIF orientation of images of data sets.
    pub exif: Exif,
    /// Outputs of the classes that data can have, in the order of labels.
    pub outputs: Range<usize>,
    /// Folders that the classes had, where the weights come from a run or a file that says them.
    pub classes: Option<Vec<String>>,
    /// The weights, and where they come from.
    pub trained: LoadedWeights,
}

impl Classifier {
    /// Loads model `name` from what [`load_weights`](crate::checkpoint::load_weights) reads. A run, a checkpoint in it, or a file that was
    /// converted from one, says by itself how the model was trained; of another file the model is taken as published, with as many classes as
    /// the file has.
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
        let own: &ClassifierRecipe = recipe.own()?;
        let images = &own.images;
        let (architecture, options) = model_options(recipe, images.eval_image_size)?;
        let (resize, outputs) = (images.eval_resize as u32, own.class_outputs());
        let (name, exif) = (recipe.model.name.clone(), images.exif);
        let resampling = images.resampling;
        Ok(Self { name, architecture, options, resize, resampling, exif, outputs, classes, trained })
    }

    /// In torchvision's form, or for a ResNet of TensorFlow in that of the recipe of NVIDIA's sample.
    fn published(name: &str, trained: LoadedWeights) -> Result<Self, TrainError> {
        let spec = find(name)?;
        if let Some(recipe) = recipe_of_file(name, &trained.tensors, trained.is_tensorflow)? {
            return Self::of_run(&recipe, None, trained);
        }
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
        let (exif, resampling) = (Exif::Ignore, Resampling::Antialias);
        let outputs = 0..options.num_classes;
        Ok(Self { name, architecture, options, resize, resampling, exif, outputs, classes: None, trained })
    }

    /// How pictures become inputs.
    pub fn transform(&self) -> ResizeCentreCrop {
        ResizeCentreCrop { resampling: self.resampling, resize: self.resize, size: self.options.image_size[0] as u32 }
    }

    /// Classes that data can have.
    pub fn num_classes(&self) -> usize {
        self.outputs.len()
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

/// Outputs of the last layer: the elements of its bias, which is the same in every layout.
pub(crate) fn classes_of(tensors: &[NamedTensor<'_>]) -> Option<usize> {
    let bias = tensors.iter().find(|tensor| tensor.shape.len() == 1 && is_of_last_layer(tensor))?;
    bias.shape.first().copied()
}

/// The recipe of NVIDIA's sample for a ResNet of TensorFlow.
pub(super) fn recipe_of_file(
    name: &str,
    tensors: &[NamedTensor<'_>],
    is_tensorflow: bool,
) -> Result<Option<Recipe>, TrainError> {
    if !is_tensorflow || !matches!(find(name)?.architecture, Architecture::ResNet { .. }) {
        return Ok(None);
    }
    let mut overrides = vec![Override::new("model.name", name)];
    if let Some(outputs) = classes_of(tensors) {
        let spare = i64::from(outputs == IMAGENET_CLASSES + 1);
        overrides
            .extend([Override::new("model.num_classes", outputs as i64), Override::new("data.spare_outputs", spare)]);
    }
    Ok(Some(Recipe::load(TENSORFLOW_RECIPE, &overrides)?))
}

/// The class names beside a run's checkpoints.
fn read_classes(weights: &Path) -> Result<Option<Vec<String>>, TrainError> {
    Ok(text_of_run(weights, CLASSES_FILE)?.map(|found| labels(&found.text)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::registry;
    use bessemer_nn::Padding;

    #[test]
    fn weights_of_tensorflow_are_those_of_its_recipe() {
        let of = |is_tensorflow| {
            let tensors = vec![NamedTensor::from_f32("fc.bias", vec![1001], &[0.0; 1001]).unwrap()];
            let family = registry::find("resnet50").unwrap().family();
            let origin = "W".to_owned();
            let trained = LoadedWeights { family, tensors, origin, recipe: None, is_tensorflow, vocabulary: None };
            Classifier::published("resnet50", trained).unwrap()
        };
        let classifier = of(true);
        assert_eq!((classifier.options.num_classes, classifier.outputs.clone()), (1001, 0..1000));
        assert_eq!(classifier.resampling, Resampling::Legacy);
        let padding = |classifier: &Classifier| match &classifier.options.backbone {
            bessemer_models::BackboneOptions::ResNet(backbone) => backbone.padding,
            _ => unreachable!("a ResNet"),
        };
        assert_eq!(padding(&classifier), Padding::Same);
        let classifier = of(false);
        assert_eq!((classifier.num_classes(), padding(&classifier)), (1001, Padding::Symmetric));
    }
}
