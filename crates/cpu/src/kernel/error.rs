//! Why the CPU has no kernel for a node, and what kernels find wrong with their data.

use crate::index::IndexOutOfRange;
use bessemer_ir::plan::KernelNode;
use bessemer_ir::run::RunError;
use bessemer_ir::{DType, Graph, NodeId, OpError, TensorType};

/// Why there is no kernel for an operation on operands of some types.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    #[error("its result lies in memory already, no kernel computes it")]
    InMemory,
    #[error("only fused kernels compute it")]
    OutsideFusion,
    #[error("the operands must be {expected}, one is {actual}")]
    Operands { expected: DType, actual: DType },
    #[error("there is no reduction over the axes {axes:?} of {rank}")]
    Axes { axes: Vec<usize>, rank: usize },
    #[error("heads have {depth} elements, more than {most}")]
    HeadDepth { depth: usize, most: usize },
    #[error("{0} does not run fused kernels")]
    Producer(&'static str),
    #[error(transparent)]
    Shapes(#[from] OpError),
}

/// What is wrong with a kernel call, and which one it is.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    #[error("{} ({reason}; inputs: {})", .node, list(.inputs))]
    Unsupported { node: KernelNode, inputs: Vec<TensorType>, reason: Unsupported },
    #[error("{node}: {problem}")]
    Index { node: KernelNode, problem: IndexOutOfRange },
}

/// Why a kernel call failed.
#[derive(Debug)]
pub(crate) enum CallError {
    /// What it found in its data.
    Index(IndexOutOfRange),
    /// The other ranks were not reached.
    Ranks(RunError),
}

impl From<IndexOutOfRange> for CallError {
    fn from(problem: IndexOutOfRange) -> CallError {
        CallError::Index(problem)
    }
}

impl KernelError {
    pub(crate) fn unsupported(graph: &Graph, node: NodeId, reason: Unsupported) -> KernelError {
        let inputs = graph.input_types(node).into_iter().cloned().collect();
        KernelError::Unsupported { node: KernelNode::of(graph, node), inputs, reason }
    }
}

fn list(types: &[TensorType]) -> String {
    types.iter().map(TensorType::to_string).collect::<Vec<_>>().join(", ")
}
