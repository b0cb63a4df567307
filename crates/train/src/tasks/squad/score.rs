//! From a model's outputs to answers and their scores.

use super::sources::Questions;
use crate::error::TrainError;
use crate::session::EvalSession;
use crate::tasks::{Batch, Score};
use bessemer_data::squad::{AnswerOptions, Answers, Beam, Predictions, Version};
use bessemer_metrics::squad::{Gold, Predicted, ScoresV2, Shares, score_v1, score_v2};
use bessemer_models::electra::SpanHead;
use std::collections::BTreeMap;
use std::path::Path;

/// Adds what `session` has just said of windows, the first samples of its batch.
pub(super) fn add_outputs(
    answers: &mut Answers<'_>,
    head: SpanHead,
    windows: &[i32],
    session: &EvalSession,
) -> Result<(), TrainError> {
    match head {
        SpanHead::Plain => {
            let (starts, ends) = (session.output("start_logits")?, session.output("end_logits")?);
            let length = starts.len() / session.batch_size();
            let rows = starts.chunks_exact(length).zip(ends.chunks_exact(length));
            for (&window, (start, end)) in windows.iter().zip(rows) {
                answers.add_logits(window as usize, start, end)?;
            }
        }
        SpanHead::Joint { beam: width, may_be_impossible } => {
            let pairs = width * width;
            let (starts, ends) = (session.output_indices("start_indices")?, session.output_indices("end_indices")?);
            let (start_scores, end_scores) = (session.output("start_log_probs")?, session.output("end_log_probs")?);
            let impossible = if may_be_impossible { session.output("impossible_logits")? } else { &[] };
            for (row, &window) in windows.iter().enumerate() {
                let beam = Beam {
                    starts: &starts[row * width..][..width],
                    start_scores: &start_scores[row * width..][..width],
                    ends: &ends[row * pairs..][..pairs],
                    end_scores: &end_scores[row * pairs..][..pairs],
                    no_answer: impossible.get(row).copied(),
                };
                answers.add_beam(window as usize, beam)?;
            }
        }
    }
    Ok(())
}

/// Answers to the questions of a file, and how many of them are right.
pub(super) struct SquadMetrics<'a> {
    questions: &'a Questions,
    head: SpanHead,
    /// `None` when they are counted.
    answers: Option<Answers<'a>>,
    windows: u64,
    metrics: BTreeMap<String, f64>,
    counts: BTreeMap<String, u64>,
}

impl<'a> SquadMetrics<'a> {
    pub(super) fn new(questions: &'a Questions, head: SpanHead, options: AnswerOptions) -> Self {
        let answers = Answers::new(&questions.set, &questions.features, &questions.tokenizer, options);
        let (metrics, counts) = Default::default();
        Self { questions, head, answers: Some(answers), windows: 0, metrics, counts }
    }

    fn count(&mut self, predictions: &Predictions) -> Result<(), TrainError> {
        let set = &self.questions.set;
        let gold: Vec<Gold<'_>> = set
            .questions()
            .iter()
            .map(|one| Gold { id: &one.id, answers: one.answers.iter().map(|answer| answer.text.as_str()).collect() })
            .collect();
        let predicted: Predicted<'_> = predictions.texts().collect();
        match set.version() {
            Version::V1 => {
                self.put(["exact", "f1"], &score_v1(&gold, &predicted)?.all);
            }
            Version::V2 => {
                let ScoresV2 { all, has_answer, no_answer, .. } = score_v2(&gold, &predicted, None)?;
                self.put(["exact", "f1"], &all);
                has_answer.iter().for_each(|shares| self.put(["has_ans_exact", "has_ans_f1"], shares));
                no_answer.iter().for_each(|shares| self.put(["no_ans_exact", "no_ans_f1"], shares));
            }
        }
        self.counts.insert("windows".to_owned(), self.windows);
        Ok(())
    }

    /// Percentages as fractions, under their names, and the questions they are of.
    fn put(&mut self, names: [&str; 2], shares: &Shares) {
        let [exact, f1] = names;
        self.metrics.insert(exact.to_owned(), shares.exact / 100.0);
        self.metrics.insert(f1.to_owned(), shares.f1 / 100.0);
        let group = exact.trim_end_matches("exact");
        self.counts.insert(format!("{group}right"), shares.num_exact as u64);
        self.counts.insert(format!("{group}total"), shares.total as u64);
    }
}

impl Score for SquadMetrics<'_> {
    fn add(&mut self, batch: &Batch, session: &EvalSession) -> Result<(), TrainError> {
        let windows = &batch.feeds.i32("windows")[..batch.samples];
        self.windows += windows.len() as u64;
        let answers = self.answers.as_mut().expect("batches come before the end");
        add_outputs(answers, self.head, windows, session)
    }

    fn finish(&mut self, out: Option<&Path>) -> Result<(), TrainError> {
        let predictions = self.answers.take().expect("there is one end").finish();
        self.count(&predictions)?;
        match out {
            Some(folder) => Ok(predictions.write(folder)?),
            None => Ok(()),
        }
    }

    fn metrics(&self) -> BTreeMap<String, f64> {
        self.metrics.clone()
    }

    fn counts(&self) -> BTreeMap<String, u64> {
        self.counts.clone()
    }
}
