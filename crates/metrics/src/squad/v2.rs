use std::collections::HashMap;

use super::text::{f1_of_normalized, normalized};
use super::{Gold, Predicted, unknown_questions};
use crate::MetricError;

/// Scores by the rules of version 2.0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoresV2 {
    /// Of all questions.
    pub all: Shares,
    /// Of questions with an answer, if there are any.
    pub has_answer: Option<Shares>,
    /// Of questions without one, if there are any.
    pub no_answer: Option<Shares>,
    /// With the threshold chosen afterwards, where probabilities are given.
    pub best: Option<BestScores>,
    /// Questions without a prediction, which count as wrong.
    pub missing: usize,
    /// Predictions for questions that the data do not have, which count for nothing.
    pub unknown: usize,
}

/// Scores of a group of questions, in percent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shares {
    /// Questions whose prediction equals a right answer once both are normalised.
    pub exact: f64,
    /// Mean over questions of the F1 of words, against the right answer that fits best.
    pub f1: f64,
    /// Questions whose prediction is exactly right.
    pub num_exact: usize,
    /// Questions.
    pub total: usize,
}

impl Shares {
    /// Of sums over `total` questions.
    pub(super) fn new(num_exact: usize, f1: f64, total: usize) -> Self {
        let percent = |sum: f64| 100.0 * sum / total as f64;
        Self { exact: percent(num_exact as f64), f1: percent(f1), num_exact, total }
    }
}

/// The highest scores in percent that any threshold on the probability of no answer gives, and these thresholds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BestScores {
    /// The highest exact match.
    pub exact: f64,
    /// The threshold that gives the highest exact match.
    pub exact_threshold: f64,
    /// The highest F1.
    pub f1: f64,
    /// The threshold that gives the highest F1.
    pub f1_threshold: f64,
}

/// How likely a question has no answer, and above what probability an answer is not given.
///
/// Any other number that grows with doubt serves as well.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NoAnswerProbabilities<'a> {
    /// By id; equal ones are tried as thresholds in this order. Those of unknown questions are passed over.
    pub by_question: &'a [(&'a str, f64)],
    /// Above this probability the prediction counts as no answer.
    pub threshold: f64,
}

/// What a question adds to the sums.
struct Mark {
    has_answer: bool,
    /// Whether there is a prediction, and whether it is an answer.
    predicted: Option<bool>,
    is_exact: bool,
    f1: f64,
}

/// Errors: no question; a probability that is missing or NaN.
pub fn score_v2(
    gold: &[Gold<'_>],
    predictions: &Predicted<'_>,
    no_answer: Option<NoAnswerProbabilities<'_>>,
) -> Result<ScoresV2, MetricError> {
    if gold.is_empty() {
        return Err(MetricError::NoQuestions);
    }
    let mut marks: Vec<Mark> = gold.iter().map(|question| mark(question, predictions.get(question.id))).collect();
    let mut best = None;
    if let Some(no_answer) = no_answer {
        check_probabilities(gold, &marks, &no_answer)?;
        best = Some(best_scores(gold, &marks, no_answer.by_question));
        withhold(gold, &mut marks, &no_answer);
    }
    let shares = |group: &dyn Fn(&Mark) -> bool| shares_of(marks.iter().filter(|mark| group(mark)));
    Ok(ScoresV2 {
        all: shares(&|_| true).expect("there are questions"),
        has_answer: shares(&|mark| mark.has_answer),
        no_answer: shares(&|mark| !mark.has_answer),
        best,
        missing: marks.iter().filter(|mark| mark.predicted.is_none()).count(),
        unknown: unknown_questions(gold, predictions.keys().copied()).len(),
    })
}

fn mark(question: &Gold<'_>, prediction: Option<&&str>) -> Mark {
    let has_answer = !question.answers.is_empty();
    let Some(prediction) = prediction else {
        return Mark { has_answer, predicted: None, is_exact: false, f1: 0.0 };
    };
    let words = normalized(prediction);
    let mut answers: Vec<String> = question.answers.iter().map(|answer| normalized(answer)).collect();
    answers.retain(|answer| !answer.is_empty());
    if answers.is_empty() {
        answers.push(String::new());
    }
    let is_exact = answers.contains(&words);
    let f1 = answers.iter().map(|answer| f1_or_both_empty(&words, answer)).fold(0.0, f64::max);
    Mark { has_answer, predicted: Some(!prediction.is_empty()), is_exact, f1 }
}

/// Where either has no words, 1 if neither has.
fn f1_or_both_empty(prediction: &str, answer: &str) -> f64 {
    if prediction.is_empty() || answer.is_empty() {
        return f64::from(u8::from(prediction == answer));
    }
    f1_of_normalized(prediction, answer)
}

fn check_probabilities(
    gold: &[Gold<'_>],
    marks: &[Mark],
    no_answer: &NoAnswerProbabilities<'_>,
) -> Result<(), MetricError> {
    if let Some(&(id, _)) = no_answer.by_question.iter().find(|(_, probability)| probability.is_nan()) {
        return Err(MetricError::NanProbability { id: id.to_owned() });
    }
    let known: HashMap<&str, f64> = no_answer.by_question.iter().copied().collect();
    let lacks = |(question, mark): &(&Gold<'_>, &Mark)| mark.predicted.is_some() && !known.contains_key(question.id);
    match gold.iter().zip(marks).find(lacks) {
        None => Ok(()),
        Some((question, _)) => Err(MetricError::NoProbability { id: question.id.to_owned() }),
    }
}

/// Questions above the threshold count as answered by nothing.
fn withhold(gold: &[Gold<'_>], marks: &mut [Mark], no_answer: &NoAnswerProbabilities<'_>) {
    let known: HashMap<&str, f64> = no_answer.by_question.iter().copied().collect();
    for (question, mark) in gold.iter().zip(marks) {
        if mark.predicted.is_some() && known[question.id] > no_answer.threshold {
            mark.is_exact = !mark.has_answer;
            mark.f1 = f64::from(u8::from(mark.is_exact));
        }
    }
}

fn best_scores(gold: &[Gold<'_>], marks: &[Mark], by_question: &[(&str, f64)]) -> BestScores {
    let marks: HashMap<&str, &Mark> = gold.iter().map(|question| question.id).zip(marks).collect();
    let mut rising: Vec<(f64, &Mark)> = by_question.iter().filter_map(|&(id, p)| Some((p, *marks.get(id)?))).collect();
    rising.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (exact, exact_threshold) = best_threshold(&rising, gold.len(), |mark| f64::from(u8::from(mark.is_exact)));
    let (f1, f1_threshold) = best_threshold(&rising, gold.len(), |mark| mark.f1);
    BestScores { exact, exact_threshold, f1, f1_threshold }
}

/// Answers more and more questions, beginning with none at threshold 0: the first of the highest scores in percent.
fn best_threshold(rising: &[(f64, &Mark)], total: usize, score: impl Fn(&Mark) -> f64) -> (f64, f64) {
    let answerless = rising.iter().filter(|(_, mark)| mark.predicted.is_some() && !mark.has_answer).count();
    let mut sum = answerless as f64;
    let mut best = (sum, 0.0);
    for (probability, mark) in rising {
        sum += match (mark.has_answer, mark.predicted) {
            (true, Some(_)) => score(mark),
            (false, Some(true)) => -1.0,
            (false, Some(false)) | (_, None) => 0.0,
        };
        if sum > best.0 {
            best = (sum, *probability);
        }
    }
    (100.0 * best.0 / total as f64, best.1)
}

fn shares_of<'a>(marks: impl Iterator<Item = &'a Mark>) -> Option<Shares> {
    let (mut num_exact, mut f1, mut total) = (0, 0.0, 0);
    for mark in marks {
        num_exact += usize::from(mark.is_exact);
        f1 += mark.f1;
        total += 1;
    }
    (total > 0).then(|| Shares::new(num_exact, f1, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two questions with an answer and two without.
    fn gold() -> Vec<Gold<'static>> {
        let answers = [("1", vec!["the cat", "dog"]), ("2", vec!["a red fox"]), ("3", vec![]), ("4", vec![])];
        answers.into_iter().map(|(id, answers)| Gold { id, answers }).collect()
    }

    fn predictions() -> Predicted<'static> {
        Predicted::from([("1", "Dog"), ("2", "fox"), ("3", ""), ("4", "bird")])
    }

    #[test]
    fn empty_answers_are_right_where_there_is_none() {
        let scores = score_v2(&gold(), &predictions(), None).unwrap();
        let f1_of_fox = 2.0 / 3.0;
        assert_eq!(scores.all.exact, 50.0);
        assert!((scores.all.f1 - 25.0 * (2.0 + f1_of_fox)).abs() < 1e-12);
        let has_answer = scores.has_answer.unwrap();
        assert!((has_answer.f1 - 50.0 * (1.0 + f1_of_fox)).abs() < 1e-12);
        assert_eq!((has_answer.exact, has_answer.total), (50.0, 2));
        assert_eq!(scores.no_answer, Some(Shares { exact: 50.0, f1: 50.0, num_exact: 1, total: 2 }));
        assert_eq!((scores.best, scores.missing), (None, 0));
    }

    #[test]
    fn answers_without_words_leave_no_answer() {
        let gold = [Gold { id: "1", answers: vec!["the"] }];
        let score = |text| score_v2(&gold, &Predicted::from([("1", text)]), None).unwrap().all;
        assert_eq!((score("an!").exact, score("an!").f1), (100.0, 100.0));
        assert_eq!((score("cat").exact, score("cat").f1), (0.0, 0.0));
        let both = [Gold { id: "1", answers: vec!["the", "cat"] }];
        let scores = score_v2(&both, &Predicted::from([("1", "")]), None).unwrap();
        assert_eq!((scores.all.exact, scores.no_answer), (0.0, None));
    }

    #[test]
    fn thresholds_withhold_answers() {
        let probabilities = [("1", 0.1), ("2", 0.3), ("3", 0.2), ("4", 0.9)];
        let score = |threshold| {
            let no_answer = NoAnswerProbabilities { by_question: &probabilities, threshold };
            score_v2(&gold(), &predictions(), Some(no_answer)).unwrap()
        };
        assert_eq!((score(1.0).all.exact, score(0.5).all.exact, score(0.2).all.exact), (50.0, 75.0, 75.0));
        assert_eq!(score(0.1).all.exact, 75.0, "what is at the threshold is answered");
        assert_eq!(score(0.0).no_answer.unwrap().exact, 100.0);
        let best = score(1.0).best.unwrap();
        assert_eq!((best.exact, best.exact_threshold, best.f1_threshold), (75.0, 0.1, 0.3));
        assert!((best.f1 - 25.0 * (3.0 + 2.0 / 3.0)).abs() < 1e-12);
    }

    #[test]
    fn an_answer_where_there_is_none_costs_what_none_had_won() {
        let probabilities = [("1", 0.1), ("2", 0.3), ("3", 0.2), ("4", 0.05)];
        let no_answer = NoAnswerProbabilities { by_question: &probabilities, threshold: 1.0 };
        let best = score_v2(&gold(), &predictions(), Some(no_answer)).unwrap().best.unwrap();
        assert_eq!((best.exact, best.exact_threshold, best.f1_threshold), (50.0, 0.0, 0.3));
        assert!((best.f1 - 25.0 * (2.0 + 2.0 / 3.0)).abs() < 1e-12);
    }

    #[test]
    fn answering_nothing_may_be_best() {
        let probabilities = [("1", 0.1), ("2", 0.1), ("3", 0.1), ("4", 0.1)];
        let wrong = Predicted::from([("1", "x"), ("2", "x"), ("3", "x"), ("4", "x")]);
        let no_answer = NoAnswerProbabilities { by_question: &probabilities, threshold: 1.0 };
        let scores = score_v2(&gold(), &wrong, Some(no_answer)).unwrap();
        let best = BestScores { exact: 50.0, exact_threshold: 0.0, f1: 50.0, f1_threshold: 0.0 };
        assert_eq!((scores.all.exact, scores.best), (0.0, Some(best)));
    }

    #[test]
    fn what_is_missing_is_wrong() {
        let mut some = predictions();
        some.remove("1");
        some.remove("3");
        let scores = score_v2(&gold(), &some, None).unwrap();
        assert_eq!((scores.all.exact, scores.all.total, scores.missing), (0.0, 4, 2));
        let probabilities = [("2", 0.1), ("3", 0.1), ("4", 0.1)];
        let no_answer = NoAnswerProbabilities { by_question: &probabilities, threshold: 0.0 };
        let scores = score_v2(&gold(), &some, Some(no_answer)).unwrap();
        assert_eq!((scores.all.exact, scores.best.unwrap().exact), (25.0, 25.0));
    }

    #[test]
    fn unknown_questions_count_for_nothing() {
        let probabilities = [("1", 0.1), ("2", 0.3), ("3", 0.2), ("4", 0.9)];
        let more = [&probabilities[..], &[("9", 0.15)]].concat();
        let mut predicted = predictions();
        let score = |predicted: &Predicted<'_>, by_question: &[(&str, f64)]| {
            score_v2(&gold(), predicted, Some(NoAnswerProbabilities { by_question, threshold: 0.2 })).unwrap()
        };
        let without = score(&predicted, &probabilities);
        predicted.insert("9", "cat");
        assert_eq!(score(&predicted, &more), ScoresV2 { unknown: 1, ..without });
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let refused = |predictions: &Predicted<'_>, by_question: &[(&str, f64)]| {
            let no_answer = NoAnswerProbabilities { by_question, threshold: 1.0 };
            score_v2(&gold(), predictions, Some(no_answer)).unwrap_err().to_string()
        };
        let one = Predicted::from([("1", "x")]);
        assert_eq!(
            refused(&one, &[("2", 0.0)]),
            "SQuAD: question `1` has a prediction and no probability of no answer"
        );
        assert!(refused(&one, &[("1", f64::NAN)]).contains("of question `1` is not a number"));
        assert_eq!(score_v2(&[], &one, None), Err(MetricError::NoQuestions));
    }
}
