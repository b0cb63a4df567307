//! Paragraphs and questions in tokens, and where in them answers lie.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use super::words::{words, words_of_answer};
use super::{Question, SquadSet, WindowOptions};
use crate::text::TextTokenizer;

/// A paragraph and its questions.
pub(super) struct ParagraphTokens {
    pub ids: Vec<u32>,
    /// The word of each token.
    pub words: Vec<u32>,
    pub questions: Vec<QuestionTokens>,
}

pub(super) struct QuestionTokens {
    pub ids: Vec<u32>,
    pub answer: AnswerSpan,
}

/// Where a question's answer lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AnswerSpan {
    /// In these tokens of the paragraph.
    Tokens(RangeInclusive<usize>),
    /// There is none, or none is wanted.
    Nowhere,
    /// There is one, and it cannot be found.
    Lost,
}

/// Tokens of words; words that recur are cut once.
struct WordTokenizer<'a> {
    tokenizer: &'a TextTokenizer,
    known: HashMap<&'a str, Vec<u32>>,
}

impl<'a> WordTokenizer<'a> {
    fn ids(&mut self, word: &'a str) -> &[u32] {
        self.known.entry(word).or_insert_with(|| self.tokenizer.ids(word))
    }
}

pub(super) fn tokenize(
    set: &SquadSet,
    paragraph: usize,
    tokenizer: &TextTokenizer,
    options: &WindowOptions,
) -> ParagraphTokens {
    let paragraph = &set.paragraphs()[paragraph];
    let context = paragraph.context.as_str();
    let bounds = words(context);
    let mut cutter = WordTokenizer { tokenizer, known: HashMap::new() };
    let (mut ids, mut word_of, mut first_of) = (Vec::new(), Vec::new(), Vec::with_capacity(bounds.len() + 1));
    for (number, word) in bounds.iter().enumerate() {
        first_of.push(ids.len());
        ids.extend(cutter.ids(&context[word.clone()]));
        word_of.resize(ids.len(), number as u32);
    }
    first_of.push(ids.len());

    let place = |question: &Question| match question.answers.first() {
        Some(answer) if options.labels => words_of_answer(context, &bounds, answer)
            .and_then(|touched| {
                let last = first_of[touched.end() + 1].checked_sub(1)?;
                narrowed(&ids, first_of[*touched.start()]..=last, &tokenizer.ids(&answer.text))
            })
            .map_or(AnswerSpan::Lost, AnswerSpan::Tokens),
        Some(_) | None => AnswerSpan::Nowhere,
    };
    let questions = set.questions()[paragraph.questions.clone()].iter().map(|question| {
        let mut ids = tokenizer.ids(&question.text);
        ids.truncate(options.max_query_length);
        QuestionTokens { ids, answer: place(question) }
    });
    let questions = questions.collect();
    ParagraphTokens { ids, words: word_of, questions }
}

/// The first run of tokens within a range that is the answer's, or else the range itself, unless it is empty.
fn narrowed(ids: &[u32], range: RangeInclusive<usize>, answer: &[u32]) -> Option<RangeInclusive<usize>> {
    let within = ids.get(range.clone()).filter(|within| !within.is_empty())?;
    let found = (!answer.is_empty()).then(|| within.windows(answer.len()).position(|run| run == answer)).flatten();
    Some(found.map_or(range.clone(), |offset| {
        let start = range.start() + offset;
        start..=start + answer.len() - 1
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_narrowed_to_the_answer() {
        let ids = [4, 5, 6, 5, 6, 7];
        assert_eq!(narrowed(&ids, 0..=5, &[5, 6]), Some(1..=2));
        assert_eq!(narrowed(&ids, 2..=5, &[5, 6]), Some(3..=4));
        assert_eq!(narrowed(&ids, 2..=3, &[5, 6]), Some(2..=3), "the answer does not lie within");
        assert_eq!(narrowed(&ids, 2..=3, &[]), Some(2..=3));
        assert_eq!(narrowed(&ids, 5..=5, &[7]), Some(5..=5));
        assert_eq!((narrowed(&ids, RangeInclusive::new(4, 3), &[5]), narrowed(&ids, 5..=6, &[7])), (None, None));
    }
}
