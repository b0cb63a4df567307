//! Whole runs of a narrow EfficientNet on drawn shapes, with dropout and stochastic depth.

mod common;

use bessemer_train::{
    ConvertOptions, ErrorKind, EvaluateOptions, Names, Recipe, RunFolder, TrainOptions, convert_weights, evaluate,
    train,
};
use common::{assert_same_tensors, last};
use std::path::Path;
use tempfile::TempDir;

const RECIPE: &str = r#"
name = "narrow"
model = { name = "efficientnet-tiny", num_classes = 4, dropout = 0.1, drop_path = 0.1 }
data = { source = "shapes", train_samples = 2560, eval_samples = 128, image_size = 32, eval_resize = 32, eval_image_size = 32, crop_scale = [1.0, 1.0], crop_ratio = [1.0, 1.0] }
train = { batch_size = 16, epochs = 1, seed = 5 }
optimizer = { momentum = 0.9, weight_decay = 1e-4, decay_exclude = "bn_and_bias" }
schedule = { kind = "cosine", base_lr = 0.05, warmup_epochs = 0.1, per = "step" }
eval = { every_epochs = 1 }
loader = { workers = 1 }
"#;

fn recipe(overrides: &[&str]) -> Recipe {
    let overrides: Vec<_> = overrides.iter().map(|text| text.parse().expect("an override")).collect();
    Recipe::from_toml(RECIPE, "narrow", &overrides).expect("a valid recipe")
}

fn options(folder: RunFolder, overrides: &[&str], threads: usize) -> TrainOptions {
    let mut options = TrainOptions::new(recipe(overrides), folder);
    options.compute.device.threads = threads;
    options
}

fn new_run(folder: &Path, overrides: &[&str]) -> TrainOptions {
    options(RunFolder::New(folder.to_owned()), overrides, 1)
}

#[test]
fn shapes_are_learnt_and_the_weights_are_read_by_both_namings() {
    let folder = TempDir::new().unwrap();
    let run = folder.path().join("run");
    let report = train(&new_run(&run, &[])).unwrap();
    assert!(report.metrics["top1"] > 0.6, "{:?}", report.metrics);

    let converted = folder.path().join("torchvision.safetensors");
    let to = ConvertOptions { to: Names::Torchvision, ..ConvertOptions::default() };
    assert_eq!(convert_weights(&run, &converted, &to).unwrap().model, "efficientnet-tiny");
    let back = folder.path().join("timm.safetensors");
    let from = ConvertOptions { from: Some(Names::Torchvision), ..ConvertOptions::default() };
    convert_weights(&converted, &back, &from).unwrap();

    let again = evaluate("efficientnet-tiny", &run, Path::new("shapes"), &EvaluateOptions::default()).unwrap();
    assert!((again.metrics["top1"] - report.metrics["top1"]).abs() < 1e-9, "{:?}", again.metrics);
}

#[test]
fn a_resumed_run_drops_what_the_whole_one_drops() {
    let folder = TempDir::new().unwrap();
    let (whole, pieces) = (folder.path().join("whole"), folder.path().join("pieces"));
    let overrides = ["data.train_samples=128", "train.ema_decay=0.9", "checkpoint.every_steps=3"];
    train(&new_run(&whole, &overrides)).unwrap();
    let mut first = new_run(&pieces, &overrides);
    first.run_steps = Some(3);
    assert_eq!(train(&first).unwrap_err().kind(), ErrorKind::Interrupted);
    // As many threads as there are make no difference.
    train(&options(RunFolder::Resume(pieces.clone()), &overrides, 2)).unwrap();
    assert_same_tensors(&last(&whole), &last(&pieces));

    let other = folder.path().join("other");
    train(&new_run(&other, &[&overrides[..], &["model.drop_path=0", "model.dropout=0"]].concat())).unwrap();
    assert!(last(&whole).model != last(&other).model, "the network without dropout is trained otherwise");
}

#[test]
fn stochastic_depth_is_of_efficientnets_alone() {
    let error = Recipe::from_toml(&RECIPE.replace("efficientnet-tiny", "resnet18"), "narrow", &[]).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("model.drop_path") && text.contains("resnet18"), "{text}");
}
