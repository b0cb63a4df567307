//! Comparisons with other frameworks in reports: a table and a chart of each group, and a chart of the ratios of all.

use super::charts::{Bar, Bars, Chart, Tone};
use super::headline::{comparisons, fastest_other};
use crate::compare::table::{FRAMEWORKS_HEADER, HEADER, Table, frameworks, label, method, tables};
use crate::measure::ERROR_OPTION;
use crate::peers::own;
use crate::show;
use bessemer_train::events::{BenchResult, Verdict};
use serde::Serialize;
use std::iter;

/// All groups, and how they were measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PeersView {
    /// Bessemer's speed over that of the fastest other framework, of each group.
    ratios: Option<Chart>,
    groups: Vec<GroupView>,
    /// What was compared: versions, forms and options.
    frameworks_header: [&'static str; 4],
    frameworks: Vec<[String; 4]>,
    method: String,
}

#[derive(Clone, Debug, Serialize)]
struct GroupView {
    title: String,
    header: [&'static str; 11],
    rows: Vec<[String; 11]>,
    notes: Vec<String>,
    chart: Option<Chart>,
}

/// `None` where nothing was compared.
pub(super) fn view(results: &[BenchResult]) -> Option<PeersView> {
    let groups = comparisons(results);
    let views: Vec<GroupView> = tables(results).into_iter().zip(&groups).map(|(table, of)| group(table, of)).collect();
    (!views.is_empty()).then(|| PeersView {
        ratios: ratios(&groups),
        groups: views,
        frameworks_header: FRAMEWORKS_HEADER,
        frameworks: frameworks(results),
        method: method(results),
    })
}

/// `None` for a single ratio, which the headline has.
fn ratios(groups: &[Vec<&BenchResult>]) -> Option<Chart> {
    let bar = |group: &Vec<&BenchResult>| {
        let (other, ratio) = fastest_other(group)?;
        Some(Bar {
            name: format!("{}, {}", other.model, show::work(other)),
            details: vec![
                format!("batch {}, {}", other.batch_size, other.precision),
                format!("{:.2} x {}", ratio.median, label(other)),
            ],
            value: ratio.median,
            range: (ratio.min < ratio.max).then_some((ratio.min, ratio.max)),
            tone: Tone::of_ratio(ratio),
        })
    };
    let bars: Vec<Bar> = groups.iter().filter_map(bar).collect();
    let caption = "Bessemer's speed over that of the fastest other framework; right of 1 Bessemer is faster".to_owned();
    if bars.len() > 1 { Bars { caption, unit: "x".to_owned(), base: 1.0, bars }.chart() } else { None }
}

fn group(table: Table, results: &[&BenchResult]) -> GroupView {
    let measured = results.iter().filter(|result| !result.options.contains_key(ERROR_OPTION));
    let bar = |result: &&BenchResult| {
        let rates = || result.runs.iter().map(|run| run.throughput);
        let (least, most) = (rates().fold(f64::INFINITY, f64::min), rates().fold(0.0, f64::max));
        let is_other_work =
            result.comparison.as_ref().is_some_and(|compared| compared.work.verdict == Verdict::Different);
        let speed = format!("{} {}", show::significant(result.throughput, 4), result.unit);
        let remark = is_other_work.then(|| "not the same work".to_owned());
        Bar {
            name: label(result),
            details: iter::once(speed).chain(remark).collect(),
            value: result.throughput,
            range: (least < most).then_some((least, most)),
            tone: if result.framework == own::NAME { Tone::Own } else { Tone::Other },
        }
    };
    let unit = results[0].unit.clone();
    let bars = Bars { caption: table.title.clone(), unit, base: 0.0, bars: measured.map(bar).collect() };
    GroupView {
        header: HEADER,
        rows: table.rows.iter().map(|row| row.cells()).collect(),
        title: table.title,
        notes: table.notes,
        chart: bars.chart(),
    }
}
