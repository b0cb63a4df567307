//! Masks that regions are to predict, from crops of the ground truths' masks.
//!
//! A crop covers the box of its ground truth. It is padded with a border of zeros, so that along an axis the position `a` of the canvas
//! is `(a - low) * M / (high - low + 1e-8) + border` in the padded crop, with `low..high` the ground truth and `M` the pixels of the
//! crop. A region is cut into bins there, each with one sample at its centre, as
//! [`RoiBorder::Clamp`] has it.

use super::super::{Cost, GradArgs, Gradient, MixedPrecision, OpError, OpRule, Scalar};
use super::roi::{RoiAxis, RoiBorder};
use super::{COORDINATES, STAYS_F32, box_at, check_operand};
use crate::dtype::DType;
use crate::graph::{Graph, GraphError};
use crate::reference::Tensor;
use crate::rules::Rules;
use crate::shape::TensorType;

/// Largest element of a crop.
const MOST: f64 = 255.0;

/// Masks of regions. Inputs: crops `u8[B, G, M, M]`, 255 inside of the object, boxes of the ground truths `f32[B, G, 4]`, regions
/// `f32[P, 4]`, the image `i32[P]` and the ground truth `i32[P]` of each region; output `f32[P, size, size]`, zeros where the ground truth
/// is negative. An image outside `0..B`, or a ground truth beyond the last one, is an error when it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MaskTargets {
    /// Rows and columns of a mask.
    pub size: usize,
    /// Zeros on each side of a crop.
    pub border: usize,
    /// Targets are 1 from this share of 255 on and else 0; without it they are the shares themselves.
    pub threshold: Option<Scalar>,
}

impl MaskTargets {
    /// The samples of a region along an axis (0 for the height) of the padded crop, of `crop` pixels, of a ground truth.
    pub fn axis(&self, region: [f64; COORDINATES], truth: [f64; COORDINATES], axis: usize, crop: usize) -> RoiAxis {
        let side = |b: [f64; COORDINATES]| b[3 - axis] - b[1 - axis];
        let scale = crop as f64 / (side(truth) + 1e-8);
        let start = (region[1 - axis] - truth[1 - axis]) * scale + self.border as f64;
        RoiAxis::new(start, side(region) * scale / self.size as f64, 1, crop + 2 * self.border, RoiBorder::Clamp)
    }

    /// The target at a share of 255 times the mean of the mask there.
    pub fn target(&self, mean: f64) -> f64 {
        let share = mean / MOST;
        self.threshold.map_or(share, |threshold| f64::from(u8::from(share >= threshold.0)))
    }
}

impl OpRule for MaskTargets {
    fn name(&self) -> &'static str {
        "mask_targets"
    }

    fn attributes(&self) -> String {
        let threshold = self.threshold.map_or(String::new(), |threshold| format!(", threshold={}", threshold.0));
        format!("size={}, border={}{threshold}", self.size, self.border)
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [crops, truths, regions, images, numbers] = inputs else {
            return Err(OpError::operands(
                "crops, ground truths, regions, and the image and ground truth of each region",
            ));
        };
        if self.size == 0 {
            return Err(OpError::Attribute("a mask must have at least one pixel".to_string()));
        }
        let side = crops.shape.get(2).copied();
        check_operand("crops", crops, DType::U8, "[B, G, M, M]", &[None, None, side, side])?;
        let sizes = [Some(crops.shape[0]), Some(crops.shape[1]), Some(COORDINATES)];
        check_operand("ground truths", truths, DType::F32, "[B, G, 4], one for each crop", &sizes)?;
        check_operand("regions", regions, DType::F32, "[P, 4]", &[None, Some(COORDINATES)])?;
        let count = regions.shape[0];
        for (operand, ty) in [("image of each region", images), ("ground truth of each region", numbers)] {
            check_operand(operand, ty, DType::I32, "[P]", &[Some(count)])?;
        }
        Ok(vec![TensorType::f32([count, self.size, self.size])])
    }

    fn gradient(&self, _graph: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        Ok(Gradient::Inputs(vec![None; args.inputs.len()]))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(8 * outputs[0].shape.elements() as u64, inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let [crops, truths, regions, images, numbers] = *inputs else { unreachable!("the node was accepted") };
        let [batch, capacity, crop] = [crops.ty.shape[0], crops.ty.shape[1], crops.ty.shape[2]];
        let mut targets = Tensor::zeros(outputs[0].clone());
        for (p, masks) in targets.data.chunks_mut(self.size * self.size).enumerate() {
            let (image, number) = (images.data[p], numbers.data[p]);
            assert!((0.0..batch as f64).contains(&image), "the image {image} is outside 0..{batch}");
            assert!(number < capacity as f64, "the ground truth {number} is beyond the last of {capacity}");
            if number < 0.0 {
                continue;
            }
            let (region, truth) = (box_at(regions, 0, p), box_at(truths, image as usize, number as usize));
            let (y, x) = (self.axis(region, truth, 0, crop), self.axis(region, truth, 1, crop));
            let first = (image as usize * capacity + number as usize) * crop * crop;
            let inside = self.border..self.border + crop;
            let pixel = |row: usize, col: usize| match inside.contains(&row) && inside.contains(&col) {
                true => crops.data[first + (row - self.border) * crop + col - self.border],
                false => 0.0,
            };
            for (i, target) in masks.iter_mut().enumerate() {
                let (down, across) = (y.tap(i / self.size, 0), x.tap(i % self.size, 0));
                let line = |row: usize| {
                    across.weights[0] * pixel(row, across.pixels[0]) + across.weights[1] * pixel(row, across.pixels[1])
                };
                let mean = down.weights[0] * line(down.pixels[0]) + down.weights[1] * line(down.pixels[1]);
                *target = self.target(mean);
            }
        }
        vec![targets]
    }

    fn mixed_precision(&self, _rules: &Rules) -> MixedPrecision {
        STAYS_F32
    }
}
