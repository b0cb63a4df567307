//! Steps of Mask R-CNNs that are measured, with the hyper-parameters of a reference recipe.

use super::model;
use crate::recipe::Recipe;
use crate::setup::optimizer;
use crate::tasks::detection::kind::object_fills;
use crate::workload::{ComparedWork, Fill, Mode, Work, Workload, in_bytes};
use bessemer_models::maskrcnn::{self, DetectionOptions, Flavour, MaskRcnnOptions, ProposalOptions, TrainingOptions};
use bessemer_models::{Model, ModelError};
use bessemer_nn::TrainConfig;
use serde_json::{Value, json};

/// The recipe by whose optimizer Mask R-CNNs of all sizes are trained.
const REFERENCE: &str = "mask-rcnn";
/// The form of the published weights, and of other frameworks.
const FLAVOUR: Flavour = Flavour::Torchvision;

/// Learning rate of steps that are measured: so low that no number of steps on one batch diverges.
const RATE: f64 = 1e-5;
/// Pixels between reference boxes of the finest level.
const FINEST_STRIDE: f64 = 4.0;

pub(super) fn build(work: &Work<'_>) -> Result<Workload, ModelError> {
    let options = options(work)?;
    let model = match work.mode {
        Mode::Infer => maskrcnn::detect(&options, &detection(), work.batch_size)?,
        Mode::Train => maskrcnn::train(&options, &training(), &config(work, RATE), work.batch_size)?,
    };
    Ok(filled(model, &options))
}

/// Through drawn weights and norms with means of 0 and variances of 1, activations double from block to block.
pub(super) fn settling(work: &Work<'_>) -> Result<Workload, ModelError> {
    let mut options = options(work)?;
    options.backbone.norm.frozen = false;
    options.backbone.norm.momentum = 1.0;
    let model = maskrcnn::train(&options, &training(), &config(work, 0.0), work.batch_size)?;
    Ok(filled(model, &options))
}

pub(super) fn compared(work: &Work<'_>) -> Result<ComparedWork, ModelError> {
    let options = options(work)?;
    let DetectionOptions { overlap, score_floor, detections, .. } = detection();
    let detection = json!({ "overlap": overlap, "score_floor": score_floor, "detections": detections });
    Ok(ComparedWork {
        normalise: Some(in_bytes(&options.scale)),
        loss: Some(json!({ "l2": training().l2 })),
        detection: (work.mode == Mode::Infer).then_some(detection),
        ..ComparedWork::new(sizes(&options), config(work, RATE))
    })
}

/// Height and width of the images of a step, in pixels; `None` for an unknown model.
pub(super) fn canvas(model: &str) -> Option<[usize; 2]> {
    Some(maskrcnn::find(model).ok()?.options(FLAVOUR).canvas)
}

fn options(work: &Work<'_>) -> Result<MaskRcnnOptions, ModelError> {
    Ok(maskrcnn::find(work.model)?.options(FLAVOUR))
}

fn reference() -> Recipe {
    Recipe::load(REFERENCE, &[]).expect("a recipe of this program")
}

/// By the recipe's optimizer.
fn config(work: &Work<'_>, rate: f64) -> TrainConfig {
    work.train_config(optimizer(&reference().optimizer), rate)
}

/// With the first samples in order, so that others can take the same, and the recipe's decay.
fn training() -> TrainingOptions {
    let recipe = model::training(&reference()).expect("a recipe of this family");
    TrainingOptions { l2: recipe.l2, random_samples: false, ..TrainingOptions::new(FLAVOUR) }
}

/// All scores count: drawn weights give none that is high.
fn detection() -> DetectionOptions {
    DetectionOptions { score_floor: 0.0, ..DetectionOptions::new(FLAVOUR) }
}

fn sizes(options: &MaskRcnnOptions) -> Value {
    let MaskRcnnOptions { canvas, depths, backbone, width, box_width, mask_widths, anchors, .. } = options;
    let TrainingOptions { anchor_samples, region_samples, proposals, .. } = training();
    let numbers = |of: ProposalOptions| json!([of.candidates, of.most]);
    json!({
        "image_height": canvas[0], "image_width": canvas[1], "classes": options.num_classes,
        "max_objects": options.max_objects, "crop": options.crop,
        "depths": depths, "base_width": backbone.base_width, "norm_eps": backbone.norm.eps, "frozen": backbone.freeze_at,
        "width": width, "box_width": box_width, "mask_widths": mask_widths, "anchor_scale": anchors.scale,
        "proposals": [numbers(proposals), numbers(detection().proposals)], "proposal_overlap": options.proposal_overlap,
        "anchor_samples": anchor_samples, "region_samples": region_samples,
    })
}

fn filled(model: Model, options: &MaskRcnnOptions) -> Workload {
    let mut fills = object_fills(options.canvas, options.anchors.scale * FINEST_STRIDE);
    fills.push(("classes", Fill::Between(1, options.num_classes as i32 - 1)));
    Workload::new(model, Fill::Below(options.num_classes), fills)
}
