//! What a report says first: for each run and measurement the model, the device, the result, the speed, and the ratio to the
//! fastest other framework.

use super::charts::Tone;
use super::streams::Stream;
use super::view::metric_schema;
use super::{Report, Run, seeds, work};
use crate::compare::table::label;
use crate::measure::ERROR_OPTION;
use crate::peers::own;
use crate::show;
use bessemer_train::events::{BenchResult, Ratio, Status};
use bessemer_train::stats::{mean, sample_deviation};
use serde::Serialize;
use serde_json::Value;
use std::ptr;

/// The figures of a run, of a comparison, of a model's measurements, or of a log.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Headline {
    /// Name of the model, or of the log.
    pub title: String,
    /// What was done with it.
    pub work: String,
    /// What it ran on; empty if it is not known.
    pub device: String,
    pub figures: Vec<Figure>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Figure {
    pub value: String,
    /// Unit or name.
    pub label: String,
    pub tone: Tone,
}

/// Figures of a log of another program that are shown first.
const MOST_OF_A_STREAM: usize = 3;

/// Of all that a report covers, in its order.
pub(super) fn headlines(report: &Report) -> Vec<Headline> {
    let (compared, measured) = (comparisons(&report.benches), measurements(&report.benches));
    let groups = seeds::groups(&report.runs);
    let begins = |run: &Run| groups.iter().find(|members| ptr::eq(members[0], run));
    let is_member = |run: &Run| groups.iter().flatten().any(|member| ptr::eq(*member, run));
    let runs = report.runs.iter().filter_map(|run| match begins(run) {
        Some(members) => of_seeds(members),
        None if is_member(run) => None,
        None => of_run(run),
    });
    let compared = compared.iter().filter_map(|group| of_comparison(group));
    let measured = measured.iter().filter_map(|group| of_measurements(group));
    runs.chain(compared).chain(measured).chain(report.streams.iter().filter_map(of_stream)).collect()
}

/// Results that were compared with each other, in order.
pub(super) fn comparisons(results: &[BenchResult]) -> Vec<Vec<&BenchResult>> {
    groups(results, |result| result.comparison.as_ref().map(|comparison| &comparison.group))
}

/// Results that stand alone, those of one model doing one kind of work on the same data together.
pub(super) fn measurements(results: &[BenchResult]) -> Vec<Vec<&BenchResult>> {
    groups(results, |result| {
        let is_alone = result.comparison.is_none() && result.scaling.is_none();
        is_alone.then(|| (&result.model, show::work(result), &result.data))
    })
}

/// Results of one key together, in the order in which the keys come.
fn groups<'a, K: PartialEq>(
    results: &'a [BenchResult],
    key: impl Fn(&'a BenchResult) -> Option<K>,
) -> Vec<Vec<&'a BenchResult>> {
    let mut groups: Vec<(K, Vec<&BenchResult>)> = Vec::new();
    for (key, result) in results.iter().filter_map(|result| Some((key(result)?, result))) {
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, members)) => members.push(result),
            None => groups.push((key, vec![result])),
        }
    }
    groups.into_iter().map(|(_, members)| members).collect()
}

/// The fastest framework beside Bessemer that did the same work, and Bessemer's speed over its own.
pub(crate) fn fastest_other<'a>(group: &[&'a BenchResult]) -> Option<(&'a BenchResult, Ratio)> {
    let others = group.iter().filter(|result| result.framework != own::NAME && is_measured(result));
    let ratios = others.filter_map(|&result| Some((result, result.comparison.as_ref()?.ratio?)));
    ratios.min_by(|(_, a), (_, b)| a.median.total_cmp(&b.median))
}

fn is_measured(result: &BenchResult) -> bool {
    !result.options.contains_key(ERROR_OPTION)
}

fn fastest<'a>(results: impl Iterator<Item = &'a BenchResult>) -> Option<&'a BenchResult> {
    results.filter(|result| is_measured(result)).max_by(|a, b| a.throughput.total_cmp(&b.throughput))
}

fn figure(value: String, label: impl Into<String>) -> Figure {
    Figure { value, label: label.into(), tone: Tone::Own }
}

fn speed(result: &BenchResult) -> Figure {
    figure(show::significant(result.throughput, 4), &*result.unit)
}

fn device(result: &BenchResult) -> String {
    let count = result.devices * result.nodes;
    let several = if count > 1 { format!("{count} x ") } else { String::new() };
    match result.device.as_str() {
        "cpu" => format!("{several}{}, {}", result.device_name, show::counted(result.threads, "thread")),
        _ => format!("{several}{}", result.device_name),
    }
}

fn of_comparison(group: &[&BenchResult]) -> Option<Headline> {
    let own = fastest(group.iter().copied().filter(|result| result.framework == own::NAME))?;
    let (work, batch, precision) = (show::work(own), own.batch_size, &own.precision);
    let mut figures = vec![speed(own)];
    figures.extend(fastest_other(group).map(|(other, ratio)| Figure {
        value: format!("{:.2} x", ratio.median),
        label: format!("the speed of {}, the fastest other", label(other)),
        tone: Tone::of_ratio(ratio),
    }));
    Some(Headline {
        title: own.model.clone(),
        work: format!("{work}, batch {batch}, {precision}"),
        device: device(own),
        figures,
    })
}

/// The fastest of all settings.
fn of_measurements(group: &[&BenchResult]) -> Option<Headline> {
    let best = fastest(group.iter().copied())?;
    let (work, batch, precision) = (show::work(best), best.batch_size, &best.precision);
    let mut figures = vec![speed(best)];
    figures.extend(best.fraction_of_peak.map(|fraction| figure(show::percent(fraction), "of the device's peak (MFU)")));
    Some(Headline {
        title: best.model.clone(),
        work: format!("{work}{}, batch {batch}, {precision}", work::on_data(best)),
        device: device(best),
        figures,
    })
}

/// Mean and deviation in place of the result of each.
fn of_seeds(members: &[&Run]) -> Option<Headline> {
    let first = of_run(members[0])?;
    let schema = metric_schema(members[0]);
    let best = schema.metrics.iter().find(|metric| metric.name == schema.best.0)?;
    let values = seeds::values(members, best.name)?;
    let mut figures = vec![
        figure(schema.show(best.name, mean(&values)), format!("{}, mean of {} seeds", best.label, members.len())),
        figure(schema.show(best.name, sample_deviation(&values)), "standard deviation"),
    ];
    figures.extend(first.figures.into_iter().filter(|figure| figure.tone == Tone::Bad));
    Some(Headline { work: settings(&members[0].info.as_ref()?.recipe).join(", "), figures, ..first })
}

/// Precision and batch size of a recipe.
fn settings(recipe: &Value) -> Vec<String> {
    let field = |path: &str| recipe.pointer(path).map(|value| value.to_string().replace('"', ""));
    let batch = field("/train/batch_size").map(|size| format!("batch {size}"));
    [field("/precision/compute"), batch].into_iter().flatten().collect()
}

fn of_run(run: &Run) -> Option<Headline> {
    let info = run.info.as_ref()?;
    let field = |path: &str| info.recipe.pointer(path).map(|value| value.to_string().replace('"', ""));
    let schema = metric_schema(run);
    let best = schema.metrics.iter().find(|metric| metric.name == schema.best.0);
    let metrics = run.end.as_ref().map(|end| &end.metrics).filter(|metrics| !metrics.is_empty());
    let metrics = metrics.or(run.evals.last().map(|(_, eval)| &eval.metrics));
    let result = best.zip(metrics).and_then(|(best, metrics)| {
        Some(figure(schema.show(best.name, *metrics.get(best.name)?), format!("{}, last evaluation", best.label)))
    });
    let last_loss = || Some(figure(show::significant(run.steps.last()?.1.loss, 4), "training loss, last step"));
    let mut figures: Vec<Figure> = result.or_else(last_loss).into_iter().collect();
    figures.extend(run.end.as_ref().map(|end| figure(show::significant(end.throughput, 3), schema.unit)));
    let state = match run.end.as_ref().map(|end| end.status) {
        Some(Status::Done) => None,
        Some(Status::Interrupted) => Some("interrupted"),
        Some(Status::Failed) => Some("failed"),
        None => Some("not finished"),
    };
    let bad = |value: String, label: &str| Figure { value, label: label.to_owned(), tone: Tone::Bad };
    figures.extend(state.map(|state| bad(state.to_owned(), "state of the run")));
    let warnings = run.warnings.len() as u64;
    figures
        .extend((warnings > 0).then(|| bad(show::counted(warnings, "warning"), "see the run's settings and totals")));
    Some(Headline {
        title: field("/model/name").unwrap_or_else(|| run.name.clone()),
        work: [vec![format!("run {}", run.name)], settings(&info.recipe)].concat().join(", "),
        device: match (info.device.as_str(), info.machine.cpu.as_str()) {
            ("" | "cpu", "") => String::new(),
            ("" | "cpu", cpu) => format!("{cpu}, {}", show::counted(info.threads, "thread")),
            (device, _) => device.to_owned(),
        },
        figures,
    })
}

fn of_stream(stream: &Stream) -> Option<Headline> {
    let unit = |name: &str| stream.units.get(name).map_or_else(String::new, |unit| format!(", {unit}"));
    let first = stream.summary.iter().take(MOST_OF_A_STREAM);
    let figures: Vec<Figure> =
        first.map(|(name, value)| figure(show::significant(*value, 5), format!("{name}{}", unit(name)))).collect();
    let title = stream.path.file_name().unwrap_or(stream.path.as_os_str()).to_string_lossy().into_owned();
    let work = "log of another program".to_owned();
    (!figures.is_empty()).then(|| Headline { title, work, device: String::new(), figures })
}
