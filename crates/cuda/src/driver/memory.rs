//! Memory of the device and memory of the host that the device can reach.

use super::api::MAPPED;
use super::context::Inner;
use super::{Address, Context};
use crate::error::GpuError;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// One piece of the device's memory.
pub struct Arena(Arc<Memory>);

pub(super) struct Memory {
    context: Arc<Inner>,
    address: Address,
    bytes: usize,
    on_host: bool,
}

/// Part of an arena. It keeps the arena.
#[derive(Clone)]
pub struct Block {
    memory: Arc<Memory>,
    offset: usize,
    bytes: usize,
}

/// Checks that `bytes` from `offset` lie within `size`.
fn check_range(what: &'static str, offset: usize, bytes: usize, size: usize) -> Result<(), GpuError> {
    let end = offset.saturating_add(bytes);
    if end <= size { Ok(()) } else { Err(GpuError::OutOfRange { what, offset, end, size }) }
}

impl Arena {
    /// What blocks are aligned to where nothing else is said.
    pub const ALIGNMENT: usize = 256;

    pub(super) fn new(context: &Context, bytes: usize) -> Result<Arena, GpuError> {
        let context = context.0.clone();
        context.bind()?;
        let mut address = 0;
        // SAFETY: the pointer is to a local address.
        let code = unsafe { (context.driver.api.cuMemAlloc_v2)(&mut address, bytes) };
        context.check("cuMemAlloc", code)?;
        Ok(Arena(Arc::new(Memory { context, address, bytes, on_host: false })))
    }

    /// Size of the arena in bytes.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// The `bytes` bytes of the arena from byte `offset` on.
    ///
    /// # Errors
    /// It does not lie within the arena.
    pub fn block(&self, offset: usize, bytes: usize) -> Result<Block, GpuError> {
        check_range("the arena", offset, bytes, self.0.bytes)?;
        Ok(Block { memory: self.0.clone(), offset, bytes })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let api = &self.context.driver.api;
        match self.on_host {
            true => {
                // SAFETY: the address is of an allocation, of which this was the last owner.
                self.context.release("cuMemFreeHost", || unsafe { (api.cuMemFreeHost)(self.address as *mut c_void) });
            }
            // SAFETY: as above.
            false => self.context.release("cuMemFree", || unsafe { (api.cuMemFree_v2)(self.address) }),
        }
    }
}

impl Block {
    /// Size of the block in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Part of this block.
    ///
    /// # Errors
    /// It does not lie within the block.
    pub fn part(&self, offset: usize, bytes: usize) -> Result<Block, GpuError> {
        check_range("the block", offset, bytes, self.bytes)?;
        Ok(Block { offset: self.offset + offset, bytes, ..self.clone() })
    }

    pub(crate) fn address(&self) -> Address {
        self.memory.address + self.offset as Address
    }

    pub(super) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }
}

/// A number of the host, 0 at first, that kernels read where it lies.
pub struct Flag(Arc<Memory>);

impl Flag {
    pub(super) fn new(context: &Context) -> Result<Flag, GpuError> {
        let context = context.0.clone();
        context.bind()?;
        let (mut address, bytes) = (std::ptr::null_mut(), size_of::<i32>());
        // SAFETY: the pointer is to a local pointer.
        let code = unsafe { (context.driver.api.cuMemHostAlloc)(&mut address, bytes, MAPPED) };
        context.check("cuMemHostAlloc", code)?;
        let flag = Flag(Arc::new(Memory { context, address: address as Address, bytes, on_host: true }));
        flag.set(0);
        Ok(flag)
    }

    /// It becomes 1 for all kernels that read it from now on. Nothing is asked of the driver.
    pub fn raise(&self) {
        self.set(1);
    }

    fn set(&self, value: i32) {
        // SAFETY: the memory is of one `i32`, aligned by the driver, and the host reaches it by atomic stores alone.
        unsafe { AtomicI32::from_ptr(self.0.address as *mut i32) }.store(value, Ordering::SeqCst);
    }

    /// As an argument of kernels.
    pub fn block(&self) -> Block {
        Block { memory: self.0.clone(), offset: 0, bytes: self.0.bytes }
    }
}

/// Memory of the host that stays where it is, so that the device copies from and to it by itself.
///
/// Copies that a stream makes are done when the stream was synchronised; until then the content is undecided.
pub struct Pinned(Arc<HostMemory>);

pub(super) struct HostMemory {
    context: Arc<Inner>,
    pub address: usize,
    bytes: usize,
}

impl Pinned {
    pub(super) fn new(context: &Context, bytes: usize) -> Result<Pinned, GpuError> {
        let context = context.0.clone();
        context.bind()?;
        let mut address = std::ptr::null_mut();
        // SAFETY: the pointer is to a local pointer.
        let code = unsafe { (context.driver.api.cuMemHostAlloc)(&mut address, bytes, 0) };
        context.check("cuMemHostAlloc", code)?;
        Ok(Pinned(Arc::new(HostMemory { context, address: address as usize, bytes })))
    }

    /// Size of the memory in bytes.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Copies `from` into the memory from byte `offset` on.
    ///
    /// # Errors
    /// `from` does not fit behind `offset`.
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Result<(), GpuError> {
        check_range("the pinned memory", offset, from.len(), self.0.bytes)?;
        // SAFETY: the range was checked, and host memory never overlaps a slice that others own.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), (self.0.address + offset) as *mut u8, from.len()) };
        Ok(())
    }

    /// Fills `to` with the memory from byte `offset` on.
    ///
    /// # Errors
    /// There is not so much behind `offset`.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), GpuError> {
        check_range("the pinned memory", offset, to.len(), self.0.bytes)?;
        // SAFETY: the range was checked, and host memory never overlaps a slice that others own.
        unsafe { std::ptr::copy_nonoverlapping((self.0.address + offset) as *const u8, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    pub(super) fn memory(&self) -> &Arc<HostMemory> {
        &self.0
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        let api = &self.context.driver.api;
        // SAFETY: the address is of an allocation, of which this was the last owner.
        self.context.release("cuMemFreeHost", || unsafe { (api.cuMemFreeHost)(self.address as *mut _) });
    }
}
