//! What families of models of text share: fields of recipes, where the text comes from, the task of pre-training and its
//! evaluation, sizes of encoders, and steps to measure.

mod prompt;
mod recipe;
mod size;
mod source;
mod task;
mod vocabulary;
mod workload;

pub(super) use prompt::{check_text, quoted};
pub(crate) use recipe::{EncoderFields, TextFields, VocabularyFields, WordBias, published_init};
pub(crate) use size::{EncoderShape, Encoders, check_length};
pub(super) use source::{Part, TextSource, vocabulary_in};
pub(super) use task::{DatasetInfo, HeldOut, TextNetworks, TextTask};
pub(crate) use vocabulary::{Weights, vocabulary_beside, vocabulary_for};
pub(super) use workload::{RATE, encoder_sizes, step_settings, usual_step, with_dropout, with_tokens};
