use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::fs;
use tempfile::TempDir;

fn step(step: u64, loss: f64) -> Event {
    let header = Header { time: 1.7e9 + step as f64, elapsed: step as f64 / 8.0, rank: 0, step: Some(step) };
    let info = StepInfo { epoch: 1, batch: step % 10, loss, lr: 0.1, samples: 32, step_s: 0.5, ..Default::default() };
    Event::new(header, info)
}

fn warning(message: &str) -> Event {
    Event::new(Header::default(), WarningInfo { message: message.to_owned() })
}

fn bench() -> BenchResult {
    serde_json::from_value(json!({
        "framework": "bessemer", "framework_version": "0.1.0", "model": "resnet50", "mode": "train",
        "precision": "fp32", "device": "cpu", "device_name": "a CPU", "devices": 1, "nodes": 1, "threads": 2,
        "batch_size": 16, "data": "synthetic", "options": {"fuse": true}, "warmup": 20, "steps": 100, "repeat": 3,
        "throughput": 13.1, "unit": "images/s",
        "step_ms": {"mean": 1.0, "p50": 1.0, "p90": 1.0, "p95": 1.0, "p99": 1.0, "min": 1.0, "max": 1.0},
        "published_style": {"mean_fastest_90_ms": 1.0, "ci_90_ms": 1.0},
        "runs": [{"throughput": 13.1}], "spread": 0.012, "peak_memory_bytes": 1_000_000, "flops_per_sample": 2.45e10,
        "fraction_of_peak": 0.61, "loss_first": 6.94, "loss_last": "NaN"
    }))
    .unwrap()
}

fn every_kind() -> Vec<Event> {
    let end = EndInfo {
        status: Status::Failed,
        error: Some("loss is NaN".to_owned()),
        steps: 3,
        samples: 96,
        train_s: 1.5,
        throughput: 64.0,
        metrics: [("top1".to_owned(), 0.5)].into(),
    };
    let header = Header { time: 1.5, elapsed: 0.25, rank: 0, step: None };
    let run = RunInfo { recipe: json!({"name": "x"}), command: vec!["bessemer".to_owned()], ..Default::default() };
    let eval = EvalInfo { metrics: [("loss".to_owned(), f64::NEG_INFINITY)].into(), ..Default::default() };
    vec![
        Event::new(header, run),
        Event::new(header, PlanInfo::default()),
        step(1, f64::INFINITY),
        Event::new(header, RanksInfo { steps: 50, ranks: vec![RankTimes { compute_s: 0.5, ..Default::default() }; 2] }),
        Event::new(header, eval),
        Event::new(header, CheckpointInfo::default()),
        Event::new(header, bench()),
        warning("careful"),
        Event::new(header, end),
    ]
}

fn write_all(path: &std::path::Path, events: &[Event]) {
    let mut writer = EventWriter::create(path).unwrap();
    events.iter().for_each(|event| drop(writer.write(event).unwrap()));
}

#[test]
fn every_kind_round_trips() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("events.jsonl");
    let events = every_kind();
    write_all(&path, &events);
    // NaN is not equal to itself.
    assert_eq!(format!("{:?}", read_events(&path).unwrap()), format!("{events:?}"));
    let kinds: Vec<Value> = fs::read_to_string(&path)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["kind"].clone())
        .collect();
    assert_eq!(kinds, ["run", "plan", "step", "ranks", "eval", "checkpoint", "bench", "warning", "end"]);
}

#[test]
fn lines_have_the_documented_form() {
    let value: Value = serde_json::to_value(step(7, f64::NAN)).unwrap();
    for (key, expected) in [("v", json!(1)), ("kind", json!("step")), ("rank", json!(0)), ("step", json!(7))] {
        assert_eq!(value[key], expected);
    }
    assert_eq!((&value["loss"], &value["elapsed"]), (&json!("NaN"), &json!(0.875)));
    assert!(serde_json::to_value(warning("x")).unwrap()["step"].is_null());

    let value = serde_json::to_value(Event::new(Header::default(), bench())).unwrap();
    let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
    let expected = [
        "v",
        "time",
        "elapsed",
        "rank",
        "step",
        "kind",
        "framework",
        "framework_version",
        "model",
        "mode",
        "precision",
        "device",
        "device_name",
        "devices",
        "nodes",
        "threads",
        "batch_size",
        "data",
        "options",
        "warmup",
        "steps",
        "repeat",
        "throughput",
        "unit",
        "step_ms",
        "published_style",
        "runs",
        "spread",
        "peak_memory_bytes",
        "flops_per_sample",
        "fraction_of_peak",
        "loss_first",
        "loss_last",
    ];
    assert_eq!(keys, expected);
}

#[test]
fn resuming_drops_the_future_and_the_cut_line() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("events.jsonl");
    let events: Vec<Event> = (1..=8).map(|n| step(n, n as f64)).chain([warning("slow disk")]).collect();
    write_all(&path, &events);
    let mut text = fs::read_to_string(&path).unwrap();
    text.insert_str(0, "not json\n");
    text.push_str("{\"v\":1,\"kind\":\"st");
    fs::write(&path, text).unwrap();

    let mut resumed = EventWriter::resume(&path, 5).unwrap();
    assert_eq!((resumed.dropped, resumed.damaged), (3, vec![1, 11]));
    resumed.writer.write(&step(6, 60.0)).unwrap();
    let expected: Vec<Event> = events[..5].iter().chain(&events[8..]).chain(&[step(6, 60.0)]).cloned().collect();
    assert_eq!(read_events(&path).unwrap(), expected);
    assert_eq!(expected[..6], resumed.kept);
}

#[test]
fn a_log_is_never_overwritten() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("events.jsonl");
    write_all(&path, &[step(1, 1.0)]);
    assert!(EventWriter::create(&path).is_err());
    assert_eq!(read_events(&path).unwrap().len(), 1);
}

#[test]
fn reading_names_the_bad_line() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("events.jsonl");
    let good = serde_json::to_string(&step(1, 1.0)).unwrap();
    for (bad, expected) in [
        ("{}", "line 2: not an event: missing field `v`"),
        (&good.replace("\"v\":1", "\"v\":9"), "line 2: event format 9; this program reads format 1"),
        (&good.replace("\"step\",", "\"sleep\","), "line 2: not an event: unknown variant `sleep`"),
    ] {
        fs::write(&path, format!("{good}\n{bad}\n{good}\n")).unwrap();
        let text = read_events(&path).unwrap_err().to_string();
        assert!(text.contains("events.jsonl: ") && text.contains(expected), "{text}\nexpected {expected}");
    }
    fs::write(&path, format!("{good}\n{good}")).unwrap();
    assert_eq!(read_events(&path).unwrap().len(), 1);
}

proptest! {
    #[test]
    fn a_file_cut_anywhere_resumes(cut in any::<prop::sample::Index>(), resumed_step in 0_u64..10) {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("events.jsonl");
        let events: Vec<Event> = (1..=8).map(|n| step(n, n as f64 / 3.0)).collect();
        write_all(&path, &events);
        let mut bytes = fs::read(&path).unwrap();
        bytes.truncate(cut.index(bytes.len() + 1));
        fs::write(&path, &bytes).unwrap();
        let resumed = EventWriter::resume(&path, resumed_step).unwrap();
        prop_assert_eq!(&resumed.kept, &events[..resumed.kept.len()]);
        prop_assert!(resumed.kept.len() as u64 <= resumed_step);
        prop_assert_eq!(read_events(&path).unwrap(), resumed.kept);
    }
}
