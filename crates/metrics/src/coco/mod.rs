//! Average precision and recall of detections, as COCO defines them and pycocotools computes them.
//!
//! Within an image and category, each detection in order of falling score is matched to the unmatched ground truth with
//! the highest intersection over union (IoU), if that reaches a threshold. Precision is averaged over 101 levels of
//! recall, ten thresholds from 0.50 to 0.95, and categories; recall is averaged over thresholds and categories. The 100
//! detections with the highest scores of each image and category are evaluated. Crowds and ground truths outside the
//! range of areas in question are ignored: whether they are matched or missed changes no score.

mod accumulate;
mod error;
mod evaluate;
mod matching;
mod parallel;
mod region;
mod scores;

pub use error::CocoError;
pub use evaluate::{Detection, GroundTruth, evaluate};
pub use region::{BoundingBox, Mask, Region};
pub use scores::{CategoryScores, CocoScores, SCORE_NAMES, Scores};

/// Number of detections evaluated per image and category: those with the highest scores.
pub const MAX_DETECTIONS: usize = 100;

/// Number of IoU thresholds.
const THRESHOLDS: usize = 10;
/// Number of area ranges: all, small, medium, large.
const AREAS: usize = 4;
/// The area ranges in square pixels, both ends included.
const AREA_RANGES: [[f64; 2]; AREAS] = [[0.0, 1e10], [0.0, 1024.0], [1024.0, 9216.0], [9216.0, 1e10]];

/// The IoU thresholds, with the rounding of NumPy's `linspace(0.5, 0.95, 10)`.
fn thresholds() -> [f64; THRESHOLDS] {
    let (first, last) = (0.5, 0.95);
    let step = (last - first) / (THRESHOLDS - 1) as f64;
    std::array::from_fn(|index| if index == THRESHOLDS - 1 { last } else { index as f64 * step + first })
}

/// For each area range, whether an area is outside it.
fn is_outside(area: f64) -> [bool; AREAS] {
    AREA_RANGES.map(|[least, greatest]| area < least || area > greatest)
}
