//! The networks of recipes and of trained weights.

use crate::error::TrainError;
use crate::recipe::{Init, Recipe};
use crate::setup::{precision, train_config};
use crate::tasks::pretraining::{activation, check_length, words_of};
use crate::trained::Trained;
use bessemer_models::bert::{BertConfig, BertInit, Sequences};
use bessemer_models::electra::{self, ElectraConfig, ElectraOptions, ElectraSpec, PretrainingOptions};
use bessemer_models::{AnyModel, Model, ModelError, find_any};

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
    pub fn published(name: &str) -> Result<Self, TrainError> {
        let spec = published(name)?;
        Ok(Self { config: (spec.config)(), options: PretrainingOptions::new(spec.generator_fraction) })
    }

    /// Those of a recipe for a vocabulary of so many words.
    ///
    /// # Errors
    /// A model that is no ELECTRA; sequences that are longer than it can take.
    pub fn of(recipe: &Recipe, words: usize) -> Result<Self, TrainError> {
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
        let network = ElectraOptions { seed: recipe.train.seed, init: init(recipe) };
        let options = PretrainingOptions {
            network,
            generator_fraction: model.generator_fraction.unwrap_or(options.generator_fraction),
            discriminator_weight: model.discriminator_weight,
            ..options
        };
        Ok(Self { config: ElectraConfig { encoder, ..config }, options })
    }

    /// Those that weights of ELECTRA `name` are for, with as many words as they have.
    ///
    /// # Errors
    /// As [`Networks::of`].
    pub fn in_weights(name: &str, trained: &Trained) -> Result<Self, TrainError> {
        let published = Self::published(name)?;
        let words = words_of(&trained.tensors).unwrap_or(published.config.encoder.vocab_size);
        let mut networks = match &trained.recipe {
            Some(recipe) => Self::of(recipe, words)?,
            None => published,
        };
        networks.config.encoder.vocab_size = words;
        Ok(networks)
    }

    /// The same for a vocabulary whose `[MASK]` has this number.
    pub fn with_mask(self, mask_token: u32) -> Self {
        Self { options: PretrainingOptions { mask_token, ..self.options }, ..self }
    }

    /// The graph of a whole training step as the recipe asks for it.
    ///
    /// # Errors
    /// A size that is not possible; a precision that CPUs do not train in.
    pub fn training_step(
        &self,
        recipe: &Recipe,
        sequences: Sequences,
        steps_per_epoch: u64,
    ) -> Result<Model, TrainError> {
        precision(recipe)?;
        Ok(electra::train(&self.config, sequences, &self.options, &train_config(recipe, steps_per_epoch)?)?)
    }
}

/// Initial weights as a recipe has them.
pub(crate) fn init(recipe: &Recipe) -> BertInit {
    match recipe.model.init {
        Some(Init::Normal) => BertInit::Normal,
        _ => BertInit::Truncated,
    }
}
