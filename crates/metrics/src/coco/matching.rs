use super::{AREAS, Detection, GroundTruth, Region, THRESHOLDS, is_outside, thresholds};

/// The outcome of a detection: for each area range, a bit per IoU threshold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Whether the detection is matched.
    pub is_matched: [u16; AREAS],
    /// Whether the detection is ignored: neither a true nor a false positive.
    pub is_ignored: [u16; AREAS],
    /// Number of detections of the image and category with a higher rank.
    pub rank: u8,
}

/// The bits of all thresholds.
const ALL: u16 = (1 << THRESHOLDS) - 1;

/// Matches detections of one image and category, given by falling score, to the ground truths there.
pub(super) fn match_group<R: Region>(
    truths: &[&GroundTruth<R>],
    detections: &[&Detection<R>],
    outcomes: &mut [Outcome],
) {
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

/// A ground truth whose IoU with a detection reaches the lowest threshold.
struct Candidate {
    truth: usize,
    iou: f64,
}

fn candidates<R: Region>(detection: &Detection<R>, truths: &[&GroundTruth<R>]) -> Vec<Candidate> {
    let lowest = thresholds()[0];
    let overlaps = truths.iter().map(|truth| detection.region.iou(&truth.region, truth.is_crowd)).enumerate();
    overlaps.filter(|&(_, iou)| !is_less(iou, lowest)).map(|(truth, iou)| Candidate { truth, iou }).collect()
}

/// The IoU of boxes whose areas overflow is NaN, which pycocotools does not take for less than any threshold.
fn is_less(iou: f64, limit: f64) -> bool {
    iou < limit
}

fn match_in_range<R>(
    area: usize,
    truths: &[&GroundTruth<R>],
    is_ignored: &[bool],
    candidates: &[Vec<Candidate>],
    outcomes: &mut [Outcome],
) {
    let thresholds = thresholds();
    // For each ground truth, the bits of the thresholds at which it is matched.
    let mut is_taken = vec![0_u16; truths.len()];
    for (candidates, outcome) in candidates.iter().zip(outcomes) {
        if candidates.is_empty() {
            continue;
        }
        for (index, &threshold) in thresholds.iter().enumerate() {
            let bit = 1 << index;
            // The highest IoU among ground truths that are not ignored, or else among ignored ones; the last of equal ones.
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
