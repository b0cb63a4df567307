//! Execution of a program over a part of the domain.

use super::FusionIo;
use super::block::{Function, Instr, LANE_GROUP, LONGEST_BLOCK, block_len};
use super::execute::Blocks;
use super::program::{BlockProgram, Label, NumberStep, Pattern, Program, Sink, Source, Step};
use super::reduce::{self, Lanes};
use super::schedule::Storage;
use crate::gemm::LINE;
use crate::random::fill_uniform;
use crate::rowwise;
use crate::simd::{Simd, SimdOp};
use crate::vector;
use std::ops::Range;

/// Elements of a tile, about.
pub(super) const TILE: usize = 1024;

/// Elements of the buffers that every tile reads, together at most: they stay in the first-level cache.
const BUFFERED: usize = 8192;

/// A part of the domain to be computed.
pub(super) struct RowLoop<'a> {
    program: &'a Program,
    io: &'a FusionIo<'a>,
    /// Columns of the domain.
    stride: usize,
    rows: Range<usize>,
    cols: Range<usize>,
    /// Addresses of all that block programs use, by [`Program::base`].
    bases: *mut *mut u8,
    /// Elements of the longest tile, and of an accumulator.
    longest: usize,
    /// Partial results of the block, `[slots, stride]`.
    partials: *mut f32,
}

/// `rows * width` elements that are computed at once, row after row.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub row: usize,
    pub rows: usize,
    pub col: usize,
    pub width: usize,
    /// Whether its elements are neighbours in a tensor of the shape of the domain.
    pub contiguous: bool,
    /// Position of the first one there.
    pub offset: usize,
}

impl Tile {
    fn len(&self) -> usize {
        self.rows * self.width
    }

    /// Elements from the first on that block programs read and write in place.
    fn in_place(&self, block: usize) -> usize {
        match self.contiguous || self.width.is_multiple_of(block) {
            true => self.len() / block * block,
            false => 0,
        }
    }
}

/// Sizes of the scratch memory of a row loop over a domain of that many columns.
struct Layout {
    longest: usize,
    /// Distance between tile buffers, in which the last block of a tile has room. Not a power of two, so that equal positions do not
    /// compete for one cache set.
    pitch: usize,
}

impl Layout {
    fn new(program: &Program, cols: usize) -> Layout {
        let longest = match program.rowwise {
            true => cols.next_multiple_of(LONGEST_BLOCK),
            false => (BUFFERED / program.buffers_of_tiles().max(1)).max(TILE / 2),
        };
        Layout { longest, pitch: longest.next_multiple_of(LONGEST_BLOCK) + LANE_GROUP }
    }

    /// Elements of scratch of what the places stand for, each in whole cache lines.
    fn len(&self, place: Storage) -> usize {
        match place {
            Storage::Scalar(_) => 1,
            Storage::Buffer(_) => self.pitch,
            Storage::Slot(_) => LONGEST_BLOCK,
            Storage::Accumulator(_) => self.longest.next_multiple_of(LONGEST_BLOCK),
            Storage::Fold(_) => rowwise::LANES,
            Storage::Source(_) | Storage::Output(_) => 0,
        }
    }
}

/// How the rows of a range of columns are cut into tiles.
struct Cut {
    tile_rows: usize,
    /// Length of the runs that sums are accumulated in: whole rows, so many that vector loops fit.
    lanes: usize,
}

impl Cut {
    /// Of tiles of at most `longest` elements: of whole blocks where rows in which these end fit.
    fn new(width: usize, longest: usize) -> Cut {
        let [regular, whole] =
            [LANE_GROUP, LONGEST_BLOCK].map(|len| len >> width.trailing_zeros().min(len.trailing_zeros()));
        let usual = TILE.min(longest);
        match () {
            _ if whole * width <= longest => {
                Cut { tile_rows: (usual / (whole * width)).max(1) * whole, lanes: regular * width }
            }
            _ if regular * width <= usual => {
                Cut { tile_rows: usual / (regular * width) * regular, lanes: regular * width }
            }
            _ => Cut { tile_rows: (usual / width).max(1), lanes: width },
        }
    }
}

/// The scratch memory as it is shared out.
struct Arena {
    next: *mut f32,
}

impl Arena {
    fn take(&mut self, len: usize) -> *mut u8 {
        let start = self.next;
        self.next = start.wrapping_add(len.next_multiple_of(LINE));
        start.cast()
    }
}

/// Elements of an address.
const ADDRESS: usize = size_of::<*mut u8>() / size_of::<f32>();

impl<'a> RowLoop<'a> {
    pub(super) fn new(
        program: &'a Program,
        io: &'a FusionIo<'a>,
        stride: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        scratch: &'a mut [f32],
        partials: *mut f32,
    ) -> RowLoop<'a> {
        let layout = Layout::new(program, stride);
        assert!(scratch.len() >= RowLoop::scratch_len(program, stride), "the scratch of a fusion is too short");
        let aligned = scratch.as_ptr().align_offset(64).min(LINE);
        let mut arena = Arena { next: scratch[aligned..].as_mut_ptr() };
        let bases: *mut *mut u8 = arena.take(program.bases() * ADDRESS).cast();
        let set = |base: usize, address: *mut u8| {
            // SAFETY: the table has a place for every base.
            unsafe { bases.add(base).write(address) };
        };
        set(Program::TEMPORARY, arena.take(2 * LONGEST_BLOCK));
        let numbers = arena.take(program.numbers);
        for i in 0..program.numbers {
            set(program.base(Storage::Scalar(i)), numbers.wrapping_add(i * size_of::<f32>()));
        }
        for place in program.own_memory() {
            set(program.base(place), arena.take(layout.len(place)));
        }
        for (i, source) in program.sources.iter().enumerate() {
            let memory = source.load.map_or(io.producer.cast(), |load| io.loads[load]);
            set(program.base(Storage::Source(i)), memory.cast_mut());
        }
        for (i, output) in io.outputs.iter().enumerate() {
            set(program.base(Storage::Output(i)), *output);
        }
        let row_loop = RowLoop { program, io, stride, rows, cols, bases, longest: layout.longest, partials };
        for (slot, step) in program.uniforms.iter().enumerate() {
            // SAFETY: a uniform value is read from the only element of an input, and there is a place for every number.
            unsafe { row_loop.set_scalar(slot, row_loop.scalar_step(step, 0)) };
        }
        row_loop
    }

    /// Elements of scratch for a domain of the given number of columns.
    pub(super) fn scratch_len(program: &Program, cols: usize) -> usize {
        let layout = Layout::new(program, cols);
        let own: usize = program.own_memory().map(|place| layout.len(place).next_multiple_of(LINE)).sum();
        let table = (program.bases() * ADDRESS).next_multiple_of(LINE);
        LINE + table + 2 * LONGEST_BLOCK + program.numbers.next_multiple_of(LINE) + own
    }

    /// Address of what a block program uses.
    #[inline(always)]
    fn address(&self, place: Storage) -> *mut u8 {
        // SAFETY: the table was filled when the row loop was made.
        unsafe { self.bases.add(self.program.base(place)).read() }
    }

    #[inline(always)]
    fn number(&self, slot: usize) -> f32 {
        // SAFETY: there is a place for every number, and it was written by an earlier step.
        unsafe { self.address(Storage::Scalar(slot)).cast::<f32>().read() }
    }

    /// # Safety
    /// `slot` is below the count of numbers.
    #[inline(always)]
    unsafe fn set_scalar(&self, slot: usize, x: f32) {
        // SAFETY: the caller's promise.
        unsafe { self.address(Storage::Scalar(slot)).cast::<f32>().write(x) }
    }

    /// # Safety
    /// The inputs are valid; `row` is within the domain.
    #[inline(always)]
    unsafe fn scalar_step(&self, step: &NumberStep, row: usize) -> f32 {
        match *step {
            NumberStep::Const(c) => c,
            NumberStep::Read { load, dtype, index_map } => {
                let mut value = [0.0];
                let index = index_map.index(self.stride, row, 0);
                // SAFETY: the caller's promise: the element is there.
                unsafe { vector::widen(dtype, self.io.loads[load].add(index * dtype.size()), &mut value) };
                value[0]
            }
            NumberStep::Function(function, a) => number_of(function, self.number(a)),
            NumberStep::Binary(kind, a, b) => vector::binary(kind, self.number(a), self.number(b)),
            NumberStep::Integer(kind, a, b) => vector::integers(kind, self.number(a), self.number(b)),
            NumberStep::Select(c, a, b) => self.number(if self.number(c) != 0.0 { a } else { b }),
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
    unsafe fn buffer(&self, index: usize, len: usize) -> &'a mut [f32] {
        // SAFETY: the scratch holds all buffers; a step never writes the buffers that it reads.
        unsafe { std::slice::from_raw_parts_mut(self.address(Storage::Buffer(index)).cast(), len) }
    }

    #[inline(always)]
    unsafe fn accumulator(&self, index: usize, len: usize) -> &'a mut [f32] {
        // SAFETY: the scratch holds all accumulators.
        unsafe { std::slice::from_raw_parts_mut(self.address(Storage::Accumulator(index)).cast(), len) }
    }

    #[inline(always)]
    unsafe fn fold(&self, index: usize) -> &'a mut [f32; rowwise::LANES] {
        // SAFETY: the scratch holds the lanes of all reductions.
        unsafe { &mut *self.address(Storage::Fold(index)).cast() }
    }

    #[inline(always)]
    unsafe fn one_hot(&self, label: Label, dst: usize, tile: &Tile) {
        // SAFETY: operand and destination are distinct buffers.
        unsafe {
            let dst = self.buffer(dst, tile.len());
            dst.fill(0.0);
            for (row, columns) in dst.chunks_exact_mut(tile.width).enumerate() {
                let label = match label {
                    Label::Scalar(slot) => self.number(slot),
                    Label::Buffer(index) => self.buffer(index, tile.len())[row * tile.width],
                };
                let column = i64::from(label.to_bits() as i32) - tile.col as i64;
                if let Some(one) = usize::try_from(column).ok().and_then(|column| columns.get_mut(column)) {
                    *one = 1.0;
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn random(&self, seed: u64, stream: u32, load: usize, dst: usize, tile: &Tile) {
        // SAFETY: the load is one i32; the destination holds a tile.
        unsafe {
            let step = self.io.loads[load].cast::<i32>().read() as u32;
            let dst = self.buffer(dst, tile.len());
            let (pieces, len) = if tile.contiguous { (1, tile.len()) } else { (tile.rows, tile.width) };
            for piece in 0..pieces {
                let first = (tile.offset + piece * self.stride) as u64;
                fill_uniform(seed, step, stream, first, &mut dst[piece * len..][..len]);
            }
        }
    }

    /// Brings the elements from position `start` of the tile on into the buffer of a source.
    #[inline(always)]
    unsafe fn read(&self, index: usize, tile: &Tile, start: usize) {
        let source = &self.program.sources[index];
        let memory = self.address(Storage::Source(index)).cast_const();
        let size = source.dtype.size();
        // SAFETY: every index is that of an element of the source.
        unsafe {
            let dst = self.buffer(source.buffer, tile.len());
            if let Pattern::Rows(index_map) = source.pattern
                && !index_map.by_col
            {
                for (i, row) in dst.chunks_exact_mut(tile.width).enumerate() {
                    let index = index_map.index(self.stride, tile.row + i, 0);
                    row.fill(read_one(source, memory, index));
                }
                return;
            }
            let end = if source.pattern == Pattern::Column { tile.width } else { dst.len() };
            let mut position = start;
            while position < end {
                let (index, len) = self.segment(source.pattern, tile, position);
                let piece = &mut dst[position..position + len];
                vector::widen(source.dtype, memory.add(index * size), piece);
                position += len;
            }
            if source.pattern == Pattern::Column {
                repeat(dst, end);
            }
        }
    }

    /// Where an element of the tile, the first of its row unless the tile is contiguous, lies in a source, and how many
    /// elements from there on are neighbours in the tile too.
    #[inline(always)]
    fn segment(&self, pattern: Pattern, tile: &Tile, position: usize) -> (usize, usize) {
        let row = position / tile.width;
        match pattern {
            Pattern::Full if tile.contiguous => (tile.offset + position, tile.len() - position),
            Pattern::Full => (tile.offset + row * self.stride, tile.width),
            Pattern::Column => (tile.col, tile.width),
            Pattern::Rows(index_map) => {
                let own = (tile.row + row) / index_map.row_div % index_map.row_mod;
                let whole = index_map.row_div == 1 && tile.width == self.stride;
                let run = if whole { (index_map.row_mod - own).min(tile.rows - row) } else { 1 };
                (own * self.stride + tile.col, run * tile.width)
            }
        }
    }

    /// Runs a block program on a tile, of which this many elements are read and written in place.
    #[inline(always)]
    unsafe fn run_blocks<S: Simd>(
        &self,
        program: &BlockProgram,
        tile: &Tile,
        lanes: Lanes,
        in_place: usize,
        ahead: usize,
    ) {
        let run = if tile.contiguous { in_place } else { tile.width };
        let (mut start, mut memory) = (0, tile.offset);
        // SAFETY: the table has the addresses of all that the program uses; sources and outputs have the elements of the
        // tile, and the rest of the scratch those of a tile filled up to whole blocks.
        unsafe {
            while start < in_place {
                let blocks = self.blocks(&program.in_place, tile, lanes);
                S::run_op(Blocks { start, memory, len: run, ahead, ..blocks });
                start += run;
                memory += if tile.contiguous { run } else { self.stride };
            }
            if in_place < tile.len() {
                let (memory, len) = (tile.offset + in_place, tile.len() - in_place);
                S::run_op(Blocks { start: in_place, memory, len, ..self.blocks(&program.staged, tile, lanes) });
            }
        }
    }

    /// A block program on the whole tile.
    #[inline(always)]
    fn blocks<'b>(&'b self, instrs: &'b [Instr], tile: &'b Tile, lanes: Lanes) -> Blocks<'b> {
        let (program, bases, stride) = (self.program, self.bases, self.stride);
        Blocks { program, instrs, bases, tile, stride, start: 0, memory: tile.offset, len: tile.len(), lanes, ahead: 0 }
    }

    /// Computes a tile. The first one of a range of columns starts what the others go on with.
    #[inline(always)]
    unsafe fn tile_steps<S: Simd>(&self, tile: &Tile, lanes: Lanes, ahead: usize) {
        let in_place = tile.in_place(block_len::<S>());
        // SAFETY: the tile lies within the part that the caller vouches for.
        unsafe {
            for (index, source) in self.program.sources.iter().enumerate() {
                if source.in_place && in_place < tile.len() {
                    self.read(index, tile, in_place);
                } else if !source.in_place && (lanes.first || source.pattern != Pattern::Column) {
                    self.read(index, tile, 0);
                }
            }
            if lanes.first {
                S::run_op(self.blocks(&self.program.columns, tile, lanes));
            }
            for (index, kind) in self.program.folds.iter().enumerate() {
                self.fold(index).fill(kind.identity() as f32);
            }
            // No closure: the compiler may leave one outside, compiled for the least of processors.
            for step in &self.program.steps {
                match *step {
                    Step::Run(ref program) => self.run_blocks::<S>(program, tile, lanes, in_place, ahead),
                    Step::Scalar { ref step, dst } => self.set_scalar(dst, self.scalar_step(step, tile.row)),
                    Step::Reduce { kind, fold, dst } => {
                        self.set_scalar(dst, rowwise::fold_lanes(kind, self.fold(fold)));
                    }
                    Step::OneHot { label, dst } => self.one_hot(label, dst, tile),
                    Step::Random { seed, stream, load, dst } => self.random(seed, stream, load, dst, tile),
                }
            }
            for sink in &self.program.sinks {
                if let Sink::Rows { number, dtype, output } = *sink {
                    let target = self.io.outputs[output].add(tile.row * dtype.size());
                    vector::narrow(dtype, &[self.number(number)], target);
                }
            }
        }
    }

    /// Sets the sums to zero.
    unsafe fn open(&self, lanes: usize) {
        for sink in &self.program.sinks {
            // SAFETY: accumulators are distinct.
            unsafe {
                match *sink {
                    Sink::Store { .. } | Sink::Rows { .. } => {}
                    Sink::Sum { accumulator, .. } => self.accumulator(accumulator, lanes).fill(0.0),
                    Sink::MeanVar { accumulator, .. } => {
                        self.accumulator(accumulator + 1, lanes).fill(0.0);
                        self.accumulator(accumulator + 2, lanes).fill(0.0);
                    }
                }
            }
        }
    }

    /// Writes the partial results of a range of columns.
    unsafe fn close(&self, cols: &Range<usize>, lanes: usize) {
        let rows = self.rows.len() as f64;
        for sink in &self.program.sinks {
            let partial = |slot: usize| {
                // SAFETY: the partial results of the block have `stride` columns in every slot.
                unsafe {
                    let start = self.partials.add(slot * self.stride + cols.start);
                    std::slice::from_raw_parts_mut(start, cols.len())
                }
            };
            // SAFETY: accumulators are distinct.
            let accumulator = |index: usize| unsafe { self.accumulator(index, lanes) };
            match *sink {
                Sink::Store { .. } | Sink::Rows { .. } => {}
                Sink::Sum { slot, accumulator: index, .. } => {
                    let sums = accumulator(index);
                    for (col, out) in partial(slot).iter_mut().enumerate() {
                        *out = reduce::fold(sums, cols.len(), col) as f32;
                    }
                }
                Sink::MeanVar { slot, accumulator: index, .. } => {
                    let [near, rest, deviations] = [0, 1, 2].map(|part| partial(slot + part));
                    let [shift, sums, squares] = [0, 1, 2].map(|part| accumulator(index + part));
                    near.copy_from_slice(&shift[..cols.len()]);
                    for col in 0..cols.len() {
                        let mean = reduce::fold(sums, cols.len(), col) / rows;
                        let square = reduce::fold(squares, cols.len(), col);
                        rest[col] = mean as f32;
                        deviations[col] = (square - rows * mean * mean).max(0.0) as f32;
                    }
                }
            }
        }
    }
}

impl SimdOp for RowLoop<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // Several rows that fit a tile are not cut.
        let is_whole = self.program.rowwise || self.rows.len() > 1 && self.cols.len() <= self.longest;
        let most = if is_whole { self.longest } else { TILE.min(self.longest / LONGEST_BLOCK * LONGEST_BLOCK) };
        let chunks = self.cols.len().div_ceil(most);
        let chunk = self.cols.len().div_ceil(chunks).next_multiple_of(LONGEST_BLOCK);
        let chunk = chunk.min(self.cols.len()).min(most);
        let mut start = self.cols.start;
        while start < self.cols.end {
            let cols = start..self.cols.end.min(start + chunk);
            // Rows of some of the columns are not neighbours in memory: long ones are worked on one by one.
            let row_by_row = cols.len() < self.stride && cols.len() >= LONGEST_BLOCK;
            let cut = match self.program.rowwise || row_by_row {
                true => Cut { tile_rows: 1, lanes: cols.len() },
                false => Cut::new(cols.len(), self.longest),
            };
            let ahead = if self.rows.len() == 1 { chunk } else { cut.tile_rows * self.stride };
            // SAFETY: the tiles lie within the part that the caller vouches for.
            unsafe {
                self.open(cut.lanes);
                let mut row = self.rows.start;
                while row < self.rows.end {
                    let tile = self.tile(row, cut.tile_rows.min(self.rows.end - row), &cols);
                    let regular = cut.lanes.is_multiple_of(LANE_GROUP) || tile.len() <= cut.lanes;
                    let lanes = Lanes { count: cut.lanes, regular, first: row == self.rows.start };
                    self.tile_steps::<S>(&tile, lanes, ahead);
                    row += tile.rows;
                }
                self.close(&cols, cut.lanes);
            }
            start = cols.end;
        }
    }
}

/// A function of one number.
fn number_of(function: Function, x: f32) -> f32 {
    match function {
        Function::Unary(kind) => vector::unary(kind, x),
        Function::Cast(to) => vector::cast(to, x),
        Function::ToInteger => vector::to_integer(x),
        Function::FromInteger => vector::from_integer(x),
        Function::Integer(kind) => unreachable!("{} is of two numbers", kind.name()),
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
