//! COCO's average precision of detections, and the losses of the network.

use super::sources::Source;
use crate::error::TrainError;
use crate::session::EvalSession;
use crate::tasks::{Batch, Score};
use bessemer_data::coco::Instances;
use bessemer_metrics::coco::{BoundingBox, CocoScores, Detection, GroundTruth, SCORE_NAMES, evaluate};
use bessemer_models::efficientdet::LossOptions;
use serde_json::json;
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
    truths: Truths,
    source: &'a Source,
    loss: LossOptions,
    max_objects: usize,
    /// With the ids of their images.
    detections: Vec<(i64, Found)>,
    /// Of batches, by image in the order of the data.
    objects: Vec<GroundTruth<BoundingBox>>,
    images: Vec<i64>,
    losses: Losses,
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
    pub(super) fn new(truths: Truths, source: &'a Source, loss: LossOptions, max_objects: usize) -> Self {
        Self {
            truths,
            source,
            loss,
            max_objects,
            detections: Vec::new(),
            objects: Vec::new(),
            images: Vec::new(),
            losses: Losses::default(),
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
                let at = sample * self.max_objects + object;
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
        let number = |(image_id, found): &(i64, Found)| {
            let (image, category) = match &self.truths {
                Truths::Annotated(instances) => {
                    let id = self.source.categories.get(found.class).copied().flatten()?;
                    (instances.image_number(*image_id)?, instances.category_number(id)?)
                }
                Truths::OfBatches => (*by_id.get(image_id)?, found.class),
            };
            let region = BoundingBox::from(found.bbox);
            Some(Detection { image, category, region, area: region.area(), score: found.score })
        };
        // A class without a category has nothing to be compared with.
        self.detections.iter().filter_map(number).collect()
    }

    fn evaluated(&self) -> Result<CocoScores, TrainError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let detections = self.numbered();
        let scores = match &self.truths {
            Truths::Annotated(instances) => {
                let (images, categories) = (instances.images().len(), instances.categories().len());
                evaluate(images, categories, &instances.boxes(), &detections, threads)
            }
            Truths::OfBatches => {
                let categories = self.source.categories.len();
                let detections: Vec<_> = detections.into_iter().filter(|found| found.category < categories).collect();
                evaluate(self.images.len(), categories, &self.objects, &detections, threads)
            }
        };
        Ok(scores?)
    }

    fn write(&self, folder: &Path) -> Result<(), TrainError> {
        let path = folder.join(BOXES_FILE);
        let results: Vec<_> = self
            .detections
            .iter()
            .filter_map(|(image_id, Found { class, bbox, score })| {
                let category_id = self.source.categories.get(*class).copied().flatten()?;
                Some(json!({ "image_id": image_id, "category_id": category_id, "bbox": bbox, "score": score }))
            })
            .collect();
        fs::create_dir_all(folder).map_err(TrainError::io(folder, "make the folder of predictions"))?;
        let text = serde_json::to_string(&results).expect("results have string keys and finite numbers");
        fs::write(&path, text).map_err(TrainError::io(&path, "write the detections"))
    }
}

/// A box `[x1, y1, x2, y2]` of the canvas as `[x, y, width, height]` in pixels of its image.
fn in_image(bbox: &[f32], scale: f32) -> [f64; 4] {
    let [x1, y1, x2, y2] = [0, 1, 2, 3].map(|i| f64::from(bbox[i]) * f64::from(scale));
    [x1, y1, x2 - x1, y2 - y1]
}

impl Score for DetectionScore<'_> {
    fn add(&mut self, batch: &Batch, session: &EvalSession) -> Result<(), TrainError> {
        if matches!(self.truths, Truths::OfBatches) {
            self.add_objects(batch);
        }
        let found = detections(session, &batch.feeds.f32("scales")[..batch.samples])?;
        for (image_id, found) in batch.feeds.i32("ids").iter().zip(found) {
            self.detections.extend(found.into_iter().map(|found| (i64::from(*image_id), found)));
        }
        let sum = |values: &[f32]| values[..batch.samples].iter().map(|&value| f64::from(value)).sum::<f64>();
        self.losses.classes += sum(session.output("cls_loss_sum")?);
        self.losses.boxes += sum(session.output("box_loss_sum")?);
        let positives = &session.output_indices("positives")?[..batch.samples];
        self.losses.positives += positives.iter().map(|&count| u64::from(count)).sum::<u64>();
        Ok(())
    }

    fn finish(&mut self, out: Option<&Path>) -> Result<(), TrainError> {
        self.scores = Some(self.evaluated()?);
        out.map_or(Ok(()), |folder| self.write(folder))
    }

    /// Scores without a true object are left out.
    fn metrics(&self) -> BTreeMap<String, f64> {
        let values = self.scores.as_ref().map(|scores| scores.all.values()).unwrap_or_default();
        let scores = METRICS.into_iter().zip(values).filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let divisor = self.losses.positives as f64 + 1.0;
        let (classes, boxes) = (self.losses.classes / divisor, self.losses.boxes / (4.0 * divisor));
        let loss = classes + self.loss.box_weight * boxes;
        let losses = [("loss", loss), ("cls_loss", classes), ("box_loss", boxes)];
        scores.chain(losses.map(|(name, value)| (name.to_owned(), value))).collect()
    }

    fn counts(&self) -> BTreeMap<String, u64> {
        let objects = self.scores.iter().flat_map(|scores| &scores.categories);
        let objects = objects.map(|category| category.objects as u64).sum();
        let counts = [("objects", objects), ("detections", self.detections.len() as u64)];
        counts.map(|(name, count)| (name.to_owned(), count)).into()
    }
}
