//! Two segments of one document (`build_pretraining_dataset.py` of Google's ELECTRA, `ExampleBuilder`).

use std::ops::Range;

use crate::Philox;
use crate::text::store::{Document, Span, TokenStore};

/// Tokens of a sequence that are special: `[CLS]`, and `[SEP]` after each segment.
const SPECIAL_TOKENS: u32 = 3;
/// Shortest target, in tokens of a sequence.
const SHORTEST_TARGET: u32 = 5;

/// How long sequences are to be, and what they consist of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SegmentLength {
    /// Most tokens of a sequence, special ones included.
    pub most: u32,
    /// Share of sequences that aim at a random length of 5 to `most`.
    pub short_probability: f64,
    /// Share of sequences that are to have one segment; those that consist of one sentence have one as well.
    pub single_probability: f64,
}

/// A run of a document's sentences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    pub document: u32,
    pub sentences: Range<usize>,
    /// Tokens that it was to have.
    pub target: u32,
}

/// The tokens of a sequence. A segment has more than one span where a sentence between was too long for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Segments {
    pub first: Vec<Span>,
    /// Without tokens where the sequence has one segment.
    pub second: Vec<Span>,
}

impl SegmentLength {
    fn target(&self, rng: &mut Philox) -> u32 {
        match rng.chance(self.short_probability) {
            true => SHORTEST_TARGET + rng.below(self.most - SHORTEST_TARGET + 1),
            false => self.most,
        }
    }

    /// The run that begins at a sentence: as few sentences as have the tokens of a random target, or else all that are
    /// left.
    pub(super) fn run_at(&self, store: &TokenStore, document: u32, sentence: usize, rng: &mut Philox) -> Run {
        let target = self.target(rng);
        Run { document, sentences: sentence..store.document(document).reach(sentence, target), target }
    }

    /// Cuts a whole document into runs.
    pub(super) fn cut_document(
        &self,
        store: &TokenStore,
        document: u32,
        rng: &mut Philox,
        mut each: impl FnMut(usize, Run),
    ) {
        let sentences = store.document(document).sentences();
        let mut start = 0;
        while start < sentences {
            let run = self.run_at(store, document, start, rng);
            let end = run.sentences.end;
            each(start, run);
            start = end;
        }
    }

    /// The segments of a run. What is too long loses its end.
    pub(super) fn segments(&self, store: &TokenStore, run: &Run, rng: &mut Philox) -> Segments {
        let half = match rng.chance(self.single_probability) {
            true => u32::MAX,
            false => (run.target - SPECIAL_TOKENS) / 2,
        };
        let mut segments = split(store.document(run.document), run.sentences.clone(), half, rng);
        trim(&mut segments.first, self.most - 2);
        trim(&mut segments.second, self.most.saturating_sub(tokens(&segments.first) + SPECIAL_TOKENS));
        segments
    }
}

/// A sentence joins the first segment if that is empty or stays below `half` tokens with it; one that would take it there
/// or beyond joins in half of the cases, unless the second segment has begun. All others join the second segment.
fn split(document: Document<'_>, sentences: Range<usize>, half: u32, rng: &mut Philox) -> Segments {
    let mut segments = Segments::default();
    for sentence in sentences {
        let span = document.span(sentence..sentence + 1);
        let length = tokens(&segments.first);
        let with_it = length + span.tokens.len() as u32;
        let joins_first =
            length == 0 || with_it < half || (segments.second.is_empty() && length < half && rng.chance(0.5));
        append(if joins_first { &mut segments.first } else { &mut segments.second }, span);
    }
    segments
}

fn append(spans: &mut Vec<Span>, span: Span) {
    match spans.last_mut() {
        Some(last) if last.tokens.end == span.tokens.start => last.tokens.end = span.tokens.end,
        _ => spans.push(span),
    }
}

pub(crate) fn tokens(spans: &[Span]) -> u32 {
    spans.iter().map(|span| span.tokens.len() as u32).sum()
}

/// Keeps the first `most` tokens.
fn trim(spans: &mut Vec<Span>, mut most: u32) {
    for span in spans.iter_mut() {
        span.tokens.end = span.tokens.end.min(span.tokens.start + most);
        most -= span.tokens.len() as u32;
    }
    spans.retain(|span| !span.tokens.is_empty());
}

#[cfg(test)]
mod tests;
