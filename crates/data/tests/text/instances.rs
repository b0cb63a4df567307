use std::collections::BTreeSet;
use std::sync::Arc;

use bessemer_data::text::{Format, Instance, InstanceOptions, PretrainingSet};
use bessemer_data::{Batch, BatchRange, Feeds, Loader, LoaderOptions, Position, Sampler, SamplerOptions, Split};
use proptest::prelude::*;

use crate::world::{World, instances};

#[test]
fn instances_of_both_forms_keep_the_rules() {
    let world = World::new();
    for (out, format) in [("shards", Format::Shards), ("records", Format::Tfrecord)] {
        world.prepare(out, format);
        let options = world.preparation(out, format).instances;
        for split in [Split::Train, Split::Val] {
            let set = world.open(out, split);
            assert_eq!((set.sequence_length(), set.predictions()), (64, 10));
            assert_eq!(set.vocabulary_size(), world.origins.len());
            for epoch in 0..3 {
                instances(&set, epoch).iter().for_each(|instance| world.check(instance, &options));
            }
        }
    }
}

#[test]
fn both_kinds_of_pairs_and_short_ones_occur() {
    let world = World::new();
    world.prepare("shards", Format::Shards);
    let set = world.open("shards", Split::Train);
    let all: Vec<_> = (0..5).flat_map(|epoch| instances(&set, epoch)).collect();
    let count = |test: &dyn Fn(&Instance) -> bool| all.iter().filter(|i| test(i)).count();
    let random = count(&|instance| instance.random_next) as f64 / all.len() as f64;
    assert!((0.45..0.7).contains(&random), "{random}");
    assert!(count(&|instance| instance.tokens.len() == 64) > all.len() / 2);
    assert!(count(&|instance| instance.tokens.len() < 30) > 0);
}

/// An epoch shows most of the text, and each instance is another one in the next epoch.
#[test]
fn epochs_cover_the_text_and_differ() {
    let world = World::new();
    world.prepare("shards", Format::Shards);
    let set = world.open("shards", Split::Train);
    let (first, second) = (instances(&set, 0), instances(&set, 1));
    let seen: BTreeSet<_> = first.iter().flat_map(|instance| world.origins(instance).concat()).collect();
    let there: BTreeSet<_> =
        (0..4).flat_map(|epoch| instances(&set, epoch)).flat_map(|i| world.origins(&i).concat()).collect();
    assert!(seen.len() as f64 > 0.75 * there.len() as f64, "{} of {}", seen.len(), there.len());
    let same = first.iter().zip(&second).filter(|(a, b)| a == b).count();
    assert!(same * 50 < first.len(), "{same} of {}", first.len());
    let relabelled = first.iter().zip(&second).filter(|(a, b)| a.random_next != b.random_next).count();
    assert!(relabelled * 5 > first.len(), "labels are drawn again: {relabelled} of {}", first.len());
}

/// Records hold each document as often as the dupe factor says.
#[test]
fn records_repeat_documents() {
    let world = World::new();
    world.prepare("records", Format::Tfrecord);
    let set = world.open("records", Split::Train);
    let all = instances(&set, 0);
    let starts = |instance: &Instance| world.origins(instance)[0][0];
    let document = starts(&all[0]).0;
    let begins = |instance: &&Instance| starts(instance).0 == document && starts(instance).1 < 3;
    assert!(all.iter().filter(begins).count() >= 3);
    assert!(all.windows(2).filter(|pair| starts(&pair[0]).0 == starts(&pair[1]).0).count() < all.len() / 4, "shuffled");
}

#[test]
fn whole_words_are_masked_together() {
    let world = World::new();
    let mut preparation = world.preparation("shards", Format::Shards);
    preparation.instances.whole_words = true;
    crate::world::run(&preparation);
    let (set, vocabulary) = (world.open("shards", Split::Train), &world.vocabulary);
    for instance in instances(&set, 0) {
        world.check(&instance, &preparation.instances);
        let tokens = instance.original_tokens();
        let masked: BTreeSet<usize> = instance.masked.iter().map(|&(at, _)| at as usize).collect();
        for at in 2..tokens.len() {
            let one_word = vocabulary.continues_word(tokens[at]) && !vocabulary.specials().is_structure(tokens[at - 1]);
            assert!(!one_word || masked.contains(&at) == masked.contains(&(at - 1)));
        }
    }
}

/// Batches of three epochs of eight sequences each, from a position.
fn batches(set: &Arc<PretrainingSet>, seed: u64, workers: usize, start: Position) -> Vec<Batch> {
    let sampler = Sampler::new(set.len(), SamplerOptions::train(8, seed)).unwrap();
    let options = LoaderOptions { range: BatchRange::from(start, 3), ..LoaderOptions::new(workers, 0, 3) };
    let mut loader = Loader::new(Arc::clone(set), sampler, options).unwrap();
    let mut batches = Vec::new();
    while loader.position().epoch < 3 {
        if let Some(batch) = loader.next_batch() {
            let batch = batch.unwrap();
            batches.push(batch.clone());
            loader.recycle(batch.feeds);
        }
    }
    batches
}

#[test]
fn batches_are_padded_instances_and_can_be_made_again() {
    let world = World::new();
    world.prepare("shards", Format::Shards);
    let set = Arc::new(world.open("shards", Split::Train));
    let all = batches(&set, 5, 1, Position::default());
    let an_epoch = set.len() / 8;
    assert_eq!(all.len(), 3 * an_epoch);
    assert_eq!(batches(&set, 5, 3, Position::default()), all, "whatever the workers");
    assert_eq!(batches(&set, 5, 2, Position { epoch: 2, batch: 1 }), all[2 * an_epoch + 1..]);
    assert_ne!(batches(&set, 6, 1, Position::default())[0], all[0]);
    assert_ne!(all[0], all[2 * an_epoch + 1]);

    let first = &all[0].feeds;
    assert_eq!((all[0].samples, all[0].epoch, all[0].index), (8, 0, 0));
    assert_eq!(
        (first.i32("input_ids").len(), first.i32("masked_lm_ids").len(), first.i32("next_sentence_labels").len()),
        (512, 80, 8)
    );
    for batch in &all {
        let everything = instances(&set, batch.epoch);
        (0..8).for_each(|row| check_row(&batch.feeds, row, &everything));
    }
}

/// A row is one of the instances, padded with zeros.
#[track_caller]
fn check_row(batch: &Feeds, row: usize, everything: &[Instance]) {
    let ids = &batch.i32("input_ids")[row * 64..][..64];
    let length = batch.i32("input_mask")[row * 64..][..64].iter().sum::<i32>() as usize;
    let instance = everything.iter().find(|instance| {
        instance.tokens.len() == length && instance.tokens.iter().zip(ids).all(|(&a, &b)| a as i32 == b)
    });
    let instance = instance.expect("each row is an instance");
    assert!(ids[length..].iter().all(|&id| id == 0));
    let mut segments: Vec<i32> = instance.segments.iter().map(|&segment| segment.into()).collect();
    segments.resize(64, 0);
    assert_eq!(batch.i32("segment_ids")[row * 64..][..64], segments);
    assert_eq!(batch.i32("next_sentence_labels")[row], i32::from(instance.random_next));
    for (at, place) in (row * 10..(row + 1) * 10).enumerate() {
        let expected = instance.masked.get(at).map_or((0, 0, 0.0), |&(at, id)| (at as i32, id as i32, 1.0));
        let found = (
            batch.i32("masked_lm_positions")[place],
            batch.i32("masked_lm_ids")[place],
            batch.f32("masked_lm_weights")[place],
        );
        assert_eq!(found, expected);
    }
}

#[test]
fn evaluation_has_every_instance_once_and_in_order() {
    let world = World::new();
    world.prepare("shards", Format::Shards);
    let set = Arc::new(world.open("shards", Split::Val));
    let sampler = Sampler::new(set.len(), SamplerOptions::eval(8)).unwrap();
    let mut loader = Loader::new(Arc::clone(&set), sampler, LoaderOptions::new(2, 0, 1)).unwrap();
    let everything = instances(&set, 0);
    let mut seen = 0;
    while let Some(batch) = loader.next_batch() {
        let Batch { feeds, samples, .. } = batch.unwrap();
        for (row, instance) in everything[seen..][..samples].iter().enumerate() {
            check_row(&feeds, row, std::slice::from_ref(instance));
        }
        seen += samples;
        assert!(feeds.i32("input_mask")[samples * 64..].iter().all(|&mask| mask == 0));
        assert!(feeds.f32("masked_lm_weights")[samples * 10..].iter().all(|&weight| weight == 0.0));
        loader.recycle(feeds);
    }
    assert!(seen == set.len() && seen % 8 != 0, "{seen}: the last batch is not full");
}

#[test]
fn identities_tell_sets_apart() {
    let world = World::new();
    world.prepare("shards", Format::Shards);
    world.prepare("records", Format::Tfrecord);
    let open =
        |split, options, seed| PretrainingSet::open(&world.path("shards"), split, options, seed).unwrap().identity();
    let other = InstanceOptions { whole_words: true, ..world.preparation("", Format::Shards).instances };
    let identities = BTreeSet::from([
        open(Split::Train, None, 1),
        open(Split::Val, None, 1),
        open(Split::Val, None, 2),
        open(Split::Train, None, 2),
        open(Split::Train, None, world.preparation("", Format::Shards).seed),
        open(Split::Train, Some(other), 1),
        world.open("records", Split::Train).identity(),
        world.open("records", Split::Val).identity(),
    ]);
    assert_eq!(identities.len(), 7);
    assert!(identities.contains(&open(Split::Train, None, 1)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The rules hold for all lengths and shares.
    #[test]
    fn any_options_keep_the_rules(
        sequence_length in 5usize..200,
        predictions in 1usize..40,
        masked in 0.01f64..0.9,
        short in 0.0f64..=1.0,
        whole_words: bool,
        epoch: u32,
    ) {
        let world = World::new();
        world.prepare("shards", Format::Shards);
        let options = InstanceOptions {
            sequence_length,
            max_predictions: predictions.min(sequence_length),
            masked_lm_probability: masked,
            short_sequence_probability: short,
            whole_words,
        };
        let set = PretrainingSet::open(&world.path("shards"), Split::Train, Some(options), 3).unwrap();
        for index in (0..set.len()).step_by(7) {
            world.check(&set.instance(epoch, index).unwrap(), &options);
        }
    }
}
