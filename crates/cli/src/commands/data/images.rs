//! Labelled pictures in TFRecord shards.

use crate::args::{Common, at_least_one};
use crate::output::print;
use bessemer_data::RecordsOfFolder;
use bessemer_train::StopSignal;
use clap::Args;
use std::path::PathBuf;
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
    let stop = StopSignal::from_system()?;
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
