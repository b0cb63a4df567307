//! The run as a DLLogger stream (github.com/NVIDIA/dllogger, JSON backend): `DLLL ` and one JSON object a line, with the
//! metric names of the ResNet-50 scripts in NVIDIA DeepLearningExamples.
//!
//! Per iteration `[epoch, iteration]`, per epoch `[epoch]`, for the run `[]`. Rates over an epoch or a run are samples
//! over time, not means of rates. Times of day are UTC.

use crate::clock::date_time;
use crate::events::{EndInfo, EvalInfo, Event, EventBody, Header, RunInfo, StepInfo};
use crate::tasks::{MetricSchema, Scale};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// `(metric, unit, format)`; a rate has no unit of its own.
const TRAIN_METADATA: [(&str, Option<&str>, &str); 7] = [
    ("train.loss", Some("none"), ":.5f"),
    ("train.compute_ips", None, ":.2f"),
    ("train.total_ips", None, ":.2f"),
    ("train.data_time", Some("s"), ":.5f"),
    ("train.compute_time", Some("s"), ":.5f"),
    ("train.lr", Some("none"), ":.5f"),
    ("train.grad_scale", Some("none"), ":.1f"),
];
const VAL_RATES: [(&str, Option<&str>, &str); 2] = [("val.compute_ips", None, ":.2f"), ("val.total_ips", None, ":.2f")];

/// Turns events into DLLogger lines.
#[derive(Debug)]
pub struct DllWriter<W> {
    sink: W,
    metric_schema: &'static MetricSchema,
    epoch: Option<u64>,
    epoch_totals: Totals,
    run_totals: Totals,
    last_eval: Map<String, Value>,
    eval_is_new: bool,
}

impl DllWriter<File> {
    /// Starts the file, replacing one that exists.
    ///
    /// # Errors
    /// A file that cannot be created.
    pub fn create(path: &Path, metric_schema: &'static MetricSchema) -> io::Result<Self> {
        File::create(path).map(|file| Self::new(file, metric_schema))
    }
}

impl<W: Write> DllWriter<W> {
    /// Writes to `sink`, with units of metrics from `metric_schema`.
    pub fn new(sink: W, metric_schema: &'static MetricSchema) -> Self {
        Self {
            sink,
            metric_schema,
            epoch: None,
            epoch_totals: Totals::default(),
            run_totals: Totals::default(),
            last_eval: Map::new(),
            eval_is_new: false,
        }
    }

    /// Writes what `event` means in this format; nothing for kinds it does not know.
    ///
    /// # Errors
    /// A failure of the sink.
    pub fn write(&mut self, event: &Event) -> io::Result<()> {
        match &event.body {
            EventBody::Run(info) => self.run(&event.header, info),
            EventBody::Step(info) => self.step(&event.header, info),
            EventBody::Eval(info) => {
                self.last_eval = eval_metrics(info, self.metric_schema);
                self.eval_is_new = true;
                Ok(())
            }
            EventBody::End(info) => self.end(&event.header, info),
            EventBody::Plan(_)
            | EventBody::Ranks(_)
            | EventBody::Checkpoint(_)
            | EventBody::Bench(_)
            | EventBody::Warning(_) => Ok(()),
        }
    }

    fn run(&mut self, header: &Header, info: &RunInfo) -> io::Result<()> {
        let mut parameters = Map::new();
        flatten("", &info.recipe, &mut parameters);
        parameters.insert("command".to_owned(), json!(info.command.join(" ")));
        parameters.insert("version".to_owned(), json!(info.version));
        parameters.insert("device".to_owned(), json!(info.device));
        parameters.insert("dataset".to_owned(), json!(info.data));
        self.log(header, json!("PARAMETER"), parameters)?;
        self.metadata(header)
    }

    fn metadata(&mut self, header: &Header) -> io::Result<()> {
        let metric_schema = self.metric_schema;
        let rate = |(metric, unit, format): (&str, Option<&'static str>, &'static str)| {
            (metric.to_owned(), unit.unwrap_or(metric_schema.unit), format)
        };
        let scale = |scale: Scale| (scale.unit(), if scale == Scale::Fraction { ":.2f" } else { ":.5f" });
        let described = |set: &str, name: &str| {
            let (unit, format) = scale(metric_schema.scale(name));
            (format!("{set}.{name}"), unit, format)
        };
        let parts = metric_schema.parts.iter().map(|name| described("train", name));
        let metrics = metric_schema.metrics.iter().map(|metric| described("val", metric.name));
        let train = TRAIN_METADATA.into_iter().map(rate).chain(parts);
        for (metric, unit, format) in train.chain(metrics).chain(VAL_RATES.into_iter().map(rate)) {
            let metadata = json!({"unit": unit, "format": format});
            self.line(header, "METADATA", &[("metric", json!(metric)), ("metadata", metadata)])?;
        }
        Ok(())
    }

    fn step(&mut self, header: &Header, info: &StepInfo) -> io::Result<()> {
        if self.epoch.is_some_and(|epoch| epoch != info.epoch) {
            self.end_epoch(header)?;
        }
        self.epoch = Some(info.epoch);
        let mut totals = Totals::default();
        totals.add(info);
        self.epoch_totals.add(info);
        self.run_totals.add(info);
        self.log(header, json!([info.epoch, info.batch]), totals.metrics(self.metric_schema))
    }

    fn end_epoch(&mut self, header: &Header) -> io::Result<()> {
        let Some(epoch) = self.epoch.take() else { return Ok(()) };
        let mut metrics = std::mem::take(&mut self.epoch_totals).metrics(self.metric_schema);
        if std::mem::take(&mut self.eval_is_new) {
            metrics.extend(self.last_eval.clone());
        }
        self.log(header, json!([epoch]), metrics)
    }

    fn end(&mut self, header: &Header, info: &EndInfo) -> io::Result<()> {
        self.end_epoch(header)?;
        let mut metrics = self.run_totals.metrics(self.metric_schema);
        metrics.extend(self.last_eval.clone());
        metrics.insert("status".to_owned(), json!(info.status));
        self.log(header, json!([]), metrics)
    }

    fn log(&mut self, header: &Header, step: Value, data: Map<String, Value>) -> io::Result<()> {
        self.line(header, "LOG", &[("step", step), ("data", Value::Object(data))])
    }

    fn line(&mut self, header: &Header, kind: &str, fields: &[(&str, Value)]) -> io::Result<()> {
        let mut object = Map::new();
        object.insert("timestamp".to_owned(), json!(format!("{:.6}", header.time)));
        object.insert("datetime".to_owned(), json!(date_time(header.time)));
        object.insert("elapsedtime".to_owned(), json!(format!("{:.6}", header.elapsed)));
        object.insert("type".to_owned(), json!(kind));
        object.extend(fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        self.sink.write_all(format!("DLLL {}\n", Value::Object(object)).as_bytes())
    }
}

/// Sums over steps.
#[derive(Clone, Debug, Default)]
struct Totals {
    samples: u64,
    steps: u64,
    loss: f64,
    step_s: f64,
    data_s: f64,
    compute_s: f64,
    lr: f64,
    loss_scale: Option<f64>,
    /// Times the samples, like the loss.
    parts: BTreeMap<String, f64>,
}

impl Totals {
    fn add(&mut self, info: &StepInfo) {
        self.samples += info.samples;
        self.steps += 1;
        self.loss += info.loss * info.samples as f64;
        self.step_s += info.step_s;
        self.data_s += info.data_s;
        self.compute_s += info.compute_s;
        self.lr = info.lr;
        self.loss_scale = info.loss_scale;
        for (name, value) in &info.parts {
            *self.parts.entry(name.clone()).or_default() += value * info.samples as f64;
        }
    }

    fn metrics(&self, metric_schema: &MetricSchema) -> Map<String, Value> {
        let (samples, steps) = (self.samples as f64, self.steps as f64);
        let mut metrics = Map::new();
        if self.steps == 0 {
            return metrics;
        }
        let mut put = |name: &str, value: f64| metrics.insert(name.to_owned(), number(value));
        put("train.loss", self.loss / samples);
        put("train.compute_ips", samples / self.compute_s);
        put("train.total_ips", samples / self.step_s);
        put("train.data_time", self.data_s / steps);
        put("train.compute_time", self.compute_s / steps);
        put("train.lr", self.lr);
        if let Some(scale) = self.loss_scale {
            put("train.grad_scale", scale);
        }
        for (name, sum) in &self.parts {
            put(&format!("train.{name}"), metric_schema.scale(name).shown(sum / samples));
        }
        metrics
    }
}

fn eval_metrics(info: &EvalInfo, metric_schema: &MetricSchema) -> Map<String, Value> {
    let shown =
        |(name, value): (&String, &f64)| (format!("val.{name}"), number(metric_schema.scale(name).shown(*value)));
    let named = info.metrics.iter().map(shown);
    let samples = info.samples as f64;
    let rates = [("val.compute_ips", samples / info.compute_s), ("val.total_ips", samples / info.eval_s)];
    named.chain(rates.map(|(name, value)| (name.to_owned(), number(value)))).collect()
}

/// JSON has no NaN and no infinities: they become text.
fn number(value: f64) -> Value {
    if value.is_finite() { json!(value) } else { json!(value.to_string()) }
}

fn flatten(prefix: &str, value: &Value, into: &mut Map<String, Value>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                flatten(&path, value, into);
            }
        }
        _ => {
            into.insert(prefix.to_owned(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Status;
    use crate::tasks::classification::TERMS;

    fn lines(events: &[Event]) -> Vec<Value> {
        let mut writer = DllWriter::new(Vec::new(), &TERMS);
        events.iter().for_each(|event| writer.write(event).unwrap());
        let text = String::from_utf8(writer.sink).unwrap();
        text.lines().map(|line| serde_json::from_str(line.strip_prefix("DLLL ").unwrap()).unwrap()).collect()
    }

    fn step(epoch: u64, batch: u64, loss: f64) -> Event {
        let info = StepInfo {
            epoch,
            batch,
            loss,
            lr: 0.1,
            samples: 32,
            step_s: 0.5,
            data_s: 0.1,
            compute_s: 0.4,
            ..Default::default()
        };
        Event::new(Header { time: 1.0e9, elapsed: 2.5, ..Default::default() }, info)
    }

    fn run() -> Vec<Event> {
        let header = Header::default();
        let info = RunInfo { recipe: json!({"name": "x", "train": {"batch_size": 32}}), ..Default::default() };
        let metrics = [("top1".to_owned(), 0.7512), ("loss".to_owned(), 1.5)].into();
        let eval = EvalInfo { metrics, samples: 100, eval_s: 2.0, compute_s: 1.0, ..Default::default() };
        let end = EndInfo {
            status: Status::Done,
            error: None,
            steps: 3,
            samples: 96,
            train_s: 1.5,
            throughput: 64.0,
            metrics: Default::default(),
        };
        vec![
            Event::new(header, info),
            step(0, 0, 4.0),
            step(0, 1, 2.0),
            Event::new(header, eval),
            step(1, 0, 6.0),
            Event::new(header, end),
        ]
    }

    #[test]
    fn parameters_and_units_come_first() {
        let lines = lines(&run());
        assert_eq!((&lines[0]["type"], &lines[0]["step"]), (&json!("LOG"), &json!("PARAMETER")));
        assert_eq!(lines[0]["data"]["train.batch_size"], 32);
        let unit = |metric: &str| {
            let line = lines.iter().find(|line| line["metric"] == metric).unwrap();
            assert_eq!(line["type"], "METADATA");
            line["metadata"]["unit"].clone()
        };
        assert_eq!((unit("train.total_ips"), unit("val.top1")), (json!("images/s"), json!("%")));
    }

    #[test]
    fn iterations_epochs_and_summary() {
        let lines = lines(&run());
        let logs: Vec<&Value> = lines.iter().filter(|line| line["type"] == "LOG").skip(1).collect();
        let steps: Vec<&Value> = logs.iter().map(|line| &line["step"]).collect();
        assert_eq!(steps, [&json!([0, 0]), &json!([0, 1]), &json!([0]), &json!([1, 0]), &json!([1]), &json!([])]);

        let iteration = logs[0];
        assert_eq!(iteration["timestamp"], "1000000000.000000");
        assert_eq!(iteration["datetime"], "2001-09-09 01:46:40.000000");
        assert_eq!(iteration["elapsedtime"], "2.500000");
        assert_eq!(
            (&iteration["data"]["train.total_ips"], &iteration["data"]["train.compute_ips"]),
            (&json!(64.0), &json!(80.0))
        );

        let epoch = &logs[2]["data"];
        assert_eq!(
            (&epoch["train.loss"], &epoch["val.top1"], &epoch["val.loss"]),
            (&json!(3.0), &json!(75.12), &json!(1.5))
        );
        assert_eq!(epoch["val.total_ips"], 50.0);
        assert_eq!((&logs[4]["data"]["train.loss"], &logs[5]["data"]["train.loss"]), (&json!(6.0), &json!(4.0)));
        assert!(logs[4]["data"].get("val.top1").is_none(), "an epoch without an evaluation");
        assert_eq!((&logs[5]["data"]["val.top1"], &logs[5]["data"]["status"]), (&json!(75.12), &json!("done")));
    }

    #[test]
    fn a_loss_that_is_not_a_number_is_text() {
        assert_eq!(lines(&[step(0, 0, f64::NAN)])[0]["data"]["train.loss"], "NaN");
    }
}
