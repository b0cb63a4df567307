//! The tables that published results of these models have: training performance with the speed-up of 16 bits and weak scaling,
//! inference latency, accuracy, stability over seeds; the time of a step on each rank, and where it goes.

use super::charts::{Bar, Bars, Chart, Curve, Lines, Tone};
use super::work::{self, Columns, NARROW, WIDE, Work, input_wait};
use super::{Run, seeds, view};
use crate::compare::table::label;
use crate::measure::ERROR_OPTION;
use crate::profile::gflops;
use crate::scaling;
use crate::show;
use bessemer_train::events::{BenchResult, KernelTime, RankTimes, RanksInfo, Status};
use bessemer_train::stats::{mean, sample_deviation};
use bessemer_train::tasks::{Better, MetricSchema};
use serde::Serialize;
use std::collections::BTreeMap;

/// A table under a title; all columns but the first stand as numbers do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct TableView {
    title: String,
    header: Vec<String>,
    rows: Vec<Vec<String>>,
    note: String,
    chart: Option<Chart>,
}

/// The tables of what `results` and `runs` have, each where there is something in it.
pub(super) fn tables(results: &[BenchResult], runs: &[Run]) -> Vec<TableView> {
    let measured: Vec<&BenchResult> =
        results.iter().filter(|result| !result.options.contains_key(ERROR_OPTION)).collect();
    let mut tables: Vec<TableView> =
        [training(&measured), inference(&measured), accuracy(runs), stability(runs)].into_iter().flatten().collect();
    tables.extend(scaling::tables(results).into_iter().map(of_ranks));
    tables.extend(runs.iter().filter_map(pace));
    tables.extend(measured.iter().filter(|result| !result.kernels.is_empty()).map(|result| breakdown(result)));
    tables
}

/// Training on several ranks, and how its speed rises with them where there are several numbers of them.
fn of_ranks(table: scaling::Table) -> TableView {
    let scaling::Table { title, header, rows, speed_ups } = table;
    let measured: Vec<(f64, f64)> = speed_ups.iter().map(|(ranks, speed_up)| (*ranks as f64, *speed_up)).collect();
    let ideal = measured.iter().map(|(ranks, _)| (*ranks, *ranks)).collect();
    let chart = speed_ups.first().zip(speed_ups.last()).filter(|(first, last)| first.0 < last.0).and_then(|_| {
        let ideal = Curve { faint: true, ..Curve::new("ideal", ideal) };
        let curves = vec![ideal, Curve::new("measured", measured)];
        Lines { caption: "speed-up over one rank".to_owned(), x: "ranks", curves, from_zero: true, marks: true }.chart()
    });
    TableView { title, header, rows, note: scaling::NOTE.to_owned(), chart }
}

fn strings<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(str::to_owned).to_vec()
}

/// A number, or a dash where there is none.
fn or_dash(value: Option<f64>, show: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), show)
}

/// Speeds by the type of numbers, where something was measured in 32 and in 16 bits or on several devices.
fn training(results: &[&BenchResult]) -> Option<TableView> {
    let measured = || results.iter().copied().filter(|result| result.mode == "train" && result.scaling.is_none());
    let mut rows: BTreeMap<Work, BTreeMap<&str, &BenchResult>> = BTreeMap::new();
    for result in measured() {
        let best = rows.entry(Work::of(result)).or_default().entry(result.precision.as_str()).or_insert(result);
        // The best, where the same work was measured in several ways.
        if best.throughput < result.throughput {
            *best = result;
        }
    }
    let in_both = |speeds: &BTreeMap<&str, &BenchResult>| {
        [WIDE, NARROW].iter().all(|types| types.iter().any(|precision| speeds.contains_key(precision)))
    };
    if !rows.iter().any(|(work, speeds)| work.devices > 1 || in_both(speeds)) {
        return None;
    }
    let is_measured = |precision: &&str| measured().any(|result| result.precision == *precision);
    let [wide, narrow] = [WIDE, NARROW].map(|types| types.into_iter().filter(is_measured).collect::<Vec<_>>());
    let precisions: Vec<&str> = wide.iter().chain(&narrow).copied().collect();
    let pairs: Vec<(&str, &str)> = narrow.iter().flat_map(|of| wide.iter().map(move |over| (*of, *over))).collect();
    let columns = Columns::of(rows.keys());
    let is_loaded = measured().any(|result| result.input_wait.is_some());
    let row = |(work, speeds): (&Work, &BTreeMap<&str, &BenchResult>)| {
        let speed = |precision: &str| speeds.get(precision).map(|result| result.throughput);
        let one_device = rows.get(&work.of_one_device());
        let ratio = |of: Option<f64>, over: Option<f64>| {
            or_dash(of.zip(over).map(|(of, over)| of / over), |value| format!("{value:.2} x"))
        };
        let scaling =
            |precision: &str| ratio(speed(precision), one_device.and_then(|one| Some(one.get(precision)?.throughput)));
        let waits: Vec<String> =
            precisions.iter().filter_map(|precision| speeds.get(precision)).map(|result| input_wait(result)).collect();
        let mut cells = vec![format!("{}, {}", work.model, work.label)];
        cells.extend(columns.cells(work));
        cells.extend([work.devices.to_string(), work.batch_size.to_string()]);
        cells.extend(precisions.iter().map(|precision| or_dash(speed(precision), |value| show::significant(value, 4))));
        cells.extend(pairs.iter().map(|(of, over)| ratio(speed(of), speed(over))));
        cells.extend(precisions.iter().map(|precision| scaling(precision)));
        cells.extend(is_loaded.then(|| waits.join(", ")));
        cells
    };
    let mut header = strings(["model, framework"]);
    header.extend(columns.header());
    header.extend(strings(["devices", "batch a device"]));
    header.extend(precisions.iter().map(|precision| format!("samples/s {precision}")));
    header.extend(pairs.iter().map(|(of, over)| format!("{of} over {over}")));
    header.extend(precisions.iter().map(|precision| format!("weak scaling {precision}")));
    header.extend(is_loaded.then(|| WAITS.to_owned()));
    let waits = if is_loaded { " Waits: shares of the time, in the order of the speeds." } else { "" };
    let note = "A type of numbers over another: speeds of the same work. Weak scaling: speed over that of one device at the same \
                work of each device.";
    Some(TableView {
        title: "Training performance".to_owned(),
        header,
        rows: rows.iter().map(row).collect(),
        note: format!("{note}{waits} {}", work::note(measured())).trim_end().to_owned(),
        chart: None,
    })
}

/// Title of a column of [`input_wait`].
const WAITS: &str = "waits for batches";

/// True quantiles of the latency of a batch, and its mean.
fn inference(results: &[&BenchResult]) -> Option<TableView> {
    let measured: Vec<&BenchResult> = results.iter().copied().filter(|result| result.mode == "infer").collect();
    let works: Vec<Work> = measured.iter().map(|result| Work::in_full(result)).collect();
    let columns = Columns::of(&works);
    let is_loaded = measured.iter().any(|result| result.input_wait.is_some());
    let row = |(result, work): (&&BenchResult, &Work)| {
        let times = &result.step_ms;
        let end = show::outputs_of(result).map_or_else(String::new, |end| format!(" to {}", show::outputs(end)));
        let mut cells = vec![format!("{}{end}, {}", work.model, work.label)];
        cells.extend(columns.cells(work));
        cells.extend([result.precision.clone(), result.batch_size.to_string()]);
        cells.push(show::significant(result.throughput, 4));
        cells.extend([times.mean, times.p90, times.p95, times.p99].map(|value| show::significant(value, 4)));
        cells.extend(is_loaded.then(|| input_wait(result)));
        cells
    };
    let rows: Vec<Vec<String>> = measured.iter().zip(&works).map(row).collect();
    let mut header = strings(["model, framework"]);
    header.extend(columns.header());
    header.extend(strings(["precision", "batch", "samples/s", "mean ms", "90 % ms", "95 % ms", "99 % ms"]));
    header.extend(is_loaded.then(|| WAITS.to_owned()));
    let note = "Latencies of a whole batch; percentages are true quantiles of the single steps.";
    (!rows.is_empty()).then(|| TableView {
        title: "Inference performance".to_owned(),
        header,
        rows,
        note: format!("{note} {}", work::note(measured.iter().copied())).trim_end().to_owned(),
        chart: None,
    })
}

/// What finished runs reached, and how long they took.
fn accuracy(runs: &[Run]) -> Option<TableView> {
    let row = |run: &Run| {
        let end = run.end.as_ref().filter(|end| end.status == Status::Done)?;
        let field = |path: &str| field(run, path);
        let metric_schema = view::metric_schema(run);
        let metrics: Vec<String> = shown_metrics(metric_schema)
            .filter_map(|(name, label)| Some(format!("{label} {}", metric_schema.show(name, *end.metrics.get(name)?))))
            .collect();
        let devices = run.info.as_ref().map_or(1, |info| info.hosts.len().max(1));
        let batch = field("/train/batch_size");
        let precision = field("/precision/compute");
        (!metrics.is_empty()).then(|| {
            vec![
                run.name.clone(),
                field("/model/name"),
                devices.to_string(),
                batch,
                precision,
                metrics.join(", "),
                best_evaluation(run, metric_schema).unwrap_or_else(|| "–".to_owned()),
                show::seconds(end.train_s),
            ]
        })
    };
    let rows: Vec<Vec<String>> = runs.iter().filter_map(row).collect();
    (!rows.is_empty()).then(|| TableView {
        title: "Accuracy".to_owned(),
        header: strings([
            "run",
            "model",
            "devices",
            "batch",
            "precision",
            "last evaluation",
            "best evaluation",
            "time in steps",
        ]),
        rows,
        note: String::new(),
        chart: None,
    })
}

/// The metric by which checkpoints are compared, in the evaluation where it is best, which the checkpoint is of that `eval` takes.
fn best_evaluation(run: &Run, metric_schema: &'static MetricSchema) -> Option<String> {
    let (name, better) = metric_schema.best;
    let label = metric_schema.metrics.iter().find(|metric| metric.name == name)?.label;
    let values = run.evals.iter().filter_map(|(step, eval)| Some((*step, *eval.metrics.get(name)?)));
    let values = values.filter(|(_, value)| value.is_finite());
    // The first of those that are equal.
    let (step, value) = values.reduce(|best, next| {
        let is_better = match better {
            Better::Higher => next.1 > best.1,
            Better::Lower => next.1 < best.1,
        };
        if is_better { next } else { best }
    })?;
    Some(format!("{label} {}, step {step}", metric_schema.show(name, value)))
}

/// Metrics that curves show, and their labels.
fn shown_metrics(metric_schema: &'static MetricSchema) -> impl Iterator<Item = (&'static str, &'static str)> {
    metric_schema.metrics.iter().filter(|metric| metric.axis.is_some()).map(|metric| (metric.name, metric.label))
}

/// A field of a run's recipe.
fn field(run: &Run, path: &str) -> String {
    let value = run.info.as_ref().and_then(|info| info.recipe.pointer(path));
    value.map_or_else(|| "–".to_owned(), |value| value.to_string().replace('"', ""))
}

/// Metrics of finished runs that differ in their seed alone.
fn stability(runs: &[Run]) -> Option<TableView> {
    let mut rows = Vec::new();
    for members in seeds::groups(runs) {
        let metric_schema = view::metric_schema(members[0]);
        let work = [field(members[0], "/model/name"), field(members[0], "/precision/compute")].join(", ");
        for (name, label) in shown_metrics(metric_schema) {
            let Some(values) = seeds::values(&members, name) else { continue };
            let scale = metric_schema.scale(name);
            let unit = if scale.unit() == "%" { " %" } else { "" };
            let shown = |value: f64| format!("{:.3}{unit}", scale.shown(value));
            let seeds: Vec<String> = values.iter().map(|&value| shown(value)).collect();
            let cells = [work.clone(), label.to_owned(), values.len().to_string(), seeds.join(", ")];
            rows.push(cells.into_iter().chain([shown(mean(&values)), shown(sample_deviation(&values))]).collect());
        }
    }
    (!rows.is_empty()).then(|| TableView {
        title: "Stability over seeds".to_owned(),
        header: strings(["work", "metric", "runs", "values", "mean", "standard deviation"]),
        rows,
        note: "Runs of one recipe that differ in their seed alone; deviation of a sample.".to_owned(),
        chart: None,
    })
}

/// How long a step of a run took on each of its ranks; where the run was resumed on another number of ranks, on the last ones.
fn pace(run: &Run) -> Option<TableView> {
    let count = run.ranks.last()?.ranks.len();
    let windows: Vec<&RanksInfo> = run.ranks.iter().filter(|window| window.ranks.len() == count).collect();
    let steps: u64 = windows.iter().map(|window| window.steps).sum();
    let mean_ms = |rank: usize, seconds: fn(&RankTimes) -> f64| {
        let total: f64 = windows.iter().map(|window| window.steps as f64 * seconds(&window.ranks[rank])).sum();
        1e3 * total / steps.max(1) as f64
    };
    let hosts = run.info.as_ref().map_or(&[][..], |info| &info.hosts);
    let host = |rank: usize| hosts.get(rank).map_or_else(|| "–".to_owned(), Clone::clone);
    let own: Vec<f64> = (0..count).map(|rank| mean_ms(rank, RankTimes::own_s)).collect();
    let fastest = own.iter().copied().fold(f64::INFINITY, f64::min);
    let row = |rank: usize| {
        let shown = |seconds: fn(&RankTimes) -> f64| show::significant(mean_ms(rank, seconds), 3);
        vec![
            rank.to_string(),
            host(rank),
            shown(|times| times.data_s),
            shown(|times| times.compute_s),
            shown(|times| times.comm_s),
            format!("{:.2} x", own[rank] / fastest.max(1e-12)),
        ]
    };
    Some(TableView {
        title: format!("A step on each rank: {}, mean of {steps} steps", run.name),
        header: strings(["rank", "host", "data ms", "computing ms", "waiting for others ms", "of the fastest"]),
        rows: (0..count).map(row).collect(),
        note: "The last column is data and computing together, beside the rank that has least: the others wait for the slowest. On GPUs \
               waiting is part of computing."
            .to_owned(),
        chart: None,
    })
}

/// The time of a step by kind of kernel.
fn breakdown(result: &BenchResult) -> TableView {
    let total: f64 = result.kernels.iter().map(|kind| kind.milliseconds).sum();
    let row = |kind: &KernelTime| {
        vec![
            kind.kind.clone(),
            kind.calls.to_string(),
            show::significant(kind.milliseconds, 3),
            show::percent(kind.milliseconds / total.max(1e-12)),
            show::significant(gflops(kind.flops, kind.milliseconds), 3),
        ]
    };
    let bar = |kind: &KernelTime| Bar {
        name: kind.kind.clone(),
        details: vec![format!("{} ms", show::significant(kind.milliseconds, 3))],
        value: kind.milliseconds,
        range: None,
        tone: Tone::Own,
    };
    let work = show::work(result);
    let (batch, precision) = (result.batch_size, &result.precision);
    let bars = result.kernels.iter().take(MOST_BARS).map(bar).collect();
    let caption = "time of a step by kind of kernel (ms), the longest".to_owned();
    TableView {
        title: format!("Where a step of {} goes: {}, {work}, batch {batch}, {precision}", label(result), result.model),
        header: strings(["kernel", "calls", "ms", "of step", "GFLOP/s"]),
        rows: result.kernels.iter().map(row).collect(),
        note: "Each call timed by itself, in a step after those that were measured.".to_owned(),
        chart: Bars { caption, unit: "ms".to_owned(), base: 0.0, bars }.chart(),
    }
}

/// Kinds of kernels of a chart.
const MOST_BARS: usize = 8;
