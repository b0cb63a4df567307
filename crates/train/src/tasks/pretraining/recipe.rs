//! What recipes of BERT say beside those of all models.

use crate::recipe::{Problem, Range, Recipe, family_recipe, require, section};
use crate::tasks::text::{EncoderFields, TextFields, VocabularyFields};
use bessemer_models::bert::BertInit;
use bessemer_nn::MaskedMean;
use serde::{Deserialize, Serialize};

section! {
    /// In `[model]`.
    pub(crate) struct ModelFields {
        /// Distribution of the initial weights.
        pub init: BertInit = BertInit::Normal;
    }
}

section! {
    /// In `[text]`.
    pub(crate) struct MaskingFields {
        /// Most tokens that are predicted in a sequence.
        pub max_predictions: u64 = 20 => Range::closed(1.0, 65_536.0);
        /// Which of the two data must be made for; absent for either.
        pub masking: Option<Masking>;
        /// Predict all pieces of a token together; of data that is made into sequences on the fly.
        pub whole_word: bool = false;
        /// What the summed loss of the tokens to predict is divided by.
        pub masked_mean: MaskedMean = MaskedMean::Torch;
    }
}

/// When it is drawn what is predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Masking {
    /// Once, when the data is prepared.
    Static,
    /// In each epoch.
    Dynamic,
}

family_recipe! {
    /// The own part of a recipe.
    pub(crate) struct BertRecipe {
        "model" => pub model: ModelFields,
        "model" => pub encoder: EncoderFields,
        "model" => pub vocabulary: VocabularyFields,
        "text" => pub text: TextFields,
        "text" => pub masking: MaskingFields,
    }
    check check;
}

fn check(own: &BertRecipe, _: &Recipe) -> Result<(), Problem> {
    let (length, predictions) = (own.text.sequence_length, own.masking.max_predictions);
    require(predictions + 3 <= length, "text.max_predictions", || {
        format!("{predictions} is more than the {} tokens of a sequence", length.saturating_sub(3))
    })
}
