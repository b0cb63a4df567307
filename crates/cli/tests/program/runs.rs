//! Training, measuring and reporting from the command line.

use crate::common::bessemer;
use serde_json::Value;
use std::fs;
use tempfile::TempDir;

const TRAIN: &str = "train resnet20-cifar --data shapes --quiet --set train.batch_size=8 --set eval.batch_size=20 \
                     --set data.eval_samples=20 --set data.train_samples=40 --set schedule.warmup_epochs=0 \
                     --set model.num_classes=10";

#[test]
fn a_run_is_trained_used_resumed_and_reported() {
    let folder = TempDir::new().unwrap();
    let run = |arguments: &str| bessemer(folder.path(), arguments);
    let said = run(&format!("{TRAIN} --epochs 1 --out run")).ok().out;
    assert!(said.contains("steps       5") && said.contains("top1"), "{said}");
    assert!(folder.path().join("run/predictions/samples.json").is_file());
    let taken = run(&format!("{TRAIN} --epochs 1 --out run --data nowhere").replace("--data shapes", ""));
    taken.fails(2, &["run: holds a run already"]);

    let again = run("train --recipe run/recipe.toml --out again").ok();
    assert!(again.out.contains("steps       5"), "{}", again.out);
    let first = "resnet20-cifar: recipe shapes-quick on shapes, 5 steps of 8 images in fp32, learning rate 5.000e-2; the run is in again\n";
    assert!(again.err.starts_with(first), "{}", again.err);
    let weights =
        |name: &str| fs::read(folder.path().join(name).join("checkpoints/step-000005/model.safetensors")).unwrap();
    assert!(weights("run") == weights("again"), "the resolved recipe gives the same weights");
    let events = || fs::read(folder.path().join("run/events.jsonl")).unwrap();
    let before = events();
    let begun = before.split(|byte| *byte == b'\n').next().unwrap();
    // What the build script says to the program it says to this test.
    let begun: Value = serde_json::from_slice(begun).unwrap();
    assert_eq!((&begun["kind"], &begun["commit"]), (&"run".into(), &option_env!("BESSEMER_COMMIT").into()));
    let finished = run("train --resume run").ok();
    assert!(
        finished.out == said && finished.err.contains("the run is finished, all of its 5 steps"),
        "{}",
        finished.err
    );
    assert!(events() == before);
    run("train --resume run --quiet --set optimizer.momentum=0.5").fails(2, &["optimizer.momentum"]);

    run("data shapes --out shapes --train 10 --val 10 --size 32 --png").ok();
    let total = |data: &str| {
        let eval = run(&format!("eval resnet20-cifar --weights run --data {data} --json")).ok().out;
        serde_json::from_str::<Value>(&eval).unwrap()["total"].clone()
    };
    assert_eq!((total("./shapes"), total("shapes")), (10.into(), 20.into()));
    let eval = run("eval resnet20-cifar --weights run --data shapes --json --checkpoint 5").ok();
    assert!(eval.err.contains("weights: run/checkpoints/step-000005: the checkpoint of step 5\n"), "{}", eval.err);
    let eval: Value = serde_json::from_str(&eval.out).unwrap();
    assert_eq!((&eval["checkpoint"]["step"], &eval["checkpoint"]["chosen"]), (&5.into(), &"step".into()));
    let eval = "eval resnet20-cifar --data shapes";
    assert!(run(&format!("{eval} --weights run")).ok().err.contains("step 5, the best one of the run (top1 "));
    run(&format!("{eval} --weights run --checkpoint 4")).fails(2, &["no checkpoint of step 4", "those of steps 5"]);
    run(&format!("{eval} --weights run --checkpoint last")).fails(2, &["best, latest or the number of a step"]);
    let one = "run/checkpoints/step-000005";
    run(&format!("{eval} --weights {one} --checkpoint best")).fails(2, &[one, "no run folder"]);
    run("weights convert run converted.safetensors --checkpoint 6").fails(2, &["no checkpoint of step 6"]);
    run(&format!("{TRAIN} --steps 1 --out next --checkpoint 5")).fails(2, &["--weights or --init-from"]);
    let next = run(&format!("{TRAIN} --steps 1 --out next --init-from run").replace("--quiet", "")).ok().err;
    assert!(next.contains("the checkpoint of step 5, the latest one of the run"), "{next}");
    let infer = run("infer resnet20-cifar --weights run --top 2 --json shapes/val/star/000003.png").ok().out;
    let infer: Value = serde_json::from_str(&infer).unwrap();
    assert_eq!(infer[0]["classes"].as_array().unwrap().len(), 2);
    let quoted = r#"a,"b".png"#;
    fs::copy(folder.path().join("shapes/val/star/000003.png"), folder.path().join(quoted)).unwrap();
    let two = format!("infer resnet20-cifar --weights run --top 2 {quoted} shapes/val/star/000003.png");
    let infer: Value = serde_json::from_str(&run(&format!("{two} --json")).ok().out).unwrap();
    let csv = run(&format!("{two} --csv")).ok().out;
    let classes = infer[0]["classes"].as_array().unwrap();
    let rows = |picture: &str| -> String {
        let row = |(rank, class): (usize, &Value)| {
            format!(
                "{picture},{rank},{},{},{}\r\n",
                class["class"],
                class["name"].as_str().unwrap(),
                class["probability"]
            )
        };
        (1..).zip(classes).map(row).collect()
    };
    let expected = [rows(r#""a,""b"".png""#), rows("shapes/val/star/000003.png")].concat();
    assert_eq!(csv, format!("picture,rank,class_id,name,probability\r\n{expected}"));
    run(&format!("{two} --csv --json")).fails(2, &["--csv", "--json"]);
    run("eval resnet32-cifar --weights run --data shapes").fails(2, &["resnet20-cifar"]);

    run("report run --html report.html --markdown report.md").ok();
    let html = fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(html.contains("data:image/png;base64,") && html.contains("<figure class=\"chart card\">"));
    assert!(fs::read_to_string(folder.path().join("report.md")).unwrap().contains("(run/predictions/sample-000.png)"));
    run("report nowhere").fails(2, &["nowhere: no such file or folder"]);
}

#[test]
fn a_run_is_trained_in_parts() {
    let folder = TempDir::new().unwrap();
    let run = |arguments: &str| bessemer(folder.path(), arguments);
    run(&format!("{TRAIN} --epochs 1 --out whole")).ok();
    let said = run(&format!("{TRAIN} --epochs 1 --out parts --stop-after 2")).ok().out;
    assert_eq!(said, "stopped after step 2, as --stop-after says; go on with --resume parts\n");
    let said = run("train --resume parts --quiet --stop-after 2").ok().out;
    assert!(said.starts_with("stopped after step 4"), "{said}");
    assert!(run("train --resume parts --quiet --stop-after 2").ok().out.contains("steps       5"));
    let weights =
        |name: &str| fs::read(folder.path().join(name).join("checkpoints/step-000005/model.safetensors")).unwrap();
    assert!(weights("whole") == weights("parts"));
}

#[test]
fn weights_of_1000_classes_know_those_of_imagenet() {
    let folder = TempDir::new().unwrap();
    let run = |arguments: &str| bessemer(folder.path(), arguments);
    run(&format!("{TRAIN} --steps 1 --out run --set model.num_classes=1000")).ok();
    // A file that says nothing, as those that others publish.
    let weights = folder.path().join("run/checkpoints/step-000001/model.safetensors");
    fs::copy(weights, folder.path().join("wide.safetensors")).unwrap();
    run("data shapes --out shapes --train 10 --val 10 --size 32 --png").ok();
    let (pictures, shapes) = (folder.path().join("pictures"), folder.path().join("shapes/val"));
    fs::create_dir(&pictures).unwrap();
    fs::rename(shapes.join("star"), pictures.join("n02979186")).unwrap();
    fs::rename(shapes.join("heart"), pictures.join("n01440764")).unwrap();

    let infer = run("infer resnet20-cifar --weights wide.safetensors --top 1000 --json pictures").ok().out;
    let infer: Vec<Value> = serde_json::from_str(&infer).unwrap();
    let mut loss = 0.0;
    for prediction in &infer {
        let classes = prediction["classes"].as_array().unwrap();
        let class = |number: usize| classes.iter().find(|class| class["class"] == number).unwrap();
        let is_fish = prediction["path"].as_str().unwrap().contains("n01440764");
        assert_eq!((&class(0)["name"], &class(482)["name"]), (&"tench".into(), &"cassette player".into()));
        loss -= class(if is_fish { 0 } else { 482 })["probability"].as_f64().unwrap().ln() / infer.len() as f64;
    }
    let eval = run("eval resnet20-cifar --weights wide.safetensors --data pictures --json").ok().out;
    let eval: Value = serde_json::from_str(&eval).unwrap();
    assert_eq!(eval["total"].as_u64(), Some(infer.len() as u64));
    assert!((eval["loss"].as_f64().unwrap() - loss).abs() < 1e-4, "{loss} by the probabilities, {eval}");
    fs::create_dir(pictures.join("n99999999")).unwrap();
    fs::copy(pictures.join("n02979186/000003.png"), pictures.join("n99999999/a.png")).unwrap();
    run("eval resnet20-cifar --weights wide.safetensors --data pictures").fails(2, &["n99999999", "1000 classes"]);
}

#[test]
fn a_model_may_have_more_outputs_than_classes() {
    let folder = TempDir::new().unwrap();
    let run = |arguments: &str| bessemer(folder.path(), arguments);
    run("data shapes --out own --train 20 --val 20 --size 32 --png").ok();
    let classes = fs::read_dir(folder.path().join("own/train")).unwrap().map(|entry| entry.unwrap().file_name());
    for class in classes.skip(2) {
        for half in ["train", "val"] {
            fs::remove_dir_all(folder.path().join("own").join(half).join(&class)).unwrap();
        }
    }
    let train =
        "train resnet20-cifar --data own --epochs 1 --set train.batch_size=2 --set model.num_classes=10 --out run";
    let said = run(train).ok().err;
    assert!(said.contains("10 outputs for 2 classes of data; `--set model.num_classes=2`"), "{said}");
    let eval = run("eval resnet20-cifar --weights run --data own --json").ok().out;
    let eval: Value = serde_json::from_str(&eval).unwrap();
    assert_eq!(eval["total"], 4);
    let fewer = "train resnet20-cifar --data own --epochs 1 --set train.batch_size=2 --weights run --out fewer";
    let said = run(fewer).ok().err;
    assert!(said.contains("has 10 classes and the model 2: its last layer is drawn at random"), "{said}");
    assert!(!said.contains("outputs for"), "{said}");
    let eval = run("eval resnet20-cifar --weights fewer --data own --json").ok().out;
    assert_eq!(serde_json::from_str::<Value>(&eval).unwrap()["total"], 4);
    // Drawn shapes are drawn, whatever folder has that name.
    fs::rename(folder.path().join("own"), folder.path().join("shapes")).unwrap();
    let drawn =
        run("train resnet20-cifar --data shapes --steps 1 --set train.batch_size=2 --verbose --out drawn").ok().err;
    assert!(drawn.contains("num_classes = 4\n"), "{drawn}");
    fs::rename(folder.path().join("shapes"), folder.path().join("own")).unwrap();
    run("eval run").fails(2, &["that is a path", "weights behind --weights"]);
    run("weights convert run run.onnx --to onnx").ok();
    run("weights convert run no.onnx --to onnx --outputs network").fails(2, &["kind of outputs", "resnet20-cifar"]);
    run("infer resnet20-cifar --weights run.onnx own").fails(2, &["run.onnx: that is an ONNX file"]);
}

#[test]
fn a_loss_that_is_not_finite_is_told_once() {
    let folder = TempDir::new().unwrap();
    let wild = "--epochs 60 --set schedule.base_lr=1000 --set schedule.kind=constant --set optimizer.weight_decay=1 \
                --set optimizer.decay_exclude=none --out run";
    let train = format!("{TRAIN} {wild}").replace("--quiet", "");
    let ran = bessemer(folder.path(), &train).fails(1, &["at learning rate 1000", "schedule.base_lr"]);
    assert_eq!(ran.err.matches("at learning rate 1000").count(), 1, "{}", ran.err);
}

#[test]
fn measurements_have_every_field() {
    let folder = TempDir::new().unwrap();
    let options = "--warmup 1 --steps 2 --repeat 2 --quiet";
    let out =
        bessemer(folder.path(), &format!("bench train resnet20-cifar --batch-size 1,2 {options} --json")).ok().out;
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{out}");
    let fields = "v kind time elapsed rank step framework framework_version model mode precision device device_name \
                  devices nodes threads batch_size data options warmup steps repeat throughput unit step_ms \
                  published_style runs spread peak_memory_bytes flops_per_sample fraction_of_peak \
                  hardware_flops_per_sample hardware_fraction_of_peak loss_first loss_last";
    for line in &lines {
        let names: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
        let mut expected: Vec<&str> = fields.split_whitespace().collect();
        let mut found = names.clone();
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected);
        assert_eq!((line["kind"].as_str(), line["v"].as_u64()), (Some("bench"), Some(1)));
        let utilisation = |name: &str| line[name].as_f64().unwrap();
        assert!(utilisation("hardware_fraction_of_peak") <= utilisation("fraction_of_peak"), "{line}");
        assert!(line["throughput"].as_f64().unwrap() > 0.0 && line["loss_last"].as_f64().unwrap() > 0.0, "{line}");
        assert_eq!(line["runs"].as_array().unwrap().len(), 2);
        assert!(line["peak_memory_bytes"].as_u64().is_none_or(|bytes| bytes > 1 << 20), "{line}");
    }

    let both = format!("bench train resnet20-cifar --batch-size 1 --precision fp32,bf16 {options} --out both.jsonl");
    let table = bessemer(folder.path(), &both).ok().out;
    assert!(table.contains("GFLOP/s fp32") && table.matches("resnet20-cifar").count() == 2, "{table}");
    let lines = fs::read_to_string(folder.path().join("both.jsonl")).unwrap();
    let of = |line: &str| serde_json::from_str::<Value>(line).unwrap()["precision"].as_str().unwrap().to_owned();
    assert_eq!(lines.lines().map(of).collect::<Vec<_>>(), ["fp32", "bf16"]);

    let quick = "bench infer resnet20-cifar --batch-size 1,2 --budget 1";
    let ran = bessemer(folder.path(), &format!("{quick} --out quick.jsonl")).ok();
    assert!(ran.out.lines().next().unwrap().ends_with("; quick"), "{}", ran.out);
    let announced =
        "quick measurement: 2 batch sizes in about 1.0 s; --method dlperf makes 7 repeats of 20 + 100 steps\n";
    assert!(ran.err.starts_with(announced) && ran.err.contains("batch 2: "), "{}", ran.err);
    let lines = fs::read_to_string(folder.path().join("quick.jsonl")).unwrap();
    for line in lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        assert_eq!(
            (&line["options"]["budget_s"], line["steps"].as_u64().unwrap() <= 100),
            (&0.5.into(), true),
            "{line}"
        );
    }
    bessemer(folder.path(), &format!("{quick} --method dlperf")).fails(2, &["--budget is for --method quick"]);

    let bench = format!("bench infer resnet20-cifar --batch-size 2 {options} --no-fuse --profile --out results.jsonl");
    let table = bessemer(folder.path(), &bench).ok().out;
    assert!(
        table.contains("GFLOP/s fp32")
            && table.contains("MFU")
            && table.contains("HFU")
            && table.contains("images/s")
            && table.contains("kernel"),
        "{table}"
    );
    let (_, latencies) = table.split_once("latencies as published tables print them\n").expect("latencies");
    let lines: Vec<&str> = latencies.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains("batch") && lines[1].trim_start().starts_with("2 "), "{table}");
    assert_eq!(lines[1].split_whitespace().count(), 11, "{table}");
    let report = bessemer(folder.path(), "report results.jsonl").ok().out;
    assert!(report.contains("resnet20-cifar, inference"), "{report}");
}

#[test]
fn steps_are_measured_on_data_that_are_loaded_meanwhile() {
    let folder = TempDir::new().unwrap();
    let run = |arguments: &str| bessemer(folder.path(), arguments);
    run("data shapes --train 40 --val 10 --size 32 --out shapes --quiet").ok();
    let bench = "bench train resnet20-cifar --batch-size 4 --warmup 1 --steps 12 --repeat 1 --quiet";
    let loaded = run(&format!("{bench} --data shapes/ --workers 2 --json")).ok().out;
    let loaded: Value = serde_json::from_str(&loaded).unwrap();
    assert_eq!((&loaded["data"], &loaded["options"]["workers"]), (&"shapes/".into(), &2.into()), "{loaded}");
    assert!((0.0..1.0).contains(&loaded["input_wait"].as_f64().unwrap()), "{loaded}");
    // The same steps on other inputs.
    let random: Value = serde_json::from_str(&run(&format!("{bench} --json")).ok().out).unwrap();
    assert_eq!((&random["data"], random.get("input_wait")), (&"synthetic".into(), None));
    assert_eq!(loaded["flops_per_sample"], random["flops_per_sample"]);
    assert_ne!(loaded["loss_first"], random["loss_first"]);
    assert!(run(&format!("{bench} --data shapes/")).ok().out.contains("of the time steps wait for their batches: "));
    let other = format!("{bench} --data shapes/ --set data.image_size=16");
    run(&format!("{bench} --data shapes/ --set loader.workers=2")).fails(2, &["loader.workers is that of --workers"]);
    run(&format!("{bench} --data shapes/ --set nothing")).fails(2, &["--set"]);
    run(&format!("{bench} --data shapes/ --step-profile steps.json")).fails(2, &["--step-profile", "--data"]);
    run(&other).fails(2, &["the step's `images`, u8[4, 32, 32, 3] of 12288 bytes; these have 3072"]);
    run(&format!("{bench} --data nowhere")).fails(2, &["nowhere: no such folder"]);
    run("bench infer resnet20-cifar --data shapes/").fails(2, &["--data is what training steps are fed"]);
    run("bench train resnet20-cifar --workers 2").fails(2, &["--data"]);
}

#[test]
fn kernels_are_measured_alone() {
    let folder = TempDir::new().unwrap();
    let run = |arguments: &str| bessemer(folder.path(), &format!("bench kernels --quiet --time 0.01 {arguments}"));
    let filter = "--filter efficientnet-b0/block0.squeeze*forward";
    let table = run(&format!("{filter} --out kernels.jsonl")).ok().out;
    assert!(table.contains("block0.squeeze [4,32]x[32,8] forward") && table.contains("matmul forward"), "{table}");
    let lines = fs::read_to_string(folder.path().join("kernels.jsonl")).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    let fp32 = &lines[0];
    assert_eq!((fp32["kind"].as_str(), fp32["v"].as_u64(), fp32["nodes"].as_u64()), (Some("kernel"), Some(1), Some(1)));
    assert!(fp32["device_name"].is_string() && fp32["isa"].is_string() && fp32["limit_rate"].as_f64().unwrap() > 0.1);
    assert!(fp32["fraction_of_peak"].as_f64().unwrap() > 0.0 && fp32["ms"]["p50"].as_f64().unwrap() > 0.0, "{fp32}");

    // So small a product spends its time on the call.
    let slow = run(&format!("{filter} --floor 0.9 --json")).fails(1, &["below", "floor"]);
    assert_eq!(slow.out.lines().count(), 2, "nothing but objects: {}", slow.out);
    fs::write(folder.path().join("floors.toml"), "\"*\" = 0.9\n\"block0.squeeze\" = 1e-9\n").unwrap();
    let fp32 = run(&format!("{filter} --floors floors.toml --precision fp32")).ok().out;
    assert!(!fp32.contains("bf16  "), "{fp32}");
}

#[test]
fn a_batch_that_does_not_fit_is_a_row() {
    let folder = TempDir::new().unwrap();
    let bench = "bench train resnet20-cifar --batch-size 4194304 --warmup 0 --steps 1 --repeat 1 --quiet";
    let table = bessemer(folder.path(), bench).fails(1, &["nothing was measured"]).out;
    assert!(table.lines().last().unwrap().contains("out of memory"), "{table}");
}

#[test]
fn folders_that_cannot_be_written() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    let run = |arguments: &str| bessemer(folder.path(), arguments);
    run(&format!("{TRAIN} --steps 1 --out file/run")).fails(2, &["file/run: is not a folder"]);
    run(&format!("{TRAIN} --steps 1 --out file")).fails(2, &["file: is not a folder"]);
    run("bench infer resnet20-cifar --out file/results.jsonl")
        .fails(2, &["file/results.jsonl", "there is no folder file"]);
    for command in [
        "quickstart --quiet --out file/runs",
        "data shapes --out file/shapes",
        "infer mask-rcnn-tiny x.png --weights w --out file",
    ] {
        run(command).fails(2, &["file is a file; name a folder"]);
    }
    run("compare --plan absent.toml").fails(2, &["absent.toml"]);
}
