use std::fs;
use std::path::Path;

use bessemer_data::Split;
use bessemer_data::text::{Format, Instance, InstanceOptions, Specials, Vocabulary};

use crate::common::shared;
use crate::world::{World, instances, run};

/// Shares of masked tokens, and among these of `[MASK]`, of others and of what stayed.
fn shares(all: &[Instance], specials: Specials) -> [f64; 4] {
    let tokens: usize = all.iter().map(|instance| instance.tokens.len()).sum();
    let hidden = || all.iter().flat_map(|i| i.masked.iter().map(|&(at, original)| (i.tokens[at as usize], original)));
    let masked = hidden().count() as f64;
    let count = |test: &dyn Fn(u32, u32) -> bool| hidden().filter(|&(now, before)| test(now, before)).count() as f64;
    let mask = count(&|now, _| now == specials.mask);
    let same = count(&|now, before| now == before);
    [masked / tokens as f64, mask / masked, (masked - mask - same) / masked, same / masked]
}

#[track_caller]
fn check(shares: [f64; 4]) {
    for (found, (expected, tolerance)) in shares.into_iter().zip([(0.15, 0.01), (0.8, 0.02), (0.1, 0.02), (0.1, 0.02)])
    {
        assert!((found - expected).abs() < tolerance, "{found} is not {expected}: {shares:?}");
    }
}

#[test]
fn masks_have_the_shares_asked_for() {
    let world = World::new();
    for format in [Format::Shards, Format::Tfrecord] {
        let out = format!("{format:?}");
        world.prepare(&out, format);
        let set = world.open(&out, Split::Train);
        let all: Vec<Instance> = (0..10).flat_map(|epoch| instances(&set, epoch)).collect();
        check(shares(&all, world.vocabulary.specials()));
    }
}

/// A megabyte of Wikipedia with BERT's vocabulary.
#[test]
fn real_text_has_the_shares_of_the_recipe() {
    let (Some(text), Some(vocabulary)) = (shared("text/wiki/wiki_c_00"), shared("vocab/vocab.txt")) else { return };
    let world = World::new();
    let specials = Vocabulary::open(&vocabulary).unwrap().specials();
    for whole_words in [false, true] {
        for format in [Format::Shards, Format::Tfrecord] {
            let mut preparation = world.preparation(&format!("{format:?}-{whole_words}"), format);
            preparation.inputs = vec![text.clone()];
            preparation.vocabulary = vocabulary.clone();
            preparation.instances = InstanceOptions { whole_words, ..InstanceOptions::default() };
            preparation.dupe_factor = 1;
            let counts = run(&preparation);
            assert_eq!(counts.iter().map(|(_, found)| found.documents).sum::<Option<u64>>(), Some(articles(&text)));
            let set = world.open(&format!("{format:?}-{whole_words}"), Split::Train);
            let all = instances(&set, 0);
            check(shares(&all, specials));
            let random = all.iter().filter(|instance| instance.random_next).count() as f64 / all.len() as f64;
            assert!((0.5..0.65).contains(&random), "{random}");
            assert!((5.5..8.0).contains(&counts[0].1.unigram_entropy), "{}", counts[0].1.unigram_entropy);
        }
    }
}

/// Articles with more than a title.
fn articles(path: &Path) -> u64 {
    let text = fs::read_to_string(path).unwrap();
    let lines = |article: &&str| article.lines().filter(|line| !line.trim().is_empty()).count();
    text.split("</doc>").filter(|article| lines(article) > 2).count() as u64
}
