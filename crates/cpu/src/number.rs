//! Elementary functions that are written once for single numbers and for the lanes of vectors.

use crate::simd::{Simd, Test};

/// Arithmetic on a number, or on every lane of a vector. Both give the same bits on every instruction set.
pub(crate) trait Number: Copy {
    /// Another number, in as many lanes.
    fn of(self, x: f32) -> Self;
    /// The sum.
    fn plus(self, b: Self) -> Self;
    /// The difference.
    fn minus(self, b: Self) -> Self;
    /// The product.
    fn times(self, b: Self) -> Self;
    /// `self * b + c`, rounded once.
    fn fused(self, b: Self, c: Self) -> Self;
    /// 1 divided by it.
    fn reciprocal(self) -> Self;
    /// The bound where it is less than that; a NaN stays one.
    fn at_least(self, bound: f32) -> Self;
    /// The bound where it is greater than that; a NaN stays one.
    fn at_most(self, bound: f32) -> Self;
    /// `a` where it is less than the bound, else `b`.
    fn choose_below(self, bound: f32, a: Self, b: Self) -> Self;
    /// It times `2^n`, which is to be a normal number, for the integer `n` in the lowest bits of `n`.
    fn scaled(self, n: Self) -> Self;
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
    fn scaled(self, n: f32) -> f32 {
        f32::from_bits(self.to_bits().wrapping_add(n.to_bits() << 23))
    }
}

/// The lanes of a vector, as numbers.
#[derive(Clone, Copy)]
pub(crate) struct Vector<S: Simd>(S::V);

impl<S: Simd> Vector<S> {
    /// # Safety
    /// What is done with them is called, and inlined, under `S::vectorize`.
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
    fn scaled(self, n: Self) -> Self {
        // SAFETY: the promise of whoever made the lanes.
        Vector(unsafe { S::scaled(self.0, n.0) })
    }
}
