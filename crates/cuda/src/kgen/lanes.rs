//! Text that computes a fusion's program for a few neighbouring columns of one row: the part that all kernels of
//! fusions share.

use super::{KernelError, Parameter, c_type};
use bessemer_ir::DType;
use bessemer_ir::ops::fusion::{Fusion, FusionOutput, IndexMap, Instr, Reg, RegType};
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::ops::reduce::ReduceKind;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Columns that a thread may compute at once.
pub(super) const MOST_LANES: usize = 8;

/// A fusion without a producer, with the types of what it loads.
pub(super) struct Lanes<'a> {
    pub fusion: &'a Fusion,
    inputs: &'a [DType],
    registers: Vec<RegType>,
}

/// What was loaded and drawn before: inputs, and random registers.
#[derive(Default)]
pub(super) struct There {
    pub inputs: BTreeSet<usize>,
    pub drawn: BTreeSet<Reg>,
}

/// How `width` neighbouring elements are addressed in the text: by the variables `row` and `col`, or, where no input
/// depends on them apart, by `at` alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Width {
    pub lanes: usize,
    /// Elements are counted through, without rows.
    pub flat: bool,
}

/// The stream of a random register, in the text.
fn stream_of(register: Reg) -> String {
    format!("stream{register}")
}

impl<'a> Lanes<'a> {
    /// # Errors
    /// The fusion has a producer, or more elements than 32 bits count, or its program does not fit its inputs.
    pub(super) fn new(fusion: &'a Fusion, inputs: &'a [DType]) -> Result<Lanes<'a>, KernelError> {
        if fusion.producer.is_some() {
            return Err(KernelError("it has a producer".to_owned()));
        }
        if fusion.rows * fusion.cols >= 1 << 31 {
            return Err(KernelError(format!("[{}, {}] has too many elements", fusion.rows, fusion.cols)));
        }
        assert_eq!(inputs.len(), fusion.loads.len(), "a type for each load");
        let registers = fusion.register_types(inputs).map_err(|problem| KernelError(problem.to_string()))?;
        Ok(Lanes { fusion, inputs, registers })
    }

    /// Types that are moved a vector at a time.
    fn moved(&self) -> impl Iterator<Item = DType> {
        let loads =
            self.fusion.loads.iter().zip(self.inputs).filter(|(index_map, _)| index_map.by_col).map(|(_, ty)| *ty);
        let stores = self.fusion.outputs.iter().filter_map(|output| match output {
            FusionOutput::Store { ty, .. } => Some(ty.dtype),
            _ => None,
        });
        loads.chain(stores)
    }

    /// As many lanes as make accesses of 16 bytes of the narrowest type, where rows can be cut so.
    pub(super) fn width(&self) -> Width {
        let narrowest = self.moved().map(DType::size).min().unwrap_or(4);
        let lanes = (16 / narrowest).min(MOST_LANES);
        let rows = self.fusion.rows;
        let apart = |index_map: &IndexMap| !index_map.is_full(rows) && *index_map != IndexMap::SCALAR;
        let is_apart = self.fusion.loads.iter().any(apart) || self.is_aware_of_columns();
        if self.fusion.cols.is_multiple_of(lanes) {
            Width { lanes, flat: !is_apart }
        } else if is_apart {
            Width { lanes: 1, flat: false }
        } else {
            Width { lanes, flat: true }
        }
    }

    /// As many lanes as make accesses of 16 bytes of the widest type.
    pub(super) fn least_width(&self) -> usize {
        (16 / self.moved().map(DType::size).max().unwrap_or(4)).min(MOST_LANES)
    }

    /// As [`Lanes::width`], for kernels that go row by row.
    pub(super) fn row_width(&self) -> usize {
        let Width { lanes, .. } = self.width();
        if self.fusion.cols.is_multiple_of(lanes) { lanes } else { 1 }
    }

    fn is_aware_of_columns(&self) -> bool {
        self.fusion.program.iter().any(|instr| matches!(instr, Instr::OneHot(_)))
    }

    /// `x0, x1, ...`, `y0, y1, ...` for the outputs that are not sums, and streams of random numbers.
    pub(super) fn parameters(&self) -> Vec<Parameter> {
        let loads = self.fusion.loads.iter().zip(self.inputs).enumerate();
        let cols = self.fusion.cols;
        let mut parameters: Vec<Parameter> = loads
            .map(|(index, (index_map, ty))| Parameter::input(format!("x{index}"), *ty, index_map.elements(cols)))
            .collect();
        for (index, output) in self.fusion.outputs.iter().enumerate() {
            if let FusionOutput::Store { ty, .. } | FusionOutput::Rows { ty, .. } = output {
                parameters.push(Parameter::output(format!("y{index}"), ty.dtype, ty.shape.elements()));
            }
        }
        parameters.extend(self.fusion.program.iter().zip(0..).filter_map(|(instr, register)| match *instr {
            Instr::Random { stream, .. } => Some(Parameter::Number { name: stream_of(register), value: stream }),
            _ => None,
        }));
        parameters
    }

    /// Instructions that these registers are computed from, without going through reductions, which are given.
    pub(super) fn needed(&self, registers: impl IntoIterator<Item = Reg>) -> BTreeSet<Reg> {
        let mut open: Vec<Reg> = registers.into_iter().collect();
        let mut needed = BTreeSet::new();
        while let Some(register) = open.pop() {
            let instr = &self.fusion.program[register as usize];
            if !matches!(instr, Instr::Reduce(..)) && needed.insert(register) {
                open.extend(instr.operands());
            }
        }
        needed
    }

    /// Inputs that these instructions load.
    pub(super) fn loaded(&self, registers: &BTreeSet<Reg>) -> BTreeSet<usize> {
        let load = |register: &Reg| match self.fusion.program[*register as usize] {
            Instr::Load(input) => Some(usize::from(input)),
            _ => None,
        };
        registers.iter().filter_map(load).collect()
    }

    pub(super) fn varies_by_col(&self, input: usize) -> bool {
        self.fusion.loads[input].by_col
    }

    /// Moves `lanes` elements of an input that varies by column to the array `to`, which holds the bits of integers.
    pub(super) fn load(&self, input: usize, width: Width, to: &str) -> String {
        let address = self.address(self.fusion.loads[input], width);
        match self.inputs[input] {
            DType::I32 => format!("load<float, {}>((const float*)x{input} + {address}, {to});\n", width.lanes),
            ty => format!("load<{}, {}>(x{input} + {address}, {to});\n", c_type(ty), width.lanes),
        }
    }

    /// Whether it is another one in each row, or element of a row.
    pub(super) fn varies_by_row(&self, input: usize) -> bool {
        self.fusion.loads[input].row_mod != 1
    }

    /// The one number of a row, or of all, as the bits of an integer.
    pub(super) fn scalar(&self, input: usize) -> String {
        let index_map = self.fusion.loads[input];
        let address = if index_map.row_mod == 1 { "0".to_owned() } else { row_of(index_map) };
        match self.inputs[input] {
            DType::I32 => format!("__uint_as_float((u32)x{input}[{address}])"),
            _ => format!("to_f32(x{input}[{address}])"),
        }
    }

    /// Random registers among these whose numbers are drawn four at a time, which vectors begin with.
    pub(super) fn drawn(&self, registers: &BTreeSet<Reg>, width: Width) -> BTreeSet<Reg> {
        let is_whole = width.lanes.is_multiple_of(4) && (width.flat || self.fusion.cols.is_multiple_of(4));
        let is_random = |register: &Reg| matches!(self.fusion.program[*register as usize], Instr::Random { .. });
        registers.iter().copied().filter(|register| is_whole && is_random(register)).collect()
    }

    /// Draws the numbers of a random register for `lanes` elements into the array `to`.
    pub(super) fn draw(&self, register: Reg, width: Width, to: &str) -> String {
        let Instr::Random { seed, step, .. } = self.fusion.program[register as usize] else {
            unreachable!("it is a random register")
        };
        let address = self.address(IndexMap::full(self.fusion.rows), width);
        let (lanes, stream) = (width.lanes, stream_of(register));
        format!("uniforms<{lanes}>({seed}ull, (u32)x{step}[0], {stream}, {address}, {to});\n")
    }

    fn address(&self, index_map: IndexMap, width: Width) -> String {
        if width.flat {
            return "at".to_owned();
        }
        // What all rows share is read where there is no row; so is all of a fusion of one row.
        if index_map.row_mod == 1 {
            return "col".to_owned();
        }
        let row = if index_map.is_full(self.fusion.rows) { "row".to_owned() } else { row_of(index_map) };
        format!("{row} * {}u + col", self.fusion.cols)
    }

    /// Loads what `registers` need into arrays `a0, a1, ...`, and draws random numbers into `random0, random1, ...`, but for what is there.
    pub(super) fn loads(&self, registers: &BTreeSet<Reg>, width: Width, there: &There) -> String {
        let mut text = String::new();
        for input in self.loaded(registers).difference(&there.inputs) {
            if self.varies_by_col(*input) {
                let _ = writeln!(text, "float a{input}[{}];", width.lanes);
                text += &self.load(*input, width, &format!("a{input}"));
            } else {
                let _ = writeln!(text, "const float a{input} = {};", self.scalar(*input));
            }
        }
        for register in self.drawn(registers, width).difference(&there.drawn) {
            let _ = writeln!(text, "float random{register}[{}];", width.lanes);
            text += &self.draw(*register, width, &format!("random{register}"));
        }
        text
    }

    /// Computes `registers` for lane `k`, as constants `r0, r1, ...`.
    pub(super) fn compute(&self, registers: &BTreeSet<Reg>, width: Width) -> String {
        let mut text = String::new();
        let drawn = self.drawn(registers, width);
        for register in registers {
            let value = match drawn.contains(register) {
                true => format!("random{register}[k]"),
                false => self.value(*register, width),
            };
            let _ = writeln!(text, "const {} r{register} = {value};", self.c_type_of(*register));
        }
        text
    }

    fn register(&self, register: Reg) -> RegType {
        self.registers[usize::from(register)]
    }

    fn c_type_of(&self, register: Reg) -> &'static str {
        match self.register(register) {
            RegType::F32 => "float",
            RegType::I32 => "int",
        }
    }

    fn value(&self, register: Reg, width: Width) -> String {
        match self.fusion.program[usize::from(register)] {
            Instr::Producer | Instr::Reduce(..) => unreachable!("neither is computed for a lane"),
            Instr::Load(input) => {
                let lane = if self.varies_by_col(usize::from(input)) { "[k]" } else { "" };
                match self.inputs[usize::from(input)] {
                    DType::I32 => format!("(int)__float_as_uint(a{input}{lane})"),
                    _ => format!("a{input}{lane}"),
                }
            }
            Instr::Const(number) => constant(number.0 as f32),
            Instr::Int(number) => format!("(int){:#x}u", number as u32),
            Instr::Unary(kind, a) => unary(kind, &format!("r{a}")),
            Instr::Binary(kind, a, b) if self.register(a) == RegType::I32 => {
                integers(kind, &format!("r{a}"), &format!("r{b}"))
            }
            Instr::Binary(kind, a, b) => binary(kind, &format!("r{a}"), &format!("r{b}")),
            Instr::Select(c, a, b) => format!("r{c} != 0.0f ? r{a} : r{b}"),
            Instr::Cast(DType::F32, a) if self.register(a) == RegType::I32 => format!("(float)r{a}"),
            Instr::Cast(DType::I32, a) if self.register(a) == RegType::I32 => format!("r{a}"),
            Instr::Cast(to, a) => cast(to, &format!("r{a}")),
            Instr::OneHot(a) => format!("r{a} == (int)(col + k) ? 1.0f : 0.0f"),
            Instr::Random { seed, step, .. } => {
                let stream = stream_of(register);
                let position =
                    if width.flat { "at + k".to_owned() } else { format!("row * {}u + col + k", self.fusion.cols) };
                format!("uniform({seed}ull, (u32)x{step}[0], {stream}, {position})")
            }
        }
    }

    /// Stores of the outputs that have all elements: arrays `b0, b1, ...` are filled for lane `k` by the first text, and
    /// written by the second one.
    pub(super) fn stores(&self, width: Width) -> (String, String, String) {
        let (mut declare, mut fill, mut write) = (String::new(), String::new(), String::new());
        for (index, output) in self.fusion.outputs.iter().enumerate() {
            if let FusionOutput::Store { reg, ty } = output {
                let address = self.address(IndexMap::full(self.fusion.rows), width);
                let _ = writeln!(declare, "float b{index}[{}];", width.lanes);
                let lanes = width.lanes;
                if ty.dtype == DType::I32 {
                    let _ = writeln!(fill, "b{index}[k] = __uint_as_float((u32)r{reg});");
                    let _ = writeln!(write, "store<float, {lanes}>((float*)y{index} + {address}, b{index});");
                } else {
                    let _ = writeln!(fill, "b{index}[k] = r{reg};");
                    let c_type = c_type(ty.dtype);
                    let _ = writeln!(write, "store<{c_type}, {lanes}>(y{index} + {address}, b{index});");
                }
            }
        }
        (declare, fill, write)
    }

    /// Registers that outputs with all elements store.
    pub(super) fn stored(&self) -> impl Iterator<Item = Reg> {
        let stored = |output: &FusionOutput| match output {
            FusionOutput::Store { reg, .. } => Some(*reg),
            _ => None,
        };
        self.fusion.outputs.iter().filter_map(stored)
    }
}

/// `for` over the lanes.
pub(super) fn for_lanes(width: Width, body: &str) -> String {
    format!("#pragma unroll\nfor (int k = 0; k < {}; ++k) {{\n{body}}}\n", width.lanes)
}

/// Name in kernels of how elements are combined.
pub(crate) fn kind_name(kind: ReduceKind) -> &'static str {
    match kind {
        ReduceKind::Sum => "sum_of",
        ReduceKind::Max => "max_of",
        ReduceKind::Min => "min_of",
    }
}

/// Row of an input that belongs to the domain's `row`.
fn row_of(index_map: IndexMap) -> String {
    let divided = if index_map.row_div == 1 { "row".to_owned() } else { format!("row / {}u", index_map.row_div) };
    format!("({divided} % {}u)", index_map.row_mod)
}

/// A number that reads as written, in full precision.
pub(crate) fn constant(x: f32) -> String {
    if x.is_finite() { format!("{x:?}f") } else { format!("__uint_as_float({:#010x}u)", x.to_bits()) }
}

fn unary(kind: UnaryKind, x: &str) -> String {
    match kind {
        UnaryKind::Neg => format!("-{x}"),
        UnaryKind::Abs => format!("fabsf({x})"),
        UnaryKind::Exp => format!("expf({x})"),
        UnaryKind::Log => format!("logf({x})"),
        UnaryKind::Sqrt => format!("sqrtf({x})"),
        UnaryKind::Rsqrt => format!("rsqrtf({x})"),
        UnaryKind::Recip => format!("1.0f / {x}"),
        UnaryKind::Square => format!("{x} * {x}"),
        UnaryKind::Relu => format!("{x} < 0.0f ? 0.0f : {x}"),
        UnaryKind::Sigmoid => format!("1.0f / (1.0f + expf(-{x}))"),
        UnaryKind::Tanh => format!("tanhf({x})"),
        UnaryKind::Erf => format!("erff({x})"),
        UnaryKind::Sin => format!("sinf({x})"),
        UnaryKind::Cos => format!("cosf({x})"),
        UnaryKind::Floor => format!("floorf({x})"),
    }
}

fn binary(kind: BinaryKind, a: &str, b: &str) -> String {
    let truth = |sign: &str| format!("{a} {sign} {b} ? 1.0f : 0.0f");
    match kind {
        BinaryKind::Add => format!("{a} + {b}"),
        BinaryKind::Sub => format!("{a} - {b}"),
        BinaryKind::Mul => format!("{a} * {b}"),
        BinaryKind::Div => format!("{a} / {b}"),
        BinaryKind::Max => format!("fmaxf({a}, {b})"),
        BinaryKind::Min => format!("fminf({a}, {b})"),
        BinaryKind::Pow => format!("powf({a}, {b})"),
        BinaryKind::Eq => truth("=="),
        BinaryKind::Lt => truth("<"),
        BinaryKind::Le => truth("<="),
        BinaryKind::Gt => truth(">"),
        BinaryKind::Ge => truth(">="),
    }
}

/// Of two `int`, modulo 2^32.
fn integers(kind: BinaryKind, a: &str, b: &str) -> String {
    let wrapping = |sign: &str| format!("(int)((u32){a} {sign} (u32){b})");
    match kind {
        BinaryKind::Add => wrapping("+"),
        BinaryKind::Sub => wrapping("-"),
        BinaryKind::Mul => wrapping("*"),
        BinaryKind::Max => format!("{a} > {b} ? {a} : {b}"),
        BinaryKind::Min => format!("{a} < {b} ? {a} : {b}"),
        BinaryKind::Eq | BinaryKind::Lt | BinaryKind::Le | BinaryKind::Gt | BinaryKind::Ge => binary(kind, a, b),
        BinaryKind::Div | BinaryKind::Pow => unreachable!("integers have no {}", kind.name()),
    }
}

fn cast(to: DType, x: &str) -> String {
    match to {
        DType::F32 => x.to_owned(),
        DType::Bf16 | DType::F16 => format!("to_f32(from_f32<{}>::of({x}))", c_type(to)),
        DType::I32 => format!("to_int({x})"),
        DType::U8 => format!("fminf(fmaxf(truncf({x}), 0.0f), 255.0f)"),
        DType::Bool => format!("{x} != 0.0f ? 1.0f : 0.0f"),
    }
}
