//! The order of the instructions of a block program: most values go from one instruction to the next in the accumulator.
//! What is read again later, or not by the next instruction, is kept in a slot.

use super::block::{Function, Op};
use super::compile::cast_function;
use bessemer_ir::DType;
use bessemer_ir::ops::fusion::{Instr, Reg, RegType};
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};

/// Where a value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Storage {
    /// In the list of numbers.
    Scalar(usize),
    /// In a tile buffer.
    Buffer(usize),
    /// In memory, if it is read in place at all.
    Source(usize),
    /// In a slot of the block.
    Slot(usize),
    Output(usize),
    /// The first accumulator of a sink.
    Accumulator(usize),
    /// The lanes of a reduction of the row.
    Fold(usize),
}

/// What an instruction has besides accumulator and operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extra {
    None,
    Storage(Storage),
    Sink(usize),
    Function(Function),
}

/// An instruction before addresses are assigned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draft {
    pub op: Op,
    pub operand: Option<Storage>,
    pub extra: Extra,
}

impl Draft {
    pub(super) fn new(op: Op, operand: Storage) -> Draft {
        Draft { op, operand: Some(operand), extra: Extra::None }
    }

    fn alone(op: Op) -> Draft {
        Draft { op, operand: None, extra: Extra::None }
    }
}

/// What is to be computed by one block program.
pub(super) struct Task<'a> {
    pub instrs: &'a [Instr],
    /// What each register holds.
    pub types: &'a [RegType],
    /// Where each value lies already, by register.
    pub places: &'a [Option<Storage>],
    /// Sources that are read once only, by register: those that a store may overwrite before their last use.
    pub copied: &'a [Option<Storage>],
    /// Registers to be computed, in their order.
    pub values: Vec<usize>,
    /// What is done with each value as soon as it is there, by register.
    pub actions: &'a [Vec<Draft>],
    /// Registers with actions, in the order in which they are wanted.
    pub roots: Vec<usize>,
    /// What is done with values when all else is done.
    pub last: Vec<(usize, Draft)>,
}

/// A block program.
#[derive(Default)]
pub(super) struct Scheduled {
    pub drafts: Vec<Draft>,
    /// Slots that it needs.
    pub slots: usize,
}

pub(super) fn schedule(task: &Task<'_>) -> Scheduled {
    let n = task.instrs.len();
    let mut scheduler = Scheduler {
        task,
        uses: vec![0; n],
        conditions: vec![0; n],
        weights: vec![0; n],
        done: vec![false; n],
        places: task.places.to_vec(),
        masks: vec![None; n],
        free: Vec::new(),
        accumulator: None,
        scheduled: Scheduled::default(),
    };
    scheduler.count();
    for &root in &task.roots {
        scheduler.want(root);
    }
    for &(value, _) in &task.last {
        if scheduler.places[value].is_none() {
            scheduler.bring(value);
        }
    }
    for &(value, draft) in &task.last {
        scheduler.bring(value);
        scheduler.uses[value] -= 1;
        scheduler.scheduled.drafts.push(draft);
    }
    scheduler.scheduled
}

struct Scheduler<'a> {
    task: &'a Task<'a>,
    /// Instructions to come that read the value of a register.
    uses: Vec<usize>,
    /// Selections to come that it is the condition of.
    conditions: Vec<usize>,
    /// Instructions that its computation takes.
    weights: Vec<usize>,
    /// Whether it has been computed.
    done: Vec<bool>,
    places: Vec<Option<Storage>>,
    /// Slots of masks.
    masks: Vec<Option<usize>>,
    free: Vec<usize>,
    /// The value in the accumulator.
    accumulator: Option<usize>,
    scheduled: Scheduled,
}

/// The comparison that a kind of binary operation is, and the one with operands exchanged.
fn test_of(kind: BinaryKind) -> Option<(Op, Op)> {
    match kind {
        BinaryKind::Eq => Some((Op::TestEq, Op::TestEq)),
        BinaryKind::Lt => Some((Op::TestLt, Op::TestGt)),
        BinaryKind::Le => Some((Op::TestLe, Op::TestGe)),
        BinaryKind::Gt => Some((Op::TestGt, Op::TestLt)),
        BinaryKind::Ge => Some((Op::TestGe, Op::TestLe)),
        _ => None,
    }
}

/// What computes a binary operation with its first operand in the accumulator, and with its second one there.
fn binary_ops(kind: BinaryKind) -> (Op, Op) {
    match kind {
        BinaryKind::Add => (Op::Add, Op::Add),
        BinaryKind::Sub => (Op::Sub, Op::SubFrom),
        BinaryKind::Mul => (Op::Mul, Op::Mul),
        BinaryKind::Div => (Op::Div, Op::DivInto),
        BinaryKind::Max => (Op::Max, Op::MaxOf),
        BinaryKind::Min => (Op::Min, Op::MinOf),
        BinaryKind::Pow => (Op::Pow, Op::PowOf),
        BinaryKind::Eq | BinaryKind::Lt | BinaryKind::Le | BinaryKind::Gt | BinaryKind::Ge => {
            unreachable!("comparisons give masks")
        }
    }
}

/// What computes a function of the accumulator.
fn unary_draft(kind: UnaryKind) -> Draft {
    match kind {
        UnaryKind::Neg => Draft::alone(Op::Neg),
        UnaryKind::Abs => Draft::alone(Op::Abs),
        UnaryKind::Square => Draft::alone(Op::Square),
        UnaryKind::Sqrt => Draft::alone(Op::Sqrt),
        UnaryKind::Recip => Draft::alone(Op::Recip),
        UnaryKind::Rsqrt => Draft::alone(Op::Rsqrt),
        UnaryKind::Relu => Draft::alone(Op::Relu),
        UnaryKind::Sigmoid => Draft::alone(Op::Sigmoid),
        UnaryKind::Erf => Draft::alone(Op::Erf),
        UnaryKind::Exp | UnaryKind::Log | UnaryKind::Tanh | UnaryKind::Sin | UnaryKind::Cos | UnaryKind::Floor => {
            Draft { op: Op::Function, operand: None, extra: Extra::Function(Function::Unary(kind)) }
        }
    }
}

fn cast_draft(to: DType, from: RegType) -> Draft {
    match cast_function(to, from) {
        Function::Cast(DType::Bf16) => Draft::alone(Op::Round),
        function => Draft { op: Op::Function, operand: None, extra: Extra::Function(function) },
    }
}

impl Scheduler<'_> {
    /// Counts uses and weighs values.
    fn count(&mut self) {
        for &value in &self.task.values {
            let mut weight = 1;
            for (position, operand) in self.task.instrs[value].operands().map(usize::from).enumerate() {
                weight += self.weights[operand];
                let is_condition = matches!(self.task.instrs[value], Instr::Select(..)) && position == 0;
                if !is_condition {
                    self.uses[operand] += 1;
                } else if self.number(operand).is_none() {
                    self.conditions[operand] += 1;
                }
            }
            self.weights[value] = weight;
        }
        for &(value, _) in &self.task.last {
            self.uses[value] += 1;
        }
    }

    fn number(&self, value: usize) -> Option<Storage> {
        self.task.places[value].filter(|place| matches!(place, Storage::Scalar(_)))
    }

    fn push(&mut self, draft: Draft) {
        self.scheduled.drafts.push(draft);
    }

    fn new_slot(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.scheduled.slots += 1;
            self.scheduled.slots - 1
        })
    }

    fn is_here(&self, value: usize) -> bool {
        self.accumulator == Some(value)
    }

    /// Sees to it that what is to be done with a value is done. A value that an earlier root needed has been acted upon.
    fn want(&mut self, root: usize) {
        if self.task.places[root].is_some() {
            self.bring(root);
            self.act(root);
        } else if !self.done[root] {
            self.bring(root);
        }
    }

    fn act(&mut self, value: usize) {
        let task = self.task;
        for &draft in &task.actions[value] {
            self.push(draft);
            if let (Op::Put, Some(place @ Storage::Buffer(_))) = (draft.op, draft.operand) {
                self.places[value] = Some(place);
            }
        }
    }

    /// Gets a value into the accumulator.
    fn bring(&mut self, value: usize) {
        if self.is_here(value) {
            return;
        }
        match self.places[value] {
            Some(place) => {
                self.save();
                self.push(Draft::new(Op::Load, place));
                self.accumulator = Some(value);
            }
            None => self.compute(value),
        }
    }

    /// Keeps the accumulator's value, if it is still to be read, before the accumulator is overwritten.
    fn save(&mut self) {
        if let Some(value) = self.accumulator
            && (self.uses[value] > 0 || self.conditions[value] > 0 && self.masks[value].is_none())
        {
            self.keep(value);
        }
    }

    /// Keeps the value, which is in the accumulator, in a slot unless it lies somewhere.
    fn keep(&mut self, value: usize) {
        if self.places[value].is_none() {
            let slot = Storage::Slot(self.new_slot());
            self.push(Draft::new(Op::Put, slot));
            self.places[value] = Some(slot);
        }
    }

    /// Frees the slot of a value that nothing reads any more.
    fn release(&mut self, value: usize) {
        if let Some(Storage::Slot(slot)) = self.places[value]
            && self.uses[value] == 0
            && (self.conditions[value] == 0 || self.masks[value].is_some())
        {
            self.free.push(slot);
            self.places[value] = None;
        }
    }

    fn compute(&mut self, value: usize) {
        match self.task.instrs[value] {
            Instr::Producer | Instr::Load(_) => {
                self.save();
                self.push(Draft::new(Op::Load, self.task.copied[value].expect("a source that is copied")));
            }
            Instr::Unary(kind, a) => self.compute_alone(a, unary_draft(kind)),
            Instr::Cast(to, a) => self.compute_alone(a, cast_draft(to, self.task.types[usize::from(a)])),
            Instr::Binary(kind, a, b) if self.task.types[usize::from(a)] == RegType::I32 => {
                self.compute_pair(a, b, (Op::Integer, Op::IntegerOf), Extra::Function(Function::Integer(kind)));
            }
            Instr::Binary(kind, a, b) => match test_of(kind) {
                Some(_) => {
                    let mask = self.compare(value);
                    self.save();
                    self.push(Draft { op: Op::Truth, operand: None, extra: Extra::Storage(Storage::Slot(mask)) });
                    if self.conditions[value] > 0 {
                        self.masks[value] = Some(mask);
                    } else {
                        self.free.push(mask);
                    }
                }
                None => self.compute_pair(a, b, binary_ops(kind), Extra::None),
            },
            Instr::Select(c, a, b) => self.select(usize::from(c), a, b),
            Instr::Const(_) | Instr::Int(_) | Instr::Reduce(..) | Instr::OneHot(_) | Instr::Random { .. } => {
                unreachable!("these lie somewhere before the block program runs")
            }
        }
        self.done[value] = true;
        self.accumulator = Some(value);
        self.act(value);
    }

    fn compute_alone(&mut self, a: Reg, draft: Draft) {
        let a = usize::from(a);
        self.bring(a);
        self.uses[a] -= 1;
        self.save();
        self.push(draft);
        self.release(a);
    }

    fn compute_pair(&mut self, a: Reg, b: Reg, (forward, backward): (Op, Op), extra: Extra) {
        let (x, y, exchanged) = self.arrange(usize::from(a), usize::from(b));
        self.uses[x] -= 1;
        self.uses[y] -= 1;
        self.save();
        let mut operand = self.places[y];
        if matches!(forward, Op::Pow | Op::Integer) {
            self.push(Draft { op: Op::Second, operand: operand.take(), extra: Extra::None });
        }
        self.push(Draft { op: if exchanged { backward } else { forward }, operand, extra });
        self.release(x);
        self.release(y);
    }

    /// Compares, into a slot that is returned. The accumulator holds one of the operands afterwards.
    fn compare(&mut self, value: usize) -> usize {
        let Instr::Binary(kind, a, b) = self.task.instrs[value] else { unreachable!("a comparison is binary") };
        let (forward, backward) = test_of(kind).expect("a comparison");
        let (x, y, exchanged) = self.arrange(usize::from(a), usize::from(b));
        self.uses[x] -= 1;
        self.uses[y] -= 1;
        let mask = self.new_slot();
        let operand = self.places[y];
        let op = if exchanged { backward } else { forward };
        self.push(Draft { op, operand, extra: Extra::Storage(Storage::Slot(mask)) });
        self.release(x);
        self.release(y);
        mask
    }

    fn select(&mut self, c: usize, a: Reg, b: Reg) {
        if let Some(number) = self.number(c) {
            self.compute_pair(a, b, (Op::KeepIf, Op::TakeIf), Extra::Storage(number));
            return;
        }
        let mask = self.mask(c);
        self.compute_pair(a, b, (Op::KeepWhere, Op::TakeWhere), Extra::Storage(Storage::Slot(mask)));
        self.conditions[c] -= 1;
        if self.conditions[c] == 0 {
            self.free.push(mask);
            self.masks[c] = None;
            self.release(c);
        }
    }

    /// The slot of the mask of a condition.
    fn mask(&mut self, condition: usize) -> usize {
        if let Some(mask) = self.masks[condition] {
            return mask;
        }
        let is_value = self.is_here(condition)
            || self.places[condition].is_some()
            || self.uses[condition] > 0
            || !self.task.actions[condition].is_empty();
        let is_test = match self.task.instrs[condition] {
            Instr::Binary(kind, a, _) => test_of(kind).is_some() && self.task.types[usize::from(a)] == RegType::F32,
            _ => false,
        };
        let mask = if is_test && !is_value {
            let mask = self.compare(condition);
            self.done[condition] = true;
            mask
        } else {
            self.bring(condition);
            if let Some(mask) = self.masks[condition] {
                return mask;
            }
            let mask = self.new_slot();
            self.push(Draft { op: Op::TestTrue, operand: None, extra: Extra::Storage(Storage::Slot(mask)) });
            mask
        };
        self.masks[condition] = Some(mask);
        mask
    }

    /// Gets one of two operands into the accumulator, and the other one somewhere where it can be read: the one in the
    /// accumulator, the other one, whether the former is the second.
    fn arrange(&mut self, a: usize, b: usize) -> (usize, usize, bool) {
        let lies = |value: usize| self.places[value].is_some();
        let (x, y) = match (lies(a), lies(b)) {
            (true, true) if self.is_here(b) && !self.is_here(a) => (b, a),
            (_, true) => (a, b),
            (true, false) => (b, a),
            // The one that is here is kept. Else the one that takes more is computed first.
            (false, false) if a == b || self.is_here(b) => (a, b),
            (false, false) if !self.is_here(a) && self.weights[b] > self.weights[a] => (a, b),
            (false, false) => (b, a),
        };
        if self.places[y].is_none() {
            self.bring(y);
            self.keep(y);
        }
        self.bring(x);
        (x, y, x != a)
    }
}
