//! Judging weights on a data set.

use crate::error::TrainError;
use crate::loaded_weights::WhichWeights;
use crate::ranks::Group;
use crate::session::{ComputeOptions, EvalSession};
use crate::signals::StopSignal;
use crate::tasks::class_scores::ClassTables;
use crate::tasks::{Evaluation, LoadOptions, MetricSchema, Record, Score, registry};
use bessemer_data::Exif;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Result of an evaluation.
#[derive(Clone, Debug, PartialEq)]
pub struct EvalReport {
    /// What the metrics are called.
    pub metric_schema: &'static MetricSchema,
    /// By name; fractions in `[0, 1]`.
    pub metrics: BTreeMap<String, f64>,
    /// What was counted for them.
    pub counts: BTreeMap<String, u64>,
    /// The scores of each class of objects, on rank 0; empty where there are none.
    pub classes: ClassTables,
    /// Number of samples that were evaluated.
    pub samples: u64,
    /// Wall time, and its parts: waiting for batches, and the forward pass.
    pub seconds: f64,
    /// Seconds of waiting for batches.
    pub data_s: f64,
    /// Seconds in the forward pass.
    pub compute_s: f64,
    /// Milliseconds in the forward pass of each batch of this rank, in order.
    pub batch_ms: Vec<f64>,
    /// Samples over wall time.
    pub samples_per_s: f64,
    /// What a person should know of the result.
    pub notes: Vec<String>,
}

/// Settings of [`evaluate`].
#[derive(Clone, Debug)]
pub struct EvaluateOptions {
    /// Device and passes to compute with.
    pub compute: ComputeOptions,
    /// Samples of one forward pass; at least 1.
    pub batch_size: usize,
    /// How samples are loaded.
    pub load: LoadOptions,
    /// Which weights of a run are evaluated.
    pub weights: WhichWeights,
    /// What is done with the EXIF orientation of images; otherwise what the recipe of a run says, and it is ignored for other weights.
    pub exif: Option<Exif>,
    /// The vocabulary of a model that answers questions; otherwise that of the folder of the weights.
    pub vocab: Option<PathBuf>,
    /// A folder for answers in the official form of the task, where it has one.
    pub out: Option<PathBuf>,
    /// The part of a data set of COCO that has no annotations, such as `test-dev2017`, instead of the validation images.
    pub unannotated: Option<String>,
    /// Images that are drawn with what is detected in them, where there is a folder for answers.
    pub pictures: usize,
}

impl Default for EvaluateOptions {
    fn default() -> Self {
        Self {
            compute: ComputeOptions::default(),
            batch_size: 32,
            load: LoadOptions::default(),
            weights: WhichWeights::default(),
            exif: None,
            vocab: None,
            out: None,
            unannotated: None,
            pictures: 8,
        }
    }
}

/// Evaluates model `name` with `weights` on `data`.
///
/// # Errors
/// Weights or data that are not there, damaged, or do not fit each other.
pub fn evaluate(name: &str, weights: &Path, data: &Path, options: &EvaluateOptions) -> Result<EvalReport, TrainError> {
    let model = registry::find(name)?;
    let (evaluation, trained) = model.family().evaluation(model.name(), weights, data, options)?;
    let mut session = EvalSession::of_evaluation(&*evaluation, &options.compute)?;
    session.load_weights(&trained.tensors, &trained.origin)?;
    let report = run(&mut session, &*evaluation, options.out.as_deref(), &StopSignal::new(), &Group::alone())?;
    let mut report = report.expect("nobody raises the signal");
    report.notes.splice(0..0, evaluation.warnings());
    Ok(report)
}

/// Runs a whole evaluation, of which each rank of a group takes its share; `None` if `stop` was raised on the way, on any of them.
/// Answers go to the folder `out` of rank 0, see [`crate::tasks::Score::finish`]. All ranks get its metrics.
///
/// # Errors
/// A bad sample, or outputs that are not numbers; a folder that cannot be written.
pub fn run(
    session: &mut EvalSession,
    evaluation: &dyn Evaluation,
    out: Option<&Path>,
    stop: &StopSignal,
    group: &Group,
) -> Result<Option<EvalReport>, TrainError> {
    let started = Instant::now();
    let mut batch_ms = Vec::new();
    let mut score = evaluation.score()?;
    let (mut samples, mut waited) = (0, Duration::ZERO);
    for part in 0..session.parts() {
        let mut batches = evaluation.batches(part, group.share())?;
        let mut records = Vec::new();
        while let Some(batch) = batches.next() {
            let batch = batch.map_err(TrainError::of_evaluation)?;
            let run_started = Instant::now();
            session.run_part(part, &batch.feeds)?;
            batch_ms.push(1e3 * run_started.elapsed().as_secs_f64());
            records.push(score.record(&batch, session)?);
            samples += batch.samples as u64;
            batches.recycle(batch.feeds);
            if group.size() == 1 {
                records.drain(..).try_for_each(|record| score.add(&record))?;
            }
            if stop.is_raised() || group.stop_is_wished() {
                group.wish_stop();
                break;
            }
        }
        if group.any(stop.is_raised())? {
            return Ok(None);
        }
        add_in_turn(&mut *score, &group.gather(records)?)?;
        waited += batches.waited();
    }
    let samples = group.all_gather(samples)?.into_iter().sum();
    let (metrics, counts, notes) = group.from_first(|| {
        score.finish(out)?;
        Ok((score.metrics(), score.counts(), score.notes()))
    })?;
    let seconds = started.elapsed().as_secs_f64();
    Ok(Some(EvalReport {
        metric_schema: evaluation.metric_schema(),
        metrics,
        counts,
        classes: score.classes(),
        samples,
        seconds,
        data_s: waited.as_secs_f64(),
        compute_s: 1e-3 * batch_ms.iter().sum::<f64>(),
        batch_ms,
        samples_per_s: samples as f64 / seconds,
        notes,
    }))
}

/// Adds the records of all ranks in the order of batches, which the ranks have taken in turn.
fn add_in_turn(score: &mut dyn Score, ranks: &[Vec<Record>]) -> Result<(), TrainError> {
    let rounds = ranks.iter().map(Vec::len).max().unwrap_or(0);
    let in_turn = (0..rounds).flat_map(|round| ranks.iter().filter_map(move |records| records.get(round)));
    in_turn.into_iter().try_for_each(|record| score.add(record))
}
