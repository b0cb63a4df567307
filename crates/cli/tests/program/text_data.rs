//! Text is prepared, checked, shown and cut into tokens; what is wrong is reported in one line.

use crate::common::{Ran, bessemer};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

const VOCABULARY: &str = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\ndog\nsat\nran\n##s\n.\n,\n";
const PREPARE: &str =
    "data prepare text text --vocab vocab.txt --out out --seq-length 16 --max-predictions 3 --heldout 0.3";

/// A folder with a vocabulary and a text of 30 short documents.
fn world() -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("vocab.txt"), VOCABULARY).unwrap();
    fs::create_dir(folder.path().join("text")).unwrap();
    let document = |number: usize| {
        let animal = ["cat", "dogs"][number % 2];
        format!("The {animal} sat. {}\n\n", format!("The {animal} ran, the cat sat. ").repeat(1 + number))
    };
    let text: String = (0..30).map(document).collect();
    fs::write(folder.path().join("text/a.txt"), text).unwrap();
    folder
}

fn tokenize(folder: &Path, arguments: &str, input: &[u8]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bessemer"));
    command.current_dir(folder).args(["data", "tokenize"]).args(arguments.split_whitespace());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

#[test]
fn text_is_prepared_checked_and_shown() {
    for format in ["shards", "tfrecord"] {
        let folder = world();
        let run = |arguments: &str| bessemer(folder.path(), arguments);
        let prepared = run(&format!("{PREPARE} --format {format} --shards 2")).ok().out;
        let lines: Vec<&str> = prepared.lines().collect();
        assert_eq!(lines.len(), 4, "{prepared}");
        for (line, name) in lines.iter().zip(["split", "train", "val", "out: "]) {
            assert!(line.starts_with(name), "{prepared}");
        }
        let number = |line: &str, column: usize| line.split_whitespace().nth(column).unwrap().parse::<usize>().unwrap();
        assert_eq!(number(lines[1], 1) + number(lines[2], 1), 30);
        assert_eq!(number(lines[1], 2) + number(lines[2], 2), 30 + (1..=30).sum::<usize>());

        let verified = run("data verify text out").ok().out;
        assert_eq!(verified.lines().collect::<Vec<_>>(), lines[..3]);
        let json: Value = serde_json::from_str(&run("data verify text out --json").ok().out).unwrap();
        assert_eq!(json["problems"], serde_json::json!([]));

        let sample = run("data sample text out --number 2 --split val").ok().out;
        assert_eq!(sample.lines().filter(|line| line.starts_with("  A: [CLS] ") && line.contains(" [SEP]")).count(), 2);
        assert_eq!(sample.lines().filter(|line| line.starts_with("  B: ")).count(), 2);
        assert!(sample.contains("{") && sample.contains(" in val: "), "{sample}");
    }
}

#[test]
fn text_is_prepared_for_electra() {
    let folder = world();
    let run = |arguments: &str| bessemer(folder.path(), arguments);
    let records = PREPARE.replace("--max-predictions 3", "--format tfrecord --for electra");
    run(&format!("{records} --whole-word")).fails(2, &["--whole-word: records for ELECTRA hold no masks"]);
    let prepared = run(&records).ok().out;
    let verified = run("data verify text out").ok().out;
    assert_eq!(verified.lines().collect::<Vec<_>>(), prepared.lines().take(3).collect::<Vec<_>>());
    let settings: Value = serde_json::from_slice(&fs::read(folder.path().join("out/text.json")).unwrap()).unwrap();
    assert_eq!(settings["format"], "electra_tfrecord");
    let options = &settings["options"];
    assert_eq!((&options["dupe_factor"], &options["instances"]["max_predictions"]), (&1.into(), &2.into()));
    assert_eq!(options["instances"]["short_sequence_probability"], 0.05);
    run("data sample text out --for bert").fails(2, &["out: records for ELECTRA; expected token shards, or records"]);

    run(&format!("{} --for electra", PREPARE.replace("--out out", "--out shards"))).ok();
    for sample in ["out", "shards --for electra"] {
        let sample = run(&format!("data sample text {sample} --number 5")).ok().out;
        assert_eq!(sample.lines().filter(|line| line.starts_with("  A: [CLS] ")).count(), 5);
        assert!(sample.contains("{") && sample.contains(" of them once more"), "{sample}");
    }
}

#[test]
fn damage_is_listed_with_exit_code_2() {
    let folder = world();
    let run = |arguments: &str| bessemer(folder.path(), arguments);
    run(&format!("{PREPARE} --format tfrecord --shards 2")).ok();
    for name in ["train/part-00000-of-00002.tfrecord", "val/part-00001-of-00002.tfrecord"] {
        let path = folder.path().join("out").join(name);
        let mut bytes = fs::read(&path).unwrap();
        bytes[30] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    let found = run("data verify text out").fails(2, &["out: 2 problems, listed above"]);
    let problems = found.out.lines().filter(|line| line.contains("record 1 at byte 0: the payload does not fit"));
    assert_eq!(problems.count(), 2, "{}", found.out);
    run("data verify text text").fails(2, &["text: no text.json in it"]);
    run("data sample text text").fails(2, &["text: no text.json in it"]);
}

#[test]
fn what_cannot_be_prepared_is_told() {
    let folder = world();
    let run = |arguments: &str| bessemer(folder.path(), arguments);
    run("data prepare text nowhere --vocab vocab.txt --out out").fails(2, &["nowhere: no such file or folder"]);
    run("data prepare text text --vocab text/a.txt --out out").fails(2, &["text/a.txt: line 2: the line is empty"]);
    run(&format!("{PREPARE} --dupe-factor 0")).fails(2, &["dupe factor is 0, expected 1 to"]);
    run("data prepare text --vocab vocab.txt --out out").fails(2, &["<IN>"]);
    run("data prepare pictures").fails(2, &["'pictures'"]);
    assert!(!folder.path().join("out").exists());
    run(PREPARE).ok();
    run(&format!("{PREPARE} --whole-word")).fails(2, &["out: the folder holds a data set of other text"]);
    run(PREPARE).ok();
    run(&format!("{} --heldout 0", PREPARE.replace("--heldout 0.3", "").replace("--out out", "--out all"))).ok();
    run("data sample text all --split val").fails(2, &["all/val: no such folder"]);
}

/// Files of `crates/data/tests/fixtures/make_instances.py`.
#[test]
fn instances_of_other_programs_are_brought_to_records() {
    let folder = tempfile::tempdir().unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/tests/fixtures/instances");
    for (name, to) in [("nvidia.hdf5", "hdf5/a.hdf5"), ("pairs.parquet", "pairs.parquet"), ("vocab.txt", "vocab.txt")] {
        fs::create_dir_all(folder.path().join("hdf5")).unwrap();
        fs::copy(fixtures.join(name), folder.path().join(to)).unwrap();
    }
    let run = |arguments: &str| bessemer(folder.path(), arguments);
    let lengths = "--seq-length 40 --max-predictions 6";
    let made =
        run(&format!("data prepare instances hdf5 --val pairs.parquet --vocab vocab.txt --out out {lengths}")).ok();
    let rows: Vec<Vec<&str>> = made.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[1][..3], ["train", "-", "-"], "{}", made.out);
    assert_eq!((rows[1][4], rows[2][0], rows[2][4]), ("50", "val", "50"), "{}", made.out);
    run("data verify text out").ok();
    let shown = run("data sample text out --number 50").ok().out;
    assert!(shown.contains("  A: [CLS] ") && shown.contains("[MASK]{"), "{shown}");
    run("data prepare instances hdf5 --vocab vocab.txt --out out").fails(2, &["out: the folder is not empty"]);
    run("data prepare instances vocab.txt --vocab vocab.txt --out new").fails(2, &["vocab.txt: record 1 at byte 0"]);
    run("data prepare instances hdf5 --vocab vocab.txt --out new --seq-length 9")
        .fails(2, &["a.hdf5: row ", "at most 9"]);
    // The start of a column becomes negative, at which the library panics.
    let mut damaged = fs::read(folder.path().join("pairs.parquet")).unwrap();
    damaged[3081] = 255;
    fs::write(folder.path().join("damaged.parquet"), damaged).unwrap();
    run(&format!("data prepare instances damaged.parquet --vocab vocab.txt --out new {lengths}"))
        .fails(2, &["damaged.parquet: ", "should not be negative"]);
    assert!(!folder.path().join("new").exists());
}

#[test]
fn lines_are_cut_into_tokens() {
    let folder = world();
    let plain = tokenize(folder.path(), "--vocab vocab.txt", b"The Cats sat.\n\nowl\n").ok().out;
    assert_eq!(plain, "the cat ##s sat .\t5 6 10 8 11\n\t\n[UNK]\t1\n");
    let json = tokenize(folder.path(), "--vocab vocab.txt --json", b"The Cats").ok().out;
    let expected = serde_json::json!({ "text": "The Cats", "tokens": ["the", "cat", "##s"], "ids": [5, 6, 10] });
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), expected);
    tokenize(folder.path(), "--vocab vocab.txt", b"good\nb\xffd\n").fails(2, &["standard input: line 2: not UTF-8"]);
    tokenize(folder.path(), "--vocab none.txt", b"").fails(2, &["none.txt: cannot read the vocabulary"]);
}

/// Ctrl-C removes what has been written.
#[cfg(unix)]
#[test]
fn an_interrupted_preparation_leaves_nothing() {
    let folder = world();
    let sentence = "the cat sat on the mat . ".repeat(8) + "\n\n";
    fs::write(folder.path().join("long.txt"), sentence.repeat(100_000)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_bessemer"));
    command.current_dir(folder.path()).stderr(Stdio::piped()).stdout(Stdio::null());
    command.args([
        "data",
        "prepare",
        "text",
        "long.txt",
        "--vocab",
        "vocab.txt",
        "--out",
        "deep/long",
        "--threads",
        "1",
    ]);
    let child = command.spawn().unwrap();
    let out = folder.path().join("deep/long");
    while !out.join("text.json").exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(130), "{said}");
    assert!(said.ends_with("error: deep/long: stopped before the data set was complete\n"), "{said}");
    assert!(!folder.path().join("deep").exists());
}
