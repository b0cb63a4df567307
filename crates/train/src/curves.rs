//! `curves.svg`: loss, learning rate and the evaluation metric over steps, drawn beside the training thread.

use plotters::coord::Shift;
use plotters::prelude::*;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const SIZE: (u32, u32) = (900, 1000);
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(226, 226, 226);
const RAW: RGBColor = RGBColor(174, 199, 232);
const LINE: RGBColor = RGBColor(31, 90, 170);

/// Points of a curve, at most a few thousand: neighbours are averaged as it grows.
#[derive(Clone, Debug, Default)]
pub struct Series {
    points: Vec<(f64, f64)>,
    /// Values that make one point.
    stride: u32,
    pending: (f64, f64, u32),
}

impl Series {
    const MOST_POINTS: usize = 2048;

    /// Adds a value; one that is not finite leaves a gap.
    pub fn push(&mut self, x: f64, y: f64) {
        if !y.is_finite() {
            return;
        }
        let (sum_x, sum_y, count) = self.pending;
        self.pending = (sum_x + x, sum_y + y, count + 1);
        if self.pending.2 < self.stride.max(1) {
            return;
        }
        let (sum_x, sum_y, count) = std::mem::take(&mut self.pending);
        self.points.push((sum_x / f64::from(count), sum_y / f64::from(count)));
        if self.points.len() >= Self::MOST_POINTS {
            self.points = self.points.chunks(2).map(mean).collect();
            self.stride = self.stride.max(1) * 2;
        }
    }

    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }

    /// Exponential moving averages over about a fiftieth of the points, taken from both ends so that they do not lag.
    fn smoothed(&self) -> Vec<(f64, f64)> {
        let forward = averaged(self.points.iter());
        let backward = averaged(self.points.iter().rev());
        let pairs = forward.into_iter().zip(backward.into_iter().rev());
        self.points.iter().zip(pairs).map(|(&(x, _), (before, after))| (x, 0.5 * (before + after))).collect()
    }
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

fn mean(points: &[(f64, f64)]) -> (f64, f64) {
    let count = points.len() as f64;
    let sum = points.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
    (sum.0 / count, sum.1 / count)
}

/// The curves of a run; `x` is the step.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub loss: Series,
    pub lr: Series,
    /// The evaluation metric, and what it is called on its axis.
    pub metric: Series,
    pub metric_label: String,
}

impl History {
    /// Draws all panels as SVG.
    ///
    /// # Errors
    /// What the drawing library could not do, as text.
    pub fn to_svg(&self) -> Result<String, String> {
        let mut svg = String::new();
        self.draw(&mut svg).map_err(|error| error.to_string())?;
        Ok(svg)
    }

    fn draw(&self, svg: &mut String) -> Result<(), DrawingError> {
        let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let panels = root.split_evenly((3, 1));
        let steps = 0.0..self.last_step();

        let smoothed = self.loss.smoothed();
        let loss = Panel { label: "training loss", steps: steps.clone(), values: padded(self.loss.points()) };
        loss.draw(&panels[0], &[(self.loss.points(), RAW, 1, "as measured"), (&smoothed, LINE, 2, "smoothed")], false)?;

        let values = from_zero(self.lr.points());
        let lr = Panel { label: "learning rate", steps: steps.clone(), values };
        lr.draw(&panels[1], &[(self.lr.points(), LINE, 2, "")], false)?;

        let label = if self.metric_label.is_empty() { "evaluation" } else { &self.metric_label };
        let metric = Panel { label, steps, values: padded(self.metric.points()) };
        metric.draw(&panels[2], &[(self.metric.points(), LINE, 2, "")], true)?;
        root.present()
    }

    fn last_step(&self) -> f64 {
        let last = |series: &Series| series.points().last().map_or(1.0, |(x, _)| *x);
        last(&self.loss).max(last(&self.lr)).max(last(&self.metric))
    }
}

type DrawingError = DrawingAreaErrorKind<std::io::Error>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// Points, colour, width in pixels, name in the legend.
type Curve<'a> = (&'a [(f64, f64)], RGBColor, u32, &'a str);

struct Panel<'a> {
    label: &'a str,
    steps: Range<f64>,
    values: Range<f64>,
}

impl Panel<'_> {
    fn draw(self, area: &Area<'_>, curves: &[Curve<'_>], mark_points: bool) -> Result<(), DrawingError> {
        let text = (FONT, 14).into_font().color(&INK);
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .margin_right(24)
            .x_label_area_size(42)
            .y_label_area_size(78)
            .build_cartesian_2d(self.steps, self.values)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc("step").y_desc(self.label).x_labels(8).y_labels(6);
        mesh.label_style(text.clone()).axis_desc_style(text.clone()).axis_style(INK).light_line_style(WHITE);
        mesh.bold_line_style(GRID).x_label_formatter(&|v| short(*v)).y_label_formatter(&|v| short(*v)).draw()?;

        let mut named = false;
        for &(points, colour, width, name) in curves {
            let line = chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(width)))?;
            if !name.is_empty() {
                named = true;
                line.label(name).legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
            }
            if mark_points {
                chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
            }
        }
        if named {
            let labels = &mut chart.configure_series_labels();
            let labels = labels.position(SeriesLabelPosition::UpperRight).background_style(WHITE);
            labels.border_style(GRID).label_font(text).draw()?;
        }
        Ok(())
    }
}

/// From the smallest to the largest value with a margin of 5 %.
fn padded(points: &[(f64, f64)]) -> Range<f64> {
    let low = points.iter().map(|(_, y)| *y).fold(f64::INFINITY, f64::min);
    let high = points.iter().map(|(_, y)| *y).fold(f64::NEG_INFINITY, f64::max);
    if low > high {
        return 0.0..1.0;
    }
    let margin = if high > low { 0.05 * (high - low) } else { 0.05 * high.abs() + 1e-6 };
    low - margin..high + margin
}

fn from_zero(points: &[(f64, f64)]) -> Range<f64> {
    let range = padded(points);
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

/// Collects the history and has it drawn by a thread of its own, so that a step never waits for a drawing.
#[derive(Debug)]
pub struct CurvesWriter {
    history: History,
    every: Duration,
    drawn: Instant,
    /// `None` once closed.
    requests: Option<SyncSender<History>>,
    problems: Receiver<String>,
    thread: Option<JoinHandle<()>>,
}

impl CurvesWriter {
    /// Draws to `path` at most once in `every`. `metric_label` names the axis of the evaluation metric, with its unit.
    pub fn new(path: PathBuf, every: Duration, metric_label: &str) -> Self {
        let (requests, queue) = sync_channel::<History>(1);
        let (report, problems) = sync_channel(1);
        let thread = thread::spawn(move || {
            for history in queue {
                if let Err(problem) = replace(&path, &history) {
                    let _ = report.try_send(problem);
                }
            }
        });
        Self {
            history: History { metric_label: metric_label.to_owned(), ..Default::default() },
            every,
            drawn: Instant::now(),
            requests: Some(requests),
            problems,
            thread: Some(thread),
        }
    }

    pub fn step(&mut self, step: u64, loss: f64, lr: f64) {
        self.history.loss.push(step as f64, loss);
        self.history.lr.push(step as f64, lr);
        if self.drawn.elapsed() >= self.every {
            self.draw();
        }
    }

    pub fn metric(&mut self, step: u64, value: f64) {
        self.history.metric.push(step as f64, value);
    }

    /// Asks for a drawing now; does nothing while two are under way.
    pub fn draw(&mut self) {
        self.drawn = Instant::now();
        if let Some(requests) = &self.requests {
            let _ = requests.try_send(self.history.clone());
        }
    }

    /// What went wrong since the last call.
    pub fn problem(&mut self) -> Option<String> {
        self.problems.try_recv().ok()
    }

    /// Draws everything and waits for it.
    pub fn finish(&mut self) {
        if let Some(requests) = self.requests.take() {
            let _ = requests.send(self.history.clone());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for CurvesWriter {
    fn drop(&mut self) {
        self.finish();
    }
}

fn replace(path: &Path, history: &History) -> Result<(), String> {
    let svg = history.to_svg()?;
    let beside = path.with_extension("svg.new");
    let written = fs::write(&beside, svg).and_then(|()| fs::rename(&beside, path));
    written.map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history() -> History {
        let mut history = History { metric_label: "validation top-1 (%)".to_owned(), ..Default::default() };
        for step in 0..5000 {
            let x = f64::from(step);
            history.loss.push(x, 7.0 / (1.0 + x / 500.0) + 0.3 * (x * 0.7).sin());
            history.lr.push(x, 0.1 * (1.0 - x / 5000.0));
            if step % 500 == 499 {
                history.metric.push(x, 80.0 * (1.0 - (-x / 1500.0).exp()));
            }
        }
        history
    }

    #[test]
    fn a_long_series_stays_small_and_keeps_its_mean() {
        let mut series = Series::default();
        (0..100_000).for_each(|step| series.push(f64::from(step), f64::from(step % 2)));
        assert!(series.points().len() < Series::MOST_POINTS && series.points().len() >= Series::MOST_POINTS / 2);
        assert!(series.points().iter().all(|(_, y)| *y == 0.5));
        assert!(series.points().is_sorted_by(|a, b| a.0 < b.0));
        series.push(1e6, f64::NAN);
        assert!(series.smoothed().iter().all(|(_, y)| (*y - 0.5).abs() < 1e-9));
    }

    #[test]
    fn smoothing_follows_a_slope_and_removes_noise() {
        let mut series = Series::default();
        (0..1000).for_each(|step| series.push(f64::from(step), f64::from(step) + f64::from(step % 2 * 10)));
        let middle = &series.smoothed()[200..800];
        assert!(middle.iter().all(|(x, y)| (y - x - 5.0).abs() < 1.0));
    }

    #[test]
    fn the_drawing_has_axes_with_names_and_units() {
        let svg = history().to_svg().unwrap();
        for text in ["training loss", "learning rate", "validation top-1 (%)", "step", "smoothed", "as measured"] {
            assert!(svg.contains(text), "{text} is missing");
        }
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert_eq!(svg.matches("<circle").count(), 10, "one mark for each evaluation");
    }

    #[test]
    fn nothing_to_draw_is_drawn() {
        assert!(History::default().to_svg().is_ok());
        let mut flat = History::default();
        flat.loss.push(0.0, 0.0);
        flat.metric.push(0.0, f64::INFINITY);
        assert!(flat.to_svg().is_ok());
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

    #[test]
    fn the_file_is_replaced_while_training_and_at_the_end() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("curves.svg");
        let mut writer = CurvesWriter::new(path.clone(), Duration::from_secs(3600), "x");
        writer.step(0, 1.0, 0.1);
        assert!(!path.exists());
        writer.finish();
        assert!(fs::read_to_string(&path).unwrap().contains("</svg>"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failure_is_reported_not_raised() {
        let mut writer = CurvesWriter::new("/nowhere/at/all/curves.svg".into(), Duration::ZERO, "x");
        writer.step(0, 1.0, 0.1);
        writer.finish();
        assert!(writer.problem().unwrap().starts_with("/nowhere/at/all/curves.svg: "));
        assert_eq!(writer.problem(), None);
    }
}
