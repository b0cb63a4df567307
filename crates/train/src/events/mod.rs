//! The events of a run, one JSON object a line:
//! `{"v":1,"kind":...,"time":unix seconds,"elapsed":s,"rank":r,"step":n or null,...}`.

mod bench;
mod file;

#[cfg(test)]
mod tests;

pub use bench::{
    BenchResult, BenchRun, Comparison, KernelTime, PublishedStyle, Ratio, Scaling, ScalingKind, Simulated, SlowestRank,
    StepTimes, Together, Verdict, WorkCheck,
};
pub use file::{EventError, EventWriter, Resumed, read_events, read_sound_events};

use crate::number;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the format, `v` in every line.
pub const VERSION: u32 = 1;

/// One line of `events.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Version of the format, [`VERSION`].
    pub v: u32,
    /// When and where it happened.
    #[serde(flatten)]
    pub header: Header,
    /// What happened.
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
    /// Number of the process in the run, from 0.
    pub rank: u32,
    /// Updates done, where that means something.
    pub step: Option<u64>,
}

impl Event {
    /// An event of the current version of the format.
    pub fn new(header: Header, body: impl Into<EventBody>) -> Self {
        Self { v: VERSION, header, body: body.into() }
    }
}

/// What happened, under the name that `kind` has in the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EventBody {
    /// A run begins or resumes.
    Run(Box<RunInfo>),
    /// A step was compiled.
    Plan(PlanInfo),
    /// An update was done.
    Step(StepInfo),
    /// Some steps were done by several ranks.
    Ranks(RanksInfo),
    /// An evaluation was done.
    Eval(EvalInfo),
    /// A checkpoint was written.
    Checkpoint(CheckpointInfo),
    /// A benchmark was done.
    Bench(Box<BenchResult>),
    /// Something needs the user's attention.
    Warning(WarningInfo),
    /// A run ended.
    End(EndInfo),
}

/// `run`: what is about to be done, with what, where.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    /// Version of the program and, where known, the commit it was built from.
    pub version: String,
    /// `None` if it is not known.
    pub commit: Option<String>,
    /// The command line, one string an argument.
    pub command: Vec<String>,
    /// The resolved recipe.
    pub recipe: serde_json::Value,
    /// The machine that the process runs on.
    pub machine: Machine,
    /// Device that the run computes on.
    pub device: String,
    /// Threads that compute.
    pub threads: u64,
    /// What identifies the data set.
    pub data: String,
    /// Machines of the ranks, in their order; empty where there is one rank.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// The step that a resumed run continues from.
    pub resumed_from: Option<u64>,
}

/// The machine of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Name in the network.
    pub hostname: String,
    /// Name and version of the operating system.
    pub os: String,
    /// Product name of the processor.
    pub cpu: String,
    /// Processors that the process may use.
    pub cores: u64,
    /// Instruction set of the kernels.
    pub isa: String,
    /// All memory; `None` if the system does not report it.
    pub memory_bytes: Option<u64>,
}

/// `plan`: the cost of one step as compiled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanInfo {
    /// `train` or `eval`.
    pub mode: String,
    /// Samples of a micro-batch.
    pub batch_size: u64,
    /// Kernel calls of a step.
    pub kernels: u64,
    /// Arithmetic of a step, a multiply-add counted as two.
    pub flops: u64,
    /// Bytes that the kernels read and write in a step.
    pub bytes: u64,
    /// All memory of the plan, the state included.
    pub peak_bytes: u64,
    /// Algorithms that were chosen among several, by what they compute; empty where there is nothing to choose.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub algorithms: BTreeMap<String, String>,
    /// For what a library has no algorithm, or one that could not be measured, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub near_misses: BTreeMap<String, String>,
}

/// `step`: one update.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepInfo {
    /// Epoch of the batch and its number in the epoch, both from 0.
    pub epoch: u64,
    /// Number of the batch in the epoch, from 0.
    pub batch: u64,
    /// Training loss of the step.
    #[serde(with = "number")]
    pub loss: f64,
    /// What the task reports beside the loss, by name: parts of the loss, accuracies as fractions.
    #[serde(default, with = "number::map", skip_serializing_if = "BTreeMap::is_empty")]
    pub parts: BTreeMap<String, f64>,
    /// Learning rate of the update.
    pub lr: f64,
    /// Norm of the gradients before clipping; `None` if the step does not compute it.
    #[serde(default, with = "number::option", skip_serializing_if = "Option::is_none")]
    pub grad_norm: Option<f64>,
    /// Factor of the loss that keeps 16-bit gradients in range; `None` if the loss is not scaled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// Samples of this step on all devices.
    pub samples: u64,
    /// Wall time of the step in seconds, and its parts.
    pub step_s: f64,
    /// Waiting for data.
    pub data_s: f64,
    /// Running the plan.
    pub compute_s: f64,
    /// Communicating with other processes.
    pub comm_s: f64,
}

/// `ranks`: how long the last steps took on each rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RanksInfo {
    /// Number of those steps.
    pub steps: u64,
    /// Means of the ranks, in their order.
    pub ranks: Vec<RankTimes>,
}

/// How long a step took on a rank, in seconds. A GPU waits while it computes: there `comm_s` is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankTimes {
    /// Waiting for data.
    pub data_s: f64,
    /// Running the plan.
    pub compute_s: f64,
    /// Waiting for other ranks.
    pub comm_s: f64,
}

/// `eval`: metrics over an evaluation set. Accuracies are fractions in `[0, 1]`; losses are means.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvalInfo {
    /// Epoch of the last batch trained on, from 0.
    pub epoch: u64,
    /// Values of the metrics, by name.
    #[serde(with = "number::map")]
    pub metrics: BTreeMap<String, f64>,
    /// Number of samples evaluated.
    pub samples: u64,
    /// Wall time in seconds, and its parts.
    pub eval_s: f64,
    /// Waiting for data.
    pub data_s: f64,
    /// Running the plan.
    pub compute_s: f64,
    /// Running it on one batch of rank 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_ms: Option<StepTimes>,
    /// The same as published tables have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_style: Option<PublishedStyle>,
}

/// `checkpoint`: one was written and synchronised to the disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckpointInfo {
    /// Folder of the checkpoint.
    pub path: String,
    /// Size of all its files.
    pub bytes: u64,
    /// Wall time of writing it, in seconds.
    pub save_s: f64,
    /// The best so far.
    pub best: bool,
}

/// `warning`: something that needs the user's attention and does not end the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarningInfo {
    /// The warning in one line.
    pub message: String,
}

/// `end`: how it went, and totals over the whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndInfo {
    /// Whether the run was completed.
    pub status: Status,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Updates done.
    pub steps: u64,
    /// Samples trained on.
    pub samples: u64,
    /// Seconds spent in steps; evaluation and checkpoints are not in it.
    pub train_s: f64,
    /// `samples / train_s`.
    pub throughput: f64,
    /// The last evaluation.
    #[serde(default, with = "number::map")]
    pub metrics: BTreeMap<String, f64>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// All steps were done.
    Done,
    /// The user stopped it; it can be resumed.
    Interrupted,
    /// An error ended it.
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

impl From<RanksInfo> for EventBody {
    fn from(info: RanksInfo) -> Self {
        Self::Ranks(info)
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
