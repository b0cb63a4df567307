//! Batches in the order of a run.

use crate::error::TrainError;
use bessemer_data::{Batch, Feeds, Position, StageTimes};
use std::time::Duration;

/// Batches in an order that the seed decides.
pub trait Batches {
    /// The next batch of the epoch; `None` once at the end of each epoch, and for ever after the last.
    fn next(&mut self) -> Option<Result<Batch, TrainError>>;

    /// Gives the arrays of a batch back for reuse.
    fn recycle(&mut self, feeds: Feeds);

    /// The place of the next batch. Batches that are begun there go on in the same way.
    fn position(&self) -> Position;

    /// Time spent waiting for batches.
    fn waited(&self) -> Duration;

    /// Time of the threads that prepare batches.
    fn stages(&self) -> StageTimes;
}

/// The next batch, of the next epoch where one has ended, for a step of the run.
///
/// # Errors
/// [`TrainError::DataEnded`] where there is none any more; what loading the batch gave.
pub fn next_of(batches: &mut dyn Batches, step: u64) -> Result<Batch, TrainError> {
    // Between two epochs there is `None` once.
    let next = batches.next().or_else(|| batches.next());
    next.unwrap_or_else(|| Err(TrainError::DataEnded { position: batches.position(), step }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Batches with the ends of epochs between them, and nothing for ever after.
    struct Listed(VecDeque<Option<usize>>);

    impl Batches for Listed {
        fn next(&mut self) -> Option<Result<Batch, TrainError>> {
            let samples = self.0.pop_front()??;
            Some(Ok(Batch { samples, ..Batch::default() }))
        }

        fn recycle(&mut self, _: Feeds) {}

        fn position(&self) -> Position {
            Position { epoch: 2, batch: 0 }
        }

        fn waited(&self) -> Duration {
            Duration::ZERO
        }

        fn stages(&self) -> StageTimes {
            StageTimes::default()
        }
    }

    #[test]
    fn the_end_of_an_epoch_is_passed_over_and_the_end_of_the_data_is_an_error() {
        let mut batches = Listed([Some(1), None, Some(2), None].into());
        assert_eq!(next_of(&mut batches, 0).expect("a batch").samples, 1);
        assert_eq!(next_of(&mut batches, 1).expect("a batch of the next epoch").samples, 2);
        let error = next_of(&mut batches, 2).expect_err("no epoch follows");
        assert_eq!(error.to_string(), "the data ended after 2 steps, at epoch 2, batch 0: the run needs more");
    }
}
