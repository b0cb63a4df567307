//! Run-length encoded masks, the form in which COCO stores object masks.
//!
//! Every result equals that of pycocotools, so that scores computed from masks agree with published ones.

mod error;
mod paste;
mod polygon;
mod rle;
mod text;

pub use error::MaskError;
pub use polygon::MAX_COORDINATE;
pub use rle::{Merge, Rle};
