//! Plain Rust.

use super::{Simd, SimdOp, Test};
use crate::number::Number;

/// Four lanes, each by an expression in its number. Loops over arrays by closures take the compiler several times as long.
macro_rules! lanes {
    ($i:ident => $lane:expr) => {
        [
            {
                let $i = 0;
                $lane
            },
            {
                let $i = 1;
                $lane
            },
            {
                let $i = 2;
                $lane
            },
            {
                let $i = 3;
                $lane
            },
        ]
    };
}

/// Four lanes that the compiler maps to whatever the target has.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl Simd for Portable {
    type V = [f32; 4];
    type Mask = [bool; 4];
    const LANES: usize = 4;
    const TILE_ROWS: usize = 4;
    const TILE_VECTORS: usize = 2;
    /// Few, as the code of a fusion is written out for each of their lanes.
    const BLOCK_VECTORS: usize = 2;

    #[inline]
    unsafe fn run_op<Op: SimdOp>(op: Op) -> Op::Output {
        // SAFETY: the caller's promise of this trait.
        unsafe { op.run::<Self>() }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> [f32; 4] {
        [x; 4]
    }
    #[inline(always)]
    unsafe fn load(src: *const f32) -> [f32; 4] {
        // SAFETY: the caller's promise of this trait.
        unsafe { src.cast::<[f32; 4]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(dst: *mut f32, v: [f32; 4]) {
        // SAFETY: the caller's promise of this trait.
        unsafe { dst.cast::<[f32; 4]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn add(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        lanes!(i => a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn sub(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        lanes!(i => a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        lanes!(i => a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn max(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        lanes!(i => if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn mul_add(a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        lanes!(i => a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn fused(a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        lanes!(i => a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn scaled(a: [f32; 4], n: [f32; 4]) -> [f32; 4] {
        lanes!(i => a[i].scaled(n[i]))
    }

    #[inline(always)]
    unsafe fn div(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        lanes!(i => a[i] / b[i])
    }
    #[inline(always)]
    unsafe fn sqrt(a: [f32; 4]) -> [f32; 4] {
        lanes!(i => a[i].sqrt())
    }
    #[inline(always)]
    unsafe fn neg(a: [f32; 4]) -> [f32; 4] {
        lanes!(i => -a[i])
    }
    #[inline(always)]
    unsafe fn abs(a: [f32; 4]) -> [f32; 4] {
        lanes!(i => a[i].abs())
    }
    #[inline(always)]
    unsafe fn test(test: Test, a: [f32; 4], b: [f32; 4]) -> [bool; 4] {
        match test {
            Test::Eq => lanes!(i => a[i] == b[i]),
            Test::Ne => lanes!(i => a[i] != b[i]),
            Test::Lt => lanes!(i => a[i] < b[i]),
            Test::Le => lanes!(i => a[i] <= b[i]),
        }
    }
    #[inline(always)]
    unsafe fn blend(mask: [bool; 4], a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        lanes!(i => if mask[i] { a[i] } else { b[i] })
    }
}
