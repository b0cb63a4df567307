//! The transform of the weights, to packed panels for each position.

use std::ops::Range;

use super::Direction;
use super::plan::Problem;
use super::points::{self, INPUTS, TAPS};
use crate::gemm::{Ctx, LINE, SharedMut, panel};
use crate::simd::{Simd, SimdOp};

/// Taps of the kernel.
pub(super) const KERNEL: usize = TAPS * TAPS;

/// Channels of a task.
const TASK_CHANNELS: usize = 16;

/// Transforms weights `[3, 3, Cin, Cout]` to panels.
///
/// # Safety
/// The weights are valid, and `dst` is valid and unshared for a packed matrix of each position.
pub(super) unsafe fn transform(ctx: Ctx<'_>, problem: &Problem, direction: Direction, w: *const f32, dst: *mut f32) {
    let (src, dst) = (SharedMut(w.cast_mut()), SharedMut(dst));
    ctx.pool.run(problem.channels.div_ceil(TASK_CHANNELS), &|task, _| {
        let channels = task * TASK_CHANNELS..problem.channels.min((task + 1) * TASK_CHANNELS);
        // SAFETY: the caller's promises; tasks write different channels.
        unsafe { TransformWeights { problem, direction, src, channels, dst }.run_on(ctx.isa) };
    });
}

/// Transforms the weights of some channels of the input.
struct TransformWeights<'a> {
    problem: &'a Problem,
    direction: Direction,
    src: SharedMut,
    channels: Range<usize>,
    dst: SharedMut,
}

/// Taps of a square of channels and columns, `[taps, channels, columns]`, a vector's lanes of each.
type Square = [f32; KERNEL * LINE * LINE];

impl SimdOp for TransformWeights<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Problem { channels, cols, .. } = *self.problem;
        let mut square = [0.0; KERNEL * LINE * LINE];
        for col in (0..cols.next_multiple_of(panel::<S>())).step_by(S::LANES) {
            for channel in self.channels.clone().step_by(S::LANES) {
                let steps = channel..self.channels.end.min(channel + S::LANES);
                let panel_start = col / panel::<S>() * channels * panel::<S>() + col % panel::<S>();
                // SAFETY: the promises made for these weights.
                unsafe {
                    let (src, step_stride, tap_stride) = self.taps::<S>(steps.clone(), col, &mut square);
                    for (i, step) in steps.enumerate() {
                        let dst = self.dst.0.add(panel_start + step * panel::<S>());
                        vector::<S>(src.add(i * step_stride), tap_stride, dst, self.problem.weights_stride());
                    }
                }
            }
        }
    }
}

impl TransformWeights<'_> {
    /// Where the taps of some channels lie for a vector of columns, with the distances of channels and of taps: in
    /// the weights, or copied to `square`.
    ///
    /// # Safety
    /// The weights are valid. Called under `S::run_op`.
    #[inline(always)]
    unsafe fn taps<S: Simd>(&self, steps: Range<usize>, col: usize, square: &mut Square) -> (*const f32, usize, usize) {
        let Problem { channels, cols, .. } = *self.problem;
        let width = cols.saturating_sub(col).min(S::LANES);
        let tap_stride = S::LANES * S::LANES;
        // SAFETY: the caller's promises; the square holds lanes times lanes of each tap.
        unsafe {
            match self.direction {
                Direction::Forward if width == S::LANES => {
                    return (self.src.0.add(steps.start * cols + col), cols, channels * cols);
                }
                Direction::Forward => {
                    for tap in 0..KERNEL {
                        for (i, step) in steps.clone().enumerate() {
                            for lane in 0..S::LANES {
                                let src = (tap * channels + step) * cols + col + lane;
                                square[tap * tap_stride + i * S::LANES + lane] =
                                    if lane < width { *self.src.0.add(src) } else { 0.0 };
                            }
                        }
                    }
                }
                Direction::DataGrad => {
                    for tap in 0..KERNEL {
                        let src = self.src.0.wrapping_add(((KERNEL - 1 - tap) * cols + col) * channels + steps.start);
                        let dst = square.as_mut_ptr().add(tap * tap_stride);
                        if width == S::LANES && steps.len() == S::LANES {
                            S::transpose(src, channels, dst, S::LANES);
                            continue;
                        }
                        for i in 0..steps.len() {
                            for lane in 0..S::LANES {
                                *dst.add(i * S::LANES + lane) =
                                    if lane < width { *src.add(lane * channels + i) } else { 0.0 };
                            }
                        }
                    }
                }
            }
        }
        (square.as_ptr(), S::LANES, tap_stride)
    }
}

/// Transforms the taps of one channel for a vector of columns.
///
/// # Safety
/// The taps are valid, `dst` is valid for all positions. Called under `S::run_op`.
#[inline(always)]
unsafe fn vector<S: Simd>(taps: *const f32, tap_stride: usize, dst: *mut f32, stride: usize) {
    // SAFETY: the caller's promises.
    unsafe {
        let mut lines = [[S::splat(0.0); INPUTS]; TAPS];
        for i in 0..TAPS {
            let mut line = [S::splat(0.0); TAPS];
            for j in 0..TAPS {
                line[j] = S::load(taps.add((i * TAPS + j) * tap_stride));
            }
            lines[i] = points::weights::<S>(line);
        }
        for j in 0..INPUTS {
            let column = points::weights::<S>([lines[0][j], lines[1][j], lines[2][j]]);
            for i in 0..INPUTS {
                S::store(dst.add((i * INPUTS + j) * stride), column[i]);
            }
        }
    }
}
