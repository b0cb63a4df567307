//! A report in the form that templates show: text, charts, pictures.

use super::charts::{Chart, Curve, Lines, MOST_POINTS, thinned};
use super::headline::{Headline, headlines, measurements};
use super::peers::{self, PeersView};
use super::reference::ReferenceView;
use super::streams::{self, StreamView};
use super::tables::{TableView, tables};
use super::{Report, ReportError, Run, work};
use crate::doctor::Examination;
use crate::measure::{ERROR_OPTION, ISA_OPTION};
use crate::samples::Sample;
use crate::show;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bessemer_train::chart::smoothed;
use bessemer_train::clock::date_time;
use bessemer_train::events::{BenchResult, EvalInfo, Status};
use bessemer_train::tasks::class_scores::ClassScores;
use bessemer_train::tasks::{self, MetricSchema, Scale};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, absolute};
use std::ptr;

/// Where pictures are.
#[derive(Clone, Copy)]
pub(super) enum Pictures<'a> {
    /// In the page itself.
    Inline,
    /// Paths of their files, relative to this folder.
    Linked(&'a Path),
}

#[derive(Serialize)]
pub(super) struct View {
    title: String,
    /// Of the last event of the logs.
    date: Option<String>,
    version: &'static str,
    headlines: Vec<Headline>,
    /// What everything ran on, where that is one device; each headline has its own otherwise.
    device: Option<String>,
    machines: Vec<Facts>,
    /// Several runs of a task side by side.
    comparisons: Vec<ComparisonView>,
    runs: Vec<RunView>,
    benches: Vec<BenchView>,
    peers: Option<PeersView>,
    tables: Vec<TableView>,
    streams: Vec<StreamView>,
    reference: Option<ReferenceView>,
}

/// Names and what they stand for.
type Facts = Vec<(&'static str, String)>;

#[derive(Serialize)]
struct ComparisonView {
    charts: Vec<Chart>,
    /// Name, steps, mean loss of the first and of the last tenth of the steps, throughput.
    rows: Vec<[String; 5]>,
}

#[derive(Serialize)]
struct RunView {
    name: String,
    status: String,
    ok: bool,
    facts: Facts,
    /// The resolved recipe as JSON.
    recipe: Option<String>,
    /// Whether curves of it stand beside those of others.
    is_compared: bool,
    charts: Vec<Chart>,
    metrics: Vec<String>,
    evals: Vec<Vec<String>>,
    class_columns: Vec<&'static str>,
    /// Of boxes, and where there are any of masks, in the latest evaluation.
    classes: Vec<ClassesView>,
    samples: Vec<SampleView>,
    samples_right: usize,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct ClassesView {
    kind: String,
    rows: Vec<Vec<String>>,
}

#[derive(Serialize)]
struct SampleView {
    source: String,
    label: String,
    predicted: String,
    probability: String,
    right: bool,
}

/// Measurements of one model in one mode on the same data.
#[derive(Serialize)]
struct BenchView {
    title: String,
    rows: Vec<BenchRow>,
    /// Whether it is known how long steps waited for their batches.
    is_loaded: bool,
    /// That inputs are random, where they are.
    note: &'static str,
    chart: Option<Chart>,
}

#[derive(Serialize)]
struct BenchRow {
    framework: String,
    precision: String,
    device: String,
    batch_size: u64,
    options: Vec<String>,
    throughput: String,
    unit: String,
    step_p50: String,
    step_p99: String,
    input_wait: String,
    spread: String,
    memory: String,
    mfu: String,
    hfu: String,
    error: Option<String>,
}

impl View {
    pub(super) fn new(report: &Report, title: &str, pictures: Pictures<'_>) -> Result<Self, ReportError> {
        let compared = compared(&report.runs);
        let run_view = |run: &Run| run_view(run, compared.iter().flatten().any(|other| ptr::eq(*other, run)), pictures);
        let headlines = headlines(report);
        let devices: BTreeSet<String> = headlines.iter().map(|headline| headline.device.clone()).collect();
        let mut devices = devices.into_iter();
        Ok(Self {
            title: title.to_owned(),
            date: report.logged.map(|time| date_time(time).split('.').next().unwrap_or_default().to_owned() + " UTC"),
            version: env!("CARGO_PKG_VERSION"),
            device: devices.next().filter(|device| devices.len() == 0 && !device.is_empty()),
            headlines,
            machines: machines(report),
            comparisons: compared.iter().map(|runs| comparison(runs)).collect(),
            runs: report.runs.iter().map(run_view).collect::<Result<_, _>>()?,
            benches: bench_views(&report.benches),
            peers: peers::view(&report.benches),
            tables: tables(&report.benches, &report.runs),
            streams: report.streams.iter().map(streams::view).collect(),
            reference: report.reference.map(|reference| reference.view(&report.benches, &report.runs)).transpose()?,
        })
    }
}

/// Examinations, or else what runs and measurements say of their machines, each once.
fn machines(report: &Report) -> Vec<Facts> {
    let mut all: Vec<Facts> = report.machines.iter().map(examined).collect();
    if all.is_empty() {
        let measured = report.benches.iter().filter(|result| result.device == "cpu").map(bench_machine);
        all = report.runs.iter().filter_map(run_machine).chain(measured).collect();
    }
    let mut distinct: Vec<Facts> = Vec::new();
    for facts in all {
        if !distinct.contains(&facts) {
            distinct.push(facts);
        }
    }
    distinct
}

fn examined(examination: &Examination) -> Facts {
    let Examination { machine, limits, gpu, .. } = examination;
    let mut facts = vec![
        ("processor", machine.cpu.clone()),
        ("processors", format!("{}, {} in use", machine.processors, show::counted(machine.threads as u64, "thread"))),
        ("instruction set", machine.instruction_set.clone()),
        ("peak fp32", format!("{} GFLOP/s (measured)", show::significant(limits.fp32_gflops, 3))),
        ("memory reads", format!("{} GB/s (measured)", show::significant(limits.read_gbytes, 3))),
        ("memory", show::bytes(machine.memory_bytes)),
        ("system", machine.os.clone()),
        ("GPU", gpu.clone()),
    ];
    if let Some((gflops, unit)) = limits.bf16_gflops.zip(machine.bf16.as_ref()) {
        facts.insert(4, ("peak bf16", format!("{} GFLOP/s by {unit} (measured)", show::significant(gflops, 3))));
    }
    facts.extend(examination.advice.iter().map(|advice| ("advice", format!("{}: {}", advice.problem, advice.action))));
    facts
}

fn run_machine(run: &Run) -> Option<Facts> {
    let info = run.info.as_ref()?;
    let machine = &info.machine;
    let mut facts = vec![
        ("processor", machine.cpu.clone()),
        ("processors", format!("{}, {} in use", machine.cores, show::counted(info.threads, "thread"))),
        ("instruction set", machine.isa.clone()),
        ("system", machine.os.clone()),
    ];
    facts.extend(machine.memory_bytes.map(|bytes| ("memory", show::bytes(bytes))));
    Some(facts)
}

/// What a measurement on processors says of them.
fn bench_machine(result: &BenchResult) -> Facts {
    let mut facts = vec![
        ("processor", result.device_name.clone()),
        ("processors", format!("{} in use", show::counted(result.threads, "thread"))),
    ];
    let isa = result.options.get(ISA_OPTION).and_then(|isa| isa.as_str());
    facts.extend(isa.map(|isa| ("instruction set", isa.to_owned())));
    facts
}

fn run_view(run: &Run, is_compared: bool, pictures: Pictures<'_>) -> Result<RunView, ReportError> {
    let (status, ok) = match &run.end {
        None => ("not finished".to_owned(), false),
        Some(end) => match end.status {
            Status::Done => ("done".to_owned(), true),
            Status::Interrupted => ("interrupted".to_owned(), false),
            Status::Failed => (format!("failed: {}", end.error.as_deref().unwrap_or("no reason logged")), false),
        },
    };
    let mut metrics: Vec<String> = run.evals.iter().flat_map(|(_, eval)| eval.metrics.keys().cloned()).collect();
    metrics.sort();
    metrics.dedup();
    Ok(RunView {
        name: run.name.clone(),
        status,
        ok,
        facts: run_facts(run),
        recipe: run.info.as_ref().filter(|info| !info.recipe.is_null()).map(|info| format!("{:#}", info.recipe)),
        is_compared,
        charts: run_charts(run),
        evals: run.evals.iter().map(|(step, eval)| eval_row(*step, eval, &metrics, metric_schema(run))).collect(),
        metrics,
        class_columns: ClassScores::columns(),
        classes: run.classes.iter().map(classes_view).collect(),
        samples: run.samples.iter().map(|s| sample_view(run, s, pictures)).collect::<Result<_, _>>()?,
        samples_right: run.samples.iter().filter(|sample| sample.is_right()).count(),
        warnings: run.warnings.clone(),
    })
}

fn run_facts(run: &Run) -> Facts {
    let mut facts = vec![("folder", run.path.display().to_string())];
    if let Some(info) = &run.info {
        let field = |path: &str| info.recipe.pointer(path).map(|value| value.to_string().replace('"', ""));
        facts.extend(field("/model/name").map(|name| ("model", name)));
        facts.extend(field("/name").map(|name| ("recipe", name)));
        facts.extend(field("/train/batch_size").map(|size| ("batch size", size)));
        facts.extend(field("/train/seed").map(|seed| ("seed", seed)));
        facts.extend(field("/data/source").map(|source| ("data", source)));
        facts.push(("identity of the data", info.data.clone()));
        facts.push(("version", info.version.clone()));
        facts.push(("command", info.command.join(" ")));
    }
    if let Some(plan) = run.plans.iter().find(|plan| plan.mode == "train") {
        let (flops, memory) = (show::scaled(plan.flops as f64), show::bytes(plan.peak_bytes));
        facts.push(("step", format!("{} kernel calls, {flops}FLOP, {memory}", plan.kernels)));
    }
    if let Some(end) = &run.end {
        let metric_schema = metric_schema(run);
        facts.push(("steps", format!("{} ({} {})", end.steps, end.samples, metric_schema.samples)));
        facts.push(("time in steps", show::seconds(end.train_s)));
        facts.push(("throughput", format!("{} {}", show::significant(end.throughput, 3), metric_schema.unit)));
        let fractions =
            metric_schema.metrics.iter().filter(|metric| metric.scale == Scale::Fraction && metric.axis.is_some());
        facts
            .extend(fractions.filter_map(|metric| Some((metric.label, show::percent(*end.metrics.get(metric.name)?)))));
    }
    facts.retain(|(_, value)| !value.is_empty());
    facts
}

/// What the task of a run calls things.
pub(super) fn metric_schema(run: &Run) -> &'static MetricSchema {
    let recipe = run.info.as_ref().map(|info| &info.recipe);
    tasks::metric_schema(recipe.and_then(|recipe| recipe.pointer("/model/name")?.as_str()).unwrap_or_default())
}

/// A metric over the steps of its evaluations, as its chart shows it.
fn metric_points(run: &Run, name: &str) -> Vec<(f64, f64)> {
    let scale = metric_schema(run).scale(name);
    let point = |(step, eval): &(u64, EvalInfo)| Some((*step as f64, scale.shown(*eval.metrics.get(name)?)));
    run.evals.iter().filter_map(point).collect()
}

/// The runs with steps of each task that has several.
fn compared(runs: &[Run]) -> Vec<Vec<&Run>> {
    let mut tasks: Vec<Vec<&Run>> = Vec::new();
    for run in runs.iter().filter(|run| !run.steps.is_empty()) {
        match tasks.iter_mut().find(|members| metric_schema(members[0]) == metric_schema(run)) {
            Some(members) => members.push(run),
            None => tasks.push(vec![run]),
        }
    }
    tasks.retain(|members| members.len() > 1);
    tasks
}

fn losses(run: &Run) -> Vec<(f64, f64)> {
    run.steps.iter().map(|(step, info)| (*step as f64, info.loss)).collect()
}

/// Curves of runs of one task together.
fn comparison(runs: &[&Run]) -> ComparisonView {
    let schema = metric_schema(runs[0]);
    let chart = |caption: &str, marks: bool, points: &dyn Fn(&Run) -> Vec<(f64, f64)>| {
        let curves = runs.iter().map(|run| Curve::new(run.name.clone(), points(run))).collect();
        Lines { caption: caption.to_owned(), x: "step", curves, from_zero: false, marks }.chart()
    };
    let charts = [
        chart("training loss, smoothed", false, &|run| smoothed(&thinned(&losses(run), MOST_POINTS))),
        chart(schema.best_axis(), true, &|run| metric_points(run, schema.best.0)),
    ];
    let row = |run: &&Run| {
        let losses = losses(run);
        let tenth = losses.len().div_ceil(10);
        let mean = |part: &[(f64, f64)]| format!("{:.4}", part.iter().map(|p| p.1).sum::<f64>() / part.len() as f64);
        let throughput = run.end.as_ref().map_or_else(String::new, |end| show::significant(end.throughput, 3));
        let (first, last) = (mean(&losses[..tenth]), mean(&losses[losses.len() - tenth..]));
        [run.name.clone(), losses.len().to_string(), first, last, throughput]
    };
    ComparisonView { charts: charts.into_iter().flatten().collect(), rows: runs.iter().map(row).collect() }
}

fn run_charts(run: &Run) -> Vec<Chart> {
    let loss = thinned(&losses(run), MOST_POINTS);
    let rates: Vec<_> = run.steps.iter().map(|(step, info)| (*step as f64, info.lr)).collect();
    let raw = Curve { faint: true, ..Curve::new("as measured", loss.clone()) };
    let metric_schema = metric_schema(run);
    let lines = |caption: &str, from_zero: bool, marks: bool, curves: Vec<Curve>| {
        Lines { caption: caption.to_owned(), x: "step", curves, from_zero, marks }.chart()
    };
    let metrics = metric_schema.metrics.iter().filter_map(|metric| {
        let beside = metric.beside.and_then(|name| metric_schema.metrics.iter().find(|other| other.name == name));
        let curves = match beside {
            None => vec![Curve::new("", metric_points(run, metric.name))],
            Some(other) => {
                [metric, other].map(|drawn| Curve::new(drawn.label.trim(), metric_points(run, drawn.name))).into()
            }
        };
        lines(metric.axis?, false, true, curves)
    });
    let smooth = Curve::new("smoothed", smoothed(&loss));
    let loss = lines("training loss", true, false, vec![raw, smooth]);
    let rate = lines("learning rate", true, false, vec![Curve::new("", thinned(&rates, MOST_POINTS))]);
    loss.into_iter().chain(metrics).chain(rate).collect()
}

fn eval_row(step: u64, eval: &EvalInfo, metrics: &[String], metric_schema: &MetricSchema) -> Vec<String> {
    let shown =
        |name: &String| eval.metrics.get(name).map_or_else(String::new, |value| metric_schema.show(name, *value));
    let mut row = vec![step.to_string(), eval.epoch.saturating_add(1).to_string()];
    row.extend(metrics.iter().map(shown));
    row.push(eval.samples.to_string());
    row.push(show::seconds(eval.eval_s));
    row
}

fn classes_view((kind, classes): (&String, &Vec<ClassScores>)) -> ClassesView {
    ClassesView { kind: kind.clone(), rows: classes.iter().map(ClassScores::cells).collect() }
}

fn sample_view(run: &Run, sample: &Sample, pictures: Pictures<'_>) -> Result<SampleView, ReportError> {
    let path = run.path.join("predictions").join(&sample.picture);
    let source = match pictures {
        Pictures::Inline => {
            let bytes = fs::read(&path).map_err(|source| ReportError::Io { path, source })?;
            format!("data:image/png;base64,{}", STANDARD.encode(bytes))
        }
        Pictures::Linked(folder) => link(&path, folder)?,
    };
    Ok(SampleView {
        source,
        label: sample.label.clone(),
        predicted: sample.predicted.clone(),
        probability: format!("{:.0} %", sample.probability * 100.0),
        right: sample.is_right(),
    })
}

/// The path of a file in Markdown that lies in a folder.
fn link(path: &Path, folder: &Path) -> Result<String, ReportError> {
    let at = |path: &Path| absolute(path).map_err(|source| ReportError::Io { path: path.to_owned(), source });
    // An empty path is that of the working folder.
    let (path, folder) = (at(path)?, at(&Path::new(".").join(folder))?);
    let link = pathdiff::diff_paths(&path, folder).unwrap_or(path).display().to_string();
    Ok(if link.contains([' ', '(', ')']) { format!("<{link}>") } else { link })
}

fn bench_views(results: &[BenchResult]) -> Vec<BenchView> {
    let view = |results: Vec<&BenchResult>| BenchView {
        title: title(results[0]),
        rows: results.iter().map(|result| bench_row(result)).collect(),
        is_loaded: results.iter().any(|result| result.input_wait.is_some()),
        note: work::note(results.iter().copied()),
        chart: bench_chart(&results),
    };
    measurements(results).into_iter().map(view).collect()
}

/// Model, what is done with it, and the data that are loaded for it.
fn title(result: &BenchResult) -> String {
    format!("{}, {}{}", result.model, show::work(result), work::on_data(result))
}

fn bench_row(result: &BenchResult) -> BenchRow {
    let milliseconds = |value: f64| show::significant(value, 3);
    let options = result.options.iter().filter(|(name, _)| *name != ERROR_OPTION);
    BenchRow {
        framework: format!("{} {}", result.framework, result.framework_version),
        precision: result.precision.clone(),
        device: format!("{} ({})", result.device, show::counted(result.threads, "thread")),
        batch_size: result.batch_size,
        options: options.map(|(name, value)| format!("{name} {value}").replace('"', "")).collect(),
        throughput: show::significant(result.throughput, 3),
        unit: result.unit.clone(),
        step_p50: milliseconds(result.step_ms.p50),
        step_p99: milliseconds(result.step_ms.p99),
        input_wait: work::input_wait(result),
        spread: show::percent(result.spread),
        memory: result.peak_memory_bytes.map_or_else(|| "unknown".to_owned(), show::bytes),
        mfu: result.fraction_of_peak.map_or_else(|| "unknown".to_owned(), show::percent),
        hfu: result.hardware_fraction_of_peak.map_or_else(|| "unknown".to_owned(), show::percent),
        error: result.options.get(ERROR_OPTION).map(|reason| reason.as_str().unwrap_or("failed").to_owned()),
    }
}

/// Throughput over the batch size, where a configuration was measured at several.
fn bench_chart(results: &[&BenchResult]) -> Option<Chart> {
    let mut curves: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for result in results.iter().filter(|result| !result.options.contains_key(ERROR_OPTION)) {
        let fused = result.options.get("fuse").is_none_or(|fuse| fuse != false);
        let name = format!("{} {}{}", result.framework, result.precision, if fused { "" } else { " (not fused)" });
        curves.entry(name).or_default().push((result.batch_size as f64, result.throughput));
    }
    if curves.values().all(|points| points.len() < 2) {
        return None;
    }
    curves.values_mut().for_each(|points| points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    let curves = curves.into_iter().map(|(name, points)| Curve::new(name, points)).collect();
    let caption = format!("{} ({})", title(results[0]), results[0].unit);
    Lines { caption, x: "batch size", curves, from_zero: true, marks: true }.chart()
}
