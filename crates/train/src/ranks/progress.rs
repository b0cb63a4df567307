//! Where this rank is, as its heartbeats say it, and how long it waits for others.

use bessemer_comm::CommError;
use bessemer_comm::control::{Control, Phase, Progress};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Sums over ranks that were begun and done.
pub(super) struct Tracker {
    pub(super) control: Control,
    /// How long a sum is waited for.
    pub(super) timeout: Duration,
    /// How long what ranks tell each other before the first step is waited for.
    start_timeout: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    progress: Progress,
    waited: Duration,
    /// When the first of the sums under way was begun.
    begun: Option<Instant>,
}

impl Tracker {
    pub(super) fn new(control: Control, timeout: Duration, start_timeout: Duration) -> Self {
        Self { control, timeout, start_timeout, state: Mutex::default() }
    }

    /// The control channel, of which nobody else knows any more.
    pub(super) fn into_control(self) -> Control {
        self.control
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long what ranks tell each other is waited for.
    pub(super) fn limit(&self) -> Duration {
        if self.state().progress.phase == Phase::Start { self.start_timeout } else { self.timeout }
    }

    /// A new place in the run; what was begun of the same step stays.
    pub(super) fn report(&self, progress: Progress) {
        let mut state = self.state();
        let Progress { step, begun, done, collectives, .. } = state.progress;
        let same_step = step == progress.step;
        let (begun, done) = if same_step { (begun, done) } else { (0, 0) };
        // The number of a step's collectives is that of the step before.
        let collectives = if same_step { collectives } else { state.progress.begun.max(collectives) };
        state.progress = Progress { begun, done, collectives, ..progress };
        self.control.report(state.progress);
    }

    pub(super) fn begun(&self, sums: u32) {
        if sums > 0 {
            let mut state = self.state();
            state.progress.begun += sums;
            state.begun.get_or_insert_with(Instant::now);
            self.control.report(state.progress);
        }
    }

    /// One more is done, for which this rank waited.
    pub(super) fn one_is_done(&self, waited: Duration) {
        let mut state = self.state();
        state.waited += waited;
        state.progress.done += 1;
        if state.progress.done >= state.progress.begun {
            state.begun = None;
        }
        self.control.report(state.progress);
    }

    pub(super) fn all_are_done(&self) {
        let mut state = self.state();
        (state.progress.done, state.begun) = (state.progress.begun, None);
        self.control.report(state.progress);
    }

    pub(super) fn take_waited(&self) -> Duration {
        std::mem::take(&mut self.state().waited)
    }

    /// Ends the job because a sum was waited for so long.
    pub(super) fn stuck(&self, waited: Duration) -> CommError {
        let progress = self.state().progress;
        self.control.stuck(progress, waited)
    }

    /// # Errors
    /// The job has failed, or sums are under way for too long, which ends it.
    pub(super) fn check(&self) -> Result<(), CommError> {
        self.control.check()?;
        let begun = self.state().begun;
        match begun.map(|begun| begun.elapsed()).filter(|waited| *waited >= self.timeout) {
            Some(waited) => Err(self.stuck(waited)),
            None => Ok(()),
        }
    }
}
