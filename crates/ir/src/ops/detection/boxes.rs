//! Boxes written as offsets from reference boxes (Girshick et al. 2013, arXiv:1311.2524, appendix C).
//!
//! With centre `c = (x1 + x2) / 2` and side `w = x2 - x1` of a box, and `c'`, `w'` of its reference box, the code of an axis is
//! `weight * (c - c') / w'` and `weight * ln(w / w')`. The `legacy` form counts pixels: `w = x2 - x1 + 1`, `c = x1 + w / 2`, and
//! decoding gives `x2 = c + w / 2 - 1`.

use super::super::{Cost, GradArgs, Gradient, MixedPrecision, OpError, OpRule, Scalar};
use super::{COORDINATES, STAYS_F32, box_at, check_operand, check_reference, rows};
use crate::dtype::DType;
use crate::graph::{Graph, GraphError};
use crate::reference::Tensor;
use crate::rules::Rules;
use crate::shape::TensorType;

/// Order of the axes in a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AxisOrder {
    /// Centre x, centre y, width, height.
    Xy,
    /// Centre y, centre x, height, width.
    Yx,
}

/// A code of boxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BoxCode {
    /// Order of the axes.
    pub order: AxisOrder,
    /// Of the centre's x and y, width and height, whatever the order.
    pub weights: [Scalar; 4],
    /// Whether sides are `x2 - x1 + 1`.
    pub legacy: bool,
    /// Added to the sides of both boxes before they are encoded.
    pub eps: Scalar,
}

impl BoxCode {
    /// Weights of 1, without legacy sides or epsilon.
    pub fn plain(order: AxisOrder) -> BoxCode {
        BoxCode { order, weights: [Scalar(1.0); 4], legacy: false, eps: Scalar(0.0) }
    }

    /// Channel of the code that holds the centre along an axis, 0 for x; the side is two channels behind it.
    pub fn channel(&self, axis: usize) -> usize {
        match self.order {
            AxisOrder::Xy => axis,
            AxisOrder::Yx => 1 - axis,
        }
    }

    /// What is added to `x2 - x1`.
    pub fn extra(&self) -> f64 {
        f64::from(u8::from(self.legacy))
    }

    /// Centre and side of `low..high`.
    fn centre_and_side(&self, low: f64, high: f64) -> (f64, f64) {
        let side = high - low + self.extra();
        (low + side / 2.0, side)
    }

    fn encode(&self, reference: [f64; 4], target: [f64; 4]) -> [f64; 4] {
        let mut code = [0.0; 4];
        for axis in 0..2 {
            let (from, from_side) = self.centre_and_side(reference[axis], reference[axis + 2]);
            let (to, to_side) = self.centre_and_side(target[axis], target[axis + 2]);
            let (from_side, to_side) = (from_side + self.eps.0, to_side + self.eps.0);
            let channel = self.channel(axis);
            code[channel] = self.weights[axis].0 * (to - from) / from_side;
            code[channel + 2] = self.weights[axis + 2].0 * (to_side / from_side).ln();
        }
        code
    }

    fn decode(&self, reference: [f64; 4], code: &[f64], most: Option<Scalar>) -> [f64; 4] {
        let mut decoded = [0.0; 4];
        for axis in 0..2 {
            let (from, from_side) = self.centre_and_side(reference[axis], reference[axis + 2]);
            let channel = self.channel(axis);
            let growth = code[channel + 2] / self.weights[axis + 2].0;
            let growth = most.map_or(growth, |most| growth.min(most.0));
            let (centre, half) =
                (code[channel] / self.weights[axis].0 * from_side + from, growth.exp() * from_side / 2.0);
            decoded[axis] = centre - half;
            decoded[axis + 2] = centre + half - self.extra();
        }
        decoded
    }

    fn describe(&self) -> String {
        let order = match self.order {
            AxisOrder::Xy => "xy",
            AxisOrder::Yx => "yx",
        };
        let [x, y, w, h] = self.weights.map(|weight| weight.0);
        let legacy = if self.legacy { ", legacy" } else { "" };
        format!("order={order}, weights=[{x}, {y}, {w}, {h}]{legacy}")
    }

    fn check(&self) -> Result<(), OpError> {
        match self.weights.iter().all(|weight| weight.0.is_finite() && weight.0 > 0.0) {
            true => Ok(()),
            false => Err(OpError::Attribute("the weights of a box code must be positive".to_string())),
        }
    }
}

/// Codes of the ground truths that reference boxes are matched with. Inputs: reference boxes `f32[N, 4]` or `f32[B, N, 4]`,
/// ground truths `f32[B, G, 4]`, match `i32[B, N]` as [`MatchBoxes`](super::matching::MatchBoxes) gives it; output
/// `f32[B, N, 4]`, zeros where the match is negative. A match beyond the last ground truth is an error when it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EncodeBoxes {
    /// How boxes are coded.
    pub code: BoxCode,
}

impl OpRule for EncodeBoxes {
    fn name(&self) -> &'static str {
        "encode_boxes"
    }

    fn attributes(&self) -> String {
        match self.code.eps.0 {
            0.0 => self.code.describe(),
            eps => format!("{}, eps={eps:e}", self.code.describe()),
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [reference, gt, matches] = inputs else {
            return Err(OpError::operands("reference boxes, ground truths and a match"));
        };
        self.code.check()?;
        check_operand("ground truths", gt, DType::F32, "[B, G, 4]", &[None, None, Some(COORDINATES)])?;
        let batch = gt.shape[0];
        check_operand("match", matches, DType::I32, "[B, N]", &[Some(batch), None])?;
        check_reference(reference, batch, Some(matches.shape[1]))?;
        Ok(vec![TensorType::f32([batch, matches.shape[1], COORDINATES])])
    }

    fn gradient(&self, _graph: &mut Graph, _args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        Ok(Gradient::Inputs(vec![None; 3]))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(5 * outputs[0].shape.elements() as u64, inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let (reference, gt, matches) = (inputs[0], inputs[1], inputs[2]);
        let (boxes, truths) = (outputs[0].shape[1], gt.ty.shape[1]);
        let encode = |(row, &number): (usize, &f64)| {
            assert!(number < truths as f64, "match {number} is beyond the {truths} ground truths");
            match number >= 0.0 {
                true => {
                    let (b, n) = (row / boxes, row % boxes);
                    self.code.encode(box_at(reference, b, n), box_at(gt, b, number as usize))
                }
                false => [0.0; 4],
            }
        };
        vec![Tensor::new(outputs[0].clone(), matches.data.iter().enumerate().flat_map(encode).collect())]
    }

    fn mixed_precision(&self, _rules: &Rules) -> MixedPrecision {
        STAYS_F32
    }
}

/// To what decoded boxes are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BoxClip {
    /// Boxes stay as they are decoded.
    No,
    /// `[0, width]` and `[0, height]` of the image.
    Size,
    /// `[0, width - 1]` and `[0, height - 1]` of the image.
    SizeMinusOne,
}

/// Boxes of codes. Inputs: codes `f32[B, N, 4]` or `f32[B, N, K, 4]`, reference boxes `f32[N, 4]` or `f32[B, N, 4]`, and, if boxes
/// are clipped, height and width of each image in pixels, `f32[B, 2]`; output: boxes of the shape of the codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DecodeBoxes {
    /// How boxes are coded.
    pub code: BoxCode,
    /// Largest logarithm by which a side grows; `ln(1000 / 16)` in the R-CNN family.
    pub max_growth: Option<Scalar>,
    /// Where boxes are cut off.
    pub clip: BoxClip,
}

impl DecodeBoxes {
    /// What is taken from the size of an image to get the largest coordinate.
    pub fn clip_margin(&self) -> f64 {
        f64::from(u8::from(self.clip == BoxClip::SizeMinusOne))
    }
}

impl OpRule for DecodeBoxes {
    fn name(&self) -> &'static str {
        "decode_boxes"
    }

    fn attributes(&self) -> String {
        let clip = match self.clip {
            BoxClip::No => "",
            BoxClip::Size => ", clip=size",
            BoxClip::SizeMinusOne => ", clip=size-1",
        };
        let most = self.max_growth.map_or(String::new(), |most| format!(", max_growth={}", most.0));
        format!("{}{most}{clip}", self.code.describe())
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        self.code.check()?;
        let (codes, reference) = match (self.clip, inputs) {
            (BoxClip::No, [codes, reference]) => (codes, reference),
            (BoxClip::Size | BoxClip::SizeMinusOne, [codes, reference, sizes]) => {
                let batch = codes.shape.first().copied();
                check_operand("image sizes", sizes, DType::F32, "[B, 2]", &[batch, Some(2)])?;
                (codes, reference)
            }
            (BoxClip::No, _) => return Err(OpError::operands("codes and reference boxes")),
            _ => return Err(OpError::operands("codes, reference boxes and image sizes")),
        };
        let sizes = [None, None, None, Some(COORDINATES)];
        let sizes = if codes.shape.rank() == 4 { &sizes[..] } else { &sizes[1..] };
        check_operand("codes", codes, DType::F32, "[B, N, 4] or [B, N, K, 4]", sizes)?;
        check_reference(reference, codes.shape[0], Some(codes.shape[1]))?;
        Ok(vec![(*codes).clone()])
    }

    fn gradient(&self, _graph: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        Ok(Gradient::Inputs(vec![None; args.inputs.len()]))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(5 * outputs[0].shape.elements() as u64, inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let (codes, reference) = (inputs[0], inputs[1]);
        let boxes = rows(&reference.ty.shape);
        let columns = if codes.ty.shape.rank() == 4 { codes.ty.shape[2] } else { 1 };
        let decode = |(row, code): (usize, &[f64])| {
            let (b, n) = (row / columns / boxes, row / columns % boxes);
            let mut decoded = self.code.decode(box_at(reference, b, n), code, self.max_growth);
            if self.clip != BoxClip::No {
                for (i, coordinate) in decoded.iter_mut().enumerate() {
                    let most = inputs[2].data[2 * b + (1 - i % 2)] - self.clip_margin();
                    *coordinate = coordinate.max(0.0).min(most);
                }
            }
            decoded
        };
        let data = codes.data.chunks(COORDINATES).enumerate().flat_map(decode).collect();
        vec![Tensor::new(outputs[0].clone(), data)]
    }

    fn mixed_precision(&self, _rules: &Rules) -> MixedPrecision {
        STAYS_F32
    }
}
