//! Convolution as a product: row `(n, p, q)` of the implicit matrix holds the pixels under the kernel's taps.

use std::ops::Range;

use crate::gemm::{Region, Row, RowSource};
use crate::simd::Simd;

/// Positions of taps along one axis: tap `j` at grid position `p` is at `p * step + base + j * tap` in the image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    /// Size of the image.
    pub size: usize,
    /// Size of the grid of output positions.
    pub grid: usize,
    pub step: usize,
    pub base: isize,
    pub taps: usize,
    pub tap: usize,
}

/// The implicit matrix over images `[N, y.size, x.size, channels]`: rows `[N, y.grid, x.grid]`, elements
/// `[y.taps, x.taps, channels]`, zero outside the image.
#[derive(Clone, Copy)]
pub(crate) struct Gather {
    pub src: *const f32,
    pub channels: usize,
    pub y: Axis,
    pub x: Axis,
}

// SAFETY: only read, and whoever builds one vouches for its extent.
unsafe impl Sync for Gather {}

impl Gather {
    /// Elements of a row.
    pub fn row_len(&self) -> usize {
        self.y.taps * self.x.taps * self.channels
    }

    /// Taps that are neighbours in memory form a run: taps of a run, and runs of a line of taps.
    #[inline(always)]
    fn runs(&self) -> (usize, usize) {
        let taps = if self.x.tap == 1 { self.x.taps } else { 1 };
        (taps, self.x.taps / taps)
    }
}

impl RowSource for Gather {
    #[inline(always)]
    fn locate(&self, index: usize) -> Row {
        let (line, q) = (index / self.x.grid, index % self.x.grid);
        let (image, p) = (line / self.y.grid, line % self.y.grid);
        let base = image * self.y.size * self.x.size * self.channels;
        let y = (p * self.y.step) as isize + self.y.base;
        let x = (q * self.x.step) as isize + self.x.base;
        Row { base, y, x, origin: base as isize + (y * self.x.size as isize + x) * self.channels as isize }
    }

    fn region(&self, rows: Range<usize>, range: Range<usize>) -> Region {
        let (first, last) = (self.locate(rows.start), self.locate(rows.end - 1));
        if self.row_len() == self.channels && self.x.step == 1 {
            let start = self.src.wrapping_offset(first.origin).wrapping_add(range.start);
            return Region { start, rows: rows.len(), cols: range.len(), pitch: self.channels };
        }
        let tap_line = (range.end - 1) / (self.x.taps * self.channels) * self.y.tap;
        let line_offset = (tap_line * self.x.size * self.channels) as isize;
        let start = self.src.wrapping_offset(first.origin + line_offset);
        Region::contiguous(start, (last.origin - first.origin) as usize)
    }

    #[inline(always)]
    unsafe fn copy<S: Simd>(&self, row: Row, range: Range<usize>, dst: *mut f32) {
        let (run_taps, runs_per_line) = self.runs();
        let run_len = run_taps * self.channels;
        let mut run = range.start / run_len;
        let mut done = range.start;
        while done < range.end {
            let start = run * run_len;
            let end = range.end.min(start + run_len);
            let y = row.y + (run / runs_per_line * self.y.tap) as isize;
            let x = row.x + (run % runs_per_line * self.x.tap) as isize;
            let inside = (0..self.y.size as isize).contains(&y);
            let width = self.x.size as isize;
            let first = (-x).clamp(0, run_taps as isize) as usize * self.channels;
            let last = (width - x).clamp(0, run_taps as isize) as usize * self.channels;
            let copy_start = if inside { (start + first).clamp(done, end) } else { end };
            let copy_end = if inside { (start + last).clamp(copy_start, end) } else { end };
            // SAFETY: the copied elements lie inside the image, and `dst` has room for the range.
            unsafe {
                let dst = dst.add(done - range.start);
                zero::<S>(dst, copy_start - done);
                if copy_start < copy_end {
                    let pixel = row.base as isize + (y * width + x) * self.channels as isize;
                    let src = self.src.offset(pixel + (copy_start - start) as isize);
                    S::copy(src, dst.add(copy_start - done), copy_end - copy_start);
                }
                zero::<S>(dst.add(copy_end - done), end - copy_end);
            }
            done = end;
            run += 1;
        }
    }
}

/// # Safety
/// `dst` has room for `len` elements. Called under `S::vectorize`.
#[inline(always)]
pub(crate) unsafe fn zero<S: Simd>(dst: *mut f32, len: usize) {
    let whole = len / S::LANES * S::LANES;
    // SAFETY: the caller's promise.
    unsafe {
        for i in (0..whole).step_by(S::LANES) {
            S::store(dst.add(i), S::splat(0.0));
        }
        for i in whole..len {
            *dst.add(i) = 0.0;
        }
    }
}
