use crate::args::{Common, at_least_one, model};
use crate::output::{print, print_json};
use bessemer_bench::show;
use bessemer_models::AnyModel;
use bessemer_train::{EvalReport, EvaluateOptions, evaluate};
use clap::Args;
use serde_json::{Map, Value, json};
use std::path::PathBuf;

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer eval resnet50 --weights resnet50.safetensors --data imagenet/
  bessemer eval resnet20-cifar --weights runs/NAME --data shapes --json
  bessemer eval bert-base --weights runs/NAME --data text/";

/// Measure the accuracy of weights on the val/ half of a data set, or on held-out text
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// A model of the zoo
    #[arg(value_parser = model)]
    pub model: AnyModel,
    /// A .safetensors file, a checkpoint, a run, or a folder with config.json and model.safetensors
    #[arg(long, value_name = "FILE|DIR", help_heading = "Input")]
    pub weights: PathBuf,
    /// A folder with train/CLASS/ and val/CLASS/; for weights of a run also `shapes`, drawn as the run drew them; for BERT
    /// a folder of prepared text
    #[arg(long, value_name = "DIR|shapes", help_heading = "Input")]
    pub data: PathBuf,
    /// Samples in a step
    #[arg(long, value_name = "N", default_value = "32", allow_negative_numbers = true, value_parser = at_least_one,
          help_heading = "Input")]
    pub batch_size: usize,
    /// Print JSON instead of text
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

pub fn run(options: &Options, common: &Common) -> anyhow::Result<()> {
    let settings = EvaluateOptions {
        compute: common.compute_told(),
        batch_size: options.batch_size,
        ..EvaluateOptions::default()
    };
    let report = evaluate(options.model.name(), &options.weights, &options.data, &settings)?;
    if options.json { print_json(&json(options.model.name(), &report)) } else { print(&text(&report)) }
}

fn json(model: &str, report: &EvalReport) -> Map<String, Value> {
    let rate = format!("{}_per_s", report.terms.samples);
    let head = [("model".to_owned(), json!(model))];
    let metrics = report.metrics.iter().map(|(name, value)| (name.clone(), json!(value)));
    let counts = report.counts.iter().map(|(name, count)| (name.clone(), json!(count)));
    let tail = [
        ("seconds".to_owned(), json!(report.seconds)),
        (rate, json!(report.samples_per_s)),
        ("skipped".to_owned(), json!(report.skipped.len())),
    ];
    head.into_iter().chain(metrics).chain(counts).chain(tail).collect()
}

const RATE: &str = "throughput";

fn text(report: &EvalReport) -> String {
    let labels = report.terms.metrics.iter().map(|metric| metric.label.len());
    let width = labels.chain([RATE.len()]).max().unwrap_or(0);
    let mut text = String::new();
    for metric in report.terms.metrics {
        let Some(value) = report.metrics.get(metric.name) else { continue };
        text += &format!("{:<width$}  {}", metric.label, report.terms.show(metric.name, *value));
        let counted = metric.ratio.map(|names| names.map(|name| report.counts.get(name).copied().unwrap_or(0)));
        text += &counted.map_or_else(String::new, |[part, whole]| format!(" ({part} of {whole})"));
        text.push('\n');
    }
    text + &format!("{RATE:<width$}  {} {}\n", show::significant(report.samples_per_s, 3), report.terms.unit)
}
