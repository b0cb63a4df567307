//! AVX-512 and AVX2.

use super::{Simd, SimdOp, Test};
use std::arch::x86_64::*;

/// [`Simd::prefetch`].
#[inline(always)]
unsafe fn prefetch_read(src: *const f32) {
    // SAFETY: a prefetch does not fault.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(src.cast()) }
}

/// [`Simd::prefetch_write`].
#[inline(always)]
unsafe fn prefetch_written(dst: *mut f32) {
    // SAFETY: a prefetch does not fault.
    unsafe { _mm_prefetch::<_MM_HINT_ET0>(dst.cast()) }
}

/// 16 lanes, 32 registers.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

impl Simd for Avx512 {
    type V = __m512;
    type Mask = __mmask16;
    const LANES: usize = 16;
    const TILE_ROWS: usize = 14;
    const TILE_VECTORS: usize = 2;
    const BLOCK_VECTORS: usize = 16;

    compiled_with!("avx512f,avx512bw,avx512dq,avx512vl,fma");
    calls! {
        splat: _mm512_set1_ps;
        load: _mm512_loadu_ps;
        store: _mm512_storeu_ps;
        add: _mm512_add_ps;
        sub: _mm512_sub_ps;
        mul: _mm512_mul_ps;
        max: _mm512_max_ps;
        mul_add: _mm512_fmadd_ps;
        div: _mm512_div_ps;
        sqrt: _mm512_sqrt_ps;
        prefetch: prefetch_read;
        prefetch_write: prefetch_written;
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
    unsafe fn copy_16(src: *const u16, dst: *mut u16, len: usize) {
        // SAFETY: the caller's promise of this trait; masked-out lanes are not touched.
        unsafe {
            let mut i = 0;
            while i + 128 <= len {
                let vectors: [__m512i; 4] = std::array::from_fn(|v| _mm512_loadu_si512(src.add(i + v * 32).cast()));
                for (v, x) in vectors.into_iter().enumerate() {
                    _mm512_storeu_si512(dst.add(i + v * 32).cast(), x);
                }
                i += 128;
            }
            while i + 32 <= len {
                _mm512_storeu_si512(dst.add(i).cast(), _mm512_loadu_si512(src.add(i).cast()));
                i += 32;
            }
            if i < len {
                let mask = (1u32 << (len - i)) - 1;
                _mm512_mask_storeu_epi16(dst.add(i).cast(), mask, _mm512_maskz_loadu_epi16(mask, src.add(i).cast()));
            }
        }
    }
    #[inline(always)]
    unsafe fn interleave_16(even: *const u16, odd: *const u16, dst: *mut u32, len: usize) {
        // SAFETY: the caller's promise of this trait; masked-out lanes are not touched.
        unsafe {
            let whole = len / 16 * 16;
            let interleaved = |even: __m256i, odd: __m256i| {
                let (even, odd) = (_mm512_cvtepu16_epi32(even), _mm512_cvtepu16_epi32(odd));
                _mm512_or_si512(even, _mm512_slli_epi32::<16>(odd))
            };
            for i in (0..whole).step_by(16) {
                let rows = interleaved(_mm256_loadu_si256(even.add(i).cast()), _mm256_loadu_si256(odd.add(i).cast()));
                _mm512_storeu_si512(dst.add(i).cast(), rows);
            }
            if whole < len {
                let mask = (1u16 << (len - whole)) - 1;
                let row = |src: *const u16| _mm256_maskz_loadu_epi16(mask, src.add(whole).cast());
                _mm512_mask_storeu_epi32(dst.add(whole).cast(), mask, interleaved(row(even), row(odd)));
            }
        }
    }
    #[inline(always)]
    unsafe fn transpose(src: *const f32, src_stride: usize, dst: *mut f32, dst_stride: usize) {
        // SAFETY: the caller's promise of this trait.
        unsafe {
            // Loops, as closures are compiled without the instruction set and call its operations out of line.
            let zero = _mm512_setzero_ps();
            let mut rows = [zero; 16];
            for (i, row) in rows.iter_mut().enumerate() {
                *row = _mm512_loadu_ps(src.add(i * src_stride));
            }
            let mut pairs = [zero; 16];
            for i in (0..16).step_by(2) {
                pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
                pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
            }
            // Vector 4 * j + c: in its 128-bit lane q, column 4 * q + c of rows 4 * j to 4 * j + 3.
            let mut quads = [zero; 16];
            for j in (0..16).step_by(4) {
                for half in 0..2 {
                    let (low, high) = (_mm512_castps_pd(pairs[j + half]), _mm512_castps_pd(pairs[j + half + 2]));
                    quads[j + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
                    quads[j + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
                }
            }
            for c in 0..4 {
                let even_low = _mm512_shuffle_f32x4::<0x88>(quads[c], quads[4 + c]);
                let even_high = _mm512_shuffle_f32x4::<0x88>(quads[8 + c], quads[12 + c]);
                let odd_low = _mm512_shuffle_f32x4::<0xdd>(quads[c], quads[4 + c]);
                let odd_high = _mm512_shuffle_f32x4::<0xdd>(quads[8 + c], quads[12 + c]);
                let dst = dst.add(c * dst_stride);
                _mm512_storeu_ps(dst, _mm512_shuffle_f32x4::<0x88>(even_low, even_high));
                _mm512_storeu_ps(dst.add(4 * dst_stride), _mm512_shuffle_f32x4::<0x88>(odd_low, odd_high));
                _mm512_storeu_ps(dst.add(8 * dst_stride), _mm512_shuffle_f32x4::<0xdd>(even_low, even_high));
                _mm512_storeu_ps(dst.add(12 * dst_stride), _mm512_shuffle_f32x4::<0xdd>(odd_low, odd_high));
            }
        }
    }

    #[inline(always)]
    unsafe fn scaled(a: __m512, n: __m512) -> __m512 {
        // SAFETY: the caller's promise of this trait.
        unsafe {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(n));
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), exponent))
        }
    }
    #[inline(always)]
    unsafe fn neg(a: __m512) -> __m512 {
        // SAFETY: the caller's promise of this trait.
        unsafe { _mm512_xor_ps(a, _mm512_set1_ps(-0.0)) }
    }
    #[inline(always)]
    unsafe fn abs(a: __m512) -> __m512 {
        // SAFETY: the caller's promise of this trait.
        unsafe { _mm512_andnot_ps(_mm512_set1_ps(-0.0), a) }
    }
    #[inline(always)]
    unsafe fn test(test: Test, a: __m512, b: __m512) -> __mmask16 {
        // SAFETY: the caller's promise of this trait.
        unsafe {
            match test {
                Test::Eq => _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a, b),
                Test::Ne => _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(a, b),
                Test::Lt => _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b),
                Test::Le => _mm512_cmp_ps_mask::<_CMP_LE_OQ>(a, b),
            }
        }
    }
    #[inline(always)]
    unsafe fn blend(mask: __mmask16, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller's promise of this trait.
        unsafe { _mm512_mask_blend_ps(mask, b, a) }
    }
    #[inline(always)]
    unsafe fn load_bf16(src: *const u16) -> __m512 {
        // SAFETY: the caller's promise of this trait.
        unsafe { widen(_mm256_loadu_si256(src.cast())) }
    }
    #[inline(always)]
    unsafe fn round_bf16(v: __m512) -> __m512 {
        // SAFETY: the caller's promise of this trait.
        unsafe {
            let bits = _mm512_castps_si512(v);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
            let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
            let kept = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x40_0000));
            _mm512_castsi512_ps(_mm512_and_si512(kept, _mm512_set1_epi32(-0x1_0000)))
        }
    }
    #[inline(always)]
    unsafe fn store_truncated(dst: *mut u16, low: __m512, high: __m512) {
        // SAFETY: the caller's promise of this trait.
        unsafe {
            let upper = |v: __m512| _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_castps_si512(v)));
            _mm256_storeu_si256(dst.cast(), upper(low));
            _mm256_storeu_si256(dst.add(16).cast(), upper(high));
        }
    }
}

/// `bf16` elements as `f32`.
#[inline(always)]
unsafe fn widen(numbers: __m256i) -> __m512 {
    // SAFETY: the callers' promise of `Simd`.
    unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(numbers))) }
}

/// [`Avx512`] with products of `bf16` pairs.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Bf16;

impl Simd for Avx512Bf16 {
    const DOT2: bool = true;
    same_as!(Avx512);
    compiled_with!("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma");

    #[inline(always)]
    unsafe fn multiply(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the caller's promise of this trait; the bits of a vector are read as pairs.
        unsafe {
            let pairs = |v: __m512| std::mem::transmute::<__m512, __m512bh>(v);
            _mm512_dpbf16_ps(c, pairs(a), pairs(b))
        }
    }

    #[inline(always)]
    unsafe fn round_bf16(v: __m512) -> __m512 {
        // SAFETY: the caller's promise of this trait; 16 16-bit elements.
        unsafe { widen(std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(v))) }
    }
    #[inline(always)]
    unsafe fn store_bf16(dst: *mut u16, low: __m512, high: __m512) {
        // SAFETY: the caller's promise of this trait; 32 16-bit elements.
        unsafe {
            let numbers = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
            _mm512_storeu_si512(dst.cast(), numbers);
        }
    }
}

/// 8 lanes, 16 registers.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

impl Simd for Avx2 {
    type V = __m256;
    type Mask = __m256;
    const LANES: usize = 8;
    const TILE_ROWS: usize = 6;
    const TILE_VECTORS: usize = 2;
    const BLOCK_VECTORS: usize = 8;

    compiled_with!("avx2,fma");
    calls! {
        splat: _mm256_set1_ps;
        load: _mm256_loadu_ps;
        store: _mm256_storeu_ps;
        add: _mm256_add_ps;
        sub: _mm256_sub_ps;
        mul: _mm256_mul_ps;
        max: _mm256_max_ps;
        mul_add: _mm256_fmadd_ps;
        div: _mm256_div_ps;
        sqrt: _mm256_sqrt_ps;
        prefetch: prefetch_read;
        prefetch_write: prefetch_written;
    }
    #[inline(always)]
    unsafe fn copy(src: *const f32, dst: *mut f32, len: usize) {
        // SAFETY: the caller's promise of this trait; the last vector overlaps the one before.
        unsafe {
            if len < 8 {
                let (pair, last) = (len & 4, len & 6);
                if len & 4 != 0 {
                    _mm_storeu_ps(dst, _mm_loadu_ps(src));
                }
                if len & 2 != 0 {
                    dst.add(pair).cast::<u64>().write_unaligned(src.add(pair).cast::<u64>().read_unaligned());
                }
                if len & 1 != 0 {
                    *dst.add(last) = *src.add(last);
                }
                return;
            }
            let mut i = 0;
            while i + 8 <= len {
                _mm256_storeu_ps(dst.add(i), _mm256_loadu_ps(src.add(i)));
                i += 8;
            }
            if i < len {
                _mm256_storeu_ps(dst.add(len - 8), _mm256_loadu_ps(src.add(len - 8)));
            }
        }
    }
    #[inline(always)]
    unsafe fn transpose(src: *const f32, src_stride: usize, dst: *mut f32, dst_stride: usize) {
        // SAFETY: the caller's promise of this trait.
        unsafe {
            let zero = _mm256_setzero_ps();
            let mut rows = [zero; 8];
            for (i, row) in rows.iter_mut().enumerate() {
                *row = _mm256_loadu_ps(src.add(i * src_stride));
            }
            let mut pairs = [zero; 8];
            for i in (0..8).step_by(2) {
                pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
                pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
            }
            // Vector 4 * j + c: in its 128-bit lane q, column 4 * q + c of rows 4 * j to 4 * j + 3.
            let mut quads = [zero; 8];
            for j in (0..8).step_by(4) {
                for half in 0..2 {
                    let (low, high) = (_mm256_castps_pd(pairs[j + half]), _mm256_castps_pd(pairs[j + half + 2]));
                    quads[j + 2 * half] = _mm256_castpd_ps(_mm256_unpacklo_pd(low, high));
                    quads[j + 2 * half + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low, high));
                }
            }
            for c in 0..4 {
                let (upper, lower) = (quads[c], quads[4 + c]);
                _mm256_storeu_ps(dst.add(c * dst_stride), _mm256_permute2f128_ps::<0x20>(upper, lower));
                _mm256_storeu_ps(dst.add((4 + c) * dst_stride), _mm256_permute2f128_ps::<0x31>(upper, lower));
            }
        }
    }

    #[inline(always)]
    unsafe fn scaled(a: __m256, n: __m256) -> __m256 {
        // SAFETY: the caller's promise of this trait.
        unsafe {
            let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(n));
            _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), exponent))
        }
    }
    #[inline(always)]
    unsafe fn neg(a: __m256) -> __m256 {
        // SAFETY: the caller's promise of this trait.
        unsafe { _mm256_xor_ps(a, _mm256_set1_ps(-0.0)) }
    }
    #[inline(always)]
    unsafe fn abs(a: __m256) -> __m256 {
        // SAFETY: the caller's promise of this trait.
        unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), a) }
    }
    #[inline(always)]
    unsafe fn test(test: Test, a: __m256, b: __m256) -> __m256 {
        // SAFETY: the caller's promise of this trait.
        unsafe {
            match test {
                Test::Eq => _mm256_cmp_ps::<_CMP_EQ_OQ>(a, b),
                Test::Ne => _mm256_cmp_ps::<_CMP_NEQ_UQ>(a, b),
                Test::Lt => _mm256_cmp_ps::<_CMP_LT_OQ>(a, b),
                Test::Le => _mm256_cmp_ps::<_CMP_LE_OQ>(a, b),
            }
        }
    }
    #[inline(always)]
    unsafe fn blend(mask: __m256, a: __m256, b: __m256) -> __m256 {
        // SAFETY: the caller's promise of this trait.
        unsafe { _mm256_blendv_ps(b, a, mask) }
    }
    #[inline(always)]
    unsafe fn load_bf16(src: *const u16) -> __m256 {
        // SAFETY: the caller's promise of this trait.
        unsafe {
            let numbers = _mm256_cvtepu16_epi32(_mm_loadu_si128(src.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(numbers))
        }
    }
    #[inline(always)]
    unsafe fn round_bf16(v: __m256) -> __m256 {
        // SAFETY: the caller's promise of this trait.
        unsafe {
            let bits = _mm256_castps_si256(v);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
            let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
            let is_nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(v, v);
            let kept = _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), is_nan);
            _mm256_and_ps(kept, _mm256_castsi256_ps(_mm256_set1_epi32(-0x1_0000)))
        }
    }
    #[inline(always)]
    unsafe fn store_truncated(dst: *mut u16, low: __m256, high: __m256) {
        // SAFETY: the caller's promise of this trait.
        unsafe {
            let upper = |v: __m256| _mm256_srli_epi32::<16>(_mm256_castps_si256(v));
            let packed = _mm256_packus_epi32(upper(low), upper(high));
            _mm256_storeu_si256(dst.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        }
    }
}
