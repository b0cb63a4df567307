//! Masks of objects: which pixels of an image belong to one.

use bessemer_metrics::mask::{MaskError, Rle};

use super::framing::whole;
use crate::placement::Shown;
use crate::{Placement, Resampling};

/// The pixels of an object, in a rectangle around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectMask {
    /// Column of the image at which the rectangle begins.
    pub left: usize,
    /// Row of the image at which the rectangle begins.
    pub top: usize,
    /// Columns of the rectangle.
    pub width: usize,
    /// Whether each pixel belongs to the object, `[height, width]`.
    pub pixels: Vec<bool>,
}

impl ObjectMask {
    /// Rows of the rectangle.
    pub fn height(&self) -> usize {
        self.pixels.len() / self.width.max(1)
    }

    /// Whether the pixel at column `x` and row `y` of the image belongs to the object; none outside the rectangle does.
    pub fn contains(&self, x: usize, y: usize) -> bool {
        let (Some(column), Some(row)) = (x.checked_sub(self.left), y.checked_sub(self.top)) else { return false };
        let Some(start) = row.checked_mul(self.width) else { return false };
        column < self.width && self.pixels.get(start + column).copied().unwrap_or(false)
    }

    /// The runs of the mask in an image of `[height, width]`.
    ///
    /// # Errors
    /// An image without pixels, or with more than 2^31 - 1.
    pub fn runs(&self, [height, width]: [u32; 2]) -> Result<Rle, MaskError> {
        let (columns, rows) = (width as usize, height as usize);
        let pixels = (0..rows).flat_map(|y| (0..columns).map(move |x| u8::from(self.contains(x, y))));
        Rle::encode(height, width, &pixels.collect::<Vec<_>>())
    }

    /// The mask of an image of `[height, width]` in a picture of it that has another size.
    pub fn resized(&self, size: [u32; 2], picture: [u32; 2]) -> Self {
        self.place(&Placement {
            shown: Shown::Window(whole(size)),
            size: picture,
            flipped: false,
            canvas: picture,
            resampling: Resampling::default(),
            box_limit: picture,
        })
    }

    /// Number of pixels of the object.
    pub fn area(&self) -> usize {
        self.pixels.iter().filter(|&&pixel| pixel).count()
    }

    /// The mask in the sample that a placement makes of the image: each pixel is that of the image under its centre.
    pub fn place(&self, placement: &Placement) -> Self {
        let (left, top) = (self.left as f64, self.top as f64);
        let corners = [left, top, left + self.width as f64, top + self.height() as f64];
        let Some([x1, y1, x2, y2]) = placement.shown_part(corners) else {
            return Self { left: 0, top: 0, width: 0, pixels: Vec::new() };
        };
        let (columns, rows) = (x1 as usize..x2.ceil() as usize, y1 as usize..y2.ceil() as usize);
        let mut pixels = Vec::with_capacity(columns.len() * rows.len());
        for y in rows.clone() {
            pixels.extend(columns.clone().map(|x| {
                let [column, row] = placement.origin([x as f64 + 0.5, y as f64 + 0.5]);
                column >= 0.0 && row >= 0.0 && self.contains(column as usize, row as usize)
            }));
        }
        Self { left: columns.start, top: rows.start, width: columns.len(), pixels }
    }

    /// The part of the mask in the box `[x1, y1, x2, y2]`, resized to `size x size` values of 0 to 255, as TensorFlow's
    /// `crop_and_resize` does with a mask of the canvas, `[height, width]`. Coordinates are shares of the canvas times its last
    /// pixel; the first and the last sample are on the sides of the box. Samples between pixels are bilinear, samples outside
    /// the canvas 0.
    pub fn crop(&self, [x1, y1, x2, y2]: [f64; 4], canvas: [u32; 2], out: &mut [u8], size: usize) {
        let at = |low: f64, high: f64, extent: u32, index: usize| {
            let (last, extent) = (f64::from(extent) - 1.0, f64::from(extent));
            let step = if size > 1 { index as f64 / (size - 1) as f64 } else { 0.5 };
            let position = (low + step * (high - low)) / extent * last;
            (0.0..=last).contains(&position).then_some(position)
        };
        let pixel = |x: usize, y: usize| f64::from(u8::from(self.contains(x, y)));
        for (y, row) in out.chunks_exact_mut(size).enumerate() {
            for (x, value) in row.iter_mut().enumerate() {
                let (Some(px), Some(py)) = (at(x1, x2, canvas[1], x), at(y1, y2, canvas[0], y)) else {
                    *value = 0;
                    continue;
                };
                let (left, top) = (px as usize, py as usize);
                let (right, below) = (px - left as f64, py - top as f64);
                let upper = (1.0 - right) * pixel(left, top) + right * pixel(left + 1, top);
                let lower = (1.0 - right) * pixel(left, top + 1) + right * pixel(left + 1, top + 1);
                *value = (255.0 * ((1.0 - below) * upper + below * lower)).round() as u8;
            }
        }
    }
}

impl From<&Rle> for ObjectMask {
    fn from(mask: &Rle) -> Self {
        let [left, top, width, height] = mask.bounding_box().map(|side| side as usize);
        let mut pixels = vec![false; width * height];
        let rows = mask.height() as usize;
        let mut start = 0;
        for (number, &run) in mask.counts().iter().enumerate() {
            let end = start + run as usize;
            if number % 2 == 1 {
                // Runs go down the columns.
                for index in start..end {
                    pixels[(index % rows - top) * width + index / rows - left] = true;
                }
            }
            start = end;
        }
        Self { left, top, width, pixels }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_become_pixels() {
        let bitmap = [0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 1, 0, 0, 1];
        let mask = ObjectMask::from(&Rle::encode(3, 5, &bitmap).unwrap());
        assert_eq!((mask.left, mask.top, mask.width, mask.height(), mask.area()), (0, 1, 5, 2, 5));
        assert_eq!(mask.runs([3, 5]).unwrap().decode(), bitmap);
        for (index, &pixel) in bitmap.iter().enumerate() {
            assert_eq!(mask.contains(index % 5, index / 5), pixel == 1, "{index}");
        }
        assert!(!mask.contains(2, usize::MAX) && !mask.contains(usize::MAX, 2), "outside of every image");
        let none = ObjectMask::from(&Rle::encode(3, 5, &[0; 15]).unwrap());
        assert_eq!((none.area(), none.width), (0, 0));
    }
}
