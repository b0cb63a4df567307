//! Products by blocks of output rows: `A` is copied row by row into a block, `B` is packed before and shared.

use std::ops::Range;

use super::blocking::{column_groups, pieces, row_blocks_for};
use super::memory::{Scratch, SharedMut, aligned_len};
use super::sweep::Sweep;
use super::tile::{ALayout, MAX_DEPTH, ROW_STRIDE, panel};
use super::{Ctx, Epilogue};
use crate::simd::{Simd, SimdOp, dispatch};

/// Most rows of a block of A.
pub(crate) const MAX_ROWS: usize = 112;

/// Columns for which a block of A is used before it is replaced: B of this width and a block of C stay in the
/// second-level cache.
const MAX_COLS: usize = 1024;

/// Where a row of A comes from.
#[derive(Clone, Copy, Default)]
pub(crate) struct Row {
    /// Offset of its image, or of the row itself.
    pub base: usize,
    /// Position in the image of the first kernel tap; it may lie outside.
    pub y: isize,
    pub x: isize,
}

/// Rows of A, copied piece by piece as they are needed.
pub(crate) trait RowSource: Sync {
    /// Row number `index`.
    fn locate(&self, index: usize) -> Row;

    /// Copies elements `range` of a row to `dst`.
    ///
    /// # Safety
    /// `dst` has room for them. Called under `S::vectorize`.
    unsafe fn copy<S: Simd>(&self, row: Row, range: Range<usize>, dst: *mut f32);
}

/// The rows of a matrix.
pub(crate) struct MatrixRows {
    pub src: *const f32,
    pub ld: usize,
}

// SAFETY: only read, and whoever builds one vouches for its extent.
unsafe impl Sync for MatrixRows {}

impl RowSource for MatrixRows {
    #[inline(always)]
    fn locate(&self, index: usize) -> Row {
        Row { base: index * self.ld, y: 0, x: 0 }
    }

    #[inline(always)]
    unsafe fn copy<S: Simd>(&self, row: Row, range: Range<usize>, dst: *mut f32) {
        // SAFETY: the caller's promise, and the matrix has the row.
        unsafe { S::copy(self.src.add(row.base + range.start), dst, range.len()) }
    }
}

/// Up to [`MAX_ROWS`] rows of A and the offsets of their rows of C.
pub(crate) struct RowTable {
    len: usize,
    rows: [Row; MAX_ROWS],
    c_rows: [usize; MAX_ROWS],
}

impl RowTable {
    pub fn new() -> RowTable {
        RowTable { len: 0, rows: [Row::default(); MAX_ROWS], c_rows: [0; MAX_ROWS] }
    }

    #[inline(always)]
    pub fn push(&mut self, row: Row, c_row: usize) {
        self.rows[self.len] = row;
        self.c_rows[self.len] = c_row;
        self.len += 1;
    }

    /// Offsets of the rows of C.
    pub fn c_rows(&self) -> &[usize] {
        &self.c_rows[..self.len]
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn is_full(&self) -> bool {
        self.len == MAX_ROWS
    }

    pub fn clear(&mut self) {
        self.len = 0;
    }
}

/// One block of rows and some columns of a product, as a task computes it.
pub(crate) struct RowBlock<'a, P> {
    pub source: &'a P,
    pub table: &'a RowTable,
    pub packed: *const f32,
    pub k: usize,
    /// Starts at a panel.
    pub cols: Range<usize>,
    pub c: SharedMut,
    pub accumulate: bool,
    /// Room for a block of A.
    pub a_block: *mut f32,
}

impl<P: RowSource> SimdOp for RowBlock<'_, P> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let depths = pieces(self.k, MAX_DEPTH, 4);
        let rows = &self.table.rows[..self.table.len];
        let chunks = pieces(self.cols.len(), MAX_COLS, panel::<S>());
        for chunk in 0..chunks.count {
            let cols = chunks.range(chunk, self.cols.len());
            let first = self.cols.start + cols.start;
            for block in 0..depths.count {
                let depth = depths.range(block, self.k);
                // SAFETY: the task owns its rows and columns of C and its block of A; B is packed.
                unsafe {
                    for (i, &row) in rows.iter().enumerate() {
                        self.source.copy::<S>(row, depth.clone(), self.a_block.add(i * ROW_STRIDE));
                    }
                    let b = self.packed.add(first * self.k + depth.start * panel::<S>());
                    let sweep = Sweep {
                        layout: ALayout::Rows,
                        depth: depth.len(),
                        a: self.a_block,
                        a_tile: 0,
                        b,
                        b_panel: self.k * panel::<S>(),
                        cols: cols.len(),
                        c: self.c.0.add(first),
                        c_rows: self.table.c_rows(),
                        accumulate: self.accumulate || block > 0,
                        b_next: b.wrapping_add(depth.len() * panel::<S>()),
                    };
                    sweep.run::<S>();
                }
            }
        }
    }
}

/// Scratch elements of the tasks of `threads` workers.
pub(crate) fn row_scratch_len(threads: usize) -> usize {
    threads * A_BLOCK + aligned_len(0)
}

const A_BLOCK: usize = MAX_ROWS * ROW_STRIDE;

/// The blocks of A of all workers.
pub(crate) struct BlockScratch(SharedMut);

impl BlockScratch {
    pub fn new(mut scratch: Scratch, threads: usize) -> BlockScratch {
        BlockScratch(scratch.take(threads * A_BLOCK))
    }

    pub fn of(&self, worker: usize) -> *mut f32 {
        // SAFETY: the pool's workers are numbered below its thread count.
        unsafe { self.0.add(worker * A_BLOCK).0 }
    }
}

/// Block and row numbers, as an epilogue gets them, of the first row of a product.
#[derive(Clone, Copy)]
pub(crate) struct Origin {
    pub block: usize,
    pub row: usize,
}

/// `C (+)= A * B` with B packed.
pub(crate) struct RowProduct<'a, P> {
    pub source: &'a P,
    pub packed: *const f32,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub c: SharedMut,
    pub ldc: usize,
    pub accumulate: bool,
}

// SAFETY: `packed` is only read, `c` is written by tasks in different places.
unsafe impl<P: RowSource> Sync for RowProduct<'_, P> {}

impl<P: RowSource> RowProduct<'_, P> {
    /// # Safety
    /// The source has `m` rows of `k` elements, B is packed for the instruction set, C is valid and unshared.
    pub unsafe fn run(&self, ctx: Ctx<'_>, scratch: Scratch, origin: Origin, epilogue: Option<&dyn Epilogue>) {
        let blocks = row_blocks_for(self.m);
        let groups = column_groups(blocks.count, self.n);
        let scratch = BlockScratch::new(scratch, ctx.pool.threads());
        ctx.pool.run(blocks.count * groups.count, &|task, worker| {
            let (block, group) = (task / groups.count, task % groups.count);
            let rows = blocks.range(block, self.m);
            let cols = groups.range(group, self.n);
            // SAFETY: the caller's promises; tasks have different rows or columns.
            unsafe { self.block(ctx, rows.clone(), cols.clone(), scratch.of(worker)) };
            if let Some(epilogue) = epilogue {
                epilogue.block(worker, origin.block + block, origin.row + rows.start..origin.row + rows.end, cols);
            }
        });
    }

    /// Computes rows and columns of C on the calling thread.
    ///
    /// # Safety
    /// As [`run`](Self::run), and `a_block` has room for a block of A.
    pub unsafe fn block(&self, ctx: Ctx<'_>, rows: Range<usize>, cols: Range<usize>, a_block: *mut f32) {
        let mut table = RowTable::new();
        let mut next = rows.start;
        while next < rows.end {
            table.clear();
            for row in next..rows.end.min(next + MAX_ROWS) {
                table.push(self.source.locate(row), row * self.ldc);
            }
            next += MAX_ROWS;
            let block = RowBlock {
                source: self.source,
                table: &table,
                packed: self.packed,
                k: self.k,
                cols: cols.clone(),
                c: self.c,
                accumulate: self.accumulate,
                a_block,
            };
            // SAFETY: the caller's promises.
            unsafe { dispatch(ctx.isa, block) };
        }
    }
}
