//! Sequences of ELECTRA by what recipes say of them.

use crate::error::TrainError;
use crate::recipe::Recipe;
use crate::tasks::text::Part;
use bessemer_data::text::{ElectraOptions, ElectraSet, Vocabulary};

/// The sequences of a part of the text.
pub(super) fn set(part: Part<'_>, recipe: &Recipe) -> Result<ElectraSet, TrainError> {
    Ok(match part {
        Part::Synthetic(text) => ElectraSet::synthetic(text)?,
        Part::Folder(folder, split) => match &recipe.text.vocab {
            None => ElectraSet::open(folder, split, Some(options(recipe)), recipe.train.seed)?,
            Some(vocab) => {
                let vocabulary = Vocabulary::open(vocab.as_ref())?;
                ElectraSet::open_records(&folder.join(split.name()), &vocabulary, options(recipe), recipe.train.seed)?
            }
        },
    })
}

pub(super) fn options(recipe: &Recipe) -> ElectraOptions {
    let text = &recipe.text;
    ElectraOptions {
        sequence_length: text.sequence_length as usize,
        masked_lm_probability: text.masked_lm_prob,
        short_sequence_probability: text.short_seq_prob,
        single_segment_probability: text.single_segment_prob,
        distinct: text.distinct,
    }
}
