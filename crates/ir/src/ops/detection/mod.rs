//! Operations of object detectors: reference boxes, their match with ground truths, box codes, samples, suppression, features of
//! regions and their masks.
//!
//! Boxes are `[x1, y1, x2, y2]` in pixels of the canvas, `f32`. What is computed here are targets and results, without a gradient;
//! only features of regions have one, with respect to the maps they are read from.

pub mod anchors;
pub mod boxes;
pub mod masks;
pub mod matching;
pub mod roi;
pub mod sample;
pub mod suppress;

use super::{LowOperands, LowResult, MixedPrecision, OpError};
use crate::dtype::DType;
use crate::reference::Tensor;
use crate::shape::{Shape, TensorType};

/// Box arithmetic stays `f32`.
pub(crate) const STAYS_F32: MixedPrecision =
    MixedPrecision { operands: LowOperands::StayF32, result: LowResult::Unchanged };

/// Coordinates of a box.
const COORDINATES: usize = 4;

/// Checks type and axes of an operand; `sizes` are those that are known.
fn check_operand(
    operand: &'static str,
    ty: &TensorType,
    dtype: DType,
    axes: &'static str,
    sizes: &[Option<usize>],
) -> Result<(), OpError> {
    let fits =
        ty.shape.rank() == sizes.len() && sizes.iter().zip(ty.shape.iter()).all(|(s, d)| s.is_none_or(|s| s == *d));
    match (ty.dtype == dtype, fits) {
        (false, _) => Err(OpError::operands(format!("{dtype} as the {operand}, not {}", ty.dtype))),
        (_, false) => Err(OpError::Axes { operand, axes, shape: ty.shape.clone() }),
        _ => Ok(()),
    }
}

/// Checks boxes `[N, 4]`, which all images share, or `[B, N, 4]`.
///
/// # Errors
/// When they are of another type or shape.
fn check_reference(ty: &TensorType, batch: usize, boxes: Option<usize>) -> Result<(), OpError> {
    let shared = [boxes, Some(COORDINATES)];
    let own = [Some(batch), boxes, Some(COORDINATES)];
    let sizes = if ty.shape.rank() == 2 { &shared[..] } else { &own[..] };
    check_operand("reference boxes", ty, DType::F32, "[N, 4] or [B, N, 4]", sizes)
}

/// Number of boxes of an image, of `[N, 4]` or `[B, N, 4]`.
fn rows(shape: &Shape) -> usize {
    shape[shape.rank() - 2]
}

/// Box number `n` of image `b`, of `[N, 4]` or `[B, N, 4]`.
fn box_at(boxes: &Tensor, b: usize, n: usize) -> [f64; COORDINATES] {
    let image = if boxes.ty.shape.rank() == 2 { 0 } else { b };
    let start = (image * rows(&boxes.ty.shape) + n) * COORDINATES;
    std::array::from_fn(|i| boxes.data[start + i])
}

/// Intersection over union: 0 without an intersection. Sides are `x2 - x1 + extra`; `eps` is added to the union.
fn iou(a: [f64; COORDINATES], b: [f64; COORDINATES], extra: f64, eps: f64) -> f64 {
    let side = |low: f64, high: f64| (high - low + extra).max(0.0);
    let area = |x: [f64; COORDINATES]| (x[2] - x[0] + extra) * (x[3] - x[1] + extra);
    let intersection = side(a[0].max(b[0]), a[2].min(b[2])) * side(a[1].max(b[1]), a[3].min(b[3]));
    if intersection > 0.0 { intersection / (area(a) + area(b) - intersection + eps) } else { 0.0 }
}

/// A number of valid rows.
///
/// # Panics
/// If it is outside `0..=capacity`.
fn count(value: f64, capacity: usize) -> usize {
    assert!((0.0..=capacity as f64).contains(&value), "the count {value} is outside 0..={capacity}");
    value as usize
}
