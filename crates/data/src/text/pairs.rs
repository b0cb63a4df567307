//! Pairs of segments: a run of a document's sentences and what comes next, or a run of another document
//! (`create_pretraining_data.py` of Google's BERT, `create_instances_from_document`).

use super::store::{Document, Span, TokenStore};
use crate::Philox;

/// Tries to find a document other than the first segment's.
const TRIES: usize = 10;

/// Two segments, each of at least one token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    pub first: Span,
    pub second: Span,
    /// Whether the second segment is of another document instead of what follows the first.
    pub random_next: bool,
}

/// How long pairs are to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PairLength {
    /// Most tokens of both segments.
    pub most: u32,
    /// Share of pairs (of documents, where whole documents are cut) that aim at a random length of 2 to `most`.
    pub short_probability: f64,
}

impl PairLength {
    fn target(&self, rng: &mut Philox) -> u32 {
        match rng.chance(self.short_probability) {
            true => 2 + rng.below(self.most - 1),
            false => self.most,
        }
    }
}

/// Cuts a whole document into pairs, and hands each with the sentence it begins at to `each`.
pub(crate) fn cut_document(
    store: &TokenStore,
    number: u32,
    length: PairLength,
    rng: &mut Philox,
    mut each: impl FnMut(usize, Pair),
) {
    let document = store.document(number);
    let target = length.target(rng);
    let mut start = 0;
    while start < document.sentences() {
        let (mut pair, next) = draw(store, document, start, target, rng);
        truncate(&mut pair, length.most, rng);
        each(start, pair);
        start = next;
    }
}

/// A pair that begins at a sentence of a document.
pub(crate) fn pair_at(store: &TokenStore, number: u32, start: usize, length: PairLength, rng: &mut Philox) -> Pair {
    let target = length.target(rng);
    let (mut pair, _) = draw(store, store.document(number), start, target, rng);
    truncate(&mut pair, length.most, rng);
    pair
}

/// A pair that begins at sentence `start`, before truncation, and the sentence that was not used yet.
fn draw(store: &TokenStore, document: Document<'_>, start: usize, target: u32, rng: &mut Philox) -> (Pair, usize) {
    let end = document.reach(start, target);
    let sentences = end - start;
    let first_end = if sentences >= 2 { start + 1 + rng.below(sentences as u32 - 1) as usize } else { end };
    let first = document.span(start..first_end);
    if sentences > 1 && !rng.chance(0.5) {
        let second = document.span(first_end..end);
        return (Pair { first, second, random_next: false }, end);
    }
    let wanted = target.saturating_sub(first.tokens.len() as u32);
    let other = store.document(other_document(store, first.document, rng));
    let other_start = rng.below(other.sentences() as u32) as usize;
    let second = other.span(other_start..other.reach(other_start, wanted));
    (Pair { first, second, random_next: true }, first_end)
}

fn other_document(store: &TokenStore, document: u32, rng: &mut Philox) -> u32 {
    let mut other = document;
    for _ in 0..TRIES {
        other = rng.below(store.documents());
        if other != document {
            break;
        }
    }
    other
}

/// Takes tokens off either end of the longer segment, at random, until both together are not too long.
fn truncate(pair: &mut Pair, most: u32, rng: &mut Philox) {
    let (first, second) = (&mut pair.first.tokens, &mut pair.second.tokens);
    while first.len() + second.len() > most as usize {
        let longer = if first.len() > second.len() { &mut *first } else { &mut *second };
        match rng.chance(0.5) {
            true => longer.start += 1,
            false => longer.end -= 1,
        }
    }
}
