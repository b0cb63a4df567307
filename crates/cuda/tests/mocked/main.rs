//! Kernels and plans on mocks of NVIDIA's libraries. One program of tests, so that all processors are busy until the last of them ends.

#[path = "../common/backend.rs"]
mod backend;
#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod convolutions;
mod detector_kernels;
mod detector_models;
#[path = "../common/device.rs"]
mod device;
mod epilogues;
mod executor;
mod kernels;
mod launches;
#[path = "../common/steps.rs"]
mod steps;
mod sums;
mod training;
