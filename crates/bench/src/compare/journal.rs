//! What has been measured so far. Results are events in `results.jsonl`; what belongs to results that are not whole yet is in
//! `state/journal.jsonl`, so that a comparison that was ended goes on.

use super::CompareError;
use crate::measure::ERROR_OPTION;
use crate::peers::protocol::{Answer, Failure};
use bessemer_data::replace_file;
use bessemer_train::clock::unix_seconds;
use bessemer_train::events::{BenchResult, Event, EventBody, EventWriter, Header, WorkCheck};
use bessemer_train::rundir::lock_file;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

const RESULTS_FILE: &str = "results.jsonl";
const JOURNAL_FILE: &str = "state/journal.jsonl";
/// Held by the process that measures.
const LOCK_FILE: &str = "state/lock";

/// One timed run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Run {
    /// Counted from 1.
    pub round: u64,
    pub answer: Answer,
    pub wall_s: f64,
    pub busy_before: Option<f64>,
    pub others_busy: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Entry {
    /// The largest batch that fits.
    Largest(usize),
    Checked(WorkCheck),
    Ran(Box<Run>),
    Failed(Failure),
}

/// What is known of one entrant of a group.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct State {
    pub largest: Option<usize>,
    pub check: Option<WorkCheck>,
    pub runs: Vec<Run>,
    pub failed: Option<Failure>,
}

impl State {
    fn take(&mut self, entry: Entry) {
        match entry {
            Entry::Largest(batch) => self.largest = Some(batch),
            Entry::Checked(check) => self.check = Some(check),
            Entry::Ran(run) => self.runs.push(*run),
            Entry::Failed(failure) => self.failed = Some(failure),
        }
    }

    pub(super) fn has_run(&self, round: u64) -> bool {
        self.runs.iter().any(|run| run.round == round)
    }
}

#[derive(Serialize, Deserialize)]
struct Line {
    group: String,
    entrant: String,
    entry: Entry,
}

pub(super) struct Journal {
    events: EventWriter,
    path: PathBuf,
    file: File,
    states: BTreeMap<(String, String), State>,
    results: Vec<BenchResult>,
    started: Instant,
    _lock: File,
}

impl Journal {
    /// Of a folder, with what is in it; a line that was cut short is left out.
    ///
    /// # Errors
    /// Another process measures in the folder; files that cannot be read or written.
    pub(super) fn open(folder: &Path) -> Result<Self, CompareError> {
        let (results, path) = (folder.join(RESULTS_FILE), folder.join(JOURNAL_FILE));
        fs::create_dir_all(path.parent().unwrap_or(folder)).map_err(CompareError::at(folder))?;
        let lock = File::create(folder.join(LOCK_FILE)).map_err(CompareError::at(folder))?;
        if !lock_file(&lock).map_err(CompareError::at(folder))? {
            return Err(CompareError::InUse { folder: folder.to_owned() });
        }
        let resumed = EventWriter::resume(&results, u64::MAX)?;
        let results = resumed.kept.into_iter().filter_map(|event| match event.body {
            EventBody::Bench(result) => Some(*result),
            _ => None,
        });
        let lines = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            read => read.map_err(CompareError::at(&path))?,
        };
        let lines: Vec<Line> =
            lines.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
        let file = rewrite(&path, &lines).map_err(CompareError::at(&path))?;
        let mut states: BTreeMap<(String, String), State> = BTreeMap::new();
        for Line { group, entrant, entry } in lines {
            states.entry((group, entrant)).or_default().take(entry);
        }
        let (results, started) = (results.collect(), Instant::now());
        Ok(Self { events: resumed.writer, file, path, states, results, started, _lock: lock })
    }

    pub(super) fn state(&self, group: &str, entrant: &str) -> State {
        self.states.get(&(group.to_owned(), entrant.to_owned())).cloned().unwrap_or_default()
    }

    pub(super) fn note(&mut self, group: &str, entrant: &str, entry: Entry) -> Result<(), CompareError> {
        let line = Line { group: group.to_owned(), entrant: entrant.to_owned(), entry };
        let written = self.file.write_all(&to_bytes(&line)).and_then(|()| self.file.sync_data());
        written.map_err(CompareError::at(&self.path))?;
        self.states.entry((line.group, line.entrant)).or_default().take(line.entry);
        Ok(())
    }

    /// Whether anything of a group has failed.
    pub(super) fn has_failure(&self, group: &str) -> bool {
        self.states.iter().any(|((of, _), state)| of == group && state.failed.is_some())
    }

    /// The results of a group; none while it is not whole.
    pub(super) fn results(&self, group: &str) -> Vec<BenchResult> {
        self.results.iter().filter(|result| group_of(result) == Some(group)).cloned().collect()
    }

    /// Writes those results of a group that are not there yet.
    pub(super) fn finish(&mut self, results: &[BenchResult]) -> Result<(), CompareError> {
        for result in results {
            let is_there = self.results.iter().any(|known| is_same_row(known, result));
            if !is_there {
                let header =
                    Header { time: unix_seconds(), elapsed: self.started.elapsed().as_secs_f64(), ..Header::default() };
                self.events.write(&Event::new(header, result.clone()))?;
                self.results.push(result.clone());
            }
        }
        Ok(self.events.sync()?)
    }

    /// Takes a group out, so that it is measured again.
    pub(super) fn forget(&mut self, folder: &Path, group: &str) -> Result<(), CompareError> {
        self.results.retain(|result| group_of(result) != Some(group));
        self.states.retain(|(of, _), _| of != group);
        let results = folder.join(RESULTS_FILE);
        let kept = EventWriter::resume(&results, u64::MAX)?.kept;
        let beside = folder.join("results.jsonl.kept");
        let at = || CompareError::at(&beside);
        match fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at()(error)),
            _ => {}
        }
        let mut writer = EventWriter::create(&beside)?;
        for event in kept {
            if !matches!(&event.body, EventBody::Bench(result) if group_of(result) == Some(group)) {
                writer.write(&event)?;
            }
        }
        writer.sync()?;
        fs::rename(&beside, &results).map_err(at())?;
        self.events = EventWriter::resume(&results, u64::MAX)?.writer;
        let lines = fs::read(&self.path).map_err(CompareError::at(&self.path))?;
        let lines = lines.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice::<Line>(line).ok());
        let kept: Vec<Line> = lines.filter(|line| line.group != group).collect();
        self.file = rewrite(&self.path, &kept).map_err(CompareError::at(&self.path))?;
        Ok(())
    }
}

fn group_of(result: &BenchResult) -> Option<&str> {
    result.comparison.as_ref().map(|comparison| comparison.group.as_str())
}

fn is_same_row(a: &BenchResult, b: &BenchResult) -> bool {
    let row = |result: &BenchResult| {
        let comparison = result.comparison.as_ref();
        comparison.map(|row| (row.group.clone(), result.framework.clone(), row.variant.clone()))
    };
    row(a) == row(b)
}

/// Why a row has no figures.
pub(super) fn error_of(result: &BenchResult) -> Option<&str> {
    result.options.get(ERROR_OPTION).and_then(|reason| reason.as_str())
}

fn to_bytes(line: &Line) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(line).expect("journals have string keys");
    bytes.push(b'\n');
    bytes
}

/// Replaces the file by a rename; the new one is open for more lines.
fn rewrite(path: &Path, lines: &[Line]) -> io::Result<File> {
    let beside = path.with_extension("new");
    let bytes: Vec<u8> = lines.iter().flat_map(to_bytes).collect();
    replace_file(path, &beside, &bytes)?;
    OpenOptions::new().append(true).open(path)
}
