//! How an image becomes a sample. A transform decides it once, and pixels, boxes and masks follow the same decision.

use std::str::FromStr;

use fast_image_resize::{CropBox, Resizer};
use serde::{Deserialize, Serialize};

use crate::DataError;
use crate::resize::{Region, resize_region, resize_window};
use crate::two_tap::{PixelCentres, TwoTapBuffers, TwoTapView, resize_two_tap};

/// Memory for resizing that is kept from one image to the next.
#[derive(Default)]
pub struct ResizeBuffers {
    resizer: Resizer,
    two_tap: TwoTapBuffers,
    /// The part of an image that does not fill its canvas.
    resized: Vec<u8>,
}

/// How pixels are computed when an image is resized.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resampling {
    /// Bilinear over all pixels that a pixel of the result covers, as Pillow's `resize(BILINEAR)`.
    #[default]
    Antialias,
    /// Bilinear between the two nearest pixels of each axis, as `tf.image.resize` of TensorFlow 2 and PyTorch's `interpolate`
    /// with `align_corners=False`.
    HalfPixel,
    /// Bilinear between two pixels, pixel `i` read at `i * scale`, as `tf.compat.v1.image.resize_bilinear`: the form of
    /// EfficientDet's reference, half a pixel of the source off.
    Legacy,
}

impl Resampling {
    /// Every form, with its name in recipes and options.
    pub const ALL: [(&'static str, Self); 3] =
        [("antialias", Self::Antialias), ("half_pixel", Self::HalfPixel), ("legacy", Self::Legacy)];
}

impl FromStr for Resampling {
    type Err = DataError;

    fn from_str(name: &str) -> Result<Self, DataError> {
        let found = Self::ALL.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, form)| form).ok_or_else(|| DataError::option("resize", name, "antialias, half_pixel or legacy"))
    }
}

/// The part of an image that a sample shows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shown {
    /// Cut out before it is resized, so that the filter sees nothing around it.
    Region(Region),
    /// Resized together with what is around it. Sides may cut pixels.
    Window(CropBox),
}

/// A part of an image, resized to `size`, then mirrored or not, in the upper left corner of a canvas of zeros.
#[derive(Debug, Clone, Copy)]
pub struct Placement {
    pub(crate) shown: Shown,
    /// Height and width of the part after resizing, at most those of the canvas.
    pub(crate) size: [u32; 2],
    /// Whether left and right are exchanged.
    pub(crate) flipped: bool,
    /// Height and width of the sample.
    pub(crate) canvas: [u32; 2],
    pub(crate) resampling: Resampling,
    /// Bottom and right border at which boxes are cut off, at most `size`.
    pub(crate) box_limit: [u32; 2],
}

impl Placement {
    /// The same for `part` of the image alone, which holds `region`, the part that is shown. `region` is in pixels of the image, and
    /// `part` in those of the image made smaller by a factor.
    pub(crate) fn of_part(self, region: Region, part: Region, factor: u32) -> Self {
        let shown = match factor {
            1 => Shown::Region(Region { left: region.left - part.left, top: region.top - part.top, ..region }),
            _ => {
                let place = |at: u32, start: u32| f64::from(at) / f64::from(factor) - f64::from(start);
                Shown::Window(CropBox {
                    left: place(region.left, part.left),
                    top: place(region.top, part.top),
                    width: place(region.width, 0),
                    height: place(region.height, 0),
                })
            }
        };
        Self { shown, ..self }
    }

    /// Height and width, in pixels of the sample, of the part of the canvas that shows the image.
    pub fn size(&self) -> [u32; 2] {
        self.size
    }

    /// Height and width of the sample.
    pub fn canvas(&self) -> [u32; 2] {
        self.canvas
    }

    /// Pixels of the sample for each pixel of the image, down and across.
    pub fn scale(&self) -> [f64; 2] {
        let CropBox { width, height, .. } = self.window();
        let [rows, columns] = self.size;
        [f64::from(rows) / height, f64::from(columns) / width]
    }

    /// The factor by which the image was scaled before its sides were rounded down to whole pixels: the larger one of
    /// [`Placement::scale`].
    pub fn nominal_scale(&self) -> f64 {
        let [down, across] = self.scale();
        down.max(across)
    }

    /// Where the point `[x, y]` of the image is in the sample. Points outside the part that is shown leave the canvas.
    pub fn point(&self, [x, y]: [f64; 2]) -> [f64; 2] {
        let CropBox { left, top, .. } = self.window();
        let [down, across] = self.scale();
        let [x, y] = [(x - left) * across, (y - top) * down];
        [if self.flipped { f64::from(self.size[1]) - x } else { x }, y]
    }

    /// Where the point `[x, y]` of the sample is in the image: the inverse of [`Placement::point`].
    pub fn origin(&self, [x, y]: [f64; 2]) -> [f64; 2] {
        let CropBox { left, top, .. } = self.window();
        let [down, across] = self.scale();
        let x = if self.flipped { f64::from(self.size[1]) - x } else { x };
        [x / across + left, y / down + top]
    }

    /// The box `[x1, y1, x2, y2]` of the image as it is in the sample, cut off at the borders of the part that is shown, or
    /// where the framing says; `None` if nothing of it is left.
    pub fn bbox(&self, bbox: [f64; 4]) -> Option<[f64; 4]> {
        self.cut_off(bbox, self.box_limit)
    }

    /// As [`Placement::bbox`], cut off at the borders of the part that is shown alone.
    pub(crate) fn shown_part(&self, bbox: [f64; 4]) -> Option<[f64; 4]> {
        self.cut_off(bbox, self.size)
    }

    fn cut_off(&self, [x1, y1, x2, y2]: [f64; 4], limit: [u32; 2]) -> Option<[f64; 4]> {
        let (a, b) = (self.point([x1, y1]), self.point([x2, y2]));
        let [height, width] = limit.map(f64::from);
        let [left, right] = [a[0].min(b[0]), a[0].max(b[0])].map(|x| x.clamp(0.0, width));
        let [top, bottom] = [a[1].min(b[1]), a[1].max(b[1])].map(|y| y.clamp(0.0, height));
        (left < right && top < bottom).then_some([left, top, right, bottom])
    }

    /// Draws `pixels` `[height, width, 3]`, an image of this size, into the sample `out` `[canvas height, canvas width, 3]`.
    ///
    /// # Panics
    /// If a buffer is too small for its size, or the part that is shown leaves the image.
    pub fn draw(&self, pixels: &[u8], size: [u32; 2], buffers: &mut ResizeBuffers, out: &mut [u8]) {
        let columns = self.size[1] as usize;
        if self.size == self.canvas {
            self.resize(pixels, size, buffers, out);
            return;
        }
        let mut resized = std::mem::take(&mut buffers.resized);
        resized.resize(self.size[0] as usize * columns * 3, 0);
        self.resize(pixels, size, buffers, &mut resized);
        let mut canvas_rows = out.chunks_exact_mut(self.canvas[1] as usize * 3);
        for (shown, row) in resized.chunks_exact(columns * 3).zip(&mut canvas_rows) {
            let (left, right) = row.split_at_mut(columns * 3);
            left.copy_from_slice(shown);
            right.fill(0);
        }
        canvas_rows.for_each(|row| row.fill(0));
        buffers.resized = resized;
    }

    /// The part that is shown, mirrored or not, `self.size`.
    fn resize(&self, pixels: &[u8], size: [u32; 2], buffers: &mut ResizeBuffers, out: &mut [u8]) {
        let ResizeBuffers { resizer, two_tap, .. } = buffers;
        let centres = match self.resampling {
            Resampling::Antialias => {
                match self.shown {
                    Shown::Region(region) => resize_region(resizer, pixels, size, region, out, self.size),
                    Shown::Window(window) => resize_window(resizer, pixels, size, window, out, self.size),
                }
                if self.flipped {
                    flip_rows(out, self.size[1] as usize);
                }
                return;
            }
            Resampling::HalfPixel => PixelCentres::Half,
            Resampling::Legacy => PixelCentres::Corner,
        };
        let is_cut = matches!(self.shown, Shown::Region(_));
        let view = TwoTapView { window: self.window(), is_cut, centres, flipped: self.flipped };
        resize_two_tap(pixels, size, view, out, self.size, two_tap);
    }

    fn window(&self) -> CropBox {
        match self.shown {
            Shown::Window(window) => window,
            Shown::Region(Region { left, top, width, height }) => {
                let [left, top, width, height] = [left, top, width, height].map(f64::from);
                CropBox { left, top, width, height }
            }
        }
    }
}

fn flip_rows(pixels: &mut [u8], width: usize) {
    for row in pixels.chunks_exact_mut(width * 3) {
        row.as_chunks_mut::<3>().0.reverse();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns 2 to 6 and rows 1 to 3 of an image, twice as large, on a canvas of 6 x 10.
    fn placement(flipped: bool) -> Placement {
        let shown = Shown::Region(Region { left: 2, top: 1, width: 4, height: 2 });
        let resampling = Resampling::Antialias;
        Placement { shown, size: [4, 8], flipped, canvas: [6, 10], resampling, box_limit: [4, 8] }
    }

    #[test]
    fn boxes_follow_the_crop_and_are_cut_off() {
        assert_eq!(placement(false).bbox([3.0, 1.5, 5.0, 2.0]), Some([2.0, 1.0, 6.0, 2.0]));
        assert_eq!(placement(true).bbox([3.0, 1.5, 4.0, 2.0]), Some([4.0, 1.0, 6.0, 2.0]), "mirrored within the part");
        assert_eq!(placement(false).bbox([0.0, 0.0, 3.0, 9.0]), Some([0.0, 0.0, 2.0, 4.0]), "not up to the canvas");
        assert_eq!(placement(false).bbox([0.0, 0.0, 2.0, 9.0]), None, "it only touches the part");
        assert_eq!(placement(false).bbox([3.0, 2.0, 3.0, 3.0]), None, "it has no area");
    }

    #[test]
    fn points_are_found_again() {
        for flipped in [false, true] {
            let placement = placement(flipped);
            for point in [[2.0, 1.0], [3.25, 2.5], [6.0, 3.0]] {
                assert_eq!(placement.origin(placement.point(point)), point);
            }
        }
        assert_eq!(placement(true).point([2.0, 1.0]), [8.0, 0.0]);
    }

    #[test]
    fn pixels_follow_the_same_placement() {
        let red = |x: usize, y: usize| (10 * y + x) as u8;
        let pixels: Vec<u8> = (0..5 * 8).flat_map(|i| [red(i % 8, i / 8), 0, 255]).collect();
        for flipped in [false, true] {
            let placement = Placement { size: [2, 4], ..placement(flipped) };
            let mut out = vec![7; 6 * 10 * 3];
            placement.draw(&pixels, [5, 8], &mut ResizeBuffers::default(), &mut out);
            for (i, pixel) in out.chunks_exact(3).enumerate() {
                let (x, y) = (i % 10, i / 10);
                let expected = if x < 4 && y < 2 {
                    let [column, row] = placement.origin([x as f64 + 0.5, y as f64 + 0.5]);
                    [red(column as usize, row as usize), 0, 255]
                } else {
                    [0; 3]
                };
                assert_eq!(pixel, expected, "{x}, {y}");
            }
        }
    }

    #[test]
    fn flip_reverses_pixels_of_each_row() {
        let mut pixels = vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        flip_rows(&mut pixels, 2);
        assert_eq!(pixels, [4, 5, 6, 1, 2, 3, 10, 11, 12, 7, 8, 9]);
    }
}
