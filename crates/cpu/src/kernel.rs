//! Chooses the kernel of a node and calls it with the node's operands.

use crate::conv::grouped::{self, GroupedDesc};
use crate::conv::{self, ConvDesc};
use crate::gemm::{Ctx, Epilogue, Output, Store, TypedSlice};
use crate::isa::Isa;
use crate::product::{AffineOperands, Product, conv_desc};
use crate::region::{Partials, RegionIo, RegionKernel, StoreRegion};
use bessemer_ir::ops::Op;
use bessemer_ir::ops::region::Region;
use bessemer_ir::passes::fixed::Fixed;
use bessemer_ir::passes::memory::raw_target;
use bessemer_ir::plan::{Needs, Prepared};
use bessemer_ir::{DType, Graph, NodeId, TensorType};
use std::ops::Range;

/// Why a node has no kernel.
pub(crate) struct Unsupported(pub String);

/// Places of a node's operands while it runs.
pub(crate) struct Operands<'a> {
    pub inputs: &'a [*const u8],
    pub outputs: &'a [*mut u8],
    pub scratch: *mut f32,
    pub scratch_len: usize,
    /// The prepared input.
    pub prepared: *mut f32,
    pub prepared_len: usize,
}

/// A kernel with its sizes.
pub(crate) enum Kernel {
    Product(Product),
    Region(RegionKernel),
    /// A region run on the blocks of a product as they are finished.
    Anchored(Anchored),
    ConvWeightGrad {
        conv: ConvDesc,
        dtype: DType,
        prologue: Option<AffineOperands>,
    },
    GroupedWeightGrad(GroupedDesc),
    Other(crate::other::Other),
}

pub(crate) struct Anchored {
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

impl Kernel {
    /// The kernel of a node.
    pub(crate) fn lower(graph: &Graph, id: NodeId, fixed: &Fixed) -> Result<Kernel, Unsupported> {
        let node = graph.node(id);
        let types: Vec<&TensorType> = node.inputs.iter().map(|&v| graph.ty(v)).collect();
        let weights_fixed = node.inputs.get(1).is_some_and(|v| fixed.is_fixed(v.node)) && !fixed.is_fixed(id);
        match node.op.behind_prologue() {
            Op::Region(region) => lower_region(region, graph, id, weights_fixed),
            Op::Conv2d(_) | Op::Conv2dDataGrad(_) | Op::Matmul(_) => {
                Product::lower(&node.op, &types, weights_fixed).map(Kernel::Product)
            }
            Op::Conv2dWeightGrad(grad) => {
                let geometry = grad.geometry(&types[0].shape, &types[1].shape).map_err(Unsupported)?;
                match (conv_desc(&geometry, &grad.conv), geometry.groups, types[0].dtype) {
                    (conv, 1, dtype) => {
                        let prologue = AffineOperands::of(&node.op, &types[0].shape);
                        Ok(Kernel::ConvWeightGrad { conv, dtype, prologue })
                    }
                    (conv, groups, DType::F32) => Ok(Kernel::GroupedWeightGrad(GroupedDesc { conv, groups })),
                    (_, _, dtype) => Err(Unsupported(format!("a grouped convolution of {dtype}"))),
                }
            }
            op => crate::other::Other::lower(op, &types, &node.outputs).map(Kernel::Other),
        }
    }

    /// How it computes, in a few words.
    pub(crate) fn name(&self) -> String {
        match self {
            Kernel::Product(product) => product.name().to_string(),
            Kernel::Region(_) => "region".to_string(),
            Kernel::Anchored(Anchored { product, target: Target::Whole | Target::WholeOutput(_), .. }) => {
                format!("{}, then region", product.name())
            }
            Kernel::Anchored(Anchored { product, .. }) => format!("{} + region", product.name()),
            Kernel::ConvWeightGrad { .. } => "outer product of windows".to_string(),
            Kernel::GroupedWeightGrad(d) => d.name().to_string(),
            Kernel::Other(other) => other.name().to_string(),
        }
    }

    /// FLOPs of convolutions and matrix products, those of attention included, that it does for its node, a multiply-add
    /// counted as two. Of Winograd's algorithm the products of its tiles count, without the additions of its transforms.
    pub(crate) fn flops(&self, graph: &Graph, id: NodeId) -> u64 {
        let node = graph.node(id);
        let types: Vec<&TensorType> = node.inputs.iter().map(|&value| graph.ty(value)).collect();
        let product = |op: &Op| op.behind_prologue().rule().cost(&types[..2], &[]).flops;
        match (self, &node.op) {
            (Kernel::Product(kernel), op) => kernel.own_flops().unwrap_or_else(|| product(op)),
            (Kernel::Anchored(kernel), Op::Region(Region { anchor: Some(op), .. })) => {
                kernel.product.own_flops().unwrap_or_else(|| product(op))
            }
            (Kernel::ConvWeightGrad { .. } | Kernel::GroupedWeightGrad(_), op) => product(op),
            (Kernel::Other(_), Op::Attention(attention)) => attention.product_flops(&types),
            (Kernel::Other(_), Op::AttentionGrad(grad)) => grad.product_flops(&types),
            (Kernel::Region(_) | Kernel::Anchored(_) | Kernel::Other(_), _) => 0,
        }
    }

    /// `f32` elements of scratch with so many threads.
    pub(crate) fn scratch_len(&self, threads: usize) -> usize {
        match self {
            Kernel::Product(product) => product.scratch_len(threads),
            Kernel::Region(region) => region.run_scratch_len(threads),
            Kernel::Anchored(anchored) => anchored.scratch_len(threads),
            Kernel::ConvWeightGrad { conv, .. } => conv::weight_grad_scratch_len(conv, threads),
            Kernel::GroupedWeightGrad(d) => grouped::weight_grad_scratch_len(d, threads),
            Kernel::Other(other) => other.scratch_len(threads),
        }
    }

    /// Memory beside the operands with so many threads.
    pub(crate) fn needs(&self, threads: usize) -> Needs {
        let bytes = self.product().and_then(Product::prepared_len).map(|len| 4 * len);
        Needs { scratch: 4 * self.scratch_len(threads), prepared: bytes.map(|bytes| Prepared { input: 1, bytes }) }
    }

    fn product(&self) -> Option<&Product> {
        match self {
            Kernel::Product(product) => Some(product),
            Kernel::Anchored(anchored) => Some(&anchored.product),
            _ => None,
        }
    }

    /// Fills the memory of the prepared input.
    ///
    /// # Safety
    /// As for [`Kernel::run`]; the input is there.
    pub(crate) unsafe fn prepare(&self, ctx: Ctx<'_>, operands: &Operands<'_>) {
        if let Some(product) = self.product() {
            // SAFETY: the caller's promise.
            unsafe { product.prepare(ctx, operands) }
        }
    }

    /// # Safety
    /// Operands are valid, of the types the kernel was lowered for, and outputs and scratch overlap nothing but what the
    /// planner lets a region overwrite in place.
    ///
    /// # Errors
    /// What is wrong with the data.
    pub(crate) unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), String> {
        // SAFETY: the caller's promise, for all calls below.
        unsafe {
            match self {
                Kernel::Product(product) => {
                    let output = Output::from_raw(operands.outputs[0].cast(), product.output_len());
                    product.run(ctx, operands, output, operands.scratch(), None)
                }
                Kernel::Region(region) => region.run(ctx, &operands.region_io(0, std::ptr::null()), operands.scratch()),
                Kernel::Anchored(anchored) => anchored.run(ctx, operands),
                Kernel::ConvWeightGrad { conv, dtype, prologue } => {
                    let x = operands.numbers(0, *dtype, conv.n * conv.h * conv.w * conv.c_in);
                    let dy = operands.numbers(1, *dtype, conv.n * conv.oh * conv.ow * conv.c_out);
                    let len = conv.kh * conv.kw * conv.c_in * conv.c_out;
                    let dw = Output::from_raw(operands.outputs[0].cast(), len);
                    let x = prologue.map_or(x.into(), |prologue| prologue.apply_to(x, operands));
                    conv::weight_grad(ctx, conv, x, dy, dw, operands.scratch());
                }
                Kernel::GroupedWeightGrad(d) => {
                    let (x, dy) = (operands.floats(0, d.input_len()), operands.floats(1, d.output_len()));
                    let dw = Output::from_raw(operands.outputs[0].cast(), d.weight_len());
                    grouped::weight_grad(ctx, d, x, dy, dw, operands.scratch());
                }
                Kernel::Other(other) => return other.run(ctx, operands),
            }
        }
        Ok(())
    }
}

impl<'a> Operands<'a> {
    /// # Safety
    /// Input `index` holds at least `len` elements of that type.
    pub(crate) unsafe fn input<T>(&self, index: usize, len: usize) -> &'a [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.inputs[index].cast(), len) }
    }

    /// # Safety
    /// Input `index` holds at least `len` numbers.
    pub(crate) unsafe fn floats(&self, index: usize, len: usize) -> &'a [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.input(index, len) }
    }

    /// # Safety
    /// Input `index` holds at least `len` numbers of that type.
    pub(crate) unsafe fn numbers(&self, index: usize, dtype: DType, len: usize) -> TypedSlice<'a> {
        // SAFETY: the caller's promise.
        unsafe { TypedSlice::from_raw(self.inputs[index], dtype, len) }
    }

    /// The first output.
    ///
    /// # Safety
    /// It holds at least `len` elements of that type, and nothing else uses it meanwhile.
    #[allow(clippy::mut_from_ref, reason = "the operands hold addresses; who calls answers for exclusive use")]
    pub(crate) unsafe fn output<T>(&self, len: usize) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.outputs[0].cast(), len) }
    }

    /// # Safety
    /// Nothing else uses the scratch meanwhile.
    #[allow(clippy::mut_from_ref, reason = "the operands hold addresses; who calls answers for exclusive use")]
    pub(crate) unsafe fn scratch(&self) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.scratch, self.scratch_len) }
    }

    /// # Safety
    /// Nothing else uses the prepared input meanwhile.
    #[allow(clippy::mut_from_ref, reason = "the operands hold addresses; who calls answers for exclusive use")]
    pub(crate) unsafe fn prepared(&self) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.prepared, self.prepared_len) }
    }

    fn region_io(&self, anchor_inputs: usize, anchor: *const f32) -> RegionIo<'a> {
        RegionIo { anchor, loads: &self.inputs[anchor_inputs..], outputs: self.outputs }
    }
}

fn lower_region(region: &Region, graph: &Graph, id: NodeId, weights_fixed: bool) -> Result<Kernel, Unsupported> {
    let inputs = &graph.node(id).inputs;
    let own = region.anchor_inputs();
    let loads: Vec<TensorType> = inputs[own..].iter().map(|&v| graph.ty(v).clone()).collect();
    let kernel = RegionKernel::compile(region, &loads);
    let Some(anchor) = &region.anchor else { return Ok(Kernel::Region(kernel)) };
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
    Ok(Kernel::Anchored(Anchored { product, region: kernel, store, target, own }))
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

    /// # Safety
    /// As for [`Kernel::run`].
    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) {
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
                self.product.run(ctx, operands, output, scratch, None);
                self.region.run(ctx, &io, scratch);
                return;
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
            self.product.run(ctx, operands, output, product, Some(&epilogue));
            self.region.finish(ctx, &io, epilogue.partials, self.product.row_blocks().rows);
        }
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
