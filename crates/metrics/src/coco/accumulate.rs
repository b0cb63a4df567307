use super::matching::Outcome;
use super::scores::Scores;
use super::{AREAS, THRESHOLDS, Truth, is_outside};

/// Levels of recall at which precision is read.
const LEVELS: usize = 101;
/// The thresholds 0.50 and 0.75.
const AT_50: usize = 0;
const AT_75: usize = 5;

/// The scores of a category from its objects and the outcomes of its detections by falling score.
pub(super) fn accumulate<'a, R>(truths: &[&Truth<R>], outcomes: impl Iterator<Item = &'a Outcome>) -> Scores {
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
            let (right, wrong) = (outcome.is_matched[area] & counts, !outcome.is_matched[area] & counts);
            for (index, curve) in curves.iter_mut().enumerate() {
                curve.wrong += u32::from(wrong >> index & 1);
                if right >> index & 1 == 1 {
                    curve.add_right();
                }
            }
        }
        for (most, found) in [1, 10].into_iter().zip(&mut found) {
            if outcome.rank < most {
                let right = outcome.is_matched[0] & !outcome.is_ignored[0];
                for (index, found) in found.iter_mut().enumerate() {
                    *found += u32::from(right >> index & 1);
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

/// Precision over recall at one threshold, in the making.
#[derive(Default)]
struct Curve {
    /// Detections so far without an object.
    wrong: u32,
    /// Precision after each detection with an object.
    precisions: Vec<f64>,
}

impl Curve {
    fn add_right(&mut self) {
        let right = f64::from(self.precisions.len() as u32 + 1);
        self.precisions.push(right / (f64::from(self.wrong) + right + f64::EPSILON));
    }

    /// The mean over levels of recall of the best precision at that recall or more, 0 where it is not reached.
    ///
    /// Recall and precision rise only with a detection that has an object, so that no other one is looked at.
    fn average_precision(&self, objects: u32) -> f64 {
        let mut best = self.precisions.clone();
        for index in (1..best.len()).rev() {
            best[index - 1] = best[index - 1].max(best[index]);
        }
        let mut first = 0;
        let mut sum = 0.0;
        for level in 0..LEVELS {
            let level = if level == LEVELS - 1 { 1.0 } else { level as f64 * 0.01 };
            while first < best.len() && f64::from(first as u32 + 1) / f64::from(objects) < level {
                first += 1;
            }
            let Some(precision) = best.get(first) else { break };
            sum += precision;
        }
        sum / LEVELS as f64
    }
}
