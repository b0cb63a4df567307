//! Training: recipes, run folders, logs and checkpoints.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod chart;
pub mod checkpoint;
pub mod clock;
pub mod convert;
pub mod curves;
pub mod device;
pub mod dllogger;
pub mod error;
pub mod evaluate;
pub mod events;
mod loaded_weights;
pub mod machine;
pub mod memory;
pub mod names;
mod number;
pub mod progress;
mod provenance;
pub mod quantities;
pub mod ranks;
pub mod recipe;
mod resume;
pub mod rundir;
pub mod runlog;
pub mod session;
pub mod setup;
pub mod signals;
mod state;
pub mod stats;
pub mod tasks;
pub mod tensorboard;
pub mod trainer;
pub mod workload;

pub use checkpoint::{Checkpoint, CheckpointChoice, CheckpointStore, ChosenCheckpoint, find_checkpoint, load_weights};
pub use convert::{ConvertOptions, Names, convert_weights};
pub use device::{DeviceError, DeviceKind, DeviceOptions, InstructionSet, RankLink, Tuning};
pub use error::{ErrorKind, TrainError, as_word};
pub use evaluate::{EvalReport, EvaluateOptions, evaluate};
pub use events::{Event, EventBody};
pub use loaded_weights::{LoadedWeights, WhichWeights};
pub use progress::{Progress, ProgressMode};
pub use ranks::{Group, GroupOptions, INPUT_BOUND};
pub use recipe::{Recipe, StepShare};
pub use rundir::RunDir;
pub use runlog::RunLog;
pub use session::{ComputeOptions, EvalSession, TrainSession, feed};
pub use signals::StopSignal;
pub use trainer::{RunFolder, TrainOptions, TrainReport, train, train_in};
