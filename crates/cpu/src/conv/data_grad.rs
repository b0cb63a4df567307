//! Gradient of a convolution's input. With strides, input pixels fall into `stride * stride` phases by their
//! position modulo the stride; each phase sees its own taps and is a convolution of the output gradient with
//! stride 1.

use std::iter::StepBy;
use std::ops::Range;

use super::ConvDesc;
use super::gather::{Axis, Gather};
use crate::arithmetic::greatest_common_divisor;
use crate::gemm::{
    BlockRuns, BlockScratch, Ctx, Destination, Epilogue, MAX_ROWS, Matrix, MemoryBlock, Output, PanelSteps, RowAddress,
    RowBlock, RowBlocks, RowSource, RowTable, Scratch, SharedMut, TypedPtr, TypedSlice, Weights, aligned_len,
    column_groups, free_threads, pack_steps, packed_len, packed_start, row_blocks_for, row_scratch_len,
};
use crate::simd::{PanelFormat, Simd, SimdOp};

/// Input pixels of a block of a strided convolution where there are many, and where there are few.
const LARGE_BLOCK: usize = 448;
const SMALL_BLOCK: usize = 224;

/// The row blocks that [`data_grad`] delivers to its epilogue; rows are input pixels.
pub fn data_grad_row_blocks(d: &ConvDesc) -> RowBlocks {
    let m = d.input_rows();
    if d.stride == [1, 1] {
        return row_blocks_for(m, d.c_in, d.kh * d.kw * d.c_out);
    }
    let pixels = if m >= 32 * LARGE_BLOCK { LARGE_BLOCK } else { SMALL_BLOCK };
    let lines = pixels.div_ceil(d.w.max(1)).next_multiple_of(d.stride[0]);
    RowBlocks::new(m, lines * d.w)
}

/// Elements of the weights that [`pack_data_grad`] packs.
pub fn packed_data_grad_len(d: &ConvDesc) -> usize {
    phases(d).map(|phase| phase.packed_len(d)).sum()
}

/// Packs the weights of `d` for [`data_grad`] on `ctx.isa`. Products are fastest where `packed` lies on a cache line.
///
/// # Panics
/// When a slice is shorter than `d` needs.
pub fn pack_data_grad(ctx: Ctx<'_>, d: &ConvDesc, w: TypedSlice<'_>, packed: &mut [f32]) {
    let format = panel_format(ctx, d, &w);
    let w = w.checked(d.weight_len(), "weights");
    let packed = Output::new(packed).checked_whole(packed_data_grad_len(d), "packed weights");
    // SAFETY: lengths were checked.
    unsafe { pack_weights(ctx, d, format, w, packed) };
}

/// Scratch elements of [`data_grad`] with `threads` threads.
pub fn data_grad_scratch_len(d: &ConvDesc, threads: usize) -> usize {
    aligned_len(packed_data_grad_len(d)) + row_scratch_len(threads)
}

/// The taps that input positions `phase` modulo the stride see along one axis, ordered by position in the output:
/// tap `j` of `axis` is kernel tap `last - j * kernel_step`.
#[derive(Clone, Copy)]
pub(super) struct PhaseAxis {
    pub axis: Axis,
    phase: usize,
    pub last: usize,
    pub kernel_step: usize,
}

impl PhaseAxis {
    /// Axis 0 is vertical, 1 horizontal.
    pub(super) fn new(d: &ConvDesc, index: usize, phase: usize) -> PhaseAxis {
        let (size, output, kernel) = if index == 0 { (d.h, d.oh, d.kh) } else { (d.w, d.ow, d.kw) };
        let (stride, dilation, pad) = (d.stride[index], d.dilation[index], d.pad[index]);
        let kernel_step = stride / greatest_common_divisor(stride, dilation);
        let first = (0..kernel.min(kernel_step)).find(|tap| tap * dilation % stride == (phase + pad) % stride);
        let taps = first.map_or(0, |first| (kernel - first).div_ceil(kernel_step));
        let last = first.map_or(0, |first| first + (taps - 1) * kernel_step);
        let base = ((phase + pad) as isize - (last * dilation) as isize).div_euclid(stride as isize);
        let axis = Axis {
            size: output,
            grid: size.saturating_sub(phase).div_ceil(stride),
            step: 1,
            base,
            taps,
            tap: kernel_step * dilation / stride,
        };
        PhaseAxis { axis, phase, last, kernel_step }
    }

    fn kernel_tap(&self, tap: usize) -> usize {
        self.last - tap * self.kernel_step
    }
}

/// One phase and the place of its weights among the packed ones.
struct Phase {
    y: PhaseAxis,
    x: PhaseAxis,
    packed_offset: usize,
}

impl Phase {
    /// Rows are the phase's input pixels, elements `[taps, Cout]` of the output gradient.
    fn gather(&self, d: &ConvDesc, dy: TypedPtr) -> Gather {
        let line = self.x.axis.taps * d.c_out;
        Gather { src: dy, channels: d.c_out, y: self.y.axis, x: self.x.axis, affine: None, line }
    }

    fn taps(&self) -> usize {
        self.y.axis.taps * self.x.axis.taps
    }

    /// Elements of its packed weights.
    fn packed_len(&self, d: &ConvDesc) -> usize {
        packed_len(self.taps() * d.c_out, d.c_in)
    }
}

fn phases(d: &ConvDesc) -> impl Iterator<Item = Phase> + '_ {
    let mut packed_offset = 0;
    (0..d.stride[0] * d.stride[1]).map(move |index| {
        let y = PhaseAxis::new(d, 0, index / d.stride[1]);
        let x = PhaseAxis::new(d, 1, index % d.stride[1]);
        let phase = Phase { y, x, packed_offset };
        packed_offset += phase.packed_len(d);
        phase
    })
}

/// Gradient `dx` of the input from output gradient `dy` and weights `w`. `scratch` has at least
/// [`data_grad_scratch_len`] elements; its content is neither read nor kept.
///
/// # Panics
/// When an operand is shorter than `d` needs.
pub fn data_grad<'a>(
    ctx: Ctx<'_>,
    d: &ConvDesc,
    dy: impl Into<TypedSlice<'a>>,
    w: impl Into<Weights<'a>>,
    dx: Output<'_>,
    scratch: &mut [f32],
    epilogue: Option<&dyn Epilogue>,
) {
    let dy = dy.into();
    let format = panel_format(ctx, d, &dy);
    let dy = dy.checked(d.output_len(), "output gradient");
    let blocks = data_grad_row_blocks(d);
    let dx = dx.checked(d.input_len(), blocks.rows * d.c_in, "input gradient");
    let threads = ctx.pool.threads();
    let mut scratch = Scratch::new(scratch, data_grad_scratch_len(d, threads));
    if d.input_len() == 0 {
        return;
    }
    let packed = match w.into() {
        Weights::Packed(packed) => packed_start(packed, packed_data_grad_len(d), "weights"),
        Weights::Plain(w) => {
            let w = w.checked(d.weight_len(), "weights");
            let packed = scratch.take(packed_data_grad_len(d));
            // SAFETY: the weights' extent was checked, and the packed piece belongs to this call.
            unsafe { pack_weights(ctx, d, format, w, packed) };
            packed
        }
    };
    let scratch = BlockScratch::new(scratch, threads);
    let groups = column_groups(blocks, d.c_in, format, free_threads(ctx, epilogue));
    let gradient = DataGrad { ctx, d, format, dy, packed, dx };
    let runs = BlockRuns::new(blocks.count, threads);
    ctx.pool.run(runs.count() * groups.count, &|task, worker| {
        let cols = groups.range(task % groups.count, d.c_in);
        let mut table = RowTable::new();
        for (block, next) in runs.blocks(task / groups.count) {
            let rows = blocks.range(block, d.input_rows());
            let next = next.map(|next| blocks.range(next, d.input_rows()));
            // SAFETY: extents were checked above; tasks have different rows or columns of dx.
            unsafe { gradient.block(worker, rows.clone(), next, cols.clone(), &mut table, scratch.of(worker)) };
            if let Some(epilogue) = epilogue {
                epilogue.block(worker, block, rows, cols.clone());
            }
        }
    });
}

/// Packs for each phase the matrix `[taps, Cout] x [Cin]`.
///
/// # Safety
/// The weights are valid, and `packed` has room for all of them.
unsafe fn pack_weights(ctx: Ctx<'_>, d: &ConvDesc, format: PanelFormat, w: TypedPtr, packed: SharedMut) {
    let tap_steps = if format.is_dot2() { d.c_out / 2 } else { d.c_out };
    for phase in phases(d) {
        let panel = format.steps(phase.taps() * d.c_out);
        for tap in 0..phase.taps() {
            let ky = phase.y.kernel_tap(tap / phase.x.axis.taps);
            let kx = phase.x.kernel_tap(tap % phase.x.axis.taps);
            let start = tap * tap_steps;
            let len = if tap + 1 == phase.taps() { panel - start } else { tap_steps };
            // SAFETY: the caller's promises; the tap is one of the kernel's.
            unsafe {
                let src = w.add((ky * d.kw + kx) * d.c_in * d.c_out);
                let matrix = Matrix { src, ld: d.c_out, transposed: true, k: d.c_out, n: d.c_in };
                let steps = PanelSteps { start, len, panel };
                pack_steps(ctx, &matrix, format, packed.add(phase.packed_offset), steps);
            }
        }
    }
}

/// The format of the operands: pairs of elements must not reach from tap to tap.
fn panel_format(ctx: Ctx<'_>, d: &ConvDesc, operand: &TypedSlice<'_>) -> PanelFormat {
    match d.c_out.is_multiple_of(2) {
        true => ctx.panel_format(operand.dtype(), operand.dtype()),
        false => PanelFormat::F32,
    }
}

struct DataGrad<'a> {
    ctx: Ctx<'a>,
    d: &'a ConvDesc,
    format: PanelFormat,
    dy: TypedPtr,
    packed: SharedMut,
    dx: Destination,
}

// SAFETY: dy and the packed weights are only read; tasks write different parts of dx.
unsafe impl Sync for DataGrad<'_> {}

impl DataGrad<'_> {
    /// Computes rows and columns of dx on the calling thread, and asks for the memory of the `next` rows.
    ///
    /// # Safety
    /// All memory is valid, the rows and columns are this task's, `a_block` has room for a block of A. What was in the table before does
    /// not count.
    unsafe fn block(
        &self,
        worker: usize,
        rows: Range<usize>,
        next: Option<Range<usize>>,
        cols: Range<usize>,
        table: &mut RowTable,
        a_block: *mut f32,
    ) {
        let dx = self.dx.block(worker, rows.start * self.d.c_in);
        for phase in phases(self.d) {
            let source = phase.gather(self.d, self.dy);
            // Rows of the only phase are those of dx.
            let next = next.clone().filter(|_| self.d.stride == [1, 1] && phase.taps() > 0);
            let prefetch = next.map_or(MemoryBlock::EMPTY, |next| source.memory(next, 0..source.row_len()));
            // SAFETY: the caller's promises.
            let flush = |table: &mut RowTable| unsafe {
                self.flush(&phase, &source, table, cols.clone(), dx, a_block, prefetch);
            };
            if source.pitch().is_some() && self.d.stride == [1, 1] {
                for start in rows.clone().step_by(MAX_ROWS) {
                    table.fill(&source, start..rows.end.min(start + MAX_ROWS), self.d.c_in);
                    flush(table);
                }
                continue;
            }
            table.clear();
            self.each_line(&phase, rows.clone(), |grid_row, pixels| {
                let mut row = source.locate(grid_row);
                for pixel in pixels {
                    table.push(row, pixel * self.d.c_in);
                    row = source.after(row);
                    if table.is_full() {
                        flush(table);
                        table.clear();
                    }
                }
            });
            if !table.is_empty() {
                flush(table);
            }
        }
    }

    /// Calls `f(row of the phase's matrix, input pixels)` for the pixels of a phase on each line of `rows`: the first row, and a
    /// pixel for it and for each one behind it.
    fn each_line(&self, phase: &Phase, rows: Range<usize>, mut f: impl FnMut(usize, StepBy<Range<usize>>)) {
        let d = self.d;
        for line in rows.start / d.w..rows.end.div_ceil(d.w) {
            let (image, y) = (line / d.h, line % d.h);
            if y % d.stride[0] != phase.y.phase {
                continue;
            }
            let grid_line = image * phase.y.axis.grid + y / d.stride[0];
            let start = rows.start.saturating_sub(line * d.w);
            let end = d.w.min(rows.end - line * d.w);
            let first = start.saturating_sub(phase.x.phase).div_ceil(d.stride[1]);
            let pixels = first * d.stride[1] + phase.x.phase..end;
            if !pixels.is_empty() {
                let pixels = line * d.w + pixels.start..line * d.w + pixels.end;
                f(grid_line * phase.x.axis.grid + first, pixels.step_by(d.stride[1]));
            }
        }
    }

    unsafe fn flush(
        &self,
        phase: &Phase,
        source: &Gather,
        table: &mut RowTable,
        cols: Range<usize>,
        c: SharedMut,
        a_block: *mut f32,
        prefetch: MemoryBlock,
    ) {
        // SAFETY: the promises of `block`.
        unsafe {
            if phase.taps() == 0 {
                ZeroRows { table, cols, c }.run_on(self.ctx.isa);
                return;
            }
            let block = RowBlock {
                source,
                table,
                packed: self.packed.add(phase.packed_offset).0,
                k: self.format.steps(source.row_len()),
                cols,
                c,
                ldc: self.d.c_in,
                accumulate: false,
                a_block,
                prefetch,
                store: None,
            };
            block.run_product_on(self.ctx.isa, self.format);
        }
    }
}

/// Zero-fills columns of the rows of a table.
struct ZeroRows<'a> {
    table: &'a RowTable,
    cols: Range<usize>,
    c: SharedMut,
}

impl SimdOp for ZeroRows<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for &row in self.table.c_rows() {
            // SAFETY: the task owns the rows and columns.
            unsafe { self.c.0.add(row + self.cols.start).zero::<S>(self.cols.len()) };
        }
    }
}
