//! A detector from the command line: trained, evaluated, asked about files and about a stream of pictures.

use crate::common::{Ran, bessemer};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

const TRAIN: &str = "train efficientdet-tiny --data shapes --out run --quiet --steps 1 --set train.batch_size=2 \
                     --set data.train_samples=4 --set data.eval_samples=2 --set eval.batch_size=2";

/// Runs `bessemer` with pictures on standard input; also what it writes to standard output.
fn with_pictures(folder: &Path, arguments: &str, pictures: &[u8]) -> (Ran, Vec<u8>) {
    let words = arguments.split_whitespace();
    let mut command = Command::new(env!("CARGO_BIN_EXE_bessemer"));
    command.current_dir(folder).args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let pictures = pictures.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&pictures));
    let output = child.wait_with_output().unwrap();
    // A program that refuses its arguments does not read.
    let _ = writer.join().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    (Ran { code: output.status.code().unwrap_or(-1), out, err }, output.stdout)
}

#[test]
fn a_detector_is_used() {
    let folder = TempDir::new().unwrap();
    let run = |arguments: &str| bessemer(folder.path(), arguments);
    run(TRAIN).ok();
    assert!(folder.path().join("run/predictions/compared-001.jpg").is_file());
    run("data shapes --format coco --out coco --train 1 --val 3 --size 64").ok();
    let picture = |id: usize| fs::read(folder.path().join(format!("coco/val2017/{id:012}.jpg"))).unwrap();
    let pictures = [picture(1), picture(2), picture(3)].concat();
    let infer = "infer efficientdet-tiny --weights run --checkpoint latest --top 2 --score 0";

    let (drawn, bytes) = with_pictures(folder.path(), &format!("{infer} --frames - --out -"), &pictures);
    let drawn = drawn.ok();
    assert!(bytes.starts_with(&[0xff, 0xd8, 0xff]) && bytes.ends_with(&[0xff, 0xd9]), "JPEGs and nothing else");
    assert!(drawn.err.contains("frame-000003.jpg: 2 objects"), "{}", drawn.err);
    let (quiet, same) = with_pictures(folder.path(), &format!("{infer} --frames - --out - --quiet"), &pictures);
    assert!(quiet.ok().err.is_empty() && same == bytes);
    fs::write(folder.path().join("film.mjpeg"), &pictures).unwrap();
    let listed = run(&format!("{infer} --frames film.mjpeg --out drawn --json")).ok().out;
    let lines: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), lines[1]["objects"].as_array().unwrap().len()), (3, 2));
    let results: Value = serde_json::from_slice(&fs::read(folder.path().join("drawn/results.json")).unwrap()).unwrap();
    assert_eq!((results.as_array().unwrap().len(), &results[5]["image_id"]), (6, &3.into()));
    let table = run(&format!("{infer} --frames film.mjpeg --csv")).ok().out;
    let rows: Vec<Vec<&str>> = table.split_terminator("\r\n").map(|row| row.split(',').collect()).collect();
    assert_eq!(rows[0].join(","), "picture,rank,class_id,category_id,name,score,x,y,width,height");
    assert_eq!((rows.len(), &rows[4][..2]), (7, &["frame-000002.jpg", "2"][..]), "{table}");
    let object = &lines[1]["objects"][1];
    let cells = [&object["class"], &object["category_id"], &object["name"], &object["score"], &object["bbox"][3]];
    let cells = cells.map(|cell| cell.to_string().replace('"', ""));
    assert_eq!([rows[4][2], rows[4][3], rows[4][4], rows[4][5], rows[4][9]], cells.each_ref().map(String::as_str));

    let cut = &pictures[..pictures.len() - 5];
    let (ran, bytes) = with_pictures(folder.path(), &format!("{infer} --frames - --out - --quiet"), cut);
    ran.fails(2, &["standard input, frame 3: truncated JPEG"]);
    assert!(bytes.len() > 1000 && bytes.len() < same.len(), "the frames before it");
    with_pictures(folder.path(), &format!("{infer} --frames -"), b"").0.fails(2, &["standard input: no picture"]);
    run(&format!("{infer} --frames no.mjpeg")).fails(2, &["no.mjpeg: cannot open the pictures"]);
    run(&format!("{infer} --out - coco/val2017")).fails(2, &["--out - is for --frames"]);
    run(&format!("{infer} --frames - coco/val2017")).fails(2, &["cannot be used with"]);
}

#[test]
fn evaluations_write_what_servers_take() {
    let folder = TempDir::new().unwrap();
    let run = |arguments: &str| bessemer(folder.path(), arguments);
    run(TRAIN).ok();
    run("data shapes --format coco --out coco --train 1 --val 3 --size 64").ok();
    let annotations = folder.path().join("coco/annotations");
    fs::copy(annotations.join("instances_val2017.json"), annotations.join("image_info_val2017.json")).unwrap();
    let eval = "eval efficientdet-tiny --weights run --data coco --batch-size 3";
    run(&format!("{eval} --out scored")).ok();
    let scored = run("score coco --data coco/annotations/instances_val2017.json --predictions scored/bbox.json").ok();
    assert!(scored.out.contains("AP"), "{}", scored.out);
    let table = |arguments: &str| {
        let out = run(arguments).ok().out;
        out.lines().skip_while(|line| !line.starts_with("class ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let of_results =
        "score coco --classes --data coco/annotations/instances_val2017.json --predictions scored/bbox.json";
    let classes = table(&format!("{eval} --classes"));
    assert!(classes == table(of_results) && classes.len() == 11, "{classes:?}");
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let told = json(&run(&format!("{eval} --classes --json")).ok().out)["classes"].clone();
    assert_eq!(told["bbox"], json(&run(&format!("{of_results} --json")).ok().out)["classes"]);
    assert_eq!(told, json(&fs::read_to_string(folder.path().join("scored/classes.json")).unwrap()));
    run(&format!("{eval} --classes --split val2017 --out answers")).fails(2, &["cannot be used with"]);
    assert!(folder.path().join("scored/compared-002.jpg").is_file());
    let answers = run(&format!("{eval} --split val2017 --out answers --pictures 0")).ok();
    assert!(answers.err.contains("note: no scores") && !answers.out.contains("AP"), "{}{}", answers.out, answers.err);
    let read = |path: &str| fs::read(folder.path().join(path)).unwrap();
    let answers = read("answers/detections_val2017_efficientdet-tiny_results.json");
    assert!(answers == read("scored/bbox.json"), "the same detections");
    assert!(!folder.path().join("answers/compared-000.jpg").exists());
    run(&format!("{eval} --split test-dev2017 --out answers"))
        .fails(2, &["image_info_test-dev2017.json: no such file"]);
    run(&format!("{eval} --split val2017")).fails(2, &["--out"]);
    let resnet = "eval resnet20-cifar --weights x --data shapes";
    run(&format!("{resnet} --classes")).fails(2, &["--classes is for models that detect objects"]);
    run(&format!("{resnet} --split a --out b")).fails(2, &["--split is for models that detect objects"]);
    run("infer resnet20-cifar --weights run --frames -").fails(2, &["--frames is for models that detect objects"]);
}
