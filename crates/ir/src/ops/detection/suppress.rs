//! Non-maximum suppression, hard and soft (Bodla et al. 2017, arXiv:1704.04503).
//!
//! Candidates are the valid boxes of a score above the floor, of sides of at least the minimum. One by one the best is kept:
//!
//! - [`Suppression::Hard`]: candidates in falling order of their scores, equal ones by position. One is dropped if its IoU with a
//!   kept box of its group is **above** the threshold.
//! - [`Suppression::Gaussian`]: the candidate of the best present score, equal ones by group, then position. The scores of the
//!   remaining ones of its group are multiplied by `exp(-IoU^2 / sigma)`, and those below the floor are dropped.
//!
//! Scores only fall, so that one pass over all groups gives what a pass for each group and a merge give.

use super::super::{Cost, GradArgs, Gradient, MixedPrecision, OpError, OpRule, Scalar};
use super::{COORDINATES, STAYS_F32, check_operand, count, iou};
use crate::dtype::DType;
use crate::graph::{Graph, GraphError};
use crate::reference::Tensor;
use crate::rules::Rules;
use crate::shape::TensorType;

/// How a kept box acts on the others of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suppression {
    /// Drops those of an IoU above `iou`.
    Hard {
        /// The largest IoU of two kept boxes of a group.
        iou: Scalar,
    },
    /// Multiplies scores by `exp(-IoU^2 / sigma)` and drops those below `floor`.
    Gaussian {
        /// What the square of the IoU is divided by.
        sigma: Scalar,
        /// Boxes whose score falls below it are dropped.
        floor: Scalar,
    },
}

/// Boxes that act on each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BoxGroups {
    /// All boxes of an image: group 0.
    One,
    /// Consecutive rows: where each group ends, ascending, the last one at `N`.
    Ranges(Vec<usize>),
    /// Those of one label, which is the group.
    Labels,
    /// Those of one column of `[B, N, K, 4]`, whose number is the group.
    Columns,
}

/// Keeps the best boxes of each image. Inputs: boxes `f32[B, N, 4]` (`f32[B, N, K, 4]` for [`BoxGroups::Columns`]), scores
/// `f32[B, N]` (`f32[B, N, K]`), labels `i32[B, N]` for [`BoxGroups::Labels`], and, if not all rows are valid, their number
/// `i32[B]`. Outputs, in the order in which boxes are kept: their rows `i32[B, M]`, groups `i32[B, M]`, scores `f32[B, M]`, with
/// zeros behind the last one, and their number `i32[B]`. A number of valid rows outside `0..=N` is an error when it runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Suppress {
    /// How a kept box acts on others.
    pub suppression: Suppression,
    /// `M`
    pub max_outputs: usize,
    /// Which boxes act on each other.
    pub groups: BoxGroups,
    /// Whether sides are `x2 - x1 + 1`.
    pub legacy: bool,
    /// Candidates have scores above it; NaN and minus infinity never are candidates.
    pub score_floor: Option<Scalar>,
    /// Width `x2 - x1` and height of candidates are at least so large, in pixels.
    pub min_size: Option<Scalar>,
}

impl Suppress {
    /// With one group and all boxes as candidates.
    pub fn new(suppression: Suppression, max_outputs: usize) -> Suppress {
        Suppress { suppression, max_outputs, groups: BoxGroups::One, legacy: false, score_floor: None, min_size: None }
    }

    /// Boxes of a row: `K`, or 1.
    pub fn columns(&self, boxes: &TensorType) -> usize {
        if self.groups == BoxGroups::Columns { boxes.shape[2] } else { 1 }
    }

    /// The input that holds the number of valid rows, if there is one among the given number of inputs.
    pub fn count_input(&self, inputs: usize) -> Option<usize> {
        let own = self.own_inputs();
        (inputs > own).then_some(own)
    }

    /// What is added to `x2 - x1`.
    pub fn extra(&self) -> f64 {
        f64::from(u8::from(self.legacy))
    }

    fn own_inputs(&self) -> usize {
        if self.groups == BoxGroups::Labels { 3 } else { 2 }
    }

    fn check(&self) -> Result<(), OpError> {
        let attribute = |problem: String| Err(OpError::Attribute(problem));
        match self.suppression {
            Suppression::Hard { iou } if !(0.0..=1.0).contains(&iou.0) => {
                attribute(format!("the IoU must be in 0..=1, not {}", iou.0))
            }
            Suppression::Gaussian { sigma, .. } if sigma.0.is_nan() || sigma.0 <= 0.0 => {
                attribute(format!("sigma must be positive, not {}", sigma.0))
            }
            Suppression::Gaussian { floor, .. } if floor.0.is_nan() || floor.0 < 0.0 => {
                attribute(format!("the floor must not be negative, it is {}", floor.0))
            }
            _ if self.max_outputs == 0 => attribute("max_outputs must be at least 1".to_string()),
            _ => Ok(()),
        }
    }

    /// Picks of one image: position among all boxes, and score.
    fn image(&self, boxes: &[[f64; COORDINATES]], scores: &[f64], groups: &[i32]) -> Vec<(usize, f64)> {
        let side = |b: &[f64; COORDINATES]| (b[2] - b[0]).min(b[3] - b[1]);
        let floor = self.score_floor.map_or(f64::NEG_INFINITY, |floor| floor.0);
        let is_candidate =
            |&i: &usize| scores[i] > floor && self.min_size.is_none_or(|least| side(&boxes[i]) >= least.0);
        let mut left: Vec<(usize, f64)> = (0..scores.len()).filter(is_candidate).map(|i| (i, scores[i])).collect();
        let by_group = matches!(self.suppression, Suppression::Gaussian { .. });
        let mut kept = Vec::new();
        while !left.is_empty() && kept.len() < self.max_outputs {
            let comes_first = |a: &(usize, f64), b: &(usize, f64)| {
                let group = |i: usize| if by_group { groups[i] } else { 0 };
                b.1.total_cmp(&a.1).then(group(a.0).cmp(&group(b.0))).then(a.0.cmp(&b.0))
            };
            // Zeros of both signs are equal.
            let best = left.iter().copied().map(|(i, score)| (i, score + 0.0)).min_by(comes_first).expect("not empty");
            kept.push(best);
            left.retain_mut(|(i, score)| {
                if *i == best.0 || groups[*i] != groups[best.0] {
                    return *i != best.0;
                }
                let iou = iou(boxes[*i], boxes[best.0], self.extra(), 0.0);
                match self.suppression {
                    Suppression::Hard { iou: most } => iou <= most.0,
                    Suppression::Gaussian { sigma, floor } => {
                        *score *= (-iou * iou / sigma.0).exp();
                        *score >= floor.0
                    }
                }
            });
        }
        kept
    }
}

impl OpRule for Suppress {
    fn name(&self) -> &'static str {
        "suppress"
    }

    fn attributes(&self) -> String {
        let suppression = match self.suppression {
            Suppression::Hard { iou } => format!("iou={}", iou.0),
            Suppression::Gaussian { sigma, floor } => format!("sigma={}, floor={}", sigma.0, floor.0),
        };
        let groups = match &self.groups {
            BoxGroups::One => String::new(),
            BoxGroups::Ranges(ends) => format!(", ranges={ends:?}"),
            BoxGroups::Labels => ", by labels".to_string(),
            BoxGroups::Columns => ", by columns".to_string(),
        };
        let legacy = if self.legacy { ", legacy" } else { "" };
        let floor = self.score_floor.map_or(String::new(), |floor| format!(", score_floor={}", floor.0));
        let size = self.min_size.map_or(String::new(), |size| format!(", min_size={}", size.0));
        format!("{suppression}, max_outputs={}{groups}{legacy}{floor}{size}", self.max_outputs)
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        self.check()?;
        let own = self.own_inputs();
        if inputs.len() != own && inputs.len() != own + 1 {
            let labels = if own == 3 { ", labels" } else { "" };
            return Err(OpError::operands(format!("boxes, scores{labels}, and the number of rows if it varies")));
        }
        let (boxes, scores) = (inputs[0], inputs[1]);
        let sizes = [None, None, None, Some(COORDINATES)];
        match self.groups {
            BoxGroups::Columns => check_operand("boxes", boxes, DType::F32, "[B, N, K, 4]", &sizes)?,
            _ => check_operand("boxes", boxes, DType::F32, "[B, N, 4]", &sizes[1..])?,
        }
        let [batch, n] = [boxes.shape[0], boxes.shape[1]];
        let leading: Vec<Option<usize>> = boxes.shape[..boxes.shape.rank() - 1].iter().map(|&d| Some(d)).collect();
        check_operand("scores", scores, DType::F32, "one for each box", &leading)?;
        if own == 3 {
            check_operand("labels", inputs[2], DType::I32, "[B, N]", &[Some(batch), Some(n)])?;
        }
        if let Some(input) = self.count_input(inputs.len()) {
            check_operand("number of rows", inputs[input], DType::I32, "[B]", &[Some(batch)])?;
        }
        if let BoxGroups::Ranges(ends) = &self.groups
            && !(ends.is_sorted() && ends.last() == Some(&n))
        {
            return Err(OpError::Attribute(format!("the ranges {ends:?} must be ascending and end at {n}")));
        }
        if scores.shape.elements() > i32::MAX as usize {
            return Err(OpError::Sizes("there are more boxes than positions of 32 bits".to_string()));
        }
        let kept = [batch, self.max_outputs];
        let integers = TensorType::new(DType::I32, kept);
        Ok(vec![integers.clone(), integers, TensorType::f32(kept), TensorType::new(DType::I32, [batch])])
    }

    fn gradient(&self, _graph: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        Ok(Gradient::Inputs(vec![None; args.inputs.len()]))
    }

    /// One comparison for each box: how many IoUs there are depends on the boxes.
    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(inputs[1].shape.elements() as u64, inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let (boxes, scores) = (inputs[0], inputs[1]);
        let [batch, n] = [boxes.ty.shape[0], boxes.ty.shape[1]];
        let columns = self.columns(&boxes.ty);
        let mut results: Vec<Tensor> = outputs.iter().map(|ty| Tensor::zeros(ty.clone())).collect();
        for b in 0..batch {
            let valid = self.count_input(inputs.len()).map_or(n, |input| count(inputs[input].data[b], n)) * columns;
            let first = b * n * columns;
            let group = |i: usize| match &self.groups {
                BoxGroups::One => 0,
                BoxGroups::Ranges(ends) => ends.iter().filter(|&&end| end <= i).count() as i32,
                BoxGroups::Labels => inputs[2].data[first + i] as i32,
                BoxGroups::Columns => (i % columns) as i32,
            };
            let groups: Vec<i32> = (0..valid).map(group).collect();
            let own: Vec<[f64; COORDINATES]> = boxes.data[first * COORDINATES..]
                .chunks(COORDINATES)
                .take(valid)
                .map(|b| [b[0], b[1], b[2], b[3]])
                .collect();
            let kept = self.image(&own, &scores.data[first..first + valid], &groups);
            results[3].data[b] = kept.len() as f64;
            for (m, (i, score)) in kept.into_iter().enumerate() {
                let at = b * self.max_outputs + m;
                results[0].data[at] = (i / columns) as f64;
                results[1].data[at] = f64::from(groups[i]);
                results[2].data[at] = score;
            }
        }
        results
    }

    fn mixed_precision(&self, _rules: &Rules) -> MixedPrecision {
        STAYS_F32
    }
}
