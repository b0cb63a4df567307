use crate::number;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A benchmark result, the same for this program and for every peer.
///
/// `throughput` is samples in the timed window over its wall time, the median over repeats.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BenchResult {
    /// Name of the framework, such as `bessemer`.
    pub framework: String,
    /// Version of the framework.
    pub framework_version: String,
    /// Name of the model.
    pub model: String,
    /// `train` or `infer`.
    pub mode: String,
    /// `fp32`, `tf32`, `bf16` or `fp16`.
    pub precision: String,
    /// `cpu` or `cuda`.
    pub device: String,
    /// Product name of the device.
    pub device_name: String,
    /// Number of devices.
    pub devices: u64,
    /// Number of machines.
    pub nodes: u64,
    /// Threads of each process that compute.
    pub threads: u64,
    /// Per device.
    pub batch_size: u64,
    /// Where the inputs come from, such as `synthetic`.
    pub data: String,
    /// Share of the time in which steps waited for their batches; `None` where inputs are in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_wait: Option<f64>,
    /// Settings of the model and of the framework, by name.
    pub options: BTreeMap<String, serde_json::Value>,
    /// Steps before the timed window, and in it.
    pub warmup: u64,
    /// Steps in the timed window.
    pub steps: u64,
    /// Number of runs.
    pub repeat: u64,
    /// In `unit`.
    pub throughput: f64,
    /// `images/s` or `sequences/s`.
    pub unit: String,
    /// Times of the steps of all runs together.
    pub step_ms: StepTimes,
    /// The same times as published tables summarise them.
    pub published_style: PublishedStyle,
    /// The single runs, in order.
    pub runs: Vec<BenchRun>,
    /// `(max - min) / median` of the runs' throughput.
    pub spread: f64,
    /// Of the host's memory, the most that the process held; on a GPU what states and plans use of its memory. `None` where it
    /// could not be measured, as are the fields below.
    pub peak_memory_bytes: Option<u64>,
    /// FLOPs by which the model is defined, of convolutions and matrix products.
    pub flops_per_sample: Option<f64>,
    /// Model FLOPs utilisation (MFU): these FLOPs a second over the measured peak.
    pub fraction_of_peak: Option<f64>,
    /// FLOPs that kernels really do, with what they compute again and what Winograd's algorithm saves; unknown for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware_flops_per_sample: Option<f64>,
    /// Hardware FLOPs utilisation (HFU): these FLOPs a second over the measured peak.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware_fraction_of_peak: Option<f64>,
    /// Loss of the first timed step of training; `None` for inference.
    #[serde(with = "number::option")]
    pub loss_first: Option<f64>,
    /// Loss of the last timed step of training; `None` for inference.
    #[serde(with = "number::option")]
    pub loss_last: Option<f64>,
    /// Resident memory once everything was loaded, before there was a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub import_memory_bytes: Option<u64>,
    /// Where the time of a step goes, the longest first; empty where that was not measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<KernelTime>,
    /// What it was measured beside; `None` where it was measured alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
    /// What it cost to train on several ranks; `None` where that was not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,
}

/// What a training step of several ranks costs, beside one rank alone and beside as many that do not communicate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scaling {
    /// What is the same for all numbers of ranks.
    pub kind: ScalingKind,
    /// Samples of a step, of all ranks together.
    pub step_samples: u64,
    /// Throughput over that of one rank alone.
    pub speed_up: f64,
    /// The same for each rank: 1 if further ranks cost nothing.
    pub efficiency: f64,
    /// Of several ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub together: Option<Together>,
    /// What the simulator says of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated: Option<Simulated>,
}

/// What stays the same when there are more ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScalingKind {
    /// The samples of each rank.
    #[default]
    Weak,
    /// The samples of a step.
    Strong,
}

/// What there is of several ranks alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Together {
    /// Throughput of as many ranks that do the same work and do not communicate, the median over repeats.
    pub apart_throughput: f64,
    /// Throughput over that: 1 if communication costs nothing.
    pub apart_efficiency: f64,
    /// Exposed communication: time for which a step waits for sums over ranks, in milliseconds. The median over ranks of their
    /// means, and over repeats.
    pub exposed_ms: f64,
    /// The rank that computed longest in the last repeat.
    pub slowest: SlowestRank,
    /// What carried messages, and its version.
    pub transport: String,
}

/// A rank that the others wait for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SlowestRank {
    /// Number of the rank.
    pub rank: u64,
    /// Name of its machine.
    pub host: String,
    /// Its time of a step without waits over the median of all ranks.
    pub over_median: f64,
}

/// What the simulator says of ranks, from a step of one of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Simulated {
    /// Name or file of the cluster.
    pub cluster: String,
    /// In the unit of the result.
    pub throughput: f64,
    /// Exposed communication of a step in milliseconds.
    pub exposed_ms: f64,
    /// Simulated throughput over the measured one, less 1.
    pub error: f64,
}

/// The time that a step spends in kernels of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KernelTime {
    /// Operation of the plan, e.g. `conv2d+fusion`.
    pub kind: String,
    /// Calls in one step.
    pub calls: u64,
    /// Of all calls of a step together.
    pub milliseconds: f64,
    /// FLOPs of all calls of a step together, a multiply-add counted as two.
    pub flops: u64,
}

/// A result among those of other frameworks that did the same work in turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The same for all results that were measured in turn.
    pub group: String,
    /// The form of the framework, such as `eager`.
    pub variant: String,
    /// Whether that form merges operations.
    pub fused: bool,
    /// Whether the batch is the largest that was found to fit.
    pub largest_batch: bool,
    /// Whether both did equivalent work.
    pub work: WorkCheck,
    /// Bessemer's speed over this one's; `None` where that would say nothing.
    pub ratio: Option<Ratio>,
}

/// Whether a framework did the work that Bessemer did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkCheck {
    /// Result of the equivalence check.
    pub verdict: Verdict,
    /// Training: relative distance of the first loss. Inference: relative L2 distance of the outputs.
    #[serde(default, with = "number::option")]
    pub first: Option<f64>,
    /// Training: the largest relative distance of the losses after one to three steps.
    #[serde(default, with = "number::option")]
    pub later: Option<f64>,
    /// The largest distances that pass, in the same order.
    pub allowed: [f64; 2],
    /// Inference with masks: mean IoU of the masks of detections that both have.
    #[serde(default, with = "number::option", skip_serializing_if = "Option::is_none")]
    pub masks: Option<f64>,
    /// What is to be said of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Result of an equivalence check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Losses or outputs are equal within the allowed distances.
    Same,
    /// Losses or outputs differ by more than the allowed distances.
    Different,
    /// No check was made.
    #[default]
    Unchecked,
}

/// Ratios of speed, each taken within one round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Median over the rounds.
    pub median: f64,
    /// Least of all rounds.
    pub min: f64,
    /// Largest of all rounds.
    pub max: f64,
}

/// Times of single steps in milliseconds; percentiles are true quantiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepTimes {
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Fastest step.
    pub min: f64,
    /// Slowest step.
    pub max: f64,
}

/// What published tables call a latency of 90, 95 or 99 %, and what is no quantile: the mean of that share of the fastest steps
/// (EfficientDet), the same without the two slowest (ELECTRA), or the mean plus 1.645, 1.96 or 2.576 standard errors
/// (Mask R-CNN).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PublishedStyle {
    /// Mean of the fastest 90 %.
    pub mean_fastest_90_ms: f64,
    /// Mean of the fastest 95 %.
    pub mean_fastest_95_ms: f64,
    /// Mean of the fastest 99 %.
    pub mean_fastest_99_ms: f64,
    /// Mean of the fastest 90 % without the two slowest steps; `None` where there are no others.
    pub mean_fastest_90_but_two_ms: Option<f64>,
    /// Mean of the fastest 95 % without the two slowest steps; `None` where there are no others.
    pub mean_fastest_95_but_two_ms: Option<f64>,
    /// Mean of the fastest 99 % without the two slowest steps; `None` where there are no others.
    pub mean_fastest_99_but_two_ms: Option<f64>,
    /// Mean plus 1.645 standard errors.
    pub ci_90_ms: f64,
    /// Mean plus 1.96 standard errors.
    pub ci_95_ms: f64,
    /// Mean plus 2.576 standard errors.
    pub ci_99_ms: f64,
}

/// One repeat.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BenchRun {
    /// Samples a second.
    pub throughput: f64,
    /// Each timed step in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub step_ms: Vec<f64>,
    /// Counted from 1; runs of one round follow each other at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<u64>,
    /// From the start of the process to its end, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_s: Option<f64>,
    /// Share of the processors that others used before, and meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_before: Option<f64>,
    /// Share of the processors that others used during the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others_busy: Option<f64>,
}
