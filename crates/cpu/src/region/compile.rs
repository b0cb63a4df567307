//! From the instructions of a region to steps over tiles: what is one number for the whole domain, what depends on the
//! column alone, what must be computed everywhere, and in which buffer each value lies.

use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::ops::reduce::ReduceKind;
use bessemer_ir::ops::region::{Access, Instr, Reg, Region, RegionOutput};
use bessemer_ir::{DType, TensorType};

/// How a value varies over the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
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

/// Where a step finds a value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operand {
    /// In a tile buffer.
    Buffer(usize),
    /// What a source holds at the tile: in memory, or in the source's buffer.
    Source(usize),
    /// In the list of numbers.
    Number(usize),
}

/// Memory that the program reads.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// Number of the load; `None` for the anchor.
    pub load: Option<usize>,
    pub dtype: DType,
    pub pattern: Pattern,
    /// The buffer that receives it where it is not read in place.
    pub buffer: usize,
    /// Whether it may be read in place: `f32`, every element its own, and not overwritten by a store before its last
    /// use.
    pub in_place: bool,
}

/// How a source is laid over the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    Full,
    /// The same row everywhere.
    Column,
    /// One row, or one number for a row, chosen by the row.
    Rows(Access),
}

/// One loop over a tile.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Read {
        source: usize,
    },
    Fill {
        number: usize,
        dst: usize,
    },
    Unary {
        kind: UnaryKind,
        a: Operand,
        dst: usize,
    },
    Binary {
        kind: BinaryKind,
        a: Operand,
        b: Operand,
        dst: usize,
    },
    Select {
        condition: Operand,
        a: Operand,
        b: Operand,
        dst: usize,
    },
    Cast {
        to: DType,
        a: Operand,
        dst: usize,
    },
    /// `a` holds the number of a column in every position of a row.
    OneHot {
        a: Operand,
        dst: usize,
    },
    Random {
        seed: u64,
        stream: u32,
        load: usize,
        dst: usize,
    },
    /// A number of the row.
    Number {
        step: NumberStep,
        dst: usize,
    },
    /// The row's tile reduced to a number.
    Reduce {
        kind: ReduceKind,
        a: Operand,
        dst: usize,
    },
}

/// How one number is computed, from earlier ones.
#[derive(Clone, Copy, Debug)]
pub(super) enum NumberStep {
    Const(f32),
    Read { load: usize, dtype: DType, access: Access },
    Unary(UnaryKind, usize),
    Binary(BinaryKind, usize, usize),
    Select(usize, usize, usize),
    Cast(DType, usize),
}

/// What becomes of a value. `output` numbers the node's outputs, `slot` the rows of a block's partial results.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sink {
    Store {
        value: Operand,
        dtype: DType,
        output: usize,
    },
    /// A number for each row.
    Rows {
        number: usize,
        dtype: DType,
        output: usize,
    },
    Sum {
        value: Operand,
        groups: usize,
        output: usize,
        slot: usize,
    },
    /// Two outputs: mean and variance. Three slots: a number near the mean, the mean's distance from it, the sum of
    /// squared deviations from the mean.
    Moments {
        value: Operand,
        output: usize,
        slot: usize,
    },
}

/// A compiled program.
#[derive(Clone, Debug)]
pub(super) struct Program {
    /// Numbers computed before the loops, the first of all.
    pub uniforms: Vec<NumberStep>,
    /// How many numbers there are.
    pub numbers: usize,
    pub sources: Vec<Source>,
    /// Steps whose results depend on the column alone, then all others.
    pub steps: Vec<Step>,
    /// Number of the former.
    pub column_steps: usize,
    pub sinks: Vec<Sink>,
    pub buffers: usize,
    /// Whether nothing depends on where rows begin, so that the domain may be cut anywhere.
    pub flat: bool,
    /// Whether tiles are whole rows, one at a time.
    pub rowwise: bool,
}

/// A step in terms of the registers it reads, before buffers are assigned.
#[derive(Clone, Copy)]
enum Draft {
    /// The instruction of this number.
    Compute(usize),
    /// The number of this register, spread over a tile.
    Spread(Reg),
}

struct Compiler<'a> {
    region: &'a Region,
    extents: Vec<Extent>,
    needed: Vec<bool>,
    /// Registers of numbers that are wanted as a tile.
    spread: Vec<bool>,
    /// Place in the list of numbers, per register.
    number: Vec<usize>,
    /// Position in `Program::sources`, per register.
    source_slot: Vec<usize>,
    /// Tile buffer, per register.
    buffer: Vec<usize>,
    program: Program,
}

pub(super) fn compile(region: &Region, input_types: &[TensorType]) -> Program {
    assert_eq!(region.loads.len(), input_types.len(), "a region is compiled with the types of all its loads");
    let n = region.program.len();
    let mut compiler = Compiler {
        region,
        extents: Vec::with_capacity(n),
        needed: vec![false; n],
        spread: vec![false; n],
        number: vec![usize::MAX; n],
        source_slot: vec![usize::MAX; n],
        buffer: vec![usize::MAX; n],
        program: Program {
            uniforms: Vec::new(),
            numbers: 0,
            sources: Vec::new(),
            steps: Vec::new(),
            column_steps: 0,
            sinks: Vec::new(),
            buffers: 0,
            flat: false,
            rowwise: region.is_rowwise(),
        },
    };
    compiler.classify();
    compiler.add_numbers(input_types);
    compiler.add_sources(input_types);
    let drafts = compiler.order();
    compiler.assign_buffers(&drafts);
    compiler.add_steps(&drafts, input_types);
    compiler.add_sinks();
    compiler.program
}

impl Compiler<'_> {
    fn classify(&mut self) {
        let region = self.region;
        for instr in &region.program {
            let operands = || instr.operands().map(|r| self.extents[r as usize]).fold(Extent::Uniform, Extent::join);
            let extent = match *instr {
                Instr::Const(_) => Extent::Uniform,
                Instr::Anchor | Instr::OneHot(_) | Instr::Random { .. } => Extent::Full,
                Instr::Load(i) => self.extent_of_load(region.loads[i as usize]),
                Instr::Reduce(..) => Extent::Row,
                _ => operands(),
            };
            self.extents.push(extent);
        }
        for output in &region.outputs {
            self.needed[output.reg() as usize] = true;
            self.spread[output.reg() as usize] |= !matches!(output, RegionOutput::Rows { .. });
        }
        for (index, instr) in region.program.iter().enumerate().rev() {
            if !self.needed[index] {
                continue;
            }
            instr.operands().for_each(|r| self.needed[r as usize] = true);
            if let Instr::Reduce(_, a) = *instr {
                self.spread[a as usize] = true;
            }
        }
        let reads_rows = |(index, instr): (usize, &Instr)| match *instr {
            Instr::Load(i) if self.needed[index] => {
                !matches!(pattern(region, region.loads[i as usize]), None | Some(Pattern::Full))
            }
            Instr::OneHot(_) => self.needed[index],
            _ => false,
        };
        self.program.flat = !self.program.rowwise
            && !region.program.iter().enumerate().any(reads_rows)
            && region.outputs.iter().all(|o| matches!(o, RegionOutput::Store { .. }));
    }

    fn extent_of_load(&self, access: Access) -> Extent {
        match pattern(self.region, access) {
            None => Extent::Uniform,
            Some(Pattern::Column) => Extent::Column,
            Some(Pattern::Rows(Access { by_col: false, .. })) if self.program.rowwise => Extent::Row,
            Some(_) => Extent::Full,
        }
    }

    /// How the number of an instruction is computed.
    fn number_step(&self, index: usize, input_types: &[TensorType]) -> NumberStep {
        let number = |r: Reg| self.number[r as usize];
        match self.region.program[index] {
            Instr::Const(c) => NumberStep::Const(c.0 as f32),
            Instr::Load(i) => {
                let (load, access) = (i as usize, self.region.loads[i as usize]);
                let access = if self.extents[index] == Extent::Uniform { Access::SCALAR } else { access };
                NumberStep::Read { load, dtype: input_types[load].dtype, access }
            }
            Instr::Unary(kind, a) => NumberStep::Unary(kind, number(a)),
            Instr::Binary(kind, a, b) => NumberStep::Binary(kind, number(a), number(b)),
            Instr::Select(c, a, b) => NumberStep::Select(number(c), number(a), number(b)),
            Instr::Cast(to, a) => NumberStep::Cast(to, number(a)),
            Instr::Anchor | Instr::Reduce(..) | Instr::OneHot(_) | Instr::Random { .. } => {
                unreachable!("these are made of tiles")
            }
        }
    }

    /// Gives every number its place, the uniform ones first, which are computed before the loops.
    fn add_numbers(&mut self, input_types: &[TensorType]) {
        for extent in [Extent::Uniform, Extent::Row] {
            for index in 0..self.region.program.len() {
                if !self.needed[index] || self.extents[index] != extent {
                    continue;
                }
                self.number[index] = self.program.numbers;
                self.program.numbers += 1;
                if extent == Extent::Uniform {
                    let step = self.number_step(index, input_types);
                    self.program.uniforms.push(step);
                }
            }
        }
    }

    fn add_sources(&mut self, input_types: &[TensorType]) {
        let region = self.region;
        let stores = |index: usize| {
            region.outputs.iter().any(|o| matches!(o, RegionOutput::Store { reg, .. } if *reg as usize == index))
        };
        let several = region.outputs.iter().filter(|o| matches!(o, RegionOutput::Store { .. })).count() > 1;
        for (index, instr) in region.program.iter().enumerate() {
            if !self.needed[index] || self.extents[index].is_number() {
                continue;
            }
            let (load, dtype, pattern) = match *instr {
                Instr::Anchor => (None, DType::F32, Pattern::Full),
                Instr::Load(i) => {
                    let load = i as usize;
                    let pattern = pattern(region, region.loads[load]).expect("a uniform load is no source");
                    (Some(load), input_types[load].dtype, pattern)
                }
                _ => continue,
            };
            let in_place = dtype == DType::F32 && pattern == Pattern::Full && !(several && stores(index));
            self.source_slot[index] = self.program.sources.len();
            self.program.sources.push(Source { load, dtype, pattern, buffer: usize::MAX, in_place });
        }
    }

    /// The steps in order: those of the columns first.
    fn order(&mut self) -> Vec<Draft> {
        let registers = 0..self.region.program.len();
        let spread = |r: &usize| self.spread[*r] && self.needed[*r];
        let uniform = registers.clone().filter(|&r| self.extents[r] == Extent::Uniform);
        let mut drafts: Vec<Draft> = uniform.filter(spread).map(|r| Draft::Spread(r as Reg)).collect();
        let columns = registers.clone().filter(|&r| self.needed[r] && self.extents[r] == Extent::Column);
        drafts.extend(columns.map(Draft::Compute));
        self.program.column_steps = drafts.len();
        for r in registers.filter(|&r| self.needed[r]) {
            match self.extents[r] {
                Extent::Uniform | Extent::Column => {}
                Extent::Full => drafts.push(Draft::Compute(r)),
                Extent::Row => {
                    drafts.push(Draft::Compute(r));
                    drafts.extend(spread(&r).then_some(Draft::Spread(r as Reg)));
                }
            }
        }
        drafts
    }

    /// Registers that a step reads from tiles.
    fn tile_operands(&self, draft: Draft) -> impl Iterator<Item = usize> {
        let instr = match draft {
            Draft::Compute(index) => Some(&self.region.program[index]),
            Draft::Spread(_) => None,
        };
        instr.into_iter().flat_map(Instr::operands).map(usize::from)
    }

    /// A linear scan: a buffer is free again after the last step that reads it. The buffer a step writes is never one
    /// that it reads. Values of the column steps that later steps read keep theirs to the end.
    fn assign_buffers(&mut self, drafts: &[Draft]) {
        let end = drafts.len();
        let mut last_use = vec![0; self.region.program.len()];
        for (position, &draft) in drafts.iter().enumerate() {
            let of_columns = |r: usize| matches!(self.extents[r], Extent::Uniform | Extent::Column);
            let outlives = |r: usize| position >= self.program.column_steps && of_columns(r);
            for r in self.tile_operands(draft) {
                last_use[r] = last_use[r].max(if outlives(r) { end } else { position });
            }
        }
        for output in &self.region.outputs {
            last_use[output.reg() as usize] = end;
        }
        let mut free: Vec<usize> = Vec::new();
        for (position, &draft) in drafts.iter().enumerate() {
            let written = match draft {
                Draft::Compute(index) if self.extents[index].is_number() => None,
                Draft::Compute(index) => Some(index),
                Draft::Spread(reg) => Some(reg as usize),
            };
            if let Some(written) = written {
                self.buffer[written] = free.pop().unwrap_or_else(|| {
                    self.program.buffers += 1;
                    self.program.buffers - 1
                });
            }
            let mut ending: Vec<usize> = self
                .tile_operands(draft)
                .filter(|&r| last_use[r] == position && self.buffer[r] != usize::MAX)
                .map(|r| self.buffer[r])
                .collect();
            ending.sort_unstable();
            ending.dedup();
            free.extend(ending);
        }
    }

    /// The register as an operand, as a number if it is one.
    fn operand(&self, reg: Reg) -> Operand {
        let r = reg as usize;
        if self.extents[r].is_number() { Operand::Number(self.number[r]) } else { self.tile(reg) }
    }

    /// The register as a tile.
    fn tile(&self, reg: Reg) -> Operand {
        let r = reg as usize;
        match self.source_slot[r] {
            usize::MAX => Operand::Buffer(self.buffer[r]),
            slot => Operand::Source(slot),
        }
    }

    fn add_steps(&mut self, drafts: &[Draft], input_types: &[TensorType]) {
        for &draft in drafts {
            let step = match draft {
                Draft::Spread(reg) => {
                    let r = reg as usize;
                    Step::Fill { number: self.number[r], dst: self.buffer[r] }
                }
                Draft::Compute(index) if self.extents[index] == Extent::Row => {
                    let dst = self.number[index];
                    match self.region.program[index] {
                        Instr::Reduce(kind, a) => Step::Reduce { kind, a: self.tile(a), dst },
                        _ => Step::Number { step: self.number_step(index, input_types), dst },
                    }
                }
                Draft::Compute(index) => self.tile_step(index),
            };
            self.program.steps.push(step);
        }
    }

    fn tile_step(&mut self, index: usize) -> Step {
        let dst = self.buffer[index];
        match self.region.program[index] {
            Instr::Anchor | Instr::Load(_) => {
                let source = self.source_slot[index];
                self.program.sources[source].buffer = dst;
                Step::Read { source }
            }
            Instr::Const(_) | Instr::Reduce(..) => unreachable!("numbers are no tiles"),
            Instr::Unary(kind, a) => Step::Unary { kind, a: self.tile(a), dst },
            Instr::Binary(kind, a, b) => Step::Binary { kind, a: self.operand(a), b: self.operand(b), dst },
            Instr::Select(c, a, b) => {
                Step::Select { condition: self.operand(c), a: self.operand(a), b: self.operand(b), dst }
            }
            Instr::Cast(to, a) => Step::Cast { to, a: self.tile(a), dst },
            Instr::OneHot(a) => Step::OneHot { a: self.operand(a), dst },
            Instr::Random { seed, stream, step } => Step::Random { seed, stream, load: step as usize, dst },
        }
    }

    fn add_sinks(&mut self) {
        let mut slot = 0;
        for (index, described) in self.region.outputs.iter().enumerate() {
            let value = || self.tile(described.reg());
            let output = self.region.node_output(index);
            let sink = match described {
                RegionOutput::Store { ty, .. } => Sink::Store { value: value(), dtype: ty.dtype, output },
                RegionOutput::Rows { ty, reg } => {
                    Sink::Rows { number: self.number[*reg as usize], dtype: ty.dtype, output }
                }
                RegionOutput::Sum { groups, .. } => Sink::Sum { value: value(), groups: *groups, output, slot },
                RegionOutput::Moments { .. } => Sink::Moments { value: value(), output, slot },
            };
            slot += sink.slots();
            self.program.sinks.push(sink);
        }
    }
}

impl Sink {
    /// Rows of a block's partial results that it occupies.
    pub fn slots(&self) -> usize {
        match self {
            Sink::Store { .. } | Sink::Rows { .. } => 0,
            Sink::Sum { .. } => 1,
            Sink::Moments { .. } => 3,
        }
    }

    /// Accumulators it needs while it runs over the tiles of a block.
    pub fn accumulators(&self) -> usize {
        match self {
            Sink::Store { .. } | Sink::Rows { .. } => 0,
            Sink::Sum { .. } => 1,
            Sink::Moments { .. } => 3,
        }
    }
}

/// How a load is laid over the domain; `None` if it is one number.
fn pattern(region: &Region, access: Access) -> Option<Pattern> {
    if access.elements(region.cols) == 1 {
        None
    } else if access.is_full(region.rows) {
        Some(Pattern::Full)
    } else if access.by_col && access.row_mod == 1 {
        Some(Pattern::Column)
    } else {
        Some(Pattern::Rows(access))
    }
}
