//! The simulator held against published tables: some rows calibrate a few parameters, the others are predicted.
//!
//! Kernels take the times of the plan by the roofline of a data sheet, all scaled by one factor to the published step of one
//! device with the same batch. `docs/simulator.md` has the results.

use super::fit::minimum;
use super::from_plan::{profile_of_plan, profiled, roofline};
use super::published::{Point, Series, deep_learning_examples, dlperf};
use super::{Binds, Cluster, Outcome, Ranks, StepProfile, buckets};
use bessemer_ir::DType;
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::plan::NullTarget;
use bessemer_models::ModelError;
use bessemer_train::stats::median;
use bessemer_train::tasks::registry;
use bessemer_train::workload::{Mode, Work};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

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

/// What determines a profile: model, tokens of a sequence, element type.
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
        let counts = if series.model == "bert-base" && series.name.starts_with("NGC PyTorch") {
            vec![profile.collectives.len()]
        } else {
            buckets::counts_by_size(&profile.collectives, FIRST_BUCKET, BUCKET)
        };
        profile.collectives = buckets::merged(&profile.collectives, &counts);
        if series.model == "electra-base-squad" && series.precision == DType::F16 {
            profile.collectives.iter_mut().for_each(|collective| collective.bytes /= 2);
        }
        profile.scaled_to(seconds).with_merged_calls()
    }

    /// All points of a series that have several devices.
    fn cases<'a>(&'a self, series: &'a Series) -> impl Iterator<Item = Case<'a>> + 'a {
        let several = series.points.iter().filter(|point| point.ranks != Ranks::ONE);
        several.map(|point| Case { series, point, profile: self.of(series, point) })
    }
}

/// A published throughput of several devices, and the step of one rank.
struct Case<'a> {
    series: &'a Series,
    point: &'a Point,
    profile: StepProfile,
}

impl Case<'_> {
    /// The row of one device, perfectly scaled.
    fn perfect(&self) -> f64 {
        self.series.points[0].throughput * self.point.ranks.count() as f64
    }

    fn simulate(&self, cluster: &Cluster) -> Outcome {
        self.profile.simulate(cluster, self.point.ranks)
    }

    /// A prediction beside the row. `null` is the throughput that the null predictor says.
    fn predict(&self, cluster: &Cluster, null: f64) -> Prediction {
        let Series { name, model, sequence_length, precision, batch_size, .. } = self.series;
        let (outcome, published) = (self.simulate(cluster), self.point.throughput);
        Prediction {
            name: name.clone(),
            model: model.clone(),
            sequence_length: *sequence_length,
            precision: if *precision == DType::F16 { "AMP" } else { "fp32" },
            batch_size: *batch_size,
            devices: self.point.ranks.count(),
            predicted: outcome.throughput,
            published,
            error: outcome.throughput / published - 1.0,
            null_error: null / published - 1.0,
            binds: outcome.binds,
        }
    }
}

/// Bytes of the first bucket and of the others, as PyTorch's `DistributedDataParallel` has them by default. NVIDIA's BERT for
/// PyTorch has a single bucket; its ELECTRA on SQuAD sends 16-bit gradients with AMP (`--fp16_all_reduce`).
const FIRST_BUCKET: u64 = 1 << 20;
const BUCKET: u64 = 25 << 20;

fn step_key(series: &Series) -> StepKey {
    (series.model.clone(), series.sequence_length, series.precision)
}

fn roofline_profile(series: &Series) -> Result<StepProfile, ModelError> {
    let family = registry::find(&series.model)?.family();
    let settings = profiled(family.usual_step(series.sequence_length));
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

    /// The cluster of a series as its framework uses it.
    fn of(self, series: &Series) -> Cluster {
        let mut cluster = cluster(series);
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
/// Edge of the first simplex, in logarithms.
const EDGE: f64 = 0.5;

/// The sum of squared relative errors of cases under `cluster`, and of what holds parameters near their start.
fn cost(cases: &[Case<'_>], cluster: &Cluster, parameters: &[f64]) -> f64 {
    let error = |case: &Case<'_>| (case.simulate(cluster).throughput / case.point.throughput - 1.0).powi(2);
    cases.iter().map(error).sum::<f64>() + prior(parameters)
}

fn prior(parameters: &[f64]) -> f64 {
    PRIOR * parameters.iter().map(|p| p * p).sum::<f64>()
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
    let bert = || dlperf.iter().filter(|s| s.model == "bert-base" && !s.name.contains("Paddle"));
    let mut predictions = Vec::new();
    for large in bert() {
        let is_same = |s: &&Series| s.name == large.name && s.precision == large.precision;
        let Some(small) = bert().filter(is_same).find(|s| s.batch_size < large.batch_size) else { continue };
        let known: Vec<Case<'_>> = steps.cases(small).collect();
        let fitted = |p: &[f64]| Fitted { inside: p[0].exp(), between: p[1].exp(), fixed_ms: FIXED_MS * p[2].exp() };
        let found = minimum(&[0.0; 3], EDGE, |p| cost(&known, &fitted(p).of(small), p));
        let cluster = fitted(&found).of(large);
        for (case, known) in steps.cases(large).zip(&known) {
            let efficiency = known.point.throughput / known.perfect();
            predictions.push(case.predict(&cluster, case.perfect() * efficiency));
        }
    }
    let words = [
        "BERT-base of DLPerf without PaddlePaddle: 8, 16 and 32 devices at the largest batch",
        "the same framework and precision at its smaller batch; the step of one device",
        "the efficiency of the smaller batch",
    ];
    SetReport::new("A", words, [0.03, 0.1], predictions)
}

/// 32 devices of DLPerf. The shares of bandwidths are those of the cluster times one of each framework, model and precision,
/// which is held near 1 by a weight of its own; each of these has a cost of a step.
fn set_b<'a>(steps: &'a Steps, dlperf: &'a [Series]) -> SetReport {
    const SHARE_PRIOR: f64 = 1e-3;
    let mut groups: BTreeMap<(&str, &str, bool), Vec<&Series>> = BTreeMap::new();
    for series in dlperf.iter().filter(|s| s.model == "bert-base" || s.precision == DType::F32) {
        groups.entry((&series.name, &series.model, series.precision == DType::F16)).or_default().push(series);
    }
    let is_known = |case: &Case<'_>| case.point.ranks.nodes <= 2;
    let known =
        |group: &Vec<&'a Series>| (group[0], group.iter().flat_map(|s| steps.cases(s)).filter(is_known).collect());
    let known: Vec<(&Series, Vec<Case<'_>>)> = groups.values().map(known).collect();
    let fit = |(series, cases): &(&Series, Vec<Case<'_>>), shared: &[f64]| {
        let fitted = |own: &[f64]| Fitted {
            inside: (shared[0] + own[0]).exp(),
            between: (shared[1] + own[0]).exp(),
            fixed_ms: FIXED_MS * own[1].exp(),
        };
        let cost = |own: &[f64]| cost(cases, &fitted(own).of(series), own) + SHARE_PRIOR * own[0].powi(2);
        let own = minimum(&[0.0; 2], EDGE, cost);
        (cost(&own), fitted(&own))
    };
    let shared =
        minimum(&[0.0; 2], EDGE, |shared| known.iter().map(|group| fit(group, shared).0).sum::<f64>() + prior(shared));
    let mut predictions = Vec::new();
    for (known, group) in known.iter().zip(groups.values()) {
        let fitted = fit(known, &shared).1;
        for series in group {
            let cases: Vec<Case<'_>> = steps.cases(series).collect();
            let [.., before, last] = &cases[..] else { continue };
            predictions.push(last.predict(&fitted.of(series), 2.0 * before.point.throughput));
        }
    }
    let words = [
        "ResNet-50 in FP32 and BERT-base of DLPerf: 32 devices",
        "rows of 1, 8 and 16 devices",
        "the step of 16 devices",
    ];
    SetReport::new("B", words, [0.04, 0.1], predictions)
}

/// ELECTRA's pre-training by data sheets alone: the most devices of each machine.
fn set_c(steps: &Steps, examples: &[Series]) -> SetReport {
    let pretraining = examples.iter().filter(|s| s.model == "electra-base");
    let largest = pretraining.filter_map(|series| steps.cases(series).last());
    let predict = |case: Case<'_>| case.predict(&Fitted::DATA_SHEET.of(case.series), case.perfect());
    let words = [
        "ELECTRA-base pre-training: 8 A100, 8 and 16 V100, sequences of 128 and 512",
        "the step of one device; data sheets",
        "perfect scaling",
    ];
    SetReport::new("C", words, [0.02, 0.02], largest.map(predict).collect())
}

/// ELECTRA on SQuAD on A100 and DGX-2, by the share of the data sheet and the cost of a step that fit DGX-1.
fn set_d(steps: &Steps, examples: &[Series]) -> SetReport {
    let squad = examples.iter().filter(|s| s.model == "electra-base-squad").flat_map(|series| steps.cases(series));
    let (known, wanted): (Vec<Case<'_>>, Vec<Case<'_>>) = squad.partition(|case| case.series.name == "V100, 16 GB");
    let fitted = |p: &[f64]| Fitted { inside: p[0].exp(), between: p[0].exp(), fixed_ms: FIXED_MS * p[1].exp() };
    let found = minimum(&[0.0; 2], EDGE, |p| cost(&known, &fitted(p).of(known[0].series), p));
    let predict = |case: &Case<'_>| {
        let same = known.iter().find(|known| known.series.precision == case.series.precision).expect("both precisions");
        case.predict(&fitted(&found).of(case.series), case.perfect() * same.point.throughput / same.perfect())
    };
    let words = [
        "ELECTRA-base on SQuAD: 8 A100; 8 and 16 V100 of DGX-2",
        "8 V100 of DGX-1; the step of one device; data sheets",
        "the efficiency of DGX-1",
    ];
    SetReport::new("D", words, [0.08, 0.08], wanted.iter().map(predict).collect())
}

/// Rows that input limits: the rate of a node is that of one row of the same machine.
fn set_e(steps: &Steps, dlperf: &[Series], examples: &[Series]) -> SetReport {
    let predict = |case: &mut Case<'_>, input_rate: f64| {
        case.profile.input_rate = Some(input_rate);
        case.predict(&Fitted::DATA_SHEET.of(case.series), case.perfect())
    };
    let mut predictions = Vec::new();
    for (model, machine) in ["efficientdet-d0", "mask-rcnn"].into_iter().flat_map(|m| [(m, "A100"), (m, "V100")]) {
        let of_machine = examples.iter().filter(|s| s.model == model && s.name == machine);
        let mut cases: Vec<Case<'_>> = of_machine.flat_map(|series| steps.cases(series)).collect();
        cases.sort_by(|a, b| b.point.throughput.total_cmp(&a.point.throughput));
        let rate = cases.remove(0).point.throughput;
        predictions.extend(cases.iter_mut().map(|case| predict(case, rate)));
    }
    for series in dlperf.iter().filter(|s| s.model == "resnet50" && s.precision == DType::F16) {
        let mut cases: Vec<Case<'_>> = steps.cases(series).collect();
        let [.., known, last] = &mut cases[..] else { continue };
        predictions.push(predict(last, known.point.throughput / known.point.ranks.nodes as f64));
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

    /// Medians and largest errors in percent, of the simulator at most 0.1 above these, of the null predictors these.
    #[test]
    fn errors_do_not_grow() {
        let sets = validate().expect("all models compile");
        let held = [
            ("A", 30, [2.2, 9.2], [7.4, 28.7]),
            ("B", 33, [3.8, 13.9], [3.0, 19.2]),
            ("C", 12, [1.5, 2.9], [1.5, 2.9]),
            ("D", 6, [1.9, 4.5], [2.4, 3.2]),
            ("E", 16, [7.2, 31.1], [41.0, 152.5]),
        ];
        for (report, (set, rows, errors, null)) in sets.iter().zip(held) {
            assert_eq!((report.set, report.predictions.len()), (set, rows));
            let found = [report.median, report.worst].map(|error| 100.0 * error);
            assert!((0..2).all(|i| found[i] < errors[i] + 0.1), "{set}: {found:?}");
            let found = [report.null_median, report.null_worst].map(|error| 100.0 * error);
            assert!((0..2).all(|i| (found[i] - null[i]).abs() < 0.051), "{set}, null: {found:?}");
        }
        let met: Vec<&str> = sets.iter().filter(|report| report.is_met()).map(|report| report.set).collect();
        assert_eq!(met, ["A", "D"]);
        // Parameters are worth having where the null predictor has none.
        assert!(sets[0].median < sets[0].null_median / 2.0 && sets[1].worst < sets[1].null_worst);
        let limited = sets[4].predictions.iter().filter(|p| p.binds == Binds::Input);
        assert_eq!(
            limited.count(),
            14,
            "all but EfficientDet on A100 and Mask R-CNN of two images on A100, both in FP32"
        );
    }
}
