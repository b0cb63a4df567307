//! Packing of `B` into panels of adjacent columns: `[panel][k][columns of a panel]`, short panels filled with zeros.

use std::ops::Range;

use super::memory::SharedMut;
use super::numbers::NumberPtr;
use super::sweep::Region;
use super::tile::{MAX_PANEL, panel};
use super::{Ctx, steps};
use crate::simd::{Simd, SimdOp, dispatch_product};

/// Steps of the reduction in one packing task.
const PACK_DEPTH: usize = 64;

/// A row-major `[k, n]` matrix, or the `[n, k]` transpose of one.
#[derive(Clone, Copy)]
pub(crate) struct Matrix {
    pub src: NumberPtr,
    pub ld: usize,
    pub transposed: bool,
    pub k: usize,
    pub n: usize,
}

// SAFETY: only read, and whoever builds one vouches for its extent.
unsafe impl Sync for Matrix {}

/// Elements of a packed `[k, n]` matrix on any instruction set.
pub(crate) fn packed_len(k: usize, n: usize) -> usize {
    k * n.next_multiple_of(MAX_PANEL)
}

impl Matrix {
    /// Packs steps `depth` of columns `cols` to `dst`, panels `panel_stride` apart. `cols` starts at a panel.
    ///
    /// # Safety
    /// The matrix has these elements and `dst` has room for them. Called under `S::vectorize`.
    #[inline(always)]
    pub unsafe fn pack<S: Simd>(&self, depth: Range<usize>, cols: Range<usize>, dst: *mut f32, panel_stride: usize) {
        // SAFETY: the caller's promises.
        unsafe {
            if S::PAIRS {
                self.pack_pairs::<S>(depth, cols, dst.cast(), panel_stride);
            } else if self.transposed {
                self.pack_transposed::<S>(depth, cols, dst, panel_stride);
            } else {
                self.pack_rows::<S>(depth, cols, dst, panel_stride);
            }
        }
    }

    /// Packs pairs of steps of 16-bit numbers; behind the last step, and the last column, are zeros.
    #[inline(always)]
    unsafe fn pack_pairs<S: Simd>(&self, depth: Range<usize>, cols: Range<usize>, dst: *mut u32, panel_stride: usize) {
        let (step_stride, col_stride) = if self.transposed { (1, self.ld) } else { (self.ld, 1) };
        for (step, pair) in depth.enumerate() {
            for (p, col) in cols.clone().step_by(panel::<S>()).enumerate() {
                let width = panel::<S>().min(cols.end - col);
                let src = self.src.add(2 * pair * step_stride + col * col_stride);
                let whole = 2 * pair + 1 < self.k;
                // SAFETY: the caller's promises.
                unsafe {
                    let dst = dst.add(p * panel_stride + step * panel::<S>());
                    for j in 0..width {
                        let low = u32::from(src.add(j * col_stride).bits_16());
                        let high = if whole { src.add(step_stride + j * col_stride).bits_16() } else { 0 };
                        dst.add(j).write(low | u32::from(high) << 16);
                    }
                    for j in width..panel::<S>() {
                        dst.add(j).write(0);
                    }
                }
            }
        }
    }

    /// The memory of `depth` of the elements along the reduction, of columns `cols`.
    pub fn region(&self, depth: Range<usize>, cols: Range<usize>) -> Region {
        let (rows, cols) = if self.transposed { (cols, depth) } else { (depth, cols) };
        self.src.add(rows.start * self.ld + cols.start).region(rows.len(), cols.len(), self.ld)
    }

    #[inline(always)]
    unsafe fn pack_rows<S: Simd>(&self, depth: Range<usize>, cols: Range<usize>, dst: *mut f32, panel_stride: usize) {
        let whole = cols.len() / panel::<S>();
        let rest = cols.len() % panel::<S>();
        // SAFETY: the caller's promises.
        unsafe {
            for (step, k) in depth.enumerate() {
                let src = self.src.add(k * self.ld + cols.start);
                let dst = dst.add(step * panel::<S>());
                match src.as_f32() {
                    Some(src) => {
                        for p in 0..whole {
                            for v in 0..S::TILE_VECTORS {
                                let x = S::load(src.add(p * panel::<S>() + v * S::LANES));
                                S::store(dst.add(p * panel_stride + v * S::LANES), x);
                            }
                        }
                    }
                    None => {
                        for p in 0..whole {
                            src.add(p * panel::<S>()).copy::<S>(dst.add(p * panel_stride), panel::<S>());
                        }
                    }
                }
                if rest > 0 {
                    let dst = dst.add(whole * panel_stride);
                    for v in 0..S::TILE_VECTORS {
                        S::store(dst.add(v * S::LANES), S::splat(0.0));
                    }
                    src.add(whole * panel::<S>()).copy::<S>(dst, rest);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn pack_transposed<S: Simd>(
        &self,
        depth: Range<usize>,
        cols: Range<usize>,
        dst: *mut f32,
        panel_stride: usize,
    ) {
        // SAFETY: the caller's promises.
        unsafe {
            for (p, col) in cols.clone().step_by(panel::<S>()).enumerate() {
                let width = panel::<S>().min(cols.end - col);
                for v in (0..panel::<S>()).step_by(S::LANES) {
                    let dst = dst.add(p * panel_stride + v);
                    let columns = width.saturating_sub(v).min(S::LANES);
                    for k in (0..depth.len()).step_by(S::LANES) {
                        let src = self.src.add((col + v) * self.ld + depth.start + k);
                        let steps = S::LANES.min(depth.len() - k);
                        self.pack_square::<S>(src, columns, steps, dst.add(k * panel::<S>()));
                    }
                }
            }
        }
    }

    /// Transposes `steps` steps of `columns` stored rows, at most [`Simd::LANES`] of both, to columns of a panel, of which
    /// those that are missing become zero.
    #[inline(always)]
    unsafe fn pack_square<S: Simd>(&self, src: NumberPtr, columns: usize, steps: usize, dst: *mut f32) {
        let whole = columns == S::LANES && steps == S::LANES;
        if let Some(src) = src.as_f32().filter(|_| whole) {
            // SAFETY: the caller's promises.
            unsafe { S::transpose(src, self.ld, dst, panel::<S>()) };
            return;
        }
        let mut square = [0.0f32; MAX_LANES * MAX_LANES];
        // SAFETY: the caller's promises; the square has room.
        unsafe {
            for j in 0..columns {
                src.add(j * self.ld).copy::<S>(square.as_mut_ptr().add(j * S::LANES), steps);
            }
            if whole {
                S::transpose(square.as_ptr(), S::LANES, dst, panel::<S>());
                return;
            }
            for k in 0..steps {
                for j in 0..S::LANES {
                    *dst.add(k * panel::<S>() + j) = square[j * S::LANES + k];
                }
            }
        }
    }
}

/// Most lanes of any instruction set.
const MAX_LANES: usize = 16;

/// Packs some steps of a matrix.
pub(crate) struct PackTask<'a> {
    pub matrix: &'a Matrix,
    pub depth: Range<usize>,
    pub dst: SharedMut,
    /// First step of the panels that is written.
    pub to: usize,
    /// Steps of a panel.
    pub panel_steps: usize,
}

impl SimdOp for PackTask<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the promises of `pack_shared`; tasks write different steps.
        unsafe {
            let dst = self.dst.0.add(self.to * panel::<S>());
            self.matrix.pack::<S>(self.depth, 0..self.matrix.n, dst, self.panel_steps * panel::<S>());
        }
    }
}

/// Packs a matrix to `dst`: its steps, or pairs of them, to those of `place` from the first on, in panels of `place.end`.
///
/// # Safety
/// The matrix is valid, of `bf16` for pairs, and `dst` is valid and unshared for the panels.
pub(crate) unsafe fn pack_shared(ctx: Ctx<'_>, matrix: &Matrix, pairs: bool, dst: SharedMut, place: Range<usize>) {
    let count = steps(matrix.k, pairs);
    ctx.pool.run(count.div_ceil(PACK_DEPTH), &|task, _| {
        let depth = task * PACK_DEPTH..count.min((task + 1) * PACK_DEPTH);
        let to = place.start + depth.start;
        // SAFETY: the caller's promises; tasks write different steps.
        unsafe { dispatch_product(ctx.isa, pairs, PackTask { matrix, depth, dst, to, panel_steps: place.end }) };
    });
}
