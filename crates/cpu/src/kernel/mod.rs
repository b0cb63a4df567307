//! Chooses the kernel of a node and calls it with the node's operands: a file for each family.

mod attention;
mod collective;
mod contraction;
mod copies;
mod detection;
mod error;
mod fused;
mod operands;
mod pooling;
mod random;
mod reduction;
mod roi;
mod rounded;
mod rows;
mod weight_grad;

pub(crate) use error::CallError;
pub use error::{KernelError, Unsupported};
pub(crate) use operands::Operands;

use crate::gemm::Ctx;
use bessemer_ir::ops::Op;
use bessemer_ir::passes::invariant::Invariant;
use bessemer_ir::plan::{LoweredKernel, Needs, Packed};
use bessemer_ir::{DType, Graph, NodeId, TensorType};

/// A kernel with its sizes.
pub(crate) trait Kernel: Send + Sync {
    /// A short description of the algorithm.
    fn name(&self) -> String;

    /// `f32` elements of scratch with the given number of threads.
    fn scratch_len(&self, _threads: usize) -> usize {
        0
    }

    /// FLOPs of an algorithm that needs others than the definition of the operation.
    fn own_flops(&self) -> Option<u64> {
        None
    }

    /// Elements of the form in which it reads its second input; `None` if it reads it as it is.
    fn packed_len(&self) -> Option<usize> {
        None
    }

    /// Fills the memory of the packed input.
    ///
    /// # Safety
    /// As for [`Kernel::run`]; the input is there.
    unsafe fn prepack(&self, _ctx: Ctx<'_>, _operands: &Operands<'_>) {}

    /// # Safety
    /// Operands are valid, of the types the kernel was lowered for, and outputs and scratch overlap nothing but what the
    /// planner lets a fusion overwrite in place.
    ///
    /// # Errors
    /// What is wrong with the data; a collective that fails.
    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError>;
}

/// A kernel of a plan, to be run with the given number of threads.
pub(crate) struct Lowered {
    pub kernel: Box<dyn Kernel>,
    pub threads: usize,
}

impl LoweredKernel for Lowered {
    fn name(&self) -> String {
        self.kernel.name()
    }

    fn needs(&self) -> Needs {
        let packed = self.kernel.packed_len().map(|len| Packed { input: 1, bytes: 4 * len });
        Needs { scratch: 4 * self.kernel.scratch_len(self.threads), packed, apart: false }
    }
}

/// FLOPs of convolutions and matrix products, those of attention included, that a kernel does for its node, a multiply-add
/// counted as two. Of Winograd's algorithm the products of its tiles count, without the additions of its transforms.
pub(crate) fn flops(kernel: &dyn Kernel, graph: &Graph, id: NodeId) -> u64 {
    let op = &graph.node(id).op;
    let contraction = op.as_fusion().map_or(Some(op), |fusion| fusion.producer.as_deref());
    let by_definition = || contraction.map_or(0, |op| op.rule().contraction_flops(&graph.input_types(id)));
    kernel.own_flops().unwrap_or_else(by_definition)
}

/// The kernel of a node.
///
/// # Errors
/// Why there is none.
pub(crate) fn lower(graph: &Graph, id: NodeId, invariant: &Invariant) -> Result<Box<dyn Kernel>, Unsupported> {
    let node = graph.node(id);
    let types = graph.input_types(id);
    let weights_invariant =
        node.inputs.get(1).is_some_and(|v| invariant.is_invariant(v.node)) && !invariant.is_invariant(id);
    match &node.op {
        Op::Input(_) | Op::Constant(_) | Op::Reshape(_) => Err(Unsupported::InMemory),
        Op::Unary(_) | Op::Binary(_) | Op::Select(_) | Op::Cast(_) | Op::OneHot(_) => Err(Unsupported::OutsideFusion),
        Op::Softmax(_) | Op::LogSoftmax(_) => Err(Unsupported::OutsideFusion),
        Op::MeanVar(moments) => Err(Unsupported::Axes { axes: moments.axes.clone(), rank: types[0].shape.rank() }),
        Op::Fusion(fusion) => fused::lower(fusion, graph, id, weights_invariant),
        Op::Conv2d(_)
        | Op::Conv2dDataGrad(_)
        | Op::Conv2dWeightGrad(_)
        | Op::Matmul(_)
        | Op::Limited(_)
        | Op::ConvWithPrologue(_)
        | Op::ConvThenDepthwise(_) => contraction::lower(&node.op, &types, weights_invariant),
        Op::MaxPool2d(pool) => pooling::max(pool, &types),
        Op::MaxPool2dGrad(grad) => pooling::max_grad(grad, &types),
        Op::AvgPool2d(pool) => pooling::average(pool, &types),
        Op::AvgPool2dGrad(grad) => pooling::average_grad(grad, &types),
        Op::Upsample(upsample) => Ok(copies::upsample(upsample, &types)),
        Op::Reduce(reduce) => reduction::reduce(reduce, &types),
        Op::ArgMax(_) => reduction::arg_max(&types),
        Op::TopK(top_k) => detection::top_k(top_k, &types),
        Op::Anchors(anchors) => Ok(detection::anchors(anchors)),
        Op::MatchBoxes(matching) => Ok(detection::match_boxes(matching, &types)),
        Op::EncodeBoxes(encode) => Ok(detection::encode(encode, &types)),
        Op::DecodeBoxes(decode) => Ok(detection::decode(decode, &types)),
        Op::Suppress(suppress) => Ok(detection::suppress(suppress, &types)),
        Op::SampleLabels(sample) => Ok(detection::sample_labels(sample, &types)),
        Op::SampleRows(sample) => Ok(detection::sample_rows(sample, &types)),
        Op::PackRows(pack) => Ok(detection::pack_rows(pack, &types)),
        Op::RoiAlign(align) => Ok(roi::align(align, &types)),
        Op::RoiAlignGrad(grad) => Ok(roi::align_grad(grad, &types)),
        Op::MaskTargets(masks) => Ok(roi::mask_targets(masks, &types)),
        Op::Transpose(transpose) => Ok(copies::transpose(transpose, &types)),
        Op::Slice(slice) => Ok(copies::slice(slice, &types)),
        Op::Broadcast(broadcast) => Ok(copies::broadcast(broadcast, &types)),
        Op::Pad(pad) => Ok(copies::pad(pad, &types, &node.outputs[0])),
        Op::Concat(concat) => Ok(copies::concat(concat, &types, &node.outputs[0])),
        Op::Gather(gather) => rows::gather(gather, &types),
        Op::ScatterAdd(scatter) => rows::scatter_add(scatter, &types),
        Op::Random(random) => random::lower(random),
        Op::Attention(attention) => attention::forward(attention, &types),
        Op::AttentionGrad(grad) => attention::backward(grad, &types),
        Op::AllReduce(reduce) => Ok(collective::all_reduce(*reduce, &types)),
        Op::AllReduceStart(start) => Ok(collective::start(start.op, &types)),
        Op::AllReduceWait(wait) => Ok(collective::wait(&wait.types)),
    }
}

/// Checks that all of `types` are `f32`.
fn only_f32(types: &[&TensorType]) -> Result<(), Unsupported> {
    match types.iter().find(|ty| ty.dtype != DType::F32) {
        Some(odd) => Err(Unsupported::Operands { expected: DType::F32, actual: odd.dtype }),
        None => Ok(()),
    }
}
