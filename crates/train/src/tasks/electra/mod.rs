//! Pre-training of ELECTRA: words that a generator has replaced are told from those of the text.

mod batches;
mod infer;
mod model;
mod score;
mod sources;

pub use infer::{JudgeOptions, Judged, WordVerdict, judge_words};

pub(crate) use model::Networks;

use super::loaded::Loaded;
use super::pretraining::log_frequencies;
use super::text::{self, TextSource};
use super::{Batches, Better, Evaluation, LoadOptions, Metric, Score, Task, Terms};
use crate::error::TrainError;
use crate::evaluate::EvaluateOptions;
use crate::recipe::{Recipe, WordBias};
use crate::trained::Trained;
use bessemer_data::text::{ElectraSet, Vocabulary};
use bessemer_data::{Position, Sampler, SamplerOptions, Split};
use bessemer_models::Model;
use bessemer_models::bert::Sequences;
use bessemer_models::electra;
use score::Verdicts;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Losses are mean cross entropies in nats: of the generator over predicted words, of the discriminator over all words;
/// `loss` is their weighted sum. Precision and recall are of replaced words.
pub static TERMS: Terms = Terms {
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
        Metric::plain("mlm_loss", "generator, loss", Some("validation loss of the generator")),
        Metric::plain("unigram_entropy", "  of word frequencies", None),
        Metric::share(
            "mlm_accuracy",
            "generator",
            "masked words found in validation (%)",
            ["mlm_correct", "mlm_weight"],
        ),
        Metric::plain("disc_loss", "discriminator, loss", Some("validation loss of the discriminator")),
        Metric::share(
            "disc_accuracy",
            "discriminator",
            "words judged rightly in validation (%)",
            ["disc_correct", "disc_weight"],
        ),
        Metric::share("disc_precision", "  precision", "precision in validation (%)", ["disc_found", "disc_suspected"]),
        Metric::share("disc_recall", "  recall", "recall in validation (%)", ["disc_found", "disc_replaced"]),
    ],
    best: ("loss", Better::Lower),
};

/// The bias of each word's score.
const WORD_BIAS: &str = "generator_lm_head.bias";

/// The text and the networks of a recipe.
pub(super) struct Electra {
    recipe: Recipe,
    networks: Networks,
    vocabulary: Option<PathBuf>,
    set: Arc<ElectraSet>,
    held_out: Option<Arc<ElectraSet>>,
    sampler: Sampler,
}

impl Electra {
    pub fn open(recipe: &Recipe) -> Result<Self, TrainError> {
        let (source, predictions) = (TextSource::of(recipe)?, sources::options(recipe).predictions());
        let open = |part| Ok::<_, TrainError>(Arc::new(sources::set(part, recipe)?));
        let set = open(source.training(recipe, predictions))?;
        let held_out = source.held_out(recipe, predictions).map(open).transpose()?;
        let vocabulary = source.vocabulary_file(recipe);
        let networks = with_mask(Networks::of(recipe, set.vocabulary_size())?, vocabulary.as_deref())?;
        let order = SamplerOptions::train(recipe.train.batch_size as usize, recipe.train.seed);
        let sampler = Sampler::new(set.len(), order)?;
        Ok(Self { recipe: recipe.clone(), networks, vocabulary, set, held_out, sampler })
    }
}

/// The networks for a vocabulary; random words have none.
fn with_mask(networks: Networks, vocabulary: Option<&Path>) -> Result<Networks, TrainError> {
    let Some(path) = vocabulary else { return Ok(networks) };
    Ok(networks.with_mask(Vocabulary::open(path)?.specials().mask))
}

impl Task for Electra {
    fn terms(&self) -> &'static Terms {
        &TERMS
    }

    fn training_step(&self, steps_per_epoch: u64) -> Result<Model, TrainError> {
        let sequences = sequences(&self.set, self.recipe.train.batch_size as usize);
        self.networks.training_step(&self.recipe, sequences, steps_per_epoch)
    }

    fn data_identity(&self) -> String {
        self.set.identity()
    }

    fn batches_per_epoch(&self) -> u64 {
        self.sampler.batches() as u64
    }

    fn training_batches(&self, start: Position, end_epoch: u32) -> Result<Box<dyn Batches>, TrainError> {
        let (set, load) = (Arc::clone(&self.set), LoadOptions::of(&self.recipe));
        let feeder = batches::Sequences { is_numbered: false };
        Ok(Box::new(Loaded::training(set, self.sampler.clone(), &load, (start, end_epoch), feeder)?))
    }

    fn evaluation(&self) -> Result<Option<Box<dyn Evaluation>>, TrainError> {
        let Some(set) = self.held_out.clone() else { return Ok(None) };
        let batch_size = self.recipe.eval.batch_size.unwrap_or(self.recipe.train.batch_size) as usize;
        Ok(Some(Box::new(HeldOut::new(self.networks, set, LoadOptions::of(&self.recipe), batch_size)?)))
    }

    fn initial_values(&self) -> Result<Vec<(&'static str, Vec<f32>)>, TrainError> {
        if self.recipe.model.word_bias == WordBias::Zeros {
            return Ok(Vec::new());
        }
        let counts = self.set.word_counts(1)?;
        Ok(vec![(WORD_BIAS, log_frequencies(&counts, self.networks.config.encoder.vocab_size))])
    }

    fn write_files(&self, run: &Path) -> Result<(), TrainError> {
        text::keep_vocabulary(self.vocabulary.as_deref(), run)
    }
}

fn sequences(set: &ElectraSet, batch: usize) -> Sequences {
    Sequences { batch, length: set.sequence_length(), predictions: set.predictions() }
}

/// Text that was not trained on, and the networks for it.
struct HeldOut {
    networks: Networks,
    set: Arc<ElectraSet>,
    load: LoadOptions,
    batch_size: usize,
    unigram_entropy: f64,
}

impl HeldOut {
    fn new(networks: Networks, set: Arc<ElectraSet>, load: LoadOptions, batch_size: usize) -> Result<Self, TrainError> {
        let unigram_entropy = set.unigram_entropy(1)?;
        Ok(Self { networks, set, load, batch_size, unigram_entropy })
    }
}

impl Evaluation for HeldOut {
    fn terms(&self) -> &'static Terms {
        &TERMS
    }

    fn model(&self) -> Result<Model, TrainError> {
        let Networks { config, options } = &self.networks;
        Ok(electra::evaluate(config, sequences(&self.set, self.batch_size), options)?)
    }

    fn batch_size(&self) -> usize {
        self.batch_size
    }

    fn batches(&self) -> Result<Box<dyn Batches>, TrainError> {
        let (set, samples) = (Arc::clone(&self.set), self.set.len());
        let feeder = batches::Sequences { is_numbered: true };
        Ok(Box::new(Loaded::evaluation(set, samples, &self.load, self.batch_size, feeder)?))
    }

    fn score(&self) -> Result<Box<dyn Score>, TrainError> {
        Ok(Box::new(Verdicts::new(self.unigram_entropy, self.networks.options.discriminator_weight)))
    }
}

/// Judges weights of a run on the held-out half of prepared text.
pub(super) fn judge(
    name: &str,
    weights: &Path,
    data: &Path,
    options: &EvaluateOptions,
) -> Result<(Box<dyn Evaluation>, Trained), TrainError> {
    let trained = Trained::load(name, weights, options.weights)?;
    super::check_weights(name, &trained.tensors, &trained.origin)?;
    let recipe = trained.recipe.clone().ok_or_else(|| {
        let allowed = "generator and discriminator are judged together, as a run of `bessemer train` holds them";
        TrainError::setting("the weights", weights.display(), allowed)
    })?;
    let set = sources::set(text::Part::Folder(data, Split::Val), &recipe)?;
    let networks = Networks::in_weights(name, &trained)?;
    text::check_words(set.vocabulary_size(), networks.config.encoder.vocab_size)?;
    let networks = with_mask(networks, Some(&text::vocabulary_in(data, &recipe)))?;
    Ok((Box::new(HeldOut::new(networks, Arc::new(set), options.load, options.batch_size)?), trained))
}
