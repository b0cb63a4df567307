use std::collections::BTreeSet;
use std::sync::Arc;

use bessemer_data::text::{Format, Instance, InstanceOptions, PretrainingBatches, PretrainingSet};
use bessemer_data::{Position, Split};
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
    assert!(relabelled * 5 > first.len(), "labels are drawn anew: {relabelled} of {}", first.len());
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

#[test]
fn batches_are_padded_instances_and_can_be_made_again() {
    let world = World::new();
    world.prepare("shards", Format::Shards);
    let set = Arc::new(world.open("shards", Split::Train));
    let mut batches = PretrainingBatches::train(Arc::clone(&set), 8, 5).unwrap();
    let at = |epoch, batch| Position { epoch, batch };
    assert_eq!(batches.batches_per_epoch(), set.len() / 8);
    let later = batches.batch(at(2, 1)).unwrap();
    let first = batches.batch(at(0, 0)).unwrap();
    assert_ne!(first, later);
    let mut again = PretrainingBatches::train(Arc::clone(&set), 8, 5).unwrap();
    assert_eq!(again.batch(at(0, 0)).unwrap(), first);
    assert_eq!(again.batch(at(2, 1)).unwrap(), later);
    assert_ne!(PretrainingBatches::train(Arc::clone(&set), 8, 6).unwrap().batch(at(0, 0)).unwrap(), first);
    assert!(again.batch(at(0, set.len() / 8)).unwrap_err().to_string().contains("number of the batch"));

    assert_eq!((first.real, first.length, first.predictions), (8, 64, 10));
    assert_eq!((first.input_ids.len(), first.masked_lm_ids.len(), first.next_sentence_labels.len()), (512, 80, 8));
    let everything = instances(&set, 0);
    for row in 0..8 {
        let ids = &first.input_ids[row * 64..][..64];
        let length = first.input_mask[row * 64..][..64].iter().sum::<i32>() as usize;
        let instance = everything.iter().find(|instance| {
            instance.tokens.len() == length && instance.tokens.iter().zip(ids).all(|(&a, &b)| a as i32 == b)
        });
        let instance = instance.expect("each row is an instance");
        assert!(ids[length..].iter().all(|&id| id == 0));
        let segments: Vec<i32> = instance.segments.iter().map(|&segment| segment.into()).collect();
        assert_eq!(first.segment_ids[row * 64..][..length], segments);
        assert_eq!(first.next_sentence_labels[row], i32::from(instance.random_next));
        for (at, place) in (row * 10..(row + 1) * 10).enumerate() {
            let expected = instance.masked.get(at).map_or((0, 0, 0.0), |&(at, id)| (at as i32, id as i32, 1.0));
            let found = (first.masked_lm_positions[place], first.masked_lm_ids[place], first.masked_lm_weights[place]);
            assert_eq!(found, expected);
        }
    }
}

#[test]
fn evaluation_is_the_same_in_every_epoch_and_complete() {
    let world = World::new();
    world.prepare("shards", Format::Shards);
    let set = Arc::new(world.open("shards", Split::Val));
    let mut batches = PretrainingBatches::eval(Arc::clone(&set), 8).unwrap();
    let last = batches.batches_per_epoch() - 1;
    assert_eq!(last + 1, set.len().div_ceil(8));
    for batch in 0..=last {
        let at = |epoch| Position { epoch, batch };
        assert_eq!(batches.batch(at(0)).unwrap(), batches.batch(at(3)).unwrap());
    }
    let batch = batches.batch(Position { epoch: 0, batch: last }).unwrap();
    assert_eq!(batch.real, set.len() - 8 * last);
    assert!(batch.input_mask[batch.real * 64..].iter().all(|&mask| mask == 0));
    assert!(batch.masked_lm_weights[batch.real * 10..].iter().all(|&weight| weight == 0.0));
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
