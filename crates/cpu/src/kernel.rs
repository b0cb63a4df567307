//! Chooses the kernel of a node and calls it with the node's operands.

use crate::conv::{self, ConvDesc};
use crate::gemm::{self, Ctx, Epilogue, GemmDesc, Output, RowBlocks};
use crate::isa::Isa;
use crate::region::{Partials, RegionIo, RegionKernel};
use bessemer_ir::ops::Op;
use bessemer_ir::ops::conv::Geometry;
use bessemer_ir::ops::region::Region;
use bessemer_ir::passes::memory::raw_target;
use bessemer_ir::{DType, Graph, NodeId, TensorType};
use std::ops::Range;

/// Why a node has no kernel.
pub(crate) struct Unsupported(pub String);

/// Places of a node's operands while it runs.
pub(crate) struct Operands<'a> {
    pub inputs: &'a [*const u8],
    pub outputs: &'a [*mut u8],
    pub anchor: *mut f32,
    pub scratch: *mut f32,
    pub scratch_len: usize,
}

/// A kernel with its sizes.
pub(crate) enum Kernel {
    Product(Product),
    Region(RegionKernel),
    /// A region run on the blocks of a product as they are finished.
    Anchored(Anchored),
    ConvWeightGrad {
        conv: ConvDesc,
    },
    Other(crate::other::Other),
}

/// A kernel that can be the anchor of a region.
#[derive(Clone, Copy)]
pub(crate) enum Product {
    Conv(ConvDesc),
    ConvDataGrad(ConvDesc),
    Matmul(GemmDesc),
}

pub(crate) struct Anchored {
    product: Product,
    region: RegionKernel,
    /// Whether the product's row blocks suit the region's sums; if not, the region runs after the product.
    in_blocks: bool,
}

/// A pointer shared with the pool's workers.
#[derive(Clone, Copy)]
struct Shared(*mut f32);

// SAFETY: an address; its uses state why they do not collide.
unsafe impl Sync for Shared {}

impl Kernel {
    /// The kernel of a node.
    pub fn lower(graph: &Graph, id: NodeId) -> Result<Kernel, Unsupported> {
        let node = graph.node(id);
        let types: Vec<&TensorType> = node.inputs.iter().map(|&v| graph.ty(v)).collect();
        match &node.op {
            Op::Region(region) => lower_region(region, &types),
            Op::Conv2d(_) | Op::Conv2dDataGrad(_) | Op::Matmul(_) => {
                Product::lower(&node.op, &types).map(Kernel::Product)
            }
            Op::Conv2dWeightGrad(grad) => {
                require_f32(&types)?;
                let geometry = grad.geometry(&types[0].shape, &types[1].shape).map_err(Unsupported)?;
                Ok(Kernel::ConvWeightGrad { conv: conv_desc(&geometry, &grad.conv)? })
            }
            op => crate::other::Other::lower(op, &types, &node.outputs).map(Kernel::Other),
        }
    }

    /// How it computes, in a few words.
    pub fn name(&self) -> String {
        match self {
            Kernel::Product(product) => product.name().to_string(),
            Kernel::Region(_) => "region".to_string(),
            Kernel::Anchored(Anchored { product, in_blocks: true, .. }) => format!("{} + region", product.name()),
            Kernel::Anchored(Anchored { product, .. }) => format!("{}, then region", product.name()),
            Kernel::ConvWeightGrad { .. } => "outer product of windows".to_string(),
            Kernel::Other(other) => other.name().to_string(),
        }
    }

    /// `f32` elements of scratch with so many threads.
    pub fn scratch_len(&self, threads: usize) -> usize {
        match self {
            Kernel::Product(product) => product.scratch_len(threads),
            Kernel::Region(region) => region.run_scratch_len(threads),
            Kernel::Anchored(anchored) => anchored.scratch_len(threads),
            Kernel::ConvWeightGrad { conv } => conv::weight_grad_scratch_len(conv, threads),
            Kernel::Other(other) => other.scratch_len(),
        }
    }

    /// Where the anchor of a region writes: into one of the node's outputs, if it can.
    pub fn anchor_target(&self, graph: &Graph, id: NodeId, outputs: &[*mut u8]) -> Option<*mut f32> {
        let Op::Region(region) = &graph.node(id).op else { return None };
        raw_target(region, graph, id).map(|output| outputs[output].cast())
    }

    /// # Safety
    /// Operands are valid, of the types the kernel was lowered for, and outputs and scratch overlap nothing but what the
    /// planner lets a region overwrite in place.
    ///
    /// # Errors
    /// What is wrong with the data.
    pub unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), String> {
        // SAFETY: the caller's promise, for all calls below.
        unsafe {
            match self {
                Kernel::Product(product) => {
                    product.run(ctx, operands, operands.outputs[0].cast(), operands.scratch(), None)
                }
                Kernel::Region(region) => region.run(ctx, &operands.region_io(0), operands.scratch()),
                Kernel::Anchored(anchored) => anchored.run(ctx, operands),
                Kernel::ConvWeightGrad { conv } => {
                    let x = operands.floats(0, conv.n * conv.h * conv.w * conv.c_in);
                    let dy = operands.floats(1, conv.n * conv.oh * conv.ow * conv.c_out);
                    let len = conv.kh * conv.kw * conv.c_in * conv.c_out;
                    let dw = Output::from_raw(operands.outputs[0].cast(), len);
                    conv::weight_grad(ctx, conv, x, dy, dw, operands.scratch());
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
    pub unsafe fn input<T>(&self, index: usize, len: usize) -> &'a [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.inputs[index].cast(), len) }
    }

    /// # Safety
    /// Input `index` holds at least `len` numbers.
    pub unsafe fn floats(&self, index: usize, len: usize) -> &'a [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.input(index, len) }
    }

    /// The first output.
    ///
    /// # Safety
    /// It holds at least `len` elements of that type, and nothing else uses it meanwhile.
    #[allow(clippy::mut_from_ref, reason = "the operands hold addresses; who calls answers for exclusive use")]
    pub unsafe fn output<T>(&self, len: usize) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.outputs[0].cast(), len) }
    }

    /// # Safety
    /// Nothing else uses the scratch meanwhile.
    #[allow(clippy::mut_from_ref, reason = "the operands hold addresses; who calls answers for exclusive use")]
    pub unsafe fn scratch(&self) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.scratch, self.scratch_len) }
    }

    fn region_io(&self, anchor_inputs: usize) -> RegionIo<'a> {
        RegionIo { anchor: self.anchor, loads: &self.inputs[anchor_inputs..], outputs: self.outputs }
    }
}

fn require_f32(types: &[&TensorType]) -> Result<(), Unsupported> {
    match types.iter().find(|t| t.dtype != DType::F32) {
        Some(other) => Err(Unsupported(format!("operands must be f32, one is {other}"))),
        None => Ok(()),
    }
}

fn conv_desc(geometry: &Geometry, conv: &bessemer_ir::ops::conv::Conv2d) -> Result<ConvDesc, Unsupported> {
    if geometry.groups != 1 {
        return Err(Unsupported("grouped convolution".to_string()));
    }
    Ok(ConvDesc {
        n: geometry.batch,
        h: geometry.height.input,
        w: geometry.width.input,
        c_in: geometry.channels,
        kh: geometry.height.kernel,
        kw: geometry.width.kernel,
        c_out: geometry.out_channels,
        oh: geometry.height.output,
        ow: geometry.width.output,
        stride: conv.stride,
        dilation: conv.dilation,
        pad: [geometry.height.low, geometry.width.low],
    })
}

impl Product {
    fn lower(op: &Op, types: &[&TensorType]) -> Result<Product, Unsupported> {
        require_f32(types)?;
        let (a, b) = (&types[0].shape, &types[1].shape);
        match op {
            Op::Conv2d(conv) => {
                let geometry = conv.geometry(a, b).map_err(Unsupported)?;
                Ok(Product::Conv(conv_desc(&geometry, conv)?))
            }
            Op::Conv2dDataGrad(grad) => {
                let geometry = grad.geometry(a, b).map_err(Unsupported)?;
                Ok(Product::ConvDataGrad(conv_desc(&geometry, &grad.conv)?))
            }
            Op::Matmul(matmul) => {
                let g = matmul.geometry(a, b).map_err(Unsupported)?;
                let desc = GemmDesc::new(g.m, g.n, g.k).transposed(matmul.trans_a, matmul.trans_b);
                Ok(Product::Matmul(if g.batch == 1 { desc } else { desc.batched(g.batch) }))
            }
            other => Err(Unsupported(format!("{other} as an anchor"))),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Product::Conv(_) => "implicit matmul",
            Product::ConvDataGrad(_) => "data gradient by phases",
            Product::Matmul(desc) => gemm::kernel_name(desc),
        }
    }

    fn scratch_len(&self, threads: usize) -> usize {
        match self {
            Product::Conv(d) => conv::forward_scratch_len(d, threads),
            Product::ConvDataGrad(d) => conv::data_grad_scratch_len(d, threads),
            Product::Matmul(d) => gemm::scratch_len(d, threads),
        }
    }

    fn row_blocks(&self) -> RowBlocks {
        match self {
            Product::Conv(d) => conv::forward_row_blocks(d),
            Product::ConvDataGrad(d) => conv::data_grad_row_blocks(d),
            Product::Matmul(d) => gemm::row_blocks(d),
        }
    }

    /// # Safety
    /// As for [`Kernel::run`]; `target` holds the output.
    unsafe fn run(
        &self,
        ctx: Ctx<'_>,
        operands: &Operands<'_>,
        target: *mut f32,
        scratch: &mut [f32],
        epilogue: Option<&dyn Epilogue>,
    ) {
        // SAFETY: the caller's promise; the operands have the elements the descriptions state.
        unsafe {
            match self {
                Product::Conv(d) => {
                    let x = operands.floats(0, d.n * d.h * d.w * d.c_in);
                    let w = operands.floats(1, d.kh * d.kw * d.c_in * d.c_out);
                    let y = Output::from_raw(target, d.n * d.oh * d.ow * d.c_out);
                    conv::forward(ctx, d, x, w, y, scratch, epilogue);
                }
                Product::ConvDataGrad(d) => {
                    let dy = operands.floats(0, d.n * d.oh * d.ow * d.c_out);
                    let w = operands.floats(1, d.kh * d.kw * d.c_in * d.c_out);
                    let dx = Output::from_raw(target, d.n * d.h * d.w * d.c_in);
                    conv::data_grad(ctx, d, dy, w, dx, scratch, epilogue);
                }
                Product::Matmul(d) => {
                    let a = operands.floats(0, d.batch * d.m * d.k);
                    let b = operands.floats(1, d.batch * d.k * d.n);
                    let c = Output::from_raw(target, d.batch * d.m * d.n);
                    gemm::gemm(ctx, d, a, b, c, scratch, epilogue);
                }
            }
        }
    }
}

fn lower_region(region: &Region, types: &[&TensorType]) -> Result<Kernel, Unsupported> {
    let own = region.anchor_inputs();
    let loads: Vec<TensorType> = types[own..].iter().map(|&t| t.clone()).collect();
    let kernel = RegionKernel::compile(region, &loads);
    let Some(anchor) = &region.anchor else { return Ok(Kernel::Region(kernel)) };
    let product = Product::lower(anchor, &types[..own])?;
    let in_blocks = kernel.accepts_block_rows(product.row_blocks().rows);
    Ok(Kernel::Anchored(Anchored { product, region: kernel, in_blocks }))
}

impl Anchored {
    fn scratch_len(&self, threads: usize) -> usize {
        let product = self.product.scratch_len(threads).next_multiple_of(16);
        if !self.in_blocks {
            return product.max(self.region.run_scratch_len(threads));
        }
        let partials = self.region.partials_len(self.product.row_blocks().count);
        product + threads * self.worker_len() + partials
    }

    fn worker_len(&self) -> usize {
        self.region.scratch_len().next_multiple_of(16)
    }

    /// # Safety
    /// As for [`Kernel::run`].
    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) {
        let io = operands.region_io(2);
        // SAFETY: the caller's promise; the region runs on finished blocks only.
        unsafe {
            if !self.in_blocks {
                self.product.run(ctx, operands, operands.anchor, operands.scratch(), None);
                self.region.run(ctx, &io, operands.scratch());
                return;
            }
            let threads = ctx.pool.threads();
            let (product, rest) =
                operands.scratch().split_at_mut(self.product.scratch_len(threads).next_multiple_of(16));
            let (workers, partials) = rest.split_at_mut(threads * self.worker_len());
            let epilogue = RegionEpilogue {
                region: &self.region,
                isa: ctx.isa,
                io: &io,
                workers: Shared(workers.as_mut_ptr()),
                worker_len: self.worker_len(),
                partials: Partials(partials.as_mut_ptr()),
            };
            self.product.run(ctx, operands, operands.anchor, product, Some(&epilogue));
            self.region.finish(ctx, &io, epilogue.partials, self.product.row_blocks().rows);
        }
    }
}

struct RegionEpilogue<'a> {
    region: &'a RegionKernel,
    isa: Isa,
    io: &'a RegionIo<'a>,
    workers: Shared,
    worker_len: usize,
    partials: Partials,
}

impl Epilogue for RegionEpilogue<'_> {
    fn block(&self, worker: usize, block: usize, rows: Range<usize>, cols: Range<usize>) {
        // SAFETY: workers are numbered below the thread count, for which there is scratch; the product's blocks are
        // delivered once each, so that no two calls touch the same part of the domain.
        unsafe {
            let scratch = std::slice::from_raw_parts_mut(self.workers.0.add(worker * self.worker_len), self.worker_len);
            self.region.run_rows(self.isa, self.io, rows, cols, block, scratch, self.partials);
        }
    }
}
