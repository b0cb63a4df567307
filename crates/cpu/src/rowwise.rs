//! Reductions, and the position of the maximum along the innermost axis of `f32[rows, cols]`.

use crate::gemm::Ctx;
use crate::parts::{CHUNK, for_chunks, rows_piece};
use crate::simd::{Simd, SimdOp};
use bessemer_ir::ops::reduce::ReduceKind;

/// Independent partial results of a reduction over neighbours; the same on every instruction set.
pub(crate) const LANES: usize = 64;

#[inline(always)]
fn max(a: f32, b: f32) -> f32 {
    if b > a || b.is_nan() { b } else { a }
}

#[inline(always)]
fn min(a: f32, b: f32) -> f32 {
    if b < a || b.is_nan() { b } else { a }
}

/// Folds a slice lane by lane.
#[inline(always)]
fn fold(x: &[f32], lanes: &mut [f32; LANES], f: impl Fn(f32, f32) -> f32) {
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = f(*lane, x);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane = f(*lane, x);
    }
}

/// Folds elements from number `start` on into the lanes of a reduction.
#[inline(always)]
pub(crate) fn fold_values(kind: ReduceKind, x: &[f32], start: usize, lanes: &mut [f32; LANES]) {
    let first = start % LANES;
    let (head, x) = x.split_at(if first == 0 { 0 } else { x.len().min(LANES - first) });
    match kind {
        ReduceKind::Sum => {
            lanes[first..].iter_mut().zip(head).for_each(|(lane, x)| *lane += x);
            fold(x, lanes, |a, b| a + b);
        }
        ReduceKind::Max => {
            lanes[first..].iter_mut().zip(head).for_each(|(lane, &x)| *lane = max(*lane, x));
            fold(x, lanes, max);
        }
        ReduceKind::Min => {
            lanes[first..].iter_mut().zip(head).for_each(|(lane, &x)| *lane = min(*lane, x));
            fold(x, lanes, min);
        }
    }
}

/// What the lanes of a reduction come to: first eight results, then one.
#[inline(always)]
pub(crate) fn fold_lanes(kind: ReduceKind, lanes: &[f32; LANES]) -> f32 {
    match kind {
        ReduceKind::Sum => {
            let mut sums = [0.0f64; 8];
            for lanes in lanes.as_chunks::<8>().0 {
                sums.iter_mut().zip(lanes).for_each(|(sum, &x)| *sum += f64::from(x));
            }
            sums.iter().sum::<f64>() as f32
        }
        ReduceKind::Max => {
            let mut most = [f32::NEG_INFINITY; 8];
            for lanes in lanes.as_chunks::<8>().0 {
                most.iter_mut().zip(lanes).for_each(|(most, &x)| *most = max(*most, x));
            }
            most.into_iter().fold(f32::NEG_INFINITY, max)
        }
        ReduceKind::Min => {
            let mut least = [f32::INFINITY; 8];
            for lanes in lanes.as_chunks::<8>().0 {
                least.iter_mut().zip(lanes).for_each(|(least, &x)| *least = min(*least, x));
            }
            least.into_iter().fold(f32::INFINITY, min)
        }
    }
}

/// A slice reduced to one number.
#[inline(always)]
fn reduce_slice(kind: ReduceKind, x: &[f32]) -> f32 {
    let mut lanes = [kind.identity() as f32; LANES];
    fold_values(kind, x, 0, &mut lanes);
    fold_lanes(kind, &lanes)
}

/// Position of the first maximum, or of the first NaN, of each row.
struct ArgMaxRows<'a> {
    x: &'a [f32],
    cols: usize,
    positions: &'a mut [i32],
}

impl SimdOp for ArgMaxRows<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (row, position) in self.x.chunks_exact(self.cols).zip(self.positions) {
            let top = reduce_slice(ReduceKind::Max, row);
            let is_top = |x: &f32| *x == top || (x.is_nan() && top.is_nan());
            *position = row.iter().position(is_top).unwrap_or(0) as i32;
        }
    }
}

/// Position of the first maximum of each row of `cols` elements; a NaN counts as the maximum.
pub fn arg_max(ctx: Ctx<'_>, x: &[f32], cols: usize, positions: &mut [i32]) {
    assert!(x.len() == positions.len() * cols, "an arg_max got tensors of other sizes");
    let rows = rows_piece(cols) / cols.max(1);
    for_chunks(ctx, positions, rows, &|task, positions| {
        let x = &x[task * rows * cols..][..positions.len() * cols];
        // SAFETY: the kernel has no conditions.
        unsafe { ArgMaxRows { x, cols, positions }.run_on(ctx.isa) }
    });
}

/// One number for each piece of `len` elements.
struct ReduceChunks<'a> {
    kind: ReduceKind,
    x: &'a [f32],
    len: usize,
    out: &'a mut [f32],
}

impl SimdOp for ReduceChunks<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (x, out) in self.x.chunks(self.len).zip(self.out) {
            *out = reduce_slice(self.kind, x);
        }
    }
}

/// Columns `first..` of one group of rows, reduced over the rows.
struct ReduceColumns<'a> {
    kind: ReduceKind,
    x: &'a [f32],
    stride: usize,
    first: usize,
    out: &'a mut [f32],
}

impl SimdOp for ReduceColumns<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (i, out) in self.out.chunks_mut(LANES).enumerate() {
            let (first, len) = (self.first + i * LANES, out.len());
            let rows = self.x.chunks_exact(self.stride).map(|row| &row[first..][..len]);
            match self.kind {
                ReduceKind::Sum => {
                    let mut sums = [0.0f64; LANES];
                    rows.for_each(|row| sums.iter_mut().zip(row).for_each(|(s, &x)| *s += f64::from(x)));
                    out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum as f32);
                }
                ReduceKind::Max => {
                    out.fill(f32::NEG_INFINITY);
                    rows.for_each(|row| out.iter_mut().zip(row).for_each(|(m, &x)| *m = max(*m, x)));
                }
                ReduceKind::Min => {
                    out.fill(f32::INFINITY);
                    rows.for_each(|row| out.iter_mut().zip(row).for_each(|(m, &x)| *m = min(*m, x)));
                }
            }
        }
    }
}

/// Elements of scratch that [`reduce`] needs.
pub fn reduce_scratch_len([outer, middle, inner]: [usize; 3]) -> usize {
    if inner == 1 && middle > CHUNK { outer * middle.div_ceil(CHUNK) } else { 0 }
}

/// Reduces `x[outer, middle, inner]` over the middle axis to `out[outer, inner]`. NaN propagates.
///
/// # Panics
/// If a slice is too short.
pub fn reduce(ctx: Ctx<'_>, kind: ReduceKind, dims: [usize; 3], x: &[f32], out: &mut [f32], scratch: &mut [f32]) {
    let [outer, middle, inner] = dims;
    assert!(x.len() == outer * middle * inner && out.len() == outer * inner, "a reduction got tensors of other sizes");
    if middle == 0 {
        out.fill(kind.identity() as f32);
    } else if inner > 1 {
        reduce_columns(ctx, kind, dims, x, out);
    } else if middle > CHUNK {
        let pieces = middle.div_ceil(CHUNK);
        let partials = &mut scratch[..outer * pieces];
        for_chunks(ctx, partials, 1, &|task, out| {
            let (row, piece) = (task / pieces, task % pieces);
            let x = &x[row * middle..][piece * CHUNK..middle.min((piece + 1) * CHUNK)];
            // SAFETY: the kernel has no conditions.
            unsafe { ReduceChunks { kind, x, len: CHUNK, out }.run_on(ctx.isa) }
        });
        // SAFETY: as above.
        unsafe { ReduceChunks { kind, x: partials, len: pieces, out }.run_on(ctx.isa) }
    } else {
        let rows = rows_piece(middle) / middle;
        for_chunks(ctx, out, rows, &|task, out| {
            let x = &x[task * rows * middle..][..out.len() * middle];
            // SAFETY: the kernel has no conditions.
            unsafe { ReduceChunks { kind, x, len: middle, out }.run_on(ctx.isa) }
        });
    }
}

fn reduce_columns(ctx: Ctx<'_>, kind: ReduceKind, [outer, middle, inner]: [usize; 3], x: &[f32], out: &mut [f32]) {
    let width = (CHUNK / middle).next_multiple_of(LANES).min(inner);
    let pieces = inner.div_ceil(width);
    let base = &crate::parts::Shared(out.as_mut_ptr());
    ctx.pool.run(outer * pieces, &|task, _worker| {
        let (group, first) = (task / pieces, task % pieces * width);
        let len = width.min(inner - first);
        // SAFETY: the pieces lie within the output and are disjoint.
        let out = unsafe { std::slice::from_raw_parts_mut(base.0.add(group * inner + first), len) };
        let x = &x[group * middle * inner..][..middle * inner];
        // SAFETY: the kernel has no conditions.
        unsafe { ReduceColumns { kind, x, stride: inner, first, out }.run_on(ctx.isa) }
    });
}
