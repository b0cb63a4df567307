//! Answers to questions of a person about a text.

use super::batches::feeds;
use super::model::{Answering, answer_options, prediction, window_options};
use super::score::add_outputs;
use super::sources::Questions;
use crate::error::TrainError;
use crate::session::{ComputeOptions, EvalSession};
use crate::trained::WhichWeights;
use bessemer_data::Samples;
use bessemer_data::squad::{Answers, Candidate, Prediction};
use bessemer_models::electra::SpanHead;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Settings of a [`Reader`].
#[derive(Clone, Debug)]
pub struct AskOptions {
    pub compute: ComputeOptions,
    /// Answers to show for each question, the likeliest first.
    pub top_k: usize,
    /// The vocabulary; otherwise that of the folder of the weights.
    pub vocab: Option<PathBuf>,
    pub weights: WhichWeights,
}

impl Default for AskOptions {
    fn default() -> Self {
        Self { compute: ComputeOptions::default(), top_k: 5, vocab: None, weights: WhichWeights::default() }
    }
}

/// A question and its answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answered {
    pub question: String,
    /// As the text has it; empty where there is none.
    pub answer: String,
    /// Among all answers that were considered.
    pub probability: f64,
    /// What speaks for there being no answer, of weights that tell it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_answer_score: Option<f64>,
    /// The likeliest first; an empty one stands for no answer.
    pub candidates: Vec<Candidate>,
}

/// A model that reads texts and answers questions about them.
pub struct Reader {
    answering: Answering,
    session: EvalSession,
    top_k: usize,
}

impl Reader {
    /// ELECTRA `name` with `weights`.
    ///
    /// # Errors
    /// Weights or a vocabulary that cannot be read or do not fit, or that were not trained on questions.
    pub fn open(name: &str, weights: &Path, options: &AskOptions) -> Result<Self, TrainError> {
        let (answering, trained) = Answering::load(name, weights, options.weights, options.vocab.as_deref())?;
        let length = answering.squad.sequence_length as usize;
        let model = prediction(&answering.config, answering.head, 1, length)?;
        let mut session = EvalSession::new(model, 1, &options.compute)?;
        session.load_weights(&trained.tensors, &trained.origin)?;
        Ok(Self { answering, session, top_k: options.top_k })
    }

    /// Answers to questions about a text.
    ///
    /// # Errors
    /// A question or a text without words.
    pub fn ask(&mut self, context: &str, questions: &[&str]) -> Result<Vec<Answered>, TrainError> {
        if context.trim().is_empty() {
            return Err(TrainError::setting("the text", "empty", "there must be words that can be an answer"));
        }
        if questions.iter().any(|question| question.trim().is_empty()) {
            return Err(TrainError::setting("the question", "empty", "there must be words in it"));
        }
        let Answering { squad, head, tokenizer, .. } = &self.answering;
        let asked = Questions::ask(context, questions, tokenizer, window_options(squad, false))?;
        let may_be_impossible = matches!(head, SpanHead::Joint { may_be_impossible: true, .. });
        let options = answer_options(squad, *head, may_be_impossible);
        let mut answers = Answers::new(&asked.set, &asked.features, &asked.tokenizer, options);
        for window in asked.features.windows() {
            let mut batch = asked.features.room(1);
            let index = window.index as i32;
            asked.features.put(&mut batch, 0, &Some(window));
            self.session.run(&feeds(batch))?;
            add_outputs(&mut answers, *head, &[index], &self.session)?;
        }
        let predictions = answers.finish().questions;
        Ok(questions.iter().zip(predictions).map(|(question, found)| self.answered(question, found)).collect())
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
