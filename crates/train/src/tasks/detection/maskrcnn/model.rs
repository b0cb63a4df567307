//! The networks of recipes.

use super::recipe::MaskRcnnRecipe;
use crate::error::TrainError;
use crate::recipe::Recipe;
use bessemer_models::maskrcnn::{
    self, AnchorOptions, DetectionOptions, MaskRcnnOptions, ProposalOptions, TrainingOptions,
};
use bessemer_models::resnet::Backbone;
use bessemer_nn::{BatchNormOptions, Init};

/// Variants of the recipe's network.
///
/// # Errors
/// A model that the zoo does not have.
pub(super) fn options(recipe: &Recipe) -> Result<MaskRcnnOptions, TrainError> {
    let MaskRcnnRecipe { model, canvas, images, proposals, .. } = recipe.own()?;
    let published = maskrcnn::find(&recipe.model.name)?.options(model.flavour);
    let norm = BatchNormOptions {
        eps: model.bn_eps,
        momentum: model.bn_momentum,
        gamma: Init::Ones,
        frozen: model.frozen_norms,
    };
    let padding = model.padding.unwrap_or(published.backbone.padding);
    Ok(MaskRcnnOptions {
        canvas: canvas.canvas.map(|side| side as usize),
        backbone: Backbone { padding, norm, freeze_at: model.freeze_at as usize, ..published.backbone },
        num_classes: model.num_classes as usize,
        max_objects: images.max_objects as usize,
        crop: canvas.crop as usize,
        scale: images.scale(),
        anchors: AnchorOptions { scale: proposals.anchor_scale, ..published.anchors },
        proposal_overlap: proposals.overlap,
        seed: recipe.train.seed,
        ..published
    })
}

/// How many proposals there are in training, and in evaluation.
fn proposals(own: &MaskRcnnRecipe) -> [ProposalOptions; 2] {
    let MaskRcnnRecipe { proposals, .. } = own;
    [0, 1].map(|phase| ProposalOptions {
        candidates: Some(proposals.candidates[phase] as usize).filter(|candidates| *candidates > 0),
        most: proposals.most[phase] as usize,
    })
}

/// From images with objects to the recipe's losses.
///
/// # Errors
/// A recipe of another family.
pub(super) fn training(recipe: &Recipe) -> Result<TrainingOptions, TrainError> {
    let own: &MaskRcnnRecipe = recipe.own()?;
    let MaskRcnnRecipe { samples, loss, .. } = own;
    Ok(TrainingOptions {
        proposals: proposals(own)[0],
        anchor_overlaps: samples.anchor_overlaps,
        anchor_samples: samples.anchors.map(|count| count as usize),
        region_overlap: samples.region_overlap,
        region_samples: samples.regions.map(|count| count as usize),
        random_samples: true,
        l2: loss.l2,
    })
}

/// From the outputs of the recipe's network to detections.
///
/// # Errors
/// A recipe of another family.
pub(super) fn detection(recipe: &Recipe) -> Result<DetectionOptions, TrainError> {
    let own: &MaskRcnnRecipe = recipe.own()?;
    let MaskRcnnRecipe { detection, .. } = own;
    Ok(DetectionOptions {
        proposals: proposals(own)[1],
        overlap: detection.overlap,
        score_floor: detection.score_floor,
        detections: detection.max_detections as usize,
    })
}
