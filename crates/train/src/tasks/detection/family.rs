//! Object detectors as a family.

use super::detector::{Detector, classes_of};
use super::infer::ObjectPredictor;
use super::recipe::DetectorRecipe;
use super::{Detection, TERMS, samples, workload};
use crate::checkpoint::NamedTensor;
use crate::error::TrainError;
use crate::evaluate::EvaluateOptions;
use crate::loaded_weights::LoadedWeights;
use crate::recipe::{Recipe, RecipePart};
use crate::rundir::RunDir;
use crate::session::ComputeOptions;
use crate::state::has_shapes;
use crate::tasks::family::{BuildStep, Family, Fitted, InputKind, ModelInfo, Recognised, SampleInfo};
use crate::tasks::frames::Annotator;
use crate::tasks::infer::{PredictOptions, Predictor};
use crate::tasks::samples::Sample;
use crate::tasks::{Evaluation, MetricSchema, Task};
use crate::workload::{ComparedWork, DetectorOutputs, Mode as StepMode, NamedSetting, StepSettings, Work, Workload};
use bessemer_models::efficientdet::{self, DetectorSpec, NAMES, ZOO};
use bessemer_models::{Model, ModelError, Summary, WeightNames};
use bessemer_nn::Mode;
use std::path::Path;

/// Detectors of objects: EfficientDets.
pub struct Detectors;

/// The family.
pub static FAMILY: Detectors = Detectors;

const RECIPES: [(&str, &str); 3] = [
    ("efficientdet-d0", include_str!("recipes/efficientdet-d0.toml")),
    ("efficientdet-coco-small", include_str!("recipes/efficientdet-coco-small.toml")),
    ("detection-quick", include_str!("recipes/detection-quick.toml")),
];

impl Family for Detectors {
    fn noun(&self) -> &'static str {
        "models that detect objects"
    }

    fn models(&self) -> Vec<ModelInfo> {
        let info = |spec: &DetectorSpec| ModelInfo {
            name: spec.name,
            description: spec.description,
            variants: &["edge_weights", "normalise_twice"],
        };
        ZOO.iter().map(info).collect()
    }

    fn representatives(&self) -> &'static [&'static str] {
        &["efficientdet-tiny"]
    }

    fn summary(&self, model: &str) -> Result<Summary, ModelError> {
        let options = efficientdet::find(model)?.options();
        Ok(Summary::of(&efficientdet::raw_outputs(&options, 1, Mode::Infer)?))
    }

    fn sample(&self, model: &str) -> Result<SampleInfo, ModelError> {
        let options = efficientdet::find(model)?.options();
        let [height, width] = options.canvas;
        let text = format!("{height}x{width} pixels");
        Ok(SampleInfo { shape: vec![height, width, 3], text, classes: options.num_classes })
    }

    fn input(&self) -> InputKind {
        InputKind::Images
    }

    fn detects_objects(&self) -> bool {
        true
    }

    fn names(&self) -> &'static WeightNames {
        &NAMES
    }

    fn metric_schema(&self) -> &'static MetricSchema {
        &TERMS
    }

    fn recipes(&self) -> &'static [(&'static str, &'static str)] {
        &RECIPES
    }

    fn default_recipe(&self, model: &str, _: Option<&str>) -> &'static str {
        efficientdet::find(model).map_or("efficientdet-d0", |spec| spec.recipe)
    }

    fn recipe(&self) -> RecipePart {
        RecipePart::of::<DetectorRecipe>()
    }

    fn open(&self, recipe: &Recipe, _: Option<&Path>) -> Result<Box<dyn Task>, TrainError> {
        Ok(Box::new(Detection::open(recipe)?))
    }

    fn evaluation(
        &self,
        model: &str,
        weights: &Path,
        data: &Path,
        options: &EvaluateOptions,
    ) -> Result<(Box<dyn Evaluation>, LoadedWeights), TrainError> {
        super::standalone_evaluation(model, weights, data, options)
    }

    fn predictor(
        &self,
        model: &'static str,
        weights: &Path,
        options: &PredictOptions,
    ) -> Result<Box<dyn Predictor>, TrainError> {
        let detector = Detector::load(model, weights, options.weights)?;
        Ok(Box::new(ObjectPredictor::of_files(detector, options)?))
    }

    fn annotator(
        &self,
        model: &'static str,
        weights: &Path,
        options: &PredictOptions,
    ) -> Result<Option<Box<dyn Annotator>>, TrainError> {
        let detector = Detector::load(model, weights, options.weights)?;
        Ok(Some(Box::new(ObjectPredictor::of_frames(detector, options)?)))
    }

    fn keep_samples(&self, run: &RunDir, count: usize, compute: &ComputeOptions) -> Result<Vec<Sample>, TrainError> {
        samples::write(run, count, compute)
    }

    fn recognise(&self, tensors: &[NamedTensor<'_>]) -> Option<Recognised> {
        let spec = ZOO.iter().find(|spec| model_for(spec, tensors).is_some_and(|model| has_shapes(&model, tensors)))?;
        Some(Recognised { what: spec.description.to_owned(), models: vec![spec.name], known: tensors.len() })
    }

    fn fitted(&self, model: &str, trained: &LoadedWeights, _: &Path) -> Result<Fitted, TrainError> {
        let spec = efficientdet::find(model)?;
        let model = model_for(spec, &trained.tensors).ok_or_else(|| {
            TrainError::setting("the weights", &trained.origin, "they have no class_net.predict.conv_pw.bias")
        })?;
        Ok(Fitted { model, folder: None })
    }

    fn outputs(&self) -> &'static [DetectorOutputs] {
        &DetectorOutputs::ALL
    }

    fn step_settings(&self, mode: StepMode, settings: &StepSettings) -> Vec<NamedSetting> {
        match mode {
            StepMode::Train => vec![("accumulation", settings.accumulation.into())],
            StepMode::Infer => vec![("outputs", settings.outputs.name().into())],
        }
    }

    fn workload(&self, work: &Work<'_>) -> Result<Workload, ModelError> {
        workload::build(work)
    }

    fn compared(&self) -> Option<&'static str> {
        Some("EfficientDets")
    }

    fn comparison_group(&self, _: &str) -> Option<&'static str> {
        Some("efficientdet")
    }

    fn settling_step(&self, work: &Work<'_>) -> Result<Option<Workload>, ModelError> {
        workload::settling(work).map(Some)
    }

    fn compared_work(&self, work: &Work<'_>) -> Result<Option<ComparedWork>, ModelError> {
        workload::compared(work).map(Some)
    }

    fn evaluation_step(&self) -> Option<BuildStep> {
        Some(workload::evaluation)
    }
}

/// The published form of a model, with as many classes as its weights have.
fn model_for(spec: &DetectorSpec, tensors: &[NamedTensor<'_>]) -> Option<Model> {
    let mut options = spec.options();
    options.num_classes = classes_of(tensors, options.anchors.count())?;
    efficientdet::raw_outputs(&options, 1, Mode::Infer).ok()
}
