//! Sequences of BERT by what recipes say of them.

use super::recipe::{BertRecipe, Masking};
use crate::error::TrainError;
use crate::loaded_weights::LoadedWeights;
use crate::recipe::Recipe;
use crate::tasks::text::{Part, vocabulary_in};
use bessemer_data::Split;
use bessemer_data::text::{InstanceOptions, PretrainingSet, VOCABULARY_FILE, Vocabulary};
use std::path::Path;

/// The sequences of a part of the text.
pub(super) fn set(part: Part<'_>, recipe: &Recipe) -> Result<PretrainingSet, TrainError> {
    match part {
        Part::Synthetic(text) => Ok(PretrainingSet::synthetic(text)?),
        Part::Folder(folder, split) => open(folder, split, recipe),
    }
}

fn open(folder: &Path, split: Split, recipe: &Recipe) -> Result<PretrainingSet, TrainError> {
    let BertRecipe { text, masking: own, .. } = recipe.own()?;
    let set = match &text.vocab {
        Some(vocab) => {
            PretrainingSet::open_records(&folder.join(split.name()), Vocabulary::open(vocab.as_ref())?.len())?
        }
        None => PretrainingSet::open(folder, split, Some(options(recipe)?), recipe.train.seed)?,
    };
    let (made, asked) = (masking(&set), own.masking.unwrap_or(masking(&set)));
    if made != asked {
        let (value, fitting, held) = match made {
            Masking::Dynamic => ("static", "dynamic", "tokens, whose tokens are masked again in each epoch"),
            Masking::Static => ("dynamic", "static", "records, whose tokens were masked when they were made"),
        };
        let allowed = format!("{} holds {held}: --set text.masking={fitting} takes them", folder.display());
        return Err(TrainError::setting("text.masking", value, allowed));
    }
    require_lengths(&set, folder, recipe)?;
    Ok(set)
}

/// Records of another origin have lengths of their own.
fn require_lengths(set: &PretrainingSet, folder: &Path, recipe: &Recipe) -> Result<(), TrainError> {
    let BertRecipe { text, masking, .. } = recipe.own()?;
    let asked = (text.sequence_length as usize, masking.max_predictions as usize);
    let made = (set.sequence_length(), set.predictions());
    if asked == made {
        return Ok(());
    }
    let value = format!("{} with {} predictions", asked.0, asked.1);
    let allowed = format!("{} holds sequences of {} with {} predictions", folder.display(), made.0, made.1);
    Err(TrainError::setting("text.sequence_length", value, allowed))
}

fn masking(set: &PretrainingSet) -> Masking {
    if set.is_made_anew() { Masking::Dynamic } else { Masking::Static }
}

fn options(recipe: &Recipe) -> Result<InstanceOptions, TrainError> {
    let BertRecipe { text, masking, .. } = recipe.own()?;
    Ok(InstanceOptions {
        sequence_length: text.sequence_length as usize,
        max_predictions: masking.max_predictions as usize,
        masked_lm_probability: text.masked_lm_prob,
        short_sequence_probability: text.short_seq_prob,
        whole_words: masking.whole_word,
    })
}

/// The held-out sequences of a folder for trained weights: as their run made them, else as they were prepared.
///
/// # Errors
/// Data that is not there, or of another vocabulary than the weights.
pub(super) fn held_out_in(folder: &Path, trained: &LoadedWeights) -> Result<PretrainingSet, TrainError> {
    let (set, vocabulary) = match &trained.recipe {
        Some(recipe) => (open(folder, Split::Val, recipe)?, vocabulary_in(folder, &recipe.own::<BertRecipe>()?.text)),
        None => (PretrainingSet::open(folder, Split::Val, None, 0)?, folder.join(VOCABULARY_FILE)),
    };
    let identity = Vocabulary::open(&vocabulary)?.identity();
    trained.weights().check_vocabulary(&identity, &vocabulary.display().to_string())?;
    Ok(set)
}
