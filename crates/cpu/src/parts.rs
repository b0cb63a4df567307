//! Outputs that tasks write piece by piece.

use crate::gemm::Ctx;

/// Elements of a piece, about, where nothing else decides.
pub(crate) const CHUNK: usize = 16 * 1024;

/// An address that tasks share.
pub(crate) struct Shared<T>(pub *mut T);

// SAFETY: an address; the uses state why they do not collide.
unsafe impl<T: Send> Sync for Shared<T> {}

/// Cuts `data` into pieces of `len` elements, the last one maybe shorter, and calls `f(piece number, piece)` for each,
/// as tasks.
pub(crate) fn for_chunks<T: Send>(ctx: Ctx<'_>, data: &mut [T], len: usize, f: &(dyn Fn(usize, &mut [T]) + Sync)) {
    let total = data.len();
    let len = len.max(1);
    let base = &Shared(data.as_mut_ptr());
    ctx.pool.run(total.div_ceil(len), &|task, _worker| {
        let start = task * len;
        // SAFETY: the pieces lie within `data` and are disjoint.
        let piece = unsafe { std::slice::from_raw_parts_mut(base.0.add(start), len.min(total - start)) };
        f(task, piece);
    });
}

/// Length of pieces of whole rows.
pub(crate) fn rows_piece(cols: usize) -> usize {
    (CHUNK / cols.max(1)).max(1) * cols
}
