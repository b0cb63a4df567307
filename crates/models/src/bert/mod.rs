//! BERT for pre-training (Devlin, Chang, Lee, Toutanova: "BERT: Pre-training of deep bidirectional transformers for language
//! understanding", 2019): an encoder with the heads that predict masked tokens and following sentences. Parameters have the
//! names of Hugging Face's `BertForPreTraining`.

mod config;
mod encoder;
mod heads;
mod init;
mod names;
mod steps;

pub(crate) use config::{Bert, setting_error};
pub use config::{BertConfig, BertOptions, Sequences};
pub(crate) use encoder::{Embeddings, Encoder, Tokens, mask_bias};
pub(crate) use heads::{first_states, states_at, token_numbers, token_scores};
pub use init::BertInit;
pub use names::{NAMES, TIED};
pub(crate) use names::{is_of_optimizer, of_tensorflow};
pub use steps::{evaluate, forward_loss, infer, train};

use crate::ModelError;
use crate::model::{Summary, find_in};

/// A BERT of the zoo.
#[derive(Clone, Copy, Debug)]
pub struct BertSpec {
    /// Name in commands and recipes.
    pub name: &'static str,
    /// One line for lists of models.
    pub description: &'static str,
    /// The published sizes.
    pub config: fn() -> BertConfig,
    /// Settings of recipes that make another variant of it, as `--set` takes them.
    pub variants: &'static [&'static str],
}

/// Tokens of the sequence whose cost a summary gives.
pub const SUMMARY_LENGTH: usize = 128;

const VARIANTS: &[&str] = &["model.activation=gelu_tanh", "model.vocab_multiple=1", "model.init=truncated"];

const fn spec(name: &'static str, description: &'static str, config: fn() -> BertConfig) -> BertSpec {
    BertSpec { name, description, config, variants: VARIANTS }
}

/// All sizes.
pub const BERTS: &[BertSpec] = &[
    spec("bert-tiny", "BERT of 2 layers, 128 wide, for pre-training", BertConfig::tiny),
    spec("bert-mini", "BERT of 4 layers, 256 wide, for pre-training", BertConfig::mini),
    spec("bert-small", "BERT of 4 layers, 512 wide, for pre-training", BertConfig::small),
    spec("bert-medium", "BERT of 8 layers, 512 wide, for pre-training", BertConfig::medium),
    spec("bert-base", "BERT-base: 12 layers, 768 wide, for pre-training", BertConfig::base),
    spec("bert-large", "BERT-large: 24 layers, 1024 wide, for pre-training", BertConfig::large),
];

/// The BERT named `name`.
///
/// # Errors
/// [`ModelError::Unknown`], which lists all.
pub fn find(name: &str) -> Result<&'static BertSpec, ModelError> {
    find_in(BERTS, name, |spec| spec.name)
}

impl BertSpec {
    /// What it costs for a sequence of 128 tokens with 20 predictions.
    ///
    /// # Errors
    /// None for the published sizes.
    pub fn summary(&self) -> Result<Summary, ModelError> {
        let sequences = Sequences { batch: 1, length: SUMMARY_LENGTH, predictions: 20 };
        Ok(Summary::of(&infer(&(self.config)(), sequences, &BertOptions::default())?))
    }
}
