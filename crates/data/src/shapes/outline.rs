use std::f64::consts::{PI, TAU};

use crate::Philox;

/// What can be drawn, in label order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ShapeClass {
    /// A disc.
    Circle,
    /// A square.
    Square,
    /// A triangle of equal sides.
    Triangle,
    /// A star of five points.
    Star,
    /// A disc with a hole.
    Ring,
    /// Two bars across each other.
    Cross,
    /// A regular pentagon.
    Pentagon,
    /// A disc without a part of another one.
    Crescent,
    /// A heart.
    Heart,
    /// An arrow.
    Arrow,
}

impl ShapeClass {
    /// Every class; the place of a class is its label.
    pub const ALL: [Self; 10] = [
        Self::Circle,
        Self::Square,
        Self::Triangle,
        Self::Star,
        Self::Ring,
        Self::Cross,
        Self::Pentagon,
        Self::Crescent,
        Self::Heart,
        Self::Arrow,
    ];

    /// Name in lists of classes and names of folders.
    pub fn name(self) -> &'static str {
        match self {
            Self::Circle => "circle",
            Self::Square => "square",
            Self::Triangle => "triangle",
            Self::Star => "star",
            Self::Ring => "ring",
            Self::Cross => "cross",
            Self::Pentagon => "pentagon",
            Self::Crescent => "crescent",
            Self::Heart => "heart",
            Self::Arrow => "arrow",
        }
    }

    /// Label of the class.
    pub fn label(self) -> u32 {
        self as u32
    }
}

pub(super) type Point = [f64; 2];
pub(super) type Polygon = Vec<Point>;

const ROUND_POINTS: usize = 40;

/// The outline of a class within the unit circle, its proportions varied at random.
///
/// A ring is one polygon too: its two circles are joined by a cut of no width, so that filling by the even-odd rule
/// leaves the hole open.
pub(super) fn outline(class: ShapeClass, rng: &mut Philox) -> Polygon {
    match class {
        ShapeClass::Circle => arc([0.0, 0.0], 1.0, 0.0, TAU, ROUND_POINTS),
        ShapeClass::Square => regular(4),
        ShapeClass::Triangle => regular(3),
        ShapeClass::Star => star(rng.uniform(0.38, 0.5)),
        ShapeClass::Ring => ring(rng.uniform(0.5, 0.7)),
        ShapeClass::Cross => cross(rng.uniform(0.22, 0.36)),
        ShapeClass::Pentagon => regular(5),
        ShapeClass::Crescent => crescent(rng.uniform(0.4, 0.6), rng.uniform(0.72, 0.85)),
        ShapeClass::Heart => heart(),
        ShapeClass::Arrow => arrow(rng.uniform(0.16, 0.28), rng.uniform(0.0, 0.25)),
    }
}

/// Turns, stretches, scales and moves a unit outline.
pub(super) fn place(outline: &[Point], centre: Point, radius: f64, angle: f64, stretch: f64) -> Polygon {
    let (sin, cos) = angle.sin_cos();
    let moved = |&[x, y]: &Point| {
        let (x, y) = (x * radius, y * radius * stretch);
        [centre[0] + x * cos - y * sin, centre[1] + x * sin + y * cos]
    };
    outline.iter().map(moved).collect()
}

/// Area by the shoelace formula.
pub(super) fn area(polygon: &[Point]) -> f64 {
    let next = polygon.iter().cycle().skip(1);
    let doubled: f64 = polygon.iter().zip(next).map(|(a, b)| a[0] * b[1] - b[0] * a[1]).sum();
    doubled.abs() / 2.0
}

/// Smallest box around the points: left, top, width, height.
pub(super) fn bounding_box(polygon: &[Point]) -> [f64; 4] {
    let range = |axis: usize| {
        let values = polygon.iter().map(|point| point[axis]);
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)))
    };
    let ((left, right), (top, bottom)) = (range(0), range(1));
    [left, top, right - left, bottom - top]
}

fn on_circle(angle: f64, radius: f64) -> Point {
    [radius * angle.cos(), radius * angle.sin()]
}

fn arc(centre: Point, radius: f64, from: f64, to: f64, points: usize) -> Polygon {
    let step = (to - from) / points as f64;
    let point = |i: usize| {
        let [x, y] = on_circle(from + step * i as f64, radius);
        [centre[0] + x, centre[1] + y]
    };
    (0..points).map(point).collect()
}

fn regular(corners: usize) -> Polygon {
    arc([0.0, 0.0], 1.0, 0.0, TAU, corners)
}

fn star(inner: f64) -> Polygon {
    let point = |i: usize| on_circle(PI / 5.0 * i as f64, if i.is_multiple_of(2) { 1.0 } else { inner });
    (0..10).map(point).collect()
}

fn ring(inner: f64) -> Polygon {
    let mut polygon = arc([0.0, 0.0], 1.0, 0.0, TAU, ROUND_POINTS);
    polygon.push([1.0, 0.0]);
    polygon.extend(arc([0.0, 0.0], inner, TAU, 0.0, ROUND_POINTS));
    polygon.push([inner, 0.0]);
    polygon
}

fn cross(half_width: f64) -> Polygon {
    let end = (1.0 - half_width * half_width).sqrt();
    let arm = [[end, -half_width], [end, half_width], [half_width, half_width]];
    (0..4).flat_map(|quarter| place(&arm, [0.0, 0.0], 1.0, PI / 2.0 * f64::from(quarter), 1.0)).collect()
}

/// The unit disc without the disc of radius `bite` around (`shift`, 0).
fn crescent(shift: f64, bite: f64) -> Polygon {
    let x = (shift * shift + 1.0 - bite * bite) / (2.0 * shift);
    let y = (1.0 - x * x).sqrt();
    let (outer, inner) = (y.atan2(x), y.atan2(x - shift));
    let mut polygon = arc([0.0, 0.0], 1.0, outer, TAU - outer, ROUND_POINTS);
    polygon.extend(arc([shift, 0.0], bite, TAU - inner, inner, ROUND_POINTS));
    polygon
}

fn heart() -> Polygon {
    let point = |i: usize| {
        let t = TAU * i as f64 / ROUND_POINTS as f64;
        let y = 13.0 * t.cos() - 5.0 * (2.0 * t).cos() - 2.0 * (3.0 * t).cos() - (4.0 * t).cos();
        [16.0 * t.sin().powi(3) / 18.2, -(y + 2.5) / 18.2]
    };
    (0..ROUND_POINTS).map(point).collect()
}

fn arrow(half_shaft: f64, head_start: f64) -> Polygon {
    let half_head = (1.0 - head_start * head_start).sqrt().min(0.75);
    let tail = -(1.0 - half_shaft * half_shaft).sqrt();
    vec![
        [1.0, 0.0],
        [head_start, half_head],
        [head_start, half_shaft],
        [tail, half_shaft],
        [tail, -half_shaft],
        [head_start, -half_shaft],
        [head_start, -half_head],
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Purpose;

    #[test]
    fn outlines_fill_the_unit_circle_and_stay_inside() {
        for class in ShapeClass::ALL {
            for index in 0..20 {
                let polygon = outline(class, &mut Purpose::Shapes.stream(1, 0, index));
                let radius = polygon.iter().map(|[x, y]| x.hypot(*y)).fold(0.0, f64::max);
                assert!((0.9..1.000_001).contains(&radius), "{class:?} reaches {radius}");
                assert!(area(&polygon) > 0.6, "{class:?} has area {}", area(&polygon));
            }
        }
    }

    #[test]
    fn area_of_a_ring_leaves_out_its_hole() {
        let ring = area(&ring(0.5));
        assert!((ring - 0.75 * PI).abs() < 0.02, "{ring}");
    }

    #[test]
    fn boxes_follow_the_placement() {
        let placed = place(&regular(4), [10.0, 20.0], 4.0, 0.0, 0.5);
        let [left, top, width, height] = bounding_box(&placed);
        assert!((left - 6.0).abs() + (top - 18.0).abs() + (width - 8.0).abs() + (height - 4.0).abs() < 1e-9);
    }
}
