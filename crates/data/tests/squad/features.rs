use std::fs;
use std::ops::Range;
use std::sync::Arc;

use bessemer_data::squad::{Features, Origin, SquadSet, Window, WindowOptions};
use bessemer_data::{Loader, LoaderOptions, Sampler, SamplerOptions};
use serde_json::json;

use crate::world::{build, paragraph, set, small, words};

fn text(window: &Window, positions: Range<usize>) -> String {
    let tokenizer = words();
    let ids = &window.input_ids[positions];
    ids.iter().map(|&id| tokenizer.vocabulary().token(id)).collect::<Vec<_>>().join(" ")
}

/// A paragraph of the first `count` letters, again and again.
fn letters(count: usize) -> String {
    (0..count).map(|number| char::from(b'a' + (number % 26) as u8).to_string()).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_short_paragraph_is_one_window() {
    let set = paragraph("The cats\n(sat)", &[("Who sat?", "cats", 4), ("Who?", "sat", 10)]);
    let features = build(&set, WindowOptions { labels: true, ..WindowOptions::default() });
    assert_eq!((features.len(), features.left_out()), (2, &[][..]));
    let window = features.window(0);
    assert_eq!(text(&window, 0..12), "[CLS] who sat ? [SEP] the cat ##s ( sat ) [SEP]");
    assert_eq!((window.question, window.context.clone(), window.first_token), (0, 5..11, 0));
    assert_eq!((window.words.as_slice(), window.unique_id()), (&[0, 1, 1, 2, 2, 2][..], 1_000_000_000));
    assert_eq!((window.start_position, window.end_position, window.is_impossible), (6, 7, false));
    assert_eq!(window.p_mask, [0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(window.segment_ids().collect::<Vec<_>>(), [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1]);
    assert_eq!(window.max_context, [true; 6]);
    assert_eq!((window.word(4), window.word(5), window.word(10), window.word(11)), (None, Some(0), Some(2), None));
    assert!(!window.is_max_context(4) && window.is_max_context(10) && !window.is_max_context(11));
    let second = features.window(1);
    assert_eq!((text(&second, second.start_position..second.end_position + 1), second.question), ("sat".into(), 1));
}

#[test]
fn long_paragraphs_have_windows_that_overlap() {
    let set = paragraph(&letters(23), &[("who ?", "k l", 20), ("a b c d e f", "a", 0)]);
    let features = build(&set, small(true));
    let all: Vec<Window> = features.windows().collect();
    // Beside two tokens of a question there is room for 11, beside four for 9.
    let first: Vec<(usize, usize)> =
        all.iter().filter(|w| w.question == 0).map(|w| (w.first_token, w.context.len())).collect();
    assert_eq!(first, [(0, 11), (5, 11), (10, 11), (15, 8)]);
    let second: Vec<(usize, usize)> =
        all.iter().filter(|w| w.question == 1).map(|w| (w.first_token, w.context.len())).collect();
    assert_eq!(second, [(0, 9), (5, 9), (10, 9), (15, 8)]);
    assert_eq!(text(&all[4], 0..6), "[CLS] a b c d [SEP]");

    let labels: Vec<(usize, usize, bool)> =
        all[..4].iter().map(|w| (w.start_position, w.end_position, w.is_impossible)).collect();
    assert_eq!(labels, [(0, 0, true), (9, 10, false), (4, 5, false), (0, 0, true)], "k is cut off from l in the first");
    assert_eq!(text(&all[1], 9..11), "k l");
    for windows in [&all[..4], &all[4..]] {
        for token in 0..23 {
            let shows = |w: &&Window| (w.first_token..w.first_token + w.context.len()).contains(&token);
            let best: Vec<&Window> =
                windows.iter().filter(shows).filter(|w| w.max_context[token - w.first_token]).collect();
            assert_eq!(best.len(), 1, "token {token}");
            let around = |w: &Window| (token - w.first_token).min(w.first_token + w.context.len() - 1 - token);
            assert!(windows.iter().filter(shows).all(|w| around(w) <= around(best[0])));
            let position = best[0].context.start + token - best[0].first_token;
            assert_eq!((best[0].word(position), best[0].is_max_context(position)), (Some(token), true));
        }
    }
}

#[test]
fn without_labels_windows_tell_what_the_file_says() {
    let set = set(json!([{"context": "a b", "qas": [
        {"id": "x", "question": "c", "answers": [{"text": "zzz", "answer_start": 0}]},
        {"id": "y", "question": "c", "answers": [], "is_impossible": true},
    ]}]));
    let features = build(&set, small(false));
    let reported: Vec<_> = features.windows().map(|w| (w.start_position, w.end_position, w.is_impossible)).collect();
    assert_eq!(reported, [(0, 0, false), (0, 0, true)]);
    assert!(features.left_out().is_empty());
}

#[test]
fn questions_whose_answer_is_lost_are_left_out() {
    let set = paragraph("a b c", &[("d", "x", 0), ("d", "b", 2), ("d", "b", 99), ("d", "c", 4), ("d", "", 1)]);
    let features = build(&set, small(true));
    assert_eq!(features.left_out(), [0, 2, 4]);
    assert_eq!(features.windows().map(|window| window.question).collect::<Vec<_>>(), [1, 3]);
    assert_eq!((features.question(1), features.window(1).unique_id()), (3, 1_000_000_001));
}

#[test]
fn special_tokens_in_a_text_are_no_answer() {
    let set = paragraph("a [SEP] b", &[("c", "b", 8)]);
    let window = build(&set, small(true)).window(0);
    assert_eq!(text(&window, 0..7), "[CLS] c [SEP] a [SEP] b [SEP]");
    assert_eq!((window.p_mask.as_slice(), window.start_position), (&[0, 1, 1, 0, 1, 0, 1][..], 5));
}

#[test]
fn empty_and_very_long_texts_work() {
    for context in ["", " \n", "\u{0}"] {
        let asked = SquadSet::ask(context, &["who?", ""]);
        let features = build(&asked, small(false));
        assert_eq!(features.len(), 2, "{context:?}");
        assert_eq!(text(&features.window(0), 0..5), "[CLS] who ? [SEP] [SEP]");
        assert_eq!(text(&features.window(1), 0..3), "[CLS] [SEP] [SEP]");
        assert!(features.windows().all(|window| window.context.is_empty() && window.words.is_empty()));
        assert!(build(&paragraph(context, &[("who?", "x", 0)]), small(true)).is_empty());
    }
    let long = paragraph(&letters(50_000), &[("who?", "x y z", 99_886)]);
    let features = build(&long, WindowOptions { labels: true, ..WindowOptions::default() });
    assert_eq!(features.len(), (50_000_usize - 379).div_ceil(128) + 1);
    let with: Vec<Window> = features.windows().filter(|window| !window.is_impossible).collect();
    assert!(!with.is_empty() && with.iter().all(|w| text(w, w.start_position..w.end_position + 1) == "x y z"));
    assert_eq!(features.windows().map(|w| w.max_context.iter().filter(|&&best| best).count()).sum::<usize>(), 50_000);
}

#[test]
fn features_are_the_same_for_any_number_of_threads() {
    let paragraphs: Vec<_> = (1..40)
        .map(|number| {
            let answers = json!([{"text": "a", "answer_start": 0}]);
            json!({"context": letters(number), "qas": [{"id": number.to_string(), "question": "who", "answers": answers}]})
        })
        .collect();
    let set = set(json!(paragraphs));
    let built = |threads| Features::build(&set, &words(), small(true), threads).unwrap();
    assert_eq!(built(1), built(3));
    assert_eq!(built(1), built(64));
}

#[test]
fn features_are_kept_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("new/cache");
    let set = paragraph(&letters(40), &[("who?", "c", 4), ("who?", "zzz", 0)]);
    let cached = |set: &SquadSet, options| Features::cached(&folder, set, &words(), options, 2).unwrap();
    let (features, origin) = cached(&set, small(true));
    let Origin::Built(path) = origin else { panic!("there was no file: {origin:?}") };
    assert_eq!(features, build(&set, small(true)));
    assert_eq!(cached(&set, small(true)), (features.clone(), Origin::Read(path.clone())));

    let other = paragraph(&letters(41), &[("who?", "c", 4)]);
    let longer = WindowOptions { max_seq_length: 17, ..small(true) };
    let farther = WindowOptions { doc_stride: 6, ..small(true) };
    for (set, options) in [(&other, small(true)), (&set, small(false)), (&set, longer), (&set, farther)] {
        let origin = cached(set, options).1;
        assert!(matches!(&origin, Origin::Built(other) if *other != path), "{origin:?}");
    }

    let mut bytes = fs::read(&path).unwrap();
    bytes[200] ^= 1;
    fs::write(&path, bytes).unwrap();
    let (again, origin) = cached(&set, small(true));
    assert!(matches!(&origin, Origin::Rebuilt(_, why) if why.contains("checksum")), "{origin:?}");
    assert_eq!(again, features);
    assert_eq!(cached(&set, small(true)).1, Origin::Read(path.clone()));

    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let error = Features::cached(&folder, &set, &words(), small(true), 2).unwrap_err().to_string();
    assert!(error.contains("cannot rename the file to"), "{error}");
}

#[test]
fn lengths_must_go_together() {
    let set = SquadSet::ask("a", &["b"]);
    let refused = |options| Features::build(&set, &words(), options, 1).unwrap_err().to_string();
    let message = refused(WindowOptions { max_seq_length: 128, ..WindowOptions::default() });
    assert!(message.starts_with("doc_stride is 128, expected 1 to 61,"), "{message}");
    let message = refused(WindowOptions { doc_stride: 0, ..WindowOptions::default() });
    assert!(message.starts_with("doc_stride is 0, expected 1 to 317,"), "{message}");
    let message = refused(WindowOptions { max_seq_length: 67, ..WindowOptions::default() });
    assert_eq!(message, "max_seq_length is 67, expected at least 68 for a query of 64");
}

#[test]
fn batches_are_padded_windows() {
    let set = paragraph("the cats (sat)", &[("who?", "cats", 4), ("who sat?", "sat", 10), ("a b c d", "the", 0)]);
    let features = Arc::new(build(&set, small(true)));
    let sampler = Sampler::new(3, SamplerOptions::eval(2)).unwrap();
    let mut loader = Loader::new(Arc::clone(&features), sampler, LoaderOptions::new(2, 0, 1)).unwrap();
    let first = loader.next_batch().unwrap().unwrap();
    for place in 0..2 {
        let window = features.window(place);
        let (row, length) = (place * 16, window.input_ids.len());
        let ids: Vec<u32> = first.feeds.i32("input_ids")[row..row + length].iter().map(|&id| id as u32).collect();
        assert_eq!(ids, window.input_ids);
        assert!(first.feeds.i32("input_ids")[row + length..row + 16].iter().all(|&id| id == 0));
        let ones = |values: &[i32]| values.iter().filter(|&&value| value == 1).count();
        assert_eq!(ones(&first.feeds.i32("input_mask")[row..row + 16]), length);
        assert_eq!(ones(&first.feeds.i32("segment_ids")[row..row + 16]), window.context.len() + 1);
        let open: Vec<usize> = (0..16).filter(|&at| first.feeds.f32("p_mask")[row + at] == 0.0).collect();
        assert_eq!(open, [0].into_iter().chain(window.context.clone()).collect::<Vec<_>>());
    }
    assert_eq!((first.feeds.i32("start_positions"), first.feeds.i32("end_positions")), (&[5, 9][..], &[6, 9][..]));
    assert_eq!(
        (first.feeds.f32("is_impossible"), first.feeds.i32("windows"), first.samples),
        (&[0.0; 2][..], &[0, 1][..], 2)
    );
    let last = loader.next_batch().unwrap().unwrap();
    assert_eq!(
        (last.samples, last.feeds.i32("windows"), last.feeds.i32("start_positions")),
        (1, &[2, 0][..], &[6, 0][..])
    );
    assert!(last.feeds.i32("input_ids")[16..].iter().all(|&id| id == 0));
}
