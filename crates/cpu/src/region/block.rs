//! Block programs: the instructions that depend on the position, run block by block on an accumulator of some vectors
//! that stays in registers.

use super::program::{Program, Sink};
use super::reduce::{self, Lanes};
use super::sweep::Tile;
use crate::rowwise;
use crate::simd::{Simd, SimdOp, Test};
use crate::vector;
use bessemer_ir::DType;
use bessemer_ir::ops::pointwise::UnaryKind;
use bessemer_ir::ops::reduce::ReduceKind;

/// Vectors of the accumulator.
const VECTORS: usize = 8;

/// Elements of the longest block of any instruction set.
pub(super) const LONGEST_BLOCK: usize = 128;

/// Lanes of sums are multiples of this. A block is a part or a multiple of it.
pub(super) const LANE_GROUP: usize = 64;

const GROUPS: usize = LONGEST_BLOCK / LANE_GROUP;

/// Elements of a block.
pub(super) const fn block_len<S: Simd>() -> usize {
    VECTORS * S::LANES
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
    Pow,
    /// The operand to the power of the accumulator.
    PowOf,
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
    /// To the nearest `bf16`.
    Round,
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
    Moments,
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
}

/// How an operand lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    F32,
    Bf16,
    /// One `f32` for all elements.
    Number,
}

impl Form {
    /// That of elements that vectors widen.
    pub fn of(dtype: DType) -> Form {
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
    /// The position in a tensor of the shape of the domain.
    Memory,
}

/// An instruction. `base` and, for masks and numbers, `extra` are places in the table of addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instr {
    pub op: Op,
    pub form: Form,
    pub advance: Advance,
    pub base: u16,
    pub extra: u16,
}

/// A run of blocks that are neighbours both in the tile and in memory.
#[derive(Clone, Copy)]
pub(super) struct Blocks<'a> {
    pub program: &'a Program,
    pub instrs: &'a [Instr],
    /// The table of addresses.
    pub bases: *const *mut u8,
    pub tile: &'a Tile,
    /// Columns of the domain.
    pub stride: usize,
    /// Position of the first element in the tile.
    pub start: usize,
    /// Its position in memory.
    pub memory: usize,
    /// Elements. The last block may have less than the others.
    pub len: usize,
    pub lanes: Lanes,
    /// Distance of the next tile in memory.
    pub ahead: usize,
}

impl SimdOp for Blocks<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let block = block_len::<S>();
        // SAFETY: operands have the elements of the block at their addresses, as the maker of the table says.
        unsafe {
            let mut acc = [S::splat(0.0); VECTORS];
            let mut lane = self.start % self.lanes.count;
            for done in (0..self.len).step_by(block) {
                let (start, memory) = (self.start + done, self.memory + done);
                let whole = self.len - done >= block;
                let groups: [usize; GROUPS] = std::array::from_fn(|group| self.lanes.wrap(lane + group * LANE_GROUP));
                for instr in self.instrs {
                    let size = if instr.form == Form::Bf16 { 2 } else { 4 };
                    let offset = [0, start, memory][instr.advance as usize] * size;
                    let at = (*self.bases.add(instr.base as usize)).wrapping_add(offset);
                    let extra = || *self.bases.add(instr.extra as usize);
                    macro_rules! apart {
                        () => {{
                            let temporary = self.temporary();
                            for i in 0..VECTORS {
                                S::store(temporary.add(i * S::LANES), acc[i]);
                            }
                            let len = block.min(self.len - done);
                            S::run_op(Apart { blocks: &self, instr, at, start, memory, len });
                        }};
                    }
                    macro_rules! reload {
                        () => {
                            for i in 0..VECTORS {
                                acc[i] = S::load(self.temporary().add(i * S::LANES));
                            }
                        };
                    }
                    // The operand's vectors, each with the accumulator's.
                    macro_rules! operand {
                        (|$a:ident, $x:ident, $i:ident| $value:expr) => {
                            match instr.form {
                                Form::F32 => {
                                    for $i in 0..VECTORS {
                                        let ($a, $x) = (acc[$i], S::load(at.cast::<f32>().add($i * S::LANES)));
                                        acc[$i] = $value;
                                    }
                                }
                                Form::Bf16 => {
                                    for $i in 0..VECTORS {
                                        let ($a, $x) = (acc[$i], S::load_bf16(at.cast::<u16>().add($i * S::LANES)));
                                        acc[$i] = $value;
                                    }
                                }
                                Form::Number => {
                                    let number = S::splat(at.cast::<f32>().read());
                                    for $i in 0..VECTORS {
                                        let ($a, $x) = (acc[$i], number);
                                        acc[$i] = $value;
                                    }
                                }
                            }
                        };
                    }
                    macro_rules! each {
                        (|$a:ident| $value:expr) => {
                            for i in 0..VECTORS {
                                let $a = acc[i];
                                acc[i] = $value;
                            }
                        };
                    }
                    macro_rules! compare {
                        (|$a:ident, $x:ident| $mask:expr) => {{
                            let masks = extra().cast::<S::Mask>();
                            operand!(|$a, $x, i| {
                                masks.add(i).write_unaligned($mask);
                                $a
                            })
                        }};
                    }
                    macro_rules! fold {
                        (|$lane:ident, $x:ident| $value:expr) => {
                            if whole {
                                let first = if block < LANE_GROUP { start % LANE_GROUP } else { 0 };
                                for i in 0..VECTORS {
                                    let place = at.cast::<f32>().add((first + i * S::LANES) % LANE_GROUP);
                                    let ($lane, $x) = (S::load(place), acc[i]);
                                    S::store(place, $value);
                                }
                            } else {
                                apart!()
                            }
                        };
                    }
                    let one = S::splat(1.0);
                    let zero = S::splat(0.0);
                    match instr.op {
                        Op::Load => operand!(|_a, x, i| x),
                        Op::Add => operand!(|a, x, i| S::add(a, x)),
                        Op::Sub => operand!(|a, x, i| S::sub(a, x)),
                        Op::SubFrom => operand!(|a, x, i| S::sub(x, a)),
                        Op::Mul => operand!(|a, x, i| S::mul(a, x)),
                        Op::Div => operand!(|a, x, i| S::div(a, x)),
                        Op::DivInto => operand!(|a, x, i| S::div(x, a)),
                        Op::Max => operand!(|a, x, i| S::max_number(a, x)),
                        Op::MaxOf => operand!(|a, x, i| S::max_number(x, a)),
                        Op::Min => operand!(|a, x, i| S::min_number(a, x)),
                        Op::MinOf => operand!(|a, x, i| S::min_number(x, a)),
                        Op::Pow | Op::PowOf => {
                            let second = self.temporary().add(LONGEST_BLOCK);
                            operand!(|a, x, i| {
                                S::store(second.add(i * S::LANES), x);
                                a
                            });
                            apart!();
                            reload!();
                        }
                        Op::KeepIf => {
                            let condition = S::test(Test::Ne, S::splat(extra().cast::<f32>().read()), zero);
                            operand!(|a, x, i| S::blend(condition, a, x))
                        }
                        Op::TakeIf => {
                            let condition = S::test(Test::Ne, S::splat(extra().cast::<f32>().read()), zero);
                            operand!(|a, x, i| S::blend(condition, x, a))
                        }
                        Op::KeepWhere => {
                            let masks = extra().cast::<S::Mask>();
                            operand!(|a, x, i| S::blend(masks.add(i).read_unaligned(), a, x))
                        }
                        Op::TakeWhere => {
                            let masks = extra().cast::<S::Mask>();
                            operand!(|a, x, i| S::blend(masks.add(i).read_unaligned(), x, a))
                        }
                        Op::TestEq => compare!(|a, x| S::test(Test::Eq, a, x)),
                        Op::TestLt => compare!(|a, x| S::test(Test::Lt, a, x)),
                        Op::TestLe => compare!(|a, x| S::test(Test::Le, a, x)),
                        Op::TestGt => compare!(|a, x| S::test(Test::Lt, x, a)),
                        Op::TestGe => compare!(|a, x| S::test(Test::Le, x, a)),
                        Op::TestTrue => {
                            for i in 0..VECTORS {
                                extra().cast::<S::Mask>().add(i).write_unaligned(S::test(Test::Ne, acc[i], zero));
                            }
                        }
                        Op::Truth => {
                            for i in 0..VECTORS {
                                acc[i] = S::blend(extra().cast::<S::Mask>().add(i).read_unaligned(), one, zero);
                            }
                        }
                        Op::Neg => each!(|a| S::neg(a)),
                        Op::Abs => each!(|a| S::abs(a)),
                        Op::Square => each!(|a| S::mul(a, a)),
                        Op::Sqrt => each!(|a| S::sqrt(a)),
                        Op::Recip => each!(|a| S::div(one, a)),
                        Op::Rsqrt => each!(|a| S::div(one, S::sqrt(a))),
                        Op::Relu => each!(|a| S::max(zero, a)),
                        Op::Round => each!(|a| S::round_bf16(a)),
                        Op::Function => {
                            apart!();
                            reload!();
                        }
                        Op::Put => {
                            for i in 0..VECTORS {
                                S::store(at.cast::<f32>().add(i * S::LANES), acc[i]);
                            }
                        }
                        Op::PutRounded => {
                            for i in (0..VECTORS).step_by(2) {
                                S::store_bf16(at.cast::<u16>().add(i * S::LANES), acc[i], acc[i + 1]);
                            }
                        }
                        Op::PutExact => {
                            for i in (0..VECTORS).step_by(2) {
                                S::store_truncated(at.cast::<u16>().add(i * S::LANES), acc[i], acc[i + 1]);
                            }
                        }
                        Op::PutConverted => apart!(),
                        Op::Sum => {
                            if whole && self.lanes.regular {
                                for i in 0..VECTORS {
                                    let place = at.cast::<f32>().add(lane_of::<S>(&groups, i));
                                    S::store(place, S::add(S::load(place), acc[i]));
                                }
                            } else {
                                apart!()
                            }
                        }
                        Op::Moments => {
                            if whole && self.lanes.regular && !self.lanes.first {
                                let [shift, sums, squares] = self.moments(instr);
                                for i in 0..VECTORS {
                                    let lane = lane_of::<S>(&groups, i);
                                    let deviation = S::sub(acc[i], S::load(shift.add(lane)));
                                    let (sum, square) = (sums.add(lane), squares.add(lane));
                                    S::store(sum, S::add(S::load(sum), deviation));
                                    S::store(square, S::add(S::load(square), S::mul(deviation, deviation)));
                                }
                            } else {
                                apart!()
                            }
                        }
                        Op::FoldSum => fold!(|lane, x| S::add(lane, x)),
                        Op::FoldMax => {
                            fold!(|lane, x| S::blend(S::test(Test::Ne, x, x), x, S::max(x, lane)))
                        }
                        Op::FoldMin => fold!(|lane, x| {
                            let least = S::blend(S::test(Test::Lt, x, lane), x, lane);
                            S::blend(S::test(Test::Ne, x, x), x, least)
                        }),
                        Op::Prefetch => {
                            for line in (0..block * size).step_by(LINE) {
                                S::prefetch(at.wrapping_add(self.ahead * size + line).cast());
                            }
                        }
                        Op::PrefetchWrite => {
                            for line in (0..block * size).step_by(LINE) {
                                S::prefetch_write(at.wrapping_add(self.ahead * size + line).cast());
                            }
                        }
                    }
                }
                lane = self.lanes.wrap(lane + block);
            }
        }
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// Lane of the first element of vector `i` of a block.
#[inline(always)]
fn lane_of<S: Simd>(groups: &[usize; GROUPS], i: usize) -> usize {
    groups[i * S::LANES / LANE_GROUP] + i * S::LANES % LANE_GROUP
}

impl Blocks<'_> {
    /// Memory for two blocks.
    #[inline(always)]
    unsafe fn temporary(&self) -> *mut f32 {
        // SAFETY: the table has it at this place.
        unsafe { (*self.bases.add(Program::TEMPORARY)).cast() }
    }

    #[inline(always)]
    unsafe fn moments(&self, instr: &Instr) -> [*mut f32; 3] {
        // SAFETY: the table has the three one behind the other.
        unsafe { [0, 1, 2].map(|part| (*self.bases.add(instr.base as usize + part)).cast()) }
    }
}

/// An instruction on a block in temporary memory, compiled as a function of its own so that it takes no registers from the
/// others.
struct Apart<'a> {
    blocks: &'a Blocks<'a>,
    instr: &'a Instr,
    at: *mut u8,
    start: usize,
    memory: usize,
    /// Elements that belong to the tile.
    len: usize,
}

impl SimdOp for Apart<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Apart { blocks, instr, at, start, memory, len } = self;
        let (program, lanes) = (blocks.program, &blocks.lanes);
        // SAFETY: the temporary memory has two blocks; the rest is as the instruction says.
        unsafe {
            let (x, y) = (blocks.temporary(), blocks.temporary().add(LONGEST_BLOCK));
            let values = std::slice::from_raw_parts(x, len);
            match instr.op {
                Op::Pow | Op::PowOf => {
                    for i in 0..block_len::<S>() {
                        let (a, b) = (x.add(i).read(), y.add(i).read());
                        x.add(i).write(if instr.op == Op::Pow { vector::pow(a, b) } else { vector::pow(b, a) });
                    }
                }
                Op::Function => {
                    let block = std::slice::from_raw_parts_mut(x, block_len::<S>());
                    match program.functions[instr.extra as usize] {
                        Function::Unary(kind) => vector::map_unary(kind, block),
                        Function::Cast(to) => vector::map_cast(to, block),
                    }
                }
                Op::PutConverted => {
                    if let Sink::Store { dtype, .. } = program.sinks[instr.extra as usize] {
                        blocks.put_converted(dtype, values, at, start, memory);
                    }
                }
                Op::Sum => {
                    let sums = std::slice::from_raw_parts_mut(at.cast(), lanes.count);
                    reduce::add_values(values, start, sums);
                }
                Op::Moments => {
                    let [shift, sums, squares] =
                        blocks.moments(instr).map(|lane| std::slice::from_raw_parts_mut(lane, lanes.count));
                    if lanes.first {
                        reduce::shift_values(values, start, blocks.tile.width, shift);
                    }
                    reduce::add_deviations(values, start, shift, sums, squares);
                }
                Op::FoldSum => rowwise::fold_values(ReduceKind::Sum, values, start, fold_lanes(at)),
                Op::FoldMax => rowwise::fold_values(ReduceKind::Max, values, start, fold_lanes(at)),
                Op::FoldMin => rowwise::fold_values(ReduceKind::Min, values, start, fold_lanes(at)),
                _ => {}
            }
        }
    }
}

/// The lanes of a reduction of the row.
#[inline(always)]
unsafe fn fold_lanes<'a>(at: *mut u8) -> &'a mut [f32; LANE_GROUP] {
    // SAFETY: the callers' promise: they are at this address, and nothing else refers to them.
    unsafe { &mut *at.cast() }
}

impl Blocks<'_> {
    /// Writes the values from position `start` of the tile on to an output.
    #[inline(always)]
    unsafe fn put_converted(&self, dtype: DType, values: &[f32], target: *mut u8, start: usize, memory: usize) {
        let size = dtype.size();
        // SAFETY: the output has the elements of the domain.
        unsafe {
            if self.tile.contiguous {
                vector::narrow(dtype, values, target.add(memory * size));
                return;
            }
            let mut done = 0;
            while done < values.len() {
                let (row, col) = ((start + done) / self.tile.width, (start + done) % self.tile.width);
                let run = (self.tile.width - col).min(values.len() - done);
                let index = self.tile.offset + row * self.stride + col;
                vector::narrow(dtype, &values[done..done + run], target.add(index * size));
                done += run;
            }
        }
    }
}
