//! Which tokens of a text do not belong there.

use super::family::ENCODERS;
use super::model::Networks;
use crate::error::TrainError;
use crate::loaded_weights::{LoadedWeights, WhichWeights};
use crate::session::{ComputeOptions, EvalSession};
use crate::tasks::infer::{self, Part, PredictOptions, Predictor, Shown, cell};
use crate::tasks::text::{check_text, quoted, vocabulary_for};
use crate::tasks::{Array, EachInput, Feeds};
use bessemer_data::text::TextTokenizer;
use bessemer_models::bert::Sequences;
use bessemer_models::electra;
use bessemer_models::electra::names::in_discriminator;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Settings of [`classify_tokens`].
#[derive(Clone, Debug, Default)]
pub struct ClassifyOptions {
    /// Device and passes to compute with.
    pub compute: ComputeOptions,
    /// The vocabulary; otherwise that of the folder of the weights.
    pub vocab: Option<PathBuf>,
    /// Which weights of a run are used.
    pub weights: WhichWeights,
}

/// Classifies the tokens of texts: replaced or not.
pub(super) struct TokenClassifier {
    model: &'static str,
    weights: PathBuf,
    options: ClassifyOptions,
}

impl TokenClassifier {
    pub(super) fn new(model: &'static str, weights: &Path, options: &PredictOptions) -> Self {
        let PredictOptions { compute, vocab, weights: which, .. } = options.clone();
        Self { model, weights: weights.to_owned(), options: ClassifyOptions { compute, vocab, weights: which } }
    }
}

impl Predictor for TokenClassifier {
    fn predict(
        &mut self,
        inputs: &[String],
        _: &dyn Fn(usize, usize),
    ) -> Result<EachInput<infer::Prediction>, TrainError> {
        Ok(infer::predictions(classify_tokens(self.model, &self.weights, inputs, &self.options)?))
    }
}

/// A text and what the discriminator takes its tokens for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassifiedText {
    /// The text as it was given.
    pub text: String,
    /// One entry for each token of the text, in order.
    pub tokens: Vec<TokenVerdict>,
}

impl Shown for ClassifiedText {
    const COLUMNS: &'static [&'static str] = &["text", "position", "token_id", "token", "replaced"];

    fn parts(&self) -> Vec<Part> {
        let tokens = self.tokens.iter().map(|verdict| (verdict.token.clone(), Some(verdict.replaced)));
        vec![Part::Line(self.text.clone()), Part::Table(tokens.collect())]
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let row = |(position, verdict): (usize, &TokenVerdict)| {
            vec![
                self.text.clone(),
                position.to_string(),
                verdict.id.to_string(),
                verdict.token.clone(),
                cell(verdict.replaced),
            ]
        };
        (1..).zip(&self.tokens).map(row).collect()
    }
}

/// A token and the probability that it was replaced.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenVerdict {
    /// Number of the token in the vocabulary.
    pub id: u32,
    /// As in the vocabulary; `##` begins a piece that goes on from the token before it.
    pub token: String,
    /// Probability that the token was put in another one's place.
    pub replaced: f64,
}

/// What the discriminator of ELECTRA `name` says of the tokens of some texts. A text without tokens, or too long for the model, is an
/// error of its own.
///
/// # Errors
/// Weights or a vocabulary that cannot be read or do not fit.
pub fn classify_tokens(
    name: &str,
    weights: &Path,
    texts: &[String],
    options: &ClassifyOptions,
) -> Result<EachInput<ClassifiedText>, TrainError> {
    let mut trained = LoadedWeights::load(name, weights, options.weights)?;
    ENCODERS.check(name, &trained.tensors, &trained.origin)?;
    let Networks { config, options: pretraining } = Networks::in_weights(name, &trained)?;
    let vocabulary = Arc::new(vocabulary_for(&trained, weights, options.vocab.as_deref())?);
    trained.tensors.retain(|tensor| in_discriminator(&tensor.name).is_some());
    let tokenizer = TextTokenizer::new(Arc::clone(&vocabulary));
    let specials = vocabulary.specials();
    let ids_of = |text: &String| {
        let ids = tokenizer.ids(text);
        if ids.is_empty() {
            return Err(TrainError::setting("the text", quoted(text), "it needs at least one token"));
        }
        check_text(text, ids.len() + 2, &config.encoder)?;
        Ok(ids)
    };
    let ids: EachInput<Vec<u32>> = texts.iter().map(ids_of).collect();
    let Some(length) = ids.iter().flatten().map(|ids| ids.len() + 2).max() else {
        return Ok(ids.into_iter().filter_map(Result::err).map(Err).collect());
    };
    let model =
        electra::infer_discriminator(&config, Sequences { batch: 1, length, predictions: 1 }, &pretraining.network)?;
    let mut session = EvalSession::new(model, 1, &options.compute)?;
    session.load_weights(&trained.tensors, &trained.origin)?;
    let mut classified = Vec::with_capacity(texts.len());
    for (text, ids) in texts.iter().zip(ids) {
        let ids = match ids {
            Ok(ids) => ids,
            Err(error) => {
                classified.push(Err(error));
                continue;
            }
        };
        session.run(&feeds(&[&[specials.cls], ids.as_slice(), &[specials.sep]].concat(), length))?;
        let logits = &session.output("disc_logits")?[1..];
        let verdict = |(&id, &logit): (&u32, &f32)| TokenVerdict {
            id,
            token: vocabulary.token(id).to_owned(),
            replaced: 1.0 / (1.0 + (-f64::from(logit)).exp()),
        };
        classified
            .push(Ok(ClassifiedText { text: text.clone(), tokens: ids.iter().zip(logits).map(verdict).collect() }));
    }
    Ok(classified)
}

/// One sequence of one segment, filled up with zeros.
fn feeds(ids: &[u32], length: usize) -> Feeds {
    let padded = |numbers: &mut dyn Iterator<Item = i32>| {
        let mut numbers: Vec<i32> = numbers.collect();
        numbers.resize(length, 0);
        Array::I32(numbers)
    };
    Feeds::from([
        ("input_ids", padded(&mut ids.iter().map(|&id| id as i32))),
        ("segment_ids", Array::I32(vec![0; length])),
        ("input_mask", padded(&mut ids.iter().map(|_| 1))),
    ])
}
