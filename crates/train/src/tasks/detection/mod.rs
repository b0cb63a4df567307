//! Detection of objects.

mod detector;
mod drawing;
mod family;
mod infer;
mod model;
mod pictures;
mod recipe;
mod samples;
mod score;
mod sources;
mod workload;

pub use family::{Detectors, FAMILY};

use super::loaded::{AsLoaded, Loaded};
use super::source::DataSource;
use super::{Batches, Better, Evaluation, InitialWeights, LoadOptions, Metric, MetricSchema, Scale, Score, Task};
use crate::checkpoint::NamedTensor;
use crate::error::TrainError;
use crate::evaluate::EvaluateOptions;
use crate::loaded_weights::LoadedWeights;
use crate::recipe::Recipe;
use crate::session::TrainSession;
use bessemer_data::detection::ObjectLayout;
use bessemer_data::{ImageSamples, Position, Sampler, SamplerOptions};
use bessemer_models::Model;
use bessemer_models::efficientdet::{self, DetectionOptions, DetectorOptions, LossOptions};
use detector::{ClassCategory, Detector};
use recipe::DetectorRecipe;
use score::{BOXES_FILE, DetectionScore, METRICS, Truths};
use sources::Source;
use std::path::Path;
use std::sync::Arc;

/// Average precision and recall are fractions. Losses are sums over all images divided by the matched boxes; `loss` is the
/// weighted sum of those of classes and boxes, without the squares of weights.
pub static TERMS: MetricSchema = MetricSchema {
    samples: "images",
    unit: "images/s",
    parts: &["cls_loss", "box_loss", "l2_loss"],
    metrics: &[
        on_axis(Metric::fraction(METRICS[0], "AP"), "validation AP (%)"),
        Metric::fraction(METRICS[1], "AP50"),
        Metric::fraction(METRICS[2], "AP75"),
        Metric::fraction(METRICS[3], "AP small"),
        Metric::fraction(METRICS[4], "AP medium"),
        Metric::fraction(METRICS[5], "AP large"),
        Metric::fraction(METRICS[6], "AR 1"),
        Metric::fraction(METRICS[7], "AR 10"),
        Metric::fraction(METRICS[8], "AR 100"),
        Metric::fraction(METRICS[9], "AR small"),
        Metric::fraction(METRICS[10], "AR medium"),
        Metric::fraction(METRICS[11], "AR large"),
        Metric::plain("loss", "loss", Some("validation loss")),
        Metric::plain("cls_loss", "  of classes", None),
        Metric::plain("box_loss", "  of boxes", None),
    ],
    best: (METRICS[0], Better::Higher),
};

const fn on_axis(metric: Metric, axis: &'static str) -> Metric {
    Metric { axis: Some(axis), scale: Scale::Fraction, ..metric }
}

/// The data and the model of a recipe.
struct Detection {
    recipe: Recipe,
    training: Source,
    batches: u64,
    notes: Vec<String>,
}

impl Detection {
    fn open(recipe: &Recipe) -> Result<Self, TrainError> {
        let source = DataSource::of(recipe)?;
        let training = sources::training_set(&source, recipe)?;
        let batches = sampler(&training, recipe)?.batches() as u64;
        let notes = training.notes.clone();
        Ok(Self { recipe: recipe.clone(), training, batches, notes })
    }
}

/// The order of a training set.
fn sampler(source: &Source, recipe: &Recipe) -> Result<Sampler, TrainError> {
    let options = SamplerOptions::train(recipe.train.batch_size as usize, recipe.train.seed);
    Ok(Sampler::new(source.set.len(), options)?)
}

fn layout(options: &DetectorOptions) -> ObjectLayout {
    ObjectLayout { max_objects: options.max_objects, mask_size: None }
}

impl Task for Detection {
    fn metric_schema(&self) -> &'static MetricSchema {
        &TERMS
    }

    fn training_step(&self, steps_per_epoch: u64) -> Result<Model, TrainError> {
        model::training_model(&self.recipe, steps_per_epoch)
    }

    fn data_identity(&self) -> String {
        self.training.set.identity()
    }

    fn batches_per_epoch(&self) -> u64 {
        self.batches
    }

    fn training_batches(&self, start: Position, end_epoch: u32) -> Result<Box<dyn Batches>, TrainError> {
        let layout = layout(&model::options(&self.recipe)?);
        let set = Arc::new(ImageSamples::new(Arc::clone(&self.training.set), layout)?);
        let (sampler, load) = (sampler(&self.training, &self.recipe)?, LoadOptions::of(&self.recipe));
        Ok(Box::new(Loaded::training(set, sampler, &load, (start, end_epoch), AsLoaded)?))
    }

    fn evaluation(&self) -> Result<Option<Box<dyn Evaluation>>, TrainError> {
        let recipe = &self.recipe;
        let Some((source, truths)) = sources::evaluation_set(&DataSource::of(recipe)?, recipe)? else {
            return Ok(None);
        };
        let DetectorRecipe { evaluation, .. } = recipe.own()?;
        Ok(Some(Box::new(DetectionEvaluation {
            options: model::options(recipe)?,
            detection: model::detection(recipe)?,
            loss: model::loss(recipe)?,
            batch_size: recipe.eval.batch_size.unwrap_or(recipe.train.batch_size) as usize,
            warnings: sources::absent_classes(&self.training, &source).into_iter().collect(),
            source,
            truths,
            file: BOXES_FILE.to_owned(),
            pictures: evaluation.pictures as usize,
            load: LoadOptions::of(recipe),
        })))
    }

    fn initial_weights(
        &self,
        given: Vec<NamedTensor<'static>>,
        origin: &str,
        session: &TrainSession,
    ) -> Result<InitialWeights, TrainError> {
        let DetectorRecipe { model, .. } = self.recipe.own()?;
        detector::initial_weights(given, origin, session, model.new_heads)
    }

    fn write_files(&self, run: &Path) -> Result<(), TrainError> {
        let names = self.training.set.class_names().iter();
        let categories = names.zip(&self.training.categories);
        let categories = categories.map(|(name, &id)| ClassCategory { id, name: name.clone() });
        detector::write_categories(run, &categories.collect::<Vec<_>>())
    }

    fn warnings(&self) -> Vec<String> {
        self.notes.clone()
    }
}

/// An evaluation set and the network for it.
struct DetectionEvaluation {
    options: DetectorOptions,
    detection: DetectionOptions,
    loss: LossOptions,
    batch_size: usize,
    source: Source,
    truths: Truths,
    /// Name of the file of detections.
    file: String,
    /// Images that are drawn with what is detected in them.
    pictures: usize,
    load: LoadOptions,
    warnings: Vec<String>,
}

impl Evaluation for DetectionEvaluation {
    fn metric_schema(&self) -> &'static MetricSchema {
        &TERMS
    }

    fn model(&self) -> Result<Model, TrainError> {
        Ok(match self.truths {
            Truths::Unknown => efficientdet::detect(&self.options, &self.detection, self.batch_size)?,
            _ => efficientdet::evaluate(&self.options, &self.detection, &self.loss, self.batch_size)?,
        })
    }

    fn batch_size(&self) -> usize {
        self.batch_size
    }

    fn batches(&self) -> Result<Box<dyn Batches>, TrainError> {
        let set = Arc::new(ImageSamples::new(Arc::clone(&self.source.set), layout(&self.options))?);
        let samples = set.len();
        Ok(Box::new(Loaded::evaluation(set, samples, &self.load, self.batch_size, AsLoaded)?))
    }

    fn score(&self) -> Result<Box<dyn Score + '_>, TrainError> {
        Ok(Box::new(DetectionScore::new(self)))
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }
}

/// How trained weights are evaluated on the validation images of a folder; for weights of a run `data` can also be `shapes` or
/// `synthetic`, drawn as the run drew them. Images without annotations give detections alone.
fn standalone_evaluation(
    name: &str,
    weights: &Path,
    data: &Path,
    options: &EvaluateOptions,
) -> Result<(Box<dyn Evaluation>, LoadedWeights), TrainError> {
    let Detector { recipe, trained, .. } = Detector::load(name, weights, options.weights)?;
    let source = DataSource::parse(data);
    let (source, truths, file) = match &options.unannotated {
        Some(part) => {
            let file = format!("detections_{part}_{name}_results.json");
            (sources::unannotated_set(&source, part, &recipe)?, Truths::Unknown, file)
        }
        None => {
            let opened = sources::evaluation_set(&source, &recipe)?;
            let (source, truths) = opened.ok_or_else(|| {
                TrainError::setting("data.eval_samples", "not given", "there are no synthetic samples to evaluate on")
            })?;
            (source, truths, BOXES_FILE.to_owned())
        }
    };
    let evaluation = DetectionEvaluation {
        options: model::options(&recipe)?,
        detection: model::detection(&recipe)?,
        loss: model::loss(&recipe)?,
        batch_size: options.batch_size,
        source,
        truths,
        file,
        pictures: options.pictures,
        load: options.load,
        warnings: Vec::new(),
    };
    Ok((Box::new(evaluation), trained))
}
