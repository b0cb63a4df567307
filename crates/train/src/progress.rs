//! Progress for people, on standard error: a bar on a terminal, plain lines elsewhere.

use crate::events::{EvalInfo, StepInfo};
use crate::tasks::MetricSchema;
use indicatif::{ProgressBar, ProgressStyle};
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressMode {
    /// A bar on standard error that is redrawn in place.
    Bar,
    /// One line at most once in this time.
    Lines(Duration),
    /// Every event as it is logged, one JSON object a line.
    Json,
    /// Nothing.
    Silent,
}

impl ProgressMode {
    /// The mode for the options `--quiet` and `--log-format json`, by whether standard error is a terminal.
    pub fn detect(quiet: bool, json: bool) -> Self {
        match (quiet, json) {
            (true, _) => Self::Silent,
            (false, true) => Self::Json,
            (false, false) if io::stderr().is_terminal() => Self::Bar,
            (false, false) => Self::Lines(Duration::from_secs(5)),
        }
    }
}

/// Shows how far a run is.
pub struct Progress {
    display: Display,
    total_steps: u64,
    /// Of the run that is shown.
    metric_schema: Option<&'static MetricSchema>,
    rate: Rate,
}

enum Display {
    Bar(ProgressBar),
    Lines {
        out: Box<dyn Write + Send>,
        every: Duration,
        last: Option<Instant>,
    },
    Json(Box<dyn Write + Send>),
    /// But for warnings.
    Silent(Box<dyn Write + Send>),
}

impl Progress {
    /// Shows progress on standard error in this mode.
    pub fn new(mode: ProgressMode) -> Self {
        match mode {
            ProgressMode::Bar => Self::with(Display::Bar(new_bar())),
            mode => Self::to(mode, Box::new(io::stderr())),
        }
    }

    /// Writes to `out` instead of standard error; there a bar becomes lines.
    pub fn to(mode: ProgressMode, out: Box<dyn Write + Send>) -> Self {
        Self::with(match mode {
            ProgressMode::Bar => Display::Lines { out, every: Duration::from_secs(5), last: None },
            ProgressMode::Lines(every) => Display::Lines { out, every, last: None },
            ProgressMode::Json => Display::Json(out),
            ProgressMode::Silent => Display::Silent(out),
        })
    }

    fn with(display: Display) -> Self {
        Self { display, total_steps: 0, metric_schema: None, rate: Rate::default() }
    }

    /// A run of `total_steps` begins, or continues, at `step`.
    pub fn begin(&mut self, step: u64, total_steps: u64, metric_schema: &'static MetricSchema) {
        self.total_steps = total_steps;
        self.metric_schema = Some(metric_schema);
        self.rate = Rate::default();
        if let Display::Bar(bar) = &self.display {
            bar.set_length(total_steps);
            bar.set_position(step);
        }
    }

    /// `step` updates are done.
    pub fn step(&mut self, step: u64, info: &StepInfo) {
        self.rate.add(info.samples, info.step_s);
        let summary = self.summary(step, info);
        match &mut self.display {
            Display::Bar(bar) => {
                bar.set_position(step);
                bar.set_message(summary);
            }
            Display::Lines { out, every, last } => {
                let due = last.is_none_or(|last| last.elapsed() >= *every) || step == self.total_steps;
                if due {
                    *last = Some(Instant::now());
                    let _ = writeln!(out, "step {step}/{}  {summary}", self.total_steps);
                }
            }
            Display::Json(_) | Display::Silent(_) => {}
        }
    }

    /// Shows the metrics of an evaluation after this step.
    pub fn eval(&mut self, step: u64, info: &EvalInfo) {
        let show = |name: &str, value: f64| {
            self.metric_schema.map_or_else(|| value.to_string(), |metric_schema| metric_schema.show(name, value))
        };
        let metrics: Vec<String> =
            info.metrics.iter().map(|(name, value)| format!("{name} {}", show(name, *value))).collect();
        self.line(&format!("evaluation at step {step}: {}", metrics.join("  ")));
    }

    /// Shows a warning on a separate line, in silence too.
    pub fn warning(&mut self, message: &str) {
        let text = format!("warning: {message}");
        match &mut self.display {
            Display::Silent(out) => drop(writeln!(out, "{text}")),
            _ => self.line(&text),
        }
    }

    /// A line of its own, above the bar.
    pub fn line(&mut self, text: &str) {
        match &mut self.display {
            Display::Bar(bar) => bar.suspend(|| eprintln!("{text}")),
            Display::Lines { out, .. } => drop(writeln!(out, "{text}")),
            Display::Json(_) | Display::Silent(_) => {}
        }
    }

    /// An event as it was logged.
    pub(crate) fn event(&mut self, line: &str) {
        if let Display::Json(out) = &mut self.display {
            let _ = writeln!(out, "{line}");
        }
    }

    /// Leaves the terminal as it was.
    pub fn finish(&mut self) {
        if let Display::Bar(bar) = &self.display {
            bar.finish_and_clear();
        }
    }

    fn summary(&self, step: u64, info: &StepInfo) -> String {
        let left = self.rate.seconds_per_step() * self.total_steps.saturating_sub(step) as f64;
        let (epoch, loss, rate) = (info.epoch + 1, info.loss, self.rate.samples_per_second());
        let unit = self.metric_schema.map_or("samples/s", |metric_schema| metric_schema.unit);
        format!("epoch {epoch}  loss {loss:.4}  {rate:.1} {unit}  {} left", Span(left))
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").field("total_steps", &self.total_steps).finish_non_exhaustive()
    }
}

fn new_bar() -> ProgressBar {
    let template = "{bar:30} {pos}/{len}  {msg}";
    let style = ProgressStyle::with_template(template).expect("the template is well formed");
    ProgressBar::new(0).with_style(style)
}

/// Speed over about the last fifty steps.
#[derive(Debug, Default)]
struct Rate {
    samples: f64,
    seconds: f64,
    steps: f64,
}

impl Rate {
    const DECAY: f64 = 0.98;

    fn add(&mut self, samples: u64, seconds: f64) {
        self.samples = self.samples * Self::DECAY + samples as f64;
        self.seconds = self.seconds * Self::DECAY + seconds;
        self.steps = self.steps * Self::DECAY + 1.0;
    }

    fn samples_per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.samples / self.seconds } else { 0.0 }
    }

    fn seconds_per_step(&self) -> f64 {
        if self.steps > 0.0 { self.seconds / self.steps } else { 0.0 }
    }
}

/// Seconds as a person says them: `42 s`, `3 min 20 s`, `5 h 07 min`.
#[derive(Clone, Copy, Debug)]
pub struct Span(pub f64);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.round() as u64;
        match seconds {
            0..60 => write!(f, "{seconds} s"),
            60..3600 => write!(f, "{} min {:02} s", seconds / 60, seconds % 60),
            _ => write!(f, "{} h {:02} min", seconds / 3600, seconds / 60 % 60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::classification::TERMS;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn shown(mode: ProgressMode) -> String {
        let out = Shared::default();
        let mut progress = Progress::to(mode, Box::new(out.clone()));
        progress.begin(10, 1000, &TERMS);
        let info = StepInfo { epoch: 2, loss: 1.25, samples: 32, step_s: 2.0, ..Default::default() };
        (11..=20).for_each(|step| progress.step(step, &info));
        let metrics = [("loss".to_owned(), 0.5), ("top1".to_owned(), 0.7654)].into();
        progress.eval(20, &EvalInfo { metrics, ..Default::default() });
        progress.warning("slow disk");
        progress.event("{}");
        progress.finish();
        let bytes = out.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn lines_come_at_intervals() {
        let text = shown(ProgressMode::Lines(Duration::from_secs(3600)));
        let expected = "step 11/1000  epoch 3  loss 1.2500  16.0 images/s  32 min 58 s left\n\
                        evaluation at step 20: loss 0.5000  top1 76.54 %\n\
                        warning: slow disk\n";
        assert_eq!(text, expected);
        assert_eq!(shown(ProgressMode::Lines(Duration::ZERO)).lines().count(), 12);
    }

    #[test]
    fn silence_and_json() {
        assert_eq!(shown(ProgressMode::Silent), "warning: slow disk\n");
        assert_eq!(shown(ProgressMode::Json), "{}\n");
        assert_eq!(ProgressMode::detect(true, true), ProgressMode::Silent);
        assert_eq!(ProgressMode::detect(false, true), ProgressMode::Json);
    }

    #[test]
    fn the_last_step_is_always_shown() {
        let out = Shared::default();
        let mut progress = Progress::to(ProgressMode::Lines(Duration::from_secs(3600)), Box::new(out.clone()));
        progress.begin(0, 5, &TERMS);
        (1..=5).for_each(|step| progress.step(step, &StepInfo::default()));
        let text = String::from_utf8(out.0.lock().unwrap().clone()).unwrap();
        assert!(text.lines().count() == 2 && text.contains("step 5/5"), "{text}");
    }

    #[test]
    fn spans_read_well() {
        for (seconds, expected) in
            [(0.4, "0 s"), (59.6, "1 min 00 s"), (3599.0, "59 min 59 s"), (18_420.0, "5 h 07 min")]
        {
            assert_eq!(Span(seconds).to_string(), expected);
        }
    }
}
