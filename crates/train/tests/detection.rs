//! Whole runs of a detector: trained, stopped and resumed, evaluated, asked, and begun from other weights.

mod common;

use bessemer_data::FileFormat;
use bessemer_data::shapes::CocoFolder;
use bessemer_train::checkpoint::load_checkpoint;
use bessemer_train::events::{EventBody, read_events};
use bessemer_train::tasks::infer::PredictOptions;
use bessemer_train::tasks::registry;
use bessemer_train::{EvaluateOptions, Initialisation, Recipe, RunFolder, TrainOptions, evaluate, train};
use common::{assert_same_tensors, last, last_folder};
use serde_json::Value;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const RECIPE: &str = r#"
name = "tiny-detector"
model = { name = "efficientdet-tiny", num_classes = 10, bn_momentum = 0.2, drop_path = 0.1 }
data = { source = "shapes", train_samples = 10, eval_samples = 5, image_size = 128 }
train = { batch_size = 4, steps = 6, seed = 3, clip_each_norm = 5.0, clip_norm = 10.0, ema_decay = 0.9, ema_ramp = true }
optimizer = { kind = "sgd", momentum = 0.9, velocity = "changes", weight_decay = 0.0 }
schedule = { kind = "cosine", base_lr = 0.02, warmup_lr = 1e-3, warmup_epochs = 1.0, epochs = 5 }
eval = { every_steps = 3, batch_size = 2 }
checkpoint = { every_steps = 2 }
loader = { workers = 1 }
"#;

fn options(folder: &Path, overrides: &[&str]) -> TrainOptions {
    let overrides: Vec<_> = overrides.iter().map(|text| text.parse().expect("an override")).collect();
    let recipe = Recipe::from_toml(RECIPE, "tiny-detector", &overrides).expect("a valid recipe");
    let mut options = TrainOptions::new(recipe, RunFolder::New(folder.to_owned()));
    options.compute.device.threads = 1;
    options
}

fn resumed(folder: &Path) -> TrainOptions {
    TrainOptions { folder: RunFolder::Resume(folder.to_owned()), ..options(folder, &[]) }
}

#[test]
fn a_detector_is_trained_resumed_evaluated_and_asked() {
    let folder = TempDir::new().unwrap();
    let (whole, pieces, threads) =
        (folder.path().join("whole"), folder.path().join("pieces"), folder.path().join("threads"));
    let report = train(&options(&whole, &[])).unwrap();
    let metrics = ["bbox_ap", "bbox_ap50", "bbox_ar100", "loss", "cls_loss", "box_loss"];
    assert!(metrics.iter().all(|name| report.metrics.contains_key(*name)), "{:?}", report.metrics);
    let events = read_events(&whole.join("events.jsonl")).unwrap();
    let parts = events.iter().find_map(|event| match &event.body {
        EventBody::Step(info) => Some(info.parts.keys().cloned().collect::<Vec<_>>()),
        _ => None,
    });
    assert_eq!(parts.unwrap(), ["box_loss", "cls_loss", "l2_loss"]);

    let mut first = options(&pieces, &[]);
    first.run_steps = Some(4);
    train(&first).unwrap_err();
    assert_eq!(train(&resumed(&pieces)).unwrap().metrics, report.metrics);
    assert_same_tensors(&last(&whole), &last(&pieces));
    let mut two = options(&threads, &[]);
    two.compute.device.threads = 2;
    train(&two).unwrap();
    assert_same_tensors(&last(&whole), &last(&threads));

    // The same scenes from files, in batches of another size.
    let data = folder.path().join("coco");
    CocoFolder { seed: 3, train: 2, val: 5, width: 128, height: 128, format: FileFormat::Png }.write(&data).unwrap();
    let settings = |batch_size: usize, out: &Path| EvaluateOptions {
        batch_size,
        out: Some(out.to_owned()),
        ..EvaluateOptions::default()
    };
    let judged = evaluate(
        "efficientdet-tiny",
        &last_folder(&whole),
        Path::new("shapes"),
        &settings(3, &folder.path().join("a")),
    )
    .unwrap();
    // Batches of another size round otherwise, which may swap detections of a detector that knows nothing yet.
    for name in metrics {
        let tolerance = if name.starts_with("bbox") { 1e-3 } else { 1e-6 };
        let (one, other) = (judged.metrics[name], report.metrics[name]);
        assert!((one - other).abs() < tolerance * other.abs().max(1.0), "{name}: {one} is not {other}");
    }
    let out = folder.path().join("b");
    let of_files = evaluate("efficientdet-tiny", &whole, &data, &settings(5, &out)).unwrap();
    assert_eq!(of_files.counts["objects"], judged.counts["objects"]);
    let results: Vec<Value> = serde_json::from_slice(&fs::read(out.join("bbox.json")).unwrap()).unwrap();
    assert_eq!(results.len() as u64, of_files.counts["detections"]);
    assert!(results.iter().all(|result| result["bbox"].as_array().unwrap().len() == 4 && result["score"].is_f64()));

    let drawn = folder.path().join("drawn");
    let family = registry::find("efficientdet-tiny").unwrap().family();
    let asked = PredictOptions { score: 0.0, top_k: Some(3), out: Some(drawn.clone()), ..PredictOptions::default() };
    let mut predictor = family.predictor("efficientdet-tiny", &whole, &asked).unwrap();
    let inputs = [data.join("val2017").display().to_string(), "no/such.jpg".to_owned()];
    let mut predictions = predictor.predict(&inputs, &|_, _| ()).unwrap();
    assert_eq!(predictions.len(), 6);
    assert!(predictions.pop().unwrap().unwrap_err().to_string().contains("no/such.jpg"));
    for prediction in predictions {
        let found = prediction.unwrap().json;
        assert_eq!(found["objects"].as_array().unwrap().len(), 3);
        let picture = Path::new(found["path"].as_str().unwrap()).file_name().unwrap();
        assert!(drawn.join(picture).is_file(), "{picture:?} is drawn");
    }
    let results: Vec<Value> = serde_json::from_slice(&fs::read(drawn.join("results.json")).unwrap()).unwrap();
    assert_eq!(results.len(), 15);
    assert!(results.iter().all(|result| result["file_name"].is_string() && result["category_id"].is_i64()));
}

#[test]
fn another_number_of_classes_needs_new_heads() {
    let folder = TempDir::new().unwrap();
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    train(&options(&first, &["train.steps=1", "data.eval_samples=1"])).unwrap();
    let begin = |run: &Path, overrides: &[&str]| {
        let overrides = [&["model.num_classes=12", "train.steps=1", "data.eval_samples=1"], overrides].concat();
        let start = Initialisation::Weights(first.clone());
        train(&TrainOptions { start, ..options(run, &overrides) })
    };
    let error = begin(&folder.path().join("refused"), &[]).unwrap_err().to_string();
    assert!(error.contains("model.new_heads") && error.contains("90") && error.contains("108"), "{error}");
    begin(&second, &["model.new_heads=true", "schedule.base_lr=1e-9", "schedule.warmup_lr=0"]).unwrap();
    let (old, new) = (load_checkpoint(&last_folder(&first)).unwrap(), last(&second));
    let stem = |checkpoint: &[bessemer_train::checkpoint::NamedTensor<'_>]| {
        checkpoint.iter().find(|tensor| tensor.name == "backbone.conv_stem.weight").unwrap().to_f32().unwrap()
    };
    assert!(stem(&old.model).iter().zip(stem(&new.model)).all(|(a, b)| (a - b).abs() < 1e-6));
    let events = read_events(&second.join("events.jsonl")).unwrap();
    let told = events.iter().any(|event| match &event.body {
        EventBody::Warning(info) => info.message.contains("class_net.predict.conv_pw.weight"),
        _ => false,
    });
    assert!(told, "the run says which tensors are drawn at random");
}
