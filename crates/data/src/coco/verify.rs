//! Checks of a whole COCO data set.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

use super::categories::category_notes;
use super::{CategoryIds, CocoOptions, CocoSet, CocoSource, CocoSummary};
use crate::detection::Framing;
use crate::parallel::map_with;
use crate::{ColourMode, DataError, Dataset, Exif, ImageFormat, Scratch};

/// What [`verify`] found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CocoReport {
    /// Counts of images, objects and crowds.
    pub summary: CocoSummary,
    /// Names of classes that have objects, with their number, the most frequent first.
    pub classes: Vec<(String, usize)>,
    /// Categories in all.
    pub categories: usize,
    /// Images with more objects than a batch has room for.
    pub images_beyond_capacity: usize,
    /// Images that could be decoded.
    pub readable: usize,
    /// Number of images by file format.
    pub formats: BTreeMap<ImageFormat, usize>,
    /// Number of images by colour mode.
    pub modes: BTreeMap<ColourMode, usize>,
    /// Width and height of the readable images with the fewest and the most pixels.
    pub smallest: Option<(u32, u32)>,
    /// That of the image with the most pixels.
    pub largest: Option<(u32, u32)>,
    /// What a person should know of the categories.
    pub notes: Vec<String>,
    /// Damaged images and masks, by image; each begins with the file.
    pub damaged: Vec<String>,
}

impl CocoReport {
    /// Whether every image and mask can be used.
    pub fn is_clean(&self) -> bool {
        self.damaged.is_empty()
    }
}

/// Decodes every image and mask of one split on `threads` threads.
///
/// `progress` is reported images done and images in all from any of the threads. Damaged images and masks are reported, not
/// returned as errors.
///
/// # Errors
/// Those of [`CocoSet::open`].
pub fn verify(
    source: &CocoSource,
    max_objects: usize,
    exif: Exif,
    threads: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<CocoReport, DataError> {
    let masks = matches!(source, CocoSource::Files { .. });
    // Ranks number classes of any ids, but records alone do not list all categories.
    let category_ids = match source {
        CocoSource::Records { annotations: None, .. } => CategoryIds::Raw,
        _ => CategoryIds::Dense,
    };
    let numbering = category_ids.into();
    let options = CocoOptions { framing: Framing::fit([1, 1]), numbering, masks, exif, threads };
    let set = CocoSet::open(source, &options)?;
    let done = AtomicUsize::new(0);
    let check = |scratch: &mut Scratch, index: usize| {
        let outcome = set.check(index, scratch);
        progress(done.fetch_add(1, Ordering::Relaxed) + 1, set.len());
        outcome
    };
    let outcomes = map_with(set.len(), threads, Scratch::default, check);
    let summary = set.summary().clone();
    let counts = set.class_names().iter().cloned().zip(summary.objects_of_class.iter().copied());
    let mut classes: Vec<(String, usize)> = counts.filter(|(_, count)| *count > 0).collect();
    classes.sort_by(|(a, most), (b, other)| other.cmp(most).then_with(|| a.cmp(b)));
    let named = (0..).zip(set.class_names());
    let categories = named.filter_map(|(class, name)| Some((set.classes().category_id(class)?, name.as_str())));
    let mut report = CocoReport {
        notes: category_notes(categories),
        classes,
        categories: set.classes().categories(),
        images_beyond_capacity: set.images_with_more_than(max_objects),
        summary,
        readable: 0,
        formats: BTreeMap::new(),
        modes: BTreeMap::new(),
        smallest: None,
        largest: None,
        damaged: Vec::new(),
    };
    for outcome in outcomes {
        match outcome {
            Err(error) => report.damaged.push(error.to_string()),
            Ok(info) => {
                report.readable += 1;
                *report.formats.entry(info.format).or_default() += 1;
                *report.modes.entry(info.mode).or_default() += 1;
                let (size, pixels) = ((info.width, info.height), |(w, h): (u32, u32)| u64::from(w) * u64::from(h));
                report.smallest =
                    Some(report.smallest.map_or(size, |least| std::cmp::min_by_key(least, size, |&s| pixels(s))));
                report.largest =
                    Some(report.largest.map_or(size, |most| std::cmp::max_by_key(size, most, |&s| pixels(s))));
            }
        }
    }
    Ok(report)
}
