//! What several tests need.

use std::fs;
use std::sync::Arc;

mod shared;

use bessemer_data::text::{Specials, TextTokenizer, Vocabulary};

pub(crate) use shared::shared;

/// A tokenizer whose vocabulary is the special tokens and then these words.
pub(crate) fn tokenizer(words: &[&str]) -> TextTokenizer {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vocab.txt");
    fs::write(&path, [&Specials::NAMES[..], words].concat().join("\n")).unwrap();
    TextTokenizer::new(Arc::new(Vocabulary::open(&path).unwrap()))
}
