//! A compiled fusion: steps over tiles, of which those that depend on the position are block programs.

use super::block::{Advance, Form, Function, Instr, Op};
use super::schedule::{Draft, Extra, Storage};
use bessemer_ir::DType;
use bessemer_ir::ops::fusion::IndexMap;
use bessemer_ir::ops::pointwise::BinaryKind;
use bessemer_ir::ops::reduce::ReduceKind;

/// Memory that the program reads.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// Number of the load; `None` for the producer.
    pub load: Option<usize>,
    pub dtype: DType,
    pub pattern: Pattern,
    /// The buffer that receives it where it is not read in place.
    pub buffer: usize,
    /// Whether it may be read in place: of a type that vectors widen, and every element its own.
    pub in_place: bool,
}

/// How a source is laid over the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    Full,
    /// The same row everywhere.
    Column,
    /// One row, or one number for a row, chosen by the row.
    Rows(IndexMap),
}

/// A block program in two forms.
#[derive(Clone, Debug, Default)]
pub(super) struct BlockProgram {
    /// For blocks that are neighbours in memory: reads and writes it.
    pub in_place: Vec<Instr>,
    /// For the others: reads buffers, writes element by element.
    pub staged: Vec<Instr>,
}

/// What is done with a tile.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Run(BlockProgram),
    /// A number of the row.
    Scalar {
        step: NumberStep,
        dst: usize,
    },
    /// What a reduction of the row comes to.
    Reduce {
        kind: ReduceKind,
        fold: usize,
        dst: usize,
    },
    /// `label` holds the number of a column in every position of a row.
    OneHot {
        label: Label,
        dst: usize,
    },
    Random {
        seed: u64,
        stream: u32,
        load: usize,
        dst: usize,
    },
}

/// Where the number of a column is found.
#[derive(Clone, Copy, Debug)]
pub(super) enum Label {
    Scalar(usize),
    Buffer(usize),
}

/// How one number is computed, from earlier ones. An integer is held as the `f32` of its bits.
#[derive(Clone, Copy, Debug)]
pub(super) enum NumberStep {
    Const(f32),
    Read {
        load: usize,
        dtype: DType,
        index_map: IndexMap,
    },
    /// Of one number; not one of two integers.
    Function(Function, usize),
    Binary(BinaryKind, usize, usize),
    /// Of integers.
    Integer(BinaryKind, usize, usize),
    Select(usize, usize, usize),
}

/// What becomes of a value. `output` numbers the node's outputs, `slot` the rows of a block's partial results,
/// `accumulator` the memory in which they are added up.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sink {
    Store {
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
        groups: usize,
        output: usize,
        slot: usize,
        accumulator: usize,
    },
    /// Two outputs: mean and variance. Three slots: a number near the mean, the mean's distance from it, the sum of
    /// squared deviations from the mean.
    MeanVar {
        output: usize,
        slot: usize,
        accumulator: usize,
    },
}

impl Sink {
    /// Rows of a block's partial results that it occupies, and accumulators that it needs.
    pub(super) fn slots(&self) -> usize {
        match self {
            Sink::Store { .. } | Sink::Rows { .. } => 0,
            Sink::Sum { .. } => 1,
            Sink::MeanVar { .. } => 3,
        }
    }
}

/// A compiled program.
#[derive(Clone, Debug)]
pub(super) struct Program {
    /// Numbers computed before the loops, the first of all.
    pub uniforms: Vec<NumberStep>,
    /// How many numbers there are.
    pub numbers: usize,
    pub sources: Vec<Source>,
    /// Computes what depends on the column alone, in the form for buffers.
    pub columns: Vec<Instr>,
    pub steps: Vec<Step>,
    pub sinks: Vec<Sink>,
    pub functions: Vec<Function>,
    pub buffers: usize,
    /// Slots of a block.
    pub slots: usize,
    pub outputs: usize,
    pub accumulators: usize,
    /// Reductions of the row.
    pub folds: Vec<ReduceKind>,
    /// Whether nothing depends on where rows begin, so that the domain may be cut anywhere.
    pub flat: bool,
    /// Whether tiles are whole rows, one at a time.
    pub rowwise: bool,
}

impl Program {
    /// Storage of the temporary memory in the table of addresses.
    pub(super) const TEMPORARY: usize = 0;

    /// Storage of what is used by block programs in the table of addresses.
    pub(super) fn base(&self, place: Storage) -> usize {
        let buffers = 1 + self.numbers;
        let slots = buffers + self.buffers;
        let sources = slots + self.slots;
        let outputs = sources + self.sources.len();
        let accumulators = outputs + self.outputs;
        match place {
            Storage::Scalar(i) => 1 + i,
            Storage::Buffer(i) => buffers + i,
            Storage::Slot(i) => slots + i,
            Storage::Source(i) => sources + i,
            Storage::Output(i) => outputs + i,
            Storage::Accumulator(i) => accumulators + i,
            Storage::Fold(i) => accumulators + self.accumulators + i,
        }
    }

    /// Entries of the table of addresses.
    pub(super) fn bases(&self) -> usize {
        self.base(Storage::Fold(self.folds.len()))
    }

    /// What lies in the scratch memory, apart from numbers.
    pub(super) fn own_memory(&self) -> impl Iterator<Item = Storage> {
        let buffers = (0..self.buffers).map(Storage::Buffer);
        let slots = (0..self.slots).map(Storage::Slot);
        let accumulators = (0..self.accumulators).map(Storage::Accumulator);
        buffers.chain(slots).chain(accumulators).chain((0..self.folds.len()).map(Storage::Fold))
    }

    /// Buffers that every tile uses.
    pub(super) fn buffers_of_tiles(&self) -> usize {
        self.buffers - self.sources.iter().filter(|source| source.in_place).count()
    }

    /// The two forms of a block program.
    pub(super) fn block_program(&mut self, drafts: &[Draft]) -> BlockProgram {
        let is_ahead = |draft: &&Draft| matches!(draft.op, Op::Prefetch | Op::PrefetchWrite);
        BlockProgram {
            in_place: drafts.iter().map(|draft| self.instr(draft, true)).collect(),
            staged: drafts.iter().filter(|draft| !is_ahead(draft)).map(|draft| self.instr(draft, false)).collect(),
        }
    }

    fn instr(&mut self, draft: &Draft, in_place: bool) -> Instr {
        let mut op = draft.op;
        let (mut form, mut advance, mut base) = (Form::F32, Advance::Fixed, 0);
        if let Some(mut place) = draft.operand {
            (form, advance) = match place {
                Storage::Scalar(_) => (Form::Scalar, Advance::Fixed),
                Storage::Buffer(_) => (Form::F32, Advance::Tile),
                Storage::Slot(_) | Storage::Accumulator(_) | Storage::Fold(_) => (Form::F32, Advance::Fixed),
                Storage::Source(i) if in_place => {
                    let form = Form::of(self.sources[i].dtype);
                    (form, Advance::of(form))
                }
                Storage::Source(i) => {
                    place = Storage::Buffer(self.sources[i].buffer);
                    (Form::F32, Advance::Tile)
                }
                Storage::Output(_) if !in_place || op == Op::PutConverted => {
                    op = Op::PutConverted;
                    (Form::F32, Advance::Fixed)
                }
                Storage::Output(_) => {
                    let form = self.form_of_store(draft);
                    (form, Advance::of(form))
                }
            };
            base = self.base(place);
        }
        let extra = match draft.extra {
            Extra::None => 0,
            Extra::Storage(place) => self.base(place),
            Extra::Sink(sink) => sink,
            Extra::Function(function) => {
                let known = self.functions.iter().position(|f| *f == function);
                known.unwrap_or_else(|| {
                    self.functions.push(function);
                    self.functions.len() - 1
                })
            }
        };
        Instr { code: op.code(form), op, advance, base: base as u16, extra: extra as u16 }
    }

    fn form_of_store(&self, draft: &Draft) -> Form {
        match draft.extra {
            Extra::Sink(sink) if let Sink::Store { dtype, .. } = self.sinks[sink] => Form::of(dtype),
            _ => Form::F32,
        }
    }
}
