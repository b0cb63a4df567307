//! Words for the gaps of a text.

use super::model;
use crate::error::TrainError;
use crate::loaded_weights::WhichWeights;
use crate::session::{ComputeOptions, EvalSession};
use crate::tasks::infer::{self, Part, PredictOptions, Predictor, Shown, TOP_K, cell};
use crate::tasks::softmax::log_sum_exp;
use crate::tasks::text::{check_text, quoted, vocabulary_for};
use crate::tasks::{Array, EachInput, Feeds};
use bessemer_data::text::{TextTokenizer, Vocabulary};
use bessemer_models::bert::{self, BertConfig, BertOptions, Sequences};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Settings of [`fill_masks`].
#[derive(Clone, Debug)]
pub struct FillOptions {
    /// Device and passes to compute with.
    pub compute: ComputeOptions,
    /// Words for a gap, best first.
    pub top_k: usize,
    /// The vocabulary; otherwise that of the folder of the weights.
    pub vocab: Option<PathBuf>,
    /// Which weights of a run are used.
    pub weights: WhichWeights,
}

impl Default for FillOptions {
    fn default() -> Self {
        Self { compute: ComputeOptions::default(), top_k: TOP_K, vocab: None, weights: WhichWeights::default() }
    }
}

/// Fills the gaps of texts.
pub(super) struct MaskPredictor {
    model: &'static str,
    weights: PathBuf,
    options: FillOptions,
}

impl MaskPredictor {
    pub(super) fn new(model: &'static str, weights: &Path, options: &PredictOptions) -> Self {
        let PredictOptions { compute, top_k, vocab, weights: which, .. } = options.clone();
        let top_k = top_k.unwrap_or(TOP_K);
        Self { model, weights: weights.to_owned(), options: FillOptions { compute, top_k, vocab, weights: which } }
    }
}

impl Predictor for MaskPredictor {
    fn predict(
        &mut self,
        inputs: &[String],
        _: &dyn Fn(usize, usize),
    ) -> Result<EachInput<infer::Prediction>, TrainError> {
        Ok(infer::predictions(fill_masks(self.model, &self.weights, inputs, &self.options)?))
    }
}

/// A text and what its gaps are filled with.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Filled {
    /// The text as it was given.
    pub text: String,
    /// For each `[MASK]` in order.
    pub masks: Vec<MaskedToken>,
}

impl Shown for Filled {
    const COLUMNS: &'static [&'static str] = &["text", "mask", "rank", "token_id", "token", "probability"];

    fn parts(&self) -> Vec<Part> {
        let has_several = self.masks.len() > 1;
        let tables = (1..).zip(&self.masks).map(|(number, mask)| {
            let title = has_several.then(|| (format!("[MASK] {number}"), None));
            let tokens = mask.tokens.iter().map(|score| (score.token.clone(), Some(score.probability)));
            Part::Table(title.into_iter().chain(tokens).collect())
        });
        [Part::Line(self.text.clone())].into_iter().chain(tables).collect()
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let ranked = |(number, mask): (usize, &MaskedToken)| {
            let row = |(rank, score): (usize, &TokenScore)| {
                let numbers = [number, rank, score.id].map(|number| number.to_string());
                let cells = [self.text.clone()].into_iter().chain(numbers);
                cells.chain([score.token.clone(), cell(score.probability)]).collect()
            };
            (1..).zip(&mask.tokens).map(row).collect::<Vec<_>>()
        };
        (1..).zip(&self.masks).flat_map(ranked).collect()
    }
}

/// The likeliest tokens for one `[MASK]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MaskedToken {
    /// Position among the tokens of the text, counted from 1, as `[CLS]` is before them.
    pub position: usize,
    /// Best first.
    pub tokens: Vec<TokenScore>,
}

/// A token and its probability.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenScore {
    /// Number of the token in the vocabulary.
    pub id: usize,
    /// As in the vocabulary; `##` begins a piece that goes on from the token before it.
    pub token: String,
    /// Softmax probability in `[0, 1]`.
    pub probability: f64,
}

/// The likeliest tokens for each `[MASK]` of some texts, by BERT `name` with `weights`. A text without `[MASK]`, or too long for the
/// model, is an error of its own.
///
/// # Errors
/// Weights or a vocabulary that cannot be read or do not fit.
pub fn fill_masks(
    name: &str,
    weights: &Path,
    texts: &[String],
    options: &FillOptions,
) -> Result<EachInput<Filled>, TrainError> {
    if texts.is_empty() {
        return Ok(Vec::new());
    }
    let trained = model::load(name, weights, options.weights)?;
    let config = model::config_of(name, &trained, weights)?;
    let vocabulary = Arc::new(vocabulary_for(&trained, weights, options.vocab.as_deref())?);
    let tokenizer = TextTokenizer::new(Arc::clone(&vocabulary));
    let gaps: EachInput<Gaps> = texts.iter().map(|text| Gaps::find(text, &tokenizer, &config)).collect();
    let most = |size: fn(&Gaps) -> usize| gaps.iter().flatten().map(size).max();
    let (Some(length), Some(predictions)) = (most(|gaps| gaps.ids.len()), most(|gaps| gaps.positions.len())) else {
        return Ok(gaps.into_iter().filter_map(Result::err).map(Err).collect());
    };
    let sequences = Sequences { batch: 1, length, predictions };
    let mut session = EvalSession::new(bert::infer(&config, sequences, &BertOptions::default())?, 1, &options.compute)?;
    session.load_weights(&trained.tensors, &trained.origin)?;
    let mut filled = Vec::with_capacity(texts.len());
    for (text, gaps) in texts.iter().zip(gaps) {
        let gaps = match gaps {
            Ok(gaps) => gaps,
            Err(error) => {
                filled.push(Err(error));
                continue;
            }
        };
        session.run(&gaps.feeds(sequences))?;
        let rows = session.output("mlm_logits")?.chunks_exact(config.vocab_size);
        let token = |(&position, logits): (&i32, &[f32])| MaskedToken {
            position: position as usize,
            tokens: best_tokens(&logits[..vocabulary.len().min(logits.len())], options.top_k, &vocabulary),
        };
        filled.push(Ok(Filled { text: text.clone(), masks: gaps.positions.iter().zip(rows).map(token).collect() }));
    }
    Ok(filled)
}

/// A text as tokens, with the places to fill.
struct Gaps {
    /// With `[CLS]` and `[SEP]` around them.
    ids: Vec<i32>,
    positions: Vec<i32>,
}

impl Gaps {
    fn find(text: &str, tokenizer: &TextTokenizer, config: &BertConfig) -> Result<Self, TrainError> {
        let specials = tokenizer.vocabulary().specials();
        let tokens = tokenizer.ids(text);
        let ids: Vec<u32> = [specials.cls].into_iter().chain(tokens).chain([specials.sep]).collect();
        let is_gap = |(place, id): (usize, &u32)| (*id == specials.mask).then_some(place as i32);
        let positions: Vec<i32> = ids.iter().enumerate().filter_map(is_gap).collect();
        if positions.is_empty() {
            return Err(TrainError::setting("the text", quoted(text), "it needs a [MASK] to fill"));
        }
        check_text(text, ids.len(), config)?;
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
fn best_tokens(logits: &[f32], top_k: usize, vocabulary: &Vocabulary) -> Vec<TokenScore> {
    let total = log_sum_exp(logits);
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let score = |id: usize| TokenScore {
        id,
        token: vocabulary.token(id as u32).to_owned(),
        probability: (f64::from(logits[id]) - total).exp(),
    };
    order.into_iter().take(top_k).map(score).collect()
}
