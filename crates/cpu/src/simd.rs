//! Vectors of `f32` as each instruction set has them, and the one place where code is compiled per instruction set.

use crate::isa::Isa;
use crate::peak::has_bf16;

/// Vector operations of one instruction set, and the register tile that suits it.
///
/// Every function must be called, and inlined, under [`Simd::vectorize`] of the same type.
///
/// # Safety
/// All functions: the machine has the instruction set. Those with pointers: the pointers are valid for the
/// elements they touch; no alignment is needed.
#[allow(clippy::missing_safety_doc)]
pub trait Simd: Copy + 'static {
    /// A vector register.
    type V: Copy;
    /// Elements of a vector.
    const LANES: usize;
    /// Whether operands of products are pairs of `bf16` numbers, two steps of the reduction in 32 bits.
    const PAIRS: bool = false;
    /// Rows of the matmul register tile.
    const TILE_ROWS: usize;
    /// Vectors in a row of the matmul register tile.
    const TILE_VECTORS: usize;

    /// Runs `f` compiled with the instruction set; `f` and all it calls must be inlined.
    unsafe fn vectorize<R>(f: impl FnOnce() -> R) -> R;
    /// Runs `op` compiled with the instruction set: unlike a closure, `op` is inlined whatever its size.
    unsafe fn run_op<Op: SimdOp>(op: Op) -> Op::Output;
    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(src: *const f32) -> Self::V;
    unsafe fn store(dst: *mut f32, v: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// `a` where it is greater, else `b`.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`; fused where the instruction set has it.
    unsafe fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// What a step of a product adds: `a * b + c`, or for [`PAIRS`](Self::PAIRS) `c` plus the products of both.
    #[inline(always)]
    unsafe fn multiply(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: the caller's promise of this trait.
        unsafe { Self::mul_add(a, b, c) }
    }
    /// Copies `len` elements between memory that does not overlap.
    unsafe fn copy(src: *const f32, dst: *mut f32, len: usize);
    /// Transposes a square of [`LANES`](Self::LANES) rows: `dst[j][i] = src[i][j]`, with distances of rows.
    #[inline(always)]
    unsafe fn transpose(src: *const f32, src_stride: usize, dst: *mut f32, dst_stride: usize) {
        for i in 0..Self::LANES {
            for j in 0..Self::LANES {
                // SAFETY: the caller's promise of this trait.
                unsafe { *dst.add(j * dst_stride + i) = *src.add(i * src_stride + j) };
            }
        }
    }
    /// Hints that the cache line at `src`, which may be any address, is wanted in the second-level cache.
    unsafe fn prefetch(src: *const f32);
    /// Hints that the cache line at `dst`, which may be any address, will be written soon.
    unsafe fn prefetch_write(dst: *mut f32);
}

/// A computation written once for all instruction sets.
pub trait SimdOp {
    /// What it returns.
    type Output;
    /// The computation; implementations are `#[inline(always)]`.
    ///
    /// # Safety
    /// Called under `S::vectorize` on a machine that has `S`; otherwise as the implementation says.
    unsafe fn run<S: Simd>(self) -> Self::Output;
}

/// Runs `op` compiled for `isa`.
///
/// # Safety
/// The conditions of `op` hold.
///
/// # Panics
/// When this machine lacks `isa`.
pub unsafe fn dispatch<Op: SimdOp>(isa: Isa, op: Op) -> Op::Output {
    assert!(isa.is_available(), "instruction set {isa} is not available on this machine");
    // SAFETY: availability was checked, the rest is promised by the caller.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => Avx512::run_op(op),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Avx2::run_op(op),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => Neon::run_op(op),
            _ => Portable::run_op(op),
        }
    }
}

/// Runs a product `op` compiled for `isa`: on pairs of `bf16` numbers if `pairs`, which [`has_pairs`] must allow.
///
/// # Safety
/// The conditions of `op` hold.
///
/// # Panics
/// When this machine lacks `isa`, or pairs.
pub(crate) unsafe fn dispatch_product<Op: SimdOp>(isa: Isa, pairs: bool, op: Op) -> Op::Output {
    if !pairs {
        // SAFETY: the caller's promise.
        return unsafe { dispatch(isa, op) };
    }
    assert!(isa.is_available() && has_pairs(isa), "{isa} has no products of bf16 pairs on this machine");
    // SAFETY: availability was checked, the rest is promised by the caller.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => Avx512Bf16::run_op(op),
            #[cfg(test)]
            _ => pairs::Emulated::<Portable>::run_op(op),
            #[cfg(not(test))]
            _ => unreachable!("has_pairs allows no other instruction set"),
        }
    }
}

/// Whether products of `bf16` pairs are to be had.
pub(crate) fn has_pairs(isa: Isa) -> bool {
    has_bf16(isa) || cfg!(test) && isa == Isa::Portable
}

/// The methods of [`Simd`] that an instruction set has from another one with the same vectors.
#[cfg(any(test, target_arch = "x86_64"))]
macro_rules! same_as {
    ($base:ty) => {
        type V = <$base as Simd>::V;
        const LANES: usize = <$base as Simd>::LANES;
        const TILE_ROWS: usize = <$base as Simd>::TILE_ROWS;
        const TILE_VECTORS: usize = <$base as Simd>::TILE_VECTORS;

        #[inline(always)]
        unsafe fn splat(x: f32) -> Self::V {
            // SAFETY: the caller's promise of this trait.
            unsafe { <$base>::splat(x) }
        }
        #[inline(always)]
        unsafe fn load(src: *const f32) -> Self::V {
            // SAFETY: the caller's promise of this trait.
            unsafe { <$base>::load(src) }
        }
        #[inline(always)]
        unsafe fn store(dst: *mut f32, v: Self::V) {
            // SAFETY: the caller's promise of this trait.
            unsafe { <$base>::store(dst, v) }
        }
        #[inline(always)]
        unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
            // SAFETY: the caller's promise of this trait.
            unsafe { <$base>::add(a, b) }
        }
        #[inline(always)]
        unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
            // SAFETY: the caller's promise of this trait.
            unsafe { <$base>::sub(a, b) }
        }
        #[inline(always)]
        unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
            // SAFETY: the caller's promise of this trait.
            unsafe { <$base>::mul(a, b) }
        }
        #[inline(always)]
        unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
            // SAFETY: the caller's promise of this trait.
            unsafe { <$base>::max(a, b) }
        }
        #[inline(always)]
        unsafe fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
            // SAFETY: the caller's promise of this trait.
            unsafe { <$base>::mul_add(a, b, c) }
        }
        #[inline(always)]
        unsafe fn copy(src: *const f32, dst: *mut f32, len: usize) {
            // SAFETY: the caller's promise of this trait.
            unsafe { <$base>::copy(src, dst, len) }
        }
        #[inline(always)]
        unsafe fn transpose(src: *const f32, src_stride: usize, dst: *mut f32, dst_stride: usize) {
            // SAFETY: the caller's promise of this trait.
            unsafe { <$base>::transpose(src, src_stride, dst, dst_stride) }
        }
        #[inline(always)]
        unsafe fn prefetch(src: *const f32) {
            // SAFETY: the caller's promise of this trait.
            unsafe { <$base>::prefetch(src) }
        }
        #[inline(always)]
        unsafe fn prefetch_write(dst: *mut f32) {
            // SAFETY: the caller's promise of this trait.
            unsafe { <$base>::prefetch_write(dst) }
        }
    };
}

/// Products of `bf16` pairs in plain arithmetic, for testing what surrounds them on any machine.
#[cfg(test)]
mod pairs {
    use super::{Portable, Simd, SimdOp};
    use std::marker::PhantomData;

    #[derive(Clone, Copy)]
    pub struct Emulated<S>(PhantomData<S>);

    impl Simd for Emulated<Portable> {
        const PAIRS: bool = true;
        same_as!(Portable);

        #[inline(always)]
        unsafe fn vectorize<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
        #[inline(always)]
        unsafe fn run_op<Op: SimdOp>(op: Op) -> Op::Output {
            // SAFETY: the caller's promise of this trait.
            unsafe { op.run::<Self>() }
        }
        #[inline(always)]
        unsafe fn multiply(a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
            let low = |x: f32| f32::from_bits(x.to_bits() << 16);
            let high = |x: f32| f32::from_bits(x.to_bits() & 0xFFFF_0000);
            std::array::from_fn(|i| c[i] + low(a[i]) * low(b[i]) + high(a[i]) * high(b[i]))
        }
    }
}

/// Four lanes that the compiler maps to whatever the target has.
#[derive(Clone, Copy)]
pub struct Portable;

impl Simd for Portable {
    type V = [f32; 4];
    const LANES: usize = 4;
    const TILE_ROWS: usize = 4;
    const TILE_VECTORS: usize = 2;

    #[inline(always)]
    unsafe fn vectorize<R>(f: impl FnOnce() -> R) -> R {
        f()
    }
    #[inline(always)]
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
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn sub(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn max(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn mul_add(a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
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
}

#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512, Avx512Bf16};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Simd, SimdOp};
    use std::arch::x86_64::*;

    /// 16 lanes, 32 registers.
    #[derive(Clone, Copy)]
    pub struct Avx512;

    impl Simd for Avx512 {
        type V = __m512;
        const LANES: usize = 16;
        const TILE_ROWS: usize = 14;
        const TILE_VECTORS: usize = 2;

        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
        unsafe fn vectorize<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
        unsafe fn run_op<Op: SimdOp>(op: Op) -> Op::Output {
            // SAFETY: the caller's promise of this trait.
            unsafe { op.run::<Self>() }
        }
        #[inline(always)]
        unsafe fn splat(x: f32) -> __m512 {
            // SAFETY: the caller's promise of this trait.
            unsafe { _mm512_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn load(src: *const f32) -> __m512 {
            // SAFETY: the caller's promise of this trait.
            unsafe { _mm512_loadu_ps(src) }
        }
        #[inline(always)]
        unsafe fn store(dst: *mut f32, v: __m512) {
            // SAFETY: the caller's promise of this trait.
            unsafe { _mm512_storeu_ps(dst, v) }
        }
        #[inline(always)]
        unsafe fn add(a: __m512, b: __m512) -> __m512 {
            // SAFETY: the caller's promise of this trait.
            unsafe { _mm512_add_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn sub(a: __m512, b: __m512) -> __m512 {
            // SAFETY: the caller's promise of this trait.
            unsafe { _mm512_sub_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn mul(a: __m512, b: __m512) -> __m512 {
            // SAFETY: the caller's promise of this trait.
            unsafe { _mm512_mul_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn max(a: __m512, b: __m512) -> __m512 {
            // SAFETY: the caller's promise of this trait.
            unsafe { _mm512_max_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
            // SAFETY: the caller's promise of this trait.
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        unsafe fn copy(src: *const f32, dst: *mut f32, len: usize) {
            let whole = len / 16 * 16;
            // SAFETY: the caller's promise of this trait; masked-out lanes are not touched.
            unsafe {
                let mut i = 0;
                while i + 64 <= whole {
                    let vectors: [__m512; 4] = std::array::from_fn(|v| _mm512_loadu_ps(src.add(i + v * 16)));
                    for (v, x) in vectors.into_iter().enumerate() {
                        _mm512_storeu_ps(dst.add(i + v * 16), x);
                    }
                    i += 64;
                }
                while i < whole {
                    _mm512_storeu_ps(dst.add(i), _mm512_loadu_ps(src.add(i)));
                    i += 16;
                }
                if whole < len {
                    let mask = (1u16 << (len - whole)) - 1;
                    _mm512_mask_storeu_ps(dst.add(whole), mask, _mm512_maskz_loadu_ps(mask, src.add(whole)));
                }
            }
        }
        #[inline(always)]
        unsafe fn transpose(src: *const f32, src_stride: usize, dst: *mut f32, dst_stride: usize) {
            // SAFETY: the caller's promise of this trait.
            unsafe {
                let rows: [__m512; 16] = std::array::from_fn(|i| _mm512_loadu_ps(src.add(i * src_stride)));
                let pairs: [__m512; 16] = std::array::from_fn(|i| {
                    let (even, odd) = (rows[i & !1], rows[i | 1]);
                    if i & 1 == 0 { _mm512_unpacklo_ps(even, odd) } else { _mm512_unpackhi_ps(even, odd) }
                });
                // Vector 4 * j + c: in its 128-bit lane q, column 4 * q + c of rows 4 * j to 4 * j + 3.
                let quads: [__m512d; 16] = std::array::from_fn(|i| {
                    let first = i / 4 * 4 + i % 4 / 2;
                    let (low, high) = (_mm512_castps_pd(pairs[first]), _mm512_castps_pd(pairs[first + 2]));
                    if i & 1 == 0 { _mm512_unpacklo_pd(low, high) } else { _mm512_unpackhi_pd(low, high) }
                });
                for c in 0..4 {
                    let lanes: [__m512; 4] = std::array::from_fn(|j| _mm512_castpd_ps(quads[4 * j + c]));
                    let even_low = _mm512_shuffle_f32x4::<0x88>(lanes[0], lanes[1]);
                    let even_high = _mm512_shuffle_f32x4::<0x88>(lanes[2], lanes[3]);
                    let odd_low = _mm512_shuffle_f32x4::<0xdd>(lanes[0], lanes[1]);
                    let odd_high = _mm512_shuffle_f32x4::<0xdd>(lanes[2], lanes[3]);
                    let column = |q: usize| dst.add((4 * q + c) * dst_stride);
                    _mm512_storeu_ps(column(0), _mm512_shuffle_f32x4::<0x88>(even_low, even_high));
                    _mm512_storeu_ps(column(1), _mm512_shuffle_f32x4::<0x88>(odd_low, odd_high));
                    _mm512_storeu_ps(column(2), _mm512_shuffle_f32x4::<0xdd>(even_low, even_high));
                    _mm512_storeu_ps(column(3), _mm512_shuffle_f32x4::<0xdd>(odd_low, odd_high));
                }
            }
        }
        #[inline(always)]
        unsafe fn prefetch(src: *const f32) {
            // SAFETY: a prefetch does not fault.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(src.cast()) }
        }
        #[inline(always)]
        unsafe fn prefetch_write(dst: *mut f32) {
            // SAFETY: a prefetch does not fault.
            unsafe { _mm_prefetch::<_MM_HINT_ET0>(dst.cast()) }
        }
    }

    /// [`Avx512`] with products of `bf16` pairs.
    #[derive(Clone, Copy)]
    pub struct Avx512Bf16;

    impl Simd for Avx512Bf16 {
        const PAIRS: bool = true;
        same_as!(Avx512);

        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")]
        unsafe fn vectorize<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")]
        unsafe fn run_op<Op: SimdOp>(op: Op) -> Op::Output {
            // SAFETY: the caller's promise of this trait.
            unsafe { op.run::<Self>() }
        }
        #[inline(always)]
        unsafe fn multiply(a: __m512, b: __m512, c: __m512) -> __m512 {
            // SAFETY: the caller's promise of this trait; the bits of a vector are read as pairs.
            unsafe {
                let pairs = |v: __m512| std::mem::transmute::<__m512, __m512bh>(v);
                _mm512_dpbf16_ps(c, pairs(a), pairs(b))
            }
        }
    }

    /// 8 lanes, 16 registers.
    #[derive(Clone, Copy)]
    pub struct Avx2;

    impl Simd for Avx2 {
        type V = __m256;
        const LANES: usize = 8;
        const TILE_ROWS: usize = 6;
        const TILE_VECTORS: usize = 2;

        #[inline]
        #[target_feature(enable = "avx2,fma")]
        unsafe fn vectorize<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
        #[inline]
        #[target_feature(enable = "avx2,fma")]
        unsafe fn run_op<Op: SimdOp>(op: Op) -> Op::Output {
            // SAFETY: the caller's promise of this trait.
            unsafe { op.run::<Self>() }
        }
        #[inline(always)]
        unsafe fn splat(x: f32) -> __m256 {
            // SAFETY: the caller's promise of this trait.
            unsafe { _mm256_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn load(src: *const f32) -> __m256 {
            // SAFETY: the caller's promise of this trait.
            unsafe { _mm256_loadu_ps(src) }
        }
        #[inline(always)]
        unsafe fn store(dst: *mut f32, v: __m256) {
            // SAFETY: the caller's promise of this trait.
            unsafe { _mm256_storeu_ps(dst, v) }
        }
        #[inline(always)]
        unsafe fn add(a: __m256, b: __m256) -> __m256 {
            // SAFETY: the caller's promise of this trait.
            unsafe { _mm256_add_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn sub(a: __m256, b: __m256) -> __m256 {
            // SAFETY: the caller's promise of this trait.
            unsafe { _mm256_sub_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn mul(a: __m256, b: __m256) -> __m256 {
            // SAFETY: the caller's promise of this trait.
            unsafe { _mm256_mul_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn max(a: __m256, b: __m256) -> __m256 {
            // SAFETY: the caller's promise of this trait.
            unsafe { _mm256_max_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 {
            // SAFETY: the caller's promise of this trait.
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        unsafe fn copy(src: *const f32, dst: *mut f32, len: usize) {
            // SAFETY: the caller's promise of this trait.
            unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
        }
        #[inline(always)]
        unsafe fn transpose(src: *const f32, src_stride: usize, dst: *mut f32, dst_stride: usize) {
            // SAFETY: the caller's promise of this trait.
            unsafe {
                let rows: [__m256; 8] = std::array::from_fn(|i| _mm256_loadu_ps(src.add(i * src_stride)));
                let pairs: [__m256; 8] = std::array::from_fn(|i| {
                    let (even, odd) = (rows[i & !1], rows[i | 1]);
                    if i & 1 == 0 { _mm256_unpacklo_ps(even, odd) } else { _mm256_unpackhi_ps(even, odd) }
                });
                // Vector 4 * j + c: in its 128-bit lane q, column 4 * q + c of rows 4 * j to 4 * j + 3.
                let quads: [__m256; 8] = std::array::from_fn(|i| {
                    let first = i / 4 * 4 + i % 4 / 2;
                    let (low, high) = (_mm256_castps_pd(pairs[first]), _mm256_castps_pd(pairs[first + 2]));
                    let quad = if i & 1 == 0 { _mm256_unpacklo_pd(low, high) } else { _mm256_unpackhi_pd(low, high) };
                    _mm256_castpd_ps(quad)
                });
                for c in 0..4 {
                    let (upper, lower) = (quads[c], quads[4 + c]);
                    _mm256_storeu_ps(dst.add(c * dst_stride), _mm256_permute2f128_ps::<0x20>(upper, lower));
                    _mm256_storeu_ps(dst.add((4 + c) * dst_stride), _mm256_permute2f128_ps::<0x31>(upper, lower));
                }
            }
        }
        #[inline(always)]
        unsafe fn prefetch(src: *const f32) {
            // SAFETY: a prefetch does not fault.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(src.cast()) }
        }
        #[inline(always)]
        unsafe fn prefetch_write(dst: *mut f32) {
            // SAFETY: a prefetch does not fault.
            unsafe { _mm_prefetch::<_MM_HINT_ET0>(dst.cast()) }
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub use arm::Neon;

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::{Simd, SimdOp};
    use std::arch::aarch64::*;

    /// 4 lanes, 32 registers.
    #[derive(Clone, Copy)]
    pub struct Neon;

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
    }
}
