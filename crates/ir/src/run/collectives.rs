//! How an executor reaches the other ranks of its job.

use super::RunError;
use crate::ops::Op;
use crate::ops::collective::{AllReduce, AllReduceStart};
use crate::plan::Plan;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Exchanges tensors with the other ranks of a job. All ranks start the same operations in the same order.
pub trait Collectives: Send + Sync {
    /// Number of ranks.
    fn ranks(&self) -> usize;

    /// Sends tensors to be added over the ranks, as one message; they may change as soon as this returns. Returns the number by which
    /// [`Collectives::wait`] knows the operation.
    ///
    /// # Errors
    /// [`RunError::Ranks`].
    fn start(&self, op: &AllReduce, tensors: &[&[f32]]) -> Result<i32, RunError>;

    /// Waits for an operation and writes its results, which have the sizes of what was sent.
    ///
    /// # Errors
    /// [`RunError::Ranks`]; the tensors are then as they were.
    fn wait(&self, number: i32, tensors: &mut [&mut [f32]]) -> Result<(), RunError>;
}

/// The other ranks of a job, as a device reaches them that adds tensors in its own memory by a library of its own.
pub trait Peers: Send + Sync {
    /// Number of this rank, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn ranks(&self) -> usize;

    /// The bytes of rank 0, which gives `Some`, on all ranks; few of them. All ranks call it alike.
    ///
    /// # Errors
    /// [`RunError::Ranks`].
    fn of_first(&self, bytes: Option<Vec<u8>>) -> Result<Vec<u8>, RunError>;

    /// Notes that this rank's device was given so many sums.
    fn begun(&self, sums: u32);

    /// Notes that all sums are done which the device was given.
    fn done(&self);

    /// Whether the job goes on; called from time to time.
    ///
    /// # Errors
    /// [`RunError::Ranks`] once it has failed, or sums have been waited for too long.
    fn check(&self) -> Result<(), RunError>;

    /// Ends the process with this error: its device does not return from a call although the job has failed.
    fn give_up(&self, error: &RunError);
}

/// The only rank of its job: what it sends comes back.
#[derive(Debug, Default)]
pub struct Alone(Mutex<HashMap<i32, Vec<Vec<f32>>>>);

impl Collectives for Alone {
    fn ranks(&self) -> usize {
        1
    }

    fn start(&self, _: &AllReduce, tensors: &[&[f32]]) -> Result<i32, RunError> {
        let mut sent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = (0..).find(|number| !sent.contains_key(number)).expect("few are under way");
        sent.insert(number, tensors.iter().map(|tensor| tensor.to_vec()).collect());
        Ok(number)
    }

    fn wait(&self, number: i32, tensors: &mut [&mut [f32]]) -> Result<(), RunError> {
        let sent = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
        let sent = sent.unwrap_or_else(|| panic!("all-reduce {number} was not started"));
        tensors.iter_mut().zip(sent).for_each(|(tensor, sent)| tensor.copy_from_slice(&sent));
        Ok(())
    }
}

/// Checks that a plan which adds tensors over ranks is for this number of ranks.
///
/// # Errors
/// [`RunError::RankCount`]
pub fn check_ranks(plan: &Plan, device: usize) -> Result<(), RunError> {
    let ranks = |id| match &plan.graph.node(id).op {
        Op::AllReduce(op) | Op::AllReduceStart(AllReduceStart { op }) => Some(op.ranks),
        _ => None,
    };
    match plan.graph.ids().filter_map(ranks).find(|&ranks| ranks != device) {
        Some(plan) => Err(RunError::RankCount { plan, device }),
        None => Ok(()),
    }
}
