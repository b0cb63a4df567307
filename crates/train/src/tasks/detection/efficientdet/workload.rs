//! Steps of detectors that are measured, with the hyper-parameters of a reference recipe.

use super::model;
use crate::recipe::Recipe;
use crate::setup::optimizer;
use crate::tasks::detection::kind::object_fills;
use crate::workload::{ComparedWork, DetectorOutputs, Fill, Mode, Work, Workload, in_bytes};
use bessemer_models::efficientdet::{self, DetectionOptions, DetectorOptions, LossOptions};
use bessemer_models::{Model, ModelError};
use bessemer_nn::TrainConfig;
use serde_json::{Value, json};

/// The recipe by whose optimizer and loss detectors of all sizes are trained.
const REFERENCE: &str = "efficientdet-d0";

/// Learning rate of steps that are measured: so low that no number of steps on one batch diverges.
const RATE: f64 = 1e-4;
/// Pixels between reference boxes of the finest level.
const FINEST_STRIDE: f64 = 8.0;

pub(super) fn build(work: &Work<'_>) -> Result<Workload, ModelError> {
    let options = options(work)?;
    let model = match (work.mode, work.settings.outputs) {
        (Mode::Infer, DetectorOutputs::Detections) => {
            efficientdet::detect(&options, &DetectionOptions::default(), work.batch_size)?
        }
        (Mode::Infer, DetectorOutputs::Network) => {
            efficientdet::raw_outputs(&options, work.batch_size, bessemer_nn::Mode::Infer)?
        }
        (Mode::Train, _) => {
            let recipe = reference();
            efficientdet::train(&options, &loss(&recipe), &training(work, &recipe), work.batch_size)?
        }
    };
    Ok(filled(model, &options))
}

/// Through drawn weights, with means of 0 and variances of 1, activations fade from layer to layer, so that all scores are equal.
pub(super) fn settling(work: &Work<'_>) -> Result<Workload, ModelError> {
    let (mut options, recipe) = (options(work)?, reference());
    options.norm.momentum = 1.0;
    let config = work.train_config(optimizer(&recipe.optimizer), 0.0);
    let model = efficientdet::train(&options, &loss(&recipe), &config, work.batch_size)?;
    Ok(filled(model, &options))
}

/// The step of an evaluation.
pub(super) fn evaluation(work: &Work<'_>) -> Result<Model, ModelError> {
    efficientdet::evaluate(&options(work)?, &DetectionOptions::default(), &LossOptions::default(), work.batch_size)
}

pub(super) fn compared(work: &Work<'_>) -> Result<ComparedWork, ModelError> {
    let (options, recipe) = (options(work)?, reference());
    let LossOptions { alpha, gamma, delta, box_weight, l2 } = loss(&recipe);
    let ends_with_detections = work.mode == Mode::Infer && work.settings.outputs == DetectorOutputs::Detections;
    Ok(ComparedWork {
        normalise: Some(in_bytes(&options.scale)),
        loss: Some(json!({ "alpha": alpha, "gamma": gamma, "delta": delta, "box_weight": box_weight, "l2": l2 })),
        detection: ends_with_detections.then(|| detection(&DetectionOptions::default())),
        ..ComparedWork::new(sizes(&options), training(work, &recipe))
    })
}

fn options(work: &Work<'_>) -> Result<DetectorOptions, ModelError> {
    Ok(efficientdet::find(work.model)?.options())
}

fn reference() -> Recipe {
    Recipe::load(REFERENCE, &[]).expect("a recipe of this program")
}

fn loss(recipe: &Recipe) -> LossOptions {
    model::loss(recipe).expect("a recipe of this family")
}

/// By the recipe's optimizer, without its limits of gradients and its averages.
fn training(work: &Work<'_>, recipe: &Recipe) -> TrainConfig {
    work.train_config(optimizer(&recipe.optimizer), RATE)
}

fn sizes(options: &DetectorOptions) -> Value {
    let DetectorOptions { canvas, backbone, anchors, norm, .. } = options;
    json!({
        "image_size": canvas[0], "classes": options.num_classes, "max_objects": options.max_objects,
        "backbone_width": backbone.width, "backbone_depth": backbone.depth,
        "width": options.width, "cells": options.cells, "head_depth": options.head_depth,
        "norm_eps": norm.eps, "norm_momentum": norm.momentum,
        "anchor_scale": anchors.scale, "anchor_octaves": anchors.octaves, "anchor_aspects": anchors.aspects,
    })
}

fn detection(options: &DetectionOptions) -> Value {
    let DetectionOptions { candidates, suppression, overlap, score_floor, detections, clip } = options;
    json!({
        "candidates": candidates, "suppression": suppression, "overlap": overlap, "score_floor": score_floor,
        "detections": detections, "clip": clip,
    })
}

fn filled(model: Model, options: &DetectorOptions) -> Workload {
    let fills = object_fills(options.canvas, options.anchors.scale * FINEST_STRIDE);
    Workload::new(model, Fill::Below(options.num_classes), fills)
}
