use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use bessemer_metrics::coco::{BoundingBox, Detection, Mask};
use bessemer_metrics::mask::Rle;
use serde::{Deserialize, Serialize};

use super::fields::OptionalBox;
use super::{CHUNK, ImageRecord, Instances, Segmentation};
use crate::parallel::try_map;
use crate::{DataError, json};

const LAYOUT: &str = "COCO's results, a list of {image_id, category_id, score, bbox or segmentation}";

/// Detections of a results file.
#[derive(Debug, Clone)]
pub struct Results {
    path: PathBuf,
    detections: Vec<DetectionRecord>,
    has_boxes: bool,
    unknown: usize,
    first_unknown: Option<i64>,
}

/// A detected object.
#[derive(Debug, Clone, PartialEq)]
pub struct DetectionRecord {
    /// Index in the file.
    pub number: usize,
    /// Index of the image among [`Instances::images`].
    pub image: usize,
    /// Index of the category among [`Instances::categories`].
    pub category: usize,
    /// Confidence.
    pub score: f64,
    /// `[x, y, width, height]` in pixels, if there is one.
    pub bbox: Option<[f64; 4]>,
    /// The mask, if there is one.
    pub segmentation: Option<Segmentation>,
}

#[derive(Deserialize)]
struct RawDetection {
    image_id: i64,
    category_id: i64,
    score: f64,
    bbox: Option<OptionalBox>,
    segmentation: Option<Segmentation>,
}

impl Results {
    /// Reads a results file. Detections of categories that `instances` lacks are skipped and counted.
    ///
    /// # Errors
    ///
    /// With the place within the file: a file that cannot be read or is not JSON; a field that is missing, of another
    /// type or not finite; an image that `instances` lacks; a detection without a box if the first one has a box, or
    /// without a mask if it has none.
    pub fn open(path: &Path, instances: &Instances) -> Result<Self, DataError> {
        let bytes = fs::read(path).map_err(DataError::io(path, "read the file"))?;
        let raw: Vec<RawDetection> = json::parse(path, &bytes, LAYOUT)?;
        let error = |problem: String| DataError::layout(path, problem, LAYOUT);
        let has_box = |raw: &RawDetection| matches!(raw.bbox, Some(OptionalBox(Some(_))));
        let has_boxes = raw.first().is_some_and(has_box);
        let mut detections = Vec::with_capacity(raw.len());
        let (mut unknown, mut first_unknown) = (0, None);
        for (number, raw) in raw.into_iter().enumerate() {
            let image = instances.image_number(raw.image_id).ok_or_else(|| {
                let data = instances.path().display();
                error(format!("[{number}].image_id is {}, which is no image of {data}", raw.image_id))
            })?;
            if has_boxes && !has_box(&raw) {
                return Err(error(format!("[{number}].bbox is missing, and [0] has one")));
            }
            if !has_boxes && raw.segmentation.is_none() {
                return Err(error(format!("[{number}] has neither bbox nor segmentation")));
            }
            let Some(category) = instances.category_number(raw.category_id) else {
                unknown += 1;
                first_unknown.get_or_insert(raw.category_id);
                continue;
            };
            detections.push(DetectionRecord {
                number,
                image,
                category,
                score: raw.score,
                bbox: raw.bbox.and_then(|OptionalBox(values)| values),
                segmentation: raw.segmentation,
            });
        }
        Ok(Self { path: path.to_owned(), detections, has_boxes, unknown, first_unknown })
    }

    /// Those of the images that `some` has of `all`, with which the file was read.
    pub fn of_images(mut self, all: &Instances, some: &Instances) -> Self {
        let number = |image: usize| some.image_number(all.images()[image].id);
        self.detections.retain_mut(|found| number(found.image).map(|image| found.image = image).is_some());
        self
    }

    /// The detections in the order of the file.
    pub fn detections(&self) -> &[DetectionRecord] {
        &self.detections
    }

    /// The number of detections that were skipped for their category, and the id of the first such category.
    pub fn unknown_categories(&self) -> Option<(usize, i64)> {
        self.first_unknown.map(|id| (self.unknown, id))
    }

    /// The detections as boxes, for the metric. If the first detection of the file has no box, missing boxes are the
    /// bounding boxes of the masks.
    ///
    /// As in pycocotools, the area of a detection is that of its box if the first detection of the file has a box, and
    /// that of its mask otherwise.
    ///
    /// # Errors
    ///
    /// If a mask is needed and invalid, or not of the image's size.
    pub fn boxes(&self, instances: &Instances, threads: usize) -> Result<Vec<Detection<BoundingBox>>, DataError> {
        self.regions(threads, |record| match record.bbox {
            Some(values) if self.has_boxes => {
                let bounding_box = BoundingBox::from(values);
                Ok((bounding_box, bounding_box.area()))
            }
            values => {
                let mask = self.mask(instances, record)?;
                Ok((values.unwrap_or_else(|| mask.bounding_box()).into(), mask.area().into()))
            }
        })
    }

    /// The detections as masks, for the metric. The mask of a detection without one is its box.
    ///
    /// Areas are those of [`Results::boxes`].
    ///
    /// # Errors
    ///
    /// If a mask is invalid or not of the image's size.
    pub fn masks(&self, instances: &Instances, threads: usize) -> Result<Vec<Detection<Mask>>, DataError> {
        self.regions(threads, |record| {
            let mask = self.mask(instances, record)?;
            let area = match record.bbox {
                Some(values) if self.has_boxes => BoundingBox::from(values).area(),
                _ => mask.area().into(),
            };
            Ok((mask.into(), area))
        })
    }

    /// The mask of a detection, or else of its box.
    fn mask(&self, instances: &Instances, record: &DetectionRecord) -> Result<Rle, DataError> {
        let ImageRecord { height, width, .. } = instances.images()[record.image];
        let problem = match (&record.segmentation, record.bbox) {
            (Some(segmentation), _) => match segmentation.mask(height, width) {
                Ok(mask) => return Ok(mask),
                Err(problem) => format!(".segmentation{problem}"),
            },
            (None, Some([x, y, across, down])) => {
                let (right, bottom) = (x + across, y + down);
                match Rle::from_polygon(height, width, &[x, y, x, bottom, right, bottom, right, y]) {
                    Ok(mask) => return Ok(mask),
                    Err(error) => format!(".bbox: {error}"),
                }
            }
            (None, None) => " has neither bbox nor segmentation".to_owned(),
        };
        Err(DataError::layout(&self.path, format!("[{}]{problem}", record.number), LAYOUT))
    }

    fn regions<R: Send>(
        &self,
        threads: usize,
        region: impl Fn(&DetectionRecord) -> Result<(R, f64), DataError> + Sync,
    ) -> Result<Vec<Detection<R>>, DataError> {
        let chunks = try_map(self.detections.len().div_ceil(CHUNK), threads, |chunk| {
            let detections = self.detections.iter().skip(chunk * CHUNK).take(CHUNK).map(|record| {
                let &DetectionRecord { image, category, score, .. } = record;
                region(record).map(|(region, area)| Detection { image, category, region, area, score })
            });
            detections.collect::<Result<Vec<_>, DataError>>()
        })?;
        Ok(chunks.into_iter().flatten().collect())
    }
}

/// A detection as a results file has it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ResultRecord {
    /// Id of the image.
    pub image_id: i64,
    /// File of the image, where results are made without annotations that name it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_name: Option<String>,
    /// Id of the category.
    pub category_id: i64,
    /// `[x, y, width, height]` in pixels, from networks that give boxes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bbox: Option<[f64; 4]>,
    /// The mask, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segmentation: Option<RunLengths>,
    /// Confidence.
    pub score: f64,
}

/// A mask as a results file has it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunLengths {
    /// Height and width.
    pub size: [u32; 2],
    /// Compressed run lengths.
    pub counts: String,
}

impl From<&Rle> for RunLengths {
    fn from(mask: &Rle) -> Self {
        Self { size: [mask.height(), mask.width()], counts: mask.compressed() }
    }
}

/// Writes a results file, a record in each line, without keeping records in memory. The file has its name when it is complete; until
/// then `.part` follows it, unless the name is that of a device or a pipe.
#[derive(Debug)]
pub struct ResultsWriter {
    path: PathBuf,
    part: PathBuf,
    out: BufWriter<File>,
    /// What comes before the next record.
    separator: &'static str,
}

impl ResultsWriter {
    const ACTION: &str = "write the detections";

    /// Makes the file.
    ///
    /// # Errors
    /// A file that cannot be written; the same holds for the other functions.
    pub fn create(path: &Path) -> Result<Self, DataError> {
        let is_special = fs::metadata(path).is_ok_and(|found| !found.is_file());
        let mut part = path.as_os_str().to_owned();
        part.push(if is_special { "" } else { ".part" });
        let part = PathBuf::from(part);
        let file = File::create(&part).map_err(DataError::writing(path, Self::ACTION))?;
        Ok(Self { path: path.to_owned(), part, out: BufWriter::new(file), separator: "[\n" })
    }

    /// Adds a record.
    pub fn write(&mut self, record: &ResultRecord) -> Result<(), DataError> {
        let text = serde_json::to_string(record).expect("records have string keys");
        let written = write!(self.out, "{}{text}", self.separator);
        self.separator = ",\n";
        written.map_err(DataError::writing(&self.path, Self::ACTION))
    }

    /// Ends the list.
    pub fn finish(mut self) -> Result<(), DataError> {
        let end = if self.separator == ",\n" { "\n]\n" } else { "[]\n" };
        let written = self.out.write_all(end.as_bytes()).and_then(|()| self.out.flush());
        let written = written.and_then(|()| match self.part == self.path {
            true => Ok(()),
            false => fs::rename(&self.part, &self.path),
        });
        written.map_err(DataError::writing(&self.path, Self::ACTION))
    }
}
