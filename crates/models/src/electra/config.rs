//! Sizes and variants of an ELECTRA.

use crate::ModelError;
use crate::bert::{Bert, BertConfig, BertInit, BertOptions, Sequences, setting_error};
use bessemer_nn::RateFactors;
use serde::{Deserialize, Serialize};

/// Sizes, by the names of Hugging Face's `config.json`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ElectraConfig {
    /// Width of the embeddings; where it is not `hidden_size`, a layer lies between them and the encoder.
    pub embedding_size: usize,
    /// All other sizes: the encoder is BERT's.
    pub encoder: BertConfig,
}

impl ElectraConfig {
    /// With the given number of layers and width, the rest as Google published it: heads of 64, four times the width between.
    fn of(embedding: usize, layers: usize, hidden: usize) -> ElectraConfig {
        let encoder = BertConfig {
            hidden_size: hidden,
            num_hidden_layers: layers,
            num_attention_heads: hidden / HEAD_WIDTH,
            intermediate_size: 4 * hidden,
            ..BertConfig::base()
        };
        ElectraConfig { embedding_size: embedding, encoder }
    }

    /// For small machines and short runs.
    pub fn tiny() -> ElectraConfig {
        ElectraConfig::of(128, 4, 128)
    }

    /// For small machines.
    pub fn mini() -> ElectraConfig {
        ElectraConfig::of(128, 4, 256)
    }

    /// 12 layers, 256 wide, with embeddings of 128.
    pub fn small() -> ElectraConfig {
        ElectraConfig::of(128, 12, 256)
    }

    /// 12 layers, 768 wide.
    pub fn base() -> ElectraConfig {
        ElectraConfig::of(768, 12, 768)
    }

    /// 24 layers, 1024 wide.
    pub fn large() -> ElectraConfig {
        ElectraConfig::of(1024, 24, 1024)
    }

    /// The generator to this discriminator: `fraction` of its width, in whole heads of 64, and as many layers.
    pub fn generator(&self, fraction: f64) -> ElectraConfig {
        let hidden = ((self.encoder.hidden_size as f64 * fraction).round() as usize).next_multiple_of(HEAD_WIDTH);
        let encoder = BertConfig {
            hidden_size: hidden,
            num_attention_heads: hidden / HEAD_WIDTH,
            intermediate_size: 4 * hidden,
            ..self.encoder
        };
        ElectraConfig { embedding_size: self.embedding_size, encoder }
    }

    /// Learning rates that fall with the depth below the heads: `decay^(L + 2 - depth)` for embeddings (depth 0) and layer `i`
    /// of `L` (depth `i + 1`).
    pub fn layer_rates(&self, decay: f64) -> RateFactors {
        let layers = self.encoder.num_hidden_layers;
        let factor = |depth: usize| decay.powi((layers + 2 - depth) as i32);
        let of_layer = |layer: usize| (format!("electra.encoder.layer.{layer}."), factor(layer + 1));
        RateFactors::by_prefix(
            [("electra.embeddings".to_string(), factor(0))].into_iter().chain((0..layers).map(of_layer)).collect(),
        )
    }

    /// # Errors
    /// [`ModelError::Setting`], the first that is not possible.
    pub(super) fn check(&self, sequences: Sequences) -> Result<(), ModelError> {
        if self.embedding_size == 0 {
            return Err(setting_error("embedding_size", 0, "it must be at least 1"));
        }
        self.encoder.check(sequences, &BertOptions::default())
    }
}

/// Width of an attention head of the published sizes.
const HEAD_WIDTH: usize = 64;

/// Variants that all steps have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ElectraOptions {
    /// Seed of dropout and of the generator's samples.
    pub seed: u64,
    /// Google's is [`BertInit::Truncated`], Hugging Face's [`BertInit::Normal`].
    pub init: BertInit,
}

impl Default for ElectraOptions {
    fn default() -> Self {
        ElectraOptions { seed: 0, init: BertInit::Truncated }
    }
}

impl ElectraOptions {
    pub(super) fn of_bert(&self) -> BertOptions {
        BertOptions { seed: self.seed, init: self.init, ..BertOptions::default() }
    }
}

/// Where the tokens come from that the discriminator is to find.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Generator {
    /// From a network that is trained along.
    #[default]
    Network,
    /// Any token of the vocabulary is as likely as any other. It is found by its rarity.
    Uniform,
    /// Words of the batch, at the positions drawn: as frequent as right ones, so that only their context identifies them.
    Batch,
}

/// Variants of pre-training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PretrainingOptions {
    /// Seed and initial weights of both networks.
    pub network: ElectraOptions,
    /// Width of the generator, as a share of the discriminator's.
    pub generator_fraction: f64,
    /// What hides a token.
    pub mask_token: u32,
    /// Weight of the discriminator's loss; the generator's has 1.
    pub discriminator_weight: f64,
    /// Whether the generator never gives the right token.
    pub disallow_correct: bool,
    /// Where replacements come from.
    pub generator: Generator,
}

impl PretrainingOptions {
    /// Google's, with a generator of this share of the width.
    pub fn new(generator_fraction: f64) -> Self {
        PretrainingOptions {
            network: ElectraOptions::default(),
            generator_fraction,
            mask_token: 103,
            discriminator_weight: 50.0,
            disallow_correct: false,
            generator: Generator::Network,
        }
    }

    /// # Errors
    /// As [`ElectraConfig::check`].
    pub(super) fn check(&self, config: &ElectraConfig, sequences: Sequences) -> Result<(), ModelError> {
        config.check(sequences)?;
        if !(self.generator_fraction > 0.0 && self.generator_fraction <= 1.0) {
            let allowed = "it must be above 0 and at most 1";
            return Err(setting_error("generator_fraction", self.generator_fraction, allowed));
        }
        if self.mask_token as usize >= config.encoder.vocab_size {
            return Err(setting_error("mask_token", self.mask_token, "it must be below vocab_size"));
        }
        Ok(())
    }
}

/// An encoder with its variants, as the builders of its parts need it.
#[derive(Clone, Copy)]
pub(super) struct Network<'a> {
    pub embedding: usize,
    pub bert: Bert<'a>,
}

impl<'a> Network<'a> {
    pub(super) fn new(config: &'a ElectraConfig, sequences: Sequences, options: &'a BertOptions) -> Self {
        let bert = Bert { config: &config.encoder, sequences, options };
        Network { embedding: config.embedding_size, bert }
    }

    pub(super) fn width(&self) -> usize {
        self.bert.config.hidden_size
    }
}
