use std::fs;
use std::path::{Path, PathBuf};

use ahash::AHashMap;
use bessemer_metrics::coco::{BoundingBox, GroundTruth, Mask};
use bessemer_metrics::mask::Rle;
use serde::Deserialize;

use super::fields::{OptionalBox, flag};
use super::{CHUNK, Segmentation};
use crate::parallel::try_map;
use crate::{DataError, json};

const IMAGE_INFO_LAYOUT: &str = "COCO's {images[] {id, width, height, file_name}, categories[] {id, name}}";
const LAYOUT: &str = "COCO's {images[] {id, width, height}, categories[] {id, name}, annotations[] {id, image_id, \
                      category_id, bbox, area, iscrowd, segmentation}}";

/// Images, categories and annotated objects of a file `instances_*.json`.
#[derive(Debug, Clone)]
pub struct Instances {
    path: PathBuf,
    images: Vec<ImageRecord>,
    categories: Vec<Category>,
    annotations: Vec<Annotation>,
    image_numbers: AHashMap<i64, usize>,
    category_numbers: AHashMap<i64, usize>,
}

/// An image of the set.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ImageRecord {
    /// Id by which annotations and results refer to the image.
    pub id: i64,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// File name within the folder of images.
    pub file_name: Option<String>,
}

/// A category of objects.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Category {
    /// Id by which annotations and results refer to the category.
    pub id: i64,
    /// Name, such as `person`.
    pub name: String,
}

/// An annotated object.
#[derive(Debug, Clone, PartialEq)]
pub struct Annotation {
    /// Id of the annotation.
    pub id: i64,
    /// Index of the image among [`Instances::images`].
    pub image: usize,
    /// Index of the category among [`Instances::categories`].
    pub category: usize,
    /// `[x, y, width, height]` in pixels.
    pub bbox: [f64; 4],
    /// Annotated area in square pixels.
    pub area: f64,
    /// Whether the annotation covers a crowd of objects instead of one.
    pub is_crowd: bool,
    /// The mask, if there is one.
    pub segmentation: Option<Segmentation>,
}

#[derive(Deserialize)]
struct RawInstances {
    images: Vec<ImageRecord>,
    categories: Vec<Category>,
    annotations: Vec<RawAnnotation>,
}

#[derive(Deserialize)]
struct RawAnnotation {
    id: i64,
    image_id: i64,
    category_id: i64,
    bbox: OptionalBox,
    area: f64,
    #[serde(default, deserialize_with = "flag")]
    iscrowd: bool,
    segmentation: Option<Segmentation>,
}

/// Reads the categories of a file of annotations alone, by ascending id.
///
/// # Errors
/// A file that cannot be read, is not JSON, or has no categories; an id that is there twice.
pub(super) fn read_categories(path: &Path) -> Result<Vec<Category>, DataError> {
    #[derive(Deserialize)]
    struct Only {
        categories: Vec<Category>,
    }
    let bytes = fs::read(path).map_err(DataError::io(path, "read the file"))?;
    let Only { mut categories } = json::parse(path, &bytes, LAYOUT)?;
    let ids: Vec<i64> = categories.iter().map(|category| category.id).collect();
    if let Some([first, second]) = repeated(&ids) {
        let problem = format!("categories[{second}].id is {}, as categories[{first}].id is", ids[second]);
        return Err(DataError::layout(path, problem, LAYOUT));
    }
    categories.sort_unstable_by_key(|category| category.id);
    Ok(categories)
}

impl Instances {
    /// Reads a file of annotations.
    ///
    /// Boxes are kept as they are, even if they are empty or exceed the image. Masks are not checked.
    ///
    /// # Errors
    ///
    /// With the place within the file: a file that cannot be read or is not JSON; a field that is missing, of another
    /// type or not finite; an id that is there twice; an image of width or height 0; an annotation of an image or category that
    /// the file lacks.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let bytes = fs::read(path).map_err(DataError::io(path, "read the file"))?;
        Self::checked(path, json::parse(path, &bytes, LAYOUT)?)
    }

    /// Reads a file of images without annotations, such as `image_info_test-dev2017.json`; annotations that it has are not read.
    ///
    /// # Errors
    ///
    /// Those of [`Instances::open`] that do not concern annotations.
    pub fn open_image_info(path: &Path) -> Result<Self, DataError> {
        #[derive(Deserialize)]
        struct ImageInfo {
            images: Vec<ImageRecord>,
            categories: Vec<Category>,
        }
        let bytes = fs::read(path).map_err(DataError::io(path, "read the file"))?;
        let ImageInfo { images, categories } = json::parse(path, &bytes, IMAGE_INFO_LAYOUT)?;
        Self::checked(path, RawInstances { images, categories, annotations: Vec::new() })
    }

    fn checked(path: &Path, raw: RawInstances) -> Result<Self, DataError> {
        let RawInstances { mut images, mut categories, annotations } = raw;
        let error = |problem: String| DataError::layout(path, problem, LAYOUT);
        let unsized_image = |image: &ImageRecord| image.width == 0 || image.height == 0;
        if let Some(number) = images.iter().position(unsized_image) {
            let ImageRecord { id, width, height, .. } = &images[number];
            return Err(error(format!("images[{number}] has width {width} and height {height}, id {id}")));
        }
        for (name, ids) in [
            ("images", images.iter().map(|image| image.id).collect::<Vec<i64>>()),
            ("categories", categories.iter().map(|category| category.id).collect()),
            ("annotations", annotations.iter().map(|annotation| annotation.id).collect()),
        ] {
            if let Some([first, second]) = repeated(&ids) {
                return Err(error(format!("{name}[{second}].id is {}, as {name}[{first}].id is", ids[second])));
            }
        }
        images.sort_unstable_by_key(|image| image.id);
        categories.sort_unstable_by_key(|category| category.id);
        let image_numbers = numbers(images.iter().map(|image| image.id));
        let category_numbers = numbers(categories.iter().map(|category| category.id));
        let annotation = |(number, raw): (usize, RawAnnotation)| {
            let place = |field: &str| format!("annotations[{number}].{field}");
            let unknown = |field: &str, list: &str, id: i64| {
                error(format!("{} is {id}, which {list} do not have, id {}", place(field), raw.id))
            };
            let image = image_numbers.get(&raw.image_id).copied();
            let category = category_numbers.get(&raw.category_id).copied();
            Ok(Annotation {
                id: raw.id,
                image: image.ok_or_else(|| unknown("image_id", "images", raw.image_id))?,
                category: category.ok_or_else(|| unknown("category_id", "categories", raw.category_id))?,
                bbox: raw.bbox.0.ok_or_else(|| error(format!("{} is empty, id {}", place("bbox"), raw.id)))?,
                area: raw.area,
                is_crowd: raw.iscrowd,
                segmentation: raw.segmentation,
            })
        };
        let annotations = annotations.into_iter().enumerate().map(annotation).collect::<Result<_, DataError>>()?;
        Ok(Self::assembled(path, images, categories, annotations))
    }

    /// Images and annotations that refer to each other and are sorted by id, and categories that are. `path` is named in errors.
    pub(super) fn assembled(
        path: &Path,
        images: Vec<ImageRecord>,
        categories: Vec<Category>,
        annotations: Vec<Annotation>,
    ) -> Self {
        let image_numbers = numbers(images.iter().map(|image| image.id));
        let category_numbers = numbers(categories.iter().map(|category| category.id));
        Self { path: path.to_owned(), images, categories, annotations, image_numbers, category_numbers }
    }

    /// The same with some of the images, and their annotations.
    pub fn of_images(self, is_wanted: impl Fn(&ImageRecord) -> bool) -> Self {
        let Self { path, images, categories, mut annotations, .. } = self;
        let (mut kept, mut number) = (Vec::new(), vec![None; images.len()]);
        for (index, image) in images.into_iter().enumerate() {
            if is_wanted(&image) {
                number[index] = Some(kept.len());
                kept.push(image);
            }
        }
        annotations.retain_mut(|annotation| number[annotation.image].map(|image| annotation.image = image).is_some());
        Self::assembled(&path, kept, categories, annotations)
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Images by ascending id.
    pub fn images(&self) -> &[ImageRecord] {
        &self.images
    }

    /// Categories by ascending id.
    pub fn categories(&self) -> &[Category] {
        &self.categories
    }

    /// Annotations in the order of the file.
    pub fn annotations(&self) -> &[Annotation] {
        &self.annotations
    }

    /// Index of an image.
    pub fn image_number(&self, id: i64) -> Option<usize> {
        self.image_numbers.get(&id).copied()
    }

    /// Index of a category.
    pub fn category_number(&self, id: i64) -> Option<usize> {
        self.category_numbers.get(&id).copied()
    }

    /// The mask of the annotation with that index.
    ///
    /// # Errors
    ///
    /// If there is no mask, or it is invalid or not of the image's size.
    pub fn mask(&self, annotation: usize) -> Result<Rle, DataError> {
        let Annotation { id, image, segmentation, .. } = &self.annotations[annotation];
        let ImageRecord { height, width, .. } = self.images[*image];
        let mask = match segmentation {
            None => Err(" is missing".to_owned()),
            Some(segmentation) => segmentation.mask(height, width),
        };
        mask.map_err(|problem| {
            let problem = format!("annotations[{annotation}].segmentation{problem}, id {id}");
            DataError::layout(&self.path, problem, LAYOUT)
        })
    }

    /// The annotations as boxes, for the metric.
    pub fn boxes(&self) -> Vec<GroundTruth<BoundingBox>> {
        self.annotations.iter().map(|annotation| truth(annotation, annotation.bbox.into())).collect()
    }

    /// The annotations as masks, for the metric, decoded on up to `threads` threads.
    ///
    /// # Errors
    ///
    /// The first error of [`Instances::mask`].
    pub fn masks(&self, threads: usize) -> Result<Vec<GroundTruth<Mask>>, DataError> {
        let chunks = try_map(self.annotations.len().div_ceil(CHUNK), threads, |chunk| {
            let first = chunk * CHUNK;
            let annotations = self.annotations.iter().enumerate().skip(first).take(CHUNK);
            let masks = annotations.map(|(index, annotation)| Ok(truth(annotation, self.mask(index)?.into())));
            masks.collect::<Result<Vec<_>, DataError>>()
        })?;
        Ok(chunks.into_iter().flatten().collect())
    }
}

fn truth<R>(annotation: &Annotation, region: R) -> GroundTruth<R> {
    let Annotation { id, image, category, area, is_crowd, .. } = *annotation;
    GroundTruth { image, category, id, region, area, is_crowd }
}

fn numbers(ids: impl Iterator<Item = i64>) -> AHashMap<i64, usize> {
    ids.enumerate().map(|(number, id)| (id, number)).collect()
}

/// The first and the second index of an id that occurs twice.
fn repeated(ids: &[i64]) -> Option<[usize; 2]> {
    let mut seen = AHashMap::with_capacity(ids.len());
    ids.iter().enumerate().find_map(|(second, id)| seen.insert(id, second).map(|first| [first, second]))
}
