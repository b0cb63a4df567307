//! The simulator held against published tables: some rows calibrate a few parameters, the others are predicted.
//!
//! Kernels take the times of the plan by the roofline of the data sheet, all scaled by one factor to the published step of
//! one device with the same batch. `docs/simulator.md` has the results.

use super::fit::minimum;
use super::from_plan::{LEAST_MICRO_BATCHES, profile_of_plan, roofline};
use super::published::{Point, Series, deep_learning_examples, dlperf};
use super::{Binds, Cluster, Outcome, Ranks, StepProfile, buckets};
use crate::stats::median;
use bessemer_ir::DType;
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::plan::NullTarget;
use bessemer_models::ModelError;
use bessemer_train::tasks::registry;
use bessemer_train::workload::{Mode, StepSettings, Work};
use serde::Serialize;
use std::collections::HashMap;

/// A row of a published table and its prediction.
#[derive(Clone, Debug, Serialize)]
pub struct Prediction {
    /// The framework with its options, or the device.
    pub name: String,
    /// Name of the model.
    pub model: String,
    /// Tokens of a sequence where they are not the usual ones of the model.
    pub sequence_length: Option<usize>,
    /// `fp32`, or `AMP`.
    pub precision: &'static str,
    /// Samples of a micro-batch of one device.
    pub batch_size: usize,
    /// Devices of all nodes.
    pub devices: usize,
    /// Simulated samples per second.
    pub predicted: f64,
    /// Published samples per second.
    pub published: f64,
    /// `predicted / published - 1`.
    pub error: f64,
    /// The same of the null predictor.
    pub null_error: f64,
    /// What limits the simulated step.
    pub binds: Binds,
}

/// The predictions of one set of rows.
#[derive(Clone, Debug, Serialize)]
pub struct SetReport {
    /// A letter.
    pub set: &'static str,
    /// What the rows are.
    pub rows_are: &'static str,
    /// What the parameters are fitted to.
    pub calibrated_on: &'static str,
    /// What the null predictor says.
    pub null_predictor: &'static str,
    /// The median error that is aimed at.
    pub goal_median: f64,
    /// The largest error that is aimed at.
    pub goal_worst: f64,
    /// Median of the absolute errors.
    pub median: f64,
    /// Largest absolute error.
    pub worst: f64,
    /// Median of the null predictor's absolute errors.
    pub null_median: f64,
    /// Largest absolute error of the null predictor.
    pub null_worst: f64,
    /// Every row.
    pub predictions: Vec<Prediction>,
}

impl SetReport {
    /// Whether both goals are met.
    pub fn is_met(&self) -> bool {
        self.median <= self.goal_median && self.worst <= self.goal_worst
    }
}

/// All sets, A to E.
///
/// # Errors
/// [`ModelError`] if a model does not compile.
pub fn validate() -> Result<Vec<SetReport>, ModelError> {
    let (dlperf, examples) = (dlperf(), deep_learning_examples());
    let steps = Steps::new(dlperf.iter().chain(&examples))?;
    Ok(vec![
        set_a(&steps, &dlperf),
        set_b(&steps, &dlperf),
        set_c(&steps, &examples),
        set_d(&steps, &examples),
        set_e(&steps, &dlperf, &examples),
    ])
}

/// Text of what compiles to a profile: model, tokens of a sequence, element type.
type StepKey = (String, Option<usize>, DType);

/// Profiles of one micro-batch by the roofline, a collective for each gradient.
struct Steps(HashMap<StepKey, StepProfile>);

impl Steps {
    /// Profiles of all series, of the smallest batch of each model, sequence length and precision.
    fn new<'a>(series: impl Iterator<Item = &'a Series>) -> Result<Steps, ModelError> {
        let mut batches: HashMap<StepKey, &Series> = HashMap::new();
        for series in series {
            let smallest = batches.entry(step_key(series)).or_insert(series);
            if series.batch_size < smallest.batch_size {
                *smallest = series;
            }
        }
        let profiles = batches.into_iter().map(|(key, series)| Ok((key, roofline_profile(series)?)));
        Ok(Steps(profiles.collect::<Result<_, ModelError>>()?))
    }

    /// The step of one rank at a point of a series, as long as the published step of one device.
    fn of(&self, series: &Series, point: &Point) -> StepProfile {
        let single = &series.points[0];
        let micro_batches = point.micro_batches as f64;
        let seconds = series.seconds(single) / single.micro_batches as f64 * micro_batches;
        let mut profile = self.0[&step_key(series)].clone();
        let body: f64 = profile.calls[..profile.backward_end].iter().sum();
        profile.earlier_seconds = body * (micro_batches - 1.0);
        profile.samples = series.batch_size as f64 * micro_batches;
        let counts = if series.name.starts_with("NGC PyTorch") {
            vec![profile.collectives.len()]
        } else {
            buckets::counts_by_size(&profile.collectives, FIRST_BUCKET, BUCKET)
        };
        profile.collectives = buckets::merged(&profile.collectives, &counts);
        if series.model == "electra-base-squad" && series.precision == DType::F16 {
            profile.collectives.iter_mut().for_each(|collective| collective.bytes /= 2);
        }
        profile.scaled_to(seconds)
    }

    fn simulate(&self, series: &Series, point: &Point, cluster: &Cluster) -> Outcome {
        self.of(series, point).simulate(cluster, point.ranks)
    }
}

/// Bytes of the first bucket and of the others, as PyTorch has them. NVIDIA's BERT for PyTorch has a single bucket
/// (its option `--allreduce_post_accumulation`); ELECTRA on SQuAD sends 16-bit gradients with AMP (`--fp16_all_reduce`).
const FIRST_BUCKET: u64 = 1 << 20;
const BUCKET: u64 = 25 << 20;

fn step_key(series: &Series) -> StepKey {
    (series.model.clone(), series.sequence_length, series.precision)
}

fn roofline_profile(series: &Series) -> Result<StepProfile, ModelError> {
    let family = registry::find(&series.model)?.family();
    let settings = StepSettings { accumulation: LEAST_MICRO_BATCHES, ..family.usual_step(series.sequence_length) };
    let Series { model, batch_size, precision, .. } = series;
    let work = Work { model, mode: Mode::Train, batch_size: *batch_size, precision: *precision, settings };
    let options = CompileOptions { precision: *precision, ..CompileOptions::default() };
    let plan = compile(&work.build()?.graph, &NullTarget, &options)?;
    let device = cluster(series).device.expect("clusters of published tables have a device");
    Ok(profile_of_plan(&plan, roofline(&plan, &device), *batch_size, 1))
}

fn cluster(series: &Series) -> Cluster {
    Cluster::find(series.cluster).expect("it is built in")
}

/// What is fitted: shares of the bandwidths of the data sheet that a framework reaches, and a cost of each step of several
/// ranks.
#[derive(Clone, Copy, Debug)]
struct Fitted {
    inside: f64,
    between: f64,
    fixed_ms: f64,
}

impl Fitted {
    /// The whole bandwidth, at no cost.
    const DATA_SHEET: Fitted = Fitted { inside: 1.0, between: 1.0, fixed_ms: 0.0 };

    fn apply(self, mut cluster: Cluster) -> Cluster {
        cluster.inside.gbytes *= self.inside;
        cluster.between.gbytes *= self.between;
        cluster.fixed_ms = self.fixed_ms;
        cluster
    }
}

/// The weight of a parameter's logarithm squared beside that of a relative error squared: decides only what rows do not.
const PRIOR: f64 = 1e-5;
/// Where the search for the cost of a step begins, in milliseconds.
const FIXED_MS: f64 = 5.0;

/// The sum of squared relative errors of step times of points under `cluster`.
fn squares<'a>(
    steps: &Steps,
    points: impl IntoIterator<Item = (&'a Series, &'a Point)>,
    cluster: &Cluster,
) -> f64 {
    let error = |(series, point): (&Series, &Point)| {
        (steps.simulate(series, point, cluster).throughput / point.throughput - 1.0).powi(2)
    };
    points.into_iter().map(error).sum()
}

fn several(series: &Series) -> impl Iterator<Item = &Point> {
    series.points.iter().filter(|point| point.ranks != Ranks::ONE)
}

/// A prediction beside its row. `null` is the throughput that the null predictor says.
fn prediction(series: &Series, point: &Point, outcome: &Outcome, null: f64) -> Prediction {
    Prediction {
        name: series.name.clone(),
        model: series.model.clone(),
        sequence_length: series.sequence_length,
        precision: if series.precision == DType::F16 { "AMP" } else { "fp32" },
        batch_size: series.batch_size,
        devices: point.ranks.count(),
        predicted: outcome.throughput,
        published: point.throughput,
        error: outcome.throughput / point.throughput - 1.0,
        null_error: null / point.throughput - 1.0,
        binds: outcome.binds,
    }
}

/// Perfect scaling of the row of one device.
fn perfect(series: &Series, point: &Point) -> f64 {
    series.points[0].throughput * point.ranks.count() as f64
}

impl SetReport {
    fn new(
        set: &'static str,
        [rows_are, calibrated_on, null_predictor]: [&'static str; 3],
        [goal_median, goal_worst]: [f64; 2],
        predictions: Vec<Prediction>,
    ) -> SetReport {
        let errors: Vec<f64> = predictions.iter().map(|p| p.error.abs()).collect();
        let null: Vec<f64> = predictions.iter().map(|p| p.null_error.abs()).collect();
        let worst = |errors: &[f64]| errors.iter().copied().fold(0.0, f64::max);
        SetReport {
            set,
            rows_are,
            calibrated_on,
            null_predictor,
            goal_median,
            goal_worst,
            median: median(&errors),
            worst: worst(&errors),
            null_median: median(&null),
            null_worst: worst(&null),
            predictions,
        }
    }
}

/// BERT at the larger batch of each framework and precision, by the shares and the cost that fit its smaller batch.
fn set_a(steps: &Steps, dlperf: &[Series]) -> SetReport {
    let is_bert = |s: &&Series| s.model == "bert-base" && !s.name.contains("Paddle");
    let mut predictions = Vec::new();
    for large in dlperf.iter().filter(is_bert) {
        let is_same = |s: &&Series| s.name == large.name && s.precision == large.precision;
        let Some(small) = dlperf.iter().filter(is_bert).filter(is_same).find(|s| s.batch_size < large.batch_size) else {
            continue;
        };
        let fitted = |p: &[f64]| Fitted { inside: p[0].exp(), between: p[1].exp(), fixed_ms: FIXED_MS * p[2].exp() };
        let found = minimum(&[0.0; 3], 0.5, |p| {
            let prior = PRIOR * p.iter().map(|p| p * p).sum::<f64>();
            squares(steps, several(small).map(|point| (small, point)), &fitted(p).apply(cluster(small))) + prior
        });
        let cluster = fitted(&found).apply(cluster(large));
        for (point, known) in several(large).zip(several(small)) {
            let efficiency = known.throughput / perfect(small, known);
            let outcome = steps.simulate(large, point, &cluster);
            predictions.push(prediction(large, point, &outcome, perfect(large, point) * efficiency));
        }
    }
    let words = [
        "BERT-base of DLPerf without PaddlePaddle: 8, 16 and 32 devices at the largest batch",
        "the same framework and precision at its smaller batch; the step of one device",
        "the efficiency of the smaller batch",
    ];
    SetReport::new("A", words, [0.03, 0.1], predictions)
}

/// 32 devices of DLPerf: shares of bandwidths are those of the cluster, and each framework has a cost of a step.
fn set_b(steps: &Steps, dlperf: &[Series]) -> SetReport {
    let series: Vec<&Series> = dlperf.iter().filter(|s| s.model == "bert-base" || s.precision == DType::F32).collect();
    let mut groups: HashMap<(&str, &str, DType), Vec<&Series>> = HashMap::new();
    for &one in &series {
        groups.entry((&one.name, &one.model, one.precision)).or_default().push(one);
    }
    let calibration = |group: &[&Series], cluster: &Cluster| {
        let points = group.iter().flat_map(|s| several(s).filter(|p| p.ranks.count() < 32).map(move |point| (*s, point)));
        squares(steps, points, cluster)
    };
    let of_group = |group: &[&Series], shared: &[f64]| {
        let fitted = |own: &[f64]| Fitted {
            inside: (shared[0] + own[1]).exp(),
            between: (shared[1] + own[1]).exp(),
            fixed_ms: FIXED_MS * own[0].exp(),
        };
        let cost = |own: &[f64]| {
            calibration(group, &fitted(own).apply(cluster(group[0]))) + 1e-3 * own[1].powi(2) + PRIOR * own[0].powi(2)
        };
        let own = minimum(&[0.0, 0.0], 0.5, cost);
        (cost(&own), fitted(&own))
    };
    let shared = minimum(&[0.0, 0.0], 0.5, |shared| {
        let prior = PRIOR * shared.iter().map(|p| p * p).sum::<f64>();
        groups.values().map(|group| of_group(group, shared).0).sum::<f64>() + prior
    });
    let mut predictions = Vec::new();
    for one in series {
        let fitted = of_group(&groups[&(one.name.as_str(), one.model.as_str(), one.precision)], &shared).1;
        let [.., before, last] = &one.points[..] else { continue };
        let outcome = steps.simulate(one, last, &fitted.apply(cluster(one)));
        predictions.push(prediction(one, last, &outcome, 2.0 * before.throughput));
    }
    let words = [
        "ResNet-50 in FP32 and BERT-base of DLPerf: 32 devices",
        "rows of 1, 8 and 16 devices",
        "the step of 16 devices",
    ];
    SetReport::new("B", words, [0.04, 0.1], predictions)
}

/// ELECTRA's pre-training by data sheets alone.
fn set_c(steps: &Steps, examples: &[Series]) -> SetReport {
    let mut predictions = Vec::new();
    for series in examples.iter().filter(|s| s.model == "electra-base") {
        let most = series.points.iter().map(|point| point.ranks.devices).max();
        for point in several(series).filter(|point| Some(point.ranks.devices) == most) {
            let outcome = steps.simulate(series, point, &cluster(series));
            predictions.push(prediction(series, point, &outcome, perfect(series, point)));
        }
    }
    let words = [
        "ELECTRA-base pre-training: 8 A100, 8 and 16 V100, sequences of 128 and 512",
        "the step of one device; data sheets",
        "perfect scaling",
    ];
    SetReport::new("C", words, [0.02, 0.02], predictions)
}

/// ELECTRA on SQuAD on A100 and DGX-2, by the share of the data sheet and the cost of a step that fit DGX-1.
fn set_d(steps: &Steps, examples: &[Series]) -> SetReport {
    let squad: Vec<&Series> = examples.iter().filter(|s| s.model == "electra-base-squad").collect();
    let (known, wanted): (Vec<&Series>, Vec<&Series>) = squad.into_iter().partition(|s| s.name == "V100, 16 GB");
    let fitted = |p: &[f64]| Fitted { inside: p[0].exp(), between: p[0].exp(), fixed_ms: FIXED_MS * p[1].exp() };
    let found = minimum(&[0.0; 2], 0.5, |p| {
        let prior = PRIOR * p.iter().map(|p| p * p).sum::<f64>();
        let points = known.iter().flat_map(|s| several(s).map(move |point| (*s, point)));
        squares(steps, points, &fitted(p).apply(cluster(known[0]))) + prior
    });
    let mut predictions = Vec::new();
    for series in wanted {
        let same = known.iter().find(|s| s.precision == series.precision).expect("both precisions");
        let efficiency = same.points[1].throughput / perfect(same, &same.points[1]);
        for point in several(series) {
            let outcome = steps.simulate(series, point, &fitted(&found).apply(cluster(series)));
            predictions.push(prediction(series, point, &outcome, perfect(series, point) * efficiency));
        }
    }
    let words = [
        "ELECTRA-base on SQuAD: 8 A100; 8 and 16 V100 of DGX-2",
        "8 V100 of DGX-1; the step of one device; data sheets",
        "the efficiency of DGX-1",
    ];
    SetReport::new("D", words, [0.08, 0.08], predictions)
}

/// Rows that input limits: the rate of a node is that of one row of the same machine.
fn set_e(steps: &Steps, dlperf: &[Series], examples: &[Series]) -> SetReport {
    let mut predictions = Vec::new();
    let mut predict = |series: &Series, point: &Point, input_rate: f64| {
        let profile = StepProfile { input_rate: Some(input_rate), ..steps.of(series, point) };
        let outcome = profile.simulate(&Fitted::DATA_SHEET.apply(cluster(series)), point.ranks);
        predictions.push(prediction(series, point, &outcome, perfect(series, point)));
    };
    for model in ["efficientdet-d0", "mask-rcnn"] {
        for machine in ["A100", "V100"] {
            let is_of = |s: &&Series| s.model == model && s.name == machine;
            let rows = || examples.iter().filter(is_of).flat_map(|s| several(s).map(move |point| (s, point)));
            let rate = rows().map(|(_, point)| point.throughput).fold(0.0, f64::max);
            rows().filter(|(_, point)| point.throughput < rate).for_each(|(s, point)| predict(s, point, rate));
        }
    }
    for series in dlperf.iter().filter(|s| s.model == "resnet50" && s.precision == DType::F16) {
        let [.., known, last] = &series.points[..] else { continue };
        predict(series, last, known.throughput / known.ranks.nodes as f64);
    }
    let words = [
        "EfficientDet-D0 and Mask R-CNN on 8 devices; ResNet-50 with AMP of DLPerf on 32",
        "the fastest row of the same machine; 16 devices for ResNet-50",
        "perfect scaling",
    ];
    SetReport::new("E", words, [0.15, 0.15], predictions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explore() {
        let start = std::time::Instant::now();
        let sets = validate().unwrap();
        for s in &sets {
            println!("{} n={} median {:.1}% worst {:.1}% | goal {} {} | null {:.1}% {:.1}%", s.set, s.predictions.len(), s.median*100., s.worst*100., s.goal_median, s.goal_worst, s.null_median*100., s.null_worst*100.);
            for p in &s.predictions { println!("   {:38} {:18} {} b{} x{} {:.1} {:.1} err {:.1}% null {:.1}% {:?}", p.name, p.model, p.precision, p.batch_size, p.devices, p.predicted, p.published, p.error*100., p.null_error*100., p.binds); }
        }
        println!("{:?}", start.elapsed());
    }
}
