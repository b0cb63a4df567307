//! Evaluation metrics, accumulated batch by batch.

#![forbid(unsafe_code)]

mod error;
mod mean;
mod top_k;

pub use error::MetricError;
pub use mean::MeanLoss;
pub use top_k::TopK;
