//! The networks of recipes and of trained weights.

use super::family::ENCODERS;
use super::recipe::ElectraRecipe;
use crate::error::TrainError;
use crate::loaded_weights::LoadedWeights;
use crate::recipe::Recipe;
use crate::tasks::text::WordBias;
use crate::tasks::text::check_length;
use bessemer_data::text::Vocabulary;
use bessemer_models::bert::BertConfig;
use bessemer_models::electra::{self, ElectraConfig, ElectraOptions, Generator, PretrainingOptions};
use std::path::Path;

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
    /// A model of another family.
    pub(crate) fn published(name: &str) -> Result<Self, TrainError> {
        let spec = electra::find(name)?;
        Ok(Self { config: (spec.config)(), options: PretrainingOptions::new(spec.generator_fraction) })
    }

    /// Those of a recipe for a vocabulary of the given number of tokens.
    ///
    /// # Errors
    /// A model that is no ELECTRA; sequences that are longer than it can take.
    pub(crate) fn in_recipe(recipe: &Recipe, vocab_size: usize) -> Result<Self, TrainError> {
        let ElectraRecipe { model, encoder, vocabulary, text, .. } = recipe.own()?;
        let Self { config, options } = Self::published(&recipe.model.name)?;
        let vocab_size = vocab_size.next_multiple_of(vocabulary.vocab_multiple as usize);
        let encoder = BertConfig { vocab_size, ..encoder.apply(config.encoder) };
        check_length(&encoder, text.sequence_length as usize)?;
        if model.generator != Generator::Network && vocabulary.word_bias != WordBias::Zeros {
            let allowed = "without model.generator = network no token has a score: it must be zeros";
            return Err(TrainError::setting("model.word_bias", "log_frequencies", allowed));
        }
        let options = PretrainingOptions {
            network: ElectraOptions { seed: recipe.train.seed, init: model.init },
            generator_fraction: model.generator_fraction.unwrap_or(options.generator_fraction),
            discriminator_weight: model.discriminator_weight,
            generator: model.generator,
            disallow_correct: model.disallow_correct,
            ..options
        };
        Ok(Self { config: ElectraConfig { encoder, ..config }, options })
    }

    /// Those that weights of ELECTRA `name` are for, with as many tokens as they have.
    ///
    /// # Errors
    /// As [`Networks::in_recipe`].
    pub(crate) fn in_weights(name: &str, trained: &LoadedWeights) -> Result<Self, TrainError> {
        let published = Self::published(name)?;
        let vocab_size =
            ENCODERS.size(&trained.tensors).map_or(published.config.encoder.vocab_size, |size| size.tokens);
        let mut networks = match &trained.recipe {
            Some(recipe) => Self::in_recipe(recipe, vocab_size)?,
            None => published,
        };
        networks.config.encoder.vocab_size = vocab_size;
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
