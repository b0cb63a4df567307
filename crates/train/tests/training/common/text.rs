//! A little text to pre-train on.

use bessemer_data::Split;
use bessemer_data::text::{Documents, Format, InstanceOptions, Preparation, prepare};
use bessemer_train::events::{EventBody, read_events};
use std::fs;
use std::path::{Path, PathBuf};

const WORDS: [&str; 12] =
    ["the", "a", "small", "old", "river", "stone", "bird", "house", "runs", "sleeps", "near", "under"];

/// Prepared text of sixty short documents, with a vocabulary of its words.
pub(crate) fn text(folder: &Path) -> PathBuf {
    text_with(folder, WORDS)
}

/// The same text with the words of the vocabulary the other way round.
pub(crate) fn reversed_text(folder: &Path) -> PathBuf {
    let mut words = WORDS;
    words.reverse();
    text_with(folder, words)
}

fn text_with(folder: &Path, words: [&str; 12]) -> PathBuf {
    let specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."];
    let vocabulary = folder.join("vocab.txt");
    fs::write(&vocabulary, specials.iter().chain(&words).map(|word| format!("{word}\n")).collect::<String>()).unwrap();
    let word = |number: usize| WORDS[number * number * 7 % 31 % WORDS.len()];
    let sentence = |number: usize| (0..5).map(|place| word(number + place)).collect::<Vec<_>>().join(" ") + " .\n";
    let document = |number: usize| (0..6).map(|line| sentence(6 * number + line)).collect::<String>() + "\n";
    let input = folder.join("text.txt");
    fs::write(&input, (0..60).map(document).collect::<String>()).unwrap();
    let out = folder.join("prepared");
    let preparation = Preparation {
        inputs: vec![input],
        documents: Documents::BlankLines,
        vocabulary,
        out: out.clone(),
        format: Format::Shards,
        instances: InstanceOptions { sequence_length: 16, max_predictions: 3, ..InstanceOptions::default() },
        dupe_factor: 1,
        parts: Some(1),
        heldout: 0.2,
        seed: 1,
        threads: 1,
    };
    let splits = prepare(&preparation, &|_| {}, &|| false).unwrap();
    assert!(splits.iter().any(|(split, _)| *split == Split::Val));
    out
}

/// Of each step of a run.
pub(crate) fn losses(run: &Path) -> Vec<f64> {
    let events = read_events(&run.join("events.jsonl")).unwrap();
    let loss = |body: EventBody| if let EventBody::Step(info) = body { Some(info.loss) } else { None };
    events.into_iter().filter_map(|event| loss(event.body)).collect()
}
