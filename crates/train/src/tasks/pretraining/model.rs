//! The networks of recipes and of trained weights.

use super::family::ENCODERS;
use super::recipe::BertRecipe;
use crate::error::TrainError;
use crate::loaded_weights::{LoadedWeights, WhichWeights};
use crate::recipe::Recipe;
use crate::setup::{RunShape, train_config};
use crate::tasks::huggingface::activation_in;
use crate::tasks::text::check_length;
use bessemer_models::Model;
use bessemer_models::bert::{self, BertConfig, BertOptions, Sequences};
use std::path::Path;

/// The network of a recipe for a vocabulary of the given number of tokens.
///
/// # Errors
/// A model that is no BERT; sequences that are longer than it can take.
pub(super) fn config(recipe: &Recipe, vocab_size: usize) -> Result<BertConfig, TrainError> {
    let BertRecipe { encoder, vocabulary, text, .. } = recipe.own()?;
    let published = (bert::find(&recipe.model.name)?.config)();
    let vocab_size = vocab_size.next_multiple_of(vocabulary.vocab_multiple as usize);
    let config = BertConfig { vocab_size, ..encoder.apply(published) };
    check_length(&config, text.sequence_length as usize)?;
    Ok(config)
}

/// The graph of a whole training step as the recipe asks for it.
///
/// # Errors
/// A size that is not possible; a precision that CPUs do not train in.
pub(super) fn training_step(
    recipe: &Recipe,
    config: &BertConfig,
    sequences: Sequences,
    shape: RunShape,
) -> Result<Model, TrainError> {
    let BertRecipe { model, masking, .. } = recipe.own()?;
    let options = BertOptions {
        seed: recipe.train.seed,
        init: model.init,
        masked_mean: masking.masked_mean,
        ..BertOptions::default()
    };
    Ok(bert::train(config, sequences, &options, &train_config(recipe, shape)?)?)
}

/// Weights of BERT `name`, from a file, a checkpoint, a run, or a folder as Hugging Face has it.
///
/// # Errors
/// Weights that are not there, are damaged, or are of a network of another size.
pub(super) fn load(name: &str, weights: &Path, which: WhichWeights) -> Result<LoadedWeights, TrainError> {
    let trained = LoadedWeights::load(name, weights, which)?;
    ENCODERS.check(name, &trained.tensors, &trained.origin)?;
    Ok(trained)
}

/// The network that the weights of BERT `name` in `path` are for: with as many tokens as they have, and the activation that
/// their recipe or configuration names.
///
/// # Errors
/// A configuration that cannot be read.
pub(crate) fn config_of(name: &str, trained: &LoadedWeights, path: &Path) -> Result<BertConfig, TrainError> {
    let usual = (bert::find(name)?.config)();
    let vocab_size = ENCODERS.size(&trained.tensors).map_or(usual.vocab_size, |size| size.tokens);
    let config = match &trained.recipe {
        Some(recipe) => config(recipe, vocab_size)?,
        None => BertConfig { hidden_act: activation_in(path)?.unwrap_or(usual.hidden_act), ..usual },
    };
    Ok(BertConfig { vocab_size, ..config })
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
        training_step(&recipe, &config(&recipe, 100).unwrap(), sequences, RunShape::alone(10, sequences.batch)).unwrap()
    }

    #[test]
    fn initial_weights_are_those_of_the_recipe() {
        let drawn = |name: &str, init: &str| {
            let specs = step(&[&format!("model.init={init}")]).specs;
            specs.iter().find(|spec| spec.name == name).unwrap().init
        };
        let tokens = "bert.embeddings.word_embeddings.weight";
        let (normal, cut) = (Drawn::Normal { std: 0.02 }, Drawn::CutNormal { std: 0.02 });
        assert_eq!([drawn(tokens, ""), drawn(tokens, "normal"), drawn(tokens, "truncated")], [normal, normal, cut]);
        let wide = "bert.encoder.layer.0.intermediate.dense.weight";
        let uniform = Drawn::Uniform { bound: 1.0 / 16.0 };
        assert_eq!([drawn(wide, "nvidia_torch"), drawn(wide, "normal")], [uniform, normal]);
        assert_eq!(drawn(tokens, "nvidia_torch"), normal);
    }

    #[test]
    fn the_mean_over_words_is_that_of_the_recipe() {
        let graph = |mean: &str| print_graph(&step(&[&format!("text.masked_mean={mean}")]).graph);
        assert_eq!(graph("torch"), graph(""));
        assert_ne!(graph("torch"), graph("tensorflow"));
    }
}
