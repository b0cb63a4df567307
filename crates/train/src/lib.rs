//! Training: recipes, run folders, logs and checkpoints.
#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod clock;
mod number;
