//! What recipes of ELECTRA's pre-training say beside those of all models.

use crate::recipe::{Problem, Range, Recipe, family_recipe, section};
use crate::tasks::text::{EncoderFields, TextFields, VocabularyFields, published_init};
use bessemer_models::bert::BertInit;
use bessemer_models::electra::Generator;

section! {
    /// In `[model]`.
    pub(crate) struct ModelFields {
        /// Distribution of the initial weights.
        pub init: BertInit = BertInit::Truncated;
        /// Width of the generator as a share of the discriminator's; absent for that of the model as published.
        pub generator_fraction: Option<f64> => Range::above(0.0, 1.0);
        /// Weight of the discriminator's loss; the generator's has 1.
        pub discriminator_weight: f64 = 50.0 => Range::closed(0.0, 10_000.0);
        /// Where the tokens come from that the discriminator is to find.
        pub generator: Generator = Generator::Network;
        /// Never put in the right token.
        pub disallow_correct: bool = false;
    }
}

section! {
    /// In `[text]`.
    pub(crate) struct SequenceFields {
        /// Part of the sequences that has one segment.
        pub single_segment_prob: f64 = 0.1 => Range::closed(0.0, 1.0);
        /// Whether a sequence predicts a token once at most.
        pub distinct: bool = false;
    }
}

family_recipe! {
    /// The own part of a recipe.
    pub(crate) struct ElectraRecipe {
        "model" => pub model: ModelFields,
        "model" => pub encoder: EncoderFields,
        "model" => pub vocabulary: VocabularyFields,
        "text" => pub text: TextFields,
        "text" => pub sequences: SequenceFields,
    }
    check check;
}

fn check(own: &ElectraRecipe, recipe: &Recipe) -> Result<(), Problem> {
    published_init(own.model.init, &recipe.model.name)
}
