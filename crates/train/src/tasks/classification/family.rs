//! Image classifiers as a family.

use super::classifier::{CLASSES_FILE, Classifier, classes_of, recipe_of_file};
use super::infer::ClassPredictor;
use super::recipe::ClassifierRecipe;
use super::{Classification, DataSource, TERMS, samples, workload};
use crate::error::TrainError;
use crate::evaluate::EvaluateOptions;
use crate::loaded_weights::LoadedWeights;
use crate::recipe::{Override, Recipe, RecipePart};
use crate::rundir::RunDir;
use crate::session::ComputeOptions;
use crate::state::{has_shapes, load_strictly};
use crate::tasks::family::{
    Benchmark, Family, Fitted, InputKind, ModelInfo, Network, NetworkForm, Recognised, SampleInfo,
};
use crate::tasks::infer::{PredictOptions, Predictor};
use crate::tasks::samples::Sample;
use crate::tasks::{Evaluation, MetricSchema, Task};
use crate::workload::{ComparedWork, Work, Workload};
use bessemer_data::ClassFolder;
use bessemer_models::classifier::NAMES;
use bessemer_models::{
    Architecture, InputFormat, Model, ModelError, ModelSpec, Summary, WeightNames, WeightsError, ZOO, find,
};
use bessemer_weights::NamedTensor;
use std::path::Path;

/// Classifiers of images: ResNets and EfficientNets.
pub struct Classifiers;

/// The family.
pub static FAMILY: Classifiers = Classifiers;

const RECIPES: [(&str, &str); 10] = [
    ("resnet50-50e", include_str!("recipes/resnet50-50e.toml")),
    ("resnet50-90e", include_str!("recipes/resnet50-90e.toml")),
    ("resnet50-250e", include_str!("recipes/resnet50-250e.toml")),
    ("resnet50-90e-tf1", include_str!("recipes/resnet50-90e-tf1.toml")),
    ("resnet50-250e-tf1", include_str!("recipes/resnet50-250e-tf1.toml")),
    ("efficientnet-b0", include_str!("recipes/efficientnet-b0.toml")),
    ("efficientnet-shapes", include_str!("recipes/efficientnet-shapes.toml")),
    ("imagenette-small", include_str!("recipes/imagenette-small.toml")),
    ("shapes-quick", include_str!("recipes/shapes-quick.toml")),
    ("cifar", include_str!("recipes/cifar.toml")),
];

impl Family for Classifiers {
    fn noun(&self) -> &'static str {
        "models that classify images"
    }

    fn models(&self) -> Vec<ModelInfo> {
        let info =
            |spec: &ModelSpec| ModelInfo { name: spec.name, description: spec.description, variants: spec.variants };
        ZOO.iter().map(info).collect()
    }

    fn representatives(&self) -> &'static [&'static str] {
        &["resnet18", "efficientnet-tiny", "resnet20-cifar"]
    }

    fn benchmark(&self) -> Benchmark {
        Benchmark { model: "resnet50", train_batches: &[16, 32], infer_batches: &[1, 16] }
    }

    fn summary(&self, model: &str) -> Result<Summary, ModelError> {
        find(model)?.summary()
    }

    fn sample(&self, model: &str) -> Result<SampleInfo, ModelError> {
        let options = find(model)?.options();
        Ok(SampleInfo::of_image(options.image_size, options.num_classes))
    }

    fn input(&self) -> InputKind {
        InputKind::Images
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

    /// A class for each folder.
    fn fields_of_data(&self, data: &str) -> Vec<Override> {
        let DataSource::Folder(root) = DataSource::parse(data) else { return Vec::new() };
        let classes = ClassFolder::classes_in(root);
        classes.map(|classes| Override::new("model.num_classes", classes.len() as i64)).into_iter().collect()
    }

    fn default_recipe(&self, model: &str, data: Option<&str>) -> &'static str {
        match find(model).map(|spec| spec.architecture) {
            Ok(Architecture::EfficientNet(_)) if data == Some("shapes") => "efficientnet-shapes",
            Ok(Architecture::EfficientNet(_)) => "efficientnet-b0",
            Ok(Architecture::ResNetCifar { .. }) if data == Some("shapes") => "shapes-quick",
            Ok(Architecture::ResNetCifar { .. }) => "cifar",
            Ok(Architecture::ResNet { .. }) | Err(_) => "resnet50-90e",
        }
    }

    fn recipe(&self) -> RecipePart {
        RecipePart::of::<ClassifierRecipe>()
    }

    fn open(&self, recipe: &Recipe, _: Option<&Path>) -> Result<Box<dyn Task>, TrainError> {
        Ok(Box::new(Classification::open(recipe)?))
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
        Ok(Box::new(ClassPredictor::new(model, weights, options)))
    }

    fn keep_samples(&self, run: &RunDir, count: usize, compute: &ComputeOptions) -> Result<Vec<Sample>, TrainError> {
        samples::write(run, count, compute)
    }

    fn recipe_of_file(
        &self,
        model: &str,
        tensors: &[NamedTensor<'_>],
        is_tensorflow: bool,
    ) -> Result<Option<Recipe>, TrainError> {
        recipe_of_file(model, tensors, is_tensorflow)
    }

    fn class_files(&self) -> &'static [&'static str] {
        &[CLASSES_FILE]
    }

    fn recognise(&self, tensors: &[NamedTensor<'_>]) -> Option<Recognised> {
        classes_of(tensors)?;
        let spec = ZOO.iter().find(|spec| model_for(spec, tensors).is_ok_and(|model| has_shapes(&model, tensors)))?;
        Some(Recognised { what: spec.description.to_owned(), models: vec![spec.name], known: tensors.len() })
    }

    fn closest(&self, tensors: &[NamedTensor<'_>]) -> Option<(&'static str, WeightsError)> {
        let misfits = ZOO.iter().filter_map(|spec| Some((spec.name, misfit(spec, tensors).ok()??)));
        misfits.min_by_key(|(_, misfit)| misfit.problems())
    }

    fn fitted(&self, model: &str, trained: &LoadedWeights, _: &Path) -> Result<Fitted, TrainError> {
        Ok(Fitted { model: model_for(find(model)?, &trained.tensors)?, folder: None })
    }

    fn network(
        &self,
        model: &str,
        trained: &LoadedWeights,
        path: &Path,
        batch: usize,
        form: &NetworkForm,
    ) -> Result<Network, TrainError> {
        form.check_without_tokens(model)?;
        form.check_without_outputs(model)?;
        let mut classifier = Classifier::of(model, path, trained.clone())?;
        let options = &mut classifier.options;
        if let Some(size) = form.image_size {
            options.image_size = [size; 2];
        }
        let [height, width] = options.image_size;
        let mut preprocessing =
            vec![("layout", "NCHW, RGB".to_owned()), ("height", height.to_string()), ("width", width.to_string())];
        if let InputFormat::Bytes(scale) = &options.input {
            let numbers = |numbers: [f64; 3]| numbers.map(|number| number.to_string()).join(",");
            preprocessing.push(("scale", "pixels / 255, then (x - mean) / std".to_owned()));
            preprocessing.extend([("mean", numbers(scale.mean)), ("std", numbers(scale.std))]);
        }
        options.input = InputFormat::Normalised;
        let model = Model::infer(classifier.architecture, &classifier.options, batch)?;
        Ok(Network { model, has: |_| true, preprocessing })
    }

    fn workload(&self, work: &Work<'_>) -> Result<Workload, ModelError> {
        workload::build(work)
    }

    fn compared(&self) -> Option<&'static str> {
        Some("ResNets for ImageNet")
    }

    fn comparison_group(&self, model: &str) -> Option<&'static str> {
        let is_compared = matches!(find(model).ok()?.architecture, Architecture::ResNet { .. });
        is_compared.then_some("resnet")
    }

    fn compared_work(&self, work: &Work<'_>) -> Result<Option<ComparedWork>, ModelError> {
        workload::compared(work)
    }
}

/// The published form of a model, with as many classes as its weights have.
fn model_for(spec: &ModelSpec, tensors: &[NamedTensor<'_>]) -> Result<Model, TrainError> {
    let mut options = spec.options();
    if let Some(classes) = classes_of(tensors) {
        options.num_classes = classes;
    }
    Ok(Model::infer(spec.architecture, &options, 1)?)
}

/// How tensors do not fit a model; `None` where they do.
fn misfit(spec: &ModelSpec, tensors: &[NamedTensor<'_>]) -> Result<Option<WeightsError>, TrainError> {
    let Model { specs, names, .. } = model_for(spec, tensors)?;
    match load_strictly(&specs, names, tensors, "") {
        Ok(_) => Ok(None),
        Err(TrainError::Weights { source, .. }) => Ok(Some(source)),
        Err(error) => Err(error),
    }
}
