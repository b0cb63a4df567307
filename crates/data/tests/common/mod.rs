//! What several tests need.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bessemer_data::text::{Specials, TextTokenizer, Vocabulary};

/// A tokenizer whose vocabulary is the special tokens and then these words.
pub(crate) fn tokenizer(words: &[&str]) -> TextTokenizer {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vocab.txt");
    fs::write(&path, [&Specials::NAMES[..], words].concat().join("\n")).unwrap();
    TextTokenizer::new(Arc::new(Vocabulary::open(&path).unwrap()))
}

/// A file or folder of the sample data beside the checkout, if it is there.
pub(crate) fn shared(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(name);
    let found = path.exists().then_some(path);
    if found.is_none() {
        eprintln!("skipped: there is no ../shared/data/{name} beside the checkout");
    }
    found
}
