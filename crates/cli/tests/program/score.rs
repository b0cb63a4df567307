//! Predictions are scored as the official scripts do; what is wrong with a file is reported in one line.

use crate::common::{Ran, bessemer};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::Path;
use tempfile::TempDir;

fn question(id: &str, answers: &[&str]) -> Value {
    let answers: Vec<Value> = answers.iter().map(|text| json!({"text": text, "answer_start": 0})).collect();
    json!({"id": id, "question": "Who?", "answers": answers})
}

fn impossible(id: &str) -> Value {
    json!({"id": id, "question": "Who?", "answers": [], "is_impossible": true})
}

/// Writes `data.json`, one paragraph of questions, and `predictions.json`.
fn world(questions: &[Value], predictions: Value) -> TempDir {
    let folder = TempDir::new().unwrap();
    let data = json!({"data": [{"title": "Cats", "paragraphs": [{"context": "the cat sat", "qas": questions}]}]});
    fs::write(folder.path().join("data.json"), data.to_string()).unwrap();
    fs::write(folder.path().join("predictions.json"), predictions.to_string()).unwrap();
    folder
}

fn score(folder: &TempDir, more: &str) -> Ran {
    bessemer(folder.path(), &format!("score squad --data data.json --predictions predictions.json {more}"))
}

fn json_of(ran: &Ran) -> Value {
    serde_json::from_str(&ran.out).unwrap()
}

#[test]
fn version_1_1_has_exact_match_and_f1() {
    let questions = [
        question("1", &["the cat", "the cat sat"]),
        question("2", &["The \u{201c}Cat\u{201d}"]),
        question("3", &["the cat"]),
        question("4", &["the"]),
    ];
    let folder = world(&questions, json!({"1": "A cat, sat.", "2": "\u{201c}cat\u{201d}", "3": "dog cat", "4": ""}));
    let ran = score(&folder, "--json").ok();
    let f1 = 100.0 * (1.0 + 1.0 + 2.0 / 3.0) / 4.0;
    let scores = json_of(&ran);
    assert_eq!((&scores["exact_match"], &scores["total"], &scores["missing"]), (&json!(75.0), &json!(4), &json!(0)));
    assert!((scores["f1"].as_f64().unwrap() - f1).abs() < 1e-12);
    let table = score(&folder, "").ok().out;
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        lines,
        [vec!["SQuAD", "1.1", "questions", "exact", "match", "F1"], vec!["all", "4", "75.000", "66.667"]]
    );
    // One of the answers is not at offset 0, where the data say that it is.
    assert!(
        ran.err.starts_with("warning: data.json: 1 of the answers are not at their answer_start, such as data[0]"),
        "{}",
        ran.err
    );
    assert_eq!(score(&folder, "--quiet").ok().err, ran.err);
}

#[test]
fn version_2_0_tells_questions_with_and_without_answers_apart() {
    let questions = [question("1", &["the cat"]), question("2", &["the"]), impossible("3"), impossible("4")];
    let folder = world(&questions, json!({"1": "cat", "2": "the cat", "3": "", "4": "sat"}));
    let scores = json_of(&score(&folder, "--json").ok());
    assert_eq!(
        scores,
        json!({
            "exact": 50.0, "f1": 50.0, "total": 4, "HasAns_exact": 50.0, "HasAns_f1": 50.0, "HasAns_total": 2,
            "NoAns_exact": 50.0, "NoAns_f1": 50.0, "NoAns_total": 2, "missing": 0, "unknown": 0,
        })
    );
    fs::write(folder.path().join("odds.json"), json!({"1": -3.0, "2": 2.0, "3": 5.5, "4": 1.5}).to_string()).unwrap();
    let scores = json_of(&score(&folder, "--na-prob odds.json --na-prob-thresh -1.5 --json").ok());
    assert_eq!(
        (&scores["exact"], &scores["best_exact"], &scores["best_exact_thresh"]),
        (&json!(75.0), &json!(75.0), &json!(-3.0))
    );
    for (share, wanted, threshold) in [(0.0, 50.0, "5.5"), (0.5, 50.0, "1.5"), (0.75, 75.0, "-3"), (1.0, 50.0, "-inf")]
    {
        let ran = score(&folder, &format!("--na-prob odds.json --na-share {share} --json")).ok();
        assert_eq!(json_of(&ran)["exact"], json!(wanted), "{share}");
        assert_eq!(ran.err, format!("threshold {threshold}\n"));
    }
    let table = score(&folder, "--na-prob odds.json").ok().out;
    assert!(table.starts_with("SQuAD 2.0") && table.contains("with an answer          2"), "{table}");
    assert!(table.contains("best exact match 75.000 at threshold -3\nbest F1 75.000 at threshold -3\n"), "{table}");
}

#[test]
fn what_is_missing_counts_as_wrong() {
    let folder = world(&[question("1", &["the cat"]), question("2", &["the"])], json!({"1": "cat"}));
    let ran = score(&folder, "--json").ok();
    let scores = json_of(&ran);
    assert_eq!((&scores["exact_match"], &scores["missing"]), (&json!(50.0), &json!(1)));
    assert_eq!(ran.err, "warning: predictions.json: 1 of the questions have no prediction, which counts as wrong\n");
    let folder = world(&[question("1", &["the cat"]), impossible("2")], json!({"1": "cat"}));
    let scores = json_of(&score(&folder, "--json").ok());
    assert_eq!((&scores["NoAns_exact"], &scores["missing"]), (&json!(0.0), &json!(1)));
}

#[test]
fn what_is_given_for_unknown_questions_counts_for_nothing() {
    let folder = world(&[question("1", &["the cat"])], json!({"1": "cat", "9": "x", "8": "y"}));
    let ran = score(&folder, "--json").ok();
    let scores = json_of(&ran);
    assert_eq!((&scores["exact_match"], &scores["total"], &scores["unknown"]), (&json!(100.0), &json!(1), &json!(2)));
    let warning =
        "warning: predictions.json: 2 of the entries are for questions that the data do not have, such as `8`";
    assert!(ran.err.contains(warning), "{}", ran.err);

    let folder = world(&[question("1", &["the cat"]), impossible("2")], json!({"1": "cat", "2": "x"}));
    let odds = json!({"1": 0.1, "2": 0.9, "8": 0.95, "9": 0.99});
    fs::write(folder.path().join("odds.json"), odds.to_string()).unwrap();
    let ran = score(&folder, "--na-prob odds.json --na-share 0.5 --json").ok();
    let scores = json_of(&ran);
    assert_eq!((&scores["exact"], &scores["best_exact"]), (&json!(100.0), &json!(100.0)));
    assert!(
        ran.err.contains("warning: odds.json: 2 of the entries") && ran.err.contains("threshold 0.1\n"),
        "{}",
        ran.err
    );
}

#[test]
fn what_is_wrong_is_told_in_one_line() {
    let good = || world(&[question("1", &["the cat"])], json!({"1": "cat"}));
    let folder = good();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    score(&folder, "--na-prob predictions.json").fails(2, &["--na-prob is for SQuAD 2.0", "data.json is of 1.1"]);
    score(&folder, "--na-prob-thresh 0.5").fails(2, &["--na-prob"]);
    for share in ["33", "-0.5"] {
        let options = format!("--na-prob p.json --na-share {share}");
        score(&folder, &options).fails(2, &["--na-share", share, "a number from 0 to 1"]);
    }
    write("predictions.json", "{\"1\": \"cat\", \"1\": \"x\"}");
    score(&folder, "").fails(2, &["predictions.json: id `1` is there twice"]);
    write("predictions.json", "{\"1\": null}");
    score(&folder, "").fails(2, &["predictions.json: 1: invalid type: null, expected a string"]);
    write("predictions.json", "cat");
    score(&folder, "").fails(2, &["predictions.json: not JSON: expected value at line 1 column 1"]);
    write("data.json", "{\"data\": [{\"paragraphs\": [{\"context\": \"c\", \"qas\": [{\"question\": \"q\"}]}]}]}");
    score(&folder, "").fails(2, &["data.json: data[0].paragraphs[0].qas[0].id is missing"]);
    write("data.json", "{\"data\": [");
    score(&folder, "").fails(2, &["data.json: not JSON: EOF while parsing a list at line 1 column 10"]);
    fs::remove_file(folder.path().join("data.json")).unwrap();
    score(&folder, "").fails(2, &["data.json: cannot read the file"]);

    let twice = world(&[question("1", &["a"]), question("1", &["b"])], json!({}));
    score(&twice, "").fails(2, &["data[0].paragraphs[0].qas[1].id is `1`, as data[0].paragraphs[0].qas[0].id is"]);
    let doubt = world(&[question("1", &["the cat"]), impossible("2")], json!({"1": "cat", "2": ""}));
    fs::write(doubt.path().join("odds.json"), "{\"1\": 0.5}").unwrap();
    score(&doubt, "--na-prob odds.json").fails(2, &["question `2` has a prediction and no probability", "odds.json)"]);
    bessemer(doubt.path(), "score squat").fails(2, &["'squat'", "'squad'"]);
}

/// Real predictions, with the scores that the official scripts give them.
#[test]
fn real_predictions_have_the_official_scores() {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    if !samples.exists() {
        std::io::stderr().write_all(b"skipped: there is no ../shared/data beside the checkout\n").unwrap();
        return;
    }
    let expected: Value =
        serde_json::from_str(&fs::read_to_string(samples.join("squad_eval/expected.json")).unwrap()).unwrap();
    let mut compared = 0;
    for (name, expected) in expected.as_object().unwrap() {
        let data = expected["dataset"].as_str().unwrap();
        let arguments = format!("score squad --data squad/{data} --predictions squad_eval/{name} --json");
        let ran = bessemer(&samples, &arguments).ok();
        let scores = json_of(&ran);
        assert_eq!((&scores["missing"], ran.err.as_str()), (&json!(0), ""), "{name}");
        for (key, value) in scores.as_object().unwrap() {
            let Some(expected) = expected[key].as_f64() else { continue };
            let found = value.as_f64().unwrap();
            assert!((found - expected).abs() < 1e-9, "{name}: {key} is {found}, expected {expected}");
            compared += 1;
        }
    }
    assert_eq!(compared, 2 * 2 + 2 * 9);
}

/// Two images, of which the first has a cat and a crowd, and a detection of the cat.
fn coco_world() -> TempDir {
    let folder = TempDir::new().unwrap();
    let data = json!({
        "images": [{"id": 4, "width": 60, "height": 40}, {"id": 9, "width": 60, "height": 40}],
        "categories": [{"id": 2, "name": "dog"}, {"id": 1, "name": "cat"}],
        "annotations": [
            {"id": 1, "image_id": 4, "category_id": 1, "bbox": [10, 10, 20, 20], "area": 400, "iscrowd": 0,
             "segmentation": [[10, 10, 30, 10, 30, 30, 10, 30]]},
            {"id": 2, "image_id": 4, "category_id": 1, "bbox": [0, 0, 5, 40], "area": 200, "iscrowd": 1,
             "segmentation": {"size": [40, 60], "counts": [0, 200, 2200]}},
        ],
    });
    let found = json!([{"image_id": 4, "category_id": 1, "score": 0.9, "bbox": [10, 10, 20, 18]}]);
    fs::write(folder.path().join("data.json"), data.to_string()).unwrap();
    fs::write(folder.path().join("found.json"), found.to_string()).unwrap();
    folder
}

fn score_coco(folder: &TempDir, more: &str) -> Ran {
    bessemer(folder.path(), &format!("score coco --data data.json --predictions found.json {more}"))
}

/// Replaces a text in a file of the folder.
fn replace(folder: &TempDir, name: &str, old: &str, new: &str) {
    let path = folder.path().join(name);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(old), "{old} is not in {text}");
    fs::write(path, text.replace(old, new)).unwrap();
}

#[test]
fn detections_have_the_twelve_scores_of_coco() {
    let folder = coco_world();
    for kind in ["bbox", "segm"] {
        // The overlap is 0.9: nine of the ten thresholds are reached.
        let ran = score_coco(&folder, &format!("--kind {kind} --json --classes")).ok();
        let scores = json_of(&ran);
        let near = |name: &str, expected: f64| {
            let found = scores[name].as_f64().unwrap();
            assert!((found - expected).abs() < 1e-12, "{kind}: {name} is {found}");
        };
        for (name, expected) in [("AP", 0.9), ("AP50", 1.0), ("AP_small", 0.9), ("AP_large", -1.0), ("AR_max1", 0.9)] {
            near(name, expected);
        }
        let counts = ["kind", "images", "objects", "detections"].map(|name| scores[name].clone());
        assert_eq!(counts, [json!(kind), json!(2), json!(1), json!(1)]);
        assert_eq!(scores.as_object().unwrap().len(), 4 + 12 + 1);
        let [cat, dog] = scores["classes"].as_array().unwrap().as_slice() else { panic!("{scores}") };
        assert_eq!(
            (&cat["id"], &cat["name"], &cat["objects"], &cat["AP"]),
            (&json!(1), &json!("cat"), &json!(1), &scores["AP"])
        );
        assert_eq!((&dog["name"], &dog["detections"], &dog["AP"]), (&json!("dog"), &json!(0), &json!(-1.0)));
        assert_eq!(ran.err, "");
    }
    let table = score_coco(&folder, "--classes").ok().out;
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines.len(), 13 + 1 + 3, "{table}");
    assert_eq!(lines[0], ["COCO", "bbox", "IoU", "area", "detections", "score"]);
    assert_eq!(lines[1], ["AP", "0.50:0.95", "all", "100", "0.900"]);
    assert_eq!(lines[12], ["AR_large", "0.50:0.95", "large", "100", "-"]);
    assert_eq!(lines[15], ["cat", "1", "1", "0.900", "1.000", "1.000", "0.900", "-", "-", "0.900"]);
    assert_eq!(score_coco(&folder, "").ok().out.lines().count(), 13);
    let table = score_coco(&folder, "--classes --csv").ok().out;
    let [header, cat, dog] = table.split_terminator("\r\n").collect::<Vec<_>>()[..] else { panic!("{table}") };
    assert!(header.starts_with("id,name,objects,detections,AP,AP50,") && header.ends_with(",AR_large"), "{header}");
    let precision = cat.strip_prefix("1,cat,1,1,").and_then(|rest| rest.split(',').next()?.parse().ok());
    assert!(precision.is_some_and(|precision: f64| (precision - 0.9).abs() < 1e-12), "{table}");
    assert!(dog.starts_with("2,dog,0,0,-1.0,"), "{table}");
    assert!([header, cat, dog].iter().all(|row| row.split(',').count() == 16), "{table}");
    score_coco(&folder, "--csv").fails(2, &["--classes"]);
}

#[test]
fn some_images_of_coco_are_compared() {
    let folder = coco_world();
    replace(&folder, "data.json", "{\"id\":9,", "{\"id\":9,\"file_name\":\"b.jpg\",");
    let missed = "{\"area\":900,\"bbox\":[0,0,30,30],\"category_id\":1,\"id\":3,\"image_id\":9}";
    replace(&folder, "data.json", "\"annotations\":[", &format!("\"annotations\":[{missed},"));
    let scores = |list: &str| {
        fs::write(folder.path().join("some.txt"), list).unwrap();
        let scores = json_of(&score_coco(&folder, "--json --images some.txt").ok());
        ["images", "objects", "detections", "AP50"].map(|name| scores[name].as_f64().unwrap())
    };
    let close = |found: [f64; 4], expected: [f64; 4]| {
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?} is not {expected:?}");
    };
    close(scores("4\n"), [1.0, 1.0, 1.0, 1.0]);
    close(scores("b.jpg\n\n"), [1.0, 1.0, 0.0, 0.0]);
    // Half of the objects are found, at 51 of 101 recalls.
    close(scores("9\n4"), [2.0, 2.0, 1.0, 51.0 / 101.0]);
    fs::write(folder.path().join("some.txt"), "4\n\nc.jpg").unwrap();
    score_coco(&folder, "--images some.txt").fails(2, &["some.txt: line 3: `c.jpg` is neither the id nor"]);
    fs::write(folder.path().join("some.txt"), "\n").unwrap();
    score_coco(&folder, "--images some.txt").fails(2, &["some.txt: no image is listed"]);
    score_coco(&folder, "--images none.txt").fails(2, &["none.txt"]);
}

#[test]
fn surprising_files_of_coco_give_warnings() {
    let folder = coco_world();
    replace(&folder, "found.json", "\"category_id\":1", "\"category_id\":7");
    let err = score_coco(&folder, "").ok().err;
    let warning =
        "warning: found.json: 1 of the detections are of categories that the data do not have, such as 7; they";
    assert!(err.contains(warning) && err.contains("warning: found.json: there is no detection to evaluate"), "{err}");
    assert!(score_coco(&folder, "--quiet").ok().err.contains(warning));
    fs::write(folder.path().join("found.json"), "[]").unwrap();
    let ran = score_coco(&folder, "--json").ok();
    assert_eq!((&json_of(&ran)["AP"], &json_of(&ran)["AP_large"]), (&json!(0.0), &json!(-1.0)));
    assert_eq!(ran.err, "warning: found.json: there is no detection to evaluate\n");

    let folder = coco_world();
    replace(&folder, "data.json", "\"id\":1,\"image_id\"", "\"id\":0,\"image_id\"");
    let ran = score_coco(&folder, "--json").ok();
    assert!(ran.err.starts_with("warning: data.json: an annotation has the id 0"), "{}", ran.err);
    assert_eq!(json_of(&ran)["AP"], json!(0.0));
    let found = fs::read_to_string(folder.path().join("found.json")).unwrap();
    let one = found.trim_matches(['[', ']']);
    fs::write(folder.path().join("found.json"), format!("[{}]", vec![one; 103].join(","))).unwrap();
    let err = score_coco(&folder, "").ok().err;
    assert!(
        err.contains("warning: found.json: 3 of the detections are not evaluated, because 100 of their image"),
        "{err}"
    );
}

#[test]
fn invalid_files_of_coco_give_one_error() {
    for (name, old, new, kind, parts) in [
        (
            "data.json",
            "\"images\"",
            "images",
            "bbox",
            ["data.json: not JSON: key must be a string at line 1 column 2", ""],
        ),
        ("data.json", "\"area\":400", "\"area\":NaN", "bbox", ["data.json: not JSON: NaN at line 1 column", ""]),
        (
            "data.json",
            "\"area\":400,",
            "",
            "bbox",
            ["data.json: annotations[0]: missing field `area`", "expected COCO's"],
        ),
        (
            "data.json",
            "\"id\":2,\"image_id\"",
            "\"id\":1,\"image_id\"",
            "bbox",
            ["annotations[1].id is 1, as annotations[0]", ""],
        ),
        (
            "data.json",
            "\"category_id\":1",
            "\"category_id\":3",
            "bbox",
            ["annotations[0].category_id is 3, which categories", ""],
        ),
        (
            "data.json",
            "[[10,10,30,10,30,30,10,30]]",
            "[[10,10,30,10]]",
            "segm",
            ["annotations[0].segmentation[0]: a polygon of 4", "id 1"],
        ),
        (
            "data.json",
            "[40,60]",
            "[60,40]",
            "segm",
            ["annotations[1].segmentation.size is [60, 40]", "height 40 and width 60"],
        ),
        (
            "data.json",
            "2200",
            "2199",
            "segm",
            ["annotations[1].segmentation: runs that cover 2399 pixels", "expected 2400"],
        ),
        ("found.json", "}]", "}", "bbox", ["found.json: not JSON: EOF while parsing a list at line 1", ""]),
        (
            "found.json",
            "\"image_id\":4",
            "\"image_id\":5",
            "bbox",
            ["found.json: [0].image_id is 5, which is no image of data.json", ""],
        ),
        (
            "found.json",
            "\"score\":0.9",
            "\"score\":1e999",
            "bbox",
            ["found.json: not JSON: number out of range at line 1", ""],
        ),
        ("found.json", "\"bbox\"", "\"box\"", "bbox", ["found.json: [0] has neither bbox nor segmentation", ""]),
    ] {
        let folder = coco_world();
        replace(&folder, name, old, new);
        score_coco(&folder, &format!("--kind {kind}")).fails(2, &parts);
    }
    let folder = coco_world();
    let empty = json!({"images": [{"id": 4, "width": 60, "height": 40}], "categories": [], "annotations": []});
    fs::write(folder.path().join("data.json"), empty.to_string()).unwrap();
    score_coco(&folder, "").fails(2, &["COCO: there are no annotations (data.json, found.json)"]);
    fs::remove_file(folder.path().join("found.json")).unwrap();
    score_coco(&folder, "").fails(2, &["found.json: cannot read the file"]);
    score_coco(&folder, "--kind box").fails(2, &["'box'", "bbox, segm"]);
}

/// Published and derived detections of real photos, with the scores that pycocotools gives them.
#[test]
fn real_detections_have_the_scores_of_pycocotools() {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    if !samples.exists() {
        std::io::stderr().write_all(b"skipped: there is no ../shared/data beside the checkout\n").unwrap();
        return;
    }
    let expected: Value =
        serde_json::from_str(&fs::read_to_string(samples.join("coco_eval/expected.json")).unwrap()).unwrap();
    let mut compared = 0;
    for (name, expected) in expected.as_object().unwrap() {
        let truth = expected["ground_truth"].as_str().unwrap();
        let kind = expected["iou_type"].as_str().unwrap();
        let arguments = format!(
            "score coco --data coco_eval/{truth} --predictions coco_eval/{name} --kind {kind} --classes --json"
        );
        let scores = json_of(&bessemer(&samples, &arguments).ok());
        let classes = scores["classes"].as_array().unwrap();
        let of_class = |id: &str| {
            let class =
                classes.iter().find(|class| class["id"].as_u64().is_some_and(|number| number.to_string() == id));
            class.unwrap()["AP"].as_f64().unwrap()
        };
        let stats = expected["stats"].as_object().unwrap().iter();
        let stats = stats.map(|(stat, value)| (stat.clone(), scores[stat].as_f64().unwrap(), value));
        let per_class = expected["per_category_AP"].as_object().unwrap().iter();
        let per_class = per_class.map(|(id, value)| (format!("AP of class {id}"), of_class(id), value));
        for (stat, found, expected) in stats.chain(per_class) {
            let expected = expected.as_f64().unwrap();
            assert!((found - expected).abs() < 1e-9, "{name}: {stat} is {found}, expected {expected}");
            compared += 1;
        }
    }
    assert_eq!(compared, 4 * (12 + 80));
}
