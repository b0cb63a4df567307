//! Reports of training runs and measurements: one HTML file that needs nothing beside it, or Markdown.

mod charts;
mod headline;
mod page;
mod peers;
mod read;
mod reference;
mod seeds;
mod streams;
mod tables;
mod view;
mod work;

#[cfg(test)]
mod tests;

pub(crate) use headline::fastest_other;
pub(crate) use read::MACHINE_FILE;
pub use read::read;
pub use reference::Reference;
pub(crate) use reference::{Precision, PublishedTable};
pub(crate) use streams::Stream;

use crate::doctor::Examination;
use crate::samples::Sample;
use bessemer_train::events::{BenchResult, EndInfo, EvalInfo, EventError, PlanInfo, RanksInfo, RunInfo, StepInfo};
use bessemer_train::tasks::class_scores::ClassTables;
use std::path::{Path, PathBuf};

/// What a report covers.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Machines on which something ran.
    pub machines: Vec<Examination>,
    /// Training runs, in the order in which they were given.
    pub runs: Vec<Run>,
    /// Benchmarks of all inputs, in order.
    pub benches: Vec<BenchResult>,
    /// Logs of other programs.
    pub streams: Vec<Stream>,
    /// When the last event of the logs was written, in seconds of Unix time; `None` where no log says.
    pub logged: Option<f64>,
    /// Published tables to put beside.
    pub reference: Option<Reference>,
}

/// A training run as its log has it.
#[derive(Clone, Debug, Default)]
pub struct Run {
    pub(crate) path: PathBuf,
    /// The end of the path that no other run of the report has.
    pub(crate) name: String,
    pub(crate) info: Option<RunInfo>,
    pub(crate) plans: Vec<PlanInfo>,
    pub(crate) steps: Vec<(u64, StepInfo)>,
    /// How long steps took on each rank.
    pub(crate) ranks: Vec<RanksInfo>,
    pub(crate) evals: Vec<(u64, EvalInfo)>,
    pub(crate) checkpoints: usize,
    pub(crate) warnings: Vec<String>,
    pub(crate) end: Option<EndInfo>,
    pub(crate) samples: Vec<Sample>,
    /// Scores of the classes in the latest evaluation.
    pub(crate) classes: ClassTables,
}

/// Why a report cannot be written.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error("{}: no such file or folder; expected a run folder, a folder of runs, or a file of measurements", path.display())]
    Missing { path: PathBuf },
    #[error("{}: nothing to report; expected a run folder (with events.jsonl), a folder of runs, or .jsonl files", path.display())]
    Empty { path: PathBuf },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Events(#[from] EventError),
    #[error("the report cannot be made: {0}")]
    Template(#[from] minijinja::Error),
    #[error("a publication cannot be read: {0}")]
    Reference(String),
}

impl Report {
    /// A whole HTML page with styles, scripts, charts and pictures in it, which loads nothing.
    ///
    /// # Errors
    /// A picture that cannot be read.
    pub fn to_html(&self, title: &str) -> Result<String, ReportError> {
        page::html(&view::View::new(self, title, view::Pictures::Inline)?)
    }

    /// The same as Markdown. Pictures are linked, by paths relative to `folder` where they lie in it.
    ///
    /// # Errors
    /// As [`Report::to_html`].
    pub fn to_markdown(&self, title: &str, folder: &Path) -> Result<String, ReportError> {
        page::markdown(&view::View::new(self, title, view::Pictures::Linked(folder))?)
    }
}
