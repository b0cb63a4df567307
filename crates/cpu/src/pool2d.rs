//! Max pooling of `[N, H, W, C]` in any type of float, average pooling in `f32`, and their gradients, vectorised along the channels.

use crate::gemm::Ctx;
use crate::parts::{CHUNK, for_chunks};
use crate::simd::{Simd, SimdOp};
use crate::vector;
use half::{bf16, f16};
use std::ops::Range;

/// An element type of pooled tensors; kernels compute in `f32`.
pub trait Element: Copy + Send + Sync + 'static {
    /// The element as an `f32`; exact.
    fn widen(self) -> f32;
    /// The nearest element, ties to even.
    fn round(x: f32) -> Self;
}

impl Element for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
    #[inline(always)]
    fn round(x: f32) -> f32 {
        x
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        vector::widen_bf16(self.to_bits())
    }
    #[inline(always)]
    fn round(x: f32) -> bf16 {
        bf16::from_bits(vector::round_bf16(x))
    }
}

impl Element for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        vector::widen_f16(self.to_bits())
    }
    #[inline(always)]
    fn round(x: f32) -> f16 {
        f16::from_bits(vector::round_f16(x))
    }
}

/// Sizes of a pooling. The output is `[n, oh, ow, c]`; no window lies in the padding alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolDesc {
    /// Images of the batch.
    pub n: usize,
    /// Height of the input.
    pub h: usize,
    /// Width of the input.
    pub w: usize,
    /// Channels.
    pub c: usize,
    /// Height of the output.
    pub oh: usize,
    /// Width of the output.
    pub ow: usize,
    /// Height and width of the window.
    pub window: [usize; 2],
    /// Step of the window, vertical and horizontal; at least 1.
    pub stride: [usize; 2],
    /// Padding above and on the left.
    pub pad: [usize; 2],
}

/// The part of a range `0..size` under window number `position`.
#[inline(always)]
fn window(position: usize, stride: usize, pad: usize, kernel: usize, size: usize) -> Range<usize> {
    let start = position * stride;
    start.saturating_sub(pad)..(start + kernel).saturating_sub(pad).min(size)
}

impl PoolDesc {
    /// Elements of the input.
    pub fn x_len(&self) -> usize {
        self.n * self.h * self.w * self.c
    }

    /// Elements of the output.
    pub fn y_len(&self) -> usize {
        self.n * self.oh * self.ow * self.c
    }

    #[inline(always)]
    fn window_rows(&self, oh: usize) -> Range<usize> {
        window(oh, self.stride[0], self.pad[0], self.window[0], self.h)
    }

    #[inline(always)]
    fn window_cols(&self, ow: usize) -> Range<usize> {
        window(ow, self.stride[1], self.pad[1], self.window[1], self.w)
    }

    /// What the sum over a window of `present` elements is divided by.
    #[inline(always)]
    fn divisor(&self, present: usize, count_include_pad: bool) -> f32 {
        (if count_include_pad { self.window[0] * self.window[1] } else { present }) as f32
    }

    /// Elements of a task's part of `rows` rows of `row` elements each.
    fn rows_of_task(rows: usize, row: usize) -> usize {
        (CHUNK / row.max(1)).clamp(1, rows.max(1))
    }

    fn check(&self, x: usize, y: usize) {
        assert!(x == self.x_len() && y == self.y_len(), "a pooling got tensors of other sizes");
    }
}

/// How a window's elements become one.
#[derive(Clone, Copy)]
enum Pooling {
    Max,
    Average { count_include_pad: bool },
}

/// Rows `first_row..` of the output, `[N * OH, OW, C]`.
struct Forward<'a, T> {
    desc: &'a PoolDesc,
    pooling: Pooling,
    x: &'a [T],
    first_row: usize,
    y: &'a mut [T],
}

impl<T: Element> Forward<'_, T> {
    /// For `N` channels from `start` on of an output pixel with this window. Returns `N`.
    #[inline(always)]
    fn channels<const N: usize, const IS_MAX: bool>(
        &self,
        image: usize,
        rows: &Range<usize>,
        cols: &Range<usize>,
        start: usize,
        pixel: &mut [T],
    ) -> usize {
        let d = self.desc;
        let mut values = [if IS_MAX { f32::NEG_INFINITY } else { 0.0 }; N];
        for ih in rows.clone() {
            for iw in cols.clone() {
                let x: [f32; N] = channels(self.x, ((image * d.h + ih) * d.w + iw) * d.c + start);
                for (value, x) in values.iter_mut().zip(x) {
                    let larger = if x > *value || x.is_nan() { x } else { *value };
                    *value = if IS_MAX { larger } else { *value + x };
                }
            }
        }
        if let Pooling::Average { count_include_pad } = self.pooling {
            let divisor = d.divisor(rows.len() * cols.len(), count_include_pad);
            values.iter_mut().for_each(|sum| *sum /= divisor);
        }
        for (y, value) in pixel[start..start + N].iter_mut().zip(values) {
            *y = T::round(value);
        }
        N
    }
}

impl<T: Element> SimdOp for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let d = self.desc;
        let y = std::mem::take(&mut self.y);
        for (i, pixel) in y.chunks_exact_mut(d.c).enumerate() {
            let (row, ow) = (self.first_row + i / d.ow, i % d.ow);
            let (image, oh) = (row / d.oh, row % d.oh);
            let (rows, cols) = (d.window_rows(oh), d.window_cols(ow));
            let mut start = 0;
            while start < d.c {
                start += match (d.c - start, self.pooling) {
                    (64.., Pooling::Max) => self.channels::<64, true>(image, &rows, &cols, start, pixel),
                    (16.., Pooling::Max) => self.channels::<16, true>(image, &rows, &cols, start, pixel),
                    (_, Pooling::Max) => self.channels::<1, true>(image, &rows, &cols, start, pixel),
                    (16.., _) => self.channels::<16, false>(image, &rows, &cols, start, pixel),
                    _ => self.channels::<1, false>(image, &rows, &cols, start, pixel),
                };
            }
        }
    }
}

fn forward<T: Element>(ctx: Ctx<'_>, desc: &PoolDesc, pooling: Pooling, x: &[T], y: &mut [T]) {
    desc.check(x.len(), y.len());
    let row = desc.ow * desc.c;
    let rows = PoolDesc::rows_of_task(desc.n * desc.oh, row * desc.window[0] * desc.window[1] / 2);
    for_chunks(ctx, y, rows * row, &|task, y| {
        let part = Forward { desc, pooling, x, first_row: task * rows, y };
        // SAFETY: the kernel has no conditions.
        unsafe { part.run_on(ctx.isa) }
    });
}

/// Maximum of each window; a window with a NaN gives NaN.
pub fn max_pool<T: Element>(ctx: Ctx<'_>, desc: &PoolDesc, x: &[T], y: &mut [T]) {
    forward(ctx, desc, Pooling::Max, x, y);
}

/// Mean of each window.
pub fn avg_pool(ctx: Ctx<'_>, desc: &PoolDesc, count_include_pad: bool, x: &[f32], y: &mut [f32]) {
    forward(ctx, desc, Pooling::Average { count_include_pad }, x, y);
}

/// What a gradient is computed from.
#[derive(Clone, Copy)]
enum Gradient<'a, T> {
    Max { x: &'a [T], y: &'a [T] },
    Average { count_include_pad: bool },
}

/// Rows `band` of image `image` of the input's gradient: gathers from every window that touches them, in the order of
/// the windows.
struct Backward<'a, T> {
    desc: &'a PoolDesc,
    gradient: Gradient<'a, T>,
    dy: &'a [T],
    image: usize,
    band: Range<usize>,
    /// The sums.
    dx: &'a mut [f32],
    /// Where the sums are rounded to, if they are not in their place.
    rounded: &'a mut [T],
}

impl<T: Element> Backward<'_, T> {
    /// Rows of the output whose windows touch the band.
    #[inline(always)]
    fn windows(&self) -> Range<usize> {
        let d = self.desc;
        let first = (self.band.start + d.pad[0] + 1).saturating_sub(d.window[0]).div_ceil(d.stride[0]);
        let end = (self.band.end - 1 + d.pad[0]) / d.stride[0] + 1;
        first..end.min(d.oh)
    }

    #[inline(always)]
    fn average(&mut self, dy: &[T], rows: Range<usize>, cols: Range<usize>, divisor: f32) {
        let d = self.desc;
        let touched = rows.start.max(self.band.start)..rows.end.min(self.band.end);
        for ih in touched {
            for iw in cols.clone() {
                let dx = &mut self.dx[((ih - self.band.start) * d.w + iw) * d.c..][..d.c];
                dx.iter_mut().zip(dy).for_each(|(dx, dy)| *dx += dy.widen() / divisor);
            }
        }
    }

    #[inline(always)]
    fn max(&mut self, x: &[T], y: &[T], dy: &[T], rows: Range<usize>, cols: Range<usize>) {
        let mut start = 0;
        while start < self.desc.c {
            start += match self.desc.c - start {
                64.. => self.max_of_channels::<64>(x, y, dy, &rows, &cols, start),
                16.. => self.max_of_channels::<16>(x, y, dy, &rows, &cols, start),
                _ => self.max_of_channels::<1>(x, y, dy, &rows, &cols, start),
            };
        }
    }

    /// For `N` channels from `start` on, the first maximum, row by row, takes the gradient: `left` is what the elements so
    /// far have left of it. Returns `N`.
    #[inline(always)]
    fn max_of_channels<const N: usize>(
        &mut self,
        x: &[T],
        y: &[T],
        dy: &[T],
        rows: &Range<usize>,
        cols: &Range<usize>,
        start: usize,
    ) -> usize {
        let d = self.desc;
        let y: [f32; N] = channels(y, start);
        let mut left: [f32; N] = channels(dy, start);
        for ih in rows.clone() {
            for iw in cols.clone() {
                let x: [f32; N] = channels(x, ((self.image * d.h + ih) * d.w + iw) * d.c + start);
                let hit: [bool; N] = std::array::from_fn(|i| x[i] == y[i] || (x[i].is_nan() && y[i].is_nan()));
                if self.band.contains(&ih) {
                    let position = ((ih - self.band.start) * d.w + iw) * d.c + start;
                    let dx = self.dx[position..].first_chunk_mut::<N>().expect("the band has the row");
                    for i in 0..N {
                        dx[i] += if hit[i] { left[i] } else { 0.0 };
                    }
                }
                for i in 0..N {
                    left[i] = if hit[i] { 0.0 } else { left[i] };
                }
            }
        }
        N
    }
}

/// `N` elements from a position on.
#[inline(always)]
pub(crate) fn channels<const N: usize, T: Element>(x: &[T], position: usize) -> [f32; N] {
    let x: &[T; N] = x[position..].first_chunk().expect("the tensor has the channels");
    std::array::from_fn(|i| x[i].widen())
}

impl<T: Element> SimdOp for Backward<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let d = self.desc;
        self.dx.fill(0.0);
        for oh in self.windows() {
            for ow in 0..d.ow {
                let (rows, cols) = (d.window_rows(oh), d.window_cols(ow));
                let pixel = ((self.image * d.oh + oh) * d.ow + ow) * d.c..;
                let dy = &self.dy[pixel.clone()][..d.c];
                match self.gradient {
                    Gradient::Max { x, y } => self.max(x, &y[pixel][..d.c], dy, rows, cols),
                    Gradient::Average { count_include_pad } => {
                        let divisor = d.divisor(rows.len() * cols.len(), count_include_pad);
                        self.average(dy, rows, cols, divisor);
                    }
                }
            }
        }
        for (rounded, &sum) in self.rounded.iter_mut().zip(&*self.dx) {
            *rounded = T::round(sum);
        }
    }
}

impl PoolDesc {
    /// Rows of the input that a task of the gradient writes. Windows across the border of two bands are looked at twice.
    fn band_rows(&self) -> usize {
        PoolDesc::rows_of_task(self.h, self.w * self.c).max((8 * self.stride[0]).min(self.h)).max(1)
    }

    /// Elements of scratch that [`max_pool_grad`] needs for a gradient of 16-bit numbers.
    pub fn sums_len(&self, threads: usize) -> usize {
        threads * self.band_rows() * self.w * self.c
    }
}

/// Calls `f(worker, image, band, gradient)` for bands of rows of images, as tasks.
fn for_bands<T: Element>(
    ctx: Ctx<'_>,
    d: &PoolDesc,
    dx: &mut [T],
    f: impl Fn(usize, usize, Range<usize>, &mut [T]) + Sync,
) {
    let (row, rows) = (d.w * d.c, d.band_rows());
    for_images(ctx, dx, d.h * row, d.h.div_ceil(rows), rows * row, |worker, image, band, dx| {
        f(worker, image, band * rows..d.h.min((band + 1) * rows), dx);
    });
}

fn backward(ctx: Ctx<'_>, desc: &PoolDesc, gradient: Gradient<'_, f32>, dy: &[f32], dx: &mut [f32]) {
    desc.check(dx.len(), dy.len());
    for_bands(ctx, desc, dx, |_, image, band, dx| {
        let part = Backward { desc, gradient, dy, image, band, dx, rounded: &mut [] };
        // SAFETY: the kernel has no conditions.
        unsafe { part.run_on(ctx.isa) }
    });
}

/// Cuts each image of `image_len` elements into `bands` pieces of `band_len`, the last one maybe shorter, and calls
/// `f(worker, image, band, piece)` for each, as tasks.
fn for_images<T: Element>(
    ctx: Ctx<'_>,
    data: &mut [T],
    image_len: usize,
    bands: usize,
    band_len: usize,
    f: impl Fn(usize, usize, usize, &mut [T]) + Sync,
) {
    let images = data.len() / image_len.max(1);
    let base = &crate::parts::Shared(data.as_mut_ptr());
    ctx.pool.run(images * bands, &|task, worker| {
        let (image, band) = (task / bands, task % bands);
        let len = band_len.min(image_len - band * band_len);
        let start = image * image_len + band * band_len;
        // SAFETY: the pieces lie within `data` and are disjoint.
        f(worker, image, band, unsafe { std::slice::from_raw_parts_mut(base.0.add(start), len) });
    });
}

/// Gradient of [`max_pool`] from its input `x`, its output `y` and the output's gradient: the first maximum of each
/// window, row by row, takes the window's gradient.
pub fn max_pool_grad(ctx: Ctx<'_>, desc: &PoolDesc, x: &[f32], y: &[f32], dy: &[f32], dx: &mut [f32]) {
    desc.check(x.len(), y.len());
    backward(ctx, desc, Gradient::Max { x, y }, dy, dx);
}

/// As [`max_pool_grad`], of 16-bit numbers: sums are made in `sums`, of at least [`PoolDesc::sums_len`] elements, and rounded once.
pub fn max_pool_grad_16<T: Element>(
    ctx: Ctx<'_>,
    desc: &PoolDesc,
    x: &[T],
    y: &[T],
    dy: &[T],
    dx: &mut [T],
    sums: &mut [f32],
) {
    desc.check(x.len(), y.len());
    desc.check(dx.len(), dy.len());
    let band_len = desc.band_rows() * desc.w * desc.c;
    assert!(sums.len() >= desc.sums_len(ctx.pool.threads()), "the scratch of a gradient is too short");
    let sums = &crate::parts::Shared(sums.as_mut_ptr());
    for_bands(ctx, desc, dx, |worker, image, band, rounded| {
        // SAFETY: a worker uses only its own part of the memory, and runs one task at a time.
        let dx = unsafe { std::slice::from_raw_parts_mut(sums.0.add(worker * band_len), rounded.len()) };
        let part = Backward { desc, gradient: Gradient::Max { x, y }, dy, image, band, dx, rounded };
        // SAFETY: the kernel has no conditions.
        unsafe { part.run_on(ctx.isa) }
    });
}

/// Gradient of [`avg_pool`].
pub fn avg_pool_grad(ctx: Ctx<'_>, desc: &PoolDesc, count_include_pad: bool, dy: &[f32], dx: &mut [f32]) {
    backward(ctx, desc, Gradient::Average { count_include_pad }, dy, dx);
}
