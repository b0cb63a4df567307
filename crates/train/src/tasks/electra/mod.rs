//! Pre-training of ELECTRA: tokens that a generator replaced are detected.

mod batches;
mod family;
mod infer;
mod model;
mod names;
mod recipe;
mod score;
mod sources;
mod workload;

pub use family::{Electras, FAMILY};
pub use infer::{ClassifiedText, ClassifyOptions, TokenVerdict, classify_tokens};

pub(crate) use model::Networks;
pub(crate) use names::description;
pub(crate) use recipe::ElectraRecipe;

use self::batches::EvaluationFeeds;
use super::text::{DatasetInfo, HeldOut, Part, TextFields, TextNetworks, VocabularyFields, vocabulary_in};
use super::{Better, Evaluation, Metric, MetricSchema, ReferenceName, ReferenceNames, Score};
use crate::error::TrainError;
use crate::evaluate::EvaluateOptions;
use crate::loaded_weights::LoadedWeights;
use crate::recipe::Recipe;
use crate::setup::{RunShape, train_config};
use bessemer_data::text::{ElectraSet, Vocabulary};
use bessemer_data::{DataError, Split};
use bessemer_models::Model;
use bessemer_models::bert::Sequences;
use bessemer_models::electra;
use score::RtdMetrics;
use std::path::Path;
use std::sync::Arc;

/// Losses are mean cross entropies in nats: of the generator over predicted tokens, of the discriminator over all tokens;
/// `loss` is their weighted sum. Precision and recall are of replaced tokens.
pub static TERMS: MetricSchema = MetricSchema {
    samples: "sequences",
    unit: "sequences/s",
    parts: &[
        "mlm_loss",
        "mlm_accuracy",
        "sampled_accuracy",
        "disc_loss",
        "disc_accuracy",
        "disc_precision",
        "disc_recall",
    ],
    metrics: &[
        Metric::plain("loss", "loss of both networks", Some("validation loss of both networks")),
        Metric::plain("mlm_loss", "generator, loss", Some("validation loss of the generator"))
            .drawn_beside("unigram_entropy"),
        Metric::plain("unigram_entropy", "  of token frequencies", None),
        Metric::share(
            "mlm_accuracy",
            "generator",
            "masked tokens found in validation (%)",
            ["mlm_correct", "mlm_weight"],
        ),
        Metric::share(
            "sampled_accuracy",
            "  by its samples",
            "masked tokens drawn right in validation (%)",
            ["sampled_correct", "mlm_weight"],
        ),
        Metric::plain("disc_loss", "discriminator, loss", Some("validation loss of the discriminator")),
        Metric::share(
            "disc_accuracy",
            "discriminator",
            "tokens classified correctly in validation (%)",
            ["disc_correct", "disc_weight"],
        ),
        Metric::share("disc_precision", "  precision", "precision in validation (%)", ["disc_found", "disc_suspected"]),
        Metric::share("disc_recall", "  recall", "recall in validation (%)", ["disc_found", "disc_replaced"]),
    ],
    best: ("loss", Better::Lower),
    reference: ReferenceNames {
        always: &[
            ReferenceName::new("train.compute_ips", "train_perf"),
            ReferenceName::new("train.loss", "total_loss"),
            ReferenceName::new("train.mlm_loss", "masked_lm_loss"),
            ReferenceName::new("train.mlm_accuracy", "masked_lm_accuracy"),
            ReferenceName::new("train.sampled_accuracy", "sampled_masked_lm_accuracy"),
            ReferenceName::new("train.disc_loss", "disc_loss"),
            ReferenceName::new("train.disc_accuracy", "disc_accuracy"),
            // Shares are shown in percent, but not these two.
            ReferenceName::new("train.disc_precision", "disc_precision").times(0.01),
            ReferenceName::new("train.disc_recall", "disc_recall").times(0.01),
        ],
        summary: &[
            ReferenceName::new("train.compute_ips", "training_sequences_per_second"),
            ReferenceName::new("train.final_loss", "final_loss"),
            ReferenceName::new("run.time", "e2e_train_time"),
        ],
    },
};

impl TextNetworks for Networks {
    type Set = ElectraSet;
    type Feeder = Option<EvaluationFeeds>;

    const TERMS: &'static MetricSchema = &TERMS;
    const WORD_BIAS: &'static str = "generator_lm_head.bias";

    fn fields(recipe: &Recipe) -> Result<(&TextFields, &VocabularyFields), TrainError> {
        let ElectraRecipe { text, vocabulary, .. } = recipe.own()?;
        Ok((text, vocabulary))
    }

    fn predictions(recipe: &Recipe) -> Result<usize, TrainError> {
        Ok(sources::options(recipe.own()?).predictions())
    }

    fn set(part: Part<'_>, recipe: &Recipe) -> Result<ElectraSet, TrainError> {
        sources::set(part, recipe)
    }

    fn of(recipe: &Recipe, vocab_size: usize, vocabulary: Option<&Path>) -> Result<Self, TrainError> {
        Networks::in_recipe(recipe, vocab_size)?.for_vocabulary(vocabulary)
    }

    fn info(set: &ElectraSet) -> DatasetInfo {
        DatasetInfo {
            len: set.len(),
            sequence_length: set.sequence_length(),
            predictions: set.predictions(),
            vocab_size: set.vocabulary_size(),
            identity: set.identity(),
        }
    }

    fn word_counts(set: &ElectraSet) -> Result<Vec<u64>, DataError> {
        set.word_counts(1)
    }

    fn unigram_entropy(set: &ElectraSet) -> Result<f64, DataError> {
        set.unigram_entropy(1)
    }

    fn feeder() -> Self::Feeder {
        None
    }

    fn evaluation_feeder(&self, set: &ElectraSet, batch_size: usize) -> Result<Self::Feeder, DataError> {
        let log_frequencies = match self.options.generator {
            electra::Generator::Batch => Some(log_frequencies(&set.word_counts(1)?, self.vocab_size())),
            electra::Generator::Network | electra::Generator::Uniform => None,
        };
        Ok(Some(EvaluationFeeds { batch_size, log_frequencies }))
    }

    fn vocab_size(&self) -> usize {
        self.config.encoder.vocab_size
    }

    fn training_step(&self, recipe: &Recipe, sequences: Sequences, shape: RunShape) -> Result<Model, TrainError> {
        Ok(electra::train(&self.config, sequences, &self.options, &train_config(recipe, shape)?)?)
    }

    fn evaluation(&self, sequences: Sequences) -> Result<Model, TrainError> {
        Ok(electra::evaluate(&self.config, sequences, &self.options)?)
    }

    fn score(&self, unigram_entropy: f64) -> Box<dyn Score> {
        Box::new(RtdMetrics::new(unigram_entropy, self.options.discriminator_weight))
    }
}

/// Takes the place of the logarithm of 0.
const NEVER: f32 = -1000.0;

/// Logarithms of the frequencies of `vocab_size` tokens, of which those past the counts never come.
fn log_frequencies(counts: &[u64], vocab_size: usize) -> Vec<f32> {
    let total = counts.iter().sum::<u64>() as f64;
    let log = |count: u64| if count == 0 { NEVER } else { (count as f64 / total).ln() as f32 };
    (0..vocab_size).map(|token| log(counts.get(token).copied().unwrap_or(0))).collect()
}

/// The recipe by which the samples are drawn where weights come without one.
const PUBLISHED: &str = "electra-base-phase1";

/// Judges both networks on the held-out half of prepared text.
pub(super) fn standalone_evaluation(
    name: &str,
    weights: &Path,
    data: &Path,
    options: &EvaluateOptions,
) -> Result<(Box<dyn Evaluation>, LoadedWeights), TrainError> {
    let trained = LoadedWeights::load(name, weights, options.weights)?;
    family::ENCODERS.check(name, &trained.tensors, &trained.origin)?;
    let recipe = match &trained.recipe {
        Some(recipe) => recipe.clone(),
        None if trained.tensors.iter().any(|tensor| tensor.name.starts_with("generator.")) => {
            Recipe::load(PUBLISHED, &[])?
        }
        None => {
            let allowed = "both networks are evaluated together: a run, or a folder with two of Hugging Face, discriminator and \
                           generator";
            return Err(TrainError::setting("the path of the weights", weights.display(), allowed));
        }
    };
    let set = sources::set(Part::Folder(data, Split::Val), &recipe)?;
    let networks = Networks::in_weights(name, &trained)?;
    let vocabulary = vocabulary_in(data, &recipe.own::<ElectraRecipe>()?.text);
    let (identity, place) = (Vocabulary::open(&vocabulary)?.identity(), vocabulary.display().to_string());
    trained.weights().check_vocabulary(&identity, &place)?;
    let networks = networks.for_vocabulary(Some(&vocabulary))?;
    Ok((Box::new(HeldOut::new(networks, Arc::new(set), options.load, options.batch_size)?), trained))
}
