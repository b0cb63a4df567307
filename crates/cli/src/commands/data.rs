mod coco;
mod fetch;
mod images;
mod text;

use crate::args::{Common, at_least_one, output_file, output_folder};
use crate::failure::Usage;
use crate::output::{Table, print, print_json};
use anyhow::bail;
use bessemer_bench::show::counted;
use bessemer_data::shapes::{CocoFolder, Shapes, ShapesFolder};
use bessemer_data::{
    ClassFolder, Exif, FileFormat, ImageLayout, LabelledImages, RandomResizedCrop, ResizeCentreCrop, Split,
    SplitReport, Transform, VerifyReport, contact_sheet, open_labelled, verify,
};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer data fetch imagenette
  bessemer data shapes --out shapes/
  bessemer data verify class-folder imagenet/
  bessemer data verify coco coco/
  bessemer data sample coco coco/ --out sample.png
  bessemer data prepare text wiki/ --vocab vocab.txt --out wiki-tokens/";

/// Fetch, check, preview and make data sets
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Fetch(fetch::Fetch),
    Prepare(Prepare),
    Verify(Verify),
    Sample(Sample),
    Tokenize(text::Tokenize),
    Shapes(Draw),
}

const PREPARE_EXAMPLES: &str = "\
EXAMPLES:
  bessemer data prepare text wiki/ --vocab vocab.txt --out wiki-tokens/
  bessemer data prepare text wiki/ --vocab vocab.txt --out wiki-records/ --format tfrecord
  bessemer data prepare instances hdf5/*_training_*.hdf5 --vocab vocab.txt --out wiki-records/
  bessemer data prepare imagenet imagenet/ --out imagenet-records/
  bessemer data prepare binary flowers/ --out flowers-32/ --size 32
  bessemer data prepare coco --images train2017/ --annotations instances_train2017.json --shards 256 records/";

/// Convert data to what training reads
#[derive(Debug, Args)]
#[command(after_help = PREPARE_EXAMPLES)]
pub(crate) struct Prepare {
    #[command(subcommand)]
    pub kind: PrepareKind,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PrepareKind {
    Text(text::Prepare),
    Instances(text::PrepareInstances),
    Coco(coco::Prepare),
    Imagenet(images::Prepare),
    Binary(images::PrepareBinary),
}

const VERIFY_EXAMPLES: &str = "\
EXAMPLES:
  bessemer data verify class-folder imagenet/
  bessemer data verify imagenet imagenet-records/
  bessemer data verify imagenet imagenet-records/ --json
  bessemer data verify text wiki-tokens/
  bessemer data verify coco coco/ --split val";

/// Read all of a data set and list what is damaged
#[derive(Debug, Args)]
#[command(after_help = VERIFY_EXAMPLES)]
pub(crate) struct Verify {
    #[command(subcommand)]
    pub kind: VerifyKind,
}

#[derive(Debug, Subcommand)]
pub(crate) enum VerifyKind {
    /// Decode all images of train/CLASS/*.jpg and val/CLASS/*.jpg
    ClassFolder(VerifyFolder),
    /// Check what `data prepare text` or `data prepare instances` has made
    Text(VerifyFolder),
    Coco(coco::Verify),
    /// Decode all pictures of ImageNet, or of a set like it: in folders of classes, TFRecord shards, or what `data prepare binary` has
    /// made
    Imagenet(VerifyFolder),
}

/// A data set that is one folder.
#[derive(Debug, Args)]
pub(crate) struct VerifyFolder {
    /// Folder of the data set
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Print JSON instead of tables
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

const SAMPLE_EXAMPLES: &str = "\
EXAMPLES:
  bessemer data sample class-folder imagenet/ --out sample.png
  bessemer data sample imagenet imagenet-records/ --split val
  bessemer data sample coco coco/ --out sample.png
  bessemer data sample text wiki-tokens/ --number 3";

/// Show samples of a data set as a model would see them
#[derive(Debug, Args)]
#[command(after_help = SAMPLE_EXAMPLES)]
pub(crate) struct Sample {
    #[command(subcommand)]
    pub kind: SampleKind,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SampleKind {
    ClassFolder(SampleFolder),
    /// Put pictures of ImageNet, or of a set like it, on one sheet with the names of their classes: of folders of classes, TFRecord
    /// shards, or what `data prepare binary` has made
    Imagenet(SampleFolder),
    Text(text::Sample),
    Coco(coco::Sample),
}

const SAMPLE_FOLDER_EXAMPLES: &str = "\
EXAMPLES:
  bessemer data sample class-folder imagenet/ --out sample.png
  bessemer data sample class-folder imagenet/ --split val --count 100 --size 96";

/// Put pictures of train/CLASS/*.jpg and val/CLASS/*.jpg on one sheet with their classes
#[derive(Debug, Args)]
#[command(after_help = SAMPLE_FOLDER_EXAMPLES)]
pub(crate) struct SampleFolder {
    /// Folder of the data set
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Half of the data set: train (with random crops) or val
    #[arg(long, default_value = "train", help_heading = "Pictures")]
    pub split: Split,
    /// How many
    #[arg(long, value_name = "N", default_value = "25", allow_negative_numbers = true, value_parser = at_least_one,
          help_heading = "Pictures")]
    pub count: usize,
    /// Height and width of each, pixels
    #[arg(long, value_name = "N", default_value = "128", help_heading = "Pictures")]
    pub size: u32,
    /// The PNG file to write
    #[arg(long, value_name = "FILE", value_parser = output_file(), default_value = "sample.png", help_heading = "Output")]
    pub out: PathBuf,
}

impl SampleFolder {
    fn transform(&self) -> Transform {
        match self.split {
            Split::Train => Transform::Train(RandomResizedCrop::imagenet(self.size)),
            Split::Val => Transform::Eval(ResizeCentreCrop::imagenet(self.size)),
        }
    }
}

const DRAW_EXAMPLES: &str = "\
EXAMPLES:
  bessemer data shapes --out shapes/
  bessemer data shapes --out shapes/ --train 10000 --val 1000 --size 64
  bessemer data shapes --out scenes/ --format coco --size 320";

/// Draw pictures of shapes and write them as a real data set
#[derive(Debug, Args)]
#[command(after_help = DRAW_EXAMPLES)]
pub(crate) struct Draw {
    /// Folder to write, which must be new or empty
    #[arg(long, value_name = "DIR", value_parser = output_folder(), help_heading = "Output")]
    pub out: PathBuf,
    /// Layout: one shape a picture in folders of classes, or scenes with boxes and masks
    #[arg(long, value_enum, default_value_t = Layout::ClassFolder, help_heading = "Output")]
    pub format: Layout,
    /// Store PNG files instead of JPEG
    #[arg(long, help_heading = "Output")]
    pub png: bool,
    /// Pictures to train on
    #[arg(long, value_name = "N", default_value = "1000", help_heading = "Pictures")]
    pub train: usize,
    /// Pictures to evaluate on
    #[arg(long, value_name = "N", default_value = "200", help_heading = "Pictures")]
    pub val: usize,
    /// Height and width of each, pixels
    #[arg(long, value_name = "N", default_value_t = Shapes::DEFAULT_SIZE, help_heading = "Pictures")]
    pub size: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Layout {
    /// train/CLASS/*.jpg and val/CLASS/*.jpg
    ClassFolder,
    /// annotations/instances_train2017.json, train2017/ and so on
    Coco,
}

const JPEG_QUALITY: u8 = 92;

pub(crate) fn run(options: &Options, common: &Common) -> anyhow::Result<()> {
    match &options.command {
        Command::Fetch(options) => fetch::run_fetch(options, common),
        Command::Prepare(Prepare { kind: PrepareKind::Text(options) }) => text::run_prepare(options, common),
        Command::Prepare(Prepare { kind: PrepareKind::Instances(options) }) => {
            text::run_prepare_instances(options, common)
        }
        Command::Prepare(Prepare { kind: PrepareKind::Coco(options) }) => coco::run_prepare(options, common),
        Command::Prepare(Prepare { kind: PrepareKind::Imagenet(options) }) => images::run_prepare(options, common),
        Command::Prepare(Prepare { kind: PrepareKind::Binary(options) }) => images::run_prepare_binary(options, common),
        Command::Verify(Verify { kind }) => match kind {
            VerifyKind::ClassFolder(options) => verify_pictures(options, common),
            VerifyKind::Text(options) => text::run_verify(options, common),
            VerifyKind::Coco(options) => coco::run_verify(options, common),
            VerifyKind::Imagenet(options) => images::run_verify(options, common),
        },
        Command::Sample(Sample { kind: SampleKind::ClassFolder(options) }) => sample_pictures(options, common),
        Command::Sample(Sample { kind: SampleKind::Imagenet(options) }) => sample_labelled(options, common),
        Command::Sample(Sample { kind: SampleKind::Text(options) }) => text::run_sample(options, common),
        Command::Sample(Sample { kind: SampleKind::Coco(options) }) => coco::run_sample(options, common),
        Command::Tokenize(options) => text::run_tokenize(options),
        Command::Shapes(options) => run_shapes(options, common),
    }
}

fn verify_pictures(options: &VerifyFolder, common: &Common) -> anyhow::Result<()> {
    let notify = common.notifier();
    let progress = |done: usize, all: usize| notify(&|| format!("{done} of {all} files"));
    let folder = &options.folder;
    let layout = ImageLayout::of_folder(folder)?;
    if layout != ImageLayout::Folders {
        let (folder, layout) = (folder.display(), layout.title());
        bail!(Usage(format!(
            "{folder}: {layout}, not folders of classes; `bessemer data verify imagenet {folder}` checks them"
        )));
    }
    let report = verify(folder, common.device().threads, &progress)?;
    if options.json {
        print_json(&report)?
    } else {
        print(&verify_text(&report))?
    }
    if report.is_clean() {
        return Ok(());
    }
    let damaged = report.train.damaged.len() + report.val.damaged.len();
    let folder = options.folder.display();
    bail!(Usage(format!("{folder}: {} cannot be read, listed above", counted(damaged as u64, "file"))))
}

fn sample_pictures(options: &SampleFolder, common: &Common) -> anyhow::Result<()> {
    write_sheet(&ClassFolder::open(&options.folder, options.split, options.transform())?, options, common)
}

fn sample_labelled(options: &SampleFolder, common: &Common) -> anyhow::Result<()> {
    let set = open_labelled(&options.folder, options.split, options.transform(), Exif::Ignore)?;
    write_sheet(&*set, options, common)
}

fn write_sheet(set: &LabelledImages, options: &SampleFolder, common: &Common) -> anyhow::Result<()> {
    let count = options.count.min(set.len());
    contact_sheet(set, count, 0, common.seed())?.write(&options.out, FileFormat::Png)?;
    print(&format!("{}: {count} of {} pictures\n", options.out.display(), set.len()))
}

fn run_shapes(options: &Draw, common: &Common) -> anyhow::Result<()> {
    let format = if options.png { FileFormat::Png } else { FileFormat::Jpeg(JPEG_QUALITY) };
    let (seed, train, val, size) = (common.seed(), options.train, options.val, options.size);
    match options.format {
        Layout::ClassFolder => ShapesFolder { seed, train, val, size, format }.write(&options.out)?,
        Layout::Coco => CocoFolder { seed, train, val, width: size, height: size, format }.write(&options.out)?,
    }
    print(&format!("{}: {train} pictures to train on, {val} to evaluate on\n", options.out.display()))
}

/// A row for each split.
fn splits_table<'a>(splits: impl IntoIterator<Item = (Split, &'a SplitReport)>) -> Table {
    let mut table = Table::new(1, &["split", "classes", "readable", "damaged", "misnamed", "smallest", "largest"]);
    let size = |size: Option<(u32, u32)>| size.map_or_else(String::new, |(width, height)| format!("{width}x{height}"));
    for (split, found) in splits {
        table.row([
            split.name().to_owned(),
            found.classes.len().to_string(),
            found.readable.to_string(),
            found.damaged.len().to_string(),
            found.misnamed.to_string(),
            size(found.smallest),
            size(found.largest),
        ]);
    }
    table
}

fn verify_text(report: &VerifyReport) -> String {
    let splits = [(Split::Train, &report.train), (Split::Val, &report.val)];
    let mut text = splits_table(splits).to_string();
    for (split, found) in splits.iter().filter(|(_, found)| found.of_no_class > 0) {
        let (pictures, name) = (counted(found.of_no_class as u64, "picture"), split.name());
        text += &format!("note: {pictures} directly in {name}/, in no folder of a class, not read\n");
    }
    for damaged in splits.iter().flat_map(|(_, found)| &found.damaged) {
        text += &format!("{}\n", damaged.reason);
    }
    text
}
