//! State in the host's memory.

use crate::arena::Arena;
use bessemer_ir::run::{RunError, StateLayout, StateStore};
use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

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
        Ok(())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), RunError> {
        let number = self.layout.sized(name, bytes.len())?;
        let _access = self.lock();
        // SAFETY: a tensor of that size, which nobody else uses while the lock is held.
        unsafe { std::slice::from_raw_parts_mut(self.address(number), bytes.len()) }.copy_from_slice(bytes);
        self.changed(number);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
