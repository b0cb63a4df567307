//! Sums over ranks: through the engine of messages, or by devices, which only learn of each other here.

use super::progress::Tracker;
use bessemer_comm::CommError;
use bessemer_comm::control::FailureKind;
use bessemer_comm::engine::{Engine, Started};
use bessemer_comm::reduce::{self, Reduction};
use bessemer_ir::ops::collective::{AllReduce, Wire};
use bessemer_ir::run::{Collectives, Peers, RunError};
use std::collections::HashMap;
use std::hash::Hasher;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Between looks at the control channel while a sum is waited for.
const LOOK: Duration = Duration::from_millis(200);

/// Collectives of a step, with what heartbeats say of them.
pub(super) struct OverEngine {
    engine: Engine,
    tracker: Arc<Tracker>,
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    started: HashMap<i32, Started<reduce::AllReduce>>,
    next: i32,
}

impl OverEngine {
    pub(super) fn new(engine: Engine, tracker: Arc<Tracker>) -> Self {
        Self { engine, tracker, pending: Mutex::default() }
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    fn finish(&self, number: i32, tensors: &mut [&mut [f32]]) -> Result<(), CommError> {
        let (begun, timeout) = (Instant::now(), self.tracker.timeout);
        let started = self.pending.lock().unwrap_or_else(PoisonError::into_inner).started.remove(&number);
        let started = started.ok_or(CommError::Cancelled)?;
        let done = loop {
            if let Some(done) = started.wait_within(LOOK.min(timeout))? {
                break done;
            }
            // MPI may not return where a rank is lost.
            self.tracker.control.check()?;
            if begun.elapsed() >= timeout {
                return Err(self.tracker.stuck(begun.elapsed()));
            }
        };
        done.finish(tensors);
        self.tracker.one_is_done(begun.elapsed());
        Ok(())
    }
}

impl Collectives for OverEngine {
    fn ranks(&self) -> usize {
        self.engine.size()
    }

    fn start(&self, op: &AllReduce, tensors: &[&[f32]]) -> Result<i32, RunError> {
        self.tracker.control.check().map_err(of_ranks)?;
        let wire = match op.wire {
            Wire::F32 => reduce::Wire::F32,
            Wire::Bf16 => reduce::Wire::Bf16,
            Wire::F16 => reduce::Wire::F16,
        };
        let started = self.engine.all_reduce(tensors, wire, Reduction::Sum);
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let number = pending.next;
        pending.next = number.wrapping_add(1);
        pending.started.insert(number, started);
        self.tracker.begun(1);
        Ok(number)
    }

    fn wait(&self, number: i32, tensors: &mut [&mut [f32]]) -> Result<(), RunError> {
        self.finish(number, tensors).map_err(of_ranks)
    }
}

/// The control channel as devices see it that add by a library of their own.
pub(super) struct OfDevices {
    pub(super) tracker: Arc<Tracker>,
    pub(super) rank: usize,
    pub(super) size: usize,
    /// Ends the process with an error.
    pub(super) give_up: fn(&str),
}

impl OfDevices {
    /// The bytes of rank 0, which gives `Some`; few of them.
    pub(super) fn bytes_of_first(&self, bytes: Option<Vec<u8>>) -> Result<Vec<u8>, CommError> {
        Ok(self.tracker.control.all_gather(&bytes.unwrap_or_default(), Some(self.tracker.limit()))?.swap_remove(0))
    }
}

impl Peers for OfDevices {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.size
    }

    fn of_first(&self, bytes: Option<Vec<u8>>) -> Result<Vec<u8>, RunError> {
        self.bytes_of_first(bytes).map_err(of_ranks)
    }

    fn begun(&self, sums: u32) {
        self.tracker.begun(sums);
    }

    fn done(&self) {
        self.tracker.all_are_done();
    }

    fn check(&self) -> Result<(), RunError> {
        self.tracker.check().map_err(of_ranks)
    }

    fn give_up(&self, error: &RunError) {
        let error = error.to_string();
        if self.tracker.control.check().is_ok() {
            self.tracker.control.fail(FailureKind::Error, &error);
        }
        (self.give_up)(&error);
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
