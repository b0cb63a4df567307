use super::rle::pixels;
use super::{MaskError, Rle};

impl Rle {
    /// The mask of an object in an image of `[height, width]`, from what a network says of each cell of a grid `[side, side]` on
    /// the object's box `[x1, y1, x2, y2]` in pixels: those pixels of the image whose value is above `threshold`.
    ///
    /// A border of zeros, one cell wide, is put around the grid, and the box grows with it about its centre. Its corners are
    /// truncated to whole pixels, both of which belong to it, and the grid is resized to these pixels: bilinear between centres.
    /// So does Mask R-CNN (`paste_masks_in_image` of torchvision, `paste_instance_masks` of NVIDIA's recipe).
    ///
    /// # Errors
    /// An image without pixels or with more than 2^31 - 1, a grid that is not square, a box that is not finite.
    pub fn from_grid(height: u32, width: u32, grid: &[f32], bbox: [f64; 4], threshold: f32) -> Result<Self, MaskError> {
        let all = pixels(height, width)?;
        let side = grid.len().isqrt();
        if side * side != grid.len() || side == 0 {
            return Err(MaskError::Grid { cells: grid.len() });
        }
        if let Some(&coordinate) = bbox.iter().find(|coordinate| !coordinate.is_finite()) {
            return Err(MaskError::Box { coordinate });
        }
        let [across, down] = [[bbox[0], bbox[2]], [bbox[1], bbox[3]]].map(|ends| Axis::new(ends, side));
        let rows: Vec<Taps> = down.within(height).map(|y| down.taps(y)).collect();
        let first_row = down.within(height).start as u32;
        let cell = |row: usize, column: usize| {
            let is_inside = (1..=side).contains(&row) && (1..=side).contains(&column);
            if is_inside { grid[(row - 1) * side + column - 1] } else { 0.0 }
        };
        let mut runs = Spans::default();
        let mut values = vec![0.0; side + 2];
        for x in across.within(width) {
            let Taps { low, high, share } = across.taps(x);
            for (row, value) in values.iter_mut().enumerate() {
                *value = (1.0 - share) * cell(row, low) + share * cell(row, high);
            }
            let top = x as u32 * height + first_row;
            for (y, Taps { low, high, share }) in rows.iter().enumerate() {
                if (1.0 - share) * values[*low] + share * values[*high] > threshold {
                    runs.add(top + y as u32);
                }
            }
        }
        Self::new(height, width, runs.finish(all))
    }
}

/// One axis of the pixels that a grid with its border is resized to.
struct Axis {
    /// The first pixel, which may be outside the image.
    start: i64,
    /// Number of pixels, at least 1.
    len: i64,
    /// Cells, those of the border included.
    cells: usize,
}

/// The cells that a pixel lies between, and the share of the second one.
struct Taps {
    low: usize,
    high: usize,
    share: f32,
}

impl Axis {
    fn new([low, high]: [f64; 2], side: usize) -> Self {
        let cells = side + 2;
        let (centre, half) = ((low + high) * 0.5, (high - low) * 0.5 * (cells as f64 / side as f64));
        let [start, end] = [centre - half, centre + half].map(|x| x as i64);
        Self { start, len: (end.saturating_sub(start).saturating_add(1)).max(1), cells }
    }

    /// Its pixels in an image of `extent` pixels.
    fn within(&self, extent: u32) -> std::ops::Range<i64> {
        let end = self.start.saturating_add(self.len).min(extent.into());
        self.start.max(0).min(end)..end
    }

    fn taps(&self, pixel: i64) -> Taps {
        let position = ((pixel - self.start) as f64 + 0.5) * (self.cells as f64 / self.len as f64) - 0.5;
        let position = position.max(0.0);
        let low = (position as usize).min(self.cells - 1);
        Taps { low, high: (low + 1).min(self.cells - 1), share: (position - low as f64) as f32 }
    }
}

/// Runs of an object from its positions in rising order.
#[derive(Default)]
struct Spans {
    counts: Vec<u32>,
    /// Position behind the last one.
    end: u32,
}

impl Spans {
    fn add(&mut self, position: u32) {
        match self.counts.last_mut() {
            Some(run) if position == self.end => *run += 1,
            _ => self.counts.extend([position - self.end, 1]),
        }
        self.end = position + 1;
    }

    /// The runs of a mask with so many pixels.
    fn finish(mut self, pixels: u32) -> Vec<u32> {
        if self.end < pixels {
            self.counts.push(pixels - self.end);
        }
        self.counts
    }
}
