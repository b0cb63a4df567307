//! Fusions on matrix products that cuBLASLt can do in the same pass: a bias, and an activation of the sum.

use super::product::ProductTarget;
use super::{Bias, Fused, Lowered, Place, Step, Unsupported, region};
use crate::cublaslt::Activation;
use bessemer_ir::ops::fusion::{Fusion, FusionOutput, IndexMap, Instr, Reg};
use bessemer_ir::ops::pointwise::BinaryKind;
use bessemer_ir::ops::{Op, matmul::Matmul};
use bessemer_ir::{DType, TensorType};
use std::f64::consts::FRAC_2_PI;

/// Why a fusion on a product is not done in the same pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Missed {
    #[error("no epilogue of cuDNN is used")]
    Convolution,
    #[error("cuBLASLt adds a bias to one product, not to a batch")]
    Batch,
    #[error("more results are kept than cuBLASLt gives")]
    Outputs,
    #[error("cuBLASLt has no such function")]
    Function,
}

/// A fusion that is an activation of a product and a bias.
struct Biased {
    /// Number of the bias among the inputs that the program loads.
    load: usize,
    activation: Activation,
    output: DType,
}

/// The steps of a fusion on a product that do it in the product's pass. A bias of `f32` is rounded first where the result is of
/// 16 bits: the library wants both of one type.
///
/// # Errors
/// Why there are none.
pub(super) fn lower(fusion: &Fusion, types: &[&TensorType]) -> Result<(Fused, usize), Missed> {
    let Some(Op::Matmul(matmul)) = fusion.producer.as_deref() else { return Err(Missed::Convolution) };
    let own = fusion.producer_inputs();
    let biased = biased(fusion, matmul, types)?;
    let load = own + biased.load;
    let mut lowered = Lowered::default();
    let mut place = Place::Input(load);
    if types[load].dtype != biased.output {
        place = lowered.scratch_of(biased.output, fusion.cols);
        lowered.round(Place::Input(load), fusion.cols, biased.output, place).map_err(|_| Missed::Function)?;
    }
    let to = Some(Place::Output(0));
    let target = if biased.output == DType::F32 { ProductTarget::F32(to) } else { ProductTarget::Rounded(to) };
    let inputs = [Place::Input(0), Place::Input(1)];
    lowered.matmul(matmul, &types[..own], &inputs, target).map_err(|_| Missed::Function)?;
    if let Some(Step::Product { bias, .. }) = lowered.steps.last_mut() {
        *bias = Some(Bias { place, activation: biased.activation });
    }
    let what = match biased.activation {
        Activation::Nothing => "bias",
        Activation::Relu => "bias and ReLU",
        Activation::Gelu => "bias and GELU",
    };
    Ok((Fused { what, steps: lowered.steps }, lowered.scratch))
}

fn biased(fusion: &Fusion, matmul: &Matmul, types: &[&TensorType]) -> Result<Biased, Missed> {
    let inputs = types[0].dtype;
    let of = matmul.geometry(&types[0].shape, &types[1].shape).map_err(|_| Missed::Function)?;
    if of.batch != 1 || (fusion.rows, fusion.cols) != (of.m, of.n) {
        return Err(Missed::Batch);
    }
    let [FusionOutput::Store { reg, ty }] = &fusion.outputs[..] else { return Err(Missed::Outputs) };
    if ty.dtype != inputs && ty.dtype != DType::F32 {
        return Err(Missed::Function);
    }
    let program = &fusion.program;
    let at = |reg: Reg| program[usize::from(reg)];
    let is_product = |reg: Reg| match at(reg) {
        Instr::Producer => true,
        Instr::Cast(to, of) => to == inputs && at(of) == Instr::Producer,
        _ => false,
    };
    let own = fusion.producer_inputs();
    let by_column = IndexMap { row_div: 1, row_mod: 1, by_col: true };
    // A result may lie where an input of its size was, which one of a single row is.
    let is_bias = |load: usize| fusion.loads[load] == by_column && fusion.rows > 1;
    let sums = (0..).zip(program).filter_map(|(sum, instr)| {
        let Instr::Binary(BinaryKind::Add, a, b) = *instr else { return None };
        let (_, other) = [(a, b), (b, a)].into_iter().find(|&(product, _)| is_product(product))?;
        let Instr::Load(load) = at(other) else { return None };
        let load = usize::from(load);
        let ty = types[own + load].dtype;
        (is_bias(load) && (ty == DType::F32 || ty == ty_of(fusion))).then_some((sum, load))
    });
    let mut result = *reg;
    while let Instr::Cast(to, of) = at(result)
        && to == ty.dtype
    {
        result = of;
    }
    let mut found = sums.filter_map(|(sum, load): (Reg, usize)| Some((load, activation(program, sum, result)?)));
    let (load, activation) = found.next().ok_or(Missed::Function)?;
    Ok(Biased { load, activation, output: ty.dtype })
}

/// The element type of the first output.
fn ty_of(fusion: &Fusion) -> DType {
    fusion.outputs[0].types()[0].dtype
}

/// What register `result` holds as a function of register `sum`, where it depends on nothing else: told by its values.
fn activation(program: &[Instr], sum: Reg, result: Reg) -> Option<Activation> {
    if result == sum {
        return Some(Activation::Nothing);
    }
    const STEP: f64 = 0.21;
    // GELU by tanh and by erf differ by up to 5e-4 between these, relative to 1.
    const ALLOWED: f64 = 1e-6;
    let samples: Vec<(f64, f64)> = (-40..=40)
        .map(|i| f64::from(i) * STEP + 0.01)
        .map(|x| Some((x, value(program, sum, result, x)?)))
        .collect::<Option<_>>()?;
    let is = |f: fn(f64) -> f64| samples.iter().all(|&(x, y)| (f(x) - y).abs() <= ALLOWED);
    if is(|x| x.max(0.0)) {
        Some(Activation::Relu)
    } else if is(|x| x / 2.0 * (1.0 + (FRAC_2_PI.sqrt() * (x + 0.044_715 * x.powi(3))).tanh())) {
        Some(Activation::Gelu)
    } else {
        None
    }
}

/// What register `result` holds where register `sum` holds `x`; `None` where that depends on anything else.
fn value(program: &[Instr], sum: Reg, result: Reg, x: f64) -> Option<f64> {
    let mut registers: Vec<Option<f64>> = Vec::with_capacity(program.len());
    for (number, instr) in (0..).zip(program) {
        let at = |reg: Reg| registers[usize::from(reg)];
        let known = match *instr {
            _ if number == sum => Some(x),
            Instr::Const(number) => Some(number.0),
            Instr::Unary(kind, a) => at(a).map(|a| kind.apply(a)),
            Instr::Binary(kind, a, b) => at(a).zip(at(b)).map(|(a, b)| kind.apply(a, b)),
            Instr::Select(condition, a, b) => {
                at(condition).zip(at(a).zip(at(b))).map(|(is, (a, b))| if is != 0.0 { a } else { b })
            }
            _ => None,
        };
        registers.push(known);
    }
    registers[usize::from(result)]
}

impl Lowered {
    /// A vector of `f32` rounded to a type of 16 bits.
    ///
    /// # Errors
    /// There is no kernel for it.
    fn round(&mut self, from: Place, elements: usize, ty: DType, to: Place) -> Result<(), Unsupported> {
        let rounding = Fusion {
            producer: None,
            rows: 1,
            cols: elements,
            loads: vec![IndexMap::full(1)],
            program: vec![Instr::Load(0), Instr::Cast(ty, 0)],
            outputs: vec![FusionOutput::Store { reg: 1, ty: TensorType::new(ty, [elements]) }],
        };
        region::launch(self, &rounding, &[DType::F32], &[from], &[to])
    }
}
