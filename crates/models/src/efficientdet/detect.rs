//! From logits and deltas to detections.

use super::config::{DetectionOptions, DetectorOptions, SuppressionKind};
use super::heads::Outputs;
use super::targets::box_code;
use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::detection::boxes::{BoxClip, DecodeBoxes};
use bessemer_ir::ops::detection::suppress::{BoxGroups, Suppress, Suppression};
use bessemer_ir::ops::pointwise::UnaryKind;
use bessemer_ir::{DType, Value};
use bessemer_nn::{Builder, Result};

/// Adds the outputs `boxes`, `scores`, `labels` and `count`.
pub(super) fn detections(
    b: &mut Builder,
    outputs: &Outputs,
    options: &DetectorOptions,
    detection: &DetectionOptions,
) -> Result<()> {
    b.scope("detect", |b| {
        let logits = joined(b, &outputs.classes, options.num_classes)?;
        let deltas = joined(b, &outputs.boxes, 4)?;
        let sizes = b.graph.find_input("sizes").expect("the network has the feed");
        let g = &mut b.graph;
        let pairs = options.num_anchors() * options.num_classes;
        let chosen = g.top_k(logits, detection.candidates.min(pairs), 2)?;
        let (best, numbers, labels) = (chosen[0], chosen[1], chosen[2]);
        let deltas = g.gather(deltas, numbers, 1, 1)?;
        let anchors = g.push1(options.anchors.on(options.canvas), &[])?;
        let anchors = g.gather(anchors, numbers, 0, 0)?;
        let clip = if detection.clip { BoxClip::Size } else { BoxClip::No };
        let operands = [deltas, anchors, sizes];
        let operands = if detection.clip { &operands[..] } else { &operands[..2] };
        let boxes = g.push1(DecodeBoxes { code: box_code(), max_growth: None, clip }, operands)?;
        let scores = g.unary(UnaryKind::Sigmoid, best)?;
        let (overlap, floor) = (Scalar(detection.overlap), Scalar(detection.score_floor));
        let rule = match detection.suppression {
            SuppressionKind::Hard => Suppress {
                score_floor: Some(floor),
                ..Suppress::new(Suppression::Hard { iou: overlap }, detection.detections)
            },
            // As in the recipe the best box of a class is kept whatever its score: the floor is that of scores that were lowered.
            SuppressionKind::Soft => Suppress {
                legacy: true,
                ..Suppress::new(Suppression::Gaussian { sigma: overlap, floor }, detection.detections)
            },
        };
        let rule = Suppress { groups: BoxGroups::Labels, ..rule };
        let kept = g.push(rule, &[boxes, scores, labels])?;
        let kept_boxes = g.gather(boxes, kept[0], 1, 1)?;
        for (name, value) in [("boxes", kept_boxes), ("labels", kept[1]), ("scores", kept[2]), ("count", kept[3])] {
            g.output(name, value);
        }
        Ok(())
    })
}

/// The outputs of all levels one after the other, `f32[B, A, width]`.
fn joined(b: &mut Builder, levels: &[Value], width: usize) -> Result<Value> {
    let g = &mut b.graph;
    let flat = levels.iter().map(|&level| {
        let level = g.cast(level, DType::F32)?;
        let (batch, elements) = (g.shape(level)[0], g.shape(level).elements());
        g.reshape(level, [batch, elements / batch / width, width])
    });
    let flat = flat.collect::<Result<Vec<_>>>()?;
    g.concat(&flat, 1)
}
