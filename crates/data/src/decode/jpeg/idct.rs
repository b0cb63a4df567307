//! The inverse discrete cosine transform, at full and at reduced scale.

use super::block::Coefficients;

/// Samples `[row, column]` of a block; at reduced scale the first rows and columns alone.
pub(super) type Samples = [[u8; 8]; 8];

/// A block whose other coefficients are zero.
#[inline(always)]
pub(super) fn flat(dc: i32) -> Samples {
    [[(dc.wrapping_add(4 + 1024) >> 3).clamp(0, 255) as u8; 8]; 8]
}

/// Two passes of the 8-point transform in integers with 12 fractional bits, after Loeffler, Ligtenberg and Moschytz 1989, in the
/// arrangement that decoders of JPEG agree on, with vectors of 8 `i32`.
macro_rules! transform {
    ($(#[$attribute:meta])* $name:ident, $vector:ty, $ops:ident) => {
        $(#[$attribute])*
        pub(super) fn $name(block: &Coefficients) -> Samples {
            use $ops::{add, load, mul, pack, shl, shr, splat, sub, transpose};

            $(#[$attribute])*
            #[inline]
            fn pass<const SHIFT: i32>(x: [$vector; 8], rounding: i32) -> [$vector; 8] {
                let rounding = splat(rounding);
                let both = mul(add(x[2], x[6]), 2217);
                let (even_2, even_3) = (add(both, mul(x[6], -7567)), add(both, mul(x[2], 3135)));
                let even_0 = add(shl::<12>(add(x[0], x[4])), rounding);
                let even_1 = add(shl::<12>(sub(x[0], x[4])), rounding);
                let even = [add(even_0, even_3), add(even_1, even_2), sub(even_1, even_2), sub(even_0, even_3)];

                let (sum_73, sum_51) = (add(x[7], x[3]), add(x[5], x[1]));
                let all = mul(add(sum_73, sum_51), 4816);
                let sum_71 = add(all, mul(add(x[7], x[1]), -3685));
                let sum_53 = add(all, mul(add(x[5], x[3]), -10497));
                let (sum_73, sum_51) = (mul(sum_73, -8034), mul(sum_51, -1597));
                let odd = [
                    add(mul(x[1], 6149), add(sum_71, sum_51)),
                    add(mul(x[3], 12586), add(sum_53, sum_73)),
                    add(mul(x[5], 8410), add(sum_53, sum_51)),
                    add(mul(x[7], 1223), add(sum_71, sum_73)),
                ];
                [
                    shr::<SHIFT>(add(even[0], odd[0])),
                    shr::<SHIFT>(add(even[1], odd[1])),
                    shr::<SHIFT>(add(even[2], odd[2])),
                    shr::<SHIFT>(add(even[3], odd[3])),
                    shr::<SHIFT>(sub(even[3], odd[3])),
                    shr::<SHIFT>(sub(even[2], odd[2])),
                    shr::<SHIFT>(sub(even[1], odd[1])),
                    shr::<SHIFT>(sub(even[0], odd[0])),
                ]
            }

            let columns = transpose(pass::<10>(load(block), 512));
            pack(transpose(pass::<17>(columns, 512 + (1 << 16) + (128 << 17))))
        }
    };
}

transform!(portable, [i32; 8], arrays);

#[cfg(target_arch = "x86_64")]
transform!(
    #[target_feature(enable = "avx2")]
    avx2,
    core::arch::x86_64::__m256i,
    registers
);

/// Operations on arrays; they wrap, as damaged files need it.
mod arrays {
    use std::array::from_fn;

    use super::{Coefficients, Samples};

    type Vector = [i32; 8];

    pub(super) fn load(block: &Coefficients) -> [Vector; 8] {
        from_fn(|row| from_fn(|column| block[row * 8 + column]))
    }

    pub(super) fn splat(value: i32) -> Vector {
        [value; 8]
    }

    pub(super) fn add(a: Vector, b: Vector) -> Vector {
        from_fn(|lane| a[lane].wrapping_add(b[lane]))
    }

    pub(super) fn sub(a: Vector, b: Vector) -> Vector {
        from_fn(|lane| a[lane].wrapping_sub(b[lane]))
    }

    pub(super) fn mul(a: Vector, factor: i32) -> Vector {
        a.map(|lane| lane.wrapping_mul(factor))
    }

    pub(super) fn shl<const BITS: i32>(a: Vector) -> Vector {
        a.map(|lane| lane << BITS)
    }

    pub(super) fn shr<const BITS: i32>(a: Vector) -> Vector {
        a.map(|lane| lane >> BITS)
    }

    pub(super) fn transpose(rows: [Vector; 8]) -> [Vector; 8] {
        from_fn(|row| from_fn(|column| rows[column][row]))
    }

    pub(super) fn pack(rows: [Vector; 8]) -> Samples {
        rows.map(|row| row.map(|lane| lane.clamp(0, 255) as u8))
    }
}

/// The same operations with AVX2.
#[cfg(target_arch = "x86_64")]
mod registers {
    use core::arch::x86_64::*;

    use super::{Coefficients, Samples};

    type Vector = __m256i;

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn load(block: &Coefficients) -> [Vector; 8] {
        bytemuck::cast(*block)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn splat(value: i32) -> Vector {
        _mm256_set1_epi32(value)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn add(a: Vector, b: Vector) -> Vector {
        _mm256_add_epi32(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn sub(a: Vector, b: Vector) -> Vector {
        _mm256_sub_epi32(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn mul(a: Vector, factor: i32) -> Vector {
        _mm256_mullo_epi32(a, splat(factor))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn shl<const BITS: i32>(a: Vector) -> Vector {
        _mm256_slli_epi32::<BITS>(a)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn shr<const BITS: i32>(a: Vector) -> Vector {
        _mm256_srai_epi32::<BITS>(a)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn transpose(rows: [Vector; 8]) -> [Vector; 8] {
        let [a, b, c, d, e, f, g, h] = rows;
        let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
        let (ef, gh) = (_mm256_unpacklo_epi32(e, f), _mm256_unpacklo_epi32(g, h));
        let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
        let (ef_high, gh_high) = (_mm256_unpackhi_epi32(e, f), _mm256_unpackhi_epi32(g, h));
        let first = [
            _mm256_unpacklo_epi64(ab, cd),
            _mm256_unpackhi_epi64(ab, cd),
            _mm256_unpacklo_epi64(ab_high, cd_high),
            _mm256_unpackhi_epi64(ab_high, cd_high),
        ];
        let last = [
            _mm256_unpacklo_epi64(ef, gh),
            _mm256_unpackhi_epi64(ef, gh),
            _mm256_unpacklo_epi64(ef_high, gh_high),
            _mm256_unpackhi_epi64(ef_high, gh_high),
        ];
        [
            _mm256_permute2x128_si256::<0x20>(first[0], last[0]),
            _mm256_permute2x128_si256::<0x20>(first[1], last[1]),
            _mm256_permute2x128_si256::<0x20>(first[2], last[2]),
            _mm256_permute2x128_si256::<0x20>(first[3], last[3]),
            _mm256_permute2x128_si256::<0x31>(first[0], last[0]),
            _mm256_permute2x128_si256::<0x31>(first[1], last[1]),
            _mm256_permute2x128_si256::<0x31>(first[2], last[2]),
            _mm256_permute2x128_si256::<0x31>(first[3], last[3]),
        ]
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn pack(rows: [Vector; 8]) -> Samples {
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        let four = |a, b, c, d| {
            let halves = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
            _mm256_permutevar8x32_epi32(halves, order)
        };
        let [a, b, c, d, e, f, g, h] = rows;
        bytemuck::cast([four(a, b, c, d), four(e, f, g, h)])
    }
}

/// Fractional bits of the factors of reduced transforms, and of their results after the first pass.
const FACTOR_BITS: u32 = 12;
const PASS_BITS: u32 = 3;

/// Factors `[sample, coefficient]` by which 8 coefficients become `N` samples: the means of 8 / N neighbours of the full transform.
const fn factors<const N: usize>() -> [[i32; 8]; N] {
    /// `cos(step * pi / 16) / 2` for steps of a quarter turn.
    const HALF_COSINES: [f64; 9] = [
        0.5,
        0.490_392_640_201_615_2,
        0.461_939_766_255_643_4,
        0.415_734_806_151_272_6,
        0.353_553_390_593_273_8,
        0.277_785_116_509_801_1,
        0.191_341_716_182_544_9,
        0.097_545_161_008_064_1,
        0.0,
    ];
    let mut factors = [[0; 8]; N];
    let width = 8 / N;
    let mut sample = 0;
    while sample < N {
        let mut index = 0;
        while index < 8 {
            let mut sum = 0.0;
            let mut x = sample * width;
            while x < (sample + 1) * width {
                let step = if index == 0 { 4 } else { (2 * x + 1) * index % 32 };
                sum += match step {
                    0..=8 => HALF_COSINES[step],
                    9..=16 => -HALF_COSINES[16 - step],
                    17..=24 => -HALF_COSINES[step - 16],
                    _ => HALF_COSINES[32 - step],
                };
                x += 1;
            }
            let factor = sum / width as f64 * (1 << FACTOR_BITS) as f64;
            factors[sample][index] = (if factor < 0.0 { factor - 0.5 } else { factor + 0.5 }) as i32;
            index += 1;
        }
        sample += 1;
    }
    factors
}

/// A block at `N` / 8 of its scale: each of the `N` x `N` samples is the mean of those in its place at full scale.
#[inline(always)]
pub(super) fn reduced<const N: usize>(block: &Coefficients) -> Samples {
    let factors = const { factors::<N>() };
    let mut across = [[0i32; 8]; N];
    for (out, factors) in across.iter_mut().zip(&factors) {
        for (row, &factor) in block.as_chunks::<8>().0.iter().zip(factors) {
            for (out, &coefficient) in out.iter_mut().zip(row) {
                *out = out.wrapping_add(coefficient.wrapping_mul(factor));
            }
        }
        out.iter_mut()
            .for_each(|sum| *sum = sum.wrapping_add(1 << (FACTOR_BITS - PASS_BITS - 1)) >> (FACTOR_BITS - PASS_BITS));
    }
    let mut samples = [[0; 8]; 8];
    for (out, sums) in samples.iter_mut().zip(&across) {
        for (out, factors) in out.iter_mut().zip(&factors) {
            let terms = sums.iter().zip(factors).map(|(&sum, &factor)| sum.wrapping_mul(factor));
            let sum = terms.fold(257 << (FACTOR_BITS + PASS_BITS - 1), i32::wrapping_add);
            *out = (sum >> (FACTOR_BITS + PASS_BITS)).clamp(0, 255) as u8;
        }
    }
    samples
}
