use crate::feeds::{Field, Row};
use crate::{DataError, Dataset, Feeds, Philox, Purpose, Scratch};

/// What a [`Loader`](super::Loader) loads: samples by index, and the arrays of a batch of them.
pub trait Samples: Send + Sync + 'static {
    /// A sample, with the buffers that a worker loads the next one into.
    type Sample;

    /// A sample to load into.
    fn empty_sample(&self) -> Self::Sample;

    /// The arrays of a batch, under the names of a step's feeds.
    fn fields(&self) -> Vec<Field>;

    /// Loads sample `index`; what is random about it is drawn for `draw` alone.
    ///
    /// # Errors
    /// A sample that cannot be read or is damaged.
    fn load_sample(&self, index: usize, draw: Draw, sample: &mut Self::Sample) -> Result<(), DataError>;

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
pub struct Draw {
    pub seed: u64,
    pub epoch: u32,
    /// The sample that the order of the epoch has here; another one may have to take its place.
    pub index: usize,
}

/// A picture as a worker has it.
pub struct LabelledPicture {
    /// `[H, W, 3]`.
    pixels: Vec<u8>,
    label: u32,
    scratch: Scratch,
}

impl<D: Dataset + ?Sized + 'static> Samples for D {
    type Sample = LabelledPicture;

    fn empty_sample(&self) -> LabelledPicture {
        LabelledPicture { pixels: vec![0; self.sample_bytes()], label: 0, scratch: Scratch::default() }
    }

    /// `images u8[N, H, W, 3]` and `labels i32[N]`.
    fn fields(&self) -> Vec<Field> {
        vec![Field::u8("images", self.sample_bytes()), Field::i32("labels", 1)]
    }

    fn load_sample(&self, index: usize, draw: Draw, sample: &mut LabelledPicture) -> Result<(), DataError> {
        let mut rng = Philox::new(draw.seed, Purpose::Augment, draw.epoch, draw.index as u64);
        sample.label = self.load(index, &mut rng, &mut sample.scratch, &mut sample.pixels)?;
        Ok(())
    }

    fn write(&self, sample: &LabelledPicture, row: &mut Row<'_>) {
        row.u8("images").copy_from_slice(&sample.pixels);
        row.i32("labels")[0] = sample.label as i32;
    }
}
