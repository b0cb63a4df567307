//! A COCO data set to train on.

use std::ops::Range;

use ahash::AHashSet;

use super::store::{Annotated, ImageMasks, ImageStore, Listed};
use super::{Category, Classes, CocoSource, ImageRecord, Instances, Numbering};
use crate::decode::exif::{decode_oriented, orientation};
use crate::detection::{AnnotatedImages, Framing, Object, Objects};
use crate::parallel::try_map;
use crate::{DataError, Dataset, Exif, ImageInfo, Philox, Placement, Scratch, Stage};

/// How a data set is opened.
#[derive(Debug, Clone, PartialEq)]
pub struct CocoOptions {
    /// How images become samples.
    pub framing: Framing,
    /// How categories become classes.
    pub numbering: Numbering,
    /// Whether objects have masks.
    pub masks: bool,
    /// What is done with the EXIF orientation of images. Annotations are those of the image after that.
    pub exif: Exif,
    /// Threads that look at files.
    pub threads: usize,
}

/// Images with annotated objects. Crowds are left out, boxes are cut off at the borders of the image, and those without area
/// are left out; images without objects stay.
#[derive(Debug)]
pub struct CocoSet {
    framing: Framing,
    masks: bool,
    exif: Exif,
    source: CocoSource,
    categories: Vec<Category>,
    classes: Classes,
    images: Vec<ImageEntry>,
    objects: Vec<SetObject>,
    store: ImageStore,
    summary: CocoSummary,
    identity: String,
}

/// What a data set holds, and what was left out of it.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct CocoSummary {
    /// Images, with or without objects.
    pub images: usize,
    /// Images that stay without an object.
    pub images_without_objects: usize,
    /// Objects of all images, without crowds.
    pub objects: usize,
    /// Annotations of crowds, which are left out.
    pub crowds: usize,
    /// Objects whose category is no class, which are left out.
    pub without_class: usize,
    /// Boxes that end more than a pixel outside the image, and are cut off.
    pub clipped: usize,
    /// Boxes without area in the image, which are left out.
    pub without_area: usize,
    /// The first ones of them.
    pub first_without_area: Vec<String>,
    /// Most objects of an image.
    pub most_objects: usize,
    /// Objects by class.
    pub objects_of_class: Vec<usize>,
}

#[derive(Debug)]
struct ImageEntry {
    id: i32,
    /// Height and width.
    size: [u32; 2],
    objects: Range<usize>,
}

#[derive(Debug)]
struct SetObject {
    bbox: [f64; 4],
    class: u32,
    /// Index of the annotation in the file, or within the record of the image.
    annotation: usize,
}

/// How many boxes without area are named.
const NAMED: usize = 5;

impl CocoSet {
    /// Opens one split. Of shards, every record is read once.
    ///
    /// # Errors
    /// What [`Instances::open`] and [`Classes::new`] refuse; an image that is missing, or whose id or file name cannot be used;
    /// a damaged record, one without boxes, or masks asked for that records do not have; no image, or no object in a whole set with
    /// annotations; a setting outside its range.
    pub fn open(source: &CocoSource, options: &CocoOptions) -> Result<Self, DataError> {
        let CocoOptions { ref framing, ref numbering, masks, exif, threads } = *options;
        framing.check()?;
        let Listed { store, images, categories, classes, content } =
            ImageStore::open(source, numbering, masks, threads)?;
        let mut set = Self {
            framing: framing.clone(),
            masks,
            exif,
            source: source.clone(),
            categories,
            images: Vec::with_capacity(images.len()),
            objects: Vec::new(),
            store,
            summary: CocoSummary { objects_of_class: vec![0; classes.names().len()], ..CocoSummary::default() },
            identity: format!("{content}:{}{}", numbering.identity(), exif.identity()),
            classes,
        };
        for image in images {
            let id = i32::try_from(image.id).ok().filter(|&id| id >= 0).ok_or_else(|| {
                let problem = format!("an image has id {}", image.id);
                DataError::layout(source.path(), problem, format!("ids of 0 to {}", i32::MAX))
            })?;
            let start = set.objects.len();
            for annotated in image.objects {
                set.add(id, image.size, annotated);
            }
            let objects = start..set.objects.len();
            set.summary.most_objects = set.summary.most_objects.max(objects.len());
            set.summary.images_without_objects += usize::from(objects.is_empty());
            set.images.push(ImageEntry { id, size: image.size, objects });
        }
        (set.summary.images, set.summary.objects) = (set.images.len(), set.objects.len());
        let CocoSummary { images, objects, crowds, without_area, without_class, .. } = set.summary;
        if objects == 0 && !matches!(source, CocoSource::Unannotated { .. }) {
            let problem = format!(
                "no object in {images} images ({crowds} crowds, {without_area} boxes without area, {without_class} objects of categories \
                 that are no classes)"
            );
            return Err(DataError::layout(source.path(), problem, "at least one object with a box in an image"));
        }
        Ok(set)
    }

    /// Adds an annotation of the image `image_id` of height and width `size`, or counts why not.
    fn add(&mut self, image_id: i32, size: [u32; 2], annotated: Annotated) {
        let Annotated { name, annotation, class, bbox: [x1, y1, x2, y2], is_crowd } = annotated;
        if is_crowd {
            self.summary.crowds += 1;
            return;
        }
        let Some(class) = class else {
            self.summary.without_class += 1;
            return;
        };
        let [height, width] = size.map(f64::from);
        let Ok(bbox) = within([x1, y1, x2, y2], size) else {
            self.summary.without_area += 1;
            if self.summary.first_without_area.len() < NAMED {
                let what = format!("image {image_id}, {name}: box {x1:.2}, {y1:.2} to {x2:.2}, {y2:.2}");
                self.summary.first_without_area.push(format!("{what} in an image of {width}x{height}"));
            }
            return;
        };
        let outside = [-x1, -y1, x2 - width, y2 - height];
        self.summary.clipped += usize::from(outside.iter().any(|&distance| distance > 1.0));
        self.summary.objects_of_class[class as usize] += 1;
        self.objects.push(SetObject { bbox, class, annotation });
    }

    /// What the set holds, and what was left out.
    pub fn summary(&self) -> &CocoSummary {
        &self.summary
    }

    /// All objects as they are annotated, crowds and those without a class included: those of the file of annotations; those of records where
    /// there is none, or where it does not have their images because they have no ids. `None` for images without annotations.
    ///
    /// # Errors
    /// What [`Instances::open`] refuses; a record that cannot be read; a mask of a record that is damaged.
    pub fn annotations(&self, threads: usize) -> Result<Option<Instances>, DataError> {
        let file = match &self.source {
            CocoSource::Unannotated { .. } => return Ok(None),
            CocoSource::Files { annotations, .. } => return Instances::open(annotations).map(Some),
            CocoSource::Records { annotations: None, .. } => None,
            CocoSource::Records { annotations: Some(path), .. } => Some(Instances::open(path)?),
        };
        let ids: AHashSet<i64> = self.images.iter().map(|image| i64::from(image.id)).collect();
        let has_all = |file: &Instances| ids.iter().all(|&id| file.image_number(id).is_some());
        match file.filter(has_all) {
            Some(file) => Ok(Some(file.of_images(|image| ids.contains(&image.id)))),
            None => self.annotations_of_records(threads).map(Some),
        }
    }

    fn annotations_of_records(&self, threads: usize) -> Result<Instances, DataError> {
        let of_image =
            |index: usize| self.store.annotations(index, self.images[index].size, &self.categories, self.masks);
        let mut annotations: Vec<_> = try_map(self.images.len(), threads, of_image)?.into_iter().flatten().collect();
        annotations.iter_mut().zip(1..).for_each(|(annotation, id)| annotation.id = id);
        let image = |&ImageEntry { id, size: [height, width], .. }: &ImageEntry| ImageRecord {
            id: id.into(),
            width,
            height,
            file_name: None,
        };
        let images = self.images.iter().map(image).collect();
        Ok(Instances::assembled(self.source.path(), images, self.categories.clone(), annotations))
    }

    /// Classes and categories.
    pub fn classes(&self) -> &Classes {
        &self.classes
    }

    /// Id of image `index`.
    pub fn image_id(&self, index: usize) -> i32 {
        self.images[index].id
    }

    /// Images with more objects than `most`, of which the smallest are left out of batches with that capacity.
    pub fn images_with_more_than(&self, most: usize) -> usize {
        self.images.iter().filter(|image| image.objects.len() > most).count()
    }

    /// Number of objects of image `index`.
    pub fn objects_of(&self, index: usize) -> usize {
        self.images[index].objects.len()
    }

    /// Decodes image `index`, and its masks where there are any.
    ///
    /// # Errors
    /// An image that is damaged or has another size than stated; a mask that is damaged.
    pub(super) fn check(&self, index: usize, scratch: &mut Scratch) -> Result<ImageInfo, DataError> {
        let masks = self.store.read(index, &mut scratch.file)?;
        let info = self.decode(index, scratch)?;
        for object in &self.objects[self.images[index].objects.clone()] {
            if masks.has(object.annotation) {
                masks.decode(object.annotation, self.images[index].size)?;
            }
        }
        Ok(info)
    }

    /// The objects of image `index` in a sample.
    fn place_objects(&self, index: usize, placement: &Placement, masks: &ImageMasks<'_>) -> Result<Objects, DataError> {
        let objects = self.objects_where(index, masks, |object| placement.bbox(object.bbox).is_some())?;
        Ok(Objects::new(self.images[index].id, objects).place(placement))
    }

    /// Those objects of image `index` for which `is_wanted` holds; the masks of the others are not decoded.
    fn objects_where(
        &self,
        index: usize,
        masks: &ImageMasks<'_>,
        is_wanted: impl Fn(&SetObject) -> bool,
    ) -> Result<Vec<Object>, DataError> {
        let ImageEntry { size, ref objects, .. } = self.images[index];
        let objects = self.objects[objects.clone()].iter().filter(|object| is_wanted(object)).map(|object| {
            let mask = if self.masks { Some(masks.decode(object.annotation, size)?) } else { None };
            Ok(Object { bbox: object.bbox, class: object.class, mask })
        });
        objects.collect()
    }

    /// Decodes the image in `scratch.file` to `scratch.pixels`.
    fn decode(&self, index: usize, scratch: &mut Scratch) -> Result<ImageInfo, DataError> {
        let Scratch { file, pixels, .. } = scratch;
        let info = decode_oriented(file, pixels, self.exif).map_err(|error| self.store.image_error(index, error))?;
        let ImageEntry { id, size: [height, width], .. } = self.images[index];
        if (info.height, info.width) == (height, width) {
            return Ok(info);
        }
        let turned = orientation(file).filter(|&found| found >= 5);
        let problem =
            format!("the image {id} is {}x{}, and its annotations are for {width}x{height}", info.width, info.height);
        Err(match turned {
            Some(turned) if (info.width, info.height) == (height, width) => {
                let (done, other) = match self.exif {
                    Exif::Ignore => ("which is ignored", "an image as it is annotated: let the orientation be applied"),
                    Exif::Apply => ("which is applied", "an image as it is annotated: let the orientation be ignored"),
                };
                self.store.problem(index, format!("{problem}: it has EXIF orientation {turned}, {done}"), other)
            }
            _ => self.store.problem(index, problem, "an image of the size that the annotations state"),
        })
    }
}

/// A box has no area in its image.
pub(super) struct NoArea;

/// The box `[x1, y1, x2, y2]` without what is outside an image of `[height, width]`.
pub(super) fn within([x1, y1, x2, y2]: [f64; 4], size: [u32; 2]) -> Result<[f64; 4], NoArea> {
    let [height, width] = size.map(f64::from);
    let inside = [x1.max(0.0), y1.max(0.0), x2.min(width), y2.min(height)];
    if inside[0] < inside[2] && inside[1] < inside[3] { Ok(inside) } else { Err(NoArea) }
}

impl AnnotatedImages for CocoSet {
    fn image(&self, index: usize) -> (i32, [u32; 2]) {
        let ImageEntry { id, size, .. } = self.images[index];
        (id, size)
    }

    fn objects(&self, index: usize) -> Result<Vec<Object>, DataError> {
        let masks = self.store.read(index, &mut Vec::new())?;
        self.objects_where(index, &masks, |_| true)
    }
}

impl Dataset for CocoSet {
    type Target = Objects;

    fn len(&self) -> usize {
        self.images.len()
    }

    fn class_names(&self) -> &[String] {
        self.classes.names()
    }

    fn image_size(&self, index: usize) -> [usize; 2] {
        self.framing.canvas(self.images[index].size).map(|side| side as usize)
    }

    fn load(
        &self,
        index: usize,
        rng: &mut Philox,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<Objects, DataError> {
        scratch.clock.start();
        let masks = self.store.read(index, &mut scratch.file)?;
        scratch.clock.end(Stage::Read);
        self.decode(index, scratch)?;
        scratch.clock.end(Stage::Decode);
        let size = self.images[index].size;
        let placement = self.framing.place(size, rng);
        placement.draw(&scratch.pixels, size, &mut scratch.resize, out);
        scratch.clock.end(Stage::Augment);
        let objects = self.place_objects(index, &placement, &masks)?;
        scratch.clock.end(Stage::Objects);
        Ok(objects)
    }

    fn source(&self, index: usize) -> String {
        self.store.source(index)
    }

    /// A hash over ids, sizes, file names and annotations, or over the records, and the numbering of classes.
    fn identity(&self) -> String {
        self.identity.clone()
    }
}
