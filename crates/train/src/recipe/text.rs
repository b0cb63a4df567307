use serde::{Deserialize, Serialize};

/// How sequences are made of text, for masked-language-model pre-training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TextRecipe {
    /// A WordPiece vocabulary; absent for `vocab.txt` beside the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocab: Option<String>,
    /// Tokens of a sequence.
    pub sequence_length: u64,
    /// Most tokens that are predicted in a sequence.
    pub max_predictions: u64,
    pub masking: Masking,
    /// Part of the tokens that is predicted.
    pub masked_lm_prob: f64,
    /// Part of the sequences that is shorter than it could be.
    pub short_seq_prob: f64,
    /// Predict all pieces of a word together.
    pub whole_word: bool,
    /// Part of the documents that is kept for evaluation.
    pub heldout: f64,
}

impl Default for TextRecipe {
    fn default() -> Self {
        Self {
            vocab: None,
            sequence_length: 128,
            max_predictions: 20,
            masking: Masking::Static,
            masked_lm_prob: 0.15,
            short_seq_prob: 0.1,
            whole_word: false,
            heldout: 0.01,
        }
    }
}

/// When it is drawn what is predicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Masking {
    /// Once, when the sequences are made.
    #[default]
    Static,
    /// Anew each time a sequence is used.
    Dynamic,
}
