//! From the instructions of a fusion to steps over tiles: what is one number for the whole domain, what depends on the
//! column alone, what must be computed everywhere, and in which block program.

use super::block::{Function, Op};
use super::program::{NumberStep, Pattern, Program, Sink, Source};
use super::schedule::{Draft, Scheduled, Storage, Task, schedule};
use bessemer_ir::ops::fusion::{Fusion, FusionOutput, IndexMap, Instr, Reg, RegType};
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::ops::reduce::ReduceKind;
use bessemer_ir::{DType, TensorType};
use std::collections::HashMap;

/// How a value varies over the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// One number.
    Uniform,
    /// A number for each row, in programs that run row by row.
    Row,
    /// A number for each column.
    Column,
    /// A number for each position.
    Full,
}

impl Extent {
    /// That of a value made from values of both.
    fn join(self, other: Extent) -> Extent {
        match (self, other) {
            (Extent::Uniform, extent) | (extent, Extent::Uniform) => extent,
            (a, b) if a == b => a,
            _ => Extent::Full,
        }
    }

    /// Whether a value is one number wherever a step runs.
    fn is_number(self) -> bool {
        matches!(self, Extent::Uniform | Extent::Row)
    }
}

pub(super) struct Compiler<'a> {
    pub fusion: &'a Fusion,
    pub input_types: &'a [TensorType],
    /// The program, with one register for each value.
    pub instrs: Vec<Instr>,
    /// The register that holds the value of a register.
    pub same: Vec<usize>,
    /// Whether it is a `bf16` number.
    pub exact: Vec<bool>,
    /// What each register holds. Those of integers hold the bits of the `i32`.
    pub types: Vec<RegType>,
    pub extents: Vec<Extent>,
    pub needed: Vec<bool>,
    /// Where values lie that no block program of this step computes, per register.
    pub places: Vec<Option<Storage>>,
    /// Block programs before the one that can compute the value, and before the one that does, per register.
    pub earliest: Vec<usize>,
    pub phase: Vec<usize>,
    /// The register that is stored or summed, by number of the output.
    pub results: Vec<usize>,
    /// Stores that come after all else, by number of the output.
    pub late: Vec<bool>,
    /// The block program of what depends on the column alone.
    pub columns: Vec<Draft>,
    pub program: Program,
}

pub(super) fn compile(fusion: &Fusion, input_types: &[TensorType]) -> Program {
    assert_eq!(fusion.loads.len(), input_types.len(), "a fusion is compiled with the types of all its loads");
    let n = fusion.program.len();
    let types = input_types.iter().map(|ty| ty.dtype).collect::<Vec<_>>();
    let types = fusion.register_types(&types).expect("a verified fusion");
    let mut compiler = Compiler {
        fusion,
        input_types,
        instrs: Vec::with_capacity(n),
        same: Vec::with_capacity(n),
        exact: Vec::with_capacity(n),
        types,
        extents: Vec::with_capacity(n),
        needed: vec![false; n],
        places: vec![None; n],
        earliest: vec![0; n],
        phase: vec![usize::MAX; n],
        results: Vec::new(),
        late: vec![false; fusion.outputs.len()],
        columns: Vec::new(),
        program: Program {
            uniforms: Vec::new(),
            numbers: 0,
            sources: Vec::new(),
            columns: Vec::new(),
            steps: Vec::new(),
            sinks: Vec::new(),
            functions: Vec::new(),
            buffers: 0,
            slots: 0,
            outputs: 0,
            accumulators: 0,
            folds: Vec::new(),
            flat: false,
            rowwise: fusion.is_rowwise(),
        },
    };
    compiler.rename();
    compiler.classify();
    compiler.add_scalars();
    compiler.add_sources();
    compiler.add_sinks();
    compiler.add_columns();
    compiler.add_phases();
    compiler.program
}

impl Compiler<'_> {
    /// Gives equal values one register, and drops roundings of what is rounded already.
    fn rename(&mut self) {
        let mut known: HashMap<Instr, usize> = HashMap::new();
        for (index, instr) in self.fusion.program.iter().enumerate() {
            let instr = instr.renamed(|r| self.same[usize::from(r)] as Reg);
            let exact = self.is_exact(&instr);
            let same = match instr {
                Instr::Cast(DType::F32, a) if self.types[usize::from(a)] == RegType::F32 => usize::from(a),
                Instr::Cast(DType::I32, a) if self.types[usize::from(a)] == RegType::I32 => usize::from(a),
                Instr::Cast(DType::Bf16, a) if self.exact[usize::from(a)] => usize::from(a),
                _ => *known.entry(instr).or_insert(index),
            };
            self.instrs.push(instr);
            self.same.push(same);
            self.exact.push(exact);
        }
    }

    /// Whether the result of an instruction is a `bf16` number.
    fn is_exact(&self, instr: &Instr) -> bool {
        let exact = |r: Reg| self.exact[usize::from(r)];
        match *instr {
            Instr::Load(i) => matches!(self.input_types[usize::from(i)].dtype, DType::Bf16 | DType::U8 | DType::Bool),
            Instr::Const(c) => (c.0 as f32).to_bits() & 0xFFFF == 0,
            Instr::Unary(UnaryKind::Neg | UnaryKind::Abs | UnaryKind::Relu, a) => exact(a),
            Instr::Binary(BinaryKind::Max | BinaryKind::Min, a, b) => exact(a) && exact(b),
            Instr::Binary(kind, ..) => {
                matches!(kind, BinaryKind::Eq | BinaryKind::Lt | BinaryKind::Le | BinaryKind::Gt | BinaryKind::Ge)
            }
            Instr::Select(_, a, b) => exact(a) && exact(b),
            Instr::Cast(to, a) => matches!(to, DType::Bf16 | DType::U8 | DType::Bool) || to == DType::F32 && exact(a),
            Instr::Reduce(kind, a) => kind != ReduceKind::Sum && exact(a),
            Instr::OneHot(_) => true,
            Instr::Producer | Instr::Int(_) | Instr::Unary(..) | Instr::Random { .. } => false,
        }
    }

    fn classify(&mut self) {
        let fusion = self.fusion;
        for instr in &self.instrs {
            let operands = || instr.operands().map(|r| self.extents[r as usize]).fold(Extent::Uniform, Extent::join);
            let extent = match *instr {
                Instr::Const(_) | Instr::Int(_) => Extent::Uniform,
                Instr::Producer | Instr::OneHot(_) | Instr::Random { .. } => Extent::Full,
                Instr::Load(i) => self.extent_of_load(fusion.loads[i as usize]),
                Instr::Reduce(..) => Extent::Row,
                _ => operands(),
            };
            self.extents.push(extent);
        }
        self.find_results();
        let reads_rows = |(index, instr): (usize, &Instr)| match *instr {
            Instr::Load(i) if self.needed[index] => {
                !matches!(pattern(fusion, fusion.loads[i as usize]), None | Some(Pattern::Full))
            }
            Instr::OneHot(_) => self.needed[index],
            _ => false,
        };
        self.program.flat = !self.program.rowwise
            && !self.instrs.iter().enumerate().any(reads_rows)
            && fusion.outputs.iter().all(|o| matches!(o, FusionOutput::Store { .. }));
    }

    /// Finds what the outputs are made of, and what they need. A store rounds by itself what is rounded for it alone.
    fn find_results(&mut self) {
        self.results = self.fusion.outputs.iter().map(|output| self.same[usize::from(output.reg())]).collect();
        self.find_needed();
        for index in 0..self.results.len() {
            let value = self.results[index];
            let FusionOutput::Store { ty, .. } = &self.fusion.outputs[index] else { continue };
            let Instr::Cast(DType::Bf16, a) = self.instrs[value] else { continue };
            let reads = |(r, instr): (usize, &Instr)| {
                self.needed[r] && instr.operands().any(|operand| usize::from(operand) == value)
            };
            let is_read = self.instrs.iter().enumerate().any(reads);
            if ty.dtype == DType::Bf16 && !is_read && self.results.iter().filter(|r| **r == value).count() == 1 {
                self.results[index] = usize::from(a);
            }
        }
        self.find_needed();
    }

    fn find_needed(&mut self) {
        self.needed.fill(false);
        self.results.iter().for_each(|r| self.needed[*r] = true);
        for (index, instr) in self.instrs.iter().enumerate().rev() {
            if self.needed[index] {
                instr.operands().for_each(|r| self.needed[usize::from(r)] = true);
            }
        }
    }

    fn extent_of_load(&self, index_map: IndexMap) -> Extent {
        match pattern(self.fusion, index_map) {
            None => Extent::Uniform,
            Some(Pattern::Column) => Extent::Column,
            Some(Pattern::Rows(IndexMap { by_col: false, .. })) if self.program.rowwise => Extent::Row,
            Some(_) => Extent::Full,
        }
    }

    /// The needed registers of an extent.
    pub(super) fn registers(&self, extent: Extent) -> impl Iterator<Item = usize> + use<> {
        let registers: Vec<usize> =
            (0..self.instrs.len()).filter(|&r| self.needed[r] && self.extents[r] == extent).collect();
        registers.into_iter()
    }

    pub(super) fn new_buffer(&mut self) -> usize {
        self.program.buffers += 1;
        self.program.buffers - 1
    }

    /// Storage of a register in the list of numbers.
    fn number(&self, r: Reg) -> usize {
        match self.places[usize::from(r)] {
            Some(Storage::Scalar(number)) => number,
            _ => unreachable!("numbers are made of numbers"),
        }
    }

    /// How the number of an instruction is computed.
    pub(super) fn scalar_step(&self, index: usize) -> NumberStep {
        match self.instrs[index] {
            Instr::Const(c) => NumberStep::Const(c.0 as f32),
            Instr::Int(i) => NumberStep::Const(f32::from_bits(i as u32)),
            Instr::Load(i) => {
                let (load, index_map) = (i as usize, self.fusion.loads[i as usize]);
                let index_map = if self.extents[index] == Extent::Uniform { IndexMap::SCALAR } else { index_map };
                NumberStep::Read { load, dtype: in_registers(self.input_types[load].dtype), index_map }
            }
            Instr::Unary(kind, a) => NumberStep::Function(Function::Unary(kind), self.number(a)),
            Instr::Binary(kind, a, b) => match self.types[usize::from(a)] {
                RegType::F32 => NumberStep::Binary(kind, self.number(a), self.number(b)),
                RegType::I32 => NumberStep::Integer(kind, self.number(a), self.number(b)),
            },
            Instr::Select(c, a, b) => NumberStep::Select(self.number(c), self.number(a), self.number(b)),
            Instr::Cast(to, a) => NumberStep::Function(cast_function(to, self.types[usize::from(a)]), self.number(a)),
            Instr::Producer | Instr::Reduce(..) | Instr::OneHot(_) | Instr::Random { .. } => {
                unreachable!("these are made of tiles")
            }
        }
    }

    /// Gives every number its place, the uniform ones first, which are computed before the loops.
    fn add_scalars(&mut self) {
        for extent in [Extent::Uniform, Extent::Row] {
            for index in self.registers(extent) {
                self.places[index] = Some(Storage::Scalar(self.program.numbers));
                self.program.numbers += 1;
                if extent == Extent::Uniform {
                    let step = self.scalar_step(index);
                    self.program.uniforms.push(step);
                }
            }
        }
    }

    fn add_sources(&mut self) {
        for index in 0..self.instrs.len() {
            if !self.needed[index] || self.extents[index].is_number() {
                continue;
            }
            let (load, dtype, pattern) = match self.instrs[index] {
                Instr::Producer => (None, DType::F32, Pattern::Full),
                Instr::Load(i) => {
                    let load = i as usize;
                    let pattern = pattern(self.fusion, self.fusion.loads[load]).expect("a uniform load is no source");
                    (Some(load), in_registers(self.input_types[load].dtype), pattern)
                }
                _ => continue,
            };
            let in_place = matches!(dtype, DType::F32 | DType::Bf16) && pattern == Pattern::Full;
            let buffer = self.new_buffer();
            let place = if in_place { Storage::Source(self.program.sources.len()) } else { Storage::Buffer(buffer) };
            self.places[index] = Some(place);
            self.program.sources.push(Source { load, dtype, pattern, buffer, in_place });
        }
    }

    fn add_sinks(&mut self) {
        let (mut slot, mut accumulator) = (0, 0);
        for (index, described) in self.fusion.outputs.iter().enumerate() {
            let output = self.fusion.node_output(index);
            let sink = match described {
                FusionOutput::Store { ty, .. } => Sink::Store { dtype: in_registers(ty.dtype), output },
                FusionOutput::Rows { ty, .. } => {
                    let number = self.number(self.results[index] as Reg);
                    Sink::Rows { number, dtype: in_registers(ty.dtype), output }
                }
                FusionOutput::Sum { groups, .. } => Sink::Sum { groups: *groups, output, slot, accumulator },
                FusionOutput::MeanVar { .. } => Sink::MeanVar { output, slot, accumulator },
            };
            slot += sink.slots();
            accumulator += sink.slots();
            self.program.outputs += described.types().len();
            self.program.sinks.push(sink);
        }
        self.program.accumulators = accumulator;
    }

    /// The block program of what depends on the column alone. What others read goes to buffers.
    fn add_columns(&mut self) {
        let n = self.instrs.len();
        let mut actions = vec![Vec::new(); n];
        let values: Vec<usize> = self.registers(Extent::Column).filter(|&r| self.places[r].is_none()).collect();
        let mut roots = Vec::new();
        for &value in &values {
            let is_read = |(user, instr): (usize, &Instr)| {
                self.needed[user]
                    && self.extents[user] != Extent::Column
                    && instr.operands().any(|r| usize::from(r) == value)
            };
            if self.results.contains(&value) || self.instrs.iter().enumerate().any(is_read) {
                let buffer = Storage::Buffer(self.new_buffer());
                actions[value].push(Draft::new(Op::Put, buffer));
                roots.push(value);
            }
        }
        let task = Task {
            instrs: &self.instrs,
            types: &self.types,
            places: &self.places,
            copied: &vec![None; n],
            values,
            actions: &actions,
            roots: roots.clone(),
            last: Vec::new(),
        };
        let Scheduled { drafts, slots } = schedule(&task);
        for value in roots {
            self.places[value] = actions[value][0].operand;
        }
        self.program.slots = slots;
        self.columns = drafts;
    }
}

/// The type as which elements are brought into registers and written from them: integers keep their bits.
fn in_registers(dtype: DType) -> DType {
    match RegType::of(dtype) {
        RegType::F32 => dtype,
        RegType::I32 => DType::F32,
    }
}

/// What converts the value of a register of type `from`.
pub(super) fn cast_function(to: DType, from: RegType) -> Function {
    match (to, from) {
        (DType::I32, RegType::F32) => Function::ToInteger,
        (_, RegType::I32) => Function::FromInteger,
        (_, RegType::F32) => Function::Cast(to),
    }
}

/// How a load is laid over the domain; `None` if it is one number.
fn pattern(fusion: &Fusion, index_map: IndexMap) -> Option<Pattern> {
    if index_map.elements(fusion.cols) == 1 {
        None
    } else if index_map.is_full(fusion.rows) {
        Some(Pattern::Full)
    } else if index_map.by_col && index_map.row_mod == 1 {
        Some(Pattern::Column)
    } else {
        Some(Pattern::Rows(index_map))
    }
}
