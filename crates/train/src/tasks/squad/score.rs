//! From a model's outputs to answers and their scores.

use super::sources::Questions;
use crate::error::TrainError;
use crate::session::EvalSession;
use crate::tasks::{Batch, Record, Score};
use bessemer_data::squad::{AnswerOptions, Answers, Beam, Predictions, Version};
use bessemer_metrics::squad::{Gold, Predicted, ScoresV2, Shares, score_v1, score_v2};
use bessemer_models::electra::SpanHead;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// What a network says of windows.
#[derive(Serialize, Deserialize)]
pub(super) struct WindowOutputs {
    /// Numbers of the windows.
    windows: Vec<i32>,
    /// Of the plain head, `[N, T]`; of the joint one the scores of the positions, `[N, K]` and `[N, K, K]`.
    starts: Vec<f32>,
    ends: Vec<f32>,
    /// Positions, of the joint head: `[N, K]` and `[N, K, K]`.
    start_positions: Vec<u32>,
    end_positions: Vec<u32>,
    /// Logits of there being no answer, where there may be none.
    impossible: Vec<f32>,
}

impl WindowOutputs {
    /// What `session` has just said of windows, the first samples of its batch.
    pub(super) fn of(head: SpanHead, windows: &[i32], session: &EvalSession) -> Result<Self, TrainError> {
        let (count, of) = (windows.len(), session.batch_size());
        let floats = |name| session.output(name).map(|all| all[..all.len() / of * count].to_vec());
        let positions = |name| session.output_indices(name).map(|all| all[..all.len() / of * count].to_vec());
        let windows = windows.to_vec();
        Ok(match head {
            SpanHead::Plain => Self {
                windows,
                starts: floats("start_logits")?,
                ends: floats("end_logits")?,
                start_positions: Vec::new(),
                end_positions: Vec::new(),
                impossible: Vec::new(),
            },
            SpanHead::Joint { may_be_impossible, .. } => Self {
                windows,
                starts: floats("start_log_probs")?,
                ends: floats("end_log_probs")?,
                start_positions: positions("start_indices")?,
                end_positions: positions("end_indices")?,
                impossible: if may_be_impossible { floats("impossible_logits")? } else { Vec::new() },
            },
        })
    }

    pub(super) fn add_to(&self, answers: &mut Answers<'_>, head: SpanHead) -> Result<(), TrainError> {
        for (row, &window) in self.windows.iter().enumerate() {
            let window = window as usize;
            let of_row =
                |all: &[f32]| row * (all.len() / self.windows.len())..(row + 1) * (all.len() / self.windows.len());
            let (starts, ends) = (of_row(&self.starts), of_row(&self.ends));
            match head {
                SpanHead::Plain => answers.add_logits(window, &self.starts[starts], &self.ends[ends])?,
                SpanHead::Joint { .. } => answers.add_beam(
                    window,
                    Beam {
                        starts: &self.start_positions[starts.clone()],
                        start_scores: &self.starts[starts],
                        ends: &self.end_positions[ends.clone()],
                        end_scores: &self.ends[ends],
                        no_answer: self.impossible.get(row).copied(),
                    },
                )?,
            }
        }
        Ok(())
    }
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
    fn record(&self, batch: &Batch, session: &EvalSession) -> Result<Record, TrainError> {
        let windows = &batch.feeds.i32("windows")[..batch.samples];
        Ok(Record::of(&WindowOutputs::of(self.head, windows, session)?))
    }

    fn add(&mut self, record: &Record) -> Result<(), TrainError> {
        let outputs: WindowOutputs = record.read()?;
        self.windows += outputs.windows.len() as u64;
        outputs.add_to(self.answers.as_mut().expect("batches come before the end"), self.head)
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
