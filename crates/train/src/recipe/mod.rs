//! Recipes: everything that decides what a training run computes, as typed TOML.
//!
//! Fields left out take the defaults below. [`Recipe::to_toml`] writes all of them, so that a resolved recipe says by
//! itself what was run. Fields of other tasks, optimizers and schedules than the recipe's are refused, and not written.

mod builtin;
mod check;
mod owned;
mod parse;
mod schedule;
mod squad;
mod text;

#[cfg(test)]
mod tests;

pub use builtin::builtin_names;
pub use parse::{Override, RecipeError};
pub use schedule::{Per, Schedule, ScheduleKind, ScheduleRecipe, WarmupForm};
pub use squad::{SpanHead, SquadRecipe};
pub use text::{MaskedMean, Masking, TextRecipe};

use crate::tasks::Kind;
use bessemer_ir::DType;
use bessemer_nn::PixelScale;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    pub name: String,
    #[serde(default)]
    pub description: String,
    pub model: ModelRecipe,
    #[serde(default)]
    pub data: DataRecipe,
    #[serde(default)]
    pub text: TextRecipe,
    #[serde(default)]
    pub squad: SquadRecipe,
    pub train: TrainRecipe,
    #[serde(default)]
    pub optimizer: OptimizerRecipe,
    pub schedule: ScheduleRecipe,
    #[serde(default)]
    pub precision: PrecisionRecipe,
    #[serde(default)]
    pub eval: EvalRecipe,
    #[serde(default)]
    pub checkpoint: CheckpointRecipe,
    #[serde(default)]
    pub loader: LoaderRecipe,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelRecipe {
    /// A name of the zoo.
    pub name: String,
    /// Of a classifier, which must say it.
    #[serde(default)]
    pub num_classes: u64,
    #[serde(default)]
    pub padding: Padding,
    #[serde(default)]
    pub stride_in: StrideIn,
    /// Start the last batch-norm gamma of each residual block at 0 instead of 1.
    #[serde(default)]
    pub zero_init_last_gamma: bool,
    /// Absent for the usual one of the task, which a resolved recipe names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init: Option<Init>,
    /// Standard deviation of the initial matrices and embeddings of a model of text.
    #[serde(default = "fiftieth")]
    pub init_std: f64,
    /// The bias of each word's score in pre-training.
    #[serde(default)]
    pub word_bias: WordBias,
    /// Of a model of text: dropout of embeddings and of what each half of a layer adds.
    #[serde(default = "tenth")]
    pub hidden_dropout: f64,
    /// Dropout of attention's probabilities.
    #[serde(default = "tenth")]
    pub attention_dropout: f64,
    #[serde(default)]
    pub activation: Activation,
    /// The vocabulary is filled up to a multiple of this with words that never occur.
    #[serde(default = "eight")]
    pub vocab_multiple: u64,
    /// Width of ELECTRA's generator as a share of the discriminator's; absent for that of the model as published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generator_fraction: Option<f64>,
    /// Weight of the discriminator's loss; the generator's has 1.
    #[serde(default = "fifty")]
    pub discriminator_weight: f64,
    /// Where the words come from that an ELECTRA's discriminator is to find.
    #[serde(default)]
    pub generator: Generator,
    /// Never put in the right word.
    #[serde(default)]
    pub disallow_correct: bool,
}

/// Form of the Gaussian error linear unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x * (1 + erf(x / sqrt(2))) / 2`.
    #[default]
    Gelu,
    /// By the hyperbolic tangent, as in NVIDIA's recipes of BERT.
    GeluTanh,
}

fn fifty() -> f64 {
    50.0
}

fn fiftieth() -> f64 {
    0.02
}

fn eight() -> u64 {
    8
}

/// Padding of strided convolutions and pooling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Padding {
    /// `(kernel - 1) / 2` on both sides.
    #[default]
    Symmetric,
    /// TensorFlow's `SAME`: at stride 2 the smaller half comes first.
    Same,
}

/// The convolution of a bottleneck block that carries the block's stride.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StrideIn {
    /// ResNet v1.5.
    #[default]
    #[serde(rename = "3x3")]
    Conv3x3,
    /// ResNet v1.
    #[serde(rename = "1x1")]
    Conv1x1,
}

/// Where the words come from that an ELECTRA's discriminator is to find.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Generator {
    /// A network that is trained along.
    #[default]
    Network,
    /// Any word of the vocabulary, each as likely as the others.
    Uniform,
    /// The words that were drawn in the batch, as often as they are there.
    Batch,
}

/// Initial bias of the scores of words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WordBias {
    /// As published.
    #[default]
    Zeros,
    /// The logarithm of the word's frequency in the training data, so that the loss begins near the entropy of the frequencies.
    LogFrequencies,
}

/// Initial weights: of convolutions and the classifier, or of a model of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Init {
    /// Convolutions Kaiming normal by fan-in; classifier weight and bias uniform within `1/sqrt(fan_in)`.
    Torch,
    /// Both truncated normal with variance `2/fan_in`; classifier bias zero.
    VarianceScaling,
    /// Matrices and embeddings of a model of text normal with the deviation `init_std`; biases zero.
    Normal,
    /// The same cut at two deviations.
    Truncated,
    /// As `normal`, but layers with an activation uniform within `1/sqrt(inputs)`, weights and biases.
    NvidiaTorch,
    /// As `normal`, but embeddings, queries and keys begin by comparing words and places: for small models and little text.
    Mimetic,
}

impl Init {
    /// Those of a task, the usual one first.
    pub fn of(task: Kind) -> &'static [Self] {
        match task {
            Kind::Classification => &[Self::Torch, Self::VarianceScaling],
            Kind::Pretraining => &[Self::Normal, Self::Truncated, Self::NvidiaTorch, Self::Mimetic],
            Kind::Electra | Kind::Squad => &[Self::Truncated, Self::Normal, Self::Mimetic],
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataRecipe {
    /// A folder, `synthetic` or `shapes`; usually given on the command line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Sizes of data sets that are made on the fly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train_samples: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_samples: Option<u64>,
    /// Height and width in training, pixels.
    pub image_size: u64,
    /// Range of the random crop's area, as a fraction of the image's.
    pub crop_scale: [f64; 2],
    /// Range of the random crop's width over its height.
    pub crop_ratio: [f64; 2],
    /// Probability of a horizontal flip.
    pub flip: f64,
    /// Short side before the centre crop of evaluation, pixels.
    pub eval_resize: u64,
    /// Height and width in evaluation, pixels.
    pub eval_image_size: u64,
    /// Per channel, of values in `[0, 1]`.
    pub mean: [f64; 3],
    pub std: [f64; 3],
    /// Added to every label; 1 for models whose class 0 is the background.
    pub label_offset: u64,
}

impl Default for DataRecipe {
    fn default() -> Self {
        Self {
            source: None,
            train_samples: None,
            eval_samples: None,
            image_size: 224,
            crop_scale: [0.08, 1.0],
            crop_ratio: [3.0 / 4.0, 4.0 / 3.0],
            flip: 0.5,
            eval_resize: 256,
            eval_image_size: 224,
            mean: PixelScale::IMAGENET.mean,
            std: PixelScale::IMAGENET.std,
            label_offset: 0,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainRecipe {
    /// Samples per device and micro-batch.
    pub batch_size: u64,
    /// Micro-batches of a step.
    #[serde(default = "one")]
    pub accumulation: u64,
    /// Length of the run; exactly one of `epochs` and `steps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    #[serde(default)]
    pub seed: u64,
    #[serde(default)]
    pub label_smoothing: f64,
    /// Parameter of mixup's Beta(alpha, alpha); 0 for no mixup.
    #[serde(default)]
    pub mixup_alpha: f64,
    /// Largest norm of the whole gradient; absent for no clipping.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_norm: Option<f64>,
    /// Whose gradient is limited: that of the whole step, or of each micro-batch.
    #[serde(default)]
    pub clip_of: ClipOf,
    /// Decay of the averaged weights; absent for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ema_decay: Option<f64>,
    /// Leave out the last batch of an epoch if it is not full.
    #[serde(default = "yes")]
    pub drop_last: bool,
}

impl TrainRecipe {
    /// Samples of a step.
    pub fn step_samples(&self) -> u64 {
        self.batch_size.saturating_mul(self.accumulation)
    }
}

fn one() -> u64 {
    1
}

fn yes() -> bool {
    true
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OptimizerRecipe {
    pub kind: OptimizerKind,
    pub momentum: f64,
    pub nesterov: bool,
    /// Decay of the running means of gradients and of their squares.
    pub betas: [f64; 2],
    pub eps: f64,
    pub eps_form: EpsForm,
    /// Whether the means make up for their start at zero.
    pub bias_correction: bool,
    pub trust: Trust,
    /// `sgd` and `adam` add `weight_decay * w` to the gradient; the others to the direction of the step.
    pub weight_decay: f64,
    pub decay_exclude: DecayExclude,
    /// Learning rates fall by this factor from layer to layer below the heads.
    pub layer_decay: f64,
}

impl Default for OptimizerRecipe {
    fn default() -> Self {
        Self {
            kind: OptimizerKind::Sgd,
            momentum: 0.9,
            nesterov: false,
            betas: [0.9, 0.999],
            eps: 1e-6,
            eps_form: EpsForm::PastRoot,
            bias_correction: true,
            trust: Trust::Decayed,
            weight_decay: 1e-4,
            decay_exclude: DecayExclude::None,
            layer_decay: 1.0,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerKind {
    /// `v = momentum * v + g; w = w - lr * v`.
    #[default]
    Sgd,
    /// `w = w - lr * m / (sqrt(v) + eps)` with running means `m` of the gradient and `v` of its square.
    Adam,
    /// The same, with weight decay beside the means.
    Adamw,
    /// The direction of `adamw`, scaled in each tensor by the norm of the weights over its own.
    Lamb,
}

/// Whose gradient `train.clip_norm` limits, in steps of several micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClipOf {
    /// Their mean.
    #[default]
    Step,
    /// That of each micro-batch, before the mean is taken: BERT's pre-training in TensorFlow 1.
    MicroBatch,
}

/// Where `eps` stands in `adam`, `adamw` and `lamb`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EpsForm {
    /// `m / (sqrt(v) + eps)`, of corrected means.
    #[default]
    PastRoot,
    /// `m / sqrt(v + eps)`.
    InRoot,
    /// As the first, but the correction of both means comes after: ELECTRA's fine-tuning in TensorFlow.
    BeforeCorrection,
}

/// Tensors that `lamb` scales.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trust {
    /// Those that decay: NVIDIA's form for PyTorch.
    #[default]
    Decayed,
    All,
}

/// Parameters that weight decay leaves alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecayExclude {
    /// Everything decays.
    #[default]
    None,
    /// Parameters with `bn` in their name; batch-norms that are named otherwise (`downsample.1`) decay.
    BnSubstring,
    /// All batch-norm parameters.
    Bn,
    /// All batch-norm parameters and all biases.
    BnAndBias,
    /// Parameters with `LayerNorm`, `gamma`, `beta` or `bias` in their name.
    LayerNormAndBias,
}

fn tenth() -> f64 {
    0.1
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PrecisionRecipe {
    pub compute: Compute,
    /// First loss scale, used with `fp16`; given alone, it never changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// Steps without overflow after which the scale doubles. Where neither is given for `fp16`, the scale adapts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale_growth_steps: Option<u64>,
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
    #[default]
    Fp32,
    Tf32,
    Bf16,
    Fp16,
}

impl Compute {
    /// As in recipes.
    pub fn name(self) -> &'static str {
        match self {
            Compute::Fp32 => "fp32",
            Compute::Tf32 => "tf32",
            Compute::Bf16 => "bf16",
            Compute::Fp16 => "fp16",
        }
    }

    /// The type of stored tensors; `None` for what CPUs do not have.
    pub fn on_cpu(self) -> Option<DType> {
        match self {
            Compute::Fp32 => Some(DType::F32),
            Compute::Tf32 => None,
            Compute::Bf16 => Some(DType::Bf16),
            Compute::Fp16 => Some(DType::F16),
        }
    }
}

/// When to evaluate; at the end in any case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvalRecipe {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_epochs: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_steps: Option<u64>,
    /// Samples per device and step; absent for the batch size of training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<u64>,
}

/// When to save; at the end in any case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointRecipe {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_epochs: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_steps: Option<u64>,
    /// How many of the newest to keep; the best is kept in addition.
    pub keep: u64,
}

impl Default for CheckpointRecipe {
    fn default() -> Self {
        Self { every_epochs: None, every_steps: None, keep: 2 }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoaderRecipe {
    /// Threads that prepare samples; 0 chooses by the machine. Has no influence on the batches.
    pub workers: u64,
    /// Batches made ahead of the step that uses them.
    pub prefetch: u64,
    pub on_bad_sample: OnBadSample,
}

impl Default for LoaderRecipe {
    fn default() -> Self {
        Self { workers: 0, prefetch: 2, on_bad_sample: OnBadSample::Stop }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnBadSample {
    #[default]
    Stop,
    Skip,
}
