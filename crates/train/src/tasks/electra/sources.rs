//! Sequences of ELECTRA by what recipes say of them.

use super::recipe::ElectraRecipe;
use crate::error::TrainError;
use crate::recipe::Recipe;
use crate::tasks::text::Part;
use bessemer_data::text::{ElectraOptions, ElectraSet, Vocabulary};

/// The sequences of a part of the text.
pub(super) fn set(part: Part<'_>, recipe: &Recipe) -> Result<ElectraSet, TrainError> {
    let own: &ElectraRecipe = recipe.own()?;
    Ok(match part {
        Part::Synthetic(text) => ElectraSet::synthetic(text)?,
        Part::Folder(folder, split) => match &own.text.vocab {
            None => ElectraSet::open(folder, split, Some(options(own)), recipe.train.seed)?,
            Some(vocab) => {
                let vocabulary = Vocabulary::open(vocab.as_ref())?;
                ElectraSet::open_records(&folder.join(split.name()), &vocabulary, options(own), recipe.train.seed)?
            }
        },
    })
}

pub(super) fn options(own: &ElectraRecipe) -> ElectraOptions {
    let ElectraRecipe { text, sequences, .. } = own;
    ElectraOptions {
        sequence_length: text.sequence_length as usize,
        masked_lm_probability: text.masked_lm_prob,
        short_sequence_probability: text.short_seq_prob,
        single_segment_probability: sequences.single_segment_prob,
        distinct: sequences.distinct,
    }
}
