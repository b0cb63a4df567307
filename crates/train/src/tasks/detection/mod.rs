//! Detection of objects.

mod detector;
mod drawing;
pub mod efficientdet;
mod family;
mod infer;
mod kind;
pub mod maskrcnn;
mod outputs;
mod pictures;
mod recipe;
mod samples;
mod score;
mod sources;

pub use family::Detectors;

use super::loaded::{AsLoaded, Loaded};
use super::source::DataSource;
use super::{Batches, Evaluation, InitialWeights, LoadOptions, MetricSchema, Score, Task, WeightOrigin};
use crate::error::TrainError;
use crate::evaluate::EvaluateOptions;
use crate::loaded_weights::LoadedWeights;
use crate::recipe::Recipe;
use crate::session::TrainSession;
use crate::setup::RunShape;
use bessemer_data::{BatchRange, ImageSamples, Sampler, SamplerOptions, Share};
use bessemer_models::Model;
use bessemer_weights::NamedTensor;
use detector::Detector;
use kind::{DetectorKind, DetectorSettings, padding_note};
use score::{BOXES_FILE, DetectionScore, TrueObjects, Truths};
use sources::{ImagesWithObjects, Source};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use toml::Table;

/// The data and the model of a recipe.
struct Detection {
    kind: &'static dyn DetectorKind,
    recipe: Recipe,
    settings: DetectorSettings,
    training: Source,
    batches: u64,
    notes: Vec<String>,
}

impl Detection {
    fn open(kind: &'static dyn DetectorKind, recipe: &Recipe) -> Result<Self, TrainError> {
        let settings = kind.settings(recipe)?;
        let training = sources::training_set(&DataSource::of(recipe)?, recipe, &settings)?;
        let batches = sampler(&training, recipe)?.batches() as u64;
        let notes = training.notes.clone();
        Ok(Self { kind, recipe: recipe.clone(), settings, training, batches, notes })
    }
}

/// The order of a training set.
fn sampler(source: &Source, recipe: &Recipe) -> Result<Sampler, TrainError> {
    let options = SamplerOptions::train(recipe.train.batch_size as usize, recipe.train.seed);
    Ok(Sampler::new(source.set.len(), options)?)
}

impl Task for Detection {
    fn metric_schema(&self) -> &'static MetricSchema {
        self.kind.metric_schema()
    }

    fn training_step(&self, shape: RunShape) -> Result<Model, TrainError> {
        self.kind.training_step(&self.recipe, shape)
    }

    fn data_identity(&self) -> String {
        self.training.set.identity()
    }

    fn batches_per_epoch(&self) -> u64 {
        self.batches
    }

    fn training_batches(&self, range: BatchRange) -> Result<Box<dyn Batches>, TrainError> {
        let set = Arc::new(ImageSamples::new(Arc::clone(&self.training.set), self.settings.layout)?);
        let (sampler, load) = (sampler(&self.training, &self.recipe)?, LoadOptions::of(&self.recipe));
        Ok(Box::new(Loaded::training(set, sampler, &load, range, AsLoaded)?))
    }

    fn evaluation(&self) -> Result<Option<Box<dyn Evaluation>>, TrainError> {
        let (recipe, settings) = (&self.recipe, &self.settings);
        let data = DataSource::of(recipe)?;
        let classes = self.training.class_categories();
        let Some((source, truths)) = sources::evaluation_set(&data, recipe, settings, Some(&classes))? else {
            return Ok(None);
        };
        Ok(Some(Box::new(DetectionEvaluation {
            kind: self.kind,
            recipe: recipe.clone(),
            settings: settings.clone(),
            batch_size: recipe.eval.batch_size.unwrap_or(recipe.train.batch_size) as usize,
            warnings: sources::class_notes(&source, &classes, &self.training.present_classes()),
            source,
            truths,
            objects: OnceLock::new(),
            file: BOXES_FILE.to_owned(),
            load: LoadOptions::of(recipe),
        })))
    }

    fn has_part(&self, given: &[NamedTensor<'_>]) -> bool {
        let rules = self.kind.weights();
        let is_stem = |tensor: &NamedTensor<'_>| rules.in_backbone(&rules.names.canonical(&tensor.name)) == rules.stem;
        !detector::are_of_detector(rules, given) && given.iter().any(is_stem)
    }

    fn initial_weights(
        &self,
        given: Vec<NamedTensor<'static>>,
        origin: &WeightOrigin<'_>,
        session: &TrainSession,
    ) -> Result<InitialWeights, TrainError> {
        let rules = self.kind.weights();
        let notes = match detector::are_of_detector(rules, &given) {
            true => self.convention_notes(&given, origin)?,
            false => self.kind.backbone_notes(&self.recipe, origin)?,
        };
        let mut weights = detector::initial_weights(rules, given, origin.name, session, self.settings.new_heads)?;
        weights.notes.extend(notes);
        Ok(weights)
    }

    fn write_files(&self, run: &Path) -> Result<(), TrainError> {
        detector::write_categories(run, &self.training.class_categories())
    }

    fn warnings(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn warnings_of_random_weights(&self) -> Vec<String> {
        let is_drawn = !matches!(DataSource::of(&self.recipe), Ok(DataSource::Folder(_)));
        let warning = match self.kind.frozen_parts(&self.recipe) {
            Some(parts) => format!("{parts} are not trained, and stay at random: --weights gives those of a trained backbone"),
            None if is_drawn => return Vec::new(),
            None => "the backbone begins at random; that of published detectors was trained on ImageNet before: --weights FILE gives it".to_owned(),
        };
        vec![warning]
    }
}

/// Fields whose values a trained detector fits, and no others.
const CONVENTIONS: [&str; 6] = [
    "model.flavour",
    "model.edge_weights",
    "model.normalise_twice",
    "model.bn_eps",
    "detection.anchor_scale",
    "proposals.anchor_scale",
];

impl Detection {
    /// What is to be said where a whole detector was trained in other conventions than those of the recipe.
    fn convention_notes(
        &self,
        given: &[NamedTensor<'_>],
        origin: &WeightOrigin<'_>,
    ) -> Result<Vec<String>, TrainError> {
        let trained = match origin.recipe {
            Some(recipe) => recipe.clone(),
            None => self.kind.recipe_of_file(&self.recipe.model.name, given, origin.is_tensorflow)?,
        };
        let [was_padded, padded] = [self.kind.padding(&trained)?, self.kind.padding(&self.recipe)?];
        let (trained, asked) = (trained.to_table(), self.recipe.to_table());
        let different = CONVENTIONS.into_iter().filter_map(|path| {
            let (section, field) = path.split_once('.')?;
            let value = |table: &Table| Some(table.get(section)?.get(field)?.to_string());
            let (trained, asked) = (value(&trained)?, value(&asked)?);
            (trained != asked).then(|| {
                let fits = trained.trim_matches('"');
                format!(
                    "{} were trained with {path} = {trained}, and are taken with {asked}, where their outputs mean something else: \
                     --set {path}={fits} fits them",
                    origin.name
                )
            })
        });
        Ok(different.chain(padding_note(origin, Some(was_padded), padded)).collect())
    }
}

/// An evaluation set and the network for it.
struct DetectionEvaluation {
    kind: &'static dyn DetectorKind,
    recipe: Recipe,
    settings: DetectorSettings,
    batch_size: usize,
    source: Source,
    truths: Truths,
    /// What `truths` says, once it was asked.
    objects: OnceLock<TrueObjects>,
    /// Name of the file of detections.
    file: String,
    load: LoadOptions,
    warnings: Vec<String>,
}

impl DetectionEvaluation {
    /// The true objects; `None` where they are not known.
    fn objects(&self) -> Result<Option<&TrueObjects>, TrainError> {
        let (with_masks, source) = (self.settings.has_masks(), &self.source);
        let read = || match &self.truths {
            Truths::Annotated(instances) => TrueObjects::annotated(instances, with_masks).map(Some),
            Truths::OfSet => TrueObjects::of_set(&*source.set, source.categories.len(), with_masks).map(Some),
            Truths::Unknown => Ok(None),
        };
        match self.objects.get() {
            Some(objects) => Ok(Some(objects)),
            None => Ok(read()?.map(|objects| self.objects.get_or_init(|| objects))),
        }
    }

    /// The images of each canvas.
    fn parts(&self) -> Vec<ImageSamples<ImagesWithObjects>> {
        ImageSamples::by_size(&self.source.set, &self.settings.layout)
    }
}

impl Evaluation for DetectionEvaluation {
    fn metric_schema(&self) -> &'static MetricSchema {
        self.kind.metric_schema()
    }

    fn models(&self, batch_size: usize) -> Result<Vec<Model>, TrainError> {
        let step = |part: ImageSamples<ImagesWithObjects>| match self.truths {
            Truths::Unknown => self.kind.detection_step(&self.recipe, part.size(), batch_size),
            _ => self.kind.evaluation_step(&self.recipe, part.size(), batch_size),
        };
        self.parts().into_iter().map(step).collect()
    }

    fn batch_size(&self) -> usize {
        self.batch_size
    }

    fn batches(&self, part: usize, share: Share) -> Result<Box<dyn Batches>, TrainError> {
        let set = Arc::new(self.parts().swap_remove(part));
        let samples = set.len();
        Ok(Box::new(Loaded::evaluation(set, samples, &self.load, self.batch_size, share, AsLoaded)?))
    }

    fn score(&self) -> Result<Box<dyn Score + '_>, TrainError> {
        Ok(Box::new(DetectionScore::new(self)))
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }
}

/// How a trained detector is evaluated on the validation images of a folder; for weights of a run `data` can also be `shapes` or
/// `synthetic`, drawn as the run drew them. Images without annotations give detections alone.
fn standalone_evaluation(
    detector: Detector,
    data: &Path,
    options: &EvaluateOptions,
) -> Result<(Box<dyn Evaluation>, LoadedWeights), TrainError> {
    let Detector { kind, recipe, settings, trained, categories } = detector;
    let settings =
        DetectorSettings { pictures: options.pictures, exif: options.exif.unwrap_or(settings.exif), ..settings };
    let data = DataSource::parse(data);
    let (source, truths, file) = match &options.unannotated {
        Some(part) => {
            let file = format!("detections_{part}_{}_results.json", recipe.model.name);
            (sources::unannotated_set(&data, part, &settings, categories.as_deref())?, Truths::Unknown, file)
        }
        None => {
            let opened = sources::evaluation_set(&data, &recipe, &settings, categories.as_deref())?;
            let (source, truths) = opened.ok_or_else(|| {
                TrainError::setting("data.eval_samples", "not given", "there are no synthetic samples to evaluate on")
            })?;
            (source, truths, BOXES_FILE.to_owned())
        }
    };
    let warnings = categories.as_deref().map_or_else(Vec::new, |classes| {
        let with_category = classes.iter().filter(|class| class.id.is_some());
        sources::class_notes(&source, classes, &with_category.map(|class| class.name.as_str()).collect())
    });
    let evaluation = DetectionEvaluation {
        kind,
        recipe,
        settings,
        batch_size: options.batch_size,
        source,
        truths,
        objects: OnceLock::new(),
        file,
        load: options.load,
        warnings,
    };
    Ok((Box::new(evaluation), trained))
}
