//! The largest batch that fits into the memory of a device.

use crate::error::TrainError;
use bessemer_cuda::OutOfMemory;
use bessemer_cuda::sheet::scratch_bytes;
use bessemer_ir::plan::Plan;
use bessemer_ir::run::{Device, RunError};
use std::convert::Infallible;

/// Memory of a plan and of its state, on a GPU with that of libraries, at most.
pub fn plan_bytes(plan: &Plan) -> u64 {
    (plan.memory_bytes() + scratch_bytes(plan)) as u64
}

/// A step whose batch does not fit into the memory of its device.
#[derive(Debug, thiserror::Error)]
#[error("{source}; a batch of {batch_size} does not fit, {} ({setting})", what_fits(*largest))]
pub struct BatchTooLarge {
    /// What there is no memory for.
    pub source: RunError,
    /// Samples of the batch.
    pub batch_size: usize,
    /// The largest batch whose plan fits, or one that is smaller by 2 % at most; `None` if not even one sample does.
    pub largest: Option<usize>,
    /// The option or field that sets the batch.
    pub setting: &'static str,
}

fn what_fits(largest: Option<usize>) -> String {
    match largest {
        Some(largest) => format!("one of {largest} does"),
        None => "and not even one sample does".to_owned(),
    }
}

/// A batch, and the option or field that sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Samples.
    pub size: usize,
    /// As on the command line or in a recipe.
    pub setting: &'static str,
}

impl Batch {
    /// Turns the error of a step that found no memory on a GPU into one that says which batch fits. `bytes` gives the memory of the step with
    /// so many samples, as far as it is not in use for something else, and none where there is no such step. Other errors, and such that
    /// this does not explain, stay what they are.
    ///
    /// # Errors
    /// The error that was given, where it stays what it is.
    pub fn explained(
        self,
        error: RunError,
        device: &dyn Device,
        mut bytes: impl FnMut(usize) -> Option<u64>,
    ) -> Result<Box<BatchTooLarge>, RunError> {
        let Batch { size: batch_size, setting } = self;
        let Some(limit) = room(&error, device) else { return Err(error) };
        let mut looks = 0;
        let look = |samples| {
            looks += 1;
            Ok::<_, Infallible>(if looks <= MOST_LOOKS { bytes(samples) } else { None })
        };
        let Ok(largest) = largest_batch(limit, batch_size, CLOSE, look);
        match largest {
            Some(largest) if largest >= batch_size => Err(error),
            _ => Ok(Box::new(BatchTooLarge { source: error, batch_size, largest, setting })),
        }
    }

    /// As [`Batch::explained`].
    pub(crate) fn explain(
        self,
        error: TrainError,
        device: &dyn Device,
        bytes: impl FnMut(usize) -> Option<u64>,
    ) -> TrainError {
        match error {
            TrainError::Run(error) => match self.explained(error, device, bytes) {
                Ok(too_large) => too_large.into(),
                Err(error) => error.into(),
            },
            error => error,
        }
    }
}

/// Plans that are compiled for an error, at most; a plan of a large model takes a second. Batches that nobody looked at then count as
/// too large.
const MOST_LOOKS: usize = 12;

/// How much smaller than the largest batch the one that an error names may be, as a share of it: few looks then find it.
const CLOSE: f64 = 0.02;

/// Bytes that a step which found no memory may have, now that what was made of it is gone.
fn room(error: &RunError, device: &dyn Device) -> Option<u64> {
    let RunError::Memory { source, .. } = error else { return None };
    let found: &OutOfMemory = source.get_ref()?.downcast_ref()?;
    (found.free? + found.used()).checked_sub(device.memory_in_use()?)
}

/// The largest batch whose bytes are within the limit, where more samples need no less, or one that is smaller by the share `close` of it
/// at most; `start` is one that is cheap to look at. `bytes` gives none for a batch that has no plan.
///
/// The memory of a plan grows almost linearly with the batch: the line through two plans gives a guess, and the line between the
/// largest batch that fits and the smallest that does not gives the next, unless two such guesses have not halved what lies
/// between.
///
/// # Errors
/// Those of `bytes`.
pub fn largest_batch<E>(
    limit: u64,
    start: usize,
    close: f64,
    mut bytes: impl FnMut(usize) -> Result<Option<u64>, E>,
) -> Result<Option<usize>, E> {
    let Some(one) = bytes(1)?.filter(|&one| one <= limit) else { return Ok(None) };
    let (mut good, mut good_bytes) = (1, one);
    let mut bad: Option<(usize, Option<u64>)> = None;
    let mut next = if start > 1 { start } else { FEW_SAMPLES };
    // How much lay between the two before the last two guesses.
    let mut gaps = [usize::MAX; 2];
    // Grows while guesses are too small.
    let mut step = 1;
    loop {
        let found = bytes(next)?;
        match found {
            Some(found) if found <= limit => (good, good_bytes) = (next, found),
            too_many => bad = Some((next, too_many)),
        }
        let (from, to) = match bad {
            // The line from one sample on.
            None if good >= MOST_SAMPLES => return Ok(Some(good)),
            None => {
                step *= 4;
                ((1, one), (good, good_bytes))
            }
            Some((bad, _)) if bad - good <= 1 + (close * good as f64) as usize => return Ok(Some(good)),
            Some((bad, Some(bad_bytes))) => ((good, good_bytes), (bad, bad_bytes)),
            Some((bad, None)) => ((good, good_bytes), (bad, u64::MAX)),
        };
        let per_sample = (to.1.saturating_sub(from.1) as f64 / (to.0 - from.0) as f64).max(1.0);
        let guess = from.0.saturating_add(((limit - from.1) as f64 / per_sample) as usize);
        // From below, one that is too large may be close enough to end the search.
        let beyond = if good == next { (close * good as f64) as usize } else { 0 };
        let guess = guess.saturating_add(beyond);
        let (least, most) = match bad {
            None => ((good + step / 16).clamp(good + 1, MOST_SAMPLES), MOST_SAMPLES),
            Some((bad, _)) => (good + 1, bad - 1),
        };
        let gap = most - least;
        let is_slow = bad.is_some_and(|(_, bytes)| bytes.is_none()) || gap > gaps[0] / 2;
        next = if is_slow { least.midpoint(most) } else { guess.clamp(least, most) };
        gaps = [gaps[1], gap];
    }
}

/// A second batch to look at, where the first has one sample.
const FEW_SAMPLES: usize = 9;

/// No batch is larger.
const MOST_SAMPLES: usize = 1 << 24;

#[cfg(test)]
mod tests {
    use super::*;

    /// What the search finds in so many looks, and the largest of all batches that fit.
    fn found(limit: u64, start: usize, bytes: &dyn Fn(usize) -> Option<u64>) -> (Option<usize>, usize) {
        let mut looks = 0;
        let look = |batch: usize| {
            looks += 1;
            Ok::<_, ()>(bytes(batch))
        };
        let found = largest_batch(limit, start, 0.0, look).unwrap();
        let all = (1..).take_while(|&batch| bytes(batch).is_some_and(|bytes| bytes <= limit)).last();
        assert_eq!(found, all, "limit {limit}, start {start}");
        (found, looks)
    }

    /// Bytes that a batch takes; `None` if it has no plan.
    type Bytes<'a> = &'a dyn Fn(usize) -> Option<u64>;

    #[test]
    fn the_largest_batch_is_that_of_trying_all() {
        let affine = |batch: usize| Some(1000 + 37 * batch as u64);
        let padded = |batch: usize| Some(500 + (31 * batch as u64).next_multiple_of(256));
        let bent = |batch: usize| Some(900 + 20 * batch as u64 + 15 * (batch as u64).saturating_sub(700));
        let flat = |batch: usize| Some(2000 + 50 * batch as u64 - 20 * (batch as u64).min(600));
        let counted = |batch: usize| (batch < 1337).then_some(100 + batch as u64);
        let forms: [(Bytes<'_>, usize); 5] = [(&affine, 4), (&padded, 9), (&bent, 10), (&flat, 12), (&counted, 19)];
        for (bytes, most) in forms {
            for limit in [0, 1036, 1037, 1074, 5_000, 31_007, 60_000] {
                for start in [1, 2, 8, 64] {
                    let (found, looks) = found(limit, start, bytes);
                    assert!(looks <= most + 6, "{looks} looks for {found:?} at {limit} from {start}");
                }
            }
            assert!(found(60_000, 8, bytes).1 <= most, "{} looks", found(60_000, 8, bytes).1);
        }
    }

    /// In a search from a batch that is too large.
    #[test]
    fn a_batch_that_is_close_to_the_largest_is_found_in_few_looks() {
        let padded = |batch: usize| 5_000 + (310 * batch as u64).next_multiple_of(2560);
        for limit in [9_000, 100_000, 1_000_000] {
            let largest = (1..).take_while(|&batch| padded(batch) <= limit).last().unwrap();
            for start in [largest + 1, 2 * largest, 40 * largest] {
                let mut looks = 0;
                let look = |batch: usize| {
                    looks += 1;
                    Ok::<_, ()>(Some(padded(batch)))
                };
                let found = largest_batch(limit, start, CLOSE, look).unwrap().unwrap();
                assert!(padded(found) <= limit && largest as f64 <= (1.0 + CLOSE) * found as f64, "{found}, {largest}");
                assert!(looks <= 7, "{looks} looks at {limit} from {start}");
            }
        }
    }
}
