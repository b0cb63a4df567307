//! The arithmetic of `bf16` instructions in plain code, as their documentation states it, for testing what surrounds them on any
//! machine.
//!
//! Operands that are subnormal count as zero and results that are subnormal become zero. Products of two `bf16` elements are exact in
//! `f32`; every addition rounds to nearest even.

use super::{PanelFormat, Portable, Simd, SimdOp, TILE_STEPS, TileProduct};
use std::cell::Cell;

thread_local! {
    static FORMAT: Cell<PanelFormat> = const { Cell::new(PanelFormat::Dot2) };
}

/// The format of products of `bf16` on [`Isa::Portable`](crate::isa::Isa::Portable), as this thread asks for it.
pub(crate) fn format() -> PanelFormat {
    FORMAT.get()
}

/// Makes `format` that of this thread's products.
pub(crate) fn set_format(format: PanelFormat) {
    FORMAT.set(format);
}

/// Zero in place of a subnormal number.
fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
}

fn low(pair: f32) -> f32 {
    flush(f32::from_bits(pair.to_bits() << 16))
}

fn high(pair: f32) -> f32 {
    flush(f32::from_bits(pair.to_bits() & 0xFFFF_0000))
}

/// `c` plus both products of two pairs, as `vdpbf16ps` adds them: the high ones first.
pub(crate) fn dot2(a: f32, b: f32, c: f32) -> f32 {
    let sum = flush(high(a).mul_add(high(b), flush(c)));
    flush(low(a).mul_add(low(b), sum))
}

/// One element of C after `tdpbf16ps`: the products of low and of high halves are summed apart, from zero, over the steps of a
/// tile, then both sums together, then they are added to C.
pub(crate) fn tile_dot(pairs: impl Iterator<Item = (f32, f32)>, c: f32) -> f32 {
    let (mut lows, mut highs) = (0.0, 0.0);
    for (a, b) in pairs {
        lows = flush(low(a).mul_add(low(b), lows));
        highs = flush(high(a).mul_add(high(b), highs));
    }
    flush(flush(c) + flush(lows + highs))
}

/// [`Portable`] with dot products of `bf16` pairs.
#[derive(Clone, Copy)]
pub(crate) struct Dot2;

impl Simd for Dot2 {
    const DOT2: bool = true;
    same_as!(Portable);

    #[inline]
    unsafe fn run_op<Op: SimdOp>(op: Op) -> Op::Output {
        // SAFETY: the caller's promise of this trait.
        unsafe { op.run::<Self>() }
    }
    #[inline(always)]
    unsafe fn multiply(a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| dot2(a[i], b[i], c[i]))
    }
}

/// [`Portable`] with tiles, in panels as wide as those of AVX-512.
#[derive(Clone, Copy)]
pub(crate) struct Tiles;

impl Simd for Tiles {
    const DOT2: bool = true;
    const TILES: bool = true;
    same_as!(Portable, 8);

    #[inline]
    unsafe fn run_op<Op: SimdOp>(op: Op) -> Op::Output {
        // SAFETY: the caller's promise of this trait.
        unsafe { op.run::<Self>() }
    }
    #[inline(always)]
    unsafe fn tile_product(t: &TileProduct) {
        let panel = 2 * TILE_STEPS;
        for row in 0..t.row_tiles * TILE_STEPS {
            for col in 0..t.col_tiles * TILE_STEPS {
                // SAFETY: the caller's promise of this trait.
                unsafe {
                    let c = t.c.add(row * t.c_stride + col);
                    let mut sum = if t.accumulate { *c } else { 0.0 };
                    for first in (0..t.depth).step_by(TILE_STEPS) {
                        let a = t.a.byte_add(*t.a_offsets.add(first / TILE_STEPS)).add(row * t.a_stride);
                        let pairs =
                            (0..TILE_STEPS).map(|k| (a.add(k).read_unaligned(), *t.b.add((first + k) * panel + col)));
                        sum = tile_dot(pairs, sum);
                    }
                    *c = sum;
                }
            }
        }
    }
}
