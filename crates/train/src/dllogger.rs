//! The run as a DLLogger stream (github.com/NVIDIA/dllogger, JSON backend): `DLLL ` and one JSON object a line, with the
//! metric names of the ResNet-50 scripts in NVIDIA DeepLearningExamples (PyTorch), and beside them those of its scripts for the model
//! ([`ReferenceNames`]).
//!
//! Per iteration `[epoch, iteration]`, per epoch `[epoch]`, for the run `[]`. Rates over an epoch or a run are samples
//! over time, not means of rates. `_at90` is a true quantile, `_ci90` the mean plus 1.645 standard errors, which Mask R-CNN's script
//! calls a latency of 90 %. Times of day are UTC.

use crate::clock::date_time;
use crate::events::{EndInfo, EvalInfo, Event, EventBody, Header, PublishedStyle, RunInfo, StepInfo, StepTimes};
use crate::stats::{published_style, step_times};
use crate::tasks::{MetricSchema, ReferenceName, ReferenceNames, Scale};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// `(metric, unit, format)`; a rate has no unit of its own.
const TRAIN_METADATA: [(&str, Option<&str>, &str); 8] = [
    ("train.loss", Some("none"), ":.5f"),
    ("train.compute_ips", None, ":.2f"),
    ("train.total_ips", None, ":.2f"),
    ("train.data_time", Some("s"), ":.5f"),
    ("train.compute_time", Some("s"), ":.5f"),
    ("train.lr", Some("none"), ":.5f"),
    ("train.step_time", Some("s"), ":.5f"),
    ("train.grad_scale", Some("none"), ":.1f"),
];
const VAL_METADATA: [(&str, Option<&str>, &str); 4] = [
    ("val.compute_ips", None, ":.2f"),
    ("val.total_ips", None, ":.2f"),
    ("val.time", Some("s"), ":.2f"),
    (BATCH_TIME, Some("s"), ":.5f"),
];
/// Of the run alone: samples a second of each rank, mean loss of the last epoch, loss of the last step, time of all steps, and of all.
const RUN_METADATA: [(&str, Option<&str>, &str); 5] = [
    ("train.rank_ips", None, ":.2f"),
    ("train.epoch_loss", Some("none"), ":.5f"),
    ("train.final_loss", Some("none"), ":.5f"),
    ("train.time", Some("s"), ":.2f"),
    ("run.time", Some("s"), ":.2f"),
];

/// What is logged of many times beside their mean, as endings of its name: quantiles, the longest, and the mean with so many standard
/// errors.
const TIME_ENDINGS: [&str; 7] = ["at90", "at95", "at99", "at100", "ci90", "ci95", "ci99"];
/// The times of which these are logged.
const TIMES: [&str; 2] = [STEP_TIME, BATCH_TIME];
/// Of the steps of a run.
const STEP_TIME: &str = "train.step_time";
/// Of the batches of an evaluation, in the plan alone.
const BATCH_TIME: &str = "val.compute_latency";

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
    ranks: usize,
    epoch_loss: Option<f64>,
    final_loss: Option<f64>,
    step_ms: Vec<f64>,
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
            ranks: 1,
            epoch_loss: None,
            final_loss: None,
            step_ms: Vec::new(),
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
        self.ranks = info.hosts.len().max(1);
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
        let known = |(metric, unit, format): (&str, Option<&'static str>, &'static str)| {
            (metric.to_owned(), unit.unwrap_or(metric_schema.unit), format)
        };
        let scale = |scale: Scale| (scale.unit(), if scale == Scale::Fraction { ":.2f" } else { ":.5f" });
        let described = |set: &str, name: &str| {
            let (unit, format) = scale(metric_schema.scale(name));
            (format!("{set}.{name}"), unit, format)
        };
        let parts = metric_schema.parts.iter().map(|name| described("train", name));
        let metrics = metric_schema.metrics.iter().map(|metric| described("val", metric.name));
        let train = TRAIN_METADATA.into_iter().map(known).chain(parts);
        let rest = VAL_METADATA.into_iter().chain(RUN_METADATA).map(known);
        let spreads =
            TIMES.iter().flat_map(|time| TIME_ENDINGS.map(|ending| (format!("{time}_{ending}"), "s", ":.5f")));
        let mut all: Vec<_> = train.chain(metrics).chain(rest).chain(spreads).collect();
        let ReferenceNames { always, summary } = metric_schema.reference;
        for name in always.iter().chain(summary) {
            let shared = all.iter().find(|(metric, _, _)| metric == name.shared);
            let (_, unit, format) = *shared.expect("a reference name of something that is logged");
            let unit = if name.factor == 1.0 { unit } else { Scale::Plain.unit() };
            all.push((name.reference.to_owned(), unit, format));
        }
        for (metric, unit, format) in all {
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
        self.final_loss = Some(info.loss);
        self.step_ms.push(1e3 * info.step_s);
        let metrics = self.with_reference(totals.metrics(self.metric_schema), &[]);
        self.log(header, json!([info.epoch, info.batch]), metrics)
    }

    fn end_epoch(&mut self, header: &Header) -> io::Result<()> {
        let Some(epoch) = self.epoch.take() else { return Ok(()) };
        let totals = std::mem::take(&mut self.epoch_totals);
        self.epoch_loss = Some(totals.loss / totals.samples as f64);
        let mut metrics = totals.metrics(self.metric_schema);
        if std::mem::take(&mut self.eval_is_new) {
            metrics.extend(self.last_eval.clone());
        }
        let metrics = self.with_reference(metrics, &[]);
        self.log(header, json!([epoch]), metrics)
    }

    fn end(&mut self, header: &Header, info: &EndInfo) -> io::Result<()> {
        self.end_epoch(header)?;
        let Totals { samples, step_s, .. } = self.run_totals;
        let mut metrics = self.run_totals.metrics(self.metric_schema);
        metrics.extend(self.last_eval.clone());
        let losses = [("train.epoch_loss", self.epoch_loss), ("train.final_loss", self.final_loss)];
        let rank_ips = (step_s > 0.0).then(|| samples as f64 / step_s / self.ranks as f64);
        let times = [("train.rank_ips", rank_ips), ("train.time", Some(step_s)), ("run.time", Some(header.elapsed))];
        for (name, value) in losses.into_iter().chain(times) {
            metrics.extend(value.map(|value| (name.to_owned(), number(value))));
        }
        if !self.step_ms.is_empty() {
            metrics.extend(spread_of(STEP_TIME, &step_times(&self.step_ms), &published_style(&self.step_ms)));
        }
        let mut metrics = self.with_reference(metrics, self.metric_schema.reference.summary);
        metrics.insert("status".to_owned(), json!(info.status));
        self.log(header, json!([]), metrics)
    }

    /// Also under the names of NVIDIA's scripts: those that all lines have, and `more`.
    fn with_reference(&self, mut metrics: Map<String, Value>, more: &[ReferenceName]) -> Map<String, Value> {
        for name in self.metric_schema.reference.always.iter().chain(more) {
            if let Some(value) = metrics.get(name.shared) {
                let scaled = value.as_f64().map_or_else(|| value.clone(), |value| number(value * name.factor));
                metrics.insert(name.reference.to_owned(), scaled);
            }
        }
        metrics
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
        put("train.step_time", self.step_s / steps);
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
    let speed = [
        ("val.compute_ips", samples / info.compute_s),
        ("val.total_ips", samples / info.eval_s),
        ("val.time", info.eval_s),
    ];
    let mut metrics: Map<_, _> = named.chain(speed.map(|(name, value)| (name.to_owned(), number(value)))).collect();
    if let (Some(times), Some(published)) = (&info.batch_ms, &info.published_style) {
        metrics.insert(BATCH_TIME.to_owned(), number(1e-3 * times.mean));
        metrics.extend(spread_of(BATCH_TIME, times, published));
    }
    metrics
}

/// What is logged of times beside their mean, in seconds.
fn spread_of(name: &str, times: &StepTimes, published: &PublishedStyle) -> impl Iterator<Item = (String, Value)> {
    let StepTimes { p90, p95, p99, max, .. } = *times;
    let PublishedStyle { ci_90_ms, ci_95_ms, ci_99_ms, .. } = *published;
    let values = [p90, p95, p99, max, ci_90_ms, ci_95_ms, ci_99_ms];
    TIME_ENDINGS.into_iter().zip(values).map(move |(ending, ms)| (format!("{name}_{ending}"), number(1e-3 * ms)))
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
    use crate::tasks::metric_schema;

    fn lines(events: &[Event]) -> Vec<Value> {
        lines_of(&TERMS, events)
    }

    fn lines_of(metric_schema: &'static MetricSchema, events: &[Event]) -> Vec<Value> {
        let mut writer = DllWriter::new(Vec::new(), metric_schema);
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
        let times = [10.0, 30.0];
        let eval = EvalInfo {
            metrics,
            samples: 100,
            eval_s: 2.0,
            compute_s: 1.0,
            batch_ms: Some(step_times(&times)),
            published_style: Some(published_style(&times)),
            ..Default::default()
        };
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
    fn models_have_the_names_of_their_scripts_too() {
        let found = |model: &str| {
            let lines = lines_of(metric_schema(model), &run());
            let iteration = lines.iter().find(|line| line["step"] == json!([0, 0])).unwrap()["data"].clone();
            (iteration, lines.last().unwrap()["data"].clone())
        };
        let (iteration, summary) = found("bert-base");
        assert_eq!((&iteration["average_loss"], &iteration["learning_rate"]), (&json!(4.0), &json!(0.1)));
        assert_eq!(summary["training_sequences_per_second"], 64.0);
        assert_eq!((&summary["final_loss"], &summary["raw_train_time"]), (&json!(6.0), &json!(1.5)));
        let (iteration, _) = found("electra-base");
        assert_eq!((&iteration["total_loss"], &iteration["train_perf"]), (&json!(4.0), &json!(80.0)));
        let (iteration, summary) = found("electra-squad");
        assert_eq!((&iteration["step_loss"], &summary["final_loss"]), (&json!(4.0), &json!(6.0)));
        let (_, summary) = found("efficientdet-d0");
        let rates = ["avg_fps_training", "avg_fps_training_per_GPU", "avg_latency_training", "training_loss"];
        assert_eq!(rates.map(|name| summary[name].as_f64().unwrap()), [64.0, 64.0, 0.5, 6.0]);
        let (iteration, summary) = found("mask-rcnn");
        assert_eq!((&iteration["train_latency"], &summary["train_time"]), (&json!(0.5), &json!(1.5)));
        assert_eq!((&summary["train_latency_90"], &summary["predict_latency"]), (&json!(0.5), &json!(0.02)));
        let near = |name: &str, expected: f64| (summary[name].as_f64().unwrap() - expected).abs() < 1e-9;
        assert!(
            near("predict_latency_90", 0.02 + 1.645 * 0.01 / f64::sqrt(2.0)) && near("val.compute_latency_at90", 0.028)
        );
    }

    #[test]
    fn shares_are_what_the_scripts_make_of_them() {
        let metrics = [("bbox_ap".to_owned(), 0.375), ("segm_ap".to_owned(), 0.25)].into();
        let eval = EvalInfo { metrics, samples: 100, eval_s: 2.0, compute_s: 1.0, ..Default::default() };
        let header = Header::default();
        let end = run().pop().unwrap();
        let events = [Event::new(header, RunInfo::default()), Event::new(header, eval), end];
        let summary = |model: &str| lines_of(metric_schema(model), &events).pop().unwrap()["data"].clone();
        assert_eq!(summary("efficientdet-d0")["validation_accuracy_mAP"], 37.5);
        assert_eq!((&summary("mask-rcnn")["AP"], &summary("mask-rcnn")["mask_AP"]), (&json!(0.375), &json!(0.25)));
    }

    #[test]
    fn a_loss_that_is_not_a_number_is_text() {
        assert_eq!(lines(&[step(0, 0, f64::NAN)])[0]["data"]["train.loss"], "NaN");
    }
}
