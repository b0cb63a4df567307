//! Words for the gaps of a text.

use super::model;
use crate::checkpoint::DISCRIMINATOR_FOLDER;
use crate::error::TrainError;
use crate::session::{ComputeOptions, EvalSession};
use crate::tasks::softmax::log_sum_exp;
use crate::tasks::{Array, Feeds};
use crate::trained::WhichWeights;
use bessemer_data::text::{TextTokenizer, VOCABULARY_FILE, Vocabulary};
use bessemer_models::bert::{self, BertOptions, Sequences};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Settings of [`fill_masks`].
#[derive(Clone, Debug)]
pub struct FillOptions {
    pub compute: ComputeOptions,
    /// Words for a gap, best first.
    pub top_k: usize,
    /// The vocabulary; otherwise that of the folder of the weights.
    pub vocab: Option<PathBuf>,
    pub weights: WhichWeights,
}

impl Default for FillOptions {
    fn default() -> Self {
        Self { compute: ComputeOptions::default(), top_k: 5, vocab: None, weights: WhichWeights::default() }
    }
}

/// A text and what its gaps are filled with.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Filled {
    pub text: String,
    /// For each `[MASK]` in order.
    pub masks: Vec<MaskedWord>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MaskedWord {
    /// Place among the tokens of the text, counted from 1, as `[CLS]` is before them.
    pub position: usize,
    /// Best first.
    pub words: Vec<WordScore>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WordScore {
    pub id: usize,
    /// As in the vocabulary; `##` begins a piece that goes on from the word before it.
    pub word: String,
    pub probability: f64,
}

/// The likeliest words for each `[MASK]` of some texts, by BERT `name` with `weights`.
///
/// # Errors
/// Weights or a vocabulary that cannot be read or do not fit; a text without `[MASK]`, or too long for the model.
pub fn fill_masks(
    name: &str,
    weights: &Path,
    texts: &[String],
    options: &FillOptions,
) -> Result<Vec<Filled>, TrainError> {
    if texts.is_empty() {
        return Ok(Vec::new());
    }
    let trained = model::load(name, weights, options.weights)?;
    let config = model::config_of(name, &trained, weights)?;
    let vocabulary = Arc::new(Vocabulary::open(&vocabulary_file(weights, options.vocab.as_deref())?)?);
    let tokenizer = TextTokenizer::new(Arc::clone(&vocabulary));
    let gaps = texts.iter().map(|text| Gaps::find(text, &tokenizer)).collect::<Result<Vec<_>, _>>()?;

    let sequences = Sequences {
        batch: 1,
        length: gaps.iter().map(|gaps| gaps.ids.len()).max().unwrap_or(0),
        predictions: gaps.iter().map(|gaps| gaps.positions.len()).max().unwrap_or(0),
    };
    model::check_length(&config, sequences.length)?;
    let mut session = EvalSession::new(bert::infer(&config, sequences, &BertOptions::default())?, 1, &options.compute)?;
    session.load_weights(&trained.tensors, &trained.origin)?;
    let mut filled = Vec::with_capacity(texts.len());
    for (text, gaps) in texts.iter().zip(&gaps) {
        session.run(&gaps.feeds(sequences))?;
        let rows = session.output("mlm_logits")?.chunks_exact(config.vocab_size);
        let word = |(&position, logits): (&i32, &[f32])| MaskedWord {
            position: position as usize,
            words: best_words(&logits[..vocabulary.len().min(logits.len())], options.top_k, &vocabulary),
        };
        filled.push(Filled { text: text.clone(), masks: gaps.positions.iter().zip(rows).map(word).collect() });
    }
    Ok(filled)
}

pub(crate) fn vocabulary_file(weights: &Path, given: Option<&Path>) -> Result<PathBuf, TrainError> {
    given.map(Path::to_owned).or_else(|| vocabulary_beside(weights)).ok_or_else(|| {
        let allowed = format!("there is no {VOCABULARY_FILE} beside {} (--vocab)", weights.display());
        TrainError::setting("the vocabulary", "not given", allowed)
    })
}

/// The vocabulary beside weights: in their folder, in that of the run they are in, or with the discriminator in their folder.
pub(crate) fn vocabulary_beside(weights: &Path) -> Option<PathBuf> {
    let folders = weights.ancestors().take(3).map(Path::to_owned).chain([weights.join(DISCRIMINATOR_FOLDER)]);
    folders.map(|folder| folder.join(VOCABULARY_FILE)).find(|path| path.is_file())
}

/// A text as tokens, with the places to fill.
struct Gaps {
    /// With `[CLS]` and `[SEP]` around them.
    ids: Vec<i32>,
    positions: Vec<i32>,
}

impl Gaps {
    fn find(text: &str, tokenizer: &TextTokenizer) -> Result<Self, TrainError> {
        let specials = tokenizer.vocabulary().specials();
        let tokens = tokenizer.ids(text);
        let ids: Vec<u32> = [specials.cls].into_iter().chain(tokens).chain([specials.sep]).collect();
        let is_gap = |(place, id): (usize, &u32)| (*id == specials.mask).then_some(place as i32);
        let positions: Vec<i32> = ids.iter().enumerate().filter_map(is_gap).collect();
        if positions.is_empty() {
            return Err(TrainError::setting("the text", format!("`{text}`"), "it needs a [MASK] to fill"));
        }
        Ok(Self { ids: ids.into_iter().map(|id| id as i32).collect(), positions })
    }

    /// One sequence of one segment, filled up with zeros.
    fn feeds(&self, sequences: Sequences) -> Feeds {
        let padded = |numbers: &[i32], length: usize| {
            let mut numbers = numbers.to_vec();
            numbers.resize(length, 0);
            Array::I32(numbers)
        };
        Feeds::from([
            ("input_ids", padded(&self.ids, sequences.length)),
            ("segment_ids", Array::I32(vec![0; sequences.length])),
            ("input_mask", padded(&vec![1; self.ids.len()], sequences.length)),
            ("masked_lm_positions", padded(&self.positions, sequences.predictions)),
        ])
    }
}

/// Words by falling probability; equal ones by number.
fn best_words(logits: &[f32], top_k: usize, vocabulary: &Vocabulary) -> Vec<WordScore> {
    let total = log_sum_exp(logits);
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let score = |id: usize| WordScore {
        id,
        word: vocabulary.token(id as u32).to_owned(),
        probability: (f64::from(logits[id]) - total).exp(),
    };
    order.into_iter().take(top_k).map(score).collect()
}
