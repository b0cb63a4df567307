//! From the instructions of a region to steps over tiles: what is one number for the whole domain, what depends on the
//! column alone, what must be computed everywhere, and in which block program.

use super::block::Op;
use super::program::{Label, NumberStep, Pattern, Program, Sink, Source, Step};
use super::schedule::{Draft, Extra, Place, Scheduled, Task, schedule};
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::ops::reduce::ReduceKind;
use bessemer_ir::ops::region::{Access, Instr, Reg, Region, RegionOutput};
use bessemer_ir::{DType, TensorType};
use std::collections::HashMap;

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

struct Compiler<'a> {
    region: &'a Region,
    input_types: &'a [TensorType],
    /// The program, with one register for each value.
    instrs: Vec<Instr>,
    /// The register that holds the value of a register.
    same: Vec<usize>,
    /// Whether it is a `bf16` number.
    exact: Vec<bool>,
    extents: Vec<Extent>,
    needed: Vec<bool>,
    /// Where values lie that no block program of this step computes, per register.
    places: Vec<Option<Place>>,
    /// Block programs before the one that can compute the value, and before the one that does, per register.
    earliest: Vec<usize>,
    phase: Vec<usize>,
    /// The register that is stored or summed, by number of the output.
    results: Vec<usize>,
    /// Stores that come after all else, by number of the output.
    late: Vec<bool>,
    /// The block program of what depends on the column alone.
    columns: Vec<Draft>,
    program: Program,
}

pub(super) fn compile(region: &Region, input_types: &[TensorType]) -> Program {
    assert_eq!(region.loads.len(), input_types.len(), "a region is compiled with the types of all its loads");
    let n = region.program.len();
    let mut compiler = Compiler {
        region,
        input_types,
        instrs: Vec::with_capacity(n),
        same: Vec::with_capacity(n),
        exact: Vec::with_capacity(n),
        extents: Vec::with_capacity(n),
        needed: vec![false; n],
        places: vec![None; n],
        earliest: vec![0; n],
        phase: vec![usize::MAX; n],
        results: Vec::new(),
        late: vec![false; region.outputs.len()],
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
            rowwise: region.is_rowwise(),
        },
    };
    compiler.rename();
    compiler.classify();
    compiler.add_numbers();
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
        for (index, instr) in self.region.program.iter().enumerate() {
            let instr = renamed(*instr, |r| self.same[usize::from(r)] as Reg);
            let exact = self.is_exact(&instr);
            let same = match instr {
                Instr::Cast(DType::F32, a) => usize::from(a),
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
            Instr::Anchor | Instr::Unary(..) | Instr::Random { .. } => false,
        }
    }

    fn classify(&mut self) {
        let region = self.region;
        for instr in &self.instrs {
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
        self.find_results();
        let reads_rows = |(index, instr): (usize, &Instr)| match *instr {
            Instr::Load(i) if self.needed[index] => {
                !matches!(pattern(region, region.loads[i as usize]), None | Some(Pattern::Full))
            }
            Instr::OneHot(_) => self.needed[index],
            _ => false,
        };
        self.program.flat = !self.program.rowwise
            && !self.instrs.iter().enumerate().any(reads_rows)
            && region.outputs.iter().all(|o| matches!(o, RegionOutput::Store { .. }));
    }

    /// Finds what the outputs are made of, and what they need. A store rounds by itself what is rounded for it alone.
    fn find_results(&mut self) {
        self.results = self.region.outputs.iter().map(|output| self.same[usize::from(output.reg())]).collect();
        self.find_needed();
        for index in 0..self.results.len() {
            let value = self.results[index];
            let RegionOutput::Store { ty, .. } = &self.region.outputs[index] else { continue };
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

    fn extent_of_load(&self, access: Access) -> Extent {
        match pattern(self.region, access) {
            None => Extent::Uniform,
            Some(Pattern::Column) => Extent::Column,
            Some(Pattern::Rows(Access { by_col: false, .. })) if self.program.rowwise => Extent::Row,
            Some(_) => Extent::Full,
        }
    }

    /// The needed registers of an extent.
    fn registers(&self, extent: Extent) -> impl Iterator<Item = usize> + use<> {
        let registers: Vec<usize> =
            (0..self.instrs.len()).filter(|&r| self.needed[r] && self.extents[r] == extent).collect();
        registers.into_iter()
    }

    fn new_buffer(&mut self) -> usize {
        self.program.buffers += 1;
        self.program.buffers - 1
    }

    /// Place of a register in the list of numbers.
    fn number(&self, r: Reg) -> usize {
        match self.places[usize::from(r)] {
            Some(Place::Number(number)) => number,
            _ => unreachable!("numbers are made of numbers"),
        }
    }

    /// How the number of an instruction is computed.
    fn number_step(&self, index: usize) -> NumberStep {
        match self.instrs[index] {
            Instr::Const(c) => NumberStep::Const(c.0 as f32),
            Instr::Load(i) => {
                let (load, access) = (i as usize, self.region.loads[i as usize]);
                let access = if self.extents[index] == Extent::Uniform { Access::SCALAR } else { access };
                NumberStep::Read { load, dtype: self.input_types[load].dtype, access }
            }
            Instr::Unary(kind, a) => NumberStep::Unary(kind, self.number(a)),
            Instr::Binary(kind, a, b) => NumberStep::Binary(kind, self.number(a), self.number(b)),
            Instr::Select(c, a, b) => NumberStep::Select(self.number(c), self.number(a), self.number(b)),
            Instr::Cast(to, a) => NumberStep::Cast(to, self.number(a)),
            Instr::Anchor | Instr::Reduce(..) | Instr::OneHot(_) | Instr::Random { .. } => {
                unreachable!("these are made of tiles")
            }
        }
    }

    /// Gives every number its place, the uniform ones first, which are computed before the loops.
    fn add_numbers(&mut self) {
        for extent in [Extent::Uniform, Extent::Row] {
            for index in self.registers(extent) {
                self.places[index] = Some(Place::Number(self.program.numbers));
                self.program.numbers += 1;
                if extent == Extent::Uniform {
                    let step = self.number_step(index);
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
                Instr::Anchor => (None, DType::F32, Pattern::Full),
                Instr::Load(i) => {
                    let load = i as usize;
                    let pattern = pattern(self.region, self.region.loads[load]).expect("a uniform load is no source");
                    (Some(load), self.input_types[load].dtype, pattern)
                }
                _ => continue,
            };
            let in_place = matches!(dtype, DType::F32 | DType::Bf16) && pattern == Pattern::Full;
            let buffer = self.new_buffer();
            let place = if in_place { Place::Source(self.program.sources.len()) } else { Place::Buffer(buffer) };
            self.places[index] = Some(place);
            self.program.sources.push(Source { load, dtype, pattern, buffer, in_place });
        }
    }

    fn add_sinks(&mut self) {
        let (mut slot, mut accumulator) = (0, 0);
        for (index, described) in self.region.outputs.iter().enumerate() {
            let output = self.region.node_output(index);
            let sink = match described {
                RegionOutput::Store { ty, .. } => Sink::Store { dtype: ty.dtype, output },
                RegionOutput::Rows { ty, .. } => {
                    Sink::Rows { number: self.number(self.results[index] as Reg), dtype: ty.dtype, output }
                }
                RegionOutput::Sum { groups, .. } => Sink::Sum { groups: *groups, output, slot, accumulator },
                RegionOutput::Moments { .. } => Sink::Moments { output, slot, accumulator },
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
                let buffer = Place::Buffer(self.new_buffer());
                actions[value].push(Draft::new(Op::Put, buffer));
                roots.push(value);
            }
        }
        let task = Task {
            instrs: &self.instrs,
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

    /// Whether a block program computes the value.
    fn is_computed(&self, r: usize, copied: &[Option<Place>]) -> bool {
        copied[r].is_some() || self.extents[r] == Extent::Full && self.places[r].is_none()
    }

    /// Block programs that come before a value can be there, per register.
    fn find_earliest(&mut self) {
        for r in (0..self.instrs.len()).filter(|&r| self.needed[r]) {
            let operands = self.instrs[r].operands().map(|a| self.earliest[usize::from(a)]).max().unwrap_or(0);
            self.earliest[r] = match self.instrs[r] {
                Instr::Reduce(..) => operands + 1,
                Instr::OneHot(a) if !self.is_label(usize::from(a)) => operands + 1,
                _ => operands,
            };
        }
    }

    /// Whether the value lies where a step can read it.
    fn is_label(&self, r: usize) -> bool {
        matches!(self.places[r], Some(Place::Number(_) | Place::Buffer(_)))
    }

    fn add_phases(&mut self) {
        for r in self.registers(Extent::Full) {
            if matches!(self.instrs[r], Instr::OneHot(_) | Instr::Random { .. }) {
                self.places[r] = Some(Place::Buffer(self.new_buffer()));
            }
        }
        self.find_earliest();
        let buffers = self.program.buffers;
        loop {
            self.program.buffers = buffers;
            let phases = self.schedule_phases();
            let before = self.late.clone();
            self.find_late(&phases);
            if before == self.late {
                self.add_steps(&phases);
                return;
            }
        }
    }

    /// Stores that something read afterwards does not survive.
    fn find_late(&mut self, phases: &Phases) {
        let mut read_later = [false; 9];
        for draft in phases.scheduled.iter().flat_map(|phase| &phase.drafts).rev() {
            match (draft.operand, draft.extra) {
                (Some(Place::Source(i)), _) => read_later[self.program.sources[i].dtype.size()] = true,
                (Some(Place::Output(_)), Extra::Sink(sink)) => {
                    if let Sink::Store { dtype, .. } = self.program.sinks[sink]
                        && read_later[dtype.size()]
                    {
                        self.late[sink] = true;
                    }
                }
                _ => {}
            }
        }
    }

    /// What writes output number `index` of the list.
    fn store(&self, index: usize) -> Draft {
        let Sink::Store { dtype, output } = self.program.sinks[index] else { unreachable!("only stores are stored") };
        let op = match dtype {
            DType::F32 => Op::Put,
            DType::Bf16 if self.exact[self.results[index]] => Op::PutExact,
            DType::Bf16 => Op::PutRounded,
            _ => Op::PutConverted,
        };
        Draft { op, operand: Some(Place::Output(output)), extra: Extra::Sink(index) }
    }

    /// The block programs, each with all that can be computed before the next reduction of the row.
    fn schedule_phases(&mut self) -> Phases {
        let n = self.instrs.len();
        let mut copied = vec![None; n];
        let mut copy = |r: usize| copied[r] = self.places[r].filter(|place| matches!(place, Place::Source(_)));
        self.results.iter().zip(&self.late).filter(|(_, late)| **late).for_each(|(r, _)| copy(*r));
        for r in self.registers(Extent::Full) {
            if let Instr::OneHot(a) = self.instrs[r] {
                copy(usize::from(a));
            }
        }
        let last = (0..n).filter(|&r| self.needed[r]).map(|r| self.earliest[r]).max().unwrap_or(0);
        self.find_phases(last, &copied);
        let actions = self.actions(last, &copied);
        let mut places: Vec<Option<Place>> = (0..n).map(|r| self.places[r].filter(|_| copied[r].is_none())).collect();
        let mut scheduled = Vec::new();
        for phase in 0..=last {
            let is_here = |r: &usize| self.is_computed(*r, &copied) && self.phase[*r] == phase;
            let lies_here = |r: &usize| !self.is_computed(*r, &copied) && self.earliest[*r] == phase;
            let needed = || (0..n).filter(|&r| self.needed[r]);
            let late = self.results.iter().enumerate().filter(|(i, _)| phase == last && self.late[*i]);
            let task = Task {
                instrs: &self.instrs,
                places: &places,
                copied: &copied,
                values: needed().filter(is_here).collect(),
                actions: &actions,
                roots: needed().filter(|r| !actions[*r].is_empty() && (is_here(r) || lies_here(r))).collect(),
                last: late.map(|(i, r)| (*r, self.store(i))).collect(),
            };
            scheduled.push(schedule(&task));
            for value in task.values {
                let kept = actions[value].iter().filter_map(|draft| draft.operand);
                places[value] = kept.into_iter().find(|place| matches!(place, Place::Buffer(_)));
            }
        }
        Phases { scheduled, places }
    }

    /// The block program that computes each value: the first one that reads it.
    fn find_phases(&mut self, last: usize, copied: &[Option<Place>]) {
        self.phase.fill(usize::MAX);
        for (&value, late) in self.results.iter().zip(&self.late) {
            self.phase[value] = self.phase[value].min(if *late { last } else { self.earliest[value] });
        }
        for r in (0..self.instrs.len()).rev().filter(|&r| self.needed[r]) {
            let wanted = match self.instrs[r] {
                Instr::Reduce(_, a) | Instr::OneHot(a) => self.earliest[usize::from(a)],
                _ if self.is_computed(r, copied) => self.phase[r],
                _ => continue,
            };
            for a in self.instrs[r].operands().map(usize::from) {
                self.phase[a] = self.phase[a].min(wanted);
            }
        }
    }

    /// What is done with values as soon as they are there, per register.
    fn actions(&mut self, last: usize, copied: &[Option<Place>]) -> Vec<Vec<Draft>> {
        let n = self.instrs.len();
        let mut actions: Vec<Vec<Draft>> = vec![Vec::new(); n];
        for r in (0..n).filter(|&r| self.needed[r] && self.is_computed(r, copied)).collect::<Vec<_>>() {
            let phase = self.phase[r];
            let is_read_later = |(user, instr): (usize, &Instr)| {
                let later = match instr {
                    Instr::OneHot(_) => true,
                    _ => self.is_computed(user, copied) && self.phase[user] > phase,
                };
                self.needed[user] && later && instr.operands().any(|a| usize::from(a) == r)
            };
            let mut results = self.results.iter().zip(&self.late);
            let is_stored_later = phase < last && results.any(|(result, late)| *late && *result == r);
            if is_stored_later || self.instrs.iter().enumerate().any(is_read_later) {
                let buffer = Place::Buffer(self.new_buffer());
                actions[r].push(Draft::new(Op::Put, buffer));
            }
        }
        for (fold, (_, kind, a)) in self.reductions().into_iter().enumerate() {
            let op = match kind {
                ReduceKind::Sum => Op::FoldSum,
                ReduceKind::Max => Op::FoldMax,
                ReduceKind::Min => Op::FoldMin,
            };
            actions[a].push(Draft::new(op, Place::Fold(fold)));
        }
        for (index, &value) in self.results.iter().enumerate() {
            let draft = match self.program.sinks[index] {
                Sink::Store { .. } if !self.late[index] => self.store(index),
                Sink::Sum { accumulator, .. } => Draft::new(Op::Sum, Place::Accumulator(accumulator)),
                Sink::Moments { accumulator, .. } => Draft::new(Op::Moments, Place::Accumulator(accumulator)),
                Sink::Store { .. } | Sink::Rows { .. } => continue,
            };
            actions[value].push(draft);
        }
        actions
    }

    /// The reductions of rows: register, kind, what is reduced.
    fn reductions(&self) -> Vec<(usize, ReduceKind, usize)> {
        let reduction = |r: usize| match self.instrs[r] {
            Instr::Reduce(kind, a) => Some((r, kind, usize::from(a))),
            _ => None,
        };
        self.registers(Extent::Row).filter_map(reduction).collect()
    }

    fn add_steps(&mut self, phases: &Phases) {
        let reductions = self.reductions();
        self.program.folds = reductions.iter().map(|(_, kind, _)| *kind).collect();
        let slots = phases.scheduled.iter().map(|phase| phase.slots).max();
        self.program.slots = self.program.slots.max(slots.unwrap_or(0));
        // All is counted now, so that addresses have their places in the table.
        self.program.columns = self.program.block_program(&self.columns).staged;
        let mut ahead = self.prefetches(phases);
        for (phase, Scheduled { drafts, .. }) in phases.scheduled.iter().enumerate() {
            for r in (0..self.instrs.len()).filter(|&r| self.needed[r] && self.earliest[r] == phase) {
                let step = match (self.instrs[r], self.places[r]) {
                    (Instr::Reduce(kind, _), Some(Place::Number(dst))) => {
                        let fold = reductions.iter().position(|reduction| reduction.0 == r);
                        Step::Reduce { kind, fold: fold.expect("every reduction is listed"), dst }
                    }
                    (Instr::OneHot(a), Some(Place::Buffer(dst))) => match phases.places[usize::from(a)] {
                        Some(Place::Number(label)) => Step::OneHot { label: Label::Number(label), dst },
                        Some(Place::Buffer(label)) => Step::OneHot { label: Label::Buffer(label), dst },
                        _ => unreachable!("labels are kept"),
                    },
                    (Instr::Random { seed, stream, step }, Some(Place::Buffer(dst))) => {
                        Step::Random { seed, stream, load: step as usize, dst }
                    }
                    (_, Some(Place::Number(dst))) if self.extents[r] == Extent::Row => {
                        Step::Number { step: self.number_step(r), dst }
                    }
                    _ => continue,
                };
                self.program.steps.push(step);
            }
            if !drafts.is_empty() {
                ahead.extend(drafts);
                let blocks = self.program.block_program(&ahead);
                self.program.steps.push(Step::Run(blocks));
                ahead.clear();
            }
        }
    }

    /// Asks for what the program reads and writes in place in the next tile.
    fn prefetches(&self, phases: &Phases) -> Vec<Draft> {
        let mut prefetches: Vec<Draft> = Vec::new();
        for draft in phases.scheduled.iter().flat_map(|phase| &phase.drafts) {
            let op = match draft.operand {
                Some(Place::Source(i)) if self.program.sources[i].load.is_some() => Op::Prefetch,
                Some(Place::Output(_)) if draft.op != Op::PutConverted => Op::PrefetchWrite,
                _ => continue,
            };
            if !prefetches.iter().any(|known| known.operand == draft.operand) {
                prefetches.push(Draft { op, operand: draft.operand, extra: draft.extra });
            }
        }
        prefetches
    }
}

/// The instruction with other registers.
fn renamed(instr: Instr, name: impl Fn(Reg) -> Reg) -> Instr {
    match instr {
        Instr::Anchor | Instr::Load(_) | Instr::Const(_) | Instr::Random { .. } => instr,
        Instr::Unary(kind, a) => Instr::Unary(kind, name(a)),
        Instr::Binary(kind, a, b) => Instr::Binary(kind, name(a), name(b)),
        Instr::Select(c, a, b) => Instr::Select(name(c), name(a), name(b)),
        Instr::Cast(to, a) => Instr::Cast(to, name(a)),
        Instr::Reduce(kind, a) => Instr::Reduce(kind, name(a)),
        Instr::OneHot(a) => Instr::OneHot(name(a)),
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

/// The block programs of the steps, and where values lie behind them.
struct Phases {
    scheduled: Vec<Scheduled>,
    places: Vec<Option<Place>>,
}
