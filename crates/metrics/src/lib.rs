//! Evaluation metrics: those of classification, accumulated batch by batch, those of answers to questions, and those of
//! detected objects.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod coco;
mod error;
pub mod mask;
mod mean;
pub mod squad;
mod top_k;

pub use error::MetricError;
pub use mean::MeanLoss;
pub use top_k::TopK;
