//! The backward pass with operands of `bf16`. Gradients of keys and values are computed transposed, `[D, Sk]`: probabilities and
//! gradients of the scores are then second operands, whose rows are interleaved, and only the narrow queries and output gradients
//! are transposed.

use super::backward::{Io, Part};
use super::{
    AttentionDesc, QUERY_BLOCK, RowsTimesPanels, SCORES_LEN, copy_rows, padded, prefetch_output, prefetch_row, rows,
    steps, to_operand,
};
use crate::gemm::{
    MAX_DEPTH, Matrix, PACKED_ROWS, ROW_STRIDE, Scratch, SharedMut, TypedPtr, TypedSlice, aligned_len, even_chunks,
    packed_len, panel,
};
use crate::simd::{Simd, TILE_STEPS};
use crate::vector;
use bessemer_ir::DType;
use std::ops::Range;

/// Elements of rows, one for each number of a head, [`ROW_STRIDE`] apart, in whole tiles.
fn transposed_len(desc: &AttentionDesc) -> usize {
    desc.depth.next_multiple_of(TILE_STEPS) * ROW_STRIDE
}

/// Elements of pairs of the queries of a block, [`ROW_STRIDE`] apart.
const PAIRS_LEN: usize = QUERY_BLOCK / 2 * ROW_STRIDE;

/// Elements of each buffer, in the order of the fields of [`Buffers`].
fn lens(desc: &AttentionDesc) -> [usize; 14] {
    let keys = desc.key_chunks().rows;
    let scores = packed_len(QUERY_BLOCK, keys);
    let transposed = transposed_len(desc);
    [
        SCORES_LEN,
        SCORES_LEN,
        PAIRS_LEN,
        transposed,
        transposed,
        SCORES_LEN,
        SCORES_LEN,
        scores,
        scores,
        packed_len(desc.depth, keys),
        packed_len(desc.depth, keys),
        packed_len(keys, desc.depth),
        transposed,
        transposed,
    ]
}

/// Scratch elements of a worker.
pub(super) fn worker_len(desc: &AttentionDesc) -> usize {
    lens(desc).into_iter().map(aligned_len).sum()
}

/// The scratch of a worker.
struct Buffers {
    /// Rows of queries and of output gradients, of a block.
    queries: SharedMut,
    douts: SharedMut,
    /// Two rows of a block interleaved.
    pairs: SharedMut,
    /// Queries and output gradients of a block as rows of `[D, Sq]`.
    query_columns: SharedMut,
    dout_columns: SharedMut,
    /// Rows of probabilities and of gradients of the scores, of a block and a chunk.
    probabilities: SharedMut,
    dscores: SharedMut,
    /// The same as panels of `[Sq, Sk]`.
    probability_panels: SharedMut,
    dscore_panels: SharedMut,
    /// Panels of a chunk: of keys and values as `[D, Sk]`, and of keys as `[Sk, D]`.
    keys: SharedMut,
    values: SharedMut,
    key_rows: SharedMut,
    /// Gradients of the keys and values of a chunk as rows of `[D, Sk]`, in `f32`.
    dkeys: SharedMut,
    dvalues: SharedMut,
}

impl Buffers {
    fn new(desc: &AttentionDesc, mut scratch: Scratch) -> Buffers {
        let mut buffers = lens(desc).into_iter().map(|len| scratch.take(len));
        let mut take = || buffers.next().expect("a length for each buffer");
        Buffers {
            queries: take(),
            douts: take(),
            pairs: take(),
            query_columns: take(),
            dout_columns: take(),
            probabilities: take(),
            dscores: take(),
            probability_panels: take(),
            dscore_panels: take(),
            keys: take(),
            values: take(),
            key_rows: take(),
            dkeys: take(),
            dvalues: take(),
        }
    }
}

/// Computes all of a head.
///
/// # Safety
/// Inputs and outputs have the sizes of `desc`, queries, keys and values are `bf16` elements, `scratch` has [`worker_len`]
/// elements, and nothing else uses it or these columns of the outputs. Called under `S::run_op`.
#[inline(always)]
pub(super) unsafe fn run<S: Simd>(desc: &AttentionDesc, io: &Io<'_>, head: usize, scratch: Scratch) {
    let (blocks, chunks) = (even_chunks(desc.queries, QUERY_BLOCK, TILE_STEPS), desc.key_chunks());
    let buffers = Buffers::new(desc, scratch);
    let backward = Backward { desc, io, head, buffers };
    for chunk in 0..chunks.count {
        let keys = chunks.range(chunk, desc.keys);
        // SAFETY: the caller's promises.
        unsafe {
            for query in blocks.range(0, desc.queries) {
                backward.prefetch_query::<S>(query);
            }
            backward.pack_keys::<S>(keys.clone());
            for block in 0..blocks.count {
                let part = Part { queries: blocks.range(block, desc.queries), keys: keys.clone() };
                let expected = backward.copy_queries::<S>(&part.queries);
                backward.scores::<S>(&part);
                backward.score_gradients::<S>(&part, &expected);
                backward.gradients::<S>(&part);
            }
            backward.store_columns::<S>(&keys);
        }
    }
}

struct Backward<'a> {
    desc: &'a AttentionDesc,
    io: &'a Io<'a>,
    head: usize,
    buffers: Buffers,
}

/// The distance of rows, [`ROW_STRIDE`] apart, in 16-bit elements.
const ROW_STRIDE_16: usize = 2 * ROW_STRIDE;

impl Backward<'_> {
    /// Prefetches what is read of a query, if it is there.
    ///
    /// # Safety
    /// Called under `S::run_op`.
    #[inline(always)]
    unsafe fn prefetch_query<S: Simd>(&self, query: usize) {
        let desc = self.desc;
        if query < desc.queries {
            let start = desc.start(self.head, desc.queries) + query * desc.width();
            let [out, dout] =
                [self.io.out, self.io.dout].map(|rows| TypedSlice::from(rows).checked(desc.q_len(), "rows"));
            for tensor in [self.io.inputs.q, out, dout] {
                // SAFETY: the caller's promise.
                unsafe { prefetch_row::<S>(tensor.add(start), desc.depth) };
            }
        }
    }

    /// Prefetches the output of the query in row `i` of a part and, where no queries follow, its share of those of the keys.
    ///
    /// # Safety
    /// Called under `S::run_op`.
    #[inline(always)]
    unsafe fn prefetch_outputs<S: Simd>(&self, part: &Part, i: usize) {
        let (desc, queries) = (self.desc, part.queries.len());
        // SAFETY: the caller's promise.
        unsafe {
            let start = desc.start(self.head, desc.queries) + (part.queries.start + i) * desc.width();
            prefetch_output::<S>(self.io.dq, start, desc.depth);
            if part.queries.end < desc.queries {
                return;
            }
            let share = |i: usize| part.keys.start + i * part.keys.len() / queries;
            for key in share(i)..share(i + 1) {
                let start = desc.start(self.head, desc.keys) + key * desc.width();
                prefetch_output::<S>(self.io.dk, start, desc.depth);
                prefetch_output::<S>(self.io.dv, start, desc.depth);
            }
        }
    }

    /// # Safety
    /// The promises of [`run`].
    #[inline(always)]
    unsafe fn pack_keys<S: Simd>(&self, keys: Range<usize>) {
        let (desc, buffers) = (self.desc, &self.buffers);
        let start = desc.start(self.head, desc.keys) + keys.start * desc.width();
        let [k, v] = [self.io.inputs.k, self.io.inputs.v].map(|tensor| tensor.add(start));
        let columns = Matrix { src: k, ld: desc.width(), transposed: true, k: desc.depth, n: keys.len() };
        let rows = Matrix { src: k, ld: desc.width(), transposed: false, k: keys.len(), n: desc.depth };
        // SAFETY: the caller's promises; the buffers have room for whole panels.
        unsafe {
            pack::<S>(&columns, buffers.keys);
            pack::<S>(&Matrix { src: v, ..columns }, buffers.values);
            pack::<S>(&rows, buffers.key_rows);
        }
    }

    /// Copies queries, and rounds output gradients, as rows and as columns. Gives the sums, for each query, of the products of
    /// outputs and their gradients, which are what is expected of the gradients of the probabilities.
    ///
    /// # Safety
    /// The promises of [`run`].
    #[inline(always)]
    unsafe fn copy_queries<S: Simd>(&self, queries: &Range<usize>) -> [f32; QUERY_BLOCK] {
        let (desc, buffers) = (self.desc, &self.buffers);
        let start = desc.start(self.head, desc.queries) + queries.start * desc.width();
        let mut expected = [0.0; QUERY_BLOCK];
        // SAFETY: the caller's promises; the buffers have room.
        unsafe {
            let q = self.io.inputs.q.add(start);
            copy_rows::<S>(q, desc.width(), queries.len(), desc.depth, buffers.queries);
            for (row, expected) in expected[..queries.len()].iter_mut().enumerate() {
                let of_row = start + row * desc.width()..start + row * desc.width() + desc.depth;
                let dout = buffers.douts.add(row * ROW_STRIDE);
                S::copy(self.io.dout[of_row.clone()].as_ptr(), dout.0, desc.depth);
                to_operand::<S>(dout, desc.depth);
                let mut rounded = [0.0; MAX_DEPTH];
                let rounded = &mut rounded[..desc.depth];
                vector::widen(DType::Bf16, dout.0.cast(), rounded);
                *expected = rows::dot(&self.io.out[of_row], rounded);
            }
            self.transpose::<S>(buffers.queries, queries.len(), buffers.query_columns);
            self.transpose::<S>(buffers.douts, queries.len(), buffers.dout_columns);
        }
        expected
    }

    /// Transposes `count` rows of the elements of a head to rows of pairs of `[D, Sq]`.
    ///
    /// # Safety
    /// They are there, and there is room for whole tiles. Called under `S::run_op`.
    #[inline(always)]
    unsafe fn transpose<S: Simd>(&self, rows: SharedMut, count: usize, dst: SharedMut) {
        let (depth, pairs) = (self.desc.depth, self.buffers.pairs);
        let zeros = [0u16; MAX_DEPTH];
        // SAFETY: the caller's promise; the pairs have room.
        unsafe {
            let row = |row: usize| match row < count {
                true => rows.0.cast::<u16>().add(row * ROW_STRIDE_16).cast_const(),
                false => zeros.as_ptr(),
            };
            let steps = count.div_ceil(2).next_multiple_of(TILE_STEPS);
            for step in 0..steps {
                let pairs = pairs.add(step * ROW_STRIDE).0;
                S::interleave_16(row(2 * step), row(2 * step + 1), pairs.cast(), depth);
            }
            for number in (0..depth).step_by(S::LANES) {
                for step in (0..steps).step_by(S::LANES) {
                    let src = pairs.add(step * ROW_STRIDE + number).0;
                    S::transpose(src, ROW_STRIDE, dst.add(number * ROW_STRIDE + step).0, ROW_STRIDE);
                }
            }
        }
    }

    /// Products of queries and keys, and of output gradients and values.
    ///
    /// # Safety
    /// The promises of [`run`]; what is multiplied was packed.
    #[inline(always)]
    unsafe fn scores<S: Simd>(&self, part: &Part) {
        let (desc, buffers) = (self.desc, &self.buffers);
        for (a, b, c) in
            [(buffers.queries, buffers.keys, buffers.probabilities), (buffers.douts, buffers.values, buffers.dscores)]
        {
            let product = RowsTimesPanels {
                a,
                depth: steps::<S>(desc.depth),
                b,
                b_panel: steps::<S>(desc.depth) * panel::<S>(),
                cols: padded::<S>(part.keys.len()),
                c,
                c_rows: &PACKED_ROWS[..part.queries.len()],
                accumulate: false,
            };
            // SAFETY: the caller's promises.
            unsafe { product.run::<S>() };
        }
    }

    /// Makes probabilities of scores, and gradients of the scores of those of the probabilities: rows of operands, and panels.
    ///
    /// # Safety
    /// The products of [`Backward::scores`] were computed. Called under `S::run_op`.
    #[inline(always)]
    unsafe fn score_gradients<S: Simd>(&self, part: &Part, expected: &[f32; QUERY_BLOCK]) {
        let (desc, buffers) = (self.desc, &self.buffers);
        let (queries, keys) = (part.queries.len(), part.keys.len());
        let bias = self.io.inputs.bias_of(desc, self.head, part.keys.clone());
        for (i, query) in part.queries.clone().enumerate() {
            let row = self.head * desc.queries + query;
            // SAFETY: the caller's promise.
            unsafe {
                self.prefetch_query::<S>(part.queries.end + i);
                self.prefetch_outputs::<S>(part, i);
            }
            let gradient =
                rows::RowGradient { scale: desc.scale, log_sum: self.io.log_sums[row], expected: expected[i] };
            // SAFETY: the caller's promise; the buffers are two.
            let starts = [buffers.probabilities, buffers.dscores].map(|rows| unsafe { rows.add(i * ROW_STRIDE) });
            // SAFETY: as above.
            let [p, dscores] = starts.map(|start| unsafe { std::slice::from_raw_parts_mut(start.0, keys) });
            match &desc.dropout {
                None => gradient.apply(p, dscores, bias),
                Some(dropout) => {
                    let mut uniforms = [0.0; MAX_DEPTH];
                    let uniforms = &mut uniforms[..keys];
                    let first = (row * desc.keys + part.keys.start) as u64;
                    dropout.uniforms(self.io.inputs.counter, first, uniforms);
                    gradient.apply_with_dropout(p, dscores, bias, dropout, uniforms);
                }
            }
            for start in starts {
                // SAFETY: a row has room for whole steps.
                unsafe { to_operand::<S>(start, keys) };
            }
        }
        for (rows, panels) in
            [(buffers.probabilities, buffers.probability_panels), (buffers.dscores, buffers.dscore_panels)]
        {
            // SAFETY: the rows are there, and there is room for whole panels.
            unsafe {
                let src = rows_16(rows, queries);
                pack::<S>(&Matrix { src, ld: ROW_STRIDE_16, transposed: false, k: queries, n: keys }, panels);
            }
        }
    }

    /// Adds what the part contributes to the gradients of values, keys and queries.
    ///
    /// # Safety
    /// The promises of [`run`]; all buffers are filled.
    #[inline(always)]
    unsafe fn gradients<S: Simd>(&self, part: &Part) {
        let (desc, buffers) = (self.desc, &self.buffers);
        let (queries, keys) = (part.queries.len(), part.keys.len());
        let columns: [usize; MAX_DEPTH] = std::array::from_fn(|row| row * ROW_STRIDE);
        for (a, b, c) in [
            (buffers.dout_columns, buffers.probability_panels, buffers.dvalues),
            (buffers.query_columns, buffers.dscore_panels, buffers.dkeys),
        ] {
            let product = RowsTimesPanels {
                a,
                depth: steps::<S>(queries),
                b,
                b_panel: steps::<S>(queries) * panel::<S>(),
                cols: padded::<S>(keys),
                c,
                c_rows: &columns[..desc.depth],
                accumulate: part.queries.start > 0,
            };
            // SAFETY: the caller's promises.
            unsafe { product.run::<S>() };
        }
        let of_queries = desc.start(self.head, desc.queries) + part.queries.start * desc.width();
        let offsets: [usize; QUERY_BLOCK] = std::array::from_fn(|row| row * desc.width());
        let product = RowsTimesPanels {
            a: buffers.dscores,
            depth: steps::<S>(keys),
            b: buffers.key_rows,
            b_panel: steps::<S>(keys) * panel::<S>(),
            cols: desc.depth,
            c: SharedMut(self.io.dq.0.wrapping_add(of_queries)),
            c_rows: &offsets[..queries],
            accumulate: part.keys.start > 0,
        };
        // SAFETY: as above; these columns of the output belong to this head.
        unsafe { product.run::<S>() };
    }

    /// Transposes the gradients of the keys and values of a chunk to the outputs.
    ///
    /// # Safety
    /// The promises of [`run`]; all queries have contributed.
    #[inline(always)]
    unsafe fn store_columns<S: Simd>(&self, keys: &Range<usize>) {
        let (desc, buffers) = (self.desc, &self.buffers);
        let start = desc.start(self.head, desc.keys) + keys.start * desc.width();
        for (src, dst) in [(buffers.dkeys, self.io.dk), (buffers.dvalues, self.io.dv)] {
            for key in (0..keys.len()).step_by(S::LANES) {
                for number in (0..desc.depth).step_by(S::LANES) {
                    // SAFETY: the caller's promise; the buffers have room for whole squares.
                    unsafe {
                        let src = src.add(number * ROW_STRIDE + key).0;
                        let dst = dst.add(start + key * desc.width() + number).0;
                        let (rows, cols) = (keys.len() - key, desc.depth - number);
                        if rows >= S::LANES && cols >= S::LANES {
                            S::transpose(src, ROW_STRIDE, dst, desc.width());
                            continue;
                        }
                        let mut square = [0.0f32; TILE_STEPS * TILE_STEPS];
                        S::transpose(src, ROW_STRIDE, square.as_mut_ptr(), TILE_STEPS);
                        for (row, elements) in square.chunks_exact(TILE_STEPS).enumerate().take(rows.min(S::LANES)) {
                            S::copy(elements.as_ptr(), dst.add(row * desc.width()), cols.min(S::LANES));
                        }
                    }
                }
            }
        }
    }
}

/// Packs all of a matrix.
///
/// # Safety
/// It is there, and there is room for whole panels. Called under `S::run_op`.
#[inline(always)]
unsafe fn pack<S: Simd>(matrix: &Matrix, dst: SharedMut) {
    let steps = steps::<S>(matrix.k);
    // SAFETY: the caller's promise.
    unsafe { matrix.pack::<S>(0..steps, 0..matrix.n, dst.0, steps * panel::<S>()) };
}

/// Rows of an operand, [`ROW_STRIDE`] apart, as elements.
///
/// # Safety
/// They are there.
#[inline(always)]
unsafe fn rows_16(rows: SharedMut, count: usize) -> TypedPtr {
    let len = count * ROW_STRIDE_16;
    // SAFETY: the caller's promise.
    unsafe { TypedSlice::from_raw(rows.0.cast_const().cast(), DType::Bf16, len) }.checked(len, "rows of scores")
}
