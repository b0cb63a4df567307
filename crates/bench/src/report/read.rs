//! Finds what is to be reported.

use super::{Report, ReportError, Run, streams};
use crate::doctor::Examination;
use crate::samples;
use bessemer_train::events::{Event, EventBody, read_events, read_sound_events};
use bessemer_train::tasks::class_scores;
use std::fs;
use std::path::{Path, PathBuf};

const EVENTS_FILE: &str = "events.jsonl";
/// The result of an examination beside runs and measurements.
pub(crate) const MACHINE_FILE: &str = "machine.json";

/// Reads run folders, folders that hold runs or measurements, files of measurements, and DLLogger streams.
///
/// # Errors
/// A path that is none of these; a file of measurements that cannot be read, by line. Of the log of a run, lines that cannot be read are left
/// out, with a warning.
pub fn read(paths: &[PathBuf]) -> Result<Report, ReportError> {
    let mut report = Report::default();
    for path in paths {
        if !path.exists() {
            return Err(ReportError::Missing { path: path.clone() });
        }
        if !take(path, &mut report)? {
            return Err(ReportError::Empty { path: path.clone() });
        }
    }
    name(&mut report.runs);
    Ok(report)
}

/// Names each run by its folder, and by as many folders above as tell it from the others.
fn name(runs: &mut [Run]) {
    let parts = |run: &Run| run.path.iter().map(|part| part.to_string_lossy().into_owned()).collect::<Vec<_>>();
    let paths: Vec<Vec<String>> = runs.iter().map(parts).collect();
    let end = |path: &[String], count: usize| path[path.len().saturating_sub(count)..].join("/");
    for (index, run) in runs.iter_mut().enumerate() {
        let path = &paths[index];
        let others = || paths.iter().enumerate().filter(|(other, _)| *other != index);
        let is_alone = |count: &usize| others().all(|(_, other)| end(other, *count) != end(path, *count));
        let count = (1..=path.len()).find(is_alone).unwrap_or(path.len());
        run.name = end(path, count);
    }
}

/// Adds what is at a path; whether there was anything.
fn take(path: &Path, report: &mut Report) -> Result<bool, ReportError> {
    if !path.is_dir() {
        let text = fs::read(path).map_err(|source| ReportError::Io { path: path.to_owned(), source })?;
        let text = String::from_utf8_lossy(&text);
        if streams::is_stream(&text) {
            report.streams.push(streams::read(path, &text));
            return Ok(true);
        }
        let events = read_events(path)?;
        let is_any = !events.is_empty();
        take_events(path.to_owned(), events, Vec::new(), report);
        return Ok(is_any);
    }
    if path.join(EVENTS_FILE).is_file() {
        let (events, damaged) = read_sound_events(&path.join(EVENTS_FILE))?;
        let warnings = damaged.iter().map(|damage| format!("a line of the log is left out: {damage}")).collect();
        take_events(path.to_owned(), events, warnings, report);
        return Ok(true);
    }
    let mut found = false;
    for entry in entries(path)? {
        let name = entry.file_name().unwrap_or_default().to_string_lossy();
        if name == MACHINE_FILE {
            report.machines.extend(examination(&entry)?);
        } else if (entry.is_dir() && entry.join(EVENTS_FILE).is_file()) || name.ends_with(".jsonl") {
            found |= take(&entry, report)?;
        }
    }
    Ok(found)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, ReportError> {
    let list = || fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>();
    let mut entries = list().map_err(|source| ReportError::Io { path: folder.to_owned(), source })?;
    entries.sort();
    Ok(entries)
}

/// `None` if another version wrote it in another form.
fn examination(path: &Path) -> Result<Option<Examination>, ReportError> {
    let text = fs::read_to_string(path).map_err(|source| ReportError::Io { path: path.to_owned(), source })?;
    Ok(serde_json::from_str(&text).ok())
}

/// Measurements go to the report, all else to a run at `path`, of which there may be warnings.
fn take_events(path: PathBuf, events: Vec<Event>, warnings: Vec<String>, report: &mut Report) {
    let predictions = path.join("predictions");
    let (samples, classes) = (samples::read(&predictions), class_scores::read(&predictions));
    let mut run = Run { samples, classes, path, warnings, ..Run::default() };
    let mut is_run = false;
    for event in events {
        let time = event.header.time;
        report.logged = Some(report.logged.map_or(time, |last| last.max(time)));
        let step = event.header.step.unwrap_or(0);
        match event.body {
            EventBody::Bench(result) => {
                report.benches.push(*result);
                continue;
            }
            EventBody::Run(info) => run.info = Some(*info),
            EventBody::Plan(info) => run.plans.push(info),
            EventBody::Step(info) => run.steps.push((step, info)),
            EventBody::Ranks(info) => run.ranks.push(info),
            EventBody::Eval(info) => run.evals.push((step, info)),
            EventBody::Checkpoint(_) => run.checkpoints += 1,
            EventBody::Warning(info) => run.warnings.push(info.message),
            EventBody::End(info) => run.end = Some(info),
        }
        is_run = true;
    }
    if is_run {
        report.runs.push(run);
    }
}
