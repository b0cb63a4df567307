//! Charts of lines, drawn as SVG for the curves of a run, and what makes curves of many points readable.

use plotters::coord::Shift;
use plotters::prelude::*;
use std::ops::Range;

/// Why a chart could not be drawn.
pub(crate) type DrawingError = DrawingAreaErrorKind<std::io::Error>;
/// A part of a drawing.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const FONT_SIZE: u32 = 14;
const GRID: RGBColor = RGBColor(226, 226, 226);
const INK: RGBColor = RGBColor(40, 40, 40);

/// A line through points `(x, y)`.
#[derive(Clone, Debug)]
pub(crate) struct Line<'a> {
    /// In the legend; none for the empty name.
    pub name: &'a str,
    /// From left to right.
    pub points: &'a [(f64, f64)],
    /// Of the line and its marks.
    pub colour: RGBColor,
    /// In pixels.
    pub width: u32,
}

/// Lines over one axis.
#[derive(Clone, Debug)]
pub(crate) struct LineChart<'a> {
    /// Name of the horizontal axis, with its unit.
    pub x_label: &'a str,
    /// Name of the vertical axis, with its unit.
    pub y_label: &'a str,
    /// What the horizontal axis spans.
    pub xs: Range<f64>,
    /// What the vertical axis spans.
    pub ys: Range<f64>,
    /// In the order in which they are drawn.
    pub lines: Vec<Line<'a>>,
    /// Whether each point is marked.
    pub marks: bool,
}

impl LineChart<'_> {
    /// Draws the chart.
    ///
    /// # Errors
    /// What the drawing library could not do.
    pub(crate) fn draw(&self, area: &Area<'_>) -> Result<(), DrawingError> {
        let text = ("sans-serif", FONT_SIZE).into_font().color(&INK);
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .margin_right(24)
            .x_label_area_size(42)
            .y_label_area_size(78)
            .build_cartesian_2d(self.xs.clone(), self.ys.clone())?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(self.x_label).y_desc(self.y_label).x_labels(8).y_labels(6);
        mesh.label_style(text.clone()).axis_desc_style(text.clone()).axis_style(INK);
        mesh.bold_line_style(GRID).light_line_style(TRANSPARENT);
        mesh.x_label_formatter(&|v| short(*v)).y_label_formatter(&|v| short(*v)).draw()?;
        for &Line { name, points, colour, width } in &self.lines {
            let drawn = chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(width)))?;
            if !name.is_empty() {
                drawn.label(name).legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
            }
            if self.marks {
                chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
            }
        }
        if self.lines.iter().any(|line| !line.name.is_empty()) {
            let labels = &mut chart.configure_series_labels();
            let labels = labels.position(SeriesLabelPosition::UpperRight).background_style(WHITE).border_style(GRID);
            labels.label_font(text).draw()?;
        }
        Ok(())
    }
}

/// From the smallest to the largest finite value with a margin of 5 %; 0 to 1 where there is none.
pub(crate) fn padded(values: impl Iterator<Item = f64>) -> Range<f64> {
    let start = (f64::INFINITY, f64::NEG_INFINITY);
    let within = |(low, high): (f64, f64), value: f64| (low.min(value), high.max(value));
    let (low, high) = values.filter(|value| value.is_finite()).fold(start, within);
    if low > high {
        return 0.0..1.0;
    }
    let margin = if high > low { 0.05 * (high - low) } else { 0.05 * high.abs() + 1e-6 };
    low - margin..high + margin
}

/// The same range, begun at 0 unless there is something below.
pub(crate) fn from_zero(range: Range<f64>) -> Range<f64> {
    range.start.min(0.0)..range.end
}

/// A label of few characters: `0.05`, `12k`, `3.5e-5`.
fn short(value: f64) -> String {
    let round = |value: f64| format!("{}", (value * 1e4).round() / 1e4);
    match value.abs() {
        size if size < 1e-12 => "0".to_owned(),
        size if size < 1e-3 => format!("{value:.1e}"),
        size if size >= 1e6 => format!("{}M", round(value / 1e6)),
        size if size >= 1e4 => format!("{}k", round(value / 1e3)),
        _ => round(value),
    }
}

/// The finite points, groups of `size` neighbours averaged to one.
pub fn thinned(points: &[(f64, f64)], size: usize) -> Vec<(f64, f64)> {
    let points: Vec<_> = points.iter().copied().filter(|(_, y)| y.is_finite()).collect();
    let mean = |group: &[(f64, f64)]| {
        let count = group.len() as f64;
        let sum = group.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
        (sum.0 / count, sum.1 / count)
    };
    points.chunks(size.max(1)).map(mean).collect()
}

/// Exponential moving averages over about a fiftieth of the points, taken from both ends so that they do not lag.
pub fn smoothed(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let forward = averaged(points.iter());
    let backward = averaged(points.iter().rev());
    let pairs = forward.into_iter().zip(backward.into_iter().rev());
    points.iter().zip(pairs).map(|(&(x, _), (before, after))| (x, 0.5 * (before + after))).collect()
}

/// Exponential moving average without bias at the start.
fn averaged<'a>(points: impl ExactSizeIterator<Item = &'a (f64, f64)>) -> Vec<f64> {
    let decay = 1.0 - 1.0 / (1.0 + points.len() as f64 / 50.0);
    let (mut average, mut weight) = (0.0, 0.0);
    let smooth = |&(_, y): &(f64, f64)| {
        average = decay * average + (1.0 - decay) * y;
        weight = decay * weight + (1.0 - decay);
        average / weight
    };
    points.map(smooth).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoothing_follows_a_slope_and_removes_noise() {
        let points: Vec<_> = (0..1000).map(|i| (f64::from(i), f64::from(i) + f64::from(i % 2 * 10))).collect();
        let middle = &smoothed(&points)[200..800];
        assert!(middle.iter().all(|(x, y)| (y - x - 5.0).abs() < 1.0));
    }

    #[test]
    fn thinning_keeps_the_mean() {
        let points: Vec<_> = (0..1000).map(|i| (f64::from(i), f64::from(i % 2))).collect();
        let thin = thinned(&points, 10);
        assert!(thin.len() == 100 && thin.iter().all(|(_, y)| *y == 0.5));
        assert_eq!(thinned(&points[..3], 1), points[..3]);
        assert_eq!(thinned(&[(0.0, f64::NAN), (1.0, 2.0)], 0), [(1.0, 2.0)]);
    }

    #[test]
    fn ranges_have_margins() {
        assert_eq!(padded([1.0, f64::NAN, 3.0].into_iter()), 0.9..3.1);
        assert_eq!(padded(std::iter::empty()), 0.0..1.0);
        assert!(padded([0.0].into_iter()).start < 0.0);
        assert_eq!((from_zero(0.5..2.0), from_zero(-1.0..2.0)), (0.0..2.0, -1.0..2.0));
    }

    #[test]
    fn labels_are_short() {
        let cases = [
            (0.0, "0"),
            (0.05, "0.05"),
            (4.999_999_999_9, "5"),
            (-3.5e-5, "-3.5e-5"),
            (12_000.0, "12k"),
            (1.5e6, "1.5M"),
        ];
        for (value, expected) in cases {
            assert_eq!(short(value), expected);
        }
    }
}
