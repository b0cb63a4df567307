//! How fast samples are loaded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Loader, LoaderOptions, Samples};
use crate::{BatchRange, DataError, Sampler};

/// What [`loading_speed`] measured.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct LoadingSpeed {
    pub samples: u64,
    pub seconds: f64,
    pub workers: usize,
}

impl LoadingSpeed {
    /// Samples a second.
    pub fn samples_per_second(&self) -> f64 {
        self.samples as f64 / self.seconds
    }
}

/// Loads batches for about `time`, after a first one that is not counted, and does nothing with them. Epochs follow one another.
///
/// # Errors
/// Settings outside their range; a sample that cannot be loaded.
pub fn loading_speed<S: Samples>(
    samples: Arc<S>,
    sampler: Sampler,
    options: LoaderOptions,
    time: Duration,
) -> Result<LoadingSpeed, DataError> {
    let mut loader = Loader::new(
        samples,
        sampler,
        LoaderOptions { range: BatchRange { end_epoch: u32::MAX, ..options.range }, ..options },
    )?;
    let mut start = None;
    let mut samples = 0;
    loop {
        // An epoch ends with `None`.
        let Some(batch) = loader.next_batch() else { continue };
        let batch = batch?;
        let count = batch.samples as u64;
        loader.recycle(batch.feeds);
        let start = match start {
            None => {
                start = Some(Instant::now());
                continue;
            }
            Some(start) => start,
        };
        samples += count;
        if start.elapsed() >= time {
            let seconds = start.elapsed().as_secs_f64();
            return Ok(LoadingSpeed { samples, seconds, workers: options.workers });
        }
    }
}
