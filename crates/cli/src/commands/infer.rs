use super::ask;
use crate::args::{Common, WeightArguments, at_least_one, model};
use crate::failure::{Usage, one_line};
use crate::output::{Table, print, print_json};
use anyhow::bail;
use bessemer_bench::show;
use bessemer_models::AnyModel;
use bessemer_train::tasks::EachInput;
use bessemer_train::tasks::classification::{InferOptions, Prediction, infer};
use bessemer_train::tasks::electra::{JudgeOptions, Judged, judge_words};
use bessemer_train::tasks::pretraining::{FillOptions, Filled, fill_masks};
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer infer resnet50 --weights resnet50.safetensors --labels imagenet.txt cat.jpg dog.png
  bessemer infer bert-base --weights runs/NAME 'the capital of france is [MASK] .'
  bessemer infer electra-base --weights runs/NAME 'the chef ate the meal that she had cooked'
  bessemer infer electra-squad --weights runs/NAME --file text.txt --question 'who won?'";

/// Say what pictures show, which words a text lacks, which do not belong in it, or what it answers to questions
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// A model of the zoo
    #[arg(value_parser = model)]
    pub model: AnyModel,
    /// JPEG or PNG files; for BERT, texts with [MASK] in them; for ELECTRA, texts; none for
    /// models that answer questions
    #[arg(value_name = "INPUT")]
    pub inputs: Vec<String>,
    #[command(flatten)]
    pub questions: ask::Questions,
    #[command(flatten)]
    pub weights: WeightArguments,
    /// Names of the classes, one a line [default: those of the run, else numbers]
    #[arg(long, value_name = "FILE", help_heading = "Input")]
    pub labels: Option<PathBuf>,
    /// The vocabulary of a model of text, one token a line [default: vocab.txt beside the weights]
    #[arg(long, value_name = "FILE", help_heading = "Input")]
    pub vocab: Option<PathBuf>,
    /// Classes to show of each picture, words of each gap, or answers to each question, the likeliest first
    #[arg(long, value_name = "K", default_value = "5", allow_negative_numbers = true, value_parser = at_least_one,
          help_heading = "Output")]
    pub top: usize,
    /// Print JSON instead of text
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

pub(crate) fn run(options: &Options, common: &Common) -> anyhow::Result<()> {
    let (name, is_asked) = (options.model.name(), matches!(options.model, AnyModel::ElectraSquad(_)));
    if options.inputs.is_empty() != is_asked {
        let wanted = if is_asked { "is asked by --question, about --context or --file" } else { "needs <INPUT>..." };
        bail!(Usage(format!("{name} {wanted}; see --help")));
    }
    if let Some(option) = options.questions.given().filter(|_| !is_asked) {
        bail!(Usage(format!("{option} is for models that answer questions, not for {name}")));
    }
    let weights = options.weights.locate(common)?.path;
    match options.model {
        AnyModel::Classifier(_) => classify(options, &weights, common),
        AnyModel::Bert(_) => fill(options, &weights, common),
        AnyModel::Electra(_) => judge(options, &weights, common),
        AnyModel::ElectraSquad(_) => ask::run(options, &weights, common),
    }
}

fn classify(options: &Options, weights: &Path, common: &Common) -> anyhow::Result<()> {
    let settings = InferOptions {
        compute: common.compute_told(),
        top_k: options.top,
        labels: options.labels.clone(),
        ..InferOptions::default()
    };
    let pictures: Vec<PathBuf> = options.inputs.iter().map(PathBuf::from).collect();
    show_each(infer(options.model.name(), weights, &pictures, &settings)?, options.json, text)
}

fn fill(options: &Options, weights: &Path, common: &Common) -> anyhow::Result<()> {
    let settings = FillOptions {
        compute: common.compute_told(),
        top_k: options.top,
        vocab: options.vocab.clone(),
        ..FillOptions::default()
    };
    show_each(fill_masks(options.model.name(), weights, &options.inputs, &settings)?, options.json, words)
}

fn judge(options: &Options, weights: &Path, common: &Common) -> anyhow::Result<()> {
    let settings =
        JudgeOptions { compute: common.compute_told(), vocab: options.vocab.clone(), ..JudgeOptions::default() };
    show_each(judge_words(options.model.name(), weights, &options.inputs, &settings)?, options.json, verdicts)
}

/// Prints what came of good inputs, then why nothing came of the others. The last of these errors is returned.
pub(super) fn show_each<T: Serialize>(
    results: EachInput<T>,
    json: bool,
    text: impl Fn(&[T]) -> String,
) -> anyhow::Result<()> {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(result) => good.push(result),
            Err(error) => bad.push(anyhow::Error::from(error)),
        }
    }
    if !good.is_empty() {
        if json { print_json(&good)? } else { print(&text(&good))? }
    }
    let Some(last) = bad.pop() else { return Ok(()) };
    bad.iter().for_each(|error| eprintln!("error: {}", one_line(error)));
    Err(last)
}

fn verdicts(judged: &[Judged]) -> String {
    let mut text = String::new();
    for Judged { text: asked, words } in judged {
        text += &format!("{asked}\n");
        let mut table = Table::new(1, &[]);
        for verdict in words {
            table.row([format!("  {}", verdict.word), show::percent(verdict.replaced)]);
        }
        text += &table.to_string();
    }
    text
}

fn words(filled: &[Filled]) -> String {
    let mut text = String::new();
    for Filled { text: asked, masks } in filled {
        text += &format!("{asked}\n");
        for (number, mask) in (1..).zip(masks) {
            let mut table = Table::new(1, &[]);
            if masks.len() > 1 {
                table.row([format!("  [MASK] {number}"), String::new()]);
            }
            for score in &mask.words {
                table.row([format!("  {}", score.word), show::percent(score.probability)]);
            }
            text += &table.to_string();
        }
    }
    text
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
