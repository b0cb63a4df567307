//! Elementary functions in `f32`, and conversions between element types, as branch-free code that compiles to vector
//! instructions when inlined under `SimdOp::run_on`.
//!
//! No operation is fused or reassociated but where that is said, and then everywhere, so every instruction set gives the same bits. Polynomials and constants of
//! `exp`, `log`, `tanh`, `sin`, `cos` are those of S. Moshier's Cephes library (single precision), with argument reduction
//! after Cody and Waite. Errors are below 2.5 units in the last place (`sin`, `cos`: for arguments below 1e6; `erf`: 7).

use crate::number::Number;
use bessemer_ir::DType;
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};

/// Adding it to a number below 2^22 in magnitude, and taking it away, rounds to an integer.
const ROUND: f32 = 12_582_912.0;
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// `2^n` for `n` in `-126..=127`.
#[inline(always)]
fn pow2(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) << 23) as u32)
}

/// Horner's rule, highest coefficient first.
#[inline(always)]
fn polynomial<const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut y = coefficients[0];
    for c in &coefficients[1..] {
        y = y * x + c;
    }
    y
}

/// As [`polynomial`], with fused operations.
#[inline(always)]
fn polynomial_fused<N: Number, const COUNT: usize>(x: N, coefficients: [f32; COUNT]) -> N {
    let mut y = x.of(coefficients[0]);
    for &c in &coefficients[1..] {
        y = y.fused(x, x.of(c));
    }
    y
}

#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let exponent = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let r = x - n * LN2_HIGH - n * LN2_LOW;
    let tail = polynomial(r, [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5]);
    let y = tail * (r * r) + r + 1.0;
    let half = exponent >> 1;
    y * pow2(half) * pow2(exponent.wrapping_sub(half))
}

/// `exp(x)` for `x <= 0`, as probabilities need it, with fused operations: within 3e-7 of the exact value, and 0 where that is
/// below 2^-127. Half the work of `exp`, whose relative error is small everywhere.
#[inline(always)]
pub fn exp_nonpositive(x: f32) -> f32 {
    const LEAST: f32 = -127.0;
    let y = x * std::f32::consts::LOG2_E;
    let y = if y < LEAST { LEAST } else { y };
    let shifted = y + ROUND;
    let power = power_fused(y - (shifted - ROUND));
    // The lowest bits of `shifted` are the rounded exponent; that of the least power, which is 1, becomes 0.
    power.scaled(shifted)
}

/// `2^f` for `f` in -0.5 to 0.5, with fused operations: within 2e-7 of the exact value, and 1 for 0.
#[inline(always)]
fn power_fused<N: Number>(f: N) -> N {
    const COEFFICIENTS: [f32; 6] =
        [1.326_473_9e-3, 9.671_517e-3, 5.550_733_6e-2, 2.402_224_2e-1, std::f32::consts::LN_2, 1.0];
    polynomial_fused(f, COEFFICIENTS)
}

#[inline(always)]
pub(crate) fn log(x: f32) -> f32 {
    let subnormal = x < f32::MIN_POSITIVE;
    let bits = (if subnormal { x * 8_388_608.0 } else { x }).to_bits() as i32;
    let exponent = bits.wrapping_sub(std::f32::consts::FRAC_1_SQRT_2.to_bits() as i32) >> 23;
    let f = f32::from_bits(bits.wrapping_sub(exponent << 23) as u32) - 1.0;
    let e = exponent as f32 - if subnormal { 23.0 } else { 0.0 };
    let square = f * f;
    let series = polynomial(
        f,
        [
            7.037_683_6e-2,
            -1.151_461e-1,
            1.167_699_9e-1,
            -1.242_014_1e-1,
            1.424_932_3e-1,
            -1.666_805_8e-1,
            2.000_071_5e-1,
            -2.499_999_4e-1,
            3.333_333e-1,
        ],
    );
    let tail = series * f * square + e * LN2_LOW - 0.5 * square;
    let y = f + tail + e * LN2_HIGH;
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    if x >= 0.0 { y } else { f32::NAN }
}

/// `1 / (1 + exp(-x))`, with fused operations; 0 below -87.
#[inline(always)]
pub(crate) fn sigmoid<N: Number>(x: N) -> N {
    const LEAST: f32 = -87.0;
    const LOG2_E_LOW: f32 = (std::f64::consts::LOG2_E - std::f32::consts::LOG2_E as f64) as f32;
    let (log2_e, round) = (x.of(-std::f32::consts::LOG2_E), x.of(ROUND));
    let y = x.at_least(LEAST).at_most(-LEAST);
    // Its lowest bits are the rounded exponent.
    let shifted = y.fused(log2_e, round);
    let f = y.fused(x.of(-LOG2_E_LOW), y.fused(log2_e, round.minus(shifted)));
    // A product, as what is not a number is to stay that.
    let power = power_fused(f).times(x.of(1.0).scaled(shifted));
    let above = x.of(1.0).plus(power).reciprocal();
    x.choose_below(LEAST, x.of(0.0), above)
}

#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let z = x.abs();
    let square = x * x;
    let series = polynomial(square, [-5.704_988_7e-3, 2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1]);
    let small = series * square * x + x;
    let large = (1.0 - 2.0 / (exp(2.0 * z) + 1.0)).copysign(x);
    if z < 0.625 { small } else { large }
}

/// Gauss error function, with fused operations: `x` times a quotient of polynomials in its square, fitted to the least relative error
/// up to where the function rounds to 1. Errors are below 4e-7.
#[inline(always)]
pub(crate) fn erf<N: Number>(x: N) -> N {
    const ONE_FROM: f32 = 3.92;
    const ABOVE: [f32; 6] =
        [2.050_138_2e-6, 2.848_746_7e-4, 3.765_29e-3, 5.274_772_3e-2, 1.903_989_4e-1, std::f32::consts::FRAC_2_SQRT_PI];
    const BELOW: [f32; 6] = [3.809_181_4e-5, 1.162_454_6e-3, 1.496_856_7e-2, 1.141_06e-1, 5.020_694e-1, 1.0];
    let cut = x.at_least(-ONE_FROM).at_most(ONE_FROM);
    let square = cut.times(cut);
    let y = cut.times(polynomial_fused(square, ABOVE)).times(polynomial_fused(square, BELOW).reciprocal());
    y.at_least(-1.0).at_most(1.0)
}

/// Gaussian error linear unit, `0.5 x (1 + erf(x / sqrt 2))`: <https://arxiv.org/abs/1606.08415>.
#[inline(always)]
pub(crate) fn gelu<N: Number>(x: N) -> N {
    let above = x.of(1.0).plus(erf(x.times(x.of(std::f32::consts::FRAC_1_SQRT_2))));
    x.times(x.of(0.5)).times(above)
}

/// `x` minus the nearest multiple of pi/2, and the number of that multiple modulo 2^32.
#[inline(always)]
fn reduce_angle(x: f32) -> (f32, u32) {
    const ROUND_F64: f64 = 6_755_399_441_055_744.0;
    let x = f64::from(x);
    let shifted = x * std::f64::consts::FRAC_2_PI + ROUND_F64;
    let n = shifted - ROUND_F64;
    ((x - n * std::f64::consts::FRAC_PI_2) as f32, shifted.to_bits() as u32)
}

/// Sine of the angle `r + quadrant * pi/2`, for `r` within pi/4 of zero.
#[inline(always)]
fn sine_in_quadrant(r: f32, quadrant: u32) -> f32 {
    let square = r * r;
    let sine = polynomial(square, [-1.951_529_6e-4, 8.332_161e-3, -1.666_665_5e-1]) * square * r + r;
    let cosine =
        polynomial(square, [2.443_315_7e-5, -1.388_731_6e-3, 4.166_664_6e-2]) * square * square - 0.5 * square + 1.0;
    let y = if quadrant & 1 == 0 { sine } else { cosine };
    f32::from_bits(y.to_bits() ^ ((quadrant & 2) << 30))
}

#[inline(always)]
pub(crate) fn sin(x: f32) -> f32 {
    let (r, quadrant) = reduce_angle(x);
    sine_in_quadrant(r, quadrant)
}

#[inline(always)]
pub(crate) fn cos(x: f32) -> f32 {
    let (r, quadrant) = reduce_angle(x);
    sine_in_quadrant(r, quadrant.wrapping_add(1))
}

/// Zero for negative numbers; a NaN stays one.
#[inline(always)]
pub fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// Rounded once, from the `f64` power.
pub fn pow(a: f32, b: f32) -> f32 {
    f64::from(a).powf(f64::from(b)) as f32
}

#[inline(always)]
fn truth(t: bool) -> f32 {
    if t { 1.0 } else { 0.0 }
}

/// Calls `$visit!` with the scalar function of a [`UnaryKind`].
macro_rules! with_unary {
    ($kind:expr, $visit:ident) => {
        match $kind {
            UnaryKind::Neg => $visit!(|x: f32| -x),
            UnaryKind::Abs => $visit!(|x: f32| x.abs()),
            UnaryKind::Exp => $visit!(exp),
            UnaryKind::Log => $visit!(log),
            UnaryKind::Sqrt => $visit!(|x: f32| x.sqrt()),
            UnaryKind::Rsqrt => $visit!(|x: f32| 1.0 / x.sqrt()),
            UnaryKind::Recip => $visit!(|x: f32| 1.0 / x),
            UnaryKind::Square => $visit!(|x: f32| x * x),
            UnaryKind::Relu => $visit!(relu),
            UnaryKind::Sigmoid => $visit!(sigmoid),
            UnaryKind::Tanh => $visit!(tanh),
            UnaryKind::Erf => $visit!(erf),
            UnaryKind::Sin => $visit!(sin),
            UnaryKind::Cos => $visit!(cos),
            UnaryKind::Floor => $visit!(|x: f32| x.floor()),
        }
    };
}

/// Calls `$visit!` with the scalar function of a [`BinaryKind`].
macro_rules! with_binary {
    ($kind:expr, $visit:ident) => {
        match $kind {
            BinaryKind::Add => $visit!(|a: f32, b: f32| a + b),
            BinaryKind::Sub => $visit!(|a: f32, b: f32| a - b),
            BinaryKind::Mul => $visit!(|a: f32, b: f32| a * b),
            BinaryKind::Div => $visit!(|a: f32, b: f32| a / b),
            BinaryKind::Max => $visit!(|a: f32, b: f32| a.max(b)),
            BinaryKind::Min => $visit!(|a: f32, b: f32| a.min(b)),
            BinaryKind::Pow => $visit!(pow),
            BinaryKind::Eq => $visit!(|a: f32, b: f32| truth(a == b)),
            BinaryKind::Lt => $visit!(|a: f32, b: f32| truth(a < b)),
            BinaryKind::Le => $visit!(|a: f32, b: f32| truth(a <= b)),
            BinaryKind::Gt => $visit!(|a: f32, b: f32| truth(a > b)),
            BinaryKind::Ge => $visit!(|a: f32, b: f32| truth(a >= b)),
        }
    };
}

/// Calls `$visit!` with the scalar function that rounds to an element type.
macro_rules! with_cast {
    ($dtype:expr, $visit:ident) => {
        match $dtype {
            DType::F32 => $visit!(|x: f32| x),
            DType::Bf16 => $visit!(|x: f32| widen_bf16(round_bf16(x))),
            DType::F16 => $visit!(|x: f32| widen_f16(round_f16(x))),
            DType::I32 => $visit!(|x: f32| x as i32 as f32),
            DType::U8 => $visit!(|x: f32| x as u8 as f32),
            DType::Bool => $visit!(|x: f32| truth(x != 0.0)),
        }
    };
}

/// One function value; the same bits as [`map_unary`].
pub fn unary(kind: UnaryKind, x: f32) -> f32 {
    macro_rules! call {
        ($f:expr) => {
            $f(x)
        };
    }
    with_unary!(kind, call)
}

/// One function value; the same bits wherever it is computed.
pub fn binary(kind: BinaryKind, a: f32, b: f32) -> f32 {
    macro_rules! call {
        ($f:expr) => {
            $f(a, b)
        };
    }
    with_binary!(kind, call)
}

/// One value rounded to an element type; the same bits as [`map_cast`].
pub fn cast(to: DType, x: f32) -> f32 {
    macro_rules! call {
        ($f:expr) => {
            $f(x)
        };
    }
    with_cast!(to, call)
}

/// `x = kind(x)`, element by element.
#[inline(always)]
pub fn map_unary(kind: UnaryKind, x: &mut [f32]) {
    macro_rules! visit {
        ($f:expr) => {
            map(x, $f)
        };
    }
    with_unary!(kind, visit)
}

/// Rounds all elements to an element type.
#[inline(always)]
pub fn map_cast(to: DType, x: &mut [f32]) {
    macro_rules! visit {
        ($f:expr) => {
            map(x, $f)
        };
    }
    with_cast!(to, visit)
}

/// Calls `$visit!` with the function of integers of a [`BinaryKind`]; truth values are `f32`.
macro_rules! with_integers {
    ($kind:expr, $visit:ident) => {
        match $kind {
            BinaryKind::Add => $visit!(|a: i32, b: i32| a.wrapping_add(b) as u32),
            BinaryKind::Sub => $visit!(|a: i32, b: i32| a.wrapping_sub(b) as u32),
            BinaryKind::Mul => $visit!(|a: i32, b: i32| a.wrapping_mul(b) as u32),
            BinaryKind::Max => $visit!(|a: i32, b: i32| a.max(b) as u32),
            BinaryKind::Min => $visit!(|a: i32, b: i32| a.min(b) as u32),
            BinaryKind::Eq => $visit!(|a: i32, b: i32| truth(a == b).to_bits()),
            BinaryKind::Lt => $visit!(|a: i32, b: i32| truth(a < b).to_bits()),
            BinaryKind::Le => $visit!(|a: i32, b: i32| truth(a <= b).to_bits()),
            BinaryKind::Gt => $visit!(|a: i32, b: i32| truth(a > b).to_bits()),
            BinaryKind::Ge => $visit!(|a: i32, b: i32| truth(a >= b).to_bits()),
            BinaryKind::Div | BinaryKind::Pow => unreachable!("integers have no {}", $kind.name()),
        }
    };
}

/// A function of two integers, which are given as the numbers of their bits, and so is the result unless it is a truth value.
pub fn integers(kind: BinaryKind, a: f32, b: f32) -> f32 {
    macro_rules! call {
        ($f:expr) => {
            f32::from_bits($f(a.to_bits() as i32, b.to_bits() as i32))
        };
    }
    with_integers!(kind, call)
}

/// `x = kind(x, y)`, or `kind(y, x)` if `exchanged`, element by element; the same bits as [`integers`].
#[inline(always)]
pub fn map_integers(kind: BinaryKind, x: &mut [f32], y: &[f32], exchanged: bool) {
    macro_rules! visit {
        ($f:expr) => {
            for (x, y) in x.iter_mut().zip(y) {
                let (a, b) = (x.to_bits() as i32, y.to_bits() as i32);
                *x = f32::from_bits(if exchanged { $f(b, a) } else { $f(a, b) });
            }
        };
    }
    with_integers!(kind, visit)
}

/// The bits of `x` as an `i32`, by truncation and saturation; zero of a NaN.
#[inline(always)]
pub fn to_integer(x: f32) -> f32 {
    f32::from_bits(x as i32 as u32)
}

/// The nearest number to the `i32` of these bits.
#[inline(always)]
pub fn from_integer(x: f32) -> f32 {
    x.to_bits() as i32 as f32
}

/// [`to_integer`], element by element.
#[inline(always)]
pub fn map_to_integer(x: &mut [f32]) {
    map(x, to_integer);
}

/// [`from_integer`], element by element.
#[inline(always)]
pub fn map_from_integer(x: &mut [f32]) {
    map(x, from_integer);
}

#[inline(always)]
fn map(x: &mut [f32], f: impl Fn(f32) -> f32) {
    for x in x {
        *x = f(*x);
    }
}

/// Bits of the nearest `bf16`, ties to even; a NaN stays one.
#[inline(always)]
pub(crate) fn round_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
    (if x.is_nan() { bits >> 16 | 0x40 } else { rounded }) as u16
}

#[inline(always)]
pub(crate) fn widen_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Bits of the nearest `f16`, ties to even; a NaN stays one. Subnormal results are rounded by adding the number whose
/// last place has their unit.
#[inline(always)]
pub(crate) fn round_f16(x: f32) -> u16 {
    const INFINITY: u32 = 0x7F80_0000;
    let magnitude = x.to_bits() & 0x7FFF_FFFF;
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xFFF + (magnitude >> 13 & 1)) >> 13;
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let special = if magnitude > INFINITY { 0x7E00 } else { 0x7C00 };
    let finite = if magnitude < 113 << 23 { subnormal } else { normal };
    (if magnitude >= 143 << 23 { special } else { finite } | x.to_bits() >> 16 & 0x8000) as u16
}

#[inline(always)]
pub(crate) fn widen_f16(bits: u16) -> f32 {
    let bits = u32::from(bits);
    let scaled = (f32::from_bits((bits & 0x7FFF) << 13) * pow2(112)).to_bits();
    let special = if bits & 0x7C00 == 0x7C00 { 0x7F80_0000 } else { 0 };
    f32::from_bits(scaled | special | (bits & 0x8000) << 16)
}

/// Reads `dst.len()` elements of type `dtype` as `f32`.
///
/// # Safety
/// `src` is valid for reads of them and aligned to the type; a `bool` is a byte.
#[inline(always)]
pub unsafe fn widen(dtype: DType, src: *const u8, dst: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F32 => dst.copy_from_slice(elements(src, dst.len())),
            DType::Bf16 => convert(elements(src, dst.len()), dst, widen_bf16),
            DType::F16 => convert(elements(src, dst.len()), dst, widen_f16),
            DType::I32 => convert(elements(src, dst.len()), dst, |x: i32| x as f32),
            DType::U8 => convert(elements(src, dst.len()), dst, |x: u8| f32::from(x)),
            DType::Bool => convert(elements(src, dst.len()), dst, |x: u8| truth(x != 0)),
        }
    }
}

/// Writes `src` as elements of type `dtype`: floats are rounded to nearest, integers truncated and saturated, truth
/// values compared with zero.
///
/// # Safety
/// `dst` is valid for writes of them, aligned to the type, and does not overlap `src`.
#[inline(always)]
pub unsafe fn narrow(dtype: DType, src: &[f32], dst: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F32 => elements_mut(dst, src.len()).copy_from_slice(src),
            DType::Bf16 => convert(src, elements_mut(dst, src.len()), round_bf16),
            DType::F16 => convert(src, elements_mut(dst, src.len()), round_f16),
            DType::I32 => convert(src, elements_mut(dst, src.len()), |x: f32| x as i32),
            DType::U8 => convert(src, elements_mut(dst, src.len()), |x: f32| x as u8),
            DType::Bool => convert(src, elements_mut(dst, src.len()), |x: f32| u8::from(x != 0.0)),
        }
    }
}

#[inline(always)]
unsafe fn elements<'a, T>(src: *const u8, len: usize) -> &'a [T] {
    // SAFETY: the callers' promise.
    unsafe { std::slice::from_raw_parts(src.cast(), len) }
}

#[inline(always)]
unsafe fn elements_mut<'a, T>(dst: *mut u8, len: usize) -> &'a mut [T] {
    // SAFETY: the callers' promise.
    unsafe { std::slice::from_raw_parts_mut(dst.cast(), len) }
}

#[inline(always)]
fn convert<A: Copy, B>(src: &[A], dst: &mut [B], f: impl Fn(A) -> B) {
    for (d, &s) in dst.iter_mut().zip(src) {
        *d = f(s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::number::Vector;
    use crate::simd::{Simd, SimdOp};

    #[test]
    fn exponentials_of_numbers_below_zero() {
        for i in 0..200_000 {
            let x = -(i as f32) * 1e-3;
            let (got, exact) = (f64::from(exp_nonpositive(x)), f64::from(x).exp());
            assert!((got - exact).abs() <= 3e-7, "exp({x}) is {got}, not {exact}");
            assert!((got - exact).abs() <= 2e-5 * exact || exact < 2e-38, "exp({x}) is {got}, not {exact}");
        }
        assert_eq!(exp_nonpositive(0.0), 1.0);
        assert_eq!([-89.0, -10000.0, f32::MIN, f32::NEG_INFINITY].map(exp_nonpositive), [0.0; 4]);
        assert!(exp_nonpositive(f32::NAN).is_nan());
    }

    /// In vectors of every instruction set they have the bits of the function of one number.
    #[test]
    fn sigmoids_of_vectors_equal_those_of_numbers() {
        struct Sigmoids<'a>(&'a mut [f32]);
        impl SimdOp for Sigmoids<'_> {
            type Output = ();
            #[inline(always)]
            unsafe fn run<S: Simd>(self) {
                for x in self.0.chunks_exact_mut(S::LANES) {
                    // SAFETY: the promise of `run_on`; a chunk is a vector.
                    unsafe { S::store(x.as_mut_ptr(), sigmoid(Vector::<S>::new(S::load(x.as_ptr()))).get()) };
                }
            }
        }
        let mut values: Vec<f32> = (-95_000..95_000).map(|i| i as f32 * 1e-3).collect();
        values.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e30, -1e30, 1e-40]);
        values.resize(values.len().next_multiple_of(16), 1.0);
        for isa in Isa::available() {
            let mut got = values.clone();
            // SAFETY: the operation asks for nothing else.
            unsafe { Sigmoids(&mut got).run_on(isa) };
            for (&x, got) in values.iter().zip(got) {
                let want = sigmoid(x);
                assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{isa}: {x}: {got}, {want}");
            }
        }
    }

    #[test]
    fn sigmoids_are_good_to_the_last_places() {
        for i in -86_999..87_000 {
            let x = i as f32 * 1e-3;
            let (got, exact) = (f64::from(sigmoid(x)), 1.0 / (1.0 + (-f64::from(x)).exp()));
            assert!((got - exact).abs() <= 4e-7 * exact, "sigmoid({x}) is {got}, not {exact}");
        }
        assert_eq!([0.0, -0.0, 20.0, f32::INFINITY].map(sigmoid::<f32>), [0.5, 0.5, 1.0, 1.0]);
        assert_eq!([-87.1, f32::MIN, f32::NEG_INFINITY].map(sigmoid::<f32>), [0.0; 3]);
        assert!([0x7FC0_0000, 0x7FC0_0001, 0xFFFF_FFFF].map(f32::from_bits).iter().all(|&x| sigmoid(x).is_nan()));
    }
}
