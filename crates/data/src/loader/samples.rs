use crate::{DataError, Dataset, Philox, Purpose, Scratch};

/// What a [`Loader`](super::Loader) loads: samples by index, and how a batch of them lies in memory.
pub trait Samples: Send + Sync + 'static {
    /// A sample, with the buffers that a worker loads the next one into.
    type Sample;
    /// The samples of a batch.
    type Content: Send;

    /// A sample to load into.
    fn empty_sample(&self) -> Self::Sample;

    /// Room for a batch.
    fn room(&self, batch_size: usize) -> Self::Content;

    /// Whether `content` is as large as the room for a batch.
    fn fits(&self, content: &Self::Content, batch_size: usize) -> bool;

    /// Loads sample `index`; what is random about it is drawn for `draw` alone.
    ///
    /// Errors: a sample that cannot be read or is damaged.
    fn load_sample(&self, index: usize, draw: Draw, sample: &mut Self::Sample) -> Result<(), DataError>;

    /// Writes a loaded sample to its place, whatever was there.
    fn put(&self, content: &mut Self::Content, place: usize, sample: &Self::Sample);

    /// Fills the places from `real` on with zeros.
    fn pad(&self, content: &mut Self::Content, real: usize);
}

/// What random numbers of a sample depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    pub seed: u64,
    pub epoch: u32,
    /// The sample that the order of the epoch has here; another one may have to take its place.
    pub index: usize,
}

/// Labelled pictures of a batch of `N`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pictures {
    /// `[N, H, W, 3]`.
    pub images: Vec<u8>,
    /// `[N]`.
    pub labels: Vec<i32>,
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
    type Content = Pictures;

    fn empty_sample(&self) -> LabelledPicture {
        LabelledPicture { pixels: vec![0; self.sample_bytes()], label: 0, scratch: Scratch::default() }
    }

    fn room(&self, batch_size: usize) -> Pictures {
        Pictures { images: vec![0; batch_size * self.sample_bytes()], labels: vec![0; batch_size] }
    }

    fn fits(&self, content: &Pictures, batch_size: usize) -> bool {
        content.images.len() == batch_size * self.sample_bytes() && content.labels.len() == batch_size
    }

    fn load_sample(&self, index: usize, draw: Draw, sample: &mut LabelledPicture) -> Result<(), DataError> {
        let mut rng = Philox::new(draw.seed, Purpose::Augment, draw.epoch, draw.index as u64);
        sample.label = self.load(index, &mut rng, &mut sample.scratch, &mut sample.pixels)?;
        Ok(())
    }

    fn put(&self, content: &mut Pictures, place: usize, sample: &LabelledPicture) {
        let bytes = sample.pixels.len();
        content.images[place * bytes..][..bytes].copy_from_slice(&sample.pixels);
        content.labels[place] = sample.label as i32;
    }

    fn pad(&self, content: &mut Pictures, real: usize) {
        content.images[real * self.sample_bytes()..].fill(0);
        content.labels[real..].fill(0);
    }
}
