//! State in the device's memory.

use super::ledger::Allocation;
use super::{Gpu, failed};
use crate::driver::Block;
use crate::error::GpuError;
use bessemer_ir::run::{RunError, StateLayout, StateSnapshot, StateStore};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One piece of memory for all state, zero at first.
pub(super) struct CudaState {
    layout: StateLayout,
    memory: Allocation,
    /// How often each tensor was replaced.
    versions: Vec<AtomicU64>,
    gpu: Arc<Gpu>,
}

impl CudaState {
    /// # Errors
    /// [`RunError::Memory`].
    pub(super) fn new(gpu: &Arc<Gpu>, layout: StateLayout) -> Result<CudaState, RunError> {
        let memory = gpu.ledger.allocate(&gpu.context, "the state", layout.bytes())?;
        let _order = gpu.lock();
        memory.all().and_then(|all| gpu.stream.fill(&all, 0)).map_err(failed)?;
        let versions = layout.tensors().iter().map(|_| AtomicU64::new(0)).collect();
        Ok(CudaState { layout, memory, versions, gpu: Arc::clone(gpu) })
    }

    pub(super) fn is_of(&self, gpu: &Arc<Gpu>) -> bool {
        Arc::ptr_eq(&self.gpu, gpu)
    }

    /// Memory of the tensor of a number.
    pub(super) fn block(&self, number: usize) -> Result<Block, RunError> {
        let bytes = self.layout.tensors()[number].ty.bytes();
        self.memory.block(self.layout.offset(number), bytes).map_err(failed)
    }

    /// Memory of all tensors.
    pub(super) fn all(&self) -> Result<Block, GpuError> {
        self.memory.all()
    }

    pub(super) fn version(&self, number: usize) -> u64 {
        self.versions[number].load(Ordering::Relaxed)
    }

    /// Notes that a tensor was replaced.
    pub(super) fn changed(&self, number: usize) {
        self.versions[number].fetch_add(1, Ordering::Relaxed);
    }
}

impl StateStore for CudaState {
    fn layout(&self) -> &StateLayout {
        &self.layout
    }

    fn read(&self, name: &str, into: &mut [u8]) -> Result<(), RunError> {
        let number = self.layout.sized(name, into.len())?;
        let block = self.block(number)?;
        let order = self.gpu.lock();
        self.gpu.stream.download(&block, into).map_err(failed)?;
        drop(order);
        self.layout.tensors()[number].from_memory(into);
        Ok(())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), RunError> {
        let number = self.layout.sized(name, bytes.len())?;
        let block = self.block(number)?;
        let bytes = self.layout.tensors()[number].to_memory(bytes);
        let _order = self.gpu.lock();
        self.gpu.stream.upload(&bytes, &block).map_err(failed)?;
        self.changed(number);
        Ok(())
    }

    fn take_from_first(&self, name: &str) -> Result<bool, RunError> {
        let number = self.layout.number(name)?;
        let Some(sums) = &self.gpu.sums else { return Ok(false) };
        let block = self.block(number)?;
        self.gpu.with_ranks(|| {
            let _order = self.gpu.lock();
            sums.peers().begun(1);
            sums.take_from_first(&self.gpu.stream, &block).map_err(failed)?;
            self.gpu.stream.synchronize().map_err(failed)?;
            sums.peers().done();
            self.changed(number);
            Ok(true)
        })
    }

    fn snapshot(self: Arc<Self>, numbers: &[usize]) -> Result<Box<dyn StateSnapshot>, RunError> {
        let ranges = self.layout.ranges(numbers);
        let bytes = ranges.iter().map(|range| range.len()).sum();
        let kept = self.gpu.ledger.allocate(&self.gpu.context, "a snapshot of state", bytes)?;
        let mut start = 0;
        let mut pair = |range: &Range<usize>| {
            let pair = (self.memory.block(range.start, range.len())?, kept.block(start, range.len())?);
            start += range.len();
            Ok(pair)
        };
        let blocks = ranges.iter().map(&mut pair).collect::<Result<_, GpuError>>().map_err(failed)?;
        let order = self.gpu.lock();
        kept.all().and_then(|all| self.gpu.stream.fill(&all, 0)).map_err(failed)?;
        drop(order);
        Ok(Box::new(CudaSnapshot { numbers: numbers.to_vec(), blocks, _kept: kept, state: self }))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// What some tensors held, in the device's memory.
struct CudaSnapshot {
    state: Arc<CudaState>,
    numbers: Vec<usize>,
    /// Each range of the state, and where its content is kept.
    blocks: Vec<(Block, Block)>,
    _kept: Allocation,
}

impl StateSnapshot for CudaSnapshot {
    fn take(&mut self) -> Result<(), RunError> {
        let gpu = &self.state.gpu;
        let _order = gpu.lock();
        self.blocks.iter().try_for_each(|(state, kept)| gpu.stream.copy(state, kept)).map_err(failed)
    }

    fn restore(&mut self) -> Result<(), RunError> {
        let gpu = &self.state.gpu;
        let _order = gpu.lock();
        self.blocks.iter().try_for_each(|(state, kept)| gpu.stream.copy(kept, state)).map_err(failed)?;
        self.numbers.iter().for_each(|&number| self.state.changed(number));
        Ok(())
    }
}
