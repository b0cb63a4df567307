//! How an image becomes a sample. A transform decides it once, and pixels, boxes and masks follow the same decision.

use fast_image_resize::{CropBox, Resizer};

use crate::resize::{Region, resize_region, resize_window};

/// Memory for resizing that is kept from one image to the next.
#[derive(Default)]
pub struct ResizeBuffers {
    resizer: Resizer,
    /// The part of an image that does not fill its canvas.
    resized: Vec<u8>,
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
}

impl Placement {
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

    /// The box `[x1, y1, x2, y2]` of the image as it is in the sample, cut off at the borders of the part that is shown;
    /// `None` if nothing of it is left.
    pub fn bbox(&self, [x1, y1, x2, y2]: [f64; 4]) -> Option<[f64; 4]> {
        let (a, b) = (self.point([x1, y1]), self.point([x2, y2]));
        let [height, width] = self.size.map(f64::from);
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
        let ResizeBuffers { resizer, resized } = buffers;
        if self.size == self.canvas {
            self.resize(pixels, size, resizer, out);
            if self.flipped {
                flip_rows(out, columns);
            }
            return;
        }
        resized.resize(self.size[0] as usize * columns * 3, 0);
        self.resize(pixels, size, resizer, resized);
        if self.flipped {
            flip_rows(resized, columns);
        }
        out.fill(0);
        let canvas_rows = out.chunks_exact_mut(self.canvas[1] as usize * 3);
        for (row, shown) in canvas_rows.zip(resized.chunks_exact(columns * 3)) {
            row[..columns * 3].copy_from_slice(shown);
        }
    }

    fn resize(&self, pixels: &[u8], size: [u32; 2], resizer: &mut Resizer, out: &mut [u8]) {
        match self.shown {
            Shown::Region(region) => resize_region(resizer, pixels, size, region, out, self.size),
            Shown::Window(window) => resize_window(resizer, pixels, size, window, out, self.size),
        }
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
        Placement { shown, size: [4, 8], flipped, canvas: [6, 10] }
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
