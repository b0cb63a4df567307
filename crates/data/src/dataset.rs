use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::decode::jpeg::PartBuffers;
use crate::loader::StageClock;
use crate::placement::ResizeBuffers;
use crate::{DataError, Label, Philox, SampleTarget};

/// Images with what is known of them.
///
/// Samples are addressed by index. Loading one depends on nothing but the index and the random numbers handed in.
pub trait Dataset: Send + Sync {
    /// What is known of an image.
    type Target: SampleTarget;

    /// Number of samples.
    fn len(&self) -> usize;

    /// Whether there is no sample.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Names of the classes in label order.
    fn class_names(&self) -> &[String];

    /// Number of classes.
    fn num_classes(&self) -> usize {
        self.class_names().len()
    }

    /// Labels of classes that no sample has, as far as that is known without reading samples.
    fn absent_classes(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Height and width of sample `index`.
    fn image_size(&self, index: usize) -> [usize; 2];

    /// Writes sample `index` to `out` `[height, width, 3]` and returns what is known of it.
    ///
    /// # Errors
    /// A sample that cannot be read or is damaged.
    fn load(
        &self,
        index: usize,
        rng: &mut Philox,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<Self::Target, DataError>;

    /// Where the sample comes from, for messages: a path, or the name of the generator with the index.
    fn source(&self, index: usize) -> String;

    /// A name that changes when the samples change: for files a hash of their names and sizes.
    fn identity(&self) -> String;
}

/// Images of one label each.
pub type LabelledImages = dyn Dataset<Target = Label>;

/// Mean and standard deviation of each channel (red, green, blue) on a scale of 0 to 1: `(x / 255 - mean) / std`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normalization {
    /// Mean of red, green and blue.
    pub mean: [f32; 3],
    /// Standard deviation of red, green and blue.
    pub std: [f32; 3],
}

/// Buffers that a worker keeps from one sample to the next.
#[derive(Default)]
pub struct Scratch {
    pub(crate) file: Vec<u8>,
    pub(crate) pixels: Vec<u8>,
    pub(crate) part: PartBuffers,
    /// For drawing the decoded image.
    pub resize: ResizeBuffers,
    pub(crate) clock: StageClock,
}

/// Which half of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// What is trained on.
    Train,
    /// What is held out for evaluation.
    Val,
}

impl Split {
    /// Name, also of the folder: `train` or `val`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Val => "val",
        }
    }
}

impl FromStr for Split {
    type Err = DataError;

    fn from_str(name: &str) -> Result<Self, DataError> {
        match name {
            "train" => Ok(Self::Train),
            "val" => Ok(Self::Val),
            other => Err(DataError::option("split", other, "train or val")),
        }
    }
}
