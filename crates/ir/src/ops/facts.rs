//! What passes ask of operations, apart from shapes, gradients and costs: the answers are methods of
//! [`OpRule`](super::OpRule), stated in the file of each operation.

use super::pointwise::{BinaryKind, UnaryKind};
use super::reduce::ReduceKind;
use crate::dtype::DType;

/// Where the results of an operation are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// A kernel writes them.
    Computed,
    /// The executor holds them before the step begins: inputs and constants.
    Resident,
    /// They are the memory of the first input, read in another shape.
    View,
}

/// How fused kernels compute an operation at a position `(row, col)` of their domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FusedOp {
    /// Applies the function to the first input.
    Unary(UnaryKind),
    /// Combines the first two inputs.
    Binary(BinaryKind),
    /// `condition != 0 ? a : b` of the three inputs in this order.
    Select,
    /// Converts the first input to this element type.
    Cast(DType),
    /// All columns of the row reduced.
    RowReduce(ReduceKind),
    /// 1 in the column that the first input names for the row, else 0.
    OneHot,
    /// Uniform random numbers; the first input is the step counter.
    Random {
        /// Seed of the random generator.
        seed: u64,
        /// Distinguishes the random nodes of one step.
        stream: u32,
    },
}

/// A reduction over rows that fused kernels can do on the values that they compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSum {
    /// Sums over the rows of each of `groups` runs of consecutive rows.
    Sum {
        /// Number of runs, all of equal length.
        groups: usize,
    },
    /// Mean and variance over all rows: two outputs.
    MeanVar,
}

/// Whether a fused kernel can run on the blocks of an operation's output as they are finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Producer {
    /// Its kernels finish blocks of rows one by one.
    Yes,
    /// It multiplies several matrices one by one.
    Batched,
    /// It is of another kind.
    No,
}

/// Cost of recomputing one element from operands that are in cache, the cheapest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecomputeCost {
    /// An instruction or none.
    Arithmetic,
    /// A division, or a power.
    Division,
    /// A polynomial or a division, for each element.
    Function,
    /// A pass over a row, or rounds of a random generator.
    Pass,
    /// A call of a separate kernel.
    Kernel,
}

/// What mixed precision does with operands and results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MixedPrecision {
    /// Treatment of the operands.
    pub operands: LowOperands,
    /// Treatment of the results.
    pub result: LowResult,
}

/// Operands in mixed precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LowOperands {
    /// Some inputs are read with 16 bits.
    Read {
        /// Bit `i` says whether input `i` is one of them.
        inputs: u32,
    },
    /// They are read as they are found.
    AsTheyAre,
    /// They, and what they are made of by pointwise operations, stay `f32`.
    StayF32,
}

impl LowOperands {
    /// Whether input number `input` is read with 16 bits.
    pub fn reads(self, input: usize) -> bool {
        match self {
            LowOperands::Read { inputs } => input < u32::BITS as usize && inputs >> input & 1 == 1,
            LowOperands::AsTheyAre | LowOperands::StayF32 => false,
        }
    }
}

/// Results in mixed precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LowResult {
    /// Of the type that the operation gives it, not rounded.
    Unchanged,
    /// Rounded to 16 bits by the operation that computes it.
    Rounded,
    /// Rounded if an operand depends on parameters, unless an output of the step depends on the result.
    RoundedWithWeights,
    /// The first result, and others that are not `f32`, are of the type of the operands, which are read with 16 bits.
    OfOperands,
    /// Elements of the first input: rounded if that is.
    Moved,
    /// Elements of the first input, which is rounded for it unless results of the step are made of it.
    MovedAndRounded,
}

impl LowResult {
    /// Whether the elements of the result are those of the first input.
    pub fn is_moved(self) -> bool {
        matches!(self, LowResult::Moved | LowResult::MovedAndRounded)
    }
}

impl MixedPrecision {
    /// Operands and results stay as they are.
    pub const NONE: MixedPrecision = MixedPrecision { operands: LowOperands::AsTheyAre, result: LowResult::Unchanged };

    /// The first `count` inputs are read with 16 bits.
    pub const fn reading(count: usize, result: LowResult) -> MixedPrecision {
        MixedPrecision { operands: LowOperands::Read { inputs: (1 << count) - 1 }, result }
    }

    /// The inputs of these numbers are read with 16 bits.
    pub fn reading_these(inputs: &[usize], result: LowResult) -> MixedPrecision {
        let inputs = inputs.iter().fold(0, |all, input| all | 1 << input);
        MixedPrecision { operands: LowOperands::Read { inputs }, result }
    }

    /// Elements of the first input in its type.
    pub const MOVES: MixedPrecision = MixedPrecision { operands: LowOperands::AsTheyAre, result: LowResult::Moved };
}
