//! Whole runs of a detector with masks: trained, stopped and resumed, evaluated, asked.

use crate::common::{assert_same_tensors, last, last_folder, run_of};
use bessemer_cpu::{CpuOptions, Executor};
use bessemer_data::shapes::CocoFolder;
use bessemer_data::{FileFormat, Image};
use bessemer_ir::graph::Rewriter;
use bessemer_ir::ops::Op;
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::{DType, Graph, Role, Value as IrValue};
use bessemer_nn::initialise;
use bessemer_train::events::{EventBody, read_events};
use bessemer_train::recipe::StartRecipe;
use bessemer_train::tasks::class_scores;
use bessemer_train::tasks::infer::PredictOptions;
use bessemer_train::tasks::registry;
use bessemer_train::workload::{Mode, Workload, workload};
use bessemer_train::{EvaluateOptions, Recipe, RunFolder, TrainOptions, evaluate, train};
use bessemer_weights::{NamedTensor, write_safetensors};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const MODEL: &str = "mask-rcnn-tiny";

const RECIPE: &str = r#"
name = "tiny-masks"
model = { name = "mask-rcnn-tiny", num_classes = 11, frozen_norms = false, freeze_at = 0 }
data = { source = "shapes", train_samples = 10, eval_samples = 5, canvas = [96, 128], crop = 28, max_objects = 8 }
proposals = { anchor_scale = 4.0, candidates = [60, 40], most = [50, 30] }
samples = { anchors = [64, 32], regions = [32, 8] }
detection = { score_floor = 0.0, max_detections = 20 }
train = { batch_size = 2, accumulation = 2, steps = 4, seed = 3, clip_norm = 10.0, ema_decay = 0.9 }
optimizer = { kind = "sgd", momentum = 0.9, velocity = "changes", weight_decay = 0.0 }
schedule = { kind = "constant", base_lr = 0.01 }
eval = { every_steps = 2, batch_size = 2 }
checkpoint = { every_steps = 1 }
loader = { workers = 1 }
"#;

fn options(folder: &Path, overrides: &[&str]) -> TrainOptions {
    run_of(RECIPE, "tiny-masks", folder, overrides)
}

fn json(path: &Path) -> Vec<Value> {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn layers_that_stay_at_random_give_a_warning() {
    let folder = TempDir::new().unwrap();
    let run = folder.path().join("run");
    train(&options(&run, &["train.steps=1", "eval.every_steps=", "model.freeze_at=2", "model.frozen_norms=true"]))
        .unwrap();
    let told = read_events(&run.join("events.jsonl")).unwrap().into_iter().any(|event| match event.body {
        EventBody::Warning(info) => {
            info.message.starts_with("the stem and the first stage and all norms are not trained")
        }
        _ => false,
    });
    assert!(told);
}

#[test]
fn a_detector_with_masks_is_trained_resumed_evaluated_and_asked() {
    let folder = TempDir::new().unwrap();
    let [whole, pieces, threads] = ["whole", "pieces", "threads"].map(|name| folder.path().join(name));
    let report = train(&options(&whole, &[])).unwrap();
    let metrics = ["bbox_ap", "bbox_ar100", "segm_ap", "segm_ap50", "segm_ar100"];
    assert!(metrics.iter().all(|name| report.metrics.contains_key(*name)), "{:?}", report.metrics);
    assert!(whole.join("predictions/compared-004.jpg").is_file());
    for (kind, classes) in class_scores::read(&whole.join("predictions")) {
        let known: Vec<f64> = classes.iter().filter_map(|class| class.scores.ap).collect();
        let mean = known.iter().sum::<f64>() / known.len() as f64;
        assert!((mean - report.metrics[&format!("{kind}_ap")]).abs() < 1e-12, "{kind}: {mean}");
        assert!(classes.len() == 10 && classes[0].id == 1 && !known.is_empty(), "{classes:?}");
    }
    assert_eq!(class_scores::read(&whole.join("predictions")).len(), 2, "of boxes and of masks");
    let events = read_events(&whole.join("events.jsonl")).unwrap();
    let parts = events.iter().find_map(|event| match &event.body {
        EventBody::Step(info) => Some(info.parts.keys().cloned().collect::<Vec<_>>()),
        _ => None,
    });
    let expected = ["box_loss", "cls_loss", "l2_loss", "mask_loss", "rpn_box_loss", "rpn_score_loss"];
    assert_eq!(parts.unwrap(), expected);

    let mut first = options(&pieces, &[]);
    first.run_steps = Some(3);
    train(&first).unwrap_err();
    let resumed = TrainOptions { folder: RunFolder::Resume(pieces.clone()), ..options(&pieces, &[]) };
    assert_eq!(train(&resumed).unwrap().metrics, report.metrics);
    assert_same_tensors(&last(&whole), &last(&pieces));
    let mut two = options(&threads, &[]);
    two.compute.device.threads = 2;
    train(&two).unwrap();
    assert_same_tensors(&last(&whole), &last(&threads));

    // The same scenes from files.
    let data = folder.path().join("coco");
    CocoFolder { seed: 3, train: 2, val: 5, width: 128, height: 96, format: FileFormat::Png }.write(&data).unwrap();
    let judged = |data: &Path, out: &str| {
        let out = Some(folder.path().join(out));
        let options = EvaluateOptions { batch_size: 2, out, ..EvaluateOptions::default() };
        evaluate(MODEL, &last_folder(&whole), data, &options).unwrap()
    };
    let (of_run, of_files) = (judged(Path::new("shapes"), "a"), judged(&data, "b"));
    assert_eq!(of_run.counts["objects"], of_files.counts["objects"]);
    for name in metrics {
        let (one, other) = (of_run.metrics[name], of_files.metrics[name]);
        assert!((one - other).abs() < 1e-6, "{name}: {one} is not {other}");
    }
    let [boxes, masks] = ["bbox", "segm"].map(|kind| json(&folder.path().join(format!("b/{kind}.json"))));
    assert_eq!((boxes.len(), masks.len()), (of_files.counts["detections"] as usize, boxes.len()));
    assert!(boxes.iter().all(|result| result["bbox"].is_array() && result["segmentation"].is_null()));
    let is_mask = |result: &Value| {
        result["bbox"].is_null()
            && result["segmentation"]["size"] == serde_json::json!([96, 128])
            && result["segmentation"]["counts"].is_string()
    };
    assert!(masks.iter().all(is_mask));

    let [drawn, cut_out] = ["drawn", "masks"].map(|name| folder.path().join(name));
    let family = registry::find(MODEL).unwrap().family();
    let asked = PredictOptions {
        score: Some(0.0),
        top_k: Some(3),
        out: Some(drawn.clone()),
        masks: Some(cut_out.clone()),
        ..PredictOptions::default()
    };
    let mut predictor = family.predictor(MODEL, &whole, &asked).unwrap();
    let predictions = predictor.predict(&[data.join("val2017").display().to_string()], &|_, _| ()).unwrap();
    assert_eq!(predictions.len(), 5);
    for prediction in predictions {
        let objects = prediction.unwrap().json["objects"].as_array().unwrap().clone();
        assert!(objects.len() == 3 && objects.iter().all(|object| object["segmentation"]["counts"].is_string()));
    }
    assert_eq!(json(&drawn.join("results.json")).len(), 15);
    let mut pictures: Vec<_> = fs::read_dir(&cut_out).unwrap().map(|entry| entry.unwrap().path()).collect();
    pictures.sort();
    assert_eq!(pictures.len(), 15);
    let picture = Image::read(&pictures[0]).unwrap();
    assert_eq!((picture.width, picture.height), (128, 96));
    assert!(picture.pixels.iter().all(|value| [0, 255].contains(value)), "black and white");
    assert!(pictures[0].file_name().unwrap().to_str().unwrap().starts_with("000000000001-000-"));

    // A picture that has the name of a mask of another one.
    let first = cut_out.join("000000000001.png");
    fs::copy(data.join("val2017/000000000001.png"), &first).unwrap();
    let (inputs, before) =
        ([&first, &pictures[0]].map(|path| path.display().to_string()), fs::read(&pictures[0]).unwrap());
    let error = predictor.predict(&inputs, &|_, _| ()).unwrap().remove(0).unwrap_err();
    assert!(error.to_string().contains("would be overwritten") && error.kind().exit_code() == 2, "{error}");
    assert!(fs::read(&pictures[0]).unwrap() == before);
}

/// Scenes in COCO's layout, of which those behind the third are higher than wide.
fn wide_and_high(folder: &Path) -> PathBuf {
    let [wide, high] = [[128, 96], [96, 128]].map(|[width, height]| {
        let data = folder.join(format!("{width}x{height}"));
        CocoFolder { seed: 3, train: 2, val: 3, width, height, format: FileFormat::Png }.write(&data).unwrap();
        data
    });
    let annotations = "annotations/instances_val2017.json";
    let [mut all, more]: [Value; 2] =
        [&wide, &high].map(|data| serde_json::from_slice(&fs::read(data.join(annotations)).unwrap()).unwrap());
    for (list, id) in [("images", "id"), ("annotations", "image_id")] {
        for record in more[list].as_array().unwrap() {
            let mut record = record.clone();
            record["id"] = (1000 + record["id"].as_i64().unwrap()).into();
            record[id] =
                if list == "images" { record["id"].clone() } else { (1000 + record[id].as_i64().unwrap()).into() };
            if list == "images" {
                let name = record["file_name"].as_str().unwrap().to_owned();
                fs::copy(high.join("val2017").join(&name), wide.join("val2017").join(format!("high-{name}"))).unwrap();
                record["file_name"] = format!("high-{name}").into();
            }
            all[list].as_array_mut().unwrap().push(record);
        }
    }
    fs::write(wide.join(annotations), all.to_string()).unwrap();
    wide
}

#[test]
fn wide_and_high_images_have_canvases_of_their_own() {
    let folder = TempDir::new().unwrap();
    let (data, run) = (wide_and_high(folder.path()), folder.path().join("run"));
    let source = format!("data.source={}", data.display());
    let mut options = options(&run, &["train.steps=1", "eval.canvases=[[96, 128], [128, 96]]", &source]);
    (options.recipe.data.train_samples, options.recipe.data.eval_samples) = (None, None);
    train(&options).unwrap();
    let masks = json(&run.join("predictions/segm.json"));
    let size = |result: &Value| if result["image_id"].as_i64() > Some(1000) { [128, 96] } else { [96, 128] };
    assert!(masks.iter().all(|result| result["segmentation"]["size"] == serde_json::json!(size(result))));
    let images: BTreeSet<i64> = masks.iter().map(|result| result["image_id"].as_i64().unwrap()).collect();
    assert_eq!(images, BTreeSet::from([1, 2, 3, 1001, 1002, 1003]));
    let drawn = Image::read(&run.join("predictions/compared-005.jpg")).unwrap();
    assert!(drawn.height > 384 && drawn.width > 2 * 288, "{}x{}", drawn.width, drawn.height);

    // The same when asked about pictures in any order.
    let family = registry::find(MODEL).unwrap().family();
    let asked = PredictOptions { score: Some(0.0), ..PredictOptions::default() };
    let mut predictor = family.predictor(MODEL, &run, &asked).unwrap();
    let names = ["high-000000000002.png", "000000000001.png"];
    let inputs = names.map(|name| data.join("val2017").join(name).display().to_string());
    let predictions = predictor.predict(&inputs, &|_, _| ()).unwrap();
    for (prediction, id) in predictions.into_iter().zip([1002, 1]) {
        let objects = prediction.unwrap().json["objects"].clone();
        let evaluated: Vec<&Value> = masks.iter().filter(|result| result["image_id"] == id).collect();
        assert_eq!(objects.as_array().unwrap().len(), evaluated.len());
        for (object, result) in objects.as_array().unwrap().iter().zip(evaluated) {
            let difference = object["score"].as_f64().unwrap() - result["score"].as_f64().unwrap();
            assert!(difference.abs() < 1e-5 && object["segmentation"]["size"] == result["segmentation"]["size"]);
        }
    }
}

/// Scenes in COCO's layout of which the first image of both halves has one pixel, the second is a long strip, and the third has 500
/// objects, the last with a mask outside its box.
fn odd_images(data: &Path) {
    CocoFolder { seed: 3, train: 4, val: 4, width: 64, height: 64, format: FileFormat::Png }.write(data).unwrap();
    for split in ["train2017", "val2017"] {
        let path = data.join(format!("annotations/instances_{split}.json"));
        let mut all: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let category = all["categories"][0]["id"].clone();
        let objects = all["annotations"].as_array_mut().unwrap();
        objects.retain(|object| object["image_id"] == 4);
        let sizes = [(1, [1, 1]), (2, [10_000, 50]), (3, [64, 64])];
        for (image, [width, height]) in sizes {
            let count = if image == 3 { 500 } else { 1 };
            for number in 0..count {
                let (id, end) = (1000 * image + number, [width - 1, height - 1].map(f64::from));
                let mask = if number == 499 { [0, 0, 8, 0, 8, 8] } else { [0, 0, width, 0, width, height] };
                let corner = end.map(|end| (end * f64::from(number) / 500.0).floor());
                let sides = [f64::from(width) - corner[0], f64::from(height) - corner[1]];
                objects.push(serde_json::json!({
                    "id": id, "image_id": image, "category_id": category, "iscrowd": 0, "area": sides[0] * sides[1],
                    "bbox": [corner[0], corner[1], sides[0], sides[1]], "segmentation": [mask],
                }));
            }
        }
        for (image, [width, height]) in sizes {
            let record = &mut all["images"][image as usize - 1];
            (record["width"], record["height"]) = (width.into(), height.into());
            let file = data.join(split).join(format!("{image:012}.png"));
            Image::filled(width as usize, height as usize, [90, 60, 30]).write(&file, FileFormat::Png).unwrap();
        }
        fs::write(path, all.to_string()).unwrap();
    }
}

#[test]
fn images_of_any_size_and_any_number_of_objects_are_trained_on() {
    let folder = TempDir::new().unwrap();
    let (data, run) = (folder.path().join("coco"), folder.path().join("run"));
    odd_images(&data);
    let source = format!("data.source={}", data.display());
    let mut options = options(&run, &["train.steps=1", "eval.every_steps=", &source]);
    (options.recipe.data.train_samples, options.recipe.data.eval_samples) = (None, None);
    let metrics = train(&options).unwrap().metrics;
    assert!(metrics["bbox_ap"] >= 0.0 && metrics["segm_ap"] >= 0.0, "{metrics:?}");
    let told = read_events(&run.join("events.jsonl")).unwrap().into_iter().any(|event| match event.body {
        EventBody::Warning(info) => info.message.starts_with("1 images have more than data.max_objects = 8 objects"),
        _ => false,
    });
    assert!(told, "of the 500 objects");
    let masks = json(&run.join("predictions/segm.json"));
    for (image, size) in [(1, [1, 1]), (2, [50, 10_000])] {
        let mut of_image = masks.iter().filter(|result| result["image_id"] == image).peekable();
        assert!(of_image.peek().is_some(), "image {image}");
        assert!(of_image.all(|result| result["segmentation"]["size"] == serde_json::json!(size)));
    }
}

#[test]
fn another_number_of_classes_needs_new_heads() {
    let folder = TempDir::new().unwrap();
    let first = folder.path().join("first");
    train(&options(&first, &["train.steps=1", "data.eval_samples=1"])).unwrap();
    let begin = |run: &str, overrides: &[&str]| {
        let overrides = [&["model.num_classes=13", "train.steps=1", "data.eval_samples=1"], overrides].concat();
        train(&options(&folder.path().join(run), &overrides).with_start(StartRecipe::weights(&first)))
    };
    let error = begin("refused", &[]).unwrap_err().to_string();
    assert!(error.contains("model.new_heads") && error.contains("11") && error.contains("13"), "{error}");
    begin("second", &["model.new_heads=true"]).unwrap();
}

#[test]
fn masks_are_those_of_networks_that_have_them() {
    let folder = TempDir::new().unwrap();
    let error = Recipe::from_toml(RECIPE, "tiny-masks", &["data.canvas=[96, 100]".parse().unwrap()]).unwrap_err();
    assert!(error.to_string().contains("multiples of 32"), "{error}");
    let error = train(&options(&folder.path().join("few"), &["model.num_classes=10"])).unwrap_err().to_string();
    assert!(error.contains("at least 11, the background included, are needed"), "{error}");
}

#[test]
fn the_weights_of_a_classifier_begin_its_backbone() {
    const BACKBONE: &str = "backbone.body.";
    let folder = TempDir::new().unwrap();
    let [other, run] = ["other", "run"].map(|name| folder.path().join(name));
    let none = ["train.steps=1", "eval.every_steps=", "train.ema_decay=", "train.seed=9"];
    train(&options(&other, &none)).unwrap();
    let trained = last(&other).model;
    let in_backbone = |tensor: &&NamedTensor<'_>| tensor.name.starts_with(BACKBONE);
    let renamed = |tensor: &NamedTensor<'static>| NamedTensor {
        name: tensor.name[BACKBONE.len()..].to_owned(),
        ..tensor.clone()
    };
    let mut classifier: Vec<NamedTensor<'_>> = trained.iter().filter(in_backbone).map(renamed).collect();
    classifier.push(NamedTensor::from_f32("fc.bias", vec![10], &[0.5; 10]).unwrap());
    let file = folder.path().join("classifier.safetensors");
    write_safetensors(&file, &classifier).unwrap();

    let slow = ["train.steps=1", "eval.every_steps=", "train.ema_decay=", "schedule.base_lr=1e-30"];
    train(&options(&run, &slow).with_start(StartRecipe::weights(file))).unwrap();
    let begun = last(&run).model;
    let is_weight =
        |tensor: &&NamedTensor<'_>| !tensor.name.contains("running_") && !tensor.name.contains("num_batches");
    for (tensor, other) in begun.iter().zip(&trained).filter(|(tensor, _)| is_weight(tensor)) {
        assert_eq!(tensor.name, other.name);
        if in_backbone(&tensor) {
            assert!(tensor == other, "{}", tensor.name);
        }
    }
    let heads =
        begun.iter().zip(&trained).filter(|(tensor, _)| !in_backbone(tensor) && tensor.name.ends_with("weight"));
    assert!(heads.into_iter().all(|(tensor, other)| tensor != other), "heads are drawn from the seed");
}

/// The graph with whole convolutions in place of those of the items that there are, and how many there are.
fn unlimited(graph: &Graph) -> (Graph, usize) {
    let mut rewriter = Rewriter::new(graph);
    let mut count = 0;
    for (id, node) in graph.ids().zip(graph.nodes()) {
        let Op::Limited(limited) = &node.op else {
            rewriter.copy(id).unwrap();
            continue;
        };
        let operands = [0, 1].map(|operand| rewriter.get(node.inputs[operand]));
        let whole = rewriter.target().at_path(graph.path(id), |g| g.push1((*limited.op).clone(), &operands)).unwrap();
        rewriter.set(IrValue { node: id, output: 0 }, whole);
        count += 1;
    }
    (rewriter.finish().unwrap(), count)
}

/// Loss, and momenta of the first step, which are the gradients.
fn first_step(work: &Workload, graph: &Graph) -> (f32, Vec<(String, Vec<f32>)>) {
    let cpu = CpuOptions { threads: 2, ..CpuOptions::default() };
    let plan = compile(graph, &cpu, &CompileOptions::default()).unwrap();
    let mut executor = Executor::new(plan, cpu).unwrap();
    for spec in work.specs.iter().filter(|spec| spec.ty.dtype == DType::F32) {
        executor.write_f32(&spec.name, &initialise(spec, 5)).unwrap();
    }
    for (_, feed) in graph.inputs().filter(|(_, input)| input.role == Role::Feed) {
        executor.write(&feed.name, &work.content(feed, 3)).unwrap();
    }
    executor.run().unwrap();
    let momenta = work.specs.iter().filter(|spec| spec.name.starts_with("momentum."));
    let momenta = momenta.map(|spec| (spec.name.clone(), executor.input_f32(&spec.name).unwrap()));
    (executor.scalar("loss").unwrap(), momenta.collect())
}

#[test]
fn regions_that_are_not_there_change_nothing() {
    let work = workload(MODEL, Mode::Train, 2, DType::F32).unwrap();
    let (whole, count) = unlimited(&work.graph);
    assert!(count > 10, "the convolutions of the head for masks, and their gradients, not {count}");
    let [(loss, own), (whole_loss, whole)] = [&work.graph, &whole].map(|graph| first_step(&work, graph));
    assert!(loss.is_finite() && (loss - whole_loss).abs() <= 1e-6 * loss, "{loss}, {whole_loss}");
    let length = |x: &[f32]| x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let all = whole.iter().map(|(_, gradient)| length(gradient)).fold(0.0, f64::max);
    for ((name, own), (_, whole)) in own.iter().zip(&whole) {
        let apart: Vec<f32> = own.iter().zip(whole).map(|(a, b)| a - b).collect();
        let (apart, length) = (length(&apart), length(whole));
        assert!(apart <= 1e-5 * length.max(1e-3 * all), "{name} differs by {apart} of {length}");
    }
}
