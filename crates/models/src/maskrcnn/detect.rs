//! From proposals to detections with masks.

use super::config::{DetectionOptions, MASK_SIZE, MaskRcnnOptions};
use super::heads::{self, Boxes, Classified};
use super::regions::{flat, images_of, zero_behind};
use super::rpn::Proposals;
use bessemer_ir::Value;
use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::detection::sample::PackRows;
use bessemer_ir::ops::detection::suppress::{BoxGroups, Suppress, Suppression};
use bessemer_ir::ops::index::{Gather, ScatterAdd};
use bessemer_ir::ops::pointwise::UnaryKind;
use bessemer_nn::{Builder, Result};

/// Adds the outputs `boxes`, `labels`, `scores`, `count` and `masks`.
pub(super) fn detections(
    b: &mut Builder,
    maps: &[Value],
    proposals: &Proposals,
    sizes: Value,
    options: &MaskRcnnOptions,
    detection: &DetectionOptions,
) -> Result<()> {
    let [batch, rows] = [b.graph.shape(proposals.boxes)[0], b.graph.shape(proposals.boxes)[1]];
    let regions = Boxes { boxes: flat(&mut b.graph, proposals.boxes)?, image: images_of(&mut b.graph, batch, rows)? };
    let classified = heads::classify(b, maps, regions, options)?;
    let Chosen { boxes, labels, scores, count } =
        b.scope("detect", |b| choose(b, classified, proposals, sizes, options, detection))?;
    let masks = masks(b, maps, boxes, labels, options)?;
    let outputs = [("boxes", boxes), ("labels", labels), ("scores", scores), ("count", count), ("masks", masks)];
    for (name, value) in outputs {
        b.graph.output(name, value);
    }
    Ok(())
}

/// Detections without masks, zeros behind the last one.
pub(super) struct Chosen {
    /// `f32[B, D, 4]`
    pub boxes: Value,
    /// `i32[B, D]`
    pub labels: Value,
    /// `f32[B, D]`
    pub scores: Value,
    /// `i32[B]`
    pub count: Value,
}

/// The best boxes of all proposals and classes that do not overlap too much.
pub(super) fn choose(
    b: &mut Builder,
    classified: Classified,
    proposals: &Proposals,
    sizes: Value,
    options: &MaskRcnnOptions,
    detection: &DetectionOptions,
) -> Result<Chosen> {
    let g = &mut b.graph;
    let [batch, rows] = [g.shape(proposals.boxes)[0], g.shape(proposals.boxes)[1]];
    let classes = options.num_classes;
    let scores = g.softmax(classified.logits)?;
    let scores = g.reshape(scores, [batch, rows, classes])?;
    let scores = g.slice(scores, &[0, 0, 1], &[batch, rows, classes], &[1; 3])?;
    let deltas = g.reshape(classified.deltas, [batch, rows, classes, 4])?;
    let deltas = g.slice(deltas, &[0, 0, 1, 0], &[batch, rows, classes, 4], &[1; 4])?;
    let boxes = g.push1(options.flavour.decode_regions(), &[deltas, proposals.boxes, sizes])?;
    let [_, min_size] = options.flavour.least_sides();
    let rule = Suppress {
        groups: BoxGroups::Columns,
        score_floor: Some(Scalar(detection.score_floor)),
        min_size,
        ..Suppress::new(Suppression::Hard { iou: Scalar(detection.overlap) }, detection.detections)
    };
    let kept = g.push(rule, &[boxes, scores, proposals.count])?;
    let (scores, count) = (kept[2], kept[3]);
    let boxes = g.gather(boxes, kept[0], 1, 1)?;
    let boxes = g.gather(boxes, kept[1], 2, 2)?;
    let labels = g.add_scalar(kept[1], 1.0)?;
    Ok(Chosen { boxes: zero_behind(g, boxes, count)?, labels: zero_behind(g, labels, count)?, scores, count })
}

/// Probabilities of the pixels of each detection, `f32[B, D, M, M]`, zeros for rows without one, whose label is 0.
fn masks(b: &mut Builder, maps: &[Value], boxes: Value, labels: Value, options: &MaskRcnnOptions) -> Result<Value> {
    let [batch, most] = [b.graph.shape(labels)[0], b.graph.shape(labels)[1]];
    let g = &mut b.graph;
    let packed = g.push(PackRows { capacity: batch * most }, &[labels])?;
    let (image, row, count) = (packed[0], packed[1], packed[2]);
    let [boxes, labels] = [flat(g, boxes)?, flat(g, labels)?];
    let [boxes, labels] = [g.push1(Gather::ROWS, &[boxes, row])?, g.push1(Gather::ROWS, &[labels, row])?];
    let logits = heads::masks(b, maps, Boxes { boxes, image }, count, options)?;
    let logits = heads::of_class(b, logits, labels)?;
    b.scope("detect", |b| {
        let g = &mut b.graph;
        let probabilities = g.unary(UnaryKind::Sigmoid, logits)?;
        let probabilities = zero_behind(g, probabilities, count)?;
        let masks = g.push1(ScatterAdd::to_rows(batch * most), &[probabilities, row])?;
        g.reshape(masks, [batch, most, MASK_SIZE, MASK_SIZE])
    })
}
