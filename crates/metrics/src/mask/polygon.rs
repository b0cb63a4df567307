//! Rasterisation of polygons by the rule of pycocotools' `rleFrPoly`.
//!
//! The outline is drawn on a grid five times finer than the pixels. Where it crosses the centre of a pixel column, the
//! mask switches between background and object; the sorted positions of these crossings give the runs.

use super::rle::pixels;
use super::{MaskError, Rle};

/// Greatest coordinate of a polygon, in pixels.
pub const MAX_COORDINATE: f64 = 1e6;

/// Points of the fine grid per pixel, on each axis.
const SCALE: i32 = 5;

impl Rle {
    /// Rasterises a closed polygon `[x0, y0, x1, y1, ...]` in pixels. Points may be outside the mask.
    ///
    /// # Errors
    ///
    /// If a side of the mask is 0, it has more than 2^31 - 1 pixels, the polygon has an odd number of values or fewer
    /// than three points, or a coordinate is not finite or beyond [`MAX_COORDINATE`].
    pub fn from_polygon(height: u32, width: u32, polygon: &[f64]) -> Result<Self, MaskError> {
        let pixels = pixels(height, width)?;
        if polygon.len() < 6 || polygon.len() % 2 == 1 {
            return Err(MaskError::Points { numbers: polygon.len() });
        }
        let far = |value: &f64| !value.is_finite() || value.abs() > MAX_COORDINATE;
        if let Some(index) = polygon.iter().position(far) {
            return Err(MaskError::Coordinate { index, value: polygon[index] });
        }
        let points: Vec<[i32; 2]> =
            polygon.chunks_exact(2).map(|point| [0, 1].map(|axis| rounded(f64::from(SCALE) * point[axis]))).collect();
        let mut crossings = Crossings { height, width, positions: Vec::with_capacity(points.len() * 4), last: None };
        for (index, &start) in points.iter().enumerate() {
            let end = points[(index + 1) % points.len()];
            edge(start, end, |point| crossings.visit(point));
        }
        let mut positions = crossings.positions;
        positions.push(pixels);
        positions.sort_unstable();
        Rle::new(height, width, runs(&positions))
    }
}

/// Rounds by truncating `value + 0.5` toward zero, as C's conversion to an integer does.
fn rounded(value: f64) -> i32 {
    (value + 0.5) as i32
}

/// Visits the grid points of an edge, ends included: one for each step along its longer axis.
fn edge(start: [i32; 2], end: [i32; 2], mut visit: impl FnMut([i32; 2])) {
    let lengths = [0, 1].map(|axis| (end[axis] - start[axis]).abs());
    let long = usize::from(lengths[0] < lengths[1]);
    let short = 1 - long;
    let length = lengths[long];
    let is_reversed = start[long] > end[long];
    let (low, high) = if is_reversed { (end, start) } else { (start, end) };
    // The slope of an edge of length 0 is multiplied by 0 alone.
    let slope = f64::from(high[short] - low[short]) / f64::from(length.max(1));
    for step in 0..=length {
        let step = if is_reversed { length - step } else { step };
        let mut point = [0; 2];
        point[long] = low[long] + step;
        point[short] = rounded(f64::from(low[short]) + slope * f64::from(step));
        visit(point);
    }
}

/// Collects where an outline crosses the centres of pixel columns.
struct Crossings {
    height: u32,
    width: u32,
    /// Column-major positions at which the mask switches.
    positions: Vec<u32>,
    last: Option<[i32; 2]>,
}

impl Crossings {
    fn visit(&mut self, point: [i32; 2]) {
        let last = self.last.replace(point);
        let Some(last) = last.filter(|last| last[0] != point[0]) else { return };
        let x = if point[0] < last[0] { point[0] } else { point[0] - 1 };
        if x.rem_euclid(SCALE) != SCALE / 2 {
            return;
        }
        let column = x.div_euclid(SCALE);
        let Some(column) = u32::try_from(column).ok().filter(|&column| column < self.width) else { return };
        let row = (last[1].min(point[1]) + SCALE / 2).div_euclid(SCALE);
        let row = u32::try_from(row).unwrap_or(0).min(self.height);
        self.positions.push(column * self.height + row);
    }
}

/// Run lengths between sorted positions; two switches at one position cancel.
fn runs(positions: &[u32]) -> Vec<u32> {
    let mut counts: Vec<u32> = Vec::with_capacity(positions.len());
    let (mut last, mut joins) = (0, false);
    for &position in positions {
        let length = position - last;
        last = position;
        match counts.last_mut() {
            Some(count) if joins => {
                *count += length;
                joins = false;
            }
            Some(_) if length == 0 => joins = true,
            _ => counts.push(length),
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(height: u32, width: u32, polygon: &[f64]) -> Vec<String> {
        let bitmap = Rle::from_polygon(height, width, polygon).unwrap().decode();
        let row = |row: &[u8]| row.iter().map(|&pixel| if pixel == 1 { '#' } else { '.' }).collect();
        bitmap.chunks(width as usize).map(row).collect()
    }

    #[test]
    fn pixels_whose_centre_is_inside_are_drawn() {
        assert_eq!(drawn(4, 4, &[1.0, 1.0, 3.0, 1.0, 3.0, 3.0, 1.0, 3.0]), ["....", ".##.", ".##.", "...."]);
        assert_eq!(drawn(4, 4, &[0.0, 0.0, 4.0, 0.0, 0.0, 4.0]), ["###.", "##..", "#...", "...."]);
        // Beyond the mask, and with a point given twice.
        assert_eq!(drawn(2, 3, &[-9.0, -9.0, -9.0, -9.0, 2.0, -9.0, 2.0, 9.0, -9.0, 9.0]), ["##.", "##."]);
        assert_eq!(drawn(2, 3, &[5.0, 5.0, 9.0, 5.0, 9.0, 9.0]), ["...", "..."]);
    }

    #[test]
    fn invalid_polygons_are_refused() {
        let read = |polygon: &[f64]| Rle::from_polygon(4, 4, polygon).unwrap_err();
        assert_eq!(read(&[1.0, 1.0, 2.0, 2.0]), MaskError::Points { numbers: 4 });
        assert_eq!(read(&[1.0, 1.0, 2.0, 2.0, 3.0]), MaskError::Points { numbers: 5 });
        assert_eq!(read(&[0.0; 7]), MaskError::Points { numbers: 7 });
        assert_eq!(read(&[]), MaskError::Points { numbers: 0 });
        assert_eq!(read(&[0.0, 0.0, 0.0, 2e6, 0.0, 0.0]), MaskError::Coordinate { index: 3, value: 2e6 });
        assert!(matches!(read(&[0.0, f64::NAN, 0.0, 0.0, 0.0, 0.0]), MaskError::Coordinate { index: 1, .. }));
        assert!(Rle::from_polygon(0, 4, &[0.0; 6]).is_err());
    }
}
