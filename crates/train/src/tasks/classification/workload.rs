//! Steps of classifiers that are measured, with the hyper-parameters of a reference recipe.

use super::recipe::ClassifierRecipe;
use crate::recipe::Recipe;
use crate::setup::optimizer;
use crate::workload::{ComparedWork, Fill, Mode, Work, Workload};
use bessemer_models::resnet::Block;
use bessemer_models::{Architecture, InputFormat, LossOptions, Model, ModelError, find};
use bessemer_nn::{DecayExclude, Optimizer, TrainConfig};
use serde_json::json;

/// Learning rate of steps that are measured: so low that no number of steps on one batch diverges, and that roundings do not
/// grow beyond what a check allows within a few steps.
const RATE: f64 = 2e-4;

/// The recipe whose optimizer and label smoothing steps have.
const REFERENCE: &str = "resnet50-90e";

fn reference() -> (Recipe, f64) {
    let recipe = Recipe::load(REFERENCE, &[]).expect("a recipe of this program");
    let label_smoothing = recipe.own::<ClassifierRecipe>().expect("of this family").labels.label_smoothing;
    (recipe, label_smoothing)
}

pub(super) fn build(work: &Work<'_>) -> Result<Workload, ModelError> {
    let spec = find(work.model)?;
    let options = spec.options();
    let model = match work.mode {
        Mode::Infer => Model::infer(spec.architecture, &options, work.batch_size)?,
        Mode::Train => {
            let (recipe, label_smoothing) = reference();
            let loss = LossOptions { label_smoothing, mixup: None };
            Model::train(spec.architecture, &options, &loss, &training(work, &recipe), work.batch_size)?
        }
    };
    Ok(Workload::new(model, Fill::Below(options.num_classes), Vec::new()))
}

/// By the optimizer of the recipe, but no batch-norm decays: other frameworks cannot distinguish those of shortcuts by their names.
fn training(work: &Work<'_>, recipe: &Recipe) -> TrainConfig {
    let optimizer = match optimizer(&recipe.optimizer) {
        Optimizer::Sgd(sgd) => Optimizer::Sgd(bessemer_nn::Sgd { decay_exclude: DecayExclude::BatchNorm, ..sgd }),
        other => other,
    };
    work.train_config(optimizer, RATE)
}

pub(super) fn compared(work: &Work<'_>) -> Result<Option<ComparedWork>, ModelError> {
    let spec = find(work.model)?;
    let Architecture::ResNet { block, depths } = spec.architecture else { return Ok(None) };
    let options = spec.options();
    let InputFormat::Bytes(scale) = options.input else { unreachable!("the zoo's models take bytes") };
    let bytes = |numbers: [f64; 3]| numbers.map(|number| number * 255.0);
    let block = if block == Block::Bottleneck { "bottleneck" } else { "basic" };
    let (recipe, label_smoothing) = reference();
    Ok(Some(ComparedWork {
        sizes: json!({
            "image_size": options.image_size[0], "classes": options.num_classes, "layers": depths, "block": block,
        }),
        normalise: Some(json!({ "mean": bytes(scale.mean), "std": bytes(scale.std) })),
        training: training(work, &recipe),
        label_smoothing,
        dropout: 0.0,
    }))
}
