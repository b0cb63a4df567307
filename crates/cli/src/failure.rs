//! From errors to one line and an exit code.

use crate::args::subcommands_of;
use bessemer_bench::compare::CompareError;
use bessemer_bench::measure::MeasureError;
use bessemer_bench::peers::{InstallError, PeersError};
use bessemer_bench::programme::ProgrammeError;
use bessemer_bench::quickstart::QuickstartError;
use bessemer_bench::report::ReportError;
use bessemer_bench::simulator::ClusterError;
use bessemer_comm::CommError;
use bessemer_cuda::sheet::SheetError;
use bessemer_data::DataError;
use bessemer_fetch::FetchError;
use bessemer_ir::GraphError;
use bessemer_ir::plan::UnsupportedOps;
use bessemer_models::ModelError;
use bessemer_train::recipe::RecipeError;
use bessemer_train::rundir::RunDirError;
use bessemer_train::{DeviceError, TrainError};
use clap::error::ErrorKind;
use std::fmt;

/// Exit code for a command line, recipe or data that is wrong.
pub(crate) const USAGE: u8 = 2;
pub(crate) const FAILED: u8 = 1;
pub(crate) const INTERRUPTED: u8 = 130;

/// Something that the person who typed the command can put right.
#[derive(Debug)]
pub(crate) struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// An error with the exit code that whoever called expects.
#[derive(Debug)]
pub(crate) struct Coded {
    pub code: u8,
    pub message: String,
}

impl fmt::Display for Coded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Coded {}

/// A model whose step a device has no kernels for.
#[derive(Debug)]
pub(crate) struct NoKernels {
    model: String,
    operations: UnsupportedOps,
}

impl fmt::Display for NoKernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, operations } = self;
        write!(f, "{model} cannot run on {}: {operations}; --device cpu has all kernels", operations.target)
    }
}

impl std::error::Error for NoKernels {}

/// The error of this model: [`NoKernels`] where it is that the device has no kernels for it.
pub(crate) fn named(error: impl Into<anyhow::Error>, model: &str) -> anyhow::Error {
    let error = error.into();
    match error.chain().find_map(unsupported) {
        Some(operations) => NoKernels { model: model.to_owned(), operations: operations.clone() }.into(),
        None => error,
    }
}

fn unsupported<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a UnsupportedOps> {
    let model = match (error.downcast_ref(), error.downcast_ref(), error.downcast_ref()) {
        (Some(TrainError::Model(model)), _, _) => Some(model),
        (_, Some(MeasureError::Model(model) | MeasureError::Ranks(TrainError::Model(model))), _) => Some(model),
        (_, _, Some(ClusterError::Model(model))) => Some(model),
        _ => error.downcast_ref(),
    };
    match model {
        Some(ModelError::Graph(GraphError::Unsupported(operations))) => Some(operations),
        _ => None,
    }
}

/// 1, 2 or 130, by the kind of error, or its own.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    error.chain().find_map(code_of).unwrap_or(FAILED)
}

fn code_of(error: &(dyn std::error::Error + 'static)) -> Option<u8> {
    if let Some(error) = error.downcast_ref::<TrainError>() {
        return Some(error.kind().exit_code());
    }
    if let Some(error) = error.downcast_ref::<MeasureError>()
        && error.lacks_device()
    {
        return Some(USAGE);
    }
    if let Some(MeasureError::Ranks(error)) = error.downcast_ref() {
        return Some(error.kind().exit_code());
    }
    if let Some(QuickstartError::Train(error)) = error.downcast_ref() {
        return Some(error.kind().exit_code());
    }
    if error.downcast_ref().is_some_and(MeasureError::is_interrupted) {
        return Some(INTERRUPTED);
    }
    if let Some(DataError::Stopped { .. }) = error.downcast_ref() {
        return Some(INTERRUPTED);
    }
    if let Some(error) = error.downcast_ref::<FetchError>() {
        return Some(match error {
            FetchError::Stopped { .. } => INTERRUPTED,
            error if error.is_usage() => USAGE,
            _ => FAILED,
        });
    }
    if let Some(Coded { code, .. }) = error.downcast_ref() {
        return Some(*code);
    }
    match error.downcast_ref() {
        Some(ProgrammeError::Interrupted) => return Some(INTERRUPTED),
        Some(ProgrammeError::UnknownPart { .. }) => return Some(USAGE),
        _ => {}
    }
    match error.downcast_ref() {
        Some(CompareError::Interrupted) => return Some(INTERRUPTED),
        Some(
            CompareError::Plan(_)
            | CompareError::OtherSuite { .. }
            | CompareError::NotCompared { .. }
            | CompareError::Model(_)
            | CompareError::Device(_)
            | CompareError::Peers(_),
        ) => {
            return Some(USAGE);
        }
        _ => {}
    }
    let is_usage = error.is::<Usage>()
        || error.is::<NoKernels>()
        || error.is::<DeviceError>()
        || error.is::<PeersError>()
        || matches!(
            error.downcast_ref(),
            Some(
                InstallError::Peers(_)
                    | InstallError::PythonVersion { .. }
                    | InstallError::NoCargo { .. }
                    | InstallError::Own
            )
        )
        || error.is::<RecipeError>()
        || error.is::<ClusterError>()
        || error.is::<SheetError>()
        || error.is::<ModelError>()
        || error.downcast_ref().is_some_and(CommError::is_usage)
        || error.downcast_ref().is_some_and(DataError::is_usage)
        || matches!(
            error.downcast_ref(),
            Some(MeasureError::Model(_) | MeasureError::Zero { .. } | MeasureError::Indivisible { .. })
        )
        || matches!(
            error.downcast_ref(),
            Some(
                RunDirError::NotARun { .. }
                    | RunDirError::Taken { .. }
                    | RunDirError::NotEmpty { .. }
                    | RunDirError::NotAFolder { .. }
                    | RunDirError::Recipe(_)
            )
        )
        || matches!(
            error.downcast_ref(),
            Some(ReportError::Missing { .. } | ReportError::Empty { .. } | ReportError::Events(_))
        );
    is_usage.then_some(USAGE)
}

/// The error with its causes, each stated once.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = joined(&cause.to_string());
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Says what is wrong with the words of a command line, or what was asked for: help and version as they are, errors in one line. Returns
/// the exit code.
pub(crate) fn tell_command_line(error: &clap::Error, words: impl Iterator<Item = String>) -> u8 {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            if error.use_stderr() { USAGE } else { 0 }
        }
        _ => {
            let mut said = command_line(&error.render().to_string());
            if error.kind() == ErrorKind::InvalidSubcommand && !said.contains("tip: ") {
                let names = subcommands_of(words);
                said = said.replace("; see --help", &format!("; there are {}; see --help", names.join(", ")));
            }
            eprintln!("{said}");
            USAGE
        }
    }
}

/// What the command-line parser says, without its advertisement of usage.
pub(crate) fn command_line(rendered: &str) -> String {
    let said = rendered.lines().take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    format!("{}; see --help", in_words(&joined(&said.collect::<Vec<_>>().join("\n"))))
}

/// What the parsers of numbers say of a value, in plain words.
fn in_words(said: &str) -> String {
    const PARSERS: [(&str, &str); 6] = [
        ("invalid digit found in string", "it must be a whole number"),
        ("invalid float literal", "it must be a number"),
        ("number too large to fit in target type", "the number is too large"),
        ("number too small to fit in target type", "the number is too small"),
        ("cannot parse integer from empty string", "it must be a whole number"),
        ("cannot parse float from empty string", "it must be a number"),
    ];
    let mut words = said.to_owned();
    for (parser, plain) in PARSERS {
        words = words.replace(parser, plain);
    }
    // A range of Rust, such as 0..=4294967295 or 1.., as far as it is all that follows.
    let Some((before, range)) = words.split_once(" is not in ") else { return words };
    let is_limit = |limit: &str| limit.parse::<i128>().is_ok();
    match range.split_once("..=").or_else(|| range.split_once("..")) {
        Some((low, "")) if is_limit(low) => format!("{before} is not a whole number of at least {low}"),
        Some((low, high)) if is_limit(low) && is_limit(high) => {
            format!("{before} is not a whole number of {low} to {high}")
        }
        _ => words,
    }
}

/// Lines in one, without the source excerpts that TOML errors draw.
fn joined(text: &str) -> String {
    let mut line = String::new();
    for part in text.lines().map(str::trim).filter(|part| !part.is_empty() && !is_excerpt(part)) {
        let separator = match line.chars().last() {
            None => "",
            Some(':' | ',' | ';') => " ",
            Some(_) => "; ",
        };
        line.push_str(separator);
        line.push_str(part);
    }
    line
}

/// `12 | text` or `| ^^^`
fn is_excerpt(line: &str) -> bool {
    line.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start().starts_with('|')
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn causes_are_stated_once() {
        let inner = std::io::Error::other("disk on fire");
        let error = anyhow::Error::new(inner).context("a: disk on fire").context("cannot save");
        assert_eq!(one_line(&error), "cannot save: a: disk on fire");
        let lists = anyhow::anyhow!("does not fit:\n  missing: a, b\n  unknown: c\n");
        assert_eq!(one_line(&lists), "does not fit: missing: a, b; unknown: c");
    }

    #[test]
    fn excerpts_of_files_are_left_out() {
        let text = "TOML parse error at line 1, column 5\n  |\n1 | a = \n  |     ^\nstring values must be quoted";
        assert_eq!(joined(text), "TOML parse error at line 1, column 5; string values must be quoted");
    }

    #[test]
    fn the_parser_is_kept_short() {
        let rendered =
            "error: the following required arguments were not provided:\n  <MODEL>\n\nUsage: x <MODEL>\n\nFor more";
        let expected = "error: the following required arguments were not provided: <MODEL>; see --help";
        assert_eq!(command_line(rendered), expected);
    }

    #[test]
    fn parsers_of_numbers_are_told_in_words() {
        let value = |why: &str| command_line(&format!("error: invalid value 'x' for '--seed <N>': {why}\n\nUsage: x"));
        let told = |words: &str| format!("error: invalid value 'x' for '--seed <N>': {words}; see --help");
        assert_eq!(value("invalid digit found in string"), told("it must be a whole number"));
        assert_eq!(value("invalid float literal"), told("it must be a number"));
        let [seed, steps] = ["-1 is not in 0..=4294967295", "0 is not in 1.."].map(value);
        assert_eq!(seed, told("-1 is not a whole number of 0 to 4294967295"));
        assert_eq!(steps, told("0 is not a whole number of at least 1"));
        assert_eq!(value("this is not in a..b"), told("this is not in a..b"));
    }

    #[test]
    fn reading_is_told_from_writing() {
        let (path, action) = (std::path::PathBuf::from("file"), "use the file");
        let source = || std::io::Error::from(std::io::ErrorKind::StorageFull);
        let writing = || DataError::Write { path: path.clone(), action, source: source() };
        let reading = || DataError::Io { path: path.clone(), action, source: source() };
        let codes = |error: DataError, same: DataError, again: DataError| {
            [error.into(), TrainError::from(same).into(), FetchError::from(again).into()].map(|error| exit_code(&error))
        };
        assert_eq!(codes(writing(), writing(), writing()), [1; 3]);
        assert_eq!(codes(reading(), reading(), reading()), [2; 3]);
    }

    #[test]
    fn codes_survive_context() {
        let wrong: anyhow::Result<()> = Err(Usage("no".into()).into());
        assert_eq!(exit_code(&wrong.context("while reading").unwrap_err()), 2);
        assert_eq!(exit_code(&anyhow::anyhow!("no memory")), 1);
        let stopped = TrainError::Interrupted { step: 3, checkpoint: None };
        assert_eq!(exit_code(&stopped.into()), 130);
    }
}
