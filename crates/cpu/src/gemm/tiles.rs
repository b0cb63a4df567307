//! Blocks of `C` by tiles of the processor: two by two of them are computed at once.

use super::store::{FinishedRows, Source};
use super::tile::{LINE, MAX_PANEL, panel};
use super::tile_loop::{Ending, NO_ROW, Prefetch, TileLoop, TileOrder, TilePrefetch, regular_pitch, share, share_len};
use crate::simd::{Simd, TILE_STEPS, TileProduct};

/// Rows of a product of two tiles.
pub(crate) const TILES_ROWS: usize = 2 * TILE_STEPS;

/// Pieces of two cache lines that [`TILE_STEPS`] steps prefetch where no more are needed.
pub(crate) const PREFETCH_PIECES: usize = 2;

/// Most rows of a tile loop, those that are not wanted included.
pub(crate) const MAX_POSITIONS: usize = 1024;

/// # Safety
/// As [`TileLoop::run_then`], under `S::run_op`; the block of A has room for whole tiles, and A and B have zeros behind the last step.
#[inline(always)]
pub(super) unsafe fn run<S: Simd>(tile_loop: &TileLoop<'_>, prefetch: &mut Prefetch, ending: &Ending<'_>) {
    let depth = tile_loop.depth.next_multiple_of(TILE_STEPS);
    let rounds = depth / TILE_STEPS;
    debug_assert!(tile_loop.a.offsets.len() >= rounds, "every step has its place in A");
    let mut blocks = [RowTiles { start: 0, height: 0, pitch: None }; MAX_POSITIONS / TILE_STEPS];
    let count = cut_rows(tile_loop.c_rows, &mut blocks);
    let panels = tile_loop.cols.div_ceil(panel::<S>());
    let tile_prefetch = TilePrefetch::new::<S>(tile_loop, depth, count, rounds, PREFETCH_PIECES);
    let by_rows = ending.store.is_some() && depth * tile_loop.cols <= NEAR_B;
    let mut buffer = std::mem::MaybeUninit::<Buffer>::uninit();
    let buffer = buffer.as_mut_ptr().cast::<f32>();
    for (tile, index) in TileOrder::new(count, panels, by_rows) {
        let RowTiles { start: row, height, pitch } = blocks[tile];
        let col = index * panel::<S>();
        let width = panel::<S>().min(tile_loop.cols - col);
        let (b, b_next) = tile_loop.panel(index, panels);
        let (prefetch, prefetch_pitch) = tile_prefetch.take(prefetch, tile, b_next);
        let (row_tiles, col_tiles) = (height.div_ceil(TILE_STEPS), width.div_ceil(TILE_STEPS));
        let is_whole = height == row_tiles * TILE_STEPS && width == col_tiles * TILE_STEPS;
        let c_rows = &tile_loop.c_rows[row..row + height];
        // SAFETY: the caller's promises; the buffer holds any product.
        unsafe {
            let product = TileProduct {
                row_tiles,
                col_tiles,
                depth,
                a: tile_loop.a.start.add(row * tile_loop.a.stride),
                a_stride: tile_loop.a.stride,
                a_offsets: tile_loop.a.offsets.as_ptr(),
                b,
                c: tile_loop.c.add(col).wrapping_add(c_rows[0]),
                c_stride: pitch.unwrap_or(0),
                accumulate: tile_loop.accumulate,
                // What is at hand costs nothing to ask for.
                prefetch: if prefetch.is_null() { b } else { prefetch },
                prefetch_pitch,
                prefetch_pieces: tile_prefetch.pieces,
            };
            if let Some(store) = ending.store.filter(|_| by_rows)
                && let Some(next) = blocks[..count].get(tile + 1)
            {
                let rows = next.start..next.start + next.height;
                let rows = share(rows, index, share_len(next.height, panels));
                store.prefetch::<S>(&tile_loop.c_rows[rows], 0..tile_loop.cols);
            }
            let rows = FinishedRows { c_rows, col, width };
            match ending.sums {
                Some(sums) => {
                    let sums = sums.start.add(index * sums.panel + tile * TILES_BLOCK_LEN);
                    S::tile_product(&TileProduct { c: sums, c_stride: MAX_PANEL, ..product });
                    if ending.is_last {
                        write_rows::<S>(sums, rows, tile_loop.c, ending);
                    }
                }
                None if ending.store.is_none() && is_whole && pitch.is_some_and(is_good_pitch) => {
                    S::tile_product(&product);
                }
                None => {
                    if tile_loop.accumulate {
                        read_rows::<S>(buffer, rows, tile_loop.c);
                    }
                    S::tile_product(&TileProduct { c: buffer, c_stride: MAX_PANEL, ..product });
                    write_rows::<S>(buffer, rows, tile_loop.c, ending);
                }
            }
        }
    }
}

/// Elements of B up to which it is read again for each few rows that are stored: it stays in the second-level cache, and rows are
/// written as they lie in memory.
const NEAR_B: usize = 128 * 1024;

/// Elements of a product of two by two tiles.
pub(crate) const TILES_BLOCK_LEN: usize = TILES_ROWS * MAX_PANEL;

/// Elements of the sums of the given number of rows and columns.
pub(super) const fn sums_len(rows: usize, cols: usize) -> usize {
    rows.div_ceil(TILES_ROWS) * cols.div_ceil(MAX_PANEL) * TILES_BLOCK_LEN
}

/// Whether rows at this distance do not fall into few sets of the first-level cache.
#[inline(always)]
pub(super) fn is_good_pitch(pitch: usize) -> bool {
    !pitch.is_multiple_of(SET_PITCH)
}

/// Elements from a cache line to the next one of the same set, in first-level caches of 64 sets.
const SET_PITCH: usize = 64 * LINE;

/// Room for a product of two by two tiles.
#[repr(align(64))]
struct Buffer(#[allow(dead_code, reason = "it is written through pointers")] [f32; TILES_BLOCK_LEN]);

/// Copies rows of C to a buffer.
///
/// # Safety
/// As [`run`].
#[inline(always)]
unsafe fn read_rows<S: Simd>(buffer: *mut f32, rows: FinishedRows<'_>, c: *const f32) {
    for (row, offset) in rows.wanted() {
        // SAFETY: the caller's promises.
        unsafe { S::copy(c.add(rows.col).wrapping_add(offset), buffer.add(row * MAX_PANEL), rows.width) };
    }
}

/// Writes the finished rows of a buffer.
///
/// # Safety
/// As [`run`].
#[inline(always)]
unsafe fn write_rows<S: Simd>(buffer: *const f32, rows: FinishedRows<'_>, c: *mut f32, ending: &Ending<'_>) {
    // SAFETY: the caller's promises.
    unsafe {
        if let Some(store) = ending.store {
            let source = Source::Buffer { start: buffer, pitch: MAX_PANEL };
            store.write::<S>(source, rows);
            return;
        }
        for (row, offset) in rows.wanted() {
            S::copy(buffer.add(row * MAX_PANEL), c.add(rows.col).wrapping_add(offset), rows.width);
        }
    }
}

/// Rows of a product of one or two tiles.
#[derive(Clone, Copy)]
struct RowTiles {
    start: usize,
    height: usize,
    /// Distance of the rows of C, if they are written in place.
    pitch: Option<usize>,
}

/// Cuts the rows that are wanted into those of products; returns the number of these.
#[inline(always)]
fn cut_rows(c_rows: &[usize], blocks: &mut [RowTiles; MAX_POSITIONS / TILE_STEPS]) -> usize {
    if let pitch @ Some(_) = regular_pitch(c_rows) {
        for (block, start) in blocks.iter_mut().zip((0..c_rows.len()).step_by(TILES_ROWS)) {
            *block = RowTiles { start, height: TILES_ROWS.min(c_rows.len() - start), pitch };
        }
        return c_rows.len().div_ceil(TILES_ROWS);
    }
    let mut count = 0;
    let mut start = 0;
    while let Some(skip) = c_rows[start..].iter().position(|&row| row != NO_ROW) {
        start += skip;
        let rows = &c_rows[start..c_rows.len().min(start + TILES_ROWS)];
        let height = rows.iter().rposition(|&row| row != NO_ROW).map_or(0, |last| last + 1);
        blocks[count] = RowTiles { start, height, pitch: regular_pitch(&rows[..height]) };
        (start, count) = (start + rows.len(), count + 1);
    }
    count
}
