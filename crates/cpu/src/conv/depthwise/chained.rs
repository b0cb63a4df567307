//! Depthwise convolutions whose input is the result of another convolution with a bias and an activation: of that some lines at a
//! time are computed, for some channels, and read while they are in the second-level cache.

use super::direct::{Grid, Lines, Side};
use super::{check, weight_len};
use crate::conv::gather::Gather;
use crate::conv::{self, ConvDesc};
use crate::gemm::{
    Activation, BlockScratch, Ctx, Destination, Epilogue, Input, LINE, MAX_PANEL, MemoryBlock, Output, RowBlocks,
    RowProduct, RowTable, Scratch, SharedMut, Store, TASKS, TypedSlice, Weights, aligned_len, packed_start,
    panel_width, row_scratch_len,
};
use crate::simd::{PanelFormat, SimdOp};
use bessemer_ir::DType;
use std::ops::Range;

/// `depthwise(f(first(x) + bias))`, in `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainDesc {
    /// The first convolution.
    pub first: ConvDesc,
    /// The function `f`.
    pub activation: Activation,
    /// The depthwise convolution, of the first one's output.
    pub depthwise: ConvDesc,
}

/// Elements of the lines of a worker.
const BUFFER: usize = 64 * 1024;

/// Channels of a group are a multiple of this many, or all.
const CHANNEL_STEP: usize = 16;

/// How the output is cut.
struct Cut {
    /// Most channels of a group, before they are rounded up to whole panels.
    channels: usize,
    /// Output lines of a block; a divisor of the output's height.
    lines: usize,
    /// Consecutive blocks of a task; a divisor of those of an image.
    run: usize,
    blocks: RowBlocks,
}

impl Cut {
    fn new(d: &ConvDesc) -> Cut {
        let stride = d.stride[0];
        let kept = window(d).saturating_sub(stride);
        // Lines that a block takes over from the one before cost a copy: at most half as many as it computes.
        let least = (2 * kept).div_ceil(stride).max(1);
        let line = d.w * CHANNEL_STEP;
        let channels = (BUFFER / (source_lines(d, least) * line).max(1)).max(1) * CHANNEL_STEP;
        let channels = channels.min(d.c_in.next_multiple_of(CHANNEL_STEP));
        let most = (1..=d.oh).rev().find(|&lines| source_lines(d, lines) * d.w * channels <= BUFFER).unwrap_or(1);
        let lines = largest_divisor(d.oh, most);
        let groups = d.c_in.div_ceil(channels);
        let run = largest_divisor(d.oh / lines, d.n * (d.oh / lines) * groups / TASKS);
        Cut { channels, lines, run, blocks: RowBlocks::new(d.n * d.oh * d.ow, lines * d.ow) }
    }

    /// Elements of the lines of a worker.
    fn buffer_len(&self, d: &ConvDesc) -> usize {
        source_lines(d, self.lines) * d.w * (self.channels + MAX_PANEL)
    }
}

/// Source lines under a window.
fn window(d: &ConvDesc) -> usize {
    (d.kh - 1) * d.dilation[0] + 1
}

/// Source lines under the windows of so many output lines.
fn source_lines(d: &ConvDesc, lines: usize) -> usize {
    ((lines - 1) * d.stride[0] + window(d)).min(d.h)
}

/// The largest divisor of `n` that is at most `limit`; at least 1.
fn largest_divisor(n: usize, limit: usize) -> usize {
    (1..=limit.clamp(1, n.max(1))).rev().find(|&divisor| n.is_multiple_of(divisor)).unwrap_or(1)
}

/// The row blocks that [`forward`] delivers to its epilogue.
pub fn forward_row_blocks(d: &ChainDesc) -> RowBlocks {
    Cut::new(&d.depthwise).blocks
}

/// Scratch elements of [`forward`] with `threads` threads.
pub fn forward_scratch_len(d: &ChainDesc, threads: usize) -> usize {
    let lines = Cut::new(&d.depthwise).buffer_len(&d.depthwise).next_multiple_of(LINE);
    aligned_len(conv::packed_forward_len(&d.first)) + aligned_len(threads * lines) + row_scratch_len(threads)
}

/// Output of input `x`, weights `w` of the first convolution and its `bias`, and weights `v` of the depthwise one. `scratch` has at
/// least [`forward_scratch_len`] elements; its content is neither read nor kept.
///
/// # Panics
/// When an operand is shorter than `d` needs.
pub fn forward<'a>(
    ctx: Ctx<'_>,
    d: &ChainDesc,
    x: &'a [f32],
    w: impl Into<Weights<'a>>,
    v: &[f32],
    bias: &[f32],
    y: Output<'_>,
    scratch: &mut [f32],
    epilogue: Option<&dyn Epilogue>,
) {
    let (first, depthwise) = (&d.first, &d.depthwise);
    assert!(
        [first.n, first.oh, first.ow, first.c_out] == [depthwise.n, depthwise.h, depthwise.w, depthwise.c_in],
        "the depthwise convolution reads another tensor than the one before it writes"
    );
    check(weight_len(depthwise), v, "weights");
    check(first.c_out, bias, "bias");
    let cut = Cut::new(depthwise);
    let dst = y.checked(depthwise.output_len(), cut.blocks.rows * depthwise.c_in, "output");
    let x = Input::from(TypedSlice::from(x));
    let mut scratch = Scratch::new(scratch, forward_scratch_len(d, ctx.pool.threads()));
    let packed = match w.into() {
        Weights::Packed(packed) => packed_start(packed, conv::packed_forward_len(first), "weights"),
        Weights::Plain(w) => {
            let packed = scratch.take(conv::packed_forward_len(first));
            // SAFETY: the piece has room for them; their number is checked there.
            unsafe { first.pack_weights(ctx, PanelFormat::F32, w, packed) };
            packed
        }
    };
    let pitch = cut.buffer_len(depthwise).next_multiple_of(LINE);
    let chained = Chained {
        d,
        source: first.gather(&x),
        packed,
        bias: bias.as_ptr(),
        weights: v.as_ptr(),
        dst,
        lines: scratch.take(ctx.pool.threads() * pitch),
        pitch,
        blocks_of_a: BlockScratch::new(scratch, ctx.pool.threads()),
        cut,
        epilogue,
    };
    if depthwise.output_len() > 0 {
        // SAFETY: the extents were checked.
        unsafe { chained.run(ctx) }
    }
}

/// A call of [`forward`].
struct Chained<'a> {
    d: &'a ChainDesc,
    source: Gather,
    packed: SharedMut,
    bias: *const f32,
    weights: *const f32,
    dst: Destination,
    /// The lines of all workers, and the distance of theirs.
    lines: SharedMut,
    pitch: usize,
    blocks_of_a: BlockScratch,
    cut: Cut,
    epilogue: Option<&'a dyn Epilogue>,
}

// SAFETY: operands are only read, workers have lines of their own, and tasks write to different places of `dst`.
unsafe impl Sync for Chained<'_> {}

impl Chained<'_> {
    /// # Safety
    /// The memory is valid for the description, and nothing else uses the output.
    unsafe fn run(&self, ctx: Ctx<'_>) {
        let d = &self.d.depthwise;
        let step = panel_width(ctx.isa).max(CHANNEL_STEP);
        let count = d.c_in.div_ceil(self.cut.channels);
        let groups = RowBlocks::new(d.c_in, d.c_in.div_ceil(count).next_multiple_of(step));
        let runs = self.cut.blocks.count / self.cut.run;
        ctx.pool.run(runs * groups.count, &|task, worker| {
            let channels = groups.range(task % groups.count, d.c_in);
            let first = task / groups.count * self.cut.run;
            let mut table = RowTable::new();
            let mut ready = 0..0;
            for block in first..first + self.cut.run {
                // SAFETY: the caller's promises; tasks have different blocks or channels.
                unsafe { ready = self.block(ctx, worker, block, channels.clone(), &mut table, ready) };
            }
        });
    }

    /// Computes a block of lines for some channels. `ready` are the lines of the image's input that are there from the block before;
    /// returns those that are there now.
    ///
    /// # Safety
    /// As for [`run`](Self::run), with whole panels before the channels.
    unsafe fn block(
        &self,
        ctx: Ctx<'_>,
        worker: usize,
        block: usize,
        channels: Range<usize>,
        table: &mut RowTable,
        ready: Range<usize>,
    ) -> Range<usize> {
        let d = &self.d.depthwise;
        let first = block * self.cut.lines;
        let (image, line) = (first / d.oh, first % d.oh);
        let axis = d.axis(0);
        let start = axis.start(line).max(0) as usize;
        let start = start.min(d.h);
        let end = axis.start(line + self.cut.lines - 1) + window(d) as isize;
        let wanted = start..(end.max(0) as usize).clamp(start, d.h);
        let len = d.w * channels.len();
        // SAFETY: workers have room for the lines of a block.
        let buffer = unsafe { self.lines.add(worker * self.pitch) };
        let kept = wanted.start..ready.end.max(wanted.start);
        if !kept.is_empty() {
            // SAFETY: the lines are there, in order.
            unsafe { buffer.0.copy_from(buffer.0.add((kept.start - ready.start) * len), kept.len() * len) };
        }
        // Where line 0 of image 0, channel 0, would be.
        let origin = buffer.0.wrapping_sub((image * d.h + wanted.start) * len + channels.start);
        let store = Store {
            bias: Some(self.bias),
            addend: None,
            activation: self.d.activation,
            output: origin.cast(),
            output_type: DType::F32,
        };
        let product = RowProduct {
            source: &self.source,
            packed: self.packed.0,
            format: PanelFormat::F32,
            m: self.d.first.output_rows(),
            n: d.c_in,
            k: self.d.first.forward_steps(PanelFormat::F32),
            c: Destination::whole(SharedMut(origin)),
            ldc: channels.len(),
            accumulate: false,
        };
        let rows = (image * d.h + kept.end) * d.w..(image * d.h + wanted.end) * d.w;
        let dst = self.dst.block(worker, block * self.cut.blocks.rows * d.c_in);
        let grid = Grid {
            src: origin,
            src_pitch: channels.len(),
            weights: self.weights,
            dst,
            channels: d.c_in,
            y: Side::forward(d, 0),
            x: Side::forward(d, 1),
        };
        let finished = self.epilogue.and_then(|epilogue| epilogue.as_store());
        let lines = first..first + self.cut.lines;
        let lines = Lines { grid: &grid, lines, channels: channels.clone(), store: finished };
        // SAFETY: the caller's promises; the lines lie in the buffer.
        unsafe {
            if !rows.is_empty() {
                let a_block = self.blocks_of_a.of(worker);
                product.block(ctx, worker, rows, channels.clone(), table, a_block, MemoryBlock::EMPTY, Some(&store));
            }
            lines.run_on(ctx.isa);
        }
        if let Some(epilogue) = self.epilogue {
            let rows = self.cut.blocks.range(block, d.output_rows());
            match finished {
                None => epilogue.block(worker, block, rows, channels),
                Some(_) => epilogue.stored_block(worker, block, rows, channels),
            }
        }
        wanted
    }
}
