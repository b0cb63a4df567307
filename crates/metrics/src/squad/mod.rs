//! Exact match and F1 of answers to the questions of SQuAD, as the official evaluation scripts of version 1.1 and 2.0
//! compute them.
//!
//! An answer counts as its words: lower case, without punctuation, without the articles *a*, *an* and *the*. Exact match
//! is 1 where these are those of a right answer; F1 is the harmonic mean of precision and recall over words. Of several
//! right answers the one that fits best counts. A question that nothing is predicted for counts as wrong.

mod text;
mod v1;
mod v2;

use std::collections::{HashMap, HashSet};

pub use text::{exact_match, f1, normalized};
pub use v1::{ScoresV1, score_v1};
pub use v2::{BestScores, NoAnswerProbabilities, ScoresV2, Shares, score_v2};

/// A question and its right answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gold<'a> {
    /// The question's id in the data set, which predictions are keyed by.
    pub id: &'a str,
    /// None where the text does not answer the question (version 2.0).
    pub answers: Vec<&'a str>,
}

/// Predicted answers by the question's id.
pub type Predicted<'a> = HashMap<&'a str, &'a str>;

/// The ids that no question has, in order. Scores do not depend on what is given for them, as in the official scripts.
pub fn unknown_questions<'a>(gold: &[Gold<'_>], ids: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let known: HashSet<&str> = gold.iter().map(|question| question.id).collect();
    let mut unknown: Vec<&str> = ids.filter(|id| !known.contains(id)).collect();
    unknown.sort_unstable();
    unknown
}
