//! `curves.svg`: loss, learning rate and the evaluation metric over steps, drawn beside the training thread.

use crate::chart::{DrawingError, Line, LineChart, from_zero, padded, smoothed, thinned};
use bessemer_data::replace_file;
use plotters::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const SIZE: (u32, u32) = (900, 1000);
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
            self.points = thinned(&self.points, 2);
            self.stride = self.stride.max(1) * 2;
        }
    }

    /// Pairs of x and y, with x ascending.
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }
}

/// The curves of a run; `x` is the step.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Training loss.
    pub loss: Series,
    /// Learning rate.
    pub lr: Series,
    /// The evaluation metric, and what it is called on its axis.
    pub metric: Series,
    /// Title of the metric's axis.
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
        let chart = |y_label, begins_at_zero: bool, marks, lines: Vec<Line<'_>>, panel| {
            let range = padded(lines.iter().flat_map(|line| line.points).map(|(_, y)| *y));
            let ys = if begins_at_zero { from_zero(range) } else { range };
            let xs = 0.0..self.last_step();
            LineChart { x_label: "step", y_label, xs, ys, lines, marks }.draw(panel)
        };
        let line = |name, points, colour, width| Line { name, points, colour, width };

        let smoothed = smoothed(self.loss.points());
        let raw = line("as measured", self.loss.points(), RAW, 1);
        chart("training loss", false, false, vec![raw, line("smoothed", &smoothed, LINE, 2)], &panels[0])?;
        chart("learning rate", true, false, vec![line("", self.lr.points(), LINE, 2)], &panels[1])?;
        let label = if self.metric_label.is_empty() { "evaluation" } else { &self.metric_label };
        chart(label, false, true, vec![line("", self.metric.points(), LINE, 2)], &panels[2])?;
        root.present()
    }

    fn last_step(&self) -> f64 {
        let last = |series: &Series| series.points().last().map_or(1.0, |(x, _)| *x);
        last(&self.loss).max(last(&self.lr)).max(last(&self.metric))
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

    /// Adds the loss and the learning rate of a step, and asks for a drawing if one is due.
    pub fn step(&mut self, step: u64, loss: f64, lr: f64) {
        self.history.loss.push(step as f64, loss);
        self.history.lr.push(step as f64, lr);
        if self.drawn.elapsed() >= self.every {
            self.draw();
        }
    }

    /// Adds the metric of an evaluation after this step.
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
    let written = replace_file(path, &beside, svg.as_bytes());
    written.map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

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
        assert!(smoothed(series.points()).iter().all(|(_, y)| (*y - 0.5).abs() < 1e-9));
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
