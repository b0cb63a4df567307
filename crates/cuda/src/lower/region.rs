//! Fusions: generated kernels, behind the product that the fusion reads, if it reads one.

use super::product::ProductTarget;
use super::{Lowered, Place, Unsupported, conv, epilogue};
use crate::kgen::{self, Operand};
use bessemer_ir::ops::fusion::{Fusion, FusionOutput, IndexMap, Instr, Reg};
use bessemer_ir::ops::{Op, Scalar};
use bessemer_ir::{DType, TensorType};
use std::collections::BTreeSet;

/// Steps of a fusion.
///
/// # Errors
/// Why its product, or its program, has no kernel.
pub(super) fn lower(fusion: &Fusion, types: &[&TensorType], outputs: &[TensorType]) -> Result<Lowered, Unsupported> {
    let mut lowered = Lowered::named("region");
    let inputs: Vec<Place> = (0..types.len()).map(Place::Input).collect();
    let outputs: Vec<Place> = (0..outputs.len()).map(Place::Output).collect();
    let own = fusion.producer_inputs();
    let loads: Vec<DType> = types[own..].iter().map(|ty| ty.dtype).collect();
    match &fusion.producer {
        None => launch(&mut lowered, fusion, &loads, &inputs, &outputs)?,
        Some(own_producer) => {
            let ty = types[0].dtype;
            let is_rounded = rounds_product(fusion, ty);
            let stored = stored_product(fusion, if is_rounded { ty } else { DType::F32 });
            let place = stored.map(|index| outputs[fusion.node_output(index)]);
            let target = if is_rounded { ProductTarget::Rounded(place) } else { ProductTarget::F32(place) };
            let (product, ty) = lowered.contract(own_producer, &types[..own], &inputs[..own], target)?;
            let stored = stored.filter(|_| place == Some(product));
            let producer = fusion.program.iter().position(|instr| *instr == Instr::Producer).unwrap_or(0);
            let behind = behind(fusion, producer as Reg, stored);
            if behind.outputs.is_empty() {
                return Ok(lowered);
            }
            lowered.name += ", then region";
            let inputs: Vec<Place> = inputs[own..].iter().copied().chain([product]).collect();
            let loads: Vec<DType> = loads.into_iter().chain([ty]).collect();
            launch(&mut lowered, &behind, &loads, &inputs, &others(fusion, stored))?;
            let fused = match &**own_producer {
                Op::Matmul(matmul) => epilogue::lower(fusion, matmul, types),
                other => conv::lower(fusion, other, types).map(|(fused, scratch)| (vec![fused], scratch)),
            };
            match fused {
                Ok((fused, scratch)) => {
                    lowered.scratch = lowered.scratch.max(scratch);
                    lowered.fused = fused;
                }
                Err(missed) => lowered.missed = Some(missed),
            }
        }
    }
    Ok(lowered)
}

/// Whether the program reads its product nowhere but rounded to this type.
pub(super) fn rounds_product(fusion: &Fusion, ty: DType) -> bool {
    let is_product = |reg: Reg| fusion.program[usize::from(reg)] == Instr::Producer;
    let reads = |instr: &&Instr| instr.operands().any(is_product);
    fusion.program.iter().filter(reads).all(|instr| matches!(instr, Instr::Cast(to, _) if *to == ty))
        && !fusion.outputs.iter().any(|output| is_product(output.reg()))
}

/// The output that is the product in this type, where the product may be written to it before the fusion runs: no load of the fusion
/// may share its memory.
fn stored_product(fusion: &Fusion, ty: DType) -> Option<usize> {
    let is_product = |reg: Reg| match fusion.program[usize::from(reg)] {
        Instr::Producer => ty == DType::F32,
        Instr::Cast(to, of) => to == ty && fusion.program[usize::from(of)] == Instr::Producer,
        _ => false,
    };
    if fusion.loads.iter().any(|load| load.is_full(fusion.rows)) {
        return None;
    }
    fusion.outputs.iter().position(|output| match output {
        FusionOutput::Store { reg, ty: own } => own.dtype == ty && is_product(*reg),
        _ => false,
    })
}

/// Whether the outputs depend on the product through this register alone.
pub(super) fn reads_product_through(fusion: &Fusion, register: Reg) -> bool {
    let mut depends = vec![false; fusion.program.len()];
    for (number, instr) in fusion.program.iter().enumerate() {
        let reads = *instr == Instr::Producer || instr.operands().any(|reg| depends[usize::from(reg)]);
        depends[number] = reads && number != usize::from(register);
    }
    fusion.outputs.iter().all(|output| !depends[usize::from(output.reg())])
}

/// Places of the node's outputs, but for those of the fusion's output `stored`.
pub(super) fn others(fusion: &Fusion, stored: Option<usize>) -> Vec<Place> {
    let outputs = fusion.outputs.iter().enumerate().filter(|(index, _)| Some(*index) != stored);
    let numbers = outputs.flat_map(|(index, output)| {
        let first = fusion.node_output(index);
        first..first + output.types().len()
    });
    numbers.map(Place::Output).collect()
}

/// The fusion without its product: it loads a register that depends on the product as the last input, and does not give the output
/// that was stored already. The product may be read through that register alone.
pub(super) fn behind(fusion: &Fusion, register: Reg, stored: Option<usize>) -> Fusion {
    let last = fusion.loads.len() as u16;
    let load = |(reg, instr): (Reg, &Instr)| match *instr {
        _ if reg == register => Instr::Load(last),
        Instr::Producer => Instr::Const(Scalar(0.0)),
        instr => instr,
    };
    let loads = fusion.loads.iter().copied().chain([IndexMap::full(fusion.rows)]).collect();
    let outputs = fusion.outputs.iter().enumerate().filter(|(index, _)| Some(*index) != stored);
    Fusion {
        producer: None,
        loads,
        program: (0..).zip(&fusion.program).map(load).collect(),
        outputs: outputs.map(|(_, output)| output.clone()).collect(),
        ..*fusion
    }
}

/// Launches of a fusion without a producer, whose inputs and outputs lie at these places.
///
/// # Errors
/// There are no kernels for its program.
pub(super) fn launch(
    lowered: &mut Lowered,
    fusion: &Fusion,
    types: &[DType],
    inputs: &[Place],
    outputs: &[Place],
) -> Result<(), Unsupported> {
    let (fusion, read) = read_alone(fusion);
    let pick = |number: &usize| (types[*number], inputs[*number]);
    let (types, inputs): (Vec<DType>, Vec<Place>) = read.iter().map(pick).unzip();
    let (fusion, types, inputs) = (&fusion, &types[..], &inputs[..]);
    let launches = match kgen::fusion("region", fusion, types) {
        Ok(launches) => launches,
        Err(error) => match in_two(fusion) {
            Some(parts) => return launch_parts(lowered, &parts, types, inputs, outputs),
            None => return Err(error.into()),
        },
    };
    let scratch: Vec<Place> =
        launches.scratch.iter().map(|&elements| lowered.scratch_of(DType::F32, elements)).collect();
    for one in launches.launches {
        let place = |operand: &Operand| match *operand {
            Operand::Input(input) => inputs[input],
            Operand::Output(output) => outputs[output],
            Operand::Scratch(number) => scratch[number],
            Operand::Arrivals => Place::Arrivals,
        };
        let operands: Vec<Place> = one.operands.iter().map(place).collect();
        lowered.launch(one.kernel.named_by_content(), operands);
    }
    Ok(())
}

/// The fusion with those of its inputs alone that its outputs depend on, and their numbers.
fn read_alone(fusion: &Fusion) -> (Fusion, Vec<usize>) {
    let mut needed = vec![false; fusion.program.len()];
    fusion.outputs.iter().for_each(|output| needed[usize::from(output.reg())] = true);
    for (reg, instr) in fusion.program.iter().enumerate().rev() {
        if needed[reg] {
            instr.operands().for_each(|operand| needed[usize::from(operand)] = true);
        }
    }
    let read_by = |(reg, instr): (usize, &Instr)| match *instr {
        Instr::Load(input) | Instr::Random { step: input, .. } if needed[reg] => Some(usize::from(input)),
        _ => None,
    };
    let read: BTreeSet<usize> = fusion.program.iter().enumerate().filter_map(read_by).collect();
    let number = |input: u16| read.iter().position(|&one| one == usize::from(input)).map(|number| number as u16);
    let renumbered = |instr: &Instr| match *instr {
        Instr::Load(input) => number(input).map_or(Instr::Const(Scalar(0.0)), Instr::Load),
        Instr::Random { seed, stream, step } => {
            number(step).map_or(Instr::Const(Scalar(0.0)), |step| Instr::Random { seed, stream, step })
        }
        instr => instr,
    };
    let loads = read.iter().map(|&input| fusion.loads[input]).collect();
    let program = fusion.program.iter().map(renumbered).collect();
    let (producer, outputs) = (fusion.producer.clone(), fusion.outputs.clone());
    (Fusion { producer, loads, program, outputs, ..*fusion }, read.into_iter().collect())
}

/// A fusion that reduces rows and sums over them too, as two: the first one reduces the rows, the second one reads that.
struct InTwo {
    /// Gives the rows' outputs of the fusion, then what `reductions` hold.
    rows: Fusion,
    /// Outputs of the fusion that `rows` gives, and those that `rest` gives, by number.
    rows_outputs: Vec<usize>,
    rest: Fusion,
    rest_outputs: Vec<usize>,
    /// Registers that hold reductions.
    reductions: usize,
}

/// `None` for a fusion that does not both.
fn in_two(fusion: &Fusion) -> Option<InTwo> {
    let is_of_rows = |output: &FusionOutput| matches!(output, FusionOutput::Rows { .. });
    let over_rows = |output: &FusionOutput| matches!(output, FusionOutput::Sum { .. } | FusionOutput::MeanVar { .. });
    if !fusion.is_rowwise() || !fusion.outputs.iter().any(over_rows) {
        return None;
    }
    let reductions: Vec<Reg> = (0..)
        .zip(&fusion.program)
        .filter(|(_, instr)| matches!(instr, Instr::Reduce(..)))
        .map(|(reg, _)| reg)
        .collect();
    let (of_rows, rest): (Vec<_>, Vec<_>) =
        (0..fusion.outputs.len()).partition(|&index| is_of_rows(&fusion.outputs[index]));
    let pick = |indices: &[usize]| indices.iter().map(|&index| fusion.outputs[index].clone()).collect::<Vec<_>>();
    let numbers = |indices: &[usize]| {
        let of = |&index: &usize| {
            let first = fusion.node_output(index);
            first..first + fusion.outputs[index].types().len()
        };
        indices.iter().flat_map(of).collect::<Vec<usize>>()
    };
    let mut outputs = pick(&of_rows);
    outputs.extend(reductions.iter().map(|&reg| FusionOutput::Rows { reg, ty: TensorType::f32([fusion.rows]) }));
    let rows =
        Fusion { producer: None, loads: fusion.loads.clone(), program: fusion.program.clone(), outputs, ..*fusion };
    let first = fusion.loads.len();
    let load = |(reg, instr): (usize, &Instr)| match reductions.iter().position(|&own| usize::from(own) == reg) {
        Some(number) => Instr::Load((first + number) as u16),
        None => *instr,
    };
    let by_row = IndexMap { row_div: 1, row_mod: fusion.rows, by_col: false };
    let rest_fusion = Fusion {
        producer: None,
        loads: fusion.loads.iter().copied().chain(reductions.iter().map(|_| by_row)).collect(),
        program: fusion.program.iter().enumerate().map(load).collect(),
        outputs: pick(&rest),
        ..*fusion
    };
    let (rows_outputs, rest_outputs) = (numbers(&of_rows), numbers(&rest));
    Some(InTwo { rows, rows_outputs, rest: rest_fusion, rest_outputs, reductions: reductions.len() })
}

fn launch_parts(
    lowered: &mut Lowered,
    parts: &InTwo,
    types: &[DType],
    inputs: &[Place],
    outputs: &[Place],
) -> Result<(), Unsupported> {
    let reduced: Vec<Place> = (0..parts.reductions).map(|_| lowered.scratch_of(DType::F32, parts.rows.rows)).collect();
    let pick = |numbers: &[usize]| numbers.iter().map(|&number| outputs[number]).collect::<Vec<Place>>();
    let of_rows = [pick(&parts.rows_outputs), reduced.clone()].concat();
    launch(lowered, &parts.rows, types, inputs, &of_rows)?;
    let types = [types, &vec![DType::F32; reduced.len()]].concat();
    let inputs = [inputs, &reduced].concat();
    launch(lowered, &parts.rest, &types, &inputs, &pick(&parts.rest_outputs))
}
