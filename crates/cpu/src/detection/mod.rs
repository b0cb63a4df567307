//! Kernels of object detectors: matching of boxes, box codes, samples, suppression, and features of regions.
//!
//! Where boxes are computed with, lanes are boxes: blocks of them are transposed to one array for each coordinate. Work is cut by
//! shapes, and what is folded is folded in the order of the blocks.

pub mod boxes;
pub mod masks;
pub mod matching;
pub mod roi;
pub mod sample;
pub mod suppress;

/// Coordinates of a box, `[x1, y1, x2, y2]`.
const COORDINATES: usize = 4;

#[inline(always)]
fn min(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

#[inline(always)]
fn max(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Intersection and union of two boxes of given areas, whose sides are `x2 - x1 + extra`.
#[inline(always)]
fn overlap(a: [f32; COORDINATES], a_area: f32, b: [f32; COORDINATES], b_area: f32, extra: f32) -> (f32, f32) {
    let width = min(a[2], b[2]) - max(a[0], b[0]) + extra;
    let height = min(a[3], b[3]) - max(a[1], b[1]) + extra;
    let intersection = max(width, 0.0) * max(height, 0.0);
    (intersection, a_area + b_area - intersection)
}

#[inline(always)]
fn area(b: [f32; COORDINATES], extra: f32) -> f32 {
    (b[2] - b[0] + extra) * (b[3] - b[1] + extra)
}

/// Box number `index` of a row-major list.
#[inline(always)]
fn box_at(boxes: &[f32], index: usize) -> [f32; COORDINATES] {
    *boxes[index * COORDINATES..].first_chunk().expect("the list has the box")
}
