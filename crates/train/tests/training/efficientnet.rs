//! Whole runs of a narrow EfficientNet on drawn shapes, with dropout and stochastic depth.

use crate::common::{assert_same_tensors, last};
use bessemer_train::events::{EventBody, read_events};
use bessemer_train::{
    ConvertOptions, ErrorKind, EvaluateOptions, Names, Recipe, RunFolder, TrainOptions, convert_weights, evaluate,
    train,
};
use std::fs;
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

/// Thirty-two pictures, sixty times.
const LEARNS: &str = r#"
name = "learns"
model = { name = "efficientnet-tiny", num_classes = 4 }
data = { source = "shapes", train_samples = 32, eval_samples = 32, image_size = 32, eval_resize = 32, eval_image_size = 32, crop_scale = [1.0, 1.0], crop_ratio = [1.0, 1.0], flip = 0.0 }
train = { batch_size = 16, epochs = 60, seed = 5 }
optimizer = { kind = "adam", weight_decay = 0.0 }
schedule = { kind = "cosine", base_lr = 0.003, warmup_epochs = 2.0, per = "step" }
eval = { every_epochs = 60 }
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
fn pictures_are_learnt_and_the_weights_go_through_the_names_of_torchvision() {
    let folder = TempDir::new().unwrap();
    let run = folder.path().join("run");
    let mut options = new_run(&run, &[]);
    options.recipe = Recipe::from_toml(LEARNS, "learns", &[]).expect("a valid recipe");
    let report = train(&options).unwrap();
    let losses: Vec<f64> = read_events(&run.join("events.jsonl"))
        .unwrap()
        .into_iter()
        .filter_map(|event| if let EventBody::Step(info) = event.body { Some(info.loss) } else { None })
        .collect();
    let (first, last) = (losses[0], losses[losses.len() - 2..].iter().sum::<f64>() / 2.0);
    assert!(first > 1.0 && last < 0.5, "{first} to {last}");

    let again = evaluate("efficientnet-tiny", &run, Path::new("shapes"), &EvaluateOptions::default()).unwrap();
    assert_eq!(again.samples, 32);
    assert!((again.metrics["loss"] - report.metrics["loss"]).abs() < 1e-4, "{:?}", again.metrics);

    let path = |name: &str| folder.path().join(name);
    let to = |to| ConvertOptions { to, ..ConvertOptions::default() };
    convert_weights(&run, &path("timm"), &to(Names::Timm)).unwrap();
    assert_eq!(
        convert_weights(&run, &path("torchvision"), &to(Names::Torchvision)).unwrap().model,
        "efficientnet-tiny"
    );
    let from = ConvertOptions { from: Some(Names::Torchvision), ..ConvertOptions::default() };
    convert_weights(&path("torchvision"), &path("back"), &from).unwrap();
    assert_eq!(fs::read(path("timm")).unwrap(), fs::read(path("back")).unwrap());
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
