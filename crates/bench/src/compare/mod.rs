//! Comparisons with other frameworks: the same work in turn, a fresh process each, round after round.

mod check;
mod detections;
mod entrants;
mod estimate;
mod group;
mod journal;
mod largest;
mod plan;
mod results;
pub mod suite;
pub mod table;

pub(crate) use check::Allowed;
pub(crate) use plan::Wanted;
pub use plan::{BatchSize, Fusion, Group, Part, Plan, Usual};

use crate::doctor::{Examination, examine};
use crate::machine::{Limits, Machine};
use crate::measure::MeasureError;
use crate::peers::process::Runner;
use crate::peers::work::WorkError;
use crate::peers::{Peers, PeersError};
use crate::report::MACHINE_FILE;
use crate::show;
use bessemer_models::ModelError;
use bessemer_train::events::{BenchResult, EventError};
use bessemer_train::tasks::registry;
use bessemer_train::{DeviceError, DeviceKind, DeviceOptions};
use entrants::{Entrant, Known};
use estimate::Estimate;
use journal::Journal;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How a comparison is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// For results and everything in between.
    pub folder: PathBuf,
    /// Device that Bessemer's own runs use; its thread count is given to every framework.
    pub device: DeviceOptions,
    /// Seed of the generated inputs and initial weights.
    pub seed: u64,
    /// Of each process.
    pub limit: Duration,
    /// How long to wait for a quiet machine before each run.
    pub patience: Duration,
    /// Whether frameworks run in precisions that they have in software alone.
    pub emulated: bool,
    /// Whether a framework's name alone stands for its first default variant only.
    pub one_variant: bool,
    /// Whether groups with a framework that failed are measured again.
    pub retry: bool,
    /// Print what would be done, and an estimate of the time.
    pub dry_run: bool,
}

/// Why a comparison cannot be made.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    #[error("{0}")]
    Plan(String),
    #[error("{model} is not compared with other frameworks; those are {}", registry::compared())]
    NotCompared { model: String },
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Peers(#[from] PeersError),
    #[error(transparent)]
    Work(#[from] WorkError),
    #[error(transparent)]
    Events(#[from] EventError),
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{}: another comparison is being made in this folder; --out names another one", folder.display())]
    InUse { folder: PathBuf },
    #[error("{}: holds another suite ({differs}); --out names another folder", folder.display())]
    OtherSuite { folder: PathBuf, differs: String },
    #[error(transparent)]
    Measure(#[from] MeasureError),
    #[error("interrupted; the same command goes on from here")]
    Interrupted,
}

impl CompareError {
    fn at(path: &Path) -> impl FnOnce(io::Error) -> CompareError {
        let path = path.to_owned();
        move |source| CompareError::Io { path, source }
    }
}

/// A comparison that is being made.
struct Session<'a> {
    options: &'a Options,
    runner: &'a Runner,
    known: Known<'a>,
    machine: Examination,
    journal: Journal,
    estimate: Estimate,
    notify: &'a mut dyn FnMut(&str),
}

/// Measures all groups that are not measured yet and gives the results of all. `notify` receives what is being done, a line at a time.
///
/// # Errors
/// A framework that is not known; a folder that cannot be written; a stop on request. A framework that fails is a result with the
/// reason.
pub fn run(
    groups: &[Group],
    peers: &Peers,
    runner: &Runner,
    options: &Options,
    notify: &mut dyn FnMut(&str),
) -> Result<Vec<BenchResult>, CompareError> {
    let mut session = Session::open(groups, peers, runner, options, notify)?;
    (session.notify)(&session.estimate.text());
    let mut results = Vec::new();
    for group in groups {
        if options.dry_run {
            let entrants = session.known.entrants(group, options);
            let labels: Vec<String> = entrants.iter().map(Entrant::label).collect();
            (session.notify)(&format!("{}: {}", group.name(), labels.join(", ")));
            continue;
        }
        results.extend(session.group(group)?);
    }
    Ok(results)
}

const LOGS: &str = "logs";

/// Looks at the machine, and keeps what was seen beside the results.
fn look(options: &Options) -> Result<Examination, CompareError> {
    let mut machine = examine(&options.device)?;
    // What was looked at are the processors.
    if options.device.kind != DeviceKind::Cpu {
        let device = options.device.open()?;
        (machine.machine, machine.limits) = (Machine::look(&*device), Limits::measure(&*device));
    }
    let path = options.folder.join(MACHINE_FILE);
    let text = serde_json::to_string_pretty(&machine).expect("an examination has string keys and finite numbers");
    fs::write(&path, text).map_err(CompareError::at(&path))?;
    Ok(machine)
}

impl<'a> Session<'a> {
    /// Looks at the folder, the frameworks and the machine.
    fn open(
        groups: &[Group],
        peers: &'a Peers,
        runner: &'a Runner,
        options: &'a Options,
        notify: &'a mut dyn FnMut(&str),
    ) -> Result<Self, CompareError> {
        for folder in [options.folder.clone(), options.folder.join(LOGS)] {
            fs::create_dir_all(&folder).map_err(CompareError::at(&folder))?;
        }
        let journal = Journal::open(&options.folder)?;
        let known = Known::ask(groups, peers, runner, &options.folder.join(LOGS), notify)?;
        let machine = look(options)?;
        let estimate = Estimate::of(groups, &known, options, &machine.limits)?;
        Ok(Self { options, runner, known, machine, journal, estimate, notify })
    }
}

impl Session<'_> {
    /// The results of a group, measured now unless they are there.
    fn group(&mut self, group: &Group) -> Result<Vec<BenchResult>, CompareError> {
        self.estimate.begin(group);
        let key = self.key(group);
        let found = self.journal.results(&key);
        if !found.is_empty() && !self.is_to_be_repeated(&found) {
            (self.notify)(&format!("{}: measured already", group.name()));
            return Ok(found);
        }
        if !found.is_empty() || (self.options.retry && self.journal.has_failure(&key)) {
            self.journal.forget(&self.options.folder, &key)?;
        }
        let results = self.measure(group, &key)?;
        self.journal.finish(&results)?;
        Ok(results)
    }

    /// What was not installed then is installed now, or what failed is to be tried once more.
    fn is_to_be_repeated(&self, found: &[BenchResult]) -> bool {
        found.iter().filter_map(|result| Some((result, journal::error_of(result)?))).any(|(result, error)| {
            self.options.retry || (error.starts_with("not installed") && self.known.is_there(&result.framework))
        })
    }

    /// All that makes a group what it is.
    fn key(&self, group: &Group) -> String {
        let Options { device, seed, emulated, one_variant, .. } = self.options;
        let Group { warmup, steps, repeat, settings, frameworks, fusion, .. } = group;
        let name = |wanted: &Wanted| match &wanted.variant {
            Some(variant) => format!("{}+{variant}", wanted.framework),
            None => wanted.framework.clone(),
        };
        let frameworks: Vec<String> = frameworks.iter().map(name).collect();
        let mut key = format!(
            "{} w{warmup} s{steps} r{repeat} t{} seed{seed} [{}] s{} p{} d{} c{}",
            group.name(),
            device.threads,
            frameworks.join(" "),
            settings.sequence_length,
            settings.predictions,
            settings.dropout,
            settings.clip,
        );
        for (is_set, word) in [(*emulated, " emulated"), (*one_variant, " one-variant")] {
            key += if is_set { word } else { "" };
        }
        if device.kind != DeviceKind::Cpu {
            key += &format!(" {}", device.kind);
        }
        if let Some(fusion) = fusion {
            key += &format!(" {fusion:?}");
        }
        key
    }

    fn machine(&self) -> &Machine {
        &self.machine.machine
    }

    /// A line about a run, with the estimated remaining time.
    fn progress(&mut self, line: &str) {
        let left =
            self.estimate.left().map_or_else(String::new, |left| format!(" (about {} left)", show::seconds(left)));
        (self.notify)(&format!("{line}{left}"));
    }
}
