//! Images with objects: prepared, verified, shown; and what is wrong with them is reported by file.

use crate::common::bessemer;
use bessemer_data::Image;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const PREPARE: &str =
    "data prepare coco --images coco/train2017 --annotations coco/annotations/instances_train2017.json";

/// Drawn scenes in `coco/`; their annotations.
fn drawn(folder: &Path) -> PathBuf {
    bessemer(folder, "data shapes --format coco --out coco --train 6 --val 3 --size 64 --png").ok();
    folder.join("coco/annotations/instances_train2017.json")
}

fn is_png(path: &Path) -> bool {
    fs::read(path).unwrap().starts_with(b"\x89PNG")
}

#[test]
fn scenes_are_verified_shown_prepared_and_read_again() {
    let folder = TempDir::new().unwrap();
    let run = |arguments: &str| bessemer(folder.path(), arguments);
    drawn(folder.path());
    let both = run("data verify coco coco").ok().out;
    assert!(both.starts_with("train\n") && both.contains("\nval\n"), "{both}");
    let verified = run("data verify coco coco --split train").ok().out;
    assert!(both.starts_with(&verified), "{both}");
    for part in ["images", "readable", "6 (6 png)", "without objects", "crowds", "most frequent: "] {
        assert!(verified.contains(part), "{part} is missing in:\n{verified}");
    }
    let said = run("data sample coco coco --count 4 --size 128 --masks").ok().out;
    assert!(said.starts_with("sample.png: 4 of 6 images, ") && is_png(&folder.path().join("sample.png")), "{said}");
    run("data sample coco coco --split val --eval --size 96 --resize antialias --out eval.png").ok();
    // Canvases of several sizes, of images as they are and of those that training would see.
    for arguments in
        ["--recipe mask-rcnn-quick --count 2", "--recipe mask-rcnn-quick --count 2 --eval", "--recipe detection-quick"]
    {
        run(&format!("data sample coco coco {arguments} --out recipe.png")).ok();
        assert!(Image::read(&folder.path().join("recipe.png")).unwrap().width > 128, "{arguments}");
    }
    assert!(is_png(&folder.path().join("eval.png")));

    let said = run(&format!("{PREPARE} --shards 3 --masks records")).ok().out;
    assert!(said.starts_with("records: 6 images, ") && said.contains(" MB in 3 shards of train: "), "{said}");
    assert_eq!(run("data verify coco records").ok().out, verified);
    let json = run("data verify coco records --json").ok().out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["train"]["readable"], &json["train"]["summary"]["images"]), (&6.into(), &6.into()));
    run("data sample coco records --count 6 --size 128 --masks --out again.png").ok();
    run("data sample coco coco --count 6 --size 128 --masks --out first.png").ok();
    let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
    assert!(read("first.png") == read("again.png"), "the same samples");
    run(&format!("{PREPARE} --shards 3 records")).fails(2, &["train-00000-of-00003.tfrecord: is there already"]);

    let bench = "bench data efficientdet-tiny --data coco --set train.batch_size=2 --seconds 1";
    let said = run(&format!("{bench} --no-step --json")).ok().out;
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let loading = &said["loading"];
    assert!(loading["samples_per_second"].as_f64().unwrap() > 1.0 && said["training_here"].is_null(), "{said}");
    let stages = loading["stage_ms_per_sample"].as_array().unwrap();
    let names: Vec<&str> = stages.iter().map(|stage| stage[0].as_str().unwrap()).collect();
    assert!(names.starts_with(&["read", "decode", "augment"]) && names.contains(&"copy"), "{names:?}");
    let said = run(&format!("{bench} --step-batch-size 1")).ok().out;
    assert!(said.contains("images/s in training here (batch 1, random inputs)"), "{said}");
}

#[test]
fn what_is_wrong_is_told_and_nothing_is_left() {
    let folder = TempDir::new().unwrap();
    let run = |arguments: &str| bessemer(folder.path(), arguments);
    let annotations = drawn(folder.path());
    let prepare = || run(&format!("{PREPARE} --shards 2 records"));
    let good = fs::read_to_string(&annotations).unwrap();
    let is_absent = |name: &str| assert!(!folder.path().join(name).exists(), "{name}");

    run("data verify coco nowhere").fails(2, &["nowhere: no such folder"]);
    run("data verify coco").fails(2, &["give the folder of a data set, or --annotations and --images"]);
    run("data sample coco coco --out sheet.gif").fails(2, &["sheet.gif", ".png or .jpg"]);
    run("data sample coco coco --resize bicubic").fails(2, &["bicubic", "legacy"]);
    run("data sample coco coco --recipe mask-rcnn --masks").fails(2, &["--recipe", "--masks"]);
    run("data sample coco coco --recipe cifar").fails(2, &["recipe cifar: resnet20-cifar does not detect objects"]);
    run("data sample coco coco --size 0").fails(2, &["image size is 0, expected 1 to 4096"]);
    is_absent("sample.png");

    fs::write(&annotations, &good[..good.len() / 2]).unwrap();
    run("data verify coco coco").fails(2, &["instances_train2017.json: not JSON", "line 1 column"]);
    run("data verify coco coco --split val").ok();
    prepare().fails(2, &["not JSON"]);
    is_absent("records");
    fs::write(&annotations, &good).unwrap();

    let image = folder.path().join("coco/train2017/000000000004.png");
    let bytes = fs::read(&image).unwrap();
    fs::write(&image, &bytes[..bytes.len() / 2]).unwrap();
    let ran = run("data verify coco coco").fails(2, &["1 of 9 images are damaged", "000000000004.png: truncated PNG"]);
    assert!(ran.out.contains("000000000004.png"), "{}", ran.out);
    fs::remove_file(&image).unwrap();
    prepare().fails(2, &["000000000004.png: no such file; 1 of 6 images are missing"]);
    is_absent("records");
    fs::write(&image, bytes).unwrap();

    prepare().ok();
    let shard = folder.path().join("records/train-00001-of-00002.tfrecord");
    let mut bytes = fs::read(&shard).unwrap();
    bytes[100] ^= 1;
    fs::write(&shard, bytes).unwrap();
    run("data verify coco records").fails(2, &["train-00001-of-00002.tfrecord: record 1 at byte 0", "checksum"]);
}
