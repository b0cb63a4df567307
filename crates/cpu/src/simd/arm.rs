//! NEON.

use super::{Simd, SimdOp, Test};
use std::arch::aarch64::*;

/// 4 lanes, 32 registers.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

impl Simd for Neon {
    type V = float32x4_t;
    type Mask = uint32x4_t;
    const LANES: usize = 4;
    const TILE_ROWS: usize = 6;
    const TILE_VECTORS: usize = 4;
    const BLOCK_VECTORS: usize = 8;

    compiled_with!("neon");
    calls! {
        splat: vdupq_n_f32;
        load: vld1q_f32;
        store: vst1q_f32;
        add: vaddq_f32;
        sub: vsubq_f32;
        mul: vmulq_f32;
        div: vdivq_f32;
        sqrt: vsqrtq_f32;
        neg: vnegq_f32;
        abs: vabsq_f32;
        blend: vbslq_f32;
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
    unsafe fn scaled(a: float32x4_t, n: float32x4_t) -> float32x4_t {
        // SAFETY: the caller's promise of this trait.
        unsafe {
            let exponent = vshlq_n_s32::<23>(vreinterpretq_s32_f32(n));
            vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(a), exponent))
        }
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
}
