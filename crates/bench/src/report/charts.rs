//! Line charts as SVG whose colours follow the page's.

use super::ReportError;
use bessemer_train::chart::{self, DrawingError, Line, LineChart, Style, padded, short};
use plotters::prelude::*;

const SIZE: (u32, u32) = (520, 320);
const FONT: (&str, u32) = ("sans-serif", 19);
const INK: RGBColor = RGBColor(1, 2, 3);
const GRID: RGBColor = RGBColor(1, 2, 4);
const CARD: RGBColor = RGBColor(1, 2, 5);
/// Colours in the drawing, which the page replaces by those of its scheme.
const SERIES: [RGBColor; 6] =
    [RGBColor(1, 3, 1), RGBColor(1, 3, 2), RGBColor(1, 3, 3), RGBColor(1, 3, 4), RGBColor(1, 3, 5), RGBColor(1, 3, 6)];
const FAINT: RGBColor = RGBColor(1, 4, 1);

const STYLE: Style = Style {
    font_size: FONT.1,
    margins: [8, 20],
    label_areas: [56, 86],
    labels: [6, 6],
    ink: INK,
    axis: GRID,
    grid: GRID,
    card: CARD,
    legend_border: TRANSPARENT,
    legend_at_top: false,
};

/// A chart of curves over one axis.
pub(super) struct Chart<'a> {
    pub x_label: &'a str,
    pub y_label: &'a str,
    pub curves: Vec<Curve>,
    /// Whether the vertical axis begins at 0.
    pub from_zero: bool,
    /// Whether each point is marked.
    pub marks: bool,
}

pub(super) struct Curve {
    /// In the legend; none for the empty name.
    pub name: String,
    pub points: Vec<(f64, f64)>,
    pub faint: bool,
}

impl Curve {
    pub(super) fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, faint: false }
    }
}

impl Chart<'_> {
    /// `None` if there are no points.
    pub(super) fn to_svg(&self) -> Result<Option<String>, ReportError> {
        let mut points = self.curves.iter().flat_map(|curve| &curve.points).peekable();
        if points.peek().is_none() {
            return Ok(None);
        }
        let mut svg = String::new();
        self.draw(&mut svg).map_err(|error| ReportError::Chart(error.to_string()))?;
        Ok(Some(themed(&svg, &format!("{} over {}", self.y_label, self.x_label))))
    }

    fn draw(&self, svg: &mut String) -> Result<(), DrawingError> {
        let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let (xs, ys) = (padded(points().map(|point| point.0)), padded(points().map(|point| point.1)));
        let ys = if self.from_zero { 0.0..ys.end } else { ys };
        let mut colours = SERIES.into_iter().cycle();
        let lines = self.curves.iter().map(|curve| {
            let (colour, width) = if curve.faint { (FAINT, 1) } else { (colours.next().unwrap_or(INK), 2) };
            Line { name: &curve.name, points: &curve.points, colour, width }
        });
        let (x_label, y_label, lines) = (self.x_label, self.y_label, lines.collect());
        LineChart { x_label, y_label, xs, ys, lines, marks: self.marks }.draw(&root, &STYLE)?;
        root.present()
    }
}

/// Values as bars below each other, with the least and the largest of what each is the median of.
pub(super) struct Bars<'a> {
    /// Of the axis.
    pub label: &'a str,
    pub bars: Vec<Bar>,
}

pub(super) struct Bar {
    pub name: String,
    pub value: f64,
    pub least: f64,
    pub most: f64,
}

/// Height of a bar with the gap below it, and of what is not bars.
const BAR_HEIGHT: u32 = 44;
const AXIS_HEIGHT: u32 = 80;
/// Width of a letter of the names, roughly.
const LETTER: u32 = 10;

impl Bars<'_> {
    /// `None` if there are no bars.
    pub(super) fn to_svg(&self) -> Result<Option<String>, ReportError> {
        if self.bars.is_empty() {
            return Ok(None);
        }
        let mut svg = String::new();
        self.draw(&mut svg).map_err(|error| ReportError::Chart(error.to_string()))?;
        Ok(Some(themed(&svg, &format!("{} of each framework", self.label))))
    }

    fn draw(&self, svg: &mut String) -> Result<(), DrawingError> {
        let count = self.bars.len();
        let root = SVGBackend::with_string(svg, (SIZE.0, AXIS_HEIGHT + BAR_HEIGHT * count as u32)).into_drawing_area();
        let text = FONT.into_font().color(&INK);
        let most = self.bars.iter().map(|bar| bar.most.max(bar.value)).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
        let letters = self.bars.iter().map(|bar| bar.name.chars().count()).max().unwrap_or(0);
        let mut chart = ChartBuilder::on(&root)
            .margin(8)
            .margin_right(20)
            .x_label_area_size(56)
            .y_label_area_size(LETTER * letters as u32 + 12)
            .build_cartesian_2d(0.0..1.05 * most, (0..count).into_segmented())?;
        // The first on top.
        let name = |place: &SegmentValue<usize>| match place {
            SegmentValue::CenterOf(index) => {
                let place = (count - 1).checked_sub(*index);
                place.map_or_else(String::new, |place| self.bars[place].name.clone())
            }
            _ => String::new(),
        };
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(self.label).x_labels(6).y_labels(count + 1).label_style(text.clone()).axis_desc_style(text);
        mesh.axis_style(GRID).bold_line_style(GRID).light_line_style(TRANSPARENT).disable_y_mesh();
        mesh.x_label_formatter(&|v| short(*v)).y_label_formatter(&name).draw()?;
        for (index, bar) in self.bars.iter().rev().enumerate() {
            let colour = if bar.name.starts_with(crate::peers::own::NAME) { SERIES[0] } else { FAINT };
            let corners = [(0.0, SegmentValue::Exact(index)), (bar.value, SegmentValue::Exact(index + 1))];
            let mut area = Rectangle::new(corners, colour.filled());
            area.set_margin(9, 9, 0, 0);
            chart.draw_series([area])?;
            let ends = [bar.least, bar.most].map(|value| (value, SegmentValue::CenterOf(index)));
            chart.draw_series([PathElement::new(ends, INK.stroke_width(2))])?;
        }
        root.present()
    }
}

/// Makes the drawing as wide as its place and its colours those of the page.
fn themed(svg: &str, description: &str) -> String {
    let hex = |colour: RGBColor| format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2);
    let mut names: Vec<(RGBColor, String)> =
        vec![(INK, "ink".into()), (GRID, "grid".into()), (FAINT, "faint".into()), (CARD, "card".into())];
    names.extend(SERIES.into_iter().enumerate().map(|(i, colour)| (colour, format!("c{i}"))));
    let description = description.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;");
    let opening = format!("<svg role=\"img\" aria-label=\"{description}\" ");
    names.iter().fold(svg.trim().replacen("<svg ", &opening, 1), |svg, (colour, name)| {
        svg.replace(&hex(*colour), &format!("var(--{name})"))
    })
}

/// At most `most` points, each the mean of neighbours.
pub(super) fn thinned(points: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    let finite = points.iter().filter(|(_, y)| y.is_finite()).count();
    chart::thinned(points, finite.div_ceil(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>) -> Chart<'static> {
        let curves = vec![Curve::new("a < b", points)];
        Chart { x_label: "step", y_label: "loss", curves, from_zero: false, marks: true }
    }

    #[test]
    fn colours_are_those_of_the_page() {
        let svg = chart(vec![(0.0, 1.0), (1.0, 0.5)]).to_svg().unwrap().unwrap();
        for text in ["viewBox", "var(--ink)", "var(--c0)", "aria-label=\"loss over step\"", "a &lt; b"] {
            assert!(svg.contains(text), "{text} is missing in {svg}");
        }
        assert!(!svg.contains("#0102") && !svg.contains("#0103"), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 2);
    }

    #[test]
    fn nothing_and_oddities_are_drawn() {
        assert!(chart(vec![]).to_svg().unwrap().is_none());
        assert!(chart(vec![(1.0, 2.0)]).to_svg().unwrap().is_some());
        assert!(chart(vec![(1.0, f64::NAN)]).to_svg().unwrap().is_some());
    }

    #[test]
    fn bars_have_names_and_spreads() {
        let bar = |name: &str, value: f64| Bar { name: name.into(), value, least: 0.9 * value, most: 1.1 * value };
        let bars = Bars { label: "images/s", bars: vec![bar("bessemer (fused)", 2.0), bar("x (plain)", 1.0)] };
        let svg = bars.to_svg().unwrap().unwrap();
        for text in ["bessemer (fused)", "x (plain)", "images/s", "var(--c0)", "var(--faint)"] {
            assert!(svg.contains(text), "{text} is missing in {svg}");
        }
        assert_eq!(svg.matches("bessemer (fused)").count(), 1, "each name once");
        assert!(svg.find("bessemer (fused)").unwrap() > svg.find("x (plain)").unwrap(), "labels are drawn from below");
        assert!(Bars { label: "images/s", bars: vec![] }.to_svg().unwrap().is_none());
    }

    #[test]
    fn thinning_keeps_the_mean() {
        let points: Vec<_> = (0..1000).map(|i| (f64::from(i), f64::from(i % 2))).collect();
        let thin = thinned(&points, 100);
        assert!(thin.len() == 100 && thin.iter().all(|(_, y)| *y == 0.5));
        assert_eq!(thinned(&points[..3], 100), points[..3]);
    }
}
