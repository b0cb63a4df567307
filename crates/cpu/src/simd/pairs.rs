//! Products of `bf16` pairs in plain arithmetic, for testing what surrounds them on any machine.

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
