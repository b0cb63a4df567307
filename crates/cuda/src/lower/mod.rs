//! From nodes of compiled graphs to steps: launches of kernels and calls of libraries, with the places of their operands. No device
//! is needed.

mod algebra;
pub(crate) mod attention;
mod collective;
mod conv;
mod epilogue;
mod groups;
mod moves;
mod product;
mod region;
#[cfg(test)]
mod tests;

pub(crate) use collective::message_of;
pub(crate) use groups::{Joint, Together, Unit, outputs, replaces_state, units, units_alone};

use crate::cublaslt::{Epilogue, Product};
use crate::cudnn::{Convolution, Fusion as ConvolutionFusion};
use crate::kernels::attention::tensor_cores;
use crate::kernels::reduction::Reduction;
use crate::kernels::work::Work;
use crate::kernels::{self, MOST_ELEMENTS};
use crate::kgen::{self, Kernel, Operand};
use bessemer_ir::ops::conv::Filter;
use bessemer_ir::ops::source::Distribution;
use bessemer_ir::ops::{Op, RecomputeCost};
use bessemer_ir::passes::invariant::Invariant;
use bessemer_ir::plan::{KernelNode, LoweredKernel, Needs, Plan, Refusal, Target, UnsupportedOps};
use bessemer_ir::rules::{ColumnRules, MaskRules, Rules};
use bessemer_ir::{DType, Graph, NodeId, OpError, TensorType, Value};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The kind of device.
pub(crate) const KIND: &str = "cuda";

/// Bytes to which tensors and scratch memory are aligned.
const ALIGNMENT: usize = 256;

/// What graphs are compiled for: GPUs of NVIDIA's, all alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CudaTarget;

impl CudaTarget {
    /// What passes may do.
    pub const RULES: Rules = Rules {
        alignment: ALIGNMENT,
        longest_row: 1 << 16,
        products_give_16_bits: true,
        biases_before_rounding: true,
        factors_of_products: true,
        alike_regions_together: true,
        sums_of_whole_tensors: true,
        // Multiprocessors compute tens of instructions while memory gives an element.
        cheaper_than_memory: RecomputeCost::Pass,
        // A third of attention's instructions draw.
        kept_masks: Some(MaskRules { multiple: tensor_cores::DEPTH_STEP, most: tensor_cores::MOST_DEPTH }),
        // Libraries take what they were planned for.
        limited_products: false,
        // As cuDNN reads and gives them.
        filters: Filter::Ohwi,
        // Rows then begin at whole lines of the caches.
        columns: Some(ColumnRules { multiple: 64, least: 1024 }),
        prologue: None,
        chain: None,
    };
}

impl Target for CudaTarget {
    fn name(&self) -> &str {
        KIND
    }

    fn rules(&self) -> &Rules {
        &Self::RULES
    }

    fn lower(
        &self,
        graph: &Graph,
        node: NodeId,
        _invariant: &Invariant,
    ) -> Result<Option<Arc<dyn LoweredKernel>>, Refusal> {
        let lowered = lower(graph, node).map_err(|reason| {
            let inputs = graph.input_types(node).into_iter().cloned().collect();
            LoweringError { node: KernelNode::of(graph, node), inputs, reason }
        })?;
        Ok(Some(Arc::new(lowered)))
    }
}

/// An operation that has no kernel.
#[expect(missing_docs, reason = "the message says what the fields hold")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} ({reason}; inputs: {})", .node, list(.inputs))]
pub struct LoweringError {
    pub node: KernelNode,
    pub inputs: Vec<TensorType>,
    pub reason: Unsupported,
}

/// How many times the elements that kernels count the largest tensor of operations without kernels has; `None` where one of them has none
/// for another reason.
pub fn too_many_elements(operations: &UnsupportedOps) -> Option<f64> {
    let elements = operations.operations.iter().map(|refusal| match refusal.downcast_ref() {
        Some(LoweringError { reason: Unsupported::Elements { elements }, .. }) => Some(*elements),
        _ => None,
    });
    let largest = elements.collect::<Option<Vec<usize>>>()?.into_iter().max()?;
    Some(largest as f64 / (MOST_ELEMENTS - 1) as f64)
}

fn list(types: &[TensorType]) -> String {
    types.iter().map(TensorType::to_string).collect::<Vec<_>>().join(", ")
}

/// Why there is no kernel for an operation on operands of some types.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    #[error("its result lies in memory already, no kernel computes it")]
    InMemory,
    #[error("only fused kernels compute it")]
    OutsideFusion,
    #[error("products take whole batches")]
    WholeBatch,
    #[error("it has no kernel yet")]
    NoKernel,
    #[error("the operands must be {expected}, one is {actual}")]
    Operands { expected: &'static str, actual: DType },
    #[error("it has {elements} elements, more than 32 bits count")]
    Elements { elements: usize },
    #[error("there is no reduction over the axes {axes:?} of {rank}")]
    Axes { axes: Vec<usize>, rank: usize },
    #[error(transparent)]
    Region(#[from] kgen::KernelError),
    #[error(transparent)]
    Shapes(#[from] OpError),
}

/// Where an operand of a step lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// An input of the node.
    Input(usize),
    /// An output of the node.
    Output(usize),
    /// A part of the node's scratch memory.
    Scratch {
        offset: usize,
        bytes: usize,
    },
    /// Words that count blocks of a launch: 0 before and behind it.
    Arrivals,
    /// Where kernels report an index that is out of range.
    Report,
    /// The message of the sum over ranks that the node starts or waits for, of so many bytes.
    Message {
        bytes: usize,
    },
    /// What says that a rank is lost, and the halt.
    Lost,
    Halt,
}

/// Work that is given to a stream at once.
pub(crate) enum Step {
    /// A launch; a place for each of the kernel's parameters.
    Launch { kernel: Kernel, operands: Vec<Place> },
    /// A product by cuBLASLt: its operands and its result, and what is done with it in the same pass.
    Product { product: Product, x: Place, w: Place, y: Place, epilogue: Epilogue<Place> },
    /// A convolution by cuDNN with what is done in its pass: the tensors that its graph has in memory, in the order of the graph.
    Convolution { convolution: Convolution, fusion: ConvolutionFusion, ty: DType, tensors: Vec<Place> },
    /// Zeros.
    Zero(Place),
    /// The node's message is added to those of the other ranks, beside what follows.
    Exchange { elements: usize, ty: DType },
    /// What follows waits for that.
    Await,
}

/// Why a fusion on a product is not done in the same pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Missed {
    #[error("cuBLASLt adds a bias to one product, not to a batch")]
    Batch,
    #[error("more results are kept than cuBLASLt gives")]
    Outputs,
    #[error("cuBLASLt has no such function")]
    Function,
    #[error("with convolutions cuDNN fuses in 16 bits here")]
    Type,
    #[error("cuDNN fuses with no convolution that is padded in memory")]
    Geometry,
    #[error("depthwise convolutions run by a kernel of their own")]
    Depthwise,
    #[error("cuDNN has no such graph of a convolution")]
    Graph,
    #[error("cuDNN has no engine for such a graph of this convolution")]
    Engine,
}

/// Steps for a fusion on a product, in its pass.
pub(crate) struct Fused {
    /// The product.
    product: &'static str,
    /// What is done in the product's pass.
    pub(crate) what: &'static str,
    pub(crate) steps: Vec<Step>,
    /// Whether it is known without a device that the library has a way for them and that it is worth taking.
    pub(crate) is_expected: bool,
    /// Whether inputs of the node are read when the product has written some of its result, or all of it.
    apart: bool,
}

impl Fused {
    /// Whether state that it replaces is a sum, which may hold anything when a step begins.
    pub(crate) fn starts_over(&self) -> bool {
        matches!(self.steps.last(), Some(Step::Product { epilogue: Epilogue::Added { .. }, .. }))
    }

    /// Whether something of the node is left to kernels behind the product.
    fn has_rest(&self) -> bool {
        !matches!(self.steps.last(), Some(Step::Product { .. } | Step::Convolution { .. }))
    }
}

/// Steps that compute a node, one after the other.
#[derive(Default)]
pub(crate) struct Lowered {
    name: String,
    /// Those that libraries always have a way for.
    pub(crate) steps: Vec<Step>,
    /// Better ones that compute the same: those that do most in the pass of a product first.
    pub(crate) fused: Vec<Fused>,
    /// Why a fusion on a product has none.
    pub(crate) missed: Option<Missed>,
    scratch: usize,
    /// FLOPs of products, a multiply-add counted as two.
    pub(crate) flops: u64,
    /// How many values its indices may have, where it has indices; of two kinds of them at most.
    pub(crate) index_limits: Vec<usize>,
}

impl LoweredKernel for Lowered {
    fn name(&self) -> String {
        self.name_of(self.expected())
    }

    fn needs(&self) -> Needs {
        let apart = self.fused.iter().any(|fused| fused.apart);
        Needs { scratch: self.scratch, packed: None, apart }
    }
}

impl Lowered {
    fn named(name: &str) -> Lowered {
        Lowered { name: name.to_owned(), ..Lowered::default() }
    }

    /// The better steps that are taken as far as is known without a device, by number.
    pub(crate) fn expected(&self) -> Option<usize> {
        self.fused.iter().position(|fused| fused.is_expected)
    }

    /// In words what runs, with the better steps of a number or without.
    pub(crate) fn name_of(&self, fused: Option<usize>) -> String {
        match fused.map(|number| &self.fused[number]) {
            Some(own) => {
                let rest = if own.has_rest() { ", then region" } else { "" };
                format!("{} with {}{rest}", own.product, own.what)
            }
            None => self.name.clone(),
        }
    }

    /// The steps: the better ones of a number, or those that libraries always have a way for.
    pub(crate) fn steps_of(&self, fused: Option<usize>) -> &[Step] {
        fused.map_or(&self.steps, |number| &self.fused[number].steps)
    }

    /// The message that is sent to other ranks, if one is: elements and their type.
    pub(crate) fn message(&self) -> Option<(usize, DType)> {
        self.steps.iter().find_map(|step| match *step {
            Step::Exchange { elements, ty } => Some((elements, ty)),
            _ => None,
        })
    }

    /// Scratch memory that nothing else of the node uses.
    fn scratch(&mut self, bytes: usize) -> Place {
        let offset = self.scratch;
        self.scratch += bytes.next_multiple_of(ALIGNMENT);
        Place::Scratch { offset, bytes }
    }

    fn scratch_of(&mut self, ty: DType, elements: usize) -> Place {
        self.scratch(elements * ty.size())
    }

    fn launch(&mut self, kernel: Kernel, operands: impl Into<Vec<Place>>) {
        self.steps.push(Step::Launch { kernel, operands: operands.into() });
    }

    /// A reduction of `f32` elements, in one launch or two.
    fn reduce(&mut self, Reduction { first, second }: Reduction, x: Place, y: Place) {
        match second {
            None => self.launch(first, [x, y]),
            Some((parts, second)) => {
                let parts = self.scratch_of(DType::F32, parts);
                self.launch(first, [x, parts]);
                self.launch(second, [parts, y]);
            }
        }
    }

    /// The launches of an operation that has so many outputs.
    fn of(Work { name, launches, limits, .. }: Work, outputs: usize) -> Lowered {
        let mut lowered = Lowered { index_limits: limits, ..Lowered::named(name) };
        let scratch: Vec<Place> = launches.scratch.iter().map(|&words| lowered.scratch_of(DType::I32, words)).collect();
        for launch in launches.launches {
            let place = |operand: &Operand| match *operand {
                Operand::Input(input) => Place::Input(input),
                Operand::Output(output) if output == outputs => Place::Report,
                Operand::Output(output) => Place::Output(output),
                Operand::Scratch(number) => scratch[number],
                Operand::Arrivals => Place::Arrivals,
            };
            let operands: Vec<Place> = launch.operands.iter().map(place).collect();
            lowered.launch(launch.kernel, operands);
        }
        lowered
    }

    /// One launch that takes all inputs, then gives the one output.
    fn one(name: &str, inputs: usize, kernel: Kernel) -> Lowered {
        let mut lowered = Lowered::named(name);
        lowered.launch(kernel, (0..inputs).map(Place::Input).chain([Place::Output(0)]).collect::<Vec<_>>());
        lowered
    }
}

impl Place {
    /// Bytes that lie there, of a node.
    pub(crate) fn bytes(&self, graph: &Graph, id: NodeId) -> usize {
        match *self {
            Place::Input(input) => graph.ty(graph.node(id).inputs[input]).bytes(),
            Place::Output(output) => graph.ty(Value { node: id, output: output as u32 }).bytes(),
            Place::Scratch { bytes, .. } | Place::Message { bytes } => bytes,
            Place::Arrivals | Place::Report | Place::Lost | Place::Halt => 0,
        }
    }
}

/// Bytes that the launches among steps of a node read and write.
pub(crate) fn launched_bytes(graph: &Graph, id: NodeId, steps: &[Step]) -> u64 {
    let operands = steps.iter().filter_map(|step| match step {
        Step::Launch { operands, .. } => Some(operands),
        _ => None,
    });
    operands.flatten().map(|place| place.bytes(graph, id) as u64).sum()
}

/// The kernels that a plan for GPUs launches, each once, those of fusions that are launched together among them; without those of libraries.
pub fn kernels_of(plan: &Plan) -> Vec<Kernel> {
    let together = units(plan).into_iter().filter_map(|unit| unit.together);
    let together: Vec<Kernel> = together.flat_map(|together| together.kernels().to_vec()).collect();
    let together = together.into_iter().map(|kernel| (kernel.name.clone(), kernel));
    let lowered = plan.graph.ids().filter_map(|id| plan.kernels.of(id));
    let lowered = lowered.filter_map(|kernel| (&**kernel as &dyn Any).downcast_ref::<Lowered>());
    let steps =
        lowered.flat_map(|lowered| lowered.steps.iter().chain(lowered.fused.iter().flat_map(|fused| &fused.steps)));
    let kernels = steps.filter_map(|step| match step {
        Step::Launch { kernel, .. } => Some((kernel.name.clone(), kernel.clone())),
        _ => None,
    });
    kernels.chain(together).collect::<BTreeMap<_, _>>().into_values().collect()
}

/// Steps for a node.
///
/// # Errors
/// Why there are none.
pub(crate) fn lower(graph: &Graph, id: NodeId) -> Result<Lowered, Unsupported> {
    let (node, types) = (graph.node(id), graph.input_types(id));
    let largest = types.iter().copied().chain(&node.outputs).map(|ty| ty.shape.elements()).max();
    match largest {
        Some(elements) if elements >= MOST_ELEMENTS => return Err(Unsupported::Elements { elements }),
        _ => (),
    }
    match &node.op {
        Op::Input(_) | Op::Constant(_) | Op::Reshape(_) => Err(Unsupported::InMemory),
        Op::Unary(_) | Op::Binary(_) | Op::Select(_) | Op::Cast(_) | Op::OneHot(_) => Err(Unsupported::OutsideFusion),
        Op::Softmax(_) | Op::LogSoftmax(_) => Err(Unsupported::OutsideFusion),
        Op::MeanVar(moments) => Err(Unsupported::Axes { axes: moments.axes.clone(), rank: types[0].shape.rank() }),
        Op::Fusion(fusion) => region::lower(fusion, &types, &node.outputs),
        Op::Matmul(_)
        | Op::Conv2d(_)
        | Op::Conv2dDataGrad(_)
        | Op::Conv2dWeightGrad(_)
        | Op::ConvWithPrologue(_)
        | Op::ConvThenDepthwise(_) => product::lower(&node.op, &types),
        Op::Transpose(op) => Ok(moves::transpose(op, &types)),
        Op::Slice(op) => Ok(moves::slice(op, &types, &node.outputs[0])),
        Op::Broadcast(op) => Ok(moves::broadcast(op, &types)),
        Op::Pad(op) => Ok(moves::pad(op, &types, &node.outputs[0])),
        Op::Concat(op) => Ok(moves::concat(op, &types, &node.outputs[0])),
        Op::Upsample(op) => Ok(moves::upsample(op, &types, &node.outputs[0])),
        Op::MaxPool2d(pool) => {
            let kernel = kernels::pooling::max(types[0].dtype, &pool.geometry(&types[0].shape)?);
            Ok(Lowered::one("max pooling", 1, kernel))
        }
        Op::MaxPool2dGrad(grad) => {
            let kernels = kernels::pooling::max_grad(types[0].dtype, &grad.pool.geometry(&types[0].shape)?);
            let mut lowered = Lowered::named("gradient of max pooling");
            let places = lowered.scratch_of(kernels.place_type, types[1].shape.elements());
            lowered.launch(kernels.places, [Place::Input(0), Place::Input(1), places]);
            lowered.launch(kernels.gather, [places, Place::Input(2), Place::Output(0)]);
            Ok(lowered)
        }
        Op::AvgPool2d(pool) => {
            let geometry = pool.geometry(&types[0].shape)?;
            let kernel = kernels::pooling::average(types[0].dtype, &geometry, pool.count_include_pad);
            Ok(Lowered::one("average pooling", 1, kernel))
        }
        Op::AvgPool2dGrad(grad) => {
            let geometry = grad.geometry(&types[0].shape)?;
            let kernel = kernels::pooling::average_grad(types[0].dtype, &geometry, grad.pool.count_include_pad);
            Ok(Lowered::one("gradient of average pooling", 1, kernel))
        }
        Op::Reduce(reduce) => {
            check_type(types[0], "f32", |ty| ty == DType::F32)?;
            let reduction = kernels::reduction::reduce(reduce.kind, &types[0].shape, &reduce.axes);
            let is_one = reduction.second.is_none();
            let mut lowered = Lowered::named(if is_one { "reduction" } else { "reduction in two steps" });
            lowered.reduce(reduction, Place::Input(0), Place::Output(0));
            Ok(lowered)
        }
        Op::ArgMax(_) => {
            check_type(types[0], "floats", DType::is_float)?;
            let (rows, cols) = (types[0].shape.rows(), types[0].shape.cols());
            Ok(Lowered::one("arg-max", 1, kernels::reduction::arg_max(types[0].dtype, rows, cols)))
        }
        Op::Gather(gather) => {
            let geometry = gather.geometry(&types[0].shape, &types[1].shape)?;
            let mut lowered = Lowered { index_limits: vec![geometry.rows], ..Lowered::named("gather") };
            let operands = [Place::Input(0), Place::Input(1), Place::Output(0), Place::Report];
            lowered.launch(kernels::index::gather(types[0].dtype, &geometry), operands);
            Ok(lowered)
        }
        Op::ScatterAdd(scatter) => {
            check_type(types[0], "floats", DType::is_float)?;
            let geometry = scatter.geometry(&types[0].shape, &types[1].shape)?;
            Ok(Lowered::of(kernels::index::scatter_add(types[0].dtype, &geometry), 1))
        }
        Op::Limited(_) => Err(Unsupported::WholeBatch),
        Op::Random(random) => match random.distribution {
            Distribution::Uniform => Err(Unsupported::OutsideFusion),
            Distribution::Normal => {
                let kernel = kernels::random::normal(random.shape.elements(), random.seed, random.stream);
                Ok(Lowered::one("normal numbers", 1, kernel))
            }
        },
        Op::Attention(attention) => attention::forward(attention, &types),
        Op::AttentionGrad(grad) => attention::gradient(grad, &types),
        Op::TopK(_)
        | Op::Anchors(_)
        | Op::MatchBoxes(_)
        | Op::EncodeBoxes(_)
        | Op::DecodeBoxes(_)
        | Op::Suppress(_)
        | Op::SampleLabels(_)
        | Op::SampleRows(_)
        | Op::PackRows(_)
        | Op::RoiAlign(_)
        | Op::RoiAlignGrad(_)
        | Op::MaskTargets(_) => {
            let work = kernels::detection::work(&node.op, &types)?.ok_or(Unsupported::NoKernel)?;
            Ok(Lowered::of(work, node.outputs.len()))
        }
        Op::AllReduce(op) => {
            let message = collective::message(types.iter().copied(), op.wire);
            let mut lowered = Lowered::named("sum over ranks");
            lowered.start_sum(&message);
            lowered.finish_sum(&message);
            Ok(lowered)
        }
        Op::AllReduceStart(start) => {
            let mut lowered = Lowered::named("start of a sum over ranks");
            lowered.start_sum(&collective::message(types.iter().copied(), start.op.wire));
            Ok(lowered)
        }
        Op::AllReduceWait(_) => {
            let mut lowered = Lowered::named("wait for a sum over ranks");
            let wire = collective::wire_of(graph, node.inputs[0].node)?;
            lowered.finish_sum(&collective::message(node.outputs.iter(), wire));
            Ok(lowered)
        }
    }
}

fn check_type(ty: &TensorType, expected: &'static str, fits: impl Fn(DType) -> bool) -> Result<(), Unsupported> {
    if fits(ty.dtype) { Ok(()) } else { Err(Unsupported::Operands { expected, actual: ty.dtype }) }
}
