//! Checks of labelled pictures in any layout.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

use super::records::{ImageRecords, name_of};
use crate::binary::BinaryImages;
use crate::listing::Listing;
use crate::parallel::map_with;
use crate::record_shards::shards_of;
use crate::tfrecord::RecordFile;
use crate::verify::{decode_all, split_report};
use crate::{DamagedFile, DataError, Dataset, ResizeCentreCrop, Scratch, Split, SplitReport, Transform};

/// How labelled pictures lie in a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageLayout {
    /// A file for each picture, in folders of classes.
    Folders,
    /// TFRecord shards.
    Records,
    /// A file of pixels for each split.
    Binary,
}

impl ImageLayout {
    /// That of a folder: folders of classes, where it has neither shards nor files of pixels.
    ///
    /// # Errors
    /// A folder that cannot be listed; a shard that is missing among others.
    pub fn of_folder(root: &Path) -> Result<Self, DataError> {
        for split in [Split::Train, Split::Val] {
            if let Some(found) = Pictures::find(root, split)? {
                return Ok(found.layout());
            }
        }
        Ok(Self::Folders)
    }

    /// What people call it.
    pub fn title(self) -> &'static str {
        match self {
            Self::Folders => "folders of classes",
            Self::Records => "TFRecord shards",
            Self::Binary => "files of pixels",
        }
    }
}

/// What [`verify_labelled`] found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LabelledReport {
    /// How the pictures lie there.
    pub layout: ImageLayout,
    /// What was found in the training split, if there is one.
    pub train: Option<SplitReport>,
    /// What was found in the evaluation split, if there is one.
    pub val: Option<SplitReport>,
}

impl LabelledReport {
    /// The splits that are there.
    pub fn splits(&self) -> impl Iterator<Item = (Split, &SplitReport)> {
        let splits = [(Split::Train, &self.train), (Split::Val, &self.val)];
        splits.into_iter().filter_map(|(split, report)| Some((split, report.as_ref()?)))
    }

    /// Files and records that cannot be used.
    pub fn damaged(&self) -> impl Iterator<Item = &DamagedFile> {
        self.splits().flat_map(|(_, report)| &report.damaged)
    }
}

/// Samples are checked, not made.
const UNUSED: Transform = Transform::Eval(ResizeCentreCrop::antialiased(1, 1));

/// Reads every picture of a folder on `workers` threads: of TFRecord shards, files of pixels, or else folders of classes. One of the two
/// splits may be missing; classes alone are taken for the evaluation split.
///
/// `progress` is called with the pictures done and the pictures in all, from any of the threads. Damaged files and records are reported,
/// not returned as errors.
///
/// # Errors
/// A folder in none of the layouts; a shard that is missing among others.
pub fn verify_labelled(
    root: &Path,
    workers: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<LabelledReport, DataError> {
    let [train, val] = [Split::Train, Split::Val].map(|split| Pictures::find(root, split));
    let (mut train, mut val) = (train?, val?);
    if train.is_none() && val.is_none() {
        if root.join(Split::Train.name()).is_dir() {
            train = Some(Pictures::Folders(Listing::open(root, Split::Train)?));
        }
        val = Some(Pictures::Folders(Listing::to_evaluate(root)?));
    }
    let all = train.iter().chain(&val).map(Pictures::len).sum();
    let done = AtomicUsize::new(0);
    let advance = || progress(done.fetch_add(1, Ordering::Relaxed) + 1, all);
    let layout = train.iter().chain(&val).map(Pictures::layout).next().expect("one of them is there");
    let check = |pictures: Pictures| pictures.check(workers, &advance);
    Ok(LabelledReport { layout, train: train.map(check), val: val.map(check) })
}

/// The pictures of a split.
enum Pictures {
    Folders(Listing),
    /// With the shards whose records cannot be found.
    Records(ImageRecords, Vec<DamagedFile>),
    Binary(BinaryImages),
    /// A file of pixels that cannot be opened.
    Unreadable(DamagedFile),
}

impl Pictures {
    /// Shards or a file of pixels; `None` where there are none.
    fn find(root: &Path, split: Split) -> Result<Option<Self>, DataError> {
        let paths = if root.is_dir() { shards_of(root, name_of(split))? } else { Vec::new() };
        if !paths.is_empty() {
            let (mut shards, mut damaged) = (Vec::new(), Vec::new());
            for path in paths {
                match RecordFile::open(&path) {
                    Ok(shard) => shards.push(shard),
                    Err(error) => damaged.push(DamagedFile { path, reason: error.to_string() }),
                }
            }
            return Ok(Some(Self::Records(ImageRecords::of_shards(root, shards, split, UNUSED)?, damaged)));
        }
        let path = root.join(format!("{}.bin", split.name()));
        if !path.is_file() {
            return Ok(None);
        }
        Ok(match BinaryImages::find(root, split, UNUSED) {
            Ok(found) => found.map(Self::Binary),
            Err(error) => Some(Self::Unreadable(DamagedFile { path, reason: error.to_string() })),
        })
    }

    fn len(&self) -> usize {
        match self {
            Self::Folders(listing) => listing.len(),
            Self::Records(records, _) => records.len(),
            Self::Binary(images) => images.len(),
            Self::Unreadable(_) => 0,
        }
    }

    fn layout(&self) -> ImageLayout {
        match self {
            Self::Folders(_) => ImageLayout::Folders,
            Self::Records(..) => ImageLayout::Records,
            Self::Binary(_) | Self::Unreadable(_) => ImageLayout::Binary,
        }
    }

    fn check(self, workers: usize, advance: &(dyn Fn() + Sync)) -> SplitReport {
        match self {
            Self::Folders(listing) => split_report(&listing, decode_all(&listing, workers, advance)),
            Self::Records(records, damaged) => {
                let check = |scratch: &mut Scratch, index| {
                    let outcome = records.check(index, scratch);
                    advance();
                    outcome
                };
                let mut report = SplitReport::new(records.class_names());
                report.damaged = damaged;
                for (index, outcome) in
                    map_with(records.len(), workers, Scratch::default, check).into_iter().enumerate()
                {
                    match outcome {
                        Ok((label, info)) => report.add_image(label, &info),
                        Err(error) => report.add_damaged(records.shard_path(index), &error),
                    }
                }
                report
            }
            Self::Binary(images) => {
                let check = |record: &mut Vec<u8>, index| {
                    let outcome = images.read(index, record);
                    advance();
                    outcome
                };
                let mut report = SplitReport::new(images.class_names());
                let mut checksums = Vec::with_capacity(images.len());
                let [height, width] = images.stored_size();
                for outcome in map_with(images.len(), workers, Vec::new, check) {
                    match outcome {
                        Ok((label, checksum)) => {
                            checksums.push(checksum);
                            report.add(label, (width, height));
                        }
                        Err(error) => report.add_damaged(images.path(), &error),
                    }
                }
                if report.damaged.is_empty() && !images.has_content(&checksums) {
                    let expected = "records as they were written together";
                    let problem = "the records do not fit their common checksum in the header";
                    report.add_damaged(images.path(), &DataError::layout(images.path(), problem, expected));
                }
                report
            }
            Self::Unreadable(file) => {
                let mut report = SplitReport::new(&[]);
                report.damaged.push(file);
                report
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::ShapesFolder;
    use crate::{BinaryOfFolder, Exif, FileFormat, RecordsOfFolder};
    use std::fs;
    use std::path::PathBuf;

    /// The same pictures in each layout: folders of classes, shards, files of pixels.
    fn layouts() -> (tempfile::TempDir, [PathBuf; 3]) {
        let root = tempfile::tempdir().unwrap();
        let paths = ["folder", "records", "binary"].map(|name| root.path().join(name));
        let [folder, records, binary] = paths.clone();
        ShapesFolder { seed: 1, train: 24, val: 20, size: 32, format: FileFormat::Jpeg(90) }.write(&folder).unwrap();
        let shards = RecordsOfFolder {
            folder: folder.clone(),
            out: records,
            train_shards: Some(3),
            val_shards: None,
            seed: 5,
            threads: 2,
        };
        shards.write(&|_, _| {}, &|| false).unwrap();
        let pixels = BinaryOfFolder { folder, out: binary, size: 32, exif: Exif::Ignore, threads: 2 };
        pixels.write(&|_, _| {}, &|| false).unwrap();
        (root, paths)
    }

    fn verified(root: &Path) -> LabelledReport {
        let seen = AtomicUsize::new(0);
        let report = verify_labelled(root, 2, &|_, all| {
            seen.fetch_add(1, Ordering::Relaxed);
            assert!(all >= seen.load(Ordering::Relaxed));
        });
        report.unwrap()
    }

    #[test]
    fn each_layout_has_the_same_counts() {
        let (_root, [folder, records, binary]) = layouts();
        let of_folder = verified(&folder);
        let layouts = [ImageLayout::Folders, ImageLayout::Records, ImageLayout::Binary];
        for (root, layout) in [&folder, &records, &binary].into_iter().zip(layouts) {
            let report = verified(root);
            assert_eq!((report.layout, report.damaged().count()), (layout, 0));
            for ((_, found), (_, expected)) in report.splits().zip(of_folder.splits()) {
                assert_eq!((&found.classes, found.readable), (&expected.classes, expected.readable));
                assert_eq!((found.smallest, found.largest), (Some((32, 32)), Some((32, 32))));
            }
            assert_eq!(report.splits().count(), 2);
        }
        fs::remove_dir_all(folder.join("train")).unwrap();
        assert!(verified(&folder).train.is_none());
        fs::remove_file(records.join("validation-00000-of-00001.tfrecord")).unwrap();
        assert_eq!(verified(&records).splits().map(|(split, _)| split).collect::<Vec<_>>(), [Split::Train]);
        let error = verify_labelled(&folder.join("nowhere"), 1, &|_, _| {}).unwrap_err().to_string();
        assert!(error.contains("nowhere: no such folder"), "{error}");
    }

    #[test]
    fn damaged_records_are_named_by_shard_and_number() {
        let (_root, [_, records, binary]) = layouts();
        let flip = |path: &Path, at: usize| {
            let mut bytes = fs::read(path).unwrap();
            bytes[at] ^= 1;
            fs::write(path, bytes).unwrap();
        };
        flip(&records.join("train-00000-of-00003.tfrecord"), 100);
        flip(&records.join("train-00002-of-00003.tfrecord"), 8);
        let report = verified(&records);
        let reasons: Vec<&str> = report.damaged().map(|file| &file.reason[..]).collect();
        assert_eq!(reasons.len(), 2, "{reasons:?}");
        assert!(reasons[0].contains("train-00002-of-00003.tfrecord: record 1 at byte 0: the length"), "{reasons:?}");
        assert!(reasons[1].contains("train-00000-of-00003.tfrecord: record 1 at byte 0: the payload"), "{reasons:?}");
        let train = report.train.as_ref().unwrap();
        assert_eq!((train.readable, train.damaged.len()), (15, 2), "7 other records of the shard, 8 of another one");

        flip(&binary.join("val.bin"), 48 + 8 + 7);
        flip(&binary.join("train.bin"), 20);
        let report = verified(&binary);
        let reasons: Vec<&str> = report.damaged().map(|file| &file.reason[..]).collect();
        assert!(reasons[0].contains("train.bin: the header does not fit"), "{reasons:?}");
        assert!(reasons[1].contains("val.bin: record 1 at byte 48: the record does not fit"), "{reasons:?}");
        assert_eq!((reasons.len(), report.val.as_ref().unwrap().readable), (2, 19));
    }
}
