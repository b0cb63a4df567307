//! COCO's average precision of detections, and the losses of the network.

use super::DetectionEvaluation;
use super::kind::DetectorSettings;
use super::pictures::{self, Pictures};
use super::sources::ImagesWithObjects;
use crate::error::TrainError;
use crate::session::EvalSession;
use crate::tasks::class_scores::{self, ClassScores, ClassTables};
use crate::tasks::{Batch, Metric, Record, Scale, Score};
use bessemer_data::coco::{Instances, ResultRecord, ResultsWriter, RunLengths};
use bessemer_data::{Image, try_map};
use bessemer_metrics::coco::{BoundingBox, CocoScores, Detection, GroundTruth, Mask, Region, SCORE_NAMES, evaluate};
use bessemer_metrics::mask::Rle;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// Where the true objects of an evaluation come from.
#[derive(Clone, Debug)]
pub(super) enum Truths {
    /// Annotations, crowds included, in pixels of the images.
    Annotated(Arc<Instances>),
    /// The data set itself, for one that is drawn.
    OfSet,
    /// They are not known.
    Unknown,
}

/// File of the detections of an evaluation, in COCO's form of results.
pub(super) const BOXES_FILE: &str = "bbox.json";
/// The same with their masks.
const MASKS_FILE: &str = "segm.json";
/// What is compared, in the order of scores.
const KINDS: [&str; 2] = ["bbox", "segm"];
/// A pixel belongs to an object if its probability is above this.
pub(super) const MASK_THRESHOLD: f32 = 0.5;

/// A detection in pixels of its image.
#[derive(Serialize, Deserialize)]
pub(super) struct Found {
    /// Number of the class among those of objects.
    pub class: usize,
    /// `[x, y, width, height]`
    pub bbox: [f64; 4],
    pub score: f64,
    /// In the size of the image, from networks that give masks.
    pub mask: Option<Rle>,
}

/// An image that went through the network.
#[derive(Clone, Copy)]
pub(super) struct SeenImage {
    /// Height and width in pixels.
    pub size: [u32; 2],
    /// Pixels of the image for each pixel of the canvas.
    pub scale: f32,
}

/// The detections in the outputs of a forward pass, of as many of its images as are given.
pub(super) fn detections(
    session: &EvalSession,
    settings: &DetectorSettings,
    images: &[SeenImage],
) -> Result<Vec<Vec<Found>>, TrainError> {
    let (boxes, scores) = (session.output("boxes")?, session.output("scores")?);
    let (labels, counts) = (session.output_indices("labels")?, session.output_indices("count")?);
    let masks = if settings.has_masks() { Some(session.output("masks")?) } else { None };
    let each = scores.len() / counts.len();
    let places: Vec<(usize, usize)> = (0..images.len())
        .flat_map(|image| (0..counts[image] as usize).map(move |row| (image, image * each + row)))
        .collect();
    let found = |place: usize| {
        let (image, at) = places[place];
        let SeenImage { size: [height, width], scale } = images[image];
        let bbox = in_image(&boxes[4 * at..][..4], scale);
        let mask = masks.map(|masks| {
            let cells = masks.len() / scores.len();
            let [x, y, across, down] = bbox;
            Rle::from_grid(height, width, &masks[at * cells..][..cells], [x, y, x + across, y + down], MASK_THRESHOLD)
        });
        let mask = mask.transpose()?;
        let class = labels[at] as usize - settings.layout.first_class as usize;
        Ok(Found { class, bbox, score: scores[at].into(), mask })
    };
    // Boxes alone are not worth a thread.
    let found = match masks {
        Some(_) => try_map(places.len(), threads(), found)?,
        None => (0..places.len()).map(found).collect::<Result<Vec<_>, TrainError>>()?,
    };
    let mut found = found.into_iter();
    Ok(counts[..images.len()].iter().map(|&count| found.by_ref().take(count as usize).collect()).collect())
}

/// Threads for work beside the network.
pub(super) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Detections and losses, summed up over batches.
pub(super) struct DetectionScore<'a> {
    evaluation: &'a DetectionEvaluation,
    /// Number in the data set by id.
    images: BTreeMap<i64, usize>,
    /// With the ids of their images.
    detections: Vec<(i64, Found)>,
    losses: Losses,
    pictures: Pictures<'a>,
    /// Those of the batches that were added.
    drawn: Vec<Image>,
    /// Of boxes, and of masks where there are masks.
    scores: Vec<CocoScores>,
    classes: ClassTables,
}

/// What counts of a batch.
#[derive(Serialize, Deserialize)]
struct BatchDetections {
    /// With the ids of their images.
    detections: Vec<(i64, Found)>,
    losses: Losses,
    pictures: Vec<Image>,
}

/// Sums over images.
#[derive(Default, Serialize, Deserialize)]
struct Losses {
    classes: f64,
    boxes: f64,
    positives: u64,
}

/// Names of the metrics of boxes in the order of [`SCORE_NAMES`], and what tables call them.
pub(super) const BOX_METRICS: [(&str, &str); 12] = [
    ("bbox_ap", "AP"),
    ("bbox_ap50", "AP50"),
    ("bbox_ap75", "AP75"),
    ("bbox_ap_s", "AP small"),
    ("bbox_ap_m", "AP medium"),
    ("bbox_ap_l", "AP large"),
    ("bbox_ar1", "AR 1"),
    ("bbox_ar10", "AR 10"),
    ("bbox_ar100", "AR 100"),
    ("bbox_ar_s", "AR small"),
    ("bbox_ar_m", "AR medium"),
    ("bbox_ar_l", "AR large"),
];
/// Those of masks.
pub(super) const MASK_METRICS: [(&str, &str); 12] = [
    ("segm_ap", "mask AP"),
    ("segm_ap50", "mask AP50"),
    ("segm_ap75", "mask AP75"),
    ("segm_ap_s", "mask AP small"),
    ("segm_ap_m", "mask AP medium"),
    ("segm_ap_l", "mask AP large"),
    ("segm_ar1", "mask AR 1"),
    ("segm_ar10", "mask AR 10"),
    ("segm_ar100", "mask AR 100"),
    ("segm_ar_s", "mask AR small"),
    ("segm_ar_m", "mask AR medium"),
    ("segm_ar_l", "mask AR large"),
];
const _: () = assert!(BOX_METRICS.len() == SCORE_NAMES.len() && MASK_METRICS.len() == SCORE_NAMES.len());

/// A metric of boxes.
pub(super) const fn box_metric(index: usize) -> Metric {
    metric(BOX_METRICS[index], index, "validation AP (%)")
}

/// A metric of masks.
pub(super) const fn mask_metric(index: usize) -> Metric {
    metric(MASK_METRICS[index], index, "validation mask AP (%)")
}

/// The first one is drawn.
const fn metric((name, label): (&'static str, &'static str), index: usize, axis: &'static str) -> Metric {
    let metric = Metric::fraction(name, label);
    Metric { axis: if index == 0 { Some(axis) } else { None }, scale: Scale::Fraction, ..metric }
}

impl<'a> DetectionScore<'a> {
    pub(super) fn new(evaluation: &'a DetectionEvaluation) -> Self {
        let set = &evaluation.source.set;
        Self {
            evaluation,
            images: (0..set.len()).map(|index| (i64::from(set.image(index).0), index)).collect(),
            detections: Vec::new(),
            losses: Losses::default(),
            pictures: Pictures::new(evaluation),
            drawn: Vec::new(),
            scores: Vec::new(),
            classes: ClassTables::new(),
        }
    }

    /// The detections as the metric takes them, with what `region` says of region and area.
    fn numbered<R>(&self, region: impl Fn(&Found) -> Option<(R, f64)>) -> Vec<Detection<R>> {
        let DetectionEvaluation { truths, source, .. } = self.evaluation;
        let number = |(image_id, found): &(i64, Found)| {
            // A class without a category has nothing to be compared with.
            let id = source.categories.get(found.class).copied().flatten()?;
            let (image, category) = match truths {
                Truths::Annotated(instances) => (instances.image_number(*image_id)?, instances.category_number(id)?),
                Truths::OfSet | Truths::Unknown => (*self.images.get(image_id)?, found.class),
            };
            let (region, area) = region(found)?;
            Some(Detection { image, category, region, area, score: found.score })
        };
        self.detections.iter().filter_map(number).collect()
    }

    fn boxes(&self) -> Vec<Detection<BoundingBox>> {
        self.numbered(|found| {
            let region = BoundingBox::from(found.bbox);
            Some((region, region.area()))
        })
    }

    fn masks(&self) -> Vec<Detection<Mask>> {
        let by_box = self.evaluation.settings.sized_by_box;
        self.numbered(|found| {
            let mask = found.mask.clone()?;
            let area = if by_box { BoundingBox::from(found.bbox).area() } else { mask.area().into() };
            Some((mask.into(), area))
        })
    }

    /// Nothing where the truth is not known.
    fn evaluated(&self) -> Result<Vec<CocoScores>, TrainError> {
        let Some(objects) = self.evaluation.objects()? else { return Ok(Vec::new()) };
        let mut scores = vec![objects.score(&objects.boxes, &self.boxes())?];
        if let Some(masks) = &objects.masks {
            scores.push(objects.score(masks, &self.masks())?);
        }
        Ok(scores)
    }

    /// Scores by class. A class without a category has none.
    fn classes_of(&self, scores: &[CocoScores]) -> ClassTables {
        let DetectionEvaluation { truths, source, .. } = self.evaluation;
        let categories: Vec<(Option<i64>, &str)> = match truths {
            Truths::Annotated(instances) => {
                instances.categories().iter().map(|category| (Some(category.id), category.name.as_str())).collect()
            }
            Truths::OfSet | Truths::Unknown => {
                let names = source.set.class_names().iter().map(String::as_str);
                source.categories.iter().copied().zip(names).collect()
            }
        };
        let table = |scores: &CocoScores| {
            let of = |(&(id, name), scores)| Some(ClassScores::of(id?, name, scores));
            categories.iter().zip(&scores.categories).filter_map(of).collect()
        };
        KINDS.iter().map(|kind| (*kind).to_owned()).zip(scores.iter().map(table)).collect()
    }

    /// Writes detections, scores of classes and pictures.
    fn write(&self, folder: &Path) -> Result<(), TrainError> {
        fs::create_dir_all(folder).map_err(TrainError::io(folder, "make the folder of predictions"))?;
        let DetectionEvaluation { file, settings, .. } = self.evaluation;
        let has_masks = settings.has_masks();
        let is_one_file = has_masks && *file != BOXES_FILE;
        self.write_results(&folder.join(file), true, is_one_file)?;
        if has_masks && !is_one_file {
            self.write_results(&folder.join(MASKS_FILE), settings.sized_by_box, true)?;
        }
        if !self.classes.is_empty() {
            class_scores::write(folder, &self.classes)?;
        }
        pictures::write(&self.drawn, folder)
    }

    fn write_results(&self, path: &Path, with_boxes: bool, with_masks: bool) -> Result<(), TrainError> {
        let mut results = ResultsWriter::create(path)?;
        for (image_id, found) in &self.detections {
            if let Some(category_id) = self.evaluation.source.categories.get(found.class).copied().flatten() {
                results.write(&ResultRecord {
                    image_id: *image_id,
                    file_name: None,
                    category_id,
                    bbox: with_boxes.then_some(found.bbox),
                    segmentation: found.mask.as_ref().filter(|_| with_masks).map(RunLengths::from),
                    score: found.score,
                })?;
            }
        }
        Ok(results.finish()?)
    }
}

/// The true objects of an evaluation, in pixels of the images.
#[derive(Debug)]
pub(super) struct TrueObjects {
    images: usize,
    categories: usize,
    boxes: Vec<GroundTruth<BoundingBox>>,
    /// Where detections have masks.
    masks: Option<Vec<GroundTruth<Mask>>>,
}

impl TrueObjects {
    /// Those of a file of annotations.
    ///
    /// # Errors
    /// A mask that is damaged.
    pub(super) fn annotated(instances: &Instances, with_masks: bool) -> Result<Self, TrainError> {
        Ok(Self {
            images: instances.images().len(),
            categories: instances.categories().len(),
            boxes: instances.boxes(),
            masks: if with_masks { Some(instances.masks(threads())?) } else { None },
        })
    }

    /// Those of a data set that draws them.
    ///
    /// # Errors
    /// As [`TrueObjects::annotated`].
    pub(super) fn of_set(set: &ImagesWithObjects, categories: usize, with_masks: bool) -> Result<Self, TrainError> {
        let (mut boxes, mut masks) = (Vec::new(), Vec::new());
        for image in 0..set.len() {
            let (_, size) = set.image(image);
            for object in set.objects(image)? {
                let [x1, y1, x2, y2] = object.bbox;
                let (category, id) = (object.class as usize, boxes.len() as i64 + 1);
                let region = BoundingBox::from([x1, y1, x2 - x1, y2 - y1]);
                let area = object.mask.as_ref().map_or(region.area(), |mask| mask.area() as f64);
                boxes.push(GroundTruth { image, category, id, region, area, is_crowd: false });
                if let Some(mask) = object.mask.filter(|_| with_masks) {
                    let region = mask.runs(size)?.into();
                    masks.push(GroundTruth { image, category, id, region, area, is_crowd: false });
                }
            }
        }
        Ok(Self { images: set.len(), categories, boxes, masks: with_masks.then_some(masks) })
    }

    fn score<R: Region>(
        &self,
        truths: &[GroundTruth<R>],
        detections: &[Detection<R>],
    ) -> Result<CocoScores, TrainError> {
        Ok(evaluate(self.images, self.categories, truths, detections, threads())?)
    }
}

/// A box `[x1, y1, x2, y2]` of the canvas as `[x, y, width, height]` in pixels of its image.
pub(super) fn in_image(bbox: &[f32], scale: f32) -> [f64; 4] {
    let [x1, y1, x2, y2] = [0, 1, 2, 3].map(|i| f64::from(bbox[i]) * f64::from(scale));
    [x1, y1, x2 - x1, y2 - y1]
}

impl Score for DetectionScore<'_> {
    fn record(&self, batch: &Batch, session: &EvalSession) -> Result<Record, TrainError> {
        let DetectionEvaluation { settings, source, truths, .. } = self.evaluation;
        let ids = &batch.feeds.i32("ids")[..batch.samples];
        let numbers: Vec<usize> = ids.iter().map(|id| self.images[&i64::from(*id)]).collect();
        let seen = numbers.iter().zip(batch.feeds.f32("scales"));
        let seen = seen.map(|(&number, &scale)| SeenImage { size: source.set.image(number).1, scale });
        let found = detections(session, settings, &seen.collect::<Vec<_>>())?;
        let pictures = self.pictures.of(batch, &numbers, &found);
        let image_ids = ids.iter().map(|&id| i64::from(id));
        let detections =
            image_ids.zip(found).flat_map(|(id, found)| found.into_iter().map(move |found| (id, found))).collect();
        let mut losses = Losses::default();
        if !matches!(truths, Truths::Unknown) && settings.box_weight.is_some() {
            let sum = |values: &[f32]| values[..batch.samples].iter().map(|&value| f64::from(value)).sum::<f64>();
            let positives = &session.output_indices("positives")?[..batch.samples];
            losses = Losses {
                classes: sum(session.output("cls_loss_sum")?),
                boxes: sum(session.output("box_loss_sum")?),
                positives: positives.iter().map(|&count| u64::from(count)).sum(),
            };
        }
        Ok(Record::of(&BatchDetections { detections, losses, pictures }))
    }

    fn add(&mut self, record: &Record) -> Result<(), TrainError> {
        let BatchDetections { detections, losses, pictures } = record.read()?;
        self.detections.extend(detections);
        self.drawn.extend(pictures);
        self.losses.classes += losses.classes;
        self.losses.boxes += losses.boxes;
        self.losses.positives += losses.positives;
        Ok(())
    }

    fn finish(&mut self, out: Option<&Path>) -> Result<(), TrainError> {
        self.scores = self.evaluated()?;
        self.classes = self.classes_of(&self.scores);
        out.map_or(Ok(()), |folder| self.write(folder))
    }

    fn classes(&self) -> ClassTables {
        self.classes.clone()
    }

    fn notes(&self) -> Vec<String> {
        let DetectionEvaluation { settings, file, truths, .. } = self.evaluation;
        let floor = settings.score_floor;
        let is_empty = self.detections.is_empty();
        let empty = is_empty
            .then(|| format!("nothing was detected: no score is above detection.score_floor, which is {floor}"));
        let is_unknown = matches!(truths, Truths::Unknown);
        let unknown = is_unknown.then(|| {
            format!(
                "no scores, as the images have no annotations: {file} is what COCO's server takes, in a ZIP archive"
            )
        });
        empty.into_iter().chain(unknown).collect()
    }

    /// Scores without a true object are left out; there are none where the truth is not known.
    fn metrics(&self) -> BTreeMap<String, f64> {
        let mut metrics = BTreeMap::new();
        for (names, scores) in [BOX_METRICS, MASK_METRICS].iter().zip(&self.scores) {
            let known = names.iter().zip(scores.all.values());
            metrics.extend(known.filter_map(|((name, _), value)| Some(((*name).to_owned(), value?))));
        }
        if let Some(box_weight) = self.evaluation.settings.box_weight.filter(|_| !self.scores.is_empty()) {
            let divisor = self.losses.positives as f64 + 1.0;
            let (classes, boxes) = (self.losses.classes / divisor, self.losses.boxes / (4.0 * divisor));
            let losses = [("loss", classes + box_weight * boxes), ("cls_loss", classes), ("box_loss", boxes)];
            metrics.extend(losses.map(|(name, value)| (name.to_owned(), value)));
        }
        metrics
    }

    fn counts(&self) -> BTreeMap<String, u64> {
        let count = |scores: &CocoScores| scores.categories.iter().map(|category| category.objects as u64).sum();
        let objects = self.scores.first().map(|scores| ("objects".to_owned(), count(scores)));
        objects.into_iter().chain([("detections".to_owned(), self.detections.len() as u64)]).collect()
    }
}
