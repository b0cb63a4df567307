//! How images of any size become samples of one of a few sizes.

use fast_image_resize::CropBox;

use crate::augment::{check_probability, check_size};
use crate::placement::Shown;
use crate::{DataError, Philox, Placement, Resampling};

/// How an image is put on a canvas, in its upper left corner.
#[derive(Debug, Clone, PartialEq)]
pub struct Framing {
    /// Heights and widths of canvases to choose from: the one on which the image is the largest, of equal ones the first.
    pub canvases: Vec<[u32; 2]>,
    /// Range of the factor by which the image that just fits the canvas is scaled; of a larger image, what the canvas has room
    /// for is shown, at a random offset (Ghiasi et al. 2021, arXiv:2012.07177, large scale jittering). `None` shows the whole
    /// image, as large as fits.
    pub jitter: Option<(f64, f64)>,
    /// Probability of a horizontal flip.
    pub flip: f64,
    /// How pixels are computed.
    pub resampling: Resampling,
    /// Where boxes end.
    pub box_border: BoxBorder,
}

/// Right and bottom border at which boxes are cut off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BoxBorder {
    /// That of the part of the canvas that shows the image.
    #[default]
    Image,
    /// The same, but at most the last row and column of the canvas: 511 of 512, as EfficientDet's reference has it.
    LastPixel,
}

impl Framing {
    /// Whole images, as for evaluation.
    pub fn fit(canvas: [u32; 2]) -> Self {
        let (resampling, box_border) = (Resampling::default(), BoxBorder::default());
        Self { canvases: vec![canvas], jitter: None, flip: 0.0, resampling, box_border }
    }

    /// EfficientDet's training (Tan et al. 2020, arXiv:1911.09070, section 5.1): a factor of 0.1 to 2, half of the images
    /// mirrored.
    pub fn efficientdet_train(canvas: [u32; 2], resampling: Resampling) -> Self {
        Self { jitter: Some((0.1, 2.0)), flip: 0.5, ..Self::efficientdet_eval(canvas, resampling) }
    }

    /// EfficientDet's evaluation: whole images.
    pub fn efficientdet_eval(canvas: [u32; 2], resampling: Resampling) -> Self {
        Self { resampling, box_border: BoxBorder::LastPixel, ..Self::fit(canvas) }
    }

    /// Checks every setting against its range.
    ///
    /// # Errors
    /// The first one that is outside its range.
    pub fn check(&self) -> Result<(), DataError> {
        if let Some((low, high)) = self.jitter
            && !(low > 0.0 && low <= high && high <= MOST_SCALE)
        {
            let expected = format!("two rising numbers above 0, at most {MOST_SCALE}");
            return Err(DataError::option("scale jitter", format!("{low}..{high}"), expected));
        }
        if self.canvases.is_empty() {
            return Err(DataError::option("canvases", "empty", "at least one height and width"));
        }
        self.canvases.iter().flatten().try_for_each(|&side| check_size(side))?;
        check_probability("flip probability", self.flip)
    }

    /// Height and width of the sample that is made of an image of `[height, width]`.
    pub fn canvas(&self, size: [u32; 2]) -> [u32; 2] {
        let better = |best: [u32; 2], next: [u32; 2]| if fit(size, next) > fit(size, best) { next } else { best };
        self.canvases.iter().copied().reduce(better).expect("a framing that was checked has a canvas")
    }

    /// Draws how an image of `[height, width]` is placed.
    pub fn place(&self, size: [u32; 2], rng: &mut Philox) -> Placement {
        let canvas = self.canvas(size);
        let flipped = self.flip > 0.0 && rng.chance(self.flip);
        let (window, shown) = match self.jitter {
            None => (whole(size), scaled(size, fit(size, canvas))),
            Some((low, high)) => jittered(size, canvas, rng.uniform(low, high), flipped, rng),
        };
        let box_limit = match self.box_border {
            BoxBorder::Image => shown,
            BoxBorder::LastPixel => [0, 1].map(|axis| shown[axis].min(canvas[axis] - 1)),
        };
        let resampling = self.resampling;
        Placement { shown: Shown::Window(window), size: shown, flipped, canvas, resampling, box_limit }
    }
}

/// Largest factor of the jitter.
const MOST_SCALE: f64 = 16.0;

/// The part of an image scaled by `factor` that a canvas has room for, at a random offset, and its size there.
fn jittered(size: [u32; 2], canvas: [u32; 2], factor: f64, flipped: bool, rng: &mut Philox) -> (CropBox, [u32; 2]) {
    // The factor applies to whole pixels of the canvas.
    let target = canvas.map(|side| ((f64::from(side) * factor) as u32).max(1));
    let scaled = scaled(size, fit(size, target));
    let shown = [0, 1].map(|axis| scaled[axis].min(canvas[axis]));
    let offset = [0, 1].map(|axis| f64::from(rng.below(scaled[axis] - shown[axis] + 1)));
    let [down, across] = [0, 1].map(|axis| f64::from(size[axis]) / f64::from(scaled[axis]));
    // A mirrored image is cropped from its other side.
    let left = if flipped { f64::from(scaled[1] - shown[1]) - offset[1] } else { offset[1] };
    let window = CropBox {
        left: left * across,
        top: offset[0] * down,
        width: f64::from(shown[1]) * across,
        height: f64::from(shown[0]) * down,
    };
    (within(window, size), shown)
}

/// The scale at which an image just fits a canvas.
fn fit([height, width]: [u32; 2], canvas: [u32; 2]) -> f64 {
    (f64::from(canvas[0]) / f64::from(height)).min(f64::from(canvas[1]) / f64::from(width))
}

/// Height and width after scaling, rounded down to whole pixels.
fn scaled(size: [u32; 2], scale: f64) -> [u32; 2] {
    // What fits exactly must not lose a pixel to rounding.
    size.map(|side| ((f64::from(side) * scale + 1e-6) as u32).max(1))
}

pub(super) fn whole([height, width]: [u32; 2]) -> CropBox {
    CropBox { left: 0.0, top: 0.0, width: width.into(), height: height.into() }
}

/// The window without what rounding puts outside an image of `[height, width]`.
fn within(window: CropBox, [height, width]: [u32; 2]) -> CropBox {
    let CropBox { left, top, .. } = window;
    CropBox {
        width: window.width.min(f64::from(width) - left),
        height: window.height.min(f64::from(height) - top),
        ..window
    }
}
