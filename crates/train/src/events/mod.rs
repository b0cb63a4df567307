//! The events of a run, one JSON object a line:
//! `{"v":1,"kind":...,"time":unix seconds,"elapsed":s,"rank":r,"step":n or null,...}`.

mod bench;
mod file;

#[cfg(test)]
mod tests;

pub use bench::{BenchResult, BenchRun, Comparison, KernelTime, PublishedStyle, Ratio, StepTimes, Verdict, WorkCheck};
pub use file::{EventError, EventWriter, Resumed, read_events};

use crate::number;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the format, `v` in every line.
pub const VERSION: u32 = 1;

/// One line of `events.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub v: u32,
    #[serde(flatten)]
    pub header: Header,
    #[serde(flatten)]
    pub body: EventBody,
}

/// What every event has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Unix time, seconds.
    pub time: f64,
    /// Seconds of this run so far, those before a resume included.
    pub elapsed: f64,
    pub rank: u32,
    /// Updates done, where that means something.
    pub step: Option<u64>,
}

impl Event {
    pub fn new(header: Header, body: impl Into<EventBody>) -> Self {
        Self { v: VERSION, header, body: body.into() }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EventBody {
    Run(Box<RunInfo>),
    Plan(PlanInfo),
    Step(StepInfo),
    Eval(EvalInfo),
    Checkpoint(CheckpointInfo),
    Bench(Box<BenchResult>),
    Warning(WarningInfo),
    End(EndInfo),
}

/// `run`: what is about to be done, with what, where.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    /// Version of the program and, where known, the commit it was built from.
    pub version: String,
    pub commit: Option<String>,
    /// The command line, one string an argument.
    pub command: Vec<String>,
    /// The resolved recipe.
    pub recipe: serde_json::Value,
    pub machine: Machine,
    pub device: String,
    pub threads: u64,
    /// What identifies the data set.
    pub data: String,
    /// The step that a resumed run continues from.
    pub resumed_from: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub hostname: String,
    pub os: String,
    pub cpu: String,
    pub cores: u64,
    pub isa: String,
    pub memory_bytes: Option<u64>,
}

/// `plan`: the cost of one step as compiled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanInfo {
    /// `train` or `eval`.
    pub mode: String,
    pub batch_size: u64,
    pub kernels: u64,
    pub flops: u64,
    pub bytes: u64,
    pub peak_bytes: u64,
}

/// `step`: one update.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepInfo {
    /// Epoch of the batch and its number in the epoch, both from 0.
    pub epoch: u64,
    pub batch: u64,
    #[serde(with = "number")]
    pub loss: f64,
    /// What the task reports beside the loss, by name: parts of the loss, accuracies as fractions.
    #[serde(default, with = "number::map", skip_serializing_if = "BTreeMap::is_empty")]
    pub parts: BTreeMap<String, f64>,
    pub lr: f64,
    #[serde(default, with = "number::option", skip_serializing_if = "Option::is_none")]
    pub grad_norm: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// Samples of this step on all devices.
    pub samples: u64,
    /// Wall time of the step in seconds, and its parts.
    pub step_s: f64,
    pub data_s: f64,
    pub compute_s: f64,
    pub comm_s: f64,
}

/// `eval`: metrics over an evaluation set. Accuracies are fractions in `[0, 1]`; losses are means.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvalInfo {
    pub epoch: u64,
    #[serde(with = "number::map")]
    pub metrics: BTreeMap<String, f64>,
    pub samples: u64,
    /// Wall time in seconds, and its parts.
    pub eval_s: f64,
    pub data_s: f64,
    pub compute_s: f64,
}

/// `checkpoint`: one has become durable.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckpointInfo {
    pub path: String,
    pub bytes: u64,
    pub save_s: f64,
    /// The best so far.
    pub best: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarningInfo {
    pub message: String,
}

/// `end`: how it went, and totals over the whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndInfo {
    pub status: Status,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub steps: u64,
    pub samples: u64,
    /// Seconds spent in steps; evaluation and checkpoints are not in it.
    pub train_s: f64,
    /// `samples / train_s`.
    pub throughput: f64,
    /// The last evaluation.
    #[serde(default, with = "number::map")]
    pub metrics: BTreeMap<String, f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Done,
    Interrupted,
    Failed,
}

impl From<RunInfo> for EventBody {
    fn from(info: RunInfo) -> Self {
        Self::Run(Box::new(info))
    }
}

impl From<PlanInfo> for EventBody {
    fn from(info: PlanInfo) -> Self {
        Self::Plan(info)
    }
}

impl From<StepInfo> for EventBody {
    fn from(info: StepInfo) -> Self {
        Self::Step(info)
    }
}

impl From<EvalInfo> for EventBody {
    fn from(info: EvalInfo) -> Self {
        Self::Eval(info)
    }
}

impl From<CheckpointInfo> for EventBody {
    fn from(info: CheckpointInfo) -> Self {
        Self::Checkpoint(info)
    }
}

impl From<BenchResult> for EventBody {
    fn from(result: BenchResult) -> Self {
        Self::Bench(Box::new(result))
    }
}

impl From<WarningInfo> for EventBody {
    fn from(info: WarningInfo) -> Self {
        Self::Warning(info)
    }
}

impl From<EndInfo> for EventBody {
    fn from(info: EndInfo) -> Self {
        Self::End(info)
    }
}
