//! Convolution as a product: row `(n, p, q)` of the implicit matrix holds the pixels under the kernel's taps.

use std::ops::Range;

use crate::gemm::{
    AffinePtr, FEW_COLS, MAX_OFFSETS, MAX_POSITIONS, MAX_ROWS, MAX_RUNS, MemoryBlock, PlacedRows, Row, RowAddress,
    RowSource, TypedPtr, WINDOWS_LEN, Windows,
};
use crate::simd::{Simd, TILE_STEPS};

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
    pub(super) fn start(&self, position: usize) -> isize {
        (position * self.step) as isize + self.base
    }

    /// Position of the first tap at the last grid position.
    #[inline(always)]
    fn last(&self) -> isize {
        self.start(self.grid.saturating_sub(1))
    }

    /// The taps inside the image when the first one is at `start`.
    #[inline(always)]
    pub(super) fn taps_inside(&self, start: isize) -> Range<usize> {
        let first = start.min(0).unsigned_abs().div_ceil(self.tap).min(self.taps);
        let end = (self.size as isize - start).max(0) as usize;
        first..end.div_ceil(self.tap).clamp(first, self.taps)
    }

    /// `count` of the taps, from `first` on.
    #[inline(always)]
    pub(super) fn some_taps(&self, first: usize, count: usize) -> Axis {
        Axis { base: self.base + (first * self.tap) as isize, taps: count, ..*self }
    }

    /// The grid positions whose taps all lie inside the image.
    #[inline(always)]
    pub(super) fn whole_windows(&self) -> Range<usize> {
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
    pub src: TypedPtr,
    pub channels: usize,
    pub y: Axis,
    pub x: Axis,
    /// What is done to the elements inside the image.
    pub affine: Option<AffinePtr>,
    /// Elements of a line of taps in a row, with those behind the last tap that count for nothing: what lies there in the image, or
    /// zeros. They are multiplied by zeros, so that one that is not finite shows in the rows before it. Padded lines are copied whole.
    pub line: usize,
}

// SAFETY: only read, and whoever builds one vouches for its extent.
unsafe impl Sync for Gather {}

impl Gather {
    /// Taps that are neighbours in memory, and are copied as they are, form a run: taps of a run, and runs of a line of taps.
    #[inline(always)]
    fn runs(&self) -> (usize, usize) {
        if self.x.tap == 1 && self.affine.is_none() { (self.x.taps, 1) } else { (1, self.x.taps) }
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

    /// Copies `len` elements of a run of an image, of which the first is number `start`.
    ///
    /// # Safety
    /// They are there, and there is room for them. Called under `S::run_op`.
    #[inline(always)]
    unsafe fn take<S: Simd, D: RowAddress>(&self, image: usize, src: TypedPtr, start: usize, len: usize, dst: D) {
        // SAFETY: the caller's promise; with an affine map, a run is a pixel.
        unsafe {
            match self.affine {
                None => dst.take::<S>(src, len),
                Some(affine) => dst.take_affine::<S>(src, len, affine.of_image(image).at(start)),
            }
        }
    }
}

/// Elements of 32 bits of images that are copied to be read by vectors: they stay in the second-level cache beside B.
const NEAR_IMAGES: usize = 64 * 1024;

/// Elements of a row of A in a step of tiles.
pub(super) const TILE_PIXEL: usize = 2 * TILE_STEPS;

/// Consecutive rows of one image.
struct ImageRun {
    rows: usize,
    /// Lines of the grid that they are on.
    lines: usize,
}

impl Gather {
    /// The rows at the beginning of `rows` that are of one image.
    #[inline(always)]
    fn image_run(&self, rows: &[Row]) -> ImageRun {
        let line = (self.x.size * self.channels) as isize;
        let image = |row: &Row| row.origin - row.y * line - row.x * self.channels as isize;
        let first = image(&rows[0]);
        let count = rows.iter().take_while(|row| image(row) == first).count();
        ImageRun { rows: count, lines: (rows[count - 1].y - rows[0].y) as usize + 1 }
    }

    /// Whether rows inside the image are its pixels, as they are: of one tap.
    #[inline(always)]
    fn takes_pixels(&self) -> bool {
        self.row_len() == self.channels && self.affine.is_none()
    }

    /// Whether lines are padded.
    #[inline(always)]
    fn has_padded_lines(&self) -> bool {
        self.line != self.x.taps * self.channels
    }

    /// Whether each line of neighbouring taps is one step of tiles, and begins at whole pairs.
    #[inline(always)]
    fn has_lines_of_a_step(&self) -> bool {
        let begins_whole = (self.x.step * self.channels).is_multiple_of(2);
        self.line == TILE_PIXEL && self.y.taps > 1 && self.x.tap == 1 && begins_whole
    }

    /// Whether rows may be read as windows on images: of several taps, with pixels of whole tiles, or with lines that
    /// are a step of those.
    #[inline(always)]
    fn has_windows(&self) -> bool {
        if self.has_lines_of_a_step() {
            return self.y.taps <= MAX_OFFSETS;
        }
        let (taps, steps) = (self.y.taps * self.x.taps, self.channels / TILE_PIXEL);
        let fits_tiles = self.channels.is_multiple_of(TILE_PIXEL) && taps * steps <= MAX_OFFSETS;
        taps > 1 && fits_tiles && self.affine.is_none()
    }

    /// Whether little is multiplied for nothing between the lines of windows, so that it weighs less than copying rows for more
    /// than [`FEW_COLS`] columns.
    #[inline(always)]
    fn has_few_gaps(&self) -> bool {
        self.y.step == 1 && self.x.step == 1 && 6 * self.bordered_line() <= 7 * self.x.grid
    }

    /// Lines around the lines of a grid that windows reach.
    #[inline(always)]
    fn halo(&self) -> usize {
        (self.y.taps - 1) * self.y.tap
    }

    /// Pixels of a line with its border: whole positions.
    #[inline(always)]
    fn bordered_line(&self) -> usize {
        let step = self.x.step;
        (self.x.grid.saturating_sub(1) * step + (self.x.taps - 1) * self.x.tap + 1).next_multiple_of(step)
    }

    /// Pixels of the images under `rows`, with their borders.
    #[inline(always)]
    fn bordered_pixels(&self, rows: &[Row]) -> usize {
        let (mut start, mut lines) = (0, 0);
        while start < rows.len() {
            let run = self.image_run(&rows[start..]);
            (start, lines) = (start + run.rows, lines + run.lines + self.halo());
        }
        lines * self.bordered_line()
    }

    /// Whether images with their borders fit the room for them, and the positions of their windows; behind the last window are those of
    /// whole tiles.
    #[inline(always)]
    fn images_fit(&self, rows: &[Row]) -> bool {
        let pixels = self.bordered_pixels(rows);
        let behind = 2 * TILE_PIXEL * self.x.step * self.channels + TILE_PIXEL;
        // No window begins on the last lines.
        let positions = (pixels - self.halo() * self.bordered_line()) / self.x.step;
        positions <= MAX_POSITIONS && (pixels * self.channels + behind) / 2 <= WINDOWS_LEN
    }

    /// Bytes from a position to each step of tiles in its window.
    #[inline(always)]
    fn find_offsets(&self, offsets: &mut [usize; MAX_OFFSETS]) {
        if self.has_lines_of_a_step() {
            let line = self.y.tap * self.bordered_line() * self.channels * size_of::<u16>();
            for (tap, offset) in offsets[..self.y.taps].iter_mut().enumerate() {
                *offset = tap * line;
            }
            return;
        }
        let steps = self.channels / TILE_PIXEL;
        for (i, offset) in offsets[..self.y.taps * self.x.taps * steps].iter_mut().enumerate() {
            let (tap, step) = (i / steps, i % steps);
            let line = tap / self.x.taps * self.y.tap;
            let pixel = line * self.bordered_line() + tap % self.x.taps * self.x.tap;
            *offset = (pixel * self.channels + step * TILE_PIXEL) * size_of::<u16>();
        }
    }

    /// Copies the images under `rows`, with their borders, and finds the first pixel of the window of each row among them. Returns the
    /// number of pixels.
    ///
    /// # Safety
    /// As for [`copy_with_border`](Self::copy_with_border).
    #[inline(always)]
    unsafe fn copy_images<S: Simd, D: RowAddress>(
        &self,
        rows: &[Row],
        dst: D,
        pixels: &mut [usize; MAX_ROWS],
    ) -> usize {
        let size = self.bordered_line();
        let (mut start, mut first_line) = (0, 0);
        while start < rows.len() {
            let run = self.image_run(&rows[start..]);
            let image = &rows[start..start + run.rows];
            let lines = run.lines + self.halo();
            // SAFETY: the caller's promise.
            unsafe { self.copy_with_border::<S, D>(&image[0], lines, dst.at(first_line * size * self.channels)) };
            for (pixel, row) in pixels[start..].iter_mut().zip(image) {
                let line = first_line + (row.y - image[0].y) as usize;
                *pixel = line * size + (row.x - self.x.base) as usize;
            }
            (start, first_line) = (start + run.rows, first_line + lines);
        }
        first_line * size
    }

    /// Copies lines of pixels from the first one under the window of `first` on, with zeros outside of the image.
    ///
    /// # Safety
    /// They are of a type that is copied there, and there is room for them. Called under `S::run_op`.
    #[inline(always)]
    unsafe fn copy_with_border<S: Simd, D: RowAddress>(&self, first: &Row, lines: usize, dst: D) {
        let size = self.bordered_line();
        let left = (-self.x.base).clamp(0, size as isize) as usize;
        let right = (self.x.size as isize - self.x.base).clamp(left as isize, size as isize) as usize;
        let image_line = (self.x.size * self.channels) as isize;
        let start = first.origin + (self.x.base + left as isize - first.x) * self.channels as isize;
        for line in 0..lines {
            // SAFETY: the caller's promise; what is copied lies inside the image.
            unsafe {
                let dst = dst.at(line * size * self.channels);
                if !(0..self.y.size as isize).contains(&(first.y + line as isize)) {
                    dst.zero::<S>(size * self.channels);
                    continue;
                }
                dst.zero::<S>(left * self.channels);
                let src = self.src.offset(start + line as isize * image_line);
                let inside = dst.at(left * self.channels);
                match self.affine {
                    None => inside.take::<S>(src, (right - left) * self.channels),
                    Some(_) => (0..(right - left) * self.channels).step_by(self.channels).for_each(|at| {
                        self.take::<S, D>(first.image, src.add(at), 0, self.channels, inside.at(at));
                    }),
                }
                dst.at(right * self.channels).zero::<S>((size - right) * self.channels);
            }
        }
    }
}

impl Gather {
    /// Copies padded lines, of which `range` are some.
    ///
    /// # Safety
    /// As for [`copy`](RowSource::copy).
    #[inline(always)]
    unsafe fn copy_padded<S: Simd, D: RowAddress>(&self, row: Row, range: Range<usize>, dst: D) {
        for (i, ky) in (range.start / self.line..range.end / self.line).enumerate() {
            let valid = self.inside(row.y + (ky * self.y.tap) as isize, row.x, self.x.taps);
            let line = (ky * self.y.tap * self.x.size * self.channels) as isize;
            // SAFETY: the caller's promise; what is copied lies inside the image.
            unsafe {
                let dst = dst.at(i * self.line);
                dst.zero::<S>(self.line);
                let src = self.src.offset(row.origin + line).add(valid.start);
                self.take::<S, D>(row.image, src, valid.start, valid.len(), dst.at(valid.start));
            }
        }
    }
}

impl RowSource for Gather {
    #[inline(always)]
    fn in_place(&self, row: Row, range: Range<usize>) -> Option<TypedPtr> {
        let inside = self.takes_pixels() && self.y.holds_all_taps(row.y) && self.x.holds_all_taps(row.x);
        inside.then(|| self.src.offset(row.origin).add(range.start))
    }

    #[inline(always)]
    unsafe fn windows<S: Simd>(&self, rows: &[Row], cols: usize, dst: *mut f32, windows: &mut Windows) -> bool {
        if !self.has_windows() || cols > FEW_COLS && !self.has_few_gaps() || rows.is_empty() || !self.images_fit(rows) {
            return false;
        }
        let dst = dst.cast::<u16>();
        // SAFETY: the caller's promise; the images fit with more than a step of tiles behind them, into which the last window reaches.
        unsafe {
            let pixels = self.copy_images::<S, _>(rows, dst, &mut windows.positions);
            dst.add(pixels * self.channels).zero::<S>(TILE_PIXEL);
        }
        for position in &mut windows.positions[..rows.len()] {
            *position /= self.x.step;
        }
        windows.pitch = self.x.step * self.channels / 2;
        self.find_offsets(&mut windows.offsets);
        true
    }

    #[inline(always)]
    unsafe fn bordered<S: Simd>(&self, rows: &[Row], dst: *mut f32) -> Option<PlacedRows> {
        let taps = self.y.taps * self.x.taps;
        let unit = if S::DOT2 { 2 } else { 1 };
        let begins_whole = (self.x.step * self.channels).is_multiple_of(unit) && self.line.is_multiple_of(unit);
        if taps == 1 || self.x.tap != 1 || self.y.taps > MAX_RUNS || !begins_whole {
            return None;
        }
        let pixels = self.bordered_pixels(rows);
        if pixels > rows.len() * taps || pixels * self.channels / unit > NEAR_IMAGES {
            return None;
        }
        let mut offsets = [0; MAX_ROWS];
        // SAFETY: the caller's promise; the images fit, with the padding of the last line of taps behind them.
        unsafe {
            if S::DOT2 {
                let dst = dst.cast::<u16>();
                self.copy_images::<S, _>(rows, dst, &mut offsets);
                dst.add(pixels * self.channels).zero::<S>(unit);
            } else {
                self.copy_images::<S, _>(rows, dst, &mut offsets);
            }
        }
        for offset in &mut offsets[..rows.len()] {
            *offset = *offset * self.channels / unit;
        }
        let pitch = self.y.tap * self.bordered_line() * self.channels / unit;
        Some(PlacedRows { start: dst, rows: offsets, run: self.line / unit, pitch })
    }

    #[inline(always)]
    fn pitch(&self) -> Option<usize> {
        let is_whole = |axis: &Axis| axis.step == 1 && axis.base == 0 && axis.grid == axis.size;
        (self.takes_pixels() && is_whole(&self.y) && is_whole(&self.x)).then_some(self.channels)
    }

    #[inline(always)]
    fn row_len(&self) -> usize {
        self.y.taps * self.line
    }

    #[inline(always)]
    fn locate(&self, index: usize) -> Row {
        let (line, q) = (index / self.x.grid, index % self.x.grid);
        let (image, p) = (line / self.y.grid, line % self.y.grid);
        let (y, x) = (self.y.start(p), self.x.start(q));
        let line = (image * self.y.size) as isize + y;
        Row { y, x, image, origin: (line * self.x.size as isize + x) * self.channels as isize }
    }

    #[inline(always)]
    fn after(&self, row: Row) -> Row {
        let Row { origin, y, x, image } = row;
        let line = (self.x.size * self.channels) as isize;
        if x < self.x.last() {
            let step = self.x.step as isize;
            return Row { x: x + step, y, image, origin: origin + step * self.channels as isize };
        }
        let origin = origin + (self.x.base - x) * self.channels as isize;
        if y < self.y.last() {
            let step = self.y.step as isize;
            return Row { x: self.x.base, y: y + step, image, origin: origin + step * line };
        }
        let lines = self.y.size as isize + self.y.base - y;
        Row { x: self.x.base, y: self.y.base, image: image + 1, origin: origin + lines * line }
    }

    #[inline(always)]
    fn list(&self, start: usize, rows: &mut [Row]) {
        let (mut next, mut listed) = (start, 0);
        while listed < rows.len() {
            let first = self.locate(next);
            let line = self.x.grid - next % self.x.grid;
            let end = rows.len().min(listed + line);
            for (i, row) in rows[listed..end].iter_mut().enumerate() {
                let x = i * self.x.step;
                let origin = first.origin + (x * self.channels) as isize;
                *row = Row { origin, x: first.x + x as isize, ..first };
            }
            (next, listed) = (next + line, end);
        }
    }

    fn memory(&self, rows: Range<usize>, range: Range<usize>) -> MemoryBlock {
        let (first, last) = (self.locate(rows.start), self.locate(rows.end - 1));
        if self.row_len() == self.channels && self.x.step == 1 {
            let start = self.src.offset(first.origin).add(range.start);
            return start.memory(rows.len(), range.len(), self.channels);
        }
        let tap_line = (range.end - 1) / self.line * self.y.tap;
        let line_offset = (tap_line * self.x.size * self.channels) as isize;
        self.src.offset(first.origin + line_offset).run((last.origin - first.origin).max(0) as usize)
    }

    #[inline(always)]
    unsafe fn copy<S: Simd, D: RowAddress>(&self, row: Row, range: Range<usize>, dst: D) {
        if self.has_padded_lines() {
            // SAFETY: the caller's promise.
            return unsafe { self.copy_padded::<S, D>(row, range, dst) };
        }
        let inside = self.y.holds_all_taps(row.y) && self.x.holds_all_taps(row.x);
        if inside && self.row_len() == self.channels {
            // SAFETY: the caller's promise; the row is a pixel of the image.
            return unsafe {
                let src = self.src.offset(row.origin).add(range.start);
                self.take::<S, D>(row.image, src, range.start, range.len(), dst)
            };
        }
        let (run_taps, runs_per_line) = self.runs();
        let run_len = run_taps * self.channels;
        if inside && runs_per_line == 1 && range == (0..self.row_len()) {
            let line = (self.y.tap * self.x.size * self.channels) as isize;
            for ky in 0..self.y.taps {
                // SAFETY: the caller's promise; all taps lie inside the image.
                unsafe {
                    let src = self.src.offset(row.origin + ky as isize * line);
                    self.take::<S, D>(row.image, src, 0, run_len, dst.at(ky * run_len));
                }
            }
            return;
        }
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
                    self.take::<S, D>(row.image, src, piece.start - run_start, piece.len(), dst);
                } else {
                    let y = row.y + (ky * self.y.tap) as isize;
                    let x = row.x + (kx * self.x.tap) as isize;
                    let valid = self.inside(y, x, run_taps);
                    let start = (run_start + valid.start).clamp(piece.start, piece.end);
                    let end = (run_start + valid.end).clamp(start, piece.end);
                    dst.zero::<S>(start - piece.start);
                    let inner = dst.at(start - piece.start);
                    let src = src.add(start - piece.start);
                    self.take::<S, D>(row.image, src, start - run_start, end - start, inner);
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
