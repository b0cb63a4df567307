//! How long a comparison takes, guessed from the arithmetic of the models and then from what was measured.

use super::entrants::Known;
use super::{BatchSize, CompareError, Group, Options};
use crate::show;
use crate::workload::Work;
use bessemer_ir::DType;
use bessemer_models::flops;

/// Share of the machine's peak that a framework reaches, at a guess.
const GUESSED_SHARE: f64 = 0.4;
/// Seconds that a process takes beside its steps, at a guess.
const GUESSED_START_S: f64 = 5.0;
/// A guess at the largest batch.
const GUESSED_LARGEST: usize = 32;
/// Steps of a check.
const CHECK_STEPS: usize = 4;

pub(super) struct Estimate {
    parts: Vec<(String, Part)>,
    runs: usize,
    /// Estimated seconds of the runs still to make in the current group, and of the later groups.
    here_s: f64,
    later_s: f64,
    /// Guessed and measured seconds of the runs that were made.
    guessed_s: f64,
    measured_s: f64,
}

/// Guessed seconds of a group.
#[derive(Clone, Copy, Default)]
struct Part {
    entrants: usize,
    /// Of one entrant.
    check_s: f64,
    run_s: f64,
}

impl Estimate {
    pub(super) fn of(
        groups: &[Group],
        known: &Known<'_>,
        options: &Options,
        peak_flops: f64,
    ) -> Result<Self, CompareError> {
        let mut estimate =
            Self { parts: Vec::new(), runs: 0, here_s: 0.0, later_s: 0.0, guessed_s: 0.0, measured_s: 0.0 };
        for group in groups {
            let entrants = known.entrants(group, options).iter().filter(|entrant| entrant.excluded.is_none()).count();
            let batch = match group.batch_size {
                BatchSize::Of(number) => number,
                BatchSize::Largest => GUESSED_LARGEST,
            };
            let step_s = flops_per_sample(group)? * batch as f64 / (GUESSED_SHARE * peak_flops).max(1.0);
            let run_s = GUESSED_START_S + step_s * (group.warmup + group.steps) as f64;
            let check_s = 2.0 * GUESSED_START_S + step_s * CHECK_STEPS as f64;
            let part = Part { entrants, check_s, run_s };
            estimate.runs += entrants * group.repeat;
            estimate.later_s += part.whole(group);
            estimate.parts.push((group.name(), part));
        }
        Ok(estimate)
    }

    /// What is to be done.
    pub(super) fn text(&self) -> String {
        let Self { parts, runs, later_s, .. } = self;
        format!("{runs} runs in {} groups, at a guess {}", parts.len(), show::seconds(*later_s))
    }

    /// One entrant of a group has been prepared and checked.
    pub(super) fn checked(&mut self, group: &Group) {
        self.here_s -= self.part(group).check_s;
    }

    /// Notes that one run of a group took `seconds`.
    pub(super) fn ran(&mut self, group: &Group, seconds: f64) {
        let guess = self.part(group).run_s;
        self.here_s -= guess;
        self.guessed_s += guess;
        self.measured_s += seconds;
    }

    /// A group is next; whatever the one before did not need is not counted any more.
    pub(super) fn begin(&mut self, group: &Group) {
        self.here_s = self.part(group).whole(group);
        self.later_s -= self.here_s;
    }

    /// Seconds that are left, once they can be estimated.
    pub(super) fn left(&self) -> Option<f64> {
        (self.guessed_s > 0.0).then(|| (self.here_s + self.later_s).max(0.0) * self.measured_s / self.guessed_s)
    }

    fn part(&self, group: &Group) -> Part {
        let name = group.name();
        self.parts.iter().find(|(known, _)| *known == name).map_or(Part::default(), |(_, part)| *part)
    }
}

impl Part {
    fn whole(self, group: &Group) -> f64 {
        self.entrants as f64 * (self.check_s + self.run_s * group.repeat as f64)
    }
}

/// FLOPs of the model for one sample.
pub(super) fn flops_per_sample(group: &Group) -> Result<f64, CompareError> {
    let Group { model, mode, settings, .. } = group;
    let work = Work { model, mode: *mode, batch_size: 1, precision: DType::F32, settings: *settings };
    Ok(flops(&work.build()?.graph) as f64)
}
