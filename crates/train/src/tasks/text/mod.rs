//! What all pre-training on text shares: where the text comes from, the task, and its evaluation.

mod source;
mod task;

pub(super) use source::{Part, TextSource, check_words, vocabulary_in};
pub(super) use task::{Facts, Family, HeldOut, TextTask};
