//! COCO's files: annotated objects of images (`instances_*.json`) and detections (results JSON).
//!
//! Images and categories are numbered by ascending id. What the metric of
//! [`bessemer_metrics::coco`] takes is made by [`Instances::boxes`], [`Instances::masks`], [`Results::boxes`] and
//! [`Results::masks`]. Masks are made only when they are asked for, so that broken ones do not matter to boxes.

mod fields;
mod instances;
mod results;
mod segmentation;

pub use instances::{Annotation, Category, ImageRecord, Instances};
pub use results::{DetectionRecord, Results};
pub use segmentation::Segmentation;

/// Objects that a thread takes at once to make their masks.
const CHUNK: usize = 256;
