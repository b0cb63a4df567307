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
    let Classified { logits, deltas } = heads::classify(b, maps, regions, options)?;
    let most = detection.detections;
    let (boxes, labels, kept) = b.scope("detect", |b| {
        let g = &mut b.graph;
        let classes = options.num_classes;
        let scores = g.softmax(logits)?;
        let scores = g.reshape(scores, [batch, rows, classes])?;
        let scores = g.slice(scores, &[0, 0, 1], &[batch, rows, classes], &[1; 3])?;
        let deltas = g.reshape(deltas, [batch, rows, classes, 4])?;
        let deltas = g.slice(deltas, &[0, 0, 1, 0], &[batch, rows, classes, 4], &[1; 4])?;
        let boxes = g.push1(options.flavour.decode_regions(), &[deltas, proposals.boxes, sizes])?;
        let [_, min_size] = options.flavour.least_sides();
        let rule = Suppress {
            groups: BoxGroups::Columns,
            score_floor: Some(Scalar(detection.score_floor)),
            min_size,
            ..Suppress::new(Suppression::Hard { iou: Scalar(detection.overlap) }, most)
        };
        let kept = g.push(rule, &[boxes, scores, proposals.count])?;
        let boxes = g.gather(boxes, kept[0], 1, 1)?;
        let boxes = g.gather(boxes, kept[1], 2, 2)?;
        let labels = g.add_scalar(kept[1], 1.0)?;
        Ok((zero_behind(g, boxes, kept[3])?, zero_behind(g, labels, kept[3])?, kept))
    })?;
    let masks = masks(b, maps, boxes, labels, options)?;
    let outputs = [("boxes", boxes), ("labels", labels), ("scores", kept[2]), ("count", kept[3]), ("masks", masks)];
    for (name, value) in outputs {
        b.graph.output(name, value);
    }
    Ok(())
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
