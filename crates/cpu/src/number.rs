//! Elementary functions that are written once for single numbers and for the lanes of vectors.

use crate::simd::{Simd, Test};

/// Arithmetic on a number, or on every lane of a vector. Both give the same bits on every instruction set.
pub(crate) trait Number: Copy {
    /// The constant `x`, in every lane.
    fn of(self, x: f32) -> Self;
    /// `self + b`.
    fn plus(self, b: Self) -> Self;
    /// `self - b`.
    fn minus(self, b: Self) -> Self;
    /// `self * b`.
    fn times(self, b: Self) -> Self;
    /// `self * b + c`, rounded once.
    fn fused(self, b: Self, c: Self) -> Self;
    /// `1 / self`.
    fn reciprocal(self) -> Self;
    /// `self`, or `bound` if that is greater; NaN stays NaN.
    fn at_least(self, bound: f32) -> Self;
    /// `self`, or `bound` if that is less; NaN stays NaN.
    fn at_most(self, bound: f32) -> Self;
    /// `a` where `self < bound`, else `b`.
    fn choose_below(self, bound: f32, a: Self, b: Self) -> Self;
    /// `self * 2^n` for the integer `n` in the lowest bits of `exponent`. The result must be a normal number.
    fn scaled(self, exponent: Self) -> Self;
}

impl Number for f32 {
    #[inline(always)]
    fn of(self, x: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn plus(self, b: f32) -> f32 {
        self + b
    }
    #[inline(always)]
    fn minus(self, b: f32) -> f32 {
        self - b
    }
    #[inline(always)]
    fn times(self, b: f32) -> f32 {
        self * b
    }
    #[inline(always)]
    fn fused(self, b: f32, c: f32) -> f32 {
        self.mul_add(b, c)
    }
    #[inline(always)]
    fn reciprocal(self) -> f32 {
        1.0 / self
    }
    #[inline(always)]
    fn at_least(self, bound: f32) -> f32 {
        if self < bound { bound } else { self }
    }
    #[inline(always)]
    fn at_most(self, bound: f32) -> f32 {
        if self > bound { bound } else { self }
    }
    #[inline(always)]
    fn choose_below(self, bound: f32, a: f32, b: f32) -> f32 {
        if self < bound { a } else { b }
    }
    #[inline(always)]
    fn scaled(self, exponent: f32) -> f32 {
        f32::from_bits(self.to_bits().wrapping_add(exponent.to_bits() << 23))
    }
}

/// The lanes of a vector, as numbers.
#[derive(Clone, Copy)]
pub(crate) struct Vector<S: Simd>(S::V);

impl<S: Simd> Vector<S> {
    /// # Safety
    /// What is done with them is called, and inlined, under `S::run_op`.
    #[inline(always)]
    pub(crate) unsafe fn new(v: S::V) -> Vector<S> {
        Vector(v)
    }

    /// The vector of these lanes.
    #[inline(always)]
    pub(crate) fn get(self) -> S::V {
        self.0
    }
}

impl<S: Simd> Number for Vector<S> {
    #[inline(always)]
    fn of(self, x: f32) -> Self {
        // SAFETY: the promise of whoever made the lanes.
        Vector(unsafe { S::splat(x) })
    }
    #[inline(always)]
    fn plus(self, b: Self) -> Self {
        // SAFETY: the promise of whoever made the lanes.
        Vector(unsafe { S::add(self.0, b.0) })
    }
    #[inline(always)]
    fn minus(self, b: Self) -> Self {
        // SAFETY: the promise of whoever made the lanes.
        Vector(unsafe { S::sub(self.0, b.0) })
    }
    #[inline(always)]
    fn times(self, b: Self) -> Self {
        // SAFETY: the promise of whoever made the lanes.
        Vector(unsafe { S::mul(self.0, b.0) })
    }
    #[inline(always)]
    fn fused(self, b: Self, c: Self) -> Self {
        // SAFETY: the promise of whoever made the lanes.
        Vector(unsafe { S::fused(self.0, b.0, c.0) })
    }
    #[inline(always)]
    fn reciprocal(self) -> Self {
        // SAFETY: the promise of whoever made the lanes.
        Vector(unsafe { S::div(S::splat(1.0), self.0) })
    }
    #[inline(always)]
    fn at_least(self, bound: f32) -> Self {
        // SAFETY: the promise of whoever made the lanes.
        Vector(unsafe { S::max(S::splat(bound), self.0) })
    }
    #[inline(always)]
    fn at_most(self, bound: f32) -> Self {
        // SAFETY: the promise of whoever made the lanes.
        Vector(unsafe {
            let bound = S::splat(bound);
            S::blend(S::test(Test::Lt, bound, self.0), bound, self.0)
        })
    }
    #[inline(always)]
    fn choose_below(self, bound: f32, a: Self, b: Self) -> Self {
        // SAFETY: the promise of whoever made the lanes.
        Vector(unsafe { S::blend(S::test(Test::Lt, self.0, S::splat(bound)), a.0, b.0) })
    }
    #[inline(always)]
    fn scaled(self, exponent: Self) -> Self {
        // SAFETY: the promise of whoever made the lanes.
        Vector(unsafe { S::scaled(self.0, exponent.0) })
    }
}
