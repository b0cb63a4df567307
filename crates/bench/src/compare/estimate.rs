//! How long a comparison takes, guessed from the arithmetic of the models and then from what was measured.

use super::entrants::Known;
use super::{BatchSize, CompareError, Group, Options};
use crate::show;
use crate::workload::Work;
use bessemer_ir::DType;
use bessemer_models::classifier::flops;
use std::time::Instant;

/// Share of the machine's peak that a framework reaches, at a guess.
const GUESSED_SHARE: f64 = 0.4;
/// Seconds that a process takes beside its steps, at a guess.
const GUESSED_START_S: f64 = 5.0;
/// A guess at the largest batch.
const GUESSED_LARGEST: usize = 32;
/// Steps of a check.
const CHECK_STEPS: usize = 4;

pub(super) struct Estimate {
    /// Guessed seconds of one run of each group, by name.
    run_s: Vec<(String, f64)>,
    runs: usize,
    groups: usize,
    /// Guessed seconds of all, and of what has been done.
    all_s: f64,
    done_s: f64,
    started: Instant,
}

impl Estimate {
    pub fn of(groups: &[Group], known: &Known<'_>, options: &Options, peak_flops: f64) -> Result<Self, CompareError> {
        let (mut run_s, mut runs, mut all_s) = (Vec::new(), 0, 0.0);
        for group in groups {
            let takes_part = known.entrants(group, options).iter().filter(|entrant| entrant.excluded.is_none()).count();
            let batch = match group.batch_size {
                BatchSize::Of(number) => number,
                BatchSize::Largest => GUESSED_LARGEST,
            };
            let step_s = flops_per_sample(group)? * batch as f64 / (GUESSED_SHARE * peak_flops).max(1.0);
            let one = GUESSED_START_S + step_s * (group.warmup + group.steps) as f64;
            let check = 2.0 * GUESSED_START_S + step_s * CHECK_STEPS as f64;
            runs += takes_part * group.repeat;
            all_s += takes_part as f64 * (check + one * group.repeat as f64);
            run_s.push((group.name(), one));
        }
        Ok(Self { run_s, runs, groups: groups.len(), all_s, done_s: 0.0, started: Instant::now() })
    }

    /// What is to be done.
    pub fn told(&self) -> String {
        let Self { runs, groups, all_s, .. } = self;
        format!("{runs} runs in {groups} groups, at a guess {}", show::seconds(*all_s))
    }

    /// One run of a group has been made.
    pub fn count(&mut self, group: &Group) {
        self.done_s += self.of_run(group);
    }

    /// A group need not be measured.
    pub fn skip(&mut self, group: &Group) {
        self.all_s = (self.all_s - self.of_run(group) * group.repeat as f64).max(self.done_s);
    }

    /// Seconds that are left, once there is something to tell them by.
    pub fn left(&self) -> Option<f64> {
        (self.done_s > 0.0).then(|| {
            let elapsed = self.started.elapsed().as_secs_f64();
            (self.all_s - self.done_s).max(0.0) * elapsed / self.done_s
        })
    }

    fn of_run(&self, group: &Group) -> f64 {
        let name = group.name();
        self.run_s.iter().find(|(known, _)| *known == name).map_or(0.0, |(_, seconds)| *seconds)
    }
}

/// FLOPs of the model for one sample.
pub(super) fn flops_per_sample(group: &Group) -> Result<f64, CompareError> {
    let Group { model, mode, settings, .. } = group;
    let work = Work { model, mode: *mode, batch_size: 1, precision: DType::F32, settings: *settings };
    Ok(flops(&work.build()?.graph) as f64)
}
