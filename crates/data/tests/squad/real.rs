//! The sample data beside the checkout, with BERT's vocabulary.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bessemer_data::squad::{AnswerOptions, Answers, Features, Predictions, SquadSet, Version, Window, WindowOptions};
use bessemer_data::text::{TextTokenizer, Vocabulary};
use bessemer_metrics::squad::exact_match;
use sha2::{Digest, Sha256};

use crate::common::shared;

struct Real {
    set: SquadSet,
    tokenizer: TextTokenizer,
    features: Features,
}

fn open(name: &str, labels: bool) -> Option<Real> {
    let (path, vocabulary) = (shared(&format!("squad/{name}.json"))?, shared("vocab/vocab.txt")?);
    let set = SquadSet::open(&path).unwrap();
    let tokenizer = TextTokenizer::new(Arc::new(Vocabulary::open(&vocabulary).unwrap()));
    let features = Features::build(&set, &tokenizer, WindowOptions { labels, ..WindowOptions::default() }, 2).unwrap();
    Some(Real { set, tokenizer, features })
}

fn numbers(window: &Window) -> Vec<u8> {
    let Window { question, input_ids, context, words, max_context, p_mask, .. } = window;
    let head = [*question as u32, input_ids.len() as u32];
    let tail = [window.start_position as u32, window.end_position as u32, window.is_impossible.into()];
    let numbers = head.iter().chain(input_ids).copied().chain([context.start as u32, context.end as u32]);
    let numbers = numbers.chain(words.iter().copied()).chain(max_context.iter().map(|&best| best.into()));
    numbers.chain(p_mask.iter().map(|&masked| masked.into())).chain(tail).flat_map(u32::to_le_bytes).collect()
}

/// Hashes of all fields of all windows, as ELECTRA's reference makes them with Hugging Face's tokenizer.
#[test]
fn windows_are_those_of_the_reference() {
    for (name, labels, version, questions, windows, hash) in [
        (
            "dev-v1.1",
            false,
            Version::V1,
            10_570,
            10_833,
            "d8c77c20a970f652cc054fd185912cec421b2b0b515813dab44d403f4727946d",
        ),
        (
            "dev-v2.0",
            false,
            Version::V2,
            11_873,
            12_232,
            "ec4b5d4cb6ae8960d656fb4a72b6e044cd32c8abe28304c5e73afc1964e95a95",
        ),
        (
            "train-v1.1-subset",
            true,
            Version::V1,
            7_958,
            8_050,
            "41036bde6ad9c88ad5ac35baad9b0d3f550e53cb60ecf77eb94eaa6e920017b9",
        ),
        (
            "train-v2.0-derived",
            true,
            Version::V2,
            6_946,
            7_078,
            "3ed74a4b1a63e9570c4189c1ad9b82a1d7b720225f47f1195bf82c0045043b01",
        ),
    ] {
        let Some(Real { set, features, .. }) = open(name, labels) else { return };
        assert_eq!((set.version(), set.questions().len(), set.misplaced()), (version, questions, &[][..]), "{name}");
        let mut hasher = Sha256::new();
        features.windows().for_each(|window| hasher.update(numbers(&window)));
        let found = bessemer_data::hex(&hasher.finalize());
        assert_eq!((features.len(), found.as_str()), (windows, hash), "{name}");
    }
}

/// What becomes of the gold answers of a training set.
#[derive(Debug, PartialEq)]
struct RoundTrip {
    answers: usize,
    /// Answers whose tokens are not those of their words, as `six` in `sixth`: labels cover more.
    within_tokens: usize,
    /// Answers that come back with other words, all of them within tokens.
    lost: usize,
    /// Answers that come back letter by letter.
    verbatim: usize,
}

/// Answers from logits that point at the labels.
fn predictions(real: &Real) -> Predictions {
    let Real { set, tokenizer, features } = real;
    let options = AnswerOptions { n_best: 2, max_answer_length: 384, ..AnswerOptions::new(Version::V1) };
    let mut answers = Answers::new(set, features, tokenizer, options);
    for window in features.windows() {
        let logits = |position: usize| {
            let mut logits = vec![0.0; features.options().max_seq_length];
            logits[position] = if window.is_impossible { 0.0 } else { 9.0 };
            logits
        };
        answers.add_logits(window.index, &logits(window.start_position), &logits(window.end_position)).unwrap();
    }
    answers.finish()
}

/// Questions with a label that is not the answer's own tokens.
fn labelled_beyond(real: &Real) -> HashSet<usize> {
    let labelled = real.features.windows().filter(|window| !window.is_impossible);
    let beyond = labelled.filter(|window| {
        let answer = &real.set.questions()[window.question].answers[0];
        window.input_ids[window.start_position..=window.end_position] != real.tokenizer.ids(&answer.text)
    });
    beyond.map(|window| window.question).collect()
}

fn round_trip(real: &Real) -> RoundTrip {
    let beyond = labelled_beyond(real);
    let predictions = predictions(real);
    let predicted: HashMap<&str, &str> = predictions.texts().collect();
    let mut trip = RoundTrip { answers: 0, within_tokens: beyond.len(), lost: 0, verbatim: 0 };
    for (number, question) in real.set.questions().iter().enumerate().filter(|(_, question)| !question.is_impossible) {
        let (answer, predicted) = (question.answers[0].text.as_str(), predicted[question.id.as_str()]);
        trip.answers += 1;
        trip.verbatim += usize::from(answer == predicted);
        if !exact_match(predicted, answer) {
            assert!(beyond.contains(&number), "{answer:?} became {predicted:?}");
            trip.lost += 1;
        }
    }
    trip
}

/// Logits that point at the labels give exact match 100, but for answers that begin or end within a token.
#[test]
fn labels_lead_back_to_the_answers() {
    for (name, expected) in [
        ("train-v1.1-subset", RoundTrip { answers: 7_958, within_tokens: 75, lost: 75, verbatim: 7_882 }),
        ("train-v2.0-derived", RoundTrip { answers: 4_670, within_tokens: 42, lost: 42, verbatim: 4_627 }),
    ] {
        let Some(real) = open(name, true) else { return };
        assert!(real.features.left_out().is_empty());
        assert_eq!(round_trip(&real), expected, "{name}");
    }
}

/// Features do not depend on the number of threads.
#[test]
fn real_windows_are_the_same_on_one_thread() {
    let Some(Real { set, tokenizer, features }) = open("dev-v2.0", false) else { return };
    assert_eq!(Features::build(&set, &tokenizer, WindowOptions::default(), 1).unwrap(), features);
}
