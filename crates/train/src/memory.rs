//! The largest batch that fits into the memory of a device.

use crate::error::TrainError;
use crate::machine::available_memory;
use crate::quantities::bytes as shown_bytes;
use bessemer_cuda::OutOfMemory;
use bessemer_cuda::sheet::scratch_bytes;
use bessemer_ir::plan::Plan;
use bessemer_ir::run::{Device, RunError};
use std::convert::Infallible;
use std::io;

/// Memory of a plan and of its state, on a GPU with that of libraries, at most.
pub fn plan_bytes(plan: &Plan) -> u64 {
    (plan.memory_bytes() + scratch_bytes(plan)) as u64
}

/// A step whose batch does not fit into the memory of its device.
#[derive(Debug, thiserror::Error)]
#[error("{problem}; a batch of {batch_size} does not fit, {} ({setting})", what_fits(*largest))]
pub struct BatchTooLarge {
    /// What there is no memory for.
    pub problem: String,
    /// Samples of the batch.
    pub batch_size: usize,
    /// The largest batch whose plan fits, or one that is smaller by 2 % at most; `None` if not even one sample does.
    pub largest: Option<usize>,
    /// The option or field that sets the batch.
    pub setting: &'static str,
}

/// Of a step that found no memory, where so many bytes are free for it. What a GPU says is more.
fn problem(error: &RunError, free: u64) -> String {
    match error {
        RunError::Memory { what, bytes, source } if !is_of_gpu(source) => {
            format!("no memory for {what}: it needs {}, {} are free", shown_bytes(*bytes as u64), shown_bytes(free))
        }
        error => error.to_string(),
    }
}

fn is_of_gpu(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<OutOfMemory>())
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
    /// Turns the error of a step that found no memory into one that says which batch fits. `bytes` gives the memory of the step with
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
            let bytes = if looks <= MOST_LOOKS { bytes(samples) } else { None };
            Ok::<_, Infallible>(bytes.map_or(Need::NoPlan { times: None }, Need::Bytes))
        };
        let Ok(largest) = largest_batch(limit, batch_size, CLOSE, look);
        match largest {
            Some(largest) if largest >= batch_size => Err(error),
            _ => Ok(Box::new(BatchTooLarge { problem: problem(&error, limit), batch_size, largest, setting })),
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

/// Bytes that a step which found no memory may have, now that what was made of it is gone: less than are free, as libraries take some when
/// they start.
fn room(error: &RunError, device: &dyn Device) -> Option<u64> {
    let RunError::Memory { source, .. } = error else { return None };
    match source.get_ref().and_then(|inner| inner.downcast_ref::<OutOfMemory>()) {
        Some(found) => found.room(device.memory_in_use()?),
        None if device.memory_in_use().is_none() => available_memory(),
        None => None,
    }
}

/// What a step with so many samples needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Need {
    /// Memory.
    Bytes(u64),
    /// The step has no plan: its largest tensor has that many times the elements that kernels count, if that is the reason.
    NoPlan {
        /// At least 1.
        times: Option<f64>,
    },
}

impl Need {
    fn within(self, limit: u64) -> Option<u64> {
        match self {
            Need::Bytes(bytes) if bytes <= limit => Some(bytes),
            _ => None,
        }
    }
}

/// The largest batch whose bytes are within the limit, where more samples need no less, or one that is smaller by the share `close` of it
/// at most; `start` is one that is cheap to look at.
///
/// The memory of a plan grows almost linearly with the batch: the line through two plans gives a guess, and the line between the
/// largest batch that fits and the smallest that does not gives the next, unless two such guesses have not halved what lies
/// between. Elements of the largest tensor grow in proportion to the batch: where there are too many, that gives the next guess, and no
/// larger batch has a plan.
///
/// # Errors
/// Those of `need`.
pub fn largest_batch<E>(
    limit: u64,
    start: usize,
    close: f64,
    mut need: impl FnMut(usize) -> Result<Need, E>,
) -> Result<Option<usize>, E> {
    let Some(one) = need(1)?.within(limit) else { return Ok(None) };
    let (mut good, mut good_bytes) = (1, one);
    let mut bad: Option<(usize, Need)> = None;
    let mut next = if start > 1 { start } else { FEW_SAMPLES };
    // How much lay between the two before the last two guesses.
    let mut gaps = [usize::MAX; 2];
    // Grows while guesses are too small.
    let mut step = 1;
    loop {
        let found = need(next)?;
        match (found.within(limit), found) {
            (Some(bytes), _) => (good, good_bytes) = (next, bytes),
            (None, Need::NoPlan { times: Some(times) }) => {
                let counted = (next as f64 / times) as usize;
                bad = Some(((counted + 1).clamp(good + 1, next), found));
            }
            (None, too_much) => bad = Some((next, too_much)),
        }
        let (from, to) = match bad {
            // The line from one sample on.
            None if good >= MOST_SAMPLES => return Ok(Some(good)),
            None => {
                step *= 4;
                ((1, one), (good, good_bytes))
            }
            Some((bad, _)) if bad - good <= 1 + (close * good as f64) as usize => return Ok(Some(good)),
            Some((bad, Need::Bytes(bad_bytes))) => ((good, good_bytes), (bad, bad_bytes)),
            // The largest that is left.
            Some((bad, Need::NoPlan { times: Some(_) })) => ((good, 0), (bad, limit)),
            Some((bad, Need::NoPlan { times: None })) => ((good, good_bytes), (bad, u64::MAX)),
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
        next = guess.clamp(least, most);
        if let Some((_, found)) = bad {
            let gap = most - least;
            if matches!(found, Need::NoPlan { times: None }) || gap > gaps[0] / 2 {
                next = least.midpoint(most);
            }
            gaps = [gaps[1], gap];
        }
    }
}

/// A second batch to look at, where the first has one sample.
const FEW_SAMPLES: usize = 9;

/// No batch is larger.
const MOST_SAMPLES: usize = 1 << 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_told_in_large_units() {
        let source = io::ErrorKind::OutOfMemory.into();
        let error = RunError::Memory { what: "the plan's arena", bytes: 294_528_205_632, source };
        let expected = "no memory for the plan's arena: it needs 295 GB, 23.3 GB are free";
        assert_eq!(problem(&error, 23_300_000_000), expected);
    }

    /// What the search finds in so many looks, and the largest of all batches that fit.
    fn found(limit: u64, start: usize, need: Needed<'_>) -> (Option<usize>, usize) {
        let mut looks = 0;
        let look = |batch: usize| {
            looks += 1;
            Ok::<_, ()>(need(batch))
        };
        let found = largest_batch(limit, start, 0.0, look).unwrap();
        let all = (1..).take_while(|&batch| need(batch).within(limit).is_some()).last();
        assert_eq!(found, all, "limit {limit}, start {start}");
        (found, looks)
    }

    /// What a batch needs.
    type Needed<'a> = &'a dyn Fn(usize) -> Need;

    #[test]
    fn the_largest_batch_is_that_of_trying_all() {
        let affine = |batch: usize| Need::Bytes(1000 + 37 * batch as u64);
        let padded = |batch: usize| Need::Bytes(500 + (31 * batch as u64).next_multiple_of(256));
        let bent = |batch: usize| Need::Bytes(900 + 20 * batch as u64 + 15 * (batch as u64).saturating_sub(700));
        let flat = |batch: usize| Need::Bytes(2000 + 50 * batch as u64 - 20 * (batch as u64).min(600));
        let up_to = |most: usize, batch: usize, times| match batch <= most {
            true => Need::Bytes(100 + batch as u64),
            false => Need::NoPlan { times },
        };
        let planned = |batch: usize| up_to(1336, batch, None);
        // A tensor of 3 elements a sample, or of 3 and 500 more.
        let counted = |batch: usize| up_to(1336, batch, Some((3 * batch) as f64 / 4010.0));
        let partly_counted = |batch: usize| up_to(1170, batch, Some((500 + 3 * batch) as f64 / 4011.0));
        let forms: [(Needed<'_>, usize); 7] = [
            (&affine, 4),
            (&padded, 9),
            (&bent, 10),
            (&flat, 12),
            (&planned, 19),
            (&counted, 4),
            (&partly_counted, 12),
        ];
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
                    Ok::<_, ()>(Need::Bytes(padded(batch)))
                };
                let found = largest_batch(limit, start, CLOSE, look).unwrap().unwrap();
                assert!(padded(found) <= limit && largest as f64 <= (1.0 + CLOSE) * found as f64, "{found}, {largest}");
                assert!(looks <= 7, "{looks} looks at {limit} from {start}");
            }
        }
    }
}
