use std::path::Path;

use sha2::{Digest, Sha256};

use super::SquadSet;
use super::cache::{self, Origin};
use super::tokens::{AnswerSpan, ParagraphTokens, tokenize};
use super::window::Window;
use crate::text::{Specials, TextTokenizer};
use crate::{DataError, parallel};

/// Changes whenever the same text gives other features.
const VERSION: u32 = 2;
/// `[CLS]`, `[SEP]` and `[SEP]`.
pub(super) const ADDED_TOKENS: usize = 3;

/// How questions are cut into windows, all in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowOptions {
    /// Length of a window with the question and all around it.
    pub max_seq_length: usize,
    /// How far one window's context begins behind that of the one before.
    pub doc_stride: usize,
    /// What is kept of a question.
    pub max_query_length: usize,
    /// Whether windows contain the position of the answer, as in training. Questions with an answer that cannot be found in the
    /// paragraph have no windows then.
    pub labels: bool,
}

impl Default for WindowOptions {
    fn default() -> Self {
        Self { max_seq_length: 384, doc_stride: 128, max_query_length: 64, labels: false }
    }
}

impl WindowOptions {
    /// Errors: windows that would leave out tokens of the context, or never move on.
    fn check(&self) -> Result<(), DataError> {
        let room = self.max_seq_length.saturating_sub(self.max_query_length + ADDED_TOKENS);
        if room == 0 {
            let expected = format!("at least {} for a query of {}", self.max_query_length + 4, self.max_query_length);
            return Err(DataError::option("max_seq_length", self.max_seq_length, expected));
        }
        if !(1..=room).contains(&self.doc_stride) {
            let expected = format!("1 to {room}, the tokens of context in a window beside the longest question");
            return Err(DataError::option("doc_stride", self.doc_stride, expected));
        }
        Ok(())
    }
}

/// The windows of all questions of a set.
///
/// Tokens of paragraphs and questions are kept once, and a [`Window`] is put together when it is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Features {
    pub(super) options: WindowOptions,
    pub(super) specials: Specials,
    pub(super) content: Content,
}

/// What a cache file holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Content {
    /// Tokens of each paragraph.
    pub contexts: Rows,
    /// The word of each of these tokens.
    pub words: Vec<u32>,
    /// Tokens of each question.
    pub queries: Rows,
    /// The paragraph of each question.
    pub paragraphs: Vec<u32>,
    pub spots: Vec<WindowSpan>,
    /// Questions without windows.
    pub left_out: Vec<u32>,
}

/// Where a window lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WindowSpan {
    pub question: u32,
    /// First token of the paragraph in it, and how many there are.
    pub start: u32,
    pub tokens: u32,
    /// Positions of the answer's first and last token in the window, 0 where it has none.
    pub answer: [u32; 2],
    pub is_impossible: bool,
}

/// Lists of numbers, one behind the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Rows {
    pub values: Vec<u32>,
    pub ends: Vec<u32>,
}

impl Rows {
    fn push(&mut self, row: &[u32]) {
        self.values.extend(row);
        self.ends.push(self.values.len() as u32);
    }

    pub(super) fn row(&self, index: usize) -> &[u32] {
        &self.values[self.start(index)..self.ends[index] as usize]
    }

    pub(super) fn start(&self, index: usize) -> usize {
        if index == 0 { 0 } else { self.ends[index - 1] as usize }
    }
}

impl Features {
    /// Cuts paragraphs and questions into tokens and windows, on up to `threads` threads.
    ///
    /// Errors: lengths that do not go together.
    pub fn build(
        set: &SquadSet,
        tokenizer: &TextTokenizer,
        options: WindowOptions,
        threads: usize,
    ) -> Result<Self, DataError> {
        options.check()?;
        let cut = |(): &mut (), paragraph| tokenize(set, paragraph, tokenizer, &options);
        let paragraphs = parallel::map_with(set.paragraphs().len(), threads, || (), cut);
        let mut content = Content::default();
        for (number, (paragraph, tokens)) in set.paragraphs().iter().zip(&paragraphs).enumerate() {
            content.contexts.push(&tokens.ids);
            content.words.extend(&tokens.words);
            for (index, question) in paragraph.questions.clone().enumerate() {
                content.queries.push(&tokens.questions[index].ids);
                content.paragraphs.push(number as u32);
                match &tokens.questions[index].answer {
                    AnswerSpan::Lost => content.left_out.push(question as u32),
                    place => {
                        let impossible = set.questions()[question].is_impossible;
                        content.spots.extend(spots(question, tokens, index, place, impossible, &options));
                    }
                }
            }
        }
        Ok(Self { options, specials: tokenizer.vocabulary().specials(), content })
    }

    /// As [`Features::build`], read from a file in `folder` if one was written before for the same questions, vocabulary
    /// and lengths, and else written there. A damaged file is replaced.
    ///
    /// Errors: lengths that do not go together; a folder or file that cannot be written.
    pub fn cached(
        folder: &Path,
        set: &SquadSet,
        tokenizer: &TextTokenizer,
        options: WindowOptions,
        threads: usize,
    ) -> Result<(Self, Origin), DataError> {
        options.check()?;
        let key = key(set, tokenizer, &options);
        let path = cache::path(folder, &key);
        let origin = match cache::read(&path, &key, tokenizer.vocabulary().len()) {
            Ok(Some(content)) => {
                let specials = tokenizer.vocabulary().specials();
                return Ok((Self { options, specials, content }, Origin::Read(path)));
            }
            Ok(None) => Origin::Built(path.clone()),
            Err(damage) => Origin::Rebuilt(path.clone(), damage),
        };
        let features = Self::build(set, tokenizer, options, threads)?;
        cache::write(&path, &key, &features.content)?;
        Ok((features, origin))
    }

    /// Number of windows.
    pub fn len(&self) -> usize {
        self.content.spots.len()
    }

    /// Whether there are no windows, as no answer could be found.
    pub fn is_empty(&self) -> bool {
        self.content.spots.is_empty()
    }

    /// How texts are cut into windows.
    pub fn options(&self) -> &WindowOptions {
        &self.options
    }

    /// Questions that have no windows, as their answer cannot be found in the paragraph's words.
    pub fn left_out(&self) -> &[u32] {
        &self.content.left_out
    }

    /// The question of a window.
    pub fn question(&self, window: usize) -> usize {
        self.content.spots[window].question as usize
    }

    /// A window.
    ///
    /// # Panics
    /// If there are not as many.
    pub fn window(&self, index: usize) -> Window {
        Window::new(self, index)
    }

    /// All windows in the order of the questions.
    pub fn windows(&self) -> impl Iterator<Item = Window> {
        (0..self.len()).map(|index| self.window(index))
    }

    /// Tokens of the longest window; 0 if there are none.
    pub fn longest(&self) -> usize {
        let length = |spot: &WindowSpan| self.content.queries.row(spot.question as usize).len() + spot.tokens as usize;
        self.content.spots.iter().map(|spot| length(spot) + ADDED_TOKENS).max().unwrap_or(0)
    }

    /// Keeps the windows, and pads them to `length` tokens and no more.
    ///
    /// # Panics
    /// If one of them is longer, or several are needed for one question.
    pub fn pad_to(&mut self, length: usize) {
        assert!(self.longest() <= length, "windows of {} tokens do not fit into {length}", self.longest());
        let is_alone = |pair: &[WindowSpan]| pair[0].question != pair[1].question;
        let one_each = self.content.spots.windows(2).all(is_alone);
        assert!(one_each || length == self.options.max_seq_length, "windows that overlap keep their length");
        self.options.max_seq_length = length;
    }

    /// Tokens of context that fit beside a question.
    pub(super) fn capacity(&self, question: usize) -> usize {
        self.options.max_seq_length - ADDED_TOKENS - self.content.queries.row(question).len()
    }
}

/// The windows of a question; one without context where the paragraph is empty.
fn spots(
    question: usize,
    tokens: &ParagraphTokens,
    index: usize,
    place: &AnswerSpan,
    is_impossible: bool,
    options: &WindowOptions,
) -> Vec<WindowSpan> {
    let query = tokens.questions[index].ids.len();
    let (capacity, all) = (options.max_seq_length - ADDED_TOKENS - query, tokens.ids.len());
    let starts = (0..)
        .step_by(options.doc_stride)
        .take_while(|start| *start == 0 || start - options.doc_stride + capacity < all);
    let spot = |start: usize| {
        let end = all.min(start + capacity);
        let label = match place {
            AnswerSpan::Tokens(answer) if start <= *answer.start() && *answer.end() < end => {
                let position = |token: usize| (token - start + query + 2) as u32;
                Some([position(*answer.start()), position(*answer.end())])
            }
            AnswerSpan::Tokens(_) | AnswerSpan::Nowhere | AnswerSpan::Lost => None,
        };
        WindowSpan {
            question: question as u32,
            start: start as u32,
            tokens: (end - start) as u32,
            answer: label.unwrap_or_default(),
            is_impossible: is_impossible || (options.labels && label.is_none()),
        }
    };
    starts.map(spot).collect()
}

/// SHA-256 of all that features depend on.
fn key(set: &SquadSet, tokenizer: &TextTokenizer, options: &WindowOptions) -> [u8; 32] {
    let WindowOptions { max_seq_length, doc_stride, max_query_length, labels } = *options;
    let mut hasher = Sha256::new();
    hasher.update(VERSION.to_le_bytes());
    hasher.update(set.hash());
    hasher.update(tokenizer.vocabulary().hash());
    for number in [max_seq_length, doc_stride, max_query_length, usize::from(labels)] {
        hasher.update((number as u64).to_le_bytes());
    }
    hasher.finalize().into()
}
