//! What operations find wrong with their inputs and attributes.

use crate::shape::{Shape, TensorType};

/// Why an operation refuses its inputs. [`GraphError::Op`](crate::graph::GraphError::Op) adds which operation it is, where it
/// stands in the model, and the types it was given.
#[expect(missing_docs, reason = "the message of each variant says what its fields hold")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// Another number of operands, or operands of other element types.
    #[error("takes {0}")]
    Operands(String),
    /// An operand with other axes.
    #[error("the {operand} must be {axes}, not {shape}")]
    Axes { operand: &'static str, axes: &'static str, shape: Shape },
    /// An operand of another type than the others call for.
    #[error("the {operand} must be {expected}, not {actual}")]
    Type { operand: &'static str, expected: TensorType, actual: TensorType },
    /// Operands that have no common shape.
    #[error("{0} and {1} do not broadcast to one shape")]
    Broadcast(Shape, Shape),
    /// A shape that cannot be expanded to the one asked for.
    #[error("{from} does not broadcast to {to}")]
    BroadcastTo { from: Shape, to: Shape },
    /// An axis that the operand does not have.
    #[error("there is no axis {axis}: the input has {rank} axes")]
    NoSuchAxis { axis: usize, rank: usize },
    /// An axis of size 0 where there must be elements.
    #[error("axis {axis} of {shape} has no elements")]
    EmptyAxis { axis: usize, shape: Shape },
    /// Sizes of the operands, and of what the attributes ask for, that do not go together.
    #[error("{0}")]
    Sizes(String),
    /// An attribute outside its range.
    #[error("{0}")]
    Attribute(String),
    /// An instruction of a fused program that breaks the rules of programs.
    #[error("instruction {instr} {problem}")]
    Program { instr: usize, problem: String },
}

impl OpError {
    /// [`OpError::Operands`].
    pub(crate) fn operands(expected: impl Into<String>) -> OpError {
        OpError::Operands(expected.into())
    }
}
