use crate::args::output_file;
use crate::output::{print, replace};
use anyhow::Context;
use bessemer_bench::report::{Reference, Report, read};
use clap::Args;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer report runs/NAME --html report.html
  bessemer report runs/NAME results.jsonl --markdown report.md
  bessemer report comparison --reference dlperf --html report.html
  bessemer report runs                                  Markdown on standard output";

/// Make a report of runs and measurements: environment, curves, accuracy, throughput, sample pictures
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// Run folders, folders of runs, or files of measurements (bench --json), or
    /// DLLogger streams of other programs
    #[arg(required = true, value_name = "DIR")]
    pub inputs: Vec<PathBuf>,
    /// Put the tables of a publication beside: dlperf (OneFlow's comparison of frameworks), or dle (NVIDIA DeepLearningExamples: ResNet-50, detectors, ELECTRA)
    #[arg(long, value_name = "NAME", help_heading = "Output")]
    pub reference: Option<Reference>,
    /// Write one HTML file that needs nothing beside it
    #[arg(long, value_name = "FILE", value_parser = output_file(), help_heading = "Output")]
    pub html: Option<PathBuf>,
    /// Write Markdown
    #[arg(long, value_name = "FILE", value_parser = output_file(), help_heading = "Output")]
    pub markdown: Option<PathBuf>,
}

const TITLE: &str = "Bessemer report";

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let Options { inputs, reference, html, markdown } = options;
    write_report(inputs, *reference, html.as_deref(), markdown.as_deref())
}

/// Makes a report, on standard output where it goes to no file.
pub(super) fn write_report(
    inputs: &[PathBuf],
    reference: Option<Reference>,
    html: Option<&Path>,
    markdown: Option<&Path>,
) -> anyhow::Result<()> {
    let report = Report { reference, ..read(inputs)? };
    if let Some(path) = html {
        write(path, &report.to_html(TITLE)?)?;
    }
    if let Some(path) = markdown {
        write(path, &report.to_markdown(TITLE, path.parent().unwrap_or(Path::new("")))?)?;
    }
    if html.is_none() && markdown.is_none() {
        print(&report.to_markdown(TITLE, Path::new(""))?)?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    replace(path, text).with_context(|| format!("{}: cannot be written", path.display()))?;
    print(&format!("{}\n", path.display()))
}
