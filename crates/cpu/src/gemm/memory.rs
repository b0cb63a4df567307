//! Memory that several worker threads write to: outputs and scratch.

use super::{Ctx, LINE};
use crate::parts::{CHUNK, for_chunks};
use std::marker::PhantomData;

/// The memory of a kernel's output.
///
/// A pointer instead of a slice, because an [`Epilogue`](super::Epilogue) reads, and may overwrite, finished blocks
/// of the same memory while other blocks are still being computed.
pub struct Output<'a> {
    ptr: *mut f32,
    len: usize,
    per_worker: bool,
    memory: PhantomData<&'a mut [f32]>,
}

impl<'a> Output<'a> {
    /// The memory of a slice that nothing else touches during the call.
    pub fn new(slice: &'a mut [f32]) -> Output<'a> {
        Output { ptr: slice.as_mut_ptr(), len: slice.len(), per_worker: false, memory: PhantomData }
    }

    /// Memory that the epilogue of the call touches too.
    ///
    /// # Safety
    /// `ptr` is valid for reads and writes of `len` elements during `'a`; while a kernel writes to it, nobody but
    /// the kernel and its epilogue, within the block it is called for, accesses them.
    pub unsafe fn from_raw(ptr: *mut f32, len: usize) -> Output<'a> {
        Output { ptr, len, per_worker: false, memory: PhantomData }
    }

    /// No memory for the whole output, but a block of `len` elements, all rows of a row block, for each worker: the
    /// epilogue finds its rows at the beginning of the worker's block, and nobody finds them later.
    ///
    /// # Safety
    /// As [`from_raw`](Self::from_raw), for `len` elements for each worker, one after the other.
    pub unsafe fn per_worker(ptr: *mut f32, len: usize) -> Output<'a> {
        Output { ptr, len, per_worker: true, memory: PhantomData }
    }

    /// The first `len` elements of an output that is written as a whole; those behind them become zeros.
    ///
    /// # Panics
    /// When there are fewer.
    pub(crate) fn zero_behind(self, ctx: Ctx<'_>, len: usize) -> Output<'a> {
        assert!(!self.per_worker && len <= self.len, "an output of {} elements does not have {len}", self.len);
        // SAFETY: whoever made the output answers for its memory, and no kernel writes to it yet.
        let rest = unsafe { std::slice::from_raw_parts_mut(self.ptr.add(len), self.len - len) };
        for_chunks(ctx, rest, CHUNK, &|_, piece| piece.fill(0.0));
        Output { len, ..self }
    }

    /// The memory of an output that is written as a whole.
    pub(crate) fn checked_whole(self, needed: usize, name: &str) -> SharedMut {
        assert!(!self.per_worker, "{name} is not written in blocks");
        self.checked(needed, needed, name).block(0, 0)
    }

    /// The destination of an output of `needed` elements in blocks of at most `block` elements.
    pub(crate) fn checked(self, needed: usize, block: usize, name: &str) -> Destination {
        let least = if self.per_worker { block.min(needed) } else { needed };
        assert!(self.len >= least, "{name} has {} elements, {least} are needed", self.len);
        let pitch = if self.per_worker { Some(self.len) } else { None };
        Destination { start: SharedMut(self.ptr), pitch }
    }
}

/// Where a kernel writes: one memory for all blocks, or one for each worker.
#[derive(Clone, Copy)]
pub(crate) struct Destination {
    start: SharedMut,
    /// Distance of the workers' blocks.
    pitch: Option<usize>,
}

impl Destination {
    pub(crate) fn whole(start: SharedMut) -> Destination {
        Destination { start, pitch: None }
    }

    /// The place to which offsets in the whole output are added for a block that begins at offset `first`.
    #[inline(always)]
    pub(crate) fn block(self, worker: usize, first: usize) -> SharedMut {
        match self.pitch {
            None => self.start,
            Some(pitch) => SharedMut(self.start.0.wrapping_add(worker * pitch).wrapping_sub(first)),
        }
    }

    /// The destination of matrix `item` of a batch whose matrices are `stride` elements apart.
    #[inline(always)]
    pub(crate) fn item(self, item: usize, stride: usize) -> Destination {
        match self.pitch {
            None => Destination::whole(SharedMut(self.start.0.wrapping_add(item * stride))),
            Some(_) => self,
        }
    }
}

/// A pointer that tasks share; each writes to elements of its own.
#[derive(Clone, Copy)]
pub(crate) struct SharedMut(pub *mut f32);

// SAFETY: a pointer is plain data; who follows it states why that is sound.
unsafe impl Send for SharedMut {}
// SAFETY: as above.
unsafe impl Sync for SharedMut {}

impl SharedMut {
    /// # Safety
    /// As for pointers.
    #[inline(always)]
    pub(crate) unsafe fn add(self, offset: usize) -> SharedMut {
        // SAFETY: the caller's promise.
        SharedMut(unsafe { self.0.add(offset) })
    }
}

/// Elements to reserve for a piece of `len` elements that starts on a cache line.
pub(crate) const fn aligned_len(len: usize) -> usize {
    len.next_multiple_of(LINE) + LINE
}

/// Elements of an odd number of cache lines that hold `len`: rows at this distance fall into different cache sets.
pub(crate) fn odd_lines(len: usize) -> usize {
    (len.div_ceil(LINE) | 1) * LINE
}

/// Scratch memory that is handed out piece by piece. A clone hands out the same memory again.
#[derive(Clone)]
pub(crate) struct Scratch {
    ptr: SharedMut,
    left: usize,
}

impl Scratch {
    /// # Panics
    /// When the slice is shorter than `needed`.
    pub(crate) fn new(slice: &mut [f32], needed: usize) -> Scratch {
        assert!(slice.len() >= needed, "scratch has {} elements, {needed} are needed", slice.len());
        Scratch { ptr: SharedMut(slice.as_mut_ptr()), left: slice.len() }
    }

    /// A piece of `len` elements that starts on a cache line and shares none with another piece; it uses up at
    /// most [`aligned_len`] elements.
    pub(crate) fn take(&mut self, len: usize) -> SharedMut {
        let skip = self.ptr.0.align_offset(LINE * size_of::<f32>());
        let used = skip + len.next_multiple_of(LINE);
        assert!(used <= self.left, "a kernel's scratch length is too small for its use");
        // SAFETY: the piece lies within the slice.
        let piece = unsafe { self.ptr.add(skip) };
        // SAFETY: as above.
        self.ptr = unsafe { self.ptr.add(used) };
        self.left -= used;
        piece
    }
}
