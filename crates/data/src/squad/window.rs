use std::ops::Range;

use super::Features;
use super::features::WindowSpan;

/// A question and as much of its paragraph as fits beside it: `[CLS] question [SEP] context [SEP]`, without padding.
///
/// Long paragraphs have several windows, which overlap. Positions count the window's tokens from 0, which is `[CLS]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Number among all windows.
    pub index: usize,
    /// Number of the question in its set.
    pub question: usize,
    /// Token ids, `[CLS] question [SEP] part of the text [SEP]`, without padding.
    pub input_ids: Vec<u32>,
    /// Positions of the tokens of context.
    pub context: Range<usize>,
    /// Number of the first of these in the paragraph.
    pub first_token: usize,
    /// Word of the paragraph, of each token of context.
    pub words: Vec<u32>,
    /// Of each token of context: whether no other window shows more around it. One window has a token at its best.
    pub max_context: Vec<bool>,
    /// 1 where no answer can be: question and `[SEP]`; 0 for context and `[CLS]`.
    pub p_mask: Vec<u8>,
    /// Position of the answer's first token, or 0 where the window does not have it or it was not asked for.
    pub start_position: usize,
    /// Position of the answer's last token, or 0.
    pub end_position: usize,
    /// Whether the question has no answer, or, with labels, none in this window.
    pub is_impossible: bool,
}

impl Window {
    pub(super) fn new(features: &Features, index: usize) -> Self {
        let content = &features.content;
        let WindowSpan { question, start, tokens, answer, is_impossible } = content.spots[index];
        let (question, start) = (question as usize, start as usize);
        let paragraph = content.paragraphs[question] as usize;
        let query = content.queries.row(question);
        let shown = start..start + tokens as usize;
        let context = query.len() + 2..query.len() + 2 + shown.len();

        let specials = features.specials;
        let mut input_ids = Vec::with_capacity(context.end + 1);
        input_ids.push(specials.cls);
        input_ids.extend(query);
        input_ids.push(specials.sep);
        input_ids.extend(&content.contexts.row(paragraph)[shown.clone()]);
        input_ids.push(specials.sep);
        let may_answer = |position: usize| context.contains(&position) && input_ids[position] != specials.sep;
        let p_mask = (0..input_ids.len()).map(|position| u8::from(position > 0 && !may_answer(position))).collect();

        let windows = Overlap {
            stride: features.options.doc_stride,
            capacity: features.capacity(question),
            tokens: content.contexts.row(paragraph).len(),
        };
        let at = content.contexts.start(paragraph);
        Self {
            index,
            question,
            input_ids,
            context,
            first_token: start,
            words: content.words[at + shown.start..at + shown.end].to_vec(),
            max_context: shown.map(|token| windows.best(token) * windows.stride == start).collect(),
            p_mask,
            start_position: answer[0] as usize,
            end_position: answer[1] as usize,
            is_impossible,
        }
    }

    /// The official number: 10^9 and upwards.
    pub fn unique_id(&self) -> u64 {
        1_000_000_000 + self.index as u64
    }

    /// Word of the paragraph at a position, if that is a token of context.
    pub fn word(&self, position: usize) -> Option<usize> {
        let offset = position.checked_sub(self.context.start)?;
        self.words.get(offset).map(|&word| word as usize)
    }

    /// Whether a position is a token of context that no other window shows more around.
    pub fn is_max_context(&self, position: usize) -> bool {
        let offset = position.checked_sub(self.context.start);
        offset.is_some_and(|offset| self.max_context.get(offset).copied().unwrap_or(false))
    }

    /// 1 for context and the `[SEP]` behind it, else 0, for each token.
    pub fn segment_ids(&self) -> impl Iterator<Item = u8> {
        (0..self.input_ids.len()).map(|position| u8::from(position >= self.context.start))
    }
}

/// How the windows of one question lie over a paragraph of `tokens` tokens.
struct Overlap {
    stride: usize,
    capacity: usize,
    tokens: usize,
}

impl Overlap {
    /// The window that shows a token at its best: the first with the highest `min(left, right) + 0.01 length`, where left
    /// and right count the tokens of context on either side and length those of the window.
    fn best(&self, token: usize) -> usize {
        let last = self.tokens.saturating_sub(self.capacity).div_ceil(self.stride);
        let first = (token + 1).saturating_sub(self.capacity).div_ceil(self.stride);
        let mut best = (first, f64::NEG_INFINITY);
        for window in first..=last.min(token / self.stride) {
            let start = window * self.stride;
            let length = self.capacity.min(self.tokens - start);
            let score = (token - start).min(start + length - 1 - token) as f64 + 0.01 * length as f64;
            if score > best.1 {
                best = (window, score);
            }
        }
        best.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_with_most_around_a_token_is_best() {
        // Windows of 0..4, 2..6 and 4..7.
        let overlap = Overlap { stride: 2, capacity: 4, tokens: 7 };
        let best: Vec<usize> = (0..7).map(|token| overlap.best(token)).collect();
        assert_eq!(best, [0, 0, 0, 1, 1, 2, 2]);
        let one = Overlap { stride: 2, capacity: 4, tokens: 4 };
        assert_eq!((0..4).map(|token| one.best(token)).collect::<Vec<_>>(), [0; 4]);
        let apart = Overlap { stride: 3, capacity: 3, tokens: 7 };
        assert_eq!((0..7).map(|token| apart.best(token)).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1, 2]);
    }
}
