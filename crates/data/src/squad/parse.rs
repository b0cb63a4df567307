//! From the official JSON to a [`SquadSet`].

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::{Answer, Misplaced, Paragraph, Question, SquadSet, Version};
use crate::{DataError, json};

const LAYOUT: &str = "SQuAD's data[].paragraphs[] {context, qas[] {id, question, answers[] {text, answer_start}}}, and \
                      is_impossible with each question in version 2.0";

#[derive(Deserialize)]
struct RawSet {
    data: Option<Vec<RawArticle>>,
}

#[derive(Deserialize)]
struct RawArticle {
    #[serde(default)]
    title: String,
    paragraphs: Option<Vec<RawParagraph>>,
}

#[derive(Deserialize)]
struct RawParagraph {
    context: Option<String>,
    qas: Option<Vec<RawQuestion>>,
}

#[derive(Deserialize)]
struct RawQuestion {
    id: Option<String>,
    question: Option<String>,
    answers: Option<Vec<RawAnswer>>,
    is_impossible: Option<bool>,
}

#[derive(Deserialize)]
struct RawAnswer {
    text: Option<String>,
    answer_start: Option<usize>,
}

pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<SquadSet, DataError> {
    let raw: RawSet = json::parse(path, bytes, LAYOUT)?;
    let mut reader = Reader { path, version: Version::V1, places: HashMap::new(), set: empty(bytes) };
    let articles = reader.field("data", raw.data)?;
    reader.version = version(&articles);
    reader.set.version = reader.version;
    for (number, article) in articles.into_iter().enumerate() {
        reader.article(&format!("data[{number}]"), article)?;
    }
    if reader.set.questions.is_empty() {
        return Err(DataError::layout(path, "there is no question in it", LAYOUT));
    }
    Ok(reader.set)
}

fn empty(bytes: &[u8]) -> SquadSet {
    SquadSet {
        version: Version::V1,
        paragraphs: Vec::new(),
        questions: Vec::new(),
        misplaced: Vec::new(),
        hash: Sha256::digest(bytes).into(),
    }
}

fn version(articles: &[RawArticle]) -> Version {
    let paragraphs = articles.iter().flat_map(|article| article.paragraphs.iter().flatten());
    let mut questions = paragraphs.flat_map(|paragraph| paragraph.qas.iter().flatten());
    if questions.any(|question| question.is_impossible.is_some()) { Version::V2 } else { Version::V1 }
}

struct Reader<'a> {
    path: &'a Path,
    version: Version,
    /// Where each id was met.
    places: HashMap<String, String>,
    set: SquadSet,
}

impl Reader<'_> {
    fn error(&self, problem: String) -> DataError {
        DataError::layout(self.path, problem, LAYOUT)
    }

    fn field<T>(&self, place: &str, field: Option<T>) -> Result<T, DataError> {
        field.ok_or_else(|| self.error(format!("{place} is missing")))
    }

    fn article(&mut self, place: &str, article: RawArticle) -> Result<(), DataError> {
        let paragraphs = self.field(&format!("{place}.paragraphs"), article.paragraphs)?;
        for (number, paragraph) in paragraphs.into_iter().enumerate() {
            self.paragraph(&format!("{place}.paragraphs[{number}]"), &article.title, paragraph)?;
        }
        Ok(())
    }

    fn paragraph(&mut self, place: &str, title: &str, raw: RawParagraph) -> Result<(), DataError> {
        let context = self.field(&format!("{place}.context"), raw.context)?;
        let first = self.set.questions.len();
        for (number, question) in self.field(&format!("{place}.qas"), raw.qas)?.into_iter().enumerate() {
            let question = self.question(&format!("{place}.qas[{number}]"), &context, question)?;
            self.set.questions.push(question);
        }
        let questions = first..self.set.questions.len();
        self.set.paragraphs.push(Paragraph { title: title.to_owned(), context, questions });
        Ok(())
    }

    fn question(&mut self, place: &str, context: &str, raw: RawQuestion) -> Result<Question, DataError> {
        let id = self.field(&format!("{place}.id"), raw.id)?;
        let text = self.field(&format!("{place}.question"), raw.question)?;
        let raw_answers = self.field(&format!("{place}.answers"), raw.answers)?;
        let mut answers = Vec::with_capacity(raw_answers.len());
        for (number, answer) in raw_answers.into_iter().enumerate() {
            answers.push(self.answer(format!("{place}.answers[{number}]"), context, answer)?);
        }
        let is_impossible = raw.is_impossible.unwrap_or(false);
        match (is_impossible, answers.is_empty(), self.version) {
            (true, false, _) => return Err(self.error(format!("{place} is impossible and has answers, id `{id}`"))),
            (false, true, Version::V1) => return Err(self.error(format!("{place}.answers is empty, id `{id}`"))),
            (false, true, Version::V2) => {
                return Err(self.error(format!("{place}.answers is empty and is_impossible is not true, id `{id}`")));
            }
            (true, true, _) | (false, false, _) => {}
        }
        if let Some(first) = self.places.insert(id.clone(), place.to_owned()) {
            return Err(self.error(format!("{place}.id is `{id}`, as {first}.id is")));
        }
        Ok(Question { id, text, paragraph: self.set.paragraphs.len(), answers, is_impossible })
    }

    fn answer(&mut self, place: String, context: &str, raw: RawAnswer) -> Result<Answer, DataError> {
        let text = self.field(&format!("{place}.text"), raw.text)?;
        let start = self.field(&format!("{place}.answer_start"), raw.answer_start)?;
        if !is_at(context, &text, start) {
            self.set.misplaced.push(Misplaced { place, text: text.clone(), start });
        }
        Ok(Answer { text, start })
    }
}

/// Whether a text begins at that character of the context.
fn is_at(context: &str, text: &str, start: usize) -> bool {
    let mut bytes = context.char_indices().map(|(byte, _)| byte).chain([context.len()]);
    bytes.nth(start).is_some_and(|byte| context[byte..].starts_with(text))
}
