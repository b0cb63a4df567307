//! Classification of images.

mod batches;
mod classifier;
mod family;
mod infer;
mod mixup;
mod model;
pub(in crate::tasks) mod recipe;
mod samples;
mod score;
mod sources;
mod workload;

pub use super::source::DataSource;
pub use classifier::{CLASSES_FILE, Classifier};
pub use family::{Classifiers, FAMILY};
pub use infer::{ClassScore, InferOptions, Prediction, infer};

pub(crate) use model::model_options;

use super::class_scores::classes_without;
use super::loaded::Loaded;
use super::{
    Batches, Better, Evaluation, InitialWeights, LoadOptions, Metric, MetricSchema, ReferenceName, ReferenceNames,
    Score, Task, WeightOrigin,
};
use crate::checkpoint::publish_content;
use crate::error::TrainError;
use crate::evaluate::EvaluateOptions;
use crate::loaded_weights::LoadedWeights;
use crate::recipe::Recipe;
use crate::session::TrainSession;
use crate::setup::RunShape;
use batches::Images;
use bessemer_data::{
    BatchRange, BinaryImages, CifarBin, ClassFolder, Dataset, Exif, ImageRecords, ImageSamples, LabelledImages, Share,
    Split, Transform, UnknownClass, readable_class,
};
use bessemer_models::{Architecture, Model, ModelOptions};
use bessemer_weights::NamedTensor;
use classifier::{classes_of, is_of_last_layer};
use recipe::ClassifierRecipe;
use score::Accuracy;
use sources::{CIFAR_IMAGES, training_sampler};
use std::path::Path;
use std::sync::Arc;

/// Accuracies are fractions; the loss is the mean cross entropy, without label smoothing.
pub static TERMS: MetricSchema = MetricSchema {
    samples: "images",
    unit: "images/s",
    parts: &[],
    metrics: &[
        Metric::share("top1", "top-1", "validation top-1 (%)", ["correct", "total"]),
        Metric::fraction("top5", "top-5"),
        Metric::plain("loss", "loss", Some("validation loss")),
    ],
    best: ("top1", Better::Higher),
    // The names that all models share are those of ResNet-50's scripts for PyTorch; these are of those for TensorFlow 1.
    reference: ReferenceNames {
        always: &[],
        summary: &[
            ReferenceName::new("train.total_ips", "train_throughput"),
            ReferenceName::new("val.total_ips", "eval_throughput"),
            ReferenceName::new("val.compute_latency", "eval_latency_avg").times(1000.0),
            ReferenceName::new("val.compute_latency_at90", "eval_latency_p90").times(1000.0),
            ReferenceName::new("val.compute_latency_at95", "eval_latency_p95").times(1000.0),
            ReferenceName::new("val.compute_latency_at99", "eval_latency_p99").times(1000.0),
            ReferenceName::new("val.top1", "top1_accuracy").times(0.01),
            ReferenceName::new("val.top5", "top5_accuracy").times(0.01),
        ],
    },
};

/// The data and the model of a recipe.
pub(super) struct Classification {
    recipe: Recipe,
    set: Arc<LabelledImages>,
    evaluation_set: Option<Arc<LabelledImages>>,
    batches: u64,
}

impl Classification {
    pub(super) fn open(recipe: &Recipe) -> Result<Self, TrainError> {
        let source = DataSource::of(recipe)?;
        let set = source.training_set(recipe)?;
        let evaluation_set = source.evaluation_set(recipe)?;
        let batches = training_sampler(&*set, recipe)?.batches() as u64;
        Ok(Self { recipe: recipe.clone(), set, evaluation_set, batches })
    }
}

impl Task for Classification {
    fn metric_schema(&self) -> &'static MetricSchema {
        &TERMS
    }

    fn training_step(&self, shape: RunShape) -> Result<Model, TrainError> {
        model::training_model(&self.recipe, shape)
    }

    fn data_identity(&self) -> String {
        self.set.identity()
    }

    fn batches_per_epoch(&self) -> u64 {
        self.batches
    }

    fn training_batches(&self, range: BatchRange) -> Result<Box<dyn Batches>, TrainError> {
        let set = Arc::new(ImageSamples::new(Arc::clone(&self.set), ())?);
        let (sampler, load) = (training_sampler(&*self.set, &self.recipe)?, LoadOptions::of(&self.recipe));
        Ok(Box::new(Loaded::training(set, sampler, &load, range, Images::training(&self.recipe)?)?))
    }

    fn evaluation(&self) -> Result<Option<Box<dyn Evaluation>>, TrainError> {
        let recipe = &self.recipe;
        let Some(set) = self.evaluation_set.clone() else { return Ok(None) };
        let ClassifierRecipe { images, .. } = recipe.own()?;
        let (architecture, options) = model_options(recipe, images.eval_image_size)?;
        let batch_size = recipe.eval.batch_size.unwrap_or(recipe.train.batch_size) as usize;
        let (label_offset, load) = (images.label_offset as i32, LoadOptions::of(recipe));
        Ok(Some(Box::new(ClassifierEvaluation { architecture, options, batch_size, set, label_offset, load })))
    }

    /// Weights of another number of classes are taken but for the last layer.
    fn initial_weights(
        &self,
        given: Vec<NamedTensor<'static>>,
        origin: &WeightOrigin<'_>,
        session: &TrainSession,
    ) -> Result<InitialWeights, TrainError> {
        let wanted = self.recipe.own::<ClassifierRecipe>()?.model.num_classes as usize;
        let Some(found) = classes_of(&given).filter(|&found| found != wanted) else {
            return Ok(InitialWeights { tensors: given, notes: Vec::new() });
        };
        let body = given.into_iter().filter(|tensor| !is_of_last_layer(tensor));
        let drawn = session.weights()?.into_iter().filter(is_of_last_layer);
        let name = origin.name;
        let note = format!("{name} has {found} classes and the model {wanted}: its last layer is drawn at random");
        Ok(InitialWeights { tensors: body.chain(drawn).collect(), notes: vec![note] })
    }

    fn write_files(&self, run: &Path) -> Result<(), TrainError> {
        let text = self.set.class_names().join("\n") + "\n";
        Ok(publish_content(&run.join(CLASSES_FILE), text.as_bytes())?)
    }

    fn warnings(&self) -> Vec<String> {
        let Ok(ClassifierRecipe { model, images, .. }) = self.recipe.own() else { return Vec::new() };
        let outputs = model.num_classes;
        let classes = self.set.num_classes() as u64 + images.label_offset + images.spare_outputs;
        let reported = || {
            format!(
                "the model has {outputs} outputs for {classes} classes of data; `--set model.num_classes={classes}` gives it as many"
            )
        };
        let absent = || {
            let set = self.evaluation_set.as_ref()?;
            let absent = set.absent_classes();
            let names: Vec<&str> = absent.iter().map(|&label| readable_class(&set.class_names()[label])).collect();
            classes_without("a picture", &names, set.num_classes())
        };
        (classes < outputs).then(reported).into_iter().chain(absent()).collect()
    }
}

/// An evaluation set and the network for it.
struct ClassifierEvaluation {
    architecture: Architecture,
    options: ModelOptions,
    batch_size: usize,
    set: Arc<LabelledImages>,
    label_offset: i32,
    load: LoadOptions,
}

impl Evaluation for ClassifierEvaluation {
    fn metric_schema(&self) -> &'static MetricSchema {
        &TERMS
    }

    fn models(&self, batch_size: usize) -> Result<Vec<Model>, TrainError> {
        Ok(vec![Model::infer(self.architecture, &self.options, batch_size)?])
    }

    fn batch_size(&self) -> usize {
        self.batch_size
    }

    fn batches(&self, _part: usize, share: Share) -> Result<Box<dyn Batches>, TrainError> {
        let set = Arc::new(ImageSamples::new(Arc::clone(&self.set), ())?);
        let samples = set.len();
        Ok(Box::new(Loaded::evaluation(
            set,
            samples,
            &self.load,
            self.batch_size,
            share,
            Images::plain(self.label_offset),
        )?))
    }

    fn score(&self) -> Result<Box<dyn Score>, TrainError> {
        Ok(Box::new(Accuracy::new(self.options.num_classes)?))
    }
}

/// Judges weights on the `val/` of a class folder, on folders of classes alone, on shards of TFRecords, on a file of pixels, or on a folder with `images_u8_nhwc.bin`. For weights of a run `data`
/// can also be `shapes` or `synthetic`, drawn as the run drew them.
pub(super) fn standalone_evaluation(
    name: &str,
    weights: &Path,
    data: &Path,
    options: &EvaluateOptions,
) -> Result<(Box<dyn Evaluation>, LoadedWeights), TrainError> {
    let mut classifier = Classifier::load(name, weights, options.weights)?;
    let set = match DataSource::parse(data) {
        DataSource::Folder(root) => {
            let exif = options.exif.unwrap_or(classifier.exif);
            open_folder(&mut classifier, &root, exif)?
        }
        source => drawn_set(&classifier, &source)?,
    };
    let Classifier { architecture, options: model, trained, outputs, .. } = classifier;
    let evaluation = ClassifierEvaluation {
        architecture,
        options: model,
        batch_size: options.batch_size,
        set,
        label_offset: outputs.start as i32,
        load: options.load,
    };
    Ok((Box::new(evaluation), trained))
}

/// The evaluation set in a folder. One in a single file also says how its pixels are normalised.
fn open_folder(classifier: &mut Classifier, root: &Path, exif: Exif) -> Result<Arc<LabelledImages>, TrainError> {
    let set: Arc<LabelledImages> = if root.join(CIFAR_IMAGES).exists() {
        let set = CifarBin::open(root)?;
        let constants = set.normalization();
        classifier.normalise_by(constants.mean, constants.std);
        classifier.options.image_size = set.image_size(0);
        Arc::new(set)
    } else if let Some(set) = ImageRecords::find(root, Split::Val, Transform::Eval(classifier.transform()))? {
        Arc::new(set.oriented(exif))
    } else if let Some(set) = BinaryImages::find(root, Split::Val, Transform::Eval(classifier.transform()))? {
        Arc::new(set)
    } else {
        let set = ClassFolder::to_evaluate(root, Transform::Eval(classifier.transform()))?;
        Arc::new(labelled_by_name(set, classifier)?.oriented(exif))
    };
    // A model may have more outputs than the classes that it was trained on.
    let known = classifier.folders().map_or(classifier.num_classes(), |folders| folders.len());
    let classes = set.num_classes();
    if classes != known {
        let allowed = format!("{} has {known} for data", classifier.trained.origin);
        return Err(TrainError::setting("the number of classes of the data set", classes, allowed));
    }
    Ok(set)
}

/// A data set with other classes than those of the weights, or in another order, has the labels of its folders' names. Weights of
/// 1000 classes without names are taken for those of ImageNet.
fn labelled_by_name(set: ClassFolder, classifier: &Classifier) -> Result<ClassFolder, TrainError> {
    let Some(names) = classifier.folders() else { return Ok(set) };
    // Folders may have been renamed.
    if set.folders().len() == names.len() && !set.folders().iter().any(|folder| names.contains(folder)) {
        return Ok(set);
    }
    set.labelled_by(&names).map_err(|UnknownClass(folder)| {
        let allowed = format!("the name of one of the {} classes of {}", names.len(), classifier.trained.origin);
        TrainError::setting("a class folder of the data set", folder, allowed)
    })
}

fn drawn_set(classifier: &Classifier, source: &DataSource) -> Result<Arc<LabelledImages>, TrainError> {
    let recipe = classifier.trained.recipe.as_ref().ok_or_else(|| {
        TrainError::setting("the data", source, "that needs weights of a run, which says how its pictures are drawn")
    })?;
    source.evaluation_set(recipe)?.ok_or_else(|| {
        TrainError::setting("data.eval_samples", "not given", "there are no synthetic samples to evaluate on")
    })
}
