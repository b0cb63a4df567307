//! TFRecord shards of a COCO data set.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::{ExtendedColorType, ImageEncoder};
use sha2::{Digest, Sha256};

use super::record::{ExampleObject, ImageExample};
use super::set::{NoArea, within};
use super::source::annotations_of;
use super::store::{file_names, file_sizes};
use super::{Annotation, ImageRecord, Instances};
use crate::decode::{read_info, read_whole};
use crate::new_folder::{Unfinished, create};
use crate::parallel::try_map;
use crate::record_shards::{MOST_SHARDS, ShardWriter, shard_name, shards_of};
use crate::{DataError, Split, hex};

/// Shards to write: `SPLIT-NNNNN-of-NNNNN.tfrecord`, and a copy of the annotations as `annotations/instances_SPLIT.json`.
///
/// Record `i` of the images by ascending id is in shard `i mod shards`. Boxes are cut off at the borders of the image, and
/// objects whose boxes have no area there are left out; crowds are kept, and marked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CocoRecords {
    /// `instances_*.json`
    pub annotations: PathBuf,
    /// Folder of the images.
    pub images: PathBuf,
    /// Folder to write to. It may hold shards of other splits.
    pub out: PathBuf,
    /// The split that is written.
    pub split: Split,
    /// Number of files that it is cut into.
    pub shards: usize,
    /// Whether masks are written, a PNG of the size of the image for each object.
    pub masks: bool,
    /// Threads that encode.
    pub threads: usize,
}

/// What was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WrittenRecords {
    /// Images written.
    pub images: usize,
    /// With crowds.
    pub objects: usize,
    /// Crowds among them.
    pub crowds: usize,
    /// Boxes without area, which were left out.
    pub without_area: usize,
    /// Bytes of all shards together.
    pub bytes: u64,
}

impl CocoRecords {
    /// Writes the shards. What fails or is stopped leaves nothing behind.
    ///
    /// `progress` is reported images done and images in all from any of the threads; `stop` is asked before each image.
    ///
    /// # Errors
    /// A setting outside its range; annotations that cannot be read; an image that is missing, no JPEG or PNG, or of another size than
    /// stated; with masks, an object whose mask is missing or damaged; a folder that has the split already.
    pub fn write(
        &self,
        progress: &(dyn Fn(usize, usize) + Sync),
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<WrittenRecords, DataError> {
        let instances = Instances::open(&self.annotations)?;
        let names = file_names(&instances)?;
        file_sizes(&self.images, &names, &instances, self.threads)?;
        let most = names.len().min(MOST_SHARDS);
        if !(1..=most).contains(&self.shards) {
            return Err(DataError::option(
                "shards",
                self.shards,
                format!("1 to {most}, as there are {} images", names.len()),
            ));
        }
        self.require_new()?;
        let partial = self.out.join(format!(".{}.partial", self.split.name()));
        if partial.exists() {
            fs::remove_dir_all(&partial).map_err(DataError::writing(&partial, "remove the folder"))?;
        }
        let unfinished = Unfinished::begin(&partial);
        create(&partial)?;
        let mut of_image = vec![Vec::new(); names.len()];
        for (index, annotation) in instances.annotations().iter().enumerate() {
            of_image[annotation.image].push(index);
        }
        let done = AtomicUsize::new(0);
        let write_shard = |shard: usize| {
            let path = partial.join(shard_name(self.split.name(), shard, self.shards));
            let mut file = ShardWriter::create(path)?;
            let mut counts = WrittenRecords::default();
            for image in (shard..names.len()).step_by(self.shards) {
                if stop() {
                    return Err(DataError::Stopped { path: self.out.clone() });
                }
                self.add_image(&mut file, &mut counts, &instances, image, &names[image], &of_image[image])?;
                progress(done.fetch_add(1, Ordering::Relaxed) + 1, names.len());
            }
            Ok(WrittenRecords { bytes: file.finish()?, ..counts })
        };
        let shards = try_map(self.shards, self.threads, write_shard)?;
        self.move_into_place(&partial)?;
        unfinished.keep();
        let add = |sum: WrittenRecords, shard: WrittenRecords| WrittenRecords {
            images: sum.images + shard.images,
            objects: sum.objects + shard.objects,
            crowds: sum.crowds + shard.crowds,
            without_area: sum.without_area + shard.without_area,
            bytes: sum.bytes + shard.bytes,
        };
        Ok(shards.into_iter().fold(WrittenRecords::default(), add))
    }

    /// Refuses a folder that has something of the split.
    fn require_new(&self) -> Result<(), DataError> {
        if !self.out.exists() {
            return Ok(());
        }
        let shards = shards_of(&self.out, self.split.name())?;
        let found = shards.into_iter().next().or(annotations_of(&self.out, self.split)?);
        match found {
            None => Ok(()),
            Some(path) => {
                let expected = format!("a folder without shards and annotations of {}", self.split.name());
                Err(DataError::layout(&path, "is there already", expected))
            }
        }
    }

    fn add_image(
        &self,
        shard: &mut ShardWriter,
        counts: &mut WrittenRecords,
        instances: &Instances,
        image: usize,
        name: &str,
        annotations: &[usize],
    ) -> Result<(), DataError> {
        let ImageRecord { id, width, height, .. } = instances.images()[image];
        let path = self.images.join(name);
        let mut encoded = Vec::new();
        read_whole(&path, &mut encoded)?;
        let info = read_info(&encoded).map_err(|source| DataError::Image { path: path.clone(), source })?;
        if (info.width, info.height) != (width, height) {
            let problem =
                format!("the image is {}x{}, and its annotations are for {width}x{height}", info.width, info.height);
            return Err(DataError::layout(&path, problem, "an image of the size that the annotations state"));
        }
        let mut objects = Vec::with_capacity(annotations.len());
        for &annotation in annotations {
            let Annotation { bbox: [x, y, w, h], category, is_crowd, area, .. } = instances.annotations()[annotation];
            match within([x, y, x + w, y + h], [height, width]) {
                Err(NoArea) => counts.without_area += 1,
                Ok(bbox) => {
                    let category = &instances.categories()[category];
                    let mask = if self.masks { mask_png(instances, annotation)? } else { Vec::new() };
                    let (category_id, category) = (category.id, category.name.clone());
                    objects.push(ExampleObject { bbox, category_id, category, is_crowd, area, mask });
                }
            }
        }
        counts.objects += objects.len();
        counts.crowds += objects.iter().filter(|object| object.is_crowd).count();
        counts.images += 1;
        let sha256 = hex(&Sha256::digest(&encoded));
        let format = info.format.name();
        let (file_name, has_masks) = (name.to_owned(), self.masks);
        let example = ImageExample { id: Some(id), size: [height, width], file_name, encoded, objects, has_masks };
        shard.add(&example.encode(format, sha256))
    }

    /// Moves what is complete out of its folder. If one file cannot be moved, none is.
    fn move_into_place(&self, partial: &Path) -> Result<(), DataError> {
        let folder = self.out.join("annotations");
        let created = Unfinished::begin(&folder);
        let had_folder = folder.exists();
        create(&folder)?;
        let copy = folder.join(format!("instances_{}.json", self.split.name()));
        let mut moved = Vec::new();
        let mut all = || {
            moved.push(copy.clone());
            fs::copy(&self.annotations, &copy).map_err(DataError::writing(&copy, "write the file"))?;
            for shard in 0..self.shards {
                let name = shard_name(self.split.name(), shard, self.shards);
                let path = self.out.join(&name);
                fs::rename(partial.join(name), &path).map_err(DataError::writing(&path, "rename the file to"))?;
                moved.push(path);
            }
            fs::remove_dir(partial).map_err(DataError::writing(partial, "remove the folder"))
        };
        let result = all();
        if result.is_err() {
            // The first error is the one to tell.
            moved.iter().for_each(|path| drop(fs::remove_file(path)));
        }
        if result.is_ok() || had_folder {
            created.keep();
        }
        result
    }
}

/// The mask of an annotation as an 8-bit grey PNG of 0 and 1.
fn mask_png(instances: &Instances, annotation: usize) -> Result<Vec<u8>, DataError> {
    let mask = instances.mask(annotation)?;
    let mut png = Vec::new();
    PngEncoder::new_with_quality(&mut png, CompressionType::Fast, FilterType::NoFilter)
        .write_image(&mask.decode(), mask.width(), mask.height(), ExtendedColorType::L8)
        .map_err(|error| {
            let source = std::io::Error::other(error);
            DataError::Write { path: instances.path().to_owned(), action: "encode a mask of", source }
        })?;
    Ok(png)
}
