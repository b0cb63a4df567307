//! Training: recipes, run folders, logs and checkpoints.
#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod clock;
pub mod curves;
pub mod dllogger;
pub mod events;
mod number;
pub mod progress;
pub mod recipe;
pub mod rundir;
pub mod runlog;
pub mod tensorboard;

pub use checkpoint::{Checkpoint, CheckpointStore, NamedTensor, load_weights};
pub use events::{Event, EventBody};
pub use progress::{Progress, ProgressMode};
pub use recipe::Recipe;
pub use rundir::RunDir;
pub use runlog::RunLog;
