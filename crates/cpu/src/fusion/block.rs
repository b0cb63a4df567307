//! Block programs: the instructions that depend on the position, run block by block on an accumulator of some vectors
//! that stays in registers.

use crate::simd::Simd;
use bessemer_ir::DType;
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};

/// Elements of the longest block of any instruction set.
pub(super) const LONGEST_BLOCK: usize = 256;

/// Lanes of sums are multiples of this. A block is a part or a multiple of it.
pub(super) const LANE_GROUP: usize = 64;

/// Vectors of the longest accumulator.
pub(super) const MOST_VECTORS: usize = 16;

/// Elements of a block.
pub(super) const fn block_len<S: Simd>() -> usize {
    S::BLOCK_VECTORS * S::LANES
}

/// What an instruction does with the accumulator and its operand. Comparisons write a mask, one truth value for each element
/// of the block, into a slot, and leave the accumulator as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// Replaces the accumulator.
    Load,
    Add,
    Sub,
    /// The operand minus the accumulator.
    SubFrom,
    Mul,
    Div,
    /// The operand divided by the accumulator.
    DivInto,
    /// The greater of accumulator and operand.
    Max,
    /// The greater of operand and accumulator: of equal ones the operand.
    MaxOf,
    Min,
    MinOf,
    /// The accumulator if the number `extra` is not zero, else the operand.
    KeepIf,
    /// The operand if the number `extra` is not zero, else the accumulator.
    TakeIf,
    /// The accumulator where the mask in `extra` is true, else the operand.
    KeepWhere,
    /// The operand where the mask in `extra` is true, else the accumulator.
    TakeWhere,
    /// Compares the accumulator with the operand; the mask goes to `extra`.
    TestEq,
    TestLt,
    TestLe,
    TestGt,
    TestGe,
    /// Puts the operand into temporary memory; the accumulator stays.
    Second,
    /// Where the accumulator is not zero; the mask goes to `extra`.
    TestTrue,
    /// The mask in `extra` as numbers.
    Truth,
    Neg,
    Abs,
    Square,
    Sqrt,
    Recip,
    Rsqrt,
    Relu,
    Sigmoid,
    Erf,
    /// To the nearest `bf16`.
    Round,
    /// The accumulator to the power of what [`Second`](Op::Second) put into temporary memory.
    Pow,
    /// That to the power of the accumulator.
    PowOf,
    /// Function number `extra` of the program of the accumulator and of what [`Second`](Op::Second) put into temporary memory,
    /// both integers.
    Integer,
    /// The same of that and of the accumulator.
    IntegerOf,
    /// Function number `extra` of the program.
    Function,
    /// Stores the accumulator as `f32`.
    Put,
    /// Stores it as `bf16`.
    PutRounded,
    /// Stores it as `bf16`, which all its numbers are.
    PutExact,
    /// Stores it in the output of sink number `extra`, element by element where it must be.
    PutConverted,
    /// Adds the accumulator to sums.
    Sum,
    /// Adds it to moments: the numbers from which deviations are taken, sums, sums of squares.
    MeanVar,
    /// Combine it with the lanes of a reduction of the row.
    FoldSum,
    FoldMax,
    FoldMin,
    /// Asks for the same block of the next tile.
    Prefetch,
    PrefetchWrite,
}

/// A function that works on memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Unary(UnaryKind),
    Cast(DType),
    /// A float to the integer nearest to it towards zero.
    ToInteger,
    /// An integer to the nearest float.
    FromInteger,
    /// Of two integers.
    Integer(BinaryKind),
}

/// How an operand lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    F32,
    Bf16,
    /// One `f32` for all elements.
    Scalar,
}

impl Form {
    /// That of elements that vectors widen.
    pub(super) fn of(dtype: DType) -> Form {
        if dtype == DType::Bf16 { Form::Bf16 } else { Form::F32 }
    }
}

/// What the address of an operand moves with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advance {
    /// Nothing: each block has it at the same place.
    Fixed,
    /// The position in the tile.
    Tile,
    /// The position in a tensor of the shape of the domain, of elements of four bytes.
    Memory,
    /// The same of elements of two bytes.
    MemoryBf16,
}

impl Advance {
    /// That of a tensor with elements of this form.
    pub(super) fn of(form: Form) -> Advance {
        if form == Form::Bf16 { Advance::MemoryBf16 } else { Advance::Memory }
    }
}

/// An instruction. `base` and, for masks and numbers, `extra` are places in the table of addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instr {
    /// Number of the operation on an operand of its form, so that one jump leads to the code for it.
    pub code: u8,
    pub op: Op,
    pub advance: Advance,
    pub base: u16,
    pub extra: u16,
}

impl Op {
    /// The number of the operation on an operand of this form, of which only those that read one have several.
    pub(super) const fn code(self, form: Form) -> u8 {
        let form = if self.reads_operand() { form } else { Form::F32 };
        3 * self as u8 + form as u8
    }

    const fn reads_operand(self) -> bool {
        (self as u8) < Op::TestTrue as u8
    }
}
