//! What sequences for different models have in common: they are cut out of documents, and kept in records.

use std::fmt;

use super::folder::Format;
use super::store::TokenStore;
use super::{InstanceOptions, SyntheticText, Vocabulary};
use crate::tf_example::Flaw;
use crate::{DataError, Philox};

/// How sequences of one kind are made of documents.
pub(crate) trait Maker: Copy + Send + Sync {
    /// Which part of a document a sequence is of; what it holds is drawn when it is made.
    type Plan: Send + Sync;
    type Made: Record;
    /// The format of their TFRecord files.
    const RECORDS: Format;
    /// How many documents there must be at least, in words that say why.
    const LEAST_DOCUMENTS: (u32, &'static str);

    /// What a folder was prepared with.
    fn prepared(format: Format, instances: &InstanceOptions) -> Self;

    /// Errors: a setting out of its range.
    fn check(&self) -> Result<(), DataError>;

    /// Sizes of its records.
    fn shape(&self) -> ExampleShape;

    /// Words that change when other sequences are made.
    fn identity(&self) -> String;

    /// Cuts a whole document, and hands each plan with the sentence it begins at to `each`.
    fn cut(&self, store: &TokenStore, document: u32, rng: &mut Philox, each: impl FnMut(usize, Self::Plan));

    /// Plans a sequence that begins at a sentence of a document.
    fn plan(&self, store: &TokenStore, document: u32, sentence: usize, rng: &mut Philox) -> Self::Plan;

    /// Errors: tokens that cannot be read.
    fn make(
        &self,
        store: &TokenStore,
        plan: &Self::Plan,
        vocabulary: &Vocabulary,
        rng: &mut Philox,
    ) -> Result<Self::Made, DataError>;

    /// Random tokens.
    fn synthetic(text: &SyntheticText, index: usize) -> Self::Made;
}

/// What a record of a TFRecord file holds.
pub(crate) trait Record: Sized + Send + Sync {
    const EXPECTED: &'static str;

    /// Sizes of the arrays of a message.
    fn shape(payload: &[u8]) -> Result<ExampleShape, Flaw>;

    /// What a message holds.
    ///
    /// Errors: no such message, a feature that is missing, has another type or length, or values that make no sense.
    fn decode(payload: &[u8], shape: ExampleShape, vocabulary_size: usize) -> Result<Self, Flaw>;

    /// The message, padded with zeros.
    fn encode(&self, shape: ExampleShape) -> Vec<u8>;

    /// The tokens that are to be predicted or, where these are not chosen yet, all.
    fn words(&self) -> impl Iterator<Item = u32>;
}

/// Sizes of the arrays of an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExampleShape {
    pub sequence_length: usize,
    /// 0 where it is not said which tokens are to be predicted.
    pub predictions: usize,
}

impl fmt::Display for ExampleShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.predictions {
            0 => write!(f, "{} tokens", self.sequence_length),
            predictions => write!(f, "{} tokens with {predictions} predictions", self.sequence_length),
        }
    }
}
