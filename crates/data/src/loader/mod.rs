//! Batches from a data set, prepared by worker threads ahead of their use.

mod images;
mod queue;
mod samples;
mod stages;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::{BatchRange, DataError, Feeds, Position, Sampler};
use queue::Queue;
use serde::{Deserialize, Serialize};

pub use images::{ImageSamples, LoadedImage};
pub use samples::{SampleKey, Samples};
pub(crate) use stages::StageClock;
pub use stages::{Stage, StageTimes};

/// Samples of one run of a step. The last batch of an epoch may hold fewer samples than others; the rest is zeros.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// Arrays of the step, and others for the host, such as the labels of an evaluation.
    pub feeds: Feeds,
    /// Number of valid samples, which are at the front.
    pub samples: usize,
    /// Epoch that the batch is of, from 0.
    pub epoch: u32,
    /// Number of the batch within the epoch.
    pub index: usize,
    /// Bad samples that were left out of this batch.
    pub skipped: Vec<SkippedSample>,
}

/// A bad sample and the one that took its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedSample {
    /// Its number in the data set.
    pub index: usize,
    /// The number of the other one.
    pub replaced_by: usize,
    /// Why it cannot be loaded.
    pub reason: String,
}

/// What to do with a sample that cannot be loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnBadSample {
    /// Report it in place of its batch and end the loader.
    #[default]
    Stop,
    /// Take the next good sample of the data set instead, and list the bad one.
    Skip,
}

impl OnBadSample {
    /// Name in recipes and options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Skip => "skip",
        }
    }
}

impl FromStr for OnBadSample {
    type Err = DataError;

    fn from_str(name: &str) -> Result<Self, DataError> {
        match name {
            "stop" => Ok(Self::Stop),
            "skip" => Ok(Self::Skip),
            other => Err(DataError::option("on-bad-sample", other, "stop or skip")),
        }
    }
}

/// Settings of a [`Loader`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoaderOptions {
    /// Threads that load samples.
    pub workers: usize,
    /// Batches in preparation or waiting to be taken.
    pub prefetch: usize,
    /// Seed of the random numbers of pictures; they depend on it, the epoch and the sample alone.
    pub seed: u64,
    /// What to do with a sample that cannot be read.
    pub on_bad_sample: OnBadSample,
    /// The batches to load.
    pub range: BatchRange,
}

impl LoaderOptions {
    /// Epochs 0..`epochs` with two batches ahead.
    pub fn new(workers: usize, seed: u64, epochs: u32) -> Self {
        let range = BatchRange::epochs(epochs);
        Self { workers, prefetch: 2, seed, on_bad_sample: OnBadSample::Stop, range }
    }
}

/// What a loader did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoaderStats {
    /// Batches given out.
    pub batches: u64,
    /// Samples in them.
    pub samples: u64,
    /// Times that a bad sample was replaced.
    pub skipped: u64,
    /// Time the caller spent waiting for batches.
    pub waited: Duration,
    /// Time the workers spent on samples, also on those of batches that are not taken yet.
    pub stages: StageTimes,
}

/// Batches in the order of a [`Sampler`], whatever the number of workers: all of them, or the share of one rank.
///
/// Dropping it stops and joins the workers.
pub struct Loader<S: Samples + ?Sized> {
    queue: Arc<Queue<S>>,
    workers: Vec<JoinHandle<()>>,
    position: Position,
    failed: bool,
    stats: LoaderStats,
    skipped: BTreeMap<usize, SkippedSample>,
}

impl<S: Samples + ?Sized> Loader<S> {
    /// Starts the workers. The sampler must have been made for the number of samples.
    pub fn new(samples: Arc<S>, sampler: Sampler, options: LoaderOptions) -> Result<Self, DataError> {
        check(&sampler, &options)?;
        let workers = options.workers;
        let queue = Arc::new(Queue::new(samples, sampler, options));
        let spawn = |number| {
            let queue = Arc::clone(&queue);
            let thread = thread::Builder::new().name(format!("loader-{number}"));
            thread.spawn(move || queue.work())
        };
        let mut loader = Self {
            queue: Arc::clone(&queue),
            workers: Vec::with_capacity(workers),
            position: options.range.start,
            failed: false,
            stats: LoaderStats::default(),
            skipped: BTreeMap::new(),
        };
        for number in 0..workers {
            let worker = spawn(number).map_err(DataError::io("loader".as_ref(), "start a worker thread"))?;
            loader.workers.push(worker);
        }
        Ok(loader)
    }

    /// The next batch of the epoch; `None` once at the end of each epoch, and for ever after the last epoch or an error.
    pub fn next_batch(&mut self) -> Option<Result<Batch, DataError>> {
        let BatchRange { end_epoch, share, .. } = *self.queue.range();
        let per_epoch = self.queue.batches();
        if self.failed || self.position.epoch >= end_epoch {
            return None;
        }
        if self.position.batch == per_epoch {
            self.position = Position { epoch: self.position.epoch + 1, batch: 0 };
            return None;
        }
        if self.position.later(share.index, per_epoch).epoch >= end_epoch {
            self.position = Position { epoch: end_epoch, batch: 0 };
            return None;
        }
        let start = Instant::now();
        let result = self.queue.take();
        self.stats.waited += start.elapsed();
        match &result {
            Ok(batch) => self.count(batch),
            Err(_) => self.fail(),
        }
        Some(result)
    }

    /// Gives the memory of a batch back for reuse. Arrays that were added to the loader's are dropped.
    pub fn recycle(&self, feeds: Feeds) {
        self.queue.recycle(feeds);
    }

    /// The place behind the batches that all ranks together have taken, which is that of the next one where there is one rank. At the
    /// end of an epoch, until [`Loader::next_batch`] has returned `None`, that is one past the epoch's last batch; a loader
    /// started there returns `None` first as well.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Batches in an epoch.
    pub fn batches_per_epoch(&self) -> usize {
        self.queue.batches()
    }

    /// Counts and times so far.
    pub fn stats(&self) -> LoaderStats {
        LoaderStats { stages: self.queue.stages(), ..self.stats }
    }

    /// Every bad sample left out so far, by index.
    pub fn skipped(&self) -> impl Iterator<Item = &SkippedSample> {
        self.skipped.values()
    }

    fn count(&mut self, batch: &Batch) {
        // One before the end of an epoch, if it is the end.
        let last = self.position.later(self.queue.range().share.count - 1, self.queue.batches());
        self.position = Position { batch: last.batch + 1, ..last };
        self.stats.batches += 1;
        self.stats.samples += batch.samples as u64;
        self.stats.skipped += batch.skipped.len() as u64;
        for sample in &batch.skipped {
            self.skipped.entry(sample.index).or_insert_with(|| sample.clone());
        }
    }

    fn fail(&mut self) {
        self.failed = true;
        self.queue.stop();
    }
}

impl<S: Samples + ?Sized> Drop for Loader<S> {
    fn drop(&mut self) {
        self.queue.stop();
        for worker in self.workers.drain(..) {
            // A worker reports panics of the data set as errors; one of its own has nothing left to report to.
            let _ = worker.join();
        }
    }
}

fn check(sampler: &Sampler, options: &LoaderOptions) -> Result<(), DataError> {
    if !(1..=1024).contains(&options.workers) {
        return Err(DataError::option("loader workers", options.workers, "1 to 1024"));
    }
    if options.prefetch == 0 {
        return Err(DataError::option("prefetched batches", 0, "at least 1"));
    }
    let BatchRange { start, share, .. } = options.range;
    if start.batch > sampler.batches() {
        let expected = format!("at most the {} batches of an epoch", sampler.batches());
        return Err(DataError::option("batch to start from", start.batch, expected));
    }
    if share.index >= share.count {
        return Err(DataError::option("number of the rank", share.index, format!("less than {}", share.count)));
    }
    Ok(())
}
