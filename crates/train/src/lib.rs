//! Training: recipes, run folders, logs and checkpoints.
#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod clock;
pub mod events;
mod number;
pub mod recipe;

pub use checkpoint::{Checkpoint, CheckpointStore, NamedTensor, load_weights};
pub use events::{Event, EventBody};
pub use recipe::Recipe;
