//! Fused kernels: a pointwise program over a `[rows, cols]` domain, with reductions along rows and sums over rows,
//! optionally run on the output of a convolution or matmul while it is in cache.

use super::conv_then_depthwise::ConvThenDepthwise;
use super::conv_with_prologue::ConvWithPrologue;
use super::limited::Limited;
use super::pointwise::{BinaryKind, Cast, UnaryKind};
use super::reduce::ReduceKind;
use super::{Cost, GradArgs, Gradient, Op, OpError, OpRule, Scalar};
use crate::dtype::DType;
use crate::graph::{Graph, GraphError};
use crate::philox;
use crate::reference::Tensor;
use crate::shape::{Shape, TensorType};
use std::fmt;

/// Which element of an input stands at a position `(row, col)` of the domain:
/// `((row / row_div) % row_mod) * width + (by_col ? col : 0)`, where `width` is `by_col ? cols : 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IndexMap {
    /// Consecutive rows of the domain that share a row of the input.
    pub row_div: usize,
    /// Rows of the input; the domain's rows repeat them cyclically.
    pub row_mod: usize,
    /// Whether the element depends on the column.
    pub by_col: bool,
}

impl IndexMap {
    /// One element for each position: a tensor of the shape of the domain.
    pub fn full(rows: usize) -> Self {
        IndexMap { row_div: 1, row_mod: rows, by_col: true }
    }

    /// One element for all positions.
    pub const SCALAR: IndexMap = IndexMap { row_div: 1, row_mod: 1, by_col: false };

    /// How a tensor of `shape` is read when broadcast to `domain`, or `None` where that is not of this form: along the
    /// rows, the axes must be some broadcast ones, then some present ones, then some broadcast ones.
    pub fn of(shape: &Shape, domain: &Shape) -> Option<IndexMap> {
        if !shape.broadcasts_to(domain) {
            return None;
        }
        let rank = domain.rank();
        let missing = rank - shape.rank();
        let own = |axis: usize| if axis < missing { 1 } else { shape[axis - missing] };
        let by_col = rank > 0 && domain[rank - 1] != 1 && own(rank - 1) == domain[rank - 1];
        let (mut div, mut modulo, mut stage) = (1, 1, 0);
        for axis in (0..rank.saturating_sub(1)).rev().filter(|&a| domain[a] != 1) {
            let present = own(axis) != 1;
            match (stage, present) {
                (0, false) => div *= domain[axis],
                (0 | 1, true) => {
                    stage = 1;
                    modulo *= domain[axis];
                }
                (_, false) => stage = 2,
                (_, true) => return None,
            }
        }
        let by_col = by_col || rank == 0;
        let index_map = IndexMap { row_div: if modulo == 1 { 1 } else { div }, row_mod: modulo, by_col };
        Some(if domain.cols() == 1 { IndexMap { by_col: true, ..index_map } } else { index_map })
    }

    /// Position of the element in the input's row-major data.
    pub fn index(self, cols: usize, row: usize, col: usize) -> usize {
        let row = row / self.row_div % self.row_mod;
        if self.by_col { row * cols + col } else { row }
    }

    /// Whether the input has one element for each position of a domain of `rows` rows.
    pub fn is_full(self, rows: usize) -> bool {
        self.by_col && self.row_div == 1 && self.row_mod == rows
    }

    /// The index of an element in terms of the position, e.g. `[row / 49, col]`; nothing for a full input of a domain of
    /// `rows` rows.
    fn describe(self, rows: usize) -> String {
        if self.is_full(rows) {
            return String::new();
        }
        let mut row = match self.row_div {
            1 => "row".to_string(),
            div => format!("row / {div}"),
        };
        if self.row_div * self.row_mod < rows {
            row += &format!(" % {}", self.row_mod);
        }
        match (self.row_mod, self.by_col) {
            (1, false) => "[]".to_string(),
            (1, true) => "[col]".to_string(),
            (_, false) => format!("[{row}]"),
            (_, true) => format!("[{row}, col]"),
        }
    }

    /// Number of elements of the input.
    pub fn elements(self, cols: usize) -> usize {
        self.row_mod * if self.by_col { cols } else { 1 }
    }
}

/// A register: the number of the instruction whose result it holds.
pub type Reg = u16;

/// What a register holds at each position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegType {
    /// A number of any float type or `u8`, as an `f32`; a truth value as 1 or 0.
    F32,
    /// A signed 32-bit integer.
    I32,
}

impl RegType {
    /// How a register holds elements of this type.
    pub fn of(dtype: DType) -> RegType {
        match dtype {
            DType::I32 => RegType::I32,
            DType::F32 | DType::Bf16 | DType::F16 | DType::U8 | DType::Bool => RegType::F32,
        }
    }

    fn name(self) -> &'static str {
        match self {
            RegType::F32 => "f32",
            RegType::I32 => "i32",
        }
    }
}

/// One instruction of the program. Arithmetic is that of the operands' registers: in `f32`, or of `i32` modulo 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Instr {
    /// The producer's output.
    Producer,
    /// Input number (behind those of the producer), as [`RegType`] says.
    Load(u16),
    /// An `f32` constant.
    Const(Scalar),
    /// An `i32` constant.
    Int(i32),
    /// The function of an `f32` register.
    Unary(UnaryKind, Reg),
    /// The function of two registers of one type.
    Binary(BinaryKind, Reg, Reg),
    /// `condition != 0 ? a : b`, of an `f32` condition.
    Select(Reg, Reg, Reg),
    /// Rounded as a conversion to this type rounds; of `i32` to `f32` alone.
    Cast(DType, Reg),
    /// All columns of the row reduced; the same in every column.
    Reduce(ReduceKind, Reg),
    /// 1 in the column of this `i32`, 0 elsewhere.
    OneHot(Reg),
    /// Uniform random numbers in `[0, 1)`, a function of the position; input number `step` is the `i32[]` that
    /// [`Random`](super::source::Random) takes.
    Random {
        /// Seed of the random generator.
        seed: u64,
        /// Distinguishes the random nodes of one step.
        stream: u32,
        /// Position of the step counter among the inputs of the program.
        step: u16,
    },
}

impl Instr {
    /// Registers read.
    pub fn operands(&self) -> impl Iterator<Item = Reg> {
        let (list, n) = match *self {
            Instr::Producer | Instr::Load(_) | Instr::Const(_) | Instr::Int(_) | Instr::Random { .. } => ([0; 3], 0),
            Instr::Unary(_, a) | Instr::Cast(_, a) | Instr::Reduce(_, a) | Instr::OneHot(a) => ([a, 0, 0], 1),
            Instr::Binary(_, a, b) => ([a, b, 0], 2),
            Instr::Select(c, a, b) => ([c, a, b], 3),
        };
        list.into_iter().take(n)
    }

    /// The instruction with other registers.
    pub fn renamed(self, name: impl Fn(Reg) -> Reg) -> Instr {
        match self {
            Instr::Producer | Instr::Load(_) | Instr::Const(_) | Instr::Int(_) | Instr::Random { .. } => self,
            Instr::Unary(kind, a) => Instr::Unary(kind, name(a)),
            Instr::Binary(kind, a, b) => Instr::Binary(kind, name(a), name(b)),
            Instr::Select(c, a, b) => Instr::Select(name(c), name(a), name(b)),
            Instr::Cast(to, a) => Instr::Cast(to, name(a)),
            Instr::Reduce(kind, a) => Instr::Reduce(kind, name(a)),
            Instr::OneHot(a) => Instr::OneHot(name(a)),
        }
    }

    /// What its register holds, if `registers` are those before it and `loads` the element types of the inputs.
    ///
    /// # Errors
    /// Which operand it does not take.
    pub fn result_type(&self, registers: &[RegType], loads: &[DType]) -> Result<RegType, String> {
        let register = |r: Reg| registers.get(r as usize).copied().ok_or_else(|| "reads a later one".to_string());
        let input = |i: u16| match loads.get(i as usize) {
            Some(&dtype) => Ok(dtype),
            None => Err("loads an input that is not there".to_string()),
        };
        let expect = |r: Reg, ty: RegType| match register(r)? {
            actual if actual == ty => Ok(ty),
            actual => Err(format!("takes {}, register {r} holds {}", ty.name(), actual.name())),
        };
        match *self {
            Instr::Producer | Instr::Const(_) => Ok(RegType::F32),
            Instr::Int(_) => Ok(RegType::I32),
            Instr::Load(i) => input(i).map(RegType::of),
            Instr::Random { step, .. } => match input(step)? {
                DType::I32 => Ok(RegType::F32),
                other => Err(format!("takes the step counter as i32, not {other}")),
            },
            Instr::Unary(_, a) | Instr::Reduce(_, a) => expect(a, RegType::F32),
            Instr::OneHot(a) => expect(a, RegType::I32).map(|_| RegType::F32),
            Instr::Binary(kind, a, b) => {
                let ty = if kind.is_of_integers() { register(a)? } else { expect(a, RegType::F32)? };
                expect(b, ty)?;
                Ok(if kind.is_comparison() { RegType::F32 } else { ty })
            }
            Instr::Select(c, a, b) => {
                expect(c, RegType::F32)?;
                expect(b, register(a)?)
            }
            Instr::Cast(to, a) => {
                let takes_any = matches!(to, DType::F32 | DType::I32);
                if takes_any {
                    register(a)?
                } else {
                    expect(a, RegType::F32)?
                };
                Ok(RegType::of(to))
            }
        }
    }
}

/// How a register becomes an output of the fusion.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FusionOutput {
    /// Every element, converted to the type. The shape has the elements of the domain.
    Store {
        /// The register that is stored.
        reg: Reg,
        /// Element type and shape of the output.
        ty: TensorType,
    },
    /// One element for each row, of a register that is the same in every column of a row.
    Rows {
        /// The register that is stored.
        reg: Reg,
        /// Element type and shape of the output, one element for each row of the domain.
        ty: TensorType,
    },
    /// Sums over the rows of each of `groups` runs of consecutive rows: `f32[groups, cols]` elements in the given shape.
    Sum {
        /// The register that is summed.
        reg: Reg,
        /// Number of runs, all of equal length.
        groups: usize,
        /// Shape of the output, `groups * cols` elements.
        shape: Shape,
    },
    /// Mean and biased variance over all rows: two outputs of `f32[cols]` elements in the given shape.
    MeanVar {
        /// The register whose moments are taken.
        reg: Reg,
        /// Shape of each of the two outputs, `cols` elements.
        shape: Shape,
    },
}

impl FusionOutput {
    /// The register that the output is made from.
    pub fn reg(&self) -> Reg {
        match *self {
            FusionOutput::Store { reg, .. }
            | FusionOutput::Rows { reg, .. }
            | FusionOutput::Sum { reg, .. }
            | FusionOutput::MeanVar { reg, .. } => reg,
        }
    }

    /// Types of the outputs of the node this one stands for: one, or two for moments.
    pub fn types(&self) -> Vec<TensorType> {
        match self {
            FusionOutput::Store { ty, .. } | FusionOutput::Rows { ty, .. } => vec![ty.clone()],
            FusionOutput::Sum { shape, .. } => vec![TensorType::f32(shape.clone())],
            FusionOutput::MeanVar { shape, .. } => vec![TensorType::f32(shape.clone()); 2],
        }
    }
}

/// A fusion. Inputs: those of the producer, then those the program loads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fusion {
    /// Convolution or matmul whose output the program reads; it has `rows * cols` elements with `cols` innermost.
    pub producer: Option<Box<Op>>,
    /// Rows of the domain: the product of all axes but the innermost.
    pub rows: usize,
    /// Columns of the domain: the size of the innermost axis.
    pub cols: usize,
    /// How the program reads each of its inputs; one entry an input, in their order behind those of the producer.
    pub loads: Vec<IndexMap>,
    /// Instructions in order; the result of instruction `i` is register `i`.
    pub program: Vec<Instr>,
    /// What the kernel writes, in order.
    pub outputs: Vec<FusionOutput>,
}

impl Fusion {
    /// Number of inputs that belong to the producer.
    pub fn producer_inputs(&self) -> usize {
        match self.producer.as_deref() {
            None => 0,
            Some(Op::ConvWithPrologue(_)) => ConvWithPrologue::INPUTS,
            Some(Op::ConvThenDepthwise(_)) => ConvThenDepthwise::INPUTS,
            Some(Op::Limited(_)) => Limited::INPUTS,
            Some(_) => 2,
        }
    }

    /// Number of the store, among the outputs, that writes the producer's output unchanged.
    pub fn stores_producer(&self) -> Option<usize> {
        self.outputs.iter().position(
            |o| matches!(o, FusionOutput::Store { reg, .. } if self.program[*reg as usize] == Instr::Producer),
        )
    }

    /// Position of output `index` (of the fusion's list) among the outputs of the node.
    pub fn node_output(&self, index: usize) -> usize {
        self.outputs[..index].iter().map(|o| o.types().len()).sum()
    }

    /// Arithmetic instructions of the program.
    pub fn arithmetic(&self) -> usize {
        let moves = |i: &Instr| {
            matches!(i, Instr::Producer | Instr::Load(_) | Instr::Const(_) | Instr::Int(_) | Instr::Cast(..))
        };
        self.program.iter().filter(|i| !moves(i)).count()
    }

    /// What each register holds, for inputs of the program of these element types.
    ///
    /// # Errors
    /// The first instruction whose operands do not fit it.
    pub fn register_types(&self, loads: &[DType]) -> Result<Vec<RegType>, OpError> {
        let mut types = Vec::with_capacity(self.program.len());
        for (index, instr) in self.program.iter().enumerate() {
            let ty = instr.result_type(&types, loads);
            types.push(ty.map_err(|problem| OpError::Program { instr: index, problem })?);
        }
        Ok(types)
    }

    /// Whether a row must be computed as a whole.
    pub fn is_rowwise(&self) -> bool {
        self.program.iter().any(|i| matches!(i, Instr::Reduce(..)))
            || self.outputs.iter().any(|o| matches!(o, FusionOutput::Rows { .. }))
    }
}

impl fmt::Display for Instr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Instr::Producer => write!(f, "producer"),
            Instr::Load(i) => write!(f, "in{i}"),
            Instr::Const(c) => write!(f, "{}", c.0),
            Instr::Int(i) => write!(f, "i32 {i}"),
            Instr::Unary(k, a) => write!(f, "{} r{a}", k.name()),
            Instr::Binary(k, a, b) => write!(f, "{} r{a} r{b}", k.name()),
            Instr::Select(c, a, b) => write!(f, "select r{c} r{a} r{b}"),
            Instr::Cast(to, a) => write!(f, "{to} r{a}"),
            Instr::Reduce(kind, a) => write!(f, "row_{} r{a}", kind.name()),
            Instr::OneHot(a) => write!(f, "one_hot r{a}"),
            Instr::Random { seed, stream, step } => write!(f, "random(seed={seed}, stream={stream}) in{step}"),
        }
    }
}

impl OpRule for Fusion {
    fn name(&self) -> &'static str {
        "fusion"
    }

    fn attributes(&self) -> String {
        let mut parts = Vec::new();
        if let Some(producer) = &self.producer {
            parts.push(producer.to_string());
        }
        parts.push(format!("[{}, {}]", self.rows, self.cols));
        let load =
            |i: u16| self.loads.get(i as usize).map(|index_map| index_map.describe(self.rows)).unwrap_or_default();
        let program: Vec<String> = self
            .program
            .iter()
            .map(|instr| match instr {
                Instr::Load(i) => format!("{instr}{}", load(*i)),
                _ => instr.to_string(),
            })
            .collect();
        parts.push(program.join("; "));
        let outputs: Vec<String> = self
            .outputs
            .iter()
            .map(|o| match o {
                FusionOutput::Store { reg, .. } => format!("store r{reg}"),
                FusionOutput::Rows { reg, .. } => format!("rows r{reg}"),
                FusionOutput::Sum { reg, groups: 1, .. } => format!("sum r{reg}"),
                FusionOutput::Sum { reg, groups, .. } => format!("sum r{reg} in {groups}"),
                FusionOutput::MeanVar { reg, .. } => format!("moments r{reg}"),
            })
            .collect();
        parts.push(outputs.join(", "));
        parts.join(" | ")
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let own = self.producer_inputs();
        if inputs.len() != own + self.loads.len() {
            return Err(OpError::operands(format!("{} inputs", own + self.loads.len())));
        }
        if let Some(producer) = &self.producer {
            let types = producer.rule().infer(&inputs[..own])?;
            if types[0].shape.elements() != self.rows * self.cols {
                return Err(OpError::Sizes(format!(
                    "the producer gives {}, the domain is [{}, {}]",
                    types[0], self.rows, self.cols
                )));
            }
        }
        for (number, (index_map, input)) in self.loads.iter().zip(&inputs[own..]).enumerate() {
            // Of a domain without elements nothing is read.
            let is_read = self.rows * self.cols != 0;
            if is_read && (index_map.row_div == 0 || index_map.row_mod == 0) {
                return Err(OpError::Attribute(format!(
                    "input {number} of the program is read by {index_map:?}, row_div and row_mod must be 1 or more"
                )));
            }
            if index_map.elements(self.cols) != input.shape.elements() {
                return Err(OpError::Sizes(format!("{input} is not read by {index_map:?}")));
            }
        }
        if self.producer.is_none()
            && let Some(instr) = self.program.iter().position(|instr| *instr == Instr::Producer)
        {
            let problem = "reads a producer, the fusion has none".to_string();
            return Err(OpError::Program { instr, problem });
        }
        let loads: Vec<DType> = inputs[own..].iter().map(|ty| ty.dtype).collect();
        let registers = self.register_types(&loads)?;
        for (index, output) in self.outputs.iter().enumerate() {
            self.check_output(index, output, &registers)?;
        }
        Ok(self.outputs.iter().flat_map(FusionOutput::types).collect())
    }

    fn gradient(&self, _graph: &mut Graph, _args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        Ok(Gradient::NotDifferentiable)
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        let own = self.producer_inputs();
        let pointwise = (self.rows * self.cols * (self.arithmetic() + self.outputs.len())) as u64;
        let producer = self.producer.as_ref().map_or(Cost::default(), |a| a.rule().cost(&inputs[..own], &[]));
        producer + Cost::streaming(pointwise, &inputs[own..], outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let own = self.producer_inputs();
        let producer = self.producer.as_ref().map(|op| {
            let types: Vec<&TensorType> = inputs[..own].iter().map(|t| &t.ty).collect();
            let ty = op.rule().infer(&types).expect("the verified producer accepts its inputs");
            op.rule().evaluate(&inputs[..own], &ty).remove(0)
        });
        let loads: Vec<DType> = inputs[own..].iter().map(|t| t.ty.dtype).collect();
        let types = self.register_types(&loads).expect("the node was accepted with these types");
        let mut registers: Vec<Vec<f64>> = Vec::with_capacity(self.program.len());
        for instr in &self.program {
            let at = |r: Reg, i: usize| registers[r as usize][i];
            let reduce = |kind: ReduceKind, r: Reg, row: usize| {
                (row * self.cols..(row + 1) * self.cols).fold(kind.identity(), |sum, i| kind.combine(sum, at(r, i)))
            };
            let value = |i: usize| match *instr {
                Instr::Producer => producer.as_ref().expect("a fusion that reads a producer has one").data[i],
                Instr::Load(n) => {
                    let index = self.loads[n as usize].index(self.cols, i / self.cols, i % self.cols);
                    inputs[own + n as usize].data[index]
                }
                Instr::Const(c) => c.0,
                Instr::Int(i) => f64::from(i),
                Instr::Unary(kind, a) => kind.apply(at(a, i)),
                Instr::Binary(kind, a, b) if types[a as usize] == RegType::I32 => {
                    kind.apply_to(DType::I32, at(a, i), at(b, i))
                }
                Instr::Binary(kind, a, b) => kind.apply(at(a, i), at(b, i)),
                Instr::Select(c, a, b) => at(if at(c, i) != 0.0 { a } else { b }, i),
                Instr::Cast(to, a) => Cast { to }.apply(at(a, i)),
                Instr::Reduce(kind, a) => reduce(kind, a, i / self.cols),
                Instr::OneHot(a) => f64::from(u8::from(at(a, i) == (i % self.cols) as f64)),
                Instr::Random { seed, stream, step } => {
                    let step = inputs[own + step as usize].data[0] as u32;
                    f64::from(philox::uniform(seed, step, stream, i as u64))
                }
            };
            let column = (0..self.rows * self.cols).map(value).collect();
            registers.push(column);
        }
        let mut output_types = outputs.iter().cloned();
        let mut next = |data: Vec<f64>| Tensor::new(output_types.next().expect("as many types as outputs"), data);
        let mut results = Vec::new();
        for output in &self.outputs {
            let values = &registers[output.reg() as usize];
            match *output {
                FusionOutput::Store { .. } => results.push(next(values.clone())),
                FusionOutput::Rows { .. } => results.push(next(values.iter().step_by(self.cols).copied().collect())),
                FusionOutput::Sum { groups, .. } => results.push(next(self.column_sums(values, groups, |_, x| x))),
                FusionOutput::MeanVar { .. } => {
                    let rows = self.rows as f64;
                    let mean: Vec<f64> = self.column_sums(values, 1, |_, x| x).iter().map(|s| s / rows).collect();
                    let squares = self.column_sums(values, 1, |col, x| (x - mean[col]).powi(2));
                    results.push(next(mean));
                    results.push(next(squares.iter().map(|s| s / rows).collect()));
                }
            }
        }
        results
    }

    fn contraction_flops(&self, inputs: &[&TensorType]) -> u64 {
        self.producer
            .as_ref()
            .map_or(0, |producer| producer.rule().contraction_flops(&inputs[..self.producer_inputs()]))
    }

    fn may_overwrite(&self, output: usize, input: usize) -> bool {
        let is_store = (0..self.outputs.len()).any(|index| {
            matches!(self.outputs[index], FusionOutput::Store { .. }) && self.node_output(index) == output
        });
        let load = input.checked_sub(self.producer_inputs());
        is_store && load.is_some_and(|load| self.loads[load].is_full(self.rows))
    }

    fn kernel_name(&self) -> &'static str {
        self.producer.as_ref().map_or(self.name(), |producer| producer.rule().fused_kernel_name())
    }
}

impl Fusion {
    /// Kernels write outputs by the sizes of the domain, whatever the types of these say.
    fn check_output(&self, index: usize, output: &FusionOutput, registers: &[RegType]) -> Result<(), OpError> {
        let instr = usize::from(output.reg());
        let Some(&register) = registers.get(instr) else {
            return Err(OpError::Program { instr, problem: "is not there, and gives an output".to_string() });
        };
        let ty = &output.types()[0];
        if register != RegType::of(ty.dtype) {
            let problem = format!("gives {}, of which no {ty} is made", register.name());
            return Err(OpError::Program { instr, problem });
        }
        let (elements, what) = match *output {
            FusionOutput::Store { .. } => (self.rows * self.cols, "an element for each position"),
            FusionOutput::Rows { .. } => (self.rows, "an element for each row"),
            FusionOutput::Sum { groups, .. } if self.rows.is_multiple_of(groups) => {
                (groups * self.cols, "sums of runs of rows by column")
            }
            FusionOutput::Sum { groups, .. } => {
                return Err(OpError::Attribute(format!(
                    "output {index} sums {groups} runs of rows, which must be equal parts of the {} rows",
                    self.rows
                )));
            }
            FusionOutput::MeanVar { .. } => (self.cols, "moments of all rows by column"),
        };
        if ty.shape.elements() != elements {
            return Err(OpError::Sizes(format!(
                "output {index} of [{}, {}] is {what}, {elements} in all, not {ty}",
                self.rows, self.cols
            )));
        }
        Ok(())
    }

    fn column_sums(&self, values: &[f64], groups: usize, f: impl Fn(usize, f64) -> f64) -> Vec<f64> {
        let mut sums = vec![0.0; groups * self.cols];
        for (i, &x) in values.iter().enumerate() {
            let (row, col) = (i / self.cols, i % self.cols);
            sums[row / (self.rows / groups) * self.cols + col] += f(col, x);
        }
        sums
    }
}
