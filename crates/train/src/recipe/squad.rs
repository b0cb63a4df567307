use serde::{Deserialize, Serialize};

/// How questions about a text are answered, SQuAD.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SquadRecipe {
    /// A WordPiece vocabulary; absent for the one beside the weights that are fine-tuned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocab: Option<String>,
    /// The questions to train on: a file, or the name of one in the folder of the data; absent for the only `train-*.json` there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train_file: Option<String>,
    /// The questions to evaluate on, in the same way; absent for the only `dev-*.json`, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dev_file: Option<String>,
    /// Whether windows are kept in a file beside the questions, where that can be written.
    pub cache: bool,
    /// Tokens of a window: question, part of the context, and what is between them.
    pub sequence_length: u64,
    /// Tokens from one window of a context to the next.
    pub doc_stride: u64,
    /// Tokens of a question, at most; the rest of it is cut off.
    pub max_query_length: u64,
    /// Tokens of an answer, at most.
    pub max_answer_length: u64,
    pub head: SpanHead,
    /// First tokens that are followed up in a prediction, and last ones for each; of the joint head.
    pub beam: u64,
    /// Answers that are kept for each question.
    pub n_best: u64,
    /// Score of there being no answer above which none is given, in data that has such questions; absent for -5.6 of the joint
    /// head and 0 of the plain one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub null_threshold: Option<f64>,
}

impl Default for SquadRecipe {
    fn default() -> Self {
        Self {
            vocab: None,
            train_file: None,
            dev_file: None,
            cache: true,
            sequence_length: 384,
            doc_stride: 128,
            max_query_length: 64,
            max_answer_length: 30,
            head: SpanHead::Joint,
            beam: 5,
            n_best: 20,
            null_threshold: None,
        }
    }
}

/// How an answer is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpanHead {
    /// The last token by the first one.
    #[default]
    Joint,
    /// Both by one layer, each for itself.
    Plain,
}
