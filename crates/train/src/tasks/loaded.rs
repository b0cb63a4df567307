//! Batches of a data set's loader.

use super::{Batch, Batches, Feeds, LoadOptions};
use crate::error::TrainError;
use bessemer_data::{
    BatchRange, DataError, Loader, OnBadSample, Position, Sampler, SamplerOptions, Samples, Share, StageTimes,
};
use std::sync::Arc;
use std::time::Duration;

/// Adds to the arrays of a loader what a step needs besides.
pub(super) trait Feeder {
    /// Changes or adds arrays of what the loader gave at a position of the run.
    fn complete(&self, feeds: &mut Feeds, position: Position);
}

/// The loader's arrays are all that a step needs.
#[derive(Clone, Copy)]
pub(super) struct AsLoaded;

impl Feeder for AsLoaded {
    fn complete(&self, _: &mut Feeds, _: Position) {}
}

/// A loader whose batches a [`Feeder`] completes.
pub(super) struct Loaded<S: Samples + ?Sized, F> {
    loader: Loader<S>,
    feeder: F,
}

impl<S: Samples + ?Sized, F> Loaded<S, F> {
    /// A run of batches of a sampler.
    pub(super) fn training(
        set: Arc<S>,
        sampler: Sampler,
        load: &LoadOptions,
        range: BatchRange,
        feeder: F,
    ) -> Result<Self, DataError> {
        let options = load.loader(sampler.options().seed, range);
        Ok(Self { loader: Loader::new(set, sampler, options)?, feeder })
    }

    /// The share of one rank of the batches that hold each of `samples` samples once, in order; the last batch is filled up with
    /// zeros. A sample that cannot be read ends them, whatever is asked for in training: another in its place would be counted twice.
    pub(super) fn evaluation(
        set: Arc<S>,
        samples: usize,
        load: &LoadOptions,
        batch_size: usize,
        share: Share,
        feeder: F,
    ) -> Result<Self, DataError> {
        let sampler = Sampler::new(samples, SamplerOptions::eval(batch_size))?;
        let load = &LoadOptions { on_bad_sample: OnBadSample::Stop, ..*load };
        Self::training(set, sampler, load, BatchRange { share, ..BatchRange::epochs(1) }, feeder)
    }
}

impl<S: Samples + ?Sized, F: Feeder> Batches for Loaded<S, F> {
    fn next(&mut self) -> Option<Result<Batch, TrainError>> {
        let batch = self.loader.next_batch()?.map_err(TrainError::from);
        Some(batch.map(|mut batch| {
            self.feeder.complete(&mut batch.feeds, Position { epoch: batch.epoch, batch: batch.index });
            batch
        }))
    }

    fn recycle(&mut self, feeds: Feeds) {
        self.loader.recycle(feeds);
    }

    fn position(&self) -> Position {
        self.loader.position()
    }

    fn waited(&self) -> Duration {
        self.loader.stats().waited
    }

    fn stages(&self) -> StageTimes {
        self.loader.stats().stages
    }
}
