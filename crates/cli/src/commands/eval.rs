use crate::args::{Common, at_least_one, model};
use crate::output::{print, print_json};
use bessemer_bench::show;
use bessemer_models::ModelSpec;
use bessemer_train::{EvalReport, EvaluateOptions, evaluate};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer eval resnet50 --weights resnet50.safetensors --data imagenet/
  bessemer eval resnet20-cifar --weights runs/NAME --data shapes --json";

/// Measure the accuracy of weights on the val/ half of a data set
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// A model of the zoo
    #[arg(value_parser = model)]
    pub model: &'static ModelSpec,
    /// A .safetensors file, a checkpoint folder or a run folder
    #[arg(long, value_name = "FILE|DIR", help_heading = "Input")]
    pub weights: PathBuf,
    /// A folder with train/CLASS/ and val/CLASS/; for weights of a run also `shapes`, drawn as the run drew them
    #[arg(long, value_name = "DIR|shapes", help_heading = "Input")]
    pub data: PathBuf,
    /// Pictures in a step
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
    let report = evaluate(options.model.name, &options.weights, &options.data, &settings)?;
    if options.json {
        return print_json(&json!({
            "model": options.model.name,
            "top1": report.top1,
            "top5": report.top5,
            "loss": report.loss,
            "correct": report.correct,
            "total": report.total,
            "seconds": report.seconds,
            "images_per_s": report.images_per_s,
            "skipped": report.skipped.len(),
        }));
    }
    print(&text(&report))
}

fn text(report: &EvalReport) -> String {
    format!(
        "top-1       {:.2} % ({} of {})\ntop-5       {:.2} %\nloss        {:.4}\nthroughput  {} images/s\n",
        report.top1 * 100.0,
        report.correct,
        report.total,
        report.top5 * 100.0,
        report.loss,
        show::significant(report.images_per_s, 3),
    )
}
