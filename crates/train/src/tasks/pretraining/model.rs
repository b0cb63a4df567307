//! The networks of recipes and of trained weights.

use crate::error::TrainError;
use crate::recipe::{self, Init, Recipe};
use crate::setup::{precision, train_config};
use crate::tasks::huggingface::activation_in;
use crate::tasks::text::{Size, check_size};
use crate::trained::{Trained, WhichWeights};
use bessemer_models::bert::{self, BertConfig, BertInit, BertOptions, Sequences};
use bessemer_models::{AnyModel, Model, ModelError, find_any};
use bessemer_nn::{Activation, MaskedMean};
use std::path::Path;

/// The published form of BERT `name`.
///
/// # Errors
/// A model that does not exist or is no BERT.
fn published(name: &str) -> Result<BertConfig, TrainError> {
    match find_any(name)? {
        AnyModel::Bert(spec) => Ok((spec.config)()),
        _ => {
            let (setting, value) = ("the model", name.to_owned());
            Err(ModelError::Setting { setting, value, allowed: "it must be a BERT" }.into())
        }
    }
}

/// The network of a recipe for a vocabulary of so many words.
///
/// # Errors
/// A model that is no BERT; sequences that are longer than it can take.
pub(super) fn config(recipe: &Recipe, words: usize) -> Result<BertConfig, TrainError> {
    let model = &recipe.model;
    let config = BertConfig {
        vocab_size: words.next_multiple_of(model.vocab_multiple as usize),
        initializer_range: model.init_std,
        hidden_dropout_prob: model.hidden_dropout,
        attention_probs_dropout_prob: model.attention_dropout,
        hidden_act: activation(model.activation),
        ..published(&model.name)?
    };
    check_length(&config, recipe.text.sequence_length as usize)?;
    Ok(config)
}

pub(crate) fn activation(recipe: recipe::Activation) -> Activation {
    match recipe {
        recipe::Activation::Gelu => Activation::Gelu,
        recipe::Activation::GeluTanh => Activation::GeluTanh,
    }
}

/// Initial weights of a model of text.
pub(crate) fn initial_weights(recipe: &Recipe) -> BertInit {
    match recipe.model.init {
        Some(Init::Truncated) => BertInit::Truncated,
        Some(Init::NvidiaTorch) => BertInit::NvidiaTorch,
        Some(Init::Mimetic) => BertInit::Mimetic,
        Some(Init::Normal | Init::Torch | Init::VarianceScaling) | None => BertInit::Normal,
    }
}

/// # Errors
/// Sequences that are longer than the table of positions.
pub(crate) fn check_length(config: &BertConfig, length: usize) -> Result<(), TrainError> {
    let most = config.max_position_embeddings;
    if length <= most {
        return Ok(());
    }
    Err(TrainError::setting("the length of sequences", length, format!("the model has {most} positions")))
}

/// The graph of a whole training step as the recipe asks for it.
///
/// # Errors
/// A size that is not possible; a precision that CPUs do not train in.
pub(super) fn training_step(
    recipe: &Recipe,
    config: &BertConfig,
    sequences: Sequences,
    steps_per_epoch: u64,
) -> Result<Model, TrainError> {
    precision(recipe)?;
    let options = BertOptions {
        seed: recipe.train.seed,
        init: initial_weights(recipe),
        masked_mean: match recipe.text.masked_mean {
            recipe::MaskedMean::Torch => MaskedMean::Torch,
            recipe::MaskedMean::TensorFlow => MaskedMean::TensorFlow,
        },
        ..BertOptions::default()
    };
    Ok(bert::train(config, sequences, &options, &train_config(recipe, steps_per_epoch)?)?)
}

/// Weights of BERT `name`, from a file, a checkpoint, a run, or a folder as Hugging Face has it.
///
/// # Errors
/// Weights that are not there, are damaged, or are of a network of another size.
pub(super) fn load(name: &str, weights: &Path, which: WhichWeights) -> Result<Trained, TrainError> {
    let trained = Trained::load(name, weights, which)?;
    check_size(name, &trained.tensors, &trained.origin)?;
    Ok(trained)
}

/// The network that the weights of BERT `name` in `path` are for: with as many words as they have, and the activation that
/// their recipe or configuration names.
///
/// # Errors
/// A configuration that cannot be read.
pub(crate) fn config_of(name: &str, trained: &Trained, path: &Path) -> Result<BertConfig, TrainError> {
    let usual = published(name)?;
    let words = Size::of(&trained.tensors).map_or(usual.vocab_size, |size| size.words);
    let config = match &trained.recipe {
        Some(recipe) => config(recipe, words)?,
        None => BertConfig { hidden_act: activation_in(path)?.unwrap_or(usual.hidden_act), ..usual },
    };
    Ok(BertConfig { vocab_size: words, ..config })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_ir::plan::print_graph;
    use bessemer_nn::Init as Drawn;

    fn step(overrides: &[&str]) -> Model {
        let overrides: Vec<_> = overrides.iter().map(|text| text.parse().unwrap()).collect();
        let recipe = Recipe::load("bert-small-text", &overrides).unwrap();
        let sequences = Sequences { batch: 16, length: 128, predictions: 20 };
        training_step(&recipe, &config(&recipe, 100).unwrap(), sequences, 10).unwrap()
    }

    #[test]
    fn initial_weights_are_those_of_the_recipe() {
        let drawn = |name: &str, init: &str| {
            let specs = step(&[&format!("model.init={init}")]).specs;
            specs.iter().find(|spec| spec.name == name).unwrap().init
        };
        let words = "bert.embeddings.word_embeddings.weight";
        let (normal, cut) = (Drawn::Normal { std: 0.02 }, Drawn::CutNormal { std: 0.02 });
        assert_eq!([drawn(words, ""), drawn(words, "normal"), drawn(words, "truncated")], [normal, normal, cut]);
        let wide = "bert.encoder.layer.0.intermediate.dense.weight";
        let uniform = Drawn::Uniform { bound: 1.0 / 16.0 };
        assert_eq!([drawn(wide, "nvidia_torch"), drawn(wide, "normal")], [uniform, normal]);
        assert_eq!(drawn(words, "nvidia_torch"), normal);
    }

    #[test]
    fn the_mean_over_words_is_that_of_the_recipe() {
        let graph = |mean: &str| print_graph(&step(&[&format!("text.masked_mean={mean}")]).graph);
        assert_eq!(graph("torch"), graph(""));
        assert_ne!(graph("torch"), graph("tensorflow"));
    }
}
