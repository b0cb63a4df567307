//! Gradient of the weights of a depthwise convolution: for each tap, the sum over the output pixels of the input under
//! the tap times the output gradient. The sum over the pixels is split by lines, and the parts are added in order.

use std::ops::Range;

use super::direct::{load, store};
use super::{channel_groups, check, weight_len};
use crate::conv::ConvDesc;
use crate::conv::gather::Axis;
use crate::gemm::{Ctx, Output, RowBlocks, Scratch, SharedMut, TASKS, aligned_len};
use crate::parts::for_pieces;
use crate::simd::{Simd, SimdOp, dispatch};

/// Most channels of a task.
const MAX_CHANNELS: usize = 128;

/// Elements of input and output gradient for one vector of channels that stay in the first-level cache from one line of
/// taps to the next.
const RESIDENT: usize = 4 * 1024;

/// How the sum is cut into tasks: by lines `[N * OH]` of the output, and by channels.
struct Plan {
    splits: RowBlocks,
    groups: RowBlocks,
}

impl Plan {
    fn new(d: &ConvDesc) -> Plan {
        let groups = channel_groups(d.c_in, MAX_CHANNELS);
        let lines = d.n * d.oh;
        let splits = (2 * TASKS).div_ceil(groups.count.max(1)).min(lines).max(1);
        Plan { splits: RowBlocks::new(lines, lines.div_ceil(splits).max(1)), groups }
    }
}

/// Scratch elements of [`weight_grad`].
pub(crate) fn weight_grad_scratch_len(d: &ConvDesc) -> usize {
    aligned_len(Plan::new(d).splits.count * weight_len(d))
}

/// Gradient `dw` of the weights from input `x` and output gradient `dy`.
///
/// # Panics
/// When a slice is shorter than `d` needs.
pub(crate) fn weight_grad(ctx: Ctx<'_>, d: &ConvDesc, x: &[f32], dy: &[f32], dw: Output<'_>, scratch: &mut [f32]) {
    check(d.input_len(), x, "input");
    check(d.output_len(), dy, "output gradient");
    let plan = Plan::new(d);
    let len = weight_len(d);
    let dw = dw.checked(len, "weight gradient");
    let partials = Scratch::new(scratch, weight_grad_scratch_len(d)).take(plan.splits.count * len);
    ctx.pool.run(plan.splits.count * plan.groups.count, &|task, _worker| {
        let (split, group) = (task / plan.groups.count, task % plan.groups.count);
        // SAFETY: the scratch has a part for each split; tasks have different parts or channels.
        unsafe {
            let dw = partials.add(split * len);
            let channels = plan.groups.range(group, d.c_in);
            dispatch(ctx.isa, PartialSum { d, x, dy, dw, lines: plan.splits.range(split, d.n * d.oh), channels });
        }
    });
    // SAFETY: the extents were checked, and all parts are written.
    let (dw, partials) = unsafe {
        (std::slice::from_raw_parts_mut(dw.0, len), std::slice::from_raw_parts(partials.0, plan.splits.count * len))
    };
    for_pieces(ctx, dw, PIECE, &|piece, dw| {
        let range = piece * PIECE..piece * PIECE + dw.len();
        dw.fill(0.0);
        for part in partials.chunks_exact(len) {
            dw.iter_mut().zip(&part[range.clone()]).for_each(|(sum, x)| *sum += x);
        }
    });
}

/// Weights whose parts are added in one task.
const PIECE: usize = 4 * 1024;

/// The part of some lines of the output, for some channels.
struct PartialSum<'a> {
    d: &'a ConvDesc,
    x: &'a [f32],
    dy: &'a [f32],
    /// `[KH, KW, C]`, overwritten.
    dw: SharedMut,
    lines: Range<usize>,
    channels: Range<usize>,
}

impl SimdOp for PartialSum<'_> {
    type Output = ();

    /// # Safety
    /// The slices hold what `d` says, and `dw` is valid and unshared for the channels.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let d = self.d;
        for tap in 0..d.kh * d.kw {
            for channel in self.channels.clone() {
                // SAFETY: the caller's promise.
                unsafe { *self.dw.0.add(tap * d.c_in + channel) = 0.0 };
            }
        }
        let line_len = (d.w * d.stride[0] + d.ow) * 16;
        let step = (RESIDENT / line_len).max(1);
        let mut line = self.lines.start;
        while line < self.lines.end {
            let (image, first) = (line / d.oh, line % d.oh);
            let end = d.oh.min(first + step).min(first + self.lines.end - line);
            let band = Band { sum: &self, y: d.axis(0), x: d.axis(1), image, lines: first..end };
            // SAFETY: the caller's promise.
            unsafe { band.run::<S>() };
            line += end - first;
        }
    }
}

/// Some lines of one image of the output.
struct Band<'a> {
    sum: &'a PartialSum<'a>,
    y: Axis,
    x: Axis,
    image: usize,
    lines: Range<usize>,
}

impl Band<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(&self) {
        let channels = self.sum.channels.clone();
        // SAFETY: the promises of `PartialSum::run`.
        unsafe {
            let next = match self.x.taps {
                3 => self.vectors::<S, 3, 4>(channels.start),
                5 => self.vectors::<S, 5, 2>(channels.start),
                _ => self.vectors::<S, 1, 8>(channels.start),
            };
            let next = match self.x.taps {
                3 => self.vectors::<S, 3, 1>(next),
                5 => self.vectors::<S, 5, 1>(next),
                _ => self.vectors::<S, 1, 1>(next),
            };
            if next < channels.end {
                self.taps::<S, 1, 1, true>(next);
            }
        }
    }

    /// Channels from `channel` on, `VECTORS` vectors at a time, as long as there are so many; the first channel left.
    #[inline(always)]
    unsafe fn vectors<S: Simd, const TAPS: usize, const VECTORS: usize>(&self, mut channel: usize) -> usize {
        while channel + VECTORS * S::LANES <= self.sum.channels.end {
            // SAFETY: the promises of `PartialSum::run`.
            unsafe { self.taps::<S, TAPS, VECTORS, false>(channel) };
            channel += VECTORS * S::LANES;
        }
        channel
    }

    /// All taps for the vectors from `channel` on, `TAPS` neighbours of a line of taps at a time.
    #[inline(always)]
    unsafe fn taps<S: Simd, const TAPS: usize, const VECTORS: usize, const PART: bool>(&self, channel: usize) {
        for tap_line in 0..self.y.taps {
            for first_tap in (0..self.x.taps).step_by(TAPS) {
                // SAFETY: the promises of `PartialSum::run`.
                unsafe { self.tap_run::<S, TAPS, VECTORS, PART>(tap_line, first_tap, channel) };
            }
        }
    }

    /// `TAPS` taps from `first_tap` on of a line of taps.
    #[inline(always)]
    unsafe fn tap_run<S: Simd, const TAPS: usize, const VECTORS: usize, const PART: bool>(
        &self,
        tap_line: usize,
        first_tap: usize,
        channel: usize,
    ) {
        let (d, pitch, rest) = (self.sum.d, self.sum.d.c_in, self.sum.channels.end - channel);
        let x = Axis { taps: TAPS, base: self.x.base + (first_tap * self.x.tap) as isize, ..self.x };
        let whole = x.whole_windows();
        let dw = self.sum.dw.0.wrapping_add((tap_line * d.kw + first_tap) * pitch + channel);
        let weight = |tap: usize, vector: usize| dw.wrapping_add(tap * pitch + vector * S::LANES);
        // SAFETY: the promises of `PartialSum::run`; only pixels inside the image are read.
        unsafe {
            let mut sums = [[S::splat(0.0); VECTORS]; TAPS];
            for (tap, sums) in sums.iter_mut().enumerate() {
                for (vector, sum) in sums.iter_mut().enumerate() {
                    *sum = load::<S, PART>(weight(tap, vector), rest);
                }
            }
            for line in self.lines.clone() {
                let source = self.y.start(line) + (tap_line * self.y.tap) as isize;
                if !(0..d.h as isize).contains(&source) {
                    continue;
                }
                let src = self.sum.x.as_ptr().add((self.image * d.h + source as usize) * d.w * pitch + channel);
                let grad = self.sum.dy.as_ptr().add((self.image * d.oh + line) * d.ow * pitch + channel);
                let pixel = |position: usize| Pixel {
                    x: src.wrapping_offset(x.start(position) * pitch as isize),
                    dy: grad.wrapping_add(position * pitch),
                    tap: x.tap * pitch,
                    len: rest,
                };
                for position in 0..whole.start {
                    pixel(position).add::<S, TAPS, VECTORS, PART, true>(&mut sums, x.taps_inside(x.start(position)));
                }
                for position in whole.clone() {
                    pixel(position).add::<S, TAPS, VECTORS, PART, false>(&mut sums, 0..TAPS);
                }
                for position in whole.end..d.ow {
                    pixel(position).add::<S, TAPS, VECTORS, PART, true>(&mut sums, x.taps_inside(x.start(position)));
                }
            }
            for (tap, sums) in sums.iter().enumerate() {
                for (vector, &sum) in sums.iter().enumerate() {
                    store::<S, PART>(weight(tap, vector), sum, rest);
                }
            }
        }
    }
}

/// A pixel of the output gradient and the input under a run of taps, from some channel on.
struct Pixel {
    x: *const f32,
    dy: *const f32,
    /// Elements from the input under a tap to that under the next.
    tap: usize,
    /// Channels to the end of the task's.
    len: usize,
}

impl Pixel {
    /// Adds the products with the input under the taps `inside` the image: under all of them if not `EDGE`.
    #[inline(always)]
    unsafe fn add<S: Simd, const TAPS: usize, const VECTORS: usize, const PART: bool, const EDGE: bool>(
        &self,
        sums: &mut [[S::V; VECTORS]; TAPS],
        inside: Range<usize>,
    ) {
        for vector in 0..VECTORS {
            // SAFETY: the promises of `PartialSum::run`.
            unsafe {
                let grad = load::<S, PART>(self.dy.wrapping_add(vector * S::LANES), self.len);
                for (tap, sums) in sums.iter_mut().enumerate() {
                    if !EDGE || inside.contains(&tap) {
                        let x = load::<S, PART>(self.x.wrapping_add(tap * self.tap + vector * S::LANES), self.len);
                        sums[vector] = S::mul_add(x, grad, sums[vector]);
                    }
                }
            }
        }
    }
}
