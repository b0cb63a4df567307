//! Run folders written by earlier versions of the program: their recipes open, and a run goes on from its checkpoint.

use bessemer_train::{Recipe, RunFolder, TrainOptions, train};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders of runs as version 0.1.0 wrote them: `resnet20-cifar` stopped after the second of four steps, of the others only
/// the resolved recipe.
fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/runs")
}

fn open(run: &Path) -> Recipe {
    let path = run.join("recipe.toml");
    Recipe::load(path.to_str().expect("a path in Unicode"), &[]).expect("the recipe of an earlier version opens")
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (source, target) = {
            let entry = entry.unwrap();
            (entry.path(), to.join(entry.file_name()))
        };
        if source.is_dir() {
            copy(&source, &target);
        } else {
            fs::copy(&source, &target).unwrap();
        }
    }
}

#[test]
fn recipes_of_earlier_versions_open() {
    for (folder, batch_size) in
        [("resnet20-cifar", 16), ("bert-tiny", 16), ("electra-tiny", 16), ("electra-tiny-squad", 4)]
    {
        let recipe = open(&fixtures().join(folder));
        assert_eq!((recipe.train.batch_size, recipe.train.seed), (batch_size, 3), "{folder}");
    }
}

#[test]
fn a_run_of_an_earlier_version_goes_on_from_its_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    copy(&fixtures().join("resnet20-cifar"), &run);
    let mut options = TrainOptions::new(open(&run), RunFolder::Resume(run.clone()));
    options.compute.device.threads = 1;
    let report = train(&options).unwrap();
    assert_eq!(report.steps, 4);
    let events = fs::read_to_string(run.join("events.jsonl")).unwrap();
    let events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let losses: Vec<f64> =
        events.filter(|event| event["kind"] == "step").map(|event| event["loss"].as_f64().unwrap()).collect();
    // As the run had them that was not interrupted; instruction sets differ in the order of sums.
    let expected = [1.479_258, 1.445_408, 1.366_719, 1.362_584];
    assert_eq!(losses.len(), expected.len());
    for (loss, expected) in losses.iter().zip(expected) {
        assert!((loss - expected).abs() < 1e-3, "{losses:?}");
    }
}
