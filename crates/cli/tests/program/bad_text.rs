//! Text, records and weights of BERT that do not fit are reported in one line, with exit code 2.

use crate::common::{Ran, bessemer};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const VOCABULARY: &str = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\ndog\nsat\nran\n##s\n.\n,\n";
const RECORDS: &str = "out/train/part-00000-of-00001.tfrecord";
/// Sizes of the records, and of a run of seconds.
const SIZES: &str = "--set text.sequence_length=16 --set text.max_predictions=3 --set train.batch_size=1";

/// A folder with a vocabulary and a text of 12 short documents.
fn world() -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("vocab.txt"), VOCABULARY).unwrap();
    let document = |number: usize| format!("{}\n", "The cat sat.\nThe dogs ran, the cat sat.\n".repeat(1 + number));
    fs::write(folder.path().join("text.txt"), (0..12).map(document).collect::<String>()).unwrap();
    folder
}

fn prepare(folder: &Path, arguments: &str) -> Ran {
    let sizes = "--seq-length 16 --max-predictions 3 --shards 1";
    bessemer(folder, &format!("data prepare text text.txt --vocab vocab.txt --out out {sizes} {arguments}"))
}

fn train(folder: &Path, arguments: &str) -> Ran {
    bessemer(folder, &format!("train --data out --quiet {SIZES} {arguments}"))
}

#[test]
fn vocabularies_are_checked_by_line() {
    let folder = world();
    let with = |vocabulary: String| {
        fs::write(folder.path().join("vocab.txt"), vocabulary).unwrap();
        prepare(folder.path(), "")
    };
    for name in ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] {
        let reported = format!("vocab.txt: none of the 13 lines is {name}");
        with(VOCABULARY.replace(name, "other")).fails(2, &[&reported, "one token a line"]);
    }
    with(format!("{VOCABULARY}cat\n")).fails(2, &["vocab.txt: line 14: `cat` is on line 7 already"]);
    with(String::new()).fails(2, &["vocab.txt: the vocabulary is empty"]);
    assert!(!folder.path().join("out").exists(), "nothing is begun");
}

#[test]
fn texts_must_be_utf8_and_hold_documents() {
    let folder = world();
    let with = |text: &[u8]| {
        fs::write(folder.path().join("text.txt"), text).unwrap();
        let prepared = prepare(folder.path(), "--heldout 0");
        assert!(!folder.path().join("out").exists(), "nothing is left");
        prepared
    };
    with(b"The cat sat.\nThe d\xffg ran.\n").fails(2, &["text.txt: byte 18: not UTF-8"]);
    with(b"").fails(2, &["text.txt: only empty files"]);
    with(b"\n \n\n").fails(2, &["documents with text: 0", "at least 2 in each split"]);
    with(b"The cat sat.\nThe cat ran.\n").fails(2, &["documents with text: 1", "at least 2 in each split"]);
    fs::create_dir(folder.path().join("nothing")).unwrap();
    bessemer(folder.path(), "data prepare text nothing --vocab vocab.txt --out out")
        .fails(2, &["nothing: no file in it"]);
}

#[test]
fn records_that_do_not_fit_stop_the_run() {
    let folder = world();
    prepare(folder.path(), "--format tfrecord --dupe-factor 1 --heldout 0").ok();
    let path = folder.path().join(RECORDS);
    let good = fs::read(&path).unwrap();

    let few: String = VOCABULARY.lines().take(8).map(|token| format!("{token}\n")).collect();
    fs::write(folder.path().join("few.txt"), few).unwrap();
    let run =
        |arguments: &str| train(folder.path(), &format!("bert-tiny --epochs 1 --set text.masking=static {arguments}"));
    let reported = [RECORDS, "at byte", "`input_ids` has", "expected 0 to 7"];
    run("--out few --set text.vocab=few.txt").fails(2, &reported);

    let mut flipped = good.clone();
    let length = u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let second = length + 16;
    flipped[second + 40] ^= 4;
    fs::write(&path, flipped).unwrap();
    let reported = format!("{RECORDS}: record 2 at byte {second}: the payload does not fit its checksum");
    run("--out damaged").fails(2, &[&reported]);
    let skipping = run("--out skipping --on-bad-sample skip").ok().out;
    assert!(skipping.contains("1 bad sample,"), "{skipping}");

    fs::write(&path, &good[..good.len() - 1]).unwrap();
    run("--out cut").fails(2, &[RECORDS, "the file ends at byte"]);
    fs::write(&path, "").unwrap();
    run("--out none").fails(2, &["no record in any file"]);
}

#[test]
fn sequences_beyond_the_positions_are_refused() {
    let folder = world();
    let long = "--seq-length 600 --max-predictions 20 --shards 1 --heldout 0.5";
    bessemer(folder.path(), &format!("data prepare text text.txt --vocab vocab.txt --out out {long}")).ok();
    bessemer(folder.path(), "train bert-tiny --data out --quiet --set text.sequence_length=600 --steps 1 --out run")
        .fails(2, &["the length of sequences is 600; the model has 512 positions"]);
    assert!(!folder.path().join("run").exists(), "nothing is begun");
}

#[test]
fn weights_of_another_size_are_refused() {
    let folder = world();
    prepare(folder.path(), "--heldout 0.5").ok();
    let run = |arguments: &str| train(folder.path(), &format!("--steps 1 {arguments}"));
    run("bert-tiny --out run").ok();
    let reported = ["bert-mini", "run", "holds a BERT of 2 layers, 128 wide: bert-tiny"];
    run("bert-mini --out other --weights run").fails(2, &reported);
    run("bert-mini --out other --init-from run").fails(2, &reported);
    bessemer(folder.path(), "eval bert-mini --weights run --data out")
        .fails(2, &["bert-mini", "step-000001 holds bert-tiny"]);
    let words = ["run", "word_embeddings.weight` is [16, 128] in the file and [13, 128] in the model"];
    let exact = "bert-tiny --out other --set model.vocab_multiple=1";
    run(&format!("{exact} --weights run")).fails(2, &words);
    run(&format!("{exact} --init-from run")).fails(2, &words);
    assert!(!folder.path().join("other").exists(), "nothing is begun");
}
