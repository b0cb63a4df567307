//! Text by the names that commands and recipes give it.

use crate::error::TrainError;
use crate::recipe::{Masking, Recipe};
use bessemer_data::Split;
use bessemer_data::text::{InstanceOptions, PretrainingSet, SyntheticText, VOCABULARY_FILE, Vocabulary};
use bessemer_models::bert::BertConfig;
use std::path::{Path, PathBuf};

/// Where sequences come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TextSource {
    /// Random words, for speed alone.
    Synthetic,
    /// A folder of prepared text.
    Folder(PathBuf),
}

/// Sequences of an epoch of `synthetic`.
const SYNTHETIC_SEQUENCES: u64 = 1 << 20;
/// Words of the uncased vocabulary of BERT as published.
const PUBLISHED_VOCABULARY: usize = 30_522;

impl TextSource {
    /// That of a recipe.
    pub fn of(recipe: &Recipe) -> Result<Self, TrainError> {
        match recipe.data.source.as_deref() {
            Some("synthetic") => Ok(Self::Synthetic),
            Some(folder) => Ok(Self::Folder(folder.into())),
            None => {
                let allowed = "expected a folder made by `bessemer data prepare text`, or `synthetic` (--data)";
                Err(TrainError::setting("data.source", "not given", allowed))
            }
        }
    }

    /// The sequences to train on.
    pub fn training_set(&self, recipe: &Recipe) -> Result<PretrainingSet, TrainError> {
        match self {
            Self::Synthetic => synthetic(recipe, recipe.data.train_samples.unwrap_or(SYNTHETIC_SEQUENCES), 0),
            Self::Folder(folder) => open(folder, Split::Train, recipe),
        }
    }

    /// The sequences to evaluate on; `None` where no text was held out.
    pub fn held_out_set(&self, recipe: &Recipe) -> Result<Option<PretrainingSet>, TrainError> {
        match self {
            Self::Synthetic => recipe.data.eval_samples.map(|samples| synthetic(recipe, samples, 1)).transpose(),
            Self::Folder(folder) if !folder.join(Split::Val.name()).exists() => Ok(None),
            Self::Folder(folder) => open(folder, Split::Val, recipe).map(Some),
        }
    }

    /// The file of the vocabulary; random words have none.
    pub fn vocabulary_file(&self, recipe: &Recipe) -> Option<PathBuf> {
        match (self, &recipe.text.vocab) {
            (Self::Synthetic, _) => None,
            (Self::Folder(_), Some(vocab)) => Some(vocab.into()),
            (Self::Folder(folder), None) => Some(folder.join(VOCABULARY_FILE)),
        }
    }
}

fn synthetic(recipe: &Recipe, samples: u64, stream: u64) -> Result<PretrainingSet, TrainError> {
    Ok(PretrainingSet::synthetic(SyntheticText {
        len: samples as usize,
        sequence_length: recipe.text.sequence_length as usize,
        predictions: recipe.text.max_predictions as usize,
        vocabulary_size: PUBLISHED_VOCABULARY,
        seed: recipe.train.seed.wrapping_add(stream),
    })?)
}

fn open(folder: &Path, split: Split, recipe: &Recipe) -> Result<PretrainingSet, TrainError> {
    let set = match &recipe.text.vocab {
        Some(vocab) => {
            PretrainingSet::open_records(&folder.join(split.name()), Vocabulary::open(vocab.as_ref())?.len())?
        }
        None => PretrainingSet::open(folder, split, Some(options(recipe)), recipe.train.seed)?,
    };
    let (made, asked) = (masking(&set), recipe.text.masking.unwrap_or(masking(&set)));
    if made != asked {
        let (value, held) = match made {
            Masking::Dynamic => ("static", "tokens, whose words are masked anew in each epoch"),
            Masking::Static => ("dynamic", "records, whose words were masked when they were made"),
        };
        return Err(TrainError::setting("text.masking", value, format!("{} holds {held}", folder.display())));
    }
    require_lengths(&set, folder, recipe)?;
    Ok(set)
}

/// Records of another origin have lengths of their own.
fn require_lengths(set: &PretrainingSet, folder: &Path, recipe: &Recipe) -> Result<(), TrainError> {
    let text = &recipe.text;
    let asked = (text.sequence_length as usize, text.max_predictions as usize);
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

fn options(recipe: &Recipe) -> InstanceOptions {
    let text = &recipe.text;
    InstanceOptions {
        sequence_length: text.sequence_length as usize,
        max_predictions: text.max_predictions as usize,
        masked_lm_probability: text.masked_lm_prob,
        short_sequence_probability: text.short_seq_prob,
        whole_words: text.whole_word,
    }
}

/// The held-out sequences of a folder: as the run made them whose recipe is given, else as they were prepared.
pub(super) fn held_out_in(
    folder: &Path,
    recipe: Option<&Recipe>,
    config: &BertConfig,
) -> Result<PretrainingSet, TrainError> {
    let set = match recipe {
        Some(recipe) => open(folder, Split::Val, recipe)?,
        None => PretrainingSet::open(folder, Split::Val, None, 0)?,
    };
    let words = set.vocabulary_size();
    if words > config.vocab_size {
        let allowed = format!("the model knows {}", config.vocab_size);
        return Err(TrainError::setting("the number of words in the data's vocabulary", words, allowed));
    }
    Ok(set)
}
