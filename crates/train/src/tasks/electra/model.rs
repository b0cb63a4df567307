//! The networks of recipes and of trained weights.

use crate::error::TrainError;
use crate::recipe::{Generator, Recipe, WordBias};
use crate::tasks::pretraining::{activation, check_length, initial_weights};
use crate::tasks::text::Size;
use crate::trained::Trained;
use bessemer_data::text::Vocabulary;
use bessemer_models::bert::BertConfig;
use bessemer_models::electra::{self, ElectraConfig, ElectraOptions, ElectraSpec, PretrainingOptions};
use bessemer_models::{AnyModel, ModelError, find_any};
use std::path::Path;

/// ELECTRA `name` of the zoo.
///
/// # Errors
/// A model that does not exist or is no ELECTRA for pre-training.
pub(super) fn published(name: &str) -> Result<&'static ElectraSpec, TrainError> {
    match find_any(name)? {
        AnyModel::Electra(spec) => Ok(spec),
        _ => {
            let (setting, value) = ("the model", name.to_owned());
            Err(ModelError::Setting { setting, value, allowed: "it must be an ELECTRA for pre-training" }.into())
        }
    }
}

/// Both networks of a recipe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Networks {
    pub config: ElectraConfig,
    pub options: PretrainingOptions,
}

impl Networks {
    /// Those of ELECTRA `name` as published.
    ///
    /// # Errors
    /// As [`published`].
    pub(crate) fn published(name: &str) -> Result<Self, TrainError> {
        let spec = published(name)?;
        Ok(Self { config: (spec.config)(), options: PretrainingOptions::new(spec.generator_fraction) })
    }

    /// Those of a recipe for a vocabulary of so many words.
    ///
    /// # Errors
    /// A model that is no ELECTRA; sequences that are longer than it can take.
    pub(crate) fn in_recipe(recipe: &Recipe, words: usize) -> Result<Self, TrainError> {
        let (model, Self { config, options }) = (&recipe.model, Self::published(&recipe.model.name)?);
        let encoder = BertConfig {
            vocab_size: words.next_multiple_of(model.vocab_multiple as usize),
            initializer_range: model.init_std,
            hidden_dropout_prob: model.hidden_dropout,
            attention_probs_dropout_prob: model.attention_dropout,
            hidden_act: activation(model.activation),
            ..config.encoder
        };
        check_length(&encoder, recipe.text.sequence_length as usize)?;
        if model.generator != Generator::Network && model.word_bias != WordBias::Zeros {
            let allowed = "without model.generator = network no word has a score: it must be zeros";
            return Err(TrainError::setting("model.word_bias", "log_frequencies", allowed));
        }
        let network = ElectraOptions { seed: recipe.train.seed, init: initial_weights(recipe) };
        let options = PretrainingOptions {
            network,
            generator_fraction: model.generator_fraction.unwrap_or(options.generator_fraction),
            discriminator_weight: model.discriminator_weight,
            generator: match model.generator {
                Generator::Network => electra::Generator::Network,
                Generator::Uniform => electra::Generator::Uniform,
                Generator::Batch => electra::Generator::Batch,
            },
            disallow_correct: model.disallow_correct,
            ..options
        };
        Ok(Self { config: ElectraConfig { encoder, ..config }, options })
    }

    /// Those that weights of ELECTRA `name` are for, with as many words as they have.
    ///
    /// # Errors
    /// As [`Networks::in_recipe`].
    pub(crate) fn in_weights(name: &str, trained: &Trained) -> Result<Self, TrainError> {
        let published = Self::published(name)?;
        let words = Size::of(&trained.tensors).map_or(published.config.encoder.vocab_size, |size| size.words);
        let mut networks = match &trained.recipe {
            Some(recipe) => Self::in_recipe(recipe, words)?,
            None => published,
        };
        networks.config.encoder.vocab_size = words;
        Ok(networks)
    }

    /// The same with the number of `[MASK]` in a vocabulary; random words have none.
    ///
    /// # Errors
    /// A vocabulary that cannot be read.
    pub(crate) fn for_vocabulary(self, vocabulary: Option<&Path>) -> Result<Self, TrainError> {
        let Some(path) = vocabulary else { return Ok(self) };
        let mask_token = Vocabulary::open(path)?.specials().mask;
        Ok(Self { options: PretrainingOptions { mask_token, ..self.options }, ..self })
    }
}
