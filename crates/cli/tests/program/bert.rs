//! BERT from the command line.

use crate::common::bessemer;
use serde_json::Value;
use tempfile::TempDir;

#[test]
fn steps_are_measured_and_explained() {
    let folder = TempDir::new().unwrap();
    let run = |arguments: &str| bessemer(folder.path(), arguments);
    let sizes = "--sequence-length 32 --predictions 4 --accumulation 2 --dropout 0.2 --no-clip";
    let bench = format!("bench train bert-tiny --batch-size 2 {sizes} --warmup 0 --steps 2 --repeat 1 --quiet --json");
    let line: Value = serde_json::from_str(&run(&bench).ok().out).unwrap();
    assert_eq!((line["unit"].as_str(), line["batch_size"].as_u64()), (Some("sequences/s"), Some(2)));
    let options = &line["options"];
    assert_eq!((options["sequence_length"].as_u64(), options["accumulation"].as_u64()), (Some(32), Some(2)));
    assert_eq!((options["dropout"].as_f64(), options["clip"].as_bool()), (Some(0.2), Some(false)));
    // Three times the forward pass: 2 layers of 12 * 128^2 weights, attention, the words' head.
    let forward = 2.0 * (32.0 * 2.0 * 12.0 * 128.0 * 128.0 + 2.0 * 2.0 * 32.0 * 32.0 * 128.0 + 4.0 * 128.0 * 30_522.0);
    let ratio = line["flops_per_sample"].as_f64().unwrap() / (3.0 * forward);
    assert!((0.97..1.03).contains(&ratio), "{ratio}");
    assert!(line["fraction_of_peak"].as_f64().unwrap() > 0.0 && line["loss_first"].as_f64().unwrap() > 5.0, "{line}");

    let text = run("explain bert-tiny --batch-size 4 --sequence-length 64").ok().out;
    assert!(text.contains("4 sequences") && text.contains("attention") && text.contains("largest batch"), "{text}");
    let cost = |more: &str| -> Value {
        let sizes = "--batch-size 2 --sequence-length 32 --predictions 4 --json";
        serde_json::from_str(&run(&format!("explain bert-tiny {sizes} {more}")).ok().out).unwrap()
    };
    let flops = |micro_batches: u64| cost(&format!("--accumulation {micro_batches}"))["flops"].as_u64().unwrap();
    let (two, three) = (flops(2), flops(3));
    assert_eq!(
        flops(9) - three,
        6 * (three - two),
        "the accumulation phase is counted for each micro-batch, the update phase once"
    );
    assert!((three - two) as f64 > 0.75 * flops(1) as f64 && two > 2 * (three - two));
    let text = run("explain bert-tiny --batch-size 2 --accumulation 3").ok().out;
    assert!(text.contains("3 times 2 sequences"), "{text}");
    let models = run("models").ok().out;
    assert!(
        models.lines().any(|line| line.starts_with("bert-base") && line.contains("128 tokens, 512 at most")),
        "{models}"
    );
    let base = run("models bert-base").ok().out;
    assert!(base.contains("110106428 in") && base.contains("bert-base-phase1"), "{base}");
}

#[test]
fn what_does_not_fit_is_reported() {
    let folder = TempDir::new().unwrap();
    let run = |arguments: &str| bessemer(folder.path(), arguments);
    run("bench train resnet50 --sequence-length 128").fails(2, &["--sequence-length", "resnet50 takes images"]);
    run("bench train bert-base --sequence-length 600").fails(2, &["sequence_length is 600"]);
    run("bench train bert-base --dropout 1").fails(2, &["--dropout", "0 to below 1"]);
    run("train bert-base").fails(2, &["data.source", "data prepare text"]);
    run("train bert-base --data nowhere").fails(2, &["nowhere"]);
    run("train bert-base --data synthetic --recipe resnet50-90e")
        .fails(2, &["resnet50-90e is for models that classify images", "bert-base is one of the models that are"]);
    run("train bert-base --data synthetic --set text.sequence_length=600").fails(2, &["600", "512 positions"]);
    run("infer bert-base --weights nowhere text").fails(2, &["nowhere"]);
    run("eval bert-base --weights nowhere --data nowhere").fails(2, &["nowhere"]);
}

#[test]
fn a_run_on_random_words_ends_and_is_used() {
    let folder = TempDir::new().unwrap();
    let run = |arguments: &str| bessemer(folder.path(), arguments);
    let sizes = "--set text.sequence_length=16 --set text.max_predictions=2 --set train.batch_size=2";
    let said = run(&format!("train bert-tiny --data synthetic {sizes} --steps 2 --out run --quiet")).ok().out;
    assert!(said.contains("steps       2") && said.contains("sequences/s"), "{said}");
    run("weights convert run exported --to huggingface").ok();
    assert!(folder.path().join("exported/config.json").is_file());
    run("train bert-mini --data synthetic --steps 1 --weights exported --out other")
        .fails(2, &["bert-mini", "holds a BERT of 2 layers, 128 wide: bert-tiny"]);
    run("infer bert-tiny --weights exported [MASK]").fails(2, &["vocab.txt", "--vocab"]);
    run("report run --html report.html").ok();
}
