//! Batches under the names of a step's feeds.

use crate::error::TrainError;
use bessemer_data::{Position, SkippedSample};
use std::time::Duration;

/// The content of a feed.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    U8(Vec<u8>),
    I32(Vec<i32>),
    F32(Vec<f32>),
}

impl Array {
    /// As it lies in memory.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::U8(data) => data,
            Self::I32(data) => bytemuck::cast_slice(data),
            Self::F32(data) => bytemuck::cast_slice(data),
        }
    }
}

/// Arrays by the names of feeds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Feeds(Vec<(&'static str, Array)>);

impl Feeds {
    pub fn push(&mut self, name: &'static str, array: Array) {
        self.0.push((name, array));
    }

    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Array)> {
        self.0.iter().map(|(name, array)| (*name, array))
    }

    /// The numbers of an `i32` feed; none where there is no such feed.
    pub fn i32(&self, name: &str) -> &[i32] {
        match self.iter().find(|(known, _)| *known == name) {
            Some((_, Array::I32(data))) => data,
            _ => &[],
        }
    }
}

impl<const N: usize> From<[(&'static str, Array); N]> for Feeds {
    fn from(feeds: [(&'static str, Array); N]) -> Self {
        Self(feeds.into())
    }
}

impl IntoIterator for Feeds {
    type Item = (&'static str, Array);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// Samples of one run of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Those of the step; others are for the host, such as the labels of an evaluation.
    pub feeds: Feeds,
    /// How many samples at the front are real.
    pub samples: usize,
    pub epoch: u32,
    /// Number of the batch within the epoch.
    pub index: usize,
    /// Bad samples that were left out of this batch.
    pub skipped: Vec<SkippedSample>,
}

/// Batches in an order that the seed decides.
pub trait Batches {
    /// The next batch of the epoch; `None` once at the end of each epoch, and for ever after the last. `updates` is how
    /// many updates the weights have had, for what is drawn anew in each.
    fn next(&mut self, updates: u64) -> Option<Result<Batch, TrainError>>;

    /// Gives the buffers of a batch back for reuse.
    fn recycle(&mut self, batch: Batch);

    /// The place of the next batch. Batches that are begun there go on in the same way.
    fn position(&self) -> Position;

    /// Time spent waiting for batches.
    fn waited(&self) -> Duration;

    /// Every bad sample left out so far, by index.
    fn skipped(&self) -> Vec<SkippedSample>;
}
