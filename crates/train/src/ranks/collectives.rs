//! Sums over ranks through the engine of messages.

use bessemer_comm::CommError;
use bessemer_comm::control::{Control, Progress};
use bessemer_comm::engine::{Engine, Started};
use bessemer_comm::reduce::{self, Reduction};
use bessemer_ir::ops::collective::{AllReduce, Wire};
use bessemer_ir::run::{Collectives, RunError};
use std::collections::HashMap;
use std::hash::Hasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Between looks at the control channel while a sum is waited for.
const LOOK: Duration = Duration::from_millis(200);

/// Collectives of a step, with what heartbeats say of them.
pub(super) struct OverEngine {
    engine: Engine,
    control: Arc<Control>,
    timeout: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    pending: HashMap<i32, Started<reduce::AllReduce>>,
    next: i32,
    progress: Progress,
    waited: Duration,
}

impl OverEngine {
    pub(super) fn new(engine: Engine, control: Arc<Control>, timeout: Duration) -> Self {
        Self { engine, control, timeout, state: Mutex::default() }
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
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

    pub(super) fn take_waited(&self) -> Duration {
        std::mem::take(&mut self.state().waited)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self, number: i32, tensors: &mut [&mut [f32]]) -> Result<(), CommError> {
        let begun = Instant::now();
        let started = self.state().pending.remove(&number).ok_or(CommError::Cancelled)?;
        let done = loop {
            if let Some(done) = started.wait_within(LOOK.min(self.timeout))? {
                break done;
            }
            // MPI may not return where a rank is lost.
            self.control.check()?;
            if begun.elapsed() >= self.timeout {
                let progress = self.state().progress;
                return Err(self.control.stuck(progress, begun.elapsed()));
            }
        };
        done.finish(tensors);
        let mut state = self.state();
        state.waited += begun.elapsed();
        state.progress.done += 1;
        self.control.report(state.progress);
        Ok(())
    }
}

impl Collectives for OverEngine {
    fn ranks(&self) -> usize {
        self.engine.size()
    }

    fn start(&self, op: &AllReduce, tensors: &[&[f32]]) -> Result<i32, RunError> {
        self.control.check().map_err(of_ranks)?;
        let wire = match op.wire {
            Wire::F32 => reduce::Wire::F32,
            Wire::Bf16 => reduce::Wire::Bf16,
            Wire::F16 => reduce::Wire::F16,
        };
        let started = self.engine.all_reduce(tensors, wire, Reduction::Sum);
        let mut state = self.state();
        let number = state.next;
        state.next = number.wrapping_add(1);
        state.pending.insert(number, started);
        state.progress.begun += 1;
        self.control.report(state.progress);
        Ok(number)
    }

    fn wait(&self, number: i32, tensors: &mut [&mut [f32]]) -> Result<(), RunError> {
        self.finish(number, tensors).map_err(of_ranks)
    }
}

fn of_ranks(error: CommError) -> RunError {
    RunError::Ranks(Box::new(error))
}

/// A hash that is the same in all processes of one program.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}
