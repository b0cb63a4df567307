//! What is to be compared: a file, or the command line, resolved to groups of measurements that are made in turn.

use super::CompareError;
use crate::measure::{CLIP_OPTION, options_of};
use crate::peers::protocol::{group_of, outputs_of};
use crate::workload::{DetectorOutputs, Mode, StepSettings};
use bessemer_data::{plain_message, read_text};
use bessemer_train::recipe::Compute;
use bessemer_train::tasks::registry;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;
use toml::{Table, Value};

/// A plan file. What it says at its top holds for all parts that do not say otherwise; without parts it is one itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Settings of all parts, unless a part has its own.
    pub common: Part,
    /// The `[[part]]` tables of the file, in order.
    pub parts: Vec<Part>,
}

/// Name of the tables of parts.
const PARTS: &str = "part";

/// Models by modes by batch sizes by precisions, of some frameworks.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Names of models; `None` takes the plan's.
    pub models: Option<Vec<String>>,
    /// Training, inference or both; `None` takes the plan's.
    pub modes: Option<Vec<Mode>>,
    /// `NAME` for all default variants, `NAME+VARIANT` for one.
    pub frameworks: Option<Vec<String>>,
    /// Samples of a step; `None` takes the default of [`Usual`].
    pub batch_sizes: Option<Vec<BatchSize>>,
    /// Precisions of the arithmetic; `None` takes the plan's.
    pub precisions: Option<Vec<Compute>>,
    /// Variants that merge operations (`on`), and those that do not (`off`), in place of the default ones.
    pub fusion: Option<Vec<Fusion>>,
    /// Steps before the timed ones of each run.
    pub warmup: Option<usize>,
    /// Timed steps of each run.
    pub steps: Option<usize>,
    /// Number of runs of each framework.
    pub repeat: Option<usize>,
    /// Tokens of a sequence; only valid for text models.
    pub sequence_length: Option<usize>,
    /// Masked positions of a sequence; only valid for pre-training models.
    pub predictions: Option<usize>,
    /// Dropout rate in `[0, 1)`; only valid for training.
    pub dropout: Option<f64>,
    /// Whether training steps clip gradients.
    pub clip: Option<bool>,
    /// What the inference of detectors ends with; `None` takes all, one after the other.
    pub outputs: Option<Vec<DetectorOutputs>>,
}

/// Which variants of frameworks are compared: with or without merged operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fusion {
    /// Variants that merge operations.
    On,
    /// Variants that run operation by operation.
    Off,
}

/// A number, or the largest that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "String")]
pub enum BatchSize {
    /// Exactly this many samples of a step.
    Of(usize),
    /// The largest batch that fits into memory.
    Largest,
}

impl std::str::FromStr for BatchSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == "max" => Ok(Self::Largest),
            Ok(number) if number > 0 => Ok(Self::Of(number)),
            _ => Err(format!("`{text}` is no batch size; expected a number of at least 1, or max")),
        }
    }
}

impl TryFrom<Value> for BatchSize {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        match value {
            Value::String(text) => text.parse(),
            other => other.to_string().parse(),
        }
    }
}

impl From<BatchSize> for String {
    fn from(size: BatchSize) -> String {
        size.to_string()
    }
}

impl fmt::Display for BatchSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Of(number) => write!(f, "{number}"),
            Self::Largest => f.write_str("max"),
        }
    }
}

/// The framework's name, and one of its variants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wanted {
    pub framework: String,
    pub variant: Option<String>,
}

/// One model in one mode, at one batch size and precision, of all its frameworks.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    pub(crate) model: String,
    pub(crate) mode: Mode,
    pub(crate) batch_size: BatchSize,
    pub(crate) precision: Compute,
    pub(crate) frameworks: Vec<Wanted>,
    pub(crate) fusion: Option<Vec<Fusion>>,
    pub(crate) warmup: usize,
    pub(crate) steps: usize,
    pub(crate) repeat: usize,
    pub(crate) settings: StepSettings,
}

impl Group {
    /// `resnet50 train b16 fp32`, or of a detector `efficientdet-d0 infer network b1 fp32`; with `unfused` behind where no operations
    /// are merged, and with `unclipped` where gradients that are limited otherwise are not.
    pub fn name(&self) -> String {
        let Self { model, mode, batch_size, precision, .. } = self;
        let outputs = self.outputs().map_or_else(String::new, |outputs| format!(" {}", outputs.name()));
        let unfused = if self.fusion.as_deref() == Some(&[Fusion::Off]) { " unfused" } else { "" };
        let unclipped = if clips(model, *mode) && !self.settings.clip { " unclipped" } else { "" };
        format!("{model} {}{outputs} b{batch_size} {}{unfused}{unclipped}", mode.name(), precision.name())
    }

    /// What inference ends with, of a detector.
    pub(crate) fn outputs(&self) -> Option<DetectorOutputs> {
        let has_choice = self.mode == Mode::Infer && !outputs_of(&self.model).is_empty();
        has_choice.then_some(self.settings.outputs)
    }
}

/// Whether the steps of a model can clip gradients.
pub(super) fn clips(model: &str, mode: Mode) -> bool {
    let options = options_of(model, mode, &StepSettings::default());
    mode == Mode::Train && options.iter().any(|(name, _)| name == CLIP_OPTION)
}

/// What stands where neither the part nor the plan says anything.
pub struct Usual {
    pub(crate) warmup: usize,
    pub(crate) steps: usize,
    pub(crate) repeat: usize,
    pub(crate) batch_size: usize,
}

impl Usual {
    /// The method of DLPerf: 20 steps that do not count, 100 that do, 7 times.
    pub const FULL: Usual = Usual { warmup: 20, steps: 100, repeat: 7, batch_size: 8 };
    /// A first look.
    pub const QUICK: Usual = Usual { warmup: 1, steps: 4, repeat: 2, batch_size: 1 };
}

impl Plan {
    /// # Errors
    /// A file that cannot be read or has something unknown in it.
    pub fn load(path: &Path) -> Result<Plan, CompareError> {
        let text = read_text(path).map_err(|error| CompareError::Plan(error.to_string()))?;
        Self::parse(&text).map_err(|problem| CompareError::Plan(format!("{}: {problem}", path.display())))
    }

    fn parse(text: &str) -> Result<Plan, String> {
        let problem = |error: toml::de::Error| plain_message(error.message());
        let mut top: Table = text.parse().map_err(problem)?;
        let parts = top.remove(PARTS).map_or_else(|| Ok(Vec::new()), Value::try_into).map_err(problem)?;
        let of_top = |error| match problem(error) {
            unknown if unknown.starts_with("unknown field") => format!("{unknown}, or tables [[{PARTS}]]"),
            other => other,
        };
        Ok(Plan { common: top.try_into().map_err(of_top)?, parts })
    }

    /// All groups, in order.
    ///
    /// # Errors
    /// Nothing to measure; a model that is not known or not compared; a number that is not possible.
    pub fn groups(&self, usual: &Usual) -> Result<Vec<Group>, CompareError> {
        let whole = [Part::default()];
        let parts = if self.parts.is_empty() { &whole[..] } else { &self.parts };
        let mut groups = Vec::new();
        for part in parts {
            groups.extend(part.or(&self.common).groups(usual)?);
        }
        Ok(groups)
    }
}

impl Part {
    /// What this says, or else `other`.
    fn or(&self, other: &Part) -> Part {
        let (this, other) = (self.clone(), other.clone());
        Part {
            models: this.models.or(other.models),
            modes: this.modes.or(other.modes),
            frameworks: this.frameworks.or(other.frameworks),
            batch_sizes: this.batch_sizes.or(other.batch_sizes),
            precisions: this.precisions.or(other.precisions),
            fusion: this.fusion.or(other.fusion),
            warmup: this.warmup.or(other.warmup),
            steps: this.steps.or(other.steps),
            repeat: this.repeat.or(other.repeat),
            sequence_length: this.sequence_length.or(other.sequence_length),
            predictions: this.predictions.or(other.predictions),
            dropout: this.dropout.or(other.dropout),
            clip: this.clip.or(other.clip),
            outputs: this.outputs.or(other.outputs),
        }
    }

    pub(super) fn groups(&self, usual: &Usual) -> Result<Vec<Group>, CompareError> {
        let list = |what: &'static str| CompareError::Plan(format!("the plan names no {what}"));
        let frameworks: Vec<Wanted> =
            self.frameworks.as_ref().ok_or_else(|| list("frameworks"))?.iter().map(|name| wanted(name)).collect();
        let models = self.models.as_ref().ok_or_else(|| list("models"))?;
        let modes = self.modes.clone().unwrap_or_else(|| vec![Mode::Train, Mode::Infer]);
        let batch_sizes = self.batch_sizes.clone().unwrap_or_else(|| vec![BatchSize::Of(usual.batch_size)]);
        let precisions = self.precisions.clone().unwrap_or_else(|| vec![Compute::Fp32]);
        let [steps, repeat] = [("steps", self.steps, usual.steps), ("repeat", self.repeat, usual.repeat)]
            .map(|(name, given, usual)| (name, given.unwrap_or(usual)));
        for (name, value) in [steps, repeat] {
            if value == 0 {
                return Err(CompareError::Plan(format!("{name} is 0; at least 1 is needed")));
            }
        }
        let mut groups = Vec::new();
        for model in models {
            let (name, settings) = self.settings(model)?;
            for &mode in &modes {
                for &precision in &precisions {
                    for &batch_size in &batch_sizes {
                        let group = |outputs| Group {
                            model: name.clone(),
                            mode,
                            batch_size,
                            precision,
                            frameworks: frameworks.clone(),
                            fusion: self.fusion.clone(),
                            warmup: self.warmup.unwrap_or(usual.warmup),
                            steps: steps.1,
                            repeat: repeat.1,
                            settings: StepSettings { outputs, ..settings },
                        };
                        groups.extend(self.outputs(&name, mode).into_iter().map(group));
                    }
                }
            }
        }
        Ok(groups)
    }

    /// What a model's steps end with, each measured apart.
    fn outputs(&self, model: &str, mode: Mode) -> Vec<DetectorOutputs> {
        match (outputs_of(model), &self.outputs) {
            ([], _) => vec![DetectorOutputs::default()],
            _ if mode == Mode::Train => vec![DetectorOutputs::default()],
            (_, Some(wanted)) => wanted.clone(),
            (all, None) => all.to_vec(),
        }
    }

    /// The full name of a model, and its settings.
    fn settings(&self, model: &str) -> Result<(String, StepSettings), CompareError> {
        let known = registry::find(model)?;
        if group_of(known.name()).is_none() {
            return Err(CompareError::NotCompared { model: known.name().to_owned() });
        }
        let usual = known.family().usual_step(self.sequence_length);
        let settings = StepSettings {
            predictions: self.predictions.unwrap_or(usual.predictions),
            dropout: self.dropout.unwrap_or(usual.dropout),
            clip: self.clip.unwrap_or(true),
            accumulation: 1,
            plain_spans: true,
            ..usual
        };
        Ok((known.name().to_owned(), settings))
    }
}

fn wanted(name: &str) -> Wanted {
    let (framework, variant) = match name.split_once('+') {
        Some((framework, variant)) => (framework, Some(variant.to_owned())),
        None => (name, None),
    };
    Wanted { framework: framework.to_owned(), variant }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> Result<Vec<Group>, String> {
        Plan::parse(text)?.groups(&Usual::FULL).map_err(|error| error.to_string())
    }

    #[test]
    fn a_plan_is_multiplied_out() {
        let groups = plan(
            "models = ['resnet50', 'bert']\nframeworks = ['bessemer', 'pytorch+eager']\nbatch_sizes = [1, 'max']\n\
             modes = ['train']\nprecisions = ['fp32', 'bf16']\nsequence_length = 64",
        )
        .unwrap();
        let names: Vec<String> = groups.iter().map(Group::name).collect();
        assert_eq!(names.len(), 8);
        assert_eq!((names[0].as_str(), names[7].as_str()), ("resnet50 train b1 fp32", "bert-base train bmax bf16"));
        let last = &groups[7];
        assert_eq!((last.warmup, last.steps, last.repeat, last.settings.sequence_length), (20, 100, 7, 64));
        assert_eq!(last.frameworks[1], Wanted { framework: "pytorch".into(), variant: Some("eager".into()) });
    }

    #[test]
    fn parts_take_the_rest_from_the_top() {
        let groups = plan(
            "frameworks = ['bessemer']\nsteps = 4\nmodels = ['resnet50']\n[[part]]\nmodes = ['train']\nbatch_sizes = [16]\n\
             [[part]]\nmodes = ['infer']\nbatch_sizes = [1]\nsteps = 60\n",
        )
        .unwrap();
        let names: Vec<(String, usize)> = groups.iter().map(|group| (group.name(), group.steps)).collect();
        assert_eq!(names, [("resnet50 train b16 fp32".into(), 4), ("resnet50 infer b1 fp32".into(), 60)]);
    }

    #[test]
    fn detectors_end_with_detections_and_with_the_outputs_of_the_network() {
        let names = |outputs: &str| -> Vec<String> {
            let text =
                format!("frameworks = ['x']\nmodels = ['efficientdet-d0', 'resnet50']\nbatch_sizes = [1]\n{outputs}");
            plan(&text).unwrap().iter().map(Group::name).collect()
        };
        assert_eq!(
            names(""),
            [
                "efficientdet-d0 train b1 fp32",
                "efficientdet-d0 infer detections b1 fp32",
                "efficientdet-d0 infer network b1 fp32",
                "resnet50 train b1 fp32",
                "resnet50 infer b1 fp32",
            ]
        );
        let chosen = names("outputs = ['network']\nmodes = ['infer']");
        assert_eq!(chosen, ["efficientdet-d0 infer network b1 fp32", "resnet50 infer b1 fp32"]);
    }

    #[test]
    fn what_is_wrong_is_reported() {
        for (text, expected) in [
            ("frameworks = ['x']", "no models"),
            ("models = ['resnet50']", "no frameworks"),
            ("models = ['resnet5']\nframeworks = ['x']", "resnet5"),
            ("models = ['resnet20-cifar']\nframeworks = ['x']", "not compared"),
            ("models = ['resnet50']\nframeworks = ['x']\nsteps = 0", "steps is 0"),
            ("models = ['resnet50']\nframeworks = ['x']\nbatch_sizes = [0]", "no batch size"),
            ("speed = 1", "unknown field `speed`, expected one of `models`, `modes`, `frameworks`"),
            ("speed = 1", "`outputs`, or tables [[part]]"),
            ("[[part]]\nspeed = 1", "unknown field `speed`, expected one of `models`"),
            ("steps = 'four'", "invalid type: string \"four\", expected a whole number, 0 or more"),
        ] {
            let error = plan(text).unwrap_err();
            assert!(error.contains(expected), "{expected} is missing in: {error}");
        }
    }
}
