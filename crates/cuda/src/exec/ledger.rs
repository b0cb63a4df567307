//! What the device's memory is used for.

use crate::driver::{Arena, Block, Context};
use crate::error::GpuError;
use bessemer_ir::run::RunError;
use std::collections::BTreeMap;
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

    fn explain(&self, context: &Context, error: &GpuError) -> String {
        let free = match context.memory() {
            Ok((free, total)) => format!("; {free} of {total} bytes are free"),
            Err(_) => String::new(),
        };
        let used: Vec<String> = self.entries().into_iter().map(|(what, bytes)| format!("{what}: {bytes}")).collect();
        let used = if used.is_empty() { "nothing".to_owned() } else { used.join(", ") };
        format!("{error}{free}; in use: {used}")
    }
}

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
