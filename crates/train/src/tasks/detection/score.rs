//! COCO's average precision of detections, and the losses of the network.

use super::DetectionEvaluation;
use super::pictures::Pictures;
use crate::error::TrainError;
use crate::session::EvalSession;
use crate::tasks::{Batch, Score};
use bessemer_data::coco::{Instances, ResultRecord, ResultsWriter};
use bessemer_metrics::coco::{BoundingBox, CocoScores, Detection, GroundTruth, SCORE_NAMES, evaluate};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// Where the true objects of an evaluation come from.
#[derive(Clone, Debug)]
pub(super) enum Truths {
    /// Annotations, crowds included, in pixels of the images.
    Annotated(Arc<Instances>),
    /// The objects in the batches, for data without annotations in a file.
    OfBatches,
    /// They are not known.
    Unknown,
}

/// File of the detections of an evaluation, in COCO's form of results.
pub(super) const BOXES_FILE: &str = "bbox.json";

/// A detection in pixels of its image.
pub(super) struct Found {
    pub class: usize,
    /// `[x, y, width, height]`
    pub bbox: [f64; 4],
    pub score: f64,
}

/// The detections in the outputs of a forward pass, of as many of its images as there are scales: pixels of the image for each
/// pixel of the canvas.
pub(super) fn detections(session: &EvalSession, scales: &[f32]) -> Result<Vec<Vec<Found>>, TrainError> {
    let (boxes, scores) = (session.output("boxes")?, session.output("scores")?);
    let (labels, counts) = (session.output_indices("labels")?, session.output_indices("count")?);
    let each = scores.len() / counts.len();
    let of_image = |(image, &scale): (usize, &f32)| {
        let found = |at: usize| Found {
            class: labels[at] as usize,
            bbox: in_image(&boxes[4 * at..][..4], scale),
            score: scores[at].into(),
        };
        (0..counts[image] as usize).map(|detection| found(image * each + detection)).collect()
    };
    Ok(scales.iter().enumerate().map(of_image).collect())
}

/// Detections and losses, summed up over batches.
pub(super) struct DetectionScore<'a> {
    evaluation: &'a DetectionEvaluation,
    /// With the ids of their images.
    detections: Vec<(i64, Found)>,
    /// Of batches, by image in the order of the data.
    objects: Vec<GroundTruth<BoundingBox>>,
    images: Vec<i64>,
    losses: Losses,
    pictures: Pictures<'a>,
    scores: Option<CocoScores>,
}

/// Sums over all images.
#[derive(Default)]
struct Losses {
    classes: f64,
    boxes: f64,
    positives: u64,
}

/// Names of the metrics in the order of [`SCORE_NAMES`].
pub(super) const METRICS: [&str; 12] = [
    "bbox_ap",
    "bbox_ap50",
    "bbox_ap75",
    "bbox_ap_s",
    "bbox_ap_m",
    "bbox_ap_l",
    "bbox_ar1",
    "bbox_ar10",
    "bbox_ar100",
    "bbox_ar_s",
    "bbox_ar_m",
    "bbox_ar_l",
];
const _: () = assert!(METRICS.len() == SCORE_NAMES.len());

impl<'a> DetectionScore<'a> {
    pub(super) fn new(evaluation: &'a DetectionEvaluation) -> Self {
        Self {
            evaluation,
            detections: Vec::new(),
            objects: Vec::new(),
            images: Vec::new(),
            losses: Losses::default(),
            pictures: Pictures::new(evaluation),
            scores: None,
        }
    }

    /// The true objects that a batch holds, in pixels of the images.
    fn add_objects(&mut self, batch: &Batch) {
        let (ids, scales) = (batch.feeds.i32("ids"), batch.feeds.f32("scales"));
        let (boxes, classes) = (batch.feeds.f32("boxes"), batch.feeds.i32("classes"));
        for (sample, &count) in batch.feeds.i32("count")[..batch.samples].iter().enumerate() {
            let image = self.images.len();
            self.images.push(ids[sample].into());
            for object in 0..count as usize {
                let at = sample * self.evaluation.options.max_objects + object;
                let region = BoundingBox::from(in_image(&boxes[4 * at..][..4], scales[sample]));
                let (category, id) = (classes[at] as usize, self.objects.len() as i64 + 1);
                let truth = GroundTruth { image, category, id, region, area: region.area(), is_crowd: false };
                self.objects.push(truth);
            }
        }
    }

    /// The detections as the metric takes them.
    fn numbered(&self) -> Vec<Detection<BoundingBox>> {
        let by_id: BTreeMap<i64, usize> = self.images.iter().enumerate().map(|(number, &id)| (id, number)).collect();
        let DetectionEvaluation { truths, source, .. } = self.evaluation;
        let number = |(image_id, found): &(i64, Found)| {
            let (image, category) = match truths {
                Truths::Annotated(instances) => {
                    let id = source.categories.get(found.class).copied().flatten()?;
                    (instances.image_number(*image_id)?, instances.category_number(id)?)
                }
                Truths::OfBatches | Truths::Unknown => (*by_id.get(image_id)?, found.class),
            };
            let region = BoundingBox::from(found.bbox);
            Some(Detection { image, category, region, area: region.area(), score: found.score })
        };
        // A class without a category has nothing to be compared with.
        self.detections.iter().filter_map(number).collect()
    }

    /// `None` where the truth is not known.
    fn evaluated(&self) -> Result<Option<CocoScores>, TrainError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let scores = match &self.evaluation.truths {
            Truths::Annotated(instances) => {
                let (images, categories) = (instances.images().len(), instances.categories().len());
                evaluate(images, categories, &instances.boxes(), &self.numbered(), threads)
            }
            Truths::OfBatches => {
                let categories = self.evaluation.source.categories.len();
                let detections = self.numbered().into_iter().filter(|found| found.category < categories);
                evaluate(self.images.len(), categories, &self.objects, &detections.collect::<Vec<_>>(), threads)
            }
            Truths::Unknown => return Ok(None),
        };
        Ok(Some(scores?))
    }

    /// Writes detections and pictures.
    fn write(&self, folder: &Path) -> Result<(), TrainError> {
        fs::create_dir_all(folder).map_err(TrainError::io(folder, "make the folder of predictions"))?;
        let mut results = ResultsWriter::create(&folder.join(&self.evaluation.file))?;
        for &(image_id, Found { class, bbox, score }) in &self.detections {
            if let Some(category_id) = self.evaluation.source.categories.get(class).copied().flatten() {
                results.write(&ResultRecord { image_id, file_name: None, category_id, bbox, score })?;
            }
        }
        results.finish()?;
        self.pictures.write(folder)
    }
}

/// A box `[x1, y1, x2, y2]` of the canvas as `[x, y, width, height]` in pixels of its image.
pub(super) fn in_image(bbox: &[f32], scale: f32) -> [f64; 4] {
    let [x1, y1, x2, y2] = [0, 1, 2, 3].map(|i| f64::from(bbox[i]) * f64::from(scale));
    [x1, y1, x2 - x1, y2 - y1]
}

impl Score for DetectionScore<'_> {
    fn add(&mut self, batch: &Batch, session: &EvalSession) -> Result<(), TrainError> {
        if matches!(self.evaluation.truths, Truths::OfBatches) {
            self.add_objects(batch);
        }
        let found = detections(session, &batch.feeds.f32("scales")[..batch.samples])?;
        self.pictures.add(batch, &found);
        for (image_id, found) in batch.feeds.i32("ids").iter().zip(found) {
            self.detections.extend(found.into_iter().map(|found| (i64::from(*image_id), found)));
        }
        if matches!(self.evaluation.truths, Truths::Unknown) {
            return Ok(());
        }
        let sum = |values: &[f32]| values[..batch.samples].iter().map(|&value| f64::from(value)).sum::<f64>();
        self.losses.classes += sum(session.output("cls_loss_sum")?);
        self.losses.boxes += sum(session.output("box_loss_sum")?);
        let positives = &session.output_indices("positives")?[..batch.samples];
        self.losses.positives += positives.iter().map(|&count| u64::from(count)).sum::<u64>();
        Ok(())
    }

    fn finish(&mut self, out: Option<&Path>) -> Result<(), TrainError> {
        self.scores = self.evaluated()?;
        out.map_or(Ok(()), |folder| self.write(folder))
    }

    fn notes(&self) -> Vec<String> {
        let (floor, file) = (self.evaluation.detection.score_floor, &self.evaluation.file);
        let is_empty = self.detections.is_empty();
        let empty = is_empty
            .then(|| format!("nothing was detected: no score is above detection.score_floor, which is {floor}"));
        let is_unknown = matches!(self.evaluation.truths, Truths::Unknown);
        let unknown = is_unknown.then(|| {
            format!(
                "no scores, as the images have no annotations: {file} is what COCO's server takes, in a ZIP archive"
            )
        });
        empty.into_iter().chain(unknown).collect()
    }

    /// Scores without a true object are left out; there are none where the truth is not known.
    fn metrics(&self) -> BTreeMap<String, f64> {
        let Some(scores) = &self.scores else { return BTreeMap::new() };
        let scores =
            METRICS.into_iter().zip(scores.all.values()).filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let divisor = self.losses.positives as f64 + 1.0;
        let (classes, boxes) = (self.losses.classes / divisor, self.losses.boxes / (4.0 * divisor));
        let loss = classes + self.evaluation.loss.box_weight * boxes;
        let losses = [("loss", loss), ("cls_loss", classes), ("box_loss", boxes)];
        scores.chain(losses.map(|(name, value)| (name.to_owned(), value))).collect()
    }

    fn counts(&self) -> BTreeMap<String, u64> {
        let count = |scores: &CocoScores| scores.categories.iter().map(|category| category.objects as u64).sum();
        let objects = self.scores.as_ref().map(|scores| ("objects".to_owned(), count(scores)));
        objects.into_iter().chain([("detections".to_owned(), self.detections.len() as u64)]).collect()
    }
}
