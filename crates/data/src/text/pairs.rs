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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Purpose;
    use crate::text::shard::{Shard, ShardWriter};

    const LENGTH: PairLength = PairLength { most: 20, short_probability: 0.0 };

    /// Documents of sentences with 1 to 9 tokens.
    fn store(documents: usize) -> TokenStore {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tokens");
        let mut writer = ShardWriter::create(&path, 100, [0; 32]).unwrap();
        for document in 0..documents {
            let sentence = |number: usize| vec![document as u32; 1 + (number * 5 + document) % 9];
            writer.add(&(0..4 + document * 3).map(sentence).collect::<Vec<_>>()).unwrap();
        }
        writer.finish().unwrap();
        TokenStore::new(vec![Shard::open(&path, [0; 32]).unwrap()])
    }

    fn rng(seed: u64) -> Philox {
        Purpose::Pairs.stream(seed, 0, 0)
    }

    /// The next pair begins after the second segment or, where that is of another document, after the first.
    #[test]
    fn no_sentence_is_lost() {
        let store = store(10);
        for seed in 0..50 {
            let document = store.document(9);
            let (mut start, mut rng) = (0, rng(seed));
            while start < document.sentences() {
                let (pair, next) = draw(&store, document, start, 20, &mut rng);
                assert_eq!(pair.first.tokens.start, document.span(start..next).tokens.start);
                let last = if pair.random_next { &pair.first } else { &pair.second };
                assert_eq!(
                    *last,
                    Span { document: 9, tokens: last.tokens.start..document.span(start..next).tokens.end }
                );
                assert_eq!(pair.random_next, pair.second.document != 9);
                start = next;
            }
        }
    }

    /// A chunk is as long as it must be for the target; a random second segment makes up for the first.
    #[test]
    fn targets_are_reached_with_the_fewest_sentences() {
        let store = store(10);
        let document = store.document(4);
        assert_eq!(document.reach(0, 0), 1);
        for tokens in 1..40 {
            let end = document.reach(2, tokens);
            let length = |end: usize| document.span(2..end).tokens.len();
            assert!(length(end) >= tokens as usize && (end == 3 || length(end - 1) < tokens as usize));
        }
        assert_eq!(document.reach(2, 10_000), document.sentences());
        for seed in 0..200 {
            let (pair, _) = draw(&store, document, 1, 20, &mut rng(seed));
            let other = store.document(pair.second.document);
            let reached = pair.first.tokens.len() + pair.second.tokens.len() >= 20;
            assert!(reached || pair.second.tokens.end == other.span(0..other.sentences()).tokens.end);
        }
    }

    #[test]
    fn pairs_are_as_long_as_they_may_be() {
        let store = store(10);
        let mut full = 0;
        for seed in 0..200 {
            let pair = pair_at(&store, 9, 3, LENGTH, &mut rng(seed));
            let length = pair.first.tokens.len() + pair.second.tokens.len();
            assert!(length <= 20 && !pair.first.tokens.is_empty() && !pair.second.tokens.is_empty());
            full += usize::from(length == 20);
        }
        assert!(full > 150, "{full}");
        let short = PairLength { short_probability: 1.0, ..LENGTH };
        let targets: Vec<u32> = (0..500).map(|seed| short.target(&mut rng(seed))).collect();
        assert_eq!((targets.iter().min(), targets.iter().max()), (Some(&2), Some(&20)));
        assert!((0..500).all(|seed| LENGTH.target(&mut rng(seed)) == 20));
    }

    #[test]
    fn the_longer_segment_is_cut_at_both_ends() {
        let pair = |first, second| Pair {
            first: Span { document: 0, tokens: first },
            second: Span { document: 1, tokens: second },
            random_next: true,
        };
        let mut long = pair(100..1100, 0..5);
        truncate(&mut long, 20, &mut rng(1));
        assert_eq!((long.first.tokens.len(), long.second.tokens.clone()), (15, 0..5));
        let middle = long.first.tokens.start;
        assert!((500..700).contains(&middle), "{middle}");
        let mut even = pair(0..50, 0..50);
        truncate(&mut even, 20, &mut rng(1));
        assert_eq!((even.first.tokens.len(), even.second.tokens.len()), (10, 10));
        let mut fits = pair(0..9, 0..11);
        truncate(&mut fits, 20, &mut rng(1));
        assert_eq!(fits, pair(0..9, 0..11));
    }
}
