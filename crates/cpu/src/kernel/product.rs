//! Products: kernels whose output a region can work on block by block.

use super::{Kernel, Operands, Unsupported};
use crate::conv::grouped::{self, GroupedDesc};
use crate::conv::winograd::{self, Direction};
use crate::conv::{self, ConvDesc};
use crate::gemm::{self, Affine, Ctx, Epilogue, GemmDesc, Input, Output, RowBlocks, TypedSlice, Weights};
use crate::index::IndexOutOfRange;
use bessemer_ir::ops::Op;
use bessemer_ir::ops::conv::{Conv2d, Geometry};
use bessemer_ir::ops::prologue::Prologue;
use bessemer_ir::{DType, Shape, TensorType};

/// A convolution, the gradient of its input, or a matrix product, with its sizes.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    kind: Kind,
    /// Type of both operands.
    dtype: DType,
    /// Whether the second operand is prepared before the first step.
    prepared: bool,
    prologue: Option<AffineOperands>,
}

/// A scale and a shift for each channel of the first operand, which are the third and fourth one.
#[derive(Clone, Copy)]
pub(crate) struct AffineOperands {
    channels: usize,
    relu: bool,
}

impl AffineOperands {
    /// Those of a prologue to a first operand of this shape.
    pub(super) fn of(prologue: &Prologue, x: &Shape) -> AffineOperands {
        AffineOperands { channels: x.cols(), relu: prologue.relu }
    }

    /// # Safety
    /// The operands are there, in `f32`.
    pub(crate) unsafe fn apply_to<'a>(self, x: TypedSlice<'a>, operands: &Operands<'a>) -> Input<'a> {
        // SAFETY: the caller's promise.
        let (scale, shift) = unsafe { (operands.floats(2, self.channels), operands.floats(3, self.channels)) };
        Input::affine(x, Affine { scale, shift, relu: self.relu })
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Conv(ConvDesc),
    ConvDataGrad(ConvDesc),
    Winograd(ConvDesc, Direction),
    GroupedConv(GroupedDesc),
    GroupedDataGrad(GroupedDesc),
    Matmul(GemmDesc),
}

/// Elements of a cache line.
const LINE: usize = 16;

/// Sizes of a convolution, with the channels of all groups together.
pub(crate) fn conv_desc(geometry: &Geometry, conv: &Conv2d) -> ConvDesc {
    ConvDesc {
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
    }
}

impl Product {
    /// The kernel of an operation with operands of these types. `weights_fixed` says that the second one is the same in
    /// every step.
    pub(crate) fn lower(op: &Op, types: &[&TensorType], weights_fixed: bool) -> Result<Product, Unsupported> {
        let (a, b) = (&types[0].shape, &types[1].shape);
        let dtype = types[0].dtype;
        let by_winograd =
            |desc: &ConvDesc, direction| dtype == DType::F32 && winograd::applies(desc, direction, weights_fixed);
        let kind = match op.behind_prologue() {
            Op::Conv2d(conv) => {
                let geometry = conv.geometry(a, b)?;
                match (conv_desc(&geometry, conv), geometry.groups) {
                    (desc, 1) if by_winograd(&desc, Direction::Forward) => Kind::Winograd(desc, Direction::Forward),
                    (desc, 1) => Kind::Conv(desc),
                    (conv, groups) => Kind::GroupedConv(GroupedDesc { conv, groups }),
                }
            }
            Op::Conv2dDataGrad(grad) => {
                let geometry = grad.geometry(a, b)?;
                match (conv_desc(&geometry, &grad.conv), geometry.groups) {
                    (desc, 1) if by_winograd(&desc, Direction::DataGrad) => Kind::Winograd(desc, Direction::DataGrad),
                    (desc, 1) => Kind::ConvDataGrad(desc),
                    (conv, groups) => Kind::GroupedDataGrad(GroupedDesc { conv, groups }),
                }
            }
            Op::Matmul(matmul) => {
                let g = matmul.geometry(a, b)?;
                let desc = GemmDesc::new(g.m, g.n, g.k).transposed(matmul.trans_a, matmul.trans_b);
                Kind::Matmul(if g.batch == 1 { desc } else { desc.batched(g.batch) })
            }
            other => return Err(Unsupported::Producer(other.rule().name())),
        };
        let takes_prepared = match &kind {
            Kind::Conv(_) | Kind::ConvDataGrad(_) | Kind::Winograd(..) => true,
            Kind::GroupedConv(_) | Kind::GroupedDataGrad(_) if dtype != DType::F32 => {
                return Err(Unsupported::Grouped(dtype));
            }
            Kind::GroupedConv(_) | Kind::GroupedDataGrad(_) => false,
            Kind::Matmul(desc) => gemm::takes_packed_b(desc),
        };
        let prologue = match op {
            Op::Prologue(prologue) => Some(AffineOperands::of(prologue, a)),
            _ => None,
        };
        Ok(Product { kind, dtype, prepared: weights_fixed && takes_prepared, prologue })
    }

    /// How it computes, in a few words.
    pub(super) fn kind_name(&self) -> &'static str {
        match &self.kind {
            Kind::Conv(_) => "implicit matmul",
            Kind::ConvDataGrad(_) => "data gradient by phases",
            Kind::Winograd(..) => "Winograd 4x4",
            Kind::GroupedConv(d) | Kind::GroupedDataGrad(d) => d.name(),
            Kind::Matmul(d) => gemm::kernel_name(d),
        }
    }

    pub(crate) fn row_blocks(&self) -> RowBlocks {
        match &self.kind {
            Kind::Conv(d) => conv::forward_row_blocks(d),
            Kind::ConvDataGrad(d) => conv::data_grad_row_blocks(d),
            Kind::Winograd(d, direction) => winograd::row_blocks(d, *direction),
            Kind::GroupedConv(d) => grouped::forward_row_blocks(d),
            Kind::GroupedDataGrad(d) => grouped::data_grad_row_blocks(d),
            Kind::Matmul(d) => gemm::row_blocks(d),
        }
    }

    /// Whether its output may be a block for each worker.
    pub(crate) fn works_in_blocks(&self) -> bool {
        match &self.kind {
            Kind::GroupedConv(d) | Kind::GroupedDataGrad(d) => d.works_in_blocks(),
            _ => true,
        }
    }

    /// Elements of the first operand, the second one and the output.
    fn lens(&self) -> [usize; 3] {
        let forward = |d: &ConvDesc, groups: usize| {
            let weights = d.kh * d.kw * d.c_in / groups * d.c_out;
            [d.n * d.h * d.w * d.c_in, weights, d.n * d.oh * d.ow * d.c_out]
        };
        let backward = |[x, w, y]: [usize; 3]| [y, w, x];
        match &self.kind {
            Kind::Conv(d) | Kind::Winograd(d, Direction::Forward) => forward(d, 1),
            Kind::ConvDataGrad(d) | Kind::Winograd(d, Direction::DataGrad) => backward(forward(d, 1)),
            Kind::GroupedConv(d) => forward(&d.conv, d.groups),
            Kind::GroupedDataGrad(d) => backward(forward(&d.conv, d.groups)),
            Kind::Matmul(d) => [d.batch * d.m * d.k, d.batch * d.k * d.n, d.batch * d.m * d.n],
        }
    }

    pub(crate) fn output_len(&self) -> usize {
        self.lens()[2]
    }

    pub(crate) fn output_cols(&self) -> usize {
        match &self.kind {
            Kind::Conv(d) | Kind::Winograd(d, Direction::Forward) => d.c_out,
            Kind::ConvDataGrad(d) | Kind::Winograd(d, Direction::DataGrad) => d.c_in,
            Kind::GroupedConv(d) => d.conv.c_out,
            Kind::GroupedDataGrad(d) => d.conv.c_in,
            Kind::Matmul(d) => d.n,
        }
    }

    /// Elements of a row block of the output.
    pub(crate) fn block_len(&self) -> usize {
        (self.row_blocks().rows * self.output_cols()).min(self.output_len())
    }

    /// Elements of transformed weights that a call makes for itself.
    fn own_weights_len(&self) -> usize {
        match &self.kind {
            Kind::Winograd(d, direction) if !self.prepared => {
                winograd::weights_len(d, *direction).next_multiple_of(LINE)
            }
            _ => 0,
        }
    }

    /// # Safety
    /// As for [`Kernel::run`]; `output` is that of the product.
    pub(super) unsafe fn run_into(
        &self,
        ctx: Ctx<'_>,
        operands: &Operands<'_>,
        output: Output<'_>,
        scratch: &mut [f32],
        epilogue: Option<&dyn Epilogue>,
    ) {
        let [a_len, b_len, _] = self.lens();
        // SAFETY: the caller's promise; the operands have the elements the descriptions state.
        unsafe {
            let numbers = || operands.numbers(0, self.dtype, a_len);
            let input = || match self.prologue {
                None => numbers().into(),
                Some(prologue) => prologue.apply_to(numbers(), operands),
            };
            let weights = || match self.prepared {
                true => Weights::Packed(operands.prepared()),
                false => Weights::Plain(operands.numbers(1, self.dtype, b_len)),
            };
            let floats = || (operands.floats(0, a_len), operands.floats(1, b_len));
            match &self.kind {
                Kind::Conv(d) => conv::forward(ctx, d, input(), weights(), output, scratch, epilogue),
                Kind::ConvDataGrad(d) => conv::data_grad(ctx, d, numbers(), weights(), output, scratch, epilogue),
                Kind::Winograd(d, direction) => {
                    let weights = operands.floats(1, b_len);
                    let (own, scratch) = scratch.split_at_mut(self.own_weights_len());
                    let transformed = if self.prepared {
                        operands.prepared()
                    } else {
                        winograd::transform_weights(ctx, d, *direction, weights, own);
                        own
                    };
                    winograd::run(ctx, d, *direction, input(), transformed, output, scratch, epilogue);
                }
                Kind::GroupedConv(d) => {
                    let (x, w) = floats();
                    grouped::forward(ctx, d, x, w, output, scratch, epilogue);
                }
                Kind::GroupedDataGrad(d) => {
                    let (dy, w) = floats();
                    grouped::data_grad(ctx, d, dy, w, output, scratch, epilogue);
                }
                Kind::Matmul(d) => gemm::gemm(ctx, d, numbers(), weights(), output, scratch, epilogue),
            }
        }
    }
}

impl Kernel for Product {
    fn name(&self) -> String {
        self.kind_name().to_string()
    }

    fn own_flops(&self) -> Option<u64> {
        match &self.kind {
            Kind::Winograd(d, direction) => Some(winograd::flops(d, *direction)),
            _ => None,
        }
    }

    fn scratch_len(&self, threads: usize) -> usize {
        match &self.kind {
            Kind::Conv(d) => conv::forward_scratch_len(d, threads),
            Kind::ConvDataGrad(d) => conv::data_grad_scratch_len(d, threads),
            Kind::Winograd(d, direction) => self.own_weights_len() + winograd::scratch_len(d, *direction, threads),
            Kind::GroupedConv(d) => grouped::forward_scratch_len(d, threads),
            Kind::GroupedDataGrad(d) => grouped::data_grad_scratch_len(d, threads),
            Kind::Matmul(d) => gemm::scratch_len(d, threads),
        }
    }

    fn prepared_len(&self) -> Option<usize> {
        if !self.prepared {
            return None;
        }
        match &self.kind {
            Kind::Conv(d) => Some(conv::packed_forward_len(d)),
            Kind::ConvDataGrad(d) => Some(conv::packed_data_grad_len(d)),
            Kind::Winograd(d, direction) => Some(winograd::weights_len(d, *direction)),
            Kind::GroupedConv(_) | Kind::GroupedDataGrad(_) => None,
            Kind::Matmul(d) => Some(gemm::packed_b_len(d)),
        }
    }

    unsafe fn prepare(&self, ctx: Ctx<'_>, operands: &Operands<'_>) {
        if !self.prepared {
            return;
        }
        let len = self.lens()[1];
        // SAFETY: the caller's promise.
        let (weights, packed) = unsafe { (operands.numbers(1, self.dtype, len), operands.prepared()) };
        match &self.kind {
            Kind::Conv(d) => conv::pack_forward(ctx, d, weights, packed),
            Kind::ConvDataGrad(d) => conv::pack_data_grad(ctx, d, weights, packed),
            Kind::Winograd(d, direction) => {
                // SAFETY: the caller's promise.
                let weights = unsafe { operands.floats(1, len) };
                winograd::transform_weights(ctx, d, *direction, weights, packed);
            }
            Kind::GroupedConv(_) | Kind::GroupedDataGrad(_) => {}
            Kind::Matmul(d) => gemm::pack_b(ctx, d, weights, packed),
        }
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), IndexOutOfRange> {
        // SAFETY: the caller's promise.
        unsafe {
            let output = Output::from_raw(operands.outputs[0].cast(), self.output_len());
            self.run_into(ctx, operands, output, operands.scratch(), None);
        }
        Ok(())
    }
}
