//! Execution of block programs.

use super::block::{Advance, Form, Function, Instr, LANE_GROUP, LONGEST_BLOCK, MOST_VECTORS, Op, block_len};
use super::program::{Program, Sink};
use super::reduce::{self, Lanes};
use super::row_loop::Tile;
use crate::number::Vector;
use crate::rowwise;
use crate::simd::{Simd, SimdOp, Test};
use crate::vector;
use bessemer_ir::DType;
use bessemer_ir::ops::reduce::ReduceKind;

/// Groups of lanes of a block.
const GROUPS: usize = LONGEST_BLOCK / LANE_GROUP;

/// Bytes of a cache line.
const LINE: usize = 64;

/// The body for each vector of the accumulator, written out, so that all of them are in registers.
macro_rules! vectors {
    (|$i:ident| $body:expr) => {
        vectors!($i $body; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($i:ident $body:expr; $($number:literal)*) => {
        $({
            let $i: usize = $number;
            if const { $number < S::BLOCK_VECTORS } {
                $body
            }
        })*
    };
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
        let Blocks { instrs, bases, lanes, ahead, .. } = self;
        // SAFETY: operands have the elements of the block at their addresses, as the maker of the table says.
        unsafe {
            let (zero, one) = (S::splat(0.0), S::splat(1.0));
            let mut acc = [zero; MOST_VECTORS];
            let mut lane = self.start % lanes.count;
            for done in (0..self.len).step_by(block) {
                let (start, memory) = (self.start + done, self.memory + done);
                let whole = self.len - done >= block;
                let mut groups = [lane; GROUPS];
                for (group, lane) in groups.iter_mut().enumerate() {
                    *lane = lanes.wrap(*lane + group * LANE_GROUP);
                }
                let mut offsets = [0; 4];
                offsets[Advance::Tile as usize] = 4 * start;
                offsets[Advance::Memory as usize] = 4 * memory;
                offsets[Advance::MemoryBf16 as usize] = 2 * memory;
                for instr in instrs {
                    let code = instr.code;
                    let at = (*bases.add(instr.base as usize)).wrapping_add(offsets[instr.advance as usize]);
                    // Each of these is the code of one instruction, and goes on to the next one. Comparisons of `code`
                    // with constants, of which the compiler makes one jump.
                    macro_rules! plain {
                        ($op:expr, $body:expr) => {
                            if code == const { $op.code(Form::F32) } {
                                $body;
                                continue;
                            }
                        };
                    }
                    // With the accumulator's vectors.
                    macro_rules! each {
                        ($op:expr, |$a:ident| $value:expr) => {
                            plain!($op, {
                                vectors!(|i| {
                                    let $a = acc[i];
                                    acc[i] = $value;
                                });
                            })
                        };
                    }
                    // With the accumulator's vectors and the operand's.
                    macro_rules! operand {
                        ($op:expr, |$a:ident, $x:ident, $i:ident| $value:expr) => {
                            plain!($op, {
                                vectors!(|$i| {
                                    let ($a, $x) = (acc[$i], S::load(at.cast::<f32>().add($i * S::LANES)));
                                    acc[$i] = $value;
                                });
                            });
                            if code == const { $op.code(Form::Bf16) } {
                                vectors!(|$i| {
                                    let ($a, $x) = (acc[$i], S::load_bf16(at.cast::<u16>().add($i * S::LANES)));
                                    acc[$i] = $value;
                                });
                                continue;
                            }
                            if code == const { $op.code(Form::Scalar) } {
                                let number = S::splat(at.cast::<f32>().read());
                                vectors!(|$i| {
                                    let ($a, $x) = (acc[$i], number);
                                    acc[$i] = $value;
                                });
                                continue;
                            }
                        };
                    }
                    // The instruction's place for masks, or its number.
                    macro_rules! extra {
                        () => {
                            *bases.add(instr.extra as usize)
                        };
                    }
                    macro_rules! mask {
                        ($i:expr) => {
                            extra!().cast::<S::Mask>().add($i)
                        };
                    }
                    macro_rules! is_true {
                        () => {
                            S::test(Test::Ne, S::splat(extra!().cast::<f32>().read()), zero)
                        };
                    }
                    macro_rules! compare {
                        ($op:expr, |$a:ident, $x:ident| $mask:expr) => {
                            operand!($op, |$a, $x, i| {
                                mask!(i).write_unaligned($mask);
                                $a
                            })
                        };
                    }
                    // Through temporary memory, by a separate function.
                    macro_rules! apart {
                        () => {
                            vectors!(|i| {
                                S::store(self.temporary().add(i * S::LANES), acc[i]);
                            });
                            let len = block.min(self.len - done);
                            S::run_op(Apart { blocks: &self, instr, at, start, memory, len });
                        };
                    }
                    macro_rules! reload {
                        () => {
                            vectors!(|i| {
                                acc[i] = S::load(self.temporary().add(i * S::LANES));
                            });
                        };
                    }
                    macro_rules! fold {
                        ($op:expr, |$lane:ident, $x:ident| $value:expr) => {
                            plain!($op, {
                                if whole {
                                    let first = if block < LANE_GROUP { start % LANE_GROUP } else { 0 };
                                    vectors!(|i| {
                                        let place = at.cast::<f32>().add((first + i * S::LANES) % LANE_GROUP);
                                        let ($lane, $x) = (S::load(place), acc[i]);
                                        S::store(place, $value);
                                    });
                                } else {
                                    apart!();
                                }
                            })
                        };
                    }
                    operand!(Op::Load, |_a, x, i| x);
                    operand!(Op::Add, |a, x, i| S::add(a, x));
                    operand!(Op::Sub, |a, x, i| S::sub(a, x));
                    operand!(Op::SubFrom, |a, x, i| S::sub(x, a));
                    operand!(Op::Mul, |a, x, i| S::mul(a, x));
                    operand!(Op::Div, |a, x, i| S::div(a, x));
                    operand!(Op::DivInto, |a, x, i| S::div(x, a));
                    operand!(Op::Max, |a, x, i| S::max_number(a, x));
                    operand!(Op::MaxOf, |a, x, i| S::max_number(x, a));
                    operand!(Op::Min, |a, x, i| S::min_number(a, x));
                    operand!(Op::MinOf, |a, x, i| S::min_number(x, a));
                    operand!(Op::KeepIf, |a, x, i| S::blend(is_true!(), a, x));
                    operand!(Op::TakeIf, |a, x, i| S::blend(is_true!(), x, a));
                    operand!(Op::KeepWhere, |a, x, i| S::blend(mask!(i).read_unaligned(), a, x));
                    operand!(Op::TakeWhere, |a, x, i| S::blend(mask!(i).read_unaligned(), x, a));
                    compare!(Op::TestEq, |a, x| S::test(Test::Eq, a, x));
                    compare!(Op::TestLt, |a, x| S::test(Test::Lt, a, x));
                    compare!(Op::TestLe, |a, x| S::test(Test::Le, a, x));
                    compare!(Op::TestGt, |a, x| S::test(Test::Lt, x, a));
                    compare!(Op::TestGe, |a, x| S::test(Test::Le, x, a));
                    // The operand of a power goes to temporary memory too.
                    operand!(Op::Second, |a, x, i| {
                        S::store(self.temporary().add(LONGEST_BLOCK + i * S::LANES), x);
                        a
                    });
                    plain!(Op::TestTrue, {
                        vectors!(|i| {
                            mask!(i).write_unaligned(S::test(Test::Ne, acc[i], zero));
                        });
                    });
                    plain!(Op::Truth, {
                        vectors!(|i| {
                            acc[i] = S::blend(mask!(i).read_unaligned(), one, zero);
                        });
                    });
                    each!(Op::Neg, |a| S::neg(a));
                    each!(Op::Abs, |a| S::abs(a));
                    each!(Op::Square, |a| S::mul(a, a));
                    each!(Op::Sqrt, |a| S::sqrt(a));
                    each!(Op::Recip, |a| S::div(one, a));
                    each!(Op::Rsqrt, |a| S::div(one, S::sqrt(a)));
                    each!(Op::Relu, |a| S::max(zero, a));
                    each!(Op::Sigmoid, |a| vector::sigmoid(Vector::<S>::new(a)).get());
                    each!(Op::Erf, |a| vector::erf(Vector::<S>::new(a)).get());
                    each!(Op::Round, |a| S::round_bf16(a));
                    plain!(Op::Put, {
                        vectors!(|i| {
                            S::store(at.cast::<f32>().add(i * S::LANES), acc[i]);
                        });
                    });
                    plain!(Op::PutRounded, {
                        vectors!(|i| {
                            if i.is_multiple_of(2) {
                                S::store_bf16(at.cast::<u16>().add(i * S::LANES), acc[i], acc[i | 1]);
                            }
                        });
                    });
                    plain!(Op::PutExact, {
                        vectors!(|i| {
                            if i.is_multiple_of(2) {
                                S::store_truncated(at.cast::<u16>().add(i * S::LANES), acc[i], acc[i | 1]);
                            }
                        });
                    });
                    plain!(Op::Sum, {
                        if whole && lanes.regular {
                            vectors!(|i| {
                                let sum = at.cast::<f32>().add(lane_of::<S>(&groups, i));
                                S::store(sum, S::add(S::load(sum), acc[i]));
                            });
                        } else {
                            apart!();
                        }
                    });
                    plain!(Op::MeanVar, {
                        if whole && lanes.regular && !lanes.first {
                            let [shift, sums, squares] = self.moments(instr);
                            vectors!(|i| {
                                let lane = lane_of::<S>(&groups, i);
                                let deviation = S::sub(acc[i], S::load(shift.add(lane)));
                                let (sum, square) = (sums.add(lane), squares.add(lane));
                                S::store(sum, S::add(S::load(sum), deviation));
                                S::store(square, S::add(S::load(square), S::mul(deviation, deviation)));
                            });
                        } else {
                            apart!();
                        }
                    });
                    fold!(Op::FoldSum, |lane, x| S::add(lane, x));
                    fold!(Op::FoldMax, |lane, x| S::blend(S::test(Test::Ne, x, x), x, S::max(x, lane)));
                    fold!(Op::FoldMin, |lane, x| {
                        let least = S::blend(S::test(Test::Lt, x, lane), x, lane);
                        S::blend(S::test(Test::Ne, x, x), x, least)
                    });
                    plain!(Op::Prefetch, {
                        let size = if instr.advance == Advance::Memory { 4 } else { 2 };
                        for line in (0..block * size).step_by(LINE) {
                            S::prefetch(at.wrapping_add(ahead * size + line).cast());
                        }
                    });
                    plain!(Op::PrefetchWrite, {
                        let size = if instr.advance == Advance::Memory { 4 } else { 2 };
                        for line in (0..block * size).step_by(LINE) {
                            S::prefetch_write(at.wrapping_add(ahead * size + line).cast());
                        }
                    });
                    plain!(Op::PutConverted, {
                        apart!();
                    });
                    // A function of the accumulator.
                    apart!();
                    reload!();
                }
                lane = lanes.wrap(lane + block);
            }
        }
    }
}

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
    /// Position of the block in the tile, and in memory.
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
                Op::Function | Op::Integer | Op::IntegerOf => {
                    let block = std::slice::from_raw_parts_mut(x, block_len::<S>());
                    match program.functions[instr.extra as usize] {
                        Function::Unary(kind) => vector::map_unary(kind, block),
                        Function::Cast(to) => vector::map_cast(to, block),
                        Function::ToInteger => vector::map_to_integer(block),
                        Function::FromInteger => vector::map_from_integer(block),
                        Function::Integer(kind) => {
                            let second = std::slice::from_raw_parts(y, block_len::<S>());
                            vector::map_integers(kind, block, second, instr.op == Op::IntegerOf);
                        }
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
                Op::MeanVar => {
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
