//! Batches of small matrices: a task is a whole product.

use super::blocking::{BlockRuns, TASKS};
use super::memory::{Destination, Scratch, aligned_len};
use super::outer::{WorkerScratch, worker_scratch_len};
use super::pack::{PackTask, PanelSteps, packed_len};
use super::rows::{BlockScratch, RowTable, row_scratch_len};
use super::tile_loop::MemoryBlock;
use super::typed_slice::TypedPtr;
use super::{Ctx, Epilogue, GemmDesc};
use crate::simd::{PanelFormat, SimdOp};

/// Most elements of a B that a worker packs for itself.
const MAX_B: usize = 256 * 1024;

/// Whether tasks are whole products.
pub(crate) fn applies(desc: &GemmDesc) -> bool {
    desc.batch >= TASKS / 2 && desc.m * desc.n <= MAX_B && (desc.trans_a || packed_len(desc.k, desc.n) <= MAX_B)
}

pub(crate) fn scratch_len(desc: &GemmDesc, threads: usize) -> usize {
    if desc.trans_a {
        worker_scratch_len(threads)
    } else {
        aligned_len(threads * packed_len(desc.k, desc.n)) + row_scratch_len(threads)
    }
}

/// # Safety
/// A, B and C are valid for what `desc` says, C unshared.
pub(crate) unsafe fn run(
    ctx: Ctx<'_>,
    desc: &GemmDesc,
    format: PanelFormat,
    a: TypedPtr,
    b: TypedPtr,
    c: Destination,
    mut scratch: Scratch,
    epilogue: Option<&dyn Epilogue>,
) {
    let threads = ctx.pool.threads();
    let operands = Operands { a, b, c };
    let finish = |worker: usize, item: usize| {
        if let Some(epilogue) = epilogue {
            epilogue.block(worker, item, item * desc.m..(item + 1) * desc.m, 0..desc.n);
        }
    };
    if desc.trans_a {
        let workers = WorkerScratch::new(scratch, threads);
        ctx.pool.run(desc.batch, &|item, worker| {
            // SAFETY: the caller's promises; tasks have different matrices C.
            unsafe {
                let (a, b, c) = operands.item(desc, item);
                desc.outer_product(&desc.a_rows(a), desc.b_matrix(b), format, c).run_serial(
                    ctx,
                    worker,
                    workers.of(worker),
                );
            }
            finish(worker, item);
        });
    } else {
        let packed = scratch.take(threads * packed_len(desc.k, desc.n));
        let workers = BlockScratch::new(scratch, threads);
        let runs = BlockRuns::new(desc.batch, threads);
        ctx.pool.run(runs.count(), &|task, worker| {
            let mut table = RowTable::new();
            for (item, _) in runs.blocks(task) {
                // SAFETY: the caller's promises; tasks have different matrices C, workers different scratch.
                unsafe {
                    let (a, b, c) = operands.item(desc, item);
                    let packed = packed.add(worker * packed_len(desc.k, desc.n));
                    let matrix = &desc.b_matrix(b);
                    let steps = PanelSteps::whole(format.steps(desc.k));
                    let pack = PackTask { matrix, depth: 0..steps.len, dst: packed, steps };
                    pack.run_product_on(ctx.isa, format);
                    let rows = desc.a_rows(a);
                    let product = desc.row_product(&rows, packed.0, format, c);
                    let a_block = workers.of(worker);
                    product.block(ctx, worker, 0..desc.m, 0..desc.n, &mut table, a_block, MemoryBlock::EMPTY, None);
                }
                finish(worker, item);
            }
        });
    }
}

struct Operands {
    a: TypedPtr,
    b: TypedPtr,
    c: Destination,
}

// SAFETY: A and B are only read; tasks write different matrices C.
unsafe impl Sync for Operands {}

impl Operands {
    fn item(&self, desc: &GemmDesc, item: usize) -> (TypedPtr, TypedPtr, Destination) {
        let c = self.c.item(item, desc.stride_c);
        (self.a.add(item * desc.stride_a), self.b.add(item * desc.stride_b), c)
    }
}
