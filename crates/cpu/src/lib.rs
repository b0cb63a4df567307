//! CPU kernels.

pub mod conv;
pub mod gemm;
pub mod isa;
pub mod simd;
pub mod threads;
