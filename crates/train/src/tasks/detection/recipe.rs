//! Fields that recipes of all detectors have.

use crate::recipe::{Problem, Range, require, section};
use bessemer_data::coco::CategoryIds;
use bessemer_data::detection::Framing;
use bessemer_data::{Exif, Resampling};
use bessemer_nn::PixelScale;

/// Pixels of a side.
pub(super) const PIXELS: f64 = 8192.0;

section! {
    /// In `[data]`.
    pub(crate) struct ImageFields {
        /// Range of the factor by which training scales the image that just fits the canvas.
        pub jitter: [f64; 2] = [1.0, 1.0] => Range::above(0.0, 16.0);
        /// Probability of a horizontal flip in training.
        pub flip: f64 = 0.5 => Range::closed(0.0, 1.0);
        /// How pixels are computed when an image is resized.
        pub resampling: Resampling = Resampling::Antialias;
        /// What is done with the EXIF orientation of images in files: they are turned (apply), or stay as they are stored (ignore).
        /// Annotations are those of the image after that.
        pub exif: Exif = Exif::Ignore;
        /// How the ids of categories become classes.
        pub category_ids: CategoryIds = CategoryIds::Raw;
        /// Per channel, of values in `[0, 1]`.
        pub mean: [f64; 3] = PixelScale::IMAGENET.mean => Range::closed(0.0, 1.0);
        pub std: [f64; 3] = PixelScale::IMAGENET.std => Range::above(0.0, 1.0);
        /// Objects of an image, at most; of more the largest are kept.
        pub max_objects: u64 = 100 => Range::closed(1.0, 1000.0);
    }
}

section! {
    /// In `[eval]`.
    pub(crate) struct EvalFields {
        /// Images that each evaluation draws with what is detected and what is there; 0 for none.
        pub pictures: u64 = 8 => Range::closed(0.0, 1000.0), free;
    }
}

impl ImageFields {
    /// # Errors
    /// Limits of the jitter that are not in ascending order.
    pub(super) fn check(&self) -> Result<(), Problem> {
        let [low, high] = self.jitter;
        require(low <= high, "data.jitter", || format!("[{low}, {high}] must be in ascending order"))
    }

    /// How images are put on the canvas in training, and in evaluation; `whole` is a framing of whole images.
    pub(super) fn framings(&self, whole: Framing) -> [Framing; 2] {
        let evaluation = Framing { resampling: self.resampling, ..whole };
        let jitter = (self.jitter != [1.0; 2]).then(|| self.jitter.into());
        [Framing { jitter, flip: self.flip, ..evaluation.clone() }, evaluation]
    }

    /// How pixels are normalised.
    pub(super) fn scale(&self) -> PixelScale {
        PixelScale { mean: self.mean, std: self.std }
    }
}
