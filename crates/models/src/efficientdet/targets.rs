//! What the outputs of the network should be, and how far they are from it.

use super::config::{DetectorOptions, LEVELS, LossOptions, grid};
use super::heads::Outputs;
use crate::detector::Objects;
use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::detection::boxes::{AxisOrder, BoxCode, EncodeBoxes};
use bessemer_ir::ops::detection::matching::{ForcedMatch, MatchBoxes};
use bessemer_ir::ops::index::OneHot;
use bessemer_ir::ops::pointwise::BinaryKind;
use bessemer_ir::{DType, Value};
use bessemer_nn::loss::{SigmoidFocal, huber_of_targets};
use bessemer_nn::{Builder, Result};

/// IoU from which a box has to find an object; the nearest box of an object has to in any case.
const MATCH_IOU: f64 = 0.5;
/// Added to sides before they are divided.
const SIDE_EPS: f64 = 1e-8;

/// The code of boxes in the outputs of the network: centre y and x, height and width.
pub(super) fn box_code() -> BoxCode {
    BoxCode { eps: Scalar(SIDE_EPS), ..BoxCode::plain(AxisOrder::Yx) }
}

/// Targets of all reference boxes.
pub(super) struct Matched {
    /// For each level `i32[B, H, W, anchors]`: a class, or -1.
    classes: Vec<Value>,
    /// For each level `f32[B, H, W, anchors * 4]`, zeros where there is no object.
    boxes: Vec<Value>,
    /// Boxes with an object, `i32[B]`.
    pub positives: Value,
}

impl Matched {
    /// Matches the reference boxes with the objects.
    pub(super) fn new(b: &mut Builder, objects: &Objects, options: &DetectorOptions) -> Result<Self> {
        let g = &mut b.graph;
        let anchors = g.push1(options.anchors.on(options.canvas), &[])?;
        let rule = MatchBoxes {
            low: Scalar(MATCH_IOU),
            high: Scalar(MATCH_IOU),
            high_inclusive: true,
            forced: ForcedMatch::BestOnce,
            union_eps: Scalar(0.0),
        };
        let outputs = g.push(rule, &[anchors, objects.boxes, objects.count])?;
        let (matches, positives) = (outputs[0], outputs[1]);
        let codes = g.push1(EncodeBoxes { code: box_code() }, &[anchors, objects.boxes, matches])?;
        let zero = g.constant_like(matches, 0.0)?;
        let has_object = g.binary(BinaryKind::Ge, matches, zero)?;
        let number = g.binary(BinaryKind::Max, matches, zero)?;
        let classes = g.gather(objects.classes, number, 1, 1)?;
        let none = g.constant_like(classes, -1.0)?;
        let classes = g.select(has_object, classes, none)?;
        let (batch, each) = (g.shape(matches)[0], options.anchors.count());
        let mut matched = Matched { classes: Vec::new(), boxes: Vec::new(), positives };
        let mut start = 0;
        for level in 0..LEVELS {
            let [rows, columns] = grid(options.canvas, level);
            let stop = start + rows * columns * each;
            let of_level = g.slice(classes, &[0, start], &[batch, stop], &[1, 1])?;
            matched.classes.push(g.reshape(of_level, [batch, rows, columns, each])?);
            let of_level = g.slice(codes, &[0, start, 0], &[batch, stop, 4], &[1, 1, 1])?;
            matched.boxes.push(g.reshape(of_level, [batch, rows, columns, each * 4])?);
            start = stop;
        }
        Ok(matched)
    }
}

/// The focal loss of each logit, for each level `f32[B, H, W, anchors, K]`.
pub(super) fn class_losses(
    b: &mut Builder,
    outputs: &Outputs,
    matched: &Matched,
    loss: &LossOptions,
    options: &DetectorOptions,
) -> Result<Vec<Value>> {
    let focal = SigmoidFocal { alpha: loss.alpha, gamma: loss.gamma };
    let level = |(&logits, &classes): (&Value, &Value)| {
        let g = &mut b.graph;
        let logits = g.cast(logits, DType::F32)?;
        let targets = g.push1(OneHot { depth: options.num_classes }, &[classes])?;
        let logits = g.reshape(logits, g.shape(targets).clone())?;
        focal.elements(g, logits, targets)
    };
    outputs.classes.iter().zip(&matched.classes).map(level).collect()
}

/// The Huber loss of each coordinate, for each level `f32[B, H, W, anchors * 4]`.
pub(super) fn box_losses(
    b: &mut Builder,
    outputs: &Outputs,
    matched: &Matched,
    loss: &LossOptions,
) -> Result<Vec<Value>> {
    let level = |(&deltas, &targets): (&Value, &Value)| {
        let deltas = b.graph.cast(deltas, DType::F32)?;
        huber_of_targets(&mut b.graph, deltas, targets, loss.delta)
    };
    outputs.boxes.iter().zip(&matched.boxes).map(level).collect()
}
