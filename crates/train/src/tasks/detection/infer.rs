//! Objects in pictures.

use super::detector::{ClassCategory, Detector};
use super::drawing::{LabelledObject, drawn};
use super::outputs::{NamedPicture, Originals};
use super::score::{Found, SeenImage, detections};
use crate::error::TrainError;
use crate::session::{ComputeOptions, EvalSession};
use crate::signals::StopSignal;
use crate::tasks::frames::{Annotated, Annotator};
use crate::tasks::infer::{self, DRAWN_SCORE, Part, PredictOptions, Predictor, RESULTS_FILE, Shown, cell, lossy_path};
use crate::tasks::pictures::picture_files;
use crate::tasks::{Array, EachInput, Feeds};
use bessemer_data::coco::{ResultRecord, ResultsWriter, RunLengths};
use bessemer_data::detection::{Framing, ObjectMask};
use bessemer_data::{Exif, FileFormat, Image, Purpose, ResizeBuffers, Split};
use bessemer_metrics::mask::Rle;
use serde::{Serialize, Serializer};
use std::fs;
use std::path::{Path, PathBuf};

/// Images in one pass.
const BATCH: usize = 4;

/// A detected object.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct DetectedObject {
    /// Id of the category, if the class has one.
    pub(super) category_id: Option<i64>,
    /// Number of the class, which decides its colour.
    pub(super) class: u32,
    pub(super) name: String,
    pub(super) score: f64,
    /// `[x, y, width, height]` in pixels of the image.
    pub(super) bbox: [f64; 4],
    /// In the size of the image, from networks that give masks.
    #[serde(rename = "segmentation", serialize_with = "as_run_lengths", skip_serializing_if = "Option::is_none")]
    pub(super) mask: Option<Rle>,
}

fn as_run_lengths<S: Serializer>(mask: &Option<Rle>, serializer: S) -> Result<S::Ok, S::Error> {
    mask.as_ref().map(RunLengths::from).serialize(serializer)
}

/// What a picture shows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct DetectedObjects {
    #[serde(serialize_with = "lossy_path")]
    pub(super) path: PathBuf,
    /// In falling order of the scores.
    pub(super) objects: Vec<DetectedObject>,
}

/// The network in batches of images of any size.
pub(super) struct Network {
    detector: Detector,
    session: EvalSession,
    batch_size: usize,
    buffers: ResizeBuffers,
}

impl Network {
    /// With the detections that the detector's recipe makes.
    ///
    /// # Errors
    /// Weights that do not fit the model.
    pub(super) fn new(detector: Detector, batch_size: usize, compute: &ComputeOptions) -> Result<Self, TrainError> {
        let session = detector.session(batch_size, compute)?;
        Ok(Self { detector, session, batch_size, buffers: ResizeBuffers::default() })
    }

    /// The objects of each of at most `batch_size` images, all that the network gives.
    ///
    /// # Errors
    /// Outputs that are not numbers.
    pub(super) fn detect(&mut self, images: &[&Image]) -> Result<Vec<Vec<DetectedObject>>, TrainError> {
        let framing = self.detector.settings.framing(Split::Val);
        let mut found: Vec<Vec<DetectedObject>> = images.iter().map(|_| Vec::new()).collect();
        for (part, canvas) in framing.canvases.iter().enumerate() {
            let here: Vec<usize> =
                (0..images.len()).filter(|&image| framing.canvas(size_of(images[image])) == *canvas).collect();
            if here.is_empty() {
                continue;
            }
            let on_canvas: Vec<&Image> = here.iter().map(|&image| images[image]).collect();
            for (image, objects) in here.into_iter().zip(self.detect_on(part, &framing, &on_canvas)?) {
                found[image] = objects;
            }
        }
        Ok(found)
    }

    /// The objects of images that have one canvas.
    fn detect_on(
        &mut self,
        part: usize,
        framing: &Framing,
        images: &[&Image],
    ) -> Result<Vec<Vec<DetectedObject>>, TrainError> {
        let [height, width] = framing.canvases[part].map(|side| side as usize);
        let pixels = height * width * 3;
        let (mut canvases, mut sizes) = (vec![0; self.batch_size * pixels], vec![0.0; self.batch_size * 2]);
        let mut seen = Vec::with_capacity(images.len());
        for (index, image) in images.iter().enumerate() {
            let size = size_of(image);
            // Nothing is drawn at random without jitter and flips.
            let placement = framing.place(size, &mut Purpose::Augment.stream(0, 0, 0));
            placement.draw(&image.pixels, size, &mut self.buffers, &mut canvases[index * pixels..][..pixels]);
            sizes[2 * index..][..2].copy_from_slice(&placement.size().map(|side| side as f32));
            seen.push(SeenImage { size, scale: placement.nominal_scale().recip() as f32 });
        }
        self.session.run_part(part, &Feeds::from([("images", Array::U8(canvases)), ("sizes", Array::F32(sizes))]))?;
        let object = |Found { class, bbox, score, mask }: Found| {
            let ClassCategory { id, name } = self.detector.category(class);
            DetectedObject { category_id: id, class: class as u32, name, score, bbox, mask }
        };
        let found = detections(&self.session, &self.detector.settings, &seen)?;
        Ok(found.into_iter().map(|image| image.into_iter().map(object).collect()).collect())
    }
}

/// Height and width.
fn size_of(image: &Image) -> [u32; 2] {
    [image.height as u32, image.width as u32]
}

/// A picture with the masks, boxes, names and scores of objects in it.
pub(super) fn with_objects(image: &Image, objects: &[DetectedObject]) -> Image {
    let labelled = |object: &DetectedObject| {
        let mask = object.mask.as_ref().map(ObjectMask::from);
        LabelledObject::detected(&object.name, object.score, object.class, object.bbox, mask)
    };
    drawn(image, &objects.iter().map(labelled).collect::<Vec<_>>())
}

const PICTURES: &str = "the folder of pictures";
const MASKS: &str = "the folder of masks";

/// Detects objects in images.
pub(super) struct ObjectPredictor {
    network: Network,
    /// Objects with a lower score are left out.
    score: Option<f64>,
    top_k: usize,
    exif: Exif,
    out: Option<PathBuf>,
    /// A folder for a picture of each mask.
    masks: Option<PathBuf>,
    /// Names of the classes instead of those of the run.
    names: Option<Vec<String>>,
    stop: StopSignal,
}

impl ObjectPredictor {
    /// That of files.
    ///
    /// # Errors
    /// Weights or labels that do not fit the model; a folder that cannot be made.
    pub(super) fn of_files(detector: Detector, options: &PredictOptions) -> Result<Self, TrainError> {
        if let Some(folder) = options.masks.as_ref().filter(|_| !detector.settings.has_masks()) {
            let name = &detector.recipe.model.name;
            return Err(TrainError::setting(MASKS, folder.display(), format!("{name} gives no masks")));
        }
        for folder in [&options.out, &options.masks].into_iter().flatten() {
            fs::create_dir_all(folder).map_err(TrainError::io(folder, "make the folder of pictures"))?;
        }
        Self::new(detector, options, BATCH)
    }

    /// That of one image after another.
    ///
    /// # Errors
    /// Weights or labels that do not fit the model.
    pub(super) fn of_frames(detector: Detector, options: &PredictOptions) -> Result<Self, TrainError> {
        Self::new(detector, options, 1)
    }

    fn new(detector: Detector, options: &PredictOptions, batch_size: usize) -> Result<Self, TrainError> {
        let read = |path: &Path| infer::given_labels(path, detector.settings.classes, &detector.trained.origin);
        let names = options.labels.as_deref().map(read).transpose()?;
        Ok(Self {
            network: Network::new(detector, batch_size, &options.compute)?,
            score: options.score,
            top_k: options.top_k.unwrap_or(usize::MAX),
            exif: options.orientation(),
            out: options.out.clone(),
            masks: options.masks.clone(),
            names,
            stop: options.stop.clone(),
        })
    }

    /// The objects of each image that results files have.
    fn detect(&mut self, images: &[&Image]) -> Result<Vec<Vec<DetectedObject>>, TrainError> {
        let mut found = self.network.detect(images)?;
        for objects in &mut found {
            objects.retain(|object| self.score.is_none_or(|least| object.score >= least));
            objects.truncate(self.top_k);
            for object in objects {
                if let Some(name) = self.names.as_ref().and_then(|names| names.get(object.class as usize)) {
                    object.name.clone_from(name);
                }
            }
        }
        Ok(found)
    }

    /// Those of the objects that are drawn and listed.
    fn shown(&self, mut objects: Vec<DetectedObject>) -> Vec<DetectedObject> {
        objects.retain(|object| object.score >= self.score.unwrap_or(DRAWN_SCORE));
        objects
    }

    /// # Errors
    /// A picture that would be overwritten by what is drawn, or by the file of results.
    fn check_names<'a>(
        &self,
        pictures: impl Iterator<Item = &'a NamedPicture>,
        originals: &Originals,
    ) -> Result<(), TrainError> {
        let Some(out) = &self.out else { return Ok(()) };
        originals.check(PICTURES, out, RESULTS_FILE)?;
        pictures.map(|picture| picture.file().0).try_for_each(|name| originals.check(PICTURES, out, &name))
    }

    /// Writes `NAME-NNN-CLASS.png` for each object of a picture: white where it is, black elsewhere.
    fn write_masks(
        &self,
        picture: &NamedPicture,
        objects: &[DetectedObject],
        originals: &Originals,
    ) -> Result<(), TrainError> {
        let Some(folder) = &self.masks else { return Ok(()) };
        for (number, object) in objects.iter().enumerate() {
            let Some(mask) = &object.mask else { continue };
            let pixels = mask.decode().into_iter().flat_map(|pixel| [255 * pixel; 3]).collect();
            let mask = Image { width: mask.width() as usize, height: mask.height() as usize, pixels };
            let class = object.name.replace(|c: char| !c.is_alphanumeric(), "-");
            let name = format!("{}-{number:03}-{class}.png", picture.stem);
            originals.check(MASKS, folder, &name)?;
            mask.write(&folder.join(name), FileFormat::Png)?;
        }
        Ok(())
    }

    /// Writes the picture with its objects.
    fn write_picture(
        &self,
        picture: &NamedPicture,
        image: &Image,
        objects: &[DetectedObject],
    ) -> Result<(), TrainError> {
        let Some(out) = &self.out else { return Ok(()) };
        let (name, format) = picture.file();
        Ok(with_objects(image, objects).write(&out.join(name), format)?)
    }
}

/// The objects of an image as results files have them, without those of classes that have no category.
fn records(objects: &[DetectedObject], image_id: i64, file: &str) -> impl Iterator<Item = ResultRecord> {
    objects.iter().filter_map(move |object| {
        let DetectedObject { category_id, bbox, score, ref mask, .. } = *object;
        Some(ResultRecord {
            image_id,
            file_name: Some(file.to_owned()),
            category_id: category_id?,
            bbox: Some(bbox),
            segmentation: mask.as_ref().map(RunLengths::from),
            score,
        })
    })
}

impl Shown for DetectedObjects {
    const COLUMNS: &'static [&'static str] =
        &["picture", "rank", "class_id", "category_id", "name", "score", "x", "y", "width", "height"];

    fn parts(&self) -> Vec<Part> {
        let row = |object: &DetectedObject| {
            let [x, y, width, height] = object.bbox;
            (format!("{}  {x:.0},{y:.0} {width:.0}x{height:.0}", object.name), Some(object.score))
        };
        let title = match self.objects.len() {
            1 => format!("{}: 1 object", self.path.display()),
            count => format!("{}: {count} objects", self.path.display()),
        };
        vec![Part::Line(title), Part::Table(self.objects.iter().map(row).collect())]
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let picture = self.path.display().to_string();
        let row = |(rank, object): (usize, &DetectedObject)| {
            let category = object.category_id.map_or_else(String::new, |id| id.to_string());
            let head = [picture.clone(), rank.to_string(), object.class.to_string(), category, object.name.clone()];
            head.into_iter().chain([cell(object.score)]).chain(object.bbox.map(cell)).collect()
        };
        (1..).zip(&self.objects).map(row).collect()
    }
}

impl Predictor for ObjectPredictor {
    fn predict(
        &mut self,
        inputs: &[String],
        notify: &dyn Fn(usize, usize),
    ) -> Result<EachInput<infer::Prediction>, TrainError> {
        let pictures = NamedPicture::all(picture_files(inputs));
        let originals = Originals::of(pictures.iter().flatten());
        self.check_names(pictures.iter().flatten(), &originals)?;
        let all = pictures.len();
        let mut pictures = pictures.into_iter();
        let mut results: EachInput<DetectedObjects> = Vec::with_capacity(all);
        let file = self.out.as_ref().map(|out| out.join(RESULTS_FILE));
        let mut written = file.as_deref().map(ResultsWriter::create).transpose()?;
        while results.len() < all && !self.stop.is_raised() {
            let batch: EachInput<(NamedPicture, Image)> = pictures
                .by_ref()
                .take(BATCH)
                .map(|picture| {
                    let picture = picture?;
                    let image = Image::read_oriented(&picture.path, self.exif)?;
                    Ok((picture, image))
                })
                .collect();
            let images: Vec<&Image> = batch.iter().flatten().map(|(_, image)| image).collect();
            let found = if images.is_empty() { Vec::new() } else { self.detect(&images)? };
            let mut found = found.into_iter();
            for read in batch {
                results.push(read.and_then(|(picture, image)| {
                    let objects = found.next().expect("objects for each image");
                    if let Some(written) = &mut written {
                        let file = picture.path.display().to_string();
                        records(&objects, picture.id, &file).try_for_each(|record| written.write(&record))?;
                    }
                    let objects = self.shown(objects);
                    self.write_picture(&picture, &image, &objects)?;
                    self.write_masks(&picture, &objects, &originals)?;
                    Ok(DetectedObjects { path: picture.path, objects })
                }));
            }
            notify(results.len(), all);
        }
        written.map_or(Ok(()), ResultsWriter::finish)?;
        Ok(infer::predictions(results))
    }
}

impl Annotator for ObjectPredictor {
    fn annotate(&mut self, image: &Image, name: &str, id: i64) -> Result<Annotated, TrainError> {
        let objects = self.detect(&[image])?.pop().expect("objects for the image");
        let records = records(&objects, id, name).collect();
        let found = DetectedObjects { path: name.into(), objects: self.shown(objects) };
        let picture = with_objects(image, &found.objects);
        Ok(Annotated { picture, prediction: infer::Prediction::new(&found), records })
    }
}
