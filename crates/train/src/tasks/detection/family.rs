//! Object detectors as families.

use super::detector::{CATEGORIES_FILE, Detector};
use super::infer::ObjectPredictor;
use super::kind::DetectorKind;
use super::{Detection, samples, sources};
use crate::error::TrainError;
use crate::evaluate::EvaluateOptions;
use crate::loaded_weights::LoadedWeights;
use crate::recipe::{Override, Recipe, RecipePart};
use crate::rundir::RunDir;
use crate::session::ComputeOptions;
use crate::state::has_shapes;
use crate::tasks::family::{
    Benchmark, BuildStep, Family, Fitted, InputKind, ModelInfo, Network, NetworkForm, ObjectSamples, Recognised,
    SampleInfo,
};
use crate::tasks::frames::Annotator;
use crate::tasks::infer::{PredictOptions, Predictor};
use crate::tasks::samples::Sample;
use crate::tasks::{Evaluation, MetricSchema, Task};
use crate::workload::{ComparedWork, DetectorOutputs, Mode as StepMode, NamedSetting, StepSettings, Work, Workload};
use bessemer_data::Split;
use bessemer_models::{ModelError, Summary, WeightNames};
use bessemer_weights::NamedTensor;
use std::path::Path;

/// Detectors of objects of one kind.
pub struct Detectors(pub(super) &'static dyn DetectorKind);

impl Family for Detectors {
    fn noun(&self) -> &'static str {
        "models that detect objects"
    }

    fn models(&self) -> Vec<ModelInfo> {
        self.0.models()
    }

    fn representatives(&self) -> &'static [&'static str] {
        self.0.representatives()
    }

    fn benchmark(&self) -> Benchmark {
        self.0.benchmark()
    }

    fn summary(&self, model: &str) -> Result<Summary, ModelError> {
        self.0.summary(model)
    }

    fn sample(&self, model: &str) -> Result<SampleInfo, ModelError> {
        self.0.sample(model)
    }

    fn input(&self) -> InputKind {
        InputKind::Images
    }

    fn detects_objects(&self) -> bool {
        true
    }

    fn object_samples(&self, recipe: &Recipe, split: Split) -> Result<Option<ObjectSamples>, TrainError> {
        let settings = self.0.settings(recipe)?;
        let options = sources::options(&settings, split, settings.category_ids.into(), settings.has_masks());
        Ok(Some(ObjectSamples { options, max_objects: settings.layout.max_objects }))
    }

    fn names(&self) -> &'static WeightNames {
        self.0.weights().names
    }

    fn metric_schema(&self) -> &'static MetricSchema {
        self.0.metric_schema()
    }

    fn recipes(&self) -> &'static [(&'static str, &'static str)] {
        self.0.recipes()
    }

    fn default_recipe(&self, model: &str, _: Option<&str>) -> &'static str {
        self.0.default_recipe(model)
    }

    fn fields_of_step(&self, model: &str, _: &StepSettings) -> Vec<Override> {
        self.0.fields_of_step(model)
    }

    fn recipe(&self) -> RecipePart {
        self.0.recipe()
    }

    fn open(&self, recipe: &Recipe, _: Option<&Path>) -> Result<Box<dyn Task>, TrainError> {
        Ok(Box::new(Detection::open(self.0, recipe)?))
    }

    fn evaluation(
        &self,
        model: &str,
        weights: &Path,
        data: &Path,
        options: &EvaluateOptions,
    ) -> Result<(Box<dyn Evaluation>, LoadedWeights), TrainError> {
        super::standalone_evaluation(Detector::load(self.0, model, weights, options.weights)?, data, options)
    }

    fn predictor(
        &self,
        model: &'static str,
        weights: &Path,
        options: &PredictOptions,
    ) -> Result<Box<dyn Predictor>, TrainError> {
        let detector = Detector::load(self.0, model, weights, options.weights)?;
        Ok(Box::new(ObjectPredictor::of_files(detector, options)?))
    }

    fn annotator(
        &self,
        model: &'static str,
        weights: &Path,
        options: &PredictOptions,
    ) -> Result<Option<Box<dyn Annotator>>, TrainError> {
        let detector = Detector::load(self.0, model, weights, options.weights)?;
        Ok(Some(Box::new(ObjectPredictor::of_frames(detector, options)?)))
    }

    fn keep_samples(&self, run: &RunDir, count: usize, compute: &ComputeOptions) -> Result<Vec<Sample>, TrainError> {
        samples::write(self.0, run, count, compute)
    }

    fn recognise(&self, tensors: &[NamedTensor<'_>]) -> Option<Recognised> {
        let fits =
            |info: &ModelInfo| self.0.model_for(info.name, tensors).is_some_and(|model| has_shapes(&model, tensors));
        let info = self.models().into_iter().find(fits)?;
        Some(Recognised { what: info.description.to_owned(), models: vec![info.name], known: tensors.len() })
    }

    fn fitted(&self, model: &str, trained: &LoadedWeights, _: &Path) -> Result<Fitted, TrainError> {
        let model = self.0.model_for(model, &trained.tensors).ok_or_else(|| {
            let bias = self.0.weights().of_classes[0];
            TrainError::setting("the path of the weights", &trained.origin, format!("they have no {bias}"))
        })?;
        Ok(Fitted { model, folder: None })
    }

    fn recipe_of_file(
        &self,
        model: &str,
        tensors: &[NamedTensor<'_>],
        is_tensorflow: bool,
    ) -> Result<Option<Recipe>, TrainError> {
        self.0.recipe_of_file(model, tensors, is_tensorflow).map(Some)
    }

    fn class_files(&self) -> &'static [&'static str] {
        &[CATEGORIES_FILE]
    }

    fn outputs(&self) -> &'static [DetectorOutputs] {
        self.0.outputs()
    }

    fn step_settings(&self, mode: StepMode, settings: &StepSettings) -> Vec<NamedSetting> {
        match mode {
            StepMode::Train => vec![("accumulation", settings.accumulation.into())],
            StepMode::Infer => vec![("outputs", settings.outputs.name().into())],
        }
    }

    fn network(
        &self,
        model: &str,
        trained: &LoadedWeights,
        _: &Path,
        batch: usize,
        form: &NetworkForm,
    ) -> Result<Network, TrainError> {
        form.check_without_image(model)?;
        form.check_without_tokens(model)?;
        let recipe = match &trained.recipe {
            Some(recipe) => recipe.clone(),
            None => self.0.recipe_of_file(model, &trained.tensors, trained.is_tensorflow)?,
        };
        let model = match form.outputs.unwrap_or_default() {
            DetectorOutputs::Detections => {
                let canvas = self.0.settings(&recipe)?.framing(Split::Val).canvases[0].map(|side| side as usize);
                self.0.detection_step(&recipe, canvas, batch)?
            }
            DetectorOutputs::Network => self.0.network(&recipe, batch)?,
        };
        let layout = "NHWC, RGB, bytes; the network normalises them".to_owned();
        Ok(Network { model, has: |_| true, preprocessing: vec![("layout", layout)] })
    }

    fn workload(&self, work: &Work<'_>) -> Result<Workload, ModelError> {
        self.0.workload(work)
    }

    fn compared(&self) -> Option<&'static str> {
        self.0.compared().map(|(models, _)| models)
    }

    fn comparison_group(&self, _: &str) -> Option<&'static str> {
        self.0.compared().map(|(_, group)| group)
    }

    fn settling_step(&self, work: &Work<'_>) -> Result<Option<Workload>, ModelError> {
        self.0.settling_step(work)
    }

    fn compared_work(&self, work: &Work<'_>) -> Result<Option<ComparedWork>, ModelError> {
        self.0.compared_work(work)
    }

    fn evaluation_step(&self) -> Option<BuildStep> {
        self.0.measured_evaluation()
    }
}
