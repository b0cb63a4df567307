//! The operations. One file per family; each operation is an attribute struct that implements [`OpRule`], and one line
//! of the [`Op`] enum.

pub mod attention;
pub mod collective;
pub mod conv;
pub mod conv_then_depthwise;
pub mod conv_with_prologue;
pub mod detection;
mod error;
mod facts;
pub mod fusion;
pub mod index;
pub mod layout;
pub mod limited;
pub mod matmul;
pub mod pointwise;
pub mod pool;
pub mod reduce;
pub mod softmax;
pub mod source;

pub use error::OpError;
pub use facts::{FusedOp, LowOperands, LowResult, MixedPrecision, Producer, RecomputeCost, RowSum, Storage};

use crate::dtype::DType;
use crate::graph::{Graph, GraphError, NodeId, Value};
use crate::reference::Tensor;
use crate::rules::Rules;
use crate::shape::TensorType;
use std::fmt;
use std::hash::{Hash, Hasher};

/// A real attribute. Equal and hashed by its bits, so that operations can be compared.
#[derive(Clone, Copy, Debug)]
pub struct Scalar(pub f64);

impl PartialEq for Scalar {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Scalar {}

impl Hash for Scalar {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

/// Work of one operation: arithmetic (a multiply-add counts as two) and bytes read and written by an ideal kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Arithmetic operations.
    pub flops: u64,
    /// Bytes read and written.
    pub bytes: u64,
}

impl Cost {
    /// `flops` arithmetic operations; every input read once, every output written once.
    pub fn streaming(flops: u64, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        let read: usize = inputs.iter().map(|t| t.bytes()).sum();
        let written: usize = outputs.iter().map(|t| t.bytes()).sum();
        Cost { flops, bytes: (read + written) as u64 }
    }
}

impl std::ops::Add for Cost {
    type Output = Cost;
    fn add(self, other: Cost) -> Cost {
        Cost { flops: self.flops + other.flops, bytes: self.bytes + other.bytes }
    }
}

impl std::iter::Sum for Cost {
    fn sum<I: Iterator<Item = Cost>>(iter: I) -> Cost {
        iter.fold(Cost::default(), std::ops::Add::add)
    }
}

/// Exactly `N` float tensors of one element type, or the statement that `names` of this kind are wanted.
pub(crate) fn float_inputs<'a, const N: usize>(
    inputs: &[&'a TensorType],
    names: &str,
) -> Result<[&'a TensorType; N], OpError> {
    let given = <[&TensorType; N]>::try_from(inputs).ok();
    given
        .filter(|types| types.iter().all(|t| t.dtype.is_float() && t.dtype == types[0].dtype))
        .ok_or_else(|| OpError::operands(format!("{names}, of one float element type")))
}

/// The product `op(a, b, ...)` of factors brought to the element type of `like`, in that type; behind them come `more` operands.
pub(crate) fn product_like(
    g: &mut Graph,
    op: impl Into<Op>,
    [a, b]: [Value; 2],
    more: &[Value],
    like: Value,
) -> Result<Value, GraphError> {
    let dtype = g.dtype(like);
    let factors = [g.cast(a, dtype)?, g.cast(b, dtype)?];
    let product = g.push1(op, &[&factors, more].concat())?;
    g.cast(product, dtype)
}

/// Arguments of a gradient rule: the node, its inputs and outputs, and the gradient of each output that reaches the loss.
pub struct GradArgs<'a> {
    /// The node of which the gradient is asked.
    pub node: NodeId,
    /// Operands of the node.
    pub inputs: &'a [Value],
    /// Results of the node.
    pub outputs: &'a [Value],
    /// One entry an output; `None` where the loss does not depend on it.
    pub grads: &'a [Option<Value>],
    /// One entry an input: whether its gradient is wanted at all.
    pub wanted: &'a [bool],
}

/// Gradients with respect to each input, or the statement that there is none.
pub enum Gradient {
    /// One entry an input; `None` where the output does not depend on the input in a differentiable way, or where the
    /// gradient was not wanted.
    Inputs(Vec<Option<Value>>),
    /// The operation has no gradient (integer results, ordering): asking for one is an error.
    NotDifferentiable,
}

/// Everything the compiler knows about one operation.
pub trait OpRule {
    /// Name in printed graphs, in `snake_case`.
    fn name(&self) -> &'static str;

    /// Attributes in printed graphs, e.g. `stride=[2, 2]`; empty if there are none.
    fn attributes(&self) -> String {
        String::new()
    }

    /// Types of the outputs.
    ///
    /// # Errors
    /// What is wrong with the inputs; the graph adds the operation, its path and the types given.
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError>;

    /// Adds the nodes that compute the gradient with respect to the inputs.
    fn gradient(&self, graph: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError>;

    /// FLOPs and bytes of one execution for operands and results of these types.
    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost;

    /// The reference kernel, in `f64`.
    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor>;

    /// Where the results are stored.
    fn storage(&self) -> Storage {
        Storage::Computed
    }

    /// Whether it gives values that are made of no tensor: inputs, constants, random numbers.
    fn is_source(&self) -> bool {
        false
    }

    /// Whether each output element depends on the input elements at the same (broadcast) position alone.
    fn is_pointwise(&self) -> bool {
        false
    }

    /// How fused kernels compute it, if they can, for inputs of these types.
    fn fused(&self, _inputs: &[&TensorType]) -> Option<FusedOp> {
        None
    }

    /// The reduction over rows that it is, if fused kernels can do it for inputs of these types.
    fn row_sum(&self, _inputs: &[&TensorType]) -> Option<RowSum> {
        None
    }

    /// Whether a fused kernel can run on its output block by block, for inputs of these types.
    fn producer(&self, _inputs: &[&TensorType]) -> Producer {
        Producer::No
    }

    /// Whether its kernels can scale, shift and rectify the first operand by columns while they read it.
    fn takes_prologue(&self) -> bool {
        false
    }

    /// Whether to scale a column of the second operand is to scale that column of the output, for inputs of these types.
    fn scales_with_weight_columns(&self, _inputs: &[&TensorType]) -> bool {
        false
    }

    /// Arithmetic of the convolutions and matrix products in it alone, a multiply-add counted as two.
    fn contraction_flops(&self, _inputs: &[&TensorType]) -> u64 {
        0
    }

    /// Cost of computing its value a second time.
    fn recompute_cost(&self) -> RecomputeCost {
        RecomputeCost::Kernel
    }

    /// Whether it may be computed a second time in the backward pass, instead of being kept, where whole blocks of the model
    /// are.
    fn is_recomputed_in_blocks(&self) -> bool {
        self.is_pointwise()
    }

    /// What mixed precision does with operands and results.
    fn mixed_precision(&self, _rules: &Rules) -> MixedPrecision {
        MixedPrecision::NONE
    }

    /// The operation that takes its place where its operands have 16 bits of type `to`; `None` if it is the same.
    fn in_16_bits(&self, _rules: &Rules, _to: DType) -> Option<Op> {
        None
    }

    /// Whether its kernel reads input number `input` nowhere but at the element that it then writes to output number
    /// `output`, so that both may share memory if their elements have one size.
    fn may_overwrite(&self, _output: usize, _input: usize) -> bool {
        false
    }

    /// Whether its output consists of its inputs, contiguous and in order, so that it needs no kernel where they are written there.
    fn joins_inputs(&self, _inputs: &[&TensorType]) -> bool {
        false
    }

    /// Whether it is computed at compile time if all its inputs are small constants.
    fn folds_constants(&self) -> bool {
        self.is_pointwise()
    }

    /// A value equal to its result on these inputs that is cheaper, or opens the way to other rewrites, if there is one.
    ///
    /// # Errors
    /// Only if the graph was malformed.
    fn simplify(&self, _graph: &mut Graph, _inputs: &[Value]) -> Result<Option<Value>, GraphError> {
        Ok(None)
    }

    /// Name of the kernel that runs it, as in profiles.
    fn kernel_name(&self) -> &'static str {
        self.name()
    }

    /// Name of the kernel that runs it together with a fused program.
    fn fused_kernel_name(&self) -> &'static str {
        self.name()
    }
}

macro_rules! operations {
    ($($variant:ident($attributes:path)),+ $(,)?) => {
        /// An operation with its attributes. Closed, so that a backend that misses one does not compile.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Op {
            $(
                #[doc = concat!("[`", stringify!($attributes), "`]")]
                $variant($attributes)
            ),+
        }

        impl Op {
            /// Names of all operations, as variants of the enum.
            pub const VARIANTS: &'static [&'static str] = &[$(stringify!($variant)),+];

            /// Name of the operation, as a variant of the enum.
            pub fn variant(&self) -> &'static str {
                match self {
                    $(Op::$variant(_) => stringify!($variant)),+
                }
            }

            /// The rules of this operation.
            pub fn rule(&self) -> &dyn OpRule {
                match self {
                    $(Op::$variant(attributes) => attributes),+
                }
            }
        }

        $(impl From<$attributes> for Op {
            fn from(attributes: $attributes) -> Op {
                Op::$variant(attributes)
            }
        })+
    };
}

operations! {
    Input(source::Input),
    Constant(source::Constant),
    Random(source::Random),
    Unary(pointwise::Unary),
    Binary(pointwise::Binary),
    Select(pointwise::Select),
    Cast(pointwise::Cast),
    Reshape(layout::Reshape),
    Broadcast(layout::Broadcast),
    Transpose(layout::Transpose),
    Slice(layout::Slice),
    Pad(layout::Pad),
    Concat(layout::Concat),
    Gather(index::Gather),
    ScatterAdd(index::ScatterAdd),
    OneHot(index::OneHot),
    ArgMax(index::ArgMax),
    TopK(index::TopK),
    Matmul(matmul::Matmul),
    Conv2d(conv::Conv2d),
    Conv2dDataGrad(conv::Conv2dDataGrad),
    Conv2dWeightGrad(conv::Conv2dWeightGrad),
    Attention(attention::Attention),
    AttentionGrad(attention::AttentionGrad),
    MaxPool2d(pool::MaxPool2d),
    MaxPool2dGrad(pool::MaxPool2dGrad),
    AvgPool2d(pool::AvgPool2d),
    AvgPool2dGrad(pool::AvgPool2dGrad),
    Upsample(pool::Upsample),
    Anchors(detection::anchors::Anchors),
    MatchBoxes(detection::matching::MatchBoxes),
    EncodeBoxes(detection::boxes::EncodeBoxes),
    DecodeBoxes(detection::boxes::DecodeBoxes),
    Suppress(detection::suppress::Suppress),
    SampleLabels(detection::sample::SampleLabels),
    SampleRows(detection::sample::SampleRows),
    PackRows(detection::sample::PackRows),
    RoiAlign(detection::roi::RoiAlign),
    RoiAlignGrad(detection::roi::RoiAlignGrad),
    MaskTargets(detection::masks::MaskTargets),
    Reduce(reduce::Reduce),
    MeanVar(reduce::MeanVar),
    Softmax(softmax::Softmax),
    LogSoftmax(softmax::LogSoftmax),
    ConvWithPrologue(conv_with_prologue::ConvWithPrologue),
    ConvThenDepthwise(conv_then_depthwise::ConvThenDepthwise),
    Limited(limited::Limited),
    AllReduce(collective::AllReduce),
    AllReduceStart(collective::AllReduceStart),
    AllReduceWait(collective::AllReduceWait),
    Fusion(fusion::Fusion),
}

impl Op {
    /// Whether each output element depends on the input elements at the same (broadcast) position alone.
    pub fn is_pointwise(&self) -> bool {
        self.rule().is_pointwise()
    }

    /// The input of the step that it is.
    pub fn as_input(&self) -> Option<&source::Input> {
        match self {
            Op::Input(input) => Some(input),
            _ => None,
        }
    }

    /// The constant that it is.
    pub fn as_constant(&self) -> Option<&source::Constant> {
        match self {
            Op::Constant(constant) => Some(constant),
            _ => None,
        }
    }

    /// The fused program that it is.
    pub fn as_fusion(&self) -> Option<&fusion::Fusion> {
        match self {
            Op::Fusion(fusion) => Some(fusion),
            _ => None,
        }
    }

    /// The type that it converts to.
    pub fn cast_target(&self) -> Option<DType> {
        match self {
            Op::Cast(cast) => Some(cast.to),
            _ => None,
        }
    }

    /// The product that it is, or that behind a prologue or a limit.
    pub fn product(&self) -> Option<Product<'_>> {
        match self {
            Op::Conv2d(conv) => Some(Product::Conv2d(conv)),
            Op::Conv2dDataGrad(grad) => Some(Product::Conv2dDataGrad(grad)),
            Op::Conv2dWeightGrad(grad) => Some(Product::Conv2dWeightGrad(grad)),
            Op::Matmul(matmul) => Some(Product::Matmul(matmul)),
            Op::ConvWithPrologue(prologue) => prologue.op.product(),
            Op::Limited(limited) => limited.op.product(),
            _ => None,
        }
    }
}

/// An operation that multiplies and adds along an axis of its two operands. Backends match it exhaustively, as they do [`Op`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product<'a> {
    /// A convolution.
    Conv2d(&'a conv::Conv2d),
    /// The gradient of a convolution with respect to its input.
    Conv2dDataGrad(&'a conv::Conv2dDataGrad),
    /// The gradient of a convolution with respect to its weights.
    Conv2dWeightGrad(&'a conv::Conv2dWeightGrad),
    /// A matrix product.
    Matmul(&'a matmul::Matmul),
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = self.rule();
        let attributes = rule.attributes();
        if attributes.is_empty() { f.write_str(rule.name()) } else { write!(f, "{}({attributes})", rule.name()) }
    }
}
