//! DLLogger streams of other programs: lines of `DLLL ` and a JSON object, among any other text.

use super::charts::{Chart, Curve, Lines, MOST_POINTS, thinned};
use crate::show;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const PREFIX: &str = "DLLL ";
/// Curves of one stream that are drawn.
const MOST_CHARTS: usize = 6;

/// A stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stream {
    pub path: PathBuf,
    /// Of the configuration, by name.
    pub parameters: BTreeMap<String, String>,
    /// Units of metrics.
    pub units: BTreeMap<String, String>,
    /// Metrics of the whole run, by name.
    pub summary: BTreeMap<String, f64>,
    /// Metrics of iterations in order, by name.
    pub curves: BTreeMap<String, Vec<f64>>,
    /// Metrics of epochs in order, by name.
    pub epochs: BTreeMap<String, Vec<f64>>,
}

/// Whether a text is a stream.
pub(super) fn is_stream(text: &str) -> bool {
    text.lines().any(|line| line.starts_with(PREFIX))
}

/// Reads a stream. Lines of another kind, and such as were cut short, are left out.
pub(super) fn read(path: &Path, text: &str) -> Stream {
    let mut stream = Stream { path: path.to_owned(), ..Stream::default() };
    let objects = text.lines().filter_map(|line| line.strip_prefix(PREFIX));
    for object in objects.filter_map(|object| serde_json::from_str::<Map<String, Value>>(object).ok()) {
        stream.take(&object);
    }
    stream
}

impl Stream {
    fn take(&mut self, line: &Map<String, Value>) {
        if let (Some(metric), Some(Value::Object(metadata))) =
            (line.get("metric").and_then(Value::as_str), line.get("metadata"))
        {
            let unit = metadata.get("unit").and_then(Value::as_str).filter(|unit| *unit != "none");
            self.units.extend(unit.map(|unit| (metric.to_owned(), unit.to_owned())));
            return;
        }
        let (Some(step), Some(Value::Object(data))) = (line.get("step"), line.get("data")) else { return };
        let place = match step {
            Value::String(name) if name == "PARAMETER" => {
                self.parameters.extend(data.iter().map(|(name, value)| (name.clone(), plain(value))));
                return;
            }
            Value::Array(place) => place.len(),
            Value::Number(_) => 2,
            _ => return,
        };
        for (name, number) in data.iter().filter_map(|(name, value)| Some((name, number(value)?))) {
            match place {
                0 => drop(self.summary.insert(name.clone(), number)),
                1 => self.epochs.entry(name.clone()).or_default().push(number),
                _ => self.curves.entry(name.clone()).or_default().push(number),
            }
        }
    }
}

/// Old programs write numbers as text.
fn number(value: &Value) -> Option<f64> {
    let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok());
    number.filter(|number: &f64| number.is_finite())
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A stream as templates show it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct StreamView {
    name: String,
    parameters: Vec<(String, String)>,
    summary: Vec<(String, String)>,
    charts: Vec<Chart>,
}

pub(super) fn view(stream: &Stream) -> StreamView {
    let unit = |name: &str| stream.units.get(name).map_or_else(String::new, |unit| format!(" {unit}"));
    let summary = stream.summary.iter().map(|(name, value)| (name.clone(), show::significant(*value, 5) + &unit(name)));
    let longest = [(&stream.curves, "iteration"), (&stream.epochs, "epoch")];
    let curves =
        longest.into_iter().flat_map(|(curves, axis)| curves.iter().map(move |(name, values)| (name, values, axis)));
    let chart = |(name, values, axis): (&String, &Vec<f64>, &'static str)| {
        let points: Vec<(f64, f64)> = values.iter().enumerate().map(|(index, value)| (index as f64, *value)).collect();
        let curves = vec![Curve::new("", thinned(&points, MOST_POINTS))];
        let unit = stream.units.get(name).map_or_else(String::new, |unit| format!(" ({unit})"));
        let caption = format!("{name}{unit}");
        Lines { caption, x: axis, curves, from_zero: false, marks: values.len() < 30 }.chart()
    };
    let charts = curves.filter(|(_, values, _)| values.len() > 1).filter_map(chart).take(MOST_CHARTS);
    StreamView {
        name: stream.path.display().to_string(),
        parameters: stream.parameters.clone().into_iter().collect(),
        summary: summary.collect(),
        charts: charts.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = concat!(
        "starting\n",
        "DLLL {\"timestamp\": \"1\", \"type\": \"LOG\", \"step\": \"PARAMETER\", \"data\": {\"batch_size\": 32, \"lr\": \"1e-4\"}}\n",
        "DLLL {\"type\": \"METADATA\", \"metric\": \"train_throughput\", \"metadata\": {\"unit\": \"images/s\"}}\n",
        "DLLL {\"type\": \"LOG\", \"step\": [0, 1], \"data\": {\"loss\": \"7.5\", \"train_throughput\": 100}}\n",
        "noise\n",
        "DLLL {\"type\": \"LOG\", \"step\": [0, 2], \"data\": {\"loss\": 7.25, \"train_throughput\": 110, \"nan\": \"NaN\"}}\n",
        "DLLL {\"type\": \"LOG\", \"step\": [0], \"data\": {\"val.top1\": 0.5}}\n",
        "DLLL {\"type\": \"LOG\", \"step\": [], \"data\": {\"train_throughput\": 105.0}}\n",
        "DLLL {\"type\": \"LOG\", \"step\": [], \"da",
    );

    #[test]
    fn a_stream_is_read_among_other_lines() {
        assert!(is_stream(TEXT) && !is_stream("{\"v\":1}\n"));
        let stream = read(Path::new("log.json"), TEXT);
        assert_eq!(stream.parameters["batch_size"], "32");
        assert_eq!(stream.parameters["lr"], "1e-4");
        assert_eq!(stream.curves["loss"], [7.5, 7.25]);
        assert_eq!(stream.epochs["val.top1"], [0.5]);
        assert_eq!(stream.summary["train_throughput"], 105.0);
        assert!(!stream.curves.contains_key("nan"));
        let view = view(&stream);
        assert_eq!(view.summary, [("train_throughput".to_owned(), "105.00 images/s".to_owned())]);
        assert_eq!(view.charts.len(), 2);
    }
}
