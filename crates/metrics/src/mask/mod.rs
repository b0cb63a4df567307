//! Run-length encoded masks, as COCO stores the shapes of objects.
//!
//! All results are those of pycocotools, so that scores computed from them agree with published ones.

mod error;
mod polygon;
mod rle;
mod text;

pub use error::MaskError;
pub use polygon::MAX_COORDINATE;
pub use rle::{Merge, Rle};
