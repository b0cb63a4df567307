//! Gradient of the weights of a depthwise convolution: for each tap, the sum over the output pixels of the input under
//! the tap times the output gradient. The sum over the pixels is split by lines, and the parts are added in order.

use std::ops::Range;

use super::direct::{Element, load, store};
use super::{channel_groups, source_scratch_len, weight_len, widened};
use crate::conv::ConvDesc;
use crate::conv::gather::Axis;
use crate::gemm::{Ctx, Output, RowBlocks, Scratch, SharedMut, TASKS, TypedSlice, aligned_len};
use crate::parts::{Shared, for_chunks};
use crate::simd::{Simd, SimdOp};
use bessemer_ir::DType;

/// Most channels of a task.
const MAX_CHANNELS: usize = 64;

/// Fewest pixels of a split of the sum.
const MIN_PIXELS: usize = 128;

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
        let splits = (2 * TASKS).div_ceil(groups.count.max(1)).min(lines * d.ow / MIN_PIXELS).clamp(1, lines.max(1));
        Plan { splits: RowBlocks::new(lines, lines.div_ceil(splits).max(1)), groups }
    }
}

/// Scratch elements of [`weight_grad`] with operands of this type.
pub(crate) fn weight_grad_scratch_len(d: &ConvDesc, dtype: DType) -> usize {
    let operands = [d.input_len(), d.output_len()].map(|len| source_scratch_len(dtype, len));
    aligned_len(Plan::new(d).splits.count * weight_len(d)) + operands.iter().sum::<usize>()
}

/// Gradient `dw` of the weights from input `x` and output gradient `dy`, of one type.
///
/// # Panics
/// When a slice is shorter than `d` needs.
pub(crate) fn weight_grad(
    ctx: Ctx<'_>,
    d: &ConvDesc,
    x: TypedSlice<'_>,
    dy: TypedSlice<'_>,
    dw: Output<'_>,
    scratch: &mut [f32],
) {
    let dtype = x.dtype();
    assert!(dtype == dy.dtype(), "an input of {dtype} and an output gradient of {}", dy.dtype());
    let len = weight_len(d);
    let dw = dw.checked_whole(len, "weight gradient");
    let mut scratch = Scratch::new(scratch, weight_grad_scratch_len(d, dtype));
    let (x_len, dy_len) = (d.input_len(), d.output_len());
    let (x, dy) = (x.checked(x_len, "input"), dy.checked(dy_len, "output gradient"));
    // SAFETY: the extents were checked.
    unsafe {
        match dtype {
            DType::Bf16 => sum_up(ctx, d, [x.as_16(), dy.as_16()], dw, scratch),
            _ => {
                let operands = [(x, x_len), (dy, dy_len)].map(|(src, len)| widened(ctx, src, len, &mut scratch));
                sum_up(ctx, d, operands, dw, scratch);
            }
        }
    }
}

/// # Safety
/// Input and output gradient hold what `d` says, and `dw` is valid and unshared.
unsafe fn sum_up<E: Element>(ctx: Ctx<'_>, d: &ConvDesc, [x, dy]: [*const E; 2], dw: SharedMut, mut scratch: Scratch) {
    let plan = Plan::new(d);
    let len = weight_len(d);
    let partials = scratch.take(plan.splits.count * len);
    let [x, dy] = &[x, dy].map(|operand| Shared(operand.cast_mut()));
    ctx.pool.run(plan.splits.count * plan.groups.count, &|task, _worker| {
        let (split, group) = (task / plan.groups.count, task % plan.groups.count);
        // SAFETY: the scratch has a part for each split; tasks have different parts or channels.
        unsafe {
            let dw = partials.add(split * len);
            let channels = plan.groups.range(group, d.c_in);
            let lines = plan.splits.range(split, d.n * d.oh);
            PartialSum { d, x: x.0, dy: dy.0, dw, lines, channels }.run_on(ctx.isa);
        }
    });
    // SAFETY: the caller's promise, and all parts are written.
    let (dw, partials) = unsafe {
        (std::slice::from_raw_parts_mut(dw.0, len), std::slice::from_raw_parts(partials.0, plan.splits.count * len))
    };
    for_chunks(ctx, dw, CHUNK, &|piece, dw| {
        let range = piece * CHUNK..piece * CHUNK + dw.len();
        dw.fill(0.0);
        for part in partials.chunks_exact(len) {
            dw.iter_mut().zip(&part[range.clone()]).for_each(|(sum, x)| *sum += x);
        }
    });
}

/// Weights whose parts are added in one task.
const CHUNK: usize = 4 * 1024;

/// The part of some lines of the output, for some channels.
struct PartialSum<'a, E> {
    d: &'a ConvDesc,
    x: *const E,
    dy: *const E,
    /// `[KH, KW, C]`, overwritten.
    dw: SharedMut,
    lines: Range<usize>,
    channels: Range<usize>,
}

impl<E: Element> SimdOp for PartialSum<'_, E> {
    type Output = ();

    /// # Safety
    /// The operands hold what `d` says, and `dw` is valid and unshared for the channels.
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
            unsafe {
                match d.kh {
                    3 => band.run::<S, 3, 4>(),
                    5 => band.run::<S, 5, 2>(),
                    _ => band.run::<S, 1, 8>(),
                }
            }
            line += end - first;
        }
    }
}

/// Some lines of one image of the output.
struct Band<'a, E> {
    sum: &'a PartialSum<'a, E>,
    y: Axis,
    x: Axis,
    image: usize,
    lines: Range<usize>,
}

impl<E: Element> Band<'_, E> {
    /// Sums for `LINES` lines of taps at a time, and for `VECTORS` vectors of channels.
    #[inline(always)]
    unsafe fn run<S: Simd, const LINES: usize, const VECTORS: usize>(&self) {
        let end = self.sum.channels.end;
        let mut channel = self.sum.channels.start;
        // SAFETY: the promises of `PartialSum::run`.
        unsafe {
            while channel + VECTORS * S::LANES <= end {
                self.taps::<S, LINES, VECTORS, false>(channel);
                channel += VECTORS * S::LANES;
            }
            while channel + S::LANES <= end {
                self.taps::<S, LINES, 1, false>(channel);
                channel += S::LANES;
            }
            if channel < end {
                self.taps::<S, LINES, 1, true>(channel);
            }
        }
    }

    /// All taps for the vectors from `channel` on. Lines of the output that see `LINES` lines of taps inside the image
    /// serve them at once, others one by one.
    #[inline(always)]
    unsafe fn taps<S: Simd, const LINES: usize, const VECTORS: usize, const PART: bool>(&self, channel: usize) {
        for first in (0..self.y.taps).step_by(LINES) {
            let whole = self.lines_under(first, LINES);
            for tap in 0..self.x.taps {
                // SAFETY: the promises of `PartialSum::run`; the taps are inside the image.
                unsafe {
                    self.add::<S, LINES, VECTORS, PART>([first, tap], whole.clone(), channel);
                    for tap_line in first..first + LINES {
                        let lines = self.lines_under(tap_line, 1);
                        let before = lines.start..lines.end.min(whole.start);
                        let after = lines.start.max(whole.end)..lines.end;
                        self.add::<S, 1, VECTORS, PART>([tap_line, tap], before, channel);
                        self.add::<S, 1, VECTORS, PART>([tap_line, tap], after, channel);
                    }
                }
            }
        }
    }

    /// The lines of the band with `count` lines of taps from `first` on inside the image.
    fn lines_under(&self, first: usize, count: usize) -> Range<usize> {
        let lines = self.y.some_taps(first, count).whole_windows();
        let start = lines.start.clamp(self.lines.start, self.lines.end);
        start..lines.end.clamp(start, self.lines.end)
    }

    /// Adds the products of lines `lines` with the input under tap `tap` and under the `LINES - 1` taps below it.
    #[inline(always)]
    unsafe fn add<S: Simd, const LINES: usize, const VECTORS: usize, const PART: bool>(
        &self,
        tap: [usize; 2],
        lines: Range<usize>,
        channel: usize,
    ) {
        if lines.is_empty() {
            return;
        }
        let (d, pitch, rest) = (self.sum.d, self.sum.d.c_in, self.sum.channels.end - channel);
        let x = self.x.some_taps(tap[1], 1);
        let pixels = x.whole_windows();
        let dw = self.sum.dw.0.wrapping_add((tap[0] * d.kw + tap[1]) * pitch + channel);
        let weight = |line: usize, vector: usize| dw.wrapping_add(line * d.kw * pitch + vector * S::LANES);
        let tap_line = self.y.tap * d.w * pitch;
        // SAFETY: the promises of `PartialSum::run`; only pixels inside the image are read.
        unsafe {
            let mut sums = [[S::splat(0.0); VECTORS]; LINES];
            for (line, sums) in sums.iter_mut().enumerate() {
                for (vector, sum) in sums.iter_mut().enumerate() {
                    *sum = load::<S, f32, PART>(weight(line, vector), rest);
                }
            }
            for line in lines {
                let source = (self.image * d.h) as isize + self.y.some_taps(tap[0], 1).start(line);
                let first = source * d.w as isize + x.start(pixels.start);
                let mut src = self.sum.x.offset(first * pitch as isize).add(channel);
                let first = (self.image * d.oh + line) * d.ow + pixels.start;
                let mut grad = self.sum.dy.add(first * pitch + channel);
                for _ in pixels.clone() {
                    for vector in 0..VECTORS {
                        let dy = load::<S, E, PART>(grad.wrapping_add(vector * S::LANES), rest);
                        let mut x = src.wrapping_add(vector * S::LANES);
                        for sums in &mut sums {
                            sums[vector] = S::mul_add(load::<S, E, PART>(x, rest), dy, sums[vector]);
                            x = x.wrapping_add(tap_line);
                        }
                    }
                    src = src.wrapping_add(x.step * pitch);
                    grad = grad.wrapping_add(pitch);
                }
            }
            for (line, sums) in sums.iter().enumerate() {
                for (vector, &sum) in sums.iter().enumerate() {
                    store::<S, PART>(weight(line, vector), sum, rest);
                }
            }
        }
    }
}
