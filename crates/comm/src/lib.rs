//! Ranks of one distributed job: which launcher started this process and as which rank, a control channel between all ranks,
//! messages of bytes over MPI or memory, and collectives over them whose results have the same bits on every rank.
//!
//! Nothing here knows graphs, devices or recipes. MPI is opened at run time: nothing of it is needed to build this crate, and a
//! program that holds it starts on machines without MPI.

#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod control;
pub mod engine;
pub mod environment;
mod error;
pub mod exchange;
pub mod launch;
pub mod memory;
pub mod mpi;
pub mod net;
pub mod probe;
pub mod reduce;
pub mod rendezvous;
pub mod spawn;
pub mod transport;

pub use error::CommError;
