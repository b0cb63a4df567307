//! Convolution as a product: row `(n, p, q)` of the implicit matrix holds the pixels under the kernel's taps.

use std::ops::Range;

use crate::gemm::{AffinePtr, NumberPtr, Place, Region, Row, RowSource};
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

impl Axis {
    /// Position of the first tap at a grid position.
    #[inline(always)]
    pub fn start(&self, position: usize) -> isize {
        (position * self.step) as isize + self.base
    }

    /// The taps inside the image when the first one is at `start`.
    #[inline(always)]
    pub fn taps_inside(&self, start: isize) -> Range<usize> {
        let first = start.min(0).unsigned_abs().div_ceil(self.tap).min(self.taps);
        let end = (self.size as isize - start).max(0) as usize;
        first..end.div_ceil(self.tap).clamp(first, self.taps)
    }

    /// `count` of the taps, from `first` on.
    #[inline(always)]
    pub fn some_taps(&self, first: usize, count: usize) -> Axis {
        Axis { base: self.base + (first * self.tap) as isize, taps: count, ..*self }
    }

    /// The grid positions whose taps all lie inside the image.
    #[inline(always)]
    pub fn whole_windows(&self) -> Range<usize> {
        let first = self.base.min(0).unsigned_abs().div_ceil(self.step).min(self.grid);
        let span = (self.taps.saturating_sub(1) * self.tap) as isize;
        let end = (self.size as isize - span - self.base).max(0) as usize;
        first..end.div_ceil(self.step).clamp(first, self.grid)
    }

    /// Whether all taps lie inside the image when the first one is at `start`.
    #[inline(always)]
    fn holds_all_taps(&self, start: isize) -> bool {
        start >= 0 && (start + (self.taps.saturating_sub(1) * self.tap) as isize) < self.size as isize
    }
}

/// The implicit matrix over images `[N, y.size, x.size, channels]`: rows `[N, y.grid, x.grid]`, elements
/// `[y.taps, x.taps, channels]`, zero outside the image.
#[derive(Clone, Copy)]
pub(crate) struct Gather {
    pub src: NumberPtr,
    pub channels: usize,
    pub y: Axis,
    pub x: Axis,
    /// What is done to the numbers inside the image.
    pub affine: Option<AffinePtr>,
}

// SAFETY: only read, and whoever builds one vouches for its extent.
unsafe impl Sync for Gather {}

impl Gather {
    /// Taps that are neighbours in memory, and are copied as they are, form a run: taps of a run, and runs of a line of taps.
    #[inline(always)]
    fn runs(&self) -> (usize, usize) {
        let taps = if self.x.tap == 1 && self.affine.is_none() { self.x.taps } else { 1 };
        (taps, self.x.taps / taps)
    }
}

impl Gather {
    /// The elements inside the image of a run of `taps` pixels from `(y, x)` on.
    #[inline(always)]
    fn inside(&self, y: isize, x: isize, taps: usize) -> Range<usize> {
        if !(0..self.y.size as isize).contains(&y) {
            return 0..0;
        }
        let first = (-x).clamp(0, taps as isize) as usize;
        let last = (self.x.size as isize - x).clamp(0, taps as isize) as usize;
        first * self.channels..last * self.channels
    }

    /// Copies `len` numbers of a run, of which the first is number `start`.
    ///
    /// # Safety
    /// They are there, and there is room for them. Called under `S::vectorize`.
    #[inline(always)]
    unsafe fn take<S: Simd, D: Place>(&self, src: NumberPtr, start: usize, len: usize, dst: D) {
        // SAFETY: the caller's promise; with an affine map, a run is a pixel.
        unsafe {
            match self.affine {
                None => dst.take::<S>(src, len),
                Some(affine) => dst.take_affine::<S>(src, len, affine.at(start)),
            }
        }
    }
}

impl RowSource for Gather {
    #[inline(always)]
    fn in_place(&self, row: Row, range: Range<usize>) -> Option<NumberPtr> {
        // One tap, inside the image: a pixel.
        let is_pixel = self.row_len() == self.channels && self.affine.is_none();
        let inside = is_pixel && self.y.holds_all_taps(row.y) && self.x.holds_all_taps(row.x);
        inside.then(|| self.src.offset(row.origin).add(range.start))
    }

    #[inline(always)]
    fn row_len(&self) -> usize {
        self.y.taps * self.x.taps * self.channels
    }

    #[inline(always)]
    fn locate(&self, index: usize) -> Row {
        let (line, q) = (index / self.x.grid, index % self.x.grid);
        let (image, p) = (line / self.y.grid, line % self.y.grid);
        let (y, x) = (self.y.start(p), self.x.start(q));
        let line = (image * self.y.size) as isize + y;
        Row { y, x, origin: (line * self.x.size as isize + x) * self.channels as isize }
    }

    fn region(&self, rows: Range<usize>, range: Range<usize>) -> Region {
        let (first, last) = (self.locate(rows.start), self.locate(rows.end - 1));
        if self.row_len() == self.channels && self.x.step == 1 {
            let start = self.src.offset(first.origin).add(range.start);
            return start.region(rows.len(), range.len(), self.channels);
        }
        let tap_line = (range.end - 1) / (self.x.taps * self.channels) * self.y.tap;
        let line_offset = (tap_line * self.x.size * self.channels) as isize;
        self.src.offset(first.origin + line_offset).run((last.origin - first.origin) as usize)
    }

    #[inline(always)]
    unsafe fn copy<S: Simd, D: Place>(&self, row: Row, range: Range<usize>, dst: D) {
        let (run_taps, runs_per_line) = self.runs();
        let run_len = run_taps * self.channels;
        let inside = self.y.holds_all_taps(row.y) && self.x.holds_all_taps(row.x);
        let first = range.start / run_len;
        let (mut ky, mut kx) = (first / runs_per_line, first % runs_per_line);
        let mut run_start = first * run_len;
        while run_start < range.end {
            let piece = range.start.max(run_start)..range.end.min(run_start + run_len);
            // SAFETY: `dst` has room for the range; the source lies inside the image where all taps do, and is only
            // an offset otherwise.
            unsafe {
                let dst = dst.at(piece.start - range.start);
                let tap = (ky * self.y.tap * self.x.size + kx * self.x.tap) * self.channels;
                let src = self.src.offset(row.origin + (tap + piece.start - run_start) as isize);
                if inside {
                    self.take::<S, D>(src, piece.start - run_start, piece.len(), dst);
                } else {
                    let y = row.y + (ky * self.y.tap) as isize;
                    let x = row.x + (kx * self.x.tap) as isize;
                    let valid = self.inside(y, x, run_taps);
                    let start = (run_start + valid.start).clamp(piece.start, piece.end);
                    let end = (run_start + valid.end).clamp(start, piece.end);
                    dst.zero::<S>(start - piece.start);
                    let inner = dst.at(start - piece.start);
                    self.take::<S, D>(src.add(start - piece.start), start - run_start, end - start, inner);
                    dst.at(end - piece.start).zero::<S>(piece.end - end);
                }
            }
            run_start += run_len;
            kx += 1;
            if kx == runs_per_line {
                (ky, kx) = (ky + 1, 0);
            }
        }
    }
}
