//! Batches of a data set's loader.

use super::{Array, Batch, Batches, Feeds, LoadOptions};
use crate::error::TrainError;
use bessemer_data::{DataError, Loader, Position, Sampler, SamplerOptions, Samples, SkippedSample};
use std::sync::Arc;
use std::time::Duration;

/// The content of a batch as feeds, and back.
pub(super) trait Feeder<Content> {
    /// The feeds of what the loader gave for a place in the run.
    fn feeds(&self, content: Content, place: Place) -> Feeds;

    /// Takes a feed's array back into the content whose buffers the loader uses again.
    fn take_back(&self, content: &mut Content, name: &str, array: Array);
}

/// The place of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Updates that the weights have had.
    pub updates: u64,
    /// Number of the batch within the epoch.
    pub index: usize,
}

/// A loader whose batches a [`Feeder`] names.
pub(super) struct Loaded<S: Samples + ?Sized, F> {
    loader: Loader<S>,
    feeder: F,
}

impl<S: Samples + ?Sized, F> Loaded<S, F> {
    /// Batches of a sampler from a position up to an epoch.
    pub(super) fn training(
        set: Arc<S>,
        sampler: Sampler,
        load: &LoadOptions,
        (start, end_epoch): (Position, u32),
        feeder: F,
    ) -> Result<Self, DataError> {
        let options = load.loader(sampler.options().seed, start, end_epoch);
        Ok(Self { loader: Loader::new(set, sampler, options)?, feeder })
    }

    /// Each of `samples` samples once, in order; the last batch is filled up with zeros.
    pub(super) fn evaluation(
        set: Arc<S>,
        samples: usize,
        load: &LoadOptions,
        batch_size: usize,
        feeder: F,
    ) -> Result<Self, DataError> {
        let sampler = Sampler::new(samples, SamplerOptions::eval(batch_size))?;
        Self::training(set, sampler, load, (Position::default(), 1), feeder)
    }
}

impl<S: Samples + ?Sized, F: Feeder<S::Content>> Batches for Loaded<S, F>
where
    S::Content: Default,
{
    fn next(&mut self, updates: u64) -> Option<Result<Batch, TrainError>> {
        let batch = match self.loader.next_batch()? {
            Ok(batch) => batch,
            Err(error) => return Some(Err(error.into())),
        };
        let bessemer_data::Batch { content, real, epoch, index, skipped } = batch;
        Some(Ok(Batch {
            feeds: self.feeder.feeds(content, Place { updates, index }),
            samples: real,
            epoch,
            index,
            skipped,
        }))
    }

    fn recycle(&mut self, batch: Batch) {
        let mut content = S::Content::default();
        for (name, array) in batch.feeds {
            self.feeder.take_back(&mut content, name, array);
        }
        self.loader.recycle(content);
    }

    fn position(&self) -> Position {
        self.loader.position()
    }

    fn waited(&self) -> Duration {
        self.loader.stats().waited
    }

    fn skipped(&self) -> Vec<SkippedSample> {
        self.loader.skipped().cloned().collect()
    }
}
