//! One place to say what happens in a run; it reaches every log.

use crate::clock::unix_seconds;
use crate::curves::CurvesWriter;
use crate::dllogger::DllWriter;
use crate::events::{
    CheckpointInfo, EndInfo, EvalInfo, Event, EventBody, EventError, EventWriter, Header, PlanInfo, RanksInfo, RunInfo,
    StepInfo, WarningInfo,
};
use crate::progress::Progress;
use crate::rundir::RunDir;
use crate::tasks::MetricSchema;
use crate::tensorboard::TensorBoardWriter;
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

const CURVES_EVERY: Duration = Duration::from_secs(10);

/// Writes every event to `events.jsonl`, and what they mean to `dllogger.json`, `tensorboard/`, `curves.svg` and the
/// progress display.
///
/// Only a failure of `events.jsonl` is an error. The other files can be made again from it: when one of them fails, a
/// warning says so and that one ends.
#[derive(Debug)]
pub struct RunLog {
    metric_schema: &'static MetricSchema,
    events: EventWriter,
    dllogger: Option<DllWriter<File>>,
    tensorboard: Option<TensorBoardWriter<File>>,
    curves: Option<CurvesWriter>,
    progress: Progress,
    started: Instant,
    elapsed_before: f64,
    step: Option<u64>,
    resumed_from: Option<u64>,
}

impl RunLog {
    /// Starts the logs of a new run.
    ///
    /// # Errors
    /// An event log that exists or cannot be created.
    pub fn create(run: &RunDir, metric_schema: &'static MetricSchema, progress: Progress) -> Result<Self, EventError> {
        Self::start(run, metric_schema, EventWriter::create(&run.events())?, &[], None, progress)
    }

    /// Continues the logs of a run from a checkpoint at `step`. What they say of later steps is dropped, and a line
    /// that was cut short with it.
    ///
    /// # Errors
    /// An event log that cannot be read or replaced.
    pub fn resume(
        run: &RunDir,
        metric_schema: &'static MetricSchema,
        step: u64,
        progress: Progress,
    ) -> Result<Self, EventError> {
        let resumed = EventWriter::resume(&run.events(), step)?;
        let mut log = Self::start(run, metric_schema, resumed.writer, &resumed.kept, Some(step), progress)?;
        if !resumed.damaged.is_empty() {
            log.warning(&format!("{}: {}", run.events().display(), dropped(&resumed.damaged)))?;
        }
        Ok(log)
    }

    fn start(
        run: &RunDir,
        metric_schema: &'static MetricSchema,
        events: EventWriter,
        past: &[Event],
        resumed_from: Option<u64>,
        progress: Progress,
    ) -> Result<Self, EventError> {
        let mut log = Self {
            metric_schema,
            events,
            dllogger: None,
            tensorboard: None,
            curves: Some(CurvesWriter::new(run.curves(), CURVES_EVERY, metric_schema.best_axis())),
            progress,
            started: Instant::now(),
            elapsed_before: past.iter().map(|event| event.header.elapsed).fold(0.0, f64::max),
            step: resumed_from,
            resumed_from,
        };
        let dllogger = DllWriter::create(&run.dllogger(), metric_schema).and_then(|mut writer| {
            past.iter().try_for_each(|event| writer.write(event))?;
            Ok(writer)
        });
        log.dllogger = log.keep("dllogger.json", dllogger)?;
        let tensorboard = TensorBoardWriter::create(&run.tensorboard(), unix_seconds()).and_then(|mut writer| {
            if let Some(step) = resumed_from {
                writer.restart_at(unix_seconds(), step + 1)?;
            }
            Ok(writer)
        });
        log.tensorboard = log.keep("tensorboard", tensorboard)?;
        past.iter().for_each(|event| log.draw(event));
        Ok(log)
    }

    /// Sets up the progress display: `total_steps` in all, `step` of them done.
    pub fn begin_steps(&mut self, step: u64, total_steps: u64) {
        self.progress.begin(step, total_steps, self.metric_schema);
    }

    /// Logs the start of the run, or its resumption.
    ///
    /// # Errors
    /// The event log could not be written; the same holds for all methods below.
    pub fn run_started(&mut self, info: RunInfo) -> Result<(), EventError> {
        self.log(self.resumed_from, RunInfo { resumed_from: self.resumed_from, ..info })
    }

    /// Logs the cost of a compiled step.
    pub fn plan(&mut self, info: PlanInfo) -> Result<(), EventError> {
        self.log(None, info)
    }

    /// `step` updates are done; `info` describes the last one.
    pub fn step(&mut self, step: u64, info: StepInfo) -> Result<(), EventError> {
        self.progress.step(step, &info);
        self.log(Some(step), info)
    }

    /// Logs how long the last steps took on each rank.
    pub fn ranks(&mut self, step: u64, info: RanksInfo) -> Result<(), EventError> {
        self.log(Some(step), info)
    }

    /// Logs and shows the metrics of an evaluation after `step` updates.
    pub fn eval(&mut self, step: u64, info: EvalInfo) -> Result<(), EventError> {
        self.progress.eval(step, &info);
        self.log(Some(step), info)
    }

    /// Makes the event log up to here durable, before a checkpoint becomes so.
    pub fn sync(&mut self) -> Result<(), EventError> {
        self.events.sync()
    }

    /// A checkpoint is durable; the event log up to here becomes so too. Later steps may have been logged meanwhile.
    pub fn checkpoint(&mut self, step: u64, info: CheckpointInfo) -> Result<(), EventError> {
        self.log(Some(step), info)?;
        self.sync()
    }

    /// Logs and shows a warning.
    pub fn warning(&mut self, message: &str) -> Result<(), EventError> {
        self.progress.warning(message);
        self.log_warning(message)
    }

    /// Logs a warning that was shown elsewhere.
    pub(crate) fn log_warning(&mut self, message: &str) -> Result<(), EventError> {
        let event = self.event(self.step, WarningInfo { message: message.to_owned() });
        let line = self.events.write(&event)?;
        self.progress.event(&line);
        Ok(())
    }

    /// A picture for TensorBoard.
    pub fn image(&mut self, step: u64, tag: &str, png: &[u8]) -> Result<(), EventError> {
        self.tensorboard(|writer| writer.image(unix_seconds(), step, tag, png))
    }

    /// The run is over. Draws the last curves and makes the event log durable.
    pub fn end(&mut self, step: u64, info: EndInfo) -> Result<(), EventError> {
        self.log(Some(step), info)?;
        if let Some(curves) = &mut self.curves {
            curves.finish();
        }
        self.report_curves()?;
        self.progress.finish();
        self.events.sync()
    }

    /// The progress display, for lines beside the events.
    pub fn progress(&mut self) -> &mut Progress {
        &mut self.progress
    }

    fn log(&mut self, step: Option<u64>, body: impl Into<EventBody>) -> Result<(), EventError> {
        self.step = self.step.max(step);
        let event = self.event(step, body);
        let line = self.events.write(&event)?;
        self.progress.event(&line);
        self.dllogger(|writer| writer.write(&event))?;
        self.tensorboard(|writer| writer.write(&event))?;
        self.draw(&event);
        self.report_curves()
    }

    fn event(&self, step: Option<u64>, body: impl Into<EventBody>) -> Event {
        let elapsed = self.elapsed_before + self.started.elapsed().as_secs_f64();
        Event::new(Header { time: unix_seconds(), elapsed, rank: 0, step }, body)
    }

    fn draw(&mut self, event: &Event) {
        let (Some(curves), Some(step)) = (&mut self.curves, event.header.step) else { return };
        match &event.body {
            EventBody::Step(info) => curves.step(step, info.loss, info.lr),
            EventBody::Eval(info) => {
                let metric = self.metric_schema.best.0;
                if let Some(value) = info.metrics.get(metric) {
                    curves.metric(step, self.metric_schema.scale(metric).shown(*value));
                    curves.draw();
                }
            }
            _ => {}
        }
    }

    fn dllogger(&mut self, write: impl FnOnce(&mut DllWriter<File>) -> io::Result<()>) -> Result<(), EventError> {
        let Some(mut writer) = self.dllogger.take() else { return Ok(()) };
        let result = write(&mut writer).map(|()| writer);
        self.dllogger = self.keep("dllogger.json", result)?;
        Ok(())
    }

    fn tensorboard(
        &mut self,
        write: impl FnOnce(&mut TensorBoardWriter<File>) -> io::Result<()>,
    ) -> Result<(), EventError> {
        let Some(mut writer) = self.tensorboard.take() else { return Ok(()) };
        let result = write(&mut writer).map(|()| writer);
        self.tensorboard = self.keep("tensorboard", result)?;
        Ok(())
    }

    /// The writer if it works; else a warning and no writer.
    fn keep<W>(&mut self, name: &str, result: io::Result<W>) -> Result<Option<W>, EventError> {
        match result {
            Ok(writer) => Ok(Some(writer)),
            Err(error) => {
                self.warning(&format!("{name} ends here, it cannot be written: {error}"))?;
                Ok(None)
            }
        }
    }

    fn report_curves(&mut self) -> Result<(), EventError> {
        let Some(problem) = self.curves.as_mut().and_then(CurvesWriter::problem) else { return Ok(()) };
        self.curves = None;
        self.warning(&format!("curves.svg ends here, it cannot be written: {problem}"))
    }
}

/// What became of lines with these numbers.
fn dropped(lines: &[usize]) -> String {
    match lines {
        [line] => format!("line {line} cannot be read and is dropped"),
        lines => {
            let numbers: Vec<String> = lines.iter().map(usize::to_string).collect();
            format!("the lines {} cannot be read and are dropped", numbers.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{Status, read_events};
    use crate::progress::ProgressMode;
    use crate::recipe::Recipe;
    use crate::tasks::classification::TERMS;
    use std::fs;
    use tempfile::TempDir;

    fn new_run(parent: &TempDir) -> RunDir {
        RunDir::create(parent.path().join("run"), &Recipe::load("cifar", &[]).unwrap()).unwrap()
    }

    fn silent() -> Progress {
        Progress::new(ProgressMode::Silent)
    }

    fn steps(log: &mut RunLog, range: std::ops::RangeInclusive<u64>) {
        for step in range {
            let (epoch, batch) = ((step - 1) / 5, (step - 1) % 5);
            let info = StepInfo {
                epoch,
                batch,
                loss: 1.0 / step as f64,
                samples: 8,
                step_s: 0.1,
                compute_s: 0.1,
                ..Default::default()
            };
            log.step(step, info).unwrap();
        }
    }

    fn eval(log: &mut RunLog, step: u64) {
        let info = EvalInfo { metrics: [("top1".to_owned(), 0.5)].into(), samples: 1, ..Default::default() };
        log.eval(step, info).unwrap();
    }

    fn end(log: &mut RunLog, step: u64) {
        let (metrics, error) = (Default::default(), None);
        let info = EndInfo {
            status: Status::Done,
            error,
            steps: step,
            samples: 8 * step,
            train_s: 1.0,
            throughput: 1.0,
            metrics,
        };
        log.end(step, info).unwrap();
    }

    /// `kind step` of every event.
    fn outline(run: &RunDir) -> Vec<String> {
        let kind = |event: &Event| serde_json::to_value(event).unwrap()["kind"].as_str().unwrap().to_owned();
        let show = |event: &Event| format!("{} {:?}", kind(event), event.header.step);
        read_events(&run.events()).unwrap().iter().map(show).collect()
    }

    fn dll_steps(run: &RunDir) -> Vec<String> {
        let text = fs::read_to_string(run.dllogger()).unwrap();
        let values = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(&line[5..]).unwrap());
        values.filter(|value| value["type"] == "LOG").map(|value| value["step"].to_string()).collect()
    }

    #[test]
    fn every_log_hears_of_the_run() {
        let parent = TempDir::new().unwrap();
        let run = new_run(&parent);
        let mut log = RunLog::create(&run, &TERMS, silent()).unwrap();
        log.run_started(RunInfo::default()).unwrap();
        log.plan(PlanInfo::default()).unwrap();
        steps(&mut log, 1..=2);
        eval(&mut log, 2);
        log.checkpoint(2, CheckpointInfo::default()).unwrap();
        log.warning("careful").unwrap();
        end(&mut log, 2);
        let expected = [
            "run None",
            "plan None",
            "step Some(1)",
            "step Some(2)",
            "eval Some(2)",
            "checkpoint Some(2)",
            "warning Some(2)",
            "end Some(2)",
        ];
        assert_eq!(outline(&run), expected);
        assert_eq!(dll_steps(&run), ["\"PARAMETER\"", "[0,0]", "[0,1]", "[0]", "[]"]);
        assert_eq!(fs::read_dir(run.tensorboard()).unwrap().count(), 1);
        assert!(fs::read_to_string(run.curves()).unwrap().contains("validation top-1 (%)"));
    }

    #[test]
    fn a_resumed_run_reads_as_if_it_had_never_stopped() {
        let (parent, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let (whole, resumed) = (new_run(&parent), new_run(&other));
        let mut log = RunLog::create(&whole, &TERMS, silent()).unwrap();
        steps(&mut log, 1..=10);
        end(&mut log, 10);

        let mut log = RunLog::create(&resumed, &TERMS, silent()).unwrap();
        steps(&mut log, 1..=8);
        drop(log);
        let elapsed = read_events(&resumed.events()).unwrap()[5].header.elapsed;
        let mut log = RunLog::resume(&resumed, &TERMS, 6, silent()).unwrap();
        steps(&mut log, 7..=10);
        end(&mut log, 10);
        assert_eq!(outline(&resumed), outline(&whole));
        assert_eq!(dll_steps(&resumed), dll_steps(&whole));
        let events = read_events(&resumed.events()).unwrap();
        assert!(events[6].header.elapsed >= elapsed, "time goes on");
        assert_eq!(fs::read_dir(resumed.tensorboard()).unwrap().count(), 2);
    }

    #[test]
    fn lines_that_are_dropped_are_named_by_number() {
        assert_eq!(dropped(&[36]), "line 36 cannot be read and is dropped");
        assert_eq!(dropped(&[3, 36]), "the lines 3, 36 cannot be read and are dropped");
    }

    #[test]
    fn failures_beside_the_event_log_are_warnings() {
        let parent = TempDir::new().unwrap();
        let run = new_run(&parent);
        fs::create_dir(run.dllogger()).unwrap();
        fs::write(run.tensorboard(), "").unwrap();
        fs::create_dir_all(run.curves().join("occupied")).unwrap();
        let mut log = RunLog::create(&run, &TERMS, silent()).unwrap();
        steps(&mut log, 1..=3);
        end(&mut log, 3);
        let events = read_events(&run.events()).unwrap();
        let warnings: Vec<&str> = events
            .iter()
            .filter_map(|event| match &event.body {
                EventBody::Warning(info) => info.message.split(' ').next(),
                _ => None,
            })
            .collect();
        assert_eq!(warnings, ["dllogger.json", "tensorboard", "curves.svg"]);
        assert_eq!(outline(&run).iter().filter(|line| line.starts_with("step")).count(), 3);
    }

    #[test]
    fn a_step_is_logged_in_less_than_a_millisecond() {
        let parent = TempDir::new().unwrap();
        let run = new_run(&parent);
        let mut log = RunLog::create(&run, &TERMS, silent()).unwrap();
        steps(&mut log, 1..=10);
        let started = Instant::now();
        steps(&mut log, 11..=2010);
        let per_step = started.elapsed().as_secs_f64() / 2000.0;
        assert!(per_step < 1e-3, "{per_step} s a step");
    }
}
