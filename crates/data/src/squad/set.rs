use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::parse;
use crate::DataError;

/// Paragraphs and the questions about them, in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SquadSet {
    pub(super) version: Version,
    pub(super) paragraphs: Vec<Paragraph>,
    pub(super) questions: Vec<Question>,
    pub(super) misplaced: Vec<Misplaced>,
    pub(super) hash: [u8; 32],
}

/// Whether questions may have no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// SQuAD 1.1: every question has an answer.
    V1,
    /// SQuAD 2.0: some do not.
    V2,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1 => "1.1",
            Self::V2 => "2.0",
        })
    }
}

/// A text and the questions about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paragraph {
    /// Title of the article.
    pub title: String,
    /// The text that is asked about.
    pub context: String,
    /// Numbers of its questions.
    pub questions: Range<usize>,
}

/// A question and its right answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The id that predictions name it by.
    pub id: String,
    /// What is asked.
    pub text: String,
    /// Number of its paragraph.
    pub paragraph: usize,
    /// None where there is none, and where they are not known.
    pub answers: Vec<Answer>,
    /// Whether the paragraph does not answer it.
    pub is_impossible: bool,
}

/// A right answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The answer.
    pub text: String,
    /// Where it begins in the context, in characters.
    pub start: usize,
}

/// An answer that is not where the file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misplaced {
    /// Such as `data[0].paragraphs[2].qas[1].answers[0]`.
    pub place: String,
    /// The answer as the file gives it.
    pub text: String,
    /// Where it starts in the paragraph, in characters from 0.
    pub start: usize,
}

impl SquadSet {
    /// Reads a file of SQuAD 1.1 or 2.0; it is of version 2.0 if any question has the field `is_impossible`.
    ///
    /// An answer that is not at its offset is listed in [`SquadSet::misplaced`] and kept: scores do not depend on it.
    ///
    /// Errors, with the path within the file: a file that cannot be read or is not JSON; a field that is missing or of
    /// another type; a repeated id; answers of a question that is impossible, or none of one that is not; no questions.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let bytes = fs::read(path).map_err(DataError::io(path, "read the file"))?;
        parse::parse(path, &bytes)
    }

    /// Questions about one text whose answers are not known; their ids are their numbers.
    pub fn ask(context: &str, questions: &[&str]) -> Self {
        let mut hasher = Sha256::new();
        for text in [context].iter().chain(questions) {
            hasher.update((text.len() as u64).to_le_bytes());
            hasher.update(text);
        }
        let question = |(number, text): (usize, &&str)| Question {
            id: number.to_string(),
            text: (*text).to_owned(),
            paragraph: 0,
            answers: Vec::new(),
            is_impossible: false,
        };
        let paragraph = Paragraph { title: String::new(), context: context.to_owned(), questions: 0..questions.len() };
        Self {
            version: Version::V1,
            paragraphs: vec![paragraph],
            questions: questions.iter().enumerate().map(question).collect(),
            misplaced: Vec::new(),
            hash: hasher.finalize().into(),
        }
    }

    /// Whether questions may be without an answer.
    pub fn version(&self) -> Version {
        self.version
    }

    /// All paragraphs, in the order of the file.
    pub fn paragraphs(&self) -> &[Paragraph] {
        &self.paragraphs
    }

    /// All questions; those of a paragraph are neighbours.
    pub fn questions(&self) -> &[Question] {
        &self.questions
    }

    /// The text that a question is about.
    pub fn context(&self, question: &Question) -> &str {
        &self.paragraphs[question.paragraph].context
    }

    /// Answers that are not where the file says.
    pub fn misplaced(&self) -> &[Misplaced] {
        &self.misplaced
    }

    /// SHA-256 of the file.
    pub fn hash(&self) -> [u8; 32] {
        self.hash
    }
}
