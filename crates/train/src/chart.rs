//! Charts of lines, drawn as SVG: what the curves of a run and the charts of reports have in common.

use plotters::coord::Shift;
use plotters::prelude::*;
use std::ops::Range;

/// Why a chart could not be drawn.
pub type DrawingError = DrawingAreaErrorKind<std::io::Error>;
/// A part of a drawing.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Sizes in pixels and colours of a chart.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Height of letters.
    pub font_size: u32,
    /// Around the chart, and on its right side.
    pub margins: [u32; 2],
    /// Height of what stands below the horizontal axis and width of what stands left of the vertical one.
    pub label_areas: [u32; 2],
    /// Most labels of the horizontal and of the vertical axis.
    pub labels: [usize; 2],
    /// Letters.
    pub ink: RGBColor,
    /// Both axes.
    pub axis: RGBColor,
    /// Lines behind the curves.
    pub grid: RGBColor,
    /// Behind the legend.
    pub card: RGBColor,
    /// Around the legend; a fully transparent one is not seen.
    pub legend_border: RGBAColor,
    /// Where the legend stands.
    pub legend_at_top: bool,
}

/// A line through points `(x, y)`.
#[derive(Clone, Debug)]
pub struct Line<'a> {
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
pub struct LineChart<'a> {
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
    pub fn draw(&self, area: &Area<'_>, style: &Style) -> Result<(), DrawingError> {
        let text = ("sans-serif", style.font_size).into_font().color(&style.ink);
        let mut chart = ChartBuilder::on(area)
            .margin(style.margins[0])
            .margin_right(style.margins[1])
            .x_label_area_size(style.label_areas[0])
            .y_label_area_size(style.label_areas[1])
            .build_cartesian_2d(self.xs.clone(), self.ys.clone())?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(self.x_label).y_desc(self.y_label).x_labels(style.labels[0]).y_labels(style.labels[1]);
        mesh.label_style(text.clone()).axis_desc_style(text.clone()).axis_style(style.axis);
        mesh.bold_line_style(style.grid).light_line_style(TRANSPARENT);
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
            let position =
                if style.legend_at_top { SeriesLabelPosition::UpperRight } else { SeriesLabelPosition::LowerLeft };
            let labels = &mut chart.configure_series_labels();
            let labels = labels.position(position).background_style(style.card).border_style(style.legend_border);
            labels.label_font(text).draw()?;
        }
        Ok(())
    }
}

/// From the smallest to the largest finite value with a margin of 5 %; 0 to 1 where there is none.
pub fn padded(values: impl Iterator<Item = f64>) -> Range<f64> {
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
pub fn from_zero(range: Range<f64>) -> Range<f64> {
    range.start.min(0.0)..range.end
}

/// A label of few characters: `0.05`, `12k`, `3.5e-5`.
pub fn short(value: f64) -> String {
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
