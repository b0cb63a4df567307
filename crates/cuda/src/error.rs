//! What can go wrong with a GPU, each in one line.

use crate::kgen::KernelError;
use std::path::PathBuf;
use thiserror::Error;

/// Why an operation on a GPU, or on one of CUDA's libraries, failed.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Debug, Error)]
pub enum GpuError {
    /// A call of a CUDA library that did not return success.
    #[error("{call} failed with code {code}: {meaning}")]
    Call { call: &'static str, code: i32, meaning: String },
    /// A call that did not return success when it gave an operation of a step to the device, or recorded it.
    #[error("{cause}, for {operation}")]
    Given { operation: String, cause: Box<GpuError> },
    /// A device that does nothing more, since a call that failed for good.
    #[error("{cause}{given}; the GPU is lost to this process")]
    Lost { cause: String, given: String },
    #[error("{library} ({purpose}) was not found; looked in {looked}")]
    NotFound { library: &'static str, purpose: &'static str, looked: String },
    #[error("{} cannot be opened: {reason}", path.display())]
    CannotOpen { path: PathBuf, reason: String },
    #[error("{} has no function `{function}`; it is too old, or not the library that its name says", path.display())]
    NoFunction { path: PathBuf, function: &'static str },
    /// A communicator that was given up.
    #[error("{0}")]
    Communicator(String),
    /// Libraries that do not belong together.
    #[error("{0}")]
    Mixed(String),
    #[error("there is no GPU number {ordinal}; the driver sees {count}")]
    NoDevice { ordinal: usize, count: usize },
    #[error("bytes {offset} to {end} lie outside of {what} of {size} bytes")]
    OutOfRange { what: &'static str, offset: usize, end: usize, size: usize },
    #[error("copying {from} bytes into {to} bytes")]
    Length { from: usize, to: usize },
    #[error("kernel `{kernel}`: {problem}")]
    Launch { kernel: String, problem: String },
    /// A call that touched memory which is not its own.
    #[error("{call}: {problem}")]
    Footprint { call: String, problem: String },
    #[error("this stream is capturing a graph already")]
    Capturing,
    #[error("compiling `{kernel}` for {arch} failed: {log}")]
    Compile { kernel: String, arch: String, log: String },
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A file of `--tuning` that is none.
    #[error("{} holds no choices of engines and algorithms: {reason}", path.display())]
    Tuning { path: PathBuf, reason: String },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
}
