//! The README's commands do what it says, one after the other, on real data where there are some beside the checkout.

use crate::shown::commands;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use tempfile::TempDir;

/// Commands that are not run, by their first words, and why.
const LEFT_OUT: &[(&str, &str)] = &[
    ("doctor", "measures for a minute; has tests of its own"),
    ("quickstart", "takes two minutes; has tests of its own"),
    ("data fetch", "needs a network"),
    ("train resnet50 --data DATA --amp", "takes minutes a step at its batch size"),
    ("train resnet50 --data DATA --weights resnet50-0676ba61.pth", "published weights"),
    ("eval resnet50 --weights resnet50-0676ba61.pth", "published weights"),
    ("infer resnet50 --weights resnet50-0676ba61.pth", "published weights"),
    ("infer mask-rcnn --weights maskrcnn_resnet50_fpn.pth", "published weights"),
    ("train electra-squad", "published weights"),
    ("eval electra-squad", "of the run before"),
    ("infer electra-squad", "of the run before"),
    ("eval resnet50 --weights resnet50.safetensors", "published weights"),
    ("infer resnet50 --weights resnet50.pth", "published weights"),
    ("weights convert theirs.safetensors", "published weights"),
    ("weights convert theirs/model.ckpt-112590", "published weights"),
    ("bench train", "takes a minute"),
    ("bench kernels", "takes a minute"),
    ("bench suite", "takes hours; has tests of its own"),
    ("peers setup", "needs a network"),
    ("compare", "needs another framework"),
    ("report comparison", "of the comparison before"),
    ("train resnet20-cifar --data shapes --devices 2", "needs MPI; has tests of its own"),
];

/// Of each set a part is kept, so that an evaluation takes seconds: paragraphs with questions, photos of a class, images with objects,
/// files of text.
const PARAGRAPHS: usize = 4;
const PHOTOS: usize = 4;
const IMAGES: usize = 8;
const TEXTS: usize = 2;

/// Links files of a folder in a new one: those that `kept` chooses by their number, in the order of names, and name.
fn link_some(from: &Path, to: &Path, kept: impl Fn(usize, &str) -> bool) {
    fs::create_dir_all(to).unwrap();
    let mut names: Vec<String> =
        fs::read_dir(from).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    for (_, name) in names.iter().enumerate().filter(|(number, name)| kept(*number, name)) {
        symlink(fs::canonicalize(from.join(name)).unwrap(), to.join(name)).unwrap();
    }
}

/// Leaves the first images of a folder alone: inference writes a file for each object in each of them.
fn keep_some(folder: &Path) {
    let mut images: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    images.sort();
    images[IMAGES..].iter().for_each(|image| fs::remove_file(image).unwrap());
}

/// The first images of a half of COCO, with what is annotated in them.
fn some_of_coco(from: &Path, to: &Path, half: &str) {
    let file = format!("annotations/instances_{half}.json");
    let mut all: Value = serde_json::from_slice(&fs::read(from.join(&file)).unwrap()).unwrap();
    let images = all["images"].as_array_mut().unwrap();
    images.truncate(IMAGES);
    let kept: Vec<Value> = images.iter().map(|image| image["id"].clone()).collect();
    let names: Vec<String> = images.iter().map(|image| image["file_name"].as_str().unwrap().to_owned()).collect();
    all["annotations"].as_array_mut().unwrap().retain(|object| kept.contains(&object["image_id"]));
    fs::create_dir_all(to.join("annotations")).unwrap();
    fs::write(to.join(&file), all.to_string()).unwrap();
    link_some(&from.join(half), &to.join(half), |_, name| names.iter().any(|kept| kept == name));
}

/// Lays out what the README calls by name.
fn lay_out(folder: &Path, samples: &Path) {
    let link = |from: &str, to: &str| symlink(samples.join(from), folder.join(to)).unwrap();
    for half in ["train", "val"] {
        some_of_coco(&samples.join("coco"), &folder.join("coco"), &format!("{half}2017"));
        let classes = samples.join("imagenette224").join(half);
        for class in fs::read_dir(classes).unwrap().map(|entry| entry.unwrap()) {
            let to = folder.join("DATA").join(half).join(class.file_name());
            // The recipe's batch is drawn from all of them.
            let count = if half == "train" { 4 * PHOTOS } else { PHOTOS };
            link_some(&class.path(), &to, |number, _| number < count);
        }
    }
    link("imagenette224/classes.csv", "DATA/classes.csv");
    link_some(&samples.join("imagenet-samples/images"), &folder.join("photos"), |number, _| number < PHOTOS);
    link_some(&samples.join("text/wiki"), &folder.join("wiki"), |number, _| number < TEXTS);
    link("vocab/vocab.txt", "vocab.txt");
    link("squad/dev-v1.1.json", "dev-v1.1.json");
    link("squad_eval/predictions-v1.1-match-lstm.json", "predictions.json");
    link("coco/annotations/instances_val2017.json", "instances_val2017.json");
    link("coco_eval/derived_bbox_results.json", "results.json");
    let photo = fs::read_dir(samples.join("imagenet-samples/images")).unwrap().next().unwrap().unwrap().path();
    fs::copy(photo, folder.join("photo.jpg")).unwrap();
    let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/tests/fixtures/decode");
    fs::create_dir(folder.join("more")).unwrap();
    fs::copy(pictures.join("webp_lossy.webp"), folder.join("more/one.webp")).unwrap();
    fs::write(folder.join("letter.txt"), "Ada Lovelace wrote it in 1843, and sent it to a friend.\n").unwrap();
    fs::create_dir(folder.join("squad")).unwrap();
    for (from, to) in [("train-v1.1-subset.json", "train-v1.1.json"), ("dev-v1.1.json", "dev-v1.1.json")] {
        let mut file: Value = serde_json::from_slice(&fs::read(samples.join("squad").join(from)).unwrap()).unwrap();
        file["data"].as_array_mut().unwrap().truncate(1);
        file["data"][0]["paragraphs"].as_array_mut().unwrap().truncate(PARAGRAPHS);
        fs::write(folder.join("squad").join(to), file.to_string()).unwrap();
    }
}

#[test]
fn commands_of_the_readme_run() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let samples = root.join("../shared/data");
    if !samples.is_dir() {
        std::io::stderr().write_all(b"skipped: there is no ../shared/data beside the checkout\n").unwrap();
        return;
    }
    let folder = TempDir::new().unwrap();
    lay_out(folder.path(), &samples);
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let mut unused: Vec<&str> = LEFT_OUT.iter().map(|(words, _)| *words).collect();
    let mut count = 0;
    for shown in commands(&readme) {
        let line = shown.words[1..].join(" ");
        if let Some((left_out, _)) = LEFT_OUT.iter().find(|(words, _)| line.starts_with(words)) {
            unused.retain(|words| words != left_out);
            continue;
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_bessemer"));
        command.current_dir(folder.path()).args(&shown.words[1..]);
        if shown.words[1] == "train" && !line.contains("--resume") {
            command.args(["--steps", "1"]);
            // Evaluation on few of the drawn scenes.
            if line.contains("-tiny --data shapes") {
                command.args(["--set", "data.eval_samples=16"]);
            }
        }
        let begun = Instant::now();
        let result = command.output().unwrap();
        println!("{:6.1} s: bessemer {line}", begun.elapsed().as_secs_f64());
        let said = String::from_utf8_lossy(&result.stderr);
        assert!(result.status.success(), "README.md:{}: `bessemer {line}`: {said}", shown.line);
        if line.starts_with("data shapes") {
            keep_some(&folder.path().join("scenes/val2017"));
        }
        count += 1;
    }
    assert!(unused.is_empty(), "no command of the README begins so: {unused:?}");
    assert!(count > 25, "{count} commands ran");
}
