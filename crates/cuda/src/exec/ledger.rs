//! What the device's memory is used for.

use crate::driver::{Arena, Block, Context};
use crate::error::GpuError;
use bessemer_ir::run::RunError;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

/// What is allocated, by number of the allocation: what it is for, and bytes.
#[derive(Clone, Default)]
pub(super) struct Ledger(Arc<Mutex<BTreeMap<usize, (&'static str, usize)>>>);

/// One allocation, zero at first; its entry goes with it.
pub(super) struct Allocation {
    arena: Arena,
    ledger: Ledger,
    number: usize,
}

impl Ledger {
    /// Largest first.
    pub(super) fn entries(&self) -> Vec<(String, usize)> {
        let entries = super::locked(&self.0);
        let mut list: Vec<_> = entries.values().map(|&(what, bytes)| (what.to_owned(), bytes)).collect();
        list.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        list
    }

    /// Allocates `bytes` bytes.
    ///
    /// # Errors
    /// [`RunError::Memory`], with what is free and what the rest is used for; a device that is lost.
    pub(super) fn allocate(&self, context: &Context, what: &'static str, bytes: usize) -> Result<Allocation, RunError> {
        // The driver gives no empty memory.
        let arena = context.arena(bytes.max(1)).map_err(|error| {
            if let GpuError::Lost { .. } = error {
                return error.into();
            }
            let source = std::io::Error::other(self.explain(context, &error));
            RunError::Memory { what, bytes, source }
        })?;
        let mut entries = super::locked(&self.0);
        let number = entries.last_key_value().map_or(0, |(number, _)| number + 1);
        entries.insert(number, (what, bytes));
        Ok(Allocation { arena, ledger: self.clone(), number })
    }

    fn explain(&self, context: &Context, error: &GpuError) -> OutOfMemory {
        let (free, total) =
            context.memory().map_or((None, None), |(free, total)| (Some(free as u64), Some(total as u64)));
        OutOfMemory { error: error.to_string(), free, total, in_use: self.entries() }
    }
}

/// Why a GPU has no memory for something: the source of the [`RunError::Memory`] that says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// What the driver says.
    error: String,
    /// Bytes that were free, where the driver knows.
    pub free: Option<u64>,
    /// Bytes of the device.
    total: Option<u64>,
    /// What this process's states and plans had: what for, and bytes.
    in_use: Vec<(String, usize)>,
}

/// Bytes of the device that no plan is to have: for what the driver and libraries take when they start, kernels, and results of steps.
pub(crate) const RESERVED: u64 = 1_500_000_000;

impl OutOfMemory {
    /// Bytes that a plan may have, as far as is known, now that this process's states and plans have so many: of what was free and theirs,
    /// less a reserve of 1.5 GB. It is taken off whether libraries have started already or not.
    pub fn room(&self, in_use: u64) -> Option<u64> {
        let used: u64 = self.in_use.iter().map(|&(_, bytes)| bytes as u64).sum();
        Some((self.free? + used).saturating_sub(in_use + RESERVED))
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error)?;
        if let (Some(free), Some(total)) = (self.free, self.total) {
            write!(f, "; {free} of {total} bytes are free")?;
        }
        let used: Vec<String> = self.in_use.iter().map(|(what, bytes)| format!("{what}: {bytes}")).collect();
        write!(f, "; in use: {}", if used.is_empty() { "nothing".to_owned() } else { used.join(", ") })
    }
}

impl std::error::Error for OutOfMemory {}

impl Allocation {
    /// The `bytes` bytes from byte `offset` on.
    pub(super) fn block(&self, offset: usize, bytes: usize) -> Result<Block, GpuError> {
        self.arena.block(offset, bytes)
    }

    /// All of it.
    pub(super) fn all(&self) -> Result<Block, GpuError> {
        self.arena.block(0, self.arena.bytes())
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        super::locked(&self.ledger.0).remove(&self.number);
    }
}
