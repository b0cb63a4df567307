//! Execution of a program over a part of the domain.

use super::RegionIo;
use super::compile::{NumberStep, Operand, Pattern, Program, Sink, Source, Step};
use super::reduce;
use crate::random::fill_uniform;
use crate::rowwise;
use crate::simd::{Simd, SimdOp};
use crate::vector;
use bessemer_ir::DType;
use std::ops::Range;

/// Elements of a tile at most; all live buffers together should fit in first-level cache.
pub(super) const TILE: usize = 1024;

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
    /// Distance between tile buffers. Not a power of two, so that equal positions do not compete for one cache set.
    pitch: usize,
    accumulators: *mut f32,
    /// Elements of an accumulator.
    longest: usize,
    numbers: *mut f32,
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

/// Sizes of the scratch memory of a sweep over a domain of so many columns.
struct Layout {
    /// Elements of the longest tile, and of an accumulator.
    longest: usize,
    pitch: usize,
    accumulators: usize,
}

impl Layout {
    fn new(program: &Program, cols: usize) -> Layout {
        let longest = if program.rowwise { cols.next_multiple_of(LOOP) } else { TILE };
        Layout { longest, pitch: longest + LOOP, accumulators: program.sinks.iter().map(Sink::accumulators).sum() }
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
        let Layout { longest, pitch, accumulators } = Layout::new(program, stride);
        let aligned = scratch.as_ptr().align_offset(64).min(scratch.len());
        let (buffers, rest) = scratch[aligned..].split_at_mut(program.buffers * pitch);
        let (accumulators, rest) = rest.split_at_mut(accumulators * longest);
        let numbers = rest[..program.numbers].as_mut_ptr();
        let sweep = Sweep {
            program,
            io,
            stride,
            rows,
            cols,
            buffers: buffers.as_mut_ptr(),
            pitch,
            accumulators: accumulators.as_mut_ptr(),
            longest,
            numbers,
            partials,
            tile_len: match program.rowwise {
                true => longest,
                false if program.buffers > MANY_BUFFERS => TILE / 2,
                false => TILE,
            },
        };
        for (slot, step) in program.uniforms.iter().enumerate() {
            // SAFETY: a uniform value is read from the only element of an input, and there is a place for every number.
            unsafe { sweep.set_number(slot, sweep.number_step(step, 0)) };
        }
        sweep
    }

    /// Elements of scratch for a domain of so many columns.
    pub fn scratch_len(program: &Program, cols: usize) -> usize {
        let Layout { longest, pitch, accumulators } = Layout::new(program, cols);
        program.buffers * pitch + accumulators * longest + program.numbers + 16
    }

    #[inline(always)]
    fn number(&self, slot: usize) -> f32 {
        // SAFETY: there is a place for every number, and it was written by an earlier step.
        unsafe { self.numbers.add(slot).read() }
    }

    /// # Safety
    /// `slot` is below the count of numbers.
    #[inline(always)]
    unsafe fn set_number(&self, slot: usize, x: f32) {
        // SAFETY: the caller's promise.
        unsafe { self.numbers.add(slot).write(x) }
    }

    /// # Safety
    /// The inputs are valid; `row` is within the domain.
    #[inline(always)]
    unsafe fn number_step(&self, step: &NumberStep, row: usize) -> f32 {
        match *step {
            NumberStep::Const(c) => c,
            NumberStep::Read { load, dtype, access } => {
                let mut value = [0.0];
                let index = access.index(self.stride, row, 0);
                // SAFETY: the caller's promise: the element is there.
                unsafe { vector::widen(dtype, self.io.loads[load].add(index * dtype.size()), &mut value) };
                value[0]
            }
            NumberStep::Unary(kind, a) => vector::unary(kind, self.number(a)),
            NumberStep::Binary(kind, a, b) => vector::binary(kind, self.number(a), self.number(b)),
            NumberStep::Select(c, a, b) => self.number(if self.number(c) != 0.0 { a } else { b }),
            NumberStep::Cast(to, a) => vector::cast(to, self.number(a)),
        }
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
        unsafe { std::slice::from_raw_parts(self.buffers.add(index * self.pitch), len) }
    }

    #[inline(always)]
    unsafe fn buffer_mut(&self, index: usize, len: usize) -> &'a mut [f32] {
        // SAFETY: as for `buffer`.
        unsafe { std::slice::from_raw_parts_mut(self.buffers.add(index * self.pitch), len) }
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
                Operand::Number(_) => unreachable!("a number is not a tile"),
            }
        }
    }

    #[inline(always)]
    unsafe fn step(&self, step: &Step, tile: &Tile) {
        let len = tile.padded();
        let number = |slot: usize| self.number(slot);
        // SAFETY: operands and destination are distinct buffers of the scratch, or inputs.
        unsafe {
            let tile_of = |operand: Operand| self.values(operand, tile, len);
            match *step {
                Step::Read { source } => self.read(&self.program.sources[source], tile),
                Step::Fill { number: slot, dst } => self.buffer_mut(dst, len).fill(number(slot)),
                Step::Unary { kind, a, dst } => vector::map_unary(kind, tile_of(a), self.buffer_mut(dst, len)),
                Step::Cast { to, a, dst } => vector::map_cast(to, tile_of(a), self.buffer_mut(dst, len)),
                Step::Binary { kind, a, b, dst } => {
                    let dst = self.buffer_mut(dst, len);
                    match (a, b) {
                        (Operand::Number(a), _) => vector::map_binary(kind, number(a), tile_of(b), dst),
                        (_, Operand::Number(b)) => vector::map_binary(kind, tile_of(a), number(b), dst),
                        _ => vector::map_binary(kind, tile_of(a), tile_of(b), dst),
                    }
                }
                Step::Select { condition: Operand::Number(condition), a, b, dst } => {
                    let dst = self.buffer_mut(dst, len);
                    match if number(condition) != 0.0 { a } else { b } {
                        Operand::Number(slot) => dst.fill(number(slot)),
                        chosen => dst.copy_from_slice(tile_of(chosen)),
                    }
                }
                Step::Select { condition, a, b, dst } => {
                    let (condition, dst) = (tile_of(condition), self.buffer_mut(dst, len));
                    match (a, b) {
                        (Operand::Number(a), Operand::Number(b)) => {
                            vector::map_select(condition, number(a), number(b), dst)
                        }
                        (Operand::Number(a), _) => vector::map_select(condition, number(a), tile_of(b), dst),
                        (_, Operand::Number(b)) => vector::map_select(condition, tile_of(a), number(b), dst),
                        _ => vector::map_select(condition, tile_of(a), tile_of(b), dst),
                    }
                }
                Step::OneHot { a, dst } => self.one_hot(a, dst, tile),
                Step::Random { seed, stream, load, dst } => self.random(seed, stream, load, dst, tile),
                Step::Number { ref step, dst } => self.set_number(dst, self.number_step(step, tile.row)),
                Step::Reduce { kind, a, dst } => {
                    self.set_number(dst, rowwise::reduce_slice(kind, self.values(a, tile, tile.len())));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn one_hot(&self, label: Operand, dst: usize, tile: &Tile) {
        // SAFETY: operand and destination are distinct buffers.
        unsafe {
            let dst = self.buffer_mut(dst, tile.len());
            dst.fill(0.0);
            for (row, columns) in dst.chunks_exact_mut(tile.width).enumerate() {
                let label = match label {
                    Operand::Number(slot) => self.number(slot),
                    tiled => self.values(tiled, tile, tile.len())[row * tile.width],
                };
                let column = label - tile.col as f32;
                if column >= 0.0 && column < tile.width as f32 && column.fract() == 0.0 {
                    columns[column as usize] = 1.0;
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn random(&self, seed: u64, stream: u32, load: usize, dst: usize, tile: &Tile) {
        // SAFETY: the load is one i32; the destination holds a tile.
        unsafe {
            let step = self.io.loads[load].cast::<i32>().read() as u32;
            let dst = self.buffer_mut(dst, tile.len());
            let (pieces, len) = if tile.contiguous { (1, tile.len()) } else { (tile.rows, tile.width) };
            for piece in 0..pieces {
                let first = (tile.offset + piece * self.stride) as u64;
                fill_uniform(seed, step, stream, first, &mut dst[piece * len..][..len]);
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
        unsafe { std::slice::from_raw_parts_mut(self.accumulators.add(index * self.longest), len) }
    }

    /// Adds a tile to the accumulators of the reductions; the first tile of a range of columns starts them.
    #[inline(always)]
    unsafe fn accumulate(&self, tile: &Tile, lanes: usize, first: bool) {
        let mut next = 0;
        for sink in &self.program.sinks {
            // SAFETY: accumulators are distinct.
            unsafe {
                match *sink {
                    Sink::Store { .. } | Sink::Rows { .. } => {}
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
                Sink::Store { .. } | Sink::Rows { .. } => {}
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
            let cut = match self.program.rowwise {
                true => Cut { tile_rows: 1, lanes: cols.len() },
                false => Cut::new(cols.len(), self.tile_len),
            };
            let mut row = self.rows.start;
            while row < self.rows.end {
                let first = row == self.rows.start;
                let tile = self.tile(row, cut.tile_rows.min(self.rows.end - row), &cols);
                let steps = &self.program.steps[if first { 0 } else { self.program.column_steps }..];
                // SAFETY: the tile lies within the part that the caller vouches for. Reductions come first, because a
                // store may overwrite an input.
                unsafe {
                    // No closure: the compiler may leave one outside, compiled for the least of processors.
                    for step in steps {
                        self.step(step, &tile);
                    }
                    self.accumulate(&tile, cut.lanes, first);
                    for sink in &self.program.sinks {
                        match *sink {
                            Sink::Store { value, dtype, output } => {
                                self.store(value, dtype, self.io.outputs[output], &tile);
                            }
                            Sink::Rows { number, dtype, output } => {
                                let target = self.io.outputs[output].add(tile.row * dtype.size());
                                vector::narrow(dtype, &[self.number(number)], target);
                            }
                            Sink::Sum { .. } | Sink::Moments { .. } => {}
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
