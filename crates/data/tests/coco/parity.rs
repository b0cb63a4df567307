//! Masks and scores against those of pycocotools. `peers/coco/check.py fixtures` makes the fixtures.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use bessemer_data::coco::{Instances, Results};
use bessemer_metrics::coco::{CocoScores, SCORE_NAMES, Scores, evaluate};
use bessemer_metrics::mask::{Merge, Rle};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::shared::shared;

#[derive(Deserialize)]
struct MaskCase {
    size: [u32; 2],
    polygons: Vec<Vec<f64>>,
    counts: String,
    area: u32,
    bbox: [f64; 4],
    union: Option<String>,
    intersection: Option<String>,
    iou: Option<f64>,
    crowd_iou: Option<f64>,
}

#[derive(Deserialize)]
struct ScoreCase {
    seed: u32,
    data: Value,
    results: Value,
    bbox: Expected,
    segm: Expected,
}

#[derive(Deserialize)]
struct Expected {
    all: [f64; 12],
    classes: BTreeMap<i64, [f64; 12]>,
}

fn cases<T: for<'de> Deserialize<'de>>(name: &str) -> Vec<T> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/coco").join(name);
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn score(kind: &str, data: &Path, results: &Path, threads: usize) -> (Instances, CocoScores) {
    let instances = Instances::open(data).unwrap();
    let results = Results::open(results, &instances).unwrap();
    let (images, categories) = (instances.images().len(), instances.categories().len());
    let scores = if kind == "bbox" {
        let found = results.boxes(&instances, threads).unwrap();
        evaluate(images, categories, &instances.boxes(), &found, threads)
    } else {
        let found = results.masks(&instances, threads).unwrap();
        evaluate(images, categories, &instances.masks(threads).unwrap(), &found, threads)
    };
    (instances, scores.unwrap())
}

#[track_caller]
fn assert_scores(what: &str, scores: &Scores, expected: &[f64; 12]) {
    for ((name, value), expected) in SCORE_NAMES.iter().zip(scores.values()).zip(expected) {
        let value = value.unwrap_or(-1.0);
        assert!((value - expected).abs() < 1e-9, "{what}: {name} is {value}, expected {expected}");
    }
}

#[test]
fn masks_are_those_of_pycocotools() {
    let cases: Vec<MaskCase> = cases("masks.jsonl");
    let mut before: Option<Rle> = None;
    let mut merged = 0;
    for (number, case) in cases.iter().enumerate() {
        let [height, width] = case.size;
        let drawn: Vec<Rle> =
            case.polygons.iter().map(|polygon| Rle::from_polygon(height, width, polygon).unwrap()).collect();
        let mask = Rle::merge(&drawn, Merge::Union).unwrap();
        assert_eq!(mask.compressed(), case.counts, "{number}");
        assert_eq!(Rle::from_compressed(height, width, &case.counts).as_ref(), Ok(&mask), "{number}");
        assert_eq!((mask.area(), mask.bounding_box()), (case.area, case.bbox), "{number}");
        let bitmap = mask.decode();
        assert_eq!(bitmap.iter().map(|&pixel| u32::from(pixel)).sum::<u32>(), case.area, "{number}");
        assert_eq!(Rle::encode(height, width, &bitmap).as_ref(), Ok(&mask), "{number}");
        if let Some(before) = before.take().filter(|_| case.union.is_some()) {
            let both = [before.clone(), mask.clone()];
            let merge = |how| Some(Rle::merge(&both, how).unwrap().compressed());
            assert_eq!(
                (merge(Merge::Union), merge(Merge::Intersection)),
                (case.union.clone(), case.intersection.clone())
            );
            let iou = |is_crowd| Some(mask.iou(&before, is_crowd).unwrap());
            assert_eq!((iou(false), iou(true)), (case.iou, case.crowd_iou), "{number}");
            merged += 1;
        }
        before = Some(mask);
    }
    assert_eq!((cases.len(), merged), (160, 80));
}

#[test]
fn scores_are_those_of_pycocotools() {
    let folder = tempfile::tempdir().unwrap();
    let (data, results) = (folder.path().join("data.json"), folder.path().join("results.json"));
    let cases: Vec<ScoreCase> = cases("sets.jsonl");
    assert_eq!(cases.len(), 12);
    let mut left_out = 0;
    for case in cases {
        fs::write(&data, case.data.to_string()).unwrap();
        fs::write(&results, case.results.to_string()).unwrap();
        for (kind, expected) in [("bbox", case.bbox), ("segm", case.segm)] {
            let (instances, scores) = score(kind, &data, &results, 2);
            assert_eq!(score(kind, &data, &results, 1).1, scores, "threads do not matter");
            let what = format!("set {}, {kind}", case.seed);
            assert_scores(&what, &scores.all, &expected.all);
            assert_eq!(scores.categories.len(), expected.classes.len(), "{what}");
            for (category, scores) in instances.categories().iter().zip(&scores.categories) {
                assert_scores(&format!("{what}, {}", category.name), &scores.scores, &expected.classes[&category.id]);
            }
            left_out += scores.left_out;
        }
    }
    assert!(left_out > 0, "some sets have more detections than count");
}

#[test]
fn masks_of_real_objects_are_those_of_pycocotools() {
    let (Some(path), Some(expected)) =
        (shared("coco/annotations/instances_val2017.json"), shared("coco_eval/masks.jsonl"))
    else {
        return;
    };
    let instances = Instances::open(&path).unwrap();
    let numbers: BTreeMap<i64, usize> =
        instances.annotations().iter().enumerate().map(|(number, annotation)| (annotation.id, number)).collect();
    let text = fs::read_to_string(expected).unwrap();
    for line in text.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let id = case["annotation_id"].as_i64().unwrap();
        let mask = instances.mask(numbers[&id]).unwrap();
        assert_eq!(mask.compressed(), case["counts"].as_str().unwrap(), "annotation {id}");
        assert_eq!(f64::from(mask.area()), case["area"].as_f64().unwrap(), "annotation {id}");
        let bbox: [f64; 4] = serde_json::from_value(case["bbox"].clone()).unwrap();
        assert_eq!(mask.bounding_box(), bbox, "annotation {id}");
    }
    assert_eq!(text.lines().count(), 205);
}

/// Hashes by `peers/coco/check.py masks`.
#[test]
fn all_masks_of_real_photos_are_those_of_pycocotools() {
    for (name, masks, hash) in [
        ("train", 939, "598ada7bd1e0f97d0496582c39f05d4ab56e870806a99077f752fc3f8e67a2f5"),
        ("val", 514, "24b33f598525a7bc445ca8d58e6cdbeae6da3a691e396a380c893b6b05f55277"),
    ] {
        let Some(path) = shared(&format!("coco/annotations/instances_{name}2017.json")) else { return };
        let found = Instances::open(&path).unwrap().masks(2).unwrap();
        let mut digest = Sha256::new();
        for truth in &found {
            digest.update(truth.region.rle().compressed() + "\n");
        }
        let digest = bessemer_data::hex(&digest.finalize());
        assert_eq!((found.len(), digest.as_str()), (masks, hash), "{name}");
    }
}

#[test]
fn real_results_have_the_scores_of_pycocotools() {
    let (Some(folder), Some(derived_from)) = (shared("coco_eval"), shared("coco/annotations/instances_val2017.json"))
    else {
        return;
    };
    let expected: Value = serde_json::from_str(&fs::read_to_string(folder.join("expected.json")).unwrap()).unwrap();
    let expected = expected.as_object().unwrap();
    for (name, expected) in expected {
        let own = folder.join("instances_val2014_100.json");
        let data = if name.starts_with("derived") { &derived_from } else { &own };
        let (instances, scores) = score(expected["iou_type"].as_str().unwrap(), data, &folder.join(name), 2);
        let stats = SCORE_NAMES.map(|stat| expected["stats"][stat].as_f64().unwrap());
        assert_scores(name, &scores.all, &stats);
        for (category, scores) in instances.categories().iter().zip(&scores.categories) {
            let wanted = expected["per_category_AP"][category.id.to_string()].as_f64().unwrap();
            let found = scores.scores.ap.unwrap_or(-1.0);
            assert!((found - wanted).abs() < 1e-9, "{name}, {}: AP is {found}, expected {wanted}", category.name);
        }
    }
    assert_eq!(expected.len(), 4);
}
