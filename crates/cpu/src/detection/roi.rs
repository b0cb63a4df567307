//! Features of regions, and their gradient, vectorised along the channels.
//!
//! For each region there is a plan: its map, and for each axis the pixels that a bin reads and their weights, those of samples that
//! read the same pixel added up. A task of the forward kernel is a region. A task of the gradient is a stripe of lines of a map,
//! which goes through the regions of this map in their order.

use super::{COORDINATES, box_at};
use crate::gemm::Ctx;
use crate::index::{IndexOutOfRange, check};
use crate::parts::{Shared, for_chunks};
use crate::pool2d::{Element, channels};
use crate::simd::{Simd, SimdOp};
use bessemer_ir::ops::detection::roi::{MOST_LEVELS, RoiAlign};
use std::ops::Range;

/// Plans that a task makes.
const PLANS: usize = 16;

/// Elements of a plan before the axes: the map, the first line that is read, and the one behind the last.
const PLAN_HEAD: usize = 3;

/// Elements of a stripe of lines, about.
const STRIPE: usize = 64 * 1024;

/// Sizes and rules of the features of regions.
#[derive(Clone, Debug, PartialEq)]
pub struct RoiDesc {
    /// Bins, samples and levels.
    pub rule: RoiAlign,
    /// Number of images.
    pub batch: usize,
    /// Number of regions.
    pub rois: usize,
    /// Channels of maps and features.
    pub channels: usize,
    /// Height and width of each map.
    pub maps: Vec<[usize; 2]>,
}

/// What the bins of an axis read.
#[derive(Clone, Copy)]
struct Axis<'a> {
    /// Where the list of each bin ends.
    ends: &'a [u32],
    pixels: &'a [u32],
    /// Bits of `f32`.
    weights: &'a [u32],
}

impl Axis<'_> {
    /// Pixels of a bin and their weights.
    #[inline(always)]
    fn taps(&self, bin: usize) -> impl Iterator<Item = (usize, f32)> {
        let start = if bin == 0 { 0 } else { self.ends[bin - 1] as usize };
        let range = start..self.ends[bin] as usize;
        let weights = &self.weights[range.clone()];
        self.pixels[range].iter().zip(weights).map(|(&pixel, &weight)| (pixel as usize, f32::from_bits(weight)))
    }
}

/// Where a region is read from.
#[derive(Clone)]
struct Plan<'a> {
    map: usize,
    /// Lines of the map from the first to the last one that is read.
    rows: Range<usize>,
    y: Axis<'a>,
    x: Axis<'a>,
}

impl RoiDesc {
    /// Elements of a map of all images.
    pub fn map_len(&self, map: usize) -> usize {
        self.batch * self.image_len(map)
    }

    fn image_len(&self, map: usize) -> usize {
        let [height, width] = self.maps[map];
        height * width * self.channels
    }

    /// Elements of the features of a region.
    fn roi_len(&self) -> usize {
        self.rule.size[0] * self.rule.size[1] * self.channels
    }

    /// Elements of the features.
    pub fn features_len(&self) -> usize {
        self.rois * self.roi_len()
    }

    /// Entries of an axis in a plan.
    fn most_taps(&self, axis: usize) -> usize {
        self.maps.iter().map(|map| self.rule.most_taps(axis, map[axis])).max().unwrap_or(0)
    }

    /// Elements of an axis in a plan: ends, pixels and weights.
    fn axis_len(&self, axis: usize) -> usize {
        self.rule.size[axis] + 2 * self.most_taps(axis)
    }

    fn plan_len(&self) -> usize {
        PLAN_HEAD + self.axis_len(0) + self.axis_len(1)
    }

    /// `f32` elements of scratch of [`roi_align`].
    pub fn scratch_len(&self) -> usize {
        self.rois * self.plan_len()
    }

    /// `f32` elements of scratch of [`roi_align_grad`].
    pub fn grad_scratch_len(&self) -> usize {
        self.scratch_len() + self.rois + self.batch * self.maps.len() + 1
    }

    /// `f32` elements of scratch of [`roi_align_grad_16`].
    pub fn grad_16_scratch_len(&self, threads: usize) -> usize {
        self.grad_scratch_len() + threads * self.sums_len()
    }

    /// Elements of the sums of a worker.
    fn sums_len(&self) -> usize {
        (0..self.maps.len()).map(|map| self.stripe_rows(map) * self.maps[map][1] * self.channels).max().unwrap_or(0)
    }

    fn stripe_rows(&self, map: usize) -> usize {
        let [height, width] = self.maps[map];
        (STRIPE / (width * self.channels).max(1)).clamp(1, height)
    }

    fn stripes(&self, map: usize) -> usize {
        self.maps[map][0].div_ceil(self.stripe_rows(map))
    }

    /// Writes an axis of a plan; the pixels from the first to the last one that is read.
    fn write_axis(&self, b: [f64; COORDINATES], map: usize, axis: usize, out: &mut [u32]) -> Range<u32> {
        let (bins, most) = (self.rule.size[axis], self.most_taps(axis));
        let own = self.rule.axis(b, map, axis, self.maps[map][axis]);
        let (ends, lists) = out.split_at_mut(bins);
        let (pixels, weights) = lists.split_at_mut(most);
        let mut count = 0usize;
        for (bin, end) in ends.iter_mut().enumerate() {
            let start = count;
            for sample in 0..own.samples {
                let tap = own.tap(bin, sample);
                for (pixel, weight) in tap.pixels.into_iter().zip(tap.weights) {
                    if weight == 0.0 {
                        continue;
                    }
                    // Samples ascend, so that their pixels are among the last two.
                    let near = start.max(count.saturating_sub(2));
                    match pixels[near..count].iter().position(|&known| known as usize == pixel) {
                        Some(known) => {
                            let sum = &mut weights[near + known];
                            *sum = (f32::from_bits(*sum) + weight as f32).to_bits();
                        }
                        None => {
                            (pixels[count], weights[count]) = (pixel as u32, (weight as f32).to_bits());
                            count += 1;
                        }
                    }
                }
            }
            *end = count as u32;
        }
        let read = || pixels[..count].iter().copied();
        read().min().unwrap_or(0)..read().max().map_or(0, |last| last + 1)
    }

    /// Writes the plans of all regions.
    fn write_plans(&self, ctx: Ctx<'_>, boxes: &[f32], plans: &mut [u32]) {
        let len = self.plan_len();
        for_chunks(ctx, plans, PLANS * len, &|task, plans| {
            for (roi, plan) in (task * PLANS..).zip(plans.chunks_exact_mut(len)) {
                let b = box_at(boxes, roi).map(f64::from);
                let map = self.rule.map_of(b);
                let (head, axes) = plan.split_at_mut(PLAN_HEAD);
                let (y, x) = axes.split_at_mut(self.axis_len(0));
                let rows = self.write_axis(b, map, 0, y);
                self.write_axis(b, map, 1, x);
                head.copy_from_slice(&[map as u32, rows.start, rows.end]);
            }
        });
    }

    fn read_axis<'a>(&self, axis: usize, plan: &'a [u32]) -> Axis<'a> {
        let (ends, lists) = plan.split_at(self.rule.size[axis]);
        let (pixels, weights) = lists.split_at(self.most_taps(axis));
        Axis { ends, pixels, weights }
    }

    fn plan<'a>(&self, plans: &'a [u32], roi: usize) -> Plan<'a> {
        let plan = &plans[roi * self.plan_len()..][..self.plan_len()];
        let (y, x) = plan[PLAN_HEAD..].split_at(self.axis_len(0));
        let rows = plan[1] as usize..plan[2] as usize;
        Plan { map: plan[0] as usize, rows, y: self.read_axis(0, y), x: self.read_axis(1, x) }
    }

    fn check(&self, boxes: &[f32], images: &[i32], features: usize) -> Result<(), IndexOutOfRange> {
        let fits = boxes.len() == self.rois * COORDINATES && images.len() == self.rois;
        assert!(fits && features == self.features_len(), "features of regions got tensors of other sizes");
        check(images, self.batch)
    }
}

/// The features of a region: a row of bins after the other.
struct Region<'a, T> {
    desc: &'a RoiDesc,
    plan: Plan<'a>,
    /// The map of its image.
    map: &'a [T],
    features: &'a mut [T],
}

impl<T: Element> Region<'_, T> {
    /// `N` channels from `start` on of a row of bins. Returns `N`.
    #[inline(always)]
    fn means<const N: usize>(&self, row: usize, bins: &mut [T], start: usize) -> usize {
        let (c, width) = (self.desc.channels, self.desc.maps[self.plan.map][1]);
        for (col, bin) in bins.chunks_exact_mut(c).enumerate() {
            let mut sums = [0.0f32; N];
            for (y, down) in self.plan.y.taps(row) {
                for (x, across) in self.plan.x.taps(col) {
                    let weight = down * across;
                    let pixel: [f32; N] = channels(self.map, (y * width + x) * c + start);
                    for i in 0..N {
                        sums[i] += weight * pixel[i];
                    }
                }
            }
            for (feature, sum) in bin[start..start + N].iter_mut().zip(sums) {
                *feature = T::round(sum);
            }
        }
        N
    }
}

impl<T: Element> SimdOp for Region<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let c = self.desc.channels;
        let features = std::mem::take(&mut self.features);
        for (row, bins) in features.chunks_exact_mut(self.desc.rule.size[1] * c).enumerate() {
            let mut start = 0;
            while start < c {
                start += match c - start {
                    64.. => self.means::<64>(row, bins, start),
                    16.. => self.means::<16>(row, bins, start),
                    _ => self.means::<1>(row, bins, start),
                };
            }
        }
    }
}

/// Features `[R, size, C]` of the regions `boxes` `[R, 4]` of `images` `[R]`, from `maps` `[B, Hl, Wl, C]`.
///
/// # Errors
/// The first image that is not in `0..B`.
///
/// # Panics
/// If a tensor has another size than `desc` states, or `scratch` is shorter than [`RoiDesc::scratch_len`].
pub fn roi_align<T: Element>(
    ctx: Ctx<'_>,
    desc: &RoiDesc,
    maps: &[&[T]],
    boxes: &[f32],
    images: &[i32],
    features: &mut [T],
    scratch: &mut [f32],
) -> Result<(), IndexOutOfRange> {
    desc.check(boxes, images, features.len())?;
    assert!((0..desc.maps.len()).all(|map| maps[map].len() == desc.map_len(map)), "maps of other sizes");
    let plans: &mut [u32] = bytemuck::cast_slice_mut(&mut scratch[..desc.scratch_len()]);
    desc.write_plans(ctx, boxes, plans);
    let plans = &*plans;
    for_chunks(ctx, features, desc.roi_len(), &|roi, features| {
        let plan = desc.plan(plans, roi);
        let len = desc.image_len(plan.map);
        let map = &maps[plan.map][images[roi] as usize * len..][..len];
        // SAFETY: the kernel has no conditions.
        unsafe { Region { desc, plan, map, features }.run_on(ctx.isa) }
    });
    Ok(())
}

/// The gradient of lines of a map, summed over the regions that are read from it.
struct Stripe<'a, T> {
    desc: &'a RoiDesc,
    plans: &'a [u32],
    /// Numbers of the regions of this image on this map, ascending.
    rois: &'a [u32],
    dy: &'a [T],
    map: usize,
    rows: Range<usize>,
    sums: &'a mut [f32],
}

/// Adds `N` channels from `start` on of a row of bins, times a weight, to a line. Returns `N`.
#[inline(always)]
fn add_bins<const N: usize, T: Element>(
    x: Axis<'_>,
    weight: f32,
    bins: &[T],
    c: usize,
    line: &mut [f32],
    start: usize,
) -> usize {
    for (col, bin) in bins.chunks_exact(c).enumerate() {
        let dy: [f32; N] = channels(bin, start);
        for (pixel, across) in x.taps(col) {
            let weight = weight * across;
            let sums: &mut [f32; N] = line[pixel * c + start..].first_chunk_mut().expect("the line has the pixel");
            for i in 0..N {
                sums[i] += weight * dy[i];
            }
        }
    }
    N
}

impl<T: Element> SimdOp for Stripe<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (desc, c) = (self.desc, self.desc.channels);
        let (line_len, row_len) = (desc.maps[self.map][1] * c, desc.rule.size[1] * c);
        self.sums.fill(0.0);
        for roi in self.rois.iter().map(|&roi| roi as usize) {
            let plan = desc.plan(self.plans, roi);
            if plan.rows.start >= self.rows.end || plan.rows.end <= self.rows.start {
                continue;
            }
            let dy = &self.dy[roi * desc.roi_len()..][..desc.roi_len()];
            for (row, bins) in dy.chunks_exact(row_len).enumerate() {
                for (y, weight) in plan.y.taps(row).filter(|(y, _)| self.rows.contains(y)) {
                    let line = &mut self.sums[(y - self.rows.start) * line_len..][..line_len];
                    let mut start = 0;
                    while start < c {
                        start += match c - start {
                            64.. => add_bins::<64, T>(plan.x, weight, bins, c, line, start),
                            16.. => add_bins::<16, T>(plan.x, weight, bins, c, line, start),
                            _ => add_bins::<1, T>(plan.x, weight, bins, c, line, start),
                        };
                    }
                }
            }
        }
    }
}

/// Numbers of the regions by image and map, ascending, and where the list of each image and map begins and ends, in `scratch`.
fn by_map<'a>(desc: &RoiDesc, plans: &[u32], images: &[i32], scratch: &'a mut [u32]) -> (&'a [u32], &'a [u32]) {
    let (bounds, list) = scratch.split_at_mut(desc.batch * desc.maps.len() + 1);
    let place = |roi: usize| images[roi] as usize * desc.maps.len() + desc.plan(plans, roi).map;
    bounds.fill(0);
    (0..desc.rois).for_each(|roi| bounds[place(roi) + 1] += 1);
    (1..bounds.len()).for_each(|next| bounds[next] += bounds[next - 1]);
    // Each start moves on to the end of its list, which is where the next one starts.
    for roi in 0..desc.rois {
        let start = &mut bounds[place(roi)];
        list[*start as usize] = roi as u32;
        *start += 1;
    }
    bounds.copy_within(..bounds.len() - 1, 1);
    bounds[0] = 0;
    (list, bounds)
}

/// The operands of a gradient.
pub struct RoiGrad<'a, T> {
    /// Gradient of the features, `[R, size, C]`.
    pub dy: &'a [T],
    /// `[R, 4]`
    pub boxes: &'a [f32],
    /// The image of each box.
    pub images: &'a [i32],
}

impl<T: Element> RoiGrad<'_, T> {
    /// Calls `f(worker, stripe, lines)` for stripes of lines of all maps, as tasks; the sums of a stripe are empty.
    fn for_stripes(
        &self,
        ctx: Ctx<'_>,
        desc: &RoiDesc,
        grads: &mut [&mut [T]],
        scratch: &mut [f32],
        f: impl Fn(usize, Stripe<'_, T>, &mut [T]) + Sync,
    ) -> Result<(), IndexOutOfRange> {
        desc.check(self.boxes, self.images, self.dy.len())?;
        let levels = desc.maps.len();
        assert!((0..levels).all(|map| grads[map].len() == desc.map_len(map)), "gradients of maps of other sizes");
        let (plans, scratch) = bytemuck::cast_slice_mut::<f32, u32>(scratch).split_at_mut(desc.scratch_len());
        desc.write_plans(ctx, self.boxes, plans);
        let plans = &*plans;
        let (rois, bounds) = by_map(desc, plans, self.images, scratch);
        let mut bases = [const { Shared(std::ptr::null_mut()) }; MOST_LEVELS];
        bases.iter_mut().zip(grads).for_each(|(base, grad)| base.0 = grad.as_mut_ptr());
        let bases = &bases;
        let tasks = (0..levels).map(|map| desc.batch * desc.stripes(map)).sum();
        ctx.pool.run(tasks, &|task, worker| {
            let (mut map, mut number) = (0, task);
            while number >= desc.batch * desc.stripes(map) {
                number -= desc.batch * desc.stripes(map);
                map += 1;
            }
            let (image, stripe) = (number / desc.stripes(map), number % desc.stripes(map));
            let [height, width] = desc.maps[map];
            let first = stripe * desc.stripe_rows(map);
            let rows = first..height.min(first + desc.stripe_rows(map));
            let line_len = width * desc.channels;
            let start = image * desc.image_len(map) + first * line_len;
            // SAFETY: the stripes lie within the gradients and are disjoint.
            let lines = unsafe { std::slice::from_raw_parts_mut(bases[map].0.add(start), rows.len() * line_len) };
            let own = image * levels + map;
            let rois = &rois[bounds[own] as usize..bounds[own + 1] as usize];
            f(worker, Stripe { desc, plans, rois, dy: self.dy, map, rows, sums: &mut [] }, lines);
        });
        Ok(())
    }
}

/// Gradient of [`roi_align`] with respect to its maps: `grads` `[B, Hl, Wl, C]`.
///
/// # Errors
/// The first image that is not in `0..B`.
///
/// # Panics
/// If a tensor has another size than `desc` states, or `scratch` is shorter than [`RoiDesc::grad_scratch_len`].
pub fn roi_align_grad(
    ctx: Ctx<'_>,
    desc: &RoiDesc,
    operands: &RoiGrad<'_, f32>,
    grads: &mut [&mut [f32]],
    scratch: &mut [f32],
) -> Result<(), IndexOutOfRange> {
    operands.for_stripes(ctx, desc, grads, &mut scratch[..desc.grad_scratch_len()], |_, stripe, sums| {
        // SAFETY: the kernel has no conditions.
        unsafe { Stripe { sums, ..stripe }.run_on(ctx.isa) }
    })
}

/// As [`roi_align_grad`], of 16-bit numbers: sums are made in scratch, of [`RoiDesc::grad_16_scratch_len`], and rounded once.
///
/// # Errors
/// As [`roi_align_grad`].
pub fn roi_align_grad_16<T: Element>(
    ctx: Ctx<'_>,
    desc: &RoiDesc,
    operands: &RoiGrad<'_, T>,
    grads: &mut [&mut [T]],
    scratch: &mut [f32],
) -> Result<(), IndexOutOfRange> {
    let (sums, scratch) = scratch.split_at_mut(ctx.pool.threads() * desc.sums_len());
    let sums = &Shared(sums.as_mut_ptr());
    let scratch = &mut scratch[..desc.grad_scratch_len()];
    operands.for_stripes(ctx, desc, grads, scratch, |worker, stripe, lines| {
        // SAFETY: a worker uses only its own part of the memory, and runs one task at a time.
        let sums = unsafe { std::slice::from_raw_parts_mut(sums.0.add(worker * desc.sums_len()), lines.len()) };
        // SAFETY: the kernel has no conditions.
        unsafe { Stripe { sums: &mut *sums, ..stripe }.run_on(ctx.isa) };
        lines.iter_mut().zip(sums).for_each(|(x, sum)| *x = T::round(*sum));
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::threads::ThreadPool;
    use bessemer_ir::ops::Scalar;
    use bessemer_ir::ops::detection::roi::{RoiBorder, RoiLevels, RoiSamples};

    #[test]
    fn images_out_of_range() {
        let rule = RoiAlign {
            size: [1, 1],
            samples: RoiSamples::Adaptive,
            border: RoiBorder::Torch,
            levels: RoiLevels::standard(0.0),
            strides: vec![Scalar(1.0)],
        };
        let desc = RoiDesc { rule, batch: 2, rois: 1, channels: 1, maps: vec![[2, 2]] };
        let pool = ThreadPool::new(1);
        let ctx = Ctx::alone(Isa::detect(), &pool);
        let (mut scratch, boxes) = (vec![0.0; desc.grad_scratch_len()], [0.0, 0.0, 1.0, 1.0]);
        for (image, outcome) in [(1, Ok(())), (2, Err(IndexOutOfRange { position: 0, index: 2, limit: 2 }))] {
            let features = roi_align(ctx, &desc, &[&[0.0; 8]], &boxes, &[image], &mut [0.0], &mut scratch);
            let operands = RoiGrad { dy: &[1.0], boxes: &boxes, images: &[image] };
            let grad = roi_align_grad(ctx, &desc, &operands, &mut [&mut [0.0; 8][..]], &mut scratch);
            assert_eq!([features, grad], [outcome; 2]);
        }
    }
}
