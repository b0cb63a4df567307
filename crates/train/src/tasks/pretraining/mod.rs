//! Pre-training of BERT: masked tokens and following sentences.

mod family;
mod infer;
mod model;
mod recipe;
mod score;
mod sources;
mod workload;

pub use family::{Berts, FAMILY};
pub use infer::{FillOptions, Filled, MaskedToken, TokenScore, fill_masks};

use super::loaded::AsLoaded;
use super::text::{DatasetInfo, HeldOut, Part, TextFields, TextNetworks, VocabularyFields, check_length};
use super::{Better, Evaluation, Metric, MetricSchema, ReferenceName, ReferenceNames, Score};
use crate::error::TrainError;
use crate::evaluate::EvaluateOptions;
use crate::loaded_weights::LoadedWeights;
use crate::recipe::Recipe;
use crate::setup::RunShape;
use bessemer_data::DataError;
use bessemer_data::text::PretrainingSet;
use bessemer_models::Model;
use bessemer_models::bert::{self, BertConfig, BertOptions, Sequences};
use model::config_of;
use recipe::BertRecipe;
use score::MlmMetrics;
use std::path::Path;
use std::sync::Arc;

/// Losses are mean cross entropies in nats, over predicted tokens and over pairs of segments; accuracies are fractions. Beside
/// them stands what a model has as loss that knows how frequent each token is and nothing else.
pub static TERMS: MetricSchema = MetricSchema {
    samples: "sequences",
    unit: "sequences/s",
    parts: &["mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"],
    metrics: &[
        Metric::plain("mlm_loss", "masked tokens, loss", Some("validation loss of masked words"))
            .drawn_beside("unigram_entropy"),
        Metric::plain("unigram_entropy", "  of token frequencies", None),
        Metric::share(
            "mlm_accuracy",
            "masked words",
            "masked tokens found in validation (%)",
            ["mlm_correct", "mlm_total"],
        ),
        Metric::plain("nsp_loss", "next sentence, loss", None),
        Metric::share(
            "nsp_accuracy",
            "next sentence",
            "next sentences known in validation (%)",
            ["nsp_correct", "nsp_total"],
        ),
    ],
    best: ("mlm_loss", Better::Lower),
    reference: ReferenceNames {
        always: &[ReferenceName::new("train.loss", "average_loss"), ReferenceName::new("train.lr", "learning_rate")],
        summary: &[
            ReferenceName::new("train.total_ips", "training_sequences_per_second"),
            ReferenceName::new("train.final_loss", "final_loss"),
            ReferenceName::new("train.time", "raw_train_time"),
            ReferenceName::new("run.time", "e2e_train_time"),
        ],
    },
};

/// A BERT.
#[derive(Clone, Copy)]
pub(super) struct Bert(BertConfig);

impl TextNetworks for Bert {
    type Set = PretrainingSet;
    type Feeder = AsLoaded;

    const TERMS: &'static MetricSchema = &TERMS;
    const WORD_BIAS: &'static str = "cls.predictions.bias";

    fn fields(recipe: &Recipe) -> Result<(&TextFields, &VocabularyFields), TrainError> {
        let BertRecipe { text, vocabulary, .. } = recipe.own()?;
        Ok((text, vocabulary))
    }

    fn predictions(recipe: &Recipe) -> Result<usize, TrainError> {
        let BertRecipe { masking, .. } = recipe.own()?;
        Ok(masking.max_predictions as usize)
    }

    fn set(part: Part<'_>, recipe: &Recipe) -> Result<PretrainingSet, TrainError> {
        sources::set(part, recipe)
    }

    fn of(recipe: &Recipe, vocab_size: usize, _: Option<&Path>) -> Result<Self, TrainError> {
        Ok(Self(model::config(recipe, vocab_size)?))
    }

    fn info(set: &PretrainingSet) -> DatasetInfo {
        DatasetInfo {
            len: set.len(),
            sequence_length: set.sequence_length(),
            predictions: set.predictions(),
            vocab_size: set.vocabulary_size(),
            identity: set.identity(),
        }
    }

    fn word_counts(set: &PretrainingSet) -> Result<Vec<u64>, DataError> {
        set.word_counts(1)
    }

    fn unigram_entropy(set: &PretrainingSet) -> Result<f64, DataError> {
        set.unigram_entropy(1)
    }

    fn feeder() -> AsLoaded {
        AsLoaded
    }

    fn evaluation_feeder(&self, _: &PretrainingSet, _: usize) -> Result<AsLoaded, DataError> {
        Ok(AsLoaded)
    }

    fn vocab_size(&self) -> usize {
        self.0.vocab_size
    }

    fn training_step(&self, recipe: &Recipe, sequences: Sequences, shape: RunShape) -> Result<Model, TrainError> {
        model::training_step(recipe, &self.0, sequences, shape)
    }

    fn evaluation(&self, sequences: Sequences) -> Result<Model, TrainError> {
        Ok(bert::evaluate(&self.0, sequences, &BertOptions::default())?)
    }

    fn score(&self, unigram_entropy: f64) -> Box<dyn Score> {
        Box::new(MlmMetrics::new(unigram_entropy))
    }
}

/// Judges weights on the held-out half of prepared text.
pub(super) fn standalone_evaluation(
    name: &str,
    weights: &Path,
    data: &Path,
    options: &EvaluateOptions,
) -> Result<(Box<dyn Evaluation>, LoadedWeights), TrainError> {
    let trained = model::load(name, weights, options.weights)?;
    let config = config_of(name, &trained, weights)?;
    let set = sources::held_out_in(data, &trained)?;
    check_length(&config, set.sequence_length())?;
    Ok((Box::new(HeldOut::new(Bert(config), Arc::new(set), options.load, options.batch_size)?), trained))
}
