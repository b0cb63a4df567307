//! NVIDIA GPUs: finding and opening CUDA's libraries at run time, a thin layer over the driver, a generator of kernels
//! and the compiler that makes them, and a self-test of all that on a real device.
//!
//! Nothing of CUDA is needed to build this crate, and a program that holds it starts on machines without a GPU.

#![warn(missing_docs)]

pub mod cubins;
pub mod cublaslt;
pub mod cudnn;
pub mod driver;
pub mod error;
mod exec;
mod kernels;
pub mod kgen;
mod library;
pub mod loader;
mod lower;
pub mod nccl;
pub mod nvrtc;
pub mod probe;
pub mod selftest;
pub mod sheet;

pub use error::GpuError;
pub use exec::{Check, CudaDevice, CudaOptions, OutOfMemory, replace_damaged_tuning};
pub use lower::{CudaTarget, LoweringError, Unsupported, kernels_of, too_many_elements};
