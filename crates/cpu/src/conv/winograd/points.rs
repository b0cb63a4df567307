//! One-dimensional transforms of F(4, 3): the 4 outputs of 3 taps over 6 inputs from 6 multiplications, by
//! interpolation at 0, `±A`, `±B` and infinity.
//!
//! Cook and Toom's construction, as Winograd applied it to filters and Lavin and Gray ("Fast Algorithms for
//! Convolutional Neural Networks", 2016) to convolutions. Their points ±1 and ±2 have twice the error of these:
//! what counts is that the powers of the points, up to the fifth, stay near 1. Every constant of the transforms of
//! inputs and outputs is a number of `f32`.

use crate::simd::Simd;

/// Outputs of a tile along one axis.
pub(super) const OUTPUTS: usize = 4;
/// Inputs of a tile, and products, along one axis.
pub(super) const INPUTS: usize = 6;
/// Taps along one axis.
pub(super) const TAPS: usize = 3;
/// Products of a tile.
pub(super) const POSITIONS: usize = INPUTS * INPUTS;

const A: f64 = 0.625;
const B: f64 = 1.5;
const A2: f64 = A * A;
const B2: f64 = B * B;

/// 1 over the derivative of `x * (x^2 - A^2) * (x^2 - B^2)` at 0, A and B.
const N0: f64 = 1.0 / (A2 * B2);
const NA: f64 = 1.0 / (2.0 * A2 * (A2 - B2));
const NB: f64 = 1.0 / (2.0 * B2 * (B2 - A2));

/// `a * constant + c`.
#[inline(always)]
unsafe fn fma<S: Simd>(a: S::V, constant: f64, c: S::V) -> S::V {
    // SAFETY: the caller runs under `S::run_op`.
    unsafe { S::mul_add(a, S::splat(constant as f32), c) }
}

/// `a * constant`.
#[inline(always)]
unsafe fn scale<S: Simd>(a: S::V, constant: f64) -> S::V {
    // SAFETY: the caller runs under `S::run_op`.
    unsafe { S::mul(a, S::splat(constant as f32)) }
}

/// A side of the products that is transformed from tiles of pixels.
pub(super) trait TileSide: Copy {
    /// Pixels of a tile along one axis.
    const PIXELS: usize;

    /// Transforms the first [`PIXELS`](Self::PIXELS) numbers along one axis.
    ///
    /// # Safety
    /// Called under `S::run_op`.
    unsafe fn transform<S: Simd>(self, x: [S::V; INPUTS]) -> [S::V; INPUTS];
}

/// Tiles of the input.
#[derive(Clone, Copy)]
pub(super) struct InputSide;

impl TileSide for InputSide {
    const PIXELS: usize = INPUTS;

    #[inline(always)]
    unsafe fn transform<S: Simd>(self, x: [S::V; INPUTS]) -> [S::V; INPUTS] {
        // SAFETY: the caller's promise.
        unsafe { input::<S>(x) }
    }
}

/// Tiles of the gradient of the output.
#[derive(Clone, Copy)]
pub(super) struct OutputGradSide;

impl TileSide for OutputGradSide {
    const PIXELS: usize = OUTPUTS;

    #[inline(always)]
    unsafe fn transform<S: Simd>(self, [y0, y1, y2, y3, ..]: [S::V; INPUTS]) -> [S::V; INPUTS] {
        // SAFETY: the caller's promise.
        unsafe { output_grad::<S>([y0, y1, y2, y3]) }
    }
}

/// Coefficients, in the points' Lagrange basis, of the inputs.
///
/// # Safety
/// Called under `S::run_op`.
#[inline(always)]
unsafe fn input<S: Simd>(x: [S::V; INPUTS]) -> [S::V; INPUTS] {
    // SAFETY: the caller's promise.
    unsafe {
        let even_a = fma::<S>(x[2], -B2, x[4]);
        let odd_a = fma::<S>(x[1], -B2, x[3]);
        let even_b = fma::<S>(x[2], -A2, x[4]);
        let odd_b = fma::<S>(x[1], -A2, x[3]);
        [
            fma::<S>(x[0], A2 * B2, fma::<S>(x[2], -(A2 + B2), x[4])),
            fma::<S>(odd_a, A, even_a),
            fma::<S>(odd_a, -A, even_a),
            fma::<S>(odd_b, B, even_b),
            fma::<S>(odd_b, -B, even_b),
            fma::<S>(x[1], A2 * B2, fma::<S>(x[3], -(A2 + B2), x[5])),
        ]
    }
}

/// Values at the points of the polynomial of the taps, over the derivatives.
///
/// # Safety
/// Called under `S::run_op`.
#[inline(always)]
pub(super) unsafe fn weights<S: Simd>(w: [S::V; TAPS]) -> [S::V; INPUTS] {
    // SAFETY: the caller's promise.
    unsafe {
        let even_a = fma::<S>(w[2], NA * A2, scale::<S>(w[0], NA));
        let even_b = fma::<S>(w[2], NB * B2, scale::<S>(w[0], NB));
        [
            scale::<S>(w[0], N0),
            fma::<S>(w[1], NA * A, even_a),
            fma::<S>(w[1], -NA * A, even_a),
            fma::<S>(w[1], NB * B, even_b),
            fma::<S>(w[1], -NB * B, even_b),
            w[2],
        ]
    }
}

/// Outputs from the products.
///
/// # Safety
/// Called under `S::run_op`.
#[inline(always)]
pub(super) unsafe fn output<S: Simd>(m: [S::V; INPUTS]) -> [S::V; OUTPUTS] {
    // SAFETY: the caller's promise.
    unsafe {
        let (even_a, odd_a) = (S::add(m[1], m[2]), S::sub(m[1], m[2]));
        let (even_b, odd_b) = (S::add(m[3], m[4]), S::sub(m[3], m[4]));
        [
            S::add(m[0], S::add(even_a, even_b)),
            fma::<S>(odd_a, A, scale::<S>(odd_b, B)),
            fma::<S>(even_a, A2, scale::<S>(even_b, B2)),
            fma::<S>(odd_a, A * A2, fma::<S>(odd_b, B * B2, m[5])),
        ]
    }
}

/// Values at the points of the polynomial of the gradients of the outputs: the transpose of [`output`].
///
/// # Safety
/// Called under `S::run_op`.
#[inline(always)]
unsafe fn output_grad<S: Simd>(y: [S::V; OUTPUTS]) -> [S::V; INPUTS] {
    // SAFETY: the caller's promise.
    unsafe {
        let (even_a, odd_a) = (fma::<S>(y[2], A2, y[0]), fma::<S>(y[3], A2, y[1]));
        let (even_b, odd_b) = (fma::<S>(y[2], B2, y[0]), fma::<S>(y[3], B2, y[1]));
        [
            y[0],
            fma::<S>(odd_a, A, even_a),
            fma::<S>(odd_a, -A, even_a),
            fma::<S>(odd_b, B, even_b),
            fma::<S>(odd_b, -B, even_b),
            y[3],
        ]
    }
}

/// Gradients of the taps from the sums of the products: the transpose of [`weights`].
///
/// # Safety
/// Called under `S::run_op`.
#[inline(always)]
pub(super) unsafe fn weight_grad<S: Simd>(m: [S::V; INPUTS]) -> [S::V; TAPS] {
    // SAFETY: the caller's promise.
    unsafe {
        let (even_a, odd_a) = (S::add(m[1], m[2]), S::sub(m[1], m[2]));
        let (even_b, odd_b) = (S::add(m[3], m[4]), S::sub(m[3], m[4]));
        [
            fma::<S>(m[0], N0, fma::<S>(even_a, NA, scale::<S>(even_b, NB))),
            fma::<S>(odd_a, NA * A, scale::<S>(odd_b, NB * B)),
            fma::<S>(even_a, NA * A2, fma::<S>(even_b, NB * B2, m[5])),
        ]
    }
}
