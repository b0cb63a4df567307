use serde::{Deserialize, Serialize};

/// How sequences are made of text, for masked-language-model pre-training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TextRecipe {
    /// A WordPiece vocabulary, for data that has none of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocab: Option<String>,
    /// Tokens of a sequence.
    pub sequence_length: u64,
    /// Most tokens that are predicted in a sequence.
    pub max_predictions: u64,
    /// Which of the two data must be made for; absent for either.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub masking: Option<Masking>,
    /// Part of the tokens that is predicted; like the fields below, of data that is made into sequences on the fly.
    pub masked_lm_prob: f64,
    /// Part of the sequences that is shorter than it could be.
    pub short_seq_prob: f64,
    /// Predict all pieces of a word together.
    pub whole_word: bool,
    pub masked_mean: MaskedMean,
    /// Part of ELECTRA's sequences that has one segment.
    pub single_segment_prob: f64,
    /// Whether a sequence of ELECTRA predicts a token once at most.
    pub distinct: bool,
}

impl Default for TextRecipe {
    fn default() -> Self {
        Self {
            vocab: None,
            sequence_length: 128,
            max_predictions: 20,
            masking: None,
            masked_lm_prob: 0.15,
            short_seq_prob: 0.1,
            whole_word: false,
            masked_mean: MaskedMean::Torch,
            single_segment_prob: 0.1,
            distinct: false,
        }
    }
}

/// What the summed loss of the words to predict is divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MaskedMean {
    /// Their number.
    #[default]
    Torch,
    /// Their number and 1e-5.
    TensorFlow,
}

/// When it is drawn what is predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Masking {
    /// Once, when the data is prepared.
    Static,
    /// Anew in each epoch.
    Dynamic,
}
