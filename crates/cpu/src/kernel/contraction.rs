//! Products: kernels whose output a fusion can work on block by block.

use super::{CallError, Kernel, Operands, Unsupported, weight_grad};
use crate::conv::chained::{self, ChainDesc};
use crate::conv::grouped::{self, GroupedDesc};
use crate::conv::winograd::{self, Direction};
use crate::conv::{self, ConvDesc};
use crate::gemm::{
    self, Activation, Affine, Ctx, Epilogue, GemmDesc, Input, LINE, Output, RowBlocks, TypedSlice, Weights,
};
use bessemer_ir::ops::conv::{Conv2d, Geometry};
use bessemer_ir::ops::conv_then_depthwise::{self, ConvThenDepthwise};
use bessemer_ir::ops::{Op, Product};
use bessemer_ir::{DType, OpError, TensorType};

/// A convolution, the gradient of its input, or a matrix product, with its sizes.
#[derive(Clone, Copy)]
pub(crate) struct Contraction {
    kind: Algorithm,
    /// Type of both operands.
    dtype: DType,
    /// Whether the second operand is packed before the first step.
    packed: bool,
    prologue: Option<AffineOperands>,
    /// Whether the third operand says how many items of the batch there are.
    is_limited: bool,
}

/// The scale and the shift of the channels of the first operand, which are the third and fourth operand.
#[derive(Clone, Copy)]
pub(crate) struct AffineOperands {
    /// Elements of the scale: as many as channels, or as channels of all images.
    scales: usize,
    channels: usize,
    relu: bool,
}

impl AffineOperands {
    /// Those of the prologue of an operation on operands of these types, if it has one.
    fn of(op: &Op, types: &[&TensorType]) -> Option<AffineOperands> {
        let Op::ConvWithPrologue(prologue) = op else { return None };
        let scale = &types[2].shape;
        Some(AffineOperands { scales: scale.elements(), channels: scale.cols(), relu: prologue.relu })
    }

    /// # Safety
    /// The operands are there, in `f32`.
    pub(crate) unsafe fn apply_to<'a>(self, x: TypedSlice<'a>, operands: &Operands<'a>) -> Input<'a> {
        // SAFETY: the caller's promise.
        let (scale, shift) = unsafe { (operands.floats(2, self.scales), operands.floats(3, self.channels)) };
        Input::affine(x, Affine { scale, by_image: self.scales > self.channels, shift, relu: self.relu })
    }
}

#[derive(Clone, Copy)]
enum Algorithm {
    Conv(ConvDesc),
    ConvDataGrad(ConvDesc),
    Winograd(ConvDesc, Direction),
    GroupedConv(GroupedDesc),
    GroupedDataGrad(GroupedDesc),
    Chain(ChainDesc),
    Matmul(GemmDesc),
}

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

/// # Errors
/// What is wrong with the operands.
fn chain_desc(chain: &ConvThenDepthwise, types: &[&TensorType]) -> Result<ChainDesc, OpError> {
    let between = chain.between(types)?;
    let first = chain.first.geometry(&types[0].shape, &types[1].shape)?;
    let depthwise = chain.depthwise.geometry(&between.shape, &types[2].shape)?;
    Ok(ChainDesc {
        first: conv_desc(&first, &chain.first),
        activation: match chain.activation {
            conv_then_depthwise::Activation::None => Activation::None,
            conv_then_depthwise::Activation::Relu => Activation::Relu,
            conv_then_depthwise::Activation::Swish => Activation::Swish,
        },
        depthwise: conv_desc(&depthwise, &chain.depthwise),
    })
}

/// How many of the `items` of a batch there are, by the third operand of a limited product.
///
/// # Safety
/// The operand is there.
pub(super) unsafe fn limit(operands: &Operands<'_>, items: usize) -> usize {
    // SAFETY: the caller's promise.
    let count = unsafe { operands.input::<i32>(2, 1)[0] };
    usize::try_from(count).unwrap_or(0).min(items)
}

/// The kernel of a product alone, or behind a prologue or a limit. `weights_invariant` says that the second operand is the same
/// in every step.
///
/// # Errors
/// Why there is none.
pub(super) fn lower(op: &Op, types: &[&TensorType], weights_invariant: bool) -> Result<Box<dyn Kernel>, Unsupported> {
    match op.product() {
        Some(Product::Conv2dWeightGrad(grad)) => {
            weight_grad::lower(grad, AffineOperands::of(op, types), matches!(op, Op::Limited(_)), types)
        }
        Some(Product::Conv2d(_) | Product::Conv2dDataGrad(_) | Product::Matmul(_)) | None => {
            Ok(Box::new(Contraction::lower(op, types, weights_invariant)?))
        }
    }
}

impl Contraction {
    /// The kernel of an operation that a fusion may work on block by block, with operands of these types.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn lower(op: &Op, types: &[&TensorType], weights_invariant: bool) -> Result<Contraction, Unsupported> {
        let (a, b) = (&types[0].shape, &types[1].shape);
        let dtype = types[0].dtype;
        let by_winograd =
            |desc: &ConvDesc, direction| dtype == DType::F32 && winograd::applies(desc, direction, weights_invariant);
        let kind = match op.product() {
            Some(Product::Conv2d(conv)) => {
                let geometry = conv.geometry(a, b)?;
                match (conv_desc(&geometry, conv), geometry.groups) {
                    (desc, 1) if by_winograd(&desc, Direction::Forward) => {
                        Algorithm::Winograd(desc, Direction::Forward)
                    }
                    (desc, 1) => Algorithm::Conv(desc),
                    (conv, groups) => Algorithm::GroupedConv(GroupedDesc { conv, groups, dtype }),
                }
            }
            Some(Product::Conv2dDataGrad(grad)) => {
                let geometry = grad.geometry(a, b)?;
                match (conv_desc(&geometry, &grad.conv), geometry.groups) {
                    (desc, 1) if by_winograd(&desc, Direction::DataGrad) => {
                        Algorithm::Winograd(desc, Direction::DataGrad)
                    }
                    (desc, 1) => Algorithm::ConvDataGrad(desc),
                    (conv, groups) => Algorithm::GroupedDataGrad(GroupedDesc { conv, groups, dtype }),
                }
            }
            Some(Product::Matmul(matmul)) => {
                let g = matmul.geometry(a, b)?;
                let desc = GemmDesc::new(g.m, g.n, g.k).transposed(matmul.trans_a, matmul.trans_b);
                Algorithm::Matmul(if g.batch == 1 { desc } else { desc.batched(g.batch) })
            }
            Some(Product::Conv2dWeightGrad(_)) => return Err(Unsupported::Producer(op.rule().name())),
            None => match op {
                Op::ConvThenDepthwise(chain) => Algorithm::Chain(chain_desc(chain, types)?),
                _ => return Err(Unsupported::Producer(op.rule().name())),
            },
        };
        let takes_packed = match &kind {
            Algorithm::Conv(_) | Algorithm::ConvDataGrad(_) | Algorithm::Winograd(..) | Algorithm::Chain(_) => true,
            Algorithm::GroupedConv(_) | Algorithm::GroupedDataGrad(_) => false,
            Algorithm::Matmul(desc) => gemm::takes_packed_b(desc),
        };
        let prologue = AffineOperands::of(op, types);
        let is_limited = matches!(op, Op::Limited(_));
        Ok(Contraction { kind, dtype, packed: weights_invariant && takes_packed, prologue, is_limited })
    }

    /// Whether it leaves out items of its batch, so that it finishes no blocks of the others' rows.
    pub(super) fn is_limited(&self) -> bool {
        self.is_limited
    }

    /// The same without a limit, on the first `count` items of the batch.
    fn of_first(mut self, count: usize) -> Contraction {
        self.is_limited = false;
        match &mut self.kind {
            Algorithm::Conv(d) | Algorithm::ConvDataGrad(d) | Algorithm::Winograd(d, _) => d.n = count,
            Algorithm::GroupedConv(_) | Algorithm::GroupedDataGrad(_) | Algorithm::Chain(_) | Algorithm::Matmul(_) => {
                unreachable!("only convolutions of one group are limited")
            }
        }
        self
    }

    /// Items of the batch.
    fn items(&self) -> usize {
        match &self.kind {
            Algorithm::Conv(d) | Algorithm::ConvDataGrad(d) | Algorithm::Winograd(d, _) => d.n,
            Algorithm::GroupedConv(d) | Algorithm::GroupedDataGrad(d) => d.conv.n,
            Algorithm::Chain(d) => d.depthwise.n,
            Algorithm::Matmul(d) => d.batch,
        }
    }

    /// A short description of the algorithm.
    pub(super) fn kind_name(&self) -> &'static str {
        match &self.kind {
            Algorithm::Conv(_) => "implicit matmul",
            Algorithm::ConvDataGrad(_) => "data gradient by phases",
            Algorithm::Winograd(..) => winograd::NAME,
            Algorithm::GroupedConv(d) | Algorithm::GroupedDataGrad(d) => d.name(),
            Algorithm::Chain(_) => "implicit matmul, depthwise by lines",
            Algorithm::Matmul(d) => gemm::kernel_name(d),
        }
    }

    pub(crate) fn row_blocks(&self) -> RowBlocks {
        match &self.kind {
            Algorithm::Conv(d) => conv::forward_row_blocks(d),
            Algorithm::ConvDataGrad(d) => conv::data_grad_row_blocks(d),
            Algorithm::Winograd(d, direction) => winograd::row_blocks(d, *direction),
            Algorithm::GroupedConv(d) => grouped::forward_row_blocks(d),
            Algorithm::GroupedDataGrad(d) => grouped::data_grad_row_blocks(d),
            Algorithm::Chain(d) => chained::forward_row_blocks(d),
            Algorithm::Matmul(d) => gemm::row_blocks(d),
        }
    }

    /// Whether its output may be a block for each worker.
    pub(crate) fn works_in_blocks(&self) -> bool {
        match &self.kind {
            Algorithm::GroupedConv(d) | Algorithm::GroupedDataGrad(d) => d.works_in_blocks(),
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
            Algorithm::Conv(d) | Algorithm::Winograd(d, Direction::Forward) => forward(d, 1),
            Algorithm::ConvDataGrad(d) | Algorithm::Winograd(d, Direction::DataGrad) => backward(forward(d, 1)),
            Algorithm::GroupedConv(d) => forward(&d.conv, d.groups),
            Algorithm::GroupedDataGrad(d) => backward(forward(&d.conv, d.groups)),
            Algorithm::Chain(d) => {
                let ([x, w, _], [_, _, y]) = (forward(&d.first, 1), forward(&d.depthwise, d.depthwise.c_in));
                [x, w, y]
            }
            Algorithm::Matmul(d) => [d.batch * d.m * d.k, d.batch * d.k * d.n, d.batch * d.m * d.n],
        }
    }

    pub(crate) fn output_len(&self) -> usize {
        self.lens()[2]
    }

    pub(crate) fn output_cols(&self) -> usize {
        match &self.kind {
            Algorithm::Conv(d) | Algorithm::Winograd(d, Direction::Forward) => d.c_out,
            Algorithm::ConvDataGrad(d) | Algorithm::Winograd(d, Direction::DataGrad) => d.c_in,
            Algorithm::GroupedConv(d) => d.conv.c_out,
            Algorithm::GroupedDataGrad(d) => d.conv.c_in,
            Algorithm::Chain(d) => d.depthwise.c_out,
            Algorithm::Matmul(d) => d.n,
        }
    }

    /// Elements of a row block of the output.
    pub(crate) fn block_len(&self) -> usize {
        (self.row_blocks().rows * self.output_cols()).min(self.output_len())
    }

    /// Elements of transformed weights that a call makes for itself.
    fn own_weights_len(&self) -> usize {
        match &self.kind {
            Algorithm::Winograd(d, direction) if !self.packed => {
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
        if self.is_limited {
            assert!(epilogue.is_none(), "blocks of a limited product are not all finished");
            // SAFETY: the caller's promise.
            let count = unsafe { limit(operands, self.items()) };
            let limited = self.of_first(count);
            // SAFETY: the caller's promise; the output has the elements of all items.
            unsafe {
                let output = output.zero_behind(ctx, limited.output_len());
                if count > 0 {
                    limited.run_into(ctx, operands, output, scratch, None);
                }
            }
            return;
        }
        let [a_len, b_len, _] = self.lens();
        // SAFETY: the caller's promise; the operands have the elements the descriptions state.
        unsafe {
            let elements = || operands.elements(0, self.dtype, a_len);
            let input = || match self.prologue {
                None => elements().into(),
                Some(prologue) => prologue.apply_to(elements(), operands),
            };
            let weights = || match self.packed {
                true => Weights::Packed(operands.packed()),
                false => Weights::Plain(operands.elements(1, self.dtype, b_len)),
            };
            let both = || (elements(), operands.elements(1, self.dtype, b_len));
            match &self.kind {
                Algorithm::Conv(d) => conv::forward(ctx, d, input(), weights(), output, scratch, epilogue),
                Algorithm::ConvDataGrad(d) => conv::data_grad(ctx, d, elements(), weights(), output, scratch, epilogue),
                Algorithm::Winograd(d, direction) => {
                    let weights = operands.floats(1, b_len);
                    let (own, scratch) = scratch.split_at_mut(self.own_weights_len());
                    let transformed = if self.packed {
                        operands.packed()
                    } else {
                        winograd::transform_weights(ctx, d, *direction, weights, own);
                        own
                    };
                    winograd::run(ctx, d, *direction, input(), transformed, output, scratch, epilogue);
                }
                Algorithm::GroupedConv(d) => {
                    let (x, w) = both();
                    grouped::forward(ctx, d, x, w, output, scratch, epilogue);
                }
                Algorithm::GroupedDataGrad(d) => {
                    let (dy, w) = both();
                    grouped::data_grad(ctx, d, dy, w, output, scratch, epilogue);
                }
                Algorithm::Chain(d) => {
                    let taps = d.depthwise.kh * d.depthwise.kw;
                    let x = operands.floats(0, a_len);
                    let [v, bias] = [taps * d.depthwise.c_in, d.depthwise.c_in];
                    let (v, bias) = (operands.floats(2, v), operands.floats(3, bias));
                    chained::forward(ctx, d, x, weights(), v, bias, output, scratch, epilogue);
                }
                Algorithm::Matmul(d) => gemm::gemm(ctx, d, elements(), weights(), output, scratch, epilogue),
            }
        }
    }
}

impl Kernel for Contraction {
    fn name(&self) -> String {
        self.kind_name().to_string()
    }

    fn own_flops(&self) -> Option<u64> {
        match &self.kind {
            Algorithm::Winograd(d, direction) => Some(winograd::flops(d, *direction)),
            _ => None,
        }
    }

    fn scratch_len(&self, threads: usize) -> usize {
        if self.is_limited {
            return (1..=self.items()).map(|count| self.of_first(count).scratch_len(threads)).max().unwrap_or(0);
        }
        match &self.kind {
            Algorithm::Conv(d) => conv::forward_scratch_len(d, threads),
            Algorithm::ConvDataGrad(d) => conv::data_grad_scratch_len(d, threads),
            Algorithm::Winograd(d, direction) => self.own_weights_len() + winograd::scratch_len(d, *direction, threads),
            Algorithm::GroupedConv(d) => grouped::forward_scratch_len(d, threads),
            Algorithm::GroupedDataGrad(d) => grouped::data_grad_scratch_len(d, threads),
            Algorithm::Chain(d) => chained::forward_scratch_len(d, threads),
            Algorithm::Matmul(d) => gemm::scratch_len(d, threads),
        }
    }

    fn packed_len(&self) -> Option<usize> {
        if !self.packed {
            return None;
        }
        match &self.kind {
            Algorithm::Conv(d) => Some(conv::packed_forward_len(d)),
            Algorithm::ConvDataGrad(d) => Some(conv::packed_data_grad_len(d)),
            Algorithm::Winograd(d, direction) => Some(winograd::weights_len(d, *direction)),
            Algorithm::GroupedConv(_) | Algorithm::GroupedDataGrad(_) => None,
            Algorithm::Chain(d) => Some(conv::packed_forward_len(&d.first)),
            Algorithm::Matmul(d) => Some(gemm::packed_b_len(d)),
        }
    }

    unsafe fn prepack(&self, ctx: Ctx<'_>, operands: &Operands<'_>) {
        if !self.packed {
            return;
        }
        let len = self.lens()[1];
        // SAFETY: the caller's promise.
        let (weights, packed) = unsafe { (operands.elements(1, self.dtype, len), operands.packed()) };
        match &self.kind {
            Algorithm::Conv(d) => conv::pack_forward(ctx, d, weights, packed),
            Algorithm::ConvDataGrad(d) => conv::pack_data_grad(ctx, d, weights, packed),
            Algorithm::Winograd(d, direction) => {
                // SAFETY: the caller's promise.
                let weights = unsafe { operands.floats(1, len) };
                winograd::transform_weights(ctx, d, *direction, weights, packed);
            }
            Algorithm::GroupedConv(_) | Algorithm::GroupedDataGrad(_) => {}
            Algorithm::Chain(d) => conv::pack_forward(ctx, &d.first, weights, packed),
            Algorithm::Matmul(d) => gemm::pack_b(ctx, d, weights, packed),
        }
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe {
            let output = Output::from_raw(operands.outputs[0].cast(), self.output_len());
            self.run_into(ctx, operands, output, operands.scratch(), None);
        }
        Ok(())
    }
}
