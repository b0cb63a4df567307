//! Readers of COCO's files: annotated objects (`instances_*.json`) and detections (results JSON).
//!
//! Images and categories are indexed by ascending id. [`Instances::boxes`], [`Instances::masks`], [`Results::boxes`] and
//! [`Results::masks`] give the input of [`bessemer_metrics::coco::evaluate`]. Masks are decoded only when they are asked
//! for, so an invalid mask does not matter to the use of boxes.

mod fields;
mod instances;
mod results;
mod segmentation;

pub use instances::{Annotation, Category, ImageRecord, Instances};
pub use results::{DetectionRecord, Results};
pub use segmentation::Segmentation;

/// Number of objects that a thread processes at once.
const CHUNK: usize = 256;
