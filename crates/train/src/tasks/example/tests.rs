//! Everything that the program does with a model, it does with one of a new family.

use super::points::class_of;
use super::{FAMILY, MODEL};
use crate::recipe::{Recipe, builtin_names};
use crate::tasks::family::Family;
use crate::tasks::infer::PredictOptions;
use crate::tasks::registry;
use crate::trainer::{RunFolder, TrainOptions, TrainReport, train};
use crate::workload::{Mode, workload};
use crate::{ConvertOptions, EvaluateOptions, convert_weights, evaluate};
use bessemer_ir::DType;
use bessemer_weights::{NamedTensor, read_safetensors, write_safetensors};
use std::path::Path;
use tempfile::TempDir;

fn run(folder: &Path, steps: u64) -> TrainReport {
    let recipe = Recipe::load("quadrants", &[format!("train.steps={steps}").parse().unwrap()]).unwrap();
    train(&TrainOptions::new(recipe, RunFolder::New(folder.to_owned()))).unwrap()
}

#[test]
fn it_is_listed_and_has_recipes() {
    let model = registry::find(MODEL.name).unwrap();
    assert_eq!(model.family().noun(), FAMILY.noun());
    assert!(builtin_names().any(|name| name == "quadrants"));
    let load = |item: &str| Recipe::load("quadrants", &[item.parse().unwrap()]).map_err(|error| error.to_string());
    assert!(load("points.margin=0.3").unwrap().to_toml().contains("[points]\nmargin = 0.3\n"));
    assert!(
        load("points.margin=1.5").unwrap_err().contains("points.margin: 1.5 is not allowed; the range is 0 to below 1")
    );
    assert!(load("points.margn=0.5").unwrap_err().contains("unknown field `margn` (did you mean `margin`?)"));
    assert!(load("text.vocab=x").unwrap_err().contains("unknown field `text`"));
    let other = Recipe::load("cifar", &["points.margin=0.5".parse().unwrap()]).unwrap_err().to_string();
    assert!(other.contains("unknown field `points` (it is of recipes for perceptrons)"), "{other}");
}

#[test]
fn it_trains_evaluates_and_predicts() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("run");
    let report = run(&path, 200);
    assert!(report.metrics["accuracy"] > 0.95, "{:?}", report.metrics);
    let again = evaluate(MODEL.name, &path, Path::new("none"), &EvaluateOptions::default()).unwrap();
    assert_eq!(again.metrics["accuracy"], report.metrics["accuracy"]);

    let mut predictor = FAMILY.predictor(MODEL.name, &path, &PredictOptions::default()).unwrap();
    let points = ["0.7 0.6", "0.7 -0.6", "nonsense"].map(str::to_owned);
    let found = predictor.predict(&points, &|_, _| {}).unwrap();
    for (point, found) in [[0.7, 0.6], [0.7, -0.6]].into_iter().zip(&found) {
        assert_eq!(found.as_ref().unwrap().json["class"], class_of(point));
    }
    assert!(found[2].as_ref().unwrap_err().to_string().contains("expected two numbers"));
}

#[test]
fn its_weights_are_recognised_and_renamed() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    run(&path("run"), 1);
    let convert = |input: &str, output: &str| {
        convert_weights(&path(input), &path(output), &ConvertOptions::default()).unwrap().model
    };
    assert_eq!(convert("run", "own"), MODEL.name);
    let own = read_safetensors(&path("own")).unwrap();
    let renamed: Vec<NamedTensor<'_>> =
        own.iter().map(|t| NamedTensor { name: t.name.replace("hidden.", "fc1."), ..t.clone() }).collect();
    write_safetensors(&path("renamed"), &renamed).unwrap();
    assert_eq!(convert("renamed", "back"), MODEL.name);
    assert_eq!(read_safetensors(&path("back")).unwrap(), own);
    let error = registry::check_weights(registry::find("resnet18").unwrap(), &own, "W").unwrap_err().to_string();
    assert_eq!(error, "the model is resnet18; W holds a perceptron of 16 hidden units: perceptron-16");
}

#[test]
fn its_steps_are_measured() {
    for mode in [Mode::Train, Mode::Infer] {
        let step = workload(MODEL.name, mode, 3, DType::F32).unwrap();
        let (_, points) = step.graph.inputs().find(|(_, input)| input.name == "points").unwrap();
        assert_eq!(step.content(points, 1).len(), 3 * 2 * 4);
    }
}
