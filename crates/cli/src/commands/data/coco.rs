//! Images with objects in COCO's layout: prepare, verify, sample, and measure the loader.

use super::JPEG_QUALITY;
use crate::args::{Common, at_least_one, output_file, output_folder};
use crate::failure::Usage;
use crate::output::{Table, print, print_json};
use anyhow::bail;
use bessemer_data::coco::{
    CategoryIds, CocoOptions, CocoRecords, CocoReport, CocoSet, CocoSource, WrittenRecords, verify,
};
use bessemer_data::detection::Framing;
use bessemer_data::{Dataset, Exif, FileFormat, Resampling, Split, object_sheet};
use bessemer_train::tasks::family::ObjectSamples;
use bessemer_train::tasks::registry;
use bessemer_train::{Recipe, StopSignal};
use clap::Args;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Where a data set lies.
#[derive(Debug, Args)]
#[command(next_help_heading = "Input")]
pub(crate) struct Input {
    /// Folder with annotations/instances_train2017.json and train2017/, or with train-00000-of-00256.tfrecord and so on
    #[arg(value_name = "DIR", conflicts_with_all = ["annotations", "images"])]
    pub folder: Option<PathBuf>,
    /// Annotations of any name, instead of a folder
    #[arg(long, value_name = "JSON", requires = "images")]
    pub annotations: Option<PathBuf>,
    /// Folder of their images
    #[arg(long, value_name = "DIR", requires = "annotations")]
    pub images: Option<PathBuf>,
    /// What is done with the EXIF orientation of JPEG images before their annotations hold: apply or ignore
    #[arg(long, value_name = "apply|ignore", default_value_t = Exif::Ignore)]
    pub exif: Exif,
}

/// What [`Input`] names.
enum Place<'a> {
    Files(CocoSource),
    /// That of a data set with one half or both.
    Folder(&'a Path),
}

impl Input {
    fn place(&self) -> anyhow::Result<Place<'_>> {
        match (&self.folder, &self.annotations, &self.images) {
            (None, Some(annotations), Some(images)) => {
                Ok(Place::Files(CocoSource::Files { annotations: annotations.clone(), images: images.clone() }))
            }
            (Some(folder), ..) => Ok(Place::Folder(folder)),
            _ => bail!(Usage("give the folder of a data set, or --annotations and --images".into())),
        }
    }

    fn source(&self, split: Split) -> anyhow::Result<CocoSource> {
        match self.place()? {
            Place::Files(source) => Ok(source),
            Place::Folder(folder) => Ok(CocoSource::find(folder, split)?),
        }
    }
}

const PREPARE_EXAMPLES: &str = "\
EXAMPLES:
  bessemer data prepare coco --images coco/train2017 --annotations coco/annotations/instances_train2017.json --shards 256 records/
  bessemer data prepare coco --images coco/val2017 --annotations coco/annotations/instances_val2017.json --shards 32 records/
  bessemer data prepare coco --images photos/ --annotations boxes.json --split train --shards 8 --masks records/";

/// Write images and their objects to TFRecord shards, in the layout of TensorFlow's detection models
///
/// Writes SPLIT-NNNNN-of-NNNNN.tfrecord, and a copy of the annotations as annotations/instances_SPLIT.json. A preparation that fails,
/// or is interrupted (Ctrl-C), leaves nothing behind.
#[derive(Debug, Args)]
#[command(after_help = PREPARE_EXAMPLES)]
pub(crate) struct Prepare {
    /// Folder to write to; it may hold shards of the other split
    #[arg(value_name = "OUT", value_parser = output_folder())]
    pub out: PathBuf,
    /// Folder of the images
    #[arg(long, value_name = "DIR", help_heading = "Input")]
    pub images: PathBuf,
    /// File instances_*.json
    #[arg(long, value_name = "JSON", help_heading = "Input")]
    pub annotations: PathBuf,
    /// Half of the data set that this is: train or val [default: by the name of the annotations]
    #[arg(long, value_name = "SPLIT", help_heading = "Output")]
    pub split: Option<Split>,
    /// Number of files
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true, help_heading = "Output")]
    pub shards: usize,
    /// Write masks too, a PNG for each object
    #[arg(long, help_heading = "Output")]
    pub masks: bool,
}

const VERIFY_EXAMPLES: &str = "\
EXAMPLES:
  bessemer data verify coco coco/
  bessemer data verify coco records/ --split val
  bessemer data verify coco --annotations boxes.json --images photos/ --json";

/// Decode all images and masks, count objects, and list what is left out or damaged
#[derive(Debug, Args)]
#[command(after_help = VERIFY_EXAMPLES)]
pub(crate) struct Verify {
    #[command(flatten)]
    pub input: Input,
    /// Half of the data set in the folder: train or val [default: each that is there]
    #[arg(long, conflicts_with = "annotations", help_heading = "Input")]
    pub split: Option<Split>,
    /// Objects of an image that a batch has room for
    #[arg(long, value_name = "N", default_value = "100", value_parser = at_least_one, allow_negative_numbers = true)]
    pub max_objects: usize,
    /// Print JSON instead of tables: a report, or of a folder one for each half by its name
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

/// How samples are made of images.
#[derive(Debug, Args)]
#[command(next_help_heading = "Samples")]
pub(crate) struct Samples {
    /// As a recipe of a detector makes them, by its name or file, such as recipe.toml of a run; in place of the options below but --eval
    #[arg(long, value_name = "NAME|FILE",
          conflicts_with_all = ["size", "resize", "category_ids", "masks", "max_objects", "exif"])]
    pub recipe: Option<String>,
    /// Height and width of each, pixels
    #[arg(long, value_name = "N", default_value = "512")]
    pub size: u32,
    /// How pixels are computed: legacy (as TensorFlow 1, EfficientDet's reference), half_pixel or antialias
    #[arg(long, value_name = "FORM", default_value = "legacy")]
    pub resize: Resampling,
    /// Classes by category ids (raw: id - 1) or their ranks (dense)
    #[arg(long, value_name = "FORM", default_value = "raw")]
    pub category_ids: CategoryIds,
    /// As evaluation sees them: whole images, neither mirrored nor scaled at random
    #[arg(long)]
    pub eval: bool,
    /// With masks
    #[arg(long)]
    pub masks: bool,
    /// Objects of an image that a batch has room for
    #[arg(long, value_name = "N", default_value = "100", value_parser = at_least_one, allow_negative_numbers = true)]
    pub max_objects: usize,
}

impl Samples {
    fn open(&self, input: &Input, split: Split, common: &Common) -> anyhow::Result<(CocoSet, usize)> {
        let ObjectSamples { options, max_objects } = match &self.recipe {
            Some(recipe) => self.of_recipe(&Recipe::load(recipe, &[])?)?,
            None => self.as_asked(input.exif),
        };
        let options = CocoOptions { threads: common.device().threads, ..options };
        options.framing.check()?;
        Ok((CocoSet::open(&input.source(split)?, &options)?, max_objects))
    }

    fn as_asked(&self, exif: Exif) -> ObjectSamples {
        let canvas = [self.size; 2];
        let framing = match self.eval {
            false => Framing::efficientdet_train(canvas, self.resize),
            true => Framing::efficientdet_eval(canvas, self.resize),
        };
        let (numbering, masks, max_objects) = (self.category_ids.into(), self.masks, self.max_objects);
        ObjectSamples { options: CocoOptions { framing, numbering, masks, exif, threads: 1 }, max_objects }
    }

    fn of_recipe(&self, recipe: &Recipe) -> anyhow::Result<ObjectSamples> {
        let (name, split) = (&recipe.model.name, if self.eval { Split::Val } else { Split::Train });
        let samples = registry::find(name)?.family().object_samples(recipe, split)?;
        Ok(samples.ok_or_else(|| Usage(format!("recipe {}: {name} does not detect objects", recipe.name)))?)
    }
}

const SAMPLE_EXAMPLES: &str = "\
EXAMPLES:
  bessemer data sample coco coco/ --out sample.png
  bessemer data sample coco coco/ --recipe mask-rcnn --count 4
  bessemer data sample coco coco/ --split val --eval --masks --count 16
  bessemer data sample coco --annotations boxes.json --images photos/ --seed 1";

/// Put images on one sheet as training sees them, with their boxes and classes
#[derive(Debug, Args)]
#[command(after_help = SAMPLE_EXAMPLES)]
pub(crate) struct Sample {
    #[command(flatten)]
    pub input: Input,
    /// Half of the data set in the folder: train or val
    #[arg(long, default_value = "train", conflicts_with = "annotations", help_heading = "Input")]
    pub split: Split,
    #[command(flatten)]
    pub samples: Samples,
    /// How many
    #[arg(long, value_name = "N", default_value = "9", allow_negative_numbers = true, value_parser = at_least_one,
          help_heading = "Samples")]
    pub count: usize,
    /// The PNG or JPEG file to write
    #[arg(long, value_name = "FILE", value_parser = output_file(), default_value = "sample.png", help_heading = "Output")]
    pub out: PathBuf,
}

pub(super) fn run_prepare(options: &Prepare, common: &Common) -> anyhow::Result<()> {
    let start = Instant::now();
    let records = CocoRecords {
        annotations: options.annotations.clone(),
        images: options.images.clone(),
        out: options.out.clone(),
        split: split_of(options)?,
        shards: options.shards,
        masks: options.masks,
        threads: common.device().threads,
    };
    let notify = common.notifier();
    let stop = StopSignal::from_system(None)?;
    let progress = |done: usize, all: usize| notify(&|| format!("{done} of {all} images"));
    let WrittenRecords { images, objects, crowds, without_area, bytes } =
        records.write(&progress, &|| stop.is_raised())?;
    let left_out =
        if without_area > 0 { format!(", {without_area} boxes without area left out") } else { String::new() };
    print(&format!(
        "{}: {images} images, {objects} objects ({crowds} crowds){left_out}, {:.1} MB in {} shards of {}: {:.1} s\n",
        options.out.display(),
        bytes as f64 / 1e6,
        options.shards,
        records.split.name(),
        start.elapsed().as_secs_f64()
    ))
}

fn split_of(options: &Prepare) -> Result<Split, Usage> {
    let name = options.annotations.file_name().unwrap_or_default().to_string_lossy();
    let named = [Split::Train, Split::Val].into_iter().find(|split| name.contains(split.name()));
    options.split.or(named).ok_or_else(|| Usage(format!("{name}: the name says neither train nor val; give --split")))
}

pub(super) fn run_verify(options: &Verify, common: &Common) -> anyhow::Result<()> {
    let check = |source: &CocoSource, of: &str| -> anyhow::Result<CocoReport> {
        let notify = common.notifier();
        let progress = |done: usize, all: usize| notify(&|| format!("{done} of {all} images{of}"));
        Ok(verify(source, options.max_objects, options.input.exif, common.device().threads, &progress)?)
    };
    match options.input.place()? {
        Place::Files(source) => {
            let report = check(&source, "")?;
            match options.json {
                true => print_json(&report)?,
                false => print(&report_text(&report, options.max_objects))?,
            }
            complain(&[&report])
        }
        Place::Folder(folder) => {
            let splits = options.split.map_or_else(|| CocoSource::splits(folder), |split| Ok(vec![split]))?;
            let mut reports = BTreeMap::new();
            for split in splits {
                let name = split.name();
                let report = check(&CocoSource::find(folder, split)?, &format!(" of {name}"))?;
                if !options.json {
                    print(&format!("{name}\n{}", report_text(&report, options.max_objects)))?;
                }
                reports.insert(name, report);
            }
            if options.json {
                print_json(&reports)?;
            }
            complain(&reports.values().collect::<Vec<_>>())
        }
    }
}

/// # Errors
/// Damaged images.
fn complain(reports: &[&CocoReport]) -> anyhow::Result<()> {
    let mut damaged = reports.iter().flat_map(|report| &report.damaged);
    match damaged.next() {
        None => Ok(()),
        Some(first) => {
            let images: usize = reports.iter().map(|report| report.summary.images).sum();
            bail!(Usage(format!("{} of {images} images are damaged; the first: {first}", 1 + damaged.count())))
        }
    }
}

/// How many classes are listed.
const CLASSES_LISTED: usize = 12;

fn report_text(report: &CocoReport, max_objects: usize) -> String {
    let summary = &report.summary;
    let mut table = Table::new(1, &[]);
    let mut row = |name: &str, value: String| table.row([name.to_owned(), value]);
    let formats: Vec<String> =
        report.formats.iter().map(|(format, count)| format!("{count} {}", format.name())).collect();
    row("images", summary.images.to_string());
    row("  readable", format!("{} ({})", report.readable, formats.join(", ")));
    row("  damaged", report.damaged.len().to_string());
    row("  without objects", summary.images_without_objects.to_string());
    row(&format!("  with more than {max_objects} objects"), report.images_beyond_capacity.to_string());
    let size = |size: Option<(u32, u32)>| size.map_or_else(String::new, |(width, height)| format!("{width}x{height}"));
    row("  smallest, largest", format!("{}, {}", size(report.smallest), size(report.largest)));
    row("objects", summary.objects.to_string());
    row("  most in an image", summary.most_objects.to_string());
    row("  cut off at the border", summary.clipped.to_string());
    row("left out", (summary.crowds + summary.without_area).to_string());
    row("  crowds", summary.crowds.to_string());
    row("  boxes without area", summary.without_area.to_string());
    row("categories", report.categories.to_string());
    row("  with objects", report.classes.len().to_string());
    let mut text = table.to_string();
    let listed: Vec<String> =
        report.classes.iter().take(CLASSES_LISTED).map(|(name, count)| format!("{name} {count}")).collect();
    let more = report.classes.len().saturating_sub(CLASSES_LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    text += &format!("most frequent: {}{more}\n", listed.join(", "));
    for note in &report.notes {
        text += &format!("note: {note}\n");
    }
    for box_left_out in &summary.first_without_area {
        text += &format!("without area: {box_left_out}\n");
    }
    for damaged in &report.damaged {
        text += &format!("{damaged}\n");
    }
    text
}

pub(super) fn run_sample(options: &Sample, common: &Common) -> anyhow::Result<()> {
    let format = picture_format(&options.out)?;
    let (set, max_objects) = options.samples.open(&options.input, options.split, common)?;
    let count = options.count.min(set.len());
    let sheet = object_sheet(&set, count, 0, common.seed(), max_objects)?;
    sheet.write(&options.out, format)?;
    let summary = set.summary();
    print(&format!(
        "{}: {count} of {} images, {} objects of {} classes\n",
        options.out.display(),
        summary.images,
        summary.objects,
        summary.objects_of_class.iter().filter(|&&objects| objects > 0).count()
    ))
}

fn picture_format(path: &Path) -> Result<FileFormat, Usage> {
    let extension = path.extension().unwrap_or_default().to_ascii_lowercase();
    match extension.to_str() {
        Some("png") => Ok(FileFormat::Png),
        Some("jpg" | "jpeg") => Ok(FileFormat::Jpeg(JPEG_QUALITY)),
        _ => Err(Usage(format!("{}: pictures are written as .png or .jpg", path.display()))),
    }
}
