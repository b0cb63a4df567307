//! Text to pre-train ELECTRA on: segments of one document, masked again whenever they are read.

mod batch;
mod example;
mod instance;
mod masking;
mod options;
mod segments;
mod set;

pub use instance::{ElectraInstance, Prediction};
pub use options::ElectraOptions;
pub use set::ElectraSet;
