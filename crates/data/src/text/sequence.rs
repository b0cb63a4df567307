use super::Specials;
use super::store::{Span, TokenStore};
use crate::DataError;

/// Tokens of one or two segments with the special ones around them, without padding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sequence {
    pub tokens: Vec<u32>,
    /// 0 for the first segment with its special tokens, 1 for the second.
    pub segments: Vec<u8>,
}

impl Sequence {
    /// `[CLS] first segment [SEP]` and, where there is a second one, `second segment [SEP]`.
    ///
    /// Errors: tokens that cannot be read.
    pub(crate) fn read(
        store: &TokenStore,
        first: &[Span],
        second: &[Span],
        specials: Specials,
    ) -> Result<Self, DataError> {
        let mut sequence = Self::begin(specials);
        first.iter().try_for_each(|span| store.tokens(span, &mut sequence.tokens))?;
        sequence.end_segment(specials);
        if !second.is_empty() {
            second.iter().try_for_each(|span| store.tokens(span, &mut sequence.tokens))?;
            sequence.end_segment(specials);
        }
        Ok(sequence)
    }

    /// `[CLS]`, behind which the tokens of the first segment are to be put.
    pub(crate) fn begin(specials: Specials) -> Self {
        Self { tokens: vec![specials.cls], segments: Vec::new() }
    }

    /// Puts `[SEP]` behind the tokens of a segment.
    pub(crate) fn end_segment(&mut self, specials: Specials) {
        self.tokens.push(specials.sep);
        let segment = self.segments.last().map_or(0, |last| last + 1);
        self.segments.resize(self.tokens.len(), segment);
    }
}
