//! How many steps and repeats fit into the time that a measurement may take.

use crate::measure::Request;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Time for a measurement. As many warm-up steps, timed steps and repeats are made as fit, up to those of the request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Budget {
    /// For a trial, all repeats, and the start of each.
    pub time: Duration,
    /// Whether the warm-up steps of the request are made in any case.
    pub keeps_warmup: bool,
    /// Whether its timed steps are.
    pub keeps_steps: bool,
    /// Whether its repeats are.
    pub keeps_repeat: bool,
}

/// What a few steps told of the time of more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Trial {
    /// Seconds until the first step.
    pub start_s: f64,
    /// Seconds of a step.
    pub step_s: f64,
    /// Seconds of the budget that are left.
    pub left_s: f64,
}

/// Warm-up and timed steps of a trial.
pub(crate) const TRIAL_STEPS: (usize, usize) = (1, 2);
/// Repeats whose median is worth more than more steps of fewer of them.
const FEW_REPEATS: usize = 3;
/// Steps without which one repeat is better than [`FEW_REPEATS`].
const FEW_STEPS: usize = 5;
/// One step of so many is a warm-up.
const WARMUP_SHARE: usize = 6;

impl Budget {
    /// The trial before a measurement.
    pub(crate) fn trial(request: &Request) -> Request {
        let (warmup, steps) = TRIAL_STEPS;
        Request { warmup, steps, repeat: 1, budget: None, ..request.clone() }
    }

    /// The request with the counts that fit behind a trial; `None` if the trial is all that there is time for.
    pub(crate) fn fit(self, request: &Request, trial: Trial) -> Option<Request> {
        let of = |repeat: usize| self.counts(request, trial, repeat);
        let least = |repeat: usize| self.kept(request, &Request { warmup: 1, steps: 1, repeat, ..request.clone() });
        let most = request.repeat;
        if self.keeps_repeat {
            return Some(of(most).unwrap_or_else(|| least(most)));
        }
        let all = |repeat: usize| of(repeat).filter(|fitted| has_all(fitted, request));
        let fitted = (FEW_REPEATS.min(most)..=most).rev().find_map(all);
        let fitted = fitted.or_else(|| of(FEW_REPEATS).filter(|fitted| fitted.steps >= FEW_STEPS));
        let fitted = fitted.or_else(|| of(1).filter(|fitted| fitted.steps > TRIAL_STEPS.1));
        fitted.or_else(|| self.keeps_steps.then(|| least(1)))
    }

    /// With so many repeats; `None` if there is no time for a step in each.
    fn counts(self, request: &Request, trial: Trial, repeat: usize) -> Option<Request> {
        let steps = (trial.left_s / repeat as f64 - trial.start_s) / trial.step_s;
        let steps = if steps.is_finite() { steps.clamp(0.0, 1e9) as usize } else { 0 };
        let warmup =
            if self.keeps_warmup { request.warmup } else { (steps / WARMUP_SHARE).clamp(1, request.warmup.max(1)) };
        let timed = steps.saturating_sub(warmup).min(request.steps);
        let fitted = self.kept(request, &Request { warmup, steps: timed, repeat, ..request.clone() });
        (fitted.steps > 0 && fitted.warmup + fitted.steps <= steps).then_some(fitted)
    }

    /// `fitted` with what is to be kept of the request.
    fn kept(self, request: &Request, fitted: &Request) -> Request {
        Request {
            warmup: if self.keeps_warmup { request.warmup } else { fitted.warmup },
            steps: if self.keeps_steps { request.steps } else { fitted.steps },
            ..fitted.clone()
        }
    }
}

fn has_all(fitted: &Request, request: &Request) -> bool {
    fitted.steps >= request.steps && fitted.warmup >= request.warmup
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Mode;

    const OPEN: Budget =
        Budget { time: Duration::from_secs(60), keeps_warmup: false, keeps_steps: false, keeps_repeat: false };

    fn counts(budget: Budget, step_s: f64) -> Option<(usize, usize, usize)> {
        let request = Request { budget: Some(budget), ..Request::of("resnet50", Mode::Train, 8) };
        let trial = Trial { start_s: 3.0, step_s, left_s: 54.0 };
        budget.fit(&request, trial).map(|fitted| (fitted.warmup, fitted.steps, fitted.repeat))
    }

    #[test]
    fn what_fits_is_made() {
        assert_eq!(counts(OPEN, 0.001), Some((20, 100, 7)));
        assert_eq!(counts(OPEN, 0.07), Some((20, 100, 4)));
        assert_eq!(counts(OPEN, 0.5), Some((5, 25, 3)));
        assert_eq!(counts(OPEN, 5.0), Some((1, 9, 1)), "three repeats would have two steps each");
        assert_eq!(counts(OPEN, 30.0), None);
        let seconds = |(warmup, steps, repeat): (usize, usize, usize), step_s: f64| {
            repeat as f64 * (3.0 + (warmup + steps) as f64 * step_s)
        };
        for step_s in [0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.7, 1.5, 3.0, 7.0, 12.0] {
            let made = counts(OPEN, step_s).expect("some steps");
            assert!(seconds(made, step_s) <= 54.0, "{made:?} of {step_s} s");
        }
    }

    #[test]
    fn what_is_asked_for_is_kept() {
        assert_eq!(counts(Budget { keeps_steps: true, ..OPEN }, 0.1), Some((20, 100, 3)));
        assert_eq!(counts(Budget { keeps_repeat: true, ..OPEN }, 0.5), Some((1, 8, 7)));
        assert_eq!(counts(Budget { keeps_repeat: true, ..OPEN }, 30.0), Some((1, 1, 7)));
        assert_eq!(counts(Budget { keeps_warmup: true, ..OPEN }, 0.5), Some((20, 10, 3)));
        assert_eq!(
            counts(Budget { keeps_steps: true, ..OPEN }, 3.0),
            Some((1, 100, 1)),
            "asked for, though it takes longer"
        );
    }
}
