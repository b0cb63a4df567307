//! COCO's files: annotated objects (`instances_*.json`) and detections (results JSON), and sets of images to train on.
//!
//! A [`CocoSet`] is opened from annotations and a folder of images, or from TFRecord shards, which [`CocoRecords`] writes.
//!
//! Images and categories are indexed by ascending id. [`Instances::boxes`], [`Instances::masks`], [`Results::boxes`] and
//! [`Results::masks`] give the input of [`bessemer_metrics::coco::evaluate`]. Masks are decoded only when they are asked
//! for, so an invalid mask does not matter to the use of boxes.

mod categories;
mod fields;
mod instances;
mod prepare;
mod record;
mod results;
mod segmentation;
mod set;
mod source;
mod store;
mod verify;

pub use categories::{CategoryIds, Classes, Numbering, listed};
pub use instances::{Annotation, Category, ImageRecord, Instances};
pub use prepare::{CocoRecords, WrittenRecords};
pub use results::{DetectionRecord, ResultRecord, Results, ResultsWriter, RunLengths};
pub use segmentation::Segmentation;
pub use set::{CocoOptions, CocoSet, CocoSummary};
pub use source::CocoSource;
pub use verify::{CocoReport, verify};

/// Number of objects that a thread processes at once.
const CHUNK: usize = 256;
