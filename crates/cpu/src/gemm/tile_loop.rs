//! Tiles over a block of `C`, from rows or packed columns of `A` and packed panels of `B`.

use super::blocking::LARGEST_BLOCK;
use super::store::{FinishedRows, Source, Store};
use super::tile::{
    ALayout, LINE, MAX_PANEL, MAX_TILE_ROWS, ONE_RUN, ROW_STRIDE, Run, TileArgs, TileFn, panel, rounds, tile_fn,
};
use super::tiles;
use crate::simd::{NEIGHBOURS, Simd, SimdOp};
use std::ops::Range;

/// `C[rows, cols] (+)= A[rows, depth] * B[depth, cols]`, with B packed.
pub(crate) struct TileLoop<'a> {
    pub layout: ALayout,
    pub depth: usize,
    pub a: OperandRows<'a>,
    /// Distance of the tiles of A; for [`ALayout::Columns`] only.
    pub a_tile: usize,
    pub b: *const f32,
    /// Distance of the panels of B.
    pub b_panel: usize,
    pub cols: usize,
    pub c: *mut f32,
    /// Offsets from `c` of the rows; of processor's tiles, those of [`NO_ROW`] are not wanted.
    pub c_rows: &'a [usize],
    pub accumulate: bool,
    /// Prefetch B, from panel to panel, rather than what is upcoming after the tile loop.
    pub stream_b: bool,
    /// The panel of B that will be wanted after this tile loop.
    pub b_next: *const f32,
}

/// Where rows of A lie.
#[derive(Clone, Copy)]
pub(crate) struct OperandRows<'a> {
    pub start: *const f32,
    /// For tiles of the processor: the distance of the rows.
    pub stride: usize,
    /// Likewise, bytes from the start of a row to the steps of each tile.
    pub offsets: &'a [usize],
    /// For vectors: offsets of the rows, of [`ALayout::Rows`].
    pub rows: &'a [usize],
    /// Likewise, the runs of their steps.
    pub runs: &'a [Run],
}

impl OperandRows<'static> {
    /// A packed block of A: up to [`MAX_PACKED_ROWS`] rows at [`ROW_STRIDE`], or columns.
    pub(crate) fn packed(start: *const f32) -> OperandRows<'static> {
        OperandRows { start, stride: ROW_STRIDE, offsets: &NEIGHBOURS, rows: &PACKED_ROWS, runs: &ONE_RUN }
    }
}

/// Most rows of a packed block of A.
const MAX_PACKED_ROWS: usize = LARGEST_BLOCK;

/// Offsets of rows at [`ROW_STRIDE`].
pub(crate) static PACKED_ROWS: [usize; MAX_PACKED_ROWS] = offsets(ROW_STRIDE);

/// Where the sums of a tile loop go.
pub(crate) struct Ending<'a> {
    /// Of tiles of the processor: where they lie between the sweeps over parts of a reduction, in place of C. With `accumulate`,
    /// they are those of the tile loop before.
    pub sums: Option<Sums>,
    /// Whether this is the last part: then they go from there to C or to where they are stored.
    pub is_last: bool,
    /// What becomes of finished elements, in place of being left in C; what lies in C then is not stated.
    pub store: Option<&'a Store>,
}

/// Sums in blocks of 32 by 32, `[panel, rows / 32]`.
#[derive(Clone, Copy)]
pub(crate) struct Sums {
    pub start: *mut f32,
    /// Distance of the panels.
    pub panel: usize,
}

impl Ending<'_> {
    /// They are left in C.
    pub(crate) const IN_C: Ending<'static> = Ending { sums: None, is_last: true, store: None };
}

/// In place of the offset of a row of C that is not wanted.
pub(crate) const NO_ROW: usize = usize::MAX;

/// A rectangle of memory, as elements.
#[derive(Clone, Copy)]
pub(crate) struct MemoryBlock {
    pub start: *const f32,
    pub rows: usize,
    pub cols: usize,
    /// Distance of the rows.
    pub pitch: usize,
}

impl MemoryBlock {
    pub(crate) const EMPTY: MemoryBlock = MemoryBlock { start: std::ptr::null(), rows: 0, cols: 0, pitch: 0 };

    pub(crate) fn is_empty(&self) -> bool {
        self.rows == 0 || self.cols == 0
    }

    /// `len` elements in a row.
    pub(crate) fn contiguous(start: *const f32, len: usize) -> MemoryBlock {
        MemoryBlock { start, rows: len.div_ceil(2 * LINE), cols: 2 * LINE, pitch: 2 * LINE }
    }
}

/// Memory that will be wanted soon, which tile calls prefetch while they compute.
pub(crate) struct Prefetch {
    blocks: [MemoryBlock; 2],
    row: usize,
    col: usize,
}

impl Prefetch {
    pub(crate) fn new(blocks: [MemoryBlock; 2]) -> Prefetch {
        Prefetch { blocks, row: 0, col: 0 }
    }

    /// Start and pitch of the next `rounds` pieces of two cache lines.
    #[inline(always)]
    fn take(&mut self, rounds: usize) -> (*const f32, usize) {
        let block = &self.blocks[0];
        if self.col >= block.cols {
            self.blocks = [self.blocks[1], MemoryBlock::EMPTY];
            (self.row, self.col) = (0, 0);
            return (std::ptr::null(), 0);
        }
        let start = block.start.wrapping_add(self.row * block.pitch + self.col);
        let pitch = block.pitch;
        self.row += rounds;
        if self.row >= block.rows {
            self.row = 0;
            self.col += 2 * LINE;
        }
        (start, pitch)
    }
}

/// Rows, spread evenly over tiles: the first ones may have one row more than the others. Made once for a block, as it divides.
#[derive(Clone, Copy)]
pub(crate) struct TileRows {
    /// Number of tiles.
    pub count: usize,
    /// Rows of the shorter tiles.
    short: usize,
    /// Number of the longer ones.
    longer: usize,
}

impl TileRows {
    /// As few tiles as hold that many rows.
    #[inline(always)]
    pub(crate) fn new<S: Simd>(rows: usize) -> TileRows {
        let count = rows.div_ceil(S::TILE_ROWS);
        // Divisions of 32 bits take half as long, or less.
        let (short, longer) = (rows as u32 / count.max(1) as u32, rows as u32 % count.max(1) as u32);
        TileRows { count, short: short as usize, longer: longer as usize }
    }

    /// First row of a tile; behind the last one the number of rows.
    #[inline(always)]
    pub(crate) fn start(self, tile: usize) -> usize {
        let tile = tile.min(self.count);
        tile * self.short + tile.min(self.longer)
    }
}

/// What the tile calls of a loop prefetch: each its share of the panel of B behind its own, or the next pieces of what will be wanted
/// after the loop.
pub(super) struct TilePrefetch {
    stream_b: bool,
    /// Elements of a share.
    share: usize,
    rounds: usize,
    /// Pieces of two cache lines of a round.
    pub(super) pieces: usize,
}

impl TilePrefetch {
    /// That of a loop over some tiles of rows and panels of `depth` steps, in calls of some rounds: `usual` pieces of a round, where no
    /// share needs more.
    #[inline(always)]
    pub(super) fn new<S: Simd>(
        tile_loop: &TileLoop<'_>,
        depth: usize,
        tiles: usize,
        rounds: usize,
        usual: usize,
    ) -> TilePrefetch {
        let stream_b = tile_loop.stream_b;
        let share = depth * panel::<S>() / tiles.max(1);
        let pieces = if stream_b { share.div_ceil(2 * LINE).div_ceil(rounds.max(1)) } else { usual };
        TilePrefetch { stream_b, share, rounds, pieces }
    }

    /// Start and pitch of the pieces of tile number `tile`, where the next panel is `b_next`.
    #[inline(always)]
    pub(super) fn take(&self, prefetch: &mut Prefetch, tile: usize, b_next: *const f32) -> (*const f32, usize) {
        match self.stream_b {
            true => (b_next.wrapping_add(tile * self.share), 2 * LINE),
            false => prefetch.take(self.pieces * self.rounds),
        }
    }
}

impl TileLoop<'_> {
    /// Panel number `index` of B, of which there are so many, and the one that is wanted next.
    #[inline(always)]
    pub(super) fn panel(&self, index: usize, panels: usize) -> (*const f32, *const f32) {
        let b = self.b.wrapping_add(index * self.b_panel);
        (b, if index + 1 == panels { self.b_next } else { b.wrapping_add(self.b_panel) })
    }

    /// # Safety
    /// The packed blocks hold what the fields say, with whole panels of B, and `c` is valid and unshared for all
    /// rows and columns. Called under `S::run_op`.
    #[inline(always)]
    pub(crate) unsafe fn run<S: Simd>(&self, prefetch: &mut Prefetch) {
        // SAFETY: the caller's promises.
        unsafe { self.run_then::<S>(prefetch, &Ending::IN_C) }
    }

    /// As [`run`](Self::run), with sums that end as that says.
    ///
    /// # Safety
    /// As [`run`](Self::run), and what the ending names is valid and unshared.
    #[inline(always)]
    pub(crate) unsafe fn run_then<S: Simd>(&self, prefetch: &mut Prefetch, ending: &Ending<'_>) {
        // SAFETY: the caller's promises.
        unsafe {
            match S::TILES {
                true => tiles::run::<S>(self, prefetch, ending),
                false => self.run_vectors::<S>(prefetch, ending.store),
            }
        }
    }

    /// Computes tiles by vectors. Not inlined, so that the loop has all registers.
    ///
    /// # Safety
    /// As [`run_then`](Self::run_then). The machine has `S`.
    #[inline(never)]
    unsafe fn run_vectors<S: Simd>(&self, prefetch: &mut Prefetch, store: Option<&Store>) {
        // SAFETY: the caller's promises.
        unsafe { S::run_op(VectorTiles { tile_loop: self, prefetch, store }) }
    }
}

/// [`TileLoop::run_vectors`], compiled for an instruction set.
struct VectorTiles<'a> {
    tile_loop: &'a TileLoop<'a>,
    prefetch: &'a mut Prefetch,
    store: Option<&'a Store>,
}

impl SimdOp for VectorTiles<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let VectorTiles { tile_loop, prefetch, store } = self;
        let &TileLoop { layout, depth, a, a_tile, cols, c, c_rows, accumulate, .. } = tile_loop;
        let spread = TileRows::new::<S>(c_rows.len());
        let tiles = spread.count;
        // A step on pairs takes as long as one on single elements and consumes twice the memory.
        let tile_prefetch = TilePrefetch::new::<S>(tile_loop, depth, tiles, rounds(depth), 1 + usize::from(S::DOT2));
        let panels = cols.div_ceil(panel::<S>());
        let by_rows = store.is_some() && depth * cols <= NEAR_B;
        // Rows of the next tile that each panel of one prefetches: of the first tile, which no other is longer than.
        let next_share = share_len(spread.start(1), panels);
        let mut buffer = std::mem::MaybeUninit::<Buffer>::uninit();
        let buffer = buffer.as_mut_ptr().cast::<f32>();
        let a_rows = match layout {
            ALayout::Columns => None,
            _ => Some(a.rows),
        };
        let mut tile_rows = Rows::of::<S>(c_rows, a_rows, spread, 0);
        for (tile, index) in TileOrder::new(tiles, panels, by_rows) {
            if tile != tile_rows.tile {
                tile_rows = Rows::of::<S>(c_rows, a_rows, spread, tile);
            }
            let Rows { c_rows, next, a_rows, layout, kernel, .. } = tile_rows;
            let col = index * panel::<S>();
            let width = panel::<S>().min(cols - col);
            let (b, b_next) = tile_loop.panel(index, panels);
            let a_start = match layout {
                ALayout::Columns => a.start.wrapping_add(tile * a_tile),
                _ => a.start,
            };
            let (prefetch, prefetch_pitch) = tile_prefetch.take(prefetch, tile, b_next);
            // SAFETY: the caller's promises.
            unsafe {
                let in_buffer = store.is_some() && !accumulate;
                let args = TileArgs {
                    depth,
                    a: a_start,
                    a_rows: a_rows.as_ptr(),
                    a_runs: a.runs,
                    b,
                    c: if in_buffer { buffer } else { c.add(col) },
                    c_rows: if in_buffer { BUFFER_ROWS.as_ptr() } else { c_rows.as_ptr() },
                    accumulate,
                    prefetch,
                    prefetch_pitch,
                    prefetch_pieces: tile_prefetch.pieces,
                };
                if let Some(store) = store {
                    match by_rows {
                        true => store.prefetch::<S>(&next[share(0..next.len(), index, next_share)], 0..cols),
                        false => store.prefetch::<S>(c_rows, col..col + width),
                    }
                }
                match width == panel::<S>() {
                    true => kernel(&args),
                    false => multiply::<S>(layout, c_rows.len(), width, args),
                }
                if let Some(store) = store {
                    let source = match in_buffer {
                        true => Source::Buffer { start: buffer, pitch: MAX_PANEL },
                        false => Source::Matrix(c),
                    };
                    store.write::<S>(source, FinishedRows { c_rows, col, width });
                }
            }
        }
    }
}

/// The numbers of tiles of rows and of panels of columns, in the order in which a block of C is computed.
pub(super) struct TileOrder {
    tiles: usize,
    panels: usize,
    /// Whether all panels of a tile of rows come before the next tile of rows.
    by_rows: bool,
    tile: usize,
    panel: usize,
}

impl TileOrder {
    #[inline(always)]
    pub(super) fn new(tiles: usize, panels: usize, by_rows: bool) -> TileOrder {
        TileOrder { tiles, panels, by_rows, tile: 0, panel: 0 }
    }
}

impl Iterator for TileOrder {
    type Item = (usize, usize);

    #[inline(always)]
    fn next(&mut self) -> Option<(usize, usize)> {
        let TileOrder { tiles, panels, by_rows, tile, panel } = *self;
        if tile >= tiles || panel >= panels {
            return None;
        }
        let (is_last_panel, is_last_tile) = (panel + 1 == panels, tile + 1 == tiles);
        (self.tile, self.panel) = match by_rows {
            true if is_last_panel => (tile + 1, 0),
            true => (tile, panel + 1),
            false if is_last_tile => (0, panel + 1),
            false => (tile + 1, panel),
        };
        Some((tile, panel))
    }
}

/// Rows of a tile.
struct Rows<'a> {
    tile: usize,
    /// Offsets of them in C, and of those of the next tile.
    c_rows: &'a [usize],
    next: &'a [usize],
    /// Offsets of them in A, where it is not in columns.
    a_rows: &'a [usize],
    layout: ALayout,
    /// The kernel of a whole panel.
    kernel: TileFn,
}

impl<'a> Rows<'a> {
    /// Those of tile number `tile`; `a_rows` are those of all tiles.
    #[inline(always)]
    fn of<S: Simd>(c_rows: &'a [usize], a_rows: Option<&'a [usize]>, spread: TileRows, tile: usize) -> Rows<'a> {
        let [start, end, next_end] = [0, 1, 2].map(|next| spread.start(tile + next));
        let a_rows = a_rows.map(|rows| &rows[start..end]);
        let layout = match a_rows {
            None => ALayout::Columns,
            Some(rows) if regular_pitch(rows).is_some() => ALayout::EvenRows,
            Some(_) => ALayout::Rows,
        };
        Rows {
            tile,
            c_rows: &c_rows[start..end],
            next: &c_rows[end..next_end],
            a_rows: a_rows.unwrap_or(&[]),
            layout,
            kernel: tile_fn::<S>(layout, (end - start).max(1), panel::<S>()),
        }
    }
}

/// The distance of rows, if it is the same between all of them, and all are wanted.
#[inline(always)]
pub(super) fn regular_pitch(rows: &[usize]) -> Option<usize> {
    let [first, second, ..] = *rows else { return Some(0).filter(|_| rows != [NO_ROW]) };
    let pitch = second.wrapping_sub(first);
    let (mut next, mut is_regular) = (first, first != NO_ROW && second != NO_ROW);
    for &row in rows {
        is_regular &= row == next;
        next = next.wrapping_add(pitch);
    }
    is_regular.then_some(pitch)
}

/// Length of the parts of a range that is cut into `count`, the last ones perhaps shorter.
#[inline(always)]
pub(super) fn share_len(len: usize, count: usize) -> usize {
    (len as u32).div_ceil(count.max(1) as u32) as usize
}

/// Part number `index` of a range that is cut into parts of a length, as far as it goes.
#[inline(always)]
pub(super) fn share(range: Range<usize>, index: usize, len: usize) -> Range<usize> {
    let at = |index: usize| range.end.min(range.start + index * len);
    at(index)..at(index + 1)
}

/// Elements of B up to which it is read again for each few rows that are stored: it stays in the second-level cache, and rows are
/// written as they lie in memory.
const NEAR_B: usize = 64 * 1024;

/// One tile of fewer columns than a panel; where they are not a whole vector, by way of a buffer.
///
/// # Safety
/// As [`TileLoop::run`].
#[inline(always)]
unsafe fn multiply<S: Simd>(layout: ALayout, rows: usize, width: usize, args: TileArgs<'_>) {
    let tile = tile_fn::<S>(layout, rows, width);
    // SAFETY: the caller's promises.
    unsafe {
        if width == S::LANES {
            tile(&args);
        } else {
            multiply_partial(tile, rows, width, args);
        }
    }
}

/// # Safety
/// As [`TileLoop::run`].
#[cold]
unsafe fn multiply_partial(tile: TileFn, rows: usize, width: usize, args: TileArgs<'_>) {
    let mut buffer = [0.0f32; MAX_TILE_ROWS * MAX_PANEL];
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

/// Room for a register tile.
#[repr(align(64))]
struct Buffer(#[allow(dead_code, reason = "it is written through pointers")] [f32; MAX_TILE_ROWS * MAX_PANEL]);

/// Offsets of the rows of a tile in a buffer.
static BUFFER_ROWS: [usize; MAX_TILE_ROWS] = offsets(MAX_PANEL);

/// Offsets of rows that are `pitch` apart.
const fn offsets<const ROWS: usize>(pitch: usize) -> [usize; ROWS] {
    let mut offsets = [0; ROWS];
    let mut row = 0;
    while row < ROWS {
        offsets[row] = row * pitch;
        row += 1;
    }
    offsets
}
