use std::collections::HashSet;
use std::ops::Range;

use super::align::{Spelling, detokenized, final_text};
use super::candidates::{self, Span};
use super::words::{joined, words};
use super::{Beam, Candidate, Features, Prediction, Predictions, SquadSet, Version, Window};
use crate::DataError;
use crate::text::{TextTokenizer, Vocabulary};

/// How answers are chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AnswerOptions {
    /// Starts and ends that are considered, and answers that are kept.
    pub n_best: usize,
    /// Tokens of the longest answer.
    pub max_answer_length: usize,
    /// Where questions may have no answer: above what score none is given.
    pub null_threshold: Option<f64>,
}

impl AnswerOptions {
    /// The usual ones of a version: 20 answers of up to 30 tokens; none is given where that has the higher score.
    pub fn new(version: Version) -> Self {
        let null_threshold = (version == Version::V2).then_some(0.0);
        Self { n_best: 20, max_answer_length: 30, null_threshold }
    }
}

/// Collects what a model says of windows, in any order, and makes answers of it.
///
/// Each window must be added once, all by the same method. The order of windows shows only in answers of equal scores.
pub struct Answers<'a> {
    set: &'a SquadSet,
    features: &'a Features,
    vocabulary: &'a Vocabulary,
    spelling: Spelling<'a>,
    options: AnswerOptions,
    /// The paragraph of the last window, and where its words lie: windows of one paragraph mostly follow each other.
    words: Option<(usize, Vec<Range<usize>>)>,
    /// By question, `None` until a window of it is added.
    found: Vec<Option<Found>>,
}

/// What windows of a question say.
#[derive(Default)]
struct Found {
    answers: Vec<Scored>,
    null: Option<Null>,
}

struct Scored {
    text: String,
    start_logit: f32,
    end_logit: f32,
}

impl Scored {
    fn score(&self) -> f64 {
        f64::from(self.start_logit) + f64::from(self.end_logit)
    }
}

/// What speaks for no answer.
#[derive(Clone, Copy)]
struct Null {
    score: f64,
    start_logit: f32,
    end_logit: f32,
    /// Whether the score is to be compared with that of the best answer.
    relative: bool,
}

impl<'a> Answers<'a> {
    /// For windows of `features`, which were made of the set with the tokenizer.
    pub fn new(
        set: &'a SquadSet,
        features: &'a Features,
        tokenizer: &'a TextTokenizer,
        options: AnswerOptions,
    ) -> Self {
        let found = set.questions().iter().map(|_| None).collect();
        let (vocabulary, spelling) = (tokenizer.vocabulary(), Spelling::new(tokenizer));
        Self { set, features, vocabulary, spelling, options, words: None, found }
    }

    /// What independent heads say of a window: logits `[S]` of each position being the answer's first and last token.
    ///
    /// The score of no answer is the sum of both logits of `[CLS]`, less that of the best answer.
    ///
    /// Errors: logits that are not numbers, or fewer than the window has tokens.
    pub fn add_logits(&mut self, window: usize, start: &[f32], end: &[f32]) -> Result<(), DataError> {
        let window = self.features.window(window);
        let AnswerOptions { n_best, max_answer_length, .. } = self.options;
        let spans = candidates::of_logits(&window, start, end, n_best, max_answer_length)?;
        let (start_logit, end_logit) = (start[0], end[0]);
        let score = f64::from(start_logit) + f64::from(end_logit);
        self.add(&window, &spans, Null { score, start_logit, end_logit, relative: true });
        Ok(())
    }

    /// What a joint head says of a window.
    ///
    /// The score of no answer is the logit of that. In lists of answers it stands with the scores of the first pair of
    /// the window, as ELECTRA's reference has it.
    ///
    /// Errors: scores that are not numbers; lists whose lengths do not fit; no such logit where there may be no answer.
    pub fn add_beam(&mut self, window: usize, beam: Beam<'_>) -> Result<(), DataError> {
        let window = self.features.window(window);
        let spans = candidates::of_beam(&window, &beam, self.options.max_answer_length)?;
        if self.options.null_threshold.is_some() && beam.no_answer.is_none() {
            let expected = "one for each window, as questions may have no answer";
            return Err(DataError::option(
                "the logit of no answer",
                format!("missing in window {}", window.index),
                expected,
            ));
        }
        let first = |scores: &[f32]| scores.first().copied().unwrap_or(0.0);
        let null = Null {
            score: beam.no_answer.unwrap_or(0.0).into(),
            start_logit: first(beam.start_scores),
            end_logit: first(beam.end_scores),
            relative: false,
        };
        self.add(&window, &spans, null);
        Ok(())
    }

    fn add(&mut self, window: &Window, spans: &[Span], null: Null) {
        let answers = self.texts(window, spans);
        let found = self.found[window.question].get_or_insert_default();
        found.answers.extend(answers);
        if found.null.is_none_or(|least| null.score < least.score) {
            found.null = Some(null);
        }
    }

    /// The first spans with different texts.
    fn texts(&mut self, window: &Window, spans: &[Span]) -> Vec<Scored> {
        let question = &self.set.questions()[window.question];
        let context = self.set.context(question);
        let known = self.words.take().filter(|(paragraph, _)| *paragraph == question.paragraph);
        let (_, bounds) = self.words.insert(known.unwrap_or_else(|| (question.paragraph, words(context))));
        let (mut seen, mut answers) = (HashSet::new(), Vec::new());
        for span in spans {
            if answers.len() == self.options.n_best {
                break;
            }
            let word = |position: usize| window.word(position).expect("candidates lie in the context");
            let original = joined(context, &bounds[word(span.start)..=word(span.end)]);
            let ids = &window.input_ids[span.start..=span.end];
            let predicted = detokenized(ids.iter().map(|&id| self.vocabulary.token(id)));
            let text = final_text(&predicted, &original, &mut self.spelling).to_owned();
            if seen.insert(text.clone()) {
                answers.push(Scored { text, start_logit: span.start_logit, end_logit: span.end_logit });
            }
        }
        answers
    }

    /// The answers to all questions of which a window was added.
    pub fn finish(self) -> Predictions {
        let AnswerOptions { n_best, null_threshold, .. } = self.options;
        let answered = self.set.questions().iter().zip(self.found);
        let predictions =
            answered.filter_map(|(question, found)| Some(predict(question.id.clone(), found?, n_best, null_threshold)));
        Predictions { questions: predictions.collect() }
    }
}

fn predict(id: String, found: Found, n_best: usize, null_threshold: Option<f64>) -> Prediction {
    let null = found.null.filter(|_| null_threshold.is_some());
    let mut answers = found.answers;
    answers.extend(null.map(|Null { start_logit, end_logit, .. }| Scored {
        text: String::new(),
        start_logit,
        end_logit,
    }));
    answers.sort_by(|a, b| b.score().total_cmp(&a.score()));
    let mut seen = HashSet::new();
    answers.retain(|answer| seen.insert(answer.text.clone()));
    answers.truncate(n_best);
    if answers.is_empty() {
        answers.push(Scored { text: String::new(), start_logit: 0.0, end_logit: 0.0 });
    }

    let best = answers.iter().find(|answer| !answer.text.is_empty());
    let null_score = null.map(|null| null.score - best.filter(|_| null.relative).map_or(0.0, Scored::score));
    let is_null = null_score.zip(null_threshold).is_some_and(|(score, threshold)| score > threshold);
    let chosen = if null.is_some() { best.filter(|_| !is_null) } else { answers.first() };
    let text = chosen.map(|answer| answer.text.clone()).unwrap_or_default();
    Prediction { id, text, n_best: with_probabilities(answers), null_score }
}

/// Softmax over the scores.
fn with_probabilities(answers: Vec<Scored>) -> Vec<Candidate> {
    let highest = answers.iter().map(Scored::score).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = answers.iter().map(|answer| (answer.score() - highest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let candidate = |(Scored { text, start_logit, end_logit }, weight)| Candidate {
        text,
        probability: weight / sum,
        start_logit,
        end_logit,
    };
    answers.into_iter().zip(weights).map(candidate).collect()
}
