use crate::args::{Common, Located, WeightArguments, at_least_one, model, output_folder};
use crate::class_table::class_table;
use crate::failure::{Usage, named};
use crate::output::{print, print_json};
use crate::ranks::require_one;
use anyhow::bail;
use bessemer_bench::show;
use bessemer_data::Exif;
use bessemer_train::events::StepTimes;
use bessemer_train::stats::step_times;
use bessemer_train::tasks::family::InputKind;
use bessemer_train::tasks::registry::ZooModel;
use bessemer_train::{ChosenCheckpoint, EvalReport, EvaluateOptions, evaluate};
use clap::Args;
use serde_json::{Map, Value, json};
use std::path::PathBuf;

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer eval resnet50 --weights resnet50.safetensors --data imagenet/
  bessemer eval resnet20-cifar --weights runs/NAME --checkpoint latest --data shapes --json
  bessemer eval bert-base --weights runs/NAME --data text/ --device cuda
  bessemer eval mask-rcnn --weights maskrcnn_resnet50_fpn.pth --data coco/ --batch-size 2 --classes
  bessemer eval efficientdet-d0 --weights runs/NAME --data coco/ --split test-dev2017 --out answers/
  bessemer eval electra-squad --weights runs/NAME --data dev-v1.1.json --out answers/";

/// Measure the accuracy of weights on the val/ half of a data set, on held-out text, or on questions
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// A model of the zoo
    #[arg(value_parser = model)]
    pub model: ZooModel,
    #[command(flatten)]
    pub weights: WeightArguments,
    /// A folder with train/CLASS/ and val/CLASS/; for weights of a run, or a file converted from one, also `shapes`, drawn as the
    /// run drew them; for detectors a folder in COCO's layout; for BERT a folder of prepared text; for questions a file of SQuAD, or
    /// a folder with dev-*.json
    #[arg(long, value_name = "DIR|FILE|shapes", help_heading = "Input")]
    pub data: PathBuf,
    /// For detectors: detect in the images that annotations/image_info_NAME.json of the folder lists without annotations, such as
    /// test-dev2017; there are no scores [default: the validation images]
    #[arg(long, value_name = "NAME", requires = "out", help_heading = "Input")]
    pub split: Option<String>,
    /// What is done with the EXIF orientation of JPEG images: apply (they are turned as it says) or ignore [default: as in
    /// the training of the weights, where that is known; else ignore]
    #[arg(long, value_name = "apply|ignore", help_heading = "Input")]
    pub exif: Option<Exif>,
    /// The vocabulary of a model that answers questions, one token a line [default: vocab.txt beside the weights]
    #[arg(long, value_name = "FILE", help_heading = "Input")]
    pub vocab: Option<PathBuf>,
    /// Samples in a step
    #[arg(long, value_name = "N", default_value = "32", allow_negative_numbers = true, value_parser = at_least_one,
          help_heading = "Input")]
    pub batch_size: usize,
    /// Folder for the answers to questions, in SQuAD's form: predictions.json and nbest_predictions.json, and null_odds.json
    /// where there may be no answer; or for detections, in COCO's form: bbox.json, of masks segm.json, with --split
    /// detections_NAME_MODEL_results.json, the scores of each class in classes.json, and some pictures with what is detected and
    /// what is there
    #[arg(long, value_name = "DIR", value_parser = output_folder(), help_heading = "Output")]
    pub out: Option<PathBuf>,
    /// Number of these pictures; 0 for none [default: 8]
    #[arg(long, value_name = "N", requires = "out", help_heading = "Output")]
    pub pictures: Option<usize>,
    /// For detectors: show the scores of each class too, of boxes and where there are any of masks
    #[arg(long, conflicts_with = "split", help_heading = "Output")]
    pub classes: bool,
    /// Print JSON instead of text
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

pub(crate) fn run(options: &Options, common: &Common) -> anyhow::Result<()> {
    require_one("eval")?;
    let family = options.model.family();
    let (answers, detects) = (family.input() == InputKind::Questions, family.detects_objects());
    let sees = family.input() == InputKind::Images;
    let given = [
        ("--vocab", options.vocab.is_some(), answers, "answer questions"),
        ("--exif", options.exif.is_some(), sees, "take images"),
        ("--split", options.split.is_some(), detects, "detect objects"),
        ("--classes", options.classes, detects, "detect objects"),
        ("--pictures", options.pictures.is_some(), detects, "detect objects"),
        ("--out", options.out.is_some(), answers || detects, "answer questions or detect objects"),
    ];
    if let Some((option, _, _, those)) = given.into_iter().find(|(_, given, allowed, _)| *given && !allowed) {
        bail!(Usage(format!("{option} is for models that {those}, not for {}", options.model.name())));
    }
    let default = EvaluateOptions::default();
    let settings = EvaluateOptions {
        compute: common.compute_told()?,
        batch_size: options.batch_size,
        exif: options.exif,
        vocab: options.vocab.clone(),
        out: options.out.clone(),
        unannotated: options.split.clone(),
        pictures: options.pictures.unwrap_or(default.pictures),
        ..default
    };
    let Located { path, chosen } = options.weights.locate(common)?;
    let report = evaluate(options.model.name(), &path, &options.data, &settings)
        .map_err(|error| named(error, options.model.name()))?;
    report.notes.iter().for_each(|note| common.warn(&format!("note: {note}")));
    if options.json {
        let mut json = json(options.model.name(), chosen.as_ref(), &report);
        if options.classes {
            json.insert("classes".to_owned(), json!(report.classes));
        }
        print_json(&json)
    } else {
        let tables = report.classes.iter().filter(|_| options.classes);
        let tables = tables.map(|(kind, classes)| format!("\nCOCO {kind}\n{}", class_table(classes)));
        print(&(text(&report) + &tables.collect::<String>()))
    }
}

fn json(model: &str, chosen: Option<&ChosenCheckpoint>, report: &EvalReport) -> Map<String, Value> {
    let rate = format!("{}_per_s", report.metric_schema.samples);
    let checkpoint = chosen.map(|ChosenCheckpoint { path, step, reason }| {
        ("checkpoint".to_owned(), json!({"path": path, "step": step, "chosen": reason.name()}))
    });
    let head = [("model".to_owned(), json!(model))].into_iter().chain(checkpoint);
    let metrics = report.metrics.iter().map(|(name, value)| (name.clone(), json!(value)));
    let counts = report.counts.iter().map(|(name, count)| (name.clone(), json!(count)));
    let tail = [
        ("seconds".to_owned(), json!(report.seconds)),
        (rate, json!(report.samples_per_s)),
        ("batch_ms".to_owned(), json!(step_times(&report.batch_ms))),
    ];
    head.chain(metrics).chain(counts).chain(tail).collect()
}

const RATE: &str = "throughput";
const BATCH: &str = "batch";

fn text(report: &EvalReport) -> String {
    let labels = report.metric_schema.metrics.iter().map(|metric| metric.label.len());
    let width = labels.chain([RATE.len()]).max().unwrap_or(0);
    let mut text = String::new();
    for metric in report.metric_schema.metrics {
        let Some(value) = report.metrics.get(metric.name) else { continue };
        text += &format!("{:<width$}  {}", metric.label, report.metric_schema.show(metric.name, *value));
        let counted = metric.ratio.map(|names| names.map(|name| report.counts.get(name).copied().unwrap_or(0)));
        text += &counted.map_or_else(String::new, |[part, whole]| format!(" ({part} of {whole})"));
        text.push('\n');
    }
    text += &format!("{RATE:<width$}  {} {}\n", show::significant(report.samples_per_s, 3), report.metric_schema.unit);
    let StepTimes { p50, p90, p99, .. } = step_times(&report.batch_ms);
    let [p50, p90, p99] = [p50, p90, p99].map(|ms| show::significant(ms, 3));
    text + &format!("{BATCH:<width$}  {p50} ms in the network (median; 90 %: {p90}, 99 %: {p99})\n")
}
