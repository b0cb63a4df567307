use std::cmp::Ordering;
use std::ops::Range;

use super::accumulate::accumulate;
use super::matching::{Outcome, match_group};
use super::parallel::for_each;
use super::scores::{CategoryScores, CocoScores, Scores};
use super::{CocoError, MAX_DETECTIONS, Region};

/// Chunks of work per thread, so that all threads end at about the same time.
const CHUNKS: usize = 16;

/// An annotated object.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroundTruth<R> {
    /// Index of the image, in ascending order of image ids.
    pub image: usize,
    /// Index of the category.
    pub category: usize,
    /// Id of the annotation. As in pycocotools, a detection matched to an annotation with id 0 is a false positive.
    pub id: i64,
    /// Box or mask.
    pub region: R,
    /// Annotated area in square pixels, which decides whether the object is small, medium or large.
    pub area: f64,
    /// Whether the annotation covers a crowd of objects instead of one.
    pub is_crowd: bool,
}

/// A detected object.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Detection<R> {
    /// Index of the image, as [`GroundTruth::image`].
    pub image: usize,
    /// Index of the category.
    pub category: usize,
    /// Box or mask.
    pub region: R,
    /// Area in square pixels. An unmatched detection outside an area range is ignored there.
    pub area: f64,
    /// Confidence, by which detections are ranked. Equal scores are ranked by image, then by position in the list.
    pub score: f64,
}

/// Scores detections against ground truths.
///
/// `images` and `categories` are the numbers of images and categories. The result does not depend on `threads`.
///
/// # Errors
///
/// If there is no ground truth, an index is out of range, an annotated area or a score is not finite, or the area of a
/// detection is NaN.
pub fn evaluate<R: Region>(
    images: usize,
    categories: usize,
    truths: &[GroundTruth<R>],
    detections: &[Detection<R>],
    threads: usize,
) -> Result<CocoScores, CocoError> {
    if truths.is_empty() {
        return Err(CocoError::NoObjects);
    }
    for (index, truth) in truths.iter().enumerate() {
        let what = Item { what: "ground truth", index };
        what.below("image", truth.image, images)?;
        what.below("category", truth.category, categories)?;
        what.finite("area", truth.area)?;
    }
    for (index, detection) in detections.iter().enumerate() {
        let what = Item { what: "detection", index };
        what.below("image", detection.image, images)?;
        what.below("category", detection.category, categories)?;
        what.finite("score", detection.score)?;
        if detection.area.is_nan() {
            return Err(CocoError::NonFinite { what: "detection", index, name: "area", value: detection.area });
        }
    }

    let mut work: Vec<CategoryGroups> = (0..categories).map(|_| CategoryGroups::default()).collect();
    for (index, truth) in truths.iter().enumerate() {
        work[truth.category].truths.push(index);
    }
    for (index, detection) in detections.iter().enumerate() {
        work[detection.category].detections.push(index);
    }
    for_each(work.iter_mut().collect(), threads, |category| category.group(truths, detections));

    let groups: usize = work.iter().map(|category| category.groups.len()).sum();
    let size = groups.div_ceil(threads.max(1) * CHUNKS).max(1);
    let chunks = work.iter_mut().flat_map(|category| category.chunks(size)).collect();
    for_each(chunks, threads, |chunk: Chunk<'_>| chunk.run(truths, detections));

    let left_out = work.iter().map(|category| category.left_out).sum();
    let mut scores: Vec<Option<CategoryScores>> = vec![None; categories];
    for_each(work.iter().zip(&mut scores).collect(), threads, |(category, scores)| {
        *scores = Some(category.scores(truths, detections));
    });
    let categories: Vec<CategoryScores> = scores.into_iter().flatten().collect();
    Ok(CocoScores { all: Scores::mean(categories.iter().map(|category| &category.scores)), categories, left_out })
}

/// The order of finite scores, in which 0 and -0 are equal.
fn by_falling_score(a: f64, b: f64) -> Ordering {
    b.partial_cmp(&a).unwrap_or(Ordering::Equal)
}

/// What an error message refers to.
struct Item {
    what: &'static str,
    index: usize,
}

impl Item {
    fn below(&self, name: &'static str, value: usize, count: usize) -> Result<(), CocoError> {
        let Self { what, index } = *self;
        if value < count { Ok(()) } else { Err(CocoError::Index { what, index, name, value, count }) }
    }

    fn finite(&self, name: &'static str, value: f64) -> Result<(), CocoError> {
        let Self { what, index } = *self;
        if value.is_finite() { Ok(()) } else { Err(CocoError::NonFinite { what, index, name, value }) }
    }
}

/// Ground truths and detections of one category, grouped by image.
#[derive(Default)]
struct CategoryGroups {
    /// Indices of ground truths, by image.
    truths: Vec<usize>,
    /// Indices of the detections that are evaluated, by image and then by falling score.
    detections: Vec<usize>,
    /// The outcome of each of `detections`.
    outcomes: Vec<Outcome>,
    /// Images with a ground truth or a detection, in ascending order.
    groups: Vec<Group>,
    /// Number of detections beyond the limit per image.
    left_out: usize,
}

/// Ground truths and detections of one image and category, as ranges of the category's lists.
struct Group {
    truths: Range<usize>,
    detections: Range<usize>,
}

impl CategoryGroups {
    /// Sorts ground truths and detections into groups, and drops detections beyond the limit per image.
    fn group<R>(&mut self, truths: &[GroundTruth<R>], detections: &[Detection<R>]) {
        self.truths.sort_by_key(|&index| truths[index].image);
        self.detections.sort_by(|&a, &b| {
            let (a, b) = (&detections[a], &detections[b]);
            a.image.cmp(&b.image).then(by_falling_score(a.score, b.score))
        });
        let all = std::mem::take(&mut self.detections);
        self.detections.reserve(all.len());
        let mut rest = all.as_slice();
        let mut first = 0;
        loop {
            let next = self.truths.get(first).map(|&index| truths[index].image);
            let Some(image) = next.into_iter().chain(rest.first().map(|&index| detections[index].image)).min() else {
                break;
            };
            let count = self.truths[first..].iter().take_while(|&&index| truths[index].image == image).count();
            let found = rest.iter().take_while(|&&index| detections[index].image == image).count();
            let kept = found.min(MAX_DETECTIONS);
            let start = self.detections.len();
            self.detections.extend(&rest[..kept]);
            self.left_out += found - kept;
            self.groups.push(Group { truths: first..first + count, detections: start..start + kept });
            first += count;
            rest = &rest[found..];
        }
        self.outcomes = vec![Outcome::default(); self.detections.len()];
    }

    /// The matching of the category in chunks of `size` groups.
    fn chunks(&mut self, size: usize) -> impl Iterator<Item = Chunk<'_>> {
        let Self { truths, detections, outcomes, groups, .. } = self;
        let (truths, detections) = (truths.as_slice(), detections.as_slice());
        let mut rest = outcomes.as_mut_slice();
        groups.chunks(size).map(move |groups| {
            let count = groups.iter().map(|group| group.detections.len()).sum();
            let (outcomes, after) = std::mem::take(&mut rest).split_at_mut(count);
            rest = after;
            Chunk { truths, detections, groups, outcomes }
        })
    }

    fn scores<R>(&self, truths: &[GroundTruth<R>], detections: &[Detection<R>]) -> CategoryScores {
        let objects: Vec<&GroundTruth<R>> = self.truths.iter().map(|&index| &truths[index]).collect();
        let mut order: Vec<(f64, &Outcome)> = self
            .detections
            .iter()
            .zip(&self.outcomes)
            .map(|(&index, outcome)| (detections[index].score, outcome))
            .collect();
        order.sort_by(|&(a, _), &(b, _)| by_falling_score(a, b));
        CategoryScores {
            scores: accumulate(&objects, order.into_iter().map(|(_, outcome)| outcome)),
            objects: objects.iter().filter(|truth| !truth.is_crowd).count(),
            detections: self.detections.len() + self.left_out,
        }
    }
}

/// Some groups of a category, and the outcomes of their detections to be filled in.
struct Chunk<'a> {
    truths: &'a [usize],
    detections: &'a [usize],
    groups: &'a [Group],
    outcomes: &'a mut [Outcome],
}

impl Chunk<'_> {
    fn run<R: Region>(self, truths: &[GroundTruth<R>], detections: &[Detection<R>]) {
        let mut outcomes = self.outcomes;
        for group in self.groups {
            let objects: Vec<&GroundTruth<R>> =
                self.truths[group.truths.clone()].iter().map(|&index| &truths[index]).collect();
            let found: Vec<&Detection<R>> =
                self.detections[group.detections.clone()].iter().map(|&index| &detections[index]).collect();
            let (now, rest) = outcomes.split_at_mut(found.len());
            match_group(&objects, &found, now);
            outcomes = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coco::BoundingBox;

    fn truth(image: usize, id: i64, region: [f64; 4]) -> GroundTruth<BoundingBox> {
        let region = BoundingBox::from(region);
        GroundTruth { image, category: 0, id, region, area: region.area(), is_crowd: false }
    }

    fn detection(image: usize, score: f64, region: [f64; 4]) -> Detection<BoundingBox> {
        let region = BoundingBox::from(region);
        Detection { image, category: 0, region, area: region.area(), score }
    }

    fn scores(truths: &[GroundTruth<BoundingBox>], detections: &[Detection<BoundingBox>]) -> Scores {
        let scores = evaluate(3, 2, truths, detections, 2).unwrap();
        assert_eq!(scores.categories[1].scores.ap, None, "nothing is of the second category");
        scores.all
    }

    #[track_caller]
    fn assert_near(score: Option<f64>, expected: f64) {
        assert!((score.unwrap() - expected).abs() < 1e-12, "{score:?}, expected {expected}");
    }

    const SMALL: [f64; 4] = [10.0, 10.0, 20.0, 20.0];
    const MEDIUM: [f64; 4] = [50.0, 50.0, 40.0, 40.0];

    #[test]
    fn objects_count_in_the_range_of_their_area() {
        let found = scores(&[truth(0, 1, SMALL), truth(1, 2, MEDIUM)], &[detection(0, 0.5, SMALL)]);
        // Precision is 1 up to a recall of one half: 51 of the 101 levels.
        for (score, expected) in [
            (found.ap, 51.0 / 101.0),
            (found.ap50, 51.0 / 101.0),
            (found.ap_small, 1.0),
            (found.ap_medium, 0.0),
            (found.ar_1, 0.5),
            (found.ar_100, 0.5),
            (found.ar_small, 1.0),
            (found.ar_medium, 0.0),
        ] {
            assert_near(score, expected);
        }
        assert_eq!((found.ap_large, found.ar_large), (None, None));
    }

    #[test]
    fn an_area_at_a_limit_is_in_both_ranges() {
        let both = [0.0, 0.0, 32.0, 32.0];
        let found = scores(&[truth(0, 1, both)], &[detection(0, 0.5, both)]);
        assert_near(found.ap_small, 1.0);
        assert_near(found.ap_medium, 1.0);
        assert_eq!(found.ap_large, None);
    }

    #[test]
    fn scores_average_ten_iou_thresholds() {
        // Boxes of 10 by 10 that share 10 by 8: 80 / 120 reaches 0.50, 0.55, 0.60 and 0.65.
        let found = scores(&[truth(0, 1, [0.0, 0.0, 10.0, 10.0])], &[detection(0, 0.5, [0.0, 2.0, 10.0, 10.0])]);
        assert_near(found.ap, 0.4);
        assert_near(found.ar_100, 0.4);
        assert_near(found.ap50, 1.0);
        assert_near(found.ap75, 0.0);
    }

    #[test]
    fn equal_scores_keep_the_order_of_images_and_of_the_list() {
        let truths = [truth(1, 1, SMALL)];
        let (right, wrong) = (detection(1, 0.5, SMALL), detection(1, 0.5, MEDIUM));
        assert_near(scores(&truths, &[right, wrong]).ap50, 1.0);
        assert_near(scores(&truths, &[wrong, right]).ap50, 0.5);
        let (before, after) = (detection(0, 0.5, MEDIUM), detection(2, 0.5, MEDIUM));
        assert_near(scores(&truths, &[right, before]).ap50, 0.5);
        assert_near(scores(&truths, &[after, right]).ap50, 1.0);
        let (zero, minus_zero) = (detection(1, 0.0, SMALL), detection(1, -0.0, MEDIUM));
        assert_near(scores(&truths, &[minus_zero, zero]).ap50, 0.5);
    }

    #[test]
    fn an_object_is_matched_once_by_the_highest_score() {
        let truths = [truth(0, 1, SMALL), truth(0, 2, MEDIUM)];
        let twice = [detection(0, 0.9, SMALL), detection(0, 0.8, SMALL), detection(0, 0.7, MEDIUM)];
        let expected = (51.0 + 50.0 * 2.0 / 3.0) / 101.0;
        assert_near(scores(&truths, &twice).ap50, expected);
        assert_near(scores(&truths, &twice).ar_1, 0.5);
    }

    #[test]
    fn crowds_and_detections_in_them_are_ignored() {
        let crowd = GroundTruth { is_crowd: true, ..truth(0, 2, [0.0, 100.0, 100.0, 100.0]) };
        let mut detections = vec![detection(0, 0.1, SMALL)];
        for offset in [0.0, 30.0, 60.0] {
            detections.push(detection(0, 0.9, [offset, 120.0, 20.0, 20.0]));
        }
        let found = evaluate(3, 2, &[crowd, truth(0, 1, SMALL)], &detections, 1).unwrap();
        assert_near(found.all.ap, 1.0);
        assert_near(found.all.ar_100, 1.0);
        assert_eq!((found.categories[0].objects, found.categories[0].detections), (1, 4));
        let alone = scores(&[crowd], &detections);
        assert_eq!((alone.ap, alone.ar_100), (None, None));
    }

    #[test]
    fn unmatched_detections_outside_an_area_range_are_ignored() {
        let truths = [truth(0, 1, SMALL)];
        let found = scores(&truths, &[detection(0, 0.9, MEDIUM), detection(0, 0.5, SMALL)]);
        assert_near(found.ap, 0.5);
        assert_near(found.ap_small, 1.0);
    }

    #[test]
    fn a_match_of_annotation_id_0_is_a_false_positive() {
        let found = scores(&[truth(0, 0, SMALL), truth(1, 1, SMALL)], &[detection(0, 0.9, SMALL)]);
        assert_near(found.ap, 0.0);
    }

    #[test]
    fn one_hundred_detections_per_image_are_evaluated() {
        let truths = [truth(0, 1, SMALL)];
        let mut detections = vec![detection(0, 0.9, MEDIUM); 99];
        detections.push(detection(0, 0.5, SMALL));
        assert_near(scores(&truths, &detections).ar_100, 1.0);
        assert_near(scores(&truths, &detections).ar_10, 0.0);
        detections.insert(0, detection(0, 0.9, MEDIUM));
        let beyond = evaluate(3, 2, &truths, &detections, 2).unwrap();
        assert_eq!((beyond.all.ar_100, beyond.left_out), (Some(0.0), 1));
    }

    #[test]
    fn invalid_input_is_refused() {
        let (truths, detections) = ([truth(0, 1, SMALL)], [detection(0, 0.9, SMALL)]);
        let message = |truths: &[GroundTruth<BoundingBox>], detections: &[Detection<BoundingBox>]| {
            evaluate(3, 2, truths, detections, 1).unwrap_err().to_string()
        };
        assert_eq!(message(&[], &detections), "COCO: there are no annotations");
        let far = GroundTruth { image: 3, ..truths[0] };
        assert_eq!(message(&[far], &detections), "COCO: ground truth 0 has image 3, expected less than 3");
        let far = Detection { category: 2, ..detections[0] };
        assert_eq!(message(&truths, &[detections[0], far]), "COCO: detection 1 has category 2, expected less than 2");
        let none = Detection { score: f64::NAN, ..detections[0] };
        assert_eq!(message(&truths, &[none]), "COCO: detection 0 has the score NaN, expected a finite number");
        let none = GroundTruth { area: f64::INFINITY, ..truths[0] };
        assert_eq!(message(&[none], &[]), "COCO: ground truth 0 has the area inf, expected a finite number");
    }
}
