//! Packing of `B` into panels of adjacent columns: `[panel][k][columns of a panel]`, short panels filled with zeros.

use std::ops::Range;

use super::Ctx;
use super::memory::SharedMut;
use super::rows::RowAddress;
use super::tile::{MAX_PANEL, panel};
use super::tile_loop::MemoryBlock;
use super::typed_slice::TypedPtr;
use crate::simd::{PanelFormat, Simd, SimdOp, TILE_STEPS};

/// Steps of the reduction in one packing task.
const PACK_DEPTH: usize = 64;

/// A row-major `[k, n]` matrix, or the `[n, k]` transpose of one.
#[derive(Clone, Copy)]
pub(crate) struct Matrix {
    pub src: TypedPtr,
    pub ld: usize,
    pub transposed: bool,
    pub k: usize,
    pub n: usize,
}

// SAFETY: only read, and whoever builds one vouches for its extent.
unsafe impl Sync for Matrix {}

/// Elements of a packed `[k, n]` matrix on any instruction set, in any format.
pub(crate) fn packed_len(k: usize, n: usize) -> usize {
    let steps = if k == 0 { 0 } else { k.max(TILE_STEPS) };
    steps * n.next_multiple_of(MAX_PANEL)
}

impl Matrix {
    /// Packs steps `depth` of columns `cols` to `dst`, panels `panel_stride` apart. `cols` starts at a panel.
    ///
    /// # Safety
    /// The matrix has these elements and `dst` has room for them. Called under `S::run_op`.
    #[inline(always)]
    pub(crate) unsafe fn pack<S: Simd>(
        &self,
        depth: Range<usize>,
        cols: Range<usize>,
        dst: *mut f32,
        panel_stride: usize,
    ) {
        // SAFETY: the caller's promises.
        unsafe {
            if S::DOT2 {
                self.pack_dot2::<S>(depth, cols, dst.cast(), panel_stride);
            } else if self.transposed {
                self.pack_transposed::<S>(depth, cols, dst, panel_stride);
            } else {
                self.pack_rows::<S>(depth, cols, dst, panel_stride);
            }
        }
    }

    /// Packs pairs of elements of 16 bits; steps behind the last element, and columns behind the last one, are zeros.
    #[inline(always)]
    unsafe fn pack_dot2<S: Simd>(&self, depth: Range<usize>, cols: Range<usize>, dst: *mut f32, panel_stride: usize) {
        let whole = (self.k / 2).clamp(depth.start, depth.end);
        for (p, col) in cols.clone().step_by(panel::<S>()).enumerate() {
            let width = panel::<S>().min(cols.end - col);
            // SAFETY: the caller's promises.
            unsafe {
                let dst = dst.add(p * panel_stride);
                if self.transposed && self.ld.is_multiple_of(2) && self.src.as_16().cast::<u32>().is_aligned() {
                    let words = Matrix { src: self.src.as_words(), ld: self.ld / 2, ..*self };
                    words.pack_transposed::<S>(depth.start..whole, col..col + width, dst, panel_stride);
                } else {
                    for step in depth.start..whole {
                        self.pack_pairs::<S>(step, col, width, dst.add((step - depth.start) * panel::<S>()));
                    }
                }
                for step in whole..depth.end {
                    let dst = dst.add((step - depth.start) * panel::<S>());
                    dst.zero::<S>(panel::<S>());
                    if 2 * step < self.k {
                        self.pack_last(2 * step, col, width, dst.cast());
                    }
                }
            }
        }
    }

    /// Packs a pair of elements of some columns of a panel.
    #[inline(always)]
    unsafe fn pack_pairs<S: Simd>(&self, step: usize, col: usize, width: usize, dst: *mut f32) {
        // SAFETY: the caller's promises.
        unsafe {
            if width < panel::<S>() {
                dst.zero::<S>(panel::<S>());
            }
            let dst = dst.cast::<u32>();
            if self.transposed {
                let pairs = self.src.add(2 * step + col * self.ld);
                for j in 0..width {
                    let [even, odd] = [0, 1].map(|k| u32::from(pairs.add(k + j * self.ld).bits_16()));
                    dst.add(j).write(even | odd << 16);
                }
            } else {
                let row = self.src.add(2 * step * self.ld + col);
                S::interleave_16(row.as_16(), row.add(self.ld).as_16(), dst, width);
            }
        }
    }

    /// Packs the last element, which has no other one.
    #[cold]
    unsafe fn pack_last(&self, k: usize, col: usize, width: usize, dst: *mut u32) {
        let (k_stride, col_stride) = if self.transposed { (1, self.ld) } else { (self.ld, 1) };
        for j in 0..width {
            // SAFETY: the caller's promises.
            unsafe { dst.add(j).write(self.src.add(k * k_stride + (col + j) * col_stride).bits_16().into()) };
        }
    }

    /// The memory of `depth` of the elements along the reduction, of columns `cols`.
    pub(crate) fn memory(&self, depth: Range<usize>, cols: Range<usize>) -> MemoryBlock {
        let (rows, cols) = if self.transposed { (cols, depth) } else { (depth, cols) };
        self.src.add(rows.start * self.ld + cols.start).memory(rows.len(), cols.len(), self.ld)
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
                    dst.zero::<S>(panel::<S>());
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
    unsafe fn pack_square<S: Simd>(&self, src: TypedPtr, columns: usize, steps: usize, dst: *mut f32) {
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

/// A range of the steps of panels.
#[derive(Clone, Copy)]
pub(crate) struct PanelSteps {
    pub start: usize,
    pub len: usize,
    /// Steps of a panel.
    pub panel: usize,
}

impl PanelSteps {
    /// All steps of panels of `len`.
    pub(crate) fn whole(len: usize) -> PanelSteps {
        PanelSteps { start: 0, len, panel: len }
    }
}

/// Packs some steps of a matrix.
pub(crate) struct PackTask<'a> {
    pub matrix: &'a Matrix,
    pub depth: Range<usize>,
    pub dst: SharedMut,
    /// The steps of the panels that the matrix fills.
    pub steps: PanelSteps,
}

impl SimdOp for PackTask<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the promises of `pack_steps`; tasks write different steps.
        unsafe {
            let dst = self.dst.0.add((self.steps.start + self.depth.start) * panel::<S>());
            self.matrix.pack::<S>(self.depth, 0..self.matrix.n, dst, self.steps.panel * panel::<S>());
        }
    }
}

/// Packs a matrix to `dst`.
///
/// # Safety
/// The matrix is valid and of the type that `format` needs; `dst` is valid and unshared for the panels.
pub(crate) unsafe fn pack_shared(ctx: Ctx<'_>, matrix: &Matrix, format: PanelFormat, dst: SharedMut) {
    // SAFETY: the caller's promises.
    unsafe { pack_steps(ctx, matrix, format, dst, PanelSteps::whole(format.steps(matrix.k))) };
}

/// Packs a matrix to `steps` of the panels at `dst`; steps that the matrix does not have are zeros.
///
/// # Safety
/// As for [`pack_shared`].
pub(crate) unsafe fn pack_steps(ctx: Ctx<'_>, matrix: &Matrix, format: PanelFormat, dst: SharedMut, steps: PanelSteps) {
    ctx.pool.run(steps.len.div_ceil(PACK_DEPTH), &|task, _| {
        let depth = task * PACK_DEPTH..steps.len.min((task + 1) * PACK_DEPTH);
        // SAFETY: the caller's promises; tasks write different steps.
        unsafe { PackTask { matrix, depth, dst, steps }.run_product_on(ctx.isa, format) };
    });
}
