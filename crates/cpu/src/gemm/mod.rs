//! Matrix products that accumulate in `f32`, and the blocked machinery that convolutions share with them.
//!
//! Work is cut into tasks, and sums are ordered, by shapes alone: results do not depend on the number of threads.

mod affine;
mod batched;
mod blocking;
mod memory;
mod outer;
mod pack;
mod rows;
mod store;
#[cfg(test)]
mod tests;
mod tile;
mod tile_loop;
mod tiles;
mod typed_slice;

use std::ops::Range;
use std::sync::LazyLock;

use crate::isa::Isa;
use crate::simd::PanelFormat;
use crate::threads::ThreadPool;
use bessemer_ir::DType;
use bessemer_ir::run::{Alone, Collectives};

pub use affine::{Affine, Input};
pub use blocking::RowBlocks;
pub use memory::Output;
pub use store::{Activation, Addend, Store};
pub(crate) use store::{FinishedRows, Source};
pub use typed_slice::{TypedSlice, Weights};

pub(crate) use affine::AffinePtr;
pub(crate) use blocking::{BlockRuns, TASKS, column_groups, even_chunks, row_blocks_for, split_count};
pub(crate) use memory::{Destination, Scratch, SharedMut, aligned_len, odd_lines};
pub(crate) use outer::{
    LINE_LEN, LINE_PITCH, MAX_BLOCK, OuterProduct, PartialSums, outer_scratch_len, transpose_lines,
};
pub(crate) use pack::{Matrix, PanelSteps, pack_shared, pack_steps, packed_len};
pub(crate) use rows::{
    BlockScratch, FEW_COLS, MAX_OFFSETS, MAX_ROWS, MAX_RUNS, MatrixRows, Origin, PlacedRows, Row, RowAddress, RowBlock,
    RowProduct, RowSource, RowTable, WINDOWS_LEN, Windows, row_scratch_len,
};
pub(crate) use tile::{
    ALayout, COLUMN_STRIDE, LINE, MAX_DEPTH, MAX_PANEL, ROW_STRIDE, column_stride, panel, panel_width,
};
pub(crate) use tile_loop::{MemoryBlock, OperandRows, PACKED_ROWS, Prefetch, TileLoop, TileRows};
pub(crate) use tiles::{MAX_POSITIONS, PREFETCH_PIECES, TILES_BLOCK_LEN, TILES_ROWS};
pub(crate) use typed_slice::{TypedPtr, packed_start};

/// Execution context of a kernel: instruction set and threads.
#[derive(Clone, Copy)]
pub struct Ctx<'a> {
    /// Instruction set to compute with.
    pub isa: Isa,
    /// Threads to compute on.
    pub pool: &'a ThreadPool,
    /// The other ranks of the job.
    pub collectives: &'a dyn Collectives,
}

impl<'a> Ctx<'a> {
    /// Of a process that is the only rank.
    pub fn alone(isa: Isa, pool: &'a ThreadPool) -> Self {
        static ALONE: LazyLock<Alone> = LazyLock::new(Alone::default);
        Ctx { isa, pool, collectives: &*ALONE }
    }
}

impl Ctx<'_> {
    /// The format of packed operands of these types.
    pub(crate) fn panel_format(&self, a: DType, b: DType) -> PanelFormat {
        if a == DType::Bf16 && b == DType::Bf16 { PanelFormat::of_bf16(self.isa) } else { PanelFormat::F32 }
    }
}

/// Work on finished blocks of a kernel's output while they are in cache.
///
/// Called from worker threads, with every (row, column) pair of the output in exactly one call. `rows` are output
/// rows (pixels in `[N, H, W]` order, or matrix rows, matrix after matrix of a batch), `cols` output channels or
/// matrix columns. `block` is the index of the row block, below [`RowBlocks::count`]; a row block comes in one or
/// more calls, each with all its rows, cut at multiples of 16 columns.
pub trait Epilogue: Sync {
    /// Handles one finished block on worker number `worker` of the pool.
    fn block(&self, worker: usize, block: usize, rows: Range<usize>, cols: Range<usize>);

    /// Whether its results are the same, bit for bit, however columns are cut.
    fn is_free_of_columns(&self) -> bool {
        false
    }

    /// What [`block`](Self::block) does first, where that is as simple as this: then a product may do it by itself, for all blocks of
    /// the output, and calls [`stored_block`](Self::stored_block) in place of `block`. The rows of the output are those of the store.
    fn as_store(&self) -> Option<&Store> {
        None
    }

    /// What is left to do with a block that the product has stored; otherwise as [`block`](Self::block).
    fn stored_block(&self, _worker: usize, _block: usize, _rows: Range<usize>, _cols: Range<usize>) {}
}

/// The number of threads, where columns may be cut to suit them.
pub(crate) fn free_threads(ctx: Ctx<'_>, epilogue: Option<&dyn Epilogue>) -> Option<usize> {
    epilogue.is_none_or(|epilogue| epilogue.is_free_of_columns()).then_some(ctx.pool.threads())
}

/// `C = op(A) * op(B)`, or `C += ...`, for `batch` row-major matrices: `op(A)` is `[m, k]`, `op(B)` `[k, n]`,
/// `C` `[m, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmDesc {
    /// Rows of `op(A)` and `C`.
    pub m: usize,
    /// Columns of `op(B)` and `C`.
    pub n: usize,
    /// Columns of `op(A)` and rows of `op(B)`: the axis that is summed.
    pub k: usize,
    /// `A` is stored as `[k, m]`.
    pub trans_a: bool,
    /// `B` is stored as `[n, k]`.
    pub trans_b: bool,
    /// Elements from one stored row of `A` to the next.
    pub lda: usize,
    /// Elements from one stored row of `B` to the next.
    pub ldb: usize,
    /// Elements from one row of `C` to the next.
    pub ldc: usize,
    /// Add to `C` instead of replacing it.
    pub accumulate: bool,
    /// Number of independent products.
    pub batch: usize,
    /// Elements from one `A` of the batch to the next; 0 if all products share one.
    pub stride_a: usize,
    /// Elements from one `B` of the batch to the next; 0 if all products share one.
    pub stride_b: usize,
    /// Elements from one `C` of the batch to the next.
    pub stride_c: usize,
}

impl GemmDesc {
    /// One product of dense, untransposed matrices.
    pub fn new(m: usize, n: usize, k: usize) -> GemmDesc {
        GemmDesc {
            m,
            n,
            k,
            trans_a: false,
            trans_b: false,
            lda: k,
            ldb: n,
            ldc: n,
            accumulate: false,
            batch: 1,
            stride_a: 0,
            stride_b: 0,
            stride_c: 0,
        }
    }

    /// The same product with `A` and/or `B` stored densely in transposed order.
    pub fn transposed(self, trans_a: bool, trans_b: bool) -> GemmDesc {
        let lda = if trans_a { self.m } else { self.k };
        let ldb = if trans_b { self.k } else { self.n };
        GemmDesc { trans_a, trans_b, lda, ldb, ..self }
    }

    /// `batch` products of matrices that lie densely one after the other.
    pub fn batched(self, batch: usize) -> GemmDesc {
        let stride_a = self.lda * if self.trans_a { self.k } else { self.m };
        let stride_b = self.ldb * if self.trans_b { self.n } else { self.k };
        GemmDesc { batch, stride_a, stride_b, stride_c: self.m * self.ldc, ..self }
    }

    fn a_len(&self) -> usize {
        let (rows, cols) = if self.trans_a { (self.k, self.m) } else { (self.m, self.k) };
        extent(self.batch, self.stride_a, rows, cols, self.lda)
    }

    fn b_len(&self) -> usize {
        let (rows, cols) = if self.trans_b { (self.n, self.k) } else { (self.k, self.n) };
        extent(self.batch, self.stride_b, rows, cols, self.ldb)
    }

    fn c_len(&self) -> usize {
        extent(self.batch, self.stride_c, self.m, self.n, self.ldc)
    }

    fn a_rows(&self, a: TypedPtr) -> MatrixRows {
        MatrixRows { src: a, ld: self.lda, len: if self.trans_a { self.m } else { self.k } }
    }

    fn b_matrix(&self, b: TypedPtr) -> Matrix {
        Matrix { src: b, ld: self.ldb, transposed: self.trans_b, k: self.k, n: self.n }
    }

    fn row_product<'a>(
        &self,
        a: &'a MatrixRows,
        packed: *const f32,
        format: PanelFormat,
        c: Destination,
    ) -> RowProduct<'a, MatrixRows> {
        let k = format.steps(self.k);
        let (m, n, ldc) = (self.m, self.n, self.ldc);
        RowProduct { source: a, packed, format, m, n, k, c, ldc, accumulate: self.accumulate }
    }

    fn outer_product<'a>(
        &self,
        a: &'a MatrixRows,
        b: Matrix,
        format: PanelFormat,
        c: Destination,
    ) -> OuterProduct<'a, MatrixRows> {
        let depth = format.steps(self.k);
        OuterProduct { source: a, b, format, m: self.m, depth, c, ldc: self.ldc, accumulate: self.accumulate }
    }
}

/// Elements from the first to the last one of a batch of `[rows, cols]` matrices.
fn extent(batch: usize, batch_stride: usize, rows: usize, cols: usize, ld: usize) -> usize {
    if batch == 0 || rows == 0 || cols == 0 {
        return 0;
    }
    assert!(rows == 1 || ld >= cols, "row distance {ld} is below the row length {cols}");
    (batch - 1) * batch_stride + (rows - 1) * ld + cols
}

/// A short description of the algorithm of [`gemm`].
pub(crate) fn kernel_name(desc: &GemmDesc) -> &'static str {
    if batched::applies(desc) {
        "batch of small matmuls"
    } else if desc.trans_a {
        "outer product"
    } else {
        "packed matmul"
    }
}

/// The row blocks of the output that [`gemm`] delivers to its epilogue.
pub fn row_blocks(desc: &GemmDesc) -> RowBlocks {
    let one = if batched::applies(desc) {
        RowBlocks::new(desc.m, desc.m)
    } else if desc.trans_a {
        outer::row_blocks(desc.m, desc.n, desc.k)
    } else {
        row_blocks_for(desc.m, desc.n, desc.k)
    };
    RowBlocks { count: one.count * desc.batch, rows: one.rows }
}

/// Whether [`gemm`] takes a B that [`pack_b`] packed before.
pub fn takes_packed_b(desc: &GemmDesc) -> bool {
    !desc.trans_a && desc.batch == 1
}

/// Elements of the packed B of `desc`.
pub fn packed_b_len(desc: &GemmDesc) -> usize {
    packed_len(desc.k, desc.n)
}

/// Packs the B of `desc` for `ctx.isa`. Products are fastest where `packed` lies on a cache line.
///
/// # Panics
/// When a slice is shorter than `desc` needs, or `desc` takes no packed B.
pub fn pack_b(ctx: Ctx<'_>, desc: &GemmDesc, b: TypedSlice<'_>, packed: &mut [f32]) {
    assert!(takes_packed_b(desc), "a transposed A or a batch takes no packed B");
    let format = ctx.panel_format(b.dtype(), b.dtype());
    let b = b.checked(desc.b_len(), "B");
    let packed = Output::new(packed).checked_whole(packed_b_len(desc), "packed B");
    // SAFETY: lengths were checked above.
    unsafe { pack_shared(ctx, &desc.b_matrix(b), format, packed) };
}

/// Scratch elements [`gemm`] needs with `threads` threads.
pub fn scratch_len(desc: &GemmDesc, threads: usize) -> usize {
    if batched::applies(desc) {
        batched::scratch_len(desc, threads)
    } else if desc.trans_a {
        outer_scratch_len(desc.m, desc.n, desc.k, threads)
    } else {
        aligned_len(packed_len(desc.k, desc.n)) + row_scratch_len(threads)
    }
}

/// Computes the product `desc`. `scratch` has at least [`scratch_len`] elements; its content is neither read nor
/// kept.
///
/// # Panics
/// When an operand is shorter than `desc` needs, or a packed B is given where [`takes_packed_b`] does not hold.
pub fn gemm<'a>(
    ctx: Ctx<'_>,
    desc: &GemmDesc,
    a: impl Into<TypedSlice<'a>>,
    b: impl Into<Weights<'a>>,
    c: Output<'_>,
    scratch: &mut [f32],
    epilogue: Option<&dyn Epilogue>,
) {
    let a = a.into();
    let a_type = a.dtype();
    let a = a.checked(desc.a_len(), "A");
    let (b, format) = match b.into() {
        Weights::Plain(b) => (b.checked(desc.b_len(), "B"), ctx.panel_format(a_type, b.dtype())),
        Weights::Packed(packed) => {
            assert!(takes_packed_b(desc), "a transposed A or a batch takes no packed B");
            let packed = packed_start(packed, packed_b_len(desc), "B").0;
            let c = c.checked(desc.c_len(), row_blocks(desc).rows * desc.ldc, "C");
            let scratch = Scratch::new(scratch, aligned_len(0) + row_scratch_len(ctx.pool.threads()));
            if desc.m > 0 && desc.n > 0 {
                let a = &desc.a_rows(a);
                let product = desc.row_product(a, packed, ctx.panel_format(a_type, a_type), c);
                // SAFETY: the extents of A, B and C were checked above.
                unsafe { product.run(ctx, scratch, Origin::FIRST, epilogue) };
            }
            return;
        }
    };
    let c = c.checked(desc.c_len(), row_blocks(desc).rows * desc.ldc, "C");
    let scratch = Scratch::new(scratch, scratch_len(desc, ctx.pool.threads()));
    if desc.m == 0 || desc.n == 0 {
        return;
    }
    if batched::applies(desc) {
        // SAFETY: the extents of A, B and C were checked above.
        unsafe { batched::run(ctx, desc, format, a, b, c, scratch, epilogue) };
        return;
    }
    for item in 0..desc.batch {
        let origin = Origin { block: item * (row_blocks(desc).count / desc.batch), row: item * desc.m };
        let mut scratch = scratch.clone();
        let a = &desc.a_rows(a.add(item * desc.stride_a));
        let b = desc.b_matrix(b.add(item * desc.stride_b));
        let c = c.item(item, desc.stride_c);
        // SAFETY: the extents of A, B and C were checked above.
        unsafe {
            if desc.trans_a {
                desc.outer_product(a, b, format, c).run(ctx, scratch, origin, epilogue);
            } else {
                let packed = scratch.take(packed_len(desc.k, desc.n));
                pack_shared(ctx, &b, format, packed);
                desc.row_product(a, packed.0, format, c).run(ctx, scratch, origin, epilogue);
            }
        }
    }
}
