use crate::number;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A benchmark result, the same for this program and for every peer.
///
/// `throughput` is samples in the timed window over its wall time, the median over repeats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchResult {
    pub framework: String,
    pub framework_version: String,
    pub model: String,
    /// `train` or `infer`.
    pub mode: String,
    /// `fp32`, `tf32`, `bf16` or `fp16`.
    pub precision: String,
    /// `cpu` or `cuda`.
    pub device: String,
    pub device_name: String,
    pub devices: u64,
    pub nodes: u64,
    pub threads: u64,
    /// Per device.
    pub batch_size: u64,
    pub data: String,
    pub options: BTreeMap<String, serde_json::Value>,
    /// Steps before the timed window, and in it.
    pub warmup: u64,
    pub steps: u64,
    pub repeat: u64,
    pub throughput: f64,
    /// `images/s` or `sequences/s`.
    pub unit: String,
    pub step_ms: StepTimes,
    pub published_style: PublishedStyle,
    pub runs: Vec<BenchRun>,
    /// `(max - min) / median` of the runs' throughput.
    pub spread: f64,
    /// `None` where it could not be measured, as are the fields below.
    pub peak_memory_bytes: Option<u64>,
    pub flops_per_sample: Option<f64>,
    pub fraction_of_peak: Option<f64>,
    #[serde(with = "number::option")]
    pub loss_first: Option<f64>,
    #[serde(with = "number::option")]
    pub loss_last: Option<f64>,
}

/// Times of single steps in milliseconds; percentiles are true quantiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepTimes {
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
    pub min: f64,
    pub max: f64,
}

/// What published tables call a 90 % latency: the mean of the fastest 90 %, or the mean plus 1.645 standard errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PublishedStyle {
    pub mean_fastest_90_ms: f64,
    pub ci_90_ms: f64,
}

/// One repeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BenchRun {
    pub throughput: f64,
}
