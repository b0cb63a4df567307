//! EfficientDets: one-stage object detectors.
//!
//! Tan, Pang, Le: "EfficientDet: scalable and efficient object detection", 2019 (arXiv:1911.09070). Parameters are named as in
//! the `effdet` package. Boxes are `[x1, y1, x2, y2]` in pixels of the canvas.

mod config;
mod detect;
mod heads;
mod names;
mod pyramid;
mod separable;
mod targets;
mod zoo;

pub use config::{
    AnchorOptions, CANVAS_MULTIPLE, DetectionOptions, DetectorOptions, EdgeWeights, LossOptions, Size, SuppressionKind,
};
pub use names::NAMES;
pub(crate) use names::{complete, of_tensorflow};
pub use zoo::{DetectorSpec, ZOO, find};

use crate::detector::{Objects, total};
use crate::efficientnet::{self, Backbone};
use crate::model::Model;
use crate::{InitScheme, ModelError};
use bessemer_ir::{DType, Graph, Value};
use bessemer_nn::loss::{l2_sum, sum_all};
use bessemer_nn::preprocess::normalise_on_canvas;
use bessemer_nn::train_step::build_train_step;
use bessemer_nn::{Builder, Mode, PixelScale, Ranks, Result, Streams, TrainConfig};
use heads::Outputs;
use targets::{Matched, box_losses, class_losses};

/// The scope of the backbone.
pub const BACKBONE: &str = "backbone";

/// A whole training step. Feeds: `images u8[B, H, W, 3]`; `sizes f32[B, 2]`, height and width of the image in the upper left
/// corner of the canvas; `boxes f32[B, G, 4]`, `classes i32[B, G]` and `count i32[B]`, the objects of each image and their number.
/// Outputs: `loss`, `cls_loss`, `box_loss` and `l2_loss` (`f32[]`, the last three before they are weighted and summed), `lr` and, if
/// asked for, `grad_norm`.
///
/// # Errors
/// [`ModelError::Setting`] where an option is out of range.
pub fn train(
    options: &DetectorOptions,
    loss: &LossOptions,
    config: &TrainConfig,
    batch: usize,
) -> std::result::Result<Model, ModelError> {
    let (mut b, loss) = forward_loss(options, loss, batch, config.ranks)?;
    build_train_step(&mut b, loss, config)?;
    Ok(finished(b))
}

/// The part of a training step before the backward pass, and its loss `f32[]`.
///
/// # Errors
/// As [`train`].
pub fn forward_loss(
    options: &DetectorOptions,
    loss: &LossOptions,
    batch: usize,
    ranks: Ranks,
) -> std::result::Result<(Builder, Value), ModelError> {
    options.check(batch)?;
    let mut b = Builder::training(ranks);
    let outputs = network(&mut b, options, batch)?;
    let objects = Objects::feed(&mut b, batch, options.max_objects)?;
    let specs = b.specs().to_vec();
    let total = b.scope("loss", |b| {
        let [class_loss, box_loss] = losses(b, &outputs, &objects, loss, options)?;
        let g = &mut b.graph;
        let l2 = l2_sum(g, &specs, |_| false)?;
        let l2_loss = g.mul_scalar(l2, loss.l2)?;
        for (name, value) in [("cls_loss", class_loss), ("box_loss", box_loss), ("l2_loss", l2_loss)] {
            g.output(name, value);
        }
        let weighted = g.mul_scalar(box_loss, loss.box_weight)?;
        let total = g.add(class_loss, weighted)?;
        g.add(total, l2_loss)
    })?;
    Ok((b, total))
}

/// The losses of classes and of boxes, `f32[]` each, divided by one more than the matched boxes of the batch; that of boxes by 4
/// besides.
fn losses(
    b: &mut Builder,
    outputs: &Outputs,
    objects: &Objects,
    loss: &LossOptions,
    options: &DetectorOptions,
) -> Result<[Value; 2]> {
    let matched = Matched::new(b, objects, options)?;
    let g = &mut b.graph;
    let positives = g.cast(matched.positives, DType::F32)?;
    let positives = g.sum(positives, &[0])?;
    let (positives, factor) = b.weight_of_mean(positives)?;
    let divisor = b.graph.add_scalar(positives, 1.0)?;
    let classes = class_losses(b, outputs, &matched, loss, options)?;
    let boxes = box_losses(b, outputs, &matched, loss)?;
    let [classes, boxes] = [summed(b, &classes)?, summed(b, &boxes)?];
    let g = &mut b.graph;
    let class_sum = g.div(classes, divisor)?;
    let class_loss = g.mul_scalar(class_sum, factor)?;
    let box_sum = g.div(boxes, divisor)?;
    Ok([class_loss, g.mul_scalar(box_sum, 0.25 * factor)?])
}

/// Detections of a batch. Feeds: `images` and `sizes` as in [`train`]. Outputs, in falling order of the scores: `boxes f32[B, D, 4]`,
/// `scores f32[B, D]`, `labels i32[B, D]`, zeros behind the last one, and their number `count i32[B]`.
///
/// # Errors
/// As [`train`].
pub fn detect(
    options: &DetectorOptions,
    detection: &DetectionOptions,
    batch: usize,
) -> std::result::Result<Model, ModelError> {
    options.check(batch)?;
    let mut b = Builder::new(Mode::Infer);
    let outputs = network(&mut b, options, batch)?;
    detect::detections(&mut b, &outputs, options, detection)?;
    Ok(finished(b))
}

/// [`detect`] with the losses of each image by its `boxes`, `classes` and `count`, as in [`train`]: the outputs `cls_loss_sum` and
/// `box_loss_sum`, `f32[B]`, sums before they are divided, and `positives i32[B]`, the matched boxes.
///
/// # Errors
/// As [`train`].
pub fn evaluate(
    options: &DetectorOptions,
    detection: &DetectionOptions,
    loss: &LossOptions,
    batch: usize,
) -> std::result::Result<Model, ModelError> {
    options.check(batch)?;
    let mut b = Builder::new(Mode::Infer);
    let outputs = network(&mut b, options, batch)?;
    let objects = Objects::feed(&mut b, batch, options.max_objects)?;
    detect::detections(&mut b, &outputs, options, detection)?;
    b.scope("loss", |b| {
        let matched = Matched::new(b, &objects, options)?;
        let classes = class_losses(b, &outputs, &matched, loss, options)?;
        let boxes = box_losses(b, &outputs, &matched, loss)?;
        for (name, levels) in [("cls_loss_sum", classes), ("box_loss_sum", boxes)] {
            let sums = by_image(b, &levels)?;
            b.graph.output(name, sums);
        }
        b.graph.output("positives", matched.positives);
        Result::Ok(())
    })?;
    Ok(finished(b))
}

/// Logits and deltas of a batch, without detections: what exported networks compute. Feeds: `images` and `sizes` as in [`train`].
/// Outputs for each level `l` from 3 to 7: `classes.l f32[B, H, W, anchors * K]` and `boxes.l f32[B, H, W, anchors * 4]`.
///
/// # Errors
/// As [`train`].
pub fn raw_outputs(options: &DetectorOptions, batch: usize, mode: Mode) -> std::result::Result<Model, ModelError> {
    options.check(batch)?;
    let mut b = Builder::new(mode);
    let outputs = network(&mut b, options, batch)?;
    for (what, levels) in [("classes", &outputs.classes), ("boxes", &outputs.boxes)] {
        for (level, &value) in levels.iter().enumerate() {
            b.graph.output(&format!("{what}.{}", level + config::FIRST_LEVEL), value);
        }
    }
    Ok(finished(b))
}

fn finished(b: Builder) -> Model {
    let (graph, specs) = b.finish();
    Model { graph, specs, names: &NAMES }
}

/// The network on the feeds `images` and `sizes`.
fn network(b: &mut Builder, options: &DetectorOptions, batch: usize) -> Result<Outputs> {
    let [height, width] = options.canvas;
    let images = b.feed("images", DType::U8, [batch, height, width, 3])?;
    let sizes = b.feed("sizes", DType::F32, [batch, 2])?;
    let mut x = b.scope("normalise", |b| normalise_on_canvas(&mut b.graph, images, &options.scale, sizes))?;
    let backbone = Backbone {
        padding: options.padding,
        init: InitScheme::TensorFlow,
        norm: options.norm,
        drop_path: options.drop_path,
        freeze_at: options.freeze_at,
        ..Backbone::default()
    };
    let features = b.scope(BACKBONE, |b| {
        if options.normalise_twice {
            x = normalise_again(&mut b.graph, x, &options.scale)?;
        }
        efficientnet::features(b, x, options.backbone, &backbone, &mut Streams::new(options.seed))
    })?;
    let maps = pyramid::pyramid(b, features, options)?;
    heads::heads(b, &maps, options)
}

/// Pixels that are normalised already, normalised once more, those of the empty canvas as well.
fn normalise_again(g: &mut Graph, x: Value, scale: &PixelScale) -> Result<Value> {
    let (mean, std) = (g.constant_vector(&scale.mean)?, g.constant_vector(&scale.std)?);
    let centred = g.sub(x, mean)?;
    g.div(centred, std)
}

/// The sum over all elements of all levels, `f32[]`.
fn summed(b: &mut Builder, levels: &[Value]) -> Result<Value> {
    let sums = levels.iter().map(|&level| sum_all(&mut b.graph, level)).collect::<Result<Vec<_>>>()?;
    total(b, sums)
}

/// The sum over all elements of an image of all levels, `f32[B]`.
fn by_image(b: &mut Builder, levels: &[Value]) -> Result<Value> {
    let sums = levels.iter().map(|&level| {
        let axes: Vec<usize> = (1..b.graph.shape(level).rank()).collect();
        b.graph.sum(level, &axes)
    });
    let sums = sums.collect::<Result<Vec<_>>>()?;
    total(b, sums)
}

#[cfg(test)]
mod recipe_tests;
#[cfg(test)]
mod tests;
