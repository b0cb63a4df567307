//! How long a comparison takes, guessed from the arithmetic of the models and then from what was measured.

use super::entrants::Known;
use super::{BatchSize, CompareError, Group, Options};
use crate::machine::Limits;
use crate::show;
use crate::workload::Work;
use bessemer_ir::DType;
use bessemer_models::flops;

/// Share of the machine's peak that a framework reaches, at a guess.
const GUESSED_SHARE: f64 = 0.3;
/// Seconds that a process takes beside its steps, at a guess.
pub(super) const GUESSED_START_S: f64 = 5.0;
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
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Part {
    pub entrants: usize,
    /// Of a step.
    pub step_s: f64,
    /// Of the search for the largest batch of one entrant.
    search_s: f64,
    /// Of the preparation and the check of one entrant.
    check_s: f64,
    run_s: f64,
}

impl Estimate {
    pub(super) fn of(
        groups: &[Group],
        known: &Known<'_>,
        options: &Options,
        limits: &Limits,
    ) -> Result<Self, CompareError> {
        let mut estimate =
            Self { parts: Vec::new(), runs: 0, here_s: 0.0, later_s: 0.0, guessed_s: 0.0, measured_s: 0.0 };
        for group in groups {
            let entrants = known.entrants(group, options).iter().filter(|entrant| entrant.excluded.is_none()).count();
            let part = Part::guess(group, entrants, limits)?;
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
        (self.guessed_s > 0.0).then(|| self.corrected((self.here_s + self.later_s).max(0.0)))
    }

    /// Seconds of a group, from what groups before it took.
    pub(super) fn expected(&self, group: &Group) -> f64 {
        self.corrected(self.part(group).whole(group))
    }

    /// A guess, held against those that are known to be wrong by now.
    pub(super) fn corrected(&self, guess_s: f64) -> f64 {
        if self.guessed_s > 0.0 { guess_s * self.measured_s / self.guessed_s } else { guess_s }
    }

    fn part(&self, group: &Group) -> Part {
        let name = group.name();
        self.parts.iter().find(|(known, _)| *known == name).map_or(Part::default(), |(_, part)| *part)
    }
}

impl Part {
    pub(super) fn guess(group: &Group, entrants: usize, limits: &Limits) -> Result<Self, CompareError> {
        let flops = GUESSED_SHARE * limits.peak(group.precision).1 * 1e9;
        let sample_s = flops_per_sample(group)? / flops.max(1.0);
        let (batch, search_s) = match group.batch_size {
            BatchSize::Of(number) => (number, 0.0),
            // Steps of 1, 2, 4 and so on, and as many samples again to tell where between the last two it is.
            BatchSize::Largest => {
                let steps = 2.0 * f64::from(GUESSED_LARGEST.ilog2());
                (GUESSED_LARGEST, steps * GUESSED_START_S + 4.0 * GUESSED_LARGEST as f64 * sample_s)
            }
        };
        let step_s = sample_s * batch as f64;
        let run_s = run_s(step_s, group.warmup + group.steps);
        Ok(Self { entrants, step_s, search_s, check_s: GUESSED_START_S + self::run_s(step_s, CHECK_STEPS), run_s })
    }

    /// Seconds beside the runs.
    pub(super) fn beside_s(self) -> f64 {
        self.entrants as f64 * (self.search_s + self.check_s)
    }

    pub(super) fn whole(self, group: &Group) -> f64 {
        self.beside_s() + self.run_s * (self.entrants * group.repeat) as f64
    }
}

/// Guessed seconds of a process with so many steps.
pub(super) fn run_s(step_s: f64, steps: usize) -> f64 {
    GUESSED_START_S + step_s * steps as f64
}

/// FLOPs of the model for one sample.
pub(super) fn flops_per_sample(group: &Group) -> Result<f64, CompareError> {
    let Group { model, mode, settings, .. } = group;
    let work = Work { model, mode: *mode, batch_size: 1, precision: DType::F32, settings: *settings };
    Ok(flops(&work.build()?.graph) as f64)
}
