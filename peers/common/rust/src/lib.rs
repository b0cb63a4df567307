//! What adapters of frameworks in Rust share: the protocol of `peers/PROTOCOL.md`, the work folder and the timed loop.
//!
//! An adapter has a type that is a [`Framework`], and calls [`main`] with it.

mod answer;
mod files;
mod framework;
mod memory;
mod request;
mod sizes;
mod timing;
mod training;
mod work;

pub use answer::main;
pub use files::Array;
pub use framework::{Done, Framework, Offer, Options, Prepared, Step, Variant, locked_version, offers};
pub use request::{Mode, Purpose, Request};
pub use sizes::{Family, ResNet, Sizes, Text};
pub use training::{Optimizer, Training};
pub use work::{Work, is_statistic};

use std::error::Error;

/// What fails here, or in a framework.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Something that is known to be impossible here.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Cannot(pub String);

impl Cannot {
    /// As an error of any function here.
    pub fn because<T>(reason: impl Into<String>) -> Result<T> {
        Err(Box::new(Self(reason.into())))
    }
}
