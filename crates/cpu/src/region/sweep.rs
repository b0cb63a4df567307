//! Execution of a program over a part of the domain.

use super::RegionIo;
use super::compile::{Operand, Pattern, Program, Sink, Source, Step, UniformStep};
use super::reduce;
use crate::simd::{Simd, SimdOp};
use crate::vector;
use bessemer_ir::DType;
use std::ops::Range;

/// Elements of a tile at most; all live buffers together should fit in first-level cache.
pub(super) const TILE: usize = 1024;

/// Distance between tile buffers. Not a power of two, so that equal positions do not compete for one cache set.
pub(super) const PITCH: usize = TILE + LOOP;

/// Tiles of programs with more buffers than this are half as long.
const MANY_BUFFERS: usize = 8;

/// Loops run over multiples of so many elements; buffers are padded accordingly.
const LOOP: usize = 64;

/// A part of the domain to be computed.
pub(super) struct Sweep<'a> {
    program: &'a Program,
    io: &'a RegionIo<'a>,
    /// Columns of the domain.
    stride: usize,
    rows: Range<usize>,
    cols: Range<usize>,
    buffers: *mut f32,
    accumulators: *mut f32,
    uniforms: &'a [f32],
    /// Partial results of the block, `[slots, stride]`.
    partials: *mut f32,
    tile_len: usize,
}

/// `rows * width` elements that are computed at once, row after row.
#[derive(Clone, Copy)]
struct Tile {
    row: usize,
    rows: usize,
    col: usize,
    width: usize,
    /// Whether its elements are neighbours in a tensor of the shape of the domain.
    contiguous: bool,
    /// Position of the first one there.
    offset: usize,
}

impl Tile {
    fn len(&self) -> usize {
        self.rows * self.width
    }

    /// The length that loops run over.
    fn padded(&self) -> usize {
        self.len().next_multiple_of(LOOP)
    }
}

/// How the rows of a range of columns are cut into tiles.
struct Cut {
    tile_rows: usize,
    /// Length of the runs that sums are accumulated in: whole rows, so many that vector loops fit.
    lanes: usize,
}

impl Cut {
    fn new(width: usize, tile_len: usize) -> Cut {
        let rows = LOOP >> width.trailing_zeros().min(LOOP.trailing_zeros());
        let lanes = rows * width;
        if lanes <= tile_len {
            Cut { tile_rows: tile_len / lanes * rows, lanes }
        } else {
            Cut { tile_rows: (tile_len / width).max(1), lanes: width }
        }
    }
}

impl<'a> Sweep<'a> {
    pub fn new(
        program: &'a Program,
        io: &'a RegionIo<'a>,
        stride: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        scratch: &'a mut [f32],
        partials: *mut f32,
    ) -> Sweep<'a> {
        let accumulators: usize = program.sinks.iter().map(Sink::accumulators).sum();
        let aligned = scratch.as_ptr().align_offset(64).min(scratch.len());
        let (buffers, rest) = scratch[aligned..].split_at_mut(program.buffers * PITCH);
        let (accumulators, rest) = rest.split_at_mut(accumulators * TILE);
        let uniforms = &mut rest[..program.uniforms.len()];
        evaluate_uniforms(program, io, uniforms);
        Sweep {
            program,
            io,
            stride,
            rows,
            cols,
            buffers: buffers.as_mut_ptr(),
            accumulators: accumulators.as_mut_ptr(),
            uniforms,
            partials,
            tile_len: if program.buffers > MANY_BUFFERS { TILE / 2 } else { TILE },
        }
    }

    /// Elements of scratch.
    pub fn scratch_len(program: &Program) -> usize {
        let accumulators: usize = program.sinks.iter().map(Sink::accumulators).sum();
        program.buffers * PITCH + accumulators * TILE + program.uniforms.len() + 16
    }

    #[inline(always)]
    fn tile(&self, row: usize, rows: usize, cols: &Range<usize>) -> Tile {
        Tile {
            row,
            rows,
            col: cols.start,
            width: cols.len(),
            contiguous: rows == 1 || cols.len() == self.stride,
            offset: row * self.stride + cols.start,
        }
    }

    #[inline(always)]
    unsafe fn buffer(&self, index: usize, len: usize) -> &'a [f32] {
        // SAFETY: the scratch holds all buffers; a step never writes the buffers that it reads.
        unsafe { std::slice::from_raw_parts(self.buffers.add(index * PITCH), len) }
    }

    #[inline(always)]
    unsafe fn buffer_mut(&self, index: usize, len: usize) -> &'a mut [f32] {
        // SAFETY: as for `buffer`.
        unsafe { std::slice::from_raw_parts_mut(self.buffers.add(index * PITCH), len) }
    }

    #[inline(always)]
    fn is_read_in_place(&self, source: &Source, tile: &Tile) -> bool {
        source.in_place && tile.contiguous && tile.len().is_multiple_of(LOOP)
    }

    #[inline(always)]
    fn memory(&self, source: &Source) -> *const u8 {
        source.load.map_or(self.io.anchor.cast(), |load| self.io.loads[load])
    }

    /// The first `len` elements of a value.
    #[inline(always)]
    unsafe fn values(&self, operand: Operand, tile: &Tile, len: usize) -> &'a [f32] {
        // SAFETY: buffers as for `buffer`; a source read in place has the elements of the tile, `len` of which there
        // are then at most.
        unsafe {
            match operand {
                Operand::Buffer(index) => self.buffer(index, len),
                Operand::Source(index) => {
                    let source = &self.program.sources[index];
                    if self.is_read_in_place(source, tile) {
                        let start = self.memory(source).cast::<f32>().add(tile.offset);
                        std::slice::from_raw_parts(start, len)
                    } else {
                        self.buffer(source.buffer, len)
                    }
                }
                Operand::Uniform(_) => unreachable!("a number is not a tile"),
            }
        }
    }

    #[inline(always)]
    unsafe fn step(&self, step: &Step, tile: &Tile) {
        let len = tile.padded();
        let uniform = |index: usize| self.uniforms[index];
        // SAFETY: operands and destination are distinct buffers of the scratch, or inputs.
        unsafe {
            let tile_of = |operand: Operand| self.values(operand, tile, len);
            match *step {
                Step::Read { source } => self.read(&self.program.sources[source], tile),
                Step::Fill { uniform: index, dst } => self.buffer_mut(dst, len).fill(uniform(index)),
                Step::Unary { kind, a, dst } => vector::map_unary(kind, tile_of(a), self.buffer_mut(dst, len)),
                Step::Cast { to, a, dst } => vector::map_cast(to, tile_of(a), self.buffer_mut(dst, len)),
                Step::Binary { kind, a, b, dst } => {
                    let dst = self.buffer_mut(dst, len);
                    match (a, b) {
                        (Operand::Uniform(a), _) => vector::map_binary(kind, uniform(a), tile_of(b), dst),
                        (_, Operand::Uniform(b)) => vector::map_binary(kind, tile_of(a), uniform(b), dst),
                        _ => vector::map_binary(kind, tile_of(a), tile_of(b), dst),
                    }
                }
                Step::Select { condition, a, b, dst } => {
                    let (condition, dst) = (tile_of(condition), self.buffer_mut(dst, len));
                    match (a, b) {
                        (Operand::Uniform(a), Operand::Uniform(b)) => {
                            vector::map_select(condition, uniform(a), uniform(b), dst)
                        }
                        (Operand::Uniform(a), _) => vector::map_select(condition, uniform(a), tile_of(b), dst),
                        (_, Operand::Uniform(b)) => vector::map_select(condition, tile_of(a), uniform(b), dst),
                        _ => vector::map_select(condition, tile_of(a), tile_of(b), dst),
                    }
                }
            }
        }
    }

    /// Brings a source into its buffer.
    #[inline(always)]
    unsafe fn read(&self, source: &Source, tile: &Tile) {
        if self.is_read_in_place(source, tile) {
            return;
        }
        let memory = self.memory(source);
        let size = source.dtype.size();
        // SAFETY: every index is that of an element of the source.
        unsafe {
            let dst = self.buffer_mut(source.buffer, tile.len());
            if let Pattern::Rows(access) = source.pattern
                && !access.by_col
            {
                for (i, row) in dst.chunks_exact_mut(tile.width).enumerate() {
                    let index = access.index(self.stride, tile.row + i, 0);
                    row.fill(read_one(source, memory, index));
                }
                return;
            }
            let end = if source.pattern == Pattern::Column { tile.width } else { dst.len() };
            let mut position = 0;
            while position < end {
                let (index, len) = self.segment(source.pattern, tile, position / tile.width);
                let piece = &mut dst[position..position + len];
                vector::widen(source.dtype, memory.add(index * size), piece);
                position += len;
            }
            repeat(dst, end);
        }
    }

    /// Where row `row` of the tile begins in a source, and how many elements from there on are neighbours in the tile too.
    #[inline(always)]
    fn segment(&self, pattern: Pattern, tile: &Tile, row: usize) -> (usize, usize) {
        match pattern {
            Pattern::Full if tile.contiguous => (tile.offset, tile.len()),
            Pattern::Full => (tile.offset + row * self.stride, tile.width),
            Pattern::Column => (tile.col, tile.width),
            Pattern::Rows(access) => {
                let own = (tile.row + row) / access.row_div % access.row_mod;
                let whole = access.row_div == 1 && tile.width == self.stride;
                let run = if whole { (access.row_mod - own).min(tile.rows - row) } else { 1 };
                (own * self.stride + tile.col, run * tile.width)
            }
        }
    }

    #[inline(always)]
    unsafe fn store(&self, value: Operand, dtype: DType, memory: *mut u8, tile: &Tile) {
        let size = dtype.size();
        // SAFETY: the output has the elements of the domain.
        unsafe {
            let values = self.values(value, tile, tile.len());
            let (pieces, len) = if tile.contiguous { (1, tile.len()) } else { (tile.rows, tile.width) };
            for piece in 0..pieces {
                let target = memory.add((tile.offset + piece * self.stride) * size);
                if target.cast_const() != values.as_ptr().cast() {
                    vector::narrow(dtype, &values[piece * len..][..len], target);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn accumulator(&self, index: usize, len: usize) -> &'a mut [f32] {
        // SAFETY: the scratch holds all accumulators.
        unsafe { std::slice::from_raw_parts_mut(self.accumulators.add(index * TILE), len) }
    }

    /// Adds a tile to the accumulators of the reductions; the first tile of a range of columns starts them.
    #[inline(always)]
    unsafe fn accumulate(&self, tile: &Tile, lanes: usize, first: bool) {
        let mut next = 0;
        for sink in &self.program.sinks {
            // SAFETY: accumulators are distinct.
            unsafe {
                match *sink {
                    Sink::Store { .. } => {}
                    Sink::Sum { value, .. } => {
                        let sums = self.accumulator(next, lanes);
                        if first {
                            sums.fill(0.0);
                        }
                        reduce::add_tile(self.values(value, tile, tile.len()), sums);
                    }
                    Sink::Moments { value, .. } => {
                        let values = self.values(value, tile, tile.len());
                        let [shift, sums, squares] = [0, 1, 2].map(|i| self.accumulator(next + i, lanes));
                        if first {
                            sums.fill(0.0);
                            squares.fill(0.0);
                            shift[..tile.width].copy_from_slice(&values[..tile.width]);
                            repeat(shift, tile.width);
                        }
                        reduce::add_deviations(values, shift, sums, squares);
                    }
                }
            }
            next += sink.accumulators();
        }
    }

    /// Writes the partial results of a range of columns.
    unsafe fn close(&self, cols: &Range<usize>, lanes: usize) {
        let rows = self.rows.len() as f64;
        let mut next = 0;
        for sink in &self.program.sinks {
            let partial = |slot: usize| {
                // SAFETY: the partial results of the block have `stride` columns in every slot.
                unsafe {
                    let start = self.partials.add(slot * self.stride + cols.start);
                    std::slice::from_raw_parts_mut(start, cols.len())
                }
            };
            let accumulator = |index: usize| match index < sink.accumulators() {
                // SAFETY: accumulators are distinct.
                true => unsafe { self.accumulator(next + index, lanes) },
                false => &mut [],
            };
            let [first, sums, squares] = [0, 1, 2].map(accumulator);
            match *sink {
                Sink::Store { .. } => {}
                Sink::Sum { slot, .. } => {
                    for (col, out) in partial(slot).iter_mut().enumerate() {
                        *out = reduce::fold(first, cols.len(), col) as f32;
                    }
                }
                Sink::Moments { slot, .. } => {
                    let [near, rest, deviations] = [0, 1, 2].map(|part| partial(slot + part));
                    near.copy_from_slice(&first[..cols.len()]);
                    for col in 0..cols.len() {
                        let mean = reduce::fold(sums, cols.len(), col) / rows;
                        let square = reduce::fold(squares, cols.len(), col);
                        rest[col] = mean as f32;
                        deviations[col] = (square - rows * mean * mean).max(0.0) as f32;
                    }
                }
            }
            next += sink.accumulators();
        }
    }
}

impl SimdOp for Sweep<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let chunks = self.cols.len().div_ceil(self.tile_len);
        let chunk = self.cols.len().div_ceil(chunks).next_multiple_of(LOOP).min(self.cols.len()).min(self.tile_len);
        let mut start = self.cols.start;
        while start < self.cols.end {
            let cols = start..self.cols.end.min(start + chunk);
            let cut = Cut::new(cols.len(), self.tile_len);
            let mut row = self.rows.start;
            while row < self.rows.end {
                let first = row == self.rows.start;
                let tile = self.tile(row, cut.tile_rows.min(self.rows.end - row), &cols);
                let steps = &self.program.steps[if first { 0 } else { self.program.column_steps }..];
                // SAFETY: the tile lies within the part that the caller vouches for. Reductions come first, because a
                // store may overwrite an input.
                unsafe {
                    steps.iter().for_each(|step| self.step(step, &tile));
                    self.accumulate(&tile, cut.lanes, first);
                    for sink in &self.program.sinks {
                        if let Sink::Store { value, dtype, output } = *sink {
                            self.store(value, dtype, self.io.outputs[output], &tile);
                        }
                    }
                }
                row += tile.rows;
            }
            // SAFETY: as above.
            unsafe { self.close(&cols, cut.lanes) };
            start = cols.end;
        }
    }
}

/// Fills `dst` with repetitions of its first `period` elements.
#[inline(always)]
fn repeat(dst: &mut [f32], period: usize) {
    let mut done = period;
    while done < dst.len() {
        let more = done.min(dst.len() - done);
        dst.copy_within(..more, done);
        done += more;
    }
}

/// One element of a source as `f32`.
unsafe fn read_one(source: &Source, memory: *const u8, index: usize) -> f32 {
    let mut value = [0.0];
    // SAFETY: the caller's promise: the element is there.
    unsafe { vector::widen(source.dtype, memory.add(index * source.dtype.size()), &mut value) };
    value[0]
}

fn evaluate_uniforms(program: &Program, io: &RegionIo<'_>, values: &mut [f32]) {
    for (i, step) in program.uniforms.iter().enumerate() {
        values[i] = match *step {
            UniformStep::Const(c) => c,
            UniformStep::Read { load, dtype } => {
                let mut value = [0.0];
                // SAFETY: the input has one element, and is valid by the promise of the caller of `run_rows`.
                unsafe { vector::widen(dtype, io.loads[load], &mut value) };
                value[0]
            }
            UniformStep::Unary(kind, a) => vector::unary(kind, values[a]),
            UniformStep::Binary(kind, a, b) => vector::binary(kind, values[a], values[b]),
            UniformStep::Select(c, a, b) => values[if values[c] != 0.0 { a } else { b }],
            UniformStep::Cast(to, a) => vector::cast(to, values[a]),
        };
    }
}
