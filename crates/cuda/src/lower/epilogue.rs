//! Fusions on matrix products that cuBLASLt can do in the same pass: a bias, an activation of the sum, which may be kept, and the
//! gradient of GELU, with that of the bias before it.

use super::product::ProductTarget;
use super::{Fused, Lowered, Missed, Place, Step, Unsupported, region};
use crate::cublaslt::{Activation, Epilogue, gelu_slope};
use bessemer_ir::ops::fusion::{Fusion, FusionOutput, IndexMap, Instr, Reg};
use bessemer_ir::ops::matmul::Matmul;
use bessemer_ir::ops::pointwise::BinaryKind;
use bessemer_ir::passes::factors;
use bessemer_ir::{DType, TensorType};

/// What the library does of a fusion.
struct Found {
    what: &'static str,
    epilogue: Epilogue<Place>,
    /// Number of the fusion's output that the product writes.
    result: usize,
    /// The register that it holds.
    register: Reg,
}

/// Steps of a fusion on a product that do it, or its first part, in the product's pass: those that do most there first, and the bytes of
/// scratch memory that they need.
///
/// # Errors
/// Why there are none.
pub(super) fn lower(fusion: &Fusion, matmul: &Matmul, types: &[&TensorType]) -> Result<(Vec<Fused>, usize), Missed> {
    let inputs = types[0].dtype;
    let of = matmul.geometry(&types[0].shape, &types[1].shape).map_err(|_| Missed::Function)?;
    if of.batch != 1 || (fusion.rows, fusion.cols) != (of.m, of.n) {
        return Err(Missed::Batch);
    }
    let own = fusion.producer_inputs();
    let found = Program { fusion, own_inputs: own, types, inputs }.find()?;
    let (mut all, mut scratch) = (Vec::new(), 0);
    for steps in
        with_bias_gradient(fusion, matmul, types, &found).into_iter().chain([with_rest(fusion, matmul, types, found)])
    {
        let (fused, needed) = steps?;
        all.push(fused);
        scratch = scratch.max(needed);
    }
    Ok((all, scratch))
}

/// Steps that do what was found in the product's pass, and what is left behind it.
fn with_rest(fusion: &Fusion, matmul: &Matmul, types: &[&TensorType], found: Found) -> Result<(Fused, usize), Missed> {
    let own = fusion.producer_inputs();
    let Found { what, epilogue: mut own_epilogue, result, register } = found;
    let output = fusion.outputs[result].types()[0].dtype;
    let mut lowered = Lowered::default();
    // A bias of `f32` is rounded first where the result is of 16 bits: the library wants both of one type.
    if let Epilogue::Bias { bias, .. } | Epilogue::GeluAuxBias { bias, .. } = &mut own_epilogue
        && let Place::Input(load) = *bias
        && types[load].dtype != output
    {
        let rounded = lowered.scratch_of(output, fusion.cols);
        lowered.convert([*bias, rounded], fusion.cols, [DType::F32, output]).map_err(|_| Missed::Function)?;
        *bias = rounded;
    }
    let to = Some(Place::Output(fusion.node_output(result)));
    let target = if output == DType::F32 { ProductTarget::F32(to) } else { ProductTarget::Rounded(to) };
    let operands = [Place::Input(0), Place::Input(1)];
    lowered.matmul(matmul, &types[..own], &operands, target).map_err(|_| Missed::Function)?;
    if let Some(Step::Product { epilogue, .. }) = lowered.steps.last_mut() {
        *epilogue = own_epilogue;
    }
    let rest = region::behind(fusion, register, Some(result));
    // What is left of the fusion reads the result; the library gives all of one with a sum that is kept.
    let has_rest = !rest.outputs.is_empty() && !matches!(own_epilogue, Epilogue::GeluAuxBias { .. });
    if has_rest {
        let places = (own..types.len()).map(Place::Input).chain(to).collect::<Vec<_>>();
        let loads = types[own..].iter().map(|ty| ty.dtype).chain([output]).collect::<Vec<_>>();
        let others = region::others(fusion, Some(result));
        region::launch(&mut lowered, &rest, &loads, &places, &others).map_err(|_| Missed::Function)?;
    }
    let apart = has_rest || matches!(own_epilogue, Epilogue::GeluGrad { .. });
    let Lowered { steps, scratch, .. } = lowered;
    Ok((Fused { product: "matmul by cuBLASLt", what, steps, is_expected: true, apart }, scratch))
}

/// Steps that take the gradient of the bias before GELU in the pass of its gradient too, where the fusion gives nothing else: a sum of
/// columns, which the library rounds to the type of the result. `f16` has too short a range for such sums.
fn with_bias_gradient(
    fusion: &Fusion,
    matmul: &Matmul,
    types: &[&TensorType],
    found: &Found,
) -> Option<Result<(Fused, usize), Missed>> {
    let Epilogue::GeluGrad { aux } = found.epilogue else { return None };
    let own = fusion.producer_inputs();
    let program = Program { fusion, own_inputs: own, types, inputs: types[0].dtype };
    let output = fusion.outputs[found.result].types()[0].dtype;
    let (sum, reg) = match &fusion.outputs[..] {
        [first, second] => match if found.result == 0 { second } else { first } {
            FusionOutput::Sum { reg, groups: 1, .. } => (1 - found.result, *reg),
            _ => return None,
        },
        _ => return None,
    };
    let is_of_result = program.without_widening(reg) == found.register;
    if output != DType::Bf16 || !is_of_result {
        return None;
    }
    let mut lowered = Lowered::default();
    let bias = lowered.scratch_of(output, fusion.cols);
    let place = |index: usize| Place::Output(fusion.node_output(index));
    let built = lowered
        .matmul(
            matmul,
            &types[..own],
            &[Place::Input(0), Place::Input(1)],
            ProductTarget::Rounded(Some(place(found.result))),
        )
        .and_then(|_| lowered.convert([bias, place(sum)], fusion.cols, [output, DType::F32]));
    Some(built.map_err(|_| Missed::Function).map(|()| {
        let Lowered { mut steps, scratch, .. } = lowered;
        if let Some(Step::Product { epilogue, .. }) = steps.first_mut() {
            *epilogue = Epilogue::GeluGradBiasGrad { bias, aux };
        }
        let (product, what) = ("matmul by cuBLASLt", "gradients of GELU and bias");
        (Fused { product, what, steps, is_expected: false, apart: true }, scratch)
    }))
}

/// A fusion on one matrix product of operands of type `inputs`.
struct Program<'a> {
    fusion: &'a Fusion,
    own_inputs: usize,
    types: &'a [&'a TensorType],
    inputs: DType,
}

impl Program<'_> {
    fn at(&self, reg: Reg) -> Instr {
        self.fusion.program[usize::from(reg)]
    }

    /// An input that the program loads.
    fn input(&self, load: usize) -> Place {
        Place::Input(self.own_inputs + load)
    }

    /// The register that a stored one rounds.
    fn before_rounding(&self, mut reg: Reg, to: DType) -> Reg {
        while let Instr::Cast(ty, of) = self.at(reg)
            && ty == to
        {
            reg = of;
        }
        reg
    }

    /// The register that one has the numbers of, in `f32`.
    fn without_widening(&self, reg: Reg) -> Reg {
        match self.at(reg) {
            Instr::Cast(DType::F32, of) => of,
            _ => reg,
        }
    }

    fn is_product(&self, reg: Reg) -> bool {
        match self.at(reg) {
            Instr::Producer => true,
            Instr::Cast(to, of) => to == self.inputs && self.at(of) == Instr::Producer,
            _ => false,
        }
    }

    /// Outputs that have all elements, in a type that the product may have: number, register and type.
    fn stored(&self) -> impl Iterator<Item = (usize, Reg, DType)> {
        self.fusion.outputs.iter().enumerate().filter_map(|(index, output)| match output {
            FusionOutput::Store { reg, ty } if ty.dtype == self.inputs || ty.dtype == DType::F32 => {
                Some((index, *reg, ty.dtype))
            }
            _ => None,
        })
    }

    /// Sums of the product with a vector by columns: register, and number of the vector.
    fn sums(&self, output: DType) -> impl Iterator<Item = (Reg, usize)> {
        let by_column = IndexMap { row_div: 1, row_mod: 1, by_col: true };
        // A result may lie where an input of its size was, which one of a single row is.
        let is_bias = move |load: usize| self.fusion.loads[load] == by_column && self.fusion.rows > 1;
        (0..).zip(&self.fusion.program).filter_map(move |(sum, instr)| {
            let Instr::Binary(BinaryKind::Add, a, b) = *instr else { return None };
            let (_, other) = [(a, b), (b, a)].into_iter().find(|&(product, _)| self.is_product(product))?;
            let Instr::Load(load) = self.at(other) else { return None };
            let load = usize::from(load);
            let ty = self.types[self.own_inputs + load].dtype;
            (is_bias(load) && (ty == DType::F32 || ty == output)).then_some((sum, load))
        })
    }

    fn find(&self) -> Result<Found, Missed> {
        let missed = if self.fusion.outputs.len() > 1 { Missed::Outputs } else { Missed::Function };
        self.added().or_else(|| self.activated()).or_else(|| self.kept()).or_else(|| self.gelu_gradient()).ok_or(missed)
    }

    /// The product times a number, added to a sum.
    fn added(&self) -> Option<Found> {
        let [factor, kept, sum] = [0, 1, 2].map(|load| self.input(load));
        let epilogue = Epilogue::Added { factor, kept, sum };
        let register = self.fusion.outputs.first()?.reg();
        (self.fusion.program == factors::PROGRAM).then_some(Found {
            what: "a factor, added to a sum",
            epilogue,
            result: 0,
            register,
        })
    }

    /// An activation of the sum with a bias, and nothing else.
    fn activated(&self) -> Option<Found> {
        let (result, reg, ty) = self.stored().next().filter(|_| self.fusion.outputs.len() == 1)?;
        let register = self.before_rounding(reg, ty);
        let mut found = self.sums(ty).filter_map(|(sum, load)| {
            let activation = activation(&self.fusion.program, sum, register)?;
            Some(Found {
                what: match activation {
                    Activation::Nothing => "bias",
                    Activation::Gelu => "bias and GELU",
                },
                epilogue: Epilogue::Bias { bias: self.input(load), activation },
                result,
                register: reg,
            })
        });
        found.next()
    }

    /// The sum with a bias, and what is made of it: in the same pass if that is GELU, which the library takes of the sum before it
    /// is rounded.
    fn kept(&self) -> Option<Found> {
        for (result, reg, ty) in self.stored() {
            let sum = self.before_rounding(reg, ty);
            let Some((_, load)) = self.sums(ty).find(|&(found, _)| found == sum) else { continue };
            let is_gelu = |&(index, of, of_ty): &(usize, Reg, DType)| {
                let before = self.before_rounding(of, of_ty);
                let is = || activation(&self.fusion.program, reg, before) == Some(Activation::Gelu);
                index != result && of_ty == ty && is()
            };
            let both = self.fusion.outputs.len() == 2 && self.fusion.cols.is_multiple_of(ALIGNED_COLUMNS);
            let bias = self.input(load);
            if let Some((gelu, register, _)) = self.stored().filter(|_| both).find(is_gelu) {
                let aux = Place::Output(self.fusion.node_output(result));
                let (what, epilogue) = ("bias and GELU, the sum kept", Epilogue::GeluAuxBias { bias, aux });
                return Some(Found { what, epilogue, result: gelu, register });
            }
            // What is left reads the sum as it was stored.
            if region::reads_product_through(self.fusion, reg) {
                let epilogue = Epilogue::Bias { bias, activation: Activation::Nothing };
                return Some(Found { what: "bias", epilogue, result, register: reg });
            }
        }
        None
    }

    /// The product times GELU's derivative of an input of the result's type.
    fn gelu_gradient(&self) -> Option<Found> {
        if !self.fusion.cols.is_multiple_of(ALIGNED_COLUMNS) {
            return None;
        }
        let (result, reg, ty) = self.stored().next()?;
        let product = (0..self.fusion.program.len() as Reg).rfind(|&reg| self.is_product(reg))?;
        let full = (0..self.fusion.loads.len()).filter(|&load| {
            self.fusion.loads[load].is_full(self.fusion.rows) && self.types[self.own_inputs + load].dtype == ty
        });
        let result_before = self.before_rounding(reg, ty);
        let program = &self.fusion.program;
        let is_gradient = |&load: &usize| {
            let input = Instr::Load(load as u16);
            SAMPLES.iter().all(|&(factor, x)| {
                let given = |number: Reg, instr: &Instr| match *instr {
                    _ if number == product => Some(factor),
                    _ if *instr == input => Some(x),
                    _ => None,
                };
                let found = value(program, result_before, given);
                found.is_some_and(|y| (y - factor * gelu_slope(x)).abs() <= ALLOWED)
            })
        };
        let mut found = full.filter(is_gradient);
        let load = found.next().filter(|_| region::reads_product_through(self.fusion, reg))?;
        let epilogue = Epilogue::GeluGrad { aux: self.input(load) };
        Some(Found { what: "gradient of GELU", epilogue, result, register: reg })
    }
}

/// Rows of what is kept begin at multiples of as many elements.
const ALIGNED_COLUMNS: usize = 8;

/// Products, and values that GELU's gradient is taken at.
const SAMPLES: [(f64, f64); 9] =
    [(1.0, 0.0), (1.0, 0.3), (-0.7, 1.1), (2.0, -0.9), (0.5, 2.2), (1.5, -2.6), (1.0, 4.0), (-1.0, -4.5), (3.0, 0.01)];

/// Of what two functions may differ that are taken for the same. GELU by tanh and by erf differ by up to 5e-4.
const ALLOWED: f64 = 1e-6;

/// What register `result` holds as a function of register `sum`, where it depends on nothing else: told by its values.
fn activation(program: &[Instr], sum: Reg, result: Reg) -> Option<Activation> {
    if result == sum {
        return Some(Activation::Nothing);
    }
    const STEP: f64 = 0.21;
    let samples: Vec<(f64, f64)> = (-40..=40)
        .map(|i| f64::from(i) * STEP + 0.01)
        .map(|x| Some((x, value(program, result, |number, _| (number == sum).then_some(x))?)))
        .collect::<Option<_>>()?;
    let is = |known: &Activation| samples.iter().all(|&(x, y)| (known.of(x) - y).abs() <= ALLOWED);
    Some(Activation::Gelu).filter(is)
}

/// What register `result` holds, without roundings, where others hold what is given; `None` where that depends on anything else.
fn value(program: &[Instr], result: Reg, given: impl Fn(Reg, &Instr) -> Option<f64>) -> Option<f64> {
    let mut registers: Vec<Option<f64>> = Vec::with_capacity(program.len());
    for (number, instr) in (0..).zip(program) {
        let at = |reg: Reg| registers[usize::from(reg)];
        let known = given(number, instr).or_else(|| match *instr {
            Instr::Cast(DType::F32 | DType::Bf16 | DType::F16, a) => at(a),
            Instr::Const(number) => Some(number.0),
            Instr::Unary(kind, a) => at(a).map(|a| kind.apply(a)),
            Instr::Binary(kind, a, b) => at(a).zip(at(b)).map(|(a, b)| kind.apply(a, b)),
            Instr::Select(condition, a, b) => {
                at(condition).zip(at(a).zip(at(b))).map(|(is, (a, b))| if is != 0.0 { a } else { b })
            }
            _ => None,
        });
        registers.push(known);
    }
    registers[usize::from(result)]
}

impl Lowered {
    /// A vector in another type.
    ///
    /// # Errors
    /// There is no kernel for it.
    fn convert(&mut self, [from, to]: [Place; 2], elements: usize, types: [DType; 2]) -> Result<(), Unsupported> {
        let converting = Fusion {
            producer: None,
            rows: 1,
            cols: elements,
            loads: vec![IndexMap::full(1)],
            program: vec![Instr::Load(0), Instr::Cast(types[1], 0)],
            outputs: vec![FusionOutput::Store { reg: 1, ty: TensorType::new(types[1], [elements]) }],
        };
        region::launch(self, &converting, &types[..1], &[from], &[to])
    }
}
