//! Images of an evaluation set with what was detected beside what is there.

use super::DetectionEvaluation;
use super::drawing::{LabelledObject, drawn};
use super::score::{Found, MASK_THRESHOLD, Truths, in_image};
use crate::error::TrainError;
use crate::tasks::Batch;
use crate::tasks::infer::{DRAWN_SCORE, JPEG_QUALITY};
use bessemer_data::detection::ObjectMask;
use bessemer_data::{FileFormat, Image, Region, side_by_side};
use bessemer_metrics::mask::Rle;
use std::path::Path;

/// Pictures are enlarged until their longer side has this many pixels, so that labels are readable.
const LEAST_SIDE: usize = 384;

/// Some images at even distances in a set, drawn while it is evaluated.
pub(super) struct Pictures<'a> {
    evaluation: &'a DetectionEvaluation,
    /// Numbers in the set of the images to draw, ascending.
    wanted: Vec<usize>,
}

/// An image as it is on the canvas, enlarged.
struct Kept {
    id: i32,
    image: Image,
    detected: Vec<LabelledObject>,
    /// The highest score, if anything was detected at all.
    best: Option<f64>,
    /// `None` where it is not known.
    truth: Option<Vec<LabelledObject>>,
}

impl<'a> Pictures<'a> {
    /// As many images as the evaluation asks for, or all if there are no more.
    pub(super) fn new(evaluation: &'a DetectionEvaluation) -> Self {
        let images = evaluation.source.set.len();
        let count = evaluation.settings.pictures.min(images);
        Self { evaluation, wanted: (0..count).map(|number| number * images / count).collect() }
    }

    /// Those images of a batch that are wanted, drawn with what was found in each; `numbers` are those of the images in the set.
    pub(super) fn of(&self, batch: &Batch, numbers: &[usize], found: &[Vec<Found>]) -> Vec<Image> {
        let is_wanted = |number: &usize| self.wanted.binary_search(number).is_ok();
        let samples = numbers.iter().zip(found).enumerate().filter(|(_, (number, _))| is_wanted(number));
        samples.map(|(sample, (number, found))| self.kept(batch, sample, *number, found).picture()).collect()
    }

    fn kept(&self, batch: &Batch, sample: usize, number: usize, found: &[Found]) -> Kept {
        let DetectionEvaluation { settings, source, truths, .. } = self.evaluation;
        let (feeds, names) = (&batch.feeds, source.set.class_names());
        let size = [0, 1].map(|axis| feeds.f32("sizes")[2 * sample + axis] as usize);
        let [rows, columns] = source.set.image_size(number);
        let canvas = &feeds.u8("images")[sample * rows * columns * 3..][..rows * columns * 3];
        let (image, factor) = enlarged(canvas, columns, size);
        let scale = f64::from(feeds.f32("scales")[sample]);
        let name = |class: usize| names.get(class).map_or("unused", String::as_str);
        let to_picture = [image.height as u32, image.width as u32];
        let detected = found.iter().filter(|found| found.score >= DRAWN_SCORE).map(|found| {
            let bbox = found.bbox.map(|side| side / scale * factor);
            let mask = found
                .mask
                .as_ref()
                .map(|mask| ObjectMask::from(mask).resized([mask.height(), mask.width()], to_picture));
            LabelledObject::detected(name(found.class), found.score, found.class as u32, bbox, mask)
        });
        let truth = |object: usize| {
            let at = sample * settings.layout.max_objects + object;
            let class = feeds.i32("classes")[at] as usize - settings.layout.first_class as usize;
            let bbox = in_image(&feeds.f32("boxes")[4 * at..][..4], factor as f32);
            let mask = settings.layout.crop.and_then(|side| {
                let [x, y, width, height] = bbox;
                let cells: Vec<f32> = feeds.u8("crops")[at * side * side..][..side * side]
                    .iter()
                    .map(|&cell| f32::from(cell) / 255.0)
                    .collect();
                let [rows, columns] = to_picture;
                Rle::from_grid(rows, columns, &cells, [x, y, x + width, y + height], MASK_THRESHOLD).ok()
            });
            let mask = mask.as_ref().map(ObjectMask::from);
            LabelledObject { bbox, class: class as u32, label: name(class).to_owned(), mask }
        };
        let has_truth = !matches!(truths, Truths::Unknown);
        Kept {
            id: feeds.i32("ids")[sample],
            image,
            detected: detected.collect(),
            best: found.iter().map(|found| found.score).max_by(f64::total_cmp),
            truth: has_truth.then(|| (0..feeds.i32("count")[sample] as usize).map(truth).collect()),
        }
    }
}

/// Writes `compared-NNN.jpg` for each picture.
pub(super) fn write(pictures: &[Image], folder: &Path) -> Result<(), TrainError> {
    for (number, picture) in pictures.iter().enumerate() {
        picture.write(&folder.join(format!("compared-{number:03}.jpg")), FileFormat::Jpeg(JPEG_QUALITY))?;
    }
    Ok(())
}

impl Kept {
    fn picture(&self) -> Image {
        let best = self.best.map_or_else(String::new, |best| format!(", best score {:.0}%", best * 100.0));
        let text = format!("image {}: {} detected{best}", self.id, self.detected.len());
        let mut panels = vec![(drawn(&self.image, &self.detected), text)];
        if let Some(truth) = &self.truth {
            panels.push((drawn(&self.image, truth), format!("truth: {}", truth.len())));
        }
        side_by_side(&panels)
    }
}

/// The upper left part, of `[height, width]`, of a canvas, enlarged by the whole factor that is returned.
fn enlarged(canvas: &[u8], columns: usize, [height, width]: [usize; 2]) -> (Image, f64) {
    let pixels = canvas.chunks_exact(columns * 3).take(height).flat_map(|row| &row[..width * 3]).copied().collect();
    let image = Image { width, height, pixels };
    let factor = LEAST_SIDE.div_ceil(height.max(width));
    let whole = Region { left: 0, top: 0, width: width as u32, height: height as u32 };
    (image.crop_resized(whole, width * factor, height * factor), factor as f64)
}
