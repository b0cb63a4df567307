//! Products by blocks of output rows: rows of `A` are read where they lie, or copied into a block; `B` is packed before and shared.

use std::ops::Range;

use super::affine::AffinePtr;
use super::blocking::{BlockRuns, LARGEST_BLOCK, RowBlocks, column_groups, even_chunks, joined_blocks, row_blocks_for};
use super::memory::{Destination, Scratch, SharedMut, aligned_len};
use super::store::Store;
use super::tile::{ALayout, LINE, MAX_DEPTH, ROW_STRIDE, Run, depth_step, panel};
use super::tile_loop::{Ending, MemoryBlock, NO_ROW, OperandRows, Prefetch, Sums, TileLoop};
use super::tiles::{MAX_POSITIONS, TILES_ROWS, is_good_pitch, sums_len};
use super::typed_slice::TypedPtr;
use super::{Ctx, Epilogue, free_threads};
use crate::simd::{PanelFormat, Simd, SimdOp, TILE_STEPS};

/// Most rows of a block of A.
pub(crate) const MAX_ROWS: usize = LARGEST_BLOCK;

/// Most rows of a block of A that is multiplied by vectors: it stays in the second-level cache together with B. Tiles take all
/// rows, as they read a panel of B from the first-level cache the faster.
const VECTOR_GROUP: usize = 112;

/// Columns for which a block of A is used before it is replaced: B of this width and a block of C stay in the
/// second-level cache.
pub(super) const MAX_COLS: usize = 1024;

/// The same for tiles, with a block of sums of 32 bits.
const TILES_COLS: usize = 512;

/// Up to this many columns, copying A weighs more than reading B from the second-level cache, or multiplying what no row of C
/// wants.
pub(crate) const FEW_COLS: usize = 128;

/// Most columns of windows.
const MAX_WINDOW_COLS: usize = 256;

/// Rows at multiples of so many elements of 32 bits fall into a half, or less, of the sets of a first-level cache of 32 KB: more
/// rows than it has places for are not read there.
const FAR_PITCH: usize = 32 * LINE;

/// Longest part of a reduction of tiles: a panel of B and two tiles of rows of A stay in the first-level cache.
const TILES_DEPTH: usize = MAX_DEPTH / 2;

/// Longest part of a reduction over windows: nine taps of 64 channels.
const WINDOW_DEPTH: usize = 9 * 64 / 2;

/// Rows of a block of A that stays in the first-level cache, where there are few columns.
const SMALL_GROUP: usize = 28;

/// Elements of B that stay in the second-level cache from row block to row block.
pub(super) const RESIDENT_B: usize = 192 * 1024;

/// Where a row of A comes from.
#[derive(Clone, Copy, Default)]
pub(crate) struct Row {
    /// Offset of its first element; for an image, of the pixel under the first kernel tap, which may lie outside.
    pub origin: isize,
    /// Position of that pixel.
    pub y: isize,
    pub x: isize,
    /// Number of the image.
    pub image: usize,
}

/// Where elements of a row are copied to.
pub(crate) trait RowAddress: Copy {
    /// The place `count` elements on.
    ///
    /// # Safety
    /// As for pointers.
    unsafe fn at(self, count: usize) -> Self;
    /// Copies `len` elements here.
    ///
    /// # Safety
    /// They are there and there is room for them. Called under `S::run_op`.
    unsafe fn take<S: Simd>(self, src: TypedPtr, len: usize);
    /// Copies `len` elements here, scaled and shifted.
    ///
    /// # Safety
    /// As for [`take`](Self::take); that many channels are there.
    unsafe fn take_affine<S: Simd>(self, src: TypedPtr, len: usize, affine: AffinePtr);
    /// Writes `len` zeros here.
    ///
    /// # Safety
    /// As for [`take`](Self::take).
    unsafe fn zero<S: Simd>(self, len: usize);
}

/// As `f32`.
impl RowAddress for *mut f32 {
    #[inline(always)]
    unsafe fn at(self, count: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { self.add(count) }
    }
    #[inline(always)]
    unsafe fn take<S: Simd>(self, src: TypedPtr, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { src.copy::<S>(self, len) }
    }
    #[inline(always)]
    unsafe fn take_affine<S: Simd>(self, src: TypedPtr, len: usize, affine: AffinePtr) {
        // SAFETY: the caller's promise.
        unsafe { affine.copy::<S>(src, self, len) }
    }
    #[inline(always)]
    unsafe fn zero<S: Simd>(self, len: usize) {
        let whole = len / S::LANES * S::LANES;
        // SAFETY: the caller's promise.
        unsafe {
            for i in (0..whole).step_by(S::LANES) {
                S::store(self.add(i), S::splat(0.0));
            }
            for i in whole..len {
                *self.add(i) = 0.0;
            }
        }
    }
}

/// 16-bit elements as they are.
impl RowAddress for *mut u16 {
    #[inline(always)]
    unsafe fn at(self, count: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { self.add(count) }
    }
    #[inline(always)]
    unsafe fn take<S: Simd>(self, src: TypedPtr, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { src.copy_16::<S>(self, len) }
    }
    #[inline(always)]
    unsafe fn take_affine<S: Simd>(self, _: TypedPtr, _: usize, _: AffinePtr) {
        unreachable!("operands that are scaled are multiplied as f32")
    }
    #[inline(always)]
    unsafe fn zero<S: Simd>(self, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.write_bytes(0, len) }
    }
}

/// Rows of A, copied piece by piece as they are needed.
pub(crate) trait RowSource: Sync {
    /// Row number `index`.
    fn locate(&self, index: usize) -> Row;

    /// The row after this one.
    fn after(&self, row: Row) -> Row;

    /// The rows from number `start` on.
    #[inline(always)]
    fn list(&self, start: usize, rows: &mut [Row]) {
        let mut next = self.locate(start);
        for row in rows {
            *row = next;
            next = self.after(next);
        }
    }

    /// Copies elements `range` of a row to `dst`.
    ///
    /// # Safety
    /// `dst` has room for them. Called under `S::run_op`.
    unsafe fn copy<S: Simd, D: RowAddress>(&self, row: Row, range: Range<usize>, dst: D);

    /// Where elements `range` of a row lie, if they are neighbours in memory and are taken as they are. Where that holds for the ends
    /// of rows at equal distances, it holds for rows between them.
    fn in_place(&self, row: Row, range: Range<usize>) -> Option<TypedPtr>;

    /// Copies the images under `rows`, with zeros around them, to `dst`, if windows on them are rows of A that are better read there
    /// than copied for a product of the given number of columns; then it says in `windows` how they are.
    ///
    /// # Safety
    /// `dst` is a cache line of [`WINDOWS_LEN`] elements of 32 bits. Called under `S::run_op`.
    #[inline(always)]
    unsafe fn windows<S: Simd>(&self, _rows: &[Row], _cols: usize, _dst: *mut f32, _windows: &mut Windows) -> bool {
        false
    }

    /// Copies the images under `rows`, with zeros around them, to `dst`, if rows are better read there by vectors than copied one
    /// by one.
    ///
    /// # Safety
    /// `dst` is a cache line of [`WINDOWS_LEN`] elements of 32 bits. Called under `S::run_op`.
    #[inline(always)]
    unsafe fn bordered<S: Simd>(&self, _rows: &[Row], _dst: *mut f32) -> Option<PlacedRows> {
        None
    }

    /// Elements of a row.
    fn row_len(&self) -> usize;

    /// The distance of the rows in memory, if it is the same between all of them, and each lies [`in_place`](Self::in_place).
    fn pitch(&self) -> Option<usize> {
        None
    }

    /// About the memory of elements `range` of `rows`, less what rows before have touched. A hint.
    fn memory(&self, rows: Range<usize>, range: Range<usize>) -> MemoryBlock;
}

/// Rows of A in memory, to be multiplied by vectors.
pub(crate) struct PlacedRows {
    pub start: *const f32,
    /// Offset of each row from the start.
    pub rows: [usize; MAX_ROWS],
    /// Steps of a row that are neighbours, and the distance from the first one of these to that of the next ones.
    pub run: usize,
    pub pitch: usize,
}

/// Most runs of a row.
pub(crate) const MAX_RUNS: usize = 16;

impl PlacedRows {
    /// The runs of some steps of each row.
    #[inline(always)]
    fn runs(&self, steps: Range<usize>) -> ([Run; MAX_RUNS], usize) {
        let (first, skipped) = (steps.start / self.run, steps.start % self.run);
        let count = steps.end.div_ceil(self.run) - first;
        let mut runs = [Run { offset: 0, depth: self.run }; MAX_RUNS];
        for (i, run) in runs[..count].iter_mut().enumerate() {
            run.offset = (first + i) * self.pitch;
        }
        runs[0] = Run { offset: runs[0].offset + skipped, depth: self.run - skipped };
        (runs, count)
    }
}

/// Rows of A as windows on images with a border, of pairs of elements: at a position, `pitch` elements of 32 bits from the one
/// before, begins the window of which the row consists, with the same offsets for all positions.
pub(crate) struct Windows {
    /// Position of each row, ascending, below [`MAX_POSITIONS`].
    pub positions: [usize; MAX_ROWS],
    pub pitch: usize,
    /// Bytes from a position to each [`TILE_STEPS`] steps of its row.
    pub offsets: [usize; MAX_OFFSETS],
}

/// Most offsets of windows.
pub(crate) const MAX_OFFSETS: usize = 512;

/// Elements of the room for images.
pub(crate) const WINDOWS_LEN: usize = 192 * 1024;

/// The rows of a matrix.
pub(crate) struct MatrixRows {
    pub src: TypedPtr,
    pub ld: usize,
    /// Elements of a row.
    pub len: usize,
}

// SAFETY: only read, and whoever builds one vouches for its extent.
unsafe impl Sync for MatrixRows {}

impl RowSource for MatrixRows {
    #[inline(always)]
    fn locate(&self, index: usize) -> Row {
        Row { origin: (index * self.ld) as isize, y: 0, x: 0, image: 0 }
    }

    #[inline(always)]
    fn after(&self, row: Row) -> Row {
        Row { origin: row.origin + self.ld as isize, ..row }
    }

    #[inline(always)]
    unsafe fn copy<S: Simd, D: RowAddress>(&self, row: Row, range: Range<usize>, dst: D) {
        // SAFETY: the caller's promise, and the matrix has the row.
        unsafe { dst.take::<S>(self.src.offset(row.origin).add(range.start), range.len()) }
    }

    #[inline(always)]
    fn in_place(&self, row: Row, range: Range<usize>) -> Option<TypedPtr> {
        Some(self.src.offset(row.origin).add(range.start))
    }

    #[inline(always)]
    fn pitch(&self) -> Option<usize> {
        Some(self.ld)
    }

    #[inline(always)]
    fn row_len(&self) -> usize {
        self.len
    }

    fn memory(&self, rows: Range<usize>, range: Range<usize>) -> MemoryBlock {
        self.src.add(rows.start * self.ld + range.start).memory(rows.len(), range.len(), self.ld)
    }
}

/// Up to [`MAX_ROWS`] rows of A and the offsets of their rows of C. It is large: tasks make one and fill it for each of their blocks.
pub(crate) struct RowTable {
    len: usize,
    /// The distance of the rows, where it is known to be the same between all of them: then only the first one is listed.
    pitch: Option<usize>,
    rows: [Row; MAX_ROWS],
    c_rows: [usize; MAX_ROWS],
    /// Room for windows, and for the offsets of the rows of C at each of their positions.
    windows: Windows,
    position_rows: [usize; MAX_POSITIONS],
}

impl RowTable {
    pub(crate) fn new() -> RowTable {
        RowTable {
            len: 0,
            pitch: None,
            rows: [Row::default(); MAX_ROWS],
            c_rows: [0; MAX_ROWS],
            windows: Windows { positions: [0; MAX_ROWS], pitch: 0, offsets: [0; MAX_OFFSETS] },
            position_rows: [NO_ROW; MAX_POSITIONS],
        }
    }

    /// Fills the table with some rows, and those of a matrix C whose rows are `ldc` elements apart.
    #[inline(always)]
    pub(crate) fn fill<P: RowSource>(&mut self, source: &P, rows: Range<usize>, ldc: usize) {
        self.len = rows.len();
        self.pitch = source.pitch();
        let mut next = rows.start * ldc;
        for c_row in &mut self.c_rows[..self.len] {
            *c_row = next;
            next += ldc;
        }
        let listed = if self.pitch.is_some() { self.len.min(1) } else { self.len };
        source.list(rows.start, &mut self.rows[..listed]);
    }

    /// Row number `index`.
    #[inline(always)]
    fn row(&self, index: usize) -> Row {
        match self.pitch {
            Some(pitch) => Row { origin: self.rows[0].origin + (index * pitch) as isize, ..self.rows[0] },
            None => self.rows[index],
        }
    }

    /// The rows, unless they are at a known distance.
    #[inline(always)]
    fn listed(&self) -> Option<&[Row]> {
        self.pitch.is_none().then(|| &self.rows[..self.len])
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, row: Row, c_row: usize) {
        self.rows[self.len] = row;
        self.c_rows[self.len] = c_row;
        self.len += 1;
    }

    /// Offsets of the rows of C.
    pub(crate) fn c_rows(&self) -> &[usize] {
        &self.c_rows[..self.len]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len == MAX_ROWS
    }

    pub(crate) fn clear(&mut self) {
        (self.len, self.pitch) = (0, None);
    }
}

/// One block of rows and some columns of a product, as a task computes it.
pub(crate) struct RowBlock<'a, P> {
    pub source: &'a P,
    pub table: &'a mut RowTable,
    pub packed: *const f32,
    pub k: usize,
    /// Starts at a panel.
    pub cols: Range<usize>,
    pub c: SharedMut,
    /// Distance of the rows of C.
    pub ldc: usize,
    pub accumulate: bool,
    /// Room for a block of A, and for sums.
    pub a_block: *mut f32,
    /// Memory that will be wanted next.
    pub prefetch: MemoryBlock,
    /// What becomes of finished elements, in place of being left in C.
    pub store: Option<&'a Store>,
}

impl<P: RowSource> SimdOp for RowBlock<'_, P> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let one_part = self.store.is_some() && self.k <= MAX_DEPTH;
        let depths =
            even_chunks(self.k, if S::TILES && !one_part { TILES_DEPTH } else { MAX_DEPTH }, depth_step::<S>());
        let chunks = even_chunks(self.cols.len(), if S::TILES { TILES_COLS } else { MAX_COLS }, panel::<S>());
        let group = match self.cols.len() <= FEW_COLS {
            _ if S::TILES => MAX_ROWS,
            true => SMALL_GROUP,
            false => VECTOR_GROUP,
        };
        let mut prefetch = Prefetch::new([self.prefetch, MemoryBlock::EMPTY]);
        // SAFETY: the promises made for this block.
        unsafe {
            if S::TILES
                && self.cols.len() <= MAX_WINDOW_COLS
                && let Some(positions) = self.find_windows::<S>()
            {
                return self.multiply_windows::<S>(positions, &mut prefetch);
            }
        }
        // SAFETY: the promises made for this block.
        let placed = if S::TILES { None } else { unsafe { self.placed::<S>() } };
        for chunk in 0..chunks.count {
            let cols = chunks.range(chunk, self.cols.len());
            let cols = self.cols.start + cols.start..self.cols.start + cols.end;
            for block in 0..depths.count {
                let depth = depths.range(block, self.k);
                for start in (0..self.table.len).step_by(group) {
                    let rows = start..self.table.len.min(start + group);
                    // SAFETY: the promises made for this block.
                    unsafe { self.group::<S>(placed.as_ref(), rows, cols.clone(), depth.clone(), &mut prefetch) };
                }
            }
        }
    }
}

impl<P: RowSource> RowBlock<'_, P> {
    /// Rows that vectors read where they lie, if they can: in the operand itself, or in copies of images.
    ///
    /// # Safety
    /// As for [`group`](Self::group).
    #[inline(always)]
    unsafe fn placed<S: Simd>(&self) -> Option<PlacedRows> {
        let rows = 0..self.table.len;
        let first = rows.clone().next().map(|row| self.table.row(row))?;
        let row_len = self.source.row_len();
        let in_place = |row| self.source.in_place(self.table.row(row), 0..row_len);
        let are_in_place = self.table.pitch.is_some() || rows.clone().all(|row| in_place(row).is_some());
        let Some(start) = in_place(0).filter(|_| are_in_place) else {
            let rows = self.table.listed().filter(|_| self.cols.len() <= MAX_WINDOW_COLS)?;
            // SAFETY: the caller's promises.
            return unsafe { self.source.bordered::<S>(rows, self.a_block) };
        };
        let (start, unit) = match S::DOT2 {
            true => (start.as_16().cast::<f32>(), 2),
            false => (start.as_f32()?, 1),
        };
        let offset = |row| (self.table.row(row).origin - first.origin) as usize;
        let pitch = rows.clone().nth(1).map_or(0, offset);
        let is_far = pitch > 0 && (pitch / unit).is_multiple_of(FAR_PITCH);
        let are_whole = match self.table.pitch {
            Some(pitch) => pitch.is_multiple_of(unit) || rows.len() == 1,
            None => rows.clone().all(|row| offset(row).is_multiple_of(unit)),
        };
        if is_far || !start.is_aligned() || !row_len.is_multiple_of(unit) || !are_whole {
            return None;
        }
        let mut offsets = [0; MAX_ROWS];
        for (to, row) in offsets.iter_mut().zip(rows) {
            *to = offset(row) / unit;
        }
        Some(PlacedRows { start, rows: offsets, run: self.k.max(1), pitch: 0 })
    }

    /// Multiplies some rows of A, which are copied before unless they can be read in place.
    ///
    /// # Safety
    /// The task owns its rows and columns of C and its block of A; B is packed. Called under `S::run_op`.
    #[inline(always)]
    unsafe fn group<S: Simd>(
        &self,
        by_vectors: Option<&PlacedRows>,
        rows: Range<usize>,
        cols: Range<usize>,
        depth: Range<usize>,
        prefetch: &mut Prefetch,
    ) {
        if let Some(placed) = by_vectors {
            let (runs, count) = placed.runs(depth.clone());
            let a = OperandRows {
                rows: &placed.rows[rows.clone()],
                runs: &runs[..count],
                ..OperandRows::packed(placed.start)
            };
            // SAFETY: the caller's promises.
            return unsafe { self.tile_loop::<S>(a, self.table.c_rows(), rows, cols, depth, prefetch) };
        }
        let in_place = if S::TILES { self.in_place(rows.clone(), depth.clone()) } else { None };
        let whole = match in_place {
            Some(_) if rows.len().is_multiple_of(TILE_STEPS) => rows.len(),
            Some(_) => rows.len() / TILES_ROWS * TILES_ROWS,
            None => 0,
        };
        let (placed, copied) = (rows.start..rows.start + whole, rows.start + whole..rows.end);
        // SAFETY: the caller's promises.
        unsafe {
            if let Some((start, stride)) = in_place {
                let a = OperandRows { stride, ..OperandRows::packed(start) };
                self.tile_loop::<S>(a, self.table.c_rows(), placed, cols.clone(), depth.clone(), prefetch);
            }
            if !copied.is_empty() {
                self.copy_rows::<S>(copied.clone(), depth.clone());
                let a = OperandRows::packed(self.a_block);
                self.tile_loop::<S>(a, self.table.c_rows(), copied, cols, depth, prefetch);
            }
        }
    }

    /// Copies images, if rows of A are windows on them. Then the table has these, and the offsets of the rows of C at as many positions
    /// as are returned.
    ///
    /// # Safety
    /// As for [`group`](Self::group).
    #[inline(always)]
    unsafe fn find_windows<S: Simd>(&mut self) -> Option<usize> {
        let RowTable { len, pitch: None, rows, c_rows, windows, position_rows } = &mut *self.table else { return None };
        // SAFETY: the caller's promise.
        let are_windows = unsafe { self.source.windows::<S>(&rows[..*len], self.cols.len(), self.a_block, windows) };
        if !are_windows {
            return None;
        }
        let positions = &windows.positions[..*len];
        let end = positions.last().map_or(0, |last| last + 1);
        position_rows[..end].fill(NO_ROW);
        for (&position, &c_row) in positions.iter().zip(&c_rows[..*len]) {
            position_rows[position] = c_row;
        }
        Some(end)
    }

    /// Multiplies rows of A that are windows on images, at some positions.
    ///
    /// # Safety
    /// As for [`group`](Self::group); the images are there, with room for whole tiles behind them.
    #[inline(always)]
    unsafe fn multiply_windows<S: Simd>(&self, positions: usize, prefetch: &mut Prefetch) {
        let windows = &self.table.windows;
        let depths = even_chunks(self.k, WINDOW_DEPTH, TILE_STEPS);
        for block in 0..depths.count {
            let depth = depths.range(block, self.k);
            let a = OperandRows {
                stride: windows.pitch,
                offsets: &windows.offsets[depth.start / TILE_STEPS..],
                ..OperandRows::packed(self.a_block)
            };
            // SAFETY: the caller's promises.
            unsafe {
                let c_rows = &self.table.position_rows[..positions];
                self.tile_loop::<S>(a, c_rows, 0..positions, self.cols.clone(), depth, prefetch);
            }
        }
    }

    /// Where rows of A lie at equal distances in memory, with nothing but elements of A up to the last step of whole tiles: their
    /// start and the distance.
    #[inline(always)]
    fn in_place(&self, rows: Range<usize>, depth: Range<usize>) -> Option<(*const f32, usize)> {
        let elements = 2 * depth.start..2 * depth.end;
        if elements.end > self.source.row_len() || !depth.len().is_multiple_of(TILE_STEPS) {
            return None;
        }
        let mut origins = rows.clone().map(|row| self.table.row(row).origin);
        let [first, second] = [origins.next()?, origins.next()?];
        let stride = second - first;
        let is_regular = |(i, origin)| origin == second + (i as isize + 1) * stride;
        if stride <= 0
            || stride % 2 != 0
            || !is_good_pitch(stride as usize / 2)
            || !(self.table.pitch.is_some() || origins.enumerate().all(is_regular))
        {
            return None;
        }
        let ends = [rows.start, rows.end - 1].map(|row| self.source.in_place(self.table.row(row), elements.clone()));
        let [Some(start), Some(_)] = ends else { return None };
        let start = start.as_16().cast::<f32>();
        start.is_aligned().then_some((start, stride as usize / 2))
    }

    /// Copies rows of A to the block.
    ///
    /// # Safety
    /// As for [`group`](Self::group).
    #[inline(always)]
    unsafe fn copy_rows<S: Simd>(&self, rows: Range<usize>, depth: Range<usize>) {
        for (i, row) in rows.map(|row| self.table.row(row)).enumerate() {
            // SAFETY: the caller's promises.
            unsafe {
                let line = self.a_block.add(i * ROW_STRIDE);
                if S::DOT2 {
                    let elements = 2 * depth.start..self.source.row_len().min(2 * depth.end);
                    let line = line.cast::<u16>();
                    self.source.copy::<S, _>(row, elements.clone(), line);
                    line.at(elements.len()).zero::<S>(2 * depth.len() - elements.len());
                } else {
                    self.source.copy::<S, _>(row, depth.clone(), line);
                }
            }
        }
    }

    /// Multiplies rows of A with columns of B. The rows are those of a list, where they begin at whole tiles.
    ///
    /// # Safety
    /// As for [`group`](Self::group); the rows are there, in whole tiles where tiles are multiplied.
    #[inline(always)]
    unsafe fn tile_loop<S: Simd>(
        &self,
        a: OperandRows<'_>,
        c_rows: &[usize],
        rows: Range<usize>,
        cols: Range<usize>,
        depth: Range<usize>,
        prefetch: &mut Prefetch,
    ) {
        // SAFETY: the caller's promises.
        unsafe {
            let b = self.packed.add(cols.start * self.k + depth.start * panel::<S>());
            // Where no other block of rows comes next, B may be read this once, as of one image.
            let stream_b = self.k * self.cols.len() > RESIDENT_B || self.prefetch.is_empty();
            let tile_loop = TileLoop {
                layout: ALayout::Rows,
                depth: depth.len(),
                a,
                a_tile: 0,
                b,
                b_panel: self.k * panel::<S>(),
                cols: cols.len(),
                c: self.c.0.add(cols.start),
                c_rows: &c_rows[rows.clone()],
                accumulate: self.accumulate || depth.start > 0,
                stream_b,
                b_next: b.wrapping_add(depth.len() * panel::<S>()),
            };
            let is_last = depth.end == self.k;
            let store = self.store.filter(|_| is_last).map(|store| store.from(cols.start, cols.start));
            let is_whole = depth.len() == self.k;
            let apart = S::TILES && !is_whole && !self.accumulate && (self.store.is_some() || !is_good_pitch(self.ldc));
            let sums = apart.then(|| Sums {
                start: self.a_block.add(SUMS + sums_len(rows.start, 1)),
                panel: sums_len(c_rows.len(), 1),
            });
            tile_loop.run_then::<S>(prefetch, &Ending { sums, is_last, store: store.as_ref() });
        }
    }
}

/// Scratch elements of the tasks of `threads` workers.
pub(crate) fn row_scratch_len(threads: usize) -> usize {
    threads * A_BLOCK + aligned_len(0)
}

/// A block of rows, or images under windows, and sums of tiles.
const A_BLOCK: usize = SUMS + SUMS_LEN;

/// Where in a block sums of tiles begin.
const SUMS: usize = if MAX_ROWS * ROW_STRIDE > WINDOWS_LEN { MAX_ROWS * ROW_STRIDE } else { WINDOWS_LEN };

/// Elements of sums of tiles: of a block of rows, or of all positions of windows.
const SUMS_LEN: usize = {
    let (rows, positions) = (sums_len(MAX_ROWS, TILES_COLS), sums_len(MAX_POSITIONS, MAX_WINDOW_COLS));
    if rows > positions { rows } else { positions }
};

/// The blocks of A of all workers.
pub(crate) struct BlockScratch(SharedMut);

impl BlockScratch {
    pub(crate) fn new(mut scratch: Scratch, threads: usize) -> BlockScratch {
        BlockScratch(scratch.take(threads * A_BLOCK))
    }

    pub(crate) fn of(&self, worker: usize) -> *mut f32 {
        // SAFETY: the pool's workers are numbered below its thread count.
        unsafe { self.0.add(worker * A_BLOCK).0 }
    }
}

/// Indices of block and row, as an epilogue gets them, of the first row of a product.
#[derive(Clone, Copy)]
pub(crate) struct Origin {
    pub block: usize,
    pub row: usize,
}

impl Origin {
    pub(crate) const FIRST: Origin = Origin { block: 0, row: 0 };
}

/// `C (+)= A * B` with B packed.
pub(crate) struct RowProduct<'a, P> {
    pub source: &'a P,
    pub packed: *const f32,
    /// Of the packed B.
    pub format: PanelFormat,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub c: Destination,
    pub ldc: usize,
    pub accumulate: bool,
}

// SAFETY: `packed` is only read, `c` is written by tasks in different places.
unsafe impl<P: RowSource> Sync for RowProduct<'_, P> {}

impl<P: RowSource> RowProduct<'_, P> {
    /// # Safety
    /// The source has `m` rows of `k` steps, B is packed for the instruction set, C is valid and unshared.
    pub(crate) unsafe fn run(&self, ctx: Ctx<'_>, scratch: Scratch, origin: Origin, epilogue: Option<&dyn Epilogue>) {
        let blocks = row_blocks_for(self.m, self.n, self.source.row_len());
        let scratch = BlockScratch::new(scratch, ctx.pool.threads());
        let store = epilogue.and_then(|epilogue| epilogue.as_store());
        let store = store.map(|store| store.from(origin.row * self.ldc, 0));
        let store = store.as_ref();
        // What is stored as it is finished has no room in C that would bound a block.
        let joined = match store {
            Some(_) if self.format == PanelFormat::Tiles => joined_blocks(blocks, ctx.pool.threads()),
            _ => 1,
        };
        let units = RowBlocks::new(self.m, joined * blocks.rows);
        let groups = column_groups(units, self.n, self.format, free_threads(ctx, epilogue));
        let runs = BlockRuns::new(units.count, ctx.pool.threads());
        ctx.pool.run(runs.count() * groups.count, &|task, worker| {
            let cols = groups.range(task % groups.count, self.n);
            let mut table = RowTable::new();
            for (unit, next) in runs.blocks(task / groups.count) {
                let rows = units.range(unit, self.m);
                let prefetch = next.map_or(MemoryBlock::EMPTY, |next| {
                    self.source.memory(units.range(next, self.m), 0..self.source.row_len())
                });
                // SAFETY: the caller's promises; tasks have different rows or columns.
                unsafe {
                    let a_block = scratch.of(worker);
                    self.block(ctx, worker, rows, cols.clone(), &mut table, a_block, prefetch, store);
                }
                let Some(epilogue) = epilogue else { continue };
                for block in unit * joined..blocks.count.min((unit + 1) * joined) {
                    let rows = blocks.range(block, self.m);
                    let (block, rows) = (origin.block + block, origin.row + rows.start..origin.row + rows.end);
                    match store {
                        None => epilogue.block(worker, block, rows, cols.clone()),
                        Some(_) => epilogue.stored_block(worker, block, rows, cols.clone()),
                    }
                }
            }
        });
    }

    /// Computes rows and columns of C on the calling thread. What was in the table before does not count.
    ///
    /// # Safety
    /// As [`run`](Self::run), and `a_block` has room for a block of A.
    pub(crate) unsafe fn block(
        &self,
        ctx: Ctx<'_>,
        worker: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        table: &mut RowTable,
        a_block: *mut f32,
        prefetch: MemoryBlock,
        store: Option<&Store>,
    ) {
        let c = self.c.block(worker, rows.start * self.ldc);
        for start in rows.clone().step_by(MAX_ROWS) {
            table.fill(self.source, start..rows.end.min(start + MAX_ROWS), self.ldc);
            let block = RowBlock {
                source: self.source,
                table,
                packed: self.packed,
                k: self.k,
                cols: cols.clone(),
                c,
                ldc: self.ldc,
                accumulate: self.accumulate,
                a_block,
                prefetch,
                store,
            };
            // SAFETY: the caller's promises.
            unsafe { block.run_product_on(ctx.isa, self.format) };
        }
    }
}
