//! What all pre-training on text shares: where the text comes from, the task, and its evaluation.

mod size;
mod source;
mod task;
mod vocabulary;

pub(crate) use size::{Size, check_size, name_of};
pub(super) use source::{Part, TextSource, vocabulary_in};
pub(super) use task::{Facts, Family, HeldOut, TextTask};
pub(crate) use vocabulary::Weights;
