//! The model zoo: graphs of known networks, their counts and the names of their published weights.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod bert;
pub mod classifier;
mod detector;
pub mod efficientdet;
pub mod efficientnet;
pub mod electra;
pub mod maskrcnn;
mod model;
#[cfg(test)]
mod recipe_fixtures;
pub mod resnet;
pub mod resnet_cifar;
pub mod tensorflow;
pub mod weights;

pub use classifier::{
    Architecture, BackboneOptions, InitScheme, InputFormat, LossOptions, MixupWeight, ModelOptions, ModelSpec, ZOO,
    find,
};
pub use model::{Model, Summary, flops};
pub use weights::{ExternalTensor, WeightNames, WeightsError, load_into};

use std::borrow::Cow;

/// What can be wrong with a request for a model.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Clone, Debug, thiserror::Error, PartialEq)]
pub enum ModelError {
    #[error("there is no model `{name}`; there are {known}")]
    Unknown { name: String, known: String },
    #[error("{setting} is {value}; {allowed}")]
    Setting { setting: &'static str, value: String, allowed: Cow<'static, str> },
    #[error(transparent)]
    Graph(#[from] bessemer_ir::GraphError),
}
