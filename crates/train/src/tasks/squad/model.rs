//! The networks of recipes and of trained weights.

use super::family::ENCODERS;
use super::recipe::{Head, QuestionRecipe, SquadFields};
use super::sources::tokenizer;
use super::weights::{activation, head};
use crate::error::TrainError;
use crate::loaded_weights::{LoadedWeights, WhichWeights};
use crate::recipe::{Recipe, defaults};
use crate::setup::{RunShape, train_config};
use bessemer_data::squad::{AnswerOptions, WindowOptions};
use bessemer_data::text::TextTokenizer;
use bessemer_models::Model;
use bessemer_models::bert::BertConfig;
use bessemer_models::electra::{self, ElectraConfig, ElectraOptions, SpanHead, SquadOptions, squad};
use bessemer_nn::TrainConfig;
use std::path::Path;
use std::sync::Arc;

/// The published form of model `name`.
///
/// # Errors
/// A model of another family.
fn published(name: &str) -> Result<ElectraConfig, TrainError> {
    Ok((electra::find_squad(name)?.config)())
}

/// The network of a recipe for a vocabulary of the given number of tokens.
///
/// # Errors
/// A model that does not answer questions; windows that are longer than it can take.
pub(super) fn config(recipe: &Recipe, vocab_size: usize) -> Result<ElectraConfig, TrainError> {
    let QuestionRecipe { encoder, squad, .. } = recipe.own()?;
    let published = published(&recipe.model.name)?;
    let encoder = BertConfig { vocab_size, ..encoder.apply(published.encoder) };
    let config = ElectraConfig { encoder, ..published };
    check_length(&config, squad.sequence_length as usize)?;
    Ok(config)
}

/// # Errors
/// Windows that are longer than the table of positions.
fn check_length(config: &ElectraConfig, length: usize) -> Result<(), TrainError> {
    let most = config.encoder.max_position_embeddings;
    if length <= most {
        return Ok(());
    }
    Err(TrainError::setting("squad.sequence_length", length, format!("the model has {most} positions")))
}

/// The head of a recipe for questions that may have no answer, or that all have one.
pub(super) fn head_of(recipe: &SquadFields, may_be_impossible: bool) -> SpanHead {
    match recipe.head {
        Head::Plain => SpanHead::Plain,
        Head::Joint => SpanHead::Joint { beam: recipe.beam as usize, may_be_impossible },
    }
}

/// The graph of a whole training step as the recipe asks for it.
///
/// # Errors
/// A size that is not possible; a precision that CPUs do not train in.
pub(super) fn training_step(
    recipe: &Recipe,
    config: &ElectraConfig,
    head: SpanHead,
    shape: RunShape,
) -> Result<Model, TrainError> {
    let QuestionRecipe { model, squad: own, layer_rates, .. } = recipe.own()?;
    let network = ElectraOptions { seed: recipe.train.seed, init: model.init };
    let options = SquadOptions { network, head };
    let train =
        TrainConfig { rate_factors: config.layer_rates(layer_rates.layer_decay), ..train_config(recipe, shape)? };
    Ok(squad::train(config, shape.batch_size, own.sequence_length as usize, &options, &train)?)
}

/// The prediction for a batch of windows.
///
/// # Errors
/// A size that is not possible.
pub(super) fn prediction(
    config: &ElectraConfig,
    head: SpanHead,
    batch: usize,
    length: usize,
) -> Result<Model, TrainError> {
    let options = SquadOptions { network: ElectraOptions::default(), head };
    Ok(squad::predict(config, batch, length, &options)?)
}

/// How windows are cut.
pub(super) fn window_options(recipe: &SquadFields, labels: bool) -> WindowOptions {
    WindowOptions {
        max_seq_length: recipe.sequence_length as usize,
        doc_stride: recipe.doc_stride as usize,
        max_query_length: recipe.max_query_length as usize,
        labels,
    }
}

/// What the score of no answer is compared with, where there may be none: for the joint head the value of ELECTRA's scripts,
/// for the plain one 0.
const JOINT_THRESHOLD: f64 = -5.6;

/// How answers are chosen, by a head and where there may be none or not.
pub(super) fn answer_options(recipe: &SquadFields, head: SpanHead, may_be_impossible: bool) -> AnswerOptions {
    let usual = if head == SpanHead::Plain { 0.0 } else { JOINT_THRESHOLD };
    AnswerOptions {
        n_best: recipe.n_best as usize,
        max_answer_length: recipe.max_answer_length as usize,
        null_threshold: may_be_impossible.then_some(recipe.null_threshold.unwrap_or(usual)),
    }
}

/// How windows and answers were set up in training, or the usual way.
fn squad_fields(recipe: Option<&Recipe>) -> Result<SquadFields, TrainError> {
    recipe.map_or_else(|| Ok(defaults()), |recipe| Ok(recipe.own::<QuestionRecipe>()?.squad.clone()))
}

/// The network that weights of model `name` in `path` are for, and its head.
///
/// # Errors
/// Weights that were not trained on questions, or of a network of another size; a configuration that cannot be read.
pub(super) fn network_of(
    name: &str,
    trained: &LoadedWeights,
    path: &Path,
) -> Result<(ElectraConfig, SpanHead), TrainError> {
    let mut usual = published(name)?;
    let vocab_size = ENCODERS.require_size(name, &trained.tensors, &trained.origin)?.tokens;
    let beam = squad_fields(trained.recipe.as_ref())?.beam;
    let head = head(&trained.tensors, beam as usize).ok_or_else(|| {
        let allowed = "they have no head that answers questions; `bessemer train` makes one of them (--weights)";
        TrainError::setting("the path of the weights", &trained.origin, allowed)
    })?;
    if let Some(recipe) = &trained.recipe {
        return Ok((config(recipe, vocab_size)?, head));
    }
    usual.encoder.vocab_size = vocab_size;
    usual.encoder.hidden_act = activation(path)?.unwrap_or(usual.encoder.hidden_act);
    Ok((usual, head))
}

/// Weights that answer questions, with all that goes with them.
pub(super) struct Answering {
    pub config: ElectraConfig,
    pub head: SpanHead,
    /// How windows and answers were set up in training, or the usual way.
    pub squad: SquadFields,
    pub tokenizer: Arc<TextTokenizer>,
}

impl Answering {
    /// Weights of model `name`, from a file, a checkpoint, a run, or a folder as Hugging Face has it.
    ///
    /// # Errors
    /// Weights that are not there, are damaged, were not trained on questions, or are of a network of another size; no
    /// vocabulary that fits them.
    pub(super) fn load(
        name: &str,
        weights: &Path,
        which: WhichWeights,
        vocab: Option<&Path>,
    ) -> Result<(Self, LoadedWeights), TrainError> {
        let trained = LoadedWeights::load(name, weights, which)?;
        let (config, head) = network_of(name, &trained, weights)?;
        let squad = squad_fields(trained.recipe.as_ref())?;
        let tokenizer = tokenizer(vocab, Some(weights), "--vocab")?;
        let place =
            vocab.map_or_else(|| format!("that beside {}", weights.display()), |path| path.display().to_string());
        trained.weights().check_vocabulary(&tokenizer.vocabulary().identity(), &place)?;
        Ok((Self { config, head, squad, tokenizer }, trained))
    }
}

/// # Errors
/// More tokens than the model knows.
pub(super) fn check_vocabulary(tokenizer: &TextTokenizer, known: usize) -> Result<(), TrainError> {
    let vocab_size = tokenizer.vocabulary().len();
    if vocab_size <= known {
        return Ok(());
    }
    Err(TrainError::setting("the number of tokens in the vocabulary", vocab_size, format!("the model knows {known}")))
}
