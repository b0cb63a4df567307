//! The steps that are measured and explained: a model of the zoo, a mode and a batch size.

use bessemer_ir::ops::source::Input;
use bessemer_ir::{DType, Graph, philox};
use bessemer_models::bert::{self, BertConfig, BertOptions, BertSpec, Sequences};
use bessemer_models::{AnyModel, LossOptions, Model, ModelError, ModelSpec, find_any};
use bessemer_nn::{
    Activation, Adam, Clip, ClipForm, DecayExclude, LossScale, Optimizer, ParamSpec, Schedule, Sgd, TrainConfig,
};
use serde::Serialize;
use serde_json::Value;
use std::str::FromStr;

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Train,
    Infer,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Mode::Train => "train",
            Mode::Infer => "infer",
        }
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Mode, String> {
        match text {
            "train" => Ok(Mode::Train),
            "infer" => Ok(Mode::Infer),
            other => Err(format!("`{other}` is no mode; there are train and infer")),
        }
    }
}

/// Settings of a step beside its batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepSettings {
    /// Tokens of a sequence, and words of it that are predicted.
    pub sequence_length: usize,
    pub predictions: usize,
    /// Dropout of everything that has one, in training.
    pub dropout: f64,
    /// Whether gradients of a model of text are clipped to a global norm of 1.
    pub clip: bool,
    /// Micro-batches of a training step.
    pub accumulation: u64,
}

impl Default for StepSettings {
    fn default() -> Self {
        Self { sequence_length: 128, predictions: 20, dropout: 0.1, clip: true, accumulation: 1 }
    }
}

impl StepSettings {
    /// Those that a model has, by name.
    pub fn of(&self, model: AnyModel) -> Vec<(&'static str, Value)> {
        match model {
            AnyModel::Classifier(_) => vec![("accumulation", self.accumulation.into())],
            AnyModel::Bert(_) => vec![
                ("accumulation", self.accumulation.into()),
                ("sequence_length", self.sequence_length.into()),
                ("predictions", self.predictions.into()),
                ("dropout", self.dropout.into()),
                ("clip", self.clip.into()),
            ],
        }
    }
}

/// A step to be built.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work<'a> {
    pub model: &'a str,
    pub mode: Mode,
    /// Samples of a micro-batch.
    pub batch_size: usize,
    pub precision: DType,
    pub settings: StepSettings,
}

/// What a feed of whole numbers is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fill {
    /// At random, below this.
    Below(usize),
    One,
}

/// A model's step before compilation.
pub struct Workload {
    pub graph: Graph,
    pub specs: Vec<ParamSpec>,
    /// For all feeds of whole numbers that are not named in `fills`.
    fill: Fill,
    fills: Vec<(&'static str, Fill)>,
}

impl Workload {
    /// Random content of a feed, the same for the same seed.
    pub fn content(&self, feed: &Input, seed: u64) -> Vec<u8> {
        let count = feed.ty.shape.elements();
        let sample = |i: usize| philox::uniform(seed, 0, 0, i as u64);
        let fill = self.fills.iter().find(|(name, _)| *name == feed.name).map_or(self.fill, |known| known.1);
        let whole = |i: usize| match fill {
            Fill::Below(bound) => (sample(i) * bound as f32) as i32,
            Fill::One => 1,
        };
        match feed.ty.dtype {
            DType::U8 => (0..count).map(|i| (sample(i) * 256.0) as u8).collect(),
            DType::I32 => (0..count).flat_map(|i| whole(i).to_ne_bytes()).collect(),
            _ if fill == Fill::One => (0..count).flat_map(|_| 1.0_f32.to_ne_bytes()).collect(),
            _ => (0..count).flat_map(|i| sample(i).to_ne_bytes()).collect(),
        }
    }
}

/// A step with the usual settings.
///
/// # Errors
/// As [`Work::build`].
pub fn workload(model: &str, mode: Mode, batch_size: usize, precision: DType) -> Result<Workload, ModelError> {
    Work { model, mode, batch_size, precision, settings: StepSettings::default() }.build()
}

impl Work<'_> {
    /// The step of a model of the zoo at its default size, at a learning rate so low that no number of steps on one batch
    /// diverges; in `f16`, with the loss scaled.
    ///
    /// # Errors
    /// [`ModelError`] for an unknown model or a size that is not possible.
    pub fn build(&self) -> Result<Workload, ModelError> {
        match find_any(self.model)? {
            AnyModel::Classifier(spec) => self.classifier(spec),
            AnyModel::Bert(spec) => self.bert(spec),
        }
    }

    /// Training is by SGD with momentum and label smoothing, as in the reference recipes.
    fn classifier(&self, spec: &ModelSpec) -> Result<Workload, ModelError> {
        let options = spec.options();
        let Model { graph, specs } = match self.mode {
            Mode::Infer => Model::infer(spec.architecture, &options, self.batch_size)?,
            Mode::Train => {
                let sgd = Sgd {
                    momentum: 0.875,
                    nesterov: false,
                    weight_decay: 1.0 / 32768.0,
                    decay_exclude: DecayExclude::BnSubstring,
                };
                let loss = LossOptions { label_smoothing: 0.1, mixup: None };
                let train = self.train_config(Optimizer::Sgd(sgd));
                Model::train(spec.architecture, &options, &loss, &train, self.batch_size)?
            }
        };
        Ok(Workload { graph, specs, fill: Fill::Below(options.num_classes), fills: Vec::new() })
    }

    /// Training is by Adam with decoupled decay, as in OneFlow's and Google's recipes.
    fn bert(&self, spec: &BertSpec) -> Result<Workload, ModelError> {
        let StepSettings { sequence_length: length, predictions, dropout, clip, .. } = self.settings;
        let config = BertConfig {
            hidden_dropout_prob: dropout,
            attention_probs_dropout_prob: dropout,
            hidden_act: Activation::GeluTanh,
            ..(spec.config)()
        };
        let sequences = Sequences { batch: self.batch_size, length, predictions };
        let Model { graph, specs } = match self.mode {
            Mode::Infer => bert::infer(&config, sequences, &BertOptions::default())?,
            Mode::Train => {
                let clip = clip.then_some(Clip { limit: 1.0, form: ClipForm::TensorFlow });
                let train = TrainConfig { clip, ..self.train_config(Optimizer::Adam(Adam::bert(0.01))) };
                bert::train(&config, sequences, &BertOptions::default(), &train)?
            }
        };
        let words = Fill::Below(config.vocab_size);
        let fills = vec![
            ("segment_ids", Fill::Below(config.type_vocab_size)),
            ("input_mask", Fill::One),
            ("masked_lm_positions", Fill::Below(length)),
            ("masked_lm_weights", Fill::One),
            ("next_sentence_labels", Fill::Below(2)),
        ];
        Ok(Workload { graph, specs, fill: words, fills })
    }

    fn train_config(&self, optimizer: Optimizer) -> TrainConfig {
        TrainConfig {
            loss_scale: (self.precision == DType::F16).then_some(LossScale { initial: 128.0, growth_steps: Some(100) }),
            accumulation: self.settings.accumulation,
            ..TrainConfig::new(optimizer, Schedule::constant(0.001))
        }
    }
}
