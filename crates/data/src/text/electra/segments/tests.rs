use super::*;
use crate::Purpose;
use crate::text::shard::{Shard, ShardWriter};

const LENGTH: SegmentLength = SegmentLength { most: 40, short_probability: 0.0, single_probability: 0.0 };

/// One document of sentences with these lengths.
fn store(lengths: &[usize]) -> TokenStore {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tokens");
    let mut writer = ShardWriter::create(&path, 100, [0; 32]).unwrap();
    writer.add(&lengths.iter().map(|&length| vec![7; length]).collect::<Vec<_>>()).unwrap();
    writer.finish().unwrap();
    TokenStore::new(vec![Shard::open(&path, [0; 32]).unwrap()])
}

/// Sentences of 1 to 9 tokens.
fn many(sentences: usize) -> TokenStore {
    store(&(0..sentences).map(|number| 1 + number * 5 % 9).collect::<Vec<_>>())
}

fn rng(seed: u64) -> Philox {
    Purpose::Pairs.stream(seed, 0, 0)
}

fn runs(length: SegmentLength, store: &TokenStore, seed: u64) -> Vec<Run> {
    let mut runs = Vec::new();
    length.cut_document(store, 0, &mut rng(seed), |start, run| {
        assert_eq!(start, run.sentences.start);
        runs.push(run);
    });
    runs
}

fn share(all: usize, test: impl Fn(usize) -> bool) -> f64 {
    (0..all).filter(|&number| test(number)).count() as f64 / all as f64
}

#[test]
fn no_sentence_is_lost_and_targets_are_reached_with_the_fewest() {
    let store = many(500);
    let document = store.document(0);
    for seed in 0..20 {
        let runs = runs(SegmentLength { short_probability: 0.3, ..LENGTH }, &store, seed);
        assert!(runs[0].sentences.start == 0 && runs.last().unwrap().sentences.end == 500);
        assert!(runs.windows(2).all(|pair| pair[0].sentences.end == pair[1].sentences.start));
        for run in &runs[..runs.len() - 1] {
            let Range { start, end } = run.sentences;
            assert!(document.span(start..end).tokens.len() >= run.target as usize);
            assert!(end == start + 1 || document.span(start..end - 1).tokens.len() < run.target as usize);
        }
    }
}

#[test]
fn one_in_twenty_aims_at_any_shorter_length() {
    let store = many(20_000);
    let length = SegmentLength { short_probability: 0.05, ..LENGTH };
    let runs = runs(length, &store, 3);
    let short: Vec<u32> = runs.iter().map(|run| run.target).filter(|&target| target < 40).collect();
    let found = short.len() as f64 / runs.len() as f64;
    assert!((0.04..0.06).contains(&found), "{found} of {}", runs.len());
    assert_eq!(short.iter().min(), Some(&5));
    let mean = f64::from(short.iter().sum::<u32>()) / short.len() as f64;
    assert!((19.0..25.0).contains(&mean), "{mean}");
}

#[test]
fn one_in_ten_has_one_segment() {
    let store = many(10);
    let length = SegmentLength { single_probability: 0.1, ..LENGTH };
    let run = length.run_at(&store, 0, 0, &mut rng(0));
    let single = share(20_000, |seed| length.segments(&store, &run, &mut rng(seed as u64)).second.is_empty());
    assert!((0.09..0.11).contains(&single), "{single}");
    assert_eq!(share(1000, |seed| LENGTH.segments(&store, &run, &mut rng(seed as u64)).second.is_empty()), 0.0);
}

/// A sentence that reaches half of the length, 18 tokens, joins in half of the cases.
#[test]
fn the_first_segment_has_about_half() {
    let store = store(&[10, 7, 5, 9, 9, 9]);
    let run = LENGTH.run_at(&store, 0, 0, &mut rng(0));
    assert_eq!(run, Run { document: 0, sentences: 0..5, target: 40 });
    let firsts: Vec<u32> = (0..4000).map(|seed| tokens(&LENGTH.segments(&store, &run, &mut rng(seed)).first)).collect();
    let share = |length: u32| firsts.iter().filter(|&&found| found == length).count() as f64 / firsts.len() as f64;
    assert!((0.47..0.53).contains(&share(22)) && share(17) + share(22) == 1.0, "{} {}", share(17), share(22));
}

/// As in the original, what follows a sentence that was too long may still join the first segment.
#[test]
fn a_short_sentence_after_a_long_one_joins_the_first_segment() {
    let store = store(&[6, 30, 4, 20]);
    let run = Run { document: 0, sentences: 0..4, target: 40 };
    let span = |tokens| Span { document: 0, tokens };
    let all: Vec<Segments> =
        (0..100).map(|seed| split(store.document(0), run.sentences.clone(), 18, &mut rng(seed))).collect();
    let apart = Segments { first: vec![span(0..6), span(36..40)], second: vec![span(6..36), span(40..60)] };
    let joined = Segments { first: vec![span(0..36)], second: vec![span(36..60)] };
    assert!(all.contains(&apart) && all.contains(&joined));
    assert!(all.iter().all(|found| *found == apart || *found == joined));
}

#[test]
fn what_is_too_long_loses_its_end() {
    let store = store(&[100, 30, 30, 25]);
    let span = |tokens| Span { document: 0, tokens };
    let segments = |sentences, length: SegmentLength| {
        length.segments(&store, &Run { document: 0, sentences, target: 40 }, &mut rng(1))
    };
    assert_eq!(segments(0..1, LENGTH), Segments { first: vec![span(0..38)], second: vec![] });
    assert_eq!(segments(0..2, LENGTH), Segments { first: vec![span(0..38)], second: vec![] });
    assert_eq!(segments(1..3, LENGTH), Segments { first: vec![span(100..130)], second: vec![span(130..137)] });
    let single = SegmentLength { single_probability: 1.0, ..LENGTH };
    assert_eq!(segments(1..3, single), Segments { first: vec![span(100..138)], second: vec![] });
}
