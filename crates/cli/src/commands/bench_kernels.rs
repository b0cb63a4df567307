use crate::args::{Common, output_file, sentence};
use crate::commands::bench::{Results, device_text, limits_text};
use crate::failure::Usage;
use crate::names;
use crate::output::Table;
use bessemer_bench::kernels::{self, Floors, KernelResult, Pattern, Problem};
use bessemer_bench::machine::{Limits, Machine};
use bessemer_bench::show;
use bessemer_train::clock::unix_seconds;
use bessemer_train::events::{Header, VERSION};
use bessemer_train::recipe::Compute;
use clap::Args;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer bench kernels --filter 'resnet50*3x3*forward fp32'
  bessemer bench kernels --filter bert-base --threads 1 --out kernels.jsonl
  bessemer bench kernels --filter goal/square --floor 0.8
  bessemer bench kernels --floors floors.toml --quiet";

/// Measure each kernel of the reference models alone, beside the limits of the machine
///
/// Every convolution and matrix product of ResNet-50, EfficientNet-B0 and BERT-base, forward and both gradients, and
/// their normalisations, softmax, pooling, pointwise chains and optimizer updates, in fp32 and bf16. Convolutions and
/// products are held against the measured peak of arithmetic, all else (depthwise convolutions too) against the measured
/// bandwidth of memory; what is small enough to stay in cache may exceed that. Rates are those of the fastest run.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// Only kernels whose name contains this; `*` stands for any characters, and the precision ends a name
    #[arg(long, value_name = "PATTERN", help_heading = "Measurement")]
    pub filter: Option<Pattern>,
    /// Seconds in which each kernel is run again and again
    #[arg(long, value_name = "SECONDS", default_value = "0.2", allow_negative_numbers = true, value_parser = seconds,
          help_heading = "Measurement")]
    pub time: Duration,
    /// Fail with code 1 if a convolution or product that could be measured is below this fraction of the peak
    #[arg(long, value_name = "FRACTION", allow_negative_numbers = true, value_parser = floor,
          conflicts_with = "floors", help_heading = "Measurement")]
    pub floor: Option<Floors>,
    /// As --floor, with fractions by name: a TOML file of lines such as `"resnet50*forward fp32" = 0.6`, of which the
    /// longest that matches counts
    #[arg(long, value_name = "FILE", help_heading = "Measurement")]
    pub floors: Option<PathBuf>,
    /// Print a JSON object for each kernel instead of the table
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Write these objects to a file as well
    #[arg(long, value_name = "FILE", value_parser = output_file(), help_heading = "Output")]
    pub out: Option<PathBuf>,
}

/// Longest time for one kernel.
const MOST_SECONDS: f64 = 600.0;

fn seconds(text: &str) -> Result<Duration, String> {
    let value = text.parse().ok().filter(|value| *value > 0.0 && *value <= MOST_SECONDS);
    value.map(Duration::from_secs_f64).ok_or_else(|| format!("expected seconds, above 0 and at most {MOST_SECONDS}"))
}

fn floor(text: &str) -> Result<Floors, String> {
    let fraction = text.parse().ok().and_then(|fraction| Floors::all(fraction).ok());
    fraction.ok_or_else(|| "expected a fraction of the peak, above 0 and at most 1".to_owned())
}

pub(crate) fn run(options: &Options, common: &Common) -> anyhow::Result<()> {
    let started = Instant::now();
    let problems = kernels::problems()?;
    let floors = match &options.floors {
        Some(path) => Some(read_floors(path, &problems)?),
        None => options.floor.clone(),
    };
    let chosen = choose(&problems, options.filter.as_ref(), common.precision())?;
    let mut output = Results::open(options.json, options.out.as_deref())?;
    let device = common.device();
    let opened = device.open()?;
    let machine = Machine::look(&*opened);
    let before = Limits::measure(&*opened);
    let how = kernels::Options { device: device.clone(), time: options.time, seed: common.seed() };
    let mut outcomes = Vec::with_capacity(chosen.len());
    for (index, problem) in chosen.iter().enumerate() {
        let outcome = kernels::measure(problem, &how);
        let said = match &outcome {
            Ok(measured) => format!("{} ms", show::significant(measured.ms.min, 3)),
            Err(reason) => reason.clone(),
        };
        common.notify(&format!("{}/{} {}: {said}", index + 1, chosen.len(), problem.full_name()));
        outcomes.push(outcome);
    }
    let limits = before.greater(Limits::measure(&*opened));
    let results: Vec<KernelResult> = chosen
        .iter()
        .zip(&outcomes)
        .map(|(problem, outcome)| kernels::result(problem, outcome, &machine, &limits, &device))
        .collect();
    for result in &results {
        output.record(&Line::new(result, started))?;
    }
    output.text(&heading(&machine, &limits))?;
    output.text(&table(&results))?;
    output.detail(&summary(&results))?;
    match floors {
        Some(floors) => check_floors(&floors, &results, &output),
        None => Ok(()),
    }
}

fn read_floors(path: &Path, problems: &[Problem]) -> anyhow::Result<Floors> {
    let wrong = |what: String| Usage(format!("{}: {what}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let floors = Floors::parse(&text).map_err(|error| wrong(error.to_string()))?;
    floors.check(problems).map_err(|error| wrong(error.to_string()))?;
    Ok(floors)
}

/// The kernels that are wanted; in every precision if none is given.
fn choose<'a>(
    problems: &'a [Problem],
    filter: Option<&Pattern>,
    precision: Option<Compute>,
) -> anyhow::Result<Vec<&'a Problem>> {
    let mut chosen: Vec<&Problem> = problems.iter().collect();
    chosen.retain(|problem| precision.is_none_or(|precision| precision.name() == problem.precision()));
    let Some(filter) = filter else { return Ok(chosen) };
    chosen.retain(|problem| filter.matches(&problem.full_name()));
    if !chosen.is_empty() {
        return Ok(chosen);
    }
    let metric_schema = kernels::metric_schema(problems);
    let hint = sentence(&names::hint(filter.text(), metric_schema.iter().map(String::as_str)));
    let models: BTreeSet<&str> = problems.iter().map(|problem| problem.model).collect();
    let models = models.into_iter().collect::<Vec<_>>().join(", ");
    let example = problems[0].full_name();
    Err(Usage(format!("no kernel matches `{}`{hint} names are like `{example}`, of {models}", filter.text())).into())
}

/// A result in the form of the program's other events.
#[derive(Serialize)]
struct Line<'a> {
    v: u32,
    kind: &'static str,
    #[serde(flatten)]
    header: Header,
    #[serde(flatten)]
    result: &'a KernelResult,
}

impl<'a> Line<'a> {
    fn new(result: &'a KernelResult, started: Instant) -> Self {
        let header = Header { time: unix_seconds(), elapsed: started.elapsed().as_secs_f64(), rank: 0, step: None };
        Self { v: VERSION, kind: "kernel", header, result }
    }
}

fn heading(machine: &Machine, limits: &Limits) -> String {
    let (fp32, memory) = (show::significant(limits.fp32_gflops, 3), show::significant(limits.read_gbytes, 3));
    let bf16 = limits.bf16_gflops.map_or_else(
        || "no bf16 arithmetic (emulated: of the fp32 peak)".to_owned(),
        |gflops| format!("{} GFLOP/s bf16", show::significant(gflops, 3)),
    );
    let (device, limits) = (device_text(machine), limits_text(machine));
    format!("{device}; {limits}: {fp32} GFLOP/s fp32, {bf16}, {memory} GB/s\n")
}

/// Measured kernels with their numbers, the others with the reason; what ran, or why nothing did, is last.
fn table(results: &[KernelResult]) -> String {
    let mut table = Table::new(2, &["kernel", "", "calls", "median ms", "least ms", "rate", "of peak"]);
    for result in results {
        let mut cells = vec![result.name.clone(), result.precision.to_owned(), result.calls.to_string()];
        if let (Some(ms), Some(rate), Some(fraction)) = (result.ms, result.rate(), result.fraction_of_peak) {
            let unit = if result.is_product() { "GFLOP/s" } else { "GB/s   " };
            cells.extend([ms.p50, ms.min].map(|ms| show::significant(ms, 3)));
            cells.push(format!("{} {unit}", show::significant(rate, 3)));
            cells.push(of_peak(fraction, result.emulated));
        }
        table.row(cells);
    }
    let mut text = String::new();
    let last = std::iter::once("").chain(results.iter().map(what_ran));
    for (line, last) in table.to_string().lines().zip(last) {
        text += format!("{line}  {last}").trim_end();
        text.push('\n');
    }
    text
}

fn what_ran(result: &KernelResult) -> &str {
    result.kernel.as_deref().or(result.error.as_deref()).unwrap_or_default()
}

fn of_peak(fraction: f64, emulated: bool) -> String {
    show::percent(fraction) + if emulated { " emulated" } else { "" }
}

fn summary(results: &[KernelResult]) -> String {
    let mut table = Table::new(2, &["family", "", "kernels", "not measured", "ms of all calls", "of peak, by time"]);
    for share in kernels::summary(results) {
        table.row([
            share.family,
            share.precision.to_owned(),
            share.kernels.to_string(),
            share.refused.to_string(),
            show::significant(share.ms, 3),
            share.fraction_of_peak.map_or_else(|| "-".to_owned(), |fraction| of_peak(fraction, share.emulated)),
        ]);
    }
    format!("\n{table}")
}

/// Lists the kernels below their floors.
fn check_floors(floors: &Floors, results: &[KernelResult], output: &Results) -> anyhow::Result<()> {
    let missed = floors.missed(results);
    if missed.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(1, &["below its floor", "of peak", "floor"]);
    for (result, floor) in &missed {
        let reached = result.fraction_of_peak.unwrap_or(0.0);
        table.row([result.full_name(), of_peak(reached, result.emulated), show::percent(*floor)]);
    }
    output.detail(&format!("\n{table}"))?;
    let kernels = if missed.len() == 1 { "kernel is below its floor" } else { "kernels are below their floors" };
    Err(anyhow::anyhow!("{} {kernels}", missed.len()))
}
