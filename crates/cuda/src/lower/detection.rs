//! Operations of detectors: the launches of their kernels.

use super::{Lowered, Place, Unsupported};
use crate::kernels::detection::{Work, work};
use crate::kgen::Operand;
use bessemer_ir::ops::Op;
use bessemer_ir::{DType, TensorType};

/// Steps of an operation of detectors, which has so many outputs.
///
/// # Errors
/// It has no kernel, or the shapes do not fit.
pub(super) fn lower(op: &Op, types: &[&TensorType], outputs: usize) -> Result<Lowered, Unsupported> {
    let Work { name, launches, limits, .. } = work(op, types)?.ok_or(Unsupported::NoKernel)?;
    let mut lowered = Lowered { index_limits: limits, ..Lowered::named(name) };
    let scratch: Vec<Place> = launches.scratch.iter().map(|&words| lowered.scratch_of(DType::I32, words)).collect();
    for launch in launches.launches {
        let place = |operand: &Operand| match *operand {
            Operand::Input(input) => Place::Input(input),
            Operand::Output(output) if output == outputs => Place::Report,
            Operand::Output(output) => Place::Output(output),
            Operand::Scratch(number) => scratch[number],
        };
        let operands: Vec<Place> = launch.operands.iter().map(place).collect();
        lowered.launch(launch.kernel, operands);
    }
    Ok(lowered)
}
