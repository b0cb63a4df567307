//! Answers to questions, taken from a text: ELECTRA fine-tuned on SQuAD.

mod family;
mod infer;
mod model;
mod recipe;
mod score;
mod sources;
mod weights;
mod workload;

pub use family::{Answerers, FAMILY};
pub use infer::{Answered, AskOptions, Reader};

use super::loaded::{AsLoaded, Loaded};
use super::{
    Batches, Better, Evaluation, InitialWeights, LoadOptions, Metric, MetricSchema, ReferenceName, ReferenceNames,
    Score, Task, WeightOrigin,
};
use crate::checkpoint::{load_weights, publish_content};
use crate::error::TrainError;
use crate::evaluate::EvaluateOptions;
use crate::loaded_weights::LoadedWeights;
use crate::recipe::Recipe;
use crate::session::TrainSession;
use crate::setup::RunShape;
use bessemer_data::squad::{SquadSet, Version};
use bessemer_data::text::{TextTokenizer, VOCABULARY_FILE, VocabularyIdentity};
use bessemer_data::{BatchRange, Sampler, SamplerOptions, Share, hex};
use bessemer_models::Model;
use bessemer_models::electra::{ElectraConfig, SpanHead};
use bessemer_nn::Activation;
use bessemer_weights::{NamedTensor, WeightOptions};
use model::Answering;
use recipe::{QuestionRecipe, SquadFields};
use score::SquadMetrics;
use sources::{Files, Questions};
use std::path::Path;
use std::sync::Arc;

const fn exact(name: &'static str, label: &'static str, ratio: [&'static str; 2]) -> Metric {
    Metric { ratio: Some(ratio), ..Metric::fraction(name, label) }
}

const EXACT: Metric = exact("exact", "exact match", ["right", "total"]);
const F1: Metric = Metric { axis: Some("F1 of answers (%)"), ..Metric::fraction("f1", "F1") };

const fn metric_schema(parts: &'static [&'static str], metrics: &'static [Metric]) -> MetricSchema {
    MetricSchema {
        samples: "windows",
        unit: "windows/s",
        parts,
        metrics,
        best: ("f1", Better::Higher),
        reference: REFERENCE,
    }
}

const REFERENCE: ReferenceNames = ReferenceNames {
    always: &[ReferenceName::new("train.loss", "step_loss"), ReferenceName::new("train.compute_ips", "train_perf")],
    summary: &[
        ReferenceName::new("train.compute_ips", "training_sequences_per_second"),
        ReferenceName::new("train.epoch_loss", "final_loss"),
        ReferenceName::new("train.time", "e2e_train_time"),
        ReferenceName::new("val.compute_ips", "inference_sequences_per_second"),
        ReferenceName::new("val.time", "e2e_inference_time"),
        ReferenceName::new("val.exact", "exact_match"),
        ReferenceName::new("val.f1", "F1"),
    ],
};

/// Parts of the loss are mean cross entropies in nats; exact match and F1 are those of the official scripts, as fractions.
pub static TERMS: MetricSchema = metric_schema(
    &["start_loss", "end_loss", "impossible_loss"],
    &[
        EXACT,
        F1,
        exact("has_ans_exact", "  with an answer", ["has_ans_right", "has_ans_total"]),
        Metric::fraction("has_ans_f1", "  F1"),
        exact("no_ans_exact", "  without one", ["no_ans_right", "no_ans_total"]),
        Metric::fraction("no_ans_f1", "  F1"),
    ],
);

/// Where a step does not learn whether there is an answer.
static WITHOUT_IMPOSSIBLE: MetricSchema = metric_schema(&["start_loss", "end_loss"], TERMS.metrics);

/// The questions and the model of a recipe.
pub(super) struct Squad {
    recipe: Recipe,
    config: ElectraConfig,
    head: SpanHead,
    tokenizer: Arc<TextTokenizer>,
    questions: Questions,
    held_out: Option<Arc<Questions>>,
    sampler: Sampler,
    notes: Vec<String>,
}

impl Squad {
    /// The task of a recipe; `origin` are the weights that it begins with, or the run that goes on.
    pub(super) fn open(recipe: &Recipe, origin: Option<&Path>) -> Result<Self, TrainError> {
        let (files, QuestionRecipe { squad, .. }) = (Files::of(recipe)?, recipe.own()?);
        let vocab_size = origin.map(|origin| vocab_size_of(recipe, origin)).transpose()?;
        let tokenizer = sources::tokenizer(squad.vocab.as_deref().map(Path::new), origin, "--set squad.vocab=FILE")?;
        let config = model::config(recipe, vocab_size.unwrap_or(tokenizer.vocabulary().len()))?;
        model::check_vocabulary(&tokenizer, config.encoder.vocab_size)?;
        let set = SquadSet::open(&files.train)?;
        let version = set.version();
        let questions = Questions::of(set, &tokenizer, model::window_options(squad, true), squad.cache)?;
        let held_out = files.dev.map(|dev| held_out(&dev, &tokenizer, squad, (version, &files.train))).transpose()?;
        let order = SamplerOptions::train(recipe.train.batch_size as usize, recipe.train.seed);
        let sampler = Sampler::new(questions.features.len(), order)?;
        Ok(Self {
            recipe: recipe.clone(),
            config,
            head: model::head_of(squad, version == Version::V2),
            tokenizer,
            notes: questions.notes(&files.train),
            questions,
            held_out: held_out.map(Arc::new),
            sampler,
        })
    }
}

/// Words that weights know, or those of a run.
///
/// # Errors
/// Weights that cannot be read, are of another size, or were trained with another activation than the recipe's.
fn vocab_size_of(recipe: &Recipe, origin: &Path) -> Result<usize, TrainError> {
    let tensors = load_weights(origin, WeightOptions::default())?;
    let (name, place) = (&recipe.model.name, origin.display().to_string());
    let size = family::ENCODERS.require_size(name, &tensors, &place)?;
    let (asked, known) = (recipe.own::<QuestionRecipe>()?.encoder.activation, weights::activation(origin)?);
    match known.filter(|known| *known != asked) {
        None => Ok(size.tokens),
        Some(known) => {
            let name = |activation: Activation| match activation {
                Activation::Gelu => "gelu",
                Activation::GeluTanh => "gelu_tanh",
            };
            let allowed = format!("{place} was trained with {}", name(known));
            Err(TrainError::setting("model.activation", name(asked), allowed))
        }
    }
}

/// # Errors
/// A file of another version than the one that is trained on.
fn held_out(
    dev: &Path,
    tokenizer: &Arc<TextTokenizer>,
    squad: &SquadFields,
    (version, train): (Version, &Path),
) -> Result<Questions, TrainError> {
    let set = SquadSet::open(dev)?;
    let found = set.version();
    if found == version {
        return Questions::of(set, tokenizer, model::window_options(squad, false), squad.cache);
    }
    let (dev, train) = (dev.display(), train.display());
    let allowed =
        format!("{dev} is of SQuAD {found}, and {train} of {version}; name others: --set squad.dev_file=FILE");
    Err(TrainError::setting("the version of the questions", found, allowed))
}

impl Task for Squad {
    fn metric_schema(&self) -> &'static MetricSchema {
        match self.head {
            SpanHead::Joint { may_be_impossible: true, .. } => &TERMS,
            SpanHead::Joint { may_be_impossible: false, .. } | SpanHead::Plain => &WITHOUT_IMPOSSIBLE,
        }
    }

    fn training_step(&self, shape: RunShape) -> Result<Model, TrainError> {
        model::training_step(&self.recipe, &self.config, self.head, shape)
    }

    fn data_identity(&self) -> String {
        let Questions { set, features, .. } = &self.questions;
        let vocabulary = hex(&self.tokenizer.vocabulary().hash());
        format!("squad:{}:sha256:{}:vocab={vocabulary}:windows={}", set.version(), hex(&set.hash()), features.len())
    }

    fn vocabulary(&self) -> Option<VocabularyIdentity> {
        Some(self.tokenizer.vocabulary().identity())
    }

    fn batches_per_epoch(&self) -> u64 {
        self.sampler.batches() as u64
    }

    fn training_batches(&self, range: BatchRange) -> Result<Box<dyn Batches>, TrainError> {
        let (features, load) = (Arc::clone(&self.questions.features), LoadOptions::of(&self.recipe));
        Ok(Box::new(Loaded::training(features, self.sampler.clone(), &load, range, AsLoaded)?))
    }

    fn evaluation(&self) -> Result<Option<Box<dyn Evaluation>>, TrainError> {
        let Some(questions) = self.held_out.clone() else { return Ok(None) };
        let batch_size = self.recipe.eval.batch_size.unwrap_or(self.recipe.train.batch_size) as usize;
        Ok(Some(Box::new(HeldOut {
            config: self.config,
            head: self.head,
            squad: self.recipe.own::<QuestionRecipe>()?.squad.clone(),
            questions,
            load: LoadOptions::of(&self.recipe),
            batch_size,
        })))
    }

    fn initial_weights(
        &self,
        given: Vec<NamedTensor<'static>>,
        origin: &WeightOrigin<'_>,
        session: &TrainSession,
    ) -> Result<InitialWeights, TrainError> {
        Ok(weights::initial_weights(given, session.weights()?, origin.name))
    }

    fn write_files(&self, run: &Path) -> Result<(), TrainError> {
        let text = self.tokenizer.vocabulary().tokens().join("\n") + "\n";
        Ok(publish_content(&run.join(VOCABULARY_FILE), text.as_bytes())?)
    }

    fn warnings(&self) -> Vec<String> {
        self.notes.clone()
    }
}

/// Questions that were not trained on, and the model for them.
struct HeldOut {
    config: ElectraConfig,
    head: SpanHead,
    squad: SquadFields,
    questions: Arc<Questions>,
    load: LoadOptions,
    batch_size: usize,
}

impl Evaluation for HeldOut {
    fn metric_schema(&self) -> &'static MetricSchema {
        &TERMS
    }

    fn models(&self, batch_size: usize) -> Result<Vec<Model>, TrainError> {
        let length = self.squad.sequence_length as usize;
        Ok(vec![model::prediction(&self.config, self.head, batch_size, length)?])
    }

    fn batch_size(&self) -> usize {
        self.batch_size
    }

    fn batches(&self, _part: usize, share: Share) -> Result<Box<dyn Batches>, TrainError> {
        let features = Arc::clone(&self.questions.features);
        let windows = features.len();
        Ok(Box::new(Loaded::evaluation(features, windows, &self.load, self.batch_size, share, AsLoaded)?))
    }

    fn score(&self) -> Result<Box<dyn Score + '_>, TrainError> {
        let may_be_impossible = self.questions.set.version() == Version::V2;
        let options = model::answer_options(&self.squad, self.head, may_be_impossible);
        Ok(Box::new(SquadMetrics::new(&self.questions, self.head, options)))
    }
}

/// Judges weights on a file of questions, or on the only dev-*.json of a folder.
pub(super) fn standalone_evaluation(
    name: &str,
    weights: &Path,
    data: &Path,
    options: &EvaluateOptions,
) -> Result<(Box<dyn Evaluation>, LoadedWeights), TrainError> {
    let (answering, trained) = Answering::load(name, weights, options.weights, options.vocab.as_deref())?;
    let path = sources::dev_file(data)?;
    let Answering { config, head, squad, tokenizer } = answering;
    let set = SquadSet::open(&path)?;
    let lacks_head = matches!(head, SpanHead::Joint { may_be_impossible: false, .. });
    if set.version() == Version::V2 && lacks_head {
        let allowed = format!("{} was trained on 1.1, where every question has an answer", trained.origin);
        return Err(TrainError::setting("the version of the questions", Version::V2, allowed));
    }
    let questions = Questions::of(set, &tokenizer, model::window_options(&squad, false), squad.cache)?;
    let (load, batch_size) = (options.load, options.batch_size);
    Ok((Box::new(HeldOut { config, head, squad, questions: Arc::new(questions), load, batch_size }), trained))
}
