//! Packing of `B` into panels of adjacent columns: `[panel][k][columns of a panel]`, short panels filled with zeros.

use std::ops::Range;

use super::memory::{SharedMut, aligned_len};
use super::sweep::Region;
use super::tile::{MAX_PANEL, panel};
use super::{Ctx, GemmDesc};
use crate::isa::Isa;
use crate::simd::{Simd, SimdOp, dispatch};

/// Steps of the reduction in one packing task.
const PACK_DEPTH: usize = 64;

/// A row-major `[k, n]` matrix, or the `[n, k]` transpose of one.
#[derive(Clone, Copy)]
pub(crate) struct Matrix {
    pub src: *const f32,
    pub ld: usize,
    pub transposed: bool,
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
            if self.transposed {
                self.pack_transposed::<S>(depth, cols, dst, panel_stride);
            } else {
                self.pack_rows::<S>(depth, cols, dst, panel_stride);
            }
        }
    }

    /// The memory of steps `depth` of columns `cols`.
    pub fn region(&self, depth: Range<usize>, cols: Range<usize>) -> Region {
        let (rows, cols) = if self.transposed { (cols, depth) } else { (depth, cols) };
        let start = self.src.wrapping_add(rows.start * self.ld + cols.start);
        Region { start, rows: rows.len(), cols: cols.len(), pitch: self.ld }
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
                for p in 0..whole {
                    for v in 0..S::TILE_VECTORS {
                        let x = S::load(src.add(p * panel::<S>() + v * S::LANES));
                        S::store(dst.add(p * panel_stride + v * S::LANES), x);
                    }
                }
                if rest > 0 {
                    let dst = dst.add(whole * panel_stride);
                    for v in 0..S::TILE_VECTORS {
                        S::store(dst.add(v * S::LANES), S::splat(0.0));
                    }
                    S::copy(src.add(whole * panel::<S>()), dst, rest);
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
                    let src = self.src.wrapping_add((col + v) * self.ld + depth.start);
                    let dst = dst.add(p * panel_stride + v);
                    let columns = width.saturating_sub(v).min(S::LANES);
                    let squares = if columns == S::LANES { depth.len() / S::LANES } else { 0 };
                    for k in (0..squares * S::LANES).step_by(S::LANES) {
                        S::transpose(src.add(k), self.ld, dst.add(k * panel::<S>()), panel::<S>());
                    }
                    for k in squares * S::LANES..depth.len() {
                        for j in 0..S::LANES {
                            let x = if j < columns { *src.add(j * self.ld + k) } else { 0.0 };
                            *dst.add(k * panel::<S>() + j) = x;
                        }
                    }
                }
            }
        }
    }
}

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

/// Packs a matrix of `k` steps to `dst`: to the first steps of `place`, in panels of `place.end` steps.
///
/// # Safety
/// The matrix has `k` steps, and `dst` is valid and unshared for the panels.
pub(crate) unsafe fn pack_shared(ctx: Ctx<'_>, matrix: &Matrix, k: usize, dst: SharedMut, place: Range<usize>) {
    ctx.pool.run(k.div_ceil(PACK_DEPTH), &|task, _| {
        let depth = task * PACK_DEPTH..k.min((task + 1) * PACK_DEPTH);
        let to = place.start + depth.start;
        // SAFETY: the caller's promises; tasks write different steps.
        unsafe { dispatch(ctx.isa, PackTask { matrix, depth, dst, to, panel_steps: place.end }) };
    });
}

/// `B` packed once for many products, for one instruction set.
pub struct PackedB {
    data: Vec<f32>,
    offset: usize,
    isa: Isa,
    k: usize,
    n: usize,
}

impl PackedB {
    /// Packs the `B` of `desc` for `ctx.isa`.
    ///
    /// # Panics
    /// When `b` is shorter than `desc` needs, or `desc` has a batch.
    pub fn new(ctx: Ctx<'_>, desc: &GemmDesc, b: &[f32]) -> PackedB {
        assert!(desc.batch == 1, "one B is packed, not a batch");
        assert!(b.len() >= desc.b_len(), "B has {} elements, {} are needed", b.len(), desc.b_len());
        let mut data = vec![0.0; aligned_len(packed_len(desc.k, desc.n))];
        let offset = data.as_ptr().align_offset(64);
        let dst = SharedMut(data[offset..].as_mut_ptr());
        // SAFETY: lengths were checked or chosen above.
        unsafe { pack_shared(ctx, &desc.b_matrix(b.as_ptr()), desc.k, dst, 0..desc.k) };
        PackedB { data, offset, isa: ctx.isa, k: desc.k, n: desc.n }
    }

    /// Bytes it occupies.
    pub fn bytes(&self) -> usize {
        self.data.len() * size_of::<f32>()
    }

    pub(crate) fn checked(&self, isa: Isa, k: usize, n: usize) -> *const f32 {
        assert!(
            (self.isa, self.k, self.n) == (isa, k, n),
            "B was packed as [{}, {}] for {}, not as [{k}, {n}] for {isa}",
            self.k,
            self.n,
            self.isa,
        );
        self.data[self.offset..].as_ptr()
    }
}
