//! The networks of recipes.

use super::recipe::DetectorRecipe;
use crate::error::TrainError;
use crate::recipe::Recipe;
use crate::setup::{RunShape, train_config};
use bessemer_models::Model;
use bessemer_models::efficientdet::{self, AnchorOptions, DetectionOptions, DetectorOptions, LossOptions};
use bessemer_nn::{BatchNormOptions, Init};

/// Variants of the recipe's network.
///
/// # Errors
/// A model that the zoo does not have.
pub(super) fn options(recipe: &Recipe) -> Result<DetectorOptions, TrainError> {
    let DetectorRecipe { model, canvas, images, detection, .. } = recipe.own()?;
    let published = efficientdet::find(&recipe.model.name)?.options();
    Ok(DetectorOptions {
        canvas: [canvas.image_size as usize; 2],
        num_classes: model.num_classes as usize,
        max_objects: images.max_objects as usize,
        scale: images.scale(),
        padding: model.padding,
        normalise_twice: model.normalise_twice,
        edges: model.edge_weights,
        norm: BatchNormOptions { eps: model.bn_eps, momentum: model.bn_momentum, gamma: Init::Ones, frozen: false },
        drop_path: model.drop_path,
        freeze_at: model.freeze_at as usize,
        seed: recipe.train.seed,
        anchors: AnchorOptions { scale: detection.anchor_scale, ..published.anchors },
        ..published
    })
}

/// The parts of the recipe's loss.
///
/// # Errors
/// A recipe of another family.
pub(super) fn loss(recipe: &Recipe) -> Result<LossOptions, TrainError> {
    let DetectorRecipe { loss, .. } = recipe.own()?;
    Ok(LossOptions {
        alpha: loss.alpha,
        gamma: loss.gamma,
        delta: loss.delta,
        box_weight: loss.box_weight,
        l2: loss.l2,
    })
}

/// From the outputs of the recipe's network to detections.
///
/// # Errors
/// A recipe of another family.
pub(super) fn detection(recipe: &Recipe) -> Result<DetectionOptions, TrainError> {
    let DetectorRecipe { detection, .. } = recipe.own()?;
    Ok(DetectionOptions {
        candidates: detection.candidates as usize,
        suppression: detection.suppression,
        overlap: detection.overlap,
        score_floor: detection.score_floor,
        detections: detection.max_detections as usize,
        clip: detection.clip,
    })
}

/// The graph of a whole training step as the recipe asks for it.
///
/// # Errors
/// A model or a size that is not possible; a precision that the device does not train in.
pub(super) fn training_model(recipe: &Recipe, shape: RunShape) -> Result<Model, TrainError> {
    let config = train_config(recipe, shape)?;
    Ok(efficientdet::train(&options(recipe)?, &loss(recipe)?, &config, shape.batch_size)?)
}
