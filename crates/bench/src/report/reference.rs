//! Published tables that a report puts beside its own figures.

use super::{ReportError, Run};
use crate::compare::table::label;
use crate::measure::ERROR_OPTION;
use crate::show;
use bessemer_train::events::{BenchResult, PublishedStyle};
use bessemer_train::stats::{mean, sample_deviation};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::str::FromStr;

/// A publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    /// The comparison of frameworks by OneFlow's authors.
    DlPerf,
    /// NVIDIA's Deep Learning Examples: detectors and ELECTRA.
    DeepLearningExamples,
}

impl Reference {
    const ALL: [(&str, Self, &str); 2] = [
        ("dlperf", Self::DlPerf, include_str!("dlperf.toml")),
        ("dle", Self::DeepLearningExamples, include_str!("dle.toml")),
    ];
}

impl FromStr for Reference {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.iter().find(|(name, ..)| *name == text);
        known.map(|(_, reference, _)| *reference).ok_or_else(|| {
            let names = Self::ALL.map(|(name, ..)| name).join(" and ");
            format!("`{text}` is no publication that is known; there are {names}")
        })
    }
}

/// Tables of one publication.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Publication {
    title: String,
    source: String,
    hardware: String,
    pub(crate) table: Vec<PublishedTable>,
}

/// A published table; each row begins with its name.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PublishedTable {
    pub(crate) title: String,
    pub(crate) model: String,
    /// Tokens of a sequence where they are not the usual ones of the model.
    pub(crate) sequence_length: Option<usize>,
    /// What the first column has.
    first: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
    #[serde(default)]
    notes: Vec<String>,
    /// Measurements that are put below: `train` or `infer`.
    pub(crate) mode: Option<String>,
    /// Metrics of runs that are put below.
    #[serde(default)]
    metrics: Vec<String>,
    /// What its latencies of 90, 95 and 99 % are, where it has them.
    latencies: Option<Latencies>,
    /// Images of a whole training, from which the time of one is extrapolated.
    images: Option<u64>,
}

/// What a table calls latencies of 90, 95 and 99 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Latencies {
    /// Means of the fastest steps.
    Fastest,
    /// The same without the two slowest of all.
    FastestButTwo,
    /// Bounds of the mean.
    Bounds,
}

impl Latencies {
    fn columns(self) -> [String; 3] {
        let first = match self {
            Self::Fastest => "fastest 90 % ms",
            Self::FastestButTwo => "fastest 90 % but two ms",
            Self::Bounds => "bound at 90 % ms",
        };
        [first, "95 % ms", "99 % ms"].map(str::to_owned)
    }

    /// Those that were measured.
    fn of(self, style: &PublishedStyle) -> [Option<f64>; 3] {
        match self {
            Self::Fastest => [style.mean_fastest_90_ms, style.mean_fastest_95_ms, style.mean_fastest_99_ms].map(Some),
            Self::FastestButTwo => {
                [style.mean_fastest_90_but_two_ms, style.mean_fastest_95_but_two_ms, style.mean_fastest_99_but_two_ms]
            }
            Self::Bounds => [style.ci_90_ms, style.ci_95_ms, style.ci_99_ms].map(Some),
        }
    }
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
    first: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
    notes: Vec<String>,
    own_columns: Vec<String>,
    /// What was measured here of the same model.
    own: Vec<Vec<String>>,
    /// What times of a whole training are extrapolated from, in words.
    extrapolation: String,
    extrapolated_columns: Vec<String>,
    /// Those times.
    extrapolated: Vec<Vec<String>>,
}

impl Reference {
    /// The publication as its file has it.
    pub(crate) fn publication(self) -> Result<Publication, toml::de::Error> {
        let (.., text) =
            Self::ALL.iter().find(|(_, reference, _)| *reference == self).expect("every one is in the list");
        toml::from_str(text)
    }

    pub(super) fn view(self, results: &[BenchResult], runs: &[Run]) -> Result<ReferenceView, ReportError> {
        let damaged = |error: toml::de::Error| ReportError::Reference(error.message().to_owned());
        let Publication { title, source, hardware, table } = self.publication().map_err(damaged)?;
        let tables = table.into_iter().map(|table| table.view(results, runs)).collect();
        Ok(ReferenceView { title, source, hardware, tables })
    }
}

impl PublishedTable {
    fn view(self, results: &[BenchResult], runs: &[Run]) -> TableView {
        let (own_columns, own) = match &self.mode {
            Some(mode) => self.measured(mode, results),
            None => self.trained(runs),
        };
        let columns = ["framework", "device", "batch", "precision", "samples/s", "time to train, extrapolated"];
        let extrapolated_columns = columns.map(str::to_owned).to_vec();
        let images = self.images.unwrap_or_default();
        let extrapolated =
            results.iter().filter(|result| images > 0 && self.is_measured("train", result)).map(|result| {
                let time = show::seconds(images as f64 / result.throughput);
                self.head(result).into_iter().chain([time]).collect()
            });
        let extrapolated = extrapolated.collect();
        let extrapolation = format!(
            "Extrapolated, not trained: the time of {images} images at training speeds measured here, without evaluations"
        );
        let PublishedTable { title, first, columns, rows, notes, .. } = self;
        TableView {
            title,
            first,
            columns,
            rows,
            notes,
            own_columns,
            own,
            extrapolation,
            extrapolated_columns,
            extrapolated,
        }
    }

    /// Whether a measurement is one of the table's model that came to an end.
    fn is_measured(&self, mode: &str, result: &BenchResult) -> bool {
        result.model == self.model && result.mode == mode && !result.options.contains_key(ERROR_OPTION)
    }

    /// The first cells of a measurement.
    fn head(&self, result: &BenchResult) -> [String; 5] {
        [
            label(result),
            format!("{}, {}", result.device_name, show::counted(result.threads, "thread")),
            result.batch_size.to_string(),
            result.precision.clone(),
            show::significant(result.throughput, 4),
        ]
    }

    /// Measurements of the table's model.
    fn measured(&self, mode: &str, results: &[BenchResult]) -> (Vec<String>, Vec<Vec<String>>) {
        let columns = ["framework", "device", "batch", "precision", "samples/s", "mean ms", "p50 ms", "p99 ms"];
        let columns =
            columns.map(str::to_owned).into_iter().chain(self.latencies.into_iter().flat_map(Latencies::columns));
        let row = |result: &BenchResult| {
            let times = [result.step_ms.mean, result.step_ms.p50, result.step_ms.p99];
            let published = self.latencies.map(|latencies| latencies.of(&result.published_style));
            let times = times.map(Some).into_iter().chain(published.into_iter().flatten());
            let shown = |time: Option<f64>| time.map_or_else(String::new, |time| show::significant(time, 4));
            self.head(result).into_iter().chain(times.map(shown)).collect()
        };
        let own = results.iter().filter(|result| self.is_measured(mode, result));
        (columns.collect(), own.map(row).collect())
    }

    /// The best metrics of runs of the table's model and its small relatives, those of one recipe and precision together.
    fn trained(&self, runs: &[Run]) -> (Vec<String>, Vec<Vec<String>>) {
        let mut groups: BTreeMap<[String; 4], Vec<&Run>> = BTreeMap::new();
        let has_metric = |run: &Run, name: &String| run.end.as_ref().is_some_and(|end| end.metrics.contains_key(name));
        for run in runs.iter().filter(|run| self.metrics.iter().any(|name| has_metric(run, name))) {
            let Some(info) = &run.info else { continue };
            let field = |section: &str, name: &str| info.recipe[section][name].as_str().unwrap_or_default().to_owned();
            let (model, name) = (field("model", "name"), info.recipe["name"].as_str().unwrap_or_default().to_owned());
            if model.split('-').next() == self.model.split('-').next() {
                let key = [
                    format!("{model}, {name}"),
                    info.machine.cpu.clone(),
                    field("data", "source"),
                    field("precision", "compute"),
                ];
                groups.entry(key).or_default().push(run);
            }
        }
        let head = ["model, recipe", "device", "data", "precision", "runs"].map(str::to_owned);
        let columns = head.into_iter().chain(self.metrics.iter().cloned()).collect();
        let row = |(key, runs): (&[String; 4], &Vec<&Run>)| {
            let metric = |name: &String| {
                let values: Vec<f64> =
                    runs.iter().filter_map(|run| run.end.as_ref()?.metrics.get(name).copied()).collect();
                mean_and_deviation(&values)
            };
            let head = key.iter().cloned().chain([runs.len().to_string()]);
            head.chain(self.metrics.iter().map(metric)).collect()
        };
        (columns, groups.iter().map(row).collect())
    }
}

/// In percent; nothing where there is no value.
fn mean_and_deviation(values: &[f64]) -> String {
    let percent: Vec<f64> = values.iter().map(|value| value * 100.0).collect();
    match percent[..] {
        [] => String::new(),
        [one] => format!("{one:.2}"),
        _ => format!("{:.2}, deviation {:.2}", mean(&percent), sample_deviation(&percent)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_publications_are_whole() {
        for (name, reference, _) in Reference::ALL {
            assert_eq!(name.parse(), Ok(reference));
            let view = reference.view(&[], &[]).unwrap();
            let rows: Vec<usize> = view.tables.iter().map(|table| table.rows.len()).collect();
            assert_eq!(
                rows,
                if name == "dlperf" {
                    vec![8, 10, 6, 6, 7, 6]
                } else {
                    vec![6, 6, 9, 7, 4, 9, 7, 8, 6, 4, 7, 7, 7, 5, 4, 10]
                }
            );
            for table in &view.tables {
                assert!(table.rows.iter().all(|row| row.len() == 1 + table.columns.len()), "{}", table.title);
                for cell in table.rows.iter().flatten() {
                    let note = cell.split_once('[').and_then(|(_, rest)| rest.strip_suffix(']'));
                    let known = note.is_none_or(|note| (1..=table.notes.len()).contains(&note.parse().unwrap()));
                    assert!(known, "{cell}");
                }
            }
        }
        assert!("mlperf".parse::<Reference>().unwrap_err().contains("dlperf and dle"));
    }

    #[test]
    fn own_measurements_have_latencies_as_published_and_times_of_a_whole_training() {
        let measured = |mode: &str, throughput: f64| BenchResult {
            model: "mask-rcnn".to_owned(),
            framework: "bessemer".to_owned(),
            mode: mode.to_owned(),
            throughput,
            published_style: PublishedStyle {
                mean_fastest_90_ms: 1.0,
                ci_90_ms: 7.0,
                ci_99_ms: 9.0,
                ..Default::default()
            },
            ..BenchResult::default()
        };
        let results = [measured("train", 20.0), measured("infer", 4.0)];
        let view = Reference::DeepLearningExamples.view(&results, &[]).unwrap();
        let table = |title: &str| view.tables.iter().find(|table| table.title.starts_with(title)).unwrap();
        let inference = table("Mask R-CNN, inference");
        assert_eq!(inference.own_columns[8..], ["bound at 90 % ms", "95 % ms", "99 % ms"]);
        assert_eq!(
            (inference.own.len(), &inference.own[0][8], &inference.own[0][10]),
            (1, &"7.000".into(), &"9.000".into())
        );
        assert_eq!(table("EfficientDet-D0, inference").own_columns[8], "fastest 90 % ms");
        let accuracy = table("Mask R-CNN, accuracy");
        assert!(accuracy.extrapolation.contains("1419444 images"), "{}", accuracy.extrapolation);
        assert_eq!(accuracy.extrapolated.len(), 1);
        assert_eq!(accuracy.extrapolated[0][4..], ["20.00", "19 h 42 min"]);
        assert!(table("Mask R-CNN, training").extrapolated.is_empty());
    }

    #[test]
    fn runs_of_one_recipe_have_a_mean() {
        assert_eq!(mean_and_deviation(&[]), "");
        assert_eq!(mean_and_deviation(&[0.5]), "50.00");
        assert_eq!(mean_and_deviation(&[0.5, 0.52, 0.54]), "52.00, deviation 2.00");
    }
}
