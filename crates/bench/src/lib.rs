//! Measuring, explaining and reporting.
#![forbid(unsafe_code)]

pub mod explain;
pub mod machine;
pub mod measure;
pub mod stats;
pub mod workload;
