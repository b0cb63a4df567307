//! Measures one group: prepares all entrants, checks that they do the same work, and times them in turn, round after round.

use super::check::{self, Reference, TRAINING_STEPS};
use super::entrants::Entrant;
use super::estimate::flops_per_sample;
use super::journal::{Entry, Run, State};
use super::largest::search;
use super::results::{Measured, results};
use super::{BatchSize, CompareError, Group, LOGS, Session};
use crate::peers::load::{QUIET, wait_until_quiet};
use crate::peers::process::Ended;
use crate::peers::protocol::{Answer, Failure, FailureKind, Purpose, Request, VERSION};
use crate::peers::work::{BATCHES, Order};
use crate::show;
use crate::workload::Mode;
use bessemer_train::events::{BenchResult, Verdict, WorkCheck};
use bessemer_train::tasks;
use std::fs;
use std::path::{Path, PathBuf};

/// The largest batch of the check that entrants with different batches share.
const CHECK_BATCH: usize = 2;

/// An entrant and what is known of it.
struct Candidate {
    entrant: Entrant,
    label: String,
    state: State,
}

impl Candidate {
    fn is_out(&self) -> bool {
        self.state.failed.is_some()
    }

    fn batch(&self, group: &Group) -> usize {
        match group.batch_size {
            BatchSize::Of(number) => number,
            BatchSize::Largest => self.state.largest.unwrap_or(1),
        }
    }
}

/// A group that is being measured.
struct Comparison<'s, 'a> {
    session: &'s mut Session<'a>,
    group: &'s Group,
    key: &'s str,
    candidates: Vec<Candidate>,
}

impl Session<'_> {
    /// Measures what is not measured yet.
    pub(super) fn measure(&mut self, group: &Group, key: &str) -> Result<Vec<BenchResult>, CompareError> {
        let candidate = |entrant: Entrant| {
            let label = entrant.label();
            let mut state = self.journal.state(key, &label);
            state.failed = state.failed.or_else(|| entrant.excluded.clone());
            Candidate { label, state, entrant }
        };
        let candidates = self.known.entrants(group, self.options).into_iter().map(candidate).collect();
        let mut comparison = Comparison { session: self, group, key, candidates };
        comparison.find_largest()?;
        comparison.prepare()?;
        comparison.check()?;
        comparison.rounds()?;
        let measured: Vec<Measured> = comparison
            .candidates
            .into_iter()
            .map(|candidate| Measured {
                batch_size: candidate.batch(group),
                entrant: candidate.entrant,
                state: candidate.state,
            })
            .collect();
        let peak = self.machine.limits.peak(group.precision).1 * 1e9;
        let rows =
            results(group, key, &measured, self.options.device.kind, self.machine(), peak, flops_per_sample(group)?);
        // Weights and batches can be written again, and take much room.
        let _ = fs::remove_dir_all(self.work_folder());
        Ok(rows)
    }

    fn work_folder(&self) -> PathBuf {
        self.options.folder.join("work")
    }
}

impl Comparison<'_, '_> {
    fn find_largest(&mut self) -> Result<(), CompareError> {
        if self.group.batch_size != BatchSize::Largest {
            return Ok(());
        }
        for index in 0..self.candidates.len() {
            if self.candidates[index].is_out() || self.candidates[index].state.largest.is_some() {
                continue;
            }
            let group = Group { warmup: 0, steps: 1, ..self.group.clone() };
            let mut problem = None;
            let found = search(|batch| match self.one(index, &group, batch, Purpose::Time, "fits") {
                Ok(run) => run.map(drop),
                Err(error) => {
                    problem = Some(error);
                    Err(Failure::new(FailureKind::Interrupted, ""))
                }
            });
            if let Some(error) = problem {
                return Err(error);
            }
            match found {
                Ok(batch) => {
                    let line =
                        format!("{} {}: the largest batch is {batch}", self.group.name(), self.candidates[index].label);
                    (self.session.notify)(&line);
                    self.note(index, Entry::Largest(batch))?;
                }
                Err(failure) => self.drop_out(index, failure)?,
            }
        }
        Ok(())
    }

    /// Lets all entrants compile and convert what they need, unless all is measured, or a call that was interrupted did so and
    /// checked them.
    fn prepare(&mut self) -> Result<(), CompareError> {
        for index in 0..self.candidates.len() {
            let candidate = &self.candidates[index];
            let is_measured = (1..=self.group.repeat as u64).all(|round| candidate.state.has_run(round));
            let is_prepared = is_measured || candidate.state.check.is_some();
            if candidate.is_out() || is_prepared || candidate.entrant.is_own() {
                continue;
            }
            let batch = candidate.batch(self.group);
            (self.session.notify)(&format!("{} {}: preparing", self.group.name(), candidate.label));
            let request = self.request(index, self.group, batch, Purpose::Time)?;
            let peer = self.session.known.peer(&self.candidates[index].entrant)?;
            let log = self.log(index, "prepare");
            match peer.prepare(self.session.runner, &request, &log, self.session.options.limit) {
                Ok(()) => {}
                Err(failure) => self.drop_out(index, failure)?,
            }
        }
        Ok(())
    }

    /// Compares a few steps of each entrant with Bessemer's.
    fn check(&mut self) -> Result<(), CompareError> {
        if self.candidates.iter().all(|candidate| candidate.is_out() || candidate.state.check.is_some()) {
            return Ok(());
        }
        let batch = match self.group.batch_size {
            BatchSize::Of(number) => number,
            BatchSize::Largest => {
                let batches = self
                    .candidates
                    .iter()
                    .filter(|candidate| !candidate.is_out())
                    .map(|candidate| candidate.batch(self.group));
                batches.min().unwrap_or(1).min(CHECK_BATCH)
            }
        };
        let group = Group {
            warmup: 0,
            steps: if self.group.mode == Mode::Train { TRAINING_STEPS } else { BATCHES },
            ..self.group.clone()
        };
        let reference = self.session.known.reference();
        let label = reference.label();
        let place = self.candidates.iter().position(|candidate| candidate.label == label);
        let is_guest = place.is_none();
        let own = place.unwrap_or_else(|| {
            self.candidates.push(Candidate { entrant: reference, label, state: State::default() });
            self.candidates.len() - 1
        });
        let truth = self.one(own, &group, batch, Purpose::Check, "check")?;
        for index in 0..self.candidates.len() {
            if self.candidates[index].is_out() || self.candidates[index].state.check.is_some() {
                continue;
            }
            let check = match (&truth, index == own) {
                (Err(failure), _) => {
                    WorkCheck { note: Some(format!("Bessemer itself: {failure}")), ..WorkCheck::default() }
                }
                (Ok(_), true) => WorkCheck { verdict: Verdict::Same, ..WorkCheck::default() },
                (Ok((answer, _)), false) => match self.one(index, &group, batch, Purpose::Check, "check")? {
                    Ok((found, _)) => {
                        let ours = self.outputs(&self.candidates[own].label);
                        let reference = Reference { answer, outputs: &ours };
                        let theirs = self.outputs(&self.candidates[index].label);
                        check::compare(self.group, reference, &found, &theirs)
                    }
                    Err(failure) => {
                        self.drop_out(index, failure)?;
                        continue;
                    }
                },
            };
            if index != own || !is_guest {
                self.session.estimate.checked(self.group);
                self.tell_check(index, &check);
                self.note(index, Entry::Checked(check))?;
            }
        }
        if is_guest {
            self.candidates.remove(own);
        } else if let Err(failure) = truth {
            self.drop_out(own, failure)?;
        }
        Ok(())
    }

    fn tell_check(&mut self, index: usize, check: &WorkCheck) {
        let verdict = match check.verdict {
            Verdict::Same => "the same work",
            Verdict::Different => "not the same work",
            Verdict::Unchecked => "not checked",
        };
        let note = check.note.as_ref().map_or_else(String::new, |note| format!(": {note}"));
        (self.session.notify)(&format!("{} {}: {verdict}{note}", self.group.name(), self.candidates[index].label));
    }

    /// Times all entrants in turn.
    fn rounds(&mut self) -> Result<(), CompareError> {
        let repeat = self.group.repeat as u64;
        for round in 1..=repeat {
            for index in 0..self.candidates.len() {
                if self.candidates[index].is_out() || self.candidates[index].state.has_run(round) {
                    continue;
                }
                let busy_before = wait_until_quiet(self.session.options.patience, &self.session.runner.stop);
                let batch = self.candidates[index].batch(self.group);
                let run = self.one(index, self.group, batch, Purpose::Time, &format!("round{round}"))?;
                match run {
                    Ok((answer, ended)) => {
                        self.session.estimate.ran(self.group, ended.wall_s);
                        let rate = answer.throughput(batch);
                        let Ended { wall_s, others_busy, .. } = ended;
                        self.tell_run(index, round, rate, others_busy);
                        let run = Run { round, answer, wall_s, busy_before, others_busy };
                        self.note(index, Entry::Ran(Box::new(run)))?;
                    }
                    Err(failure) => self.drop_out(index, failure)?,
                }
            }
        }
        Ok(())
    }

    fn tell_run(&mut self, index: usize, round: u64, rate: f64, others_busy: Option<f64>) {
        let unit = tasks::metric_schema(&self.group.model).unit;
        let others = others_busy.filter(|busy| *busy > QUIET);
        let others =
            others.map_or_else(String::new, |busy| format!(", others used {} of the processors", show::percent(busy)));
        let (name, label, repeat) = (self.group.name(), &self.candidates[index].label, self.group.repeat);
        let rate = show::significant(rate, 4);
        let line = format!("{name} {label}, round {round} of {repeat}: {rate} {unit}{others}");
        self.session.progress(&line);
    }

    /// One run in a fresh process.
    fn one(
        &mut self,
        index: usize,
        group: &Group,
        batch: usize,
        purpose: Purpose,
        what: &str,
    ) -> Result<Result<(Answer, Ended), Failure>, CompareError> {
        let request = self.request(index, group, batch, purpose)?;
        let peer = self.session.known.peer(&self.candidates[index].entrant)?;
        let run = peer.run(self.session.runner, &request, &self.log(index, what), self.session.options.limit);
        match run {
            Err(failure) if failure.kind == FailureKind::Interrupted => Err(CompareError::Interrupted),
            run => Ok(run),
        }
    }

    fn request(&self, index: usize, group: &Group, batch: usize, purpose: Purpose) -> Result<Request, CompareError> {
        let Candidate { entrant, label, .. } = &self.candidates[index];
        let options = self.session.options;
        let absolute = |path: PathBuf| std::path::absolute(&path).map_err(CompareError::at(&path));
        let outputs = (purpose == Purpose::Check && group.mode == Mode::Infer).then(|| self.outputs(label));
        let order = Order {
            model: group.model.clone(),
            mode: group.mode,
            batch_size: batch,
            settings: group.settings,
            seed: options.seed,
        };
        let folder = self.session.work_folder();
        let work = folder.join(format!("{}-{}-b{batch}", group.model, group.mode.name()));
        order.write(&work, &folder)?;
        Ok(Request {
            protocol: VERSION,
            variant: entrant.variant.clone(),
            model: group.model.clone(),
            mode: group.mode,
            batch_size: batch,
            precision: group.precision.name().to_owned(),
            threads: options.device.threads,
            warmup: group.warmup,
            steps: group.steps,
            seed: options.seed,
            purpose,
            work: absolute(work)?,
            cache: self.session.known.peer(entrant)?.cache().to_owned(),
            outputs: outputs.map(absolute).transpose()?,
            device: options.device.kind,
            gpu_libraries: options.device.gpu_libraries.clone(),
        })
    }

    fn outputs(&self, label: &str) -> PathBuf {
        self.session.work_folder().join(format!("outputs-{label}.safetensors"))
    }

    /// Where an entrant's output goes, without an ending.
    fn log(&self, index: usize, what: &str) -> PathBuf {
        let name = format!("{} {} {what}", self.group.name(), self.candidates[index].label).replace(' ', "-");
        let path: &Path = &self.session.options.folder.join(LOGS).join(name);
        std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
    }

    fn note(&mut self, index: usize, entry: Entry) -> Result<(), CompareError> {
        let candidate = &mut self.candidates[index];
        self.session.journal.note(self.key, &candidate.label, entry)?;
        candidate.state = self.session.journal.state(self.key, &candidate.label);
        Ok(())
    }

    /// The entrant takes no further part, but for a stop of the comparison itself.
    fn drop_out(&mut self, index: usize, failure: Failure) -> Result<(), CompareError> {
        if failure.kind == FailureKind::Interrupted {
            return Err(CompareError::Interrupted);
        }
        (self.session.notify)(&format!("{} {}: {failure}", self.group.name(), self.candidates[index].label));
        self.note(index, Entry::Failed(failure))
    }
}
