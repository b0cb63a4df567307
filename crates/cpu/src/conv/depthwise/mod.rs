//! Depthwise convolutions: each output channel is the convolution of one input channel. Activations `[N, H, W, C]`,
//! weights `[KH, KW, 1, C]`; vectors run along the channels.
//!
//! The descriptions are [`ConvDesc`] with `c_in = c_out = C`.

pub mod chained;
mod direct;
mod weight_grad;

use super::ConvDesc;
use crate::gemm::{
    Ctx, Destination, Epilogue, Output, RowBlocks, Scratch, SharedMut, TASKS, TypedPtr, TypedSlice, aligned_len,
};
use crate::parts::{CHUNK, for_chunks};
use crate::simd::SimdOp;
use bessemer_ir::DType;
use direct::{Element, Grid, Lines, Side};

pub(super) use weight_grad::{weight_grad, weight_grad_scratch_len};

/// Elements of a task's part of an output: with what it reads, it stays in the second-level cache.
const BLOCK: usize = 32 * 1024;

/// Most channels that are computed at once: their weights stay in the first-level cache.
const MAX_CHANNELS: usize = 192;

/// How an output `[N, H, W, C]` is cut into tasks.
struct Cut {
    /// Lines of a block; a divisor of the output's height.
    lines: usize,
    blocks: RowBlocks,
    groups: RowBlocks,
}

impl Cut {
    fn new(n: usize, h: usize, w: usize, channels: usize) -> Cut {
        // Epilogues take whole lines faster than parts of pixels.
        let groups = channel_groups(channels, MAX_CHANNELS.max(BLOCK / w.max(1)));
        let by_size = BLOCK / (w * groups.rows).max(1);
        let by_tasks = n * h * groups.count / TASKS;
        let limit = by_size.min(by_tasks).clamp(1, h.max(1));
        let lines = (1..=limit).rev().find(|lines| h.is_multiple_of(*lines)).unwrap_or(1);
        Cut { lines, blocks: RowBlocks::new(n * h * w, lines * w), groups }
    }
}

/// Cuts channels into groups of nearly equal size, at most `limit`, that start at multiples of 16.
fn channel_groups(channels: usize, limit: usize) -> RowBlocks {
    let count = channels.div_ceil(limit).max(1);
    RowBlocks::new(channels, channels.div_ceil(count).next_multiple_of(16))
}

/// A product that writes activations: the convolution, or the gradient of its input.
struct Pass<'a, E> {
    d: &'a ConvDesc,
    /// Whether this is the gradient.
    transposed: bool,
    src: *const E,
    weights: *const f32,
    dst: Destination,
}

// SAFETY: `src` and `weights` are only read, and tasks write to different places of `dst`.
unsafe impl<E: Element> Sync for Pass<'_, E> {}

impl Cut {
    /// That of a product that writes activations.
    fn of_pass(d: &ConvDesc, transposed: bool) -> Cut {
        if transposed { Cut::new(d.n, d.h, d.w, d.c_in) } else { Cut::new(d.n, d.oh, d.ow, d.c_in) }
    }
}

impl<E: Element> Pass<'_, E> {
    /// Grids that make up the output.
    fn grids(&self) -> usize {
        if self.transposed { self.d.stride[0] * self.d.stride[1] } else { 1 }
    }

    fn grid(&self, index: usize, dst: SharedMut) -> Grid<E> {
        let d = self.d;
        let phases = [index / d.stride[1], index % d.stride[1]];
        let side = |axis| if self.transposed { Side::data_grad(d, axis, phases[axis]) } else { Side::forward(d, axis) };
        Grid { src: self.src, src_pitch: d.c_in, weights: self.weights, dst, channels: d.c_in, y: side(0), x: side(1) }
    }

    /// # Safety
    /// The memory is valid for the description, and nothing else uses the output.
    unsafe fn run(&self, ctx: Ctx<'_>, epilogue: Option<&dyn Epilogue>) {
        let cut = Cut::of_pass(self.d, self.transposed);
        let total = if self.transposed { self.d.input_rows() } else { self.d.output_rows() };
        let store = epilogue.and_then(|epilogue| epilogue.as_store());
        ctx.pool.run(cut.blocks.count * cut.groups.count, &|task, worker| {
            let block = task / cut.groups.count;
            let lines = block * cut.lines..(block + 1) * cut.lines;
            let channels = cut.groups.range(task % cut.groups.count, self.d.c_in);
            let dst = self.dst.block(worker, block * cut.blocks.rows * self.d.c_in);
            let parts = channel_groups(channels.len(), MAX_CHANNELS);
            for (index, part) in (0..self.grids()).flat_map(|grid| (0..parts.count).map(move |part| (grid, part))) {
                let part = parts.range(part, channels.len());
                let part = channels.start + part.start..channels.start + part.end;
                let lines = Lines { grid: &self.grid(index, dst), lines: lines.clone(), channels: part, store };
                // SAFETY: the caller's promise; tasks have different lines or channels.
                unsafe { lines.run_on(ctx.isa) };
            }
            let Some(epilogue) = epilogue else { return };
            let rows = cut.blocks.range(block, total);
            match store {
                None => epilogue.block(worker, block, rows, channels),
                Some(_) => epilogue.stored_block(worker, block, rows, channels),
            }
        });
    }
}

/// The row blocks that [`forward`] delivers to its epilogue.
pub(super) fn forward_row_blocks(d: &ConvDesc) -> RowBlocks {
    Cut::of_pass(d, false).blocks
}

/// Output `y` of input `x` and weights `w`, of one type. `scratch` has at least [`scratch_len`] elements.
///
/// # Panics
/// When a slice is shorter than `d` needs.
pub(super) fn forward(
    ctx: Ctx<'_>,
    d: &ConvDesc,
    x: TypedSlice<'_>,
    w: TypedSlice<'_>,
    y: Output<'_>,
    scratch: &mut [f32],
    epilogue: Option<&dyn Epilogue>,
) {
    let dst = y.checked(d.output_len(), forward_row_blocks(d).rows * d.c_in, "output");
    run(ctx, d, false, (x, d.input_len(), "input"), w, dst, scratch, epilogue);
}

/// The row blocks that [`data_grad`] delivers to its epilogue; rows are input pixels.
pub(super) fn data_grad_row_blocks(d: &ConvDesc) -> RowBlocks {
    Cut::of_pass(d, true).blocks
}

/// Gradient `dx` of the input from output gradient `dy` and weights `w`, of one type. `scratch` has at least [`scratch_len`]
/// elements.
///
/// # Panics
/// When a slice is shorter than `d` needs.
pub(super) fn data_grad(
    ctx: Ctx<'_>,
    d: &ConvDesc,
    dy: TypedSlice<'_>,
    w: TypedSlice<'_>,
    dx: Output<'_>,
    scratch: &mut [f32],
    epilogue: Option<&dyn Epilogue>,
) {
    let dst = dx.checked(d.input_len(), data_grad_row_blocks(d).rows * d.c_in, "input gradient");
    run(ctx, d, true, (dy, d.output_len(), "output gradient"), w, dst, scratch, epilogue);
}

/// Scratch elements of [`forward`] and [`data_grad`] with operands of this type, which read `source_len` elements.
pub(super) fn scratch_len(d: &ConvDesc, dtype: DType, source_len: usize) -> usize {
    let weights = if dtype == DType::F32 { 0 } else { aligned_len(weight_len(d)) };
    weights + source_scratch_len(dtype, source_len)
}

fn run(
    ctx: Ctx<'_>,
    d: &ConvDesc,
    transposed: bool,
    (source, source_len, name): (TypedSlice<'_>, usize, &str),
    weights: TypedSlice<'_>,
    dst: Destination,
    scratch: &mut [f32],
    epilogue: Option<&dyn Epilogue>,
) {
    let mut scratch = Scratch::new(scratch, scratch_len(d, source.dtype(), source_len));
    let (src, weights) = (source.checked(source_len, name), weights.checked(weight_len(d), "weights"));
    // SAFETY: the extents were checked.
    unsafe {
        let weights = widened(ctx, weights, weight_len(d), &mut scratch);
        match source.dtype() {
            DType::Bf16 => Pass { d, transposed, src: src.as_16(), weights, dst }.run(ctx, epilogue),
            _ => {
                let src = widened(ctx, src, source_len, &mut scratch);
                Pass { d, transposed, src, weights, dst }.run(ctx, epilogue);
            }
        }
    }
}

/// Scratch elements for activations of this type: `f32` and `bf16` are read where they are.
fn source_scratch_len(dtype: DType, len: usize) -> usize {
    if dtype == DType::F16 { aligned_len(len) } else { 0 }
}

/// `len` elements as `f32`: those themselves, or a copy in scratch memory.
///
/// # Safety
/// They are there.
unsafe fn widened(ctx: Ctx<'_>, src: TypedPtr, len: usize, scratch: &mut Scratch) -> *const f32 {
    src.as_f32().unwrap_or_else(|| {
        let copy = scratch.take(len).0;
        // SAFETY: the piece has so many elements, and nobody else knows it.
        let elements = unsafe { std::slice::from_raw_parts_mut(copy, len) };
        for_chunks(ctx, elements, CHUNK, &|piece, elements| {
            // SAFETY: the caller's promise.
            unsafe { src.add(piece * CHUNK).widen(elements) };
        });
        copy
    })
}

/// Elements of the weights.
fn weight_len(d: &ConvDesc) -> usize {
    d.kh * d.kw * d.c_in
}

fn check(needed: usize, slice: &[f32], name: &str) {
    assert!(slice.len() >= needed, "{name}: {} elements, {needed} are needed", slice.len());
}
