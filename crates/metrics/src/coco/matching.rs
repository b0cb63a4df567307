use super::{AREAS, Detection, Region, THRESHOLDS, Truth, is_outside, thresholds};

/// What became of a detection: for each range of areas, a bit for each threshold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Whether the detection matches an object.
    pub is_matched: [u16; AREAS],
    /// Whether the detection counts for nothing.
    pub is_ignored: [u16; AREAS],
    /// Detections of the image and category before this one.
    pub rank: u8,
}

/// Bits for all thresholds.
const ALL: u16 = (1 << THRESHOLDS) - 1;

/// Matches the detections of one category in one image, by falling score, with the objects there.
pub(super) fn match_pair<R: Region>(truths: &[&Truth<R>], detections: &[&Detection<R>], outcomes: &mut [Outcome]) {
    for (rank, outcome) in outcomes.iter_mut().enumerate() {
        *outcome = Outcome { rank: rank as u8, ..Outcome::default() };
    }
    if !truths.is_empty() {
        let candidates: Vec<Vec<Candidate>> =
            detections.iter().map(|detection| candidates(detection, truths)).collect();
        let is_outside: Vec<[bool; AREAS]> = truths.iter().map(|truth| is_outside(truth.area)).collect();
        for area in 0..AREAS {
            let is_ignored: Vec<bool> =
                truths.iter().zip(&is_outside).map(|(truth, outside)| truth.is_crowd || outside[area]).collect();
            match_in_range(area, truths, &is_ignored, &candidates, outcomes);
        }
    }
    for (detection, outcome) in detections.iter().zip(outcomes) {
        for (area, is_outside) in is_outside(detection.area).into_iter().enumerate() {
            if is_outside {
                outcome.is_ignored[area] |= ALL & !outcome.is_matched[area];
            }
        }
    }
}

/// An object that a detection overlaps enough for the lowest threshold.
struct Candidate {
    truth: usize,
    iou: f64,
}

fn candidates<R: Region>(detection: &Detection<R>, truths: &[&Truth<R>]) -> Vec<Candidate> {
    let lowest = thresholds()[0];
    let overlaps = truths.iter().map(|truth| detection.region.iou(&truth.region, truth.is_crowd)).enumerate();
    overlaps.filter(|&(_, iou)| !is_less(iou, lowest)).map(|(truth, iou)| Candidate { truth, iou }).collect()
}

/// Boxes too large for numbers overlap by NaN, which is less than nothing.
fn is_less(iou: f64, limit: f64) -> bool {
    iou < limit
}

fn match_in_range<R>(
    area: usize,
    truths: &[&Truth<R>],
    is_ignored: &[bool],
    candidates: &[Vec<Candidate>],
    outcomes: &mut [Outcome],
) {
    let thresholds = thresholds();
    // For each object, bits of the thresholds at which it has a detection.
    let mut is_taken = vec![0_u16; truths.len()];
    for (candidates, outcome) in candidates.iter().zip(outcomes) {
        if candidates.is_empty() {
            continue;
        }
        for (index, &threshold) in thresholds.iter().enumerate() {
            let bit = 1 << index;
            // The best object that counts, or else the best of those that are ignored; of equal ones the last.
            let best = |ignored: bool| {
                let mut best = (threshold, None);
                for &Candidate { truth, iou } in candidates.iter().filter(|one| is_ignored[one.truth] == ignored) {
                    let is_free = is_taken[truth] & bit == 0 || truths[truth].is_crowd;
                    if is_free && !is_less(iou, best.0) {
                        best = (iou, Some(truth));
                    }
                }
                best.1
            };
            let Some(truth) = best(false).or_else(|| best(true)) else { continue };
            is_taken[truth] |= bit;
            if truths[truth].id != 0 {
                outcome.is_matched[area] |= bit;
            }
            if is_ignored[truth] {
                outcome.is_ignored[area] |= bit;
            }
        }
    }
}
