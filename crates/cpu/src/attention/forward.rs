//! The forward pass: scores, softmax, dropout and the weighted sum of the values.

use super::{
    AttentionDesc, Inputs, QUERY_BLOCK, RowsTimesPanels, SCORES_LEN, copy_rows, padded, prefetch_output, prefetch_row,
    rows, steps, to_operand, worker_scratch,
};
use crate::gemm::{
    Ctx, MAX_DEPTH, Matrix, PACKED_ROWS, ROW_STRIDE, RowBlocks, Scratch, SharedMut, aligned_len, even_chunks,
    packed_len, panel,
};
use crate::simd::{PanelFormat, Simd, SimdOp, TILE_STEPS};
use crate::vector;
use std::ops::Range;

pub(super) struct Io<'a> {
    pub inputs: &'a Inputs<'a>,
    /// `[B, Sq, heads * D]`
    pub out: SharedMut,
    /// `[B, heads, Sq]`
    pub log_sums: SharedMut,
}

/// Most queries of a block where operands are `bf16`: the scores against some hundred keys stay in the first-level cache.
const BF16_BLOCK: usize = 32;

fn query_blocks(desc: &AttentionDesc, format: PanelFormat) -> RowBlocks {
    if format.is_dot2() { even_chunks(desc.queries, BF16_BLOCK, TILE_STEPS) } else { desc.query_blocks() }
}

/// Elements of the packed keys of a head.
fn keys_len(desc: &AttentionDesc) -> usize {
    packed_len(desc.depth, desc.keys)
}

/// Elements of the packed values of a head.
fn values_len(desc: &AttentionDesc) -> usize {
    packed_len(desc.keys, desc.depth)
}

/// Scratch elements of a worker.
pub(super) fn worker_len(desc: &AttentionDesc) -> usize {
    let scores = desc.key_chunks().count * SCORES_LEN;
    [SCORES_LEN, scores, keys_len(desc), values_len(desc)].into_iter().map(aligned_len).sum()
}

/// Tasks for each thread, so that none waits long for the others.
const TASKS_OF_THREAD: usize = 4;

/// Blocks of queries of a task: all of a head, for which keys and values are packed once, unless there are few heads.
fn run_length(desc: &AttentionDesc, blocks: usize, threads: usize) -> usize {
    let groups = (TASKS_OF_THREAD * threads).div_ceil(desc.all_heads().max(1)).min(blocks);
    blocks.div_ceil(groups.max(1))
}

/// # Safety
/// Inputs and outputs have the sizes of `desc`, and nothing else uses the outputs.
pub(super) unsafe fn run(ctx: Ctx<'_>, desc: &AttentionDesc, format: PanelFormat, io: &Io<'_>, scratch: &mut [f32]) {
    let blocks = query_blocks(desc, format);
    let run = run_length(desc, blocks.count, ctx.pool.threads());
    let tasks = blocks.count.div_ceil(run);
    let len = worker_len(desc);
    let base = Scratch::new(scratch, desc.forward_scratch_len(ctx.pool.threads())).take(ctx.pool.threads() * len);
    ctx.pool.run(desc.all_heads() * tasks, &|task, worker| {
        let first = task % tasks * run;
        // SAFETY: tasks have different heads or queries, workers different scratch.
        unsafe {
            let scratch = worker_scratch(base, worker, len);
            let blocks = first..blocks.count.min(first + run);
            Forward { desc, io, head: task / tasks, blocks, scratch }.run_product_on(ctx.isa, format);
        }
    });
}

/// Blocks of queries of one head.
struct Forward<'a> {
    desc: &'a AttentionDesc,
    io: &'a Io<'a>,
    head: usize,
    blocks: Range<usize>,
    scratch: Scratch,
}

/// The scratch of a worker.
#[derive(Clone, Copy)]
struct Buffers {
    queries: SharedMut,
    /// Chunk by chunk of the keys.
    scores: SharedMut,
    /// Panels of `[D, Sk]`.
    keys: SharedMut,
    /// Panels of `[Sk, D]`.
    values: SharedMut,
}

impl SimdOp for Forward<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let desc = self.desc;
        let chunks = desc.key_chunks();
        let buffers = Buffers {
            queries: self.scratch.take(SCORES_LEN),
            scores: self.scratch.take(chunks.count * SCORES_LEN),
            keys: self.scratch.take(keys_len(desc)),
            values: self.scratch.take(values_len(desc)),
        };
        // SAFETY: the promises of `run`.
        unsafe {
            self.pack::<S>(&buffers);
            for block in self.blocks.clone() {
                let queries = query_blocks(desc, PanelFormat::of::<S>()).range(block, desc.queries);
                self.scores::<S>(&buffers, &chunks, queries.clone());
                let factors = self.softmax::<S>(&buffers, &chunks, queries.clone());
                self.output::<S>(&buffers, &chunks, queries, &factors);
            }
        }
    }
}

impl Forward<'_> {
    /// # Safety
    /// The promises of [`run`]. Called under `S::run_op`.
    #[inline(always)]
    unsafe fn pack<S: Simd>(&self, buffers: &Buffers) {
        let desc = self.desc;
        let (start, ld) = (desc.start(self.head, desc.keys), desc.width());
        let keys = Matrix { src: self.io.inputs.k.add(start), ld, transposed: true, k: desc.depth, n: desc.keys };
        let values = Matrix { src: self.io.inputs.v.add(start), ld, transposed: false, k: desc.keys, n: desc.depth };
        // SAFETY: the caller's promises; the buffers have room for whole panels.
        unsafe {
            for key in 0..desc.keys {
                prefetch_row::<S>(values.src.add(key * ld), desc.depth);
            }
            for (matrix, dst) in [(keys, buffers.keys), (values, buffers.values)] {
                let steps = steps::<S>(matrix.k);
                matrix.pack::<S>(0..steps, 0..matrix.n, dst.0, steps * panel::<S>());
            }
        }
    }

    /// The products of some queries with all keys.
    ///
    /// # Safety
    /// As for [`Forward::pack`], which was called.
    #[inline(always)]
    unsafe fn scores<S: Simd>(&self, buffers: &Buffers, chunks: &RowBlocks, queries: Range<usize>) {
        let desc = self.desc;
        let start = desc.start(self.head, desc.queries) + queries.start * desc.width();
        // SAFETY: the caller's promises; the buffers have room.
        unsafe {
            copy_rows::<S>(self.io.inputs.q.add(start), desc.width(), queries.len(), desc.depth, buffers.queries);
            for chunk in 0..chunks.count {
                let keys = chunks.range(chunk, desc.keys);
                let product = RowsTimesPanels {
                    a: buffers.queries,
                    depth: steps::<S>(desc.depth),
                    b: buffers.keys.add(keys.start * steps::<S>(desc.depth)),
                    b_panel: steps::<S>(desc.depth) * panel::<S>(),
                    cols: padded::<S>(keys.len()),
                    c: buffers.scores.add(chunk * SCORES_LEN),
                    c_rows: &PACKED_ROWS[..queries.len()],
                    accumulate: false,
                };
                product.run::<S>();
            }
        }
    }

    /// Prefetches the output of `query` and, if it is there, query `next`.
    ///
    /// # Safety
    /// Called under `S::run_op`.
    #[inline(always)]
    unsafe fn prefetch<S: Simd>(&self, query: usize, next: usize) {
        let desc = self.desc;
        let start = |query: usize| desc.start(self.head, desc.queries) + query * desc.width();
        // SAFETY: the caller's promise.
        unsafe {
            prefetch_output::<S>(self.io.out, start(query), desc.depth);
            if next < desc.queries {
                prefetch_row::<S>(self.io.inputs.q.add(start(next)), desc.depth);
            }
        }
    }

    /// Turns scores into probabilities but for a factor of each row, as rows of an operand, and gives these factors.
    ///
    /// # Safety
    /// The scores of `queries` were computed. Called under `S::run_op`.
    #[inline(always)]
    unsafe fn softmax<S: Simd>(
        &self,
        buffers: &Buffers,
        chunks: &RowBlocks,
        queries: Range<usize>,
    ) -> [f32; QUERY_BLOCK] {
        let desc = self.desc;
        let (mut tops, mut sums) = ([0.0; QUERY_BLOCK], [1.0; QUERY_BLOCK]);
        for (i, query) in queries.clone().enumerate() {
            let row = self.head * desc.queries + query;
            // SAFETY: the caller's promise.
            unsafe { self.prefetch::<S>(query, query + queries.len()) };
            // SAFETY: the scores are there.
            let start = |chunk: usize| unsafe { buffers.scores.add(chunk * SCORES_LEN + i * ROW_STRIDE) };
            let keys = |chunk: usize| chunks.range(chunk, desc.keys);
            // SAFETY: as above.
            let part = |chunk: usize| unsafe { std::slice::from_raw_parts_mut(start(chunk).0, keys(chunk).len()) };
            let mut lanes = [f32::NEG_INFINITY; rows::LANES];
            for chunk in 0..chunks.count {
                let bias = self.io.inputs.bias_of(desc, self.head, keys(chunk));
                rows::scale_and_bias(part(chunk), desc.scale, bias, &mut lanes);
            }
            let top = rows::fold_lanes(lanes, rows::greater);
            let mut lanes = [0.0; rows::LANES];
            for chunk in 0..chunks.count {
                let scores = part(chunk);
                rows::exponentials(scores, top, &mut lanes);
                if let Some(dropout) = &desc.dropout {
                    let mut uniforms = [0.0; MAX_DEPTH];
                    let uniforms = &mut uniforms[..scores.len()];
                    let first = (row * desc.keys + keys(chunk).start) as u64;
                    dropout.uniforms(self.io.inputs.counter, first, uniforms);
                    dropout.drop(scores, uniforms);
                }
                // SAFETY: a row has room for whole steps.
                unsafe { to_operand::<S>(start(chunk), keys(chunk).len()) };
            }
            (tops[i], sums[i]) = (top, rows::fold_lanes(lanes, |a, b| a + b));
        }
        let first = self.head * desc.queries + queries.start;
        // SAFETY: the rows belong to this task.
        let log_sums = unsafe { std::slice::from_raw_parts_mut(self.io.log_sums.add(first).0, queries.len()) };
        for ((log_sum, top), sum) in log_sums.iter_mut().zip(tops).zip(sums) {
            *log_sum = top + vector::log(sum);
        }
        sums.map(|sum| desc.dropout.map_or(1.0, |dropout| dropout.gain) / sum)
    }

    /// The sums of the values, weighted by the probabilities.
    ///
    /// # Safety
    /// As for [`Forward::pack`], which was called, as was [`Forward::softmax`], which gave `factors`.
    #[inline(always)]
    unsafe fn output<S: Simd>(
        &self,
        buffers: &Buffers,
        chunks: &RowBlocks,
        queries: Range<usize>,
        factors: &[f32; QUERY_BLOCK],
    ) {
        let desc = self.desc;
        let start = desc.start(self.head, desc.queries) + queries.start * desc.width();
        let offsets: [usize; QUERY_BLOCK] = std::array::from_fn(|row| row * desc.width());
        // SAFETY: the caller's promises; these rows of the output belong to this task.
        unsafe {
            let out = self.io.out.add(start);
            for chunk in 0..chunks.count {
                let keys = chunks.range(chunk, desc.keys);
                let probabilities = buffers.scores.add(chunk * SCORES_LEN);
                let product = RowsTimesPanels {
                    a: probabilities,
                    depth: steps::<S>(keys.len()),
                    b: buffers.values.add(steps::<S>(keys.start) * panel::<S>()),
                    b_panel: steps::<S>(desc.keys) * panel::<S>(),
                    cols: desc.depth,
                    c: out,
                    c_rows: &offsets[..queries.len()],
                    accumulate: chunk > 0,
                };
                product.run::<S>();
            }
            for (row, &factor) in factors[..queries.len()].iter().enumerate() {
                rows::scale(std::slice::from_raw_parts_mut(out.add(row * desc.width()).0, desc.depth), factor);
            }
        }
    }
}
