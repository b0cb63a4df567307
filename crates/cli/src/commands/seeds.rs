//! Runs that differ in their seed alone.

use crate::output::Table;
use anyhow::Context;
use bessemer_train::clock::{compact, unix_seconds};
use bessemer_train::recipe::Override;
use bessemer_train::stats::{mean, sample_deviation};
use bessemer_train::tasks::MetricSchema;
use bessemer_train::{RunDir, RunFolder, TrainOptions, TrainReport};
use std::path::PathBuf;

/// Trains `count` times as the request says, each with the next seed, in folders of their own; seeds and reports. Runs of the same request
/// that are there already go on, or are done.
pub(super) fn train(
    request: &TrainOptions,
    count: usize,
    train: impl Fn(&TrainOptions) -> anyhow::Result<TrainReport>,
) -> anyhow::Result<Vec<(u64, TrainReport)>> {
    let (recipe, parent) = (&request.recipe, parent(request));
    let seeds = (0..count as u64).map(|number| recipe.train.seed + number);
    let run = |seed: u64| -> anyhow::Result<(u64, TrainReport)> {
        let recipe = recipe.with_overrides(&[Override::new("train.seed", seed as i64)])?;
        let folder = parent.join(format!("seed-{seed}"));
        let folder = if RunDir::is_run(&folder) { RunFolder::Resume(folder) } else { RunFolder::New(folder) };
        let report = train(&TrainOptions { recipe, folder, ..request.clone() });
        Ok((seed, report.with_context(|| format!("seed {seed}"))?))
    };
    seeds.map(run).collect()
}

/// The folder of all runs.
fn parent(request: &TrainOptions) -> PathBuf {
    match &request.folder {
        RunFolder::New(folder) | RunFolder::Resume(folder) => folder.clone(),
        RunFolder::NewIn(folder) => {
            let time = compact(unix_seconds());
            folder.join(format!("{}-{time}", request.recipe.model.name))
        }
    }
}

/// The metrics of all runs in the units of people, with their mean and standard deviation.
pub(super) fn table(reports: &[(u64, TrainReport)]) -> String {
    let Some((_, first)) = reports.first() else { return String::new() };
    let names: Vec<&str> = first.metrics.keys().map(String::as_str).collect();
    let column = |name: &str| -> Vec<f64> {
        reports.iter().map(|(_, report)| report.metrics.get(name).copied().unwrap_or(f64::NAN)).collect()
    };
    let mut table = Table::new(1, &[&["seed"], names.as_slice()].concat());
    let mut row = |head: String, value: &dyn Fn(&str) -> f64| {
        let cells = names.iter().map(|name| show(first.metric_schema, name, value(name)));
        table.row([head].into_iter().chain(cells));
    };
    for (index, (seed, _)) in reports.iter().enumerate() {
        row(seed.to_string(), &|name| column(name)[index]);
    }
    row("mean".to_owned(), &|name| mean(&column(name)));
    row("deviation".to_owned(), &|name| sample_deviation(&column(name)));
    table.to_string()
}

/// Three digits behind the point of percentages, as differences between seeds are small.
fn show(metric_schema: &MetricSchema, name: &str, value: f64) -> String {
    let scale = metric_schema.scale(name);
    let unit = if scale.unit() == "%" { " %" } else { "" };
    format!("{:.3}{unit}", scale.shown(value))
}
