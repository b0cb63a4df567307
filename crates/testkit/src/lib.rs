//! Conformance of executors: cases as data, and a runner that compares what an executor makes of them with the reference
//! interpreter. It knows no executor: each one's tests bring a [`Backend`] and the list of what it does not support.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod cases;
mod networks;
mod peers;
mod problem;
mod runner;

pub use cases::{CASES, Case, Compare, Run, half_of_cases};
pub use networks::{Functions, Network, NetworkFailure, check_networks};
pub use peers::{PeerCase, peer_cases};
pub use problem::{Draw, Input, Problem, Steps, Tensors, bytes_of, values_of};
pub use runner::{Backend, Failure, Limit, Outcome, Refusal, Report, check, reached};
