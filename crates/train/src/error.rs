//! Errors of this crate's commands, and the exit codes that they lead to.

use crate::checkpoint::CheckpointError;
use crate::device::{DeviceError, lacks_library};
use crate::events::EventError;
use crate::memory::BatchTooLarge;
use crate::recipe::RecipeError;
use crate::resume::LENGTH;
use crate::rundir::{RunDir, RunDirError};
use bessemer_comm::CommError;
use bessemer_data::{DataError, Position};
use bessemer_ir::run::{NonFinite, RunError};
use bessemer_metrics::MetricError;
use bessemer_metrics::coco::CocoError;
use bessemer_metrics::mask::MaskError;
use bessemer_models::{ModelError, WeightsError};
use bessemer_onnx::OnnxError;
use bessemer_weights::{FileError, TensorError};
use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

/// Why a command of this crate did not end well.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    #[error(transparent)]
    Data(#[from] DataError),
    /// A sample for training that is damaged.
    #[error("{0}; `bessemer data verify` lists all damaged samples, and --on-bad-sample skip trains without them")]
    Sample(DataError),
    /// A sample for evaluation that is damaged.
    #[error(
        "{0}; an evaluation counts every sample: `bessemer data verify` lists all damaged ones, which are to be mended or taken out"
    )]
    EvaluationSample(DataError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Batch(#[from] Box<BatchTooLarge>),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Event(#[from] EventError),
    #[error(transparent)]
    Metric(#[from] MetricError),
    #[error(transparent)]
    Coco(#[from] CocoError),
    #[error(transparent)]
    Mask(#[from] MaskError),
    #[error(transparent)]
    Ranks(#[from] CommError),

    #[error(transparent)]
    Onnx(#[from] OnnxError),

    #[error("{origin}: {source}")]
    Weights { origin: String, source: WeightsError },

    #[error("{origin}: {source}")]
    Tensor { origin: String, source: TensorError },

    #[error("{name} is {value}; {allowed}")]
    Setting { name: &'static str, value: String, allowed: String },

    #[error("{}: cannot {action}: {source}", path.display())]
    Io { path: PathBuf, action: &'static str, source: std::io::Error },

    #[error("{}: cannot be resumed with other settings; {}", run.display(), join(run, differences))]
    Resume { run: PathBuf, differences: Vec<Difference> },

    #[error(transparent)]
    NonFinite(Box<NonFiniteStep>),

    #[error(
        "{skipped} steps in a row, the last of them step {step}, were left out because the gradient overflows at the fixed loss \
         scale {scale}, so that nothing is learned; lower precision.loss_scale, let it adapt by \
         precision.loss_scale_growth_steps=2000, or train in bf16 or fp32 (precision.compute); earlier checkpoints are untouched"
    )]
    FixedLossScale { step: u64, skipped: u64, scale: f32 },

    #[error(
        "after step {step} the tensor `{tensor}` is not finite; it was not saved, earlier checkpoints are untouched"
    )]
    NonFiniteState { step: u64, tensor: String },

    #[error("the data ended after {step} steps, at epoch {}, batch {}: the run needs more", position.epoch, position.batch)]
    DataEnded { position: Position, step: u64 },

    #[error("{what} of rank 0 is {first}, that of rank {rank} is {other}; all ranks must agree")]
    RanksDiffer { what: &'static str, rank: usize, first: String, other: String },

    #[error(
        "after step {step} the tensor `{tensor}` is not the same on all ranks: a machine computes wrongly, or runs another program; \
         checkpoints after step {step} are not to be trusted"
    )]
    StateDiffers { step: u64, tensor: String },

    #[error("interrupted after step {step}; {}", go_on(checkpoint.as_deref()))]
    Interrupted { step: u64, checkpoint: Option<PathBuf> },
}

/// A field that decides what a run computes and that a resumed run was given another value for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Name of the field, such as `train.batch_size`.
    pub field: String,
    /// Its value in the recipe of the checkpoint.
    pub checkpoint: String,
    /// Its value in the recipe that was given.
    pub given: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} in the checkpoint, {} now", self.field, self.checkpoint, self.given)
    }
}

/// A training step whose loss or gradient is NaN or infinite.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "step {step}: the loss is {loss:?}{} at learning rate {lr}{}{}; training stopped and nothing was saved since the last \
     checkpoint; a lower schedule.base_lr, a longer schedule.warmup_epochs or train.clip_norm usually helps",
    grad_norm.map_or_else(String::new, |norm| format!(" and the norm of the gradient {norm:?}")),
    loss_scale.map_or_else(String::new, |scale| format!(" and loss scale {scale}, which cannot be lowered")),
    describe(found.as_ref())
)]
pub struct NonFiniteStep {
    /// Number of the step, from 1.
    pub step: u64,
    /// Loss of the step.
    pub loss: f32,
    /// Learning rate of the step.
    pub lr: f32,
    /// Norm of the gradient, if it is what is not finite.
    pub grad_norm: Option<f32>,
    /// What the loss was multiplied with, where it is scaled.
    pub loss_scale: Option<f32>,
    /// What is not finite first.
    pub found: Option<FirstNonFinite>,
}

/// The first value of a step that is not finite.
#[derive(Clone, Debug, PartialEq)]
pub struct FirstNonFinite {
    /// Its node.
    pub node: NonFinite,
    /// Number, from 1, of its micro-batch, where a step has several.
    pub micro_batch: Option<u64>,
}

/// What kind of end an error is, for exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The command line, a recipe, weights or data are wrong.
    Usage,
    /// The run failed.
    Runtime,
    /// Stopped on request after saving.
    Interrupted,
}

impl ErrorKind {
    /// Exit code of the process.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Usage => 2,
            Self::Runtime => 1,
            Self::Interrupted => 130,
        }
    }
}

impl TrainError {
    /// Which kind of end this error is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Recipe(_)
            | Self::Model(_)
            | Self::Device(_)
            | Self::Batch(_)
            | Self::Sample(_)
            | Self::EvaluationSample(_)
            | Self::Weights { .. }
            | Self::Tensor { .. }
            | Self::Setting { .. }
            | Self::Resume { .. }
            | Self::RanksDiffer { .. } => ErrorKind::Usage,
            Self::RunDir(error) => match error {
                RunDirError::Io { .. } => ErrorKind::Runtime,
                _ => ErrorKind::Usage,
            },
            Self::Data(error) => match error {
                DataError::Stopped { .. } => ErrorKind::Interrupted,
                error if error.is_usage() => ErrorKind::Usage,
                _ => ErrorKind::Runtime,
            },
            Self::Onnx(OnnxError::Graph(_)) => ErrorKind::Runtime,
            Self::File(error) | Self::Checkpoint(CheckpointError::File(error)) => match error {
                FileError::DiskFull { .. } | FileError::NotWritable { .. } | FileError::Io { .. } => ErrorKind::Runtime,
                FileError::Damaged { .. } | FileError::Tensor { .. } | FileError::NotFound { .. } => ErrorKind::Usage,
            },
            Self::Checkpoint(CheckpointError::Version { .. } | CheckpointError::NoneWhole { .. }) => ErrorKind::Usage,
            Self::Onnx(OnnxError::NoForm { .. } | OnnxError::Batch { .. } | OnnxError::TooLarge { .. }) => {
                ErrorKind::Usage
            }
            Self::Interrupted { .. } => ErrorKind::Interrupted,
            Self::Ranks(error) if error.is_usage() => ErrorKind::Usage,
            Self::Ranks(_) => ErrorKind::Runtime,
            Self::Run(error) if lacks_library(error) => ErrorKind::Usage,
            Self::Run(_)
            | Self::Event(_)
            | Self::Metric(_)
            | Self::Coco(_)
            | Self::Mask(_)
            | Self::Io { .. }
            | Self::NonFinite(_)
            | Self::FixedLossScale { .. }
            | Self::NonFiniteState { .. }
            | Self::DataEnded { .. }
            | Self::StateDiffers { .. } => ErrorKind::Runtime,
        }
    }

    /// What reading a batch of an evaluation gave.
    pub(crate) fn of_evaluation(self) -> Self {
        match self {
            Self::Data(error) if error.is_of_sample() => Self::EvaluationSample(error),
            error => error,
        }
    }

    /// Whether data could not be read.
    pub(crate) fn is_of_data(&self) -> bool {
        matches!(self, Self::Data(_) | Self::Sample(_) | Self::EvaluationSample(_))
    }

    /// Whether it tells of a failure that other ranks of the job know of.
    pub(crate) fn is_of_other_rank(&self) -> bool {
        let of_job = |error: &CommError| matches!(error, CommError::Job(_) | CommError::Cancelled);
        match self {
            Self::Ranks(error) => of_job(error),
            Self::Run(RunError::Ranks(error)) => error.downcast_ref().is_some_and(of_job),
            _ => false,
        }
    }

    pub(crate) fn setting(name: &'static str, value: impl ToString, allowed: impl Into<String>) -> Self {
        Self::Setting { name, value: value.to_string(), allowed: allowed.into() }
    }

    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), action, source }
    }
}

impl From<bessemer_ir::GraphError> for TrainError {
    fn from(error: bessemer_ir::GraphError) -> Self {
        Self::Model(error.into())
    }
}

/// What differs, and how a run of another length goes on, as its rates depend on the length.
fn join(run: &Path, differences: &[Difference]) -> String {
    let all = differences.iter().map(Difference::to_string).collect::<Vec<_>>().join("; ");
    let is_length = |difference: &Difference| LENGTH.contains(&difference.field.as_str());
    match differences.iter().all(is_length) {
        true => format!("{all}; a new run goes on from its weights: --init-from {}", as_word(run)),
        false => all,
    }
}

/// A path as a word of a shell's command line.
pub fn as_word(path: &Path) -> String {
    let text = path.to_string_lossy();
    shlex::try_quote(&text).map_or_else(|_| text.to_string(), Cow::into_owned)
}

/// How to go on from a checkpoint, `RUN/checkpoints/NAME`.
fn go_on(checkpoint: Option<&Path>) -> String {
    let Some(checkpoint) = checkpoint else { return "nothing to save".to_owned() };
    let run = RunDir::of_checkpoint(checkpoint);
    format!("saved {}; go on with: bessemer train --resume {}", checkpoint.display(), as_word(run))
}

fn describe(found: Option<&FirstNonFinite>) -> String {
    match found {
        None => String::new(),
        Some(FirstNonFinite { node, micro_batch: None }) => format!("; {node}"),
        Some(FirstNonFinite { node, micro_batch: Some(number) }) => format!("; in micro-batch {number}, {node}"),
    }
}
