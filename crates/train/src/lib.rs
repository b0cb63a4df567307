//! Training: recipes, run folders, logs and checkpoints.
#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod classifier;
pub mod clock;
pub mod convert;
pub mod curves;
pub mod dllogger;
pub mod error;
pub mod evaluate;
pub mod events;
pub mod infer;
pub mod machine;
mod mixup;
mod number;
pub mod progress;
pub mod recipe;
mod resume;
pub mod rundir;
pub mod runlog;
pub mod session;
pub mod setup;
pub mod signals;
pub mod sources;
mod state;
pub mod tensorboard;
pub mod trainer;

pub use checkpoint::{Checkpoint, CheckpointStore, NamedTensor, load_weights};
pub use classifier::{Classifier, WhichWeights};
pub use convert::{ConvertOptions, Names, convert_weights};
pub use error::{ErrorKind, TrainError};
pub use evaluate::{EvalReport, EvaluateOptions, evaluate};
pub use events::{Event, EventBody};
pub use infer::{InferOptions, Prediction, infer};
pub use progress::{Progress, ProgressMode};
pub use recipe::Recipe;
pub use rundir::RunDir;
pub use runlog::RunLog;
pub use session::{ComputeOptions, EvalSession, TrainSession};
pub use signals::StopSignal;
pub use trainer::{RunFolder, TrainOptions, TrainReport, train};
