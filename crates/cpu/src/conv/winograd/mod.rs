//! Winograd's convolution F(4x4, 3x3): 3x3 kernels with stride and dilation 1 by 36 products for each tile of 4x4
//! outputs, instead of 144.
//!
//! The input and the kernels are transformed to 36 positions, a matmul over the channels is done at each position,
//! and its results are transformed to the outputs. The data gradient is the same
//! convolution of the output gradient, with other weights. The gradient of the weights goes the same way backwards. Errors are
//! about twice those of the direct sum.

#![allow(clippy::needless_range_loop, reason = "squares of vectors are indexed by line and column")]

mod input;
mod output;
mod plan;
mod points;
mod product;
mod weight_grad;
mod weights;

use std::ops::Range;

use super::ConvDesc;
use crate::gemm::{AffinePtr, Ctx, Destination, Epilogue, Input, Output, RowBlocks, Scratch, SharedMut, aligned_len};
use crate::simd::SimdOp;
use input::{TransformInput, zeros_len};
use output::TransformOutput;
use plan::{Plan, Problem};
use points::{InputSide, OUTPUTS, POSITIONS, TAPS};
use product::{Multiply, products_row};
pub use weight_grad::{weight_grad, weight_grad_applies, weight_grad_scratch_len};
use weights::KERNEL;

/// The algorithm's name in profiles.
pub(crate) const NAME: &str = "Winograd 4x4";

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The output, from the input.
    Forward,
    /// The gradient of the input, from the gradient of the output.
    DataGrad,
}

/// Tiles of a task of the transform of a shared input.
const INPUT_TASK: usize = 4;

/// Time of the transform of a kernel of one pair of channels, in multiply-adds: writing 36 elements to memory and
/// reading them, as measured with weights beyond the caches.
const WEIGHTS_COST: usize = 800;

/// Time of reading the weights of one pair of channels where they were transformed before, in multiply-adds.
const PREPARED_COST: usize = 300;

/// Fewest channels for which the transforms of input and output pay.
const FEWEST_CHANNELS: usize = 16;

/// Whether `d` has a 3x3 kernel with stride and dilation 1.
fn is_possible(d: &ConvDesc) -> bool {
    ([d.kh, d.kw], d.stride, d.dilation) == ([TAPS; 2], [1; 2], [1; 2])
}

/// Whether [`run`] can compute `d`, and is faster than a product with gathered windows: with a vector's channels on both
/// sides, where the direct sum costs a fifth more than the products of all tiles and the weights. These are transformed
/// in each call, or were `prepared` before.
pub fn applies(d: &ConvDesc, direction: Direction, prepared: bool) -> bool {
    if !is_possible(d) {
        return false;
    }
    let problem = Problem::new(d, direction);
    // Multiply-adds for each pair of channels.
    let direct = KERNEL * problem.output_rows();
    let weights = if prepared { PREPARED_COST } else { WEIGHTS_COST };
    let transformed = POSITIONS * problem.all_tiles() + weights;
    problem.channels.min(problem.cols) >= FEWEST_CHANNELS && 5 * direct >= 6 * transformed
}

/// FLOPs of the products of all tiles, those at the border whole, without the additions of the transforms. The gradient of the
/// weights has those of the output.
pub(crate) fn flops(d: &ConvDesc, direction: Direction) -> u64 {
    let problem = Problem::new(d, direction);
    (2 * problem.all_tiles() * POSITIONS * problem.channels * problem.cols) as u64
}

/// Elements of the transformed weights.
pub fn weights_len(d: &ConvDesc, direction: Direction) -> usize {
    POSITIONS * Problem::new(d, direction).weights_stride()
}

/// Transforms weights `w` of `[3, 3, Cin, Cout]` for [`run`] in one direction with `ctx.isa`. `out` has at least
/// [`weights_len`] elements.
///
/// # Panics
/// When a slice is shorter than `d` needs, or `d` is not a 3x3 convolution with stride and dilation 1.
pub fn transform_weights(ctx: Ctx<'_>, d: &ConvDesc, direction: Direction, w: &[f32], out: &mut [f32]) {
    assert!(is_possible(d), "not a 3x3 convolution with stride and dilation 1: {d:?}");
    assert!(w.len() >= d.weight_len(), "weights have {} elements, {} are needed", w.len(), d.weight_len());
    let needed = weights_len(d, direction);
    assert!(out.len() >= needed, "transformed weights have {} elements, {needed} are needed", out.len());
    // SAFETY: the extents were checked.
    unsafe { weights::transform(ctx, &Problem::new(d, direction), direction, w.as_ptr(), out.as_mut_ptr()) };
}

/// The row blocks that [`run`] delivers to its epilogue; rows are pixels of what it computes.
pub fn row_blocks(d: &ConvDesc, direction: Direction) -> RowBlocks {
    Plan::new(Problem::new(d, direction)).blocks
}

/// Scratch elements of [`run`] with `threads` threads.
pub fn scratch_len(d: &ConvDesc, direction: Direction, threads: usize) -> usize {
    let plan = Plan::new(Problem::new(d, direction));
    aligned_len(inputs(&plan, threads) * plan.layout.len())
        + aligned_len(threads * plan.products_len())
        + aligned_len(zeros_len(&plan.problem))
}

/// Transformed inputs that are kept at a time.
fn inputs(plan: &Plan, threads: usize) -> usize {
    if plan.shares_input() { plan.blocks.count * plan.passes.count } else { threads }
}

/// Computes the output from input and weights (or the input's gradient from the output's) with weights from
/// [`transform_weights`] for the same direction and instruction set. `scratch` has at least [`scratch_len`]
/// elements; its content is neither read nor kept.
///
/// # Panics
/// When a slice is shorter than `d` needs, or `d` is not a 3x3 convolution with stride and dilation 1.
#[allow(clippy::too_many_arguments, reason = "operands of a convolution")]
pub fn run<'a>(
    ctx: Ctx<'_>,
    d: &ConvDesc,
    direction: Direction,
    input: impl Into<Input<'a>>,
    weights: &[f32],
    output: Output<'_>,
    scratch: &mut [f32],
    epilogue: Option<&dyn Epilogue>,
) {
    assert!(is_possible(d), "not a 3x3 convolution with stride and dilation 1: {d:?}");
    let plan = Plan::new(Problem::new(d, direction));
    let problem = &plan.problem;
    let needed = weights_len(d, direction);
    let input = input.into();
    let affine = input.affine.map(|affine| affine.checked(problem.images, problem.channels));
    let input = input.elements.checked(problem.input_len(), "input").as_f32().expect("an input of f32");
    assert!(weights.len() >= needed, "transformed weights have {} elements, {needed} are needed", weights.len());
    let output = output.checked(problem.output_len(), plan.blocks.rows * problem.cols, "output");
    let threads = ctx.pool.threads();
    let mut scratch = Scratch::new(scratch, scratch_len(d, direction, threads));
    if problem.output_len() == 0 {
        return;
    }
    let zeros = scratch.take(zeros_len(problem));
    // SAFETY: the piece belongs to this call.
    unsafe { zeros.0.write_bytes(0, zeros_len(problem)) };
    let convolution = Convolution {
        ctx,
        plan: &plan,
        input: SharedMut(input.cast_mut()),
        affine,
        weights: SharedMut(weights.as_ptr().cast_mut()),
        output,
        zeros,
        transformed: scratch.take(inputs(&plan, threads) * plan.layout.len()),
        products: scratch.take(threads * plan.products_len()),
    };
    // SAFETY: the extents were checked, and the pieces of scratch have the lengths that the plan states.
    unsafe { convolution.run(epilogue) };
}

/// A convolution with its memory.
struct Convolution<'a> {
    ctx: Ctx<'a>,
    plan: &'a Plan,
    input: SharedMut,
    affine: Option<AffinePtr>,
    weights: SharedMut,
    output: Destination,
    zeros: SharedMut,
    /// Transformed input: of all passes of all blocks, or of one pass for each worker.
    transformed: SharedMut,
    /// The products of each worker.
    products: SharedMut,
}

impl Convolution<'_> {
    /// # Safety
    /// All memory is valid, and nobody else writes to it.
    unsafe fn run(&self, epilogue: Option<&dyn Epilogue>) {
        let Plan { problem, blocks, groups, passes, layout, .. } = *self.plan;
        let shared = self.plan.shares_input();
        if shared {
            // SAFETY: the caller's promise.
            unsafe { self.transform_all() };
        }
        self.ctx.pool.run(blocks.count * groups.count, &|task, worker| {
            let (group, block) = (task / blocks.count, task % blocks.count);
            let cols = groups.range(group, problem.cols);
            let output = self.output.block(worker, block * blocks.rows * problem.cols);
            for pass in 0..passes.count {
                let tiles = self.plan.pass(block, pass);
                // SAFETY: the caller's promise; tasks write different rows or columns, workers use their scratch.
                unsafe {
                    let index = if shared { block * passes.count + pass } else { worker };
                    let transformed = self.transformed.add(index * layout.len());
                    if !shared {
                        self.transform(tiles.clone(), 0, transformed);
                    }
                    self.multiply(tiles, cols.clone(), transformed, output, worker);
                }
            }
            if let Some(epilogue) = epilogue {
                epilogue.block(worker, block, blocks.range(block, problem.output_rows()), cols);
            }
        });
    }

    /// Transforms the input of all passes.
    ///
    /// # Safety
    /// As for [`run`](Self::run).
    unsafe fn transform_all(&self) {
        let Plan { blocks, passes, layout, .. } = *self.plan;
        let parts = passes.rows.div_ceil(INPUT_TASK);
        self.ctx.pool.run(blocks.count * passes.count * parts, &|task, _| {
            let (index, part) = (task / parts, task % parts);
            let tiles = self.plan.pass(index / passes.count, index % passes.count);
            let to = part * INPUT_TASK;
            let start = tiles.end.min(tiles.start + to);
            // SAFETY: the caller's promise; tasks write different tiles.
            unsafe {
                let dst = self.transformed.add(index * layout.len());
                self.transform(start..tiles.end.min(start + INPUT_TASK), to, dst);
            }
        });
    }

    /// Transforms the input of some tiles, to tile `to` and those after it in `dst`.
    ///
    /// # Safety
    /// As for [`run`](Self::run); `dst` is this task's.
    unsafe fn transform(&self, tiles: Range<usize>, to: usize, dst: SharedMut) {
        let Plan { problem, layout, .. } = self.plan;
        let transform = TransformInput {
            side: InputSide,
            problem,
            layout,
            src: self.input.0,
            affine: self.affine,
            tiles,
            channels: 0..problem.channels,
            to,
            dst: dst.0,
            zeros: self.zeros.0,
        };
        // SAFETY: the caller's promise.
        unsafe { transform.run_on(self.ctx.isa) };
    }

    /// Multiplies some tiles and transforms the products, piece by piece of the columns.
    ///
    /// # Safety
    /// As for [`run`](Self::run); rows and columns of the output are this task's.
    unsafe fn multiply(
        &self,
        tiles: Range<usize>,
        cols: Range<usize>,
        transformed: SharedMut,
        output: SharedMut,
        worker: usize,
    ) {
        let Plan { problem, layout, .. } = self.plan;
        let pieces = RowBlocks::new(cols.len(), self.plan.chunk_cols);
        for piece in 0..pieces.count {
            let range = pieces.range(piece, cols.len());
            let cols = cols.start + range.start..cols.start + range.end;
            let position_stride = self.plan.products_stride(tiles.len(), cols.len());
            // SAFETY: the caller's promise; a worker's products have room for any piece.
            unsafe {
                let products = self.products.add(worker * self.plan.products_len()).0;
                let multiply = Multiply {
                    problem,
                    layout,
                    tiles: tiles.len(),
                    cols: cols.clone(),
                    input: transformed.0,
                    weights: self.weights.0,
                    products,
                    position_stride,
                };
                multiply.run_on(self.ctx.isa);
                let transform = TransformOutput {
                    problem,
                    tiles: tiles.clone(),
                    cols: cols.clone(),
                    products,
                    position_stride,
                    tile_stride: products_row(&cols),
                    dst: output.0,
                };
                transform.run_on(self.ctx.isa);
            }
        }
    }
}

const _: () = assert!(OUTPUTS * OUTPUTS * TAPS * TAPS == 4 * POSITIONS);
