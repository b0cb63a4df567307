//! Published tables that a report puts beside its own figures.

use super::ReportError;
use crate::compare::table::label;
use crate::measure::ERROR_OPTION;
use crate::show;
use bessemer_train::events::BenchResult;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// A publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    /// NVIDIA's Deep Learning Examples.
    DlPerf,
}

impl FromStr for Reference {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "dlperf" => Ok(Self::DlPerf),
            other => Err(format!("`{other}` is no publication that is known; there is dlperf")),
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
struct Publication {
    title: String,
    source: String,
    hardware: String,
    table: Vec<PublishedTable>,
}

#[derive(Clone, Debug, Deserialize)]
struct PublishedTable {
    title: String,
    model: String,
    columns: [String; 4],
    rows: Vec<[String; 5]>,
    notes: Vec<String>,
}

/// A publication as templates show it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ReferenceView {
    title: String,
    source: String,
    hardware: String,
    tables: Vec<TableView>,
}

#[derive(Clone, Debug, Serialize)]
struct TableView {
    title: String,
    columns: [String; 4],
    rows: Vec<[String; 5]>,
    notes: Vec<String>,
    /// What was measured here of the same model: framework, device, batch, precision, samples a second.
    own: Vec<[String; 5]>,
}

impl Reference {
    pub(super) fn view(self, results: &[BenchResult]) -> Result<ReferenceView, ReportError> {
        let Self::DlPerf = self;
        let damaged = |error: toml::de::Error| ReportError::Reference(error.message().to_owned());
        let Publication { title, source, hardware, table } =
            toml::from_str(include_str!("dlperf.toml")).map_err(damaged)?;
        let view = |table: PublishedTable| {
            let own = results.iter().filter(|result| result.model == table.model && result.mode == "train");
            let own = own.filter(|result| !result.options.contains_key(ERROR_OPTION)).map(own_row).collect();
            let PublishedTable { title, columns, rows, notes, .. } = table;
            TableView { title, columns, rows, notes, own }
        };
        Ok(ReferenceView { title, source, hardware, tables: table.into_iter().map(view).collect() })
    }
}

fn own_row(result: &BenchResult) -> [String; 5] {
    [
        label(result),
        format!("{}, {} threads", result.device_name, result.threads),
        result.batch_size.to_string(),
        result.precision.clone(),
        show::significant(result.throughput, 4),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_publication_is_whole() {
        let view = Reference::DlPerf.view(&[]).unwrap();
        let rows: Vec<usize> = view.tables.iter().map(|table| table.rows.len()).collect();
        assert_eq!(rows, [9, 7]);
        assert_eq!(view.tables[0].rows[0], ["OneFlow 0.2.0", "12411.97", "31.21", "33141.02", "22.50"]);
        for table in &view.tables {
            for cell in table.rows.iter().flatten() {
                let note = cell.split_once('[').and_then(|(_, rest)| rest.strip_suffix(']'));
                let known = note.is_none_or(|note| (1..=table.notes.len()).contains(&note.parse().unwrap()));
                assert!(known, "{cell}");
            }
        }
        assert!("mlperf".parse::<Reference>().unwrap_err().contains("dlperf"));
    }
}
