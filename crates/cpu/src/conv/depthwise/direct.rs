//! The direct kernel of depthwise convolutions: an output vector of channels is the sum over the taps of an input
//! vector times a weight vector. Several output pixels of a line are computed at once, so that the weights of a line of
//! taps, and each input vector, are loaded once for all of them.

use std::ops::Range;

use crate::conv::ConvDesc;
use crate::conv::data_grad::PhaseAxis;
use crate::conv::gather::Axis;
use crate::gemm::SharedMut;
use crate::simd::{Simd, SimdOp};

/// Output pixels of a line that are computed at once.
const PIXELS: usize = 8;

/// Elements of the source lines under a line of output that stay in the first-level cache.
const RESIDENT: usize = 6 * 1024;

/// Output positions along one axis, and what they read.
#[derive(Clone, Copy)]
pub(super) struct Side {
    /// Positions of taps in the source.
    pub source: Axis,
    /// Size of the output.
    pub size: usize,
    /// Grid position `p` is output position `p * step + first`.
    pub step: usize,
    pub first: usize,
    /// Offset of the weights of the first tap.
    pub weights: usize,
    /// Elements from the weights of a tap to those of the next.
    pub weight_step: isize,
}

impl Side {
    /// Of a convolution; axis 0 is vertical, 1 horizontal.
    pub fn forward(d: &ConvDesc, axis: usize) -> Side {
        let source = d.axis(axis);
        Side { source, size: source.grid, step: 1, first: 0, weights: 0, weight_step: tap_distance(d, axis) as isize }
    }

    /// Of the input pixels at positions `phase` modulo the stride, whose gradient gathers from the output's.
    pub fn data_grad(d: &ConvDesc, axis: usize, phase: usize) -> Side {
        let taps = PhaseAxis::new(d, axis, phase);
        Side {
            source: taps.axis,
            size: [d.h, d.w][axis],
            step: d.stride[axis],
            first: phase,
            weights: taps.last * tap_distance(d, axis),
            weight_step: -((taps.kernel_step * tap_distance(d, axis)) as isize),
        }
    }
}

/// Elements from the weights of a kernel tap to those of the next along an axis.
fn tap_distance(d: &ConvDesc, axis: usize) -> usize {
    [d.kw * d.c_in, d.c_in][axis]
}

/// A grid of output pixels `[N, y.source.grid, x.source.grid]` of a depthwise product: sums over the taps of source
/// `[N, y.source.size, x.source.size, C]` times weights, written to pixels of the output `[N, y.size, x.size, C]`.
pub(super) struct Grid {
    pub src: *const f32,
    pub weights: *const f32,
    pub dst: SharedMut,
    pub channels: usize,
    pub y: Side,
    pub x: Side,
}

/// Computes the pixels of a grid in some lines `[N * y.size]` of the output, for some channels.
pub(super) struct Lines<'a> {
    pub grid: &'a Grid,
    pub lines: Range<usize>,
    pub channels: Range<usize>,
}

/// One line of a grid.
struct Line<'a> {
    grid: &'a Grid,
    /// The first pixel of the source line under the first tap line inside the image.
    src: *const f32,
    weights: *const f32,
    /// Tap lines inside the image.
    taps: usize,
    /// The first pixel of the output line.
    dst: *mut f32,
    channels: Range<usize>,
}

impl SimdOp for Lines<'_> {
    type Output = ();

    /// # Safety
    /// The memory of the grid is valid, and nothing else uses its pixels in these lines and channels.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let y = &self.grid.y;
        let lines_of_source = y.source.taps * self.grid.x.source.size;
        let chunk = (RESIDENT / lines_of_source.max(1) / 16).max(1) * 16;
        for start in self.channels.clone().step_by(chunk) {
            let channels = start..self.channels.end.min(start + chunk);
            for line in self.lines.clone().filter(|line| line % y.size % y.step == y.first) {
                let line = self.grid.line(line, channels.clone());
                // SAFETY: the caller's promise.
                unsafe { line.run::<S>() };
            }
        }
    }
}

impl Grid {
    /// Number `line` of the lines `[N * y.size]` of the output.
    fn line(&self, line: usize, channels: Range<usize>) -> Line<'_> {
        let (image, position) = (line / self.y.size, line % self.y.size);
        let axis = &self.y.source;
        let start = axis.start(position / self.y.step);
        let taps = axis.taps_inside(start);
        let source_line = (image * axis.size) as isize + start + (taps.start * axis.tap) as isize;
        Line {
            grid: self,
            src: self.src.wrapping_offset(source_line * (self.x.source.size * self.channels) as isize),
            weights: self.weights(&taps),
            taps: taps.len(),
            dst: self.dst.0.wrapping_add(line * self.x.size * self.channels),
            channels,
        }
    }

    /// Weights of the first tap of the first of some lines of taps.
    fn weights(&self, tap_lines: &Range<usize>) -> *const f32 {
        let first = self.weights.wrapping_add(self.y.weights + self.x.weights);
        first.wrapping_offset(tap_lines.start as isize * self.y.weight_step)
    }
}

impl Line<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let x = &self.grid.x.source;
        let vectors = self.channels.len() / S::LANES * S::LANES;
        let whole = self.channels.start..self.channels.start + vectors;
        let rest = whole.end..self.channels.end;
        // SAFETY: the promises of `Lines::run`.
        unsafe {
            match (x.taps, x.step, x.tap) {
                (1, 1, _) => self.tiles::<S, 1, 1>(whole),
                (2, 1, 1) => self.tiles::<S, 2, 1>(whole),
                (3, 1, 1) => self.tiles::<S, 3, 1>(whole),
                (5, 1, 1) => self.tiles::<S, 5, 1>(whole),
                (3, 2, 1) => self.tiles::<S, 3, 2>(whole),
                (5, 2, 1) => self.tiles::<S, 5, 2>(whole),
                _ => self.any_taps::<S, false>(whole),
            }
            self.any_taps::<S, true>(rest);
        }
    }

    /// The pixel of the output at a grid position.
    #[inline(always)]
    fn pixel(&self, position: usize) -> *mut f32 {
        let x = &self.grid.x;
        self.dst.wrapping_add((position * x.step + x.first) * self.grid.channels)
    }

    /// The source pixel at a position of the line, which may be outside.
    #[inline(always)]
    fn source(&self, position: isize) -> *const f32 {
        self.src.wrapping_offset(position * self.grid.channels as isize)
    }

    /// Elements from a source line under the taps to the next.
    #[inline(always)]
    fn line_step(&self) -> usize {
        self.grid.y.source.tap * self.grid.x.source.size * self.grid.channels
    }

    /// The line with `TAPS` neighbouring taps a line of taps, and windows `STEP` apart.
    #[inline(always)]
    unsafe fn tiles<S: Simd, const TAPS: usize, const STEP: usize>(&self, channels: Range<usize>) {
        let x = &self.grid.x.source;
        let columns = (PIXELS - 1) * STEP + TAPS;
        for position in (0..x.grid).step_by(PIXELS) {
            let start = x.start(position);
            let pixels = PIXELS.min(x.grid - position);
            let first = start.min(0).unsigned_abs();
            let end = (x.size as isize - start).clamp(0, columns as isize) as usize;
            let tile =
                Tile { line: self, src: self.source(start), dst: self.pixel(position), pixels, inside: first..end };
            // SAFETY: the promises of `Lines::run`; the columns `inside` are those of the image.
            unsafe {
                if pixels == PIXELS && first == 0 && end == columns {
                    tile.run::<S, TAPS, STEP, false>(channels.clone());
                } else {
                    tile.run::<S, TAPS, STEP, true>(channels.clone());
                }
            }
        }
    }

    /// The line with any taps. `PART`: the channels are less than a vector.
    #[inline(always)]
    unsafe fn any_taps<S: Simd, const PART: bool>(&self, channels: Range<usize>) {
        let x = &self.grid.x.source;
        let mut position = 0;
        while position < x.grid && !channels.is_empty() {
            let taps = x.taps_inside(x.start(position));
            let last = position + PIXELS - 1;
            let many = last < x.grid && taps.len() == x.taps && x.holds_all_taps(x.start(last));
            // SAFETY: the promises of `Lines::run`; the taps are inside the image for all pixels.
            unsafe {
                if many {
                    self.pixels::<S, PART, PIXELS>(position, taps, channels.clone());
                } else {
                    self.pixels::<S, PART, 1>(position, taps, channels.clone());
                }
            }
            position += if many { PIXELS } else { 1 };
        }
    }

    /// `N` pixels from grid position `position` on.
    #[inline(always)]
    unsafe fn pixels<S: Simd, const PART: bool, const N: usize>(
        &self,
        position: usize,
        taps: Range<usize>,
        channels: Range<usize>,
    ) {
        let (side, pitch) = (&self.grid.x, self.grid.channels);
        let x = &side.source;
        let (pixel_step, dst_step) = (x.step * pitch, side.step * pitch);
        let first = self.source(x.start(position) + (taps.start * x.tap) as isize);
        for channel in channels.clone().step_by(S::LANES) {
            let len = channels.end - channel;
            // SAFETY: the promises of `Lines::run`, and the taps are inside the image.
            unsafe {
                let mut sums = [S::splat(0.0); N];
                for tap_line in 0..self.taps {
                    let line = first.wrapping_add(tap_line * self.line_step() + channel);
                    let weights = self.weights.wrapping_offset(tap_line as isize * self.grid.y.weight_step);
                    for tap in taps.clone() {
                        let weight = weights.wrapping_offset(tap as isize * side.weight_step).wrapping_add(channel);
                        let weight = load::<S, PART>(weight, len);
                        let src = line.wrapping_add((tap - taps.start) * x.tap * pitch);
                        for (pixel, sum) in sums.iter_mut().enumerate() {
                            let value = load::<S, PART>(src.wrapping_add(pixel * pixel_step), len);
                            *sum = S::mul_add(value, weight, *sum);
                        }
                    }
                }
                let dst = self.pixel(position).wrapping_add(channel);
                for (pixel, &sum) in sums.iter().enumerate() {
                    store::<S, PART>(dst.wrapping_add(pixel * dst_step), sum, len);
                }
            }
        }
    }
}

/// [`PIXELS`] or fewer output pixels of a line.
struct Tile<'a> {
    line: &'a Line<'a>,
    /// The source pixel under the first tap of the first output pixel.
    src: *const f32,
    dst: *mut f32,
    pixels: usize,
    /// Columns of the source, from `src` on, that are inside the image.
    inside: Range<usize>,
}

impl Tile<'_> {
    /// `EDGE`: some columns are outside the image, or some pixels outside the output.
    #[inline(always)]
    unsafe fn run<S: Simd, const TAPS: usize, const STEP: usize, const EDGE: bool>(&self, channels: Range<usize>) {
        let (line, pitch) = (self.line, self.line.grid.channels);
        let (line_step, weight_step) = (line.line_step(), line.grid.x.weight_step);
        let dst_step = line.grid.x.step * pitch;
        for channel in channels.step_by(S::LANES) {
            let (mut src, mut weights) = (self.src.wrapping_add(channel), line.weights.wrapping_add(channel));
            // SAFETY: the promises of `Lines::run`.
            unsafe {
                let mut sums = [S::splat(0.0); PIXELS];
                for _ in 0..line.taps {
                    let mut row = [S::splat(0.0); TAPS];
                    for (tap, weight) in row.iter_mut().enumerate() {
                        *weight = S::load(weights.wrapping_offset(tap as isize * weight_step));
                    }
                    add_columns::<S, TAPS, STEP, EDGE>(&mut sums, &row, src, pitch, &self.inside);
                    src = src.wrapping_add(line_step);
                    weights = weights.wrapping_offset(line.grid.y.weight_step);
                }
                for (pixel, &sum) in sums.iter().enumerate() {
                    if !EDGE || pixel < self.pixels {
                        S::store(self.dst.wrapping_add(pixel * dst_step + channel), sum);
                    }
                }
            }
        }
    }
}

/// Adds the products of a line of taps, column after column of the source.
#[inline(always)]
unsafe fn add_columns<S: Simd, const TAPS: usize, const STEP: usize, const EDGE: bool>(
    sums: &mut [S::V; PIXELS],
    weights: &[S::V; TAPS],
    mut src: *const f32,
    pitch: usize,
    inside: &Range<usize>,
) {
    macro_rules! columns {
        ($($column:literal)*) => {$(
            if $column < (PIXELS - 1) * STEP + TAPS {
                if !EDGE || inside.contains(&$column) {
                    // SAFETY: the caller's promise; the column is inside the image.
                    unsafe { add_column::<S, TAPS, STEP, $column>(sums, weights, S::load(src)) };
                }
                src = src.wrapping_add(pitch);
            }
        )*};
    }
    columns!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18);
    let _ = src;
}

/// Adds to each output pixel that sees source column `COLUMN` its product.
#[inline(always)]
unsafe fn add_column<S: Simd, const TAPS: usize, const STEP: usize, const COLUMN: usize>(
    sums: &mut [S::V; PIXELS],
    weights: &[S::V; TAPS],
    value: S::V,
) {
    for (tap, &weight) in weights.iter().enumerate() {
        if COLUMN >= tap && (COLUMN - tap).is_multiple_of(STEP) && (COLUMN - tap) / STEP < PIXELS {
            let sum = &mut sums[(COLUMN - tap) / STEP];
            // SAFETY: called under `vectorize`.
            *sum = unsafe { S::mul_add(value, weight, *sum) };
        }
    }
}

/// A vector; if `PART`, its first `len` elements, then zeros.
///
/// # Safety
/// `src` is valid for so many elements. Called under `S::vectorize`.
#[inline(always)]
pub(super) unsafe fn load<S: Simd, const PART: bool>(src: *const f32, len: usize) -> S::V {
    // SAFETY: the caller's promise; a vector has 16 elements at most.
    unsafe {
        if !PART {
            return S::load(src);
        }
        let mut elements = [0.0; 16];
        S::copy(src, elements.as_mut_ptr(), len);
        S::load(elements.as_ptr())
    }
}

/// Stores a vector; if `PART`, its first `len` elements.
///
/// # Safety
/// As for [`load`].
#[inline(always)]
pub(super) unsafe fn store<S: Simd, const PART: bool>(dst: *mut f32, value: S::V, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if !PART {
            return S::store(dst, value);
        }
        let mut elements = [0.0; 16];
        S::store(elements.as_mut_ptr(), value);
        S::copy(elements.as_ptr(), dst, len);
    }
}
