use std::fs;
use std::path::Path;

use bessemer_data::Split;
use bessemer_data::text::{Format, InstanceOptions, PretrainingSet, verify};
use bessemer_data::tfrecord::frame;

use crate::world::World;

const RECORDS: &str = "records/train/part-00001-of-00003.tfrecord";
const SHARD: &str = "shards/train/part-00001-of-00003.tokens";

/// What `verify` finds after a file was changed.
fn problems(world: &World, name: &str, change: impl Fn(Vec<u8>) -> Vec<u8>) -> Vec<String> {
    let path = world.path(name);
    let good = fs::read(&path).unwrap();
    fs::write(&path, change(good.clone())).unwrap();
    let folder = world.path(name.split('/').next().unwrap());
    let report = verify(&folder, 2, &|_| ()).unwrap();
    fs::write(&path, good).unwrap();
    assert!(!report.is_clean());
    report.problems
}

#[track_caller]
fn check(problems: &[String], expected: &[&str]) {
    assert_eq!(problems.len(), 1, "{problems:?}");
    for part in expected {
        assert!(problems[0].contains(part), "{part} is missing in {}", problems[0]);
    }
}

fn flipped(mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
    bytes[at] ^= 4;
    bytes
}

/// Where the second record begins.
fn second(bytes: &[u8]) -> usize {
    16 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize
}

#[test]
fn damaged_records_are_named_with_number_and_offset() {
    let world = World::new();
    world.prepare("records", Format::Tfrecord);
    let place = second(&fs::read(world.path(RECORDS)).unwrap());
    let at = format!("{RECORDS}: record 2 at byte {place}: ");
    check(&problems(&world, RECORDS, |b| flipped(b, place + 40)), &[&at, "the payload does not fit its checksum"]);
    check(&problems(&world, RECORDS, |b| flipped(b, place + 1)), &[&at, "the length does not fit its checksum"]);
    check(&problems(&world, RECORDS, |b| b[..place + 50].to_vec()), &[&at, "the file ends at byte"]);
    check(&problems(&world, RECORDS, |b| b[..place].to_vec()), &["records/train: ", "instances; expected"]);
    check(&problems(&world, RECORDS, |b| [b, frame(b"\x0a")].concat()), &["not a tf.train.Example"]);
    check(&problems(&world, RECORDS, |b| [b, frame(b"")].concat()), &["no feature `input_mask`"]);
}

#[test]
fn damaged_shards_are_named_with_offset() {
    let world = World::new();
    world.prepare("shards", Format::Shards);
    let at = |problem: &'static str| [SHARD, problem];
    check(&problems(&world, SHARD, |b| flipped(b, 0)), &at("not a token shard"));
    check(&problems(&world, SHARD, |b| flipped(b, 50)), &at("the header does not fit its checksum"));
    check(&problems(&world, SHARD, |b| flipped(b, 88)), &at("byte 88: "));
    check(&problems(&world, SHARD, |b| b[..b.len() - 1].to_vec()), &at("; expected "));
    check(&problems(&world, SHARD, |b| [b, vec![0]].concat()), &at("; expected "));
    check(&problems(&world, SHARD, |b| flipped(b.clone(), b.len() - 2)), &at("bounds of documents"));
    check(&problems(&world, SHARD, |_| vec![]), &at("within the header"));
}

#[test]
fn every_bad_file_has_its_line() {
    let world = World::new();
    world.prepare("shards", Format::Shards);
    for name in ["train/part-00000-of-00003.tokens", "val/part-00002-of-00003.tokens"] {
        fs::remove_file(world.path("shards").join(name)).unwrap();
    }
    let report = verify(&world.path("shards"), 2, &|_| ()).unwrap();
    assert_eq!(report.problems.len(), 2, "{:?}", report.problems);
    assert!(report.problems.iter().all(|problem| problem.contains("cannot open the file")));
    fs::remove_dir_all(world.path("shards/val")).unwrap();
    let report = verify(&world.path("shards"), 2, &|_| ()).unwrap();
    assert!(report.problems[1].contains("shards/val: no such folder"));
}

#[test]
fn training_stops_at_damage_with_its_place() {
    let world = World::new();
    world.prepare("records", Format::Tfrecord);
    let path = world.path("records/train/part-00000-of-00003.tfrecord");
    let good = fs::read(&path).unwrap();
    let place = second(&good);
    fs::write(&path, flipped(good, place + 40)).unwrap();
    let set = world.open("records", Split::Train);
    assert!(set.instance(0, 0).is_ok());
    let error = set.instance(0, 1).unwrap_err().to_string();
    assert!(error.contains(&format!("part-00000-of-00003.tfrecord: record 2 at byte {place}: ")), "{error}");
}

#[test]
fn ids_beyond_the_vocabulary_are_refused() {
    let world = World::new();
    world.prepare("records", Format::Tfrecord);
    let set = PretrainingSet::open_records(&world.path("records/train"), 100).unwrap();
    let error = set.instance(0, 0).unwrap_err().to_string();
    assert!(error.contains("record 1 at byte 0: `input_ids` has "), "{error}");
    assert!(error.contains("expected 0 to 99"), "{error}");
}

#[test]
fn lengths_must_be_those_of_the_records() {
    let world = World::new();
    world.prepare("records", Format::Tfrecord);
    let asked = InstanceOptions { sequence_length: 64, max_predictions: 20, ..InstanceOptions::default() };
    let error = PretrainingSet::open(&world.path("records"), Split::Train, Some(asked), 0).unwrap_err().to_string();
    let expected = "records of 64 tokens with 10 predictions; expected 64 tokens with 20 predictions";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn folders_without_a_data_set_are_refused() {
    let world = World::new();
    let error = |folder: &Path| PretrainingSet::open(folder, Split::Train, None, 0).unwrap_err().to_string();
    let nothing = "no text.json in it; expected a folder that `bessemer data prepare text` or `instances` has made";
    assert!(error(&world.path("text")).contains(nothing));
    assert!(error(&world.path("nowhere")).contains(nothing));
    world.prepare("shards", Format::Shards);
    let change = |name: &str, from: &str, to: &str| {
        let path = world.path("shards").join(name);
        let good = fs::read_to_string(&path).unwrap();
        fs::write(&path, good.replacen(from, to, 1)).unwrap();
        let found = error(&world.path("shards"));
        fs::write(&path, good).unwrap();
        found
    };
    assert!(change("vocab.txt", "faaa", "zzzz").contains("vocab.txt: not the vocabulary that the set was made with"));
    assert!(
        change("text.json", "\"version\": 1", "\"version\": 2").contains("text.json: of version 2; expected version 1")
    );
    assert!(change("text.json", "{", "[").contains("text.json: "));
}
