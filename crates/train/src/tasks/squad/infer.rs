//! Answers to questions of a person about a text.

use super::model::{Answering, answer_options, prediction, window_options};
use super::score::WindowOutputs;
use super::sources::Questions;
use crate::error::TrainError;
use crate::loaded_weights::{LoadedWeights, WhichWeights};
use crate::session::{ComputeOptions, EvalSession};
use crate::tasks::EachInput;
use crate::tasks::infer::{self, Part, PredictOptions, Predictor, Shown, TOP_K, cell};
use bessemer_data::Samples;
use bessemer_data::squad::{Answers, Candidate, Features, Prediction};
use bessemer_models::electra::SpanHead;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Settings of a [`Reader`].
#[derive(Clone, Debug)]
pub struct AskOptions {
    /// Device and passes to compute with.
    pub compute: ComputeOptions,
    /// Answers to show for each question, the likeliest first.
    pub top_k: usize,
    /// The vocabulary; otherwise that of the folder of the weights.
    pub vocab: Option<PathBuf>,
    /// Which weights of a run are used.
    pub weights: WhichWeights,
}

impl Default for AskOptions {
    fn default() -> Self {
        Self { compute: ComputeOptions::default(), top_k: TOP_K, vocab: None, weights: WhichWeights::default() }
    }
}

/// A question and its answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answered {
    /// The question as it was given.
    pub question: String,
    /// As the text has it; empty where there is none.
    pub answer: String,
    /// Among all answers that were considered.
    pub probability: f64,
    /// The score of "no answer", for weights with a head for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_answer_score: Option<f64>,
    /// The likeliest first; an empty one stands for no answer.
    pub candidates: Vec<Candidate>,
}

/// Answers questions about one text.
pub(super) struct QuestionPredictor {
    reader: Reader,
    context: String,
}

impl QuestionPredictor {
    pub(super) fn open(model: &str, weights: &Path, options: &PredictOptions) -> Result<Self, TrainError> {
        let PredictOptions { compute, top_k, vocab, context, weights: which, .. } = options.clone();
        let top_k = top_k.unwrap_or(TOP_K);
        let context = context.ok_or_else(|| TrainError::setting("the text", "not given", "questions are about one"))?;
        let reader = Reader::open(model, weights, &AskOptions { compute, top_k, vocab, weights: which })?;
        Ok(Self { reader, context })
    }
}

impl Predictor for QuestionPredictor {
    fn predict(
        &mut self,
        inputs: &[String],
        notify: &dyn Fn(usize, usize),
    ) -> Result<EachInput<infer::Prediction>, TrainError> {
        let questions: Vec<&str> = inputs.iter().map(String::as_str).collect();
        Ok(infer::predictions(self.reader.ask(&self.context, &questions, notify)?))
    }
}

impl Shown for Answered {
    const COLUMNS: &'static [&'static str] = &["question", "rank", "answer", "probability"];

    fn parts(&self) -> Vec<Part> {
        let name = |text: &str| if text.is_empty() { "(no answer)".to_owned() } else { text.to_owned() };
        let score = self.no_answer_score.map_or_else(String::new, |score| format!("  (score of no answer {score:.2})"));
        let candidates = self.candidates.iter().map(|candidate| (name(&candidate.text), Some(candidate.probability)));
        vec![
            Part::Line(self.question.clone()),
            Part::Line(name(&self.answer) + &score),
            Part::Table(candidates.collect()),
        ]
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let row = |(rank, candidate): (usize, &Candidate)| {
            vec![self.question.clone(), rank.to_string(), candidate.text.clone(), cell(candidate.probability)]
        };
        (1..).zip(&self.candidates).map(row).collect()
    }
}

/// A model that reads texts and answers questions about them.
pub struct Reader {
    answering: Answering,
    trained: LoadedWeights,
    /// For windows of this many tokens, as the longest text so far needed them.
    session: Option<(usize, EvalSession)>,
    compute: ComputeOptions,
    top_k: usize,
}

/// Lengths of windows that are compiled for are multiples of it.
const LENGTH_STEP: usize = 64;

impl Reader {
    /// ELECTRA `name` with `weights`.
    ///
    /// # Errors
    /// Weights or a vocabulary that cannot be read or do not fit, or that were not trained on questions.
    pub fn open(name: &str, weights: &Path, options: &AskOptions) -> Result<Self, TrainError> {
        let (answering, trained) = Answering::load(name, weights, options.weights, options.vocab.as_deref())?;
        let (compute, top_k) = (options.compute.clone(), options.top_k);
        Ok(Self { answering, trained, session: None, compute, top_k })
    }

    /// Answers to questions about a text. A question without words is an error in its place. `notify` is called after each window of
    /// the text with the number of those that were read and of all.
    ///
    /// # Errors
    /// A text without words.
    pub fn ask(
        &mut self,
        context: &str,
        questions: &[&str],
        notify: &dyn Fn(usize, usize),
    ) -> Result<EachInput<Answered>, TrainError> {
        if context.trim().is_empty() {
            return Err(TrainError::setting("the text", "empty", "there must be words that can be an answer"));
        }
        let good: Vec<&str> = questions.iter().copied().filter(|question| !question.trim().is_empty()).collect();
        let mut answers = if good.is_empty() { Vec::new() } else { self.answers(context, &good, notify)? }.into_iter();
        let result = |question: &&str| match question.trim() {
            "" => Err(TrainError::setting("the question", "empty", "there must be words in it")),
            _ => Ok(answers.next().expect("there is an answer to each good question")),
        };
        Ok(questions.iter().map(result).collect())
    }

    /// Answers to questions, none of which is empty, about a text that is not.
    fn answers(
        &mut self,
        context: &str,
        questions: &[&str],
        notify: &dyn Fn(usize, usize),
    ) -> Result<Vec<Answered>, TrainError> {
        let Answering { squad, head, tokenizer, .. } = &self.answering;
        let head = *head;
        let mut asked = Questions::ask(context, questions, tokenizer, window_options(squad, false))?;
        let may_be_impossible = matches!(head, SpanHead::Joint { may_be_impossible: true, .. });
        let options = answer_options(squad, head, may_be_impossible);
        let session = self.session_for(Arc::make_mut(&mut asked.features))?;
        let mut answers = Answers::new(&asked.set, &asked.features, &asked.tokenizer, options);
        for window in asked.features.windows() {
            let index = window.index as i32;
            session.run(&asked.features.batch_of(&[Some(window)]))?;
            WindowOutputs::of(head, &[index], session)?.add_to(&mut answers, head)?;
            notify(index as usize + 1, asked.features.len());
        }
        let predictions = answers.finish().questions;
        Ok(questions.iter().zip(predictions).map(|(question, found)| self.answered(question, found)).collect())
    }

    /// A session for windows, which are padded to its length: the one of before if they fit.
    fn session_for(&mut self, features: &mut Features) -> Result<&mut EvalSession, TrainError> {
        let most = features.options().max_seq_length;
        let needed = features.longest().next_multiple_of(LENGTH_STEP).min(most);
        let kept = self.session.take().filter(|(length, _)| *length >= needed);
        let (length, session) = match kept {
            Some(kept) => kept,
            None => (needed, self.compiled(needed)?),
        };
        features.pad_to(length);
        Ok(&mut self.session.insert((length, session)).1)
    }

    fn compiled(&self, length: usize) -> Result<EvalSession, TrainError> {
        let Answering { config, head, .. } = &self.answering;
        let mut session = EvalSession::new(prediction(config, *head, 1, length)?, 1, &self.compute)?;
        session.load_weights(&self.trained.tensors, &self.trained.origin)?;
        Ok(session)
    }

    fn answered(&self, question: &str, found: Prediction) -> Answered {
        let Prediction { text, mut n_best, null_score, .. } = found;
        let probability = n_best.iter().find(|candidate| candidate.text == text).map_or(0.0, |best| best.probability);
        n_best.truncate(self.top_k);
        Answered {
            question: question.to_owned(),
            answer: text,
            probability,
            no_answer_score: null_score,
            candidates: n_best,
        }
    }
}
