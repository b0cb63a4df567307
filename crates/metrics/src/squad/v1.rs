use super::text::{f1_of_normalized, normalized};
use super::{Gold, Predicted, Shares, unknown_questions};
use crate::MetricError;

/// Scores by the rules of version 1.1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoresV1 {
    /// Of all questions.
    pub all: Shares,
    /// Questions without a prediction, which count as wrong.
    pub missing: usize,
    /// Predictions for questions that the data do not have, which count for nothing.
    pub unknown: usize,
}

/// Errors: no question, a question without right answers.
pub fn score_v1(gold: &[Gold<'_>], predictions: &Predicted<'_>) -> Result<ScoresV1, MetricError> {
    if gold.is_empty() {
        return Err(MetricError::NoQuestions);
    }
    let unknown = unknown_questions(gold, predictions.keys().copied()).len();
    let (mut exact, mut f1, mut missing) = (0_usize, 0.0, 0);
    for question in gold {
        if question.answers.is_empty() {
            return Err(MetricError::NoAnswers { id: question.id.to_owned() });
        }
        let Some(prediction) = predictions.get(question.id) else {
            missing += 1;
            continue;
        };
        let prediction = normalized(prediction);
        let answers: Vec<String> = question.answers.iter().map(|answer| normalized(answer)).collect();
        exact += usize::from(answers.contains(&prediction));
        f1 += answers.iter().map(|answer| f1_of_normalized(&prediction, answer)).fold(0.0, f64::max);
    }
    Ok(ScoresV1 { all: Shares::new(exact, f1, gold.len()), missing, unknown })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gold<'a>(questions: &[(&'a str, &[&'a str])]) -> Vec<Gold<'a>> {
        questions.iter().map(|&(id, answers)| Gold { id, answers: answers.to_vec() }).collect()
    }

    #[test]
    fn the_best_answer_counts_and_what_is_missing_is_wrong() {
        let gold = gold(&[("1", &["old people", "Norman people"]), ("2", &["1066"]), ("3", &["a"]), ("4", &["x"])]);
        let predictions = Predicted::from([("1", "people"), ("2", "1066."), ("3", "")]);
        let scores = score_v1(&gold, &predictions).unwrap();
        assert_eq!((scores.all.exact, scores.all.total, scores.missing), (50.0, 4, 1));
        assert!((scores.all.f1 - 100.0 * (2.0 / 3.0 + 1.0) / 4.0).abs() < 1e-12, "an answer without words has no F1");
    }

    #[test]
    fn predictions_for_unknown_questions_count_for_nothing() {
        let gold = gold(&[("2", &["x"]), ("4", &["y"])]);
        let predictions = Predicted::from([("2", "x"), ("9", "x"), ("3", "x")]);
        let scores = score_v1(&gold, &predictions).unwrap();
        assert_eq!((scores.all.exact, scores.missing, scores.unknown), (50.0, 1, 2));
        assert_eq!(unknown_questions(&gold, predictions.keys().copied()), ["3", "9"]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let predictions = Predicted::from([("2", "x")]);
        assert_eq!(score_v1(&[], &predictions), Err(MetricError::NoQuestions));
        let none = score_v1(&gold(&[("2", &[])]), &Predicted::new());
        assert_eq!(none, Err(MetricError::NoAnswers { id: "2".into() }));
    }
}
