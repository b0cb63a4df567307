//! How images of any size become samples of one of a few sizes.

use fast_image_resize::CropBox;

use crate::augment::{check_probability, check_size};
use crate::placement::Shown;
use crate::{DataError, Philox, Placement};

/// How an image is put on a canvas.
#[derive(Debug, Clone, PartialEq)]
pub enum Framing {
    /// The whole image, as large as fits the canvas, in its upper left corner.
    Fit {
        /// Heights and widths to choose from: the one on which the image is the largest, of equal ones the first.
        canvases: Vec<[u32; 2]>,
        /// Probability of a horizontal flip.
        flip: f64,
    },
    /// The image scaled at random, and what of it the canvas has room for, at a random offset (Ghiasi et al. 2021,
    /// arXiv:2012.07177, large scale jittering).
    Jitter {
        /// Height and width of the canvas.
        canvas: [u32; 2],
        /// Range of the factor by which the image that just fits is scaled.
        scale: (f64, f64),
        /// Probability of a horizontal flip.
        flip: f64,
    },
}

impl Framing {
    /// Checks every setting against its range.
    ///
    /// # Errors
    /// The first one that is outside its range.
    pub fn check(&self) -> Result<(), DataError> {
        let (canvases, flip) = match self {
            Self::Fit { canvases, flip } => (canvases.as_slice(), *flip),
            Self::Jitter { canvas, scale: (low, high), flip } => {
                if !(*low > 0.0 && low <= high && high.is_finite()) {
                    let expected = "two rising numbers above 0";
                    return Err(DataError::option("scale jitter", format!("{low}..{high}"), expected));
                }
                (std::slice::from_ref(canvas), *flip)
            }
        };
        if canvases.is_empty() {
            return Err(DataError::option("canvases", "empty", "at least one height and width"));
        }
        canvases.iter().flatten().try_for_each(|&side| check_size(side))?;
        check_probability("flip probability", flip)
    }

    /// Height and width of the sample that is made of an image of `[height, width]`.
    pub fn canvas(&self, size: [u32; 2]) -> [u32; 2] {
        match self {
            Self::Fit { canvases, .. } => {
                let better =
                    |best: [u32; 2], next: [u32; 2]| if fit(size, next) > fit(size, best) { next } else { best };
                canvases.iter().copied().reduce(better).expect("a framing that was checked has a canvas")
            }
            Self::Jitter { canvas, .. } => *canvas,
        }
    }

    /// Draws how an image of `[height, width]` is placed.
    pub fn place(&self, size: [u32; 2], rng: &mut Philox) -> Placement {
        let canvas = self.canvas(size);
        match *self {
            Self::Fit { flip, .. } => {
                let flipped = flip > 0.0 && rng.chance(flip);
                let scaled = scaled(size, fit(size, canvas));
                Placement { shown: Shown::Window(whole(size)), size: scaled, flipped, canvas }
            }
            Self::Jitter { scale: (low, high), flip, .. } => {
                let flipped = rng.chance(flip);
                let factor = rng.uniform(low, high);
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
                Placement { shown: Shown::Window(within(window, size)), size: shown, flipped, canvas }
            }
        }
    }
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

fn whole([height, width]: [u32; 2]) -> CropBox {
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
