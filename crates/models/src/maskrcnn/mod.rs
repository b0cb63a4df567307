//! Mask R-CNNs: two-stage object detectors with a mask for each object, upon a ResNet and a feature pyramid.
//!
//! He, Gkioxari, Dollár, Girshick: "Mask R-CNN", 2017 (arXiv:1703.06870). Parameters are named as in torchvision. Boxes are
//! `[x1, y1, x2, y2]` in pixels of the canvas.

mod config;
mod detect;
mod heads;
mod names;
mod pyramid;
mod regions;
mod rpn;
mod zoo;

pub use config::{
    AnchorOptions, CANVAS_MULTIPLE, DetectionOptions, Flavour, MASK_SIZE, MaskRcnnOptions, ProposalOptions,
    TrainingOptions,
};
pub use names::NAMES;
pub(crate) use names::of_tensorflow;
pub use zoo::{MaskRcnnSpec, ZOO, find};

use crate::ModelError;
use crate::detector::{Objects, total};
use crate::model::Model;
use crate::resnet::{self, Block, Features};
use bessemer_ir::{DType, Value};
use bessemer_nn::loss::l2_sum;
use bessemer_nn::preprocess::normalise_on_canvas;
use bessemer_nn::train_step::build_train_step;
use bessemer_nn::{Builder, Mode, Ranks, Result, Streams, TrainConfig};
use heads::{Boxes, Classified};
use regions::{Regions, flat, images_of};

/// The scope of the backbone.
pub const BACKBONE: &str = "backbone.body";

/// A whole training step. Feeds: `images u8[B, H, W, 3]`; `sizes f32[B, 2]`, height and width of the image in the upper left
/// corner of the canvas; `boxes f32[B, G, 4]`, `classes i32[B, G]` from 1 on, `crops u8[B, G, M, M]`, the masks of the objects
/// within their boxes, 255 inside, and `count i32[B]`, the number of objects of each image; zeros behind the last object. Outputs:
/// `loss` and its parts `rpn_score_loss`, `rpn_box_loss`, `cls_loss`, `box_loss`, `mask_loss` and `l2_loss` (`f32[]`), `lr` and,
/// if asked for, `grad_norm`.
///
/// # Errors
/// [`ModelError::Setting`] where an option is out of range.
pub fn train(
    options: &MaskRcnnOptions,
    training: &TrainingOptions,
    config: &TrainConfig,
    batch: usize,
) -> std::result::Result<Model, ModelError> {
    let (mut b, values) = forward(options, training, batch, config.ranks)?;
    build_train_step(&mut b, values.loss, config)?;
    Ok(finished(b))
}

/// What a training step computes on its way to the loss.
#[derive(Clone, Debug)]
pub struct TrainingValues {
    /// Maps of the backbone, C2 to C5, `[B, H, W, C]`.
    pub features: [Value; 4],
    /// Maps of the pyramid, P2 to P6, `[B, H, W, C]`.
    pub pyramid: Vec<Value>,
    /// Logits of the reference boxes of each level, `f32[B, N]`.
    pub objectness: Vec<Value>,
    /// Their deltas, `f32[B, N, 4]`.
    pub anchor_deltas: Vec<Value>,
    /// `f32[B, N, 4]`, zeros behind the last one.
    pub proposals: Value,
    /// Their number, `i32[B]`.
    pub proposal_count: Value,
    /// The match of proposals and objects with the objects, `i32[B, N + G]`.
    pub matches: Value,
    /// The chosen regions, `f32[B, T, 4]`.
    pub regions: Value,
    /// 1 for those of objects, 0 for background, -1 for none, `i32[B, T]`.
    pub kinds: Value,
    /// Their logits, `f32[B * T, K]`.
    pub logits: Value,
    /// Their deltas, `f32[B * T, K, 4]`.
    pub deltas: Value,
    /// Logits of the masks of regions with an object, `f32[P, M, M]`.
    pub mask_logits: Value,
    /// The number of these regions, `i32[]`.
    pub mask_count: Value,
    /// `f32[]`
    pub loss: Value,
}

/// The part of a training step before the backward pass. All parts of the loss are outputs.
///
/// # Errors
/// As [`train`].
pub fn forward(
    options: &MaskRcnnOptions,
    training: &TrainingOptions,
    batch: usize,
    ranks: Ranks,
) -> std::result::Result<(Builder, TrainingValues), ModelError> {
    options.check(batch)?;
    training.check()?;
    let mut b = Builder::training(ranks);
    let mut streams = Streams::new(options.seed);
    let (features, maps, sizes) = network(&mut b, options, batch)?;
    let objects = Objects::feed(&mut b, batch, options.max_objects)?;
    let crop = options.crop;
    let crops = b.feed("crops", DType::U8, [batch, options.max_objects, crop, crop])?;

    let scored = rpn::score(&mut b, &maps, options)?;
    let proposals = rpn::propose(&mut b, &scored, sizes, options, &training.proposals)?;
    let [rpn_score_loss, rpn_box_loss] =
        b.scope("rpn.loss", |b| rpn::losses(b, &scored, &objects, options, training, &mut streams))?;
    let regions =
        b.scope("roi_heads.targets", |b| Regions::choose(b, &proposals, &objects, options, training, &mut streams))?;

    let [samples, most_positives] = training.region_samples;
    let all = Boxes { boxes: flat(&mut b.graph, regions.boxes)?, image: images_of(&mut b.graph, batch, samples)? };
    let Classified { logits, deltas } = heads::classify(&mut b, &maps, all, options)?;
    let packed = b.scope("roi_heads.targets", |b| regions.with_objects(b, most_positives))?;
    let mask_logits =
        heads::masks(&mut b, &maps, Boxes { boxes: packed.boxes, image: packed.image }, packed.count, options)?;
    let mask_logits = heads::of_class(&mut b, mask_logits, packed.labels)?;

    let specs = b.specs().to_vec();
    let flavour = options.flavour;
    let loss = b.scope("loss", |b| {
        let [cls_loss, box_loss] = regions.losses(b, logits, deltas, &objects, flavour)?;
        let mask_loss = packed.mask_loss(b, mask_logits, crops, &objects, flavour)?;
        let l2 = l2_sum(&mut b.graph, &specs, |_| false)?;
        let l2_loss = b.graph.mul_scalar(l2, training.l2)?;
        let parts = [
            ("rpn_score_loss", rpn_score_loss),
            ("rpn_box_loss", rpn_box_loss),
            ("cls_loss", cls_loss),
            ("box_loss", box_loss),
            ("mask_loss", mask_loss),
            ("l2_loss", l2_loss),
        ];
        for (name, value) in parts {
            b.graph.output(name, value);
        }
        total(b, parts.map(|(_, value)| value).to_vec())
    })?;
    let values = TrainingValues {
        features: [features.c2, features.c3, features.c4, features.c5],
        pyramid: maps,
        objectness: scored.logits.to_vec(),
        anchor_deltas: scored.deltas.to_vec(),
        proposals: proposals.boxes,
        proposal_count: proposals.count,
        matches: regions.matches,
        regions: regions.boxes,
        kinds: regions.kinds,
        logits,
        deltas,
        mask_logits,
        mask_count: packed.count,
        loss,
    };
    Ok((b, values))
}

/// Detections of a batch. Feeds: `images` and `sizes` as in [`train`]. Outputs, in falling order of the scores: `boxes f32[B, D, 4]`,
/// `labels i32[B, D]` from 1 on, `scores f32[B, D]` and `masks f32[B, D, M, M]`, the probability of each pixel of a grid on the box,
/// zeros behind the last one, and their number `count i32[B]`.
///
/// # Errors
/// As [`train`].
pub fn detect(
    options: &MaskRcnnOptions,
    detection: &DetectionOptions,
    batch: usize,
) -> std::result::Result<Model, ModelError> {
    options.check(batch)?;
    detection.check()?;
    let mut b = Builder::new(Mode::Infer);
    let (_, maps, sizes) = network(&mut b, options, batch)?;
    let scored = rpn::score(&mut b, &maps, options)?;
    let proposals = rpn::propose(&mut b, &scored, sizes, options, &detection.proposals)?;
    detect::detections(&mut b, &maps, &proposals, sizes, options, detection)?;
    Ok(finished(b))
}

fn finished(b: Builder) -> Model {
    let (graph, specs) = b.finish();
    Model { graph, specs, names: &NAMES }
}

/// Maps of the backbone and of the pyramid on the feeds `images` and `sizes`, and the sizes.
fn network(b: &mut Builder, options: &MaskRcnnOptions, batch: usize) -> Result<(Features, Vec<Value>, Value)> {
    let [height, width] = options.canvas;
    let images = b.feed("images", DType::U8, [batch, height, width, 3])?;
    let sizes = b.feed("sizes", DType::F32, [batch, 2])?;
    let x = b.scope("normalise", |b| normalise_on_canvas(&mut b.graph, images, &options.scale, sizes))?;
    let features =
        b.scope(BACKBONE, |b| resnet::features(b, x, Block::Bottleneck, options.depths, &options.backbone))?;
    let maps = b.scope("backbone", |b| pyramid::pyramid(b, features, options))?;
    Ok((features, maps, sizes))
}

#[cfg(test)]
mod recipe_tests;
#[cfg(test)]
mod tests;
