//! Accuracy of classifiers.

use crate::classifier::{Classifier, WhichWeights};
use crate::error::TrainError;
use crate::recipe::Recipe;
use crate::session::{ComputeOptions, EvalSession};
use crate::signals::StopSignal;
use crate::sources::{CIFAR_IMAGES, DataSource, LoadOptions};
use bessemer_data::{Batch, CifarBin, ClassFolder, Dataset, SkippedSample, Split, Transform};
use bessemer_metrics::{MeanLoss, TopK};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Result of an evaluation. Accuracies are fractions in `[0, 1]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EvalReport {
    pub top1: f64,
    pub top5: f64,
    /// Mean cross entropy, without label smoothing.
    pub loss: f64,
    /// Samples whose best class is right.
    pub correct: u64,
    pub total: u64,
    /// Wall time, and its parts: waiting for batches, and the forward pass.
    pub seconds: f64,
    pub data_s: f64,
    pub compute_s: f64,
    pub images_per_s: f64,
    /// Bad samples that were left out.
    pub skipped: Vec<SkippedSample>,
}

impl EvalReport {
    /// `top1`, `top5` and `loss` by name.
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        [("top1", self.top1), ("top5", self.top5), ("loss", self.loss)].map(|(name, x)| (name.to_owned(), x)).into()
    }
}

/// Settings of [`evaluate`].
#[derive(Clone, Debug)]
pub struct EvaluateOptions {
    pub compute: ComputeOptions,
    pub batch_size: usize,
    pub load: LoadOptions,
    pub weights: WhichWeights,
}

impl Default for EvaluateOptions {
    fn default() -> Self {
        Self {
            compute: ComputeOptions::default(),
            batch_size: 32,
            load: LoadOptions::default(),
            weights: WhichWeights::default(),
        }
    }
}

/// Evaluates model `name` with `weights` on the `val/` of a class folder, or on a folder with `images_u8_nhwc.bin`. For
/// weights of a run `data` can also be `shapes` or `synthetic`, drawn as the run drew them.
///
/// # Errors
/// Weights or data that are not there, damaged, or do not fit each other.
pub fn evaluate(name: &str, weights: &Path, data: &Path, options: &EvaluateOptions) -> Result<EvalReport, TrainError> {
    let mut classifier = Classifier::load(name, weights, options.weights)?;
    let set = match DataSource::parse(data) {
        DataSource::Folder(root) => open_folder(&mut classifier, &root)?,
        source => drawn_set(&classifier, &source)?,
    };
    let mut session = classifier.session(options.batch_size, &options.compute)?;
    let offset = classifier.label_offset;
    let report = run(&mut session, set, offset, &options.load, &StopSignal::new(), |_, _| {})?;
    Ok(report.expect("nobody raises the signal"))
}

/// The evaluation set in a folder. One in a single file also says how its pixels are normalised.
fn open_folder(classifier: &mut Classifier, root: &Path) -> Result<Arc<dyn Dataset>, TrainError> {
    let set: Arc<dyn Dataset> = if root.join(CIFAR_IMAGES).exists() {
        let set = CifarBin::open(root)?;
        let constants = set.normalization();
        classifier.normalise_by(constants.mean, constants.std);
        classifier.options.image_size = set.image_size();
        Arc::new(set)
    } else {
        Arc::new(ClassFolder::open(root, Split::Val, Transform::Eval(classifier.transform()))?)
    };
    let (classes, known) = (set.num_classes(), classifier.num_classes());
    if classes != known {
        let allowed = format!("{} has {known} for data", classifier.origin);
        return Err(TrainError::setting("the number of classes of the data set", classes, allowed));
    }
    Ok(set)
}

fn drawn_set(classifier: &Classifier, source: &DataSource) -> Result<Arc<dyn Dataset>, TrainError> {
    let recipe = classifier.recipe.as_ref().ok_or_else(|| {
        TrainError::setting("the data", source, "that needs weights of a run, which says how its pictures are drawn")
    })?;
    source.evaluation_set(recipe)?.ok_or_else(|| {
        TrainError::setting("data.eval_samples", "not given", "there are no synthetic samples to evaluate on")
    })
}

/// Runs a whole evaluation set; `None` if `stop` was raised on the way. `observe` sees the logits
/// `[real samples, classes]` of each batch.
///
/// # Errors
/// A bad sample, or logits that are not numbers.
pub fn run(
    session: &mut EvalSession,
    set: Arc<dyn Dataset>,
    label_offset: usize,
    load: &LoadOptions,
    stop: &StopSignal,
    mut observe: impl FnMut(&Batch, &[f32]),
) -> Result<Option<EvalReport>, TrainError> {
    let started = Instant::now();
    let mut compute = Duration::ZERO;
    let mut loader = load.evaluation(set, session.batch_size())?;
    let mut score = Score::new(session.num_classes())?;
    while let Some(batch) = loader.next_batch() {
        let batch = batch?;
        let run_started = Instant::now();
        let logits = session.logits(&batch.images)?;
        compute += run_started.elapsed();
        score.add(&batch, logits, label_offset)?;
        observe(&batch, &logits[..batch.real * score.classes]);
        loader.recycle(batch);
        if stop.is_raised() {
            return Ok(None);
        }
    }
    let mut report = score.report();
    report.seconds = started.elapsed().as_secs_f64();
    report.data_s = loader.stats().waited.as_secs_f64();
    report.compute_s = compute.as_secs_f64();
    report.images_per_s = report.total as f64 / report.seconds;
    report.skipped = loader.skipped().cloned().collect();
    Ok(Some(report))
}

/// The evaluation that a recipe asks for, of its model.
pub(crate) fn recipe_session(recipe: &Recipe, compute: &ComputeOptions) -> Result<EvalSession, TrainError> {
    let (architecture, options) = crate::setup::model_options(recipe, recipe.data.eval_image_size)?;
    let batch_size = recipe.eval.batch_size.unwrap_or(recipe.train.batch_size) as usize;
    let mut compute = compute.clone();
    compute.compile.precision = crate::setup::precision(recipe)?;
    EvalSession::new(architecture, &options, batch_size, &compute)
}

/// Metrics over batches.
struct Score {
    classes: usize,
    top: TopK,
    loss: MeanLoss,
}

impl Score {
    fn new(classes: usize) -> Result<Self, TrainError> {
        Ok(Self { classes, top: TopK::new(classes, &[1, 5])?, loss: MeanLoss::new() })
    }

    fn add(&mut self, batch: &Batch, logits: &[f32], label_offset: usize) -> Result<(), TrainError> {
        let logits = &logits[..batch.real * self.classes];
        let labels: Vec<i32> = batch.labels[..batch.real].iter().map(|label| label + label_offset as i32).collect();
        self.top.update(logits, &labels)?;
        let rows = logits.chunks_exact(self.classes).zip(&labels);
        let sum: f64 = rows.map(|(row, &label)| cross_entropy(row, label as usize)).sum();
        Ok(self.loss.update(sum / batch.real as f64, batch.real)?)
    }

    fn report(&self) -> EvalReport {
        EvalReport {
            top1: self.top.accuracy(1).unwrap_or(0.0),
            top5: self.top.accuracy(5).unwrap_or(0.0),
            loss: self.loss.mean().unwrap_or(0.0),
            correct: self.top.correct(1).unwrap_or(0),
            total: self.top.samples(),
            ..EvalReport::default()
        }
    }
}

/// `-log softmax(logits)[label]`
fn cross_entropy(logits: &[f32], label: usize) -> f64 {
    log_sum_exp(logits) - f64::from(logits[label])
}

/// `log(sum(exp(logits)))`, in f64.
pub(crate) fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    largest + logits.iter().map(|&x| (f64::from(x) - largest).exp()).sum::<f64>().ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_not_counted() {
        let batch =
            Batch { images: Vec::new(), labels: vec![1, 0, 0], real: 2, epoch: 0, index: 0, skipped: Vec::new() };
        let logits = [9.0, 0.0, 2.0, 9.0, 0.0, 1.0, f32::NAN, f32::NAN, f32::NAN];
        let mut score = Score::new(3).unwrap();
        score.add(&batch, &logits, 1).unwrap();
        let report = score.report();
        assert_eq!((report.correct, report.total, report.top1, report.top5), (0, 2, 0.0, 1.0));
        let expected = (log_sum_exp(&logits[..3]) - 2.0 + log_sum_exp(&logits[3..6])) / 2.0;
        assert!((report.loss - expected).abs() < 1e-12);
    }

    #[test]
    fn cross_entropy_of_large_logits() {
        assert!((cross_entropy(&[1000.0, 1000.0], 0) - 2.0_f64.ln()).abs() < 1e-12);
    }
}
