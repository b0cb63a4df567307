//! Sizes and variants of a BERT.

use super::init::BertInit;
use crate::ModelError;
use bessemer_nn::{Activation, MaskedMean};
use std::borrow::Cow;

/// Sizes, by the names of Hugging Face's `config.json`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BertConfig {
    /// Tokens of the vocabulary.
    pub vocab_size: usize,
    /// Width of the hidden states.
    pub hidden_size: usize,
    /// Layers of the encoder.
    pub num_hidden_layers: usize,
    /// Heads of each layer; they divide `hidden_size`.
    pub num_attention_heads: usize,
    /// Width between the two feed-forward matrices of a layer.
    pub intermediate_size: usize,
    /// Longest sequence, in tokens.
    pub max_position_embeddings: usize,
    /// Segments of a sequence.
    pub type_vocab_size: usize,
    /// Dropout of hidden states, in `[0, 1)`; in training alone.
    pub hidden_dropout_prob: f64,
    /// Dropout of attention probabilities, in `[0, 1)`; in training alone.
    pub attention_probs_dropout_prob: f64,
    /// Added to the variance in layer norms.
    pub layer_norm_eps: f64,
    /// Activation of the feed-forward layers.
    pub hidden_act: Activation,
    /// Standard deviation of initial weights.
    pub initializer_range: f64,
}

impl BertConfig {
    /// With the given number of layers and width, the rest as Google published it: heads of 64, four times the width between.
    const fn of(layers: usize, hidden: usize) -> BertConfig {
        BertConfig {
            vocab_size: 30_522,
            hidden_size: hidden,
            num_hidden_layers: layers,
            num_attention_heads: hidden / 64,
            intermediate_size: 4 * hidden,
            max_position_embeddings: 512,
            type_vocab_size: 2,
            hidden_dropout_prob: 0.1,
            attention_probs_dropout_prob: 0.1,
            layer_norm_eps: 1e-12,
            hidden_act: Activation::Gelu,
            initializer_range: 0.02,
        }
    }

    /// 2 layers, 128 wide.
    pub fn tiny() -> BertConfig {
        BertConfig::of(2, 128)
    }

    /// 4 layers, 256 wide.
    pub fn mini() -> BertConfig {
        BertConfig::of(4, 256)
    }

    /// 4 layers, 512 wide.
    pub fn small() -> BertConfig {
        BertConfig::of(4, 512)
    }

    /// 8 layers, 512 wide.
    pub fn medium() -> BertConfig {
        BertConfig::of(8, 512)
    }

    /// 12 layers, 768 wide.
    pub fn base() -> BertConfig {
        BertConfig::of(12, 768)
    }

    /// 24 layers, 1024 wide.
    pub fn large() -> BertConfig {
        BertConfig::of(24, 1024)
    }

    /// # Errors
    /// [`ModelError::Setting`], the first that is not possible.
    pub fn check(&self, sequences: Sequences, options: &BertOptions) -> Result<(), ModelError> {
        let positive = [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("num_attention_heads", self.num_attention_heads),
            ("intermediate_size", self.intermediate_size),
            ("type_vocab_size", self.type_vocab_size),
            ("batch_size", sequences.batch),
            ("sequence_length", sequences.length),
            ("max_predictions", sequences.predictions),
            ("pad_vocab_to", options.pad_vocab_to),
        ];
        if let Some((setting, value)) = positive.into_iter().find(|&(_, value)| value == 0) {
            return Err(setting_error(setting, value, "it must be at least 1"));
        }
        if !self.hidden_size.is_multiple_of(self.num_attention_heads) {
            let allowed = "it must divide hidden_size";
            return Err(setting_error("num_attention_heads", self.num_attention_heads, allowed));
        }
        if sequences.length > self.max_position_embeddings {
            let allowed = format!("it must be at most {}, the positions of the model", self.max_position_embeddings);
            return Err(setting_error("sequence_length", sequences.length, allowed));
        }
        let rates = [
            ("hidden_dropout_prob", self.hidden_dropout_prob),
            ("attention_probs_dropout_prob", self.attention_probs_dropout_prob),
        ];
        match rates.into_iter().find(|(_, rate)| !(0.0..1.0).contains(rate)) {
            Some((setting, rate)) => Err(setting_error(setting, rate, "it must be at least 0 and below 1")),
            None => Ok(()),
        }
    }
}

pub(crate) fn setting_error(
    setting: &'static str,
    value: impl ToString,
    allowed: impl Into<Cow<'static, str>>,
) -> ModelError {
    ModelError::Setting { setting, value: value.to_string(), allowed: allowed.into() }
}

/// Sizes of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequences {
    /// Sequences of a batch.
    pub batch: usize,
    /// Tokens of a sequence.
    pub length: usize,
    /// Masked tokens of a sequence, at most.
    pub predictions: usize,
}

/// Variants of the model and of its training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BertOptions {
    /// Seed of dropout.
    pub seed: u64,
    /// Initial weights.
    pub init: BertInit,
    /// What the loss over masked tokens is divided by.
    pub masked_mean: MaskedMean,
    /// Whether the layer before the vocabulary has the activation. NVIDIA's TensorFlow 2 recipe has none.
    pub mlm_activation: bool,
    /// The vocabulary is padded to a multiple of it with tokens that never come.
    pub pad_vocab_to: usize,
}

impl Default for BertOptions {
    fn default() -> Self {
        BertOptions {
            seed: 0,
            init: BertInit::Normal,
            masked_mean: MaskedMean::Torch,
            mlm_activation: true,
            pad_vocab_to: 1,
        }
    }
}

/// A BERT with its variants, as the builders of its parts need it.
#[derive(Clone, Copy)]
pub(crate) struct Bert<'a> {
    pub config: &'a BertConfig,
    pub sequences: Sequences,
    pub options: &'a BertOptions,
}

impl Bert<'_> {
    /// Words with the padding.
    pub(crate) fn vocabulary(&self) -> usize {
        self.config.vocab_size.next_multiple_of(self.options.pad_vocab_to)
    }
}
