//! The gradient of the weights, F(3x3, 4x4): the same tiles and positions, with the roles of weights and outputs exchanged.
//!
//! Tiles of the input and tiles of the output gradient are transformed to 36 positions, their products are added over all tiles at
//! each position, and the sums are transformed to the nine taps. The input is transformed as for the forward convolution, the other
//! two by the transposes of its transforms.
//!
//! A task owns a block of channels of both sides over a part of the tiles. It transforms a group of tiles at a time; what it has
//! transformed and its sums stay in the second-level cache.

use std::ops::Range;

use super::input::{TransformInput, zeros_len};
use super::plan::{InputLayout, Problem};
use super::points::{self, INPUTS, InputSide, OutputGradSide, POSITIONS, TAPS};
use super::weights::KERNEL;
use super::{Direction, FEWEST_CHANNELS, is_possible};
use crate::conv::ConvDesc;
use crate::gemm::{
    ALayout, AffinePtr, Ctx, Input, LINE, MAX_PANEL, MemoryBlock, OperandRows, Output, PartialSums, Prefetch,
    RowBlocks, Scratch, SharedMut, TASKS, TileLoop, TileRows, TypedSlice, aligned_len, column_stride, even_chunks,
    odd_lines, panel,
};
use crate::simd::{Simd, SimdOp};

/// Most channels of a task's block, on both sides.
const BLOCK: usize = 64;

/// Most tiles of a group.
const GROUP: usize = 48;

/// Most tiles of a task: what the tasks of all blocks of channels read one after the other stays in the last-level cache.
const MAX_SPLIT: usize = 1024;

/// How the gradient is cut. Shapes alone decide.
struct Plan {
    /// The sides that are transformed: input and output gradient.
    input: Problem,
    grad: Problem,
    /// Blocks of channels of the input and of the output.
    rows: RowBlocks,
    cols: RowBlocks,
    /// Parts of the tiles.
    splits: RowBlocks,
    /// Tiles that are transformed at once.
    group: usize,
}

impl Plan {
    fn new(d: &ConvDesc) -> Plan {
        let input = Problem::new(d, Direction::Forward);
        let grad = Problem { input: input.output, channels: input.cols, pad: [0; 2], ..input };
        let rows = even_chunks(input.channels, BLOCK, LINE);
        let cols = even_chunks(input.cols, BLOCK, MAX_PANEL);
        let tiles = input.all_tiles();
        let wanted = TASKS.div_ceil(rows.count * cols.count).min(tiles / GROUP);
        let count = wanted.max(tiles.div_ceil(MAX_SPLIT)).max(1);
        let splits = even_chunks(tiles, tiles.div_ceil(count).max(1), 1);
        let group = even_chunks(splits.rows, GROUP, 1).rows;
        Plan { input, grad, rows, cols, splits, group }
    }

    /// Elements of the transformed tiles of a group with this many channels, on any instruction set.
    fn transformed_len(&self, channels: usize) -> usize {
        InputLayout::panels(channels, MAX_PANEL, self.group).len()
    }

    /// Distance of the rows of sums.
    fn sums_pitch(&self) -> usize {
        self.cols.rows.next_multiple_of(MAX_PANEL)
    }

    /// Elements from the sums of one position to those of the next.
    fn sums_stride(&self) -> usize {
        odd_lines(self.rows.rows * self.sums_pitch())
    }

    /// Elements of the memory of a worker: both sides, and the sums.
    fn worker_lens(&self) -> [usize; 3] {
        [self.transformed_len(self.rows.rows), self.transformed_len(self.cols.rows), POSITIONS * self.sums_stride()]
    }

    fn partial_len(&self, d: &ConvDesc) -> usize {
        if self.splits.count > 1 { self.splits.count * d.weight_len() } else { 0 }
    }

    fn zeros_len(&self) -> usize {
        zeros_len(&self.input).max(zeros_len(&self.grad))
    }
}

/// Time of the sums of one pair of channels, which are begun, read and transformed, in multiply-adds of an outer product
/// of windows.
const SUMS_COST: usize = 550;

/// Whether [`weight_grad`] can compute `d`, and is faster than an outer product of windows: with a vector's channels on both sides,
/// where that takes more than the sums and the products of all tiles, of which each takes almost twice as long.
pub fn weight_grad_applies(d: &ConvDesc) -> bool {
    if !is_possible(d) {
        return false;
    }
    let problem = Problem::new(d, Direction::Forward);
    // Multiply-adds for each pair of channels.
    let (direct, products) = (KERNEL * problem.output_rows(), POSITIONS * problem.all_tiles());
    d.c_in.min(d.c_out) >= FEWEST_CHANNELS && 5 * direct >= 9 * products + 5 * SUMS_COST
}

/// Scratch elements of [`weight_grad`] with `threads` threads.
pub fn weight_grad_scratch_len(d: &ConvDesc, threads: usize) -> usize {
    let plan = Plan::new(d);
    let worker: usize = plan.worker_lens().iter().sum();
    aligned_len(threads * worker) + aligned_len(plan.partial_len(d)) + aligned_len(plan.zeros_len())
}

/// Gradient `dw` of the weights from input `x` and output gradient `dy`, both `f32`. `scratch` has at least
/// [`weight_grad_scratch_len`] elements; its content is neither read nor kept.
///
/// # Panics
/// When an operand is shorter than `d` needs, or `d` is not a 3x3 convolution with stride and dilation 1.
pub fn weight_grad<'a>(
    ctx: Ctx<'_>,
    d: &ConvDesc,
    x: impl Into<Input<'a>>,
    dy: impl Into<TypedSlice<'a>>,
    dw: Output<'_>,
    scratch: &mut [f32],
) {
    assert!(is_possible(d), "not a 3x3 convolution with stride and dilation 1: {d:?}");
    let plan = &Plan::new(d);
    let x = x.into();
    let affine = x.affine.map(|affine| affine.checked(d.n, d.c_in));
    let x = x.elements.checked(d.input_len(), "input").as_f32().expect("an input of f32");
    let dy = dy.into().checked(d.output_len(), "output gradient").as_f32().expect("an output gradient of f32");
    let [x, dy] = [x, dy].map(|src| SharedMut(src.cast_mut()));
    let dw = dw.checked_whole(d.weight_len(), "weight gradient");
    let threads = ctx.pool.threads();
    let mut scratch = Scratch::new(scratch, weight_grad_scratch_len(d, threads));
    let lens = plan.worker_lens();
    let worker_len: usize = lens.iter().sum();
    let workers = scratch.take(threads * worker_len);
    let partials = scratch.take(plan.partial_len(d));
    let zeros = scratch.take(plan.zeros_len());
    // SAFETY: the piece belongs to this call.
    unsafe { zeros.0.write_bytes(0, plan.zeros_len()) };
    let Plan { rows, cols, splits, .. } = *plan;
    let blocks = rows.count * cols.count;
    ctx.pool.run(blocks * splits.count, &|task, worker| {
        let (split, block) = (task / blocks, task % blocks);
        // SAFETY: the extents were checked, the worker's piece of scratch is as long as the plan states, and tasks have different
        // blocks of the gradient or of the partial sums.
        unsafe {
            let x_side = workers.add(worker * worker_len);
            let dy_side = x_side.add(lens[0]);
            let block = Block {
                plan,
                x,
                affine,
                dy,
                zeros,
                rows: rows.range(block / cols.count, d.c_in),
                cols: cols.range(block % cols.count, d.c_out),
                tiles: splits.range(split, plan.input.all_tiles()),
                x_side,
                dy_side,
                sums: dy_side.add(lens[1]),
                dw: if splits.count > 1 { partials.add(split * d.weight_len()) } else { dw },
            };
            block.run_on(ctx.isa);
        }
    });
    if splits.count > 1 {
        let sums = PartialSums { start: partials, count: splits.count, rows: d.weight_rows(), cols: d.c_out };
        // SAFETY: the partial sums are complete.
        unsafe { sums.add_to(ctx, dw) };
    }
}

/// A block of channels of the gradient over some tiles.
struct Block<'a> {
    plan: &'a Plan,
    x: SharedMut,
    affine: Option<AffinePtr>,
    dy: SharedMut,
    zeros: SharedMut,
    /// Channels of the input, and of the output.
    rows: Range<usize>,
    cols: Range<usize>,
    tiles: Range<usize>,
    /// Transformed tiles.
    x_side: SharedMut,
    dy_side: SharedMut,
    /// `[positions, rows, columns]`.
    sums: SharedMut,
    /// `[taps, input channels, output channels]`.
    dw: SharedMut,
}

impl SimdOp for Block<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Plan { input, grad, group, .. } = self.plan;
        let x_layout = &InputLayout::panels(self.rows.len(), column_stride::<S>(), *group);
        let dy_layout = &InputLayout::panels(self.cols.len(), panel::<S>(), *group);
        // SAFETY: the promises made for this block.
        unsafe {
            if !self.cols.len().is_multiple_of(panel::<S>()) {
                // What lies in a panel behind the last column is multiplied too, and not read: subnormal numbers are slow.
                self.dy_side.0.write_bytes(0, dy_layout.len());
            }
            let groups = even_chunks(self.tiles.len(), *group, 1);
            for index in 0..groups.count {
                let range = groups.range(index, self.tiles.len());
                let tiles = self.tiles.start + range.start..self.tiles.start + range.end;
                let transform_x = TransformInput {
                    side: InputSide,
                    problem: input,
                    layout: x_layout,
                    src: self.x.0,
                    affine: self.affine,
                    tiles: tiles.clone(),
                    channels: self.rows.clone(),
                    to: 0,
                    dst: self.x_side.0,
                    zeros: self.zeros.0,
                };
                transform_x.run::<S>();
                let transform_dy = TransformInput {
                    side: OutputGradSide,
                    problem: grad,
                    layout: dy_layout,
                    src: self.dy.0,
                    affine: None,
                    tiles,
                    channels: self.cols.clone(),
                    to: 0,
                    dst: self.dy_side.0,
                    zeros: self.zeros.0,
                };
                transform_dy.run::<S>();
                self.multiply::<S>(x_layout, dy_layout, range.len(), index > 0);
            }
            self.transform_sums::<S>();
        }
    }
}

impl Block<'_> {
    /// Adds the products of a group of tiles to the sums of all positions, or begins these.
    ///
    /// # Safety
    /// The tiles are transformed. Called under `S::run_op`.
    #[inline(always)]
    unsafe fn multiply<S: Simd>(&self, x: &InputLayout, dy: &InputLayout, tiles: usize, accumulate: bool) {
        let c_rows: [usize; BLOCK] = std::array::from_fn(|row| row * self.plan.sums_pitch());
        let mut prefetch = Prefetch::new([MemoryBlock::EMPTY; 2]);
        for position in 0..POSITIONS {
            for chunk in 0..x.chunks.count {
                let rows = x.chunks.range(chunk, self.rows.len());
                // SAFETY: the caller's promise; rows of sums have room for whole panels.
                unsafe {
                    let b = self.dy_side.0.add(dy.offset(0, position));
                    let tile_loop = TileLoop {
                        layout: ALayout::Columns,
                        depth: tiles,
                        a: OperandRows::packed(self.x_side.0.add(x.offset(chunk, position))),
                        a_tile: TileRows::new::<S>(rows.len()).start(1),
                        b,
                        b_panel: dy.chunk_stride,
                        cols: self.cols.len().next_multiple_of(panel::<S>()),
                        c: self.sums.0.add(position * self.plan.sums_stride()),
                        c_rows: &c_rows[rows],
                        accumulate,
                        stream_b: false,
                        b_next: b,
                    };
                    tile_loop.run::<S>(&mut prefetch);
                }
            }
        }
    }

    /// Transforms the sums to the taps.
    ///
    /// # Safety
    /// The sums are complete. Called under `S::run_op`.
    #[inline(always)]
    unsafe fn transform_sums<S: Simd>(&self) {
        let Problem { channels, cols, .. } = self.plan.input;
        let (pitch, stride) = (self.plan.sums_pitch(), self.plan.sums_stride());
        for (i, row) in self.rows.clone().enumerate() {
            for col in (0..self.cols.len()).step_by(S::LANES) {
                // SAFETY: the caller's promise; the gradient has these rows and columns.
                unsafe {
                    transform_vector::<S>(Vector {
                        sums: self.sums.0.add(i * pitch + col),
                        stride,
                        dst: self.dw.0.add(row * cols + self.cols.start + col),
                        tap_stride: channels * cols,
                        row_stride: cols,
                        left: self.cols.len() - col,
                    });
                }
            }
        }
    }
}

/// A vector of sums.
struct Vector {
    sums: *const f32,
    /// Distance of positions.
    stride: usize,
    dst: *mut f32,
    /// Distances of taps and of rows.
    tap_stride: usize,
    row_stride: usize,
    /// Columns from the first one of the vector on.
    left: usize,
}

/// Transforms a vector of sums, and prefetches the memory of the next row. Not inlined: within the loops it would keep an
/// address for each of its loads and stores.
///
/// # Safety
/// The sums are there, `dst` has room for the columns, and the machine has `S`.
#[inline(never)]
unsafe fn transform_vector<S: Simd>(vector: Vector) {
    // SAFETY: the caller's promises.
    unsafe { S::run_op(vector) }
}

impl SimdOp for Vector {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the promises of `transform_vector`; the buffer holds a vector.
        unsafe {
            let mut columns = [[S::splat(0.0); TAPS]; INPUTS];
            for j in 0..INPUTS {
                let mut column = [S::splat(0.0); INPUTS];
                for i in 0..INPUTS {
                    column[i] = S::load(self.sums.add((i * INPUTS + j) * self.stride));
                }
                columns[j] = points::weight_grad::<S>(column);
            }
            for i in 0..TAPS {
                let mut line = [S::splat(0.0); INPUTS];
                for j in 0..INPUTS {
                    line[j] = columns[j][i];
                }
                for (j, tap) in points::weight_grad::<S>(line).into_iter().enumerate() {
                    let dst = self.dst.add((i * TAPS + j) * self.tap_stride);
                    S::prefetch_write(dst.wrapping_add(self.row_stride));
                    if self.left >= S::LANES {
                        S::store(dst, tap);
                    } else {
                        let mut buffer = [0.0; LINE];
                        S::store(buffer.as_mut_ptr(), tap);
                        S::copy(buffer.as_ptr(), dst, self.left);
                    }
                }
            }
        }
    }
}
