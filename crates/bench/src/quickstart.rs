//! The first minutes on a machine: look at it, train a small model to a stated accuracy, measure a large one, report.

use crate::doctor::{Examination, examine};
use crate::measure::{self, MeasureError, Repeat, measure};
use crate::report::{self, ReportError};
use crate::samples::Sample;
use crate::show;
use crate::workload::Mode;
use bessemer_train::clock::{compact, unix_seconds};
use bessemer_train::events::{BenchResult, Event, EventError, EventWriter, Header};
use bessemer_train::recipe::{Override, RecipeError};
use bessemer_train::tasks::registry;
use bessemer_train::{
    ComputeOptions, ProgressMode, Recipe, RunDir, RunFolder, StopSignal, TrainError, TrainOptions, TrainReport, train,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What the quick start is asked to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where its folder is made, named by the time.
    pub parent: PathBuf,
    /// Device and precision to compute with.
    pub compute: ComputeOptions,
    /// Seed of the generated images and of the training.
    pub seed: u64,
    /// How progress is shown.
    pub progress: ProgressMode,
    /// Ends the work when the user interrupts.
    pub stop: StopSignal,
    /// The command line, for the log.
    pub command: Vec<String>,
}

/// What it came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// File of the report.
    pub report: PathBuf,
    /// Result of the training.
    pub training: TrainReport,
    /// Fraction of the pictures not trained on that are recognised.
    pub accuracy: f64,
    /// Images of the test set with their predicted classes.
    pub samples: Vec<Sample>,
    /// Measured speeds.
    pub benches: Vec<BenchResult>,
    /// Time of everything, in seconds.
    pub seconds: f64,
}

/// The accuracy that the training must reach.
pub const TARGET_ACCURACY: f64 = 0.95;

const RECIPE: &str = "shapes-quick";
const SAMPLES: usize = 40;
const BENCH_MODEL: &str = "resnet50";
const BENCH_BATCH: usize = 4;

impl Outcome {
    /// Whether the accuracy is at least [`TARGET_ACCURACY`].
    pub fn reached_target(&self) -> bool {
        self.accuracy >= TARGET_ACCURACY
    }
}

/// Why the quick start cannot be finished.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Debug, thiserror::Error)]
pub enum QuickstartError {
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error(transparent)]
    Measure(#[from] MeasureError),
    #[error(transparent)]
    Report(#[from] ReportError),
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
}

impl From<RecipeError> for QuickstartError {
    fn from(error: RecipeError) -> Self {
        Self::Train(error.into())
    }
}

impl From<EventError> for QuickstartError {
    fn from(error: EventError) -> Self {
        Self::Train(error.into())
    }
}

/// Does all of it. `notify` receives what is about to be done and what was found, a line at a time.
///
/// # Errors
/// A folder that cannot be written; a stop on request; any failure of training or measuring. An accuracy below
/// [`TARGET_ACCURACY`] is no error here.
pub fn run(options: &Options, mut notify: impl FnMut(&str)) -> Result<Outcome, QuickstartError> {
    let started = Instant::now();
    let folder = make_folder(&options.parent)?;

    notify("1/4 looking at the machine");
    let examination = examine(&options.compute.device).map_err(TrainError::from)?;
    describe(&examination, &mut notify);
    let machine =
        serde_json::to_string_pretty(&examination).expect("an examination has string keys and finite numbers");
    write(&folder.join(report::MACHINE_FILE), &machine)?;

    let recipe = Recipe::load(RECIPE, &[Override::new("train.seed", options.seed as i64)])?;
    notify(&format!("2/4 training {} on shapes that are drawn for it", recipe.model.name));
    let family = registry::find(&recipe.model.name).map_err(TrainError::from)?.family();
    let training = train(&TrainOptions {
        compute: options.compute.clone(),
        progress: options.progress,
        stop: options.stop.clone(),
        command: options.command.clone(),
        ..TrainOptions::new(recipe, RunFolder::New(folder.join("training")))
    })?;
    let accuracy = training.metrics.get("top1").copied().unwrap_or(0.0);
    notify(&format!("    {} of the pictures it has not seen are recognised", show::percent(accuracy)));
    let run = RunDir::open(&training.run).map_err(TrainError::from)?;
    let samples = family.keep_samples(&run, SAMPLES, &options.compute)?;

    notify(&format!("3/4 measuring {BENCH_MODEL}"));
    let benches = measure_both(options, &examination, &mut notify)?;
    write_benches(&folder.join("bench.jsonl"), &benches, started)?;

    notify("4/4 writing the report");
    let report = folder.join("report.html");
    write(&report, &report::read(&[folder])?.to_html("Bessemer quick start")?)?;
    Ok(Outcome { report, training, accuracy, samples, benches, seconds: started.elapsed().as_secs_f64() })
}

fn describe(examination: &Examination, notify: &mut impl FnMut(&str)) {
    let Examination { machine, limits, .. } = examination;
    let (gflops, gbytes) = (show::significant(limits.fp32_gflops, 3), show::significant(limits.read_gbytes, 3));
    let (cpu, isa) = (&machine.cpu, &machine.instruction_set);
    let threads = show::counted(machine.threads as u64, "thread");
    notify(&format!("    {cpu}, {threads}, {isa}: {gflops} GFLOP/s in fp32, {gbytes} GB/s from memory"));
    for advice in &examination.advice {
        notify(&format!("    {}: {}", advice.problem, advice.action));
    }
}

fn measure_both(
    options: &Options,
    examination: &Examination,
    notify: &mut impl FnMut(&str),
) -> Result<Vec<BenchResult>, QuickstartError> {
    let mut results = Vec::new();
    let mut limits = examination.limits;
    for (mode, steps) in [(Mode::Train, 4), (Mode::Infer, 10)] {
        if options.stop.is_raised() {
            return Err(TrainError::Interrupted { step: 0, checkpoint: None }.into());
        }
        let request = measure::Request {
            warmup: 2,
            steps,
            repeat: 1,
            seed: options.seed,
            device: options.compute.device.clone(),
            ..measure::Request::of(BENCH_MODEL, mode, BENCH_BATCH)
        };
        let result = match measure(&request, &examination.machine, &mut limits, Repeat::here, |_| {}) {
            Err(error) if error.is_out_of_memory() => measure::failed(&request, &examination.machine, &error),
            result => result?,
        };
        let (rate, mfu) = (show::significant(result.throughput, 3), result.fraction_of_peak.unwrap_or(0.0));
        notify(&format!(
            "    {} {rate} images/s, model FLOPs at {} of the measured peak",
            mode.name(),
            show::percent(mfu)
        ));
        results.push(result);
    }
    Ok(results)
}

fn write_benches(path: &Path, results: &[BenchResult], started: Instant) -> Result<(), QuickstartError> {
    let mut writer = EventWriter::create(path)?;
    for result in results {
        let header = Header { time: unix_seconds(), elapsed: started.elapsed().as_secs_f64(), rank: 0, step: None };
        writer.write(&Event::new(header, result.clone()))?;
    }
    Ok(())
}

/// `PARENT/quickstart-DATE-TIME`, with a number behind it if that is taken.
fn make_folder(parent: &Path) -> Result<PathBuf, QuickstartError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| QuickstartError::Io { path, source }
    };
    fs::create_dir_all(parent).map_err(at(parent))?;
    let name = format!("quickstart-{}", compact(unix_seconds()));
    let names = std::iter::once(name.clone()).chain((2_u32..).map(|number| format!("{name}-{number}")));
    for path in names.map(|name| parent.join(name)) {
        match fs::create_dir(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
            made => return made.map_err(at(&path)).map(|()| path),
        }
    }
    unreachable!("the numbers do not end")
}

fn write(path: &Path, text: &str) -> Result<(), QuickstartError> {
    fs::write(path, text).map_err(|source| QuickstartError::Io { path: path.to_owned(), source })
}
