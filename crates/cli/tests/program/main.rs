//! The program as a person runs it. One program of tests, so that all processors are busy until the last of them ends.

mod bad_text;
mod bert;
mod coco_data;
mod common;
mod compare;
mod cuda;
mod cuda_faults;
mod cuda_ranks;
mod data;
mod deploy;
mod detection;
mod documents;
mod equality;
mod fetch;
mod gpu;
mod https;
mod kubernetes;
mod launchers;
mod machine;
#[path = "../../../cuda/tests/common/mod.rs"]
mod mock;
mod pictures;
mod ranks;
mod runs;
mod score;
mod shown;
mod simulator;
mod squad;
mod text_data;
mod usage;
