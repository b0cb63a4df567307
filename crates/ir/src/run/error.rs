//! Why a plan cannot be run, or a step failed.

use crate::dtype::DType;
use crate::shape::TensorType;
use std::error::Error;
use std::fmt;

/// Why a plan cannot be run, or a step failed.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("the plan was compiled for another target, or another number of threads, than this {device}'s")]
    ForeignPlan { device: &'static str },
    #[error("no memory for {what} of {bytes} bytes: {source}")]
    Memory { what: &'static str, bytes: usize, source: std::io::Error },
    #[error("there is no {what} named `{name}`; there are: {known}")]
    NoSuchName { what: &'static str, name: String, known: String },
    #[error("`{name}` is {ty}, which is {expected} bytes; {actual} bytes were given")]
    WrongSize { name: String, ty: TensorType, expected: usize, actual: usize },
    #[error("`{name}` is {ty}; its elements cannot be read as {expected}")]
    WrongType { name: String, ty: TensorType, expected: DType },
    #[error("the plan needs `{name}` as {wanted}; in the state it is {found}")]
    StateType { name: String, wanted: TensorType, found: TensorType },
    #[error("the state lies on another device than {device}")]
    ForeignState { device: &'static str },
    /// The backend's error: the operation, its path in the model, and what is wrong with the data.
    #[error(transparent)]
    Kernel(Box<dyn Error + Send + Sync>),
    /// The message layer's error: a rank was lost, or messages do not come through.
    #[error(transparent)]
    Ranks(Box<dyn Error + Send + Sync>),
    #[error("the plan is for {plan} ranks; the device is one of {device}")]
    RankCount { plan: usize, device: usize },
    #[error("the plan's steps take one micro-batch each: there is nothing to accumulate in")]
    NoAccumulation,
    #[error("step {step} replaced no state: it was queued behind step {failed}, which failed")]
    Halted { step: u64, failed: u64 },
    #[error("the results of step {ticket} are gone; those of step {oldest} and later are kept")]
    NoSuchStep { ticket: u64, oldest: u64 },
}

impl RunError {
    /// [`RunError::NoSuchName`] that lists some of what there is.
    pub fn no_such_name<'a>(what: &'static str, name: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        let mut known: Vec<&str> = known.into_iter().collect();
        known.sort_unstable();
        known.truncate(12);
        Self::NoSuchName { what, name: name.to_owned(), known: known.join(", ") }
    }
}

/// An index outside its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("index {index} at position {position} is not in 0..{limit}")]
pub struct IndexOutOfRange {
    /// Where the index stands in the list of indices.
    pub position: usize,
    /// The index itself.
    pub index: i32,
    /// Number of rows of the table.
    pub limit: usize,
}

/// The first node of a step that gave a value that is not finite.
#[derive(Clone, Debug, PartialEq)]
pub struct NonFinite {
    /// The operation, or for an input its name, that first gave NaN or infinity.
    pub op: String,
    /// Path of the operation in the model.
    pub path: String,
    /// Least and greatest finite element of each input.
    pub input_ranges: Vec<(f32, f32)>,
    /// Whether the value was there before the step: a weight or an input.
    pub is_input: bool,
}

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_input {
            return write!(f, "{} holds NaN or infinity before the step", self.op);
        }
        let ranges: Vec<String> = self.input_ranges.iter().map(|(low, high)| format!("[{low}, {high}]")).collect();
        write!(f, "first in {} at `{}`, whose inputs lie in {}", self.op, self.path, ranges.join(", "))
    }
}
