use super::matching::Outcome;
use super::scores::Scores;
use super::{AREAS, GroundTruth, THRESHOLDS, is_outside};

/// Number of recall levels at which precision is read.
const LEVELS: usize = 101;
/// Index of the threshold 0.50.
const AT_50: usize = 0;
/// Index of the threshold 0.75.
const AT_75: usize = 5;

/// The scores of a category from its ground truths and the outcomes of its detections by falling score.
pub(super) fn accumulate<'a, R>(truths: &[&GroundTruth<R>], outcomes: impl Iterator<Item = &'a Outcome>) -> Scores {
    let mut objects = [0; AREAS];
    for truth in truths.iter().filter(|truth| !truth.is_crowd) {
        for (count, is_outside) in objects.iter_mut().zip(is_outside(truth.area)) {
            *count += u32::from(!is_outside);
        }
    }
    let mut curves: [[Curve; THRESHOLDS]; AREAS] = Default::default();
    let mut found = [[0_u32; THRESHOLDS]; 2];
    for outcome in outcomes {
        for (area, curves) in curves.iter_mut().enumerate() {
            let counts = !outcome.is_ignored[area];
            let true_positives = outcome.is_matched[area] & counts;
            let false_positives = !outcome.is_matched[area] & counts;
            for (index, curve) in curves.iter_mut().enumerate() {
                curve.false_positives += u32::from(false_positives >> index & 1);
                if true_positives >> index & 1 == 1 {
                    curve.add_true_positive();
                }
            }
        }
        for (most, found) in [1, 10].into_iter().zip(&mut found) {
            if outcome.rank < most {
                let true_positives = outcome.is_matched[0] & !outcome.is_ignored[0];
                for (index, found) in found.iter_mut().enumerate() {
                    *found += u32::from(true_positives >> index & 1);
                }
            }
        }
    }

    let recall = |area: usize, found: [u32; THRESHOLDS]| {
        let share = |found| f64::from(found) / f64::from(objects[area]);
        (objects[area] > 0).then(|| mean(&found.map(share)))
    };
    let all = |area: usize| recall(area, curves[area].each_ref().map(|curve| curve.precisions.len() as u32));
    let recalls = [recall(0, found[0]), recall(0, found[1]), all(0), all(1), all(2), all(3)];
    let precisions = |area: usize| {
        let average = |curve: &Curve| curve.average_precision(objects[area]);
        (objects[area] > 0).then(|| curves[area].each_ref().map(average))
    };
    let by_area: [Option<[f64; THRESHOLDS]>; AREAS] = std::array::from_fn(precisions);
    let [all, small, medium, large] = by_area.map(|precisions| precisions.as_ref().map(|precisions| mean(precisions)));
    let at = |index: usize| by_area[0].map(|precisions| precisions[index]);
    let [r1, r10, r100, r_small, r_medium, r_large] = recalls;
    Scores::from_values([all, at(AT_50), at(AT_75), small, medium, large, r1, r10, r100, r_small, r_medium, r_large])
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The precision-recall curve of one threshold and range of areas, built detection by detection.
#[derive(Default)]
struct Curve {
    /// Number of false positives so far.
    false_positives: u32,
    /// Precision after each true positive.
    precisions: Vec<f64>,
}

impl Curve {
    fn add_true_positive(&mut self) {
        let count = f64::from(self.precisions.len() as u32 + 1);
        self.precisions.push(count / (f64::from(self.false_positives) + count + f64::EPSILON));
    }

    /// The mean over the levels of recall of the highest precision at that recall or above; 0 at levels that are not
    /// reached.
    ///
    /// Recall, and the highest precision from a detection on, change only at true positives, so no other detection is
    /// looked at.
    fn average_precision(&self, objects: u32) -> f64 {
        let mut highest = self.precisions.clone();
        for index in (1..highest.len()).rev() {
            highest[index - 1] = highest[index - 1].max(highest[index]);
        }
        let mut first = 0;
        let mut sum = 0.0;
        for level in 0..LEVELS {
            let level = if level == LEVELS - 1 { 1.0 } else { level as f64 * 0.01 };
            while first < highest.len() && f64::from(first as u32 + 1) / f64::from(objects) < level {
                first += 1;
            }
            let Some(precision) = highest.get(first) else { break };
            sum += precision;
        }
        sum / LEVELS as f64
    }
}
