//! Box codes: offsets from reference boxes, and boxes from them.

use super::{COORDINATES, box_at, max, min};
use crate::gemm::Ctx;
use crate::index::{IndexOutOfRange, check_optional};
use crate::parts::for_chunks;
use crate::simd::{Simd, SimdOp};
use crate::vector;
use bessemer_ir::ops::detection::boxes::BoxCode;

/// Boxes of a task.
const TASK: usize = 2048;

/// Boxes that are decoded together.
const BLOCK: usize = 64;

/// A code of boxes, and the lists that are coded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CodeDesc {
    /// Boxes of an image.
    pub boxes: usize,
    /// Codes of a box.
    pub columns: usize,
    /// Whether all images have the same reference boxes.
    pub shared: bool,
    /// Channel of the centre's x, and of its y.
    channels: [usize; 2],
    /// Of the centre's x and y, width and height.
    weights: [f32; 4],
    extra: f32,
    eps: f32,
}

impl CodeDesc {
    /// The code of `boxes` boxes of an image with `columns` codes each; `shared` says that all images have the same reference boxes.
    pub fn new(code: &BoxCode, boxes: usize, columns: usize, shared: bool) -> CodeDesc {
        CodeDesc {
            boxes,
            columns,
            shared,
            channels: [code.channel(0), code.channel(1)],
            weights: code.weights.map(|weight| weight.0 as f32),
            extra: code.extra() as f32,
            eps: code.eps.0 as f32,
        }
    }

    /// Number of the reference box of code number `row`.
    #[inline(always)]
    fn reference(&self, row: usize) -> usize {
        let own = row / self.columns;
        if self.shared { own % self.boxes } else { own }
    }

    #[inline(always)]
    fn centre_and_side(&self, low: f32, high: f32) -> (f32, f32) {
        let side = high - low + self.extra;
        (low + 0.5 * side, side)
    }
}

/// Codes of the ground truths that boxes are matched with, `[B, N, 4]`: zeros where the match is negative.
///
/// # Errors
/// The first match that is beyond the last of the `truths` ground truths of an image.
///
/// # Panics
/// If a tensor has another size than the others.
pub fn encode(
    ctx: Ctx<'_>,
    desc: &CodeDesc,
    truths: usize,
    references: &[f32],
    gt: &[f32],
    matches: &[i32],
    codes: &mut [f32],
) -> Result<(), IndexOutOfRange> {
    assert!(codes.len() == matches.len() * COORDINATES, "box codes of other sizes");
    check_optional(matches, truths)?;
    for_chunks(ctx, codes, TASK * COORDINATES, &|task, codes| {
        let (codes, first) = (codes.as_chunks_mut::<COORDINATES>().0, task * TASK);
        for (row, code) in (first..).zip(codes) {
            *code = [0.0; COORDINATES];
            let Ok(number) = usize::try_from(matches[row]) else { continue };
            let reference = box_at(references, desc.reference(row));
            let target = box_at(gt, row / desc.boxes * truths + number);
            for axis in 0..2 {
                let (from, from_side) = desc.centre_and_side(reference[axis], reference[axis + 2]);
                let (to, to_side) = desc.centre_and_side(target[axis], target[axis + 2]);
                let (from_side, to_side) = (from_side + desc.eps, to_side + desc.eps);
                let channel = desc.channels[axis];
                code[channel] = desc.weights[axis] * (to - from) / from_side;
                code[channel + 2] = desc.weights[axis + 2] * vector::log(to_side / from_side);
            }
        }
    });
    Ok(())
}

/// How codes become boxes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeDesc {
    /// How boxes are coded.
    pub code: CodeDesc,
    /// Largest logarithm by which a side grows.
    pub max_growth: f32,
    /// What is taken from the sizes of images to get the largest coordinates.
    pub clip_margin: f32,
}

/// Codes from number `first` on.
struct Decode<'a> {
    desc: &'a DecodeDesc,
    references: &'a [f32],
    codes: &'a [f32],
    /// Height and width of each image, if boxes are clipped.
    sizes: Option<&'a [f32]>,
    first: usize,
    boxes: &'a mut [f32],
}

impl SimdOp for Decode<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let DecodeDesc { code, max_growth, clip_margin } = self.desc;
        let codes = self.codes.as_chunks::<COORDINATES>().0;
        let boxes = self.boxes.as_chunks_mut::<COORDINATES>().0;
        for (block, (codes, boxes)) in codes.chunks(BLOCK).zip(boxes.chunks_mut(BLOCK)).enumerate() {
            let first = self.first + block * BLOCK;
            for axis in 0..2 {
                let (channel, weight, side_weight) = (code.channels[axis], code.weights[axis], code.weights[axis + 2]);
                let mut lanes = [[0.0f32; BLOCK]; 5];
                let [shifts, growths, lows, highs, limits] = &mut lanes;
                for (i, row) in codes.iter().enumerate() {
                    let reference = box_at(self.references, code.reference(first + i));
                    (shifts[i], growths[i]) = (row[channel], row[channel + 2]);
                    (lows[i], highs[i]) = (reference[axis], reference[axis + 2]);
                    if let Some(sizes) = self.sizes {
                        limits[i] = sizes[(first + i) / (code.boxes * code.columns) * 2 + 1 - axis] - clip_margin;
                    }
                }
                for i in 0..BLOCK {
                    let (from, side) = code.centre_and_side(lows[i], highs[i]);
                    let growth = growths[i] / side_weight;
                    let growth = if growth > *max_growth { *max_growth } else { growth };
                    let (centre, half) = (shifts[i] / weight * side + from, vector::exp(growth) * side * 0.5);
                    (lows[i], highs[i]) = (centre - half, centre + half - code.extra);
                }
                if self.sizes.is_some() {
                    for i in 0..BLOCK {
                        lows[i] = min(max(lows[i], 0.0), limits[i]);
                        highs[i] = min(max(highs[i], 0.0), limits[i]);
                    }
                }
                for (i, b) in boxes.iter_mut().enumerate() {
                    (b[axis], b[axis + 2]) = (lows[i], highs[i]);
                }
            }
        }
    }
}

/// Boxes of `codes` `[B, N, K, 4]`, cut to `sizes` `[B, 2]` of images if there are some.
///
/// # Panics
/// If a tensor has another size than the others.
pub fn decode(
    ctx: Ctx<'_>,
    desc: &DecodeDesc,
    references: &[f32],
    codes: &[f32],
    sizes: Option<&[f32]>,
    boxes: &mut [f32],
) {
    assert!(codes.len() == boxes.len(), "decoded boxes of other sizes");
    for_chunks(ctx, boxes, TASK * COORDINATES, &|task, boxes| {
        let first = task * TASK;
        let codes = &codes[first * COORDINATES..][..boxes.len()];
        // SAFETY: the kernel has no conditions.
        unsafe { Decode { desc, references, codes, sizes, first, boxes }.run_on(ctx.isa) }
    });
}
