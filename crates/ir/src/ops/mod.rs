//! The operations. One file per family; each operation is an attribute struct that implements [`OpRule`], and one line
//! of the [`Op`] enum.

pub mod attention;
pub mod conv;
mod error;
pub mod index;
pub mod layout;
pub mod matmul;
pub mod pointwise;
pub mod pool;
pub mod prologue;
pub mod reduce;
pub mod region;
pub mod softmax;
pub mod source;

pub use error::OpError;

use crate::graph::{Graph, GraphError, NodeId, Value};
use crate::reference::Tensor;
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
    pub flops: u64,
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

/// The product `op(a, b)` of operands brought to the element type of `like`, in that type.
pub(crate) fn product_like(
    g: &mut Graph,
    op: impl Into<Op>,
    a: Value,
    b: Value,
    like: Value,
) -> Result<Value, GraphError> {
    let dtype = g.dtype(like);
    let (a, b) = (g.cast(a, dtype)?, g.cast(b, dtype)?);
    let product = g.add1(op, &[a, b])?;
    g.cast(product, dtype)
}

/// What a gradient rule is given: the node, its inputs and outputs, and the gradient of each output that reaches the loss.
pub struct GradArgs<'a> {
    pub node: NodeId,
    pub inputs: &'a [Value],
    pub outputs: &'a [Value],
    /// One entry an output; `None` where the loss does not depend on it.
    pub grads: &'a [Option<Value>],
    /// One entry an input: whether its gradient is wanted at all.
    pub wanted: &'a [bool],
}

/// Gradients with respect to each input, or the statement that there is none to be had.
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

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost;

    /// The reference kernel, in `f64`.
    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor>;
}

macro_rules! operations {
    ($($variant:ident($attributes:path)),+ $(,)?) => {
        /// An operation with its attributes. Closed, so that a backend that misses one does not compile.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Op {
            $($variant($attributes)),+
        }

        impl Op {
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
    Reduce(reduce::Reduce),
    Moments(reduce::Moments),
    Softmax(softmax::Softmax),
    LogSoftmax(softmax::LogSoftmax),
    Prologue(prologue::Prologue),
    Region(region::Region),
}

impl Op {
    /// Whether each output element depends on the input elements at the same (broadcast) position alone.
    pub fn is_pointwise(&self) -> bool {
        matches!(self, Op::Unary(_) | Op::Binary(_) | Op::Select(_) | Op::Cast(_))
    }

    /// The operation itself, or that behind a prologue.
    pub fn behind_prologue(&self) -> &Op {
        match self {
            Op::Prologue(prologue) => &prologue.op,
            op => op,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = self.rule();
        let attributes = rule.attributes();
        if attributes.is_empty() { f.write_str(rule.name()) } else { write!(f, "{}({attributes})", rule.name()) }
    }
}
