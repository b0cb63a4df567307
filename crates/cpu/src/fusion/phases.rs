//! The block programs of a fusion: which of them computes a value, what is kept from one to the next, what comes last.

use super::block::Op;
use super::compile::{Compiler, Extent};
use super::program::{Label, Sink, Step};
use super::schedule::{Draft, Extra, Scheduled, Storage, Task, schedule};
use bessemer_ir::DType;
use bessemer_ir::ops::fusion::Instr;
use bessemer_ir::ops::reduce::ReduceKind;

/// The block programs of the steps, and where values lie behind them.
struct Phases {
    scheduled: Vec<Scheduled>,
    places: Vec<Option<Storage>>,
}

impl Compiler<'_> {
    /// Whether a block program computes the value.
    fn is_computed(&self, r: usize, copied: &[Option<Storage>]) -> bool {
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
        matches!(self.places[r], Some(Storage::Scalar(_) | Storage::Buffer(_)))
    }

    pub(super) fn add_phases(&mut self) {
        for r in self.registers(Extent::Full) {
            if matches!(self.instrs[r], Instr::OneHot(_) | Instr::Random { .. }) {
                self.places[r] = Some(Storage::Buffer(self.new_buffer()));
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
                (Some(Storage::Source(i)), _) => read_later[self.program.sources[i].dtype.size()] = true,
                (Some(Storage::Output(_)), Extra::Sink(sink)) => {
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
        Draft { op, operand: Some(Storage::Output(output)), extra: Extra::Sink(index) }
    }

    /// The block programs, each with all that can be computed before the next reduction of the row.
    fn schedule_phases(&mut self) -> Phases {
        let n = self.instrs.len();
        let mut copied = vec![None; n];
        let mut copy = |r: usize| copied[r] = self.places[r].filter(|place| matches!(place, Storage::Source(_)));
        self.results.iter().zip(&self.late).filter(|(_, late)| **late).for_each(|(r, _)| copy(*r));
        for r in self.registers(Extent::Full) {
            if let Instr::OneHot(a) = self.instrs[r] {
                copy(usize::from(a));
            }
        }
        let last = (0..n).filter(|&r| self.needed[r]).map(|r| self.earliest[r]).max().unwrap_or(0);
        self.find_phases(last, &copied);
        let actions = self.actions(last, &copied);
        let mut places: Vec<Option<Storage>> = (0..n).map(|r| self.places[r].filter(|_| copied[r].is_none())).collect();
        let mut scheduled = Vec::new();
        for phase in 0..=last {
            let is_here = |r: &usize| self.is_computed(*r, &copied) && self.phase[*r] == phase;
            let lies_here = |r: &usize| !self.is_computed(*r, &copied) && self.earliest[*r] == phase;
            let needed = || (0..n).filter(|&r| self.needed[r]);
            let late = self.results.iter().enumerate().filter(|(i, _)| phase == last && self.late[*i]);
            let task = Task {
                instrs: &self.instrs,
                types: &self.types,
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
                places[value] = kept.into_iter().find(|place| matches!(place, Storage::Buffer(_)));
            }
        }
        Phases { scheduled, places }
    }

    /// The block program that computes each value: the first one that reads it.
    fn find_phases(&mut self, last: usize, copied: &[Option<Storage>]) {
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
    fn actions(&mut self, last: usize, copied: &[Option<Storage>]) -> Vec<Vec<Draft>> {
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
                let buffer = Storage::Buffer(self.new_buffer());
                actions[r].push(Draft::new(Op::Put, buffer));
            }
        }
        for (fold, (_, kind, a)) in self.reductions().into_iter().enumerate() {
            let op = match kind {
                ReduceKind::Sum => Op::FoldSum,
                ReduceKind::Max => Op::FoldMax,
                ReduceKind::Min => Op::FoldMin,
            };
            actions[a].push(Draft::new(op, Storage::Fold(fold)));
        }
        for (index, &value) in self.results.iter().enumerate() {
            let draft = match self.program.sinks[index] {
                Sink::Store { .. } if !self.late[index] => self.store(index),
                Sink::Sum { accumulator, .. } => Draft::new(Op::Sum, Storage::Accumulator(accumulator)),
                Sink::MeanVar { accumulator, .. } => Draft::new(Op::MeanVar, Storage::Accumulator(accumulator)),
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
                    (Instr::Reduce(kind, _), Some(Storage::Scalar(dst))) => {
                        let fold = reductions.iter().position(|reduction| reduction.0 == r);
                        Step::Reduce { kind, fold: fold.expect("every reduction is listed"), dst }
                    }
                    (Instr::OneHot(a), Some(Storage::Buffer(dst))) => match phases.places[usize::from(a)] {
                        Some(Storage::Scalar(label)) => Step::OneHot { label: Label::Scalar(label), dst },
                        Some(Storage::Buffer(label)) => Step::OneHot { label: Label::Buffer(label), dst },
                        _ => unreachable!("labels are kept"),
                    },
                    (Instr::Random { seed, stream, step }, Some(Storage::Buffer(dst))) => {
                        Step::Random { seed, stream, load: step as usize, dst }
                    }
                    (_, Some(Storage::Scalar(dst))) if self.extents[r] == Extent::Row => {
                        Step::Scalar { step: self.scalar_step(r), dst }
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
                Some(Storage::Source(i)) if self.program.sources[i].load.is_some() => Op::Prefetch,
                Some(Storage::Output(_)) if draft.op != Op::PutConverted => Op::PrefetchWrite,
                _ => continue,
            };
            if !prefetches.iter().any(|known| known.operand == draft.operand) {
                prefetches.push(Draft { op, operand: draft.operand, extra: draft.extra });
            }
        }
        prefetches
    }
}
