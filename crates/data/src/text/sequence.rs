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
        let mut tokens = vec![specials.cls];
        first.iter().try_for_each(|span| store.tokens(span, &mut tokens))?;
        tokens.push(specials.sep);
        let mut segments = vec![0; tokens.len()];
        if !second.is_empty() {
            second.iter().try_for_each(|span| store.tokens(span, &mut tokens))?;
            tokens.push(specials.sep);
            segments.resize(tokens.len(), 1);
        }
        Ok(Self { tokens, segments })
    }
}
