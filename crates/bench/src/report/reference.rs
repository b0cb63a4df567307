//! Published tables that a report puts beside its own figures.

use super::work::{self, Columns, NARROW, WIDE, Work};
use super::{ReportError, Run};
use crate::compare::table::label;
use crate::measure::ERROR_OPTION;
use crate::show;
use bessemer_train::events::{BenchResult, PublishedStyle};
use bessemer_train::stats::{mean, sample_deviation};
use bessemer_train::tasks::registry;
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
    /// The types of numbers of all its figures; `None` where it has both kinds.
    pub(crate) precision: Option<Precision>,
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

/// Types of numbers as publications tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Precision {
    /// FP32, and TF32 in its place.
    Fp32,
    /// 16 bits, with states of 32.
    Amp,
}

impl Precision {
    fn has(self, precision: &str) -> bool {
        match self {
            Self::Fp32 => WIDE.contains(&precision),
            Self::Amp => NARROW.contains(&precision),
        }
    }
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
        let trained = if self.images.is_some() { self.fitting("train", results) } else { Vec::new() };
        let heads = Heads::of(&trained);
        let extrapolated_columns = heads.titles().chain(["time to train, extrapolated".to_owned()]).collect();
        let images = self.images.unwrap_or_default();
        let extrapolated = trained.iter().map(|result| {
            let time = show::seconds(images as f64 / result.throughput);
            heads.cells(result).chain([time]).collect()
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

    /// Measurements of the table's model that came to an end, in a type of numbers and on sequences as it has them.
    fn fitting<'a>(&self, mode: &str, results: &'a [BenchResult]) -> Vec<&'a BenchResult> {
        let sequence_length = self.all_sequence_length();
        let fits = |result: &&BenchResult| {
            result.model == self.model
                && result.mode == mode
                && !result.options.contains_key(ERROR_OPTION)
                && self.precision.is_none_or(|precision| precision.has(&result.precision))
                && work::sequence_length(result).is_none_or(|tokens| Some(tokens) == sequence_length)
        };
        results.iter().filter(fits).collect()
    }

    /// Tokens of the table's sequences, which are the usual ones of the model where the table has no others.
    fn all_sequence_length(&self) -> Option<u64> {
        let usual = || Some(registry::find(&self.model).ok()?.family().usual_step(None).sequence_length);
        self.sequence_length.or_else(usual).map(|tokens| tokens as u64)
    }

    /// Whether its rows or columns are numbers of devices.
    fn is_over_devices(&self) -> bool {
        self.first == "devices" || self.title.contains("by number of devices")
    }

    /// Measurements that fit the table; under a table over devices with their number, and with the speed-up over one of them at
    /// the same work of each.
    fn measured(&self, mode: &str, results: &[BenchResult]) -> (Vec<String>, Vec<Vec<String>>) {
        let own = self.fitting(mode, results);
        let heads = Heads::of(&own);
        let over_devices = if self.is_over_devices() { &["devices", "speed-up"][..] } else { &[] };
        let times = over_devices.iter().chain(&["mean ms", "p50 ms", "p99 ms"]).map(|&title| title.to_owned());
        let columns = heads.titles().chain(times).chain(self.latencies.into_iter().flat_map(Latencies::columns));
        let row = |result: &&BenchResult| {
            let times = [result.step_ms.mean, result.step_ms.p50, result.step_ms.p99];
            let published = self.latencies.map(|latencies| latencies.of(&result.published_style));
            let times = times.map(Some).into_iter().chain(published.into_iter().flatten());
            let shown = |time: Option<f64>| time.map_or_else(String::new, |time| show::significant(time, 4));
            let over_devices =
                self.is_over_devices().then(|| [work::devices(result).to_string(), speed_up(result, &own)]);
            let cells = heads.cells(result).chain(over_devices.into_iter().flatten());
            cells.chain(times.map(shown)).collect()
        };
        (columns.collect(), own.iter().map(row).collect())
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

/// The first cells of measurements, with what tells them apart.
struct Heads(Columns);

impl Heads {
    fn of(results: &[&BenchResult]) -> Self {
        let works: Vec<Work> = results.iter().map(|result| Work::in_full(result)).collect();
        Self(Columns::of(&works).without_device())
    }

    fn titles(&self) -> impl Iterator<Item = String> {
        let head = ["framework", "device", "batch", "precision"].map(str::to_owned);
        head.into_iter().chain(self.0.header()).chain(["samples/s".to_owned()])
    }

    fn cells(&self, result: &BenchResult) -> impl Iterator<Item = String> + use<> {
        let head = [
            label(result),
            format!("{}, {}", result.device_name, show::counted(result.threads, "thread")),
            result.batch_size.to_string(),
            result.precision.clone(),
        ];
        let speed = show::significant(result.throughput, 4);
        head.into_iter().chain(self.0.cells(&Work::in_full(result))).chain([speed])
    }
}

/// Over the first of `results` that did the same work on one device; a dash where there is none.
fn speed_up(result: &BenchResult, results: &[&BenchResult]) -> String {
    let work = Work::in_full(result).of_one_device();
    let is_one = |one: &&&BenchResult| one.precision == result.precision && Work::in_full(one) == work;
    let one = results.iter().find(is_one);
    one.map_or_else(|| "–".to_owned(), |one| format!("{:.2} x", result.throughput / one.throughput))
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
    fn a_title_says_precision_and_sequences_of_its_table() {
        for (_, reference, _) in Reference::ALL {
            for table in reference.publication().unwrap().table {
                let title = &table.title;
                assert_eq!(title.contains(", FP32,"), table.precision == Some(Precision::Fp32), "{title}");
                assert_eq!(title.contains(", AMP,"), table.precision == Some(Precision::Amp), "{title}");
                let Some((_, rest)) = title.split_once("sequences of ") else { continue };
                let tokens = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap();
                assert_eq!(table.all_sequence_length(), tokens.parse().ok(), "{title}");
            }
        }
    }

    #[test]
    fn own_measurements_fit_the_precision_and_the_sequences_of_their_table() {
        let measured = |model: &str, precision: &str, tokens: u64, devices: u64, throughput: f64| BenchResult {
            model: model.to_owned(),
            framework: "bessemer".to_owned(),
            mode: "train".to_owned(),
            precision: precision.to_owned(),
            devices,
            nodes: 1,
            batch_size: 32,
            throughput,
            // Micro-batches of all devices together.
            options: [("sequence_length", tokens), ("accumulation", 2 * devices)]
                .map(|(name, value)| (name.to_owned(), value.into()))
                .into(),
            ..BenchResult::default()
        };
        let bert = |precision: &str, tokens, devices, throughput| {
            measured("bert-base", precision, tokens, devices, throughput)
        };
        let results = [
            bert("fp32", 128, 1, 10.0),
            bert("tf32", 128, 1, 20.0),
            bert("bf16", 128, 1, 40.0),
            bert("fp16", 128, 2, 50.0),
            bert("bf16", 128, 4, 140.0),
            bert("fp32", 512, 1, 2.0),
        ];
        let view = Reference::DlPerf.view(&results, &[]).unwrap();
        let table = |title: &str| view.tables.iter().find(|table| table.title.contains(title)).unwrap();
        let column = |table: &TableView, name: &str| -> Vec<String> {
            let index = table.own_columns.iter().position(|column| column == name).unwrap();
            table.own.iter().map(|row| row[index].clone()).collect()
        };
        let wide = table("BERT-base, pre-training, sequences of 128, FP32, batch 32");
        assert_eq!(column(wide, "precision"), ["fp32", "tf32"]);
        assert_eq!(column(wide, "samples/s"), ["10.00", "20.00"]);
        let narrow = table("BERT-base, pre-training, sequences of 128, AMP, largest");
        assert_eq!(column(narrow, "precision"), ["bf16", "fp16", "bf16"]);
        assert_eq!(column(narrow, "accumulation"), ["2", "2", "2"], "of a device");
        assert_eq!(column(narrow, "devices"), ["1", "2", "4"]);
        assert_eq!(column(narrow, "speed-up"), ["1.00 x", "–", "3.50 x"]);
        let electra = [128, 512].map(|tokens| measured("electra-base", "bf16", tokens, 1, tokens as f64));
        let view = Reference::DeepLearningExamples.view(&electra, &[]).unwrap();
        for tokens in ["128", "512"] {
            let title = format!("ELECTRA-base, pre-training, sequences of {tokens}");
            let table = view.tables.iter().find(|table| table.title.starts_with(&title)).unwrap();
            assert_eq!(column(table, "tokens"), [tokens]);
        }
    }

    #[test]
    fn runs_of_one_recipe_have_a_mean() {
        assert_eq!(mean_and_deviation(&[]), "");
        assert_eq!(mean_and_deviation(&[0.5]), "50.00");
        assert_eq!(mean_and_deviation(&[0.5, 0.52, 0.54]), "52.00, deviation 2.00");
    }
}
