//! Lets a matrix product be added to a sum by factors that are numbers in memory: gradients of weights to those of the micro-batches
//! before. What single numbers make of both is computed once, not for every element, and libraries of products take it as it is.

use crate::dtype::DType;
use crate::graph::{Graph, GraphError, NodeId, Rewriter, Value};
use crate::ops::fusion::{Fusion, FusionOutput, IndexMap, Instr, Reg};
use crate::ops::pointwise::BinaryKind;
use crate::ops::{Op, Scalar};
use crate::shape::TensorType;
use std::collections::HashMap;

/// What becomes of such a product `x w`, `f32[rows, cols]`: `factor * (x w) + kept * sum`. Its inputs behind those of the product are
/// `factor f32[]`, `kept f32[]`, which is 1 or 0, and `sum f32[rows, cols]`, which may hold anything where `kept` is 0.
pub const PROGRAM: [Instr; 9] = [
    Instr::Load(0),
    Instr::Load(1),
    Instr::Load(2),
    Instr::Producer,
    Instr::Binary(BinaryKind::Mul, 3, 0),
    Instr::Const(Scalar(0.0)),
    Instr::Binary(BinaryKind::Eq, 1, 5),
    Instr::Select(6, 5, 2),
    Instr::Binary(BinaryKind::Add, 7, 4),
];

/// The output of [`PROGRAM`].
const RESULT: Reg = PROGRAM.len() as Reg - 1;

/// # Errors
/// Only if the graph was malformed.
pub fn factors(graph: &Graph) -> Result<Graph, GraphError> {
    let mut rewriter = Rewriter::new(graph);
    let mut known: HashMap<(Fusion, Vec<Value>), Vec<Value>> = HashMap::new();
    for id in graph.ids() {
        let Some(Sum { product, numbers, read, sum }) = Sum::find(graph, id) else {
            rewriter.copy(id)?;
            continue;
        };
        let (operands, inputs) = graph.node(id).inputs.split_at(product.producer_inputs());
        let read: Vec<Value> = read.iter().map(|&load| rewriter.get(inputs[load])).collect();
        let path = graph.path(id);
        let key = (numbers, read);
        let given = match known.get(&key) {
            Some(given) => given.clone(),
            None => {
                let given = rewriter.target().at_path(path, |g| g.push(key.0.clone(), &key.1))?;
                known.insert(key, given.clone());
                given
            }
        };
        let operands = operands.iter().map(|&operand| rewriter.get(operand));
        let inputs: Vec<Value> = operands.chain(given).chain([rewriter.get(inputs[sum])]).collect();
        let output = rewriter.target().at_path(path, |g| g.push1(product, &inputs))?;
        rewriter.set(Value { node: id, output: 0 }, output);
    }
    rewriter.finish()
}

/// A product that is added to a sum.
struct Sum {
    /// The product with [`PROGRAM`].
    product: Fusion,
    /// What gives `factor` and `kept`.
    numbers: Fusion,
    /// Inputs of the program that `numbers` reads, by number, and that of the sum.
    read: Vec<usize>,
    sum: usize,
}

impl Sum {
    fn find(graph: &Graph, id: NodeId) -> Option<Sum> {
        let Op::Fusion(fusion) = &graph.node(id).op else { return None };
        let Some(Op::Matmul(_)) = fusion.producer.as_deref() else { return None };
        let [FusionOutput::Store { reg, ty }] = &fusion.outputs[..] else { return None };
        let at = |reg: Reg| fusion.program[usize::from(reg)];
        let numbers = numbers(fusion);
        let is_number = |reg: Reg| numbers[usize::from(reg)];
        let Instr::Binary(BinaryKind::Add, left, right) = at(*reg) else { return None };
        // The condition, the sum, and what is kept of it where the condition holds and where not.
        let kept = |reg: Reg| {
            let Instr::Select(condition, a, b) = at(reg) else { return None };
            let is_zero = |reg: Reg| matches!(at(reg), Instr::Const(Scalar(0.0)));
            let (sum, values) = match (at(a), at(b)) {
                (_, Instr::Load(sum)) if is_zero(a) => (usize::from(sum), [0.0, 1.0]),
                (Instr::Load(sum), _) if is_zero(b) => (usize::from(sum), [1.0, 0.0]),
                _ => return None,
            };
            let sum_ty = graph.ty(graph.node(id).inputs[fusion.producer_inputs() + sum]);
            let is_sum = fusion.loads[sum].is_full(fusion.rows) && sum_ty == ty;
            let fits = is_sum && ty.dtype == DType::F32 && is_number(condition);
            fits.then_some((condition, sum, values))
        };
        // What the product is multiplied by.
        let factors = |mut reg: Reg| {
            let mut factors = Vec::new();
            while at(reg) != Instr::Producer {
                let Instr::Binary(BinaryKind::Mul, a, b) = at(reg) else { return None };
                let (factor, rest) = if is_number(a) { (a, b) } else { (b, a) };
                is_number(factor).then(|| factors.push(factor))?;
                reg = rest;
            }
            Some(factors)
        };
        let found = |(a, b): (Reg, Reg)| Some((kept(a)?, factors(b)?));
        let ((condition, sum, values), factors) = [(left, right), (right, left)].into_iter().find_map(found)?;
        let (numbers, read) = factor_and_kept(fusion, &factors, condition, values);
        let loads = vec![IndexMap::SCALAR, IndexMap::SCALAR, IndexMap::full(fusion.rows)];
        let outputs = vec![FusionOutput::Store { reg: RESULT, ty: ty.clone() }];
        let product = Fusion { loads, program: PROGRAM.to_vec(), outputs, ..fusion.clone() };
        Some(Sum { product, numbers, read, sum })
    }
}

/// For each register whether it holds one number, that of constants and of inputs that are one number.
fn numbers(fusion: &Fusion) -> Vec<bool> {
    let mut is_number: Vec<bool> = Vec::with_capacity(fusion.program.len());
    for instr in &fusion.program {
        is_number.push(match *instr {
            Instr::Const(_) | Instr::Int(_) => true,
            Instr::Load(load) => fusion.loads[usize::from(load)] == IndexMap::SCALAR,
            Instr::Unary(..) | Instr::Binary(..) | Instr::Select(..) | Instr::Cast(..) => {
                instr.operands().all(|reg| is_number[usize::from(reg)])
            }
            Instr::Producer | Instr::Reduce(..) | Instr::OneHot(_) | Instr::Random { .. } => false,
        });
    }
    is_number
}

/// The fusion of one element that gives the product of some registers of a fusion, and which of two values a condition chooses; and the
/// inputs of the fusion that it reads.
fn factor_and_kept(fusion: &Fusion, factors: &[Reg], condition: Reg, values: [f64; 2]) -> (Fusion, Vec<usize>) {
    let mut is_needed = vec![false; fusion.program.len()];
    factors.iter().chain([&condition]).for_each(|&reg| is_needed[usize::from(reg)] = true);
    for (reg, instr) in fusion.program.iter().enumerate().rev() {
        if is_needed[reg] {
            instr.operands().for_each(|operand| is_needed[usize::from(operand)] = true);
        }
    }
    let (mut program, mut read) = (Vec::new(), Vec::new());
    let mut now: Vec<Reg> = vec![0; fusion.program.len()];
    for (reg, instr) in fusion.program.iter().enumerate().filter(|(reg, _)| is_needed[*reg]) {
        let moved = match *instr {
            Instr::Load(load) => {
                let number = read.iter().position(|&one| one == usize::from(load)).unwrap_or_else(|| {
                    read.push(usize::from(load));
                    read.len() - 1
                });
                Instr::Load(number as u16)
            }
            other => other.renamed(|reg| now[usize::from(reg)]),
        };
        now[reg] = program.len() as Reg;
        program.push(moved);
    }
    let mut push = |instr: Instr| {
        program.push(instr);
        program.len() as Reg - 1
    };
    let mut factor = None;
    for &reg in factors {
        let reg = now[usize::from(reg)];
        factor = Some(factor.map_or(reg, |before| push(Instr::Binary(BinaryKind::Mul, before, reg))));
    }
    let factor = factor.unwrap_or_else(|| push(Instr::Const(Scalar(1.0))));
    let [where_true, where_false] = values.map(|value| push(Instr::Const(Scalar(value))));
    let kept = push(Instr::Select(now[usize::from(condition)], where_true, where_false));
    let store = |reg: Reg| FusionOutput::Store { reg, ty: TensorType::f32([]) };
    let loads = vec![IndexMap::full(1); read.len()];
    (Fusion { producer: None, rows: 1, cols: 1, loads, program, outputs: vec![store(factor), store(kept)] }, read)
}
