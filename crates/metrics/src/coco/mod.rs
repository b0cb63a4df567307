//! Average precision and recall of detected objects, as COCO defines them and pycocotools computes them.
//!
//! A detection matches the annotated object of its image and category that it overlaps most, if their intersection over
//! union reaches a threshold and no better-scored detection has that object. Precision is averaged over 101 levels of
//! recall, ten thresholds from 0.50 to 0.95, and categories; recall is averaged over thresholds and categories. Of each
//! image and category the 100 best detections count. Crowds, and objects outside the range of areas in question, are
//! ignored: neither missing them nor detecting them changes a score.

mod accumulate;
mod error;
mod evaluate;
mod matching;
mod parallel;
mod region;
mod scores;

pub use error::CocoError;
pub use evaluate::{Detection, Truth, evaluate};
pub use region::{BoundingBox, Mask, Region};
pub use scores::{CategoryScores, CocoScores, SCORE_NAMES, Scores};

/// Detections of one category in one image that count, those with the highest scores.
pub const MAX_DETECTIONS: usize = 100;

/// Thresholds of intersection over union.
const THRESHOLDS: usize = 10;
/// Ranges of areas: all, small, medium, large.
const AREAS: usize = 4;
/// The ranges in square pixels; both ends belong to a range.
const AREA_RANGES: [[f64; 2]; AREAS] = [[0.0, 1e10], [0.0, 1024.0], [1024.0, 9216.0], [9216.0, 1e10]];

/// The thresholds with the roundings of NumPy's `linspace(0.5, 0.95, 10)`.
fn thresholds() -> [f64; THRESHOLDS] {
    let (first, last) = (0.5, 0.95);
    let step = (last - first) / (THRESHOLDS - 1) as f64;
    std::array::from_fn(|index| if index == THRESHOLDS - 1 { last } else { index as f64 * step + first })
}

/// For each range of areas, whether an area lies outside.
fn is_outside(area: f64) -> [bool; AREAS] {
    AREA_RANGES.map(|[least, greatest]| area < least || area > greatest)
}
