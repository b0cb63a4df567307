//! State in the host's memory.

use crate::arena::Arena;
use bessemer_ir::run::{RunError, StateLayout, StateSnapshot, StateStore};
use std::any::Any;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One run of memory for all state, zero at first.
pub struct CpuState {
    layout: StateLayout,
    memory: Arena,
    /// How often each tensor was replaced.
    versions: Vec<AtomicU64>,
    /// Held by whoever reads or writes `memory`.
    access: Mutex<()>,
}

// SAFETY: `memory` is read and written only by those who hold `access`.
unsafe impl Sync for CpuState {}

impl CpuState {
    /// Allocates state of this layout, all zero.
    ///
    /// # Errors
    /// [`RunError::Memory`].
    pub fn new(layout: StateLayout) -> Result<Self, RunError> {
        let bytes = layout.bytes();
        let memory = Arena::new(bytes).map_err(|source| RunError::Memory { what: "the state", bytes, source })?;
        let versions = layout.tensors().iter().map(|_| AtomicU64::new(0)).collect();
        Ok(Self { layout, memory, versions, access: Mutex::new(()) })
    }

    /// Keeps everyone else from the content until the guard is dropped.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        // A kernel that panicked leaves numbers behind, and any numbers are valid content.
        self.access.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Address of the tensor of a number; its content belongs to who holds the lock.
    pub(crate) fn address(&self, number: usize) -> *mut u8 {
        self.memory.at(self.layout.offset(number), self.layout.tensors()[number].ty.bytes())
    }

    pub(crate) fn version(&self, number: usize) -> u64 {
        self.versions[number].load(Ordering::Relaxed)
    }

    /// Notes that a tensor was replaced.
    pub(crate) fn changed(&self, number: usize) {
        self.versions[number].fetch_add(1, Ordering::Relaxed);
    }
}

impl StateStore for CpuState {
    fn layout(&self) -> &StateLayout {
        &self.layout
    }

    fn read(&self, name: &str, into: &mut [u8]) -> Result<(), RunError> {
        let number = self.layout.sized(name, into.len())?;
        let _access = self.lock();
        // SAFETY: a tensor of that size, which nobody writes while the lock is held.
        into.copy_from_slice(unsafe { std::slice::from_raw_parts(self.address(number), into.len()) });
        self.layout.tensors()[number].from_memory(into);
        Ok(())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), RunError> {
        let number = self.layout.sized(name, bytes.len())?;
        let bytes = self.layout.tensors()[number].to_memory(bytes);
        let _access = self.lock();
        // SAFETY: a tensor of that size, which nobody else uses while the lock is held.
        unsafe { std::slice::from_raw_parts_mut(self.address(number), bytes.len()) }.copy_from_slice(&bytes);
        self.changed(number);
        Ok(())
    }

    fn snapshot(self: Arc<Self>, numbers: &[usize]) -> Result<Box<dyn StateSnapshot>, RunError> {
        let ranges = self.layout.ranges(numbers);
        let content = vec![0; ranges.iter().map(Range::len).sum()];
        Ok(Box::new(CpuSnapshot { numbers: numbers.to_vec(), ranges, content, state: self }))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// What some tensors held.
struct CpuSnapshot {
    state: Arc<CpuState>,
    numbers: Vec<usize>,
    /// The bytes of the state, one range behind the other in `content`.
    ranges: Vec<Range<usize>>,
    content: Vec<u8>,
}

impl CpuSnapshot {
    /// Each range of the state with its content.
    fn pieces(&mut self) -> impl Iterator<Item = (*mut u8, &mut [u8])> {
        let CpuSnapshot { state, ranges, content, .. } = self;
        let mut rest = content.as_mut_slice();
        ranges.iter().map(move |range| {
            let (piece, behind) = std::mem::take(&mut rest).split_at_mut(range.len());
            rest = behind;
            (state.memory.at(range.start, range.len()), piece)
        })
    }
}

impl StateSnapshot for CpuSnapshot {
    fn take(&mut self) -> Result<(), RunError> {
        let state = Arc::clone(&self.state);
        let _access = state.lock();
        for (from, piece) in self.pieces() {
            // SAFETY: a range of the state, which nobody writes while the lock is held.
            piece.copy_from_slice(unsafe { std::slice::from_raw_parts(from, piece.len()) });
        }
        Ok(())
    }

    fn restore(&mut self) -> Result<(), RunError> {
        let state = Arc::clone(&self.state);
        let _access = state.lock();
        for (to, piece) in self.pieces() {
            // SAFETY: a range of the state, which nobody else uses while the lock is held.
            unsafe { std::slice::from_raw_parts_mut(to, piece.len()) }.copy_from_slice(piece);
        }
        self.numbers.iter().for_each(|&number| state.changed(number));
        Ok(())
    }
}
