//! Evaluation metrics: those of classification, accumulated batch by batch, and those of answers to questions.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod error;
mod mean;
pub mod squad;
mod top_k;

pub use error::MetricError;
pub use mean::MeanLoss;
pub use top_k::TopK;
