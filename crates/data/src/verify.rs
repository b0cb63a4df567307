use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

use crate::decode::decode_file;
use crate::listing::Listing;
use crate::parallel::map_with;
use crate::{ColourMode, DataError, ImageFormat, ImageInfo, Split};

/// What [`verify`] found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VerifyReport {
    /// What was found in the training split.
    pub train: SplitReport,
    /// What was found in the evaluation split.
    pub val: SplitReport,
}

/// What one split holds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SplitReport {
    /// Files of each class, damaged ones included, in label order; of records those that can be read.
    pub classes: Vec<(String, usize)>,
    /// Files or records that could be read and decoded.
    pub readable: usize,
    /// Number of images by file format.
    pub formats: BTreeMap<ImageFormat, usize>,
    /// Number of images by colour mode.
    pub modes: BTreeMap<ColourMode, usize>,
    /// Files whose extension names another format than the one they hold; they are read all the same.
    pub misnamed: usize,
    /// Width and height of the readable pictures with the fewest and the most pixels.
    pub smallest: Option<(u32, u32)>,
    /// That of the image with the most pixels.
    pub largest: Option<(u32, u32)>,
    /// Pictures beside folders of classes, which are of no class and are not read.
    pub of_no_class: usize,
    /// In the order of the data set.
    pub damaged: Vec<DamagedFile>,
}

/// A file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DamagedFile {
    /// The file.
    pub path: PathBuf,
    /// Begins with the path.
    pub reason: String,
}

impl VerifyReport {
    /// Whether every file can be read.
    pub fn is_clean(&self) -> bool {
        self.train.damaged.is_empty() && self.val.damaged.is_empty()
    }
}

/// Decodes every file of an ImageNet-like folder on `workers` threads.
///
/// `progress` is called with the files done and the files in all after each file, from any of the threads. Damaged files are reported,
/// not returned as errors; a folder that is not laid out as one is an error.
pub fn verify(
    root: &Path,
    workers: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<VerifyReport, DataError> {
    let (train, val) = (Listing::open(root, Split::Train)?, Listing::open(root, Split::Val)?);
    let total = train.len() + val.len();
    let done = AtomicUsize::new(0);
    let advance = || progress(done.fetch_add(1, Ordering::Relaxed) + 1, total);
    let check = |listing: &Listing| {
        let report = split_report(listing, decode_all(listing, workers, &advance));
        Ok(SplitReport { of_no_class: listing.pictures_of_no_class()?, ..report })
    };
    Ok(VerifyReport { train: check(&train)?, val: check(&val)? })
}

pub(crate) type Outcome = Result<ImageInfo, DataError>;

/// What decoding each file gives.
pub(crate) fn decode_all(listing: &Listing, workers: usize, advance: &(dyn Fn() + Sync)) -> Vec<Outcome> {
    let decode = |(file, pixels): &mut (Vec<u8>, Vec<u8>), index| {
        let outcome = decode_file(&listing.path(index), file, pixels);
        advance();
        outcome
    };
    map_with(listing.len(), workers, Default::default, decode)
}

/// What a split of files holds.
pub(crate) fn split_report(listing: &Listing, outcomes: Vec<Outcome>) -> SplitReport {
    let mut report = SplitReport::new(listing.classes());
    for (index, outcome) in outcomes.into_iter().enumerate() {
        let (label, path) = (listing.label(index), listing.path(index));
        match outcome {
            Ok(info) => {
                report.add_image(label, &info);
                report.misnamed += usize::from(ImageFormat::of_ending(&path) != Some(info.format));
            }
            Err(error) => {
                report.classes[label as usize].1 += 1;
                report.add_damaged(&path, &error);
            }
        }
    }
    report
}

impl SplitReport {
    /// One without pictures.
    pub(crate) fn new(classes: &[String]) -> Self {
        Self {
            classes: classes.iter().map(|name| (name.clone(), 0)).collect(),
            readable: 0,
            formats: BTreeMap::new(),
            modes: BTreeMap::new(),
            misnamed: 0,
            smallest: None,
            largest: None,
            of_no_class: 0,
            damaged: Vec::new(),
        }
    }

    /// Counts a picture that was decoded.
    pub(crate) fn add_image(&mut self, label: u32, info: &ImageInfo) {
        *self.formats.entry(info.format).or_default() += 1;
        *self.modes.entry(info.mode).or_default() += 1;
        self.add(label, (info.width, info.height));
    }

    /// Lists a file, or a record in it, that cannot be used.
    pub(crate) fn add_damaged(&mut self, path: &Path, error: &DataError) {
        self.damaged.push(DamagedFile { path: path.to_owned(), reason: error.to_string() });
    }

    /// Counts a picture of this width and height.
    pub(crate) fn add(&mut self, label: u32, size: (u32, u32)) {
        self.readable += 1;
        self.classes[label as usize].1 += 1;
        let pixels = |(width, height): (u32, u32)| u64::from(width) * u64::from(height);
        if self.smallest.is_none_or(|smallest| pixels(size) < pixels(smallest)) {
            self.smallest = Some(size);
        }
        if self.largest.is_none_or(|largest| pixels(size) > pixels(largest)) {
            self.largest = Some(size);
        }
    }
}
