//! From the instructions of a region to steps over tiles: what is one number for the whole domain, what depends on the
//! column alone, what must be computed everywhere, and in which buffer each value lies.

use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::ops::region::{Access, Instr, Reg, Region, RegionOutput};
use bessemer_ir::{DType, TensorType};

/// How a value varies over the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Extent {
    /// One number.
    Uniform,
    /// A number for each column.
    Column,
    /// A number for each position.
    Full,
}

/// Where a step finds a value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operand {
    /// In a tile buffer.
    Buffer(usize),
    /// What a source holds at the tile: in memory, or in the source's buffer.
    Source(usize),
    /// In the list of uniform values.
    Uniform(usize),
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
    Read { source: usize },
    Fill { uniform: usize, dst: usize },
    Unary { kind: UnaryKind, a: Operand, dst: usize },
    Binary { kind: BinaryKind, a: Operand, b: Operand, dst: usize },
    Select { condition: Operand, a: Operand, b: Operand, dst: usize },
    Cast { to: DType, a: Operand, dst: usize },
}

/// One number computed before the loops. Operands are earlier numbers.
#[derive(Clone, Copy, Debug)]
pub(super) enum UniformStep {
    Const(f32),
    Read { load: usize, dtype: DType },
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
    pub uniforms: Vec<UniformStep>,
    pub sources: Vec<Source>,
    /// Steps whose results depend on the column alone, then all others.
    pub steps: Vec<Step>,
    /// Number of the former.
    pub column_steps: usize,
    pub sinks: Vec<Sink>,
    pub buffers: usize,
    /// Whether nothing depends on where rows begin, so that the domain may be cut anywhere.
    pub flat: bool,
}

/// A step in terms of the registers it reads, before buffers are assigned.
#[derive(Clone, Copy)]
enum Draft {
    /// The instruction of this number.
    Compute(usize),
    /// The uniform value of this register, spread over a tile.
    Spread(Reg),
}

struct Compiler<'a> {
    region: &'a Region,
    extents: Vec<Extent>,
    needed: Vec<bool>,
    /// Registers whose uniform value is wanted as a tile.
    spread: Vec<bool>,
    /// Position in `Program::uniforms`, per register.
    uniform_slot: Vec<usize>,
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
        uniform_slot: vec![usize::MAX; n],
        source_slot: vec![usize::MAX; n],
        buffer: vec![usize::MAX; n],
        program: Program {
            uniforms: Vec::new(),
            sources: Vec::new(),
            steps: Vec::new(),
            column_steps: 0,
            sinks: Vec::new(),
            buffers: 0,
            flat: false,
        },
    };
    compiler.classify();
    compiler.add_uniforms(input_types);
    compiler.add_sources(input_types);
    let drafts = compiler.order();
    compiler.assign_buffers(&drafts);
    compiler.add_steps(&drafts);
    compiler.add_sinks();
    compiler.program
}

impl Compiler<'_> {
    fn classify(&mut self) {
        let region = self.region;
        for instr in &region.program {
            let extent = match *instr {
                Instr::Const(_) => Extent::Uniform,
                Instr::Anchor => Extent::Full,
                Instr::Load(i) => match pattern(region, region.loads[i as usize]) {
                    None => Extent::Uniform,
                    Some(Pattern::Column) => Extent::Column,
                    Some(_) => Extent::Full,
                },
                _ => instr.operands().map(|r| self.extents[r as usize]).max().unwrap_or(Extent::Uniform),
            };
            self.extents.push(extent);
        }
        for output in &region.outputs {
            self.needed[output.reg() as usize] = true;
            self.spread[output.reg() as usize] = true;
        }
        for (index, instr) in region.program.iter().enumerate().rev() {
            if !self.needed[index] {
                continue;
            }
            instr.operands().for_each(|r| self.needed[r as usize] = true);
            if let Instr::Select(condition, ..) = *instr
                && self.extents[index] != Extent::Uniform
            {
                self.spread[condition as usize] = true;
            }
        }
        let reads_rows = |(index, instr): (usize, &Instr)| match *instr {
            Instr::Load(i) if self.needed[index] => {
                !matches!(pattern(region, region.loads[i as usize]), None | Some(Pattern::Full))
            }
            _ => false,
        };
        self.program.flat = !region.program.iter().enumerate().any(reads_rows)
            && region.outputs.iter().all(|o| matches!(o, RegionOutput::Store { .. }));
    }

    fn add_uniforms(&mut self, input_types: &[TensorType]) {
        for (index, instr) in self.region.program.iter().enumerate() {
            if !self.needed[index] || self.extents[index] != Extent::Uniform {
                continue;
            }
            let slot = |r: Reg| self.uniform_slot[r as usize];
            let step = match *instr {
                Instr::Anchor => unreachable!("the anchor is not uniform"),
                Instr::Const(c) => UniformStep::Const(c.0 as f32),
                Instr::Load(i) => UniformStep::Read { load: i as usize, dtype: input_types[i as usize].dtype },
                Instr::Unary(kind, a) => UniformStep::Unary(kind, slot(a)),
                Instr::Binary(kind, a, b) => UniformStep::Binary(kind, slot(a), slot(b)),
                Instr::Select(c, a, b) => UniformStep::Select(slot(c), slot(a), slot(b)),
                Instr::Cast(to, a) => UniformStep::Cast(to, slot(a)),
            };
            self.uniform_slot[index] = self.program.uniforms.len();
            self.program.uniforms.push(step);
        }
    }

    fn add_sources(&mut self, input_types: &[TensorType]) {
        let region = self.region;
        let stores = |index: usize| {
            region.outputs.iter().any(|o| matches!(o, RegionOutput::Store { reg, .. } if *reg as usize == index))
        };
        let several = region.outputs.iter().filter(|o| matches!(o, RegionOutput::Store { .. })).count() > 1;
        for (index, instr) in region.program.iter().enumerate() {
            if !self.needed[index] || self.extents[index] == Extent::Uniform {
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
        let spread = registers.clone().filter(|&r| self.spread[r] && self.extents[r] == Extent::Uniform);
        let mut drafts: Vec<Draft> = spread.map(|r| Draft::Spread(r as Reg)).collect();
        for extent in [Extent::Column, Extent::Full] {
            self.program.column_steps = drafts.len();
            let members = registers.clone().filter(|&r| self.needed[r] && self.extents[r] == extent);
            drafts.extend(members.map(Draft::Compute));
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
            let outlives = |r: usize| position >= self.program.column_steps && self.extents[r] != Extent::Full;
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
                Draft::Compute(index) => index,
                Draft::Spread(reg) => reg as usize,
            };
            self.buffer[written] = free.pop().unwrap_or_else(|| {
                self.program.buffers += 1;
                self.program.buffers - 1
            });
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

    /// The register as an operand; a uniform one as a number.
    fn operand(&self, reg: Reg) -> Operand {
        let r = reg as usize;
        match self.extents[r] {
            Extent::Uniform => Operand::Uniform(self.uniform_slot[r]),
            _ => self.tile(reg),
        }
    }

    /// The register as a tile.
    fn tile(&self, reg: Reg) -> Operand {
        let r = reg as usize;
        match self.source_slot[r] {
            usize::MAX => Operand::Buffer(self.buffer[r]),
            slot => Operand::Source(slot),
        }
    }

    fn add_steps(&mut self, drafts: &[Draft]) {
        for &draft in drafts {
            let step = match draft {
                Draft::Spread(reg) => {
                    let r = reg as usize;
                    Step::Fill { uniform: self.uniform_slot[r], dst: self.buffer[r] }
                }
                Draft::Compute(index) => {
                    let dst = self.buffer[index];
                    match self.region.program[index] {
                        Instr::Anchor | Instr::Load(_) => {
                            let source = self.source_slot[index];
                            self.program.sources[source].buffer = dst;
                            Step::Read { source }
                        }
                        Instr::Const(_) => unreachable!("constants are uniform"),
                        Instr::Unary(kind, a) => Step::Unary { kind, a: self.tile(a), dst },
                        Instr::Binary(kind, a, b) => Step::Binary { kind, a: self.operand(a), b: self.operand(b), dst },
                        Instr::Select(c, a, b) => {
                            Step::Select { condition: self.tile(c), a: self.operand(a), b: self.operand(b), dst }
                        }
                        Instr::Cast(to, a) => Step::Cast { to, a: self.tile(a), dst },
                    }
                }
            };
            self.program.steps.push(step);
        }
    }

    fn add_sinks(&mut self) {
        let mut slot = 0;
        for (index, described) in self.region.outputs.iter().enumerate() {
            let value = self.tile(described.reg());
            let output = self.region.node_output(index);
            let sink = match described {
                RegionOutput::Store { ty, .. } => Sink::Store { value, dtype: ty.dtype, output },
                RegionOutput::Sum { groups, .. } => Sink::Sum { value, groups: *groups, output, slot },
                RegionOutput::Moments { .. } => Sink::Moments { value, output, slot },
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
            Sink::Store { .. } => 0,
            Sink::Sum { .. } => 1,
            Sink::Moments { .. } => 3,
        }
    }

    /// Accumulators it needs while it runs over the tiles of a block.
    pub fn accumulators(&self) -> usize {
        match self {
            Sink::Store { .. } => 0,
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
