//! What is said between a comparison and its peers, see `peers/PROTOCOL.md`.

use crate::workload::{DetectorOutputs, Mode};
use bessemer_train::DeviceKind;
use bessemer_train::events::KernelTime;
use bessemer_train::tasks::registry;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Version of the protocol, in every answer.
pub const VERSION: u32 = 1;

/// Exit status of an adapter that knows that something cannot be done.
pub const UNSUPPORTED_STATUS: u8 = 3;
/// Exit status of an adapter that is out of memory.
pub const MEMORY_STATUS: u8 = 4;

/// The answer to `describe`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Version of the protocol that the adapter speaks.
    pub protocol: u32,
    /// Name of the framework.
    pub framework: String,
    /// Version of the framework.
    pub version: String,
    /// Forms in which the framework can run.
    pub variants: Vec<Variant>,
    /// Models that it has.
    pub work: Vec<Ability>,
}

/// A form of a framework.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variant {
    /// Name behind the `+` of `FRAMEWORK+VARIANT`.
    pub name: String,
    /// Whether it merges operations.
    pub fused: bool,
    /// Whether the framework's name alone stands for it, too.
    pub default: bool,
    /// Settings in words, for reports; may be empty.
    #[serde(default)]
    pub settings: String,
}

/// A model that a framework has, in one mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ability {
    /// Name of the model.
    pub model: String,
    /// Whether it trains or infers.
    pub mode: Mode,
    /// Precisions that it computes in.
    pub precisions: Vec<String>,
    /// Precisions that it has in software alone.
    #[serde(default)]
    pub emulated: Vec<String>,
    /// What inference can end with, of a detector.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<DetectorOutputs>,
    /// The kind of device, by [`DeviceKind::name`].
    #[serde(default = "processors")]
    pub device: String,
}

fn processors() -> String {
    DeviceKind::Cpu.name().to_owned()
}

/// How a framework does some work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// In arithmetic of the device.
    Native,
    /// In software alone.
    Emulated,
    /// Not at all.
    None,
}

impl Capabilities {
    /// What is said of a model in one mode on a device. Other sizes of a group that is listed are done as well.
    fn abilities(&self, model: &str, mode: Mode, device: DeviceKind) -> impl Iterator<Item = &Ability> {
        let group = group_of(model);
        let is_there = move |ability: &&Ability| ability.mode == mode && ability.device == device.name();
        self.work.iter().filter(is_there).filter(move |ability| group_of(&ability.model) == group)
    }

    /// Whether inference of a detector can end so.
    pub fn ends_with(&self, model: &str, outputs: DetectorOutputs, device: DeviceKind) -> bool {
        self.abilities(model, Mode::Infer, device).any(|ability| ability.outputs.contains(&outputs))
    }

    /// How it does a model in one mode and precision on a device.
    pub fn support(&self, model: &str, mode: Mode, precision: &str, device: DeviceKind) -> Support {
        let has = |names: &[String]| names.iter().any(|name| name == precision);
        let abilities = || self.abilities(model, mode, device);
        if abilities().any(|ability| has(&ability.emulated)) {
            Support::Emulated
        } else if abilities().any(|ability| has(&ability.precisions)) {
            Support::Native
        } else {
            Support::None
        }
    }
}

/// The group that a model is of: models that differ in sizes alone. `None` for models that are not compared.
pub fn group_of(model: &str) -> Option<&'static str> {
    let model = registry::find(model).ok()?;
    model.family().comparison_group(model.name())
}

/// What the inference of a model can end with, where there is a choice.
pub fn outputs_of(model: &str) -> &'static [DetectorOutputs] {
    registry::find(model).map_or(&[], |model| model.family().outputs())
}

/// What a run is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// To time the steps.
    Time,
    /// Without dropout and warm-up: losses, or outputs.
    Check,
}

/// The file that `prepare` and `run` are given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Version of the protocol that the request is written in.
    pub protocol: u32,
    /// Which [`Variant`] runs.
    pub variant: String,
    /// Name of the model.
    pub model: String,
    /// Whether steps train or infer.
    pub mode: Mode,
    /// Samples of a step.
    pub batch_size: usize,
    /// Precision of the arithmetic, such as `bf16`.
    pub precision: String,
    /// Threads that may compute.
    pub threads: usize,
    /// Steps before the timed ones.
    pub warmup: usize,
    /// Timed steps.
    pub steps: usize,
    /// Seed of everything random.
    pub seed: u64,
    /// Whether times or values are wanted.
    pub purpose: Purpose,
    /// Folder with the model's description, inputs and initial weights.
    pub work: PathBuf,
    /// Folder that the adapter may keep files in between runs.
    pub cache: PathBuf,
    /// Folder for the values that are compared; `None` if no values are wanted.
    pub outputs: Option<PathBuf>,
    /// What computes.
    #[serde(default)]
    pub device: DeviceKind,
    /// Folders of a GPU's libraries that come before all others; of Bessemer alone.
    #[serde(default)]
    pub gpu_libraries: Vec<PathBuf>,
}

/// The answer to `prepare`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Prepared {
    /// Version of the protocol that the adapter speaks.
    pub protocol: u32,
}

/// The answer to `run`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    pub(crate) protocol: u32,
    pub(crate) framework: String,
    pub(crate) version: String,
    #[serde(default)]
    pub(crate) options: BTreeMap<String, Value>,
    pub(crate) step_ms: Vec<f64>,
    pub(crate) window_s: f64,
    #[serde(default)]
    pub(crate) losses: Vec<f64>,
    #[serde(default)]
    pub(crate) peak_memory_bytes: Option<u64>,
    #[serde(default)]
    pub(crate) import_memory_bytes: Option<u64>,
    /// Where the time of a step goes, the longest first.
    #[serde(default)]
    pub(crate) kernels: Vec<KernelTime>,
}

/// Share of the window that may pass between steps.
const BETWEEN_STEPS: f64 = 0.02;
/// Milliseconds of a window that may pass between steps in any case: the system may run another process meanwhile.
const INTERRUPTION_MS: f64 = 20.0;

impl Answer {
    /// Samples of a window's steps over its wall time.
    pub fn throughput(&self, batch_size: usize) -> f64 {
        (batch_size * self.step_ms.len()) as f64 / self.window_s
    }

    /// What is impossible about the answer of a process that ran for `wall_s` seconds.
    pub fn problem(&self, request: &Request, wall_s: f64) -> Option<String> {
        let (steps, window_ms) = (request.steps, self.window_s * 1e3);
        let wanted = request.warmup + steps;
        let sum: f64 = self.step_ms.iter().sum();
        let between = (BETWEEN_STEPS * window_ms).max(INTERRUPTION_MS);
        if self.step_ms.len() != steps {
            Some(format!("{} steps were timed, {steps} were asked for", self.step_ms.len()))
        } else if self.step_ms.iter().any(|time| !time.is_finite() || *time <= 0.0) {
            Some("a step took no time".to_owned())
        } else if (sum - window_ms).abs() > between {
            Some(format!("its steps take {sum:.1} ms together, their window {window_ms:.1} ms"))
        } else if self.window_s > wall_s {
            Some(format!("its window of {:.3} s is longer than the {wall_s:.3} s that it ran", self.window_s))
        } else if request.mode == Mode::Train && self.losses.len() != wanted {
            Some(format!("it reported {} of {wanted} losses", self.losses.len()))
        } else {
            None
        }
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub(crate) kind: FailureKind,
    pub(crate) reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FailureKind {
    NotInstalled,
    Unsupported,
    Memory,
    TimeLimit,
    Failed,
    Invalid,
    /// The comparison itself was asked to stop.
    Interrupted,
}

impl Failure {
    pub(crate) fn new(kind: FailureKind, reason: impl Into<String>) -> Self {
        Self { kind, reason: reason.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            FailureKind::NotInstalled => "not installed",
            FailureKind::Unsupported => "not possible",
            FailureKind::Memory => "out of memory",
            FailureKind::TimeLimit => "too slow",
            FailureKind::Failed => "failed",
            FailureKind::Invalid => "no valid answer",
            FailureKind::Interrupted => "interrupted",
        };
        if self.reason.is_empty() { f.write_str(what) } else { write!(f, "{what}: {}", self.reason) }
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        Request {
            protocol: VERSION,
            variant: "eager".into(),
            model: "bert-tiny".into(),
            mode: Mode::Train,
            batch_size: 4,
            precision: "fp32".into(),
            threads: 1,
            warmup: 1,
            steps: 2,
            seed: 0,
            purpose: Purpose::Time,
            work: "w".into(),
            cache: "c".into(),
            outputs: None,
            device: DeviceKind::Cpu,
            gpu_libraries: Vec::new(),
        }
    }

    fn answer() -> Answer {
        Answer {
            protocol: VERSION,
            framework: "x".into(),
            version: "1".into(),
            options: BTreeMap::new(),
            step_ms: vec![100.0, 300.0],
            window_s: 0.4,
            losses: vec![3.0, 2.0, 1.0],
            peak_memory_bytes: None,
            import_memory_bytes: None,
            kernels: Vec::new(),
        }
    }

    #[test]
    fn impossible_answers_are_found_out() {
        assert_eq!(answer().problem(&request(), 0.5), None);
        assert_eq!(answer().throughput(4), 20.0);
        let cases = [
            (Answer { step_ms: vec![400.0], ..answer() }, "1 steps were timed, 2"),
            (Answer { step_ms: vec![400.0, 0.0], ..answer() }, "no time"),
            (Answer { window_s: 0.3, ..answer() }, "400.0 ms together, their window 300.0 ms"),
            (Answer { losses: vec![1.0], ..answer() }, "1 of 3 losses"),
        ];
        for (answer, expected) in cases {
            let problem = answer.problem(&request(), 0.5).unwrap_or_default();
            assert!(problem.contains(expected), "{problem}");
        }
        assert!(answer().problem(&request(), 0.39).unwrap().contains("longer than"));
    }

    fn ability(model: &str, mode: Mode, precisions: &[&str], emulated: &[&str]) -> Ability {
        let [precisions, emulated] =
            [precisions, emulated].map(|names| names.iter().map(|&name| name.into()).collect());
        Ability { model: model.into(), mode, precisions, emulated, outputs: Vec::new(), device: processors() }
    }

    #[test]
    fn a_family_stands_for_its_sizes() {
        let work = vec![
            ability("bert-base", Mode::Train, &["fp32"], &[]),
            ability("bert-base", Mode::Infer, &["fp32", "bf16"], &["bf16"]),
            Ability {
                outputs: vec![DetectorOutputs::Network],
                ..ability("efficientdet-d0", Mode::Infer, &["fp32"], &[])
            },
        ];
        let peer = Capabilities { protocol: 1, framework: "x".into(), version: "1".into(), variants: Vec::new(), work };
        let (cpu, cuda) = (DeviceKind::Cpu, DeviceKind::Cuda { index: 1 });
        assert_eq!(peer.support("bert-tiny", Mode::Train, "fp32", cpu), Support::Native);
        assert_eq!(peer.support("bert-tiny", Mode::Train, "fp32", cuda), Support::None);
        assert_eq!(peer.support("bert-tiny", Mode::Train, "bf16", cpu), Support::None);
        assert_eq!(peer.support("bert-large", Mode::Infer, "bf16", cpu), Support::Emulated);
        assert_eq!(peer.support("resnet50", Mode::Train, "fp32", cpu), Support::None);
        assert!(peer.ends_with("efficientdet-tiny", DetectorOutputs::Network, cpu));
        assert!(!peer.ends_with("efficientdet-d0", DetectorOutputs::Detections, cpu));
        assert_eq!(group_of("resnet20-cifar"), None);
    }
}
