//! Recipes: everything that decides what a training run computes, as typed TOML.
//!
//! The name of the model decides the family, and the family which fields a recipe has beside those that all have: see
//! [`FamilySections`]. Fields left out take their defaults. [`Recipe::to_toml`] writes all of them, so that a resolved recipe
//! says by itself what was run.

mod builtin;
mod check;
mod family;
mod optimizer;
mod parse;
mod schedule;
mod section;
mod share;

#[cfg(test)]
mod tests;

pub use builtin::builtin_names;
pub(crate) use check::require;
pub(crate) use family::family_recipe;
pub use family::{FamilySections, OwnPart, RecipePart};
pub use optimizer::{AdamFields, LambFields, OptimizerKind, OptimizerRecipe, OptimizerRule, SgdFields};
pub use parse::{Override, Problem, RecipeError};
pub use schedule::{Per, Schedule, ScheduleKind, ScheduleRecipe, WarmupForm};
pub(crate) use section::section;
pub use section::{Field, Meaning, Range, Reader, Section, Writer, defaults, to_value};
pub use share::StepShare;

use crate::device::DeviceKind;
use crate::error::TrainError;
use crate::tasks::registry;
use bessemer_data::OnBadSample;
use bessemer_ir::DType;
use bessemer_ir::passes::CompileOptions;
use bessemer_nn::{ClipOf, Over};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Most samples of a batch.
const BATCH: f64 = 65_536.0;
/// Most of what is counted over a run.
const COUNT: f64 = 1e12;
/// Most epochs of a run.
const EPOCHS: f64 = 1e6;

/// How a model is trained.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// Name in messages and in names of run folders.
    pub name: String,
    /// One sentence for lists of recipes.
    pub description: String,
    /// Which model is trained.
    pub model: ModelRecipe,
    /// What it is trained on.
    pub data: DataRecipe,
    /// Length of the run, batch size and regularisation.
    pub train: TrainRecipe,
    /// How gradients become changes of parameters.
    pub optimizer: OptimizerRecipe,
    /// Learning rate over the run.
    pub schedule: ScheduleRecipe,
    /// Precision of the arithmetic and scaling of the loss.
    pub precision: PrecisionRecipe,
    /// When and how the model is evaluated.
    pub eval: EvalRecipe,
    /// When checkpoints are written, and how many are kept.
    pub checkpoint: CheckpointRecipe,
    /// How samples are loaded.
    pub loader: LoaderRecipe,
    /// What the run begins with.
    pub start: StartRecipe,
    /// What the family of the model has beside.
    own: OwnPart,
}

impl Recipe {
    /// Whether a run keeps averages of its weights, which its evaluations then take.
    pub(crate) fn keeps_averages(&self) -> bool {
        self.train.ema_decay.is_some()
    }

    /// The fields that the family of the model has beside those of all recipes.
    ///
    /// # Errors
    /// A recipe of another family.
    pub fn own<T: FamilySections>(&self) -> Result<&T, TrainError> {
        self.own.get().ok_or_else(|| {
            let family = registry::find(&self.model.name).map_or("no family", |model| model.family().noun());
            TrainError::setting("the model", &self.model.name, format!("recipe {} is of {family}", self.name))
        })
    }
}

section! {
    /// The model; its family adds fields.
    pub struct ModelRecipe {
        /// A name of the zoo.
        pub name: String;
    }
}

section! {
    /// The data; families add fields.
    pub struct DataRecipe {
        /// A folder, `synthetic` or `shapes`; usually given on the command line.
        pub source: Option<String>, place;
        /// Number of generated samples for training; only for generated data.
        pub train_samples: Option<u64> => Range::closed(1.0, COUNT);
        /// Number of generated samples for evaluation; only for generated data.
        pub eval_samples: Option<u64> => Range::closed(1.0, COUNT), free;
    }
}

section! {
    /// Batches, the length of the run, gradients and averages; families add fields.
    pub struct TrainRecipe {
        /// Samples per device and micro-batch.
        pub batch_size: u64 => Range::closed(1.0, BATCH);
        /// Micro-batches of a step.
        pub accumulation: u64 = 1 => Range::closed(1.0, 1e6);
        /// Length of the run; exactly one of `epochs` and `steps`.
        pub epochs: Option<u64> => Range::closed(1.0, EPOCHS);
        /// Length of the run in updates; see `epochs`.
        pub steps: Option<u64> => Range::closed(1.0, COUNT);
        /// Samples of an epoch, where that is not one pass over the data.
        pub epoch_samples: Option<u64> => Range::closed(1.0, COUNT);
        /// Seed of initial weights, order of samples, augmentation and dropout.
        pub seed: u64 = 0 => Range::closed(0.0, i64::MAX as f64);
        /// Largest norm of the gradient of each tensor alone, limited before that of the whole gradient; absent for no limit.
        pub clip_each_norm: Option<f64> => Range::above(0.0, 1e6);
        /// Largest norm of the whole gradient; absent for no clipping.
        pub clip_norm: Option<f64> => Range::above(0.0, 1e6);
        /// Whose gradient is limited: that of the whole step, or of each micro-batch.
        pub clip_of: ClipOf = ClipOf::Step;
        /// Whose samples batch norms take mean and variance of: those of one rank, or of all ranks.
        pub norms_over: Over = Over::Rank;
        /// Whose weights weighted losses are divided by (masked words, matched boxes): those of one rank, or of all ranks.
        pub means_over: Over = Over::Rank;
        /// Decay of the averaged weights; absent for none.
        pub ema_decay: Option<f64> => Range::between(0.0, 1.0);
        /// Whether the decay after step `t` is at most `(1 + t) / (10 + t)`.
        pub ema_ramp: bool = false;
    }
}

impl TrainRecipe {
    /// Samples of a step.
    pub fn step_samples(&self) -> u64 {
        self.batch_size.saturating_mul(self.accumulation)
    }
}

section! {
    /// Numbers in which a run computes.
    pub struct PrecisionRecipe {
        /// Precision of products and of the tensors between layers.
        pub compute: Compute = Compute::Fp32;
        /// First loss scale, used with `fp16`; given alone, it never changes.
        pub loss_scale: Option<f64> => Range::closed(1.0, 4_294_967_296.0);
        /// Steps without overflow after which the scale doubles. Where neither is given for `fp16`, the scale adapts.
        pub loss_scale_growth_steps: Option<u64> => Range::closed(1.0, 1e6);
    }
}

impl PrecisionRecipe {
    /// First scale of a loss scale that adapts, as in PyTorch's `GradScaler`.
    const FIRST_LOSS_SCALE: f64 = 65_536.0;
    /// Steps without overflow after which a scale doubles by default, as there.
    const GROWTH_STEPS: u64 = 2_000;

    /// Makes the loss scale of `fp16` explicit.
    fn resolve(&mut self) {
        if self.compute != Compute::Fp16 {
            return;
        }
        if self.loss_scale.is_none() {
            self.loss_scale_growth_steps.get_or_insert(Self::GROWTH_STEPS);
        }
        self.loss_scale.get_or_insert(Self::FIRST_LOSS_SCALE);
    }

    /// The first loss scale and the steps without overflow after which it doubles, if it adapts; `None` for precisions that
    /// need none.
    pub fn loss_scaling(&self) -> Option<(f64, Option<u64>)> {
        let first = self.loss_scale.unwrap_or(Self::FIRST_LOSS_SCALE);
        (self.compute == Compute::Fp16).then_some((first, self.loss_scale_growth_steps))
    }
}

/// Numbers in which tensors are stored and products computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compute {
    /// IEEE binary32 everywhere.
    #[default]
    Fp32,
    /// Stored as `fp32`, products of operands rounded to 10 bits of fraction; GPUs only.
    Tf32,
    /// Products of `bf16` operands, accumulated in `fp32`.
    Bf16,
    /// Products of `fp16` operands, accumulated in `fp32`, with a scaled loss.
    Fp16,
}

impl Compute {
    /// All precisions that recipes can ask for.
    pub const ALL: [Self; 4] = [Self::Fp32, Self::Tf32, Self::Bf16, Self::Fp16];

    /// As in recipes.
    pub fn name(self) -> &'static str {
        match self {
            Compute::Fp32 => "fp32",
            Compute::Tf32 => "tf32",
            Compute::Bf16 => "bf16",
            Compute::Fp16 => "fp16",
        }
    }

    /// The type of stored tensors; `None` for what a kind of device does not have.
    pub fn on(self, device: DeviceKind) -> Option<DType> {
        match (self, device) {
            (Compute::Fp32, DeviceKind::Cpu | DeviceKind::Cuda { .. }) => Some(DType::F32),
            (Compute::Tf32, DeviceKind::Cpu) => None,
            (Compute::Tf32, DeviceKind::Cuda { .. }) => Some(DType::F32),
            (Compute::Bf16, DeviceKind::Cpu | DeviceKind::Cuda { .. }) => Some(DType::Bf16),
            (Compute::Fp16, DeviceKind::Cpu | DeviceKind::Cuda { .. }) => Some(DType::F16),
        }
    }

    /// The precisions that a kind of device has.
    pub fn all_on(device: DeviceKind) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |known| known.on(device).is_some())
    }

    /// These options with this precision.
    ///
    /// # Errors
    /// The kind of device does not have it; its own ones are listed.
    pub fn options(self, device: DeviceKind, options: CompileOptions) -> Result<CompileOptions, String> {
        let precision = self.on(device).ok_or_else(|| {
            let allowed = Self::all_on(device).map(Self::name).collect::<Vec<_>>().join(", ");
            format!("allowed on {device}: {allowed}")
        })?;
        Ok(CompileOptions { precision, tf32: self == Self::Tf32, ..options })
    }
}

section! {
    /// When to evaluate; at the end in any case.
    pub struct EvalRecipe {
        /// Epochs from one evaluation to the next; at most one of this and `every_steps`.
        pub every_epochs: Option<u64> => Range::closed(1.0, EPOCHS), free;
        /// Updates from one evaluation to the next.
        pub every_steps: Option<u64> => Range::closed(1.0, COUNT), free;
        /// Epochs that must be done before the first evaluation; the one at the end comes in any case.
        pub from_epoch: Option<u64> => Range::closed(0.0, EPOCHS), free;
        /// Samples per device and step; absent for the batch size of training.
        pub batch_size: Option<u64> => Range::closed(1.0, BATCH), free;
    }
}

section! {
    /// When to save; at the end in any case.
    pub struct CheckpointRecipe {
        /// Epochs from one checkpoint to the next; at most one of this and `every_steps`.
        pub every_epochs: Option<u64> => Range::closed(1.0, EPOCHS), free;
        /// Updates from one checkpoint to the next.
        pub every_steps: Option<u64> => Range::closed(1.0, COUNT), free;
        /// How many of the newest to keep; the best is kept in addition.
        pub keep: u64 = 2 => Range::closed(1.0, 10_000.0), free;
    }
}

section! {
    /// How samples are loaded. Has no influence on the batches.
    pub struct LoaderRecipe {
        /// Threads that prepare samples; 0 chooses by the machine.
        pub workers: u64 = 0 => Range::closed(0.0, 1024.0), free;
        /// Batches made ahead of the step that uses them.
        pub prefetch: u64 = 2 => Range::closed(1.0, 1024.0), free;
        /// What happens when a sample cannot be read.
        pub on_bad_sample: OnBadSample = OnBadSample::Stop, free;
    }
}

section! {
    /// What a run begins with; with neither field, weights drawn from the seed.
    pub struct StartRecipe {
        /// Weights of a file, a checkpoint or a run.
        pub weights: Option<PathBuf>, place;
        /// A run, of which the newest checkpoint is taken, or a checkpoint, with its weights, moments and averages: the next phase of a
        /// training in several, with a schedule that begins at step 0.
        pub init_from: Option<PathBuf>, place;
    }
}

impl StartRecipe {
    /// Weights of a file, a checkpoint or a run.
    pub fn weights(path: impl Into<PathBuf>) -> Self {
        Self { weights: Some(path.into()), init_from: None }
    }

    /// Weights, moments and averages of a run or a checkpoint.
    pub fn init_from(path: impl Into<PathBuf>) -> Self {
        Self { weights: None, init_from: Some(path.into()) }
    }

    /// Where the weights come from that are not drawn from the seed.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.weights.as_deref().or(self.init_from.as_deref())
    }
}
