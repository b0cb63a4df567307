//! Steps of classifiers that are measured, with the hyper-parameters of a reference recipe.

use super::recipe::ClassifierRecipe;
use crate::recipe::Recipe;
use crate::setup::optimizer;
use crate::workload::{ComparedWork, Fill, Mode, Work, Workload, in_bytes};
use bessemer_models::resnet::Block;
use bessemer_models::{Architecture, BackboneOptions, InputFormat, LossOptions, Model, ModelError, find};
use bessemer_nn::{DecayExclude, Optimizer, TrainConfig};
use serde_json::json;

/// Learning rate of steps that are measured: so low that no number of steps on one batch diverges, and that roundings do not
/// grow beyond what a check allows within a few steps.
const RATE: f64 = 2e-4;

/// The recipe by whose optimizer, label smoothing, dropout and stochastic depth a model is trained.
fn reference(architecture: Architecture) -> Recipe {
    let name = match architecture {
        Architecture::ResNet { .. } | Architecture::ResNetCifar { .. } => "resnet50-90e",
        Architecture::EfficientNet(_) => "efficientnet-b0",
    };
    Recipe::load(name, &[]).expect("a recipe of this program")
}

fn own(recipe: &Recipe) -> &ClassifierRecipe {
    recipe.own().expect("of this family")
}

pub(super) fn build(work: &Work<'_>) -> Result<Workload, ModelError> {
    let spec = find(work.model)?;
    let mut options = spec.options();
    let model = match work.mode {
        Mode::Infer => Model::infer(spec.architecture, &options, work.batch_size)?,
        Mode::Train => {
            let recipe = reference(spec.architecture);
            let ClassifierRecipe { model, labels, .. } = own(&recipe);
            options.dropout = model.dropout;
            if let BackboneOptions::EfficientNet(backbone) = &mut options.backbone {
                backbone.drop_path = model.drop_path;
            }
            let loss = LossOptions { label_smoothing: labels.label_smoothing, mixup: None };
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
    let block = if block == Block::Bottleneck { "bottleneck" } else { "basic" };
    let recipe = reference(spec.architecture);
    let sizes = json!({
        "image_size": options.image_size[0], "classes": options.num_classes, "layers": depths, "block": block,
    });
    Ok(Some(ComparedWork {
        normalise: Some(in_bytes(&scale)),
        label_smoothing: own(&recipe).labels.label_smoothing,
        ..ComparedWork::new(sizes, training(work, &recipe))
    }))
}
