//! Calls with the memory that they work on, and what they are bound to it with.

use super::Gpu;
use super::halt::Halting;
use super::ledger::Allocation;
use super::sums::{Exchange, Exchanges};
use crate::cublaslt::Prepared;
use crate::cudnn::Bound;
use crate::driver::{Block, Function};
use crate::error::GpuError;
use crate::kernels::index::REPORT_WORDS;
use crate::kgen::Kernel;
use crate::lower::Lowered;
use bessemer_ir::plan::{Location, Plan, StateCopy};
use bessemer_ir::run::HALT;
use bessemer_ir::{NodeId, Value};
use std::sync::Arc;

/// Bytes of the report of one call.
pub(super) const REPORT_BYTES: usize = 4 * REPORT_WORDS;

/// A step of a call with its memory.
pub(super) enum BoundStep {
    Launch(Function, Vec<Block>),
    /// A launch that reads where its operands are; `kept` is their memory.
    Group {
        function: Function,
        arguments: Vec<Block>,
        kept: Vec<Block>,
    },
    Product(Prepared),
    Convolution(Bound),
    Zero(Block),
    Copy(Block, Block),
    Exchange(Arc<Exchange>),
    Await(Arc<Exchange>),
}

/// A kernel call, or several that are launched as one, with the memory of their operands.
pub(super) struct Call {
    pub(super) nodes: Vec<NodeId>,
    pub(super) per_micro_batch: bool,
    pub(super) lowered: Arc<Lowered>,
    /// Number of the better steps that they are, if they are such.
    pub(super) fused: Option<usize>,
    pub(super) steps: Vec<BoundStep>,
}

/// What all calls of a plan share.
pub(super) struct Shared<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) plan: &'a Plan,
    pub(super) memory: &'a Memory,
    pub(super) tables: &'a Allocation,
    pub(super) halting: Option<&'a Halting>,
    pub(super) reports: Block,
    pub(super) halt: Block,
    /// Words that count blocks of the launch that runs.
    pub(super) arrivals: Block,
    pub(super) workspace: Block,
    /// Messages of sums over ranks, by the nodes that send them.
    pub(super) exchanges: Exchanges,
}

/// A call whose indices may be out of range.
pub(super) struct Report {
    pub(super) node: NodeId,
    /// How many values there are for each kind of index.
    pub(super) limits: Vec<usize>,
}

/// Memory of a plan.
pub(super) struct Memory {
    pub(super) arena: Allocation,
    pub(super) state: Vec<Block>,
}

impl Memory {
    pub(super) fn at(&self, location: Location, bytes: usize) -> Result<Block, GpuError> {
        match location {
            Location::Arena(offset) => self.arena.block(offset, bytes),
            Location::State(number) => self.state[number].part(0, bytes),
        }
    }

    pub(super) fn scratch(&self, offset: usize, bytes: usize) -> Result<Block, GpuError> {
        self.arena.block(offset, bytes)
    }

    pub(super) fn value(&self, plan: &Plan, value: Value) -> Result<Block, GpuError> {
        self.at(plan.location(value), plan.graph.ty(value).bytes())
    }
}

impl Shared<'_> {
    pub(super) fn launch(&self, kernel: &Kernel, blocks: Vec<Block>) -> Result<BoundStep, GpuError> {
        Ok(BoundStep::Launch(self.gpu.function(kernel)?, blocks))
    }

    pub(super) fn copies(&self) -> Result<Vec<(StateCopy, BoundStep)>, GpuError> {
        let bind = |(number, copy): (usize, &StateCopy)| {
            let (from, to) = (self.memory.at(copy.from, copy.bytes)?, self.memory.at(copy.to, copy.bytes)?);
            let step = match self.halting.and_then(|halting| halting.copies[number].as_ref()) {
                Some(kernel) => self.launch(kernel, vec![from, to, self.halt.clone()])?,
                None => BoundStep::Copy(from, to),
            };
            Ok((*copy, step))
        };
        self.plan.copies.iter().enumerate().map(bind).collect()
    }

    /// Halts if a report says something.
    pub(super) fn look(&self) -> Result<Option<BoundStep>, GpuError> {
        let look = self.halting.and_then(|halting| halting.look.as_ref());
        look.map(|kernel| self.launch(kernel, vec![self.reports.clone(), self.halt.clone()])).transpose()
    }

    /// Halts if the plan's output says so, and counts the step.
    pub(super) fn end(&self) -> Result<Option<BoundStep>, GpuError> {
        let Some(Halting { end, has_output, .. }) = self.halting else { return Ok(None) };
        let mut blocks = vec![self.halt.clone()];
        if *has_output {
            blocks.insert(0, self.memory.at(self.plan.result_location(HALT), 4)?);
        }
        Ok(Some(self.launch(end, blocks)?))
    }
}
