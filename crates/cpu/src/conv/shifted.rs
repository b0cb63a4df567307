//! Gradients of the weights of convolutions with several taps and stride 1, by tiles of the processor: for each tap, the product of the
//! input, shifted by it, with the output gradient.
//!
//! The padded input is transposed once to `[N, Cin, pixels]`. A tile of it may begin at any pixel: for each tap the same memory is read
//! from another pixel on. An outer product of windows copies and transposes every pixel once for each tap instead. The output gradient
//! is packed with lines as long as those of the padded input; the pixels between its lines are zeros.

use std::ops::Range;

use super::ConvDesc;
use crate::gemm::{
    Ctx, LINE, LINE_LEN, LINE_PITCH, MAX_BLOCK, MAX_DEPTH, MAX_PANEL, PREFETCH_PIECES, PartialSums, RowBlocks, Scratch,
    SharedMut, TILES_BLOCK_LEN, TILES_ROWS, TypedPtr, aligned_len, even_chunks, odd_lines, panel, split_count,
    transpose_lines,
};
use crate::simd::{PanelFormat, Simd, SimdOp, TILE_STEPS, TileProduct};

/// Channels of the input in a block: the rows of a product.
const CHANNELS: usize = TILES_ROWS;

/// Most steps of a product: its rows of the input and its panel of the output gradient stay in the first-level cache.
const DEPTH: usize = MAX_DEPTH / 2;

/// Most blocks of sums of a task, of 4 KB each: they stay in the second-level cache.
const MAX_BLOCKS: usize = 128;

/// Steps in a packing task.
const PACK_STEPS: usize = 8 * TILE_STEPS;

/// Channels of a pixel outside of the image; as many are transposed at once.
static ZEROS: [u16; MAX_BLOCK] = [0; MAX_BLOCK];

/// How a gradient is cut, and how its packed operands lie. Steps are pairs of pixels.
struct Plan {
    desc: ConvDesc,
    taps: usize,
    /// Blocks of channels of the input.
    blocks: usize,
    /// Pixels of a padded line.
    line: usize,
    /// Steps of an image.
    steps: usize,
    /// Steps of the transposed input of an image, and the distance of its channels in elements of 32 bits.
    input_steps: usize,
    pitch: usize,
    panels: usize,
    /// The reduction over all images, cut to the depth of a product.
    chunks: RowBlocks,
    /// Columns of tasks.
    cols: RowBlocks,
    /// Parts of the reduction, in chunks.
    splits: RowBlocks,
}

/// Whether tiles compute the gradient of `d` faster than as an outer product of windows: with several taps, which read most pixels of
/// the input.
pub(super) fn applies(d: &ConvDesc) -> bool {
    let taps = d.kh * d.kw;
    let is_dense = d.stride == [1, 1] && taps > 1 && taps <= MAX_BLOCKS;
    let has_tiles = d.c_in.is_multiple_of(TILE_STEPS) && d.c_in > 0 && d.c_out >= TILE_STEPS;
    is_dense && has_tiles && 4 * Plan::image_steps(d) <= 3 * d.oh * d.ow
}

impl Plan {
    /// Pixels of a padded line.
    fn line(d: &ConvDesc) -> usize {
        d.ow + (d.kw - 1) * d.dilation[1]
    }

    /// Steps of an image: of its output, with the pixels between its lines.
    fn image_steps(d: &ConvDesc) -> usize {
        let pixels = d.oh.saturating_sub(1) * Self::line(d) + d.ow;
        PanelFormat::Tiles.steps(pixels)
    }

    fn new(d: &ConvDesc) -> Plan {
        let (line, steps) = (Self::line(d), Self::image_steps(d));
        let (taps, blocks) = (d.kh * d.kw, d.c_in.div_ceil(CHANNELS));
        let last_tap = (d.kh - 1) * d.dilation[0] * line + (d.kw - 1) * d.dilation[1];
        let input_steps = PanelFormat::Tiles.steps(2 * steps + last_tap);
        let pitch = odd_lines(input_steps);
        let panels = d.c_out.div_ceil(MAX_PANEL);
        let cols = even_chunks(d.c_out, (MAX_BLOCKS / taps).clamp(1, MAX_DEPTH / MAX_PANEL) * MAX_PANEL, MAX_PANEL);
        let chunks = even_chunks(d.n * steps, DEPTH, TILE_STEPS);
        let splits = split_count(blocks * cols.count, d.n * steps);
        let splits = even_chunks(chunks.count, chunks.count.div_ceil(splits), 1);
        Plan { desc: *d, taps, blocks, line, steps, input_steps, pitch, panels, chunks, cols, splits }
    }

    /// Elements of 32 bits of the transposed input, and of the packed output gradient.
    fn packed_lens(&self) -> [usize; 2] {
        [self.desc.n * self.blocks * CHANNELS * self.pitch, self.desc.n * self.panels * self.steps * MAX_PANEL]
    }

    fn partial_len(&self) -> usize {
        if self.splits.count > 1 { self.splits.count * self.desc.weight_len() } else { 0 }
    }

    /// Elements of a worker's scratch: the lines that are transposed, or the sums of a task.
    fn worker_len(&self) -> usize {
        (self.taps * self.cols.rows.div_ceil(MAX_PANEL) * TILES_BLOCK_LEN).max(LINE_LEN)
    }
}

/// Scratch elements of [`weight_grad`].
pub(super) fn scratch_len(d: &ConvDesc, threads: usize) -> usize {
    let plan = Plan::new(d);
    let [input, grad] = plan.packed_lens();
    [input, grad, plan.partial_len(), threads * plan.worker_len()].into_iter().map(aligned_len).sum()
}

/// The gradient of the weights, from the input and the output gradient, both of `bf16`.
///
/// # Safety
/// The operands have the elements that `d` states, and `dw` is valid and unshared.
pub(super) unsafe fn weight_grad(
    ctx: Ctx<'_>,
    d: &ConvDesc,
    x: TypedPtr,
    dy: TypedPtr,
    dw: SharedMut,
    mut scratch: Scratch,
) {
    let plan = &Plan::new(d);
    let [input_len, grad_len] = plan.packed_lens();
    let (input, grad) = (scratch.take(input_len), scratch.take(grad_len));
    let partials = scratch.take(plan.partial_len());
    let workers = scratch.take(ctx.pool.threads() * plan.worker_len());
    // SAFETY: the pool's workers are numbered below its thread count.
    let of_worker = |worker: usize| unsafe { workers.add(worker * plan.worker_len()) };

    let parts = plan.input_steps.div_ceil(PACK_STEPS);
    ctx.pool.run(d.n * parts, &|task, worker| {
        let (image, part) = (task / parts, task % parts);
        let steps = part * PACK_STEPS..(part + 1) * PACK_STEPS;
        let pack = Pack { plan, x, dy, image, steps, input, grad, lines: of_worker(worker) };
        // SAFETY: the caller's promises; the pieces of scratch have room, and tasks write different steps.
        unsafe { pack.run_product_on(ctx.isa, PanelFormat::Tiles) };
    });
    let blocks = plan.blocks * plan.cols.count;
    ctx.pool.run(blocks * plan.splits.count, &|task, worker| {
        let (split, block) = (task / blocks, task % blocks);
        // SAFETY: the operands are packed; tasks have different blocks of the gradient or of the partial sums.
        unsafe {
            let products = Products {
                plan,
                input,
                grad,
                block: block / plan.cols.count,
                cols: plan.cols.range(block % plan.cols.count, d.c_out),
                chunks: plan.splits.range(split, plan.chunks.count),
                sums: of_worker(worker),
                dw: if plan.splits.count > 1 { partials.add(split * d.weight_len()) } else { dw },
            };
            products.run_product_on(ctx.isa, PanelFormat::Tiles);
        }
    });
    if plan.splits.count > 1 {
        let sums = PartialSums { start: partials, count: plan.splits.count, rows: d.weight_rows(), cols: d.c_out };
        // SAFETY: the partial sums are complete.
        unsafe { sums.add_to(ctx, dw) };
    }
}

/// Packs some steps of both operands of an image.
struct Pack<'a> {
    plan: &'a Plan,
    x: TypedPtr,
    dy: TypedPtr,
    image: usize,
    steps: Range<usize>,
    /// `[image, block of channels, channel, pixel]`.
    input: SharedMut,
    /// `[panel, image, step, column of pairs]`.
    grad: SharedMut,
    /// Room for a tile's steps of some channels.
    lines: SharedMut,
}

impl SimdOp for Pack<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let plan = self.plan;
        // SAFETY: the promises made for this operation.
        unsafe {
            for step in (self.steps.start..self.steps.end.min(plan.input_steps)).step_by(TILE_STEPS) {
                self.transpose::<S>(step);
            }
            for step in self.steps.start..self.steps.end.min(plan.steps) {
                self.pack_grad::<S>(step);
            }
        }
    }
}

impl Pack<'_> {
    /// The channels of the input at a position in the padded image; `None` in the padding.
    #[inline(always)]
    fn input_pixel(&self, position: usize) -> Option<TypedPtr> {
        let d = &self.plan.desc;
        let (y, x) = (position / self.plan.line, position % self.plan.line);
        let (y, x) = (y.wrapping_sub(d.pad[0]), x.wrapping_sub(d.pad[1]));
        (y < d.h && x < d.w).then(|| self.x.add(((self.image * d.h + y) * d.w + x) * d.c_in))
    }

    /// The channels of the output gradient at such a position; `None` between its lines.
    #[inline(always)]
    fn grad_pixel(&self, position: usize) -> Option<TypedPtr> {
        let d = &self.plan.desc;
        let (y, x) = (position / self.plan.line, position % self.plan.line);
        (y < d.oh && x < d.ow).then(|| self.dy.add(((self.image * d.oh + y) * d.ow + x) * d.c_out))
    }

    /// Transposes a tile's steps of all channels of the input.
    ///
    /// # Safety
    /// As for the operation. Called under `S::run_op`.
    #[inline(always)]
    unsafe fn transpose<S: Simd>(&self, first: usize) {
        let Plan { desc, blocks, pitch, .. } = self.plan;
        let lines = self.lines.0;
        let image = self.image * blocks * CHANNELS * pitch;
        for channel in (0..desc.c_in).step_by(MAX_BLOCK) {
            let len = MAX_BLOCK.min(desc.c_in - channel);
            // SAFETY: the caller's promises.
            unsafe {
                for step in 0..TILE_STEPS {
                    let [even, odd] = [0, 1].map(|half| {
                        let pixel = self.input_pixel(2 * (first + step) + half);
                        pixel.map_or(ZEROS.as_ptr(), |pixel| pixel.add(channel).as_16())
                    });
                    S::interleave_16(even, odd, lines.add(step * LINE_PITCH).cast(), len);
                }
                transpose_lines::<S>(lines, len, self.input.0.add(image + channel * pitch + first), *pitch);
            }
        }
    }

    /// Packs a step of the output gradient.
    ///
    /// # Safety
    /// As for [`transpose`](Self::transpose).
    #[inline(always)]
    unsafe fn pack_grad<S: Simd>(&self, step: usize) {
        let Plan { desc, panels, steps, .. } = self.plan;
        let pixels = [0, 1].map(|half| self.grad_pixel(2 * step + half));
        for panel in 0..*panels {
            let col = panel * MAX_PANEL;
            let width = MAX_PANEL.min(desc.c_out - col);
            // SAFETY: the caller's promises.
            unsafe {
                let to = self.grad.0.add(((panel * desc.n + self.image) * steps + step) * MAX_PANEL).cast::<u32>();
                let [even, odd] = pixels.map(|pixel| pixel.map_or(ZEROS.as_ptr(), |pixel| pixel.add(col).as_16()));
                if width < MAX_PANEL {
                    to.write_bytes(0, MAX_PANEL);
                }
                S::interleave_16(even, odd, to, width);
            }
        }
    }
}

/// The gradient of a block of channels and some columns, over a part of the reduction.
struct Products<'a> {
    plan: &'a Plan,
    input: SharedMut,
    grad: SharedMut,
    /// The block of channels.
    block: usize,
    /// Starts at a panel.
    cols: Range<usize>,
    chunks: Range<usize>,
    /// `[panel, tap]` blocks.
    sums: SharedMut,
    /// `[taps, input channels, output channels]`.
    dw: SharedMut,
}

impl SimdOp for Products<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        const { assert!(!S::TILES || panel::<S>() == MAX_PANEL) };
        let Products { plan, ref cols, .. } = self;
        let d = &plan.desc;
        let taps = plan.taps;
        let channels = CHANNELS.min(d.c_in - self.block * CHANNELS);
        let panels = cols.len().div_ceil(MAX_PANEL);
        let panel_len = d.n * plan.steps * MAX_PANEL;
        for chunk in self.chunks.clone() {
            let steps = plan.chunks.range(chunk, d.n * plan.steps);
            let depth = steps.len();
            let mut offsets = [0; DEPTH / TILE_STEPS];
            for (offset, step) in offsets.iter_mut().zip(steps.clone().step_by(TILE_STEPS)) {
                *offset = self.input_at(step) * size_of::<f32>();
            }
            let next = if chunk + 1 < self.chunks.end { steps.end } else { steps.start };
            let next = self.input.0.wrapping_add(self.input_at(next));
            for index in 0..panels {
                let panel = cols.start / MAX_PANEL + index;
                let b = self.grad.0.wrapping_add(panel * panel_len + steps.start * MAX_PANEL);
                let width = MAX_PANEL.min(cols.len() - index * MAX_PANEL);
                for tap in 0..taps {
                    let shift = tap / d.kw * d.dilation[0] * plan.line + tap % d.kw * d.dilation[1];
                    // The next panel or, at the last one, the rows of the next chunk.
                    let (prefetch, prefetch_pitch) = match index + 1 < panels {
                        true => (
                            b.wrapping_add(panel_len + tap * (depth / TILE_STEPS) * PREFETCH_PIECES * 2 * LINE),
                            2 * LINE,
                        ),
                        false => {
                            (next.wrapping_add(tap % 2 * TILE_STEPS * plan.pitch + tap / 2 * 2 * LINE), plan.pitch)
                        }
                    };
                    // SAFETY: the promises made for this operation.
                    unsafe {
                        S::tile_product(&TileProduct {
                            row_tiles: channels / TILE_STEPS,
                            col_tiles: width.div_ceil(TILE_STEPS),
                            depth,
                            a: self.input.0.wrapping_byte_add(shift * size_of::<u16>()),
                            a_stride: plan.pitch,
                            a_offsets: offsets.as_ptr(),
                            b,
                            c: self.sums.0.add((index * taps + tap) * TILES_BLOCK_LEN),
                            c_stride: MAX_PANEL,
                            accumulate: chunk > self.chunks.start,
                            prefetch,
                            prefetch_pitch,
                            prefetch_pieces: PREFETCH_PIECES,
                        });
                    }
                }
            }
        }
        for index in 0..panels {
            let col = cols.start + index * MAX_PANEL;
            for tap in 0..taps {
                for row in 0..channels {
                    // SAFETY: as above.
                    unsafe {
                        let from = self.sums.0.add((index * taps + tap) * TILES_BLOCK_LEN + row * MAX_PANEL);
                        let to = self.dw.0.add((tap * d.c_in + self.block * CHANNELS + row) * d.c_out + col);
                        S::copy(from, to, MAX_PANEL.min(cols.end - col));
                    }
                }
            }
        }
    }
}

impl Products<'_> {
    /// Where a step of the first channel lies in the input.
    #[inline(always)]
    fn input_at(&self, step: usize) -> usize {
        let plan = self.plan;
        (step / plan.steps * plan.blocks + self.block) * CHANNELS * plan.pitch + step % plan.steps
    }
}
