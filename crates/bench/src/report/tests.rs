use super::*;
use crate::machine::Machine;
use crate::measure::{self, MeasureError};
use crate::workload::Mode;
use bessemer_data::{FileFormat, Image};
use bessemer_train::events::{
    BenchRun, Comparison, Event, EventBody, EventWriter, Header, KernelTime, Ratio, Status, Verdict, WorkCheck,
};
use std::fs;
use tempfile::TempDir;

fn log(path: &Path, events: Vec<(Option<u64>, EventBody)>) {
    let mut writer = EventWriter::create(path).unwrap();
    for (step, body) in events {
        let header = Header { step, ..Header::default() };
        writer.write(&Event { v: 1, header, body }).unwrap();
    }
}

fn write_run(folder: &Path) {
    let metrics: std::collections::BTreeMap<String, f64> =
        [("top1".to_owned(), 0.9625), ("loss".to_owned(), 0.25)].into();
    let info = RunInfo {
        command: vec!["bessemer".into(), "train <b>".into()],
        recipe: serde_json::json!({ "name": "shapes-quick", "model": { "name": "resnet20-cifar" } }),
        ..RunInfo::default()
    };
    let mut events = vec![(None, info.into())];
    for step in 1..=50 {
        events.push((Some(step), StepInfo { loss: 2.0 / step as f64, lr: 0.1, ..StepInfo::default() }.into()));
    }
    events.push((Some(50), EvalInfo { metrics: metrics.clone(), samples: 1024, ..EvalInfo::default() }.into()));
    let (status, error) = (Status::Done, None);
    let end = EndInfo { status, error, steps: 50, samples: 3200, train_s: 42.0, throughput: 76.2, metrics };
    events.push((Some(50), end.into()));
    fs::create_dir_all(folder.join("predictions")).unwrap();
    log(&folder.join("events.jsonl"), events);
    let picture = folder.join("predictions/sample-000.png");
    Image::filled(4, 4, [255, 0, 0]).write(&picture, FileFormat::Png).unwrap();
    let sample =
        Sample { picture: "sample-000.png".into(), label: "heart".into(), predicted: "star".into(), probability: 0.5 };
    fs::write(folder.join("predictions/samples.json"), serde_json::to_string(&[sample]).unwrap()).unwrap();
}

fn bench(batch_size: usize, throughput: f64) -> BenchResult {
    let counts = measure::Request::of("resnet50", Mode::Train, batch_size);
    let request = measure::Request { warmup: 1, steps: 1, repeat: 1, ..counts };
    let machine = Machine::look(&*request.device.open());
    let error = MeasureError::Memory { needed: 2_000_000_000, available: 1_000_000_000 };
    let mut result = measure::failed(&request, &machine, &error);
    if throughput > 0.0 {
        result.options.remove(measure::ERROR_OPTION);
        result.throughput = throughput;
        result.fraction_of_peak = Some(0.5);
    }
    result
}

/// A folder with a run and a file of measurements.
fn sample_folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    write_run(&folder.path().join("training"));
    let benches = [bench(4, 8.5), bench(8, 9.25), bench(512, 0.0)];
    log(&folder.path().join("bench.jsonl"), benches.map(|result| (None, result.into())).to_vec());
    folder
}

#[test]
fn a_folder_of_runs_and_measurements_is_found() {
    let folder = sample_folder();
    let report = read(&[folder.path().to_owned()]).unwrap();
    assert_eq!((report.runs.len(), report.benches.len()), (1, 3));
    assert_eq!((report.runs[0].steps.len(), report.runs[0].samples.len()), (50, 1));
    let alone = read(&[folder.path().join("training"), folder.path().join("bench.jsonl")]).unwrap();
    assert_eq!((alone.runs.len(), alone.benches.len()), (1, 3));
}

#[test]
fn the_page_stands_alone() {
    let folder = sample_folder();
    let html = read(&[folder.path().to_owned()]).unwrap().to_html("A report").unwrap();
    let expected = [
        "<title>A report</title>",
        "train &lt;b&gt;",
        "96.25 %",
        "src=\"data:image/png;base64,iVBORw0KGgo",
        "class=\"wrong\"",
        "is: heart",
        "8.50 images/s",
        "50.0 %",
        "out of memory: the step needs 2.00 GB, 1.00 GB are free",
        "prefers-color-scheme: dark",
    ];
    // The template engine writes a slash as a character reference.
    let html = html.replace("&#x2f;", "/");
    for text in expected {
        assert!(html.contains(text), "{text} is missing");
    }
    assert_eq!(html.matches("<svg").count(), 5, "four curves of the run and one over batch sizes");
    for outside in ["http://", "https://", "<script src", "<link", "fetch("] {
        assert!(!html.replace("http://www.w3.org/2000/svg", "").contains(outside), "{outside} leads outside");
    }
}

#[test]
fn several_runs_stand_side_by_side() {
    let folder = TempDir::new().unwrap();
    for name in ["fp32", "bf16"] {
        write_run(&folder.path().join(name));
    }
    let report = read(&[folder.path().join("fp32"), folder.path().join("bf16")]).unwrap();
    let (html, text) = (report.to_html("Two").unwrap(), report.to_markdown("Two", folder.path()).unwrap());
    assert!(html.contains("Runs side by side") && html.matches("<svg").count() == 3 + 2 * 4, "three charts of both");
    assert!(text.contains("\n| fp32 | 50 | ") && text.contains("\n| bf16 | 50 | "), "{text}");
}

#[test]
fn markdown_has_whole_tables_and_links() {
    let folder = sample_folder();
    let text = read(&[folder.path().to_owned()]).unwrap().to_markdown("A report", folder.path()).unwrap();
    assert!(text.contains("![heart](training/predictions/sample-000.png) | heart | star (wrong) | 50 % |"), "{text}");
    assert!(text.contains("\n| 50 | 1 | 0.2500 | 96.25 % | 1024 | 0.0 s |\n"), "{text}");
    for table in text.split("\n\n").filter(|block| block.starts_with('|')) {
        let columns: Vec<usize> = table.trim().lines().map(|line| line.matches('|').count()).collect();
        assert!(columns.windows(2).all(|pair| pair[0] == pair[1]), "{table}");
    }
}

#[test]
fn what_is_no_run_is_an_error() {
    let folder = TempDir::new().unwrap();
    let error = |path: PathBuf| read(&[path]).unwrap_err().to_string();
    assert!(error(folder.path().join("gone")).contains("gone: no such file or folder"));
    assert!(error(folder.path().to_owned()).contains("nothing to report"));
    let bad = folder.path().join("bad.jsonl");
    fs::write(&bad, "{\"v\":1,\"kind\":\"bench\"}\n").unwrap();
    assert!(error(bad).contains("bad.jsonl: line 1: not an event"));
}

fn compared(framework: &str, throughput: f64, work: WorkCheck, ratio: Option<Ratio>) -> BenchResult {
    let run = |throughput: f64| BenchRun { throughput, others_busy: Some(0.2), ..BenchRun::default() };
    BenchResult {
        framework: framework.into(),
        runs: vec![run(0.9 * throughput), run(throughput), run(1.2 * throughput)],
        comparison: Some(Comparison {
            group: "resnet50 train b8 fp32".into(),
            variant: "eager".into(),
            fused: false,
            largest_batch: false,
            work,
            ratio,
        }),
        ..bench(8, throughput)
    }
}

#[test]
fn frameworks_stand_beside_each_other_and_beside_what_was_published() {
    let same = WorkCheck { verdict: Verdict::Same, ..WorkCheck::default() };
    let far = WorkCheck { verdict: Verdict::Different, note: Some("its loss is far".into()), ..WorkCheck::default() };
    let ratio = Some(Ratio { median: 1.25, min: 1.2, max: 1.5 });
    let longer = BenchResult { steps: 8, ..compared("pytorch", 8.0, same.clone(), ratio) };
    let benches = vec![
        compared("bessemer", 10.0, same.clone(), None),
        longer,
        compared("jax", 9.0, far, None),
        compared("absent", 0.0, WorkCheck::default(), None),
        bench(4, 8.5),
    ];
    let report = Report { benches, reference: Some(Reference::DlPerf), ..Report::default() };
    let html = report.to_html("Frameworks").unwrap().replace("&#x2f;", "/");
    for text in [
        "resnet50, training, batch 8, fp32: images/s",
        "1.25 x (1.20-1.50)",
        "; 1 to 8 steps after 1 that do not count, 1 rounds",
        "not the same</td>",
        "] its loss is far",
        "] out of memory: the step needs",
        "not a quiet machine: others used up to 20.0 % of the processors meanwhile",
        "pytorch (eager)",
        "class=\"sortable\"",
        "NGC PyTorch 1.5.0a0",
        "12411.97",
    ] {
        assert!(html.contains(text), "{text} is missing");
    }
    assert_eq!(html.matches("aria-label=\"images/s of each framework\"").count(), 1);
    let markdown = report.to_markdown("Frameworks", Path::new("")).unwrap();
    for text in [
        "| framework | speed | Bessemer is | work |",
        "| pytorch (eager) [",
        "1.25 x (1.20-1.50) | the same |",
        "| OneFlow 0.2.0 | 128 | 397.64 | 3130.34 | 6260.30 | 12411.97 |",
    ] {
        assert!(markdown.contains(text), "{text} is missing in {markdown}");
    }
    let row = markdown.lines().find(|line| line.starts_with("| jax (eager)")).unwrap();
    assert!(row.contains("not the same") && !row.contains(" x "), "{row}");
    assert!(!markdown.contains("\n\n|---"), "tables hang together: {markdown}");
}

#[test]
fn streams_of_other_programs_are_reported() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("log.json");
    fs::write(&path, "hello\nDLLL {\"step\": [], \"data\": {\"val.top1\": 76.5}}\n").unwrap();
    let report = read(std::slice::from_ref(&path)).unwrap();
    assert_eq!(report.streams[0].summary["val.top1"], 76.5);
    assert!(report.to_markdown("A log", Path::new("")).unwrap().contains("| val.top1 | 76.500 |"));
    assert!(report.to_html("A log").unwrap().contains("76.500"));
}

fn finished(folder: &Path, name: &str, seed: u64, top1: f64) {
    let metrics: std::collections::BTreeMap<String, f64> = [("top1".to_owned(), top1)].into();
    let recipe = serde_json::json!({
        "name": "shapes-quick", "model": { "name": "resnet20-cifar" }, "train": { "seed": seed, "batch_size": 64 },
        "precision": { "compute": "bf16" },
    });
    let info = RunInfo { recipe, ..RunInfo::default() };
    let end = EndInfo {
        status: Status::Done,
        error: None,
        steps: 50,
        samples: 3200,
        train_s: 42.0,
        throughput: 76.2,
        metrics,
    };
    fs::create_dir_all(folder.join(name)).unwrap();
    log(&folder.join(name).join("events.jsonl"), vec![(None, info.into()), (Some(50), end.into())]);
}

#[test]
fn results_stand_in_the_tables_of_publications() {
    let folder = TempDir::new().unwrap();
    for (seed, top1) in [(1, 0.75), (2, 0.80), (3, 0.70)] {
        finished(folder.path(), &format!("seed-{seed}"), seed, top1);
    }
    let mut wide = bench(8, 12.0);
    wide.precision = "bf16".into();
    let mut two = bench(8, 18.0);
    two.devices = 2;
    let mut answers = bench(1, 50.0);
    answers.mode = "infer".into();
    answers.step_ms.p99 = 21.5;
    let mut profiled = bench(4, 8.0);
    profiled.kernels = [("conv2d", 3.0, 53), ("fusion", 1.0, 394)]
        .map(|(kind, milliseconds, calls)| KernelTime { kind: kind.into(), calls, milliseconds, flops: 6_000_000 })
        .to_vec();
    let results = [bench(8, 10.0), wide, two, answers, profiled];
    log(&folder.path().join("bench.jsonl"), results.map(|result| (None, result.into())).to_vec());
    let report = read(&[folder.path().to_owned()]).unwrap();
    let markdown = report.to_markdown("A report", folder.path()).unwrap();
    let expected = [
        "| resnet50, bessemer | 1 | 8 | 10.00 | 12.00 | 1.20 x | 1.00 x | 1.00 x |",
        "| resnet50, bessemer | 2 | 8 | 18.00 | – | – | 1.80 x | – |",
        "| resnet50, bessemer | fp32 | 1 | 50.00 | 0 | 0 | 0 | 21.50 |",
        "| seed-2 | resnet20-cifar | 64 | bf16 | top-1 80.00 % | 42 s |",
        "| top-1 | 3 | 75.000 %, 80.000 %, 70.000 % | 75.000 % | 5.000 % |",
        "| conv2d | 53 | 3.00 | 75.0 % | 2.00 |",
    ];
    for text in expected {
        assert!(markdown.contains(text), "{text} is not in:\n{markdown}");
    }
    let html = report.to_html("A report").unwrap();
    assert!(html.contains("Where a step of bessemer goes") && html.contains("Stability over seeds"));
}
