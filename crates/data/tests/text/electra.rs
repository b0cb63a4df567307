use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

use bessemer_data::text::{
    ElectraInstance, ElectraOptions, ElectraSet, Format, InstanceOptions, Prediction, PretrainingSet, SyntheticText,
    verify,
};
use bessemer_data::{Batch, BatchRange, Feeds, Loader, LoaderOptions, Position, Sampler, SamplerOptions, Split};
use proptest::prelude::*;

use crate::world::{World, run};

/// Of 64 tokens, as the world is prepared.
const OPTIONS: ElectraOptions = ElectraOptions {
    sequence_length: 64,
    masked_lm_probability: 0.15,
    short_sequence_probability: 0.05,
    single_segment_probability: 0.1,
    distinct: false,
};

/// Both forms: folder and set to train on.
fn both(world: &World) -> [(&'static str, ElectraSet); 2] {
    [("shards", Format::Shards), ("records", Format::ElectraTfrecord)].map(|(out, format)| {
        world.prepare(out, format);
        (out, open(world, out, Split::Train, OPTIONS, 1))
    })
}

fn open(world: &World, out: &str, split: Split, options: ElectraOptions, seed: u64) -> ElectraSet {
    ElectraSet::open(&world.path(out), split, Some(options), seed).unwrap()
}

fn instances(set: &ElectraSet, epoch: u32) -> Vec<ElectraInstance> {
    (0..set.len()).map(|index| set.instance(epoch, index).unwrap()).collect()
}

/// What must be true of every instance.
#[track_caller]
fn check(world: &World, instance: &ElectraInstance, options: &ElectraOptions) {
    let specials = world.vocabulary.specials();
    let ElectraInstance { tokens, segments, predictions } = instance;
    let length = tokens.len();
    assert!((3..=options.sequence_length).contains(&length) && segments.len() == length);
    let first = segments.iter().filter(|&&segment| segment == 0).count();
    assert!(segments[..first].iter().all(|&segment| segment == 0), "segments come one after the other");
    let structure: Vec<usize> = (0..length).filter(|&at| specials.is_structure(tokens[at])).collect();
    let expected = if first == length { vec![0, length - 1] } else { vec![0, first - 1, length - 1] };
    assert_eq!(structure, expected);
    assert!(tokens[0] == specials.cls && structure[1..].iter().all(|&at| tokens[at] == specials.sep));

    let origins: Vec<_> = tokens.iter().filter_map(|&id| world.origins[id as usize]).collect();
    assert!(origins.iter().all(|&(document, _)| document == origins[0].0), "all is of one document");
    let places: BTreeSet<usize> = origins.iter().map(|&(_, place)| place).collect();
    assert_eq!(places.len(), origins.len(), "nothing comes twice");

    let wanted = (length as f64 * options.masked_lm_probability).round_ties_even() as usize;
    let wanted = wanted.min(options.predictions()).max(1);
    let positions: BTreeSet<u32> = predictions.iter().map(|word| word.position).collect();
    if options.distinct {
        assert_eq!(predictions.len(), wanted.min(length - structure.len()));
        assert_eq!(positions.len(), predictions.len());
    } else {
        assert_eq!(predictions.len(), wanted);
    }
    assert!(predictions.iter().all(|word| word.id == tokens[word.position as usize]));
    assert!(positions.iter().all(|&at| !structure.contains(&(at as usize))));
}

#[test]
fn instances_of_both_forms_keep_the_rules() {
    let world = World::new();
    for (out, set) in both(&world) {
        assert_eq!((set.sequence_length(), set.predictions()), (64, 9));
        assert_eq!(set.vocabulary_size(), world.origins.len());
        for set in [set, open(&world, out, Split::Val, OPTIONS, 1)] {
            for epoch in 0..3 {
                instances(&set, epoch).iter().for_each(|instance| check(&world, instance, &OPTIONS));
            }
        }
    }
}

#[test]
fn predictions_are_those_of_the_recipe() {
    let predictions = |sequence_length| ElectraOptions { sequence_length, ..OPTIONS }.predictions();
    assert_eq!([5, 128, 512].map(predictions), [1, 19, 79]);
}

/// Records are fixed but for their masks; shards are made again.
#[test]
fn epochs_differ_and_can_be_made_again() {
    let world = World::new();
    for (out, set) in both(&world) {
        let (first, second) = (instances(&set, 0), instances(&set, 1));
        assert_eq!(instances(&open(&world, out, Split::Train, OPTIONS, 1), 1), second);
        let differ = |test: &dyn Fn(&ElectraInstance, &ElectraInstance) -> bool, other: &[ElectraInstance]| {
            first.iter().zip(other).filter(|(a, b)| test(a, b)).count() * 100 / first.len()
        };
        let masks = |a: &ElectraInstance, b: &ElectraInstance| a.predictions != b.predictions;
        let text = |a: &ElectraInstance, b: &ElectraInstance| (&a.tokens, &a.segments) != (&b.tokens, &b.segments);
        let reseeded = instances(&open(&world, out, Split::Train, OPTIONS, 2), 0);
        for other in [&second, &reseeded] {
            assert!(differ(&masks, other) > 90, "{}", differ(&masks, other));
            assert_eq!(differ(&text, other) > 20, out == "shards", "{out}: {}", differ(&text, other));
        }
        let evaluated = |seed| instances(&open(&world, out, Split::Val, OPTIONS, seed), 0);
        assert_eq!(evaluated(1), evaluated(2), "runs are evaluated on the same");
    }
}

/// Where examples begin, no sentence is passed over: without trimming and short ones, an epoch shows all words.
#[test]
fn no_sentence_is_lost() {
    let world = World::new();
    world.prepare("shards", Format::Shards);
    let options = ElectraOptions { sequence_length: 2000, short_sequence_probability: 0.0, ..OPTIONS };
    let sets = [Split::Train, Split::Val].map(|split| open(&world, "shards", split, options, 1));
    let all: Vec<u32> = sets.iter().flat_map(|set| instances(set, 0)).flat_map(|instance| instance.tokens).collect();
    let words: BTreeSet<u32> = all.iter().copied().filter(|&id| world.origins[id as usize].is_some()).collect();
    assert_eq!(words.len(), world.origins.iter().flatten().count());
}

/// Batches of two epochs of eight sequences each, from a position.
fn batches(set: &Arc<ElectraSet>, workers: usize, start: Position) -> Vec<Batch> {
    let sampler = Sampler::new(set.len(), SamplerOptions::train(8, 5)).unwrap();
    let options = LoaderOptions { range: BatchRange::from(start, 2), ..LoaderOptions::new(workers, 0, 2) };
    let mut loader = Loader::new(Arc::clone(set), sampler, options).unwrap();
    let mut batches = Vec::new();
    while loader.position().epoch < 2 {
        if let Some(batch) = loader.next_batch() {
            let batch = batch.unwrap();
            batches.push(batch.clone());
            loader.recycle(batch.feeds);
        }
    }
    batches
}

#[test]
fn batches_are_padded_instances_whatever_the_workers() {
    let world = World::new();
    for (_, set) in both(&world) {
        let set = Arc::new(set);
        let all = batches(&set, 1, Position::default());
        let an_epoch = set.len() / 8;
        assert_eq!(all.len(), 2 * an_epoch);
        assert_eq!(batches(&set, 4, Position::default()), all);
        assert_eq!(batches(&set, 2, Position { epoch: 1, batch: 1 }), all[an_epoch + 1..]);
        for batch in &all {
            let everything = instances(&set, batch.epoch);
            (0..8).for_each(|row| check_row(&batch.feeds, row, &everything));
        }
    }
}

/// A row is one of the instances, padded with zeros.
#[track_caller]
fn check_row(batch: &Feeds, row: usize, everything: &[ElectraInstance]) {
    let (row, words) = (row * 64..(row + 1) * 64, row * 9..(row + 1) * 9);
    let tokens = [batch.i32("input_ids"), batch.i32("segment_ids"), batch.i32("input_mask")]
        .map(|array| array[row.clone()].to_vec());
    let weights: Vec<i32> = batch.f32("masked_lm_weights")[words.clone()].iter().map(|&weight| weight as i32).collect();
    let [positions, replaced] =
        [batch.i32("masked_lm_positions"), batch.i32("masked_lm_replaced")].map(|array| array[words.clone()].to_vec());
    let found = (tokens, [positions, replaced, weights]);
    assert!(everything.iter().any(|instance| row_of(instance) == found), "{found:?}");
}

/// Ids, segments and mask; positions, whether they are replaced, and weights.
fn row_of(instance: &ElectraInstance) -> ([Vec<i32>; 3], [Vec<i32>; 3]) {
    let ElectraInstance { tokens, segments, predictions } = instance;
    let tokens = |value: fn((&u32, &u8)) -> i32| padded(tokens.iter().zip(segments).map(value), 64);
    let words = |value: fn(&Prediction) -> i32| padded(predictions.iter().map(value), 9);
    let tokens = [tokens(|(&id, _)| id as i32), tokens(|(_, &segment)| segment.into()), tokens(|_| 1)];
    let words = [words(|word| word.position as i32), words(|word| word.is_replaced.into()), words(|_| 1)];
    (tokens, words)
}

fn padded(values: impl Iterator<Item = i32>, length: usize) -> Vec<i32> {
    let mut values: Vec<i32> = values.collect();
    values.resize(length, 0);
    values
}

#[test]
fn the_last_batch_of_an_evaluation_is_padded() {
    let world = World::new();
    world.prepare("shards", Format::Shards);
    let set = Arc::new(open(&world, "shards", Split::Val, OPTIONS, 1));
    let sampler = Sampler::new(set.len(), SamplerOptions::eval(7)).unwrap();
    let mut loader = Loader::new(Arc::clone(&set), sampler, LoaderOptions::new(2, 0, 1)).unwrap();
    let everything = instances(&set, 0);
    let mut seen = 0;
    while let Some(batch) = loader.next_batch() {
        let Batch { feeds, samples, .. } = batch.unwrap();
        for (row, instance) in everything[seen..][..samples].iter().enumerate() {
            check_row(&feeds, row, std::slice::from_ref(instance));
        }
        seen += samples;
        assert!(
            feeds.i32("input_ids")[samples * 64..]
                .iter()
                .chain(&feeds.i32("masked_lm_replaced")[samples * 9..])
                .all(|&id| id == 0)
        );
        assert!(feeds.f32("masked_lm_weights")[samples * 9..].iter().all(|&weight| weight == 0.0));
        loader.recycle(feeds);
    }
    assert!(seen == set.len() && seen % 7 != 0, "{seen}: the last batch is not full");
}

/// `[MASK]` takes the place of a token that any of its predictions replaces, and of no other.
#[test]
fn masked_tokens_are_those_that_are_replaced() {
    let world = World::new();
    let mask = world.vocabulary.specials().mask;
    let (_, set) = &both(&world)[0];
    let (mut repeated, mut disagree) = (0, 0);
    for instance in (0..10).flat_map(|epoch| instances(set, epoch)) {
        for (at, (&now, &before)) in instance.masked_tokens(mask).iter().zip(&instance.tokens).enumerate() {
            let here: Vec<bool> = instance
                .predictions
                .iter()
                .filter(|word| word.position as usize == at)
                .map(|word| word.is_replaced)
                .collect();
            assert_eq!(now, if here.contains(&true) { mask } else { before });
            repeated += usize::from(here.len() > 1);
            disagree += usize::from(here.contains(&true) && here.contains(&false));
        }
        assert_eq!(instance.masked_tokens(mask)[0], instance.tokens[0]);
    }
    assert!(repeated > 50 && disagree > 0 && disagree < repeated, "{disagree} of {repeated}");
}

#[test]
fn identities_tell_sets_apart() {
    let world = World::new();
    let [(_, shards), (_, records)] = both(&world);
    let changed =
        |options, seed| ["shards", "records"].map(|out| open(&world, out, Split::Train, options, seed).identity());
    let mut identities = vec![shards.identity(), records.identity()];
    identities.extend(changed(OPTIONS, 2));
    identities.extend(changed(ElectraOptions { distinct: true, ..OPTIONS }, 1));
    identities.extend(changed(ElectraOptions { masked_lm_probability: 0.2, ..OPTIONS }, 1));
    identities.push(open(&world, "shards", Split::Val, OPTIONS, 1).identity());
    identities.push(PretrainingSet::open(&world.path("shards"), Split::Train, None, 1).unwrap().identity());
    assert_eq!(identities.iter().collect::<BTreeSet<_>>().len(), identities.len(), "{identities:?}");
    assert_eq!(changed(OPTIONS, 1), [shards.identity(), records.identity()]);
}

/// Each word of this text occurs once, so that all are equally frequent.
#[test]
fn special_tokens_are_not_counted() {
    let world = World::new();
    for (out, set) in both(&world) {
        let counts = set.word_counts(2).unwrap();
        assert!(counts.iter().zip(&world.origins).all(|(&count, origin)| origin.is_some() || count == 0), "{out}");
        let words = counts.iter().filter(|&&count| count > 0).count() as f64;
        assert!((set.unigram_entropy(1).unwrap() - words.ln()).abs() < 0.2);
    }
}

#[test]
fn synthetic_sequences_have_the_shape_asked_for() {
    let sizes = SyntheticText { len: 9, sequence_length: 128, predictions: 19, vocabulary_size: 400, seed: 3 };
    let set = ElectraSet::synthetic(sizes).unwrap();
    assert_eq!((set.len(), set.sequence_length(), set.predictions(), set.vocabulary_size()), (9, 128, 19, 400));
    for (index, instance) in instances(&set, 0).iter().enumerate() {
        assert!(instance.tokens.len() == 128 && instance.tokens.iter().all(|&id| id < 400));
        assert_eq!(instance.segments.iter().filter(|&&segment| segment == 1).count(), 64);
        assert!(instance.predictions.len() == 19 && instance.predictions.iter().all(|word| word.position > 0));
        assert_eq!(set.instance(0, index).unwrap(), *instance);
        assert_ne!(set.instance(1, index).unwrap().predictions, instance.predictions);
    }
    assert!(ElectraSet::synthetic(SyntheticText { predictions: 0, ..sizes }).is_err());
    assert!((set.unigram_entropy(1).unwrap() - 400_f64.ln()).abs() < 1e-12);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The rules hold for all lengths and shares.
    #[test]
    fn any_options_keep_the_rules(
        sequence_length in 5usize..200,
        masked_lm_probability in 0.01f64..0.9,
        short_sequence_probability in 0.0f64..=1.0,
        single_segment_probability in 0.0f64..=1.0,
        distinct: bool,
        epoch: u32,
    ) {
        let world = World::new();
        world.prepare("shards", Format::Shards);
        let options = ElectraOptions {
            sequence_length, masked_lm_probability, short_sequence_probability, single_segment_probability, distinct,
        };
        let set = open(&world, "shards", Split::Train, options, 3);
        for index in (0..set.len()).step_by(7) {
            check(&world, &set.instance(epoch, index).unwrap(), &options);
        }
    }
}

#[test]
fn wrong_options_are_refused() {
    let world = World::new();
    world.prepare("records", Format::ElectraTfrecord);
    let error =
        |options| ElectraSet::open(&world.path("records"), Split::Train, Some(options), 1).unwrap_err().to_string();
    for (options, expected) in [
        (ElectraOptions { sequence_length: 4, ..OPTIONS }, "sequence length is 4, expected 5 to"),
        (ElectraOptions { masked_lm_probability: 1.0, ..OPTIONS }, "masked-LM probability is 1, expected more than 0"),
        (
            ElectraOptions { short_sequence_probability: 1.5, ..OPTIONS },
            "short-sequence probability is 1.5, expected 0 to 1",
        ),
        (ElectraOptions { single_segment_probability: -0.5, ..OPTIONS }, "single-segment probability is -0.5"),
        (ElectraOptions { sequence_length: 128, ..OPTIONS }, "records of 64 tokens; expected 128 tokens"),
    ] {
        assert!(error(options).contains(expected), "{}", error(options));
    }
}

#[test]
fn records_for_the_other_model_are_refused() {
    let world = World::new();
    world.prepare("bert", Format::Tfrecord);
    world.prepare("electra", Format::ElectraTfrecord);
    let error = ElectraSet::open(&world.path("bert"), Split::Train, None, 0).unwrap_err().to_string();
    let expected = "records for BERT, in which words are masked already; expected token shards, or records for ELECTRA";
    assert!(error.contains(expected), "{error}");
    let error = PretrainingSet::open(&world.path("electra"), Split::Train, None, 0).unwrap_err().to_string();
    assert!(error.contains("records for ELECTRA; expected token shards, or records for BERT"), "{error}");

    let records = ElectraSet::open_records(&world.path("bert/train"), &world.vocabulary, OPTIONS, 0).unwrap();
    let error = records.instance(0, 0).unwrap_err().to_string();
    assert!(error.contains("record 1 at byte 0: feature `masked_lm_positions`: words are masked already"), "{error}");
    let error =
        PretrainingSet::open_records(&world.path("electra/train"), world.origins.len()).unwrap_err().to_string();
    assert!(error.contains("record 1 at byte 0: no feature `masked_lm_positions`"), "{error}");
}

/// Files as Google's program writes them have no manifest beside them.
#[test]
fn records_of_another_origin_can_be_opened() {
    let world = World::new();
    let [_, (_, prepared)] = both(&world);
    let folder = world.path("records/train");
    let set = ElectraSet::open_records(&folder, &world.vocabulary, OPTIONS, 1).unwrap();
    assert_eq!(set.identity(), prepared.identity());
    assert_eq!(instances(&set, 2), instances(&prepared, 2));
    let long = ElectraOptions { sequence_length: 128, ..OPTIONS };
    let error = ElectraSet::open_records(&folder, &world.vocabulary, long, 1).unwrap_err().to_string();
    assert!(error.contains("records of 64 tokens; expected 128 tokens"), "{error}");
}

/// As often as the dupe factor says, here once, in random order.
#[test]
fn records_hold_every_document() {
    let world = World::new();
    let mut preparation = world.preparation("records", Format::ElectraTfrecord);
    preparation.dupe_factor = 1;
    preparation.instances = InstanceOptions { short_sequence_probability: 0.0, ..preparation.instances };
    let counts = run(&preparation);
    let all: Vec<_> = [Split::Train, Split::Val]
        .into_iter()
        .flat_map(|split| instances(&open(&world, "records", split, OPTIONS, 1), 0))
        .collect();
    assert_eq!(all.len() as u64, counts.iter().map(|(_, found)| found.instances).sum::<u64>());
    let starts: Vec<_> = all.iter().filter_map(|instance| world.origins[instance.tokens[1] as usize]).collect();
    assert_eq!(starts.iter().collect::<BTreeSet<_>>().len(), starts.len(), "nothing twice");
    assert_eq!(starts.iter().filter(|(_, place)| *place == 0).count(), crate::world::DOCUMENTS);
    let neighbours = starts.windows(2).filter(|pair| pair[0].0 == pair[1].0).count();
    assert!(neighbours < starts.len() / 4, "shuffled");
}

#[test]
fn damaged_records_are_named_with_number_and_offset() {
    let world = World::new();
    world.prepare("records", Format::ElectraTfrecord);
    assert!(verify(&world.path("records"), 2, &|_| ()).unwrap().is_clean());
    let name = "records/train/part-00001-of-00003.tfrecord";
    let good = fs::read(world.path(name)).unwrap();
    let place = 16 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let flipped = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 4;
        bytes
    };
    for (bytes, expected) in [
        (flipped(place + 40), format!("{name}: record 2 at byte {place}: the payload does not fit its checksum")),
        (flipped(place + 1), format!("{name}: record 2 at byte {place}: the length does not fit its checksum")),
        (good[..place + 50].to_vec(), format!("{name}: record 2 at byte {place}: the file ends at byte")),
        (good[..place].to_vec(), "records/train: ".to_owned()),
    ] {
        fs::write(world.path(name), bytes).unwrap();
        let problems = verify(&world.path("records"), 2, &|_| ()).unwrap().problems;
        assert!(problems.len() == 1 && problems[0].contains(&expected), "{problems:?}");
    }
    fs::write(world.path(name), flipped(place + 40)).unwrap();
    let set = open(&world, "records", Split::Train, OPTIONS, 1);
    let first_of_part = (0..set.len()).find(|&index| set.instance(0, index).is_err());
    let error = set.instance(0, first_of_part.unwrap()).unwrap_err().to_string();
    assert!(error.contains(&format!("record 2 at byte {place}: the payload does not fit")), "{error}");
}
