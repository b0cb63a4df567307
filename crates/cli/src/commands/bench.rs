use crate::args::{Common, SharedStep, StepArguments, at_least_one, model, output_file};
use crate::commands::bench_scaling::ScalingOptions;
use crate::commands::{bench_data, bench_kernels, bench_scaling, bench_simulator, bench_suite};
use crate::failure::{Coded, FAILED, INTERRUPTED, Usage, named};
use crate::output::{Table, print};
use anyhow::Context;
use bessemer_bench::budget::Budget;
use bessemer_bench::inputs::Data;
use bessemer_bench::machine::{Limits, Machine};
use bessemer_bench::measure::{
    DLPERF_COUNTS, ERROR_OPTION, INTERRUPTED_OPTION, MeasureError, Prepared, Progress, Repeat, Request, failed, measure,
};
use bessemer_bench::peers::process::Runner;
use bessemer_bench::profile::{KernelCall, by_kind, gflops};
use bessemer_bench::show;
use bessemer_bench::simulator::measured_step;
use bessemer_bench::workload::{Mode, StepSettings};
use bessemer_ir::run::Device;
use bessemer_train::clock::unix_seconds;
use bessemer_train::events::{BenchResult, Event, Header, KernelTime, PublishedStyle};
use bessemer_train::recipe::Override;
use bessemer_train::tasks::metric_schema;
use bessemer_train::tasks::registry::ZooModel;
use bessemer_train::{DeviceKind, DeviceOptions, INPUT_BOUND, StopSignal};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer bench infer resnet50 --batch-size 1 --steps 50 --out results.jsonl
  bessemer bench train bert-base --batch-size 8,16 --precision fp32,bf16
  bessemer bench train resnet50 --batch-size 256 --precision fp16 --device cuda
  bessemer bench train resnet50 --data imagenet/ --workers 2
  bessemer bench data resnet50 --data imagenet/               loading alone, see bench data --help
  bessemer bench kernels --filter 'resnet50*3x3*forward'      each kernel alone";

/// Measure the speed of training or inference, of loading, or of each kernel alone
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub alone: Option<Alone>,
    #[command(flatten)]
    pub steps: Option<StepOptions>,
    #[command(flatten)]
    pub settings: StepArguments,
    #[command(flatten)]
    pub shared: SharedStep,
    #[command(flatten)]
    pub scaling: ScalingOptions,
}

impl Options {
    /// The model that is measured, where it is one.
    pub(super) fn model(&self) -> Option<ZooModel> {
        match &self.alone {
            Some(Alone::Data(options)) => Some(options.model),
            Some(_) => None,
            None => self.steps.as_ref().map(|steps| steps.model),
        }
    }

    /// Whether several precisions are measured, where they are asked for.
    pub(super) fn takes_several_precisions(&self) -> bool {
        match &self.alone {
            Some(Alone::Suite(_)) => true,
            Some(_) => false,
            None => self.scaling.scaling.is_empty(),
        }
    }
}

/// What is measured outside steps.
#[derive(Debug, Subcommand)]
pub(crate) enum Alone {
    Data(bench_data::Options),
    Kernels(bench_kernels::Options),
    Simulator(bench_simulator::Options),
    Suite(Box<bench_suite::Options>),
}

/// What a step does; a model in its place is told so.
fn mode(text: &str) -> Result<Mode, String> {
    text.parse().map_err(|error| match model(text) {
        Ok(_) => format!("what a step does comes before the model: bench train {text}, or bench infer {text}"),
        Err(_) => error,
    })
}

/// A field of a recipe with a value, but for those that options state.
fn loading_field(text: &str) -> Result<String, String> {
    const OPTIONS: [(&str, &str); 6] = [
        ("model.name", "the model"),
        ("data.source", "--data"),
        ("loader.workers", "--workers"),
        ("train.batch_size", "--batch-size"),
        ("train.accumulation", "--accumulation"),
        ("train.seed", "--seed"),
    ];
    text.parse::<Override>().map_err(|error| error.to_string())?;
    let field = text.split('=').next().unwrap_or_default().trim();
    match OPTIONS.into_iter().find(|(name, _)| *name == field) {
        Some((_, option)) => Err(format!("{field} is that of {option}")),
        None => Ok(text.to_owned()),
    }
}

/// How steps are measured.
#[derive(Debug, Args)]
pub(crate) struct StepOptions {
    /// What a step does: train or infer
    #[arg(value_name = "train|infer", value_parser = mode)]
    pub mode: Mode,
    /// A model of the zoo
    #[arg(value_parser = model)]
    pub model: ZooModel,
    /// Samples in a step, or in a micro-batch of it; several sizes are measured one after the other
    #[arg(long, value_name = "N,...", default_value = "8", value_delimiter = ',', allow_negative_numbers = true,
          value_parser = at_least_one, help_heading = "Measurement")]
    pub batch_size: Vec<usize>,
    /// What training steps are fed, as for `train`, loaded while they run [default: random inputs in memory]
    #[arg(long, value_name = "DIR|shapes|synthetic", help_heading = "Measurement")]
    pub data: Option<String>,
    /// Threads that load these data
    #[arg(long, value_name = "N", default_value = "1", requires = "data", allow_negative_numbers = true, value_parser = at_least_one,
          help_heading = "Measurement")]
    pub workers: usize,
    /// Another value for a field of the recipe by which they are loaded, e.g. squad.train_file=train-v1.1.json; as often as needed
    #[arg(long = "set", value_name = "FIELD=VALUE", requires = "data", value_parser = loading_field, help_heading = "Measurement")]
    pub set: Vec<String>,
    /// Run op by op
    #[arg(long, help_heading = "Measurement")]
    pub no_fuse: bool,
    /// quick: as many steps and repeats as fit into --budget; dlperf: 20 steps that do not count and 100 that do, 7 times
    #[arg(long, value_name = "quick|dlperf", value_enum, default_value_t = Method::Quick, help_heading = "Measurement")]
    pub method: Method,
    /// Seconds for all batch sizes together, of which each has an equal part [default: 60]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = at_least_one,
          help_heading = "Measurement")]
    pub budget: Option<usize>,
    /// Steps that do not count [default: the method's]
    #[arg(long, value_name = "N", help_heading = "Measurement")]
    pub warmup: Option<usize>,
    /// Steps that count [default: the method's]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one, help_heading = "Measurement")]
    pub steps: Option<usize>,
    /// How often to measure; the median is the result [default: the method's]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one, help_heading = "Measurement")]
    pub repeat: Option<usize>,
    /// Show the time of each kind of kernel, and the calls that take longest
    #[arg(long, help_heading = "Output")]
    pub profile: bool,
    /// Write the times of the calls of a training step, which `explain --cluster` reads with `--profile`
    #[arg(long, value_name = "FILE", conflicts_with = "data", value_parser = output_file(), help_heading = "Output")]
    pub step_profile: Option<PathBuf>,
    /// Print an event for each result, a JSON object a line, instead of the table
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Write these events to a file as well, which `bessemer report` reads
    #[arg(long, value_name = "FILE", value_parser = output_file(), help_heading = "Output")]
    pub out: Option<PathBuf>,
}

/// How many steps and repeats are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Method {
    Quick,
    Dlperf,
}

/// Seconds of a quick measurement.
const BUDGET: usize = 60;

/// Steps of a profile.
const PROFILE_STEPS: usize = 5;

/// Steps of a profile for the simulator, which draws the spread between ranks from them.
pub(super) const STEP_PROFILE_STEPS: usize = 20;

/// Calls that a profile lists one by one.
const LONGEST_CALLS: usize = 16;

pub(crate) fn run(options: &Options, common: &Common) -> anyhow::Result<()> {
    match (&options.alone, &options.steps) {
        (Some(Alone::Data(options)), _) => bench_data::run(options, common),
        (Some(Alone::Kernels(options)), _) => bench_kernels::run(options, common),
        (Some(Alone::Simulator(options)), _) => bench_simulator::run(options),
        (Some(Alone::Suite(options)), _) => bench_suite::run(options, common),
        (None, Some(steps)) if !options.scaling.scaling.is_empty() => {
            bench_scaling::run(steps, &options.settings, &options.shared, &options.scaling, common)
        }
        (None, Some(_)) if options.scaling.mpi.mpi.is_some() => Err(Usage("--mpi is for --scaling".to_owned()).into()),
        (None, Some(steps)) => {
            if steps.step_profile.is_none() {
                options.shared.refuse("--scaling and --step-profile")?;
            }
            run_steps(steps, &options.settings, &options.shared, common)
        }
        (None, None) => {
            Err(Usage("what is to be measured: train, infer, data, kernels, simulator or suite?".to_owned()).into())
        }
    }
}

/// What is measured of one batch size in one of `precisions`, which share the time.
pub(super) fn request(
    options: &StepOptions,
    common: &Common,
    settings: StepSettings,
    device: DeviceOptions,
    batch_size: usize,
    precisions: usize,
) -> Request {
    let (warmup, steps, repeat) = DLPERF_COUNTS;
    Request {
        fuse: !options.no_fuse,
        precision: common.precision().unwrap_or_default(),
        recompute: common.recompute,
        without: common.without.clone(),
        warmup: options.warmup.unwrap_or(warmup),
        steps: options.steps.unwrap_or(steps),
        repeat: options.repeat.unwrap_or(repeat),
        budget: options.seconds().map(|seconds| Budget {
            time: Duration::from_secs_f64(seconds / (options.batch_size.len() * precisions) as f64),
            keeps_warmup: options.warmup.is_some(),
            keeps_steps: options.steps.is_some(),
            keeps_repeat: options.repeat.is_some(),
        }),
        seed: common.seed(),
        settings,
        device,
        data: options.data(),
        ..Request::of(options.model.name(), options.mode, batch_size)
    }
}

impl StepOptions {
    fn data(&self) -> Option<Data> {
        let source = self.data.clone().filter(|source| source != "synthetic")?;
        Some(Data { source, workers: self.workers, set: self.set.clone() })
    }

    /// Of the budget, where there is one: given counts leave nothing to choose.
    fn seconds(&self) -> Option<f64> {
        let chosen = [self.warmup, self.steps, self.repeat].contains(&None);
        (self.method == Method::Quick && chosen).then(|| self.budget.unwrap_or(BUDGET) as f64)
    }

    /// What is going to be measured.
    fn announcement(&self) -> String {
        let sizes = match self.batch_size.len() {
            1 => "a batch size".to_owned(),
            count => format!("{count} batch sizes"),
        };
        match self.seconds() {
            Some(seconds) => format!(
                "quick measurement: {sizes} in about {}; --method dlperf makes 7 repeats of 20 + 100 steps",
                show::seconds(seconds)
            ),
            None => format!("measurement: {sizes}"),
        }
    }
}

/// What a measurement tells on its way.
pub(super) fn told(progress: Progress<'_>, what: &str, unit: &str) -> String {
    let plural = |number: usize| if number == 1 { "repeat" } else { "repeats" };
    match progress {
        Progress::Fitted(Request { warmup, steps, repeat, .. }) => {
            format!("{what}: {repeat} {} of {warmup} + {steps} steps", plural(*repeat))
        }
        Progress::Repeat { request, number, throughput, left } => {
            let (of, rate) = (request.repeat, show::significant(throughput, 3));
            let left = match number == of {
                true => String::new(),
                false => format!(", {} left", show::seconds(left.as_secs_f64())),
            };
            format!("{what}: repeat {number} of {of}: {rate} {unit}{left}")
        }
    }
}

/// What steps run on.
pub(super) fn device_text(machine: &Machine) -> String {
    let Machine { cpu, threads, instruction_set, gpu, .. } = machine;
    gpu.clone().unwrap_or_else(|| format!("{cpu}, {threads} threads, {instruction_set}"))
}

/// Limits of processors are measured, those of GPUs follow from their clocks.
pub(super) fn limits_text(machine: &Machine) -> &'static str {
    if machine.gpu.is_none() { "measured limits" } else { "nominal limits" }
}

fn run_steps(
    options: &StepOptions,
    settings: &StepArguments,
    shared: &SharedStep,
    common: &Common,
) -> anyhow::Result<()> {
    let started = Instant::now();
    if options.step_profile.is_some() && (options.mode != Mode::Train || options.batch_size.len() > 1) {
        return Err(Usage("--step-profile is for the training of one batch size".to_owned()).into());
    }
    if options.step_profile.is_some() && common.device().kind != DeviceKind::Cpu {
        let reason = "--step-profile measures steps on the processors; of GPUs `explain --cluster` takes an estimate";
        return Err(Usage(reason.to_owned()).into());
    }
    if options.data().is_none() && !options.set.is_empty() {
        return Err(Usage("--set is for data that are loaded; synthetic ones are in memory".to_owned()).into());
    }
    if options.data().is_some() && options.mode != Mode::Train {
        let reason = "--data is what training steps are fed; `eval` runs a model over a data set and says how fast";
        return Err(Usage(reason.to_owned()).into());
    }
    if options.method == Method::Dlperf && options.budget.is_some() {
        return Err(Usage("--budget is for --method quick; dlperf makes all steps and repeats".to_owned()).into());
    }
    let precisions = common.precisions();
    if options.step_profile.is_some() && precisions.len() > 1 {
        return Err(Usage("--step-profile is for one precision".to_owned()).into());
    }
    let opened = common.device().open()?;
    let settings = settings.settings(options.model)?;
    let mut results = Results::open(options.json, options.out.as_deref())?;
    let process = Process::new(StopSignal::from_system(None)?)?;
    common.notify(&options.announcement());
    let mut limits = Limits::measure(&*opened);
    for &precision in &precisions {
        let measurement = Measurement { options, settings, shared, started, precisions: precisions.len() };
        measurement.run(&common.at(precision), &*opened, &mut limits, &process, &mut results)?;
    }
    Ok(())
}

/// Steps of all batch sizes in one precision.
struct Measurement<'a> {
    options: &'a StepOptions,
    settings: StepSettings,
    shared: &'a SharedStep,
    started: Instant,
    /// All that are measured.
    precisions: usize,
}

impl Measurement<'_> {
    fn run(
        &self,
        common: &Common,
        opened: &dyn Device,
        limits: &mut Limits,
        process: &Process,
        results: &mut Results,
    ) -> anyhow::Result<()> {
        let Self { options, settings, shared, started, precisions } = *self;
        let (device, unit) = (common.device(), metric_schema(options.model.name()).unit);
        let precision = common.precision().unwrap_or_default();
        common.tell_emulation(precision)?;
        let machine = Machine::look(opened);
        let (of_type, gflops) = limits.peak(precision);
        let limit = format!("{} GFLOP/s {of_type}", show::significant(gflops, 3));
        let gbytes = show::significant(limits.read_gbytes, 3);
        results.text(&format!(
            "{}; {}: {limit}, {gbytes} GB/s{}{}\n{}",
            device_text(&machine),
            limits_text(&machine),
            if opened.memory_in_use().is_some() { "; memory: of the GPU, in use by states and plans" } else { "" },
            if options.seconds().is_some() { "; quick" } else { "" },
            row(&header(unit))
        ))?;
        let mut measured = Vec::new();
        for &batch_size in &options.batch_size {
            let request = request(options, common, settings, device.clone(), batch_size, precisions);
            request.check_kernels().map_err(|error| named(error, options.model.name()))?;
            request.check_data()?;
            let progress =
                |progress: Progress<'_>| common.notify(&told(progress, &format!("batch {batch_size}"), unit));
            match measure(&request, &machine, limits, |request| process.repeat(request, &[]), progress) {
                Err(error) if error.is_out_of_memory() => results.add(&failed(&request, &machine, &error), started)?,
                result => {
                    let mut result = result?;
                    let is_interrupted = result.options.contains_key(INTERRUPTED_OPTION);
                    let calls = match options.profile && !is_interrupted {
                        true => Prepared::new(&Request { data: None, ..request.clone() })?.profile(PROFILE_STEPS)?,
                        false => Vec::new(),
                    };
                    result.kernels = by_kind(&calls);
                    if let Some(path) = options.step_profile.as_ref().filter(|_| !is_interrupted) {
                        let settings = shared.settings(request.settings);
                        let shared = Request { settings, overlap: shared.overlaps(), ..request.clone() };
                        let text = serde_json::to_string(&measured_step(&shared, STEP_PROFILE_STEPS)?)?;
                        fs::write(path, text).with_context(|| format!("{}: cannot be written", path.display()))?;
                    }
                    results.add(&result, started)?;
                    if let Some(wait) = result.input_wait {
                        results.text(&input_text(wait))?;
                    }
                    if is_interrupted {
                        let (code, repeats) = (INTERRUPTED, result.repeat);
                        let message = format!("interrupted; repeats of the last row: {repeats}");
                        return Err(Coded { code, message }.into());
                    }
                    if options.profile {
                        results.detail(&profile(&calls, &result.kernels))?;
                        if request.is_replayed() {
                            results.detail(&gaps(&calls, result.step_ms.p50))?;
                        }
                    }
                    measured.push(result);
                }
            }
        }
        if measured.is_empty() {
            let message = "nothing was measured, for the reasons in the rows".to_owned();
            return Err(Coded { code: FAILED, message }.into());
        }
        if options.mode == Mode::Infer { results.text(&latencies(&measured)) } else { Ok(()) }
    }
}

/// What runs each repeat in a fresh process, and a folder for what it says.
pub(super) struct Process {
    runner: Runner,
    folder: TempDir,
}

impl Process {
    pub(super) fn new(stop: StopSignal) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("this program's own path is not known")?;
        let folder = TempDir::with_prefix("bessemer-bench-")?;
        Ok(Self { runner: Runner { program, stop }, folder })
    }

    /// With options of the ranks.
    pub(super) fn repeat(&self, request: &Request, options: &[String]) -> Result<Repeat, MeasureError> {
        Repeat::in_process(request, &self.runner, options, &self.folder.path().join("repeat"))
    }
}

/// Where results go: a table or events on standard output, and events in a file.
pub(super) struct Results {
    events_only: bool,
    file: Option<(PathBuf, File)>,
}

impl Results {
    /// With `--json` and `--out`.
    pub(super) fn open(events_only: bool, out: Option<&Path>) -> anyhow::Result<Self> {
        let open = |path: &Path| -> anyhow::Result<(PathBuf, File)> {
            let file = File::create(path).with_context(|| format!("{}: cannot be written", path.display()))?;
            Ok((path.to_owned(), file))
        };
        Ok(Self { events_only, file: out.map(open).transpose()? })
    }

    pub(super) fn text(&self, text: &str) -> anyhow::Result<()> {
        if self.events_only { Ok(()) } else { print(text) }
    }

    /// Beside the table, or on standard error if events alone are wanted.
    pub(super) fn detail(&self, text: &str) -> anyhow::Result<()> {
        if self.events_only {
            eprint!("{text}");
            return Ok(());
        }
        print(text)
    }

    fn add(&mut self, result: &BenchResult, started: Instant) -> anyhow::Result<()> {
        self.event(result, started)?;
        self.text(&row(&cells(result)))
    }

    /// A result where events go.
    pub(super) fn event(&mut self, result: &BenchResult, started: Instant) -> anyhow::Result<()> {
        let header = Header { time: unix_seconds(), elapsed: started.elapsed().as_secs_f64(), rank: 0, step: None };
        self.record(&Event::new(header, result.clone()))
    }

    /// An event as a line of JSON, where events go.
    pub(super) fn record(&mut self, event: &impl Serialize) -> anyhow::Result<()> {
        let line = serde_json::to_string(event)? + "\n";
        if let Some((path, file)) = &mut self.file {
            file.write_all(line.as_bytes()).with_context(|| format!("{}: cannot be written", path.display()))?;
        }
        if self.events_only { print(&line) } else { Ok(()) }
    }
}

/// How long steps waited for their batches, a share of the time.
fn input_text(wait: f64) -> String {
    let bound = if wait >= INPUT_BOUND { "input-bound" } else { "not input-bound" };
    format!("  {} of the time steps wait for their batches: {bound}\n", show::percent(wait))
}

fn header(unit: &str) -> [String; 11] {
    ["model", "mode", "batch", "fused", unit, "MFU", "HFU", "p50 ms", "p99 ms", "spread", "memory"].map(str::to_owned)
}

const WIDTHS: [usize; 11] = [15, 6, 6, 6, 11, 8, 8, 10, 10, 8, 9];
/// Columns flush left.
const TEXT_COLUMNS: usize = 2;

fn row(cells: &[String]) -> String {
    let mut line = String::new();
    for (column, (cell, width)) in cells.iter().zip(WIDTHS).enumerate() {
        line += &if column < TEXT_COLUMNS { format!("{cell:<width$} ") } else { format!("{cell:>width$} ") };
    }
    line.trim_end().to_owned() + "\n"
}

fn cells(result: &BenchResult) -> Vec<String> {
    let fused = result.options.get("fuse").is_some_and(|fuse| fuse == true);
    let mut cells = vec![result.model.clone(), result.mode.clone(), result.batch_size.to_string()];
    cells.push(if fused { "yes" } else { "no" }.to_owned());
    if let Some(error) = result.options.get(ERROR_OPTION) {
        cells.push(error.as_str().unwrap_or("failed").to_owned());
        return cells;
    }
    cells.extend([
        show::significant(result.throughput, 4),
        result.fraction_of_peak.map_or_else(String::new, show::percent),
        result.hardware_fraction_of_peak.map_or_else(String::new, show::percent),
        show::significant(result.step_ms.p50, 4),
        show::significant(result.step_ms.p99, 4),
        show::percent(result.spread),
        result.peak_memory_bytes.map_or_else(|| "unknown".to_owned(), show::bytes),
    ]);
    cells
}

/// Latencies of each batch size as published tables print them, see [`PublishedStyle`].
fn latencies(results: &[BenchResult]) -> String {
    let header = "batch,mean ms,fastest 90 %,95 %,99 %,but two 90 %,95 %,99 %,interval 90 %,95 %,99 %";
    let mut table = Table::new(0, &header.split(',').collect::<Vec<_>>());
    for BenchResult { batch_size, step_ms, published_style, .. } in results {
        let PublishedStyle {
            mean_fastest_90_ms,
            mean_fastest_95_ms,
            mean_fastest_99_ms,
            mean_fastest_90_but_two_ms,
            mean_fastest_95_but_two_ms,
            mean_fastest_99_but_two_ms,
            ci_90_ms,
            ci_95_ms,
            ci_99_ms,
        } = *published_style;
        let fastest = [step_ms.mean, mean_fastest_90_ms, mean_fastest_95_ms, mean_fastest_99_ms].map(Some);
        let but_two = [mean_fastest_90_but_two_ms, mean_fastest_95_but_two_ms, mean_fastest_99_but_two_ms];
        let intervals = [ci_90_ms, ci_95_ms, ci_99_ms].map(Some);
        let figures = fastest.into_iter().chain(but_two).chain(intervals);
        let figures = figures.map(|figure| figure.map_or_else(String::new, |figure| show::significant(figure, 4)));
        table.row([batch_size.to_string()].into_iter().chain(figures));
    }
    format!("\nlatencies as published tables print them\n{table}")
}

/// A step of a GPU as it is replayed, beside its kernels one by one.
fn gaps(calls: &[KernelCall], step_ms: f64) -> String {
    let kernels: f64 = calls.iter().map(|call| call.milliseconds).sum();
    let between = match step_ms - kernels {
        gaps if gaps >= 0.0 => format!("{gaps:.3} ms are gaps between kernels"),
        less => format!("{:.3} ms less: launched one by one, with events around them, kernels take longer", -less),
    };
    format!("\n  kernels one by one take {kernels:.3} ms, the step as it is replayed {step_ms:.3} ms: {between}\n")
}

/// Time by kind of kernel, and the calls that take longest.
fn profile(calls: &[KernelCall], kinds: &[KernelTime]) -> String {
    let total: f64 = calls.iter().map(|call| call.milliseconds).sum();
    let of_step = |milliseconds: f64| show::percent(milliseconds / total.max(1e-12));
    let mut by_kind = Table::new(1, &["  kernel", "calls", "ms", "of step", "GFLOP/s"]);
    for kind in kinds {
        by_kind.row([
            format!("  {}", kind.kind),
            kind.calls.to_string(),
            format!("{:.3}", kind.milliseconds),
            of_step(kind.milliseconds),
            format!("{:.1}", gflops(kind.flops, kind.milliseconds)),
        ]);
    }
    let mut longest: Vec<&KernelCall> = calls.iter().collect();
    longest.sort_by(|a, b| b.milliseconds.total_cmp(&a.milliseconds));
    let mut by_call = Table::new(2, &["  longest calls", "computed by", "ms", "of step", "GFLOP/s"]);
    for call in longest.into_iter().take(LONGEST_CALLS) {
        by_call.row([
            format!("  {} {}", call.path, call.output),
            call.kernel.clone(),
            format!("{:.3}", call.milliseconds),
            of_step(call.milliseconds),
            format!("{:.1}", gflops(call.flops, call.milliseconds)),
        ]);
    }
    format!("{by_kind}\n{by_call}")
}
