//! ELECTRA (Clark, Luong, Le, Manning: "ELECTRA: Pre-training text encoders as discriminators rather than generators", 2020): BERT's
//! encoder, trained to detect which tokens of a text a small generator replaced. Generator and discriminator share the whole
//! embedding layer. Parameters have the names of Hugging Face's `ElectraForPreTraining`, `ElectraForMaskedLM` and
//! `ElectraForQuestionAnswering`; see [`names`] for both networks in one model.

mod config;
mod discriminator;
mod encoder;
mod generator;
pub mod names;
mod pretraining;
mod replacement;
mod span_head;
pub mod squad;

pub use config::{ElectraConfig, ElectraOptions, Generator, PretrainingOptions};
pub(crate) use names::of_tensorflow;
pub use pretraining::{evaluate, forward_loss, infer_discriminator, infer_generator, train};
pub use squad::{SpanHead, SquadOptions};

use crate::ModelError;
use crate::bert::Sequences;
use crate::model::{Summary, find_in};

/// An ELECTRA of the zoo.
#[derive(Clone, Copy, Debug)]
pub struct ElectraSpec {
    /// Name in commands and recipes.
    pub name: &'static str,
    /// One line for lists of models.
    pub description: &'static str,
    /// Sizes of the discriminator.
    pub config: fn() -> ElectraConfig,
    /// Width of the generator, as a share of the discriminator's.
    pub generator_fraction: f64,
    /// Settings of recipes that make another variant of it, as `--set` takes them.
    pub variants: &'static [&'static str],
}

/// Tokens of the sequence whose cost a summary of pre-training gives.
pub const SUMMARY_LENGTH: usize = 128;
/// Tokens of the window whose cost a summary of answering questions gives.
pub const SQUAD_SUMMARY_LENGTH: usize = 384;

const VARIANTS: &[&str] =
    &["model.activation=gelu_tanh", "model.vocab_multiple=1", "model.init=normal", "model.generator_fraction=0.25"];

/// All sizes.
pub const ELECTRAS: &[ElectraSpec] = &[
    ElectraSpec {
        name: "electra-tiny",
        description: "ELECTRA of 4 layers, 128 wide, with a generator of 64",
        config: ElectraConfig::tiny,
        generator_fraction: 0.5,
        variants: VARIANTS,
    },
    ElectraSpec {
        name: "electra-mini",
        description: "ELECTRA of 4 layers, 256 wide, with a generator of 64",
        config: ElectraConfig::mini,
        generator_fraction: 0.25,
        variants: VARIANTS,
    },
    ElectraSpec {
        name: "electra-small",
        description: "ELECTRA-small: 12 layers, 256 wide, with a generator of 64",
        config: ElectraConfig::small,
        generator_fraction: 0.25,
        variants: VARIANTS,
    },
    ElectraSpec {
        name: "electra-base",
        description: "ELECTRA-base: 12 layers, 768 wide, with a generator of 256",
        config: ElectraConfig::base,
        generator_fraction: 1.0 / 3.0,
        variants: VARIANTS,
    },
    ElectraSpec {
        name: "electra-large",
        description: "ELECTRA-large: 24 layers, 1024 wide, with a generator of 256",
        config: ElectraConfig::large,
        generator_fraction: 0.25,
        variants: VARIANTS,
    },
];

/// An ELECTRA of the zoo that answers questions.
#[derive(Clone, Copy, Debug)]
pub struct ElectraSquadSpec {
    /// Name in commands and recipes.
    pub name: &'static str,
    /// One line for lists of models.
    pub description: &'static str,
    /// Sizes of the encoder.
    pub config: fn() -> ElectraConfig,
    /// Settings of recipes that make another variant of it, as `--set` takes them.
    pub variants: &'static [&'static str],
}

const fn answering(name: &'static str, description: &'static str, config: fn() -> ElectraConfig) -> ElectraSquadSpec {
    ElectraSquadSpec { name, description, config, variants: &["model.activation=gelu_tanh", "squad.head=plain"] }
}

/// All sizes, to be fine-tuned on SQuAD.
pub const ELECTRA_SQUADS: &[ElectraSquadSpec] = &[
    answering("electra-tiny-squad", "ELECTRA of 4 layers, 128 wide, for questions about a text", ElectraConfig::tiny),
    answering("electra-mini-squad", "ELECTRA of 4 layers, 256 wide, for questions about a text", ElectraConfig::mini),
    answering("electra-small-squad", "ELECTRA-small, for questions about a text", ElectraConfig::small),
    answering("electra-base-squad", "ELECTRA-base, for questions about a text", ElectraConfig::base),
    answering("electra-large-squad", "ELECTRA-large, for questions about a text", ElectraConfig::large),
];

/// The ELECTRA for pre-training named `name`.
///
/// # Errors
/// [`ModelError::Unknown`], which lists all.
pub fn find(name: &str) -> Result<&'static ElectraSpec, ModelError> {
    find_in(ELECTRAS, name, |spec| spec.name)
}

/// The ELECTRA named `name` that answers questions.
///
/// # Errors
/// [`ModelError::Unknown`], which lists all.
pub fn find_squad(name: &str) -> Result<&'static ElectraSquadSpec, ModelError> {
    find_in(ELECTRA_SQUADS, name, |spec| spec.name)
}

impl ElectraSquadSpec {
    /// What a prediction costs for a sequence of 384 tokens, with the joint head and a beam of 5.
    ///
    /// # Errors
    /// None for the published sizes.
    pub fn summary(&self) -> Result<Summary, ModelError> {
        let head = SpanHead::Joint { beam: 5, may_be_impossible: false };
        let options = SquadOptions { network: ElectraOptions::default(), head };
        Ok(Summary::of(&squad::predict(&(self.config)(), 1, SQUAD_SUMMARY_LENGTH, &options)?))
    }
}

impl ElectraSpec {
    /// What pre-training costs for a sequence of 128 tokens with 19 draws.
    ///
    /// # Errors
    /// None for the published sizes.
    pub fn summary(&self) -> Result<Summary, ModelError> {
        let sequences = Sequences { batch: 1, length: SUMMARY_LENGTH, predictions: 19 };
        let model = evaluate(&(self.config)(), sequences, &PretrainingOptions::new(self.generator_fraction))?;
        Ok(Summary::of(&model))
    }
}
