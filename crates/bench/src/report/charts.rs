//! Charts as data, which the page's script draws.

use bessemer_train::chart;
use bessemer_train::events::Ratio;
use serde::Serialize;

/// Points of a curve at most: as many as a wide chart shows when it is zoomed a little.
pub(super) const MOST_POINTS: usize = 800;

/// A chart under a caption.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Chart {
    Lines(Lines),
    Bars(Bars),
}

/// Curves over one axis; what they show has one unit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Lines {
    /// What the vertical axis shows, with its unit.
    pub caption: String,
    /// What the horizontal axis shows.
    pub x: &'static str,
    pub curves: Vec<Curve>,
    /// Whether the vertical axis begins at 0.
    pub from_zero: bool,
    /// Whether each point is marked.
    pub marks: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Curve {
    /// In the legend; none for the empty name.
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// Whether it stands behind the others.
    pub faint: bool,
}

/// Values as bars below each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Bars {
    pub caption: String,
    pub unit: String,
    /// Where the bars begin.
    pub base: f64,
    pub bars: Vec<Bar>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Bar {
    pub name: String,
    /// Lines below the name.
    pub details: Vec<String>,
    pub value: f64,
    /// The least and the largest of what the value is the median of; `None` for a single value.
    pub range: Option<(f64, f64)>,
    pub tone: Tone,
}

/// What a colour says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Tone {
    /// Of this program, or of the only series.
    Own,
    /// Of others.
    Other,
    Good,
    Bad,
}

impl Tone {
    /// Of Bessemer's speed over that of another framework: neither good nor bad where the rounds disagree.
    pub(super) fn of_ratio(ratio: Ratio) -> Self {
        match ratio {
            Ratio { min, .. } if min >= 1.0 => Tone::Good,
            Ratio { max, .. } if max <= 1.0 => Tone::Bad,
            _ => Tone::Other,
        }
    }
}

impl Curve {
    pub(super) fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, faint: false }
    }
}

impl Lines {
    /// `None` if there is no finite point. Values are rounded to what a chart can show.
    pub(super) fn chart(mut self) -> Option<Chart> {
        for curve in &mut self.curves {
            curve.points.retain(|(x, y)| x.is_finite() && y.is_finite());
            curve.points.iter_mut().for_each(|(x, y)| (*x, *y) = (rounded(*x), rounded(*y)));
        }
        self.curves.retain(|curve| !curve.points.is_empty());
        (!self.curves.is_empty()).then_some(Chart::Lines(self))
    }
}

impl Bars {
    /// `None` if there are no bars.
    pub(super) fn chart(mut self) -> Option<Chart> {
        self.bars.retain(|bar| bar.value.is_finite());
        (!self.bars.is_empty()).then_some(Chart::Bars(self))
    }
}

/// To six significant digits.
fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

/// At most `most` points, each the mean of neighbours.
pub(super) fn thinned(points: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    let finite = points.iter().filter(|(_, y)| y.is_finite()).count();
    chart::thinned(points, finite.div_ceil(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(points: Vec<(f64, f64)>) -> Option<Chart> {
        let curves = vec![Curve::new("a < b", points), Curve::new("empty", vec![])];
        Lines { caption: "loss".into(), x: "step", curves, from_zero: false, marks: true }.chart()
    }

    #[test]
    fn a_chart_holds_finite_points_alone() {
        let Some(Chart::Lines(chart)) = lines(vec![(0.0, 1.0 / 3.0), (1.0, f64::NAN), (2.0, 0.5)]) else {
            panic!("there are points");
        };
        assert_eq!(chart.curves.len(), 1);
        assert_eq!(chart.curves[0].points, [(0.0, 0.333_333), (2.0, 0.5)]);
        assert_eq!(lines(vec![]), None);
        assert_eq!(lines(vec![(1.0, f64::INFINITY)]), None);
        assert_eq!(Bars { caption: "ms".into(), unit: "ms".into(), base: 0.0, bars: vec![] }.chart(), None);
    }

    #[test]
    fn a_ratio_is_good_or_bad_in_every_round_or_neither() {
        let tone = |min: f64, max: f64| Tone::of_ratio(Ratio { median: 0.5 * (min + max), min, max });
        assert_eq!([tone(1.0, 1.2), tone(0.8, 0.9), tone(0.9, 1.2)], [Tone::Good, Tone::Bad, Tone::Other]);
    }

    #[test]
    fn values_keep_six_digits() {
        assert_eq!([0.0, -1_234_567.0, 1.234_567e-5].map(rounded), [0.0, -1_234_570.0, 1.234_57e-5]);
    }

    #[test]
    fn thinning_keeps_the_mean() {
        let points: Vec<_> = (0..1000).map(|i| (f64::from(i), f64::from(i % 2))).collect();
        let thin = thinned(&points, 100);
        assert!(thin.len() == 100 && thin.iter().all(|(_, y)| *y == 0.5));
        assert_eq!(thinned(&points[..3], 100), points[..3]);
    }
}
