//! Where a COCO data set lies: a JSON file with a folder of images, or TFRecord shards.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::record_shards::{entries, shards_of};
use crate::{DataError, Split};

const LAYOUT: &str = "annotations/instances_SPLIT2017.json with SPLIT2017/*.jpg, or SPLIT-NNNNN-of-NNNNN.tfrecord";

/// The files of one split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CocoSource {
    /// Annotations and images.
    Files {
        /// `instances_*.json`
        annotations: PathBuf,
        /// Folder of the images.
        images: PathBuf,
    },
    /// Images without annotations.
    Unannotated {
        /// `image_info_*.json`
        image_info: PathBuf,
        /// Folder of the images.
        images: PathBuf,
    },
    /// TFRecord shards in the layout of TensorFlow's detection models.
    Records {
        /// Every shard, in order.
        shards: Vec<PathBuf>,
        /// `annotations/instances_*.json` beside them, which lists all categories.
        annotations: Option<PathBuf>,
    },
}

impl CocoSource {
    /// Finds a split in a folder: COCO's own layout (`annotations/instances_train2017.json`, `train2017/`), or shards
    /// (`train-00000-of-00256.tfrecord`).
    ///
    /// # Errors
    /// A folder that has neither, several files of annotations, or lacks a shard or the folder of images.
    pub fn find(folder: &Path, split: Split) -> Result<Self, DataError> {
        check_folder(folder, LAYOUT)?;
        let shards = shards_of(folder, split.name())?;
        let annotations = annotations_of(folder, split)?;
        if !shards.is_empty() {
            return Ok(Self::Records { shards, annotations });
        }
        let Some(annotations) = annotations else {
            let problem = format!("neither annotations nor shards of {} in it", split.name());
            return Err(DataError::layout(folder, problem, LAYOUT));
        };
        let stem = annotations.file_stem().and_then(OsStr::to_str).unwrap_or_default();
        let name = stem.trim_start_matches("instances_");
        let images = image_folder(folder, [name, split.name()], &annotations)?;
        Ok(Self::Files { annotations, images })
    }

    /// The halves of a data set that are in a folder: those with shards, and those with annotations and images; with annotations alone,
    /// where there is no other.
    ///
    /// # Errors
    /// A folder that has neither, lacks a shard, or has several files of annotations of one half.
    pub fn splits(folder: &Path) -> Result<Vec<Split>, DataError> {
        check_folder(folder, LAYOUT)?;
        let (mut whole, mut annotated) = (Vec::new(), Vec::new());
        for split in [Split::Train, Split::Val] {
            let has_shards = !shards_of(folder, split.name())?.is_empty();
            if has_shards || annotations_of(folder, split)?.is_some() {
                annotated.push(split);
                if has_shards || Self::find(folder, split).is_ok() {
                    whole.push(split);
                }
            }
        }
        match (whole.is_empty(), annotated.is_empty()) {
            (false, _) => Ok(whole),
            (true, false) => Ok(annotated),
            (true, true) => Err(DataError::layout(folder, "neither annotations nor shards in it", LAYOUT)),
        }
    }

    /// Finds images without annotations in a folder: `annotations/image_info_NAME.json`, and `NAME/`. Those of `test-dev2017` may be
    /// in `test2017/`, as COCO has them.
    ///
    /// # Errors
    /// A folder that lacks one of them.
    pub fn find_unannotated(folder: &Path, name: &str) -> Result<Self, DataError> {
        check_folder(folder, "annotations/image_info_NAME.json with NAME/*.jpg")?;
        let image_info = folder.join(format!("annotations/image_info_{name}.json"));
        if !image_info.is_file() {
            return Err(DataError::layout(&image_info, "no such file", "COCO's list of the images of that name"));
        }
        let images = image_folder(folder, [name, &name.replace("-dev", "")], &image_info)?;
        Ok(Self::Unannotated { image_info, images })
    }

    /// The file that errors about the whole set name.
    pub fn path(&self) -> &Path {
        match self {
            Self::Files { annotations, .. } => annotations,
            Self::Unannotated { image_info, .. } => image_info,
            Self::Records { shards, .. } => shards.first().map_or(Path::new("."), PathBuf::as_path),
        }
    }
}

fn check_folder(folder: &Path, layout: &str) -> Result<(), DataError> {
    if folder.is_dir() {
        return Ok(());
    }
    let problem = if folder.exists() { "is not a folder" } else { "no such folder" };
    Err(DataError::layout(folder, problem, format!("a data set laid out as {layout}")))
}

/// The first of two folders that is there, with the images that a file lists.
fn image_folder(root: &Path, names: [&str; 2], list: &Path) -> Result<PathBuf, DataError> {
    let [first, second] = names.map(|name| root.join(name));
    match first.is_dir() {
        true => Ok(first),
        false if second.is_dir() => Ok(second),
        false => Err(DataError::layout(&first, "no such folder", format!("the images of {}", list.display()))),
    }
}

/// `annotations/instances_SPLIT*.json`
pub(super) fn annotations_of(folder: &Path, split: Split) -> Result<Option<PathBuf>, DataError> {
    let folder = folder.join("annotations");
    if !folder.is_dir() {
        return Ok(None);
    }
    let prefix = format!("instances_{}", split.name());
    let is_of_split = |path: &PathBuf| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        name.starts_with(&prefix) && name.ends_with(".json")
    };
    let mut found: Vec<PathBuf> = entries(&folder)?.into_iter().filter(is_of_split).collect();
    found.sort();
    match found.get(1) {
        None => Ok(found.pop()),
        Some(second) => {
            let problem = format!("several files of annotations: {} and this", found[0].display());
            Err(DataError::layout(second, problem, format!("one file {prefix}*.json; name it otherwise")))
        }
    }
}
