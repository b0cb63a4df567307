//! Fused programs: alone, or on the blocks of a product as they are finished.

use super::contraction::Contraction;
use super::{CallError, Kernel, Operands, Unsupported};
use crate::fusion::{FusionIo, FusionKernel, Partials, StoreFusion};
use crate::gemm::{Ctx, Epilogue, LINE, Output, Store};
use crate::isa::Isa;
use bessemer_ir::ops::fusion::Fusion;
use bessemer_ir::passes::memory::raw_target;
use bessemer_ir::{Graph, NodeId, TensorType};
use std::ops::Range;

impl Kernel for FusionKernel {
    fn name(&self) -> String {
        "fusion".to_string()
    }

    fn scratch_len(&self, threads: usize) -> usize {
        self.run_scratch_len(threads)
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        let io = operands.fusion_io(0, std::ptr::null());
        // SAFETY: the caller's promise.
        unsafe { FusionKernel::run(self, ctx, &io, operands.scratch()) };
        Ok(())
    }
}

/// A program on the output of a product.
pub(super) struct WithProducer {
    product: Contraction,
    fusion: FusionKernel,
    /// The fusion without its sums, if products can store its output.
    store: Option<StoreFusion>,
    /// The sums of the stored output.
    sums: Option<FusionKernel>,
    target: OutputTarget,
    /// Operands of the node that are the product's.
    own: usize,
}

/// Where the product of a fusion goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OutputTarget {
    /// Into this output of the node.
    Output(usize),
    /// Into a block of the worker's, which the program reads while it is in cache.
    WorkerBlock,
    /// Into scratch, as a whole: the program's sums do not suit the product's row blocks, so that it runs afterwards.
    Whole,
    /// As `Whole`, in this output of the node.
    WholeOutput(usize),
}

/// A pointer shared with the pool's workers.
#[derive(Clone, Copy)]
struct Shared(*mut f32);

// SAFETY: an address; its uses state why they do not collide.
unsafe impl Sync for Shared {}

/// The kernel of a fusion.
///
/// # Errors
/// Why its producer has none.
pub(super) fn lower(
    fusion: &Fusion,
    graph: &Graph,
    id: NodeId,
    weights_invariant: bool,
) -> Result<Box<dyn Kernel>, Unsupported> {
    let inputs = &graph.node(id).inputs;
    let own = fusion.producer_inputs();
    let loads: Vec<TensorType> = inputs[own..].iter().map(|&v| graph.ty(v).clone()).collect();
    let kernel = FusionKernel::compile(fusion, &loads);
    let Some(producer) = &fusion.producer else { return Ok(Box::new(kernel)) };
    let types: Vec<&TensorType> = inputs[..own].iter().map(|&v| graph.ty(v)).collect();
    let product = Contraction::lower(producer, &types, weights_invariant)?;
    let in_blocks = kernel.accepts_block_rows(product.row_blocks().rows) && !product.is_limited();
    let target = match (raw_target(fusion, graph, id), in_blocks) {
        (Some(output), true) => OutputTarget::Output(output),
        (Some(output), false) => OutputTarget::WholeOutput(output),
        (None, true) if product.works_in_blocks() => OutputTarget::WorkerBlock,
        (None, _) => OutputTarget::Whole,
    };
    let store = StoreFusion::of(fusion, &loads);
    let sums = store.and_then(|_| StoreFusion::sums(fusion)).map(|sums| FusionKernel::compile(&sums, &[]));
    Ok(Box::new(WithProducer { product, fusion: kernel, store, sums, target, own }))
}

impl WithProducer {
    /// Elements for the product's output that are not part of an output of the node.
    fn target_len(&self, threads: usize) -> usize {
        match self.target {
            OutputTarget::Output(_) | OutputTarget::WholeOutput(_) => 0,
            OutputTarget::WorkerBlock => threads * self.block_len(),
            OutputTarget::Whole => self.product.output_len().next_multiple_of(LINE),
        }
    }

    fn block_len(&self) -> usize {
        self.product.block_len().next_multiple_of(LINE)
    }

    fn worker_len(&self) -> usize {
        let sums = self.sums.as_ref().map_or(0, FusionKernel::scratch_len);
        self.fusion.scratch_len().max(sums).next_multiple_of(LINE)
    }
}

impl Kernel for WithProducer {
    fn name(&self) -> String {
        match self.target {
            OutputTarget::Whole | OutputTarget::WholeOutput(_) => format!("{}, then fusion", self.product.kind_name()),
            OutputTarget::Output(_) | OutputTarget::WorkerBlock => format!("{} + fusion", self.product.kind_name()),
        }
    }

    fn own_flops(&self) -> Option<u64> {
        self.product.own_flops()
    }

    fn packed_len(&self) -> Option<usize> {
        self.product.packed_len()
    }

    unsafe fn prepack(&self, ctx: Ctx<'_>, operands: &Operands<'_>) {
        // SAFETY: the caller's promise.
        unsafe { self.product.prepack(ctx, operands) }
    }

    fn scratch_len(&self, threads: usize) -> usize {
        let product = self.product.scratch_len(threads).next_multiple_of(LINE);
        let rest = match self.target {
            OutputTarget::Whole | OutputTarget::WholeOutput(_) => product.max(self.fusion.run_scratch_len(threads)),
            _ => {
                let partials = self.fusion.partials_len(self.product.row_blocks().count);
                product + threads * self.worker_len() + partials
            }
        };
        self.target_len(threads) + rest
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        let threads = ctx.pool.threads();
        // SAFETY: the caller's promise; the fusion runs on finished blocks only.
        unsafe {
            let (target, scratch) = operands.scratch().split_at_mut(self.target_len(threads));
            let start: *mut f32 = match self.target {
                OutputTarget::Output(output) | OutputTarget::WholeOutput(output) => operands.outputs[output].cast(),
                OutputTarget::WorkerBlock | OutputTarget::Whole => target.as_mut_ptr(),
            };
            let io = operands.fusion_io(self.own, start);
            let output = match self.target {
                OutputTarget::WorkerBlock => Output::per_worker(start, self.block_len()),
                _ => Output::from_raw(start, self.product.output_len()),
            };
            if matches!(self.target, OutputTarget::Whole | OutputTarget::WholeOutput(_)) {
                self.product.run_into(ctx, operands, output, scratch, None);
                self.fusion.run(ctx, &io, scratch);
                return Ok(());
            }
            let (product, rest) = scratch.split_at_mut(self.product.scratch_len(threads).next_multiple_of(LINE));
            let (workers, partials) = rest.split_at_mut(threads * self.worker_len());
            let epilogue = FusionEpilogue {
                with_producer: self,
                isa: ctx.isa,
                io: &io,
                store: self.store.map(|store| store.at(&io)),
                workers: Shared(workers.as_mut_ptr()),
                partials: Partials(partials.as_mut_ptr()),
            };
            self.product.run_into(ctx, operands, output, product, Some(&epilogue));
            self.fusion.finish(ctx, &io, epilogue.partials, self.product.row_blocks().rows);
        }
        Ok(())
    }
}

struct FusionEpilogue<'a> {
    with_producer: &'a WithProducer,
    isa: Isa,
    io: &'a FusionIo<'a>,
    store: Option<Store>,
    workers: Shared,
    partials: Partials,
}

impl Epilogue for FusionEpilogue<'_> {
    fn is_free_of_columns(&self) -> bool {
        !self.with_producer.fusion.has_sums()
    }

    fn as_store(&self) -> Option<&Store> {
        self.store.as_ref()
    }

    fn block(&self, worker: usize, block: usize, rows: Range<usize>, cols: Range<usize>) {
        let WithProducer { fusion, target, .. } = self.with_producer;
        let mut io = *self.io;
        if *target == OutputTarget::WorkerBlock {
            let own = io.producer.wrapping_add(worker * self.with_producer.block_len());
            io.producer = own.wrapping_sub(rows.start * self.with_producer.product.output_cols());
        }
        // SAFETY: the product has finished the block.
        unsafe { self.run(fusion, &io, worker, block, rows, cols) }
    }

    fn stored_block(&self, worker: usize, block: usize, rows: Range<usize>, cols: Range<usize>) {
        let (Some(sums), [stored, outputs @ ..]) = (&self.with_producer.sums, self.io.outputs) else { return };
        let io = FusionIo { producer: stored.cast_const().cast(), loads: &[], outputs };
        // SAFETY: the product has stored the block.
        unsafe { self.run(sums, &io, worker, block, rows, cols) }
    }
}

impl FusionEpilogue<'_> {
    /// Runs a program on a block.
    ///
    /// # Safety
    /// The operands are there.
    unsafe fn run(
        &self,
        fusion: &FusionKernel,
        io: &FusionIo<'_>,
        worker: usize,
        block: usize,
        rows: Range<usize>,
        cols: Range<usize>,
    ) {
        let len = self.with_producer.worker_len();
        // SAFETY: the caller's promise; workers are numbered below the thread count, for which there is scratch; the product's
        // blocks are delivered once each, so that no two calls touch the same part of the domain.
        unsafe {
            let scratch = std::slice::from_raw_parts_mut(self.workers.0.add(worker * len), len);
            fusion.run_rows(self.isa, io, rows, cols, block, scratch, self.partials);
        }
    }
}
