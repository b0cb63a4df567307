use super::outline::{Point, bounding_box};
use crate::detection::ObjectMask;

const LINES_PER_ROW: usize = 4;

/// Which part of each pixel a shape covers, in the smallest rectangle of pixels around it.
#[derive(Debug, Clone, PartialEq)]
pub struct Mask {
    /// First column of pixels.
    pub left: usize,
    /// First row of pixels.
    pub top: usize,
    /// Columns of pixels.
    pub width: usize,
    /// Rows of pixels.
    pub height: usize,
    /// 0 to 1, `[height, width]`.
    pub coverage: Vec<f32>,
}

impl Mask {
    /// Whether the shape covers at least half of the pixel at column `x` and row `y` of the picture.
    pub fn contains(&self, x: usize, y: usize) -> bool {
        let inside =
            (self.left..self.left + self.width).contains(&x) && (self.top..self.top + self.height).contains(&y);
        inside && self.coverage[(y - self.top) * self.width + x - self.left] >= 0.5
    }
}

impl From<&Mask> for ObjectMask {
    fn from(mask: &Mask) -> Self {
        let pixels = mask.coverage.iter().map(|&coverage| coverage >= 0.5).collect();
        Self { left: mask.left, top: mask.top, width: mask.width, pixels }
    }
}

/// Fills a polygon by the even-odd rule, clipped to a picture. Pixel (x, y) covers x..x+1 and y..y+1.
///
/// Coverage is exact along rows and sampled at four lines per row.
pub(super) fn rasterize(polygon: &[Point], width: usize, height: usize) -> Mask {
    let [left, top, box_width, box_height] = bounding_box(polygon);
    let columns = pixel_range(left, left + box_width, width);
    let rows = pixel_range(top, top + box_height, height);
    let mut mask = Mask {
        left: columns.start,
        top: rows.start,
        width: columns.len(),
        height: rows.len(),
        coverage: vec![0.0; columns.len() * rows.len()],
    };
    if columns.is_empty() {
        return mask;
    }
    let mut crossings = Vec::new();
    for (row, y) in mask.coverage.chunks_exact_mut(columns.len()).zip(rows) {
        for line in 0..LINES_PER_ROW {
            let at = y as f64 + (line as f64 + 0.5) / LINES_PER_ROW as f64;
            find_crossings(polygon, at, &mut crossings);
            for span in crossings.as_chunks::<2>().0 {
                add_span(row, span[0] - columns.start as f64, span[1] - columns.start as f64);
            }
        }
    }
    mask
}

fn pixel_range(low: f64, high: f64, limit: usize) -> std::ops::Range<usize> {
    let end = (high.ceil().max(0.0) as usize).min(limit);
    (low.floor().max(0.0) as usize).min(end)..end
}

fn find_crossings(polygon: &[Point], y: f64, crossings: &mut Vec<f64>) {
    crossings.clear();
    let mut a = polygon[polygon.len() - 1];
    for &b in polygon {
        if (a[1] <= y) != (b[1] <= y) {
            crossings.push(a[0] + (y - a[1]) / (b[1] - a[1]) * (b[0] - a[0]));
        }
        a = b;
    }
    crossings.sort_unstable_by(f64::total_cmp);
}

/// Adds one line's share of the pixels between two places of a row.
fn add_span(row: &mut [f32], from: f64, to: f64) {
    let share = 1.0 / LINES_PER_ROW as f64;
    let (from, to) = (from.max(0.0), to.min(row.len() as f64));
    for (x, pixel) in row.iter_mut().enumerate().take(to.ceil().max(0.0) as usize).skip(from as usize) {
        let covered = to.min(x as f64 + 1.0) - from.max(x as f64);
        *pixel += (covered.max(0.0) * share) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::super::outline::{ShapeClass, area, outline, place};
    use super::*;
    use crate::Purpose;

    fn rectangle(left: f64, top: f64, right: f64, bottom: f64) -> Vec<Point> {
        vec![[left, top], [right, top], [right, bottom], [left, bottom]]
    }

    #[test]
    fn covers_whole_and_part_pixels() {
        let mask = rasterize(&rectangle(1.0, 1.0, 3.5, 2.0), 8, 8);
        assert_eq!((mask.left, mask.top, mask.width, mask.height), (1, 1, 3, 1));
        assert_eq!(mask.coverage, [1.0, 1.0, 0.5]);
        assert!(mask.contains(1, 1) && mask.contains(3, 1) && !mask.contains(4, 1) && !mask.contains(1, 2));
    }

    #[test]
    fn clips_at_every_side() {
        let mask = rasterize(&rectangle(-5.0, -5.0, 20.0, 20.0), 4, 3);
        assert_eq!((mask.left, mask.top, mask.width, mask.height), (0, 0, 4, 3));
        assert!(mask.coverage.iter().all(|&c| c == 1.0));
        assert!(rasterize(&rectangle(-5.0, -5.0, -1.0, -1.0), 4, 3).coverage.is_empty());
        assert!(rasterize(&rectangle(5.0, 0.0, 9.0, 2.0), 4, 3).coverage.is_empty());
    }

    #[test]
    fn covers_the_area_of_every_outline() {
        for class in ShapeClass::ALL {
            let mut rng = Purpose::Shapes.stream(1, 0, class.label().into());
            let polygon = place(&outline(class, &mut rng), [32.3, 31.6], 25.0, 0.7, 0.9);
            let covered: f64 = rasterize(&polygon, 64, 64).coverage.iter().map(|&c| f64::from(c)).sum();
            let expected = area(&polygon);
            assert!((covered - expected).abs() < 0.01 * expected, "{class:?}: {covered} against {expected}");
        }
    }

    #[test]
    fn a_ring_is_open_in_the_middle() {
        let mut rng = Purpose::Shapes.stream(1, 0, 0);
        let mask = rasterize(&place(&outline(ShapeClass::Ring, &mut rng), [16.0, 16.0], 14.0, 1.0, 1.0), 32, 32);
        assert!(!mask.contains(16, 16));
        assert!(mask.contains(16, 4));
    }
}
