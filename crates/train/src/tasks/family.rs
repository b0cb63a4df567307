//! What a family of models is to the commands: models, recipes, a task, weights, predictions, and steps to measure.

use super::frames::Annotator;
use super::infer::{PredictOptions, Predictor};
use super::samples::Sample;
use super::{Evaluation, MetricSchema, Task};
use crate::device::DeviceKind;
use crate::error::TrainError;
use crate::evaluate::EvaluateOptions;
use crate::loaded_weights::LoadedWeights;
use crate::recipe::{Compute, Override, Recipe, RecipePart};
use crate::rundir::RunDir;
use crate::session::ComputeOptions;
use crate::tasks::huggingface::VocabularyPart;
use crate::workload::{ComparedWork, DetectorOutputs, Mode, NamedSetting, StepSettings, Work, Workload};
use bessemer_data::Split;
use bessemer_data::coco::CocoOptions;
use bessemer_models::{Model, ModelError, Summary, WeightNames, WeightsError};
use bessemer_weights::{JointWeights, NamedTensor};
use std::fmt;
use std::path::Path;

/// A model for lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelInfo {
    /// Name in commands and recipes.
    pub name: &'static str,
    /// One line for lists of models.
    pub description: &'static str,
    /// Settings of recipes that make another variant of it, as `--set` takes them.
    pub variants: &'static [&'static str],
}

/// A sample of a model, and what comes out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleInfo {
    /// Shape of the input.
    pub shape: Vec<usize>,
    /// The same in words: `224x224 pixels`.
    pub text: String,
    /// Outputs: classes of an image, tokens of the vocabulary.
    pub classes: usize,
}

impl SampleInfo {
    /// An image of `[height, width]`.
    pub fn of_image([height, width]: [usize; 2], classes: usize) -> Self {
        Self { shape: vec![height, width, 3], text: format!("{height}x{width} pixels"), classes }
    }
}

/// What a person gives to a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputKind {
    /// Files of images.
    Images,
    /// Texts, one for each input.
    Texts,
    /// Questions about one text.
    Questions,
}

/// What the speed of a family is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Benchmark {
    /// Name of the model.
    pub model: &'static str,
    /// Samples of a training step on a processor; the first size counts most.
    pub train_batches: &'static [usize],
    /// Samples of a step of inference, in the same way.
    pub infer_batches: &'static [usize],
}

impl Benchmark {
    /// Of one mode.
    pub fn batches(&self, mode: Mode) -> &'static [usize] {
        match mode {
            Mode::Train => self.train_batches,
            Mode::Infer => self.infer_batches,
        }
    }
}

/// What the names and shapes of tensors reveal about their model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recognised {
    /// In words: `an ELECTRA of 4 layers, 256 wide`.
    pub what: String,
    /// Models of the family that have tensors of these sizes.
    pub models: Vec<&'static str>,
    /// Tensors whose names the family knows.
    pub known: usize,
}

/// The table of embeddings of a model of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbeddingTable {
    /// Number of tokens in the vocabulary.
    pub tokens: u64,
    /// Its rows may be filled up to a multiple of this.
    pub multiple: u64,
}

/// What builds the graph of a step.
pub type BuildStep = fn(&Work<'_>) -> Result<Model, ModelError>;

/// Writes weights under their canonical names to a folder as Hugging Face has it.
pub type FolderWriter = Box<dyn Fn(&Path, &[NamedTensor<'static>], &VocabularyPart) -> Result<(), TrainError>>;

/// The network that weights are for.
pub struct Fitted {
    /// The model of these weights.
    pub model: Model,
    /// `None` for a family that Hugging Face does not have.
    pub folder: Option<FolderWriter>,
}

/// Sizes and outputs of a network that is written for other programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkForm {
    /// Pixels of a side of the images; those of evaluation if absent.
    pub image_size: Option<usize>,
    /// Tokens of a sequence; those of a step that is measured if absent.
    pub sequence_length: Option<usize>,
    /// What a detector ends with; detections if absent.
    pub outputs: Option<DetectorOutputs>,
}

impl NetworkForm {
    /// # Errors
    /// A number of pixels for a model whose input does not have one to choose.
    pub(crate) fn check_without_image(&self, model: &str) -> Result<(), TrainError> {
        refuse(self.image_size, "the image size", model)
    }

    /// # Errors
    /// A number of tokens for a model that takes none.
    pub(crate) fn check_without_tokens(&self, model: &str) -> Result<(), TrainError> {
        refuse(self.sequence_length, "the sequence length", model)
    }

    /// # Errors
    /// A choice of outputs for a model that is no detector.
    pub(crate) fn check_without_outputs(&self, model: &str) -> Result<(), TrainError> {
        refuse(self.outputs.map(DetectorOutputs::name), "the kind of outputs", model)
    }
}

fn refuse(chosen: Option<impl fmt::Display>, name: &'static str, model: &str) -> Result<(), TrainError> {
    match chosen {
        Some(chosen) => Err(TrainError::setting(name, chosen, format!("it cannot be chosen for {model}"))),
        None => Ok(()),
    }
}

/// A network for other programs.
pub struct Network {
    /// Inference, before compilation.
    pub model: Model,
    /// Which tensors of the weights it has, by their names.
    pub has: fn(&str) -> bool,
    /// What has to be done to its inputs, by a word for each thing.
    pub preprocessing: Vec<(&'static str, String)>,
}

impl Network {
    /// A network with all tensors of its weights, for text.
    pub(crate) fn of_text(model: Model) -> Self {
        Self { model, has: |_| true, preprocessing: Vec::new() }
    }
}

impl fmt::Debug for dyn Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Family").field(&self.noun()).finish()
    }
}

/// How samples are made of images with objects.
#[derive(Clone, Debug)]
pub struct ObjectSamples {
    /// How images are put on their canvases, and which objects they have.
    pub options: CocoOptions,
    /// Most objects of an image; the largest are kept.
    pub max_objects: usize,
}

/// A family of models. Everything that commands ask of a model goes through this trait; to add a family is to write a folder that
/// implements it, and a line in [`super::registry`].
pub trait Family: Sync {
    /// In words, for messages: `image classification`.
    fn noun(&self) -> &'static str;

    /// All models, in the order of lists.
    fn models(&self) -> Vec<ModelInfo>;

    /// Short names of models, and what they stand for.
    fn short_names(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// The smallest model of each kind of network, for checks that are too long for all.
    fn representatives(&self) -> &'static [&'static str];

    /// The model and the batches by which the family's speed is judged.
    fn benchmark(&self) -> Benchmark;

    /// What a model of the family costs.
    ///
    /// # Errors
    /// A model of another family; none for its own.
    fn summary(&self, model: &str) -> Result<Summary, ModelError>;

    /// What a sample of a model is.
    ///
    /// # Errors
    /// As [`Family::summary`].
    fn sample(&self, model: &str) -> Result<SampleInfo, ModelError>;

    /// What a person gives to a model.
    fn input(&self) -> InputKind;

    /// The mixed precision that is usual for the models on a device: on GPUs 16 bits of which networks of images keep more for the
    /// fraction, with a scaled loss.
    fn mixed_precision(&self, device: DeviceKind) -> Compute {
        match (device, self.input()) {
            (DeviceKind::Cuda { .. }, InputKind::Images) => Compute::Fp16,
            _ => Compute::Bf16,
        }
    }

    /// Whether models find objects in images.
    fn detects_objects(&self) -> bool {
        false
    }

    /// How files of weights name tensors.
    fn names(&self) -> &'static WeightNames;

    /// What logs and tables call things.
    fn metric_schema(&self) -> &'static MetricSchema;

    /// Name and TOML text of the recipes that the program carries.
    fn recipes(&self) -> &'static [(&'static str, &'static str)];

    /// The recipe that suits a model, on some data if they are named.
    fn default_recipe(&self, model: &str, data: Option<&str>) -> &'static str;

    /// What a default recipe takes from the data.
    fn fields_of_data(&self, _data: &str) -> Vec<Override> {
        Vec::new()
    }

    /// What a recipe is to say of data for the step of [`Family::workload`], so that they have its sizes.
    fn fields_of_step(&self, _model: &str, _settings: &StepSettings) -> Vec<Override> {
        Vec::new()
    }

    /// The fields of recipes that are the family's own.
    fn recipe(&self) -> RecipePart;

    /// The task of a recipe, with its data sets open; `origin` are the weights that it begins with, or the run that goes on.
    ///
    /// # Errors
    /// Data that is not there or does not suit the recipe.
    fn open(&self, recipe: &Recipe, origin: Option<&Path>) -> Result<Box<dyn Task>, TrainError>;

    /// How trained weights of a model are evaluated on `data`, and the weights.
    ///
    /// # Errors
    /// Weights or data that are not there, damaged, or do not fit each other.
    fn evaluation(
        &self,
        model: &str,
        weights: &Path,
        data: &Path,
        options: &EvaluateOptions,
    ) -> Result<(Box<dyn Evaluation>, LoadedWeights), TrainError>;

    /// What predicts with trained weights of a model.
    ///
    /// # Errors
    /// Options that lack something; weights that are not there.
    fn predictor(
        &self,
        model: &'static str,
        weights: &Path,
        options: &PredictOptions,
    ) -> Result<Box<dyn Predictor>, TrainError>;

    /// What draws in pictures what it sees with trained weights of a model; `None` for models that do not draw.
    ///
    /// # Errors
    /// As [`Family::predictor`].
    fn annotator(
        &self,
        _model: &'static str,
        _weights: &Path,
        _options: &PredictOptions,
    ) -> Result<Option<Box<dyn Annotator>>, TrainError> {
        Ok(None)
    }

    /// Predicts samples spread over the evaluation set of a finished run and keeps them as pictures in its folder; does nothing
    /// for a family without pictures.
    ///
    /// # Errors
    /// A run that is not complete, data that has gone, a folder that cannot be written.
    fn keep_samples(&self, _run: &RunDir, _count: usize, _compute: &ComputeOptions) -> Result<Vec<Sample>, TrainError> {
        Ok(Vec::new())
    }

    /// What tensors are of; `None` if not of this family.
    fn recognise(&self, tensors: &[NamedTensor<'_>]) -> Option<Recognised>;

    /// The model that tensors of none fit best, and how they do not; `None` where [`Family::recognise`] says enough.
    fn closest(&self, _tensors: &[NamedTensor<'_>]) -> Option<(&'static str, WeightsError)> {
        None
    }

    /// The recipe in whose form weights of a model are taken that other programs wrote, where it says more than their shapes.
    ///
    /// # Errors
    /// A model of another family.
    fn recipe_of_file(
        &self,
        _model: &str,
        _tensors: &[NamedTensor<'_>],
        _is_tensorflow: bool,
    ) -> Result<Option<Recipe>, TrainError> {
        Ok(None)
    }

    /// Files of a run's folder that say what its classes are.
    fn class_files(&self) -> &'static [&'static str] {
        &[]
    }

    /// The table of embeddings among tensors that come from `recipe`, if it is known.
    fn embeddings(&self, _tensors: &[NamedTensor<'_>], _recipe: Option<&Recipe>) -> Option<EmbeddingTable> {
        None
    }

    /// The network that weights in `path` are for, to convert them.
    ///
    /// # Errors
    /// Weights that do not fit the model.
    fn fitted(&self, model: &str, trained: &LoadedWeights, path: &Path) -> Result<Fitted, TrainError>;

    /// Inference as other programs are given it: the network that weights in `path` are for, on `batch` samples.
    ///
    /// # Errors
    /// Weights that do not fit the model; a size that it does not have.
    fn network(
        &self,
        model: &str,
        trained: &LoadedWeights,
        path: &Path,
        batch: usize,
        form: &NetworkForm,
    ) -> Result<Network, TrainError>;

    /// How models that are published as two networks are read; `None` where each is one.
    fn joint_weights(&self) -> Option<&'static JointWeights> {
        None
    }

    /// Settings of a step that is measured, for sequences of this length if one is given.
    fn usual_step(&self, _sequence_length: Option<usize>) -> StepSettings {
        StepSettings::default()
    }

    /// What inference can end with, where there is a choice.
    fn outputs(&self) -> &'static [DetectorOutputs] {
        &[]
    }

    /// Those settings that the family's steps have, by name.
    fn step_settings(&self, _mode: Mode, settings: &StepSettings) -> Vec<NamedSetting> {
        vec![("accumulation", settings.accumulation.into())]
    }

    /// A step to measure.
    ///
    /// # Errors
    /// A size that is not possible.
    fn workload(&self, work: &Work<'_>) -> Result<Workload, ModelError>;

    /// The step of an evaluation, where that is another graph than inference.
    fn evaluation_step(&self) -> Option<BuildStep> {
        None
    }

    /// Which models are compared with other frameworks, in words; `None` if none is.
    fn compared(&self) -> Option<&'static str> {
        None
    }

    /// The group of models that other frameworks have if they have one of it; `None` for a model that is not compared.
    fn comparison_group(&self, _model: &str) -> Option<&'static str> {
        None
    }

    /// How a recipe makes samples of images with objects in files; `None` for a family that takes others.
    ///
    /// # Errors
    /// A recipe of another family, or one that asks for a size that is not possible.
    fn object_samples(&self, _recipe: &Recipe, _split: Split) -> Result<Option<ObjectSamples>, TrainError> {
        Ok(None)
    }

    /// A training step that changes nothing but the statistics of norms, which become those of its batch: with it the comparison
    /// begins where outputs hardly depend on the input otherwise. `None` where drawn weights will do.
    ///
    /// # Errors
    /// As [`Family::workload`].
    fn settling_step(&self, _work: &Work<'_>) -> Result<Option<Workload>, ModelError> {
        Ok(None)
    }

    /// What other frameworks must know of a step; `None` for a model that is not compared.
    ///
    /// # Errors
    /// As [`Family::summary`].
    fn compared_work(&self, _work: &Work<'_>) -> Result<Option<ComparedWork>, ModelError> {
        Ok(None)
    }
}
