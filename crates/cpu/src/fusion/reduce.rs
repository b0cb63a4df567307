//! Sums over rows: accumulation over the tiles of a block, and combination of the blocks.

use super::program::Sink;
use super::{FusionIo, FusionKernel, Partials};
use crate::gemm::Ctx;

/// Columns that are combined at a time.
const CHUNK: usize = 64;

/// The lanes that the tiles of a range of columns are added up in.
#[derive(Clone, Copy)]
pub(super) struct Lanes {
    /// Lane of an element: its position in the tile modulo this.
    pub count: usize,
    /// Whether groups of [`LANE_GROUP`] neighbours are neighbours in the lanes too.
    pub regular: bool,
    /// Whether the tile is the first one, whose first row is what deviations are taken from.
    pub first: bool,
}

impl Lanes {
    /// The lane of a position that is less than [`LANE_GROUP`] or one block beyond the last lane.
    #[inline(always)]
    pub(super) fn wrap(&self, mut lane: usize) -> usize {
        while self.regular && lane >= self.count {
            lane -= self.count;
        }
        lane
    }
}

/// Runs of `len` elements from position `start` on that have neighbouring lanes: where each begins among the elements, its
/// first lane, its length.
#[inline(always)]
fn runs(start: usize, len: usize, lanes: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let lane = (start + done) % lanes;
        let run = (lanes - lane).min(len - done);
        done += run;
        (run > 0).then_some((done - run, lane, run))
    })
}

/// Adds the elements of a tile from position `start` on to sums.
#[inline(always)]
pub(super) fn add_values(values: &[f32], start: usize, sums: &mut [f32]) {
    for (begin, lane, run) in runs(start, values.len(), sums.len()) {
        for (sum, x) in sums[lane..lane + run].iter_mut().zip(&values[begin..begin + run]) {
            *sum += x;
        }
    }
}

/// Sets the numbers that deviations are taken from, one for each lane, to the first row of a tile, of which `values` are the
/// elements from position `start` on. Those before have been set.
#[inline(always)]
pub(super) fn shift_values(values: &[f32], start: usize, width: usize, shift: &mut [f32]) {
    let end = shift.len().min(start + values.len());
    let mut position = start;
    while position < end {
        let len = if position < width { width.min(end) - position } else { width.min(end - position) };
        if position < width {
            shift[position..position + len].copy_from_slice(&values[position - start..][..len]);
        } else {
            shift.copy_within(position - width..position - width + len, position);
        }
        position += len;
    }
}

/// Adds deviations of elements of a tile from `shift`, and their squares, to sums.
#[inline(always)]
pub(super) fn add_deviations(values: &[f32], start: usize, shift: &[f32], sums: &mut [f32], squares: &mut [f32]) {
    for (begin, lane, run) in runs(start, values.len(), sums.len()) {
        let (values, shift) = (&values[begin..begin + run], &shift[lane..lane + run]);
        let (sums, squares) = (&mut sums[lane..lane + run], &mut squares[lane..lane + run]);
        for i in 0..run {
            let deviation = values[i] - shift[i];
            sums[i] += deviation;
            squares[i] += deviation * deviation;
        }
    }
}

/// Sum over the lanes of column `col`, where `sums` is a sequence of runs of `width` columns.
#[inline(always)]
pub(super) fn fold(sums: &[f32], width: usize, col: usize) -> f64 {
    sums[col..].iter().step_by(width).map(|&x| f64::from(x)).sum()
}

/// See [`FusionKernel::finish`].
pub(super) unsafe fn finish(
    kernel: &FusionKernel,
    ctx: Ctx<'_>,
    io: &FusionIo<'_>,
    partials: Partials,
    block_rows: usize,
) {
    let chunks = kernel.cols.div_ceil(CHUNK);
    let partials = &partials;
    for sink in &kernel.program.sinks {
        let combine = |task: usize, _worker: usize| {
            let first = task % chunks * CHUNK;
            let width = CHUNK.min(kernel.cols - first);
            let blocks = Blocks { kernel, partials, block_rows, first, width };
            let io: &FusionIo<'_> = io;
            // SAFETY: the caller's promise; each task writes to columns of its own.
            unsafe {
                match *sink {
                    Sink::Store { .. } | Sink::Rows { .. } => {}
                    Sink::Sum { groups, output, slot, .. } => {
                        blocks.sum(task / chunks, groups, slot, io.outputs[output].cast())
                    }
                    Sink::MeanVar { output, slot, .. } => {
                        blocks.moments(slot, io.outputs[output].cast(), io.outputs[output + 1].cast())
                    }
                }
            }
        };
        match *sink {
            Sink::Store { .. } | Sink::Rows { .. } => {}
            Sink::Sum { groups, .. } => ctx.pool.run(groups * chunks, &combine),
            Sink::MeanVar { .. } => ctx.pool.run(chunks, &combine),
        }
    }
}

/// A range of columns of all blocks.
struct Blocks<'a> {
    kernel: &'a FusionKernel,
    partials: &'a Partials,
    block_rows: usize,
    first: usize,
    width: usize,
}

impl Blocks<'_> {
    unsafe fn row(&self, block: usize, slot: usize) -> &[f32] {
        let offset = (block * self.kernel.slots + slot) * self.kernel.cols + self.first;
        // SAFETY: the partial results of all blocks are there.
        unsafe { std::slice::from_raw_parts(self.partials.0.add(offset), self.width) }
    }

    unsafe fn sum(&self, group: usize, groups: usize, slot: usize, out: *mut f32) {
        let group_rows = self.kernel.rows / groups;
        let first_block = group * group_rows / self.block_rows;
        let end_block = ((group + 1) * group_rows).div_ceil(self.block_rows);
        let mut sums = [0.0f64; CHUNK];
        for block in first_block..end_block {
            // SAFETY: the block is there.
            let row = unsafe { self.row(block, slot) };
            for (sum, &x) in sums.iter_mut().zip(row) {
                *sum += f64::from(x);
            }
        }
        // SAFETY: the output has `groups * cols` elements.
        unsafe { write(out.add(group * self.kernel.cols + self.first), &sums[..self.width]) }
    }

    /// Chan, Golub, LeVeque: "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
    unsafe fn moments(&self, slot: usize, mean_out: *mut f32, variance_out: *mut f32) {
        let rows = self.kernel.rows;
        let (mut means, mut squares) = ([0.0f64; CHUNK], [0.0f64; CHUNK]);
        let mut seen = 0;
        for block in 0..rows.div_ceil(self.block_rows) {
            let count = self.block_rows.min(rows - seen);
            let share = count as f64 / (seen + count) as f64;
            // SAFETY: the block is there.
            let [near, rest, block_squares] = unsafe { [0, 1, 2].map(|part| self.row(block, slot + part)) };
            for col in 0..self.width {
                let delta = f64::from(near[col]) + f64::from(rest[col]) - means[col];
                means[col] += delta * share;
                squares[col] += f64::from(block_squares[col]) + delta * delta * share * seen as f64;
            }
            seen += count;
        }
        squares.iter_mut().for_each(|s| *s /= rows as f64);
        // SAFETY: the outputs have `cols` elements.
        unsafe {
            write(mean_out.add(self.first), &means[..self.width]);
            write(variance_out.add(self.first), &squares[..self.width]);
        }
    }
}

unsafe fn write(out: *mut f32, values: &[f64]) {
    for (i, &x) in values.iter().enumerate() {
        // SAFETY: the callers' promise.
        unsafe { out.add(i).write(x as f32) }
    }
}
