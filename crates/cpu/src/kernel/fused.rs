//! Fused programs: alone, or on the blocks of a product as they are finished.

use super::product::Product;
use super::{Kernel, Operands, Unsupported};
use crate::gemm::{Ctx, Epilogue, Output, Store};
use crate::index::IndexOutOfRange;
use crate::isa::Isa;
use crate::region::{Partials, RegionIo, RegionKernel, StoreRegion};
use bessemer_ir::ops::region::Region;
use bessemer_ir::passes::memory::raw_target;
use bessemer_ir::{Graph, NodeId, TensorType};
use std::ops::Range;

impl Kernel for RegionKernel {
    fn name(&self) -> String {
        "region".to_string()
    }

    fn scratch_len(&self, threads: usize) -> usize {
        self.run_scratch_len(threads)
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), IndexOutOfRange> {
        let io = operands.region_io(0, std::ptr::null());
        // SAFETY: the caller's promise.
        unsafe { RegionKernel::run(self, ctx, &io, operands.scratch()) };
        Ok(())
    }
}

/// A program on the output of a product.
pub(super) struct Anchored {
    product: Product,
    region: RegionKernel,
    /// The region, if products can do its work.
    store: Option<StoreRegion>,
    target: Target,
    /// Operands of the node that are the product's.
    own: usize,
}

/// Where the product of a region goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    /// Into this output of the node.
    Output(usize),
    /// Into a block of the worker's, which the program reads while it is in cache.
    WorkerBlock,
    /// Into scratch, as a whole: the program's sums do not suit the product's row blocks, so that it runs afterwards.
    Whole,
    /// As `Whole`, in this output of the node.
    WholeOutput(usize),
}

/// Elements of a cache line.
const LINE: usize = 16;

/// A pointer shared with the pool's workers.
#[derive(Clone, Copy)]
struct Shared(*mut f32);

// SAFETY: an address; its uses state why they do not collide.
unsafe impl Sync for Shared {}

/// The kernel of a region.
///
/// # Errors
/// Why its producer has none.
pub(super) fn lower(
    region: &Region,
    graph: &Graph,
    id: NodeId,
    weights_fixed: bool,
) -> Result<Box<dyn Kernel>, Unsupported> {
    let inputs = &graph.node(id).inputs;
    let own = region.anchor_inputs();
    let loads: Vec<TensorType> = inputs[own..].iter().map(|&v| graph.ty(v).clone()).collect();
    let kernel = RegionKernel::compile(region, &loads);
    let Some(anchor) = &region.anchor else { return Ok(Box::new(kernel)) };
    let types: Vec<&TensorType> = inputs[..own].iter().map(|&v| graph.ty(v)).collect();
    let product = Product::lower(anchor, &types, weights_fixed)?;
    let in_blocks = kernel.accepts_block_rows(product.row_blocks().rows);
    let target = match (raw_target(region, graph, id), in_blocks) {
        (Some(output), true) => Target::Output(output),
        (Some(output), false) => Target::WholeOutput(output),
        (None, true) if product.works_in_blocks() => Target::WorkerBlock,
        (None, _) => Target::Whole,
    };
    let store = StoreRegion::of(region, &loads);
    Ok(Box::new(Anchored { product, region: kernel, store, target, own }))
}

impl Anchored {
    /// Elements for the product's output that are not part of an output of the node.
    fn target_len(&self, threads: usize) -> usize {
        match self.target {
            Target::Output(_) | Target::WholeOutput(_) => 0,
            Target::WorkerBlock => threads * self.block_len(),
            Target::Whole => self.product.output_len().next_multiple_of(LINE),
        }
    }

    fn block_len(&self) -> usize {
        self.product.block_len().next_multiple_of(LINE)
    }

    fn worker_len(&self) -> usize {
        self.region.scratch_len().next_multiple_of(LINE)
    }
}

impl Kernel for Anchored {
    fn name(&self) -> String {
        match self.target {
            Target::Whole | Target::WholeOutput(_) => format!("{}, then region", self.product.kind_name()),
            Target::Output(_) | Target::WorkerBlock => format!("{} + region", self.product.kind_name()),
        }
    }

    fn own_flops(&self) -> Option<u64> {
        self.product.own_flops()
    }

    fn prepared_len(&self) -> Option<usize> {
        self.product.prepared_len()
    }

    unsafe fn prepare(&self, ctx: Ctx<'_>, operands: &Operands<'_>) {
        // SAFETY: the caller's promise.
        unsafe { self.product.prepare(ctx, operands) }
    }

    fn scratch_len(&self, threads: usize) -> usize {
        let product = self.product.scratch_len(threads).next_multiple_of(LINE);
        let rest = match self.target {
            Target::Whole | Target::WholeOutput(_) => product.max(self.region.run_scratch_len(threads)),
            _ => {
                let partials = self.region.partials_len(self.product.row_blocks().count);
                product + threads * self.worker_len() + partials
            }
        };
        self.target_len(threads) + rest
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), IndexOutOfRange> {
        let threads = ctx.pool.threads();
        // SAFETY: the caller's promise; the region runs on finished blocks only.
        unsafe {
            let (target, scratch) = operands.scratch().split_at_mut(self.target_len(threads));
            let start: *mut f32 = match self.target {
                Target::Output(output) | Target::WholeOutput(output) => operands.outputs[output].cast(),
                Target::WorkerBlock | Target::Whole => target.as_mut_ptr(),
            };
            let io = operands.region_io(self.own, start);
            let output = match self.target {
                Target::WorkerBlock => Output::per_worker(start, self.block_len()),
                _ => Output::from_raw(start, self.product.output_len()),
            };
            if matches!(self.target, Target::Whole | Target::WholeOutput(_)) {
                self.product.run_into(ctx, operands, output, scratch, None);
                self.region.run(ctx, &io, scratch);
                return Ok(());
            }
            let (product, rest) = scratch.split_at_mut(self.product.scratch_len(threads).next_multiple_of(LINE));
            let (workers, partials) = rest.split_at_mut(threads * self.worker_len());
            let epilogue = RegionEpilogue {
                anchored: self,
                isa: ctx.isa,
                io: &io,
                store: self.store.map(|store| store.at(&io)),
                workers: Shared(workers.as_mut_ptr()),
                partials: Partials(partials.as_mut_ptr()),
            };
            self.product.run_into(ctx, operands, output, product, Some(&epilogue));
            self.region.finish(ctx, &io, epilogue.partials, self.product.row_blocks().rows);
        }
        Ok(())
    }
}

struct RegionEpilogue<'a> {
    anchored: &'a Anchored,
    isa: Isa,
    io: &'a RegionIo<'a>,
    store: Option<Store>,
    workers: Shared,
    partials: Partials,
}

impl Epilogue for RegionEpilogue<'_> {
    fn is_free_of_columns(&self) -> bool {
        !self.anchored.region.has_sums()
    }

    fn as_store(&self) -> Option<&Store> {
        self.store.as_ref()
    }

    fn block(&self, worker: usize, block: usize, rows: Range<usize>, cols: Range<usize>) {
        let Anchored { region, target, .. } = self.anchored;
        let mut io = *self.io;
        if *target == Target::WorkerBlock {
            let own = io.anchor.wrapping_add(worker * self.anchored.block_len());
            io.anchor = own.wrapping_sub(rows.start * self.anchored.product.output_cols());
        }
        let len = self.anchored.worker_len();
        // SAFETY: workers are numbered below the thread count, for which there is scratch; the product's blocks are
        // delivered once each, so that no two calls touch the same part of the domain.
        unsafe {
            let scratch = std::slice::from_raw_parts_mut(self.workers.0.add(worker * len), len);
            region.run_rows(self.isa, &io, rows, cols, block, scratch, self.partials);
        }
    }
}
