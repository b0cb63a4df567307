use crate::args::{Common, at_least_one, model};
use crate::output::{Table, print, print_json};
use bessemer_bench::show;
use bessemer_models::AnyModel;
use bessemer_train::tasks::classification::{InferOptions, Prediction, infer};
use clap::Args;
use std::path::PathBuf;

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer infer resnet50 --weights resnet50.safetensors --labels imagenet.txt cat.jpg dog.png
  bessemer infer resnet20-cifar --weights runs/NAME --top 3 picture.png --json";

/// Say what pictures show
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// A model of the zoo
    #[arg(value_parser = model)]
    pub model: AnyModel,
    /// JPEG or PNG files
    #[arg(required = true, value_name = "INPUT")]
    pub inputs: Vec<PathBuf>,
    /// A .safetensors file, a checkpoint folder or a run folder
    #[arg(long, value_name = "FILE|DIR", help_heading = "Input")]
    pub weights: PathBuf,
    /// Names of the classes, one a line [default: those of the run, else numbers]
    #[arg(long, value_name = "FILE", help_heading = "Input")]
    pub labels: Option<PathBuf>,
    /// Classes to show of each picture, the likeliest first
    #[arg(long, value_name = "K", default_value = "5", allow_negative_numbers = true, value_parser = at_least_one,
          help_heading = "Output")]
    pub top: usize,
    /// Print JSON instead of text
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

pub fn run(options: &Options, common: &Common) -> anyhow::Result<()> {
    let settings = InferOptions {
        compute: common.compute_told(),
        top_k: options.top,
        labels: options.labels.clone(),
        ..InferOptions::default()
    };
    let predictions = infer(options.model.name(), &options.weights, &options.inputs, &settings)?;
    if options.json { print_json(&predictions) } else { print(&text(&predictions)) }
}

fn text(predictions: &[Prediction]) -> String {
    let mut text = String::new();
    for prediction in predictions {
        text += &format!("{}\n", prediction.path.display());
        let mut table = Table::new(1, &[]);
        for score in &prediction.classes {
            table.row([format!("  {}", score.name), show::percent(score.probability)]);
        }
        text += &table.to_string();
    }
    text
}
