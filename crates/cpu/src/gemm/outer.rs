//! Products with a long reduction, `C = A^T * B`: tasks own blocks of `C` and pack A as they go. Where `C` is large, B is packed
//! before and shared; where it is small, tasks pack B too, and the reduction is split, with partial sums that are added in a
//! fixed order.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::blocking::{RowBlocks, column_groups, even_chunks, split_count};
use super::memory::{Destination, Scratch, SharedMut, aligned_len};
use super::pack::{Matrix, pack_shared, packed_len};
use super::rows::{MAX_COLS, Origin, RESIDENT_B, RowAddress, RowSource};
use super::tile::{ALayout, COLUMN_STRIDE, MAX_DEPTH, MAX_PANEL, ROW_STRIDE, column_stride, depth_step, panel};
use super::tile_loop::{MemoryBlock, OperandRows, Prefetch, TileLoop, TileRows};
use super::{Ctx, Epilogue, free_threads};
use crate::simd::{PanelFormat, Simd, SimdOp, TILE_STEPS};

/// Most rows, and most columns, of a task's block of C.
pub(crate) const MAX_BLOCK: usize = 256;

/// Elements of C up to which it is small.
const SMALL_OUTPUT: usize = 320 * 1024;

/// Most rows of a task's block of C where B is shared.
const SHARED_ROWS: usize = 132;

/// Padding between tiles of A and between panels of B, which moves them to different cache sets.
const PAD: usize = 16;

/// Most elements of a packed block of A: narrow tiles of 4 rows at a step of 8, or wide ones.
const A_LEN: usize = MAX_BLOCK / 4 * (MAX_DEPTH * COLUMN_STRIDE / 2 + PAD);
/// Distance of the lines of a tile's steps.
pub(crate) const LINE_PITCH: usize = MAX_BLOCK + 16;
/// Elements of these lines.
pub(crate) const LINE_LEN: usize = TILE_STEPS * LINE_PITCH;
const B_LEN: usize = MAX_BLOCK * MAX_DEPTH + MAX_BLOCK / 8 * PAD;
const WORKER_LEN: usize = A_LEN + LINE_LEN + B_LEN;

/// How a product is cut.
struct Plan {
    rows: RowBlocks,
    /// Where tasks pack B, as they are then cut by shapes alone.
    cols: RowBlocks,
    splits: RowBlocks,
    /// Whether B is packed before the tasks begin.
    is_shared: bool,
}

impl Plan {
    fn new(m: usize, n: usize, depth: usize) -> Plan {
        let is_shared = m * n > SMALL_OUTPUT;
        let rows = even_chunks(m, if is_shared { SHARED_ROWS } else { MAX_BLOCK }, 1);
        let cols = even_chunks(n, MAX_BLOCK, MAX_PANEL);
        let splits = if is_shared { 1 } else { split_count(rows.count * cols.count, depth) };
        Plan {
            rows,
            cols,
            splits: even_chunks(depth, depth.div_ceil(splits).next_multiple_of(TILE_STEPS), TILE_STEPS),
            is_shared,
        }
    }

    /// Elements of all of B, packed.
    fn packed_len(&self, n: usize, depth: usize) -> usize {
        if self.is_shared { packed_len(depth, n) } else { 0 }
    }

    fn partial_len(&self, m: usize, n: usize) -> usize {
        if self.splits.count > 1 { self.splits.count * m * n } else { 0 }
    }
}

/// Row blocks of a product as its epilogue gets them.
pub(crate) fn row_blocks(m: usize, n: usize, depth: usize) -> RowBlocks {
    Plan::new(m, n, depth).rows
}

/// Scratch elements of [`OuterProduct::run`].
pub(crate) fn outer_scratch_len(m: usize, n: usize, depth: usize, threads: usize) -> usize {
    let plan = Plan::new(m, n, depth);
    aligned_len(plan.partial_len(m, n)) + aligned_len(plan.packed_len(n, depth)) + worker_scratch_len(threads)
}

/// Scratch elements of the tasks of `threads` workers.
pub(crate) fn worker_scratch_len(threads: usize) -> usize {
    threads * WORKER_LEN + aligned_len(0)
}

/// The packed blocks of all workers.
pub(crate) struct WorkerScratch(SharedMut);

impl WorkerScratch {
    pub(super) fn new(mut scratch: Scratch, threads: usize) -> WorkerScratch {
        WorkerScratch(scratch.take(threads * WORKER_LEN))
    }

    pub(super) fn of(&self, worker: usize) -> *mut f32 {
        // SAFETY: the pool's workers are numbered below its thread count.
        unsafe { self.0.add(worker * WORKER_LEN).0 }
    }
}

/// `C[m, n] (+)= sum over p of A[p, m] * B[p, n]`.
pub(crate) struct OuterProduct<'a, P> {
    /// Rows `p` of `m` elements.
    pub source: &'a P,
    pub b: Matrix,
    pub format: PanelFormat,
    pub m: usize,
    /// Steps of the reduction.
    pub depth: usize,
    pub c: Destination,
    pub ldc: usize,
    pub accumulate: bool,
}

impl<P: RowSource> OuterProduct<'_, P> {
    /// # Safety
    /// The source and B have `depth` rows, and C is valid and unshared.
    pub(crate) unsafe fn run(
        &self,
        ctx: Ctx<'_>,
        mut scratch: Scratch,
        origin: Origin,
        epilogue: Option<&dyn Epilogue>,
    ) {
        let n = self.b.n;
        let plan = Plan::new(self.m, n, self.depth);
        if plan.is_shared {
            // SAFETY: the caller's promises.
            return unsafe { self.run_shared(ctx, scratch, plan.rows, origin, epilogue) };
        }
        let partials = scratch.take(plan.partial_len(self.m, n));
        let workers = WorkerScratch::new(scratch, ctx.pool.threads());
        let whole = plan.splits.count <= 1;
        let finish = |worker: usize, block: usize, rows: Range<usize>, cols: Range<usize>| {
            if let Some(epilogue) = epilogue {
                epilogue.block(worker, origin.block + block, origin.row + rows.start..origin.row + rows.end, cols);
            }
        };
        let blocks = plan.rows.count * plan.cols.count;
        ctx.pool.run(blocks * plan.splits.count.max(1), &|task, worker| {
            let (split, block) = (task / blocks, task % blocks);
            let rows = plan.rows.range(block / plan.cols.count, self.m);
            let cols = plan.cols.range(block % plan.cols.count, n);
            // SAFETY: the caller's promises; tasks have different blocks of C or of the partial sums.
            unsafe {
                let own = self.c.block(worker, rows.start * self.ldc);
                let (c, ldc) = if whole { (own, self.ldc) } else { (partials.add(split * self.m * n), n) };
                let block = OuterBlock {
                    product: self,
                    packed: None,
                    rows: rows.clone(),
                    cols: cols.clone(),
                    depth: plan.splits.range(split, self.depth),
                    c,
                    ldc,
                    accumulate: whole && self.accumulate,
                    scratch: workers.of(worker),
                };
                block.run_product_on(ctx.isa, self.format);
            }
            if whole {
                finish(worker, block / plan.cols.count, rows, cols);
            }
        });
        if whole {
            return;
        }
        ctx.pool.run(blocks, &|block, worker| {
            let rows = plan.rows.range(block / plan.cols.count, self.m);
            let cols = plan.cols.range(block % plan.cols.count, n);
            let sum = PartialSum {
                partials,
                count: plan.splits.count,
                len: self.m * n,
                pitch: n,
                c: self.c.block(worker, rows.start * self.ldc),
                ldc: self.ldc,
                accumulate: self.accumulate,
                rows: rows.clone(),
                cols: cols.clone(),
            };
            // SAFETY: the caller's promises; the partial sums are complete, tasks have different blocks of C.
            unsafe { sum.run_on(ctx.isa) };
            finish(worker, block / plan.cols.count, rows, cols);
        });
    }

    /// Packs B and computes blocks of rows of C.
    ///
    /// # Safety
    /// As [`run`](Self::run).
    unsafe fn run_shared(
        &self,
        ctx: Ctx<'_>,
        mut scratch: Scratch,
        rows: RowBlocks,
        origin: Origin,
        epilogue: Option<&dyn Epilogue>,
    ) {
        let n = self.b.n;
        let packed = scratch.take(packed_len(self.depth, n));
        let workers = WorkerScratch::new(scratch, ctx.pool.threads());
        // SAFETY: the caller's promises; the scratch has room for B.
        unsafe { pack_shared(ctx, &self.b, self.format, packed) };
        let groups = column_groups(rows, n, self.format, free_threads(ctx, epilogue));
        ctx.pool.run(rows.count * groups.count, &|task, worker| {
            let cols = groups.range(task % groups.count, n);
            let block = task / groups.count;
            let rows = rows.range(block, self.m);
            let chunks = even_chunks(cols.len(), MAX_COLS, MAX_PANEL);
            for chunk in 0..chunks.count {
                let chunk = chunks.range(chunk, cols.len());
                let block = OuterBlock {
                    product: self,
                    packed: Some(packed),
                    rows: rows.clone(),
                    cols: cols.start + chunk.start..cols.start + chunk.end,
                    depth: 0..self.depth,
                    c: self.c.block(worker, rows.start * self.ldc),
                    ldc: self.ldc,
                    accumulate: self.accumulate,
                    scratch: workers.of(worker),
                };
                // SAFETY: the caller's promises; tasks have different blocks of C.
                unsafe { block.run_product_on(ctx.isa, self.format) };
            }
            if let Some(epilogue) = epilogue {
                epilogue.block(worker, origin.block + block, origin.row + rows.start..origin.row + rows.end, cols);
            }
        });
    }

    /// Computes all of C on the calling thread.
    ///
    /// # Safety
    /// As [`run`](Self::run), and `scratch` is a worker's.
    pub(crate) unsafe fn run_serial(&self, ctx: Ctx<'_>, worker: usize, scratch: *mut f32) {
        let rows = even_chunks(self.m, MAX_BLOCK, 1);
        let cols = even_chunks(self.b.n, MAX_BLOCK, MAX_PANEL);
        for block in 0..rows.count * cols.count {
            let block = OuterBlock {
                product: self,
                packed: None,
                rows: rows.range(block / cols.count, self.m),
                cols: cols.range(block % cols.count, self.b.n),
                depth: 0..self.depth,
                c: self.c.block(worker, 0),
                ldc: self.ldc,
                accumulate: self.accumulate,
                scratch,
            };
            // SAFETY: the caller's promises.
            unsafe { block.run_product_on(ctx.isa, self.format) };
        }
    }
}

/// A block of C over a part of the reduction.
struct OuterBlock<'a, P> {
    product: &'a OuterProduct<'a, P>,
    /// All of B, if it was packed before.
    packed: Option<SharedMut>,
    rows: Range<usize>,
    cols: Range<usize>,
    depth: Range<usize>,
    c: SharedMut,
    ldc: usize,
    accumulate: bool,
    scratch: *mut f32,
}

impl<P: RowSource> SimdOp for OuterBlock<'_, P> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut c_rows = [0; MAX_BLOCK];
        for (offset, row) in c_rows.iter_mut().zip(self.rows.clone()) {
            *offset = row * self.ldc;
        }
        let depths = even_chunks(self.depth.len(), MAX_DEPTH, depth_step::<S>());
        for step in 0..depths.count {
            let range = depths.range(step, self.depth.len());
            // SAFETY: the promises made for this block.
            unsafe {
                let depth = self.depth.start + range.start..self.depth.start + range.end;
                self.step::<S>(depth, &c_rows[..self.rows.len()]);
            }
        }
    }
}

impl<P: RowSource> OuterBlock<'_, P> {
    /// Adds a part of the reduction that fits the caches.
    ///
    /// # Safety
    /// The task owns its block of C and its scratch. Called under `S::run_op`.
    #[inline(always)]
    unsafe fn step<S: Simd>(&self, depth: Range<usize>, c_rows: &[usize]) {
        let a_tile = depth.len() * column_stride::<S>() + PAD;
        // SAFETY: the scratch has room for the packed blocks, the rest are the caller's promises.
        unsafe {
            let a = self.scratch;
            let line = a.add(A_LEN);
            if S::TILES {
                self.pack_a_rows::<S>(depth.clone(), a, line);
            } else {
                self.pack_a::<S>(depth.clone(), a, a_tile, line);
            }
            let (b, b_panel, b_next) = match self.packed {
                Some(packed) => {
                    let panel_len = self.product.depth * panel::<S>();
                    let b =
                        packed.0.cast_const().add(self.cols.start * self.product.depth + depth.start * panel::<S>());
                    (b, panel_len, b.wrapping_add(depth.len() * panel::<S>()))
                }
                None => {
                    let b = line.add(LINE_LEN);
                    let b_panel = depth.len() * panel::<S>() + PAD;
                    self.product.b.pack::<S>(depth.clone(), self.cols.clone(), b, b_panel);
                    (b.cast_const(), b_panel, b.cast_const())
                }
            };
            let tile_loop = TileLoop {
                layout: if S::TILES { ALayout::Rows } else { ALayout::Columns },
                depth: depth.len(),
                a: OperandRows::packed(a),
                a_tile,
                b,
                b_panel,
                cols: self.cols.len(),
                c: self.c.0.add(self.cols.start),
                c_rows,
                accumulate: self.accumulate || depth.start > self.depth.start,
                stream_b: self.packed.is_some() && self.product.depth * self.cols.len() > RESIDENT_B,
                b_next,
            };
            tile_loop.run::<S>(&mut self.prefetch(depth));
        }
    }

    /// What the step after that of `depth` reads.
    fn prefetch(&self, depth: Range<usize>) -> Prefetch {
        let next = depth.end..self.depth.end.min(depth.end + depth.len());
        if next.is_empty() {
            return Prefetch::new([MemoryBlock::EMPTY; 2]);
        }
        let elements =
            if self.product.format.is_dot2() { 2 * next.start..self.product.b.k.min(2 * next.end) } else { next };
        let a = self.product.source.memory(elements.clone(), self.rows.clone());
        let b = match self.packed {
            Some(_) => MemoryBlock::EMPTY,
            None => self.product.b.memory(elements, self.cols.clone()),
        };
        Prefetch::new([a, b])
    }

    /// Copies the block's elements of rows `depth` of A to tiles, by way of a line buffer.
    #[inline(always)]
    unsafe fn pack_a<S: Simd>(&self, depth: Range<usize>, dst: *mut f32, a_tile: usize, line: *mut f32) {
        let tiles = TileRows::new::<S>(self.rows.len());
        for (step, p) in depth.enumerate() {
            // SAFETY: the line and the tiles have room, and reading a whole step from the line stays inside it.
            unsafe {
                self.take_line::<S>(p, line);
                for tile in 0..tiles.count {
                    let src = line.add(tiles.start(tile));
                    let dst = dst.add(tile * a_tile + step * column_stride::<S>());
                    for v in (0..column_stride::<S>()).step_by(S::LANES) {
                        S::store(dst.add(v), S::load(src.add(v)));
                    }
                }
            }
        }
    }
}

impl<P: RowSource> OuterBlock<'_, P> {
    /// Copies the block's elements of rows `depth` of A to rows of tiles: a tile's steps are taken to line buffers, and transposed.
    ///
    /// # Safety
    /// The lines and the rows have room. Called under `S::run_op`.
    #[inline(always)]
    unsafe fn pack_a_rows<S: Simd>(&self, depth: Range<usize>, dst: *mut f32, lines: *mut f32) {
        for (tile, first) in depth.clone().step_by(TILE_STEPS).enumerate() {
            let dst = dst.wrapping_add(tile * TILE_STEPS);
            // SAFETY: the caller's promises.
            unsafe {
                for step in 0..TILE_STEPS {
                    self.take_line::<S>(first + step, lines.add(step * LINE_PITCH));
                }
                transpose_lines::<S>(lines, self.rows.len(), dst, ROW_STRIDE);
            }
        }
    }

    /// Copies the block's elements of a step of A: of a row, or of two rows as pairs. Rows behind the last one are zeros.
    ///
    /// # Safety
    /// The line has room for them. Called under `S::run_op`.
    #[inline(always)]
    unsafe fn take_line<S: Simd>(&self, step: usize, line: *mut f32) {
        let (source, rows) = (self.product.source, &self.rows);
        // SAFETY: the caller's promise; the buffers have room for the rows of a block.
        unsafe {
            if !S::DOT2 {
                return source.copy::<S, _>(source.locate(step), rows.clone(), line);
            }
            let mut buffers = [const { MaybeUninit::<[u16; MAX_BLOCK]>::uninit() }; 2];
            let mut taken = [std::ptr::null(); 2];
            for (half, (buffer, taken)) in buffers.iter_mut().zip(&mut taken).enumerate() {
                let buffer = buffer.as_mut_ptr().cast::<u16>();
                *taken = buffer;
                if 2 * step + half >= self.product.b.k {
                    buffer.zero::<S>(rows.len());
                    continue;
                }
                let row = source.locate(2 * step + half);
                match source.in_place(row, rows.clone()) {
                    Some(memory) => *taken = memory.as_16(),
                    None => source.copy::<S, _>(row, rows.clone(), buffer),
                }
            }
            S::interleave_16(taken[0], taken[1], line.cast(), rows.len());
        }
    }
}

/// Transposes the lines of a tile's steps, [`LINE_PITCH`] apart, to `rows` rows of these steps, `pitch` apart.
///
/// # Safety
/// The lines are there, and the rows have room; both in whole vectors. Called under `S::run_op`.
#[inline(always)]
pub(crate) unsafe fn transpose_lines<S: Simd>(lines: *const f32, rows: usize, dst: *mut f32, pitch: usize) {
    for row in (0..rows).step_by(S::LANES) {
        for step in (0..TILE_STEPS).step_by(S::LANES) {
            // SAFETY: the caller's promises.
            unsafe { S::transpose(lines.add(step * LINE_PITCH + row), LINE_PITCH, dst.add(row * pitch + step), pitch) };
        }
    }
}

/// Partial sums of a matrix, one after the other.
pub(crate) struct PartialSums {
    pub start: SharedMut,
    pub count: usize,
    /// Of the matrix.
    pub rows: usize,
    pub cols: usize,
}

impl PartialSums {
    /// Adds them in their order, and writes the matrix to `c`.
    ///
    /// # Safety
    /// They are there, and `c` is valid and unshared.
    pub(crate) unsafe fn add_to(&self, ctx: Ctx<'_>, c: SharedMut) {
        let parts = even_chunks(self.rows, SUM_ROWS, 1);
        ctx.pool.run(parts.count, &|part, _| {
            let sum = PartialSum {
                partials: self.start,
                count: self.count,
                len: self.rows * self.cols,
                pitch: self.cols,
                c,
                ldc: self.cols,
                accumulate: false,
                rows: parts.range(part, self.rows),
                cols: 0..self.cols,
            };
            // SAFETY: the caller's promise; tasks have different rows.
            unsafe { sum.run_on(ctx.isa) };
        });
    }
}

/// Rows of a task that adds partial sums.
const SUM_ROWS: usize = 128;

/// Adds the partial sums of a block in their order.
struct PartialSum {
    partials: SharedMut,
    count: usize,
    /// Elements of a partial sum, and of a row of it.
    len: usize,
    pitch: usize,
    c: SharedMut,
    ldc: usize,
    accumulate: bool,
    rows: Range<usize>,
    cols: Range<usize>,
}

impl SimdOp for PartialSum {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for row in self.rows.clone() {
            let mut col = self.cols.start;
            // SAFETY: rows and columns are inside C and the partial sums.
            unsafe {
                let c = self.c.0.add(row * self.ldc);
                let partial = self.partials.0.add(row * self.pitch);
                while col + S::LANES <= self.cols.end {
                    let mut sum = if self.accumulate { S::load(c.add(col)) } else { S::splat(0.0) };
                    for split in 0..self.count {
                        sum = S::add(sum, S::load(partial.add(split * self.len + col)));
                    }
                    S::store(c.add(col), sum);
                    col += S::LANES;
                }
                for col in col..self.cols.end {
                    let mut sum = if self.accumulate { *c.add(col) } else { 0.0 };
                    for split in 0..self.count {
                        sum += *partial.add(split * self.len + col);
                    }
                    *c.add(col) = sum;
                }
            }
        }
    }
}
