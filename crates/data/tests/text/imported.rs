//! Instances that other programs made, of files that `fixtures/make_instances.py` writes with h5py, pyarrow and TensorFlow.

use std::fs;
use std::path::{Path, PathBuf};

use bessemer_data::text::{
    Format, Import, Instance, PairMasking, PretrainingSet, SplitCounts, VOCABULARY_FILE, Vocabulary, verify,
};
use bessemer_data::{DataError, Split};

use crate::world::{World, instances};

const HDF5: &str = "nvidia.hdf5";
const BINS: &str = "lddl";
const PAIRS: &str = "pairs.parquet";
const RECORDS: &str = "google.tfrecord.gz";
const COUNT: usize = 50;

/// The first instance, as the script drew it.
const FIRST: &str = "[CLS] be [MASK] ##fo [SEP] [MASK] ##gu bi ##eu fi au ce ##da ##co [SEP]";
const FIRST_SEGMENT: usize = 5;
const FIRST_MASKED: [(u32, u32); 2] = [(2, 14), (5, 51)];
const FIRST_IS_RANDOM: bool = false;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/instances").join(name)
}

/// To be imported to a new folder.
fn import(inputs: &[PathBuf], out: &Path) -> Import {
    Import {
        inputs: inputs.to_vec(),
        val: Vec::new(),
        vocabulary: fixture(VOCABULARY_FILE),
        out: out.to_owned(),
        sequence_length: None,
        predictions: None,
        masking: None,
        seed: 3,
        threads: 2,
    }
}

fn run(import: &Import) -> Result<Vec<(Split, SplitCounts)>, DataError> {
    import.run(&|_| (), &|| false)
}

fn of(folder: &Path, split: Split) -> Vec<Instance> {
    instances(&PretrainingSet::open(folder, split, None, 0).unwrap(), 0)
}

/// What is imported of files with these names.
fn imported(names: &[&str], change: impl Fn(&mut Import)) -> (tempfile::TempDir, Vec<Instance>) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let mut import = import(&names.iter().map(|name| fixture(name)).collect::<Vec<_>>(), &out);
    change(&mut import);
    run(&import).unwrap();
    let found = of(&out, Split::Train);
    (folder, found)
}

fn sorted(mut instances: Vec<Instance>) -> Vec<Instance> {
    instances.sort_by(|a, b| (&a.tokens, &a.masked).cmp(&(&b.tokens, &b.masked)));
    instances
}

#[test]
fn all_programs_keep_the_same_instances() {
    let (folder, hdf5) = imported(&[HDF5], |_| ());
    let (_, records) = imported(&[RECORDS], |_| ());
    let (_, bins) = imported(&[BINS], |import| (import.sequence_length, import.predictions) = (Some(32), Some(5)));
    assert_eq!(hdf5.len(), COUNT);
    assert_eq!(hdf5, records);
    assert!(bins.iter().take_while(|instance| instance.tokens.len() <= 16).count() > 10, "bins keep their order");
    assert_eq!(sorted(bins), sorted(hdf5.clone()));

    let vocabulary = Vocabulary::open(&fixture(VOCABULARY_FILE)).unwrap();
    let first = &hdf5[0];
    let words: Vec<&str> = first.tokens.iter().map(|&id| vocabulary.token(id)).collect();
    assert_eq!(words.join(" "), FIRST);
    assert_eq!(first.segments.iter().filter(|&&segment| segment == 0).count(), FIRST_SEGMENT);
    assert_eq!(first.masked, FIRST_MASKED);
    assert_eq!(first.random_next, FIRST_IS_RANDOM);

    let out = folder.path().join("out");
    let report = verify(&out, 2, &|_| ()).unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    let [(Split::Train, counts)] = report.splits[..] else { panic!("{:?}", report.splits) };
    assert_eq!((counts.documents, counts.sentences, counts.instances), (None, None, COUNT as u64));
    let tokens: usize = hdf5.iter().map(|instance| instance.tokens.len() - 3).sum();
    assert_eq!(counts.tokens, tokens as u64);
}

#[test]
fn pairs_without_masks_get_some() {
    let (_, masked) = imported(&[HDF5], |_| ());
    let masking = Some(PairMasking { dupe_factor: 3, ..PairMasking::default() });
    let (_, drawn) = imported(&[PAIRS], |import| import.masking = masking);
    assert_eq!(drawn.len(), 3 * COUNT);
    let mut differ = 0;
    for (pair, given) in drawn.chunks(3).zip(&masked) {
        for instance in pair {
            assert_eq!(instance.original_tokens(), given.original_tokens());
            assert_eq!((&instance.segments, instance.random_next), (&given.segments, given.random_next));
            let words = instance.tokens.len() - 3;
            let wanted = ((instance.tokens.len() as f64 * 0.15).round_ties_even() as usize).max(1).min(words);
            assert_eq!(instance.masked.len(), wanted);
        }
        differ += usize::from(pair[0].masked != pair[1].masked);
    }
    assert!(differ > COUNT / 2, "each time differently");
    let (_, again) = imported(&[PAIRS], |import| {
        import.masking = masking;
        import.threads = 1;
    });
    assert_eq!(drawn, again);
}

/// File `i` of a split goes to part `i` modulo the number of files to train on.
#[test]
fn splits_have_the_same_number_of_parts() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let mut import = import(&[fixture(HDF5), fixture(RECORDS)], &out);
    import.val = vec![fixture(RECORDS), fixture(HDF5), fixture(HDF5)];
    let counts = run(&import).unwrap();
    let found: Vec<_> = counts.iter().map(|(split, counts)| (*split, counts.instances)).collect();
    assert_eq!(found, [(Split::Train, 2 * COUNT as u64), (Split::Val, 3 * COUNT as u64)]);
    assert_eq!(fs::read_dir(out.join("val")).unwrap().count(), 2);
    assert_eq!(of(&out, Split::Val).len(), 3 * COUNT);

    import.out = folder.path().join("one");
    import.threads = 1;
    run(&import).unwrap();
    for name in ["text.json", "train/part-00001-of-00002.tfrecord", "val/part-00000-of-00002.tfrecord"] {
        assert_eq!(fs::read(out.join(name)).unwrap(), fs::read(import.out.join(name)).unwrap(), "{name}");
    }
}

/// Files that the program itself writes come back.
#[test]
fn own_records_stay_as_they_are() {
    let world = World::new();
    world.prepare("records", Format::Tfrecord);
    let mut import = import(&[world.path("records/train")], &world.path("again"));
    import.vocabulary = world.path("vocab.txt");
    run(&import).unwrap();
    for part in 0..3 {
        let name = format!("train/part-{part:05}-of-00003.tfrecord");
        assert_eq!(
            fs::read(world.path("records").join(&name)).unwrap(),
            fs::read(world.path("again").join(&name)).unwrap()
        );
    }
}

/// The error of an import that is changed before it runs; it must leave nothing behind.
fn error(name: &str, change: impl Fn(&mut Import)) -> String {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("new/out");
    let mut import = import(&[fixture(name)], &out);
    change(&mut import);
    let error = run(&import).unwrap_err();
    assert!(error.is_usage(), "{error}");
    assert!(!folder.path().join("new").exists(), "{error}");
    error.to_string()
}

#[test]
fn what_does_not_fit_is_named_with_its_place() {
    let check = |name, change: &dyn Fn(&mut Import), expected: &[&str]| {
        let found = error(name, change);
        for part in expected {
            assert!(found.contains(part), "{part} is missing in {found}");
        }
    };
    let short = |import: &mut Import| import.sequence_length = Some(10);
    check(
        HDF5,
        &short,
        &["nvidia.hdf5: row 1: a sequence of ", " tokens; expected at most 10, as asked for, or as in the first file"],
    );
    check(RECORDS, &short, &["google.tfrecord.gz: record 1 at byte 0: a sequence of "]);
    let short = |import: &mut Import| (import.sequence_length, import.predictions) = (Some(10), Some(5));
    check(BINS, &short, &["part.0.parquet_0: row ", "a sequence of "]);
    check(HDF5, &|import| import.predictions = Some(2), &[" tokens to predict; expected at most 2"]);
    let dupes = |dupe_factor| Some(PairMasking { dupe_factor, ..PairMasking::default() });
    check(PAIRS, &|import| import.masking = dupes(0), &["dupe factor is 0"]);
    check(HDF5, &|import| import.masking = dupes(2), &["nvidia.hdf5: all instances have masks already"]);
    let only_length = |import: &mut Import| import.sequence_length = Some(512);
    check(PAIRS, &only_length, &["sequence length is 512, expected both lengths, as the files do not say any: 20"]);
    check(PAIRS, &|import| import.predictions = Some(80), &["predictions is 80, expected both lengths"]);
    check(HDF5, &|import| import.sequence_length = Some(2), &["sequence length is 2"]);
    let folder = tempfile::tempdir().unwrap();
    for (training, test) in [("wiki_training_0.hdf5", "wiki_test_0.hdf5"), ("training/a.hdf5", "test/a.hdf5")] {
        let both = folder.path().join("test").join(test.replace('/', "-"));
        for name in [training, test] {
            fs::create_dir_all(both.join(name).parent().unwrap()).unwrap();
            fs::copy(fixture(HDF5), both.join(name)).unwrap();
        }
        let files = [training, test, "of the files to train on, beside a held-out one", "after --val"];
        check(HDF5, &|import| import.inputs = vec![both.clone()], &files);
        check(HDF5, &|import| import.inputs = vec![both.join(test), both.join(training)], &files);
        let apart = Import { val: vec![both.join(test)], ..import(&[both.join(training)], &both.join("out")) };
        assert!(run(&apart).is_ok());
    }
    let named_so = folder.path().join("my_test_corpus_training_0.hdf5");
    fs::copy(fixture(HDF5), &named_so).unwrap();
    assert!(run(&import(&[named_so], &folder.path().join("named"))).is_ok());
    let empty = folder.path().join("empty.tfrecord");
    fs::write(&empty, "").unwrap();
    check(HDF5, &|import| import.val = vec![empty.clone()], &["empty.tfrecord: no instance in it, nor in any other"]);
    check("nothing", &|_| (), &["nothing: no such file or folder"]);
    check(VOCABULARY_FILE, &|_| (), &["vocab.txt: record 1 at byte 0: the length does not fit its checksum"]);
    check("..", &|import| import.inputs = vec![fixture("../decode")], &["no file in it whose name contains `.hdf5`"]);

    // Vocabularies of other tokens, of fewer, and in another order.
    let other = folder.path().join(VOCABULARY_FILE);
    let vocabulary = fs::read_to_string(fixture(VOCABULARY_FILE)).unwrap();
    let with_other = |import: &mut Import| import.vocabulary = other.clone();
    fs::write(&other, vocabulary.replace("##ba\n", "##zz\n")).unwrap();
    check(BINS, &with_other, &["row ", "the token `##ba` is not in the vocabulary"]);
    fs::write(&other, vocabulary.lines().take(60).collect::<Vec<_>>().join("\n")).unwrap();
    check(HDF5, &with_other, &["row ", "`input_ids` has ", "expected 0 to 59"]);
    fs::write(&other, vocabulary.replace("[PAD]\n[UNK]\n", "[UNK]\n[PAD]\n")).unwrap();
    assert!(run(&Import { vocabulary: other.clone(), ..import(&[fixture(HDF5)], &folder.path().join("out")) }).is_ok());
    fs::write(&other, vocabulary.replace("[CLS]\n[SEP]\n", "[SEP]\n[CLS]\n")).unwrap();
    check(HDF5, &with_other, &["row 1: the sequence begins with `[SEP]` instead of [CLS]; expected instances"]);
}

#[test]
fn a_folder_with_content_is_refused_and_a_stop_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let import = import(&[fixture(HDF5)], &folder.path().join("out"));
    assert!(matches!(import.run(&|_| (), &|| true), Err(DataError::Stopped { .. })));
    assert!(!import.out.exists());
    run(&import).unwrap();
    let error = run(&import).unwrap_err().to_string();
    assert!(error.contains("the folder is not empty"), "{error}");
}

/// Damaged files give an error or, where nothing tells, other instances, but no panic and no folder beside an error.
#[test]
fn damaged_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for name in [HDF5, "lddl/part.0.parquet_1", PAIRS, RECORDS] {
        let good = fs::read(fixture(name)).unwrap();
        let path = folder.path().join(Path::new(name).file_name().unwrap());
        let out = folder.path().join("out");
        let attempt = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let result = run(&import(std::slice::from_ref(&path), &out));
            match &result {
                Ok(_) => fs::remove_dir_all(&out).unwrap(),
                Err(error) => {
                    assert!(!out.exists() && error.to_string().contains(&path.display().to_string()), "{error}")
                }
            }
            result
        };
        assert!(attempt(&good).is_ok());
        for length in (0..good.len()).step_by(good.len() / 40) {
            assert!(attempt(&good[..length]).is_err(), "{name}: {length} bytes of {}", good.len());
        }
        let mut noticed = 0;
        for at in (0..good.len()).step_by(good.len() / 400 + 1) {
            let mut bytes = good.clone();
            bytes[at] ^= 0x41;
            noticed += usize::from(attempt(&bytes).is_err());
        }
        assert!(noticed > 20, "{name}: {noticed}");
    }
}
