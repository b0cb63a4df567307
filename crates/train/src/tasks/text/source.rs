//! Text by the names that commands and recipes give it.

use super::TextFields;
use crate::error::TrainError;
use crate::recipe::Recipe;
use bessemer_data::Split;
use bessemer_data::text::{SyntheticText, VOCABULARY_FILE};
use std::path::{Path, PathBuf};

/// Where sequences come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::tasks) enum TextSource {
    /// Random tokens, for speed alone.
    Synthetic,
    /// A folder of prepared text.
    Folder(PathBuf),
}

/// What a set of sequences is made of.
#[derive(Clone, Copy, Debug)]
pub(in crate::tasks) enum Part<'a> {
    Synthetic(SyntheticText),
    Folder(&'a Path, Split),
}

/// Sequences of an epoch of `synthetic`.
const SYNTHETIC_SEQUENCES: u64 = 1 << 20;
/// Words of the uncased vocabulary of BERT as published.
const PUBLISHED_VOCABULARY: usize = 30_522;

impl TextSource {
    /// That of a recipe.
    pub(crate) fn of(recipe: &Recipe) -> Result<Self, TrainError> {
        match recipe.data.source.as_deref() {
            Some("synthetic") => Ok(Self::Synthetic),
            Some(folder) => Ok(Self::Folder(folder.into())),
            None => {
                let allowed = "expected a folder made by `bessemer data prepare text`, or `synthetic` (--data)";
                Err(TrainError::setting("data.source", "not given", allowed))
            }
        }
    }

    /// What to train on; `predictions` in each sequence of random words.
    pub(crate) fn training(&self, recipe: &Recipe, text: &TextFields, predictions: usize) -> Part<'_> {
        match self {
            Self::Synthetic => {
                let samples = recipe.data.train_samples.unwrap_or(SYNTHETIC_SEQUENCES);
                Part::Synthetic(synthetic(recipe, text, samples, 0, predictions))
            }
            Self::Folder(folder) => Part::Folder(folder, Split::Train),
        }
    }

    /// What to evaluate on; `None` where no text was held out.
    pub(crate) fn held_out(&self, recipe: &Recipe, text: &TextFields, predictions: usize) -> Option<Part<'_>> {
        match self {
            Self::Synthetic => {
                let samples = recipe.data.eval_samples?;
                Some(Part::Synthetic(synthetic(recipe, text, samples, 1, predictions)))
            }
            Self::Folder(folder) if !folder.join(Split::Val.name()).exists() => None,
            Self::Folder(folder) => Some(Part::Folder(folder, Split::Val)),
        }
    }

    /// The file of the vocabulary; random words have none.
    pub(crate) fn vocabulary_file(&self, text: &TextFields) -> Option<PathBuf> {
        match self {
            Self::Synthetic => None,
            Self::Folder(folder) => Some(vocabulary_in(folder, text)),
        }
    }
}

fn synthetic(recipe: &Recipe, text: &TextFields, samples: u64, stream: u64, predictions: usize) -> SyntheticText {
    SyntheticText {
        len: samples as usize,
        sequence_length: text.sequence_length as usize,
        predictions,
        vocabulary_size: PUBLISHED_VOCABULARY,
        seed: recipe.train.seed.wrapping_add(stream),
    }
}

/// The vocabulary of prepared text, or that which a recipe names.
pub(in crate::tasks) fn vocabulary_in(folder: &Path, text: &TextFields) -> PathBuf {
    text.vocab.as_ref().map_or_else(|| folder.join(VOCABULARY_FILE), PathBuf::from)
}
