use super::{ask, frames};
use crate::args::{Common, WeightArguments, at_least_one, model, output_folder};
use crate::failure::{Coded, INTERRUPTED, Usage, named, one_line};
use crate::output::{Csv, Table, print, print_json};
use crate::ranks::require_one;
use anyhow::bail;
use bessemer_bench::show;
use bessemer_data::Exif;
use bessemer_train::tasks::EachInput;
use bessemer_train::tasks::family::InputKind;
use bessemer_train::tasks::infer::{Part, PredictOptions, Prediction};
use bessemer_train::tasks::registry::ZooModel;
use bessemer_train::{DeviceError, StopSignal};
use clap::Args;
use std::path::PathBuf;

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer infer resnet50 --weights resnet50-torchvision.pth cat.jpg photos/ 'more/*.webp'
  bessemer infer efficientdet-d0 --weights runs/NAME --csv photos/ > objects.csv
  bessemer infer mask-rcnn --weights maskrcnn_resnet50_fpn.pth --out drawn --masks masks photos/
  ffmpeg -i in.mp4 -f image2pipe -c:v mjpeg -q:v 2 - |
    bessemer infer efficientdet-d0 --weights runs/NAME --frames - --out - |
    ffmpeg -f image2pipe -framerate 25 -i - out.mp4
  bessemer infer bert-base --weights runs/NAME 'the capital of france is [MASK] .'
  bessemer infer electra-base --weights runs/NAME 'the chef ate the meal that she had cooked'
  bessemer infer electra-squad --weights runs/NAME --file text.txt --question 'who won?'";

/// Say what pictures show, which words a text lacks, which do not belong in it, or what it answers to questions
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// A model of the zoo
    #[arg(value_parser = model)]
    pub model: ZooModel,
    /// Pictures (JPEG, PNG, WebP, BMP), folders and patterns of them; for BERT, texts with [MASK] in them; for ELECTRA, texts; none for
    /// models that answer questions
    #[arg(value_name = "INPUT")]
    pub inputs: Vec<String>,
    /// For detectors, instead of INPUT: JPEG or PNG pictures one after another, in a file or standard input (-)
    #[arg(long, value_name = "FILE|-", conflicts_with = "inputs", help_heading = "Input")]
    pub frames: Option<PathBuf>,
    /// What is done with the EXIF orientation of JPEG pictures: apply (they are turned as it says) or ignore [default: apply]
    #[arg(long, value_name = "apply|ignore", help_heading = "Input")]
    pub exif: Option<Exif>,
    #[command(flatten)]
    pub questions: ask::Questions,
    #[command(flatten)]
    pub weights: WeightArguments,
    /// Names of the classes, one a line [default: those of the run, of ImageNet for 1000 classes, else numbers]
    #[arg(long, value_name = "FILE", help_heading = "Input")]
    pub labels: Option<PathBuf>,
    /// The vocabulary of a model of text, one token a line [default: vocab.txt beside the weights]
    #[arg(long, value_name = "FILE", help_heading = "Input")]
    pub vocab: Option<PathBuf>,
    /// Classes to show of each picture, words of each gap, or answers to each question, the likeliest first [default: 5];
    /// objects of each picture [default: all]
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = at_least_one, help_heading = "Output")]
    pub top: Option<usize>,
    /// Leave out objects with a lower score, 0 to 1 [default: 0.4, but results.json has all]
    #[arg(long, value_name = "SCORE", allow_negative_numbers = true, value_parser = score, help_heading = "Output")]
    pub score: Option<f64>,
    /// Write pictures with the detected objects drawn in them, and results.json in COCO's form, to this folder: PNGs as PNG, all others
    /// as JPEG; 1.jpg, and 1-2.jpg for a second input of that name; never in place of an input. With --frames also `-`: pictures alone, as
    /// JPEGs one after another, to standard output
    #[arg(long, value_name = "DIR|-", value_parser = output_folder(), help_heading = "Output")]
    pub out: Option<PathBuf>,
    /// For detectors with masks: write `NAME-NNN-CLASS.png` for each object, white where it is, to this folder; NAME is that of the
    /// input, `NAME-2` and so on for further inputs of that name
    #[arg(long, value_name = "DIR", value_parser = output_folder(), conflicts_with = "frames", help_heading = "Output")]
    pub masks: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Print a table as CSV (RFC 4180) instead of text: a line of column names, and a row for each class of a picture, object,
    /// token or answer
    #[arg(long, conflicts_with = "json", help_heading = "Output")]
    pub csv: bool,
}

/// In which form predictions are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Text,
    Json,
    Csv,
}

impl Options {
    pub(super) fn form(&self) -> Form {
        match (self.json, self.csv) {
            (true, _) => Form::Json,
            (false, true) => Form::Csv,
            (false, false) => Form::Text,
        }
    }

    /// All but the text that questions are about.
    pub(super) fn settings(&self, common: &Common) -> Result<PredictOptions, DeviceError> {
        Ok(PredictOptions {
            compute: common.compute_told()?,
            top_k: self.top,
            score: self.score,
            exif: self.exif,
            out: self.out.clone(),
            masks: self.masks.clone(),
            labels: self.labels.clone(),
            vocab: self.vocab.clone(),
            ..PredictOptions::default()
        })
    }
}

pub(crate) fn run(options: &Options, common: &Common) -> anyhow::Result<()> {
    require_one("infer")?;
    let (name, is_asked) = (options.model.name(), options.model.family().input() == InputKind::Questions);
    if options.frames.is_none() && options.out.as_deref().is_some_and(frames::is_standard) {
        bail!(Usage("--out - is for --frames; without it, --out names a folder".to_owned()));
    }
    if (options.inputs.is_empty() && options.frames.is_none()) != is_asked {
        let wanted = if is_asked { "is asked by --question, about --context or --file" } else { "needs <INPUT>..." };
        bail!(Usage(format!("{name} {wanted}; see --help")));
    }
    if let Some(option) = options.questions.given().filter(|_| !is_asked) {
        bail!(Usage(format!("{option} is for models that answer questions, not for {name}")));
    }
    let context = if is_asked { Some(options.questions.text()?) } else { None };
    if options.exif.is_some() && options.model.family().input() != InputKind::Images {
        bail!(Usage(format!("--exif is for models that take images, not for {name}")));
    }
    let of_detectors =
        [("--masks", options.masks.is_some()), ("--out", options.out.is_some()), ("--score", options.score.is_some())];
    if let Some((option, _)) = of_detectors.into_iter().find(|(_, is_given)| *is_given)
        && !options.model.family().detects_objects()
    {
        bail!(Usage(format!("{option} is for models that detect objects, not for {name}")));
    }
    if options.vocab.is_some() && options.model.family().input() == InputKind::Images {
        bail!(Usage(format!("--vocab is for models of text, not for {name}")));
    }
    let weights = options.weights.locate(common)?.path;
    if let Some(frames) = &options.frames {
        return frames::run(frames, &weights, options, common);
    }
    // What writes no files may end at any time.
    let stop = match options.out.is_some() || options.masks.is_some() {
        true => StopSignal::from_system(common.stop_notice(STOPS))?,
        false => StopSignal::new(),
    };
    let settings = PredictOptions { context, stop: stop.clone(), ..options.settings(common)? };
    let predictor = options.model.family().predictor(name, &weights, &settings);
    let mut predictor = predictor.map_err(|error| named(error, name))?;
    let inputs = if is_asked { &options.questions.question } else { &options.inputs };
    if inputs.is_empty() {
        return ask::converse(&mut *predictor, options.form(), common);
    }
    let notify = common.notifier();
    let notify = |done: usize, all: usize| notify(&|| progress_line(options.model.family().input(), done, all));
    let predictions = predictor.predict(inputs, &notify)?;
    let done = predictions.len();
    show_each(predictions, options.form())?;
    if stop.is_raised() {
        let message = format!("interrupted after {done} pictures, which are complete, as are their results");
        bail!(Coded { code: INTERRUPTED, message });
    }
    Ok(())
}

/// What is said where detections are asked to stop.
const STOPS: &str = "stopping after the pictures that are under way; Ctrl-C again ends at once";

/// A score from 0 to 1.
fn score(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|score| (0.0..=1.0).contains(score));
    value.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

/// How far long predictions are.
pub(super) fn progress_line(input: InputKind, done: usize, all: usize) -> String {
    let what = match input {
        InputKind::Images => "pictures",
        InputKind::Texts => "texts",
        InputKind::Questions => "windows of the text",
    };
    format!("read {done} of {all} {what}")
}

/// Prints what came of good inputs, then why nothing came of the others. The last of these errors is returned.
fn show_each(results: EachInput<Prediction>, form: Form) -> anyhow::Result<()> {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(result) => good.push(result),
            Err(error) => bad.push(anyhow::Error::from(error)),
        }
    }
    match form {
        _ if good.is_empty() => {}
        Form::Json => print_json(&good.iter().map(|prediction| &prediction.json).collect::<Vec<_>>())?,
        Form::Text | Form::Csv => {
            let mut lines = Lines::new(form);
            good.iter().try_for_each(|prediction| print(&lines.of(prediction)?))?;
        }
    }
    let Some(last) = bad.pop() else { return Ok(()) };
    bad.iter().for_each(|error| eprintln!("error: {}", one_line(error)));
    Err(last)
}

/// Predictions one after another: text, a JSON object a line, or rows under one header.
pub(super) struct Lines {
    form: Form,
    csv: Csv,
}

impl Lines {
    pub(super) fn new(form: Form) -> Self {
        Self { form, csv: Csv::default() }
    }

    pub(super) fn of(&mut self, prediction: &Prediction) -> anyhow::Result<String> {
        Ok(match self.form {
            Form::Text => text(prediction),
            Form::Json => format!("{}\n", prediction.json),
            Form::Csv => self.csv.lines(prediction.rows.columns, prediction.rows.cells.iter().cloned())?,
        })
    }
}

/// A prediction for people.
fn text(prediction: &Prediction) -> String {
    let part = |part: &Part| match part {
        Part::Line(line) => format!("{line}\n"),
        Part::Table(rows) => {
            let mut table = Table::new(1, &[]);
            for (name, probability) in rows {
                table.row([format!("  {name}"), probability.map_or_else(String::new, show::percent)]);
            }
            table.to_string()
        }
    };
    prediction.parts.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_counts_what_is_given() {
        let said = [InputKind::Images, InputKind::Texts, InputKind::Questions].map(|kind| progress_line(kind, 4, 6));
        assert_eq!(said, ["read 4 of 6 pictures", "read 4 of 6 texts", "read 4 of 6 windows of the text"]);
    }
}
