use crate::feeds::{Field, Row};
use crate::{DataError, Feeds, StageTimes};

/// What a [`Loader`](super::Loader) loads: samples by index, and the arrays of a batch of them.
pub trait Samples: Send + Sync + 'static {
    /// A sample, with the buffers that a worker loads the next one into.
    type Sample;

    /// A sample to load into.
    fn empty_sample(&self) -> Self::Sample;

    /// The arrays of a batch, under the names of a step's feeds.
    fn fields(&self) -> Vec<Field>;

    /// The number in the data set of sample `index`, where these are a part of one.
    fn index_in_set(&self, index: usize) -> usize {
        index
    }

    /// Loads sample `index`; what is random about it is drawn for `draw` alone.
    ///
    /// # Errors
    /// A sample that cannot be read or is damaged.
    fn load_sample(&self, index: usize, draw: SampleKey, sample: &mut Self::Sample) -> Result<(), DataError>;

    /// Time of each stage of loading since the last call.
    fn take_stages(&self, _sample: &mut Self::Sample) -> StageTimes {
        StageTimes::default()
    }

    /// Writes every element of a loaded sample's row, whatever was there.
    fn write(&self, sample: &Self::Sample, row: &mut Row<'_>);

    /// A batch of loaded samples.
    fn batch_of(&self, samples: &[Self::Sample]) -> Feeds {
        let fields = self.fields();
        let mut feeds = Feeds::alloc(&fields, samples.len());
        for (index, sample) in samples.iter().enumerate() {
            self.write(sample, &mut feeds.row(&fields, index));
        }
        feeds
    }
}

/// What random numbers of a sample depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleKey {
    /// Seed of the run.
    pub seed: u64,
    /// Epoch, from 0.
    pub epoch: u32,
    /// The sample that the order of the epoch has here; another one may have to take its place.
    pub index: usize,
}
