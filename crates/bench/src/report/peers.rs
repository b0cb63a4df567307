//! Comparisons with other frameworks in reports: a table and a chart of each group.

use super::ReportError;
use super::charts::{Bar, Bars};
use crate::compare::table::{HEADER, Table, label, method, tables};
use crate::measure::ERROR_OPTION;
use bessemer_train::events::BenchResult;
use serde::Serialize;

/// All groups, and how they were measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PeersView {
    groups: Vec<GroupView>,
    method: String,
}

#[derive(Clone, Debug, Serialize)]
struct GroupView {
    title: String,
    header: [&'static str; 11],
    rows: Vec<[String; 11]>,
    notes: Vec<String>,
    chart: Option<String>,
}

/// `None` where nothing was compared.
pub(super) fn view(results: &[BenchResult]) -> Result<Option<PeersView>, ReportError> {
    let all = tables(results);
    if all.is_empty() {
        return Ok(None);
    }
    let groups = all.into_iter().zip(grouped(results)).map(|(table, results)| group(table, &results));
    Ok(Some(PeersView { groups: groups.collect::<Result<_, _>>()?, method: method(results) }))
}

/// The results of each group, in the order of the tables.
fn grouped(results: &[BenchResult]) -> Vec<Vec<&BenchResult>> {
    let mut groups: Vec<(&str, Vec<&BenchResult>)> = Vec::new();
    for result in results {
        let Some(comparison) = &result.comparison else { continue };
        match groups.iter_mut().find(|(group, _)| *group == comparison.group) {
            Some((_, members)) => members.push(result),
            None => groups.push((&comparison.group, vec![result])),
        }
    }
    groups.into_iter().map(|(_, members)| members).collect()
}

fn group(table: Table, results: &[&BenchResult]) -> Result<GroupView, ReportError> {
    let measured = results.iter().filter(|result| !result.options.contains_key(ERROR_OPTION));
    let bar = |result: &&BenchResult| {
        let rates = || result.runs.iter().map(|run| run.throughput);
        Bar {
            name: label(result),
            value: result.throughput,
            least: rates().fold(f64::INFINITY, f64::min),
            most: rates().fold(0.0, f64::max),
        }
    };
    let bars = Bars { label: &results[0].unit, bars: measured.map(bar).collect() };
    Ok(GroupView {
        header: HEADER,
        rows: table.rows.iter().map(|row| row.cells()).collect(),
        title: table.title,
        notes: table.notes,
        chart: bars.to_svg()?,
    })
}
