//! Bad data and bad weights are reported by file, and good ones go through.

use crate::common::bessemer;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const TRAIN: &str = "train resnet20-cifar --quiet --steps 2 --set train.batch_size=4 --set eval.batch_size=10 --data";

/// A small class folder, and a file of it.
fn drawn(folder: &Path) -> std::path::PathBuf {
    bessemer(folder, "data shapes --out shapes --train 20 --val 10 --size 32").ok();
    folder.join("shapes/train/circle/000000.jpg")
}

fn truncate(file: &Path) {
    let bytes = fs::read(file).unwrap();
    fs::write(file, &bytes[..bytes.len() / 2]).unwrap();
}

/// Writes a safetensors file of the tensors `(name, shape)`, each element `value`.
fn write_weights(path: &Path, tensors: &[(String, Vec<usize>)], value: f32) {
    let data: Vec<Vec<u8>> =
        tensors.iter().map(|(_, shape)| value.to_le_bytes().repeat(shape.iter().product())).collect();
    let views = tensors
        .iter()
        .zip(&data)
        .map(|((name, shape), data)| (name.clone(), TensorView::new(Dtype::F32, shape.clone(), data).unwrap()));
    fs::write(path, safetensors::serialize(views.collect::<Vec<_>>(), None).unwrap()).unwrap();
}

/// Names and shapes of ResNet-20's tensors.
fn resnet20() -> Vec<(String, Vec<usize>)> {
    let mut tensors = vec![("conv1.weight".to_owned(), vec![16, 3, 3, 3])];
    let norm = |tensors: &mut Vec<(String, Vec<usize>)>, name: String, channels: usize| {
        for part in ["weight", "bias", "running_mean", "running_var"] {
            tensors.push((format!("{name}.{part}"), vec![channels]));
        }
    };
    norm(&mut tensors, "bn1".to_owned(), 16);
    let mut inputs = 16;
    for (stage, channels) in [(1, 16), (2, 32), (3, 64)] {
        for block in 0..3 {
            for conv in [1, 2] {
                let name = format!("layer{stage}.{block}");
                tensors.push((format!("{name}.conv{conv}.weight"), vec![channels, inputs, 3, 3]));
                norm(&mut tensors, format!("{name}.bn{conv}"), channels);
                inputs = channels;
            }
        }
    }
    tensors.push(("linear.weight".to_owned(), vec![10, 64]));
    tensors.push(("linear.bias".to_owned(), vec![10]));
    tensors
}

#[test]
fn folders_that_are_no_data_set() {
    let folder = TempDir::new().unwrap();
    let run = |data: &str| bessemer(folder.path(), &format!("{TRAIN} {data}"));
    run("nowhere").fails(2, &["nowhere: no such folder", "train/CLASS/"]);
    drawn(folder.path());
    fs::create_dir(folder.path().join("shapes/train/empty")).unwrap();
    run("shapes/").fails(2, &["train/empty"]);
    assert!(!folder.path().join("runs").exists(), "nothing is begun");
}

#[test]
fn damaged_pictures_are_named() {
    let folder = TempDir::new().unwrap();
    let file = drawn(folder.path());
    truncate(&file);
    let name = "shapes/train/circle/000000.jpg";
    let all = "--steps 5 --set schedule.warmup_epochs=0";
    let train = format!("{} shapes/ {all}", TRAIN.replace("--steps 2", ""));
    bessemer(folder.path(), &train).fails(2, &[name, "truncated", "`bessemer data verify` lists"]);
    let verify = bessemer(folder.path(), "data verify class-folder shapes").fails(2, &["1 file cannot be read"]);
    assert!(verify.out.contains(name) && verify.out.contains("truncated"), "{}", verify.out);
    let skip = bessemer(folder.path(), &format!("{train} --on-bad-sample skip")).ok();
    assert!(skip.out.contains("1 bad sample,"), "{}", skip.out);
}

#[test]
fn data_can_be_drawn_checked_and_seen() {
    let folder = TempDir::new().unwrap();
    drawn(folder.path());
    let verify = bessemer(folder.path(), "data verify class-folder shapes").ok().out;
    assert!(verify.contains("train       10        20        0"), "{verify}");
    bessemer(folder.path(), "data sample class-folder shapes --count 6 --size 32").ok();
    assert!(fs::read(folder.path().join("sample.png")).unwrap().starts_with(b"\x89PNG"));
    bessemer(folder.path(), "data shapes --out coco --format coco --train 2 --val 2 --size 64").ok();
    assert!(folder.path().join("coco/annotations/instances_train2017.json").is_file());
    bessemer(folder.path(), "data shapes --out coco").fails(2, &["coco", "not empty"]);
}

#[test]
fn files_of_pixels_are_trained_on_and_damage_in_them_is_named() {
    let folder = TempDir::new().unwrap();
    let run = |arguments: &str| bessemer(folder.path(), arguments);
    drawn(folder.path());
    let made = run("data prepare binary shapes --out pixels --size 32").ok().out;
    assert!(made.contains("pixels: 20 pictures of train") && made.contains("10 pictures of val"), "{made}");
    run(&format!("{TRAIN} pixels --out run")).ok();
    let total = |data: &str| {
        let eval = run(&format!("eval resnet20-cifar --weights run --json --data {data}")).ok().out;
        let eval: serde_json::Value = serde_json::from_str(&eval).unwrap();
        (eval["total"].as_u64().unwrap(), eval["loss"].as_f64().unwrap())
    };
    assert_eq!(total("pixels"), total("./shapes"), "the same pictures");
    run("data prepare binary shapes --out pixels").fails(2, &["pixels", "not empty"]);
    run("data prepare binary shapes --out other --size 5000").fails(2, &["image size is 5000"]);

    let file = folder.path().join("pixels/val.bin");
    let good = fs::read(&file).unwrap();
    let damaged = |bytes: &[u8], parts: &[&str]| {
        fs::write(&file, bytes).unwrap();
        let eval = run("eval resnet20-cifar --weights run --data pixels");
        eval.fails(2, &[&["pixels/val.bin"], parts].concat());
    };
    let changed = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    damaged(&good[..good.len() - 1], &["10 pictures of 32x32, as its header says"]);
    damaged(&good[..20], &["the file has 20 bytes"]);
    damaged(&changed(0, b'?'), &["does not begin with `BSMRPICS`"]);
    damaged(&changed(60, good[60] ^ 1), &["record 1 at byte 48", "does not fit its checksum"]);
    let verify = run("data verify imagenet pixels").fails(2, &["1 files or records cannot be read"]);
    assert!(verify.out.contains("val.bin: record 1 at byte 48"), "{}", verify.out);
    // A label that is none of the ten, with a checksum that fits.
    let mut labelled = changed(48, 10);
    let checksum = crc32c::crc32c(&[&labelled[48..52], &labelled[56..56 + 3072]].concat());
    labelled[52..56].copy_from_slice(&checksum.to_le_bytes());
    damaged(&labelled, &["record 1", "the label is 10; expected a label below 10"]);
    fs::remove_file(&file).unwrap();
    run("eval resnet20-cifar --weights run --data pixels").fails(2, &["pixels/val.bin: no such file"]);
}

#[test]
fn imagenet_is_checked_and_seen_in_each_layout() {
    let folder = TempDir::new().unwrap();
    let run = |arguments: &str| bessemer(folder.path(), arguments);
    drawn(folder.path());
    for split in ["train", "val"] {
        let class = |name: &str| folder.path().join("shapes").join(split).join(name);
        fs::rename(class("star"), class("n01440764")).unwrap();
    }
    let first = fs::read_dir(folder.path().join("shapes/train/n01440764")).unwrap().next().unwrap().unwrap();
    fs::remove_file(first.path()).unwrap();
    run("data prepare imagenet shapes --out records --shards 2").ok();
    run("data prepare binary shapes --out pixels --size 32").ok();
    for (data, layout) in [("shapes", "folders"), ("records", "records"), ("pixels", "binary")] {
        let verify = run(&format!("data verify imagenet {data}")).ok().out;
        assert!(
            verify.contains("train       10        19        0") && verify.contains("the fewest: tench 1,"),
            "{verify}"
        );
        let json = run(&format!("data verify imagenet {data} --json")).ok().out;
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&json["layout"], &json["val"]["readable"]), (&layout.into(), &10.into()));
        run(&format!("data sample imagenet {data} --split val --count 4 --size 32 --out {data}.png")).ok();
    }
    let sheet = |name: &str| fs::read(folder.path().join(name)).unwrap();
    assert!(sheet("shapes.png") == sheet("pixels.png") && sheet("records.png").starts_with(b"\x89PNG"));

    let shard = folder.path().join("records/train-00001-of-00002.tfrecord");
    let mut bytes = fs::read(&shard).unwrap();
    let last = bytes.len() - 9;
    bytes[last] ^= 1;
    fs::write(&shard, bytes).unwrap();
    let verify = run("data verify imagenet records").fails(2, &["1 files or records cannot be read"]);
    let line = verify.out.lines().last().unwrap();
    assert!(line.contains("train-00001-of-00002.tfrecord: record 9 at byte"), "{}", verify.out);
    assert!(verify.out.contains("train       10        18        1"), "{}", verify.out);
    run("data verify imagenet nowhere").fails(2, &["nowhere: no such folder"]);
    run("data sample imagenet records --split val --size 0").fails(2, &["image size is 0"]);
}

#[test]
fn the_cores_that_feed_a_gpu_are_predicted() {
    let folder = TempDir::new().unwrap();
    let run = |arguments: &str| bessemer(folder.path(), arguments);
    let json = |arguments: &str| -> serde_json::Value { serde_json::from_str(&run(arguments).ok().out).unwrap() };
    let bench = "bench data resnet20-cifar --data shapes --set train.batch_size=4 --seconds 1 --no-step --quiet";
    let (said, number) = (json(&format!("{bench} --json")), |value: &serde_json::Value| value.as_f64().unwrap());
    let explain = "explain resnet20-cifar --batch-size 4 --precision bf16 --device cuda --sheet h200 --json";
    let rate = 4.0 / number(&json(explain)["predicted"]["all"]["seconds"]);
    let predicted = &said["predicted"];
    assert!((number(&predicted["samples_per_second"]) / rate - 1.0).abs() < 1e-9, "{predicted} {rate}");
    let needed = rate / number(&said["loading"]["samples_per_second_per_worker"]);
    assert!((number(&predicted["workers_needed"]) / needed - 1.0).abs() < 1e-9, "{predicted} {needed}");
    let text = run(bench).ok().out;
    let line = text.lines().find(|line| line.starts_with("a GPU ")).expect("a prediction");
    let parts = [
        "NVIDIA H200 SXM is predicted to take",
        "(bf16, batch 4; by the sheet that explain has of it)",
        "cores feed it",
    ];
    assert!(parts.iter().all(|part| line.contains(part)), "{line}");
}

#[test]
fn weights_that_do_not_fit() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("w.safetensors");
    let picture = drawn(folder.path());
    let infer =
        || bessemer(folder.path(), &format!("infer resnet20-cifar --weights w.safetensors {}", picture.display()));
    infer().fails(2, &["w.safetensors"]);

    let whole = resnet20();
    write_weights(&path, &whole, 0.5);
    assert!(infer().ok().out.contains("000000.jpg\n"));
    let good = picture.display();
    fs::write(folder.path().join("broken.jpg"), b"\xff\xd8\xff").unwrap();
    let several = format!("infer resnet20-cifar --weights w.safetensors {good} broken.jpg {good} missing.png");
    let ran = bessemer(folder.path(), &several);
    assert_eq!((ran.code, ran.out.matches("000000.jpg\n").count()), (2, 2), "{}", ran.err);
    let errors: Vec<&str> = ran.err.lines().filter(|line| line.starts_with("error: ")).collect();
    assert!(errors.len() == 2 && errors[0].contains("broken.jpg") && errors[1].contains("missing.png"), "{errors:?}");

    write_weights(&path, &whole[1..], 0.5);
    infer().fails(2, &["w.safetensors", "missing: conv1.weight"]);
    let mut extra = whole.clone();
    extra.push(("head.bias".to_owned(), vec![3]));
    write_weights(&path, &extra, 0.5);
    infer().fails(2, &["unknown: head.bias"]);
    let mut misshapen = whole.clone();
    misshapen[0].1 = vec![16, 3, 5, 5];
    write_weights(&path, &misshapen, 0.5);
    infer().fails(2, &["`conv1.weight` is [16, 3, 5, 5] in the file and [16, 3, 3, 3] in the model"]);
    write_weights(&path, &whole, f32::NAN);
    infer().fails(2, &["tensor", "not finite"]);

    fs::write(&path, u64::MAX.to_le_bytes()).unwrap();
    infer().fails(2, &["w.safetensors", "header"]);
    let header = br#"{"conv1.weight":{"dtype":"F32","shape":[9999999999,9999999999],"data_offsets":[0,4]}}"#;
    let mut hostile = (header.len() as u64).to_le_bytes().to_vec();
    hostile.extend(header);
    hostile.extend([0; 4]);
    fs::write(&path, hostile).unwrap();
    infer().fails(2, &["w.safetensors", "conv1.weight"]);
    fs::write(&path, "not tensors at all, but text of some length").unwrap();
    infer().fails(2, &["w.safetensors"]);
}

#[test]
fn weights_are_converted() {
    let folder = TempDir::new().unwrap();
    let renumber = |name: &str| match name.strip_prefix("layer") {
        Some(rest) => {
            let (stage, rest) = rest.split_once('.').unwrap();
            format!("module.layers.{}.{rest}", stage.parse::<usize>().unwrap() - 1)
        }
        None => format!("module.{name}"),
    };
    let theirs: Vec<_> = resnet20().into_iter().map(|(name, shape)| (renumber(&name), shape)).collect();
    write_weights(&folder.path().join("dle.safetensors"), &theirs, 0.25);
    let run = |arguments: &str| bessemer(folder.path(), &format!("weights convert {arguments}"));
    let said = run("dle.safetensors ours.safetensors --from dle").ok().out;
    assert!(said.starts_with("ours.safetensors: resnet20-cifar, "), "{said}");
    run("dle.safetensors other.safetensors --from torchvision").fails(2, &["layers.", "torchvision"]);
    run("dle.safetensors ours.safetensors").fails(2, &["ours.safetensors", "exists"]);
    run("dle.safetensors x.safetensors --from keras").fails(2, &["keras", "torchvision"]);
}

#[test]
fn pytorch_files_are_read_and_nothing_in_them_is_run() {
    let folder = TempDir::new().unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../weights/tests/fixtures/torch_files");
    for file in ["resnet20.pth", "several.pth", "command.pth", "bomb.pth", "storage_lies.pth", "legacy.pth"] {
        fs::copy(fixtures.join(file), folder.path().join(file)).unwrap();
    }
    let convert = |file: &str| bessemer(folder.path(), &format!("weights convert {file} ours.safetensors"));
    convert("command.pth").fails(2, &["command.pth", "posix.system", "nothing is executed"]);
    convert("bomb.pth").fails(2, &["bomb.pth", "is compressed"]);
    convert("storage_lies.pth").fails(2, &["storage_lies.pth", "`w`", "16 bytes"]);
    convert("legacy.pth").fails(2, &["legacy.pth", "before 1.6"]);
    let several = convert("several.pth").fails(2, &["several.pth", "fits no model"]).err;
    let choice = "weights: several.pth: `state_dict_ema`, the averaged weights (not `state_dict`, `model`)\n";
    assert!(several.contains(choice), "{several}");
    assert!(!folder.path().join("ours.safetensors").exists());
    drawn(folder.path());
    bessemer(folder.path(), &format!("{TRAIN} shapes/ --weights command.pth")).fails(2, &["posix.system"]);
    assert!(!folder.path().join("runs").exists(), "nothing is begun");
    assert!(!folder.path().join("torch_file_command_was_run").exists(), "a command of a file was run");
    let said = convert("resnet20.pth").ok().out;
    assert!(said.starts_with("ours.safetensors: resnet20-cifar, 97 tensors"), "{said}");
}
