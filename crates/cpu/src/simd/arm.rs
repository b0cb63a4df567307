//! NEON.

use super::{Simd, SimdOp, Test};
use std::arch::aarch64::*;

/// 4 lanes, 32 registers.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

impl Simd for Neon {
    type V = float32x4_t;
    const LANES: usize = 4;
    const TILE_ROWS: usize = 6;
    const TILE_VECTORS: usize = 4;

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn vectorize<R>(f: impl FnOnce() -> R) -> R {
        f()
    }
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn run_op<Op: SimdOp>(op: Op) -> Op::Output {
        // SAFETY: the caller's promise of this trait.
        unsafe { op.run::<Self>() }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> float32x4_t {
        // SAFETY: the caller's promise of this trait.
        unsafe { vdupq_n_f32(x) }
    }
    #[inline(always)]
    unsafe fn load(src: *const f32) -> float32x4_t {
        // SAFETY: the caller's promise of this trait.
        unsafe { vld1q_f32(src) }
    }
    #[inline(always)]
    unsafe fn store(dst: *mut f32, v: float32x4_t) {
        // SAFETY: the caller's promise of this trait.
        unsafe { vst1q_f32(dst, v) }
    }
    #[inline(always)]
    unsafe fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: the caller's promise of this trait.
        unsafe { vaddq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: the caller's promise of this trait.
        unsafe { vsubq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: the caller's promise of this trait.
        unsafe { vmulq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: the caller's promise of this trait.
        unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
    }
    #[inline(always)]
    unsafe fn mul_add(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: the caller's promise of this trait.
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    unsafe fn copy(src: *const f32, dst: *mut f32, len: usize) {
        // SAFETY: the caller's promise of this trait.
        unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
    }
    #[inline(always)]
    unsafe fn prefetch(_src: *const f32) {}
    #[inline(always)]
    unsafe fn prefetch_write(_dst: *mut f32) {}

    type Mask = uint32x4_t;

    #[inline(always)]
    unsafe fn div(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: the caller's promise of this trait.
        unsafe { vdivq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn sqrt(a: float32x4_t) -> float32x4_t {
        // SAFETY: the caller's promise of this trait.
        unsafe { vsqrtq_f32(a) }
    }
    #[inline(always)]
    unsafe fn neg(a: float32x4_t) -> float32x4_t {
        // SAFETY: the caller's promise of this trait.
        unsafe { vnegq_f32(a) }
    }
    #[inline(always)]
    unsafe fn abs(a: float32x4_t) -> float32x4_t {
        // SAFETY: the caller's promise of this trait.
        unsafe { vabsq_f32(a) }
    }
    #[inline(always)]
    unsafe fn test(test: Test, a: float32x4_t, b: float32x4_t) -> uint32x4_t {
        // SAFETY: the caller's promise of this trait.
        unsafe {
            match test {
                Test::Eq => vceqq_f32(a, b),
                Test::Ne => vmvnq_u32(vceqq_f32(a, b)),
                Test::Lt => vcltq_f32(a, b),
                Test::Le => vcleq_f32(a, b),
            }
        }
    }
    #[inline(always)]
    unsafe fn blend(mask: uint32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: the caller's promise of this trait.
        unsafe { vbslq_f32(mask, a, b) }
    }
}
