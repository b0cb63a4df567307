//! The CPU backend: kernels, dispatch by instruction set, threads, and the executor that runs plans with them.

#![warn(missing_docs)]

mod arena;
mod arithmetic;
mod attention;
pub mod conv;
pub mod detection;
mod device;
mod executor;
pub mod fusion;
pub mod gemm;
pub mod index;
pub mod isa;
mod kernel;
pub mod layout;
mod number;
mod parts;
pub mod peak;
pub mod pool2d;
pub mod random;
pub mod rowwise;
mod simd;
mod state;
pub mod threads;
pub mod top_k;
pub mod vector;

pub use device::{CpuDevice, CpuOptions};
pub use executor::Executor;
pub use isa::Isa;
pub use kernel::{KernelError, Unsupported};
pub use state::CpuState;
