//! What recipes of answering questions say beside those of all models.

use crate::recipe::{Problem, Range, Recipe, family_recipe, require, section};
use crate::tasks::text::{EncoderFields, published_init};
use bessemer_models::bert::BertInit;
use serde::{Deserialize, Serialize};

section! {
    /// In `[model]`.
    pub(crate) struct ModelFields {
        /// Distribution of the initial weights.
        pub init: BertInit = BertInit::Truncated;
    }
}

section! {
    /// How questions about a text are answered, in `[squad]`.
    pub(crate) struct SquadFields {
        /// A WordPiece vocabulary; absent for the one beside the weights that are fine-tuned.
        pub vocab: Option<String>, place;
        /// The questions to train on: a file, or the name of one in the folder of the data; absent for the only `train-*.json`
        /// there.
        pub train_file: Option<String>, place;
        /// The questions to evaluate on, in the same way; absent for the only `dev-*.json`, if there is one.
        pub dev_file: Option<String>, place;
        /// Whether windows are kept in a file beside the questions, where that can be written.
        pub cache: bool = true, free;
        /// Tokens of a window: question, part of the context, and what is between them.
        pub sequence_length: u64 = 384 => Range::closed(16.0, 65_536.0);
        /// Tokens from one window of a context to the next.
        pub doc_stride: u64 = 128 => Range::closed(1.0, 65_536.0);
        /// Tokens of a question, at most; the rest of it is cut off.
        pub max_query_length: u64 = 64 => Range::closed(1.0, 65_536.0);
        /// Tokens of an answer, at most.
        pub max_answer_length: u64 = 30 => Range::closed(1.0, 65_536.0);
        /// Form of the output layer.
        pub head: Head = Head::Joint;
        /// First tokens that are followed up in a prediction, and last ones for each; of the joint head.
        pub beam: u64 = 5 => Range::closed(1.0, 64.0);
        /// Answers that are kept for each question.
        pub n_best: u64 = 20 => Range::closed(1.0, 10_000.0);
        /// Score of there being no answer above which none is given, in data that has such questions; absent for -5.6 of the
        /// joint head and 0 of the plain one.
        pub null_threshold: Option<f64> => Range::closed(-1e6, 1e6), free;
    }
}

section! {
    /// In `[optimizer]`.
    pub(crate) struct LayerRateFields {
        /// Learning rates fall by this factor from layer to layer below the heads.
        pub layer_decay: f64 = 1.0 => Range::above(0.0, 1.0);
    }
}

/// How an answer is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Head {
    /// The last token by the first one.
    #[default]
    Joint,
    /// Both by one layer, each for itself.
    Plain,
}

family_recipe! {
    /// The own part of a recipe.
    pub(crate) struct QuestionRecipe {
        "model" => pub model: ModelFields,
        "model" => pub encoder: EncoderFields,
        "squad" => pub squad: SquadFields,
        "optimizer" => pub layer_rates: LayerRateFields,
    }
    check check;
}

fn check(own: &QuestionRecipe, recipe: &Recipe) -> Result<(), Problem> {
    published_init(own.model.init, &recipe.model.name)?;
    let squad = &own.squad;
    let room = squad.sequence_length.saturating_sub(squad.max_query_length + 3);
    require(room > 0, "squad.max_query_length", || {
        format!("{} leaves {room} tokens of a window for the context", squad.max_query_length)
    })?;
    require(squad.doc_stride <= room, "squad.doc_stride", || {
        format!("{} is more than the {room} tokens of context in a window", squad.doc_stride)
    })
}
