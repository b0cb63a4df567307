use serde::{Deserialize, Serialize};

use super::Vocabulary;
use super::example::ExampleShape;
use super::masking::Masking;
use super::pairs::{Pair, PairLength};
use super::store::TokenStore;
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
        if !(SHORTEST..=LONGEST).contains(&sequence_length) {
            return Err(DataError::option("sequence length", sequence_length, format!("{SHORTEST} to {LONGEST}")));
        }
        if !(1..=sequence_length).contains(&max_predictions) {
            return Err(DataError::option("predictions", max_predictions, format!("1 to {sequence_length}")));
        }
        if !(masked_lm_probability > 0.0 && masked_lm_probability < 1.0) {
            let expected = "more than 0 and less than 1";
            return Err(DataError::option("masked-LM probability", masked_lm_probability, expected));
        }
        if !(0.0..=1.0).contains(&short_sequence_probability) {
            return Err(DataError::option("short-sequence probability", short_sequence_probability, "0 to 1"));
        }
        Ok(())
    }

    pub(crate) fn shape(&self) -> ExampleShape {
        ExampleShape { sequence_length: self.sequence_length, predictions: self.max_predictions }
    }

    pub(crate) fn pair_length(&self) -> PairLength {
        PairLength { most: self.sequence_length as u32 - 3, short_probability: self.short_sequence_probability }
    }

    pub(crate) fn masking(&self) -> Masking {
        let Self { masked_lm_probability, max_predictions, whole_words, .. } = *self;
        Masking { probability: masked_lm_probability, most: max_predictions, whole_words }
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
    /// Reads a pair's tokens and masks some.
    pub(crate) fn make(
        store: &TokenStore,
        pair: &Pair,
        masking: Masking,
        vocabulary: &Vocabulary,
        rng: &mut Philox,
    ) -> Result<Self, DataError> {
        let specials = vocabulary.specials();
        let mut tokens = vec![specials.cls];
        store.tokens(&pair.first, &mut tokens)?;
        tokens.push(specials.sep);
        let mut segments = vec![0; tokens.len()];
        store.tokens(&pair.second, &mut tokens)?;
        tokens.push(specials.sep);
        segments.resize(tokens.len(), 1);
        let masked = masking.apply(&mut tokens, vocabulary, rng);
        Ok(Self { tokens, segments, masked, random_next: pair.random_next })
    }

    /// The tokens before some of them were hidden.
    pub fn original_tokens(&self) -> Vec<u32> {
        let mut tokens = self.tokens.clone();
        for &(position, id) in &self.masked {
            tokens[position as usize] = id;
        }
        tokens
    }
}
