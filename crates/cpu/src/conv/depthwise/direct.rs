//! The direct kernel of depthwise convolutions: an output vector of channels is the sum over the taps of an input vector
//! times a weight vector. Neighbouring output pixels of a line, and neighbouring vectors where there are few pixels, are
//! computed at once in registers, each weight being loaded once for all pixels.

use std::marker::PhantomData;
use std::ops::Range;

use crate::conv::ConvDesc;
use crate::conv::data_grad::PhaseAxis;
use crate::conv::gather::Axis;
use crate::gemm::{FinishedRows, LINE, SharedMut, Source, Store, even_chunks};
use crate::simd::{Simd, SimdOp};

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
    pub(super) fn forward(d: &ConvDesc, axis: usize) -> Side {
        let source = d.axis(axis);
        Side { source, size: source.grid, step: 1, first: 0, weights: 0, weight_step: tap_distance(d, axis) as isize }
    }

    /// Of the input pixels at positions `phase` modulo the stride, whose gradient gathers from the output's.
    pub(super) fn data_grad(d: &ConvDesc, axis: usize, phase: usize) -> Side {
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

/// Type of elements that vectors of `f32` are read from.
pub(super) trait Element: Copy + Send + Sync + 'static {
    /// Zero.
    const ZERO: Self;
    /// A vector.
    ///
    /// # Safety
    /// Its elements are there. Called under `S::run_op`.
    unsafe fn load<S: Simd>(src: *const Self) -> S::V;
    /// Copies `len` elements.
    ///
    /// # Safety
    /// They are there, and `dst` has room for them. Called under `S::run_op`.
    unsafe fn copy<S: Simd>(src: *const Self, dst: *mut Self, len: usize);
}

impl Element for f32 {
    const ZERO: f32 = 0.0;

    #[inline(always)]
    unsafe fn load<S: Simd>(src: *const f32) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::load(src) }
    }

    #[inline(always)]
    unsafe fn copy<S: Simd>(src: *const f32, dst: *mut f32, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { S::copy(src, dst, len) }
    }
}

/// The bits of a number of type `bf16`.
impl Element for u16 {
    const ZERO: u16 = 0;

    #[inline(always)]
    unsafe fn load<S: Simd>(src: *const u16) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::load_bf16(src) }
    }

    #[inline(always)]
    unsafe fn copy<S: Simd>(src: *const u16, dst: *mut u16, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { S::copy_16(src, dst, len) }
    }
}

/// A grid of output pixels `[N, y.source.grid, x.source.grid]` of a depthwise product: sums over the taps of source
/// `[N, y.source.size, x.source.size, C]` times weights, written to pixels of the output `[N, y.size, x.size, C]`.
pub(super) struct Grid<E> {
    pub src: *const E,
    /// Elements from pixel to pixel of the source.
    pub src_pitch: usize,
    pub weights: *const f32,
    pub dst: SharedMut,
    pub channels: usize,
    pub y: Side,
    pub x: Side,
}

/// Computes the pixels of a grid in some lines `[N * y.size]` of the output, for some channels.
pub(super) struct Lines<'a, E> {
    pub grid: &'a Grid<E>,
    pub lines: Range<usize>,
    pub channels: Range<usize>,
    /// What becomes of finished pixels, in place of being left in the output. Offsets are those in the whole output.
    pub store: Option<&'a Store>,
}

/// One line of a grid.
struct Line<'a, E> {
    grid: &'a Grid<E>,
    /// The first pixel of the source line under the first line of taps inside the image.
    src: *const E,
    /// Weights of that line of taps.
    weights: *const f32,
    /// Lines of taps inside the image.
    tap_lines: usize,
    /// Offset of the first pixel of the output line.
    first: usize,
    channels: Range<usize>,
    store: Option<&'a Store>,
}

impl<E: Element> SimdOp for Lines<'_, E> {
    type Output = ();

    /// # Safety
    /// The memory of the grid is valid, and nothing else uses its pixels in these lines and channels.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let y = &self.grid.y;
        for line in self.lines.clone().filter(|line| line % y.size % y.step == y.first) {
            // SAFETY: the caller's promise.
            unsafe { self.grid.line(line, self.channels.clone(), self.store).run::<S>() };
        }
    }
}

impl<E: Element> Grid<E> {
    /// Number `line` of the lines `[N * y.size]` of the output.
    #[inline(always)]
    fn line<'a>(&'a self, line: usize, channels: Range<usize>, store: Option<&'a Store>) -> Line<'a, E> {
        let (image, position) = (line / self.y.size, line % self.y.size);
        let axis = &self.y.source;
        let start = axis.start(position / self.y.step);
        let taps = axis.taps_inside(start);
        let source_line = (image * axis.size) as isize + start + (taps.start * axis.tap) as isize;
        let weights = self.weights.wrapping_add(self.y.weights + self.x.weights);
        Line {
            grid: self,
            src: self.src.wrapping_offset(source_line * (self.x.source.size * self.src_pitch) as isize),
            weights: weights.wrapping_offset(taps.start as isize * self.y.weight_step),
            tap_lines: taps.len(),
            first: line * self.x.size * self.channels,
            channels,
            store,
        }
    }
}

impl<E: Element> Line<'_, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(&self) {
        let x = &self.grid.x.source;
        let whole = x.whole_windows();
        // SAFETY: the promises of `Lines::run`; the windows of a tile have the same taps inside the image.
        unsafe {
            for position in (0..whole.start).chain(whole.end..x.grid) {
                self.tile::<S>((1, TileTable::<S, E>::TILES[0]), position, x.taps_inside(x.start(position)));
            }
            let mut position = whole.start;
            if let Some((pixels, kernel)) = unrolled::<S, E>(x) {
                while position + pixels <= whole.end {
                    self.tile::<S>((pixels, kernel), position, 0..x.taps);
                    position += pixels;
                }
            }
            let rest = whole.end - position;
            let tiles = even_chunks(rest, MAX_PIXELS, 1);
            for pixels in (0..tiles.count).map(|tile| tiles.range(tile, rest)).filter(|pixels| !pixels.is_empty()) {
                let kernel = TileTable::<S, E>::TILES[pixels.len() - 1];
                self.tile::<S>((pixels.len(), kernel), position + pixels.start, 0..x.taps);
            }
        }
    }

    /// Runs the kernel of a number of pixels for those from grid position `position` on, from the taps `taps` of each line of taps.
    unsafe fn tile<S: Simd>(&self, (pixels, kernel): (usize, TileFn<E>), position: usize, taps: Range<usize>) {
        let (y, x, pitch) = (&self.grid.y, &self.grid.x, self.grid.channels);
        let src_pitch = self.grid.src_pitch;
        let first = self.first + (position * x.step + x.first) * pitch;
        let source = x.source.start(position) + (taps.start * x.source.tap) as isize;
        let tile = Tile {
            src: self.src.wrapping_offset(source * src_pitch as isize).wrapping_add(self.channels.start),
            src_steps: [y.source.tap * x.source.size, x.source.tap, x.source.step].map(|pixels| pixels * src_pitch),
            taps: [self.tap_lines, taps.len()],
            fresh_line: self.tap_lines.saturating_sub(y.source.step.div_ceil(y.source.tap)),
            weights: self
                .weights
                .wrapping_offset(taps.start as isize * x.weight_step)
                .wrapping_add(self.channels.start),
            weight_steps: [y.weight_step, x.weight_step],
            dst: self.grid.dst.0.wrapping_add(first + self.channels.start),
            dst_step: x.step * pitch,
            channels: self.channels.len(),
        };
        // SAFETY: the promises of `Lines::run`.
        unsafe {
            kernel(&tile);
            let Some(store) = self.store else { return };
            let mut offsets = [0; MAX_PIXELS];
            for (i, offset) in offsets[..pixels].iter_mut().enumerate() {
                *offset = first + i * tile.dst_step;
            }
            let rows =
                FinishedRows { c_rows: &offsets[..pixels], col: self.channels.start, width: self.channels.len() };
            store.write::<S>(Source::Matrix(self.grid.dst.0), rows);
        }
    }
}

/// Most pixels of a tile: as many sums as fit in 16 registers beside a weight.
const MAX_PIXELS: usize = 12;

/// Neighbouring pixels of an output line that see the same taps.
struct Tile<E> {
    /// The source under the first tap of the first pixel.
    src: *const E,
    /// Elements from a line of taps to the next, from tap to tap, and from pixel to pixel.
    src_steps: [usize; 3],
    /// Lines of taps, and taps of each line.
    taps: [usize; 2],
    /// Of the lines of taps the first one that the output line before has not read.
    fresh_line: usize,
    weights: *const f32,
    weight_steps: [isize; 2],
    dst: *mut f32,
    /// Elements from pixel to pixel.
    dst_step: usize,
    channels: usize,
}

type TileFn<E> = unsafe fn(&Tile<E>);

/// The kernels for 1 to [`MAX_PIXELS`] pixels.
struct TileTable<S, E>(PhantomData<(S, E)>);

impl<S: Simd, E: Element> TileTable<S, E> {
    const TILES: [TileFn<E>; MAX_PIXELS] = [
        tile::<S, E, 1, 8>,
        tile::<S, E, 2, 6>,
        tile::<S, E, 3, 4>,
        tile::<S, E, 4, 3>,
        tile::<S, E, 5, 2>,
        tile::<S, E, 6, 2>,
        tile::<S, E, 7, 2>,
        tile::<S, E, 8, 1>,
        tile::<S, E, 9, 1>,
        tile::<S, E, 10, 1>,
        tile::<S, E, 11, 1>,
        tile::<S, E, 12, 1>,
    ];
}

/// # Safety
/// The machine has `S`; the tile has `PIXELS` pixels, its memory is valid, and nothing else uses its output.
unsafe fn tile<S: Simd, E: Element, const PIXELS: usize, const VECTORS: usize>(tile: &Tile<E>) {
    // SAFETY: the caller's promises.
    unsafe { S::run_op(Vectors::<E, PIXELS, VECTORS>(tile)) }
}

/// [`tile`], compiled for an instruction set.
struct Vectors<'a, E, const PIXELS: usize, const VECTORS: usize>(&'a Tile<E>);

impl<E: Element, const PIXELS: usize, const VECTORS: usize> SimdOp for Vectors<'_, E, PIXELS, VECTORS> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let tile = self.0;
        let mut channel = 0;
        // SAFETY: the promises of `tile`.
        unsafe {
            while channel + VECTORS * S::LANES <= tile.channels {
                tile.vectors::<S, PIXELS, VECTORS, false>(channel);
                channel += VECTORS * S::LANES;
            }
            while channel + S::LANES <= tile.channels {
                tile.vectors::<S, PIXELS, 1, false>(channel);
                channel += S::LANES;
            }
            if channel < tile.channels {
                tile.vectors::<S, PIXELS, 1, true>(channel);
            }
        }
    }
}

/// [`column_tile`], compiled for an instruction set.
struct Columns<'a, E, const PIXELS: usize, const TAPS: usize, const STEP: usize>(&'a Tile<E>);

impl<E: Element, const PIXELS: usize, const TAPS: usize, const STEP: usize> SimdOp
    for Columns<'_, E, PIXELS, TAPS, STEP>
{
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let tile = self.0;
        let mut channel = 0;
        // SAFETY: the promises of `tile`.
        unsafe {
            while channel + S::LANES <= tile.channels {
                tile.columns::<S, PIXELS, TAPS, STEP>(channel);
                channel += S::LANES;
            }
            if channel < tile.channels {
                tile.vectors::<S, PIXELS, 1, true>(channel);
            }
        }
    }
}

impl<E: Element> Tile<E> {
    /// Asks for the memory of the tile behind this one, in a cache line of channels: what it is the first to read, and what it writes.
    #[inline(always)]
    unsafe fn prefetch<S: Simd>(&self, channel: usize, pixels: usize, step: usize) {
        let [line_step, tap_step, _] = self.src_steps;
        // SAFETY: prefetches take any address.
        unsafe {
            // A line of the cache has more elements of 16 bits.
            let is_read = (channel * size_of::<E>()).is_multiple_of(LINE * size_of::<f32>());
            for line in (self.fresh_line..self.taps[0]).filter(|_| is_read) {
                let src = self.src.wrapping_add(line * line_step + channel);
                for column in pixels * step..2 * pixels * step {
                    S::prefetch(src.wrapping_add(column * tap_step).cast());
                }
            }
            for pixel in pixels..2 * pixels {
                S::prefetch_write(self.dst.wrapping_add(pixel * self.dst_step + channel));
            }
        }
    }

    /// A vector of each pixel from a channel on.
    #[inline(always)]
    unsafe fn columns<S: Simd, const PIXELS: usize, const TAPS: usize, const STEP: usize>(&self, channel: usize) {
        let [line_step, tap_step, _] = self.src_steps;
        // SAFETY: the promises of `tile`.
        unsafe {
            if channel.is_multiple_of(LINE) {
                self.prefetch::<S>(channel, PIXELS, STEP);
            }
            let mut sums = [S::splat(0.0); PIXELS];
            for line in 0..self.taps[0] {
                let src = self.src.wrapping_add(line * line_step + channel);
                let weights = self.weights.wrapping_offset(line as isize * self.weight_steps[0]).wrapping_add(channel);
                let mut row = [S::splat(0.0); TAPS];
                for (tap, weight) in row.iter_mut().enumerate() {
                    *weight = S::load(weights.wrapping_offset(tap as isize * self.weight_steps[1]));
                }
                add_columns::<S, E, PIXELS, TAPS, STEP>(&mut sums, &row, src, tap_step);
            }
            for (pixel, &sum) in sums.iter().enumerate() {
                S::store(self.dst.wrapping_add(pixel * self.dst_step + channel), sum);
            }
        }
    }

    /// `VECTORS` vectors of each pixel from a channel on; if `PART`, those channels that are left.
    #[inline(always)]
    unsafe fn vectors<S: Simd, const PIXELS: usize, const VECTORS: usize, const PART: bool>(&self, channel: usize) {
        let [line_step, tap_step, pixel_step] = self.src_steps;
        let rest = self.channels - channel;
        // SAFETY: the promises of `tile`.
        unsafe {
            let mut sums = [[S::splat(0.0); VECTORS]; PIXELS];
            for line in 0..self.taps[0] {
                let mut src = self.src.wrapping_add(line * line_step + channel);
                let mut weights =
                    self.weights.wrapping_offset(line as isize * self.weight_steps[0]).wrapping_add(channel);
                for _ in 0..self.taps[1] {
                    for vector in 0..VECTORS {
                        let weight = load::<S, f32, PART>(weights.wrapping_add(vector * S::LANES), rest);
                        let mut pixel = src.wrapping_add(vector * S::LANES);
                        for sums in &mut sums {
                            sums[vector] = S::mul_add(load::<S, E, PART>(pixel, rest), weight, sums[vector]);
                            pixel = pixel.wrapping_add(pixel_step);
                        }
                    }
                    src = src.wrapping_add(tap_step);
                    weights = weights.wrapping_offset(self.weight_steps[1]);
                }
            }
            for (pixel, sums) in sums.iter().enumerate() {
                for (vector, &sum) in sums.iter().enumerate() {
                    let dst = self.dst.wrapping_add(pixel * self.dst_step + channel + vector * S::LANES);
                    store::<S, PART>(dst, sum, rest);
                }
            }
        }
    }
}

/// The kernel for windows of neighbouring taps, and its pixels: with the weights of a line of taps and a column of the
/// source, their sums fill 16 registers.
fn unrolled<S: Simd, E: Element>(x: &Axis) -> Option<(usize, TileFn<E>)> {
    let (pixels, kernel): (usize, TileFn<E>) = match (x.taps, x.step, x.tap) {
        (2, 1, 1) => (12, column_tile::<S, E, 12, 2, 1>),
        (3, 1, 1) => (12, column_tile::<S, E, 12, 3, 1>),
        (5, 1, 1) => (10, column_tile::<S, E, 10, 5, 1>),
        (3, 2, 1) => (12, column_tile::<S, E, 12, 3, 2>),
        (5, 2, 1) => (10, column_tile::<S, E, 10, 5, 2>),
        _ => return None,
    };
    Some((pixels, kernel))
}

/// As [`tile`] for windows of `TAPS` neighbours, `STEP` apart.
///
/// # Safety
/// As for [`tile`].
unsafe fn column_tile<S: Simd, E: Element, const PIXELS: usize, const TAPS: usize, const STEP: usize>(tile: &Tile<E>) {
    // SAFETY: the caller's promises.
    unsafe { S::run_op(Columns::<E, PIXELS, TAPS, STEP>(tile)) }
}

/// Adds the products of a line of taps, column after column of the source, each loaded once. Columns follow one another
/// at such a distance that as many sums as possible lie between two additions to the same one.
#[inline(always)]
unsafe fn add_columns<S: Simd, E: Element, const PIXELS: usize, const TAPS: usize, const STEP: usize>(
    sums: &mut [S::V; PIXELS],
    weights: &[S::V; TAPS],
    src: *const E,
    pitch: usize,
) {
    let distance = TAPS.next_multiple_of(STEP);
    macro_rules! columns {
        ($first:literal: $($index:literal)*) => {$(
            let column = $first + $index * distance;
            if $first < distance && column < (PIXELS - 1) * STEP + TAPS {
                // SAFETY: the caller's promise: the column is inside the image.
                unsafe { add_column::<S, PIXELS, TAPS, STEP>(sums, weights, column, E::load::<S>(src.add(column * pitch))) };
            }
        )*};
    }
    columns!(0: 0 1 2 3 4 5 6);
    columns!(2: 0 1 2 3 4 5 6);
    columns!(4: 0 1 2 3 4 5 6);
    columns!(1: 0 1 2 3 4 5 6);
    columns!(3: 0 1 2 3 4 5 6);
    columns!(5: 0 1 2 3 4 5 6);
}

/// Adds the products of a column of the source to the sums of the pixels that see it.
#[inline(always)]
unsafe fn add_column<S: Simd, const PIXELS: usize, const TAPS: usize, const STEP: usize>(
    sums: &mut [S::V; PIXELS],
    weights: &[S::V; TAPS],
    column: usize,
    value: S::V,
) {
    for (tap, &weight) in weights.iter().enumerate() {
        if column >= tap && (column - tap).is_multiple_of(STEP) && (column - tap) / STEP < PIXELS {
            let sum = &mut sums[(column - tap) / STEP];
            // SAFETY: called under `S::run_op`.
            *sum = unsafe { S::mul_add(value, weight, *sum) };
        }
    }
}

/// A vector; if `PART`, its first `len` elements, then zeros.
///
/// # Safety
/// `src` is valid for the given number of elements. Called under `S::run_op`.
#[inline(always)]
pub(super) unsafe fn load<S: Simd, E: Element, const PART: bool>(src: *const E, len: usize) -> S::V {
    // SAFETY: the caller's promise; a vector has 16 elements at most.
    unsafe {
        if !PART {
            return E::load::<S>(src);
        }
        let mut elements = [E::ZERO; 16];
        E::copy::<S>(src, elements.as_mut_ptr(), len);
        E::load::<S>(elements.as_ptr())
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
