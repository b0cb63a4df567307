//! Fields of recipes that families of models of text share.

use crate::recipe::{Problem, Range, require, section};
use bessemer_models::bert::{BertConfig, BertInit};
use bessemer_nn::Activation;
use serde::{Deserialize, Serialize};

section! {
    /// The encoder, in `[model]`.
    pub(crate) struct EncoderFields {
        /// Standard deviation of the initial matrices and embeddings.
        pub init_std: f64 = 0.02 => Range::above(0.0, 1.0);
        /// Dropout of embeddings and of what each half of a layer adds.
        pub hidden_dropout: f64 = 0.1 => Range::below(0.0, 1.0);
        /// Dropout of attention's probabilities.
        pub attention_dropout: f64 = 0.1 => Range::below(0.0, 1.0);
        /// Function between the two layers of the feed-forward part.
        pub activation: Activation = Activation::Gelu;
    }
}

impl EncoderFields {
    /// An encoder as the recipe wants it.
    pub(crate) fn apply(&self, published: BertConfig) -> BertConfig {
        BertConfig {
            initializer_range: self.init_std,
            hidden_dropout_prob: self.hidden_dropout,
            attention_probs_dropout_prob: self.attention_dropout,
            hidden_act: self.activation,
            ..published
        }
    }
}

section! {
    /// The vocabulary of a model that is pre-trained, in `[model]`.
    pub(crate) struct VocabularyFields {
        /// The bias of each token's score.
        pub word_bias: WordBias = WordBias::Zeros;
        /// The vocabulary is filled up to a multiple of this with tokens that never occur.
        pub vocab_multiple: u64 = 8 => Range::closed(1.0, 4096.0);
    }
}

section! {
    /// How sequences are made of text, in `[text]`.
    pub(crate) struct TextFields {
        /// A WordPiece vocabulary, for data without a vocabulary.
        pub vocab: Option<String>, place;
        /// Tokens of a sequence.
        pub sequence_length: u64 = 128 => Range::closed(8.0, 65_536.0);
        /// Part of the tokens that is predicted; like the fields below, of data that is made into sequences on the fly.
        pub masked_lm_prob: f64 = 0.15 => Range::between(0.0, 1.0);
        /// Part of the sequences that is shorter than it could be.
        pub short_seq_prob: f64 = 0.1 => Range::closed(0.0, 1.0);
    }
}

/// Initial bias of the scores of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WordBias {
    /// As published.
    #[default]
    Zeros,
    /// The logarithm of the token's frequency in the training data, so that the loss begins near the entropy of the frequencies.
    LogFrequencies,
}

/// # Errors
/// Initial weights that no published recipe of models of this kind has.
pub(crate) fn published_init(init: BertInit, model: &str) -> Result<(), Problem> {
    require(init != BertInit::NvidiaTorch, "model.init", || {
        format!("\"nvidia_torch\" is not for {model}: there are \"truncated\", \"normal\", \"mimetic\"")
    })
}
