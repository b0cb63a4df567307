//! Pre-training of BERT: masked words and following sentences.

mod batches;
mod infer;
mod model;
mod score;
mod sources;

pub use infer::{FillOptions, Filled, MaskedWord, WordScore, fill_masks};

pub(crate) use infer::{vocabulary_beside, vocabulary_file};
pub(crate) use model::{activation, check_length, check_size, config_of, log_frequencies, name_of, words_of};

use super::loaded::Loaded;
use super::text::{self, TextSource};
use super::{Batches, Better, Evaluation, LoadOptions, Metric, Score, Task, Terms};
use crate::error::TrainError;
use crate::evaluate::EvaluateOptions;
use crate::recipe::{Recipe, WordBias};
use crate::trained::Trained;
use bessemer_data::text::PretrainingSet;
use bessemer_data::{Position, Sampler, SamplerOptions};
use bessemer_models::Model;
use bessemer_models::bert::{self, BertConfig, BertOptions, Sequences};
use score::Guesses;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Losses are mean cross entropies in nats, over predicted words and over pairs of segments; accuracies are fractions. Beside
/// them stands what a model has as loss that knows how frequent each word is and nothing else.
pub static TERMS: Terms = Terms {
    samples: "sequences",
    unit: "sequences/s",
    parts: &["mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"],
    metrics: &[
        Metric::plain("mlm_loss", "masked words, loss", Some("validation loss of masked words")),
        Metric::plain("unigram_entropy", "  of word frequencies", None),
        Metric::share(
            "mlm_accuracy",
            "masked words",
            "masked words found in validation (%)",
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
};

/// The bias of each word's score.
const WORD_BIAS: &str = "cls.predictions.bias";

/// The text and the model of a recipe.
pub(super) struct Pretraining {
    recipe: Recipe,
    config: BertConfig,
    vocabulary: Option<PathBuf>,
    set: Arc<PretrainingSet>,
    held_out: Option<Arc<PretrainingSet>>,
    sampler: Sampler,
}

impl Pretraining {
    pub fn open(recipe: &Recipe) -> Result<Self, TrainError> {
        let (source, predictions) = (TextSource::of(recipe)?, recipe.text.max_predictions as usize);
        let open = |part| Ok::<_, TrainError>(Arc::new(sources::set(part, recipe)?));
        let set = open(source.training(recipe, predictions))?;
        let held_out = source.held_out(recipe, predictions).map(open).transpose()?;
        let config = model::config(recipe, set.vocabulary_size())?;
        let order = SamplerOptions::train(recipe.train.batch_size as usize, recipe.train.seed);
        let sampler = Sampler::new(set.len(), order)?;
        Ok(Self { recipe: recipe.clone(), config, vocabulary: source.vocabulary_file(recipe), set, held_out, sampler })
    }
}

impl Task for Pretraining {
    fn terms(&self) -> &'static Terms {
        &TERMS
    }

    fn training_step(&self, steps_per_epoch: u64) -> Result<Model, TrainError> {
        model::training_step(&self.recipe, &self.config, steps_per_epoch)
    }

    fn data_identity(&self) -> String {
        self.set.identity()
    }

    fn batches_per_epoch(&self) -> u64 {
        self.sampler.batches() as u64
    }

    fn training_batches(&self, start: Position, end_epoch: u32) -> Result<Box<dyn Batches>, TrainError> {
        let (set, load) = (Arc::clone(&self.set), LoadOptions::of(&self.recipe));
        let sampler = self.sampler.clone();
        Ok(Box::new(Loaded::training(set, sampler, &load, (start, end_epoch), batches::Sequences)?))
    }

    fn evaluation(&self) -> Result<Option<Box<dyn Evaluation>>, TrainError> {
        let Some(set) = self.held_out.clone() else { return Ok(None) };
        let batch_size = self.recipe.eval.batch_size.unwrap_or(self.recipe.train.batch_size) as usize;
        Ok(Some(Box::new(HeldOut::new(self.config, set, LoadOptions::of(&self.recipe), batch_size)?)))
    }

    fn initial_values(&self) -> Result<Vec<(&'static str, Vec<f32>)>, TrainError> {
        if self.recipe.model.word_bias == WordBias::Zeros {
            return Ok(Vec::new());
        }
        let counts = self.set.word_counts(1)?;
        Ok(vec![(WORD_BIAS, log_frequencies(&counts, self.config.vocab_size))])
    }

    fn write_files(&self, run: &Path) -> Result<(), TrainError> {
        text::keep_vocabulary(self.vocabulary.as_deref(), run)
    }
}

/// Text that was not trained on, and the model for it.
struct HeldOut {
    config: BertConfig,
    set: Arc<PretrainingSet>,
    load: LoadOptions,
    batch_size: usize,
    unigram_entropy: f64,
}

impl HeldOut {
    fn new(
        config: BertConfig,
        set: Arc<PretrainingSet>,
        load: LoadOptions,
        batch_size: usize,
    ) -> Result<Self, TrainError> {
        let unigram_entropy = set.unigram_entropy(1)?;
        Ok(Self { config, set, load, batch_size, unigram_entropy })
    }
}

impl Evaluation for HeldOut {
    fn terms(&self) -> &'static Terms {
        &TERMS
    }

    fn model(&self) -> Result<Model, TrainError> {
        Ok(bert::evaluate(&self.config, sequences(&self.set, self.batch_size), &BertOptions::default())?)
    }

    fn batch_size(&self) -> usize {
        self.batch_size
    }

    fn batches(&self) -> Result<Box<dyn Batches>, TrainError> {
        let (set, samples) = (Arc::clone(&self.set), self.set.len());
        Ok(Box::new(Loaded::evaluation(set, samples, &self.load, self.batch_size, batches::Sequences)?))
    }

    fn score(&self) -> Result<Box<dyn Score>, TrainError> {
        Ok(Box::new(Guesses::new(self.unigram_entropy)))
    }
}

fn sequences(set: &PretrainingSet, batch: usize) -> Sequences {
    Sequences { batch, length: set.sequence_length(), predictions: set.predictions() }
}

/// Judges weights on the held-out half of prepared text.
pub(super) fn judge(
    name: &str,
    weights: &Path,
    data: &Path,
    options: &EvaluateOptions,
) -> Result<(Box<dyn Evaluation>, Trained), TrainError> {
    let trained = model::load(name, weights, options.weights)?;
    let config = config_of(name, &trained, weights)?;
    let set = sources::held_out_in(data, trained.recipe.as_ref(), &config)?;
    check_length(&config, set.sequence_length())?;
    Ok((Box::new(HeldOut::new(config, Arc::new(set), options.load, options.batch_size)?), trained))
}
