//! Tiles over a block of `C`, from packed blocks of `A` and `B`.

use super::tile::{ALayout, MAX_PANEL, ROW_STRIDE, TileArgs, panel, tile_fn};
use crate::simd::Simd;

/// `C[rows, cols] (+)= A[rows, depth] * B[depth, cols]` on packed blocks.
pub(crate) struct Sweep<'a> {
    pub layout: ALayout,
    pub depth: usize,
    pub a: *const f32,
    /// Distance of the tiles of A; for [`ALayout::Columns`] only.
    pub a_tile: usize,
    pub b: *const f32,
    /// Distance of the panels of B.
    pub b_panel: usize,
    pub cols: usize,
    pub c: *mut f32,
    /// Offsets from `c` of the rows.
    pub c_rows: &'a [usize],
    pub accumulate: bool,
    /// The panel of B that will be wanted after this sweep.
    pub b_next: *const f32,
}

/// First row of tile `index` of `count`: rows are spread evenly over the tiles.
#[inline(always)]
pub(crate) fn tile_start(rows: usize, index: usize, count: usize) -> usize {
    rows * index / count
}

/// Number of tiles over `rows` rows.
#[inline(always)]
pub(crate) fn tile_count<S: Simd>(rows: usize) -> usize {
    rows.div_ceil(S::TILE_ROWS)
}

impl Sweep<'_> {
    /// # Safety
    /// The packed blocks hold what the fields say, with whole panels of B, and `c` is valid and unshared for all
    /// rows and columns. Called under `S::vectorize`.
    #[inline(always)]
    pub unsafe fn run<S: Simd>(&self) {
        let rows = self.c_rows.len();
        let tiles = tile_count::<S>(rows);
        let share = self.depth * panel::<S>() / tiles.max(1);
        let mut col = 0;
        let mut b = self.b;
        while col < self.cols {
            let width = panel::<S>().min(self.cols - col);
            let last = col + panel::<S>() >= self.cols;
            let next = if last { self.b_next } else { b.wrapping_add(self.b_panel) };
            for tile in 0..tiles {
                let start = tile_start(rows, tile, tiles);
                let end = tile_start(rows, tile + 1, tiles);
                let a_offset = match self.layout {
                    ALayout::Rows => start * ROW_STRIDE,
                    ALayout::Columns => tile * self.a_tile,
                };
                // SAFETY: the caller's promises.
                unsafe {
                    let args = TileArgs {
                        depth: self.depth,
                        a: self.a.add(a_offset),
                        b,
                        c: self.c.add(col),
                        c_rows: self.c_rows.as_ptr().add(start),
                        accumulate: self.accumulate,
                        prefetch: next.wrapping_add(tile * share),
                    };
                    multiply::<S>(self.layout, end - start, width, args);
                }
            }
            b = b.wrapping_add(self.b_panel);
            col += panel::<S>();
        }
    }
}

/// One tile; where its columns are not whole vectors, by way of a buffer.
///
/// # Safety
/// As [`Sweep::run`].
#[inline(always)]
unsafe fn multiply<S: Simd>(layout: ALayout, rows: usize, width: usize, args: TileArgs) {
    let tile = tile_fn::<S>(layout, rows, width);
    // SAFETY: the caller's promises.
    unsafe {
        if width == S::LANES || width == panel::<S>() {
            tile(&args);
        } else {
            multiply_partial(tile, rows, width, args);
        }
    }
}

/// # Safety
/// As [`Sweep::run`].
#[cold]
unsafe fn multiply_partial(tile: super::tile::TileFn, rows: usize, width: usize, args: TileArgs) {
    const BUFFER_ROWS: [usize; 14] = {
        let mut offsets = [0; 14];
        let mut row = 0;
        while row < 14 {
            offsets[row] = row * MAX_PANEL;
            row += 1;
        }
        offsets
    };
    let mut buffer = [0.0f32; 14 * MAX_PANEL];
    // SAFETY: the buffer holds any tile; the rest are the caller's promises.
    unsafe {
        tile(&TileArgs { c: buffer.as_mut_ptr(), c_rows: BUFFER_ROWS.as_ptr(), accumulate: false, ..args });
        for row in 0..rows {
            let c = args.c.add(*args.c_rows.add(row));
            for (col, &x) in buffer[row * MAX_PANEL..][..width].iter().enumerate() {
                let c = c.add(col);
                *c = if args.accumulate { *c + x } else { x };
            }
        }
    }
}
