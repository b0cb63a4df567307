//! Which ground truth each reference box is to predict.
//!
//! A box is matched with the valid ground truth of the largest IoU, the first one of equals. Areas are `(x2 - x1) * (y2 - y1)`,
//! and boxes that do not overlap have IoU 0. Boxes may be matched by force, so that no ground truth is left without:
//!
//! - [`ForcedMatch::BestOnce`]: each ground truth takes the box of its largest IoU, the first one of equals, even if that is 0;
//!   where several want one box, the first ground truth has it. This is the matcher of TensorFlow's object detection library.
//! - [`ForcedMatch::AllTies`]: each box whose IoU with a ground truth is that ground truth's largest, unless that is 0, keeps
//!   its own best ground truth. This is the matcher of torchvision, where, however, an IoU of 0 counts as well.

use super::super::{Cost, GradArgs, Gradient, MixedPrecision, OpError, OpRule, Scalar};
use super::{COORDINATES, STAYS_F32, box_at, check_operand, check_reference, count, iou, rows};
use crate::dtype::DType;
use crate::graph::{Graph, GraphError};
use crate::reference::Tensor;
use crate::rules::Rules;
use crate::shape::TensorType;

/// Boxes that are matched though their IoU is not high enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ForcedMatch {
    /// None.
    No,
    /// The best box of each ground truth.
    BestOnce,
    /// All boxes that tie for the best of a ground truth.
    AllTies,
}

/// Entry of a match: no ground truth.
pub const NEGATIVE: i32 = -1;
/// Entry of a match: neither a ground truth nor background.
pub const IGNORED: i32 = -2;

/// Matches boxes with ground truths. Inputs: boxes `f32[N, 4]` or `f32[B, N, 4]`, ground truths `f32[B, G, 4]`, the number of
/// valid ones of each image `i32[B]`. Outputs: match `i32[B, N]`, the number of a ground truth, [`NEGATIVE`] or [`IGNORED`]; the
/// number of matched boxes of each image, `i32[B]`.
///
/// Matched are boxes of an IoU above `high`, negative those below `low` and all where there is no ground truth, ignored the
/// others and those without area. A count outside `0..=G` is an error when it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatchBoxes {
    /// IoU below which a box is negative.
    pub low: Scalar,
    /// IoU above which a box is matched.
    pub high: Scalar,
    /// Whether an IoU equal to `high` matches.
    pub high_inclusive: bool,
    /// Which boxes are matched although their IoU is too low.
    pub forced: ForcedMatch,
    /// Added to the union.
    pub union_eps: Scalar,
}

impl MatchBoxes {
    /// The match of one image.
    fn image(&self, boxes: &[[f64; COORDINATES]], truths: &[[f64; COORDINATES]]) -> Vec<i32> {
        let has_area = |b: &[f64; COORDINATES]| b[2] > b[0] && b[3] > b[1];
        let overlap = |b: &[f64; COORDINATES], t: &[f64; COORDINATES]| iou(*b, *t, 0.0, self.union_eps.0);
        let best: Vec<(usize, f64)> = boxes
            .iter()
            .map(|b| {
                let larger = |best: (usize, f64), (g, t)| {
                    let iou = overlap(b, t);
                    if iou > best.1 { (g, iou) } else { best }
                };
                truths.iter().enumerate().fold((0, 0.0), larger)
            })
            .collect();
        let by_threshold = |(b, &(g, iou)): (&[f64; COORDINATES], &(usize, f64))| {
            let is_high = iou > self.high.0 || (self.high_inclusive && iou == self.high.0);
            match (has_area(b), truths.is_empty()) {
                (false, _) => IGNORED,
                (_, true) => NEGATIVE,
                _ if is_high => g as i32,
                _ if iou < self.low.0 => NEGATIVE,
                _ => IGNORED,
            }
        };
        let mut matches: Vec<i32> = boxes.iter().zip(&best).map(by_threshold).collect();
        let eligible = || (0..boxes.len()).filter(|&n| has_area(&boxes[n]));
        for (g, truth) in truths.iter().enumerate().rev() {
            let largest = eligible().map(|n| overlap(&boxes[n], truth)).fold(0.0, f64::max);
            let mut ties = eligible().filter(|&n| overlap(&boxes[n], truth) == largest);
            match self.forced {
                ForcedMatch::No => {}
                ForcedMatch::BestOnce => ties.next().into_iter().for_each(|n| matches[n] = g as i32),
                ForcedMatch::AllTies if largest > 0.0 => ties.for_each(|n| matches[n] = best[n].0 as i32),
                ForcedMatch::AllTies => {}
            }
        }
        matches
    }
}

impl OpRule for MatchBoxes {
    fn name(&self) -> &'static str {
        "match_boxes"
    }

    fn attributes(&self) -> String {
        let inclusive = if self.high_inclusive { ", high_inclusive" } else { "" };
        let forced = match self.forced {
            ForcedMatch::No => "",
            ForcedMatch::BestOnce => ", forced=best_once",
            ForcedMatch::AllTies => ", forced=all_ties",
        };
        let eps = if self.union_eps.0 == 0.0 { String::new() } else { format!(", union_eps={:e}", self.union_eps.0) };
        format!("low={}, high={}{inclusive}{forced}{eps}", self.low.0, self.high.0)
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [boxes, gt, gt_count] = inputs else {
            return Err(OpError::operands("boxes, ground truths and their number"));
        };
        let (low, high) = (self.low.0, self.high.0);
        if !(0.0 <= low && low <= high && high <= 1.0) {
            return Err(OpError::Attribute(format!(
                "the thresholds must be 0 <= low <= high <= 1, not {low} and {high}"
            )));
        }
        check_operand("ground truths", gt, DType::F32, "[B, G, 4]", &[None, None, Some(COORDINATES)])?;
        let batch = gt.shape[0];
        check_operand("number of ground truths", gt_count, DType::I32, "[B]", &[Some(batch)])?;
        check_reference(boxes, batch, None)?;
        let match_shape = [batch, rows(&boxes.shape)];
        Ok(vec![TensorType::new(DType::I32, match_shape), TensorType::new(DType::I32, [batch])])
    }

    fn gradient(&self, _graph: &mut Graph, _args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        Ok(Gradient::Inputs(vec![None; 3]))
    }

    /// Of as many ground truths as there may be.
    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        let pairs = outputs[0].shape.elements() * inputs[1].shape[1];
        Cost::streaming(12 * pairs as u64, inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let (boxes, gt, gt_count) = (inputs[0], inputs[1], inputs[2]);
        let [batch, n] = [outputs[0].shape[0], outputs[0].shape[1]];
        let image = |b: usize| {
            let valid = count(gt_count.data[b], gt.ty.shape[1]);
            let boxes: Vec<_> = (0..n).map(|n| box_at(boxes, b, n)).collect();
            let truths: Vec<_> = (0..valid).map(|g| box_at(gt, b, g)).collect();
            self.image(&boxes, &truths)
        };
        let matches: Vec<Vec<i32>> = (0..batch).map(image).collect();
        let positives = matches.iter().map(|image| image.iter().filter(|&&m| m >= 0).count() as f64).collect();
        let matches = matches.into_iter().flatten().map(f64::from).collect();
        vec![Tensor::new(outputs[0].clone(), matches), Tensor::new(outputs[1].clone(), positives)]
    }

    fn mixed_precision(&self, _rules: &Rules) -> MixedPrecision {
        STAYS_F32
    }
}
