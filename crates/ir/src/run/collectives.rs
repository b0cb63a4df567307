//! How an executor reaches the other ranks of its job.

use super::RunError;
use crate::ops::collective::AllReduce;
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
