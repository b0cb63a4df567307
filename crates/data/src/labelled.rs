//! Labelled pictures in whatever layout a folder has.

use std::path::Path;
use std::sync::Arc;

use crate::{BinaryImages, ClassFolder, DataError, Exif, ImageRecords, LabelledImages, Split, Transform};

/// One split of a folder: TFRecord shards, files of pixels, or else folders of classes. Pictures in files are turned as `exif` asks.
///
/// # Errors
/// Those of the layout that is found.
pub fn open_labelled(
    root: &Path,
    split: Split,
    transform: Transform,
    exif: Exif,
) -> Result<Arc<LabelledImages>, DataError> {
    if let Some(records) = ImageRecords::find(root, split, transform)? {
        return Ok(Arc::new(records.oriented(exif)));
    }
    if let Some(images) = BinaryImages::find(root, split, transform)? {
        return Ok(Arc::new(images));
    }
    Ok(Arc::new(ClassFolder::open(root, split, transform)?.oriented(exif)))
}
