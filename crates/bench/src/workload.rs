//! The steps that are measured and explained: a model of the zoo, a mode and a batch size.

use bessemer_data::text;
use bessemer_ir::ops::source::Input;
use bessemer_ir::{DType, Graph, philox};
use bessemer_models::bert::{self, BertConfig, BertOptions, BertSpec, Sequences};
use bessemer_models::electra::{
    self, ElectraConfig, ElectraOptions, ElectraSpec, ElectraSquadSpec, PretrainingOptions, SpanHead, SquadOptions,
    squad,
};
use bessemer_models::{AnyModel, LossOptions, Model, ModelError, ModelSpec, find_any};
use bessemer_nn::{
    Activation, Adam, Clip, ClipForm, ClipOf, DecayExclude, LossScale, Moments, Optimizer, ParamSpec, Schedule, Sgd,
    TrainConfig,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::str::FromStr;

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
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
    /// Whether answers to questions are found by one layer, and all layers trained at one rate, as other frameworks have it.
    pub plain_spans: bool,
}

impl Default for StepSettings {
    fn default() -> Self {
        Self { sequence_length: 128, predictions: 20, dropout: 0.1, clip: true, accumulation: 1, plain_spans: false }
    }
}

/// Sequences from which on the recipes of BERT's second phase have 80 words to predict.
const LONG_SEQUENCE: usize = 512;
/// Tokens of a window of questions.
const WINDOW: usize = 384;

impl StepSettings {
    /// The usual ones of a model, for sequences of this length if one is given.
    pub fn usual(model: AnyModel, sequence_length: Option<usize>) -> Self {
        let usual = Self::default();
        let length = match model {
            AnyModel::ElectraSquad(_) => WINDOW,
            AnyModel::Classifier(_) | AnyModel::Bert(_) | AnyModel::Electra(_) => usual.sequence_length,
        };
        let sequence_length = sequence_length.unwrap_or(length);
        let predictions = match model {
            AnyModel::Electra(_) => {
                text::ElectraOptions { sequence_length, ..text::ElectraOptions::default() }.predictions()
            }
            _ if sequence_length >= LONG_SEQUENCE => 80,
            _ => usual.predictions,
        };
        Self { sequence_length, predictions, ..usual }
    }

    /// Those that a model has, by name.
    pub fn of(&self, model: AnyModel) -> Vec<(&'static str, Value)> {
        match model {
            AnyModel::Classifier(_) => vec![("accumulation", self.accumulation.into())],
            AnyModel::Bert(_) | AnyModel::Electra(_) | AnyModel::ElectraSquad(_) => {
                let mut settings = vec![
                    ("accumulation", self.accumulation.into()),
                    ("sequence_length", self.sequence_length.into()),
                    ("dropout", self.dropout.into()),
                    ("clip", self.clip.into()),
                ];
                if !matches!(model, AnyModel::ElectraSquad(_)) {
                    settings.push(("predictions", self.predictions.into()));
                }
                settings
            }
        }
    }
}

/// Learning rates so low that no number of steps on one batch diverges, and that roundings do not grow beyond what a check
/// allows within a few steps: at 1e-3, two forms of one framework are 1e-3 apart in the loss of ResNet-50 after two updates.
pub(crate) const IMAGE_RATE: f64 = 2e-4;
pub(crate) const TEXT_RATE: f64 = 1e-4;
pub(crate) const LABEL_SMOOTHING: f64 = 0.1;
/// Global norm of the gradients of a model of text that are clipped.
pub(crate) const CLIP_NORM: f64 = 1.0;

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

/// What a feed is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fill {
    /// At random: whole numbers below this, or numbers of 0 to 1.
    Below(usize),
    Zero,
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
            Fill::Zero => 0,
            Fill::One => 1,
        };
        let real = |i: usize| match fill {
            Fill::Below(_) => sample(i),
            Fill::Zero => 0.0,
            Fill::One => 1.0,
        };
        match feed.ty.dtype {
            DType::U8 => (0..count).map(|i| (sample(i) * 256.0) as u8).collect(),
            DType::I32 => (0..count).flat_map(|i| whole(i).to_ne_bytes()).collect(),
            _ => (0..count).flat_map(|i| real(i).to_ne_bytes()).collect(),
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
    /// The step of a model of the zoo at its default size; in `f16`, with the loss scaled.
    ///
    /// # Errors
    /// [`ModelError`] for an unknown model or a size that is not possible.
    pub fn build(&self) -> Result<Workload, ModelError> {
        match find_any(self.model)? {
            AnyModel::Classifier(spec) => self.classifier(spec),
            AnyModel::Bert(spec) => self.bert(spec),
            AnyModel::Electra(spec) => self.electra(spec),
            AnyModel::ElectraSquad(spec) => self.questions(spec),
        }
    }

    fn classifier(&self, spec: &'static ModelSpec) -> Result<Workload, ModelError> {
        let options = spec.options();
        let Model { graph, specs } = match self.mode {
            Mode::Infer => Model::infer(spec.architecture, &options, self.batch_size)?,
            Mode::Train => {
                let loss = LossOptions { label_smoothing: LABEL_SMOOTHING, mixup: None };
                let train = self.training(AnyModel::Classifier(spec));
                Model::train(spec.architecture, &options, &loss, &train, self.batch_size)?
            }
        };
        Ok(Workload { graph, specs, fill: Fill::Below(options.num_classes), fills: Vec::new() })
    }

    fn bert(&self, spec: &'static BertSpec) -> Result<Workload, ModelError> {
        let config = self.bert_config(spec);
        let sequences = self.sequences();
        let Model { graph, specs } = match self.mode {
            Mode::Infer => bert::infer(&config, sequences, &BertOptions::default())?,
            Mode::Train => {
                bert::train(&config, sequences, &BertOptions::default(), &self.training(AnyModel::Bert(spec)))?
            }
        };
        let own = [
            ("masked_lm_positions", Fill::Below(sequences.length)),
            ("masked_lm_weights", Fill::One),
            ("next_sentence_labels", Fill::Below(2)),
        ];
        Ok(Workload { graph, specs, fill: Fill::Below(config.vocab_size), fills: with_tokens(own) })
    }

    /// Inference is the pass of the discriminator.
    fn electra(&self, spec: &'static ElectraSpec) -> Result<Workload, ModelError> {
        let config = self.electra_config(spec.config);
        let sequences = self.sequences();
        let Model { graph, specs } = match self.mode {
            Mode::Infer => electra::infer_discriminator(&config, sequences, &ElectraOptions::default())?,
            Mode::Train => {
                let options = PretrainingOptions::new(spec.generator_fraction);
                electra::train(&config, sequences, &options, &self.training(AnyModel::Electra(spec)))?
            }
        };
        let own = [
            ("masked_lm_positions", Fill::Below(sequences.length)),
            ("masked_lm_weights", Fill::One),
            ("masked_lm_replaced", Fill::One),
        ];
        Ok(Workload { graph, specs, fill: Fill::Below(config.encoder.vocab_size), fills: with_tokens(own) })
    }

    /// Every question has an answer, which the joint head looks for with a beam of 5, or a plain one.
    fn questions(&self, spec: &'static ElectraSquadSpec) -> Result<Workload, ModelError> {
        let config = self.electra_config(spec.config);
        let head = match self.settings.plain_spans {
            true => SpanHead::Plain,
            false => SpanHead::Joint { beam: 5, may_be_impossible: false },
        };
        let options = SquadOptions { network: ElectraOptions::default(), head };
        let Sequences { batch, length, .. } = self.sequences();
        let Model { graph, specs } = match self.mode {
            Mode::Infer => squad::predict(&config, batch, length, &options)?,
            Mode::Train => {
                squad::train(&config, batch, length, &options, &self.training(AnyModel::ElectraSquad(spec)))?
            }
        };
        let own =
            [("p_mask", Fill::Zero), ("start_positions", Fill::Below(length)), ("end_positions", Fill::Below(length))];
        Ok(Workload { graph, specs, fill: Fill::Below(config.encoder.vocab_size), fills: with_tokens(own) })
    }

    /// How a model is trained. Classifiers: by SGD with momentum, as in the reference recipes. Text: by Adam with decoupled decay, for
    /// BERT and for plain spans with the correction that every framework has; else as in Google's recipes, for questions at rates that
    /// fall with the depth.
    pub(crate) fn training(&self, model: AnyModel) -> TrainConfig {
        let clip =
            self.settings.clip.then_some(Clip { limit: CLIP_NORM, form: ClipForm::TensorFlow, of: ClipOf::Step });
        let text = |adam| TrainConfig { clip, ..self.train_config(Optimizer::Adam(adam), TEXT_RATE) };
        let google = Adam::bert(0.01);
        let common = Adam { moments: Moments { bias_correction: true, ..google.moments }, ..google };
        match model {
            AnyModel::Classifier(_) => self.train_config(
                Optimizer::Sgd(Sgd {
                    momentum: 0.875,
                    nesterov: false,
                    weight_decay: 1.0 / 32768.0,
                    decay_exclude: DecayExclude::BatchNorm,
                }),
                IMAGE_RATE,
            ),
            AnyModel::Bert(_) => text(common),
            AnyModel::Electra(_) => text(google),
            AnyModel::ElectraSquad(_) if self.settings.plain_spans => text(common),
            AnyModel::ElectraSquad(spec) => {
                TrainConfig { rate_factors: (spec.config)().layer_rates(0.8), ..text(Adam::electra(0.01)) }
            }
        }
    }

    /// With Google's activation.
    pub(crate) fn bert_config(&self, spec: &BertSpec) -> BertConfig {
        BertConfig { hidden_act: Activation::GeluTanh, ..self.with_dropout((spec.config)()) }
    }

    pub(crate) fn sequences(&self) -> Sequences {
        let StepSettings { sequence_length: length, predictions, .. } = self.settings;
        Sequences { batch: self.batch_size, length, predictions }
    }

    pub(crate) fn electra_config(&self, published: fn() -> ElectraConfig) -> ElectraConfig {
        let config = published();
        ElectraConfig { encoder: self.with_dropout(config.encoder), ..config }
    }

    fn with_dropout(&self, config: BertConfig) -> BertConfig {
        let dropout = self.settings.dropout;
        BertConfig { hidden_dropout_prob: dropout, attention_probs_dropout_prob: dropout, ..config }
    }

    fn train_config(&self, optimizer: Optimizer, rate: f64) -> TrainConfig {
        TrainConfig {
            loss_scale: (self.precision == DType::F16).then_some(LossScale { initial: 128.0, growth_steps: Some(100) }),
            accumulation: self.settings.accumulation,
            ..TrainConfig::new(optimizer, Schedule::constant(rate))
        }
    }
}

/// The feeds that all models of text have, without padding, and those of one of them.
fn with_tokens<const N: usize>(own: [(&'static str, Fill); N]) -> Vec<(&'static str, Fill)> {
    [("segment_ids", Fill::Below(2)), ("input_mask", Fill::One)].into_iter().chain(own).collect()
}
