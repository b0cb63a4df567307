//! The backward pass: the probabilities again, and from them the gradients of queries, keys and values.

use super::{
    AttentionDesc, Inputs, QUERY_BLOCK, RowsTimesPanels, SCORES_LEN, backward_bf16, copy_rows, padded, rows,
    worker_scratch,
};
use crate::gemm::{
    ALayout, COLUMN_STRIDE, Ctx, MAX_DEPTH, MAX_PANEL, Matrix, MemoryBlock, OperandRows, PACKED_ROWS, Prefetch,
    ROW_STRIDE, Scratch, SharedMut, TileLoop, TileRows, TypedPtr, TypedSlice, aligned_len, column_stride, panel,
};
use crate::simd::{PanelFormat, Simd, SimdOp};
use bessemer_ir::DType;
use std::ops::Range;

pub(super) struct Io<'a> {
    pub inputs: &'a Inputs<'a>,
    /// `[B, Sq, heads * D]`
    pub out: &'a [f32],
    /// `[B, heads, Sq]`
    pub log_sums: &'a [f32],
    /// `[B, Sq, heads * D]`
    pub dout: &'a [f32],
    /// `[B, Sq, heads * D]`
    pub dq: SharedMut,
    /// `[B, Sk, heads * D]`
    pub dk: SharedMut,
    /// `[B, Sk, heads * D]`
    pub dv: SharedMut,
}

/// Padding between tiles, which moves them to different cache sets.
const PAD: usize = 16;

/// Elements of the transposed tiles of the scores of a block: narrow tiles of 4 rows at a step of 8, or wide ones.
const TILES_LEN: usize = MAX_DEPTH / 4 * (QUERY_BLOCK * COLUMN_STRIDE / 2 + PAD);

/// Elements of the keys of a chunk, or their values, packed either way.
fn chunk_len(desc: &AttentionDesc) -> usize {
    let keys = desc.key_chunks().rows;
    (desc.depth * keys.next_multiple_of(MAX_PANEL)).max(keys * desc.depth.next_multiple_of(MAX_PANEL))
}

/// Elements of the queries of a block as panels.
fn block_len(desc: &AttentionDesc) -> usize {
    QUERY_BLOCK * desc.depth.next_multiple_of(MAX_PANEL)
}

/// Scratch elements of a worker.
pub(super) fn worker_len(desc: &AttentionDesc) -> usize {
    let len = 4 * aligned_len(SCORES_LEN)
        + 2 * aligned_len(TILES_LEN)
        + 3 * aligned_len(chunk_len(desc))
        + 2 * aligned_len(block_len(desc));
    if desc.dtype == DType::Bf16 { len.max(backward_bf16::worker_len(desc)) } else { len }
}

/// # Safety
/// Inputs and outputs have the sizes of `desc`, and nothing else uses the outputs.
pub(super) unsafe fn run(ctx: Ctx<'_>, desc: &AttentionDesc, format: PanelFormat, io: &Io<'_>, scratch: &mut [f32]) {
    let len = worker_len(desc);
    let base = Scratch::new(scratch, desc.backward_scratch_len(ctx.pool.threads())).take(ctx.pool.threads() * len);
    ctx.pool.run(desc.all_heads(), &|head, worker| {
        // SAFETY: tasks have different heads, workers different scratch.
        unsafe {
            let scratch = worker_scratch(base, worker, len);
            Head { desc, io, head, scratch }.run_product_on(ctx.isa, format);
        }
    });
}

/// All of one head.
struct Head<'a> {
    desc: &'a AttentionDesc,
    io: &'a Io<'a>,
    head: usize,
    scratch: Scratch,
}

impl SimdOp for Head<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Head { desc, io, head, scratch } = self;
        // SAFETY: the promises of `run`.
        unsafe {
            if S::DOT2 {
                backward_bf16::run::<S>(desc, io, head, scratch);
            } else {
                Backward { desc, io, head, buffers: Buffers::new(desc, scratch) }.run::<S>();
            }
        }
    }
}

/// The scratch of a worker.
struct Buffers {
    /// Rows of queries and of output gradients, of a block.
    queries: SharedMut,
    douts: SharedMut,
    /// Probabilities and gradients of the scores, of a block and a chunk: as rows, and transposed as tiles.
    probabilities: SharedMut,
    dscores: SharedMut,
    probability_tiles: SharedMut,
    dscore_tiles: SharedMut,
    /// Panels of a chunk: of keys and values as `[D, Sk]`, and of keys as `[Sk, D]`.
    keys: SharedMut,
    values: SharedMut,
    key_rows: SharedMut,
    /// Panels of a block as `[Sq, D]`.
    query_panels: SharedMut,
    dout_panels: SharedMut,
}

impl Buffers {
    fn new(desc: &AttentionDesc, mut scratch: Scratch) -> Buffers {
        Buffers {
            queries: scratch.take(SCORES_LEN),
            douts: scratch.take(SCORES_LEN),
            probabilities: scratch.take(SCORES_LEN),
            dscores: scratch.take(SCORES_LEN),
            probability_tiles: scratch.take(TILES_LEN),
            dscore_tiles: scratch.take(TILES_LEN),
            keys: scratch.take(chunk_len(desc)),
            values: scratch.take(chunk_len(desc)),
            key_rows: scratch.take(chunk_len(desc)),
            query_panels: scratch.take(block_len(desc)),
            dout_panels: scratch.take(block_len(desc)),
        }
    }
}

/// The products of a head in `f32`.
struct Backward<'a> {
    desc: &'a AttentionDesc,
    io: &'a Io<'a>,
    head: usize,
    buffers: Buffers,
}

/// A block of queries against a chunk of keys.
pub(super) struct Part {
    pub queries: Range<usize>,
    pub keys: Range<usize>,
}

impl Backward<'_> {
    /// # Safety
    /// The promises of [`run`]. Called under `S::run_op`.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (blocks, chunks) = (self.desc.query_blocks(), self.desc.key_chunks());
        for chunk in 0..chunks.count {
            let keys = chunks.range(chunk, self.desc.keys);
            // SAFETY: the promises of `run`.
            unsafe {
                self.pack_keys::<S>(keys.clone());
                for block in 0..blocks.count {
                    let part = Part { queries: blocks.range(block, self.desc.queries), keys: keys.clone() };
                    self.copy_queries::<S>(&part.queries);
                    self.scores::<S>(&part);
                    self.score_gradients(&part);
                    self.transpose::<S>(&part);
                    self.gradients::<S>(&part);
                }
            }
        }
    }

    /// The rows of this head from `first` on, of a `[B, rows, heads * D]` tensor.
    #[inline(always)]
    fn rows_of(&self, tensor: TypedPtr, rows: usize, first: usize) -> TypedPtr {
        tensor.add(self.desc.start(self.head, rows) + first * self.desc.width())
    }

    fn dout(&self) -> TypedPtr {
        TypedSlice::from(self.io.dout).checked(self.desc.q_len(), "output gradient")
    }

    /// # Safety
    /// The promises of [`run`]. Called under `S::run_op`.
    #[inline(always)]
    unsafe fn pack_keys<S: Simd>(&self, keys: Range<usize>) {
        let (desc, buffers) = (self.desc, &self.buffers);
        let k = self.rows_of(self.io.inputs.k, desc.keys, keys.start);
        let v = self.rows_of(self.io.inputs.v, desc.keys, keys.start);
        for (src, dst) in [(k, buffers.keys), (v, buffers.values)] {
            let matrix = Matrix { src, ld: desc.width(), transposed: true, k: desc.depth, n: keys.len() };
            // SAFETY: the caller's promises; the buffers have room for whole panels.
            unsafe { matrix.pack::<S>(0..desc.depth, 0..keys.len(), dst.0, desc.depth * panel::<S>()) };
        }
        // SAFETY: as above.
        unsafe { self.pack_rows::<S>(k, keys.len(), buffers.key_rows) };
    }

    /// Packs `count` rows of a head as the second operand of a product whose reduction goes over them.
    ///
    /// # Safety
    /// They are there and there is room for whole panels. Called under `S::run_op`.
    #[inline(always)]
    unsafe fn pack_rows<S: Simd>(&self, src: TypedPtr, count: usize, dst: SharedMut) {
        let desc = self.desc;
        let matrix = Matrix { src, ld: desc.width(), transposed: false, k: count, n: desc.depth };
        // SAFETY: the caller's promise.
        unsafe { matrix.pack::<S>(0..count, 0..desc.depth, dst.0, count * panel::<S>()) };
    }

    /// Copies queries and output gradients, both ways.
    ///
    /// # Safety
    /// As for [`Backward::pack_keys`].
    #[inline(always)]
    unsafe fn copy_queries<S: Simd>(&self, queries: &Range<usize>) {
        let (desc, buffers) = (self.desc, &self.buffers);
        let q = self.rows_of(self.io.inputs.q, desc.queries, queries.start);
        let dout = self.rows_of(self.dout(), desc.queries, queries.start);
        // SAFETY: the caller's promises; the buffers have room.
        unsafe {
            copy_rows::<S>(q, desc.width(), queries.len(), desc.depth, buffers.queries);
            copy_rows::<S>(dout, desc.width(), queries.len(), desc.depth, buffers.douts);
            self.pack_rows::<S>(q, queries.len(), buffers.query_panels);
            self.pack_rows::<S>(dout, queries.len(), buffers.dout_panels);
        }
    }

    /// Products of queries and keys, and of output gradients and values.
    ///
    /// # Safety
    /// As for [`Backward::pack_keys`]; what is multiplied was packed.
    #[inline(always)]
    unsafe fn scores<S: Simd>(&self, part: &Part) {
        let (desc, buffers) = (self.desc, &self.buffers);
        for (a, b, c) in
            [(buffers.queries, buffers.keys, buffers.probabilities), (buffers.douts, buffers.values, buffers.dscores)]
        {
            let product = RowsTimesPanels {
                a,
                depth: desc.depth,
                b,
                b_panel: desc.depth * panel::<S>(),
                cols: padded::<S>(part.keys.len()),
                c,
                c_rows: &PACKED_ROWS[..part.queries.len()],
                accumulate: false,
            };
            // SAFETY: the caller's promises.
            unsafe { product.run::<S>() };
        }
    }

    /// Makes probabilities of scores, and gradients of the scores of those of the probabilities.
    ///
    /// # Safety
    /// The products of [`Backward::scores`] were computed.
    #[inline(always)]
    unsafe fn score_gradients(&self, part: &Part) {
        let desc = self.desc;
        let bias = self.io.inputs.bias_of(desc, self.head, part.keys.clone());
        for (i, query) in part.queries.clone().enumerate() {
            let row = self.head * desc.queries + query;
            let of_row = desc.start(self.head, desc.queries) + query * desc.width();
            let of_row = of_row..of_row + desc.depth;
            let expected = rows::dot(&self.io.out[of_row.clone()], &self.io.dout[of_row]);
            // SAFETY: the caller's promise; the buffers are two.
            let [p, dscores] = [self.buffers.probabilities, self.buffers.dscores]
                .map(|buffer| unsafe { std::slice::from_raw_parts_mut(buffer.add(i * ROW_STRIDE).0, part.keys.len()) });
            let gradient = rows::RowGradient { scale: desc.scale, log_sum: self.io.log_sums[row], expected };
            match &desc.dropout {
                None => gradient.apply(p, dscores, bias),
                Some(dropout) => {
                    let mut uniforms = [0.0; MAX_DEPTH];
                    let uniforms = &mut uniforms[..part.keys.len()];
                    let first = (row * desc.keys + part.keys.start) as u64;
                    dropout.uniforms(self.io.inputs.counter, first, uniforms);
                    gradient.apply_with_dropout(p, dscores, bias, dropout, uniforms);
                }
            }
        }
    }

    /// Copies probabilities and gradients of the scores to tiles whose rows are keys.
    ///
    /// # Safety
    /// They were computed. Called under `S::run_op`.
    #[inline(always)]
    unsafe fn transpose<S: Simd>(&self, part: &Part) {
        let (queries, keys) = (part.queries.len(), part.keys.len());
        let tiles = TileRows::new::<S>(keys);
        for (rows, dst) in [
            (self.buffers.probabilities, self.buffers.probability_tiles),
            (self.buffers.dscores, self.buffers.dscore_tiles),
        ] {
            for row in 0..queries {
                for tile in 0..tiles.count {
                    // SAFETY: the tiles have room, and a row has room behind its last number for reading a whole step.
                    unsafe {
                        let src = rows.add(row * ROW_STRIDE + tiles.start(tile)).0;
                        let dst = dst.add(tile * tile_len::<S>(queries) + row * column_stride::<S>()).0;
                        for v in (0..column_stride::<S>()).step_by(S::LANES) {
                            S::store(dst.add(v), S::load(src.add(v)));
                        }
                    }
                }
            }
        }
    }

    /// Adds what the part contributes to the gradients of values, keys and queries.
    ///
    /// # Safety
    /// As for [`Backward::pack_keys`]; all buffers are filled.
    #[inline(always)]
    unsafe fn gradients<S: Simd>(&self, part: &Part) {
        let (desc, buffers) = (self.desc, &self.buffers);
        let offsets: [usize; MAX_DEPTH] = std::array::from_fn(|row| row * desc.width());
        let queries = part.queries.len();
        let of_keys = desc.start(self.head, desc.keys) + part.keys.start * desc.width();
        for (a, b, c) in [
            (buffers.probability_tiles, buffers.dout_panels, self.io.dv),
            (buffers.dscore_tiles, buffers.query_panels, self.io.dk),
        ] {
            let tile_loop = TileLoop {
                layout: ALayout::Columns,
                depth: queries,
                a: OperandRows::packed(a.0),
                a_tile: tile_len::<S>(queries),
                b: b.0,
                b_panel: queries * panel::<S>(),
                cols: desc.depth,
                c: c.0.wrapping_add(of_keys),
                c_rows: &offsets[..part.keys.len()],
                accumulate: part.queries.start > 0,
                stream_b: false,
                b_next: b.0,
            };
            // SAFETY: the caller's promises; these columns of the outputs belong to this head.
            unsafe { tile_loop.run::<S>(&mut Prefetch::new([MemoryBlock::EMPTY; 2])) };
        }
        let of_queries = desc.start(self.head, desc.queries) + part.queries.start * desc.width();
        let product = RowsTimesPanels {
            a: buffers.dscores,
            depth: part.keys.len(),
            b: buffers.key_rows,
            b_panel: part.keys.len() * panel::<S>(),
            cols: desc.depth,
            c: SharedMut(self.io.dq.0.wrapping_add(of_queries)),
            c_rows: &offsets[..queries],
            accumulate: part.keys.start > 0,
        };
        // SAFETY: as above.
        unsafe { product.run::<S>() };
    }
}

/// Distance of the tiles of a block of the given number of queries.
#[inline(always)]
fn tile_len<S: Simd>(queries: usize) -> usize {
    queries * column_stride::<S>() + PAD
}
