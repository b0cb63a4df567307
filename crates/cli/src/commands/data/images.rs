//! Labelled pictures in TFRecord shards and in files of pixels: making and checking them.

use super::{VerifyFolder, splits_table};
use crate::args::{Common, at_least_one};
use crate::failure::Usage;
use crate::output::{print, print_json};
use anyhow::bail;
use bessemer_data::{BinaryOfFolder, Exif, LabelledReport, RecordsOfFolder, readable_class, verify_labelled};
use bessemer_train::StopSignal;
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Instant;

const PREPARE_EXAMPLES: &str = "\
EXAMPLES:
  bessemer data prepare imagenet imagenet/ --out imagenet-records/
  bessemer data prepare imagenet flowers/ --out flower-records/ --shards 16 --val-shards 4";

/// Write pictures in folders of classes to TFRecord shards, in the layout of TensorFlow's ImageNet scripts
///
/// Writes train-NNNNN-of-NNNNN.tfrecord, validation-NNNNN-of-NNNNN.tfrecord and classes.txt, in a random order of pictures. `train` and
/// `eval` read such a folder as they read folders of classes. JPEG files are written as they are; other formats, and JPEG files in CMYK,
/// become RGB JPEG files. A preparation that fails, or is interrupted (Ctrl-C), leaves nothing behind.
#[derive(Debug, Args)]
#[command(after_help = PREPARE_EXAMPLES)]
pub(crate) struct Prepare {
    /// Folder with train/CLASS/*.jpg and val/CLASS/*.jpg
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Folder to write, which must be new or empty
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub out: PathBuf,
    /// Files to train on [default: one for each 1,251 pictures]
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true, help_heading = "Output")]
    pub shards: Option<usize>,
    /// Files to evaluate on [default: one for each 390 pictures]
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true, help_heading = "Output")]
    pub val_shards: Option<usize>,
}

const BINARY_EXAMPLES: &str = "\
EXAMPLES:
  bessemer data prepare binary flowers/ --out flowers-32/
  bessemer data prepare binary photos/ --out photos-64/ --size 64 --exif apply";

/// Write pictures in folders of classes to files of pixels of one size, which are read without decoding
///
/// Writes train.bin, val.bin and classes.txt: a header, and a label, a checksum and the pixels of each picture (docs/data-sets.md has the
/// bytes). The short side of each picture is resized, and the centre cut out. `train` and `eval` read such a folder as they read folders of
/// classes. A preparation that fails, or is interrupted (Ctrl-C), leaves nothing behind.
#[derive(Debug, Args)]
#[command(after_help = BINARY_EXAMPLES)]
pub(crate) struct PrepareBinary {
    /// Folder with train/CLASS/*.jpg and val/CLASS/*.jpg
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Folder to write, which must be new or empty
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub out: PathBuf,
    /// Height and width of each picture, pixels
    #[arg(long, value_name = "N", default_value = "32", help_heading = "Output")]
    pub size: u32,
    /// What is done with the EXIF orientation of JPEG pictures: apply (they are turned as it says) or ignore
    #[arg(long, value_name = "apply|ignore", default_value_t = Exif::Ignore, help_heading = "Output")]
    pub exif: Exif,
}

pub(super) fn run_prepare_binary(options: &PrepareBinary, common: &Common) -> anyhow::Result<()> {
    let start = Instant::now();
    let set = BinaryOfFolder {
        folder: options.folder.clone(),
        out: options.out.clone(),
        size: options.size,
        exif: options.exif,
        threads: common.device().threads,
    };
    let notify = common.notifier();
    let stop = StopSignal::from_system(None)?;
    let progress = |done: usize, all: usize| notify(&|| format!("{done} of {all} pictures"));
    let mut text = String::new();
    for written in set.write(&progress, &|| stop.is_raised())? {
        text += &format!(
            "{}: {} pictures of {}, {:.1} MB\n",
            options.out.display(),
            written.images,
            written.split.name(),
            written.bytes as f64 / 1e6,
        );
    }
    print(&format!("{text}done in {:.1} s\n", start.elapsed().as_secs_f64()))
}

/// Reads what `train` reads of ImageNet and of sets like it.
pub(super) fn run_verify(options: &VerifyFolder, common: &Common) -> anyhow::Result<()> {
    let notify = common.notifier();
    let progress = |done: usize, all: usize| notify(&|| format!("{done} of {all} pictures"));
    let report = verify_labelled(&options.folder, common.device().threads, &progress)?;
    if options.json {
        print_json(&report)?;
    } else {
        print(&report_text(&options.folder, &report))?;
    }
    match report.damaged().count() {
        0 => Ok(()),
        count => {
            let folder = options.folder.display();
            bail!(Usage(format!("{folder}: {count} files or records cannot be read; they are listed above")))
        }
    }
}

/// How many classes are listed at each end.
const CLASSES_LISTED: usize = 3;

fn report_text(folder: &Path, report: &LabelledReport) -> String {
    let mut text = format!("{}: {}\n{}", folder.display(), report.layout.title(), splits_table(report.splits()));
    for (split, found) in report.splits() {
        let mut classes: Vec<_> = found.classes.iter().filter(|(_, count)| *count > 0).collect();
        classes.sort_by(|(a, most), (b, other)| other.cmp(most).then_with(|| a.cmp(b)));
        let list = |classes: &mut dyn Iterator<Item = &&(String, usize)>| {
            let listed = classes.take(CLASSES_LISTED);
            listed.map(|(name, count)| format!("{} {count}", readable_class(name))).collect::<Vec<_>>().join(", ")
        };
        let (most, fewest) = (list(&mut classes.iter()), list(&mut classes.iter().rev()));
        text += &format!(
            "{}: pictures in {} classes; the most: {most}; the fewest: {fewest}\n",
            split.name(),
            classes.len()
        );
    }
    report.damaged().for_each(|damaged| text += &format!("{}\n", damaged.reason));
    text
}

pub(super) fn run_prepare(options: &Prepare, common: &Common) -> anyhow::Result<()> {
    let start = Instant::now();
    let records = RecordsOfFolder {
        folder: options.folder.clone(),
        out: options.out.clone(),
        train_shards: options.shards,
        val_shards: options.val_shards,
        seed: common.seed(),
        threads: common.device().threads,
    };
    let notify = common.notifier();
    let stop = StopSignal::from_system(None)?;
    let progress = |done: usize, all: usize| notify(&|| format!("{done} of {all} pictures"));
    let splits = records.write(&progress, &|| stop.is_raised())?;
    let mut text = String::new();
    for written in splits {
        let converted = match written.converted {
            0 => String::new(),
            some => format!(", {some} of them converted to RGB JPEG"),
        };
        text += &format!(
            "{}: {} pictures of {}{converted}, {:.1} MB in {} shards\n",
            options.out.display(),
            written.images,
            written.split.name(),
            written.bytes as f64 / 1e6,
            written.shards,
        );
    }
    print(&format!("{text}done in {:.1} s\n", start.elapsed().as_secs_f64()))
}
