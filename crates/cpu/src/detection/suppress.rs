//! Non-maximum suppression: a task is an image.
//!
//! Hard: candidates are sorted as far as they are reached, each is tested against the kept boxes. Soft: candidates lie sorted by
//! group and position; each pick looks for the best present score and decays those of its group.

use super::{COORDINATES, area, box_at, overlap};
use crate::gemm::Ctx;
use crate::index::{IndexOutOfRange, check};
use crate::parts::Shared;
use crate::simd::{Simd, SimdOp};
use crate::top_k::{position, rank, sort_first};
use crate::vector;
use bessemer_ir::ops::detection::suppress::{BoxGroups, Suppress, Suppression};

/// Kept boxes that a candidate is tested against at once, and scores that are compared at once.
const LANES: usize = 32;

/// Candidates that are sorted first; each further part is twice as long.
const FIRST_PART: usize = 1024;

/// Sizes and rules of a suppression.
#[derive(Clone, Debug, PartialEq)]
pub struct SuppressDesc {
    /// Number of images.
    pub batch: usize,
    /// Rows of boxes of an image.
    pub rows: usize,
    /// Boxes of a row.
    pub columns: usize,
    /// What is kept, and how many.
    pub rule: Suppress,
}

/// Inputs: `[B, N, K, 4]` boxes, `[B, N, K]` scores, `[B, N]` labels and `[B]` numbers of valid rows, if there are any.
#[derive(Clone, Copy)]
pub struct SuppressInputs<'a> {
    /// `[x1, y1, x2, y2]` in pixels.
    pub boxes: &'a [f32],
    /// Scores before suppression.
    pub scores: &'a [f32],
    /// Labels, where boxes of one label act on each other.
    pub labels: Option<&'a [i32]>,
    /// Valid rows of each image; all are valid without it.
    pub counts: Option<&'a [i32]>,
}

/// Outputs: `[B, M]` rows, groups and scores, `[B]` numbers of kept boxes.
pub struct SuppressOutputs<'a> {
    /// Numbers of the rows that are kept.
    pub rows: &'a mut [i32],
    /// Groups of the boxes that are kept.
    pub groups: &'a mut [i32],
    /// Scores of the boxes that are kept, in falling order.
    pub scores: &'a mut [f32],
    /// How many boxes of each image are kept.
    pub counts: &'a mut [i32],
}

impl SuppressDesc {
    /// Boxes of an image.
    fn boxes(&self) -> usize {
        self.rows * self.columns
    }

    /// Boxes of an array of lanes.
    fn lanes(&self) -> usize {
        let most = match self.rule.suppression {
            Suppression::Hard { .. } => self.rule.max_outputs.min(self.boxes()),
            Suppression::Gaussian { .. } => self.boxes(),
        };
        most.next_multiple_of(LANES)
    }

    /// `f32` elements of scratch of an image: ranks, and six arrays of lanes.
    fn image_len(&self) -> usize {
        2 * self.boxes() + 6 * self.lanes()
    }

    /// `f32` elements of scratch.
    pub fn scratch_len(&self, threads: usize) -> usize {
        threads * self.image_len()
    }
}

/// Coordinates, areas, and groups or scores of boxes.
struct Lanes<'a> {
    coordinates: [&'a mut [f32]; COORDINATES],
    areas: &'a mut [f32],
    /// Bits of the group, for hard suppression; the present score, for the soft one.
    others: &'a mut [f32],
}

impl<'a> Lanes<'a> {
    /// Of boxes that overlap nothing.
    #[inline(always)]
    fn new(memory: &'a mut [f32], len: usize) -> Lanes<'a> {
        let (x1, rest) = memory.split_at_mut(len);
        let (y1, rest) = rest.split_at_mut(len);
        let (x2, rest) = rest.split_at_mut(len);
        let (y2, rest) = rest.split_at_mut(len);
        let (areas, others) = rest.split_at_mut(len);
        x1.fill(f32::INFINITY);
        [&mut *y1, &mut *x2, &mut *y2, &mut *areas].into_iter().for_each(|lane| lane.fill(0.0));
        others[..len].fill(f32::NEG_INFINITY);
        Lanes { coordinates: [x1, y1, x2, y2], areas, others: &mut others[..len] }
    }

    #[inline(always)]
    fn set(&mut self, index: usize, b: [f32; COORDINATES], area: f32, other: f32) {
        self.coordinates.iter_mut().zip(b).for_each(|(lane, x)| lane[index] = x);
        (self.areas[index], self.others[index]) = (area, other);
    }

    /// IoUs of [`LANES`] boxes from `first` on with another one.
    #[inline(always)]
    fn ious(&self, first: usize, b: [f32; COORDINATES], b_area: f32, extra: f32) -> [f32; LANES] {
        let part = |lane: &[f32]| -> [f32; LANES] { *lane[first..].first_chunk().expect("lanes are padded") };
        let [x1, y1, x2, y2] = [0, 1, 2, 3].map(|i| part(self.coordinates[i]));
        let areas = part(self.areas);
        let mut ious = [0.0; LANES];
        for i in 0..LANES {
            let (intersection, union) = overlap([x1[i], y1[i], x2[i], y2[i]], areas[i], b, b_area, extra);
            let iou = intersection / union;
            ious[i] = if intersection > 0.0 { iou } else { 0.0 };
        }
        ious
    }
}

/// One image.
struct Image<'a> {
    desc: &'a SuppressDesc,
    boxes: &'a [f32],
    scores: &'a [f32],
    labels: Option<&'a [i32]>,
    /// Valid boxes.
    valid: usize,
    /// Of each kept box.
    rows: &'a mut [i32],
    groups: &'a mut [i32],
    kept_scores: &'a mut [f32],
    scratch: &'a mut [f32],
}

impl Image<'_> {
    #[inline(always)]
    fn group(&self, index: usize) -> i32 {
        match (&self.desc.rule.groups, self.labels) {
            (BoxGroups::Ranges(ends), _) => ends.partition_point(|&end| end <= index) as i32,
            (BoxGroups::Columns, _) => (index % self.desc.columns) as i32,
            (BoxGroups::Labels, Some(labels)) => labels[index],
            _ => 0,
        }
    }

    /// Puts `key(box)` of each candidate at the front of `keys`; their number.
    #[inline(always)]
    fn candidates(&self, keys: &mut [u64], key: impl Fn(usize) -> u64) -> usize {
        let rule = &self.desc.rule;
        let floor = rule.score_floor.map_or(f32::NEG_INFINITY, |floor| floor.0 as f32);
        let least = rule.min_size.map(|least| least.0 as f32);
        let mut count = 0;
        for (i, &score) in self.scores[..self.valid].iter().enumerate() {
            let is_large = least.is_none_or(|least| {
                let b = box_at(self.boxes, i);
                b[2] - b[0] >= least && b[3] - b[1] >= least
            });
            if score > floor && is_large {
                keys[count] = key(i);
                count += 1;
            }
        }
        count
    }

    #[inline(always)]
    fn keep(&mut self, slot: usize, index: usize, group: i32, score: f32) {
        self.rows[slot] = (index / self.desc.columns) as i32;
        (self.groups[slot], self.kept_scores[slot]) = (group, score);
    }

    #[inline(always)]
    fn hard(&mut self, most: f32) -> usize {
        let extra = self.desc.rule.extra() as f32;
        let scratch = std::mem::take(&mut self.scratch);
        let (ranks, memory) = scratch.split_at_mut(2 * self.desc.boxes());
        let ranks: &mut [u64] = bytemuck::cast_slice_mut(ranks);
        let mut kept = Lanes::new(memory, self.desc.lanes());
        let candidates = self.candidates(ranks, |i| rank(self.scores[i], i));
        let mut left = &mut ranks[..candidates];
        let (mut count, mut part) = (0, FIRST_PART);
        while !left.is_empty() {
            let sorted = part.min(left.len());
            sort_first(left, sorted);
            for &rank in &left[..sorted] {
                if count == self.rows.len() {
                    return count;
                }
                let index = position(rank);
                let (b, group) = (box_at(self.boxes, index), self.group(index));
                let own = area(b, extra);
                let is_dropped = (0..count).step_by(LANES).any(|first| {
                    let ious = kept.ious(first, b, own, extra);
                    let groups: &[f32; LANES] = kept.others[first..].first_chunk().expect("lanes are padded");
                    let hits = |i: usize| u32::from(ious[i] > most) & u32::from(groups[i].to_bits() == group as u32);
                    (0..LANES).fold(0, |found, i| found | hits(i)) != 0
                });
                if !is_dropped {
                    kept.set(count, b, own, f32::from_bits(group as u32));
                    self.keep(count, index, group, self.scores[index]);
                    count += 1;
                }
            }
            left = &mut std::mem::take(&mut left)[sorted..];
            part *= 2;
        }
        count
    }

    #[inline(always)]
    fn soft(&mut self, sigma: f32, floor: f32) -> usize {
        let extra = self.desc.rule.extra() as f32;
        let scratch = std::mem::take(&mut self.scratch);
        let (keys, memory) = scratch.split_at_mut(2 * self.desc.boxes());
        let keys: &mut [u64] = bytemuck::cast_slice_mut(keys);
        // Groups as integers without sign, in their order.
        let key = |i: usize| u64::from(self.group(i) as u32 ^ 0x8000_0000) << 32 | i as u64;
        let candidates = self.candidates(keys, key);
        let keys = &mut keys[..candidates];
        keys.sort_unstable();
        let mut lanes = Lanes::new(memory, self.desc.lanes());
        for (slot, &key) in keys.iter().enumerate() {
            let b = box_at(self.boxes, position(key));
            lanes.set(slot, b, area(b, extra), self.scores[position(key)]);
        }
        let end = candidates.next_multiple_of(LANES);
        for count in 0..self.rows.len() {
            let mut most = [f32::NEG_INFINITY; LANES];
            for part in lanes.others[..end].as_chunks::<LANES>().0 {
                for i in 0..LANES {
                    most[i] = super::max(part[i], most[i]);
                }
            }
            let best = most.into_iter().fold(f32::NEG_INFINITY, super::max);
            let found = lanes.others[..end].iter().position(|&score| score == best && best > f32::NEG_INFINITY);
            let Some(slot) = found else { return count };
            let (key, group) = (keys[slot], keys[slot] >> 32);
            self.keep(count, position(key), (group as u32 ^ 0x8000_0000) as i32, best);
            let range = keys.partition_point(|&k| k >> 32 < group)..keys.partition_point(|&k| k >> 32 <= group);
            let b = box_at(self.boxes, position(key));
            let first = range.start / LANES * LANES;
            for first in (first..range.end).step_by(LANES) {
                let ious = lanes.ious(first, b, lanes.areas[slot], extra);
                let scores: &mut [f32; LANES] = lanes.others[first..].first_chunk_mut().expect("lanes are padded");
                let mut decayed = [0.0; LANES];
                for i in 0..LANES {
                    let score = scores[i] * vector::exp(-ious[i] * ious[i] / sigma);
                    decayed[i] = if score >= floor { score } else { f32::NEG_INFINITY };
                }
                let own = range.start.saturating_sub(first)..LANES.min(range.end - first);
                scores[own.clone()].copy_from_slice(&decayed[own]);
            }
            lanes.others[slot] = f32::NEG_INFINITY;
        }
        self.rows.len()
    }
}

impl SimdOp for Image<'_> {
    type Output = usize;

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) -> usize {
        match self.desc.rule.suppression {
            Suppression::Hard { iou } => self.hard(iou.0 as f32),
            Suppression::Gaussian { sigma, floor } => self.soft(sigma.0 as f32, floor.0 as f32),
        }
    }
}

/// Keeps the best boxes of each image.
///
/// # Errors
/// The first number of valid rows that is not in `0..=N`.
///
/// # Panics
/// If a tensor has another size than `desc` states, or `scratch` is shorter than [`SuppressDesc::scratch_len`].
pub fn suppress(
    ctx: Ctx<'_>,
    desc: &SuppressDesc,
    inputs: SuppressInputs<'_>,
    outputs: SuppressOutputs<'_>,
    scratch: &mut [f32],
) -> Result<(), IndexOutOfRange> {
    let (boxes, most) = (desc.boxes(), desc.rule.max_outputs);
    let SuppressOutputs { rows, groups, scores, counts } = outputs;
    assert!(
        inputs.boxes.len() == desc.batch * boxes * COORDINATES
            && inputs.scores.len() == desc.batch * boxes
            && inputs.labels.is_none_or(|labels| labels.len() == desc.batch * boxes)
            && inputs.counts.is_none_or(|counts| counts.len() == desc.batch)
            && [rows.len(), groups.len(), scores.len()] == [desc.batch * most; 3]
            && counts.len() == desc.batch
            && scratch.len() >= desc.scratch_len(ctx.pool.threads()),
        "a suppression got tensors of other sizes"
    );
    if let Some(counts) = inputs.counts {
        check(counts, desc.rows + 1)?;
    }
    let base = &Shared(scratch.as_mut_ptr());
    let integers = (&Shared(rows.as_mut_ptr()), &Shared(groups.as_mut_ptr()), &Shared(counts.as_mut_ptr()));
    let shared_scores = &Shared(scores.as_mut_ptr());
    ctx.pool.run(desc.batch, &|image, worker| {
        // SAFETY: each image has its own part of the outputs; a worker uses only its own scratch, and runs one task at a time.
        let (rows, groups, kept_scores, count, scratch) = unsafe {
            (
                std::slice::from_raw_parts_mut(integers.0.0.add(image * most), most),
                std::slice::from_raw_parts_mut(integers.1.0.add(image * most), most),
                std::slice::from_raw_parts_mut(shared_scores.0.add(image * most), most),
                &mut *integers.2.0.add(image),
                std::slice::from_raw_parts_mut(base.0.add(worker * desc.image_len()), desc.image_len()),
            )
        };
        rows.fill(0);
        groups.fill(0);
        kept_scores.fill(0.0);
        let run = Image {
            desc,
            boxes: &inputs.boxes[image * boxes * COORDINATES..][..boxes * COORDINATES],
            scores: &inputs.scores[image * boxes..][..boxes],
            labels: inputs.labels.map(|labels| &labels[image * boxes..][..boxes]),
            valid: inputs.counts.map_or(boxes, |counts| counts[image] as usize * desc.columns),
            rows,
            groups,
            kept_scores,
            scratch,
        };
        // SAFETY: the kernel has no conditions.
        *count = unsafe { run.run_on(ctx.isa) } as i32;
    });
    Ok(())
}
