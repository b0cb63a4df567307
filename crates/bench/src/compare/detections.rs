//! How far detections are apart: compared as sets, since those of equal scores have no order.

use bessemer_weights::TensorFile;
use std::path::Path;

/// When two detections of one class are the same one, and how many need not be found by both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AllowedDetections {
    /// Relative distance of the scores of two detections, and of all sorted scores in the L2 norm.
    pub scores: f64,
    /// The least IoU of two detections.
    pub overlap: f64,
    /// Share of the detections that have no partner on the other side.
    pub alone: f64,
    /// The least mean IoU of the masks of partners, where there are masks.
    pub masks: f64,
}

/// The distance of two files of detections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Distance {
    /// Relative distance of the sorted scores in the L2 norm.
    pub scores: f64,
    /// Share of the detections that have no partner on the other side.
    pub alone: f64,
    /// Mean IoU of the masks of partners; `None` where there are no masks or no partners.
    pub masks: Option<f64>,
}

/// A cell of a mask belongs to the object if its probability is above this.
const INSIDE: f32 = 0.5;

/// A detection of an image.
#[derive(Clone, Debug, PartialEq)]
struct Detection {
    /// `[x1, y1, x2, y2]`
    corners: [f64; 4],
    score: f64,
    label: f32,
    /// The cells of its box, where it has a mask.
    mask: Option<Vec<bool>>,
}

/// Compares the images of two files one by one; or why they cannot be compared.
pub(super) fn distance(wanted: &Path, found: &Path, allowed: &AllowedDetections) -> Result<Distance, String> {
    let (wanted, found) = (images(wanted)?, images(found)?);
    if wanted.len() != found.len() {
        return Err(format!("it has detections of {} images, Bessemer of {}", found.len(), wanted.len()));
    }
    let (mut squares, mut difference) = (0.0, 0.0);
    let (mut alone, mut all) = (0, 0);
    let mut overlaps = Vec::new();
    for (wanted, found) in wanted.iter().zip(&found) {
        let most = wanted.len().max(found.len());
        let score = |of: &[Detection], index: usize| of.get(index).map_or(0.0, |detection| detection.score);
        for index in 0..most {
            squares += score(wanted, index).powi(2);
            difference += (score(wanted, index) - score(found, index)).powi(2);
        }
        let pairs = partners(wanted, found, allowed);
        alone += most - pairs.len();
        for (ours, theirs) in pairs {
            overlaps.extend(mask_overlap(ours, theirs)?);
        }
        all += most;
    }
    if all == 0 {
        return Err("there is not a single detection to compare".to_owned());
    }
    Ok(Distance {
        scores: (difference / squares.max(f64::MIN_POSITIVE)).sqrt(),
        alone: alone as f64 / all as f64,
        masks: (!overlaps.is_empty()).then(|| overlaps.iter().sum::<f64>() / overlaps.len() as f64),
    })
}

/// Pairs of detections, each with the partner of the same class that it overlaps most and that is still without one.
fn partners<'a>(
    wanted: &'a [Detection],
    found: &'a [Detection],
    allowed: &AllowedDetections,
) -> Vec<(&'a Detection, &'a Detection)> {
    let mut is_taken = vec![false; found.len()];
    let mut pairs = Vec::new();
    for ours in wanted {
        let is_same = |theirs: &Detection| {
            theirs.label == ours.label && (theirs.score - ours.score).abs() <= allowed.scores * ours.score
        };
        let free = found.iter().enumerate().filter(|(index, theirs)| !is_taken[*index] && is_same(theirs));
        let overlaps = free.map(|(index, theirs)| (overlap(ours.corners, theirs.corners), index));
        let best = overlaps.filter(|(overlap, _)| *overlap >= allowed.overlap).max_by(|a, b| a.0.total_cmp(&b.0));
        if let Some((_, index)) = best {
            is_taken[index] = true;
            pairs.push((ours, &found[index]));
        }
    }
    pairs
}

/// IoU of the masks of two detections, `None` where ours has none; empty masks overlap wholly.
fn mask_overlap(ours: &Detection, theirs: &Detection) -> Result<Option<f64>, String> {
    let Some(ours) = &ours.mask else { return Ok(None) };
    let theirs = theirs.mask.as_ref().filter(|theirs| theirs.len() == ours.len());
    let theirs = theirs.ok_or_else(|| format!("it has no masks of {} cells", ours.len()))?;
    let count = |is_in: &dyn Fn(bool, bool) -> bool| ours.iter().zip(theirs).filter(|(a, b)| is_in(**a, **b)).count();
    let (common, union) = (count(&|a, b| a && b), count(&|a, b| a || b));
    Ok(Some(if union > 0 { common as f64 / union as f64 } else { 1.0 }))
}

/// IoU of two boxes; equal boxes without area overlap wholly.
fn overlap(a: [f64; 4], b: [f64; 4]) -> f64 {
    let area = |[x1, y1, x2, y2]: [f64; 4]| (x2 - x1).max(0.0) * (y2 - y1).max(0.0);
    let common = area([a[0].max(b[0]), a[1].max(b[1]), a[2].min(b[2]), a[3].min(b[3])]);
    let union = area(a) + area(b) - common;
    if union > 0.0 { common / union } else { f64::from(u8::from(a == b)) }
}

/// Detections of all images of all batches, in falling order of the scores.
fn images(path: &Path) -> Result<Vec<Vec<Detection>>, String> {
    let file = TensorFile::open(path).map_err(|error| error.to_string())?;
    let numbers = |name: &str| file.read_f32(name).map_err(|error| error.to_string());
    let (boxes, scores, labels, counts) =
        (numbers("boxes")?, numbers("scores")?, numbers("labels")?, numbers("count")?);
    let masks = if file.names().any(|name| name == "masks") { Some(numbers("masks")?) } else { None };
    let places = scores.len() / counts.len().max(1);
    if counts.is_empty()
        || scores.len() % counts.len() > 0
        || labels.len() != scores.len()
        || boxes.len() != 4 * scores.len()
        || masks.as_ref().is_some_and(|masks| masks.len() % scores.len().max(1) > 0)
    {
        let lengths = [&boxes, &scores, &labels, &counts].map(Vec::len);
        return Err(format!(
            "its boxes, scores, labels and counts have {lengths:?} elements, which do not fit each other"
        ));
    }
    let detection = |index: usize| Detection {
        corners: [0, 1, 2, 3].map(|side| f64::from(boxes[4 * index + side])),
        score: f64::from(scores[index]),
        label: labels[index],
        mask: masks.as_ref().map(|masks| {
            let cells = masks.len() / scores.len();
            masks[index * cells..][..cells].iter().map(|&cell| cell > INSIDE).collect()
        }),
    };
    let image = |(image, &count): (usize, &f32)| {
        let mut found: Vec<Detection> =
            (0..places.min(count as usize)).map(|k| detection(image * places + k)).collect();
        found.sort_by(|a, b| b.score.total_cmp(&a.score));
        found
    };
    Ok(counts.iter().enumerate().map(image).collect())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use bessemer_weights::{NamedTensor, write_safetensors};
    use tempfile::TempDir;

    const ALLOWED: AllowedDetections = AllowedDetections { scores: 1e-3, overlap: 0.99, alone: 0.02, masks: 0.98 };
    /// Corners, score and class of the detections of an image.
    pub(in crate::compare) type Row = ([f32; 4], f32, f32);

    const IMAGE: [Row; 3] = [
        ([0.0, 0.0, 100.0, 50.0], 0.9, 3.0),
        ([20.0, 20.0, 60.0, 60.0], 0.5, 3.0),
        ([0.0, 0.0, 100.0, 50.0], 0.5, 7.0),
    ];

    fn tensor<'a>(name: &str, shape: &[usize], numbers: &'a [f32]) -> NamedTensor<'a> {
        NamedTensor::from_f32(name, shape, numbers).unwrap()
    }

    /// A file of two images, the second without detections, with room for four in each.
    pub(in crate::compare) fn write(path: &Path, rows: &[Row]) {
        write_with(path, rows, None);
    }

    /// The same with masks of 2x2 cells.
    pub(in crate::compare) fn write_with(path: &Path, rows: &[Row], masks: Option<&[[f32; 4]]>) {
        let mut columns = [vec![0.0; 32], vec![0.0; 8], vec![0.0; 8]];
        for (index, (corners, score, label)) in rows.iter().enumerate() {
            columns[0][4 * index..][..4].copy_from_slice(corners);
            (columns[1][index], columns[2][index]) = (*score, *label);
        }
        let ([boxes, scores, labels], count) = (columns, [rows.len() as f32, 0.0]);
        let tensors = [
            tensor("boxes", &[1, 2, 4, 4], &boxes),
            tensor("scores", &[1, 2, 4], &scores),
            tensor("labels", &[1, 2, 4], &labels),
            tensor("count", &[1, 2], &count),
        ];
        let mut cells = masks.map(|masks| masks.as_flattened().to_vec());
        cells.iter_mut().for_each(|cells| cells.resize(32, 0.0));
        let masks = cells.iter().map(|cells| tensor("masks", &[1, 2, 4, 2, 2], cells));
        write_safetensors(path, &tensors.into_iter().chain(masks).collect::<Vec<_>>()).unwrap();
    }

    fn distance_of(found: &[Row]) -> Distance {
        let folder = TempDir::new().unwrap();
        let [ours, theirs] = ["ours", "theirs"].map(|name| folder.path().join(name));
        write(&ours, &IMAGE);
        write(&theirs, found);
        distance(&ours, &theirs, &ALLOWED).unwrap()
    }

    #[test]
    fn ties_may_be_swapped() {
        let [a, b, c] = IMAGE;
        assert_eq!(distance_of(&[a, b, c]), Distance { scores: 0.0, alone: 0.0, masks: None });
        assert_eq!(distance_of(&[a, c, b]), Distance { scores: 0.0, alone: 0.0, masks: None });
        assert_eq!(distance_of(&[c, b, a]).alone, 0.0, "the order is that of the scores");
    }

    #[test]
    fn boxes_scores_classes_and_numbers_count() {
        let [a, b, c] = IMAGE;
        let third = 1.0 / 3.0;
        let moved = ([21.0, 20.0, 61.0, 60.0], b.1, b.2);
        assert_eq!(distance_of(&[a, moved, c]), Distance { scores: 0.0, alone: third, masks: None });
        assert_eq!(distance_of(&[a, (b.0, b.1, 4.0), c]), Distance { scores: 0.0, alone: third, masks: None });
        let lower = distance_of(&[a, (b.0, 0.49, b.2), c]);
        assert!(lower.alone == third && (lower.scores - 0.01 / 1.31f64.sqrt()).abs() < 1e-6, "{lower:?}");
        // Nobody is the partner of two.
        assert_eq!(distance_of(&[a, a, c]).alone, third);
        let fewer = distance_of(&[a, b]);
        assert!(fewer.alone == third && (fewer.scores - 0.5 / 1.31f64.sqrt()).abs() < 1e-6, "{fewer:?}");
        assert_eq!(distance_of(&[a, b, c, ([5.0, 5.0, 9.0, 9.0], 0.1, 1.0)]).alone, 0.25);
        assert!(distance_of(&[a, (b.0, f32::NAN, b.2), c]).scores.is_nan());
    }

    #[test]
    fn masks_are_those_of_partners() {
        let [a, b, c] = IMAGE;
        let folder = TempDir::new().unwrap();
        let [ours, theirs] = ["ours", "theirs"].map(|name| folder.path().join(name));
        let (left, right, none) = ([0.9, 0.1, 0.9, 0.1], [0.1, 0.6, 0.1, 0.7], [0.0; 4]);
        write_with(&ours, &IMAGE, Some(&[left, right, none]));
        let masks = |rows: &[Row], masks: &[[f32; 4]]| {
            write_with(&theirs, rows, Some(masks));
            distance(&ours, &theirs, &ALLOWED).unwrap().masks
        };
        assert_eq!(masks(&IMAGE, &[left, right, none]), Some(1.0));
        assert_eq!(masks(&[a, c, b], &[left, none, right]), Some(1.0), "they go with their boxes");
        let half = [0.9, 0.1, 0.1, 0.1];
        assert_eq!(masks(&IMAGE, &[half, right, none]), Some((0.5 + 1.0 + 1.0) / 3.0));
        assert_eq!(masks(&IMAGE, &[right, left, none]), Some(1.0 / 3.0));
        assert_eq!(masks(&[a], &[half]), Some(0.5), "what has no partner counts elsewhere");
        write(&theirs, &IMAGE);
        assert_eq!(distance(&ours, &theirs, &ALLOWED).unwrap_err(), "it has no masks of 4 cells");
    }

    #[test]
    fn what_cannot_be_compared_is_said() {
        let folder = TempDir::new().unwrap();
        let [ours, empty, odd] = ["ours", "empty", "odd"].map(|name| folder.path().join(name));
        write(&ours, &IMAGE);
        write(&empty, &[]);
        write_safetensors(&odd, &[NamedTensor::from_f32("logits", [1], &[1.0]).unwrap()]).unwrap();
        let problem = |wanted: &Path, found: &Path| distance(wanted, found, &ALLOWED).unwrap_err();
        assert!(problem(&empty, &empty).contains("not a single detection"));
        assert!(problem(&ours, &odd).contains("boxes"));
        assert_eq!(distance(&ours, &empty, &ALLOWED), Ok(Distance { scores: 1.0, alone: 1.0, masks: None }));
    }
}
