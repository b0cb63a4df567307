//! Images of a data set as samples of a loader.

use std::sync::Arc;

use super::{SampleKey, Samples};
use crate::feeds::{Field, Row};
use crate::target::SampleTarget;
use crate::{DataError, Dataset, Purpose, Scratch, StageTimes};

/// The samples of a data set that have one size: all of them, or one of the parts into which [`ImageSamples::by_size`] splits a
/// data set.
pub struct ImageSamples<D: Dataset + ?Sized> {
    set: Arc<D>,
    layout: <D::Target as SampleTarget>::Layout,
    /// Height and width.
    size: [usize; 2],
    /// Numbers of the samples in the data set; `None` for all.
    part: Option<Vec<u32>>,
}

impl<D: Dataset + ?Sized> ImageSamples<D> {
    /// All samples of a data set.
    ///
    /// # Errors
    /// An empty data set; samples of different sizes.
    pub fn new(set: Arc<D>, layout: <D::Target as SampleTarget>::Layout) -> Result<Self, DataError> {
        if set.is_empty() {
            return Err(DataError::option("number of samples", 0, "at least 1"));
        }
        let size = set.image_size(0);
        if let Some(other) = (1..set.len()).find(|&index| set.image_size(index) != size) {
            let ([height, width], [first_height, first_width]) = (set.image_size(other), size);
            let value = format!("{height}x{width} in {}", set.source(other));
            let expected =
                format!("{first_height}x{first_width} as in {}: a batch has images of one size", { set.source(0) });
            return Err(DataError::option("image size", value, expected));
        }
        Ok(Self { set, layout, size, part: None })
    }

    /// The samples of each size, sizes in the order in which they first come.
    pub fn by_size(set: &Arc<D>, layout: &<D::Target as SampleTarget>::Layout) -> Vec<Self> {
        let mut parts: Vec<Self> = Vec::new();
        for index in 0..set.len() {
            let size = set.image_size(index);
            match parts.iter_mut().find(|part| part.size == size) {
                Some(Self { part: Some(indices), .. }) => indices.push(index as u32),
                _ => {
                    let (set, layout, part) = (Arc::clone(set), layout.clone(), Some(vec![index as u32]));
                    parts.push(Self { set, layout, size, part });
                }
            }
        }
        parts
    }

    /// Height and width of the samples.
    pub fn size(&self) -> [usize; 2] {
        self.size
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.part.as_ref().map_or(self.set.len(), Vec::len)
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A sample as a worker has it.
pub struct LoadedImage<T> {
    /// `[H, W, 3]`
    pixels: Vec<u8>,
    target: T,
    scratch: Scratch,
}

impl<D: Dataset + ?Sized + 'static> Samples for ImageSamples<D> {
    type Sample = LoadedImage<D::Target>;

    fn empty_sample(&self) -> Self::Sample {
        let [height, width] = self.size;
        LoadedImage { pixels: vec![0; height * width * 3], target: D::Target::default(), scratch: Scratch::default() }
    }

    /// `images u8[N, H, W, 3]` and the arrays of the target.
    fn fields(&self) -> Vec<Field> {
        let [height, width] = self.size;
        let mut fields = vec![Field::u8("images", height * width * 3)];
        fields.extend(D::Target::fields(&self.layout));
        fields
    }

    fn index_in_set(&self, index: usize) -> usize {
        self.part.as_ref().map_or(index, |part| part[index] as usize)
    }

    fn load_sample(&self, index: usize, draw: SampleKey, sample: &mut Self::Sample) -> Result<(), DataError> {
        let drawn_for = self.index_in_set(draw.index) as u64;
        let mut rng = Purpose::Augment.stream(draw.seed, draw.epoch, drawn_for);
        let LoadedImage { pixels, target, scratch } = sample;
        *target = self.set.load(self.index_in_set(index), &mut rng, scratch, pixels)?;
        Ok(())
    }

    fn take_stages(&self, sample: &mut Self::Sample) -> StageTimes {
        sample.scratch.clock.take()
    }

    fn write(&self, sample: &Self::Sample, row: &mut Row<'_>) {
        row.u8("images").copy_from_slice(&sample.pixels);
        sample.target.write(&self.layout, row);
    }
}
