use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use bessemer_data::text::{Documents, Format, InstanceOptions, PretrainingSet, Progress, prepare, verify};
use bessemer_data::{DataError, Split};

use crate::world::{DOCUMENTS, World, instances, run};

/// Content and time of every file below a folder.
fn files(folder: &Path) -> BTreeMap<String, (Vec<u8>, SystemTime)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if entry.path().is_dir() {
            found.extend(files(&entry.path()).into_iter().map(|(inner, file)| (format!("{name}/{inner}"), file)));
        } else {
            found.insert(name, (fs::read(entry.path()).unwrap(), entry.metadata().unwrap().modified().unwrap()));
        }
    }
    found
}

fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    files(folder).into_iter().map(|(name, (content, _))| (name, content)).collect()
}

#[test]
fn threads_do_not_matter() {
    let world = World::new();
    for format in [Format::Shards, Format::Tfrecord, Format::ElectraTfrecord] {
        for threads in [1, 2, 5] {
            let mut preparation = world.preparation(&format!("{format:?}-{threads}"), format);
            preparation.threads = threads;
            run(&preparation);
        }
        let of = |threads| contents(&world.path(&format!("{format:?}-{threads}")));
        assert!(of(1) == of(2) && of(1) == of(5));
        let expected = ["text.json", "vocab.txt"].len() + 2 * 3;
        assert_eq!(of(1).len(), expected, "{:?}", of(1).keys());
    }
}

#[test]
fn counts_are_told() {
    let world = World::new();
    let tokens = world.origins.iter().flatten().count() as u64;
    for (out, format) in [("shards", Format::Shards), ("records", Format::Tfrecord)] {
        let reported = Mutex::new(BTreeSet::new());
        let preparation = world.preparation(out, format);
        let notify = |progress: Progress| {
            reported.lock().unwrap().insert((progress.what, progress.done, progress.all));
        };
        let counts = prepare(&preparation, &notify, &|| false);
        let counts = counts.unwrap();
        assert!(reported.into_inner().unwrap().contains(&("shards", 3, 3)));
        assert_eq!(counts.iter().map(|(split, _)| *split).collect::<Vec<_>>(), [Split::Train, Split::Val]);
        assert_eq!(counts.iter().map(|(_, found)| found.documents).sum::<Option<u64>>(), Some(DOCUMENTS as u64));
        assert_eq!(counts.iter().map(|(_, found)| found.tokens).sum::<u64>(), tokens);
        for (split, found) in counts {
            let set = world.open(out, split);
            assert_eq!(found.instances, set.len() as u64);
            assert_eq!(found.unigram_entropy, set.unigram_entropy(2).unwrap());
        }
    }
}

/// Each word of this text occurs once, so that all are equally frequent.
#[test]
fn the_entropy_of_equal_frequencies_is_the_logarithm_of_their_number() {
    let world = World::new();
    let counts = world.prepare("shards", Format::Shards);
    for (_, found) in counts {
        assert!((found.unigram_entropy - (found.tokens as f64).ln()).abs() < 1e-9);
    }
}

#[test]
fn held_out_documents_are_disjoint_and_follow_their_text() {
    let world = World::new();
    let documents = |out: &str, split| {
        let all = instances(&world.open(out, split), 0);
        all.iter().map(|instance| world.origins(instance)[0][0].0).collect::<BTreeSet<_>>()
    };
    world.prepare("a", Format::Shards);
    let (train, val) = (documents("a", Split::Train), documents("a", Split::Val));
    assert!(train.is_disjoint(&val));
    assert_eq!(train.union(&val).count(), DOCUMENTS);
    assert!((4..=24).contains(&val.len()), "{}", val.len());
    let mut other = world.preparation("b", Format::Tfrecord);
    other.seed += 1;
    other.parts = Some(5);
    run(&other);
    assert_eq!(documents("b", Split::Val), val);
    let mut none = world.preparation("c", Format::Shards);
    none.heldout = 0.0;
    assert_eq!(run(&none).len(), 1);
    let error = PretrainingSet::open(&world.path("c"), Split::Val, None, 0).unwrap_err().to_string();
    assert!(error.contains("c/val: no such folder; expected a data set prepared with documents held out"), "{error}");
}

#[test]
fn whole_files_can_be_documents() {
    let world = World::new();
    let mut preparation = world.preparation("shards", Format::Shards);
    preparation.documents = Documents::Files;
    preparation.heldout = 0.0;
    assert_eq!(run(&preparation)[0].1.documents, Some(2));
}

/// As after an interruption: parts are missing, partial files are left, and the manifest has no counts.
fn interrupt(folder: &Path, lost: &[&str]) {
    let manifest = folder.join("text.json");
    let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    value["splits"] = serde_json::json!({});
    fs::write(&manifest, value.to_string()).unwrap();
    for name in lost {
        fs::rename(folder.join(name), folder.join(name).with_extension("partial")).unwrap();
    }
}

#[test]
fn interrupted_preparations_go_on() {
    let world = World::new();
    for (format, kind) in
        [(Format::Shards, "tokens"), (Format::Tfrecord, "tfrecord"), (Format::ElectraTfrecord, "tfrecord")]
    {
        let out = format!("{format:?}");
        let folder = world.path(&out);
        world.prepare(&out, format);
        let before = files(&folder);
        interrupt(&folder, &[&format!("train/part-00001-of-00003.{kind}")]);
        let damaged = folder.join(format!("val/part-00002-of-00003.{kind}"));
        let good = fs::read(&damaged).unwrap();
        fs::write(&damaged, &good[..good.len() - 5]).unwrap();

        let error = PretrainingSet::open(&folder, Split::Train, None, 0).unwrap_err().to_string();
        assert!(error.contains("the preparation was not completed"), "{error}");
        world.prepare(&out, format);
        let after = files(&folder);
        assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
        for (name, (content, time)) in &before {
            assert!(*content == after[name].0, "{name}");
            let kept = name.contains("00000-of");
            assert!(!kept || *time == after[name].1, "{name} was written again");
        }
    }
}

#[test]
fn completed_preparations_are_left_alone() {
    let world = World::new();
    for format in [Format::Shards, Format::Tfrecord, Format::ElectraTfrecord] {
        let out = format!("{format:?}");
        let counts = world.prepare(&out, format);
        let before = files(&world.path(&out));
        assert_eq!(world.prepare(&out, format), counts);
        assert!(files(&world.path(&out)) == before);
    }
}

#[test]
fn folders_of_something_else_are_refused() {
    let world = World::new();
    let error = |preparation: &bessemer_data::text::Preparation| {
        prepare(preparation, &|_| (), &|| false).unwrap_err().to_string()
    };
    world.prepare("shards", Format::Shards);
    let mut other = world.preparation("shards", Format::Shards);
    other.seed += 1;
    let text = error(&other);
    assert!(text.contains("shards: the folder holds a data set of other text, vocabulary or settings"), "{text}");
    let text = error(&world.preparation("text", Format::Shards));
    assert!(text.contains("text: the folder is not empty; expected a new or empty folder"), "{text}");
    fs::write(world.path("text/c.txt"), "more\n").unwrap();
    assert!(error(&world.preparation("shards", Format::Shards)).contains("of other text"));
}

#[test]
fn settings_out_of_range_are_refused() {
    let world = World::new();
    let check = |change: &dyn Fn(&mut bessemer_data::text::Preparation), expected: &str| {
        let mut preparation = world.preparation("out", Format::Tfrecord);
        change(&mut preparation);
        let text = prepare(&preparation, &|_| (), &|| false).unwrap_err().to_string();
        assert!(text.contains(expected), "{text}");
        assert!(!world.path("out").exists(), "nothing is begun");
    };
    let options = InstanceOptions::default();
    check(&|p| p.instances = InstanceOptions { sequence_length: 4, ..options }, "sequence length is 4");
    check(&|p| p.instances = InstanceOptions { max_predictions: 0, ..options }, "predictions is 0");
    check(
        &|p| p.instances = InstanceOptions { max_predictions: 129, ..options },
        "predictions is 129, expected 1 to 128",
    );
    check(&|p| p.instances = InstanceOptions { masked_lm_probability: 0.0, ..options }, "masked-LM probability is 0");
    check(&|p| p.instances = InstanceOptions { masked_lm_probability: f64::NAN, ..options }, "probability is NaN");
    check(&|p| p.instances = InstanceOptions { short_sequence_probability: 1.5, ..options }, "probability is 1.5");
    check(&|p| p.dupe_factor = 0, "dupe factor is 0");
    check(&|p| p.heldout = 1.0, "held-out share is 1");
    check(&|p| p.heldout = -0.1, "held-out share is -0.1");
    check(&|p| p.parts = Some(0), "shards is 0");
    check(&|p| p.inputs = vec!["nowhere".into()], "nowhere: no such file or folder");
    check(&|p| p.vocabulary = "nowhere".into(), "nowhere: cannot read the vocabulary");
}

#[test]
fn too_few_documents_are_refused() {
    let world = World::new();
    for (text, heldout, expected) in [
        ("aaaa\n", 0.0, "train: documents with text: 1; expected at least 2 in each split"),
        ("\u{0}\u{7f}\n\n", 0.0, "train: documents with text: 0"),
        ("aaaa\n\nbbbb\n\ncccc\n", 1e-9, "val: documents with text: 0"),
    ] {
        let file = world.path("few.txt");
        fs::write(&file, text).unwrap();
        let mut preparation = world.preparation("few", Format::Shards);
        (preparation.inputs, preparation.heldout) = (vec![file], heldout);
        let error: DataError = prepare(&preparation, &|_| (), &|| false).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(!world.path("few").exists());
    }
}

#[test]
fn text_that_is_not_utf_8_is_placed() {
    let world = World::new();
    let file = world.path("text/a.txt");
    let mut bytes = fs::read(&file).unwrap();
    bytes[1234] = 0xff;
    fs::write(&file, bytes).unwrap();
    let error = prepare(&world.preparation("out", Format::Shards), &|_| (), &|| false).unwrap_err().to_string();
    assert!(error.contains("a.txt: byte 1234: not UTF-8"), "{error}");
    assert!(!world.path("out").exists(), "nothing is left");
}

#[test]
fn what_is_stopped_or_fails_leaves_nothing() {
    let world = World::new();
    let asked = AtomicUsize::new(0);
    for format in [Format::Shards, Format::Tfrecord, Format::ElectraTfrecord] {
        // At the first document, in the middle of the work, and before the last look at it.
        for times in [0, 7, DOCUMENTS + 1] {
            asked.store(0, Ordering::Relaxed);
            let preparation = world.preparation("new/deep/out", format);
            let stop = || asked.fetch_add(1, Ordering::Relaxed) >= times;
            let error = prepare(&preparation, &|_| (), &stop).unwrap_err();
            assert!(matches!(error, DataError::Stopped { .. }), "{error}");
            assert!(!world.path("new").exists(), "{times}");
        }
    }
    fs::create_dir(world.path("empty")).unwrap();
    let text = fs::read(world.path("text/a.txt")).unwrap();
    fs::write(world.path("text/a.txt"), [&text[..], b"\xff"].concat()).unwrap();
    prepare(&world.preparation("empty", Format::Shards), &|_| (), &|| false).unwrap_err();
    assert_eq!(fs::read_dir(world.path("empty")).unwrap().count(), 0, "a folder that was there stays");
}

/// Files as Google's program writes them have no manifest beside them.
#[test]
fn records_of_another_origin_can_be_opened() {
    let world = World::new();
    world.prepare("records", Format::Tfrecord);
    let size = world.origins.len();
    let set = PretrainingSet::open_records(&world.path("records/train"), size).unwrap();
    assert_eq!(set.identity(), world.open("records", Split::Train).identity());
    assert_eq!(set.instance(0, 3).unwrap(), world.open("records", Split::Train).instance(5, 3).unwrap());
    let error = PretrainingSet::open_records(&world.path("text"), size).unwrap_err().to_string();
    assert!(error.contains("text: no file in it whose name contains `tfrecord`"), "{error}");
    assert!(verify(&world.path("records"), 1, &|_| ()).unwrap().is_clean());
}
