//! Matches boxes with ground truths: blocks of boxes against all valid ground truths, then the boxes that are matched by force.

use super::{COORDINATES, area, box_at, overlap};
use crate::gemm::Ctx;
use crate::index::{IndexOutOfRange, check};
use crate::parts::Shared;
use crate::simd::{Simd, SimdOp};
use bessemer_ir::ops::detection::matching::{ForcedMatch, IGNORED, NEGATIVE};

/// Boxes of a task.
const BLOCK: usize = 256;

/// Sizes and rules of a match.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatchDesc {
    /// Number of images.
    pub batch: usize,
    /// Boxes of an image.
    pub boxes: usize,
    /// Whether all images have the same boxes.
    pub shared: bool,
    /// Capacity of an image's ground truths.
    pub truths: usize,
    /// IoU below which a box is negative.
    pub low: f32,
    /// IoU above which a box is matched.
    pub high: f32,
    /// Whether an IoU equal to `high` matches.
    pub high_inclusive: bool,
    /// Which boxes are matched although their IoU is too low.
    pub forced: ForcedMatch,
    /// Added to the union before the intersection is divided by it.
    pub union_eps: f32,
}

/// The largest IoU of a ground truth in a block and the first box that has it; below 0 if no box of the block has an area.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Best {
    iou: f32,
    index: u32,
}

impl MatchDesc {
    fn blocks(&self) -> usize {
        self.boxes.div_ceil(BLOCK)
    }

    /// `f32` elements of scratch.
    pub fn scratch_len(&self) -> usize {
        if self.forced == ForcedMatch::No { 0 } else { 2 * self.batch * self.blocks() * self.truths }
    }

    /// Elements of the list of boxes.
    pub fn boxes_len(&self) -> usize {
        if self.shared { self.boxes * COORDINATES } else { self.batch * self.boxes * COORDINATES }
    }

    fn image_boxes<'a>(&self, boxes: &'a [f32], image: usize) -> &'a [f32] {
        let len = self.boxes * COORDINATES;
        &boxes[if self.shared { 0 } else { image * len }..][..len]
    }

    fn image_truths<'a>(&self, truths: &'a [f32], counts: &[i32], image: usize) -> &'a [f32] {
        &truths[image * self.truths * COORDINATES..][..counts[image] as usize * COORDINATES]
    }

    #[inline(always)]
    fn by_threshold(&self, best: f32, truth: i32, has_area: bool, has_truths: bool) -> i32 {
        let is_high = best > self.high || (self.high_inclusive && best == self.high);
        match (has_area, has_truths) {
            (false, _) => IGNORED,
            (_, false) => NEGATIVE,
            _ if is_high => truth,
            _ if best < self.low => NEGATIVE,
            _ => IGNORED,
        }
    }

    #[inline(always)]
    fn iou(&self, a: [f32; COORDINATES], a_area: f32, b: [f32; COORDINATES], b_area: f32, floor: f32) -> f32 {
        let (intersection, union) = overlap(a, a_area, b, b_area, 0.0);
        let iou = intersection / (union + self.union_eps);
        if intersection > 0.0 { iou } else { floor }
    }
}

/// Boxes of a block, an array for each coordinate.
struct Lanes {
    coordinates: [[f32; BLOCK]; COORDINATES],
    areas: [f32; BLOCK],
    /// The IoU of boxes that do not overlap: 0, or less for boxes without area.
    floors: [f32; BLOCK],
}

impl Lanes {
    #[inline(always)]
    fn load(boxes: &[f32]) -> Lanes {
        let mut lanes = Lanes { coordinates: [[0.0; BLOCK]; COORDINATES], areas: [0.0; BLOCK], floors: [-1.0; BLOCK] };
        for (i, b) in boxes.as_chunks::<COORDINATES>().0.iter().enumerate() {
            for (lane, &x) in lanes.coordinates.iter_mut().zip(b) {
                lane[i] = x;
            }
        }
        let [x1, y1, x2, y2] = &lanes.coordinates;
        for i in 0..BLOCK {
            lanes.areas[i] = area([x1[i], y1[i], x2[i], y2[i]], 0.0);
            lanes.floors[i] = if x2[i] > x1[i] && y2[i] > y1[i] { 0.0 } else { -1.0 };
        }
        lanes
    }

    #[inline(always)]
    fn ious(&self, desc: &MatchDesc, truth: [f32; COORDINATES], ious: &mut [f32; BLOCK]) {
        let [x1, y1, x2, y2] = &self.coordinates;
        let truth_area = area(truth, 0.0);
        for i in 0..BLOCK {
            ious[i] = desc.iou([x1[i], y1[i], x2[i], y2[i]], self.areas[i], truth, truth_area, self.floors[i]);
        }
    }
}

/// Matches the boxes of a block by the thresholds, and finds the best one of each ground truth if `bests` has room for them.
struct Block<'a> {
    desc: &'a MatchDesc,
    first: usize,
    boxes: &'a [f32],
    truths: &'a [f32],
    matches: &'a mut [i32],
    bests: &'a mut [Best],
}

impl SimdOp for Block<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let lanes = Lanes::load(self.boxes);
        let (mut largest, mut numbers, mut ious) = ([0.0f32; BLOCK], [0i32; BLOCK], [0.0f32; BLOCK]);
        let truths = self.truths.as_chunks::<COORDINATES>().0;
        for (number, &truth) in truths.iter().enumerate() {
            lanes.ious(self.desc, truth, &mut ious);
            for i in 0..BLOCK {
                let is_larger = ious[i] > largest[i];
                numbers[i] = if is_larger { number as i32 } else { numbers[i] };
                largest[i] = if is_larger { ious[i] } else { largest[i] };
            }
            if let Some(best) = self.bests.get_mut(number) {
                let mut most = [-1.0f32; 16];
                for part in ious.as_chunks::<16>().0 {
                    for i in 0..16 {
                        most[i] = super::max(part[i], most[i]);
                    }
                }
                let iou = most.into_iter().fold(-1.0, super::max);
                let index = ious.iter().position(|&x| x == iou).unwrap_or(0);
                *best = Best { iou, index: (self.first + index) as u32 };
            }
        }
        for (i, entry) in self.matches.iter_mut().enumerate() {
            let has_area = lanes.floors[i] == 0.0;
            *entry = self.desc.by_threshold(largest[i], numbers[i], has_area, !truths.is_empty());
        }
    }
}

/// The boxes of an image that are matched by force.
struct Forced<'a> {
    desc: &'a MatchDesc,
    boxes: &'a [f32],
    truths: &'a [f32],
    bests: &'a [Best],
    matches: &'a mut [i32],
}

impl Forced<'_> {
    /// Matches boxes of a block that tie for the best of a ground truth with their own best ground truths.
    #[inline(always)]
    fn match_ties(&mut self, block: usize, truth: [f32; COORDINATES], most: f32) {
        let first = block * BLOCK;
        let own = &self.boxes[first * COORDINATES..];
        let lanes = Lanes::load(&own[..own.len().min(BLOCK * COORDINATES)]);
        let mut ious = [0.0; BLOCK];
        lanes.ious(self.desc, truth, &mut ious);
        for (i, _) in ious.iter().enumerate().filter(|&(_, &iou)| iou == most) {
            let candidate = box_at(self.boxes, first + i);
            let mut best = (0, 0.0);
            for (number, &truth) in self.truths.as_chunks::<COORDINATES>().0.iter().enumerate() {
                let iou = self.desc.iou(candidate, area(candidate, 0.0), truth, area(truth, 0.0), 0.0);
                best = if iou > best.1 { (number, iou) } else { best };
            }
            self.matches[first + i] = best.0 as i32;
        }
    }
}

impl SimdOp for Forced<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let (capacity, bests) = (self.desc.truths, self.bests);
        for (number, &truth) in self.truths.as_chunks::<COORDINATES>().0.iter().enumerate().rev() {
            let of_truth = || bests.iter().skip(number).step_by(capacity);
            let first = Best { iou: -1.0, index: 0 };
            let best = of_truth().fold(first, |best, &next| if next.iou > best.iou { next } else { best });
            match self.desc.forced {
                ForcedMatch::BestOnce if best.iou >= 0.0 => self.matches[best.index as usize] = number as i32,
                ForcedMatch::AllTies if best.iou > 0.0 => {
                    for (block, _) in of_truth().enumerate().filter(|(_, other)| other.iou == best.iou) {
                        self.match_ties(block, truth, best.iou);
                    }
                }
                _ => {}
            }
        }
    }
}

/// Matches `boxes` `[N, 4]` or `[B, N, 4]` with `truths` `[B, G, 4]`, of which the first `counts[b]` of an image are valid:
/// `matches` `[B, N]` and the number of `positives` `[B]`.
///
/// # Errors
/// The first count that is not in `0..=G`.
///
/// # Panics
/// If a tensor has another size than `desc` states, or `scratch` is shorter than [`MatchDesc::scratch_len`].
pub fn match_boxes(
    ctx: Ctx<'_>,
    desc: &MatchDesc,
    boxes: &[f32],
    truths: &[f32],
    counts: &[i32],
    matches: &mut [i32],
    positives: &mut [i32],
    scratch: &mut [f32],
) -> Result<(), IndexOutOfRange> {
    let (batch, n, blocks) = (desc.batch, desc.boxes, desc.blocks());
    assert!(
        boxes.len() == desc.boxes_len()
            && truths.len() == batch * desc.truths * COORDINATES
            && counts.len() == batch
            && matches.len() == batch * n
            && positives.len() == batch,
        "a match got tensors of other sizes"
    );
    check(counts, desc.truths + 1)?;
    let bests: &mut [Best] = bytemuck::cast_slice_mut(&mut scratch[..desc.scratch_len()]);
    let image_bests = bests.len() / batch.max(1);
    let (shared_bests, shared) = (&Shared(bests.as_mut_ptr()), &Shared(matches.as_mut_ptr()));
    ctx.pool.run(batch * blocks, &|task, _worker| {
        let (image, block) = (task / blocks, task % blocks);
        let (first, len) = (block * BLOCK, BLOCK.min(n - block * BLOCK));
        let room = image_bests / blocks;
        // SAFETY: each block has its own part of both.
        let (matches, bests) = unsafe {
            (
                std::slice::from_raw_parts_mut(shared.0.add(image * n + first), len),
                std::slice::from_raw_parts_mut(shared_bests.0.add(task * room), room),
            )
        };
        let boxes = &desc.image_boxes(boxes, image)[first * COORDINATES..][..len * COORDINATES];
        let truths = desc.image_truths(truths, counts, image);
        // SAFETY: the kernel has no conditions.
        unsafe { Block { desc, first, boxes, truths, matches, bests }.run_on(ctx.isa) }
    });
    let shared_positives = &Shared(positives.as_mut_ptr());
    ctx.pool.run(batch, &|image, _worker| {
        // SAFETY: each image has its own part of all.
        let (matches, bests, positives) = unsafe {
            (
                std::slice::from_raw_parts_mut(shared.0.add(image * n), n),
                std::slice::from_raw_parts(shared_bests.0.add(image * image_bests), image_bests),
                &mut *shared_positives.0.add(image),
            )
        };
        if desc.forced != ForcedMatch::No && desc.truths > 0 {
            let (boxes, truths) = (desc.image_boxes(boxes, image), desc.image_truths(truths, counts, image));
            // SAFETY: the kernel has no conditions.
            unsafe { Forced { desc, boxes, truths, bests, matches: &mut *matches }.run_on(ctx.isa) }
        }
        *positives = matches.iter().map(|&m| i32::from(m >= 0)).sum();
    });
    Ok(())
}
