//! The one allocation that holds all tensors of a plan.

use std::io;
use std::ptr::NonNull;

/// Zeroed memory on big pages where the system has them.
#[derive(Debug)]
pub(crate) struct Arena {
    base: NonNull<u8>,
    bytes: usize,
}

/// Size of a big page; the arena is a multiple of it.
const BIG_PAGE: usize = 2 << 20;

// SAFETY: plain memory that its one owner hands out.
unsafe impl Send for Arena {}

impl Arena {
    /// # Errors
    /// When the system does not grant the memory.
    pub(crate) fn new(bytes: usize) -> io::Result<Arena> {
        let bytes = bytes.max(1).next_multiple_of(BIG_PAGE);
        // SAFETY: a fresh anonymous private mapping.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        #[cfg(target_os = "linux")]
        // SAFETY: the mapping just made. Advice only: without big pages the memory works as well.
        unsafe {
            libc::madvise(base, bytes, libc::MADV_HUGEPAGE)
        };
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("the system mapped address zero"))?;
        Ok(Arena { base, bytes })
    }

    /// Address of a byte offset.
    ///
    /// # Panics
    /// If the run of bytes is not within the arena.
    pub(crate) fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(offset + bytes <= self.bytes, "offset {offset} + {bytes} is outside the arena of {} bytes", self.bytes);
        // SAFETY: within the mapping, as checked.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// A run of bytes to read.
    pub(crate) fn slice(&self, offset: usize, bytes: usize) -> &[u8] {
        // SAFETY: mapped, initialised (zeroed by the system), and not written while the arena is borrowed.
        unsafe { std::slice::from_raw_parts(self.at(offset, bytes), bytes) }
    }

    /// A run of bytes to write.
    pub(crate) fn slice_mut(&mut self, offset: usize, bytes: usize) -> &mut [u8] {
        // SAFETY: mapped, and exclusively borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.at(offset, bytes), bytes) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`; nothing borrows it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
