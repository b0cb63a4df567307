//! Chooses the kernel of a node and calls it with the node's operands.

use crate::conv::{self, ConvDesc};
use crate::gemm::{self, Ctx, Epilogue, GemmDesc, Numbers, Output, RowBlocks, Weights};
use crate::isa::Isa;
use crate::region::{Partials, RegionIo, RegionKernel};
use bessemer_ir::ops::Op;
use bessemer_ir::ops::conv::Geometry;
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
    },
    Other(crate::other::Other),
}

/// A kernel that can be the anchor of a region.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    shape: ProductShape,
    /// Type of both operands.
    dtype: DType,
    /// Whether the second operand is prepared before the first step.
    prepared: bool,
}

#[derive(Clone, Copy)]
enum ProductShape {
    Conv(ConvDesc),
    ConvDataGrad(ConvDesc),
    Matmul(GemmDesc),
}

pub(crate) struct Anchored {
    product: Product,
    region: RegionKernel,
    target: Target,
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
    pub fn lower(graph: &Graph, id: NodeId, fixed: &Fixed) -> Result<Kernel, Unsupported> {
        let node = graph.node(id);
        let types: Vec<&TensorType> = node.inputs.iter().map(|&v| graph.ty(v)).collect();
        let weights_fixed = node.inputs.get(1).is_some_and(|v| fixed.is_fixed(v.node)) && !fixed.is_fixed(id);
        match &node.op {
            Op::Region(region) => lower_region(region, graph, id, weights_fixed),
            Op::Conv2d(_) | Op::Conv2dDataGrad(_) | Op::Matmul(_) => {
                Product::lower(&node.op, &types, weights_fixed).map(Kernel::Product)
            }
            Op::Conv2dWeightGrad(grad) => {
                let geometry = grad.geometry(&types[0].shape, &types[1].shape).map_err(Unsupported)?;
                Ok(Kernel::ConvWeightGrad { conv: conv_desc(&geometry, &grad.conv)?, dtype: types[0].dtype })
            }
            op => crate::other::Other::lower(op, &types, &node.outputs).map(Kernel::Other),
        }
    }

    /// `f32` elements of scratch with so many threads.
    pub fn scratch_len(&self, threads: usize) -> usize {
        match self {
            Kernel::Product(product) => product.scratch_len(threads),
            Kernel::Region(region) => region.run_scratch_len(threads),
            Kernel::Anchored(anchored) => anchored.scratch_len(threads),
            Kernel::ConvWeightGrad { conv, .. } => conv::weight_grad_scratch_len(conv, threads),
            Kernel::Other(other) => other.scratch_len(),
        }
    }

    /// Memory beside the operands with so many threads.
    pub fn needs(&self, threads: usize) -> Needs {
        let prepared = self.prepares().map(|product| Prepared { input: 1, bytes: 4 * product.prepared_len() });
        Needs { scratch: 4 * self.scratch_len(threads), prepared }
    }

    /// The product whose second operand is prepared, if there is one.
    fn prepares(&self) -> Option<&Product> {
        let product = match self {
            Kernel::Product(product) => product,
            Kernel::Anchored(anchored) => &anchored.product,
            _ => return None,
        };
        product.prepared.then_some(product)
    }

    /// Fills the memory of the prepared input.
    ///
    /// # Safety
    /// As for [`Kernel::run`]; the input is there.
    pub unsafe fn prepare(&self, ctx: Ctx<'_>, operands: &Operands<'_>) {
        if let Some(product) = self.prepares() {
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
    pub unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), String> {
        // SAFETY: the caller's promise, for all calls below.
        unsafe {
            match self {
                Kernel::Product(product) => {
                    let output = Output::from_raw(operands.outputs[0].cast(), product.output_len());
                    product.run(ctx, operands, output, operands.scratch(), None)
                }
                Kernel::Region(region) => region.run(ctx, &operands.region_io(0, std::ptr::null()), operands.scratch()),
                Kernel::Anchored(anchored) => anchored.run(ctx, operands),
                Kernel::ConvWeightGrad { conv, dtype } => {
                    let x = operands.numbers(0, *dtype, conv.n * conv.h * conv.w * conv.c_in);
                    let dy = operands.numbers(1, *dtype, conv.n * conv.oh * conv.ow * conv.c_out);
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

    /// # Safety
    /// Input `index` holds at least `len` numbers of that type.
    unsafe fn numbers(&self, index: usize, dtype: DType, len: usize) -> Numbers<'a> {
        // SAFETY: the caller's promise.
        unsafe { Numbers::from_raw(self.inputs[index], dtype, len) }
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

    /// # Safety
    /// Nothing else uses the prepared input meanwhile.
    #[allow(clippy::mut_from_ref, reason = "the operands hold addresses; who calls answers for exclusive use")]
    unsafe fn prepared(&self) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.prepared, self.prepared_len) }
    }

    fn region_io(&self, anchor_inputs: usize, anchor: *const f32) -> RegionIo<'a> {
        RegionIo { anchor, loads: &self.inputs[anchor_inputs..], outputs: self.outputs }
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
    fn lower(op: &Op, types: &[&TensorType], weights_fixed: bool) -> Result<Product, Unsupported> {
        let (a, b) = (&types[0].shape, &types[1].shape);
        let shape = match op {
            Op::Conv2d(conv) => {
                let geometry = conv.geometry(a, b).map_err(Unsupported)?;
                ProductShape::Conv(conv_desc(&geometry, conv)?)
            }
            Op::Conv2dDataGrad(grad) => {
                let geometry = grad.geometry(a, b).map_err(Unsupported)?;
                ProductShape::ConvDataGrad(conv_desc(&geometry, &grad.conv)?)
            }
            Op::Matmul(matmul) => {
                let g = matmul.geometry(a, b).map_err(Unsupported)?;
                let desc = GemmDesc::new(g.m, g.n, g.k).transposed(matmul.trans_a, matmul.trans_b);
                ProductShape::Matmul(if g.batch == 1 { desc } else { desc.batched(g.batch) })
            }
            other => return Err(Unsupported(format!("{other} as an anchor"))),
        };
        let takes_prepared = match &shape {
            ProductShape::Matmul(desc) => gemm::takes_packed_b(desc),
            _ => true,
        };
        Ok(Product { shape, dtype: types[0].dtype, prepared: weights_fixed && takes_prepared })
    }

    fn scratch_len(&self, threads: usize) -> usize {
        match &self.shape {
            ProductShape::Conv(d) => conv::forward_scratch_len(d, threads),
            ProductShape::ConvDataGrad(d) => conv::data_grad_scratch_len(d, threads),
            ProductShape::Matmul(d) => gemm::scratch_len(d, threads),
        }
    }

    fn row_blocks(&self) -> RowBlocks {
        match &self.shape {
            ProductShape::Conv(d) => conv::forward_row_blocks(d),
            ProductShape::ConvDataGrad(d) => conv::data_grad_row_blocks(d),
            ProductShape::Matmul(d) => gemm::row_blocks(d),
        }
    }

    /// Elements of the first operand, the second one and the output.
    fn lens(&self) -> [usize; 3] {
        match &self.shape {
            ProductShape::Conv(d) | ProductShape::ConvDataGrad(d) => {
                let (x, y) = (d.n * d.h * d.w * d.c_in, d.n * d.oh * d.ow * d.c_out);
                let w = d.kh * d.kw * d.c_in * d.c_out;
                if matches!(self.shape, ProductShape::Conv(_)) { [x, w, y] } else { [y, w, x] }
            }
            ProductShape::Matmul(d) => [d.batch * d.m * d.k, d.batch * d.k * d.n, d.batch * d.m * d.n],
        }
    }

    fn output_len(&self) -> usize {
        self.lens()[2]
    }

    fn output_cols(&self) -> usize {
        match &self.shape {
            ProductShape::Conv(d) => d.c_out,
            ProductShape::ConvDataGrad(d) => d.c_in,
            ProductShape::Matmul(d) => d.n,
        }
    }

    /// Elements of a row block of the output.
    fn block_len(&self) -> usize {
        (self.row_blocks().rows * self.output_cols()).min(self.output_len())
    }

    fn prepared_len(&self) -> usize {
        match &self.shape {
            ProductShape::Conv(d) => conv::packed_forward_len(d),
            ProductShape::ConvDataGrad(d) => conv::packed_data_grad_len(d),
            ProductShape::Matmul(d) => gemm::packed_b_len(d),
        }
    }

    /// # Safety
    /// As for [`Kernel::prepare`].
    unsafe fn prepare(&self, ctx: Ctx<'_>, operands: &Operands<'_>) {
        // SAFETY: the caller's promise.
        let (weights, packed) = unsafe { (operands.numbers(1, self.dtype, self.lens()[1]), operands.prepared()) };
        match &self.shape {
            ProductShape::Conv(d) => conv::pack_forward(ctx, d, weights, packed),
            ProductShape::ConvDataGrad(d) => conv::pack_data_grad(ctx, d, weights, packed),
            ProductShape::Matmul(d) => gemm::pack_b(ctx, d, weights, packed),
        }
    }

    /// # Safety
    /// As for [`Kernel::run`]; `output` is that of the product.
    unsafe fn run(
        &self,
        ctx: Ctx<'_>,
        operands: &Operands<'_>,
        output: Output<'_>,
        scratch: &mut [f32],
        epilogue: Option<&dyn Epilogue>,
    ) {
        let [a_len, b_len, _] = self.lens();
        // SAFETY: the caller's promise; the operands have the elements the descriptions state.
        let (a, b) = unsafe {
            let a = operands.numbers(0, self.dtype, a_len);
            let b = match self.prepared {
                true => Weights::Packed(operands.prepared()),
                false => Weights::Plain(operands.numbers(1, self.dtype, b_len)),
            };
            (a, b)
        };
        match &self.shape {
            ProductShape::Conv(d) => conv::forward(ctx, d, a, b, output, scratch, epilogue),
            ProductShape::ConvDataGrad(d) => conv::data_grad(ctx, d, a, b, output, scratch, epilogue),
            ProductShape::Matmul(d) => gemm::gemm(ctx, d, a, b, output, scratch, epilogue),
        }
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
        (None, true) => Target::WorkerBlock,
        (None, false) => Target::Whole,
    };
    Ok(Kernel::Anchored(Anchored { product, region: kernel, target }))
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
            let io = operands.region_io(2, start);
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
    workers: Shared,
    partials: Partials,
}

impl Epilogue for RegionEpilogue<'_> {
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
