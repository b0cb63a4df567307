//! Small sets of questions.

use std::fs;

use bessemer_data::DataError;
use bessemer_data::squad::{Features, SquadSet, WindowOptions};
use bessemer_data::text::TextTokenizer;
use serde_json::{Value, json};

use crate::common::tokenizer;

/// Reads a text as a file of questions, `squad.json`.
pub(crate) fn read(text: &[u8]) -> Result<SquadSet, DataError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("squad.json");
    fs::write(&path, text).unwrap();
    SquadSet::open(&path)
}

/// One article of paragraphs.
pub(crate) fn set(paragraphs: Value) -> SquadSet {
    read(json!({"data": [{"title": "Cats", "paragraphs": paragraphs}]}).to_string().as_bytes()).unwrap()
}

/// One paragraph with questions `(text, answer, start)`, which are numbered from 0.
pub(crate) fn paragraph(context: &str, questions: &[(&str, &str, usize)]) -> SquadSet {
    let question = |(number, (text, answer, start)): (usize, &(&str, &str, usize))| json!({"id": number.to_string(), "question": text, "answers": [{"text": answer, "answer_start": start}]});
    let questions: Vec<Value> = questions.iter().enumerate().map(question).collect();
    set(json!([{"context": context, "qas": questions}]))
}

/// Knows the letters, some words and marks.
pub(crate) fn words() -> TextTokenizer {
    let letters: Vec<String> = ('a'..='z').map(String::from).collect();
    let mut vocabulary: Vec<&str> = letters.iter().map(String::as_str).collect();
    vocabulary.extend(["the", "cat", "##s", "sat", "(", ")", "?", ",", "who", "1066"]);
    tokenizer(&vocabulary)
}

pub(crate) fn build(set: &SquadSet, options: WindowOptions) -> Features {
    Features::build(set, &words(), options, 2).unwrap()
}

/// Windows of 16 tokens with up to 4 of the question, 5 apart.
pub(crate) fn small(labels: bool) -> WindowOptions {
    WindowOptions { max_seq_length: 16, doc_stride: 5, max_query_length: 4, labels }
}
