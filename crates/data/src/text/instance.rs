use std::slice::from_ref;

use serde::{Deserialize, Serialize};

use super::folder::Format;
use super::maker::{ExampleShape, Maker};
use super::masking::Masking;
use super::pairs::{Pair, PairLength, cut_document, pair_at};
use super::sequence::Sequence;
use super::store::TokenStore;
use super::{SyntheticText, Vocabulary};
use crate::{DataError, Philox};

/// Shortest sequence: `[CLS]`, `[SEP]` twice, and a token of each segment.
const SHORTEST: usize = 5;
const LONGEST: usize = 1 << 16;

/// How pre-training instances are made from documents.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct InstanceOptions {
    /// Tokens of a sequence, special ones included.
    pub sequence_length: usize,
    /// Most tokens of a sequence to predict.
    pub max_predictions: usize,
    /// Share of the tokens of a sequence to predict.
    pub masked_lm_probability: f64,
    /// Share of sequences that aim at a random shorter length.
    pub short_sequence_probability: f64,
    /// Whether all pieces of a word are masked together.
    pub whole_words: bool,
}

impl Default for InstanceOptions {
    /// Those of BERT's first phase: 128 tokens, 20 predictions.
    fn default() -> Self {
        Self {
            sequence_length: 128,
            max_predictions: 20,
            masked_lm_probability: 0.15,
            short_sequence_probability: 0.1,
            whole_words: false,
        }
    }
}

impl InstanceOptions {
    /// Errors: a setting out of its range.
    pub fn check(&self) -> Result<(), DataError> {
        let Self { sequence_length, max_predictions, masked_lm_probability, short_sequence_probability, .. } = *self;
        check_length(sequence_length)?;
        if !(1..=sequence_length).contains(&max_predictions) {
            return Err(DataError::option("predictions", max_predictions, format!("1 to {sequence_length}")));
        }
        check_masked(masked_lm_probability)?;
        check_share("short-sequence probability", short_sequence_probability)
    }

    fn pair_length(&self) -> PairLength {
        PairLength { most: self.sequence_length as u32 - 3, short_probability: self.short_sequence_probability }
    }

    pub(super) fn masking(&self) -> Masking {
        let Self { masked_lm_probability, max_predictions, whole_words, .. } = *self;
        Masking { probability: masked_lm_probability, most: max_predictions, whole_words }
    }
}

pub(crate) fn check_length(sequence_length: usize) -> Result<(), DataError> {
    match (SHORTEST..=LONGEST).contains(&sequence_length) {
        true => Ok(()),
        false => Err(DataError::option("sequence length", sequence_length, format!("{SHORTEST} to {LONGEST}"))),
    }
}

pub(crate) fn check_masked(probability: f64) -> Result<(), DataError> {
    match probability > 0.0 && probability < 1.0 {
        true => Ok(()),
        false => Err(DataError::option("masked-LM probability", probability, "more than 0 and less than 1")),
    }
}

pub(crate) fn check_share(name: &'static str, share: f64) -> Result<(), DataError> {
    match (0.0..=1.0).contains(&share) {
        true => Ok(()),
        false => Err(DataError::option(name, share, "0 to 1")),
    }
}

impl Maker for InstanceOptions {
    type Plan = Pair;
    type Made = Instance;
    const RECORDS: Format = Format::Tfrecord;
    const LEAST_DOCUMENTS: (u32, &'static str) = (
        2,
        "at least 2 in each split, as second segments are taken from other documents; --heldout SHARE says how many are of val, 0 none",
    );

    fn prepared(_: Format, instances: &InstanceOptions) -> Self {
        *instances
    }

    fn check(&self) -> Result<(), DataError> {
        self.check()
    }

    fn shape(&self) -> ExampleShape {
        ExampleShape { sequence_length: self.sequence_length, predictions: self.max_predictions }
    }

    fn identity(&self) -> String {
        let Self { sequence_length, max_predictions, masked_lm_probability, short_sequence_probability, whole_words } =
            self;
        format!(
            "sequence={sequence_length}:predictions={max_predictions}:masked={masked_lm_probability}\
             :short={short_sequence_probability}:whole-words={whole_words}"
        )
    }

    fn cut(&self, store: &TokenStore, document: u32, rng: &mut Philox, each: impl FnMut(usize, Pair)) {
        cut_document(store, document, self.pair_length(), rng, each);
    }

    fn plan(&self, store: &TokenStore, document: u32, sentence: usize, rng: &mut Philox) -> Pair {
        pair_at(store, document, sentence, self.pair_length(), rng)
    }

    /// Reads a pair's tokens and masks some.
    fn make(
        &self,
        store: &TokenStore,
        pair: &Pair,
        vocabulary: &Vocabulary,
        rng: &mut Philox,
    ) -> Result<Instance, DataError> {
        let (first, second) = (from_ref(&pair.first), from_ref(&pair.second));
        let Sequence { mut tokens, segments } = Sequence::read(store, first, second, vocabulary.specials())?;
        let masked = self.masking().apply(&mut tokens, vocabulary, rng);
        Ok(Instance { tokens, segments, masked, random_next: pair.random_next })
    }

    fn synthetic(text: &SyntheticText, index: usize) -> Instance {
        text.instance(index)
    }
}

/// A sequence to pre-train on, without padding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// `[CLS] first segment [SEP] second segment [SEP]`, some tokens of which are hidden.
    pub tokens: Vec<u32>,
    /// 0 for the first segment with its special tokens, 1 for the second.
    pub segments: Vec<u8>,
    /// Positions to predict, ascending, and the tokens that were there.
    pub masked: Vec<(u32, u32)>,
    /// Whether the second segment is of another document.
    pub random_next: bool,
}

impl Instance {
    /// The tokens before some of them were hidden.
    pub fn original_tokens(&self) -> Vec<u32> {
        let mut tokens = self.tokens.clone();
        for &(position, id) in &self.masked {
            tokens[position as usize] = id;
        }
        tokens
    }
}
