//! The whole comparison as one plan: models, modes, batches, precisions, forms, clipping and ranks, within a time. What matters most
//! is measured first.

mod scope;

use super::estimate::{Estimate, GUESSED_START_S, Part as Guess, run_s};
use super::{BatchSize, CompareError, Group, Options, Part, Session, Usual};
use crate::measure::{MeasureError, Progress, Repeat, Request, failed};
use crate::peers::process::Runner;
use crate::peers::{Peers, own};
use crate::scaling::{Point, measure_ranks, shared};
use crate::show;
use crate::simulator::Ranks;
use crate::workload::Mode;
use bessemer_data::replace_file;
use bessemer_train::clock::unix_seconds;
use bessemer_train::events::{BenchResult, Event, EventBody, EventWriter, Header, ScalingKind};
pub use scope::Choice;
use scope::Scope;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const FILE: &str = "suite.json";
/// Results of several ranks.
const SCALING_FILE: &str = "scaling.jsonl";
/// Of the form of [`Saved`].
const VERSION: u32 = 1;

/// Steps of a run, and runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Steps that do not count.
    pub warmup: usize,
    /// Steps that do.
    pub steps: usize,
    /// Runs of each framework.
    pub repeat: usize,
}

/// What is kept beside the results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Saved {
    version: u32,
    scope: Scope,
    /// Seconds for all.
    budget_s: Option<f64>,
    /// Seconds that were used until now.
    spent_s: f64,
    cells: Vec<(String, Counts)>,
}

/// One of the things that a suite measures.
#[derive(Clone, Debug)]
pub struct Cell {
    /// What it is, in short.
    pub name: String,
    /// Processes of a repeat: forms of frameworks, or numbers of ranks.
    pub processes: usize,
    /// With which it fits into the time.
    pub counts: Counts,
    /// Guessed seconds.
    pub seconds: f64,
    /// Whether there is no time for it.
    pub is_left_out: bool,
    what: Measurement,
    priority: Priority,
    /// Guessed seconds of a step.
    step_s: f64,
    /// Guessed seconds beside the runs.
    beside_s: f64,
}

/// How much something matters, the most first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Priority {
    /// At the batch size that counts most.
    First,
    /// At other sizes.
    OtherBatches,
    LargestBatch,
    /// Without merged operations, and without clipping.
    OtherForms,
    SeveralRanks,
}

impl Priority {
    const ALL: [Priority; 5] =
        [Priority::First, Priority::OtherBatches, Priority::LargestBatch, Priority::OtherForms, Priority::SeveralRanks];
}

#[derive(Clone, Debug)]
enum Measurement {
    Compared(Box<Group>),
    /// Bessemer on these numbers of ranks; the request is that of one.
    Scaling(Box<Request>, Vec<usize>),
}

/// What came of a suite.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Of all that was measured, now or before.
    pub results: Vec<BenchResult>,
    /// Names of cells for which there was no time.
    pub left_out: Vec<String>,
}

/// A suite that can be measured.
pub struct Suite<'a> {
    session: Session<'a>,
    saved: Saved,
    cells: Vec<Cell>,
    begun: Instant,
    spent_before_s: f64,
}

/// Runs without which a median says little.
const FEW_REPEATS: usize = 3;
/// Timed steps of the shortest runs.
const FEW_STEPS: usize = 3;
/// One step of so many is a warm-up.
const WARMUP_SHARE: usize = 6;

impl Counts {
    /// As many steps as fit into `seconds`, but a few in any case.
    fn within(self, seconds: f64, step_s: f64, repeat: usize) -> Counts {
        let steps = (seconds / step_s.max(1e-9)).clamp(0.0, 1e9) as usize;
        let warmup = (steps / WARMUP_SHARE).max(1).min(self.warmup);
        let timed = steps.saturating_sub(warmup).max(FEW_STEPS).min(self.steps);
        Counts { warmup, steps: timed, repeat }
    }
}

impl Cell {
    fn seconds_of(&self, counts: Counts) -> f64 {
        let run_s = run_s(self.step_s, counts.warmup + counts.steps);
        self.beside_s + run_s * (self.processes * counts.repeat) as f64
    }

    fn set(&mut self, counts: Counts) {
        (self.counts, self.seconds) = (counts, self.seconds_of(counts));
        match &mut self.what {
            Measurement::Compared(group) => {
                (group.warmup, group.steps, group.repeat) = (counts.warmup, counts.steps, counts.repeat);
            }
            Measurement::Scaling(request, _) => {
                (request.warmup, request.steps, request.repeat) = (counts.warmup, counts.steps, counts.repeat);
            }
        }
    }
}

/// Counts with which all cells fit into the time: fewer steps at first, then fewer repeats; the fewest where even those do not fit.
fn fitted(cells: &[Cell], most: Counts, budget_s: f64) -> Vec<Counts> {
    let within =
        |seconds: f64, repeat| cells.iter().map(|cell| most.within(seconds, cell.step_s, repeat)).collect::<Vec<_>>();
    let longest = cells.iter().map(|cell| cell.step_s).fold(0.0, f64::max) * (most.warmup + most.steps + 1) as f64;
    let fewest = FEW_REPEATS.min(most.repeat);
    for repeat in [most.repeat, fewest] {
        let mut seconds = longest;
        while seconds > 0.01 {
            let counts = within(seconds, repeat);
            let all: f64 = cells.iter().zip(&counts).map(|(cell, counts)| cell.seconds_of(*counts)).sum();
            if all <= budget_s {
                return counts;
            }
            seconds *= 0.8;
        }
    }
    within(0.0, fewest)
}

/// Sets the counts of all cells, and which are left out. What is of one priority has half of the time that is left, or more where the
/// fewest steps need it.
fn plan_within(cells: &mut [Cell], most: Counts, budget_s: f64) {
    let mut left_s = budget_s;
    for priority in Priority::ALL {
        let of_priority: Vec<Cell> = cells.iter().filter(|cell| cell.priority == priority).cloned().collect();
        let has_later = cells.iter().any(|cell| cell.priority > priority);
        let counts = fitted(&of_priority, most, if has_later { left_s / 2.0 } else { left_s });
        cells
            .iter_mut()
            .filter(|cell| cell.priority == priority)
            .zip(counts)
            .for_each(|(cell, counts)| cell.set(counts));
        let mut placed = cells.iter_mut().filter(|cell| cell.priority == priority);
        leave_out(&mut placed, &mut left_s);
    }
}

/// Marks the cells for which there is no time left behind those before them.
fn leave_out(cells: &mut dyn Iterator<Item = &mut Cell>, left_s: &mut f64) {
    for cell in cells {
        cell.is_left_out = cell.seconds > *left_s;
        *left_s -= if cell.is_left_out { 0.0 } else { cell.seconds };
    }
}

impl Saved {
    fn read(folder: &Path) -> Result<Option<Self>, CompareError> {
        let path = folder.join(FILE);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(CompareError::at(&path))?,
        };
        let saved: Result<Self, _> = serde_json::from_str(&text);
        let other = || CompareError::OtherSuite {
            folder: folder.to_owned(),
            differs: "its suite.json is of another version, or damaged".to_owned(),
        };
        saved.ok().filter(|saved| saved.version == VERSION).map(Some).ok_or_else(other)
    }

    /// Replaces the file by a rename.
    fn write(&self, folder: &Path) -> Result<(), CompareError> {
        let (path, beside) = (folder.join(FILE), folder.join(format!("{FILE}.new")));
        let text = serde_json::to_string_pretty(self).expect("keys are names") + "\n";
        replace_file(&path, &beside, text.as_bytes()).map_err(CompareError::at(&path))
    }
}

impl<'a> Suite<'a> {
    /// Asks the frameworks, looks at the machine, and tells what fits into the time.
    ///
    /// # Errors
    /// Models or frameworks that are not known; a folder with another suite.
    pub fn plan(
        choice: &Choice,
        peers: &'a Peers,
        runner: &'a Runner,
        options: &'a Options,
        notify: &'a mut dyn FnMut(&str),
    ) -> Result<Self, CompareError> {
        let found = Saved::read(&options.folder)?;
        let scope = Scope::of(choice, found.as_ref().map(|saved| &saved.scope), peers, options, notify)?;
        let budget_s = choice.budget.map(|budget| budget.as_secs_f64());
        let budget_s = budget_s.or(found.as_ref().and_then(|saved| saved.budget_s));
        let works = scope.works(&options.device)?;
        let session = Session::open(&groups(works.iter().map(|(_, what)| what)), peers, runner, options, notify)?;
        let cells = works.into_iter().map(|(rank, what)| cell(rank, what, &session, scope.counts));
        let mut cells = cells.collect::<Result<Vec<_>, _>>()?;
        let mut left_s = budget_s.unwrap_or(f64::INFINITY);
        match &found {
            Some(saved) => {
                let counts = known_counts(&cells, saved, options)?;
                cells.iter_mut().zip(counts).for_each(|(cell, counts)| cell.set(counts));
                leave_out(&mut cells.iter_mut(), &mut left_s);
            }
            None => plan_within(&mut cells, scope.counts, left_s),
        }
        let spent_s = found.map_or(0.0, |saved| saved.spent_s);
        let names = cells.iter().map(|cell| (cell.name.clone(), cell.counts)).collect();
        let saved = Saved { version: VERSION, scope, budget_s, spent_s, cells: names };
        let mut suite = Self { session, saved, cells, begun: Instant::now(), spent_before_s: spent_s };
        suite.estimate()?;
        Ok(suite)
    }

    /// All that there is to measure, in order.
    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }

    /// The time for all of it, where that is limited.
    pub fn budget(&self) -> Option<Duration> {
        self.saved.budget_s.map(Duration::from_secs_f64)
    }

    /// Measures what fits into the time and is not measured yet.
    ///
    /// # Errors
    /// A folder that cannot be written; a stop on request.
    pub fn run(mut self) -> Result<Outcome, CompareError> {
        self.saved.write(&self.session.options.folder)?;
        let outcome = self.measure();
        self.save()?;
        outcome
    }

    /// What is told of the time that is left is about what is measured.
    fn estimate(&mut self) -> Result<(), CompareError> {
        let measured = groups(self.cells.iter().filter(|cell| !cell.is_left_out).map(|cell| &cell.what));
        let Session { known, options, machine, .. } = &self.session;
        self.session.estimate = Estimate::of(&measured, known, options, &machine.limits)?;
        Ok(())
    }

    fn spent_s(&self) -> f64 {
        self.spent_before_s + self.begun.elapsed().as_secs_f64()
    }

    fn save(&mut self) -> Result<(), CompareError> {
        self.saved.spent_s = self.spent_s();
        self.saved.write(&self.session.options.folder)
    }

    fn measure(&mut self) -> Result<Outcome, CompareError> {
        let mut outcome = Outcome { results: Vec::new(), left_out: Vec::new() };
        for cell in self.cells.clone() {
            if cell.is_left_out {
                outcome.left_out.push(cell.name);
                continue;
            }
            let known = self.known(&cell)?;
            let left_s = self.saved.budget_s.map_or(f64::INFINITY, |budget| budget - self.spent_s());
            let expected_s = self.expected(&cell);
            if known.is_empty() && expected_s > left_s {
                let [expected, left] = [expected_s, left_s.max(0.0)].map(show::seconds);
                (self.session.notify)(&format!("{}: left out, it takes about {expected} of {left}", cell.name));
                outcome.left_out.push(cell.name);
                continue;
            }
            outcome.results.extend(match &cell.what {
                Measurement::Compared(group) => self.session.group(group)?,
                Measurement::Scaling(..) if !known.is_empty() => {
                    (self.session.notify)(&format!("{}: measured already", cell.name));
                    known
                }
                Measurement::Scaling(request, ranks) => self.session.on_ranks(&cell.name, request, ranks)?,
            });
            self.save()?;
        }
        Ok(outcome)
    }

    /// Results that are there.
    fn known(&self, cell: &Cell) -> Result<Vec<BenchResult>, CompareError> {
        match &cell.what {
            Measurement::Compared(group) => Ok(self.session.journal.results(&self.session.key(group))),
            Measurement::Scaling(request, ranks) => self.session.known_ranks(request, ranks),
        }
    }

    /// Seconds that it takes, after what others took.
    fn expected(&self, cell: &Cell) -> f64 {
        match &cell.what {
            Measurement::Compared(group) => self.session.estimate.expected(group),
            Measurement::Scaling(..) => self.session.estimate.corrected(cell.seconds),
        }
    }
}

fn groups<'w>(works: impl Iterator<Item = &'w Measurement>) -> Vec<Group> {
    let group = |what: &Measurement| match what {
        Measurement::Compared(group) => Some((**group).clone()),
        Measurement::Scaling(..) => None,
    };
    works.filter_map(group).collect()
}

fn cell(priority: Priority, what: Measurement, session: &Session<'_>, counts: Counts) -> Result<Cell, CompareError> {
    let limits = &session.machine.limits;
    let (name, processes, step_s, beside_s) = match &what {
        Measurement::Compared(group) => {
            let entrants = session.known.entrants(group, session.options);
            let entrants = entrants.iter().filter(|entrant| entrant.excluded.is_none()).count();
            let guess = Guess::guess(group, entrants, limits)?;
            (group.name(), entrants, guess.step_s, guess.beside_s())
        }
        Measurement::Scaling(request, ranks) => {
            let Request { model, batch_size, precision, device, .. } = &**request;
            let numbers: Vec<String> = ranks.iter().map(usize::to_string).collect();
            let name = format!("{model} train b{batch_size} {} ranks 1,{}", precision.name(), numbers.join(","));
            let part = Part {
                models: Some(vec![model.clone()]),
                modes: Some(vec![Mode::Train]),
                frameworks: Some(vec![own::NAME.to_owned()]),
                batch_sizes: Some(vec![BatchSize::Of(*batch_size)]),
                precisions: Some(vec![*precision]),
                ..Part::default()
            };
            let alone = part.groups(&Usual::FULL)?;
            let guess = Guess::guess(&alone[0], 1, limits)?;
            let slower = session.options.device.threads as f64 / device.threads as f64;
            // One rank alone; the others together and apart.
            (name, 1 + 2 * ranks.len(), guess.step_s * slower, GUESSED_START_S)
        }
    };
    let mut cell = Cell { name, processes, counts, seconds: 0.0, is_left_out: false, what, priority, step_s, beside_s };
    cell.set(counts);
    Ok(cell)
}

/// The counts with which the suite of the folder was begun.
fn known_counts(cells: &[Cell], saved: &Saved, options: &Options) -> Result<Vec<Counts>, CompareError> {
    let names = || cells.iter().map(|cell| &cell.name);
    match names().eq(saved.cells.iter().map(|(name, _)| name)) {
        true => Ok(saved.cells.iter().map(|(_, counts)| *counts).collect()),
        false => Err(CompareError::OtherSuite {
            folder: options.folder.clone(),
            differs: "another version of this program measured other things".to_owned(),
        }),
    }
}

impl Session<'_> {
    fn scaling_file(&self) -> PathBuf {
        self.options.folder.join(SCALING_FILE)
    }

    /// Results on all numbers of ranks; none where one is missing.
    fn known_ranks(&self, request: &Request, ranks: &[usize]) -> Result<Vec<BenchResult>, CompareError> {
        let path = self.scaling_file();
        if !path.is_file() {
            return Ok(Vec::new());
        }
        let kept = EventWriter::resume(&path, u64::MAX)?.kept.into_iter();
        let rows = kept.filter_map(|event| match event.body {
            EventBody::Bench(result) => Some(*result),
            _ => None,
        });
        let known: Vec<BenchResult> = rows
            .filter(|row| {
                row.model == request.model
                    && row.precision == request.precision.name()
                    && row.batch_size == request.batch_size as u64
            })
            .collect();
        let has = |count: usize| known.iter().any(|row| row.devices == count as u64);
        Ok(if has(1) && ranks.iter().all(|&count| has(count)) { known } else { Vec::new() })
    }

    /// Bessemer on one rank, and then on several; written when all are measured.
    fn on_ranks(&mut self, name: &str, one: &Request, ranks: &[usize]) -> Result<Vec<BenchResult>, CompareError> {
        let started = Instant::now();
        let mut limits = self.machine.limits;
        let machine = self.machine.machine.clone();
        let (runner, folder) = (self.runner, self.options.folder.join(super::LOGS));
        let mut rows: Vec<BenchResult> = Vec::new();
        for devices in std::iter::once(1).chain(ranks.iter().copied()) {
            let point = Ranks { nodes: 1, devices };
            let request = shared(one, point, ScalingKind::Weak)?;
            let arguments = ["--quiet", "--devices", &devices.to_string()].map(str::to_owned);
            let log = folder.join(format!("{name} {point}").replace([' ', ','], "-"));
            let once = |request: &Request| Repeat::in_process(request, runner, &arguments, &log);
            let told = |how: &str, progress: Progress<'_>| {
                if let Progress::Repeat { number, throughput, request, .. } = progress {
                    let rate = show::significant(throughput, 4);
                    (self.notify)(&format!("{name}: {point} {how}, repeat {number} of {}: {rate}", request.repeat));
                }
            };
            let alone = rows.first().map(|row| row.throughput).filter(|rate| *rate > 0.0);
            let point = Point { ranks: point, kind: ScalingKind::Weak, one: alone };
            rows.push(match measure_ranks(&request, point, &machine, &mut limits, once, told) {
                Err(error) if error.is_interrupted() => return Err(CompareError::Interrupted),
                Err(error @ MeasureError::Process(_)) => {
                    (self.notify)(&format!("{name}: {error}"));
                    BenchResult { devices: devices as u64, ..failed(&request, &machine, &error) }
                }
                measured => measured?,
            });
        }
        let mut writer = EventWriter::resume(&self.scaling_file(), u64::MAX)?.writer;
        for row in &rows {
            let header = Header { time: unix_seconds(), elapsed: started.elapsed().as_secs_f64(), ..Header::default() };
            writer.write(&Event::new(header, row.clone()))?;
        }
        writer.sync()?;
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::scope::{pick, usual_models};
    use super::*;
    use bessemer_train::DeviceOptions;
    use bessemer_train::recipe::Compute;
    use bessemer_train::tasks::registry;

    const MOST: Counts = Counts { warmup: 20, steps: 100, repeat: 7 };

    fn scope(models: &[&str], precisions: &[Compute], ranks: &[usize]) -> Scope {
        Scope {
            models: models.iter().map(|&name| name.to_owned()).collect(),
            modes: Mode::ALL.to_vec(),
            batch_sizes: None,
            frameworks: vec!["bessemer".to_owned(), "x".to_owned()],
            precisions: precisions.to_vec(),
            ranks: ranks.to_vec(),
            counts: MOST,
            seed: 0,
            threads: 2,
        }
    }

    fn names(scope: &Scope) -> Vec<String> {
        let name = |(_, what): &(Priority, Measurement)| match what {
            Measurement::Compared(group) => group.name(),
            Measurement::Scaling(request, ranks) => format!("{} on {ranks:?}", request.model),
        };
        scope.works(&DeviceOptions::default()).unwrap().iter().map(name).collect()
    }

    #[test]
    fn what_matters_most_comes_first() {
        let found = names(&scope(&["resnet50", "bert-base"], &[Compute::Fp32, Compute::Bf16], &[2]));
        let expected = "resnet50 train b16 fp32, resnet50 infer b1 fp32, bert-base train b16 fp32, bert-base infer b16 fp32, \
                        resnet50 train b16 bf16, resnet50 infer b1 bf16, bert-base train b16 bf16, bert-base infer b16 bf16, \
                        resnet50 train b32 fp32, resnet50 infer b16 fp32, bert-base train b4 fp32, bert-base infer b1 fp32, \
                        resnet50 train b32 bf16, resnet50 infer b16 bf16, bert-base train b4 bf16, bert-base infer b1 bf16, \
                        resnet50 train bmax fp32, resnet50 infer bmax fp32, bert-base train bmax fp32, bert-base infer bmax fp32, \
                        resnet50 train bmax bf16, resnet50 infer bmax bf16, bert-base train bmax bf16, bert-base infer bmax bf16, \
                        resnet50 train b16 fp32 unfused, resnet50 infer b1 fp32 unfused, bert-base train b16 fp32 unfused, \
                        bert-base infer b16 fp32 unfused, bert-base train b16 fp32 unclipped, resnet50 on [2], bert-base on [2]";
        assert_eq!(found.join(", "), expected);
        let chosen = Scope { batch_sizes: Some(vec![BatchSize::Of(3)]), ..scope(&["resnet50"], &[Compute::Fp32], &[]) };
        let expected = ["train b3 fp32", "infer b3 fp32", "train b3 fp32 unfused", "infer b3 fp32 unfused"];
        assert_eq!(names(&chosen), expected.map(|name| format!("resnet50 {name}")));
        let all = usual_models();
        assert_eq!(
            all[..6],
            ["resnet50", "bert-base", "electra-base", "electra-base-squad", "efficientdet-d0", "mask-rcnn"]
        );
        assert!(all.iter().all(|name| registry::find(name).is_ok()));
    }

    fn cells(steps_s: &[(Priority, f64)]) -> Vec<Cell> {
        let group = || scope(&["resnet50"], &[Compute::Fp32], &[]).works(&DeviceOptions::default()).unwrap().remove(0);
        let cell = |(index, &(priority, step_s)): (usize, &(Priority, f64))| Cell {
            name: index.to_string(),
            processes: 2,
            counts: MOST,
            seconds: 0.0,
            is_left_out: false,
            what: group().1,
            priority,
            step_s,
            beside_s: 10.0,
        };
        steps_s.iter().enumerate().map(cell).collect()
    }

    fn planned(steps_s: &[(Priority, f64)], hours: f64) -> Vec<Cell> {
        let mut cells = cells(steps_s);
        plan_within(&mut cells, MOST, hours * 3600.0);
        let used: f64 = cells.iter().filter(|cell| !cell.is_left_out).map(|cell| cell.seconds).sum();
        assert!(used <= hours * 3600.0, "{used} s");
        cells
    }

    #[test]
    fn steps_then_repeats_then_cells_are_left_out() {
        let first =
            |steps_s: &[f64]| -> Vec<(Priority, f64)> { steps_s.iter().map(|&step| (Priority::First, step)).collect() };
        let counts = |cells: &[Cell]| -> Vec<(usize, usize, usize)> {
            cells.iter().map(|cell| (cell.counts.warmup, cell.counts.steps, cell.counts.repeat)).collect()
        };
        let three = first(&[0.01, 1.0, 10.0]);
        assert_eq!(counts(&planned(&three, f64::INFINITY)), [(20, 100, 7); 3]);
        // The longest runs are cut, and no more than is needed.
        let some = planned(&three, 2.0);
        let all: f64 = some.iter().map(|cell| cell.seconds).sum();
        assert!(all > 4500.0 && some.iter().all(|cell| !cell.is_left_out), "{all}");
        assert_eq!(counts(&some)[0], (20, 100, 7));
        assert!(some[1].counts.steps > 3 * some[2].counts.steps && some[2].counts.repeat == 7, "{:?}", counts(&some));
        let few = planned(&three, 0.2);
        assert_eq!((few[2].counts.steps, few[2].counts.repeat), (FEW_STEPS, FEW_REPEATS));
        let left_out = |cells: &[Cell]| -> Vec<bool> { cells.iter().map(|cell| cell.is_left_out).collect() };
        assert_eq!(left_out(&planned(&first(&[0.01, 100.0, 1.0]), 0.1)), [false, true, false]);
        assert_eq!(left_out(&planned(&first(&[0.01, 1.0]), 0.001)), [true, true]);
    }

    #[test]
    fn what_matters_more_has_more_of_the_time() {
        let steps_s = [(Priority::First, 1.0), (Priority::OtherBatches, 1.0), (Priority::SeveralRanks, 1.0)];
        let steps: Vec<usize> = planned(&steps_s, 0.7).iter().map(|cell| cell.counts.steps).collect();
        assert!(steps[0] > 3 * steps[1] / 2 && steps[1] >= steps[2] && steps[2] > FEW_STEPS, "{steps:?}");
        // Much of little weight does not take the steps of what matters most.
        let mut many = vec![(Priority::First, 1.0)];
        many.resize(60, (Priority::OtherForms, 1.0));
        let cells = planned(&many, 0.7);
        let steps = [&cells[0], &cells[1]].map(|cell| cell.counts.steps);
        assert!(steps[0] > 50 && steps[1] == FEW_STEPS && cells[59].is_left_out, "{steps:?}");
    }

    #[test]
    fn a_folder_keeps_its_suite() {
        let mut differs = Vec::new();
        assert_eq!(pick("x", None, None, || 3, &mut differs), 3);
        assert_eq!(pick("x", Some(4), None, || 3, &mut differs), 4);
        assert_eq!(pick("x", None, Some(&5), || 3, &mut differs), 5);
        assert_eq!(pick("x", Some(5), Some(&5), || 3, &mut differs), 5);
        assert!(differs.is_empty());
        pick("x", Some(4), Some(&5), || 3, &mut differs);
        assert_eq!(differs, ["x"]);
        let folder = tempfile::TempDir::new().unwrap();
        assert_eq!(Saved::read(folder.path()).unwrap(), None);
        let batch_sizes = Some(vec![BatchSize::Of(8), BatchSize::Largest]);
        let saved = Saved {
            version: VERSION,
            scope: Scope { batch_sizes, ..scope(&["resnet50"], &[Compute::Bf16], &[2, 4]) },
            budget_s: Some(3600.0),
            spent_s: 1.5,
            cells: vec![("resnet50 train b8 bf16".to_owned(), MOST)],
        };
        saved.write(folder.path()).unwrap();
        assert_eq!(Saved::read(folder.path()).unwrap(), Some(saved));
        fs::write(folder.path().join(FILE), "{").unwrap();
        assert!(matches!(Saved::read(folder.path()), Err(CompareError::OtherSuite { .. })));
    }
}
