//! Images and annotations of both forms of a COCO data set.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use bessemer_metrics::mask::Rle;
use sha2::{Digest, Sha256};

use super::instances::{Annotation, read_categories};
use super::record::{ExampleObject, ImageExample};
use super::{Category, CategoryIds, Classes, CocoSource, ImageRecord, Instances, Numbering, Segmentation};
use crate::decode::read_whole;
use crate::detection::ObjectMask;
use crate::parallel::{map_with, try_map};
use crate::tfrecord::RecordFile;
use crate::{DataError, DecodeError, FilePosition, decode_rgb, hex};

/// Where the bytes of images are, and their masks.
#[derive(Debug)]
pub(super) enum ImageStore {
    Files {
        folder: PathBuf,
        /// File name of each image.
        names: Vec<String>,
        /// Where masks are asked for.
        instances: Option<Box<Instances>>,
    },
    Records {
        shards: Vec<RecordFile>,
        /// Number of the shard, and of the record in it, of each image.
        places: Vec<[u32; 2]>,
    },
}

/// What opening finds.
pub(super) struct Listed {
    pub store: ImageStore,
    /// By ascending id.
    pub images: Vec<ListedImage>,
    /// By ascending id.
    pub categories: Vec<Category>,
    pub classes: Classes,
    /// A name that changes with the content.
    pub content: String,
}

/// An image with its annotations.
pub(super) struct ListedImage {
    pub id: i64,
    /// Height and width.
    pub size: [u32; 2],
    pub objects: Vec<Annotated>,
}

/// An annotation.
pub(super) struct Annotated {
    /// For messages.
    pub name: String,
    /// Index in the file of annotations, or within the record.
    pub annotation: usize,
    /// `None` where the category has none.
    pub class: Option<u32>,
    /// `[x1, y1, x2, y2]` in pixels, as annotated.
    pub bbox: [f64; 4],
    pub is_crowd: bool,
}

impl ImageStore {
    /// Lists the images of a source.
    pub(super) fn open(
        source: &CocoSource,
        numbering: &Numbering,
        masks: bool,
        threads: usize,
    ) -> Result<Listed, DataError> {
        match source {
            CocoSource::Files { annotations, images } => {
                open_files(Instances::open(annotations)?, images, numbering, masks, threads)
            }
            CocoSource::Unannotated { image_info, images } => {
                open_files(Instances::open_image_info(image_info)?, images, numbering, masks, threads)
            }
            CocoSource::Records { shards, annotations } => {
                open_records(shards, annotations.as_deref(), numbering, masks, threads)
            }
        }
    }

    /// Reads the file of image `index`.
    pub(super) fn read(&self, index: usize, file: &mut Vec<u8>) -> Result<ImageMasks<'_>, DataError> {
        match self {
            Self::Files { folder, names, instances } => {
                read_whole(&folder.join(&names[index]), file)?;
                Ok(ImageMasks::Annotations(instances.as_deref()))
            }
            Self::Records { shards, places } => {
                let (shard, record) = (&shards[places[index][0] as usize], places[index][1] as usize);
                let example = read_example(shard, record)?;
                *file = example.encoded;
                Ok(ImageMasks::Record { store: self, index, objects: example.objects })
            }
        }
    }

    /// The objects of image `index`, which is a record of `[height, width]` with objects of these categories, as they are annotated: crowds,
    /// boxes without area and what is outside the image included. Their ids are 0.
    ///
    /// # Errors
    /// A record that cannot be read; a mask that is damaged.
    pub(super) fn annotations(
        &self,
        index: usize,
        size: [u32; 2],
        categories: &[Category],
        masks: bool,
    ) -> Result<Vec<Annotation>, DataError> {
        let file = self.read(index, &mut Vec::new())?;
        let ImageMasks::Record { ref objects, .. } = file else { panic!("the images are no records") };
        let annotation = |(number, object): (usize, &ExampleObject)| {
            let [x1, y1, x2, y2] = object.bbox;
            let mask = if masks { Some(file.runs(number, size)?) } else { None };
            let runs = |mask: Rle| Segmentation::Runs { size, counts: mask.counts().to_vec() };
            Ok(Annotation {
                id: 0,
                image: index,
                category: number_of(categories, object.category_id).expect("opening looked for every category"),
                bbox: [x1, y1, x2 - x1, y2 - y1],
                area: object.area,
                is_crowd: object.is_crowd,
                segmentation: mask.map(runs),
            })
        };
        objects.iter().enumerate().map(annotation).collect()
    }

    /// Where image `index` is.
    pub(super) fn source(&self, index: usize) -> String {
        match self {
            Self::Files { folder, names, .. } => folder.join(&names[index]).display().to_string(),
            Self::Records { .. } => {
                let (path, place) = self.record(index);
                format!("{}: {place}", path.display())
            }
        }
    }

    /// An error of the file of image `index`.
    pub(super) fn image_error(&self, index: usize, error: DecodeError) -> DataError {
        match self {
            Self::Files { folder, names, .. } => DataError::Image { path: folder.join(&names[index]), source: error },
            Self::Records { .. } => self.problem(index, format!("the image: {error}"), "a whole image"),
        }
    }

    /// An error of image `index`.
    pub(super) fn problem(&self, index: usize, problem: String, expected: &str) -> DataError {
        match self {
            Self::Files { folder, names, .. } => DataError::layout(&folder.join(&names[index]), problem, expected),
            Self::Records { .. } => {
                let (path, place) = self.record(index);
                DataError::content(path, place, problem, expected)
            }
        }
    }

    /// The record of image `index`.
    ///
    /// # Panics
    /// If images are in files of their own.
    fn record(&self, index: usize) -> (&Path, FilePosition) {
        let Self::Records { shards, places } = self else { panic!("the images are no records") };
        let shard = &shards[places[index][0] as usize];
        (shard.path(), shard.place(places[index][1] as usize))
    }
}

/// The masks of an image.
pub(super) enum ImageMasks<'a> {
    /// None, where masks are not asked for.
    Annotations(Option<&'a Instances>),
    Record {
        store: &'a ImageStore,
        index: usize,
        objects: Vec<ExampleObject>,
    },
}

impl ImageMasks<'_> {
    /// Whether an annotation has a mask.
    pub(super) fn has(&self, annotation: usize) -> bool {
        match self {
            Self::Annotations(instances) => {
                instances.is_some_and(|instances| instances.annotations()[annotation].segmentation.is_some())
            }
            Self::Record { objects, .. } => !objects[annotation].mask.is_empty(),
        }
    }

    /// The mask of an annotation of an image of `[height, width]`.
    ///
    /// # Errors
    /// A mask that is missing, damaged, or of another size.
    pub(super) fn decode(&self, annotation: usize, size: [u32; 2]) -> Result<ObjectMask, DataError> {
        Ok(ObjectMask::from(&self.runs(annotation, size)?))
    }

    /// The same in run lengths.
    fn runs(&self, annotation: usize, size: [u32; 2]) -> Result<Rle, DataError> {
        match self {
            Self::Annotations(instances) => instances.expect("a set with masks keeps its annotations").mask(annotation),
            Self::Record { store, index, objects } => {
                let problem = |problem: String| {
                    let problem = format!("the mask of object {annotation}: {problem}");
                    store.problem(*index, problem, "a PNG of the image's size")
                };
                let mut pixels = Vec::new();
                let info =
                    decode_rgb(&objects[annotation].mask, &mut pixels).map_err(|error| problem(error.to_string()))?;
                if [info.height, info.width] != size {
                    return Err(problem(format!(
                        "{}x{} in an image of {}x{}",
                        info.width, info.height, size[1], size[0]
                    )));
                }
                let bitmap: Vec<u8> = pixels.iter().step_by(3).copied().collect();
                Rle::encode(size[0], size[1], &bitmap).map_err(|error| problem(error.to_string()))
            }
        }
    }
}

fn open_files(
    instances: Instances,
    folder: &Path,
    numbering: &Numbering,
    masks: bool,
    threads: usize,
) -> Result<Listed, DataError> {
    let classes = Classes::new(instances.path(), instances.categories(), numbering)?;
    let names = file_names(&instances)?;
    let bytes = file_sizes(folder, &names, &instances, threads)?;
    let mut hasher = Sha256::new();
    let mut images: Vec<ListedImage> = Vec::with_capacity(names.len());
    for ((image, name), bytes) in instances.images().iter().zip(&names).zip(bytes) {
        let &ImageRecord { id, width, height, .. } = image;
        hasher.update(format!("{id}/{name}/{bytes}/{height}x{width}\n"));
        images.push(ListedImage { id, size: [height, width], objects: Vec::new() });
    }
    for (index, annotation) in instances.annotations().iter().enumerate() {
        let [x, y, width, height] = annotation.bbox;
        let category = instances.categories()[annotation.category].id;
        hasher.update(format!("{}/{category}/{}\n", annotation.id, annotation.is_crowd));
        annotation.bbox.iter().for_each(|side| hasher.update(side.to_le_bytes()));
        images[annotation.image].objects.push(Annotated {
            name: format!("annotation {}", annotation.id),
            annotation: index,
            class: classes.class(category),
            bbox: [x, y, x + width, y + height],
            is_crowd: annotation.is_crowd,
        });
    }
    let categories = instances.categories().to_vec();
    let store = ImageStore::Files { folder: folder.to_owned(), names, instances: masks.then(|| Box::new(instances)) };
    Ok(Listed { store, images, categories, classes, content: format!("coco:sha256:{}", hex(&hasher.finalize())) })
}

/// File names of all images, in the order of their ids, which lie in the folder or below.
pub(super) fn file_names(instances: &Instances) -> Result<Vec<String>, DataError> {
    let name = |image: &ImageRecord| {
        let error = |problem: &str| {
            let problem = format!("the image with id {} {problem}", image.id);
            DataError::layout(instances.path(), problem, "images[].file_name within the folder of images")
        };
        let name = image.file_name.clone().ok_or_else(|| error("has no file_name"))?;
        let is_inside = Path::new(&name).components().all(|part| matches!(part, Component::Normal(_)));
        if name.is_empty() || !is_inside { Err(error(&format!("has file_name `{name}`"))) } else { Ok(name) }
    };
    instances.images().iter().map(name).collect()
}

/// Sizes in bytes of the files of all images.
pub(super) fn file_sizes(
    folder: &Path,
    names: &[String],
    instances: &Instances,
    threads: usize,
) -> Result<Vec<u64>, DataError> {
    if names.is_empty() {
        return Err(DataError::layout(instances.path(), "no image", "at least one image"));
    }
    let found = map_with(names.len(), threads, || (), |(), index| fs::metadata(folder.join(&names[index])));
    let is_missing =
        |found: &std::io::Result<fs::Metadata>| found.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound);
    let missing = found.iter().filter(|found| is_missing(found)).count();
    let size = |(index, found): (usize, std::io::Result<fs::Metadata>)| {
        let path = folder.join(&names[index]);
        if is_missing(&found) {
            let problem = format!("no such file; {missing} of {} images are missing", names.len());
            let expected =
                format!("the image with id {} of {}", instances.images()[index].id, instances.path().display());
            return Err(DataError::layout(&path, problem, expected));
        }
        Ok(found.map_err(DataError::io(&path, "look at the file"))?.len())
    };
    found.into_iter().enumerate().map(size).collect()
}

/// An image of a record, without its file.
struct Scanned {
    place: [u32; 2],
    /// That of the record, or one made from the image file.
    id: i64,
    example: ImageExample,
}

fn open_records(
    paths: &[PathBuf],
    annotations: Option<&Path>,
    numbering: &Numbering,
    masks: bool,
    threads: usize,
) -> Result<Listed, DataError> {
    let shards = try_map(paths.len(), threads, |index| RecordFile::open(&paths[index]))?;
    let scanned = try_map(shards.len(), threads, |shard| scan(&shards[shard], shard, masks))?;
    let mut scanned: Vec<Scanned> = scanned.into_iter().flatten().collect();
    let first = paths.first().map_or(Path::new("."), PathBuf::as_path);
    if scanned.is_empty() {
        return Err(DataError::layout(first, "no record in any shard", "at least one image"));
    }
    separate_made_ids(&mut scanned);
    scanned.sort_by_key(|image| image.id);
    let error = |image: &Scanned, problem: String, expected: &str| {
        let (shard, record) = (&shards[image.place[0] as usize], image.place[1] as usize);
        DataError::content(shard.path(), shard.place(record), problem, expected)
    };
    if let Some([_, second]) = scanned.array_windows().find(|[a, b]| a.id == b.id) {
        let problem = format!("a second record of the image with id {}", second.id);
        return Err(error(second, problem, "one record for each image"));
    }
    let (path, categories) = match (annotations, numbering) {
        (Some(path), _) => (path, read_categories(path)?),
        (None, Numbering::ByIds(CategoryIds::Dense)) => {
            let problem = "records do not list all categories, whose ranks are to number the classes";
            let expected = "annotations/instances_*.json beside the shards, or category ids raw";
            return Err(DataError::layout(first, problem, expected));
        }
        (None, _) => (first, categories_of(&scanned)),
    };
    let classes = Classes::new(path, &categories, numbering)?;
    let mut images = Vec::with_capacity(scanned.len());
    for image in &scanned {
        let annotated = |(annotation, object): (usize, &ExampleObject)| {
            let ExampleObject { bbox, is_crowd, category_id, .. } = *object;
            if number_of(&categories, category_id).is_none() {
                let problem = format!("an object has category {category_id}");
                return Err(error(image, problem, &format!("the categories of {}", path.display())));
            }
            let class = classes.class(category_id);
            Ok(Annotated { name: format!("object {annotation}"), annotation, class, bbox, is_crowd })
        };
        let objects = image.example.objects.iter().enumerate().map(annotated).collect::<Result<_, DataError>>()?;
        images.push(ListedImage { id: image.id, size: image.example.size, objects });
    }
    let hash = shards.iter().fold(Sha256::new(), |hasher, shard| hasher.chain_update(shard.hash())).finalize();
    let places = scanned.iter().map(|image| image.place).collect();
    let content = format!("coco-records:sha256:{}", hex(&hash));
    Ok(Listed { store: ImageStore::Records { shards, places }, images, categories, classes, content })
}

/// Every image of a shard, without files and masks.
fn scan(shard: &RecordFile, number: usize, masks: bool) -> Result<Vec<Scanned>, DataError> {
    let scan = |record: usize| {
        let mut example = read_example(shard, record)?;
        if masks && !example.has_masks {
            let problem = "the record has no masks, which are asked for";
            let expected = "records with image/object/mask (`data prepare coco --masks`)";
            return Err(DataError::content(shard.path(), shard.place(record), problem, expected));
        }
        let id = example.id.unwrap_or_else(|| made_id(&example.encoded));
        example.encoded = Vec::new();
        example.objects.iter_mut().for_each(|object| object.mask = Vec::new());
        Ok(Scanned { place: [number as u32, record as u32], id, example })
    };
    (0..shard.len()).map(scan).collect()
}

/// Number of ids from 1 that data sets can have.
const IDS: i64 = i32::MAX as i64;

/// An id from 1 to [`IDS`] for an image without one: by the first 8 bytes of the SHA-256 of its file.
fn made_id(encoded: &[u8]) -> i64 {
    let hash = Sha256::digest(encoded);
    let start = hash.first_chunk().expect("a hash has 32 bytes");
    (u64::from_be_bytes(*start) % IDS as u64) as i64 + 1
}

/// Where a made id is taken, by a record or by a made id before it, the next free one takes its place.
fn separate_made_ids(scanned: &mut [Scanned]) {
    let mut taken: BTreeSet<i64> = scanned.iter().filter_map(|image| image.example.id).collect();
    for image in scanned.iter_mut().filter(|image| image.example.id.is_none()) {
        while !taken.insert(image.id) {
            image.id = image.id % IDS + 1;
        }
    }
}

fn read_example(shard: &RecordFile, record: usize) -> Result<ImageExample, DataError> {
    let payload = shard.read(record)?;
    ImageExample::decode(&payload).map_err(|flaw| flaw.at(shard.path(), shard.place(record)))
}

/// Index of a category among those, which are sorted by id.
fn number_of(categories: &[Category], id: i64) -> Option<usize> {
    categories.binary_search_by_key(&id, |category| category.id).ok()
}

/// The categories that occur, by ascending id; one without a name has its id as one.
fn categories_of(scanned: &[Scanned]) -> Vec<Category> {
    let mut names: BTreeMap<i64, &str> = BTreeMap::new();
    for object in scanned.iter().flat_map(|image| &image.example.objects) {
        names.entry(object.category_id).or_insert(&object.category);
    }
    let name = |id: i64, name: &str| if name.is_empty() { format!("category {id}") } else { name.to_owned() };
    names.into_iter().map(|(id, found)| Category { id, name: name(id, found) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record_shards::ShardWriter;

    /// A record with an object.
    fn example(id: Option<i64>, encoded: &[u8]) -> ImageExample {
        let object = ExampleObject { bbox: [1.0, 1.0, 4.0, 4.0], category_id: 3, ..ExampleObject::default() };
        ImageExample { id, size: [8, 8], encoded: encoded.to_vec(), objects: vec![object], ..ImageExample::default() }
    }

    /// Ids of the images and their places, in shards of these records.
    fn opened(shards: &[&[ImageExample]]) -> Vec<(i64, [u32; 2])> {
        let folder = tempfile::tempdir().unwrap();
        let write = |(number, records): (usize, &&[ImageExample])| {
            let path = folder.path().join(number.to_string());
            let mut shard = ShardWriter::create(path.clone()).unwrap();
            records.iter().for_each(|record| shard.add(&record.clone().encode("jpeg", String::new())).unwrap());
            shard.finish().unwrap();
            path
        };
        let paths: Vec<PathBuf> = shards.iter().enumerate().map(write).collect();
        let listed = open_records(&paths, None, &CategoryIds::Raw.into(), false, 1).unwrap();
        let ImageStore::Records { places, .. } = listed.store else { panic!("they are records") };
        listed.images.iter().map(|image| image.id).zip(places).collect()
    }

    #[test]
    fn records_without_an_id_get_one_from_their_file() {
        // sha256sum of `a` begins with ca978112ca1bbdca, that of `b` with 3e23e8160039594a.
        let ids = [0xca97_8112_ca1b_bdca_u64, 0x3e23_e816_0039_594a].map(|hash| (hash % 0x7fff_ffff) as i64 + 1);
        let of = |name: &[u8]| example(None, name);
        let mut expected = vec![(ids[0], [0, 0]), (ids[1], [0, 1]), (7, [1, 0])];
        expected.sort_unstable();
        assert_eq!(opened(&[&[of(b"a"), of(b"b")], &[example(Some(7), b"c")]]), expected);
        assert_eq!(opened(&[&[of(b"b")]])[0].0, ids[1], "whatever else there is");

        let twice = opened(&[&[of(b"a"), of(b"a")], &[example(Some(ids[0] + 1), b"c")]]);
        assert_eq!(twice, [(ids[0], [0, 0]), (ids[0] + 1, [1, 0]), (ids[0] + 2, [0, 1])]);
    }

    #[test]
    fn made_ids_wrap_around() {
        let scanned = |id, made| Scanned { place: [0, 0], id: made, example: example(id, &[]) };
        let mut all = [scanned(Some(IDS), IDS), scanned(None, IDS), scanned(None, IDS)];
        separate_made_ids(&mut all);
        assert_eq!(all.map(|image| image.id), [IDS, 1, 2]);
    }
}
