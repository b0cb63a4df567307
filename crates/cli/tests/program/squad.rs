//! Questions from the command line.

use crate::common::{bessemer, ran};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

const TEXT: &str = "the cat sat on the red mat . the dog ran to the house .";
const WORDS: &str = "the cat sat on red mat . dog ran to house who ? where";
/// Sizes of a run of seconds.
const SIZES: &str = "--set squad.sequence_length=24 --set squad.doc_stride=4 --set squad.max_query_length=8 \
                     --set train.batch_size=2 --set squad.beam=3 --quiet";

/// A vocabulary, a text, and two questions about it as SQuAD 1.1 has them.
fn world() -> TempDir {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: String| fs::write(folder.path().join(name), text).unwrap();
    let lines = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].into_iter().chain(WORDS.split_whitespace());
    write("vocab.txt", lines.map(|word| format!("{word}\n")).collect());
    write("text.txt", TEXT.to_owned());
    let question = |id: &str, question: &str, answer: &str| {
        json!({"id": id, "question": question,
               "answers": [{"text": answer, "answer_start": TEXT.find(answer).unwrap()}]})
    };
    let asked = [question("a", "who sat ?", "the cat"), question("b", "where ?", "the house")];
    let set = json!({"data": [{"title": "t", "paragraphs": [{"context": TEXT, "qas": asked}]}]}).to_string();
    fs::create_dir(folder.path().join("data")).unwrap();
    for name in ["data/train-v1.1.json", "data/dev-v1.1.json"] {
        write(name, set.clone());
    }
    folder
}

fn ask_by_lines(folder: &Path, lines: &str) -> String {
    let mut child = Command::new(env!("CARGO_BIN_EXE_bessemer"))
        .current_dir(folder)
        .args("infer electra-mini-squad --weights many/seed-4 --file text.txt --json --quiet".split_whitespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}

#[test]
fn runs_of_several_seeds_are_trained_judged_and_asked() {
    let folder = world();
    let cache = folder.path().join("cache");
    let run = |arguments: &str| {
        let words = arguments.split_whitespace();
        let mut program = Command::new(env!("CARGO_BIN_EXE_bessemer"));
        ran(program.current_dir(folder.path()).env("XDG_CACHE_HOME", &cache).args(words))
    };
    let train = format!("train electra-mini-squad --data data --set squad.vocab=vocab.txt {SIZES}");
    let table = run(&format!("{train} --steps 2 --seeds 2 --seed 4 --out many")).ok().out;
    let heads: Vec<&str> = table.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(heads, ["seed", "4", "5", "mean", "deviation"], "{table}");
    let first_seed = table.lines().nth(1).unwrap().to_owned();
    assert!(table.lines().next().unwrap().ends_with("f1") && table.lines().nth(3).unwrap().ends_with('%'), "{table}");
    assert!(folder.path().join("many/seed-5/predictions/predictions.json").is_file());
    let count = |folder: &Path| fs::read_dir(folder).unwrap().count();
    assert_eq!((count(&cache.join("bessemer/squad")), count(&folder.path().join("data"))), (2, 2), "windows are kept");

    let eval = "eval electra-mini-squad --weights many/seed-4";
    let found: Value =
        serde_json::from_str(&run(&format!("{eval} --data data --out answers --json")).ok().out).unwrap();
    let score = "score squad --data data/dev-v1.1.json --predictions answers/predictions.json --json";
    let official: Value = serde_json::from_str(&run(score).ok().out).unwrap();
    for (ours, theirs) in [("f1", "f1"), ("exact", "exact_match")] {
        let difference = found[ours].as_f64().unwrap() * 100.0 - official[theirs].as_f64().unwrap();
        assert!(difference.abs() < 1e-9, "{ours}: {found} {official}");
    }
    let text = run(&format!("{eval} --data data/dev-v1.1.json")).ok().out;
    assert!(text.contains("exact match") && text.contains("of 2)") && text.contains("windows/s"), "{text}");

    let infer = "infer electra-mini-squad --weights many/seed-4";
    let asked = run(&format!("{infer} --file text.txt --question who? --question where? --top 3 --json")).ok().out;
    let asked: Value = serde_json::from_str(&asked).unwrap();
    assert_eq!((asked[0]["question"].as_str(), asked[1]["question"].as_str()), (Some("who?"), Some("where?")));
    assert!(TEXT.contains(asked[1]["answer"].as_str().unwrap()), "{asked}");
    assert!((1..=3).contains(&asked[0]["candidates"].as_array().unwrap().len()), "{asked}");
    let table = run(&format!("{infer} --file text.txt --question who? --question where? --top 1 --csv")).ok().out;
    let rows: Vec<&str> = table.split_terminator("\r\n").collect();
    let best = |number: usize, question: &str| {
        let candidate = &asked[number]["candidates"][0];
        format!("{question},1,{},{}", candidate["text"].as_str().unwrap(), candidate["probability"])
    };
    let plain = rows[1..].iter().map(|row| row.replace('"', "")).collect::<Vec<_>>();
    assert_eq!((rows[0], plain), ("question,rank,answer,probability", vec![best(0, "who?"), best(1, "where?")]));
    let lines = ask_by_lines(folder.path(), "who?\n\nwhere?\n");
    let answers: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        answers.iter().map(|one| &one["answer"]).collect::<Vec<_>>(),
        [&asked[0]["answer"], &asked[1]["answer"]]
    );
    let text = run(&format!("{infer} --context cat --question who?")).ok().out;
    assert!(text.starts_with("who?\n") && text.contains(" %"), "{text}");

    run(&format!("{infer} --question who?")).fails(2, &["--context", "--file"]);
    run(&format!("{infer} --file nowhere.txt --question who?")).fails(2, &["nowhere.txt"]);
    run(&format!("{infer} who?")).fails(2, &["is asked by --question"]);
    run("infer bert-tiny --weights x --question who? text").fails(2, &["--question", "not for bert-tiny"]);
    run("eval bert-tiny --weights x --data y --out z").fails(2, &["--out", "not for bert-tiny"]);
    run(&format!("{eval} --data nowhere")).fails(2, &["nowhere"]);
    run("eval electra-small-squad --weights many/seed-4 --data data").fails(2, &["electra-mini-squad"]);
    // The same again says the same, and more seeds go on from there.
    let again = run(&format!("{train} --steps 2 --seeds 3 --seed 4 --out many")).ok().out;
    assert!(again.lines().nth(3).is_some_and(|line| line.starts_with("6 ")), "{again}");
    assert_eq!(again.lines().nth(1), Some(&*first_seed));
    run(&format!("{train} --steps 1 --seeds 2 --seed 5 --out many")).fails(2, &["seed 5", "train.steps"]);
}

#[test]
fn what_is_missing_is_told() {
    let folder = world();
    let run = |arguments: &str| bessemer(folder.path(), arguments);
    run("train electra-squad").fails(2, &["data.source is not given", "SQuAD"]);
    run("train electra-squad --data data").fails(2, &["the vocabulary is not given", "squad.vocab"]);
    run("train electra-squad --data data --weights nowhere").fails(2, &["nowhere"]);
    run("train electra-squad --data text.txt --set squad.vocab=vocab.txt").fails(2, &["text.txt: not JSON"]);
    run("train resnet50 --data shapes --set squad.beam=3")
        .fails(2, &["squad: unknown field `squad` (it is of recipes for models that answer questions)"]);
    run("infer electra-squad --weights x").fails(2, &["--context TEXT or --file FILE"]);
}

#[test]
fn steps_are_measured_and_explained() {
    let folder = TempDir::new().unwrap();
    let run = |arguments: &str| bessemer(folder.path(), arguments);
    let sizes = "--batch-size 2 --sequence-length 32 --warmup 0 --steps 2 --repeat 1 --quiet --json";
    let bench = |arguments: &str| -> Value {
        serde_json::from_str(&run(&format!("bench {arguments} {sizes}")).ok().out).unwrap()
    };
    let line = bench("train electra-mini-squad --dropout 0");
    assert_eq!((line["unit"].as_str(), line["options"]["sequence_length"].as_u64()), (Some("windows/s"), Some(32)));
    assert!(line["options"]["predictions"].is_null() && line["options"]["dropout"] == 0.0, "{line}");
    // Chance is ln 32 for each end of an answer.
    assert!((3.0..4.5).contains(&line["loss_first"].as_f64().unwrap()), "{line}");
    assert!(bench("infer electra-mini-squad")["step_ms"]["p99"].as_f64().unwrap() > 0.0);
    let line = bench("train electra-mini");
    assert_eq!(line["options"]["predictions"].as_u64(), Some(4), "15.5 % of 32");
    assert!(line["loss_first"].as_f64().unwrap() > 20.0, "{line}");
    bench("infer electra-mini");
    run("bench train electra-mini-squad --predictions 3").fails(2, &["--predictions", "answers questions"]);

    let text = run("explain electra-mini-squad --batch-size 2 --mode infer").ok().out;
    assert!(text.contains("2 windows") && text.contains("attention") && text.contains("largest batch"), "{text}");
    let flops = |arguments: &str| {
        let text = run(&format!("explain electra-mini-squad --mode infer --batch-size 1 --json {arguments}")).ok().out;
        serde_json::from_str::<Value>(&text).unwrap()["flops"].as_u64().unwrap()
    };
    assert_eq!(flops(""), flops("--sequence-length 384"));
    assert!(flops("") > 2 * flops("--sequence-length 128"));
    let model = run("models electra-squad").ok().out;
    assert!(model.contains("electra-base-squad") && model.contains("electra-squad, electra-squad-v2"), "{model}");
}
