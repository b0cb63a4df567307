/// Names of the twelve scores in the order of [`Scores::values`].
pub const SCORE_NAMES: [&str; 12] = [
    "AP",
    "AP50",
    "AP75",
    "AP_small",
    "AP_medium",
    "AP_large",
    "AR_max1",
    "AR_max10",
    "AR_max100",
    "AR_small",
    "AR_medium",
    "AR_large",
];

/// The twelve scores of COCO, from 0 to 1. `None` where there is no ground truth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scores {
    /// Average precision over the thresholds from 0.50 to 0.95.
    pub ap: Option<f64>,
    /// Average precision at the threshold 0.50.
    pub ap50: Option<f64>,
    /// Average precision at the threshold 0.75.
    pub ap75: Option<f64>,
    /// Average precision of objects of at most 32² square pixels.
    pub ap_small: Option<f64>,
    /// Average precision of objects from 32² to 96² square pixels.
    pub ap_medium: Option<f64>,
    /// Average precision of objects of at least 96² square pixels.
    pub ap_large: Option<f64>,
    /// Average recall with the best detection per image and category.
    pub ar_1: Option<f64>,
    /// Average recall with the ten best detections per image and category.
    pub ar_10: Option<f64>,
    /// Average recall with the hundred best detections per image and category.
    pub ar_100: Option<f64>,
    /// Average recall of objects of at most 32² square pixels.
    pub ar_small: Option<f64>,
    /// Average recall of objects from 32² to 96² square pixels.
    pub ar_medium: Option<f64>,
    /// Average recall of objects of at least 96² square pixels.
    pub ar_large: Option<f64>,
}

impl Scores {
    /// The scores in the order of [`SCORE_NAMES`].
    pub fn values(&self) -> [Option<f64>; 12] {
        [
            self.ap,
            self.ap50,
            self.ap75,
            self.ap_small,
            self.ap_medium,
            self.ap_large,
            self.ar_1,
            self.ar_10,
            self.ar_100,
            self.ar_small,
            self.ar_medium,
            self.ar_large,
        ]
    }

    /// From scores in the order of [`SCORE_NAMES`].
    pub fn from_values(values: [Option<f64>; 12]) -> Self {
        let [ap, ap50, ap75, ap_small, ap_medium, ap_large, ar_1, ar_10, ar_100, ar_small, ar_medium, ar_large] =
            values;
        Self { ap, ap50, ap75, ap_small, ap_medium, ap_large, ar_1, ar_10, ar_100, ar_small, ar_medium, ar_large }
    }

    /// The mean of each score over those that have it.
    pub(super) fn mean<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
        let (mut sums, mut counts) = ([0.0; 12], [0_u32; 12]);
        for scores in all {
            for (index, value) in scores.values().into_iter().enumerate() {
                if let Some(value) = value {
                    sums[index] += value;
                    counts[index] += 1;
                }
            }
        }
        Self::from_values(std::array::from_fn(|index| {
            (counts[index] > 0).then(|| sums[index] / f64::from(counts[index]))
        }))
    }
}

/// The scores of one category.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CategoryScores {
    /// The scores.
    pub scores: Scores,
    /// Number of ground truths without crowds.
    pub objects: usize,
    /// Number of detections, evaluated or not.
    pub detections: usize,
}

/// The scores of a set of images.
#[derive(Debug, Clone, PartialEq)]
pub struct CocoScores {
    /// The mean over the categories that have ground truths.
    pub all: Scores,
    /// The scores of each category, by index.
    pub categories: Vec<CategoryScores>,
    /// Number of detections that are not evaluated because [`MAX_DETECTIONS`](super::MAX_DETECTIONS) of their image and
    /// category have higher scores.
    pub left_out: usize,
}
