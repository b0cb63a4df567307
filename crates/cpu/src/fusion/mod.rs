//! Fusions: pointwise programs over a `[rows, cols]` domain with reductions along rows and sums over rows, run tile by tile in
//! first-level cache.

mod block;
mod compile;
mod execute;
mod phases;
mod program;
mod reduce;
mod row_loop;
mod schedule;
mod store;

use crate::arithmetic::greatest_common_divisor;
use crate::gemm::Ctx;
use crate::isa::Isa;
use crate::simd::SimdOp;
use bessemer_ir::TensorType;
use bessemer_ir::ops::fusion::Fusion;
use program::{Program, Sink};
use row_loop::RowLoop;
use std::ops::Range;

pub(crate) use store::StoreFusion;

/// Elements of a task of [`FusionKernel::run`], about.
const BLOCK_ELEMENTS: usize = 32 * 1024;

/// Columns of a task at most.
const BLOCK_COLS: usize = 4096;

/// Memory that a fusion reads and writes. Every pointer is aligned to its element type. A store's memory may be that of
/// the producer or of an input with an element for each position of the domain, if both have the same element size, and
/// overlaps no other input.
#[derive(Clone, Copy)]
pub struct FusionIo<'a> {
    /// The producer's raw output, `f32[rows, cols]`; null if there is none.
    pub producer: *const f32,
    /// The inputs that the program loads.
    pub loads: &'a [*const u8],
    /// The outputs of the node.
    pub outputs: &'a [*mut u8],
}

// SAFETY: plain addresses; the unsafe functions that follow them state what must hold.
unsafe impl Sync for FusionIo<'_> {}

/// Results of the blocks of rows, `f32[blocks, slots, cols]`, that [`FusionKernel::finish`] combines.
#[derive(Clone, Copy)]
pub struct Partials(pub *mut f32);

// SAFETY: as for `FusionIo`; blocks of rows and ranges of columns write apart.
unsafe impl Sync for Partials {}

/// A fusion compiled for execution.
#[derive(Clone, Debug)]
pub struct FusionKernel {
    rows: usize,
    cols: usize,
    program: Program,
    slots: usize,
    /// Rows of each run of rows that a sum must not cross.
    group_rows: usize,
}

impl FusionKernel {
    /// Compiles a verified fusion. `input_types` are those of its loads.
    pub fn compile(fusion: &Fusion, input_types: &[TensorType]) -> FusionKernel {
        let program = compile::compile(fusion, input_types);
        let slots = program.sinks.iter().map(Sink::slots).sum();
        let rows_of_group = |sink: &Sink| match *sink {
            Sink::Sum { groups, .. } => Some(fusion.rows / groups.max(1)),
            _ => None,
        };
        let group_rows = program.sinks.iter().filter_map(rows_of_group).fold(fusion.rows, greatest_common_divisor);
        FusionKernel { rows: fusion.rows, cols: fusion.cols, program, slots, group_rows }
    }

    /// Whether it reduces rows.
    pub fn has_sums(&self) -> bool {
        self.slots > 0
    }

    /// Whether blocks of the given number of rows (the last of the domain may be shorter) never cross the border of two groups of a
    /// sum.
    pub fn accepts_block_rows(&self, block_rows: usize) -> bool {
        self.group_rows == self.rows || self.group_rows.is_multiple_of(block_rows)
    }

    /// Rows of the blocks that [`run`](Self::run) cuts the domain into.
    pub fn block_rows(&self) -> usize {
        let wanted = (BLOCK_ELEMENTS / self.cols.clamp(1, BLOCK_COLS)).clamp(1, self.rows.max(1));
        if self.group_rows == self.rows {
            return wanted;
        }
        let divisor = (wanted.div_ceil(8)..=wanted).rev().find(|&d| self.group_rows.is_multiple_of(d));
        divisor.unwrap_or(self.group_rows)
    }

    /// Elements of scratch that one call of [`run_rows`](Self::run_rows) needs.
    pub fn scratch_len(&self) -> usize {
        RowLoop::scratch_len(&self.program, self.cols)
    }

    /// Elements of the partial results of the given number of blocks.
    pub fn partials_len(&self, blocks: usize) -> usize {
        blocks * self.slots * self.cols
    }

    /// Elements of scratch that [`run`](Self::run) needs.
    pub fn run_scratch_len(&self, threads: usize) -> usize {
        let blocks = self.rows.div_ceil(self.block_rows());
        threads * self.worker_scratch_len() + self.partials_len(blocks)
    }

    /// Scratch of one worker, in whole cache lines.
    fn worker_scratch_len(&self) -> usize {
        self.scratch_len().next_multiple_of(16)
    }

    /// Computes a part of the domain: writes its stores, and the partial results of its reductions to row `block` of
    /// `partials`. For a fusion with reductions, `rows` are all rows of the block.
    ///
    /// # Safety
    /// The pointers are valid for the accesses of the fusion and nothing else accesses the part meanwhile; `partials` is
    /// valid for blocks up to `block`. Two parts that run at once do not overlap.
    ///
    /// # Panics
    /// If `scratch` is shorter than [`scratch_len`](Self::scratch_len), or the part is not within the domain.
    pub unsafe fn run_rows(
        &self,
        isa: Isa,
        io: &FusionIo<'_>,
        rows: Range<usize>,
        cols: Range<usize>,
        block: usize,
        scratch: &mut [f32],
        partials: Partials,
    ) {
        assert!(rows.end <= self.rows && cols.end <= self.cols, "the part is not within the domain");
        if rows.is_empty() || cols.is_empty() {
            return;
        }
        let offset = block * self.slots * self.cols;
        // SAFETY: the caller's promise.
        let partials = if self.slots == 0 { partials.0 } else { unsafe { partials.0.add(offset) } };
        let row_loop = RowLoop::new(&self.program, io, self.cols, rows, cols, scratch, partials);
        // SAFETY: the caller's promise.
        unsafe { row_loop.run_bf16_on(isa) }
    }

    /// Combines the blocks' partial results, in their order, into the outputs of the reductions. Block number `i` holds
    /// the rows from `i * block_rows` on.
    ///
    /// # Safety
    /// `partials` holds the results of all blocks, and the outputs are valid for writes.
    pub unsafe fn finish(&self, ctx: Ctx<'_>, io: &FusionIo<'_>, partials: Partials, block_rows: usize) {
        // SAFETY: the caller's promise.
        unsafe { reduce::finish(self, ctx, io, partials, block_rows) }
    }

    /// Computes the whole domain.
    ///
    /// # Safety
    /// The pointers are valid for the accesses of the fusion and nothing else accesses the memory meanwhile.
    ///
    /// # Panics
    /// If `scratch` is shorter than [`run_scratch_len`](Self::run_scratch_len).
    pub unsafe fn run(&self, ctx: Ctx<'_>, io: &FusionIo<'_>, scratch: &mut [f32]) {
        let threads = ctx.pool.threads();
        assert!(scratch.len() >= self.run_scratch_len(threads), "the scratch of a fusion is too short");
        let worker_len = self.worker_scratch_len();
        let (workers, partials) = scratch.split_at_mut(threads * worker_len);
        let partials = &Partials(partials.as_mut_ptr());
        let base = &Partials(workers.as_mut_ptr());
        let worker_scratch = |worker: usize| {
            // SAFETY: a worker uses only its own part of the memory, and runs one task at a time.
            unsafe { std::slice::from_raw_parts_mut(base.0.add(worker * worker_len), worker_len) }
        };
        if self.program.flat {
            let elements = self.rows * self.cols;
            ctx.pool.run(elements.div_ceil(BLOCK_ELEMENTS), &|task, worker| {
                let part = task * BLOCK_ELEMENTS..elements.min((task + 1) * BLOCK_ELEMENTS);
                let row_loop =
                    RowLoop::new(&self.program, io, elements, 0..1, part, worker_scratch(worker), partials.0);
                // SAFETY: the parts are disjoint; the rest is the caller's promise.
                unsafe { row_loop.run_bf16_on(ctx.isa) }
            });
            return;
        }
        let block_rows = self.block_rows();
        let blocks = self.rows.div_ceil(block_rows);
        let task_cols = if self.program.rowwise { self.cols } else { BLOCK_COLS };
        let column_tasks = self.cols.div_ceil(task_cols);
        ctx.pool.run(blocks * column_tasks, &|task, worker| {
            let (block, columns) = (task / column_tasks, task % column_tasks);
            let rows = block * block_rows..self.rows.min((block + 1) * block_rows);
            let cols = columns * task_cols..self.cols.min((columns + 1) * task_cols);
            // SAFETY: the parts are disjoint; the rest is the caller's promise.
            unsafe { self.run_rows(ctx.isa, io, rows, cols, block, worker_scratch(worker), *partials) }
        });
        // SAFETY: all blocks have run.
        unsafe { self.finish(ctx, io, *partials, block_rows) }
    }
}
