//! Measuring, explaining and reporting.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod budget;
pub mod compare;
pub mod doctor;
pub mod explain;
pub mod gpu_targets;
pub mod inputs;
pub mod kernels;
pub mod loading;
pub mod machine;
pub mod measure;
pub mod peers;
pub mod plans;
pub mod profile;
pub mod programme;
pub mod quickstart;
pub mod report;
pub mod scaling;
pub mod show;
pub mod simulator;

use bessemer_train::tasks::samples;
pub use bessemer_train::workload;
