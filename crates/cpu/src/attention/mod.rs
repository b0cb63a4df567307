//! Attention head by head: a task computes blocks of queries of one head against all keys, so that the scores of a block stay in
//! cache. Keys and values are packed for the products once a task; probabilities are never written to memory.

mod backward;
mod backward_bf16;
mod forward;
mod rows;
#[cfg(test)]
mod tests;

use crate::gemm::{
    ALayout, Ctx, MAX_DEPTH, MAX_PANEL, MemoryBlock, OperandRows, Prefetch, ROW_STRIDE, RowAddress, RowBlocks, Scratch,
    SharedMut, TileLoop, TypedPtr, aligned_len, even_chunks, panel,
};
use crate::kernel::{Operands, Unsupported};
use crate::simd::{PanelFormat, Simd};
use bessemer_ir::ops::attention::Attention;
use bessemer_ir::{DType, TensorType};
use std::ops::Range;

/// Most queries of a block.
const QUERY_BLOCK: usize = 64;

/// Most elements of the scores of a block against the keys of a chunk.
const SCORES_LEN: usize = QUERY_BLOCK * ROW_STRIDE;

/// Sizes and attributes of an attention.
#[derive(Clone, Copy)]
pub(crate) struct AttentionDesc {
    batch: usize,
    heads: usize,
    queries: usize,
    keys: usize,
    /// Elements of a head.
    depth: usize,
    scale: f32,
    dropout: Option<Dropout>,
    /// Of queries, keys and values.
    dtype: DType,
}

#[derive(Clone, Copy)]
struct Dropout {
    rate: f32,
    /// What remains is multiplied by it.
    gain: f32,
    seed: u64,
    stream: u32,
}

impl AttentionDesc {
    pub(crate) fn new(attention: &Attention, inputs: &[&TensorType]) -> Result<AttentionDesc, Unsupported> {
        let geometry = attention.geometry(&inputs[0].shape, &inputs[1].shape)?;
        if geometry.depth > MAX_DEPTH {
            return Err(Unsupported::HeadDepth { depth: geometry.depth, most: MAX_DEPTH });
        }
        Ok(AttentionDesc {
            batch: geometry.batch,
            heads: geometry.heads,
            queries: geometry.queries,
            keys: geometry.keys,
            depth: geometry.depth,
            scale: attention.scale.0 as f32,
            dropout: attention.dropout.map(|d| Dropout {
                rate: d.rate.0 as f32,
                gain: (1.0 / (1.0 - d.rate.0)) as f32,
                seed: d.seed,
                stream: d.stream,
            }),
            dtype: inputs[0].dtype,
        })
    }

    /// The format in which queries, keys and values are multiplied.
    fn format(&self, ctx: Ctx<'_>) -> PanelFormat {
        ctx.panel_format(self.dtype, self.dtype)
    }

    /// Elements of all heads together.
    fn width(&self) -> usize {
        self.heads * self.depth
    }

    /// Number of heads of all batch items.
    fn all_heads(&self) -> usize {
        self.batch * self.heads
    }

    /// Position of the first number of head `head` of all in a `[B, rows, heads * D]` tensor.
    fn start(&self, head: usize, rows: usize) -> usize {
        head / self.heads * rows * self.width() + head % self.heads * self.depth
    }

    fn query_blocks(&self) -> RowBlocks {
        even_chunks(self.queries, QUERY_BLOCK, 1)
    }

    /// Keys that are worked on together: a reduction over them fits the register tile.
    fn key_chunks(&self) -> RowBlocks {
        even_chunks(self.keys, MAX_DEPTH, MAX_PANEL)
    }

    /// Elements of queries and of the output.
    pub(crate) fn q_len(&self) -> usize {
        self.batch * self.queries * self.width()
    }

    /// Elements of keys, and of values.
    pub(crate) fn k_len(&self) -> usize {
        self.batch * self.keys * self.width()
    }

    pub(crate) fn keys(&self) -> usize {
        self.keys
    }

    /// Rows of the softmax.
    pub(crate) fn rows_len(&self) -> usize {
        self.all_heads() * self.queries
    }

    /// Scratch elements of the forward pass.
    pub(crate) fn forward_scratch_len(&self, threads: usize) -> usize {
        threads * forward::worker_len(self) + aligned_len(0)
    }

    /// Scratch elements of the backward pass.
    pub(crate) fn backward_scratch_len(&self, threads: usize) -> usize {
        threads * backward::worker_len(self) + aligned_len(0)
    }

    /// # Safety
    /// As for [`crate::kernel::Kernel::run`].
    pub(crate) unsafe fn run_forward(&self, ctx: Ctx<'_>, operands: &Operands<'_>) {
        // SAFETY: the caller's promise; the outputs are written by this call alone.
        unsafe {
            let inputs = self.inputs(operands);
            let io = forward::Io {
                out: SharedMut(operands.outputs[0].cast()),
                log_sums: SharedMut(operands.outputs[1].cast()),
                inputs: &inputs,
            };
            forward::run(ctx, self, self.format(ctx), &io, operands.scratch());
        }
    }

    /// `dout` is the number of the input that is the output's gradient.
    ///
    /// # Safety
    /// As for [`crate::kernel::Kernel::run`].
    pub(crate) unsafe fn run_backward(&self, ctx: Ctx<'_>, operands: &Operands<'_>, dout: usize) {
        // SAFETY: the caller's promise; the outputs are written by this call alone.
        unsafe {
            let inputs = self.inputs(operands);
            let io = backward::Io {
                inputs: &inputs,
                out: operands.floats(4, self.q_len()),
                log_sums: operands.floats(5, self.rows_len()),
                dout: operands.floats(dout, self.q_len()),
                dq: SharedMut(operands.outputs[0].cast()),
                dk: SharedMut(operands.outputs[1].cast()),
                dv: SharedMut(operands.outputs[2].cast()),
            };
            backward::run(ctx, self, self.format(ctx), &io, operands.scratch());
        }
    }

    /// # Safety
    /// As for [`crate::kernel::Kernel::run`].
    unsafe fn inputs<'a>(&self, operands: &Operands<'a>) -> Inputs<'a> {
        // SAFETY: the caller's promise.
        unsafe {
            let counter = match self.dropout {
                Some(_) => operands.input::<i32>(operands.inputs.len() - 1, 1)[0] as u32,
                None => 0,
            };
            Inputs {
                q: operands.elements(0, self.dtype, self.q_len()).checked(self.q_len(), "queries"),
                k: operands.elements(1, self.dtype, self.k_len()).checked(self.k_len(), "keys"),
                v: operands.elements(2, self.dtype, self.k_len()).checked(self.k_len(), "values"),
                bias: operands.floats(3, self.batch * self.keys),
                counter,
            }
        }
    }
}

/// What both passes read.
struct Inputs<'a> {
    q: TypedPtr,
    k: TypedPtr,
    v: TypedPtr,
    /// `[B, Sk]`
    bias: &'a [f32],
    counter: u32,
}

// SAFETY: the elements are only read.
unsafe impl Sync for Inputs<'_> {}

impl Inputs<'_> {
    /// The bias of `keys` for a head of all.
    #[inline(always)]
    fn bias_of(&self, desc: &AttentionDesc, head: usize, keys: Range<usize>) -> &[f32] {
        let first = head / desc.heads * desc.keys;
        &self.bias[first + keys.start..first + keys.end]
    }
}

/// A worker's part of the scratch of all.
///
/// # Safety
/// `base` has room for `len` elements for each worker, and no two calls for one worker are in use at once.
unsafe fn worker_scratch(base: SharedMut, worker: usize, len: usize) -> Scratch {
    // SAFETY: the caller's promise.
    unsafe { Scratch::new(std::slice::from_raw_parts_mut(base.add(worker * len).0, len), len) }
}

/// Copies rows of `len` elements, `ld` apart, to rows of the first operand of a product, [`ROW_STRIDE`] apart.
///
/// # Safety
/// They are there, and `dst` has room for them. Called under `S::run_op`.
#[inline(always)]
unsafe fn copy_rows<S: Simd>(src: TypedPtr, ld: usize, rows: usize, len: usize, dst: SharedMut) {
    for row in 0..rows {
        let src = src.add(row * ld);
        // SAFETY: the caller's promise.
        unsafe {
            let dst = dst.add(row * ROW_STRIDE).0;
            if S::DOT2 {
                let dst = dst.cast::<u16>();
                src.copy_16::<S>(dst, len);
                dst.at(len).zero::<S>(2 * steps::<S>(len) - len);
            } else {
                src.copy::<S>(dst, len);
            }
        }
    }
}

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Hints that `len` elements are wanted soon.
///
/// # Safety
/// Called under `S::run_op`.
#[inline(always)]
unsafe fn prefetch_row<S: Simd>(src: TypedPtr, len: usize) {
    for first in (0..len).step_by(LINE_BYTES / size_of::<f32>()) {
        // SAFETY: the caller's promise.
        unsafe { S::prefetch(src.add(first).as_16().cast()) };
    }
}

/// Hints that `len` elements from `start` on will be written soon.
///
/// # Safety
/// Called under `S::run_op`.
#[inline(always)]
unsafe fn prefetch_output<S: Simd>(dst: SharedMut, start: usize, len: usize) {
    for first in (0..len).step_by(LINE_BYTES / size_of::<f32>()) {
        // SAFETY: the caller's promise.
        unsafe { S::prefetch_write(dst.0.wrapping_add(start + first)) };
    }
}

/// Steps of a reduction over `k` elements.
#[inline(always)]
fn steps<S: Simd>(k: usize) -> usize {
    PanelFormat::of::<S>().steps(k)
}

/// Makes a row of `len` elements a row of the first operand of a product, in its place.
///
/// # Safety
/// They are there, with room for whole steps. Called under `S::run_op`.
#[inline(always)]
unsafe fn to_operand<S: Simd>(row: SharedMut, len: usize) {
    if !S::DOT2 {
        return;
    }
    // SAFETY: the caller's promise; what is written lies before what is read next.
    unsafe {
        let row = row.0;
        let padded = (2 * steps::<S>(len)).next_multiple_of(2 * S::LANES);
        row.add(len).zero::<S>(padded - len);
        for i in (0..padded).step_by(2 * S::LANES) {
            let (low, high) = (S::load(row.add(i)), S::load(row.add(i + S::LANES)));
            S::store_bf16(row.cast::<u16>().add(i), low, high);
        }
    }
}

/// `C (+)= A B` where rows of A lie [`ROW_STRIDE`] apart.
struct RowsTimesPanels<'a> {
    a: SharedMut,
    /// Steps of the reduction.
    depth: usize,
    b: SharedMut,
    /// Distance of the panels of B.
    b_panel: usize,
    cols: usize,
    c: SharedMut,
    c_rows: &'a [usize],
    accumulate: bool,
}

impl RowsTimesPanels<'_> {
    /// # Safety
    /// As for [`TileLoop::run`].
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let tile_loop = TileLoop {
            layout: ALayout::Rows,
            depth: self.depth,
            a: OperandRows::packed(self.a.0),
            a_tile: 0,
            b: self.b.0,
            b_panel: self.b_panel,
            cols: self.cols,
            c: self.c.0,
            c_rows: self.c_rows,
            accumulate: self.accumulate,
            stream_b: false,
            b_next: self.b.0,
        };
        // SAFETY: the caller's promise.
        unsafe { tile_loop.run::<S>(&mut Prefetch::new([MemoryBlock::EMPTY; 2])) }
    }
}

/// Columns of the scores against the given number of keys: whole panels, the last of which is padded with zeros.
#[inline(always)]
fn padded<S: Simd>(keys: usize) -> usize {
    keys.next_multiple_of(panel::<S>())
}
