//! The register tile: all multiplications of matmul and convolution happen here.

use crate::isa::Isa;
use crate::simd::{Simd, SimdOp, TILE_STEPS};

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
    /// Place of the first one in a row.
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
    /// Rows adjacent, reduction steps at [`COLUMN_STRIDE`].
    Columns,
}

/// Operands of one tile call: `C[rows, cols] (+)= A[rows, depth] * B[depth, cols]`.
pub(crate) struct TileArgs<'a> {
    pub depth: usize,
    pub a: *const f32,
    /// Offsets from `a` of the rows of [`ALayout::Rows`].
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
    let step = if layout == ALayout::Rows { 1 } else { column_stride::<S>() };
    let table = match (step, vectors) {
        (1, 1) => const { &table::<S, 1, 1>() },
        (1, 2) => const { &table::<S, 2, 1>() },
        (1, _) => const { &table::<S, 4, 1>() },
        (8, 1) => const { &table::<S, 1, 8>() },
        (8, 2) => const { &table::<S, 2, 8>() },
        (8, _) => const { &table::<S, 4, 8>() },
        (_, 1) => const { &table::<S, 1, COLUMN_STRIDE>() },
        (_, _) => const { &table::<S, 2, COLUMN_STRIDE>() },
    };
    table[rows - 1]
}

const fn table<S: Simd, const VECTORS: usize, const KS: usize>() -> [TileFn; 14] {
    [
        tile::<S, 1, VECTORS, KS>,
        tile::<S, 2, VECTORS, KS>,
        tile::<S, 3, VECTORS, KS>,
        tile::<S, 4, VECTORS, KS>,
        tile::<S, 5, VECTORS, KS>,
        tile::<S, 6, VECTORS, KS>,
        tile::<S, 7, VECTORS, KS>,
        tile::<S, 8, VECTORS, KS>,
        tile::<S, 9, VECTORS, KS>,
        tile::<S, 10, VECTORS, KS>,
        tile::<S, 11, VECTORS, KS>,
        tile::<S, 12, VECTORS, KS>,
        tile::<S, 13, VECTORS, KS>,
        tile::<S, 14, VECTORS, KS>,
    ]
}

/// # Safety
/// The machine has `S`. The operands are valid for `ROWS` rows, `VECTORS` whole vectors and `depth` steps; steps of a run are
/// `KS` apart in A, and with 1 its rows lie where the operands say, else side by side.
unsafe fn tile<S: Simd, const ROWS: usize, const VECTORS: usize, const KS: usize>(t: &TileArgs<'_>) {
    if ROWS > S::TILE_ROWS || VECTORS > S::TILE_VECTORS {
        unreachable!("no tile of {ROWS} rows and {VECTORS} vectors");
    }
    // SAFETY: the caller's promises.
    unsafe { S::run_op(Tile::<ROWS, VECTORS, KS>(t)) }
}

/// [`tile`], compiled for an instruction set.
struct Tile<'a, const ROWS: usize, const VECTORS: usize, const KS: usize>(&'a TileArgs<'a>);

impl<const ROWS: usize, const VECTORS: usize, const KS: usize> SimdOp for Tile<'_, ROWS, VECTORS, KS> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let t = self.0;
        // SAFETY: the promises of `tile`.
        unsafe {
            let mut acc = [[S::splat(0.0); VECTORS]; ROWS];
            let rows = std::array::from_fn(|row| if KS == 1 { *t.a_rows.add(row) } else { row });
            let mut b = t.b;
            let mut prefetch = t.prefetch;
            let (mut round, mut left) = (0, t.depth);
            for run in t.a_runs {
                let mut a = t.a.add(run.offset);
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
                            $(step::<S, ROWS, VECTORS>(&mut acc, a.add($i * KS), &rows, b.add($i * panel::<S>()));)*
                        };
                    }
                    steps!(0 1 2 3 4 5 6 7);
                    a = a.add(ROUND * KS);
                    b = b.add(ROUND * panel::<S>());
                }
                for _ in 0..depth % ROUND {
                    step::<S, ROWS, VECTORS>(&mut acc, a, &rows, b);
                    a = a.add(KS);
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
unsafe fn step<S: Simd, const ROWS: usize, const VECTORS: usize>(
    acc: &mut [[S::V; VECTORS]; ROWS],
    a: *const f32,
    rows: &[usize; ROWS],
    b: *const f32,
) {
    // SAFETY: the promises of `tile`, and it is called under `S::run_op`.
    unsafe {
        let mut bs = [S::splat(0.0); VECTORS];
        for (v, x) in bs.iter_mut().enumerate() {
            *x = S::load(b.add(v * S::LANES));
        }
        for (r, row) in acc.iter_mut().enumerate() {
            let x = S::splat(*a.wrapping_add(rows[r]));
            for (sum, &y) in row.iter_mut().zip(&bs) {
                *sum = S::multiply(x, y, *sum);
            }
        }
    }
}
