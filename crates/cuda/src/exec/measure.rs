//! How long launches of libraries take.

use super::Gpu;
use super::ledger::Allocation;
use crate::driver::{Arena, Block, Stream, Timer};
use crate::error::GpuError;
use bessemer_ir::run::RunError;
use bessemer_ir::{DType, philox};
use half::{bf16, f16};
use std::sync::LazyLock;
use std::time::Duration;

/// Batches of launches that are timed, and about how long each of them takes.
const BATCHES: usize = 3;
const BATCH: Duration = Duration::from_millis(1);
const MOST_LAUNCHES: u128 = 10;
/// What is slower than the fastest so far by more than this factor is timed once.
const HOPELESS: u32 = 3;

/// Memory of what is measured.
pub(super) struct Measured {
    /// Of the operands, in their order.
    pub operands: Vec<Block>,
    pub scratch: Block,
    _memory: Allocation,
}

/// An operand of what is measured.
pub(super) struct Operand {
    pub bytes: usize,
    pub ty: DType,
    /// Whether it is filled with random numbers.
    pub is_filled: bool,
}

impl Gpu {
    /// Memory for `what`, operands and scratch memory, one behind the other.
    pub(super) fn memory_to_measure(
        &self,
        what: &'static str,
        operands: &[Operand],
        scratch: usize,
    ) -> Result<Measured, GpuError> {
        let room = |operand: &Operand| operand.bytes.next_multiple_of(Arena::ALIGNMENT);
        let end: usize = operands.iter().map(room).sum();
        let unavailable = |error: RunError| GpuError::Launch { kernel: what.to_owned(), problem: error.to_string() };
        let memory = self.ledger.allocate(&self.context, what, end + scratch).map_err(unavailable)?;
        let (mut offset, mut blocks) = (0, Vec::new());
        for operand in operands {
            let block = memory.block(offset, operand.bytes)?;
            if operand.is_filled {
                fill(&self.stream, operand.ty, &block)?;
            }
            blocks.push(block);
            offset += room(operand);
        }
        Ok(Measured { operands: blocks, scratch: memory.block(end, scratch)?, _memory: memory })
    }
}

/// Time of one launch, if it is less than that of the fastest so far.
///
/// # Errors
/// It fails, and is none to choose.
pub(super) fn faster(
    timer: &Timer,
    stream: &Stream,
    fastest: Option<Duration>,
    launch: &dyn Fn() -> Result<(), GpuError>,
) -> Result<Option<Duration>, GpuError> {
    let time = median(timer, stream, fastest, launch)?;
    Ok(fastest.is_none_or(|fastest| time < fastest).then_some(time))
}

/// Time of one launch: the median of some batches behind a first launch, or that of a second one which takes far longer than `limit`.
fn median(
    timer: &Timer,
    stream: &Stream,
    limit: Option<Duration>,
    launch: &dyn Fn() -> Result<(), GpuError>,
) -> Result<Duration, GpuError> {
    launch()?;
    let one = timer.time(stream, launch)?;
    if limit.is_some_and(|limit| one > limit * HOPELESS) {
        return Ok(one);
    }
    let launches = (BATCH.as_nanos() / one.as_nanos().max(1)).clamp(1, MOST_LAUNCHES) as u32;
    let mut times = [Duration::ZERO; BATCHES];
    for time in &mut times {
        *time = timer.time(stream, || (0..launches).try_for_each(|_| launch()))? / launches;
    }
    times.sort();
    Ok(times[BATCHES / 2])
}

/// Normal random numbers that are drawn once.
const DRAWN: usize = 1 << 18;

/// Bytes of those numbers in a type of floats.
fn drawn(ty: DType) -> &'static [u8] {
    static NUMBERS: LazyLock<Vec<f32>> =
        LazyLock::new(|| (0..DRAWN).map(|i| philox::normal(1, 0, 0, i as u64)).collect());
    static F16: LazyLock<Vec<u16>> = LazyLock::new(|| NUMBERS.iter().map(|&x| f16::from_f32(x).to_bits()).collect());
    static BF16: LazyLock<Vec<u16>> = LazyLock::new(|| NUMBERS.iter().map(|&x| bf16::from_f32(x).to_bits()).collect());
    match ty {
        DType::F16 => bytemuck::cast_slice(&F16),
        DType::Bf16 => bytemuck::cast_slice(&BF16),
        _ => bytemuck::cast_slice(&NUMBERS),
    }
}

/// Normal random numbers of a type of floats, repeated: kernels are faster on zeros.
pub(crate) fn fill(stream: &Stream, ty: DType, block: &Block) -> Result<(), GpuError> {
    let drawn = drawn(ty);
    let mut filled = block.bytes().min(drawn.len());
    stream.upload(&drawn[..filled], &block.part(0, filled)?)?;
    while filled < block.bytes() {
        let more = filled.min(block.bytes() - filled);
        stream.copy(&block.part(0, more)?, &block.part(filled, more)?)?;
        filled += more;
    }
    Ok(())
}
