//! The register tile: all multiplications of matmul and convolution happen here.

use crate::isa::Isa;
use crate::simd::{Simd, SimdOp, TILE_STEPS};
use std::hint::black_box;
use std::marker::PhantomData;

/// Columns of a panel of B are at most this many, on every instruction set; column splits are multiples of it.
pub(crate) const MAX_PANEL: usize = 32;

/// Longest reduction of one tile call: a panel of B of this depth stays in the first-level cache.
pub(crate) const MAX_DEPTH: usize = 256;

/// Distance of rows in a row-major block of A: not a power of two, so that rows fall into different cache sets.
pub(crate) const ROW_STRIDE: usize = MAX_DEPTH + 16;

/// Distance of reduction steps in a column panel of A where tiles have more than 8 rows; else half of it.
pub(crate) const COLUMN_STRIDE: usize = 16;

/// Distance of reduction steps in a column panel of A.
#[inline(always)]
pub(crate) const fn column_stride<S: Simd>() -> usize {
    if S::TILE_ROWS > COLUMN_STRIDE / 2 { COLUMN_STRIDE } else { COLUMN_STRIDE / 2 }
}

/// Lengths of a part of a reduction are multiples of it, but for the last part.
#[inline(always)]
pub(crate) const fn depth_step<S: Simd>() -> usize {
    if S::TILES { TILE_STEPS } else { 4 }
}

/// Elements of a cache line.
pub(crate) const LINE: usize = 16;

/// Steps of a reduction that are neighbours in A.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    /// Steps from the start of a row to the first one, with those between the runs.
    pub offset: usize,
    /// Their number; those behind the last step are not read.
    pub depth: usize,
}

/// All steps of a reduction are neighbours.
pub(crate) static ONE_RUN: [Run; 1] = [Run { offset: 0, depth: usize::MAX }];

/// How a tile call finds its rows of A.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ALayout {
    /// Rows anywhere, reduction steps adjacent in runs.
    Rows,
    /// The same, with rows at equal distances; [`TileLoop`](super::tile_loop::TileLoop) finds which tiles have them.
    EvenRows,
    /// Rows adjacent, reduction steps at the [`column_stride`].
    Columns,
}

/// Operands of one tile call: `C[rows, cols] (+)= A[rows, depth] * B[depth, cols]`.
pub(crate) struct TileArgs<'a> {
    pub depth: usize,
    pub a: *const f32,
    /// Offsets from `a` of the rows, but for [`ALayout::Columns`].
    pub a_rows: *const usize,
    /// The steps, which for [`ALayout::Columns`] are one run.
    pub a_runs: &'a [Run],
    /// A panel: `[depth, panel]`.
    pub b: *const f32,
    pub c: *mut f32,
    /// Offsets from `c` of the rows.
    pub c_rows: *const usize,
    pub accumulate: bool,
    /// Memory that will be wanted soon: in each of its [`rounds`] the call prefetches pieces of two cache lines from here.
    pub prefetch: *const f32,
    /// Elements from one of these pieces to the next.
    pub prefetch_pitch: usize,
    /// Pieces of a round.
    pub prefetch_pieces: usize,
}

/// Reduction steps of a round: what else a tile does beside its products is done once a round.
const ROUND: usize = 8;

/// Most rows of a tile.
pub(crate) const MAX_TILE_ROWS: usize = 14;

/// Rows of C that a round prefetches.
const ROUND_ROWS: usize = 2;

/// Rounds of a tile call.
#[inline(always)]
pub(crate) fn rounds(depth: usize) -> usize {
    depth / ROUND
}

pub(crate) type TileFn = unsafe fn(&TileArgs<'_>);

/// Columns of a panel of B.
#[inline(always)]
pub(crate) const fn panel<S: Simd>() -> usize {
    S::LANES * S::TILE_VECTORS
}

/// Columns of a panel of B of `f32` on an instruction set.
pub(crate) fn panel_width(isa: Isa) -> usize {
    struct Width;
    impl SimdOp for Width {
        type Output = usize;
        #[inline(always)]
        unsafe fn run<S: Simd>(self) -> usize {
            panel::<S>()
        }
    }
    // SAFETY: only the constant is read.
    unsafe { Width.run_on(isa) }
}

/// The tile for `rows` rows (1 to [`Simd::TILE_ROWS`]) and `cols` columns (1 to a panel, rounded up to whole
/// vectors: to one, or to all of the panel).
#[inline(always)]
pub(crate) fn tile_fn<S: Simd>(layout: ALayout, rows: usize, cols: usize) -> TileFn {
    let vectors = if cols <= S::LANES { 1 } else { S::TILE_VECTORS };
    let table = match (layout, vectors) {
        (ALayout::Rows, 1) => const { &table::<S, 1, AnyRows>() },
        (ALayout::Rows, 2) => const { &table::<S, 2, AnyRows>() },
        (ALayout::Rows, _) => const { &table::<S, 4, AnyRows>() },
        (ALayout::EvenRows, 1) => const { &table::<S, 1, EvenRows>() },
        (ALayout::EvenRows, 2) => const { &table::<S, 2, EvenRows>() },
        (ALayout::EvenRows, _) => const { &table::<S, 4, EvenRows>() },
        (ALayout::Columns, 1) => const { &table::<S, 1, Columns<S>>() },
        (ALayout::Columns, 2) => const { &table::<S, 2, Columns<S>>() },
        (ALayout::Columns, _) => const { &table::<S, 4, Columns<S>>() },
    };
    table[rows - 1]
}

const fn table<S: Simd, const VECTORS: usize, A: Operand>() -> [TileFn; MAX_TILE_ROWS] {
    [
        entry::<S, 1, VECTORS, A>(),
        entry::<S, 2, VECTORS, A>(),
        entry::<S, 3, VECTORS, A>(),
        entry::<S, 4, VECTORS, A>(),
        entry::<S, 5, VECTORS, A>(),
        entry::<S, 6, VECTORS, A>(),
        entry::<S, 7, VECTORS, A>(),
        entry::<S, 8, VECTORS, A>(),
        entry::<S, 9, VECTORS, A>(),
        entry::<S, 10, VECTORS, A>(),
        entry::<S, 11, VECTORS, A>(),
        entry::<S, 12, VECTORS, A>(),
        entry::<S, 13, VECTORS, A>(),
        entry::<S, 14, VECTORS, A>(),
    ]
}

/// The tile of a size, if the instruction set has it. Chosen where constants are computed, so that no other ones are compiled.
const fn entry<S: Simd, const ROWS: usize, const VECTORS: usize, A: Operand>() -> TileFn {
    if ROWS > S::TILE_ROWS || VECTORS > S::TILE_VECTORS { no_tile } else { tile::<S, ROWS, VECTORS, A> }
}

/// In place of tiles that an instruction set does not have.
fn no_tile(_: &TileArgs<'_>) {
    unreachable!("the instruction set has no tile of this size");
}

/// Where a tile finds the elements of A.
trait Operand: Copy {
    /// # Safety
    /// The operands are valid for `rows` rows.
    unsafe fn new(t: &TileArgs<'_>, rows: usize) -> Self;

    /// From that many steps further on.
    fn at_step(self, steps: usize) -> Self;

    /// The element of a row at a step.
    fn element(self, row: usize, step: usize) -> *const f32;
}

/// Rows anywhere, with neighbouring steps.
#[derive(Clone, Copy)]
struct AnyRows {
    start: *const f32,
    rows: [usize; MAX_TILE_ROWS],
}

impl Operand for AnyRows {
    #[inline(always)]
    unsafe fn new(t: &TileArgs<'_>, rows: usize) -> AnyRows {
        // SAFETY: the caller's promise.
        let offset = |row| if row < rows { unsafe { *t.a_rows.add(row) } } else { 0 };
        AnyRows { start: t.a, rows: std::array::from_fn(offset) }
    }

    #[inline(always)]
    fn at_step(self, steps: usize) -> AnyRows {
        AnyRows { start: self.start.wrapping_add(steps), ..self }
    }

    #[inline(always)]
    fn element(self, row: usize, step: usize) -> *const f32 {
        self.start.wrapping_add(step).wrapping_add(self.rows[row])
    }
}

/// Rows of [`EvenRows`] for each of its pointers.
const ROWS_OF_POINTER: usize = 3;

/// Rows at equal distances, with neighbouring steps. Each is the sum of a pointer, which stays in a register, and of no, one or two
/// distances, which addresses hold: x86 has no registers for as many rows as tiles have.
#[derive(Clone, Copy)]
struct EvenRows {
    pointers: [*const f32; MAX_TILE_ROWS.div_ceil(ROWS_OF_POINTER)],
    /// Bytes.
    distance: usize,
}

impl Operand for EvenRows {
    #[inline(always)]
    unsafe fn new(t: &TileArgs<'_>, rows: usize) -> EvenRows {
        // SAFETY: the caller's promise.
        let [first, second] = [0, 1].map(|row| if row < rows { unsafe { *t.a_rows.add(row) } } else { 0 });
        let distance = second.wrapping_sub(first);
        let pointer = |i: usize| t.a.wrapping_add(first).wrapping_add(distance.wrapping_mul(i * ROWS_OF_POINTER));
        // Compilers that know how the pointers depend on each other keep one of them, and as many sums as there are rows, in memory.
        EvenRows {
            pointers: black_box(std::array::from_fn(pointer)),
            distance: distance.wrapping_mul(size_of::<f32>()),
        }
    }

    #[inline(always)]
    fn at_step(self, steps: usize) -> EvenRows {
        EvenRows { pointers: self.pointers.map(|pointer| pointer.wrapping_add(steps)), ..self }
    }

    #[inline(always)]
    fn element(self, row: usize, step: usize) -> *const f32 {
        let pointer = self.pointers[row / ROWS_OF_POINTER].wrapping_add(step);
        pointer.wrapping_byte_add(self.distance.wrapping_mul(row % ROWS_OF_POINTER))
    }
}

/// Neighbouring rows, with steps at the distance of an instruction set.
struct Columns<S>(*const f32, PhantomData<S>);

impl<S> Clone for Columns<S> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Columns<S> {}

impl<S: Simd> Operand for Columns<S> {
    #[inline(always)]
    unsafe fn new(t: &TileArgs<'_>, _rows: usize) -> Self {
        Columns(t.a, PhantomData)
    }

    #[inline(always)]
    fn at_step(self, steps: usize) -> Self {
        Columns(self.0.wrapping_add(steps * column_stride::<S>()), PhantomData)
    }

    #[inline(always)]
    fn element(self, row: usize, step: usize) -> *const f32 {
        self.at_step(step).0.wrapping_add(row)
    }
}

/// # Safety
/// The machine has `S`. The operands are valid for `ROWS` rows, `VECTORS` whole vectors and `depth` steps, and A lies as `A` says.
unsafe fn tile<S: Simd, const ROWS: usize, const VECTORS: usize, A: Operand>(t: &TileArgs<'_>) {
    // SAFETY: the caller's promises.
    unsafe { S::run_op(Tile::<ROWS, VECTORS, A>(t, PhantomData)) }
}

/// [`tile`], compiled for an instruction set.
struct Tile<'a, const ROWS: usize, const VECTORS: usize, A>(&'a TileArgs<'a>, PhantomData<A>);

impl<const ROWS: usize, const VECTORS: usize, A: Operand> SimdOp for Tile<'_, ROWS, VECTORS, A> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let t = self.0;
        // SAFETY: the promises of `tile`.
        unsafe {
            let mut acc = [[S::splat(0.0); VECTORS]; ROWS];
            let rows = A::new(t, ROWS);
            let mut b = t.b;
            let mut prefetch = t.prefetch;
            let (mut round, mut left) = (0, t.depth);
            for run in t.a_runs {
                let mut a = rows.at_step(run.offset);
                let depth = run.depth.min(left);
                left -= depth;
                for _ in 0..rounds(depth) {
                    if ROUND_ROWS * round < ROWS {
                        for row in ROUND_ROWS * round..ROWS.min(ROUND_ROWS * (round + 1)) {
                            let c = t.c.add(*t.c_rows.add(row));
                            S::prefetch_write(c);
                            S::prefetch_write(c.add(VECTORS * S::LANES - 1));
                        }
                    }
                    round += 1;
                    for _ in 0..t.prefetch_pieces {
                        S::prefetch(prefetch);
                        S::prefetch(prefetch.wrapping_add(LINE));
                        prefetch = prefetch.wrapping_add(t.prefetch_pitch);
                    }
                    // Not as a loop, which compilers do not unroll for many rows, nor a closure, which they do not inline.
                    macro_rules! steps {
                        ($($i:literal)*) => {
                            $(step::<S, ROWS, VECTORS, A>(&mut acc, a, $i, b.add($i * panel::<S>()));)*
                        };
                    }
                    steps!(0 1 2 3 4 5 6 7);
                    a = a.at_step(ROUND);
                    b = b.add(ROUND * panel::<S>());
                }
                for _ in 0..depth % ROUND {
                    step::<S, ROWS, VECTORS, A>(&mut acc, a, 0, b);
                    a = a.at_step(1);
                    b = b.add(panel::<S>());
                }
            }
            for (r, row) in acc.iter().enumerate() {
                let c = t.c.add(*t.c_rows.add(r));
                for (v, &sum) in row.iter().enumerate() {
                    let c = c.add(v * S::LANES);
                    let value = if t.accumulate { S::add(sum, S::load(c)) } else { sum };
                    S::store(c, value);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn step<S: Simd, const ROWS: usize, const VECTORS: usize, A: Operand>(
    acc: &mut [[S::V; VECTORS]; ROWS],
    a: A,
    index: usize,
    b: *const f32,
) {
    // SAFETY: the promises of `tile`, and it is called under `S::run_op`.
    unsafe {
        let mut bs = [S::splat(0.0); VECTORS];
        for (v, x) in bs.iter_mut().enumerate() {
            *x = S::load(b.add(v * S::LANES));
        }
        // As the steps of a round.
        macro_rules! rows {
            ($($row:literal)*) => {
                $(if $row < ROWS {
                    let x = S::splat(*a.element($row, index));
                    for (sum, &y) in acc[$row].iter_mut().zip(&bs) {
                        *sum = S::multiply(x, y, *sum);
                    }
                })*
            };
        }
        rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13);
    }
}
