use super::charts::Tone;
use super::*;
use crate::machine::Machine;
use crate::measure::{self, MeasureError};
use crate::workload::Mode;
use bessemer_data::{FileFormat, Image};
use bessemer_train::events::{
    BenchRun, Comparison, Event, EventBody, EventWriter, Header, KernelTime, RankTimes, RanksInfo, Ratio, Scaling,
    Status, Verdict, WorkCheck,
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
        recipe: serde_json::json!({
            "name": "shapes-quick", "model": { "name": "resnet20-cifar" }, "data": { "source": "pictures/of shapes" },
        }),
        data: "shapes:1234".into(),
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
    let classes = r#"{"bbox": [{"id": 3, "name": "red car", "objects": 2, "detections": 5, "AP": 0.25, "AP50": -1}]}"#;
    fs::write(folder.join("predictions/classes.json"), classes).unwrap();
}

fn bench(batch_size: usize, throughput: f64) -> BenchResult {
    let counts = measure::Request::of("resnet50", Mode::Train, batch_size);
    let request = measure::Request { warmup: 1, steps: 1, repeat: 1, ..counts };
    let machine = Machine::look(&*request.device.open().unwrap());
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

/// The page, with slashes as they are: the template engine writes them as character references.
fn page(report: &Report) -> String {
    report.to_html("A report").unwrap().replace("&#x2f;", "/")
}

/// What stands between `start` and the `end` after it, of each occurrence.
fn between<'a>(html: &'a str, start: &str, end: &str) -> Vec<&'a str> {
    html.split(start).skip(1).map(|rest| rest.split_once(end).unwrap().0).collect()
}

/// The charts' data as the page's script reads them.
fn charts(html: &str) -> Vec<serde_json::Value> {
    let data = between(html, "<script type=\"application/json\">", "</script>");
    data.into_iter().map(|text| serde_json::from_str(text).unwrap()).collect()
}

/// The page without the code of its libraries.
fn without_libraries(mut html: String) -> String {
    for library in page::LIBRARIES {
        let script = library.script().replace("&#x2f;", "/");
        assert!(script.contains("Permission is hereby granted") && html.contains(&script), "with its licence");
        html = html.replace(&script, "");
    }
    html
}

#[test]
fn the_last_possible_epoch_is_shown() {
    let folder = TempDir::new().unwrap();
    let eval = EvalInfo { epoch: u64::MAX, metrics: [("top1".to_owned(), 0.5)].into(), ..EvalInfo::default() };
    log(&folder.path().join("events.jsonl"), vec![(None, RunInfo::default().into()), (Some(1), eval.into())]);
    let html = page(&read(&[folder.path().to_owned()]).unwrap());
    assert!(html.contains("<td>18446744073709551615</td>"), "{html}");
}

#[test]
fn the_page_stands_alone() {
    let folder = sample_folder();
    let html = page(&read(&[folder.path().to_owned()]).unwrap());
    assert!(html.starts_with("<!DOCTYPE html>\n"));
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
        "<dt>data</dt><dd>pictures/of shapes</dd>",
        "<dt>identity of the data</dt><dd>shapes:1234</dd>",
        "default-src 'none'; img-src data:;",
        "training: classes in the latest evaluation, bbox",
        "<td>0.250</td>",
    ];
    for text in expected {
        assert!(html.contains(text), "{text} is missing");
    }
    let captions: Vec<String> = charts(&html).iter().map(|chart| chart["caption"].as_str().unwrap().into()).collect();
    let of_run = ["training loss", "validation top-1 (%)", "validation loss", "learning rate"];
    assert_eq!(captions[..4], of_run.map(str::to_owned), "of the run");
    assert_eq!(captions[4..], ["resnet50, training (images/s)".to_owned()], "over batch sizes");
    let html = without_libraries(html);
    for outside in ["http://", "https://", "<script src", "<link", "<iframe", "@import", "url(", "fetch(", "import("] {
        assert!(!html.contains(outside), "{outside} leads outside");
    }
    assert!(between(&html, " src=\"", "\"").iter().all(|source| source.starts_with("data:")));
}

#[test]
fn libraries_end_with_their_own_script() {
    for library in page::LIBRARIES {
        assert!(!library.code.to_lowercase().contains("</script") && !library.code.contains("<!--"));
        assert!(!library.script().contains("sourceMappingURL"));
    }
}

#[test]
fn charts_hold_the_figures_of_the_logs() {
    let folder = sample_folder();
    let charts = charts(&page(&read(&[folder.path().to_owned()]).unwrap()));
    let [raw, smooth] = [0, 1].map(|index| &charts[0]["curves"][index]);
    assert_eq!((raw["name"].as_str(), smooth["name"].as_str()), (Some("as measured"), Some("smoothed")));
    assert_eq!(raw["points"].as_array().unwrap().len(), 50);
    assert_eq!(raw["points"][2], serde_json::json!([3.0, 0.666_667]));
    assert_eq!(charts[1]["curves"][0]["points"], serde_json::json!([[50.0, 96.25]]));
    assert_eq!(charts[4]["curves"][0]["points"], serde_json::json!([[4.0, 8.5], [8.0, 9.25]]));
}

#[test]
fn names_cannot_leave_their_place() {
    let folder = TempDir::new().unwrap();
    let name = "</script><script>alert(1)<!--&amp;'\"";
    let name = name.replace('/', "\u{2215}");
    for name in [name.as_str(), "other"] {
        write_run(&folder.path().join(name));
    }
    let path = folder.path().join("log.json");
    let evil = "</script><script>alert(2)</script>";
    let line = |value: f64| format!("DLLL {{\"step\": [0, 1], \"data\": {{\"{evil}\": {value}}}}}\n");
    fs::write(&path, line(1.0) + &line(2.0)).unwrap();
    let report = read(&[folder.path().join(&name), folder.path().join("other"), path]).unwrap();
    let html = page(&report);
    let charts = charts(&html);
    let has = |chart: &serde_json::Value| chart["curves"][0]["name"] == name.as_str();
    assert!(charts.iter().any(has), "the name is in the data as it is");
    assert!(charts.iter().any(|chart| chart["caption"] == evil), "so is a metric's");
    let html = without_libraries(html);
    assert!(!html.contains("alert(2)</script>") && !html.contains("<script>alert"), "and nowhere as a tag");
    let scripts = ["<script", "</script"].map(|tag| html.matches(tag).count());
    assert_eq!(scripts, [charts.len() + 3; 2], "the charts' data, two libraries and the page's script");
    for data in between(&html, "<script type=\"application/json\">", "</script>") {
        assert!(!data.contains(['<', '>', '&']), "{data}");
    }
}

#[test]
fn several_runs_stand_side_by_side() {
    let folder = TempDir::new().unwrap();
    for name in ["fp32", "bf16"] {
        write_run(&folder.path().join(name));
    }
    let report = read(&[folder.path().join("fp32"), folder.path().join("bf16")]).unwrap();
    let (html, text) = (page(&report), report.to_markdown("Two", folder.path()).unwrap());
    let charts = charts(&html);
    assert!(html.contains("Runs side by side") && charts.len() == 2 + 2 * 4, "two charts of both");
    for chart in &charts[..2] {
        let names = [0, 1].map(|index| chart["curves"][index]["name"].as_str().unwrap());
        assert_eq!(names, ["fp32", "bf16"]);
    }
    assert!(text.contains("\n| fp32 | 50 | ") && text.contains("\n| bf16 | 50 | "), "{text}");
}

#[test]
fn unlike_tasks_share_no_axis() {
    let folder = TempDir::new().unwrap();
    write_run(&folder.path().join("pictures"));
    let words = folder.path().join("words");
    fs::create_dir(&words).unwrap();
    let recipe = serde_json::json!({ "model": { "name": "bert-mini" } });
    let step = StepInfo { loss: 7.0, ..StepInfo::default() };
    let info = RunInfo { recipe, ..RunInfo::default() };
    log(&words.join("events.jsonl"), vec![(None, info.into()), (Some(1), step.into())]);
    let html = page(&read(&[folder.path().join("pictures"), words]).unwrap());
    assert!(!html.contains("Runs side by side"));
    assert!(!html.contains("Run pictures: curves"), "curves that stand nowhere else are not folded");
}

#[test]
fn the_date_is_that_of_the_logs() {
    let folder = TempDir::new().unwrap();
    let header = |time: f64| Header { time, ..Header::default() };
    let path = folder.path().join("bench.jsonl");
    let mut writer = EventWriter::create(&path).unwrap();
    for time in [1_735_689_599.0, 1_735_689_000.0] {
        writer.write(&Event { v: 1, header: header(time), body: bench(8, 9.0).into() }).unwrap();
    }
    drop(writer);
    let report = read(&[path]).unwrap();
    assert!(page(&report).contains("2024-12-31 23:59:59 UTC · Bessemer"));
    assert!(report.to_markdown("A report", Path::new("")).unwrap().contains("2024-12-31 23:59:59 UTC, Bessemer"));
    assert!(!page(&Report::default()).contains("UTC"));
}

#[test]
fn headlines_hold_model_device_result_speed_and_ratio() {
    let folder = sample_folder();
    let mut report = read(&[folder.path().to_owned()]).unwrap();
    let same = WorkCheck { verdict: Verdict::Same, ..WorkCheck::default() };
    let ratio = |median: f64| Some(Ratio { median, min: 0.9 * median, max: 1.1 * median });
    report.benches.extend([
        compared("bessemer", 10.0, same.clone(), None),
        compared("jax", 4.0, same.clone(), ratio(2.5)),
        compared("pytorch", 12.5, same, ratio(0.8)),
        compared("tensorflow", 20.0, WorkCheck::default(), None),
    ]);
    let headlines = headline::headlines(&report);
    let figures = |index: usize| -> Vec<(&str, &str, Tone)> {
        headlines[index].figures.iter().map(|figure| (&*figure.value, &*figure.label, figure.tone)).collect()
    };
    assert_eq!(headlines.len(), 3);
    assert_eq!((&*headlines[0].title, &*headlines[0].work), ("resnet20-cifar", "run training"));
    assert_eq!(figures(0), [("96.25 %", "top-1, last evaluation", Tone::Own), ("76.2", "images/s", Tone::Own)]);
    let ratio = ("0.80 x", "the speed of pytorch (eager), the fastest other", Tone::Bad);
    assert_eq!(figures(1), [("10.00", "images/s", Tone::Own), ratio]);
    assert_eq!((&*headlines[1].title, &*headlines[1].work), ("resnet50", "training, batch 8, fp32"));
    assert_eq!(figures(2), [("9.250", "images/s", Tone::Own), ("50.0 %", "of the device's peak (MFU)", Tone::Own)]);
    assert!(headlines[2].device.contains(" thread"), "{}", headlines[2].device);
    let html = page(&report);
    let first = &html[..html.find("<figure").unwrap()];
    for text in ["<b>96.25 %</b><span>top-1, last evaluation</span>", "<div class=\"bad\"><b>0.80 x</b>", "10.00"] {
        assert!(first.contains(text), "{text} does not come first");
    }
    assert!(html[html.find("<h2>Details").unwrap()..].contains("<details"));
    assert!(!html[..html.find("<h2>Details").unwrap()].contains("<table"), "tables are folded");
}

#[test]
fn a_run_that_failed_says_so_first() {
    let end = EndInfo {
        status: Status::Failed,
        error: Some("out of disk".into()),
        steps: 1,
        samples: 8,
        train_s: 1.0,
        throughput: 8.0,
        metrics: std::collections::BTreeMap::new(),
    };
    let steps = vec![(1, StepInfo { loss: 2.5, ..StepInfo::default() })];
    let run = Run {
        path: "runs/a".into(),
        info: Some(RunInfo::default()),
        steps,
        warnings: vec!["careful".into()],
        end: Some(end),
        ..Run::default()
    };
    let report = Report { runs: vec![run], ..Report::default() };
    let found = headline::headlines(&report).remove(0).figures;
    let values: Vec<&str> = found.iter().map(|figure| &*figure.value).collect();
    assert_eq!(values, ["2.500", "8.00", "failed", "1 warning"]);
    assert!(page(&report).contains("failed: out of disk") && page(&report).contains("warning: careful"));
}

#[test]
fn ranks_stand_side_by_side() {
    let times = |data_s, compute_s, comm_s| RankTimes { data_s, compute_s, comm_s };
    let window = |steps, ranks: &[RankTimes]| RanksInfo { steps, ranks: ranks.to_vec() };
    let ranks = vec![
        window(50, &[times(9.0, 9.0, 9.0); 3]),
        window(50, &[times(0.0, 0.1, 0.2), times(0.1, 0.2, 0.0)]),
        window(150, &[times(0.0, 0.1, 0.1), times(0.1, 0.1, 0.0)]),
    ];
    let info = RunInfo { hosts: vec!["left".into(), "right".into()], ..RunInfo::default() };
    let run = Run { name: "a".into(), info: Some(info), ranks, ..Run::default() };
    let report = Report { runs: vec![run], ..Report::default() };
    let text = report.to_markdown("A report", Path::new(".")).unwrap();
    assert!(text.contains("A step on each rank: a, mean of 200 steps"), "{text}");
    assert!(text.contains("\n| 0 | left | 0 | 100 | 125 | 1.00 x |\n"), "{text}");
    assert!(text.contains("\n| 1 | right | 100 | 125 | 0 | 2.25 x |\n"), "{text}");
}

#[test]
fn markdown_has_whole_tables_and_links() {
    let folder = sample_folder();
    let text = read(&[folder.path().to_owned()]).unwrap().to_markdown("A report", folder.path()).unwrap();
    assert!(text.contains("![heart](training/predictions/sample-000.png) | heart | star (wrong) | 50 % |"), "{text}");
    let report = read(&[folder.path().to_owned()]).unwrap();
    let beside = report.to_markdown("A report", &folder.path().join("all (of them)")).unwrap();
    assert!(beside.contains("![heart](../training/predictions/sample-000.png)"), "{beside}");
    assert!(text.contains("\n| red car | 2 | 5 | 0.250 | - | - | - | - | - | - |\n"), "{text}");
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

#[test]
fn damaged_lines_of_a_run_are_left_out_with_a_warning() {
    let folder = TempDir::new().unwrap();
    let log = folder.path().join("run/events.jsonl");
    fs::create_dir(folder.path().join("run")).unwrap();
    let sound = fs::read_to_string(sample_folder().path().join("training/events.jsonl")).unwrap();
    fs::write(&log, sound.replacen('\n', "\n{\"v\":1,\"kind\":\n", 1)).unwrap();
    let report = read(&[folder.path().join("run")]).unwrap();
    let warnings = &report.runs[0].warnings;
    assert!(warnings[0].contains("events.jsonl: line 2: not an event"), "{warnings:?}");
    assert!(!report.runs[0].steps.is_empty());
    fs::write(&log, "no\nevents\n").unwrap();
    let error = read(&[folder.path().join("run")]).unwrap_err().to_string();
    assert!(error.contains("events.jsonl: line 1: not an event"), "{error}");
}

fn compared(framework: &str, throughput: f64, work: WorkCheck, ratio: Option<Ratio>) -> BenchResult {
    let run = |throughput: f64| BenchRun { throughput, others_busy: Some(0.2), ..BenchRun::default() };
    BenchResult {
        framework: framework.into(),
        runs: vec![run(0.9 * throughput), run(throughput), run(1.2 * throughput)],
        comparison: Some(Comparison {
            group: "resnet50 train b8 fp32".into(),
            variant: "eager".into(),
            fused: true,
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
    let mut longer = BenchResult { steps: 8, ..compared("pytorch", 8.0, same.clone(), ratio) };
    longer.framework_version = "2.15.0".into();
    longer.options.insert("channels_last".into(), true.into());
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
        "<details class=\"fold\"><summary>resnet50, training, batch 8, fp32: images/s</summary>",
        "NGC PyTorch 1.5.0a0",
        "12411.97",
    ] {
        assert!(html.contains(text), "{text} is missing");
    }
    let drawn = charts(&html);
    assert_eq!(drawn.len(), 1, "a single ratio has no chart");
    let bars = drawn[0]["bars"].as_array().unwrap();
    let details: Vec<&serde_json::Value> = bars.iter().map(|bar| &bar["details"]).collect();
    assert_eq!(details[..2], [&serde_json::json!(["10.00 images/s"]), &serde_json::json!(["8.000 images/s"])]);
    assert_eq!(details[2], &serde_json::json!(["9.000 images/s", "not the same work"]));
    assert_eq!((&bars[0]["tone"], &bars[0]["range"]), (&"own".into(), &serde_json::json!([9.0, 12.0])));
    let markdown = report.to_markdown("Frameworks", Path::new("")).unwrap();
    for text in [
        "| framework | speed | Bessemer is | work |",
        "| pytorch (eager) [",
        "1.25 x (1.20-1.50) | the same |",
        "| pytorch | 2.15.0 | eager | channels_last true |",
        "## Environment",
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
fn runs_of_one_name_are_told_apart_by_the_folders_above() {
    let folder = TempDir::new().unwrap();
    for (name, seed) in [("fp32/seed-0", 0), ("bf16/seed-0", 0), ("bf16/seed-1", 1)] {
        finished(folder.path(), name, seed, 0.5);
    }
    let report = read(&["fp32", "bf16"].map(|part| folder.path().join(part))).unwrap();
    let names: Vec<&str> = report.runs.iter().map(|run| &*run.name).collect();
    assert_eq!(names, ["fp32/seed-0", "bf16/seed-0", "seed-1"]);
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
        "| seed-2 | resnet20-cifar | 1 | 64 | bf16 | top-1 80.00 % | – | 42 s |",
        "| resnet20-cifar | bf16, batch 64 | **75.00 %** top-1, mean of 3 seeds, **5.00 %** standard deviation |",
        "| resnet20-cifar, bf16 | top-1 | 3 | 75.000 %, 80.000 %, 70.000 % | 75.000 % | 5.000 % |",
        "| conv2d | 53 | 3.00 | 75.0 % | 2.00 |",
    ];
    for text in expected {
        assert!(markdown.contains(text), "{text} is not in:\n{markdown}");
    }
    let html = report.to_html("A report").unwrap();
    assert!(html.contains("Where a step of bessemer goes") && html.contains("Stability over seeds"));
    let of_seeds = &headline::headlines(&report)[0];
    assert_eq!((&*of_seeds.title, &*of_seeds.work), ("resnet20-cifar", "bf16, batch 64"));
    let figures: Vec<_> = of_seeds.figures.iter().map(|figure| (&*figure.value, &*figure.label)).collect();
    assert_eq!(figures, [("75.00 %", "top-1, mean of 3 seeds"), ("5.00 %", "standard deviation")]);
}

/// A step of bert-tiny: tokens of a sequence, micro-batches, type of numbers, sequences a second.
fn of_text(tokens: u64, accumulation: u64, precision: &str, throughput: f64) -> BenchResult {
    let counts = measure::Request::of("bert-tiny", Mode::Train, 8);
    let machine = Machine::look(&*counts.device.open().unwrap());
    let mut result = measure::failed(&counts, &machine, &MeasureError::Memory { needed: 2, available: 1 });
    result.options.remove(measure::ERROR_OPTION);
    result.options.insert("sequence_length".to_owned(), tokens.into());
    result.options.insert("accumulation".to_owned(), accumulation.into());
    BenchResult { precision: precision.to_owned(), throughput, ..result }
}

/// The block of Markdown below a title, with what follows up to the next one.
fn section<'a>(markdown: &'a str, title: &str) -> &'a str {
    let (_, rest) = markdown.split_once(&format!("# {title}\n")).unwrap_or_else(|| panic!("{title}: {markdown}"));
    rest.split_once("\n#").map_or(rest, |(section, _)| section)
}

#[test]
fn unlike_work_has_rows_of_its_own() {
    let benches = vec![
        of_text(32, 1, "fp32", 100.0),
        of_text(64, 1, "fp32", 40.0),
        of_text(32, 1, "bf16", 150.0),
        of_text(64, 1, "bf16", 80.0),
        of_text(32, 4, "fp32", 120.0),
    ];
    let report = Report { benches: benches.clone(), ..Report::default() };
    let markdown = report.to_markdown("A report", Path::new("")).unwrap();
    let table = section(&markdown, "Training performance");
    let expected = [
        "| model, framework | tokens | accumulation | devices | batch a device | samples/s fp32 | samples/s bf16 | bf16 over fp32 | weak",
        "| bert-tiny, bessemer | 32 | 1 | 1 | 8 | 100.0 | 150.0 | 1.50 x | 1.00 x | 1.00 x |",
        "| bert-tiny, bessemer | 32 | 4 | 1 | 8 | 120.0 | – | – | 1.00 x | – |",
        "| bert-tiny, bessemer | 64 | 1 | 1 | 8 | 40.00 | 80.00 | 2.00 x | 1.00 x | 1.00 x |",
        "All on random inputs.",
    ];
    for text in expected {
        assert!(table.contains(text), "{text} is not in:\n{table}");
    }
    assert_eq!(table.matches("\n| bert-tiny").count(), 3, "{table}");
    let mut others = benches.clone();
    others[0].options.insert("clip".to_owned(), false.into());
    others[2].precision = "fp16".to_owned();
    others[3].precision = "tf32".to_owned();
    let markdown = Report { benches: others, ..Report::default() }.to_markdown("A report", Path::new("")).unwrap();
    assert!(!markdown.contains("# Training performance"), "no two of them did one work: {markdown}");
    let infer = |result: BenchResult| BenchResult { mode: "infer".to_owned(), ..result };
    let report = Report { benches: benches.into_iter().map(infer).collect(), ..Report::default() };
    let markdown = report.to_markdown("A report", Path::new("")).unwrap();
    let table = section(&markdown, "Inference performance");
    for text in
        ["| bert-tiny, bessemer | 32 | 1 | fp32 | 8 | 100.0 |", "| bert-tiny, bessemer | 64 | 1 | fp32 | 8 | 40.00 |"]
    {
        assert!(table.contains(text), "{text} is not in:\n{table}");
    }
}

#[test]
fn real_data_stand_apart_from_random_inputs() {
    let loaded = |precision: &str, throughput: f64| BenchResult {
        data: "texts".to_owned(),
        input_wait: Some(0.125),
        ..of_text(32, 1, precision, throughput)
    };
    let mut benches = vec![of_text(32, 1, "fp32", 100.0), loaded("fp32", 90.0), loaded("bf16", 117.0)];
    let report = Report { benches: benches.clone(), ..Report::default() };
    let markdown = report.to_markdown("A report", Path::new("")).unwrap();
    let table = section(&markdown, "Training performance");
    assert!(table.contains("| 32 | random inputs | 1 | 8 | 100.0 | – | – |"), "{table}");
    assert!(
        table.contains("| 32 | texts | 1 | 8 | 90.00 | 117.0 | 1.30 x | 1.00 x | 1.00 x | 12.5 %, 12.5 % |"),
        "{table}"
    );
    assert!(!table.contains("All on random inputs."), "{table}");
    let (random, of_texts) =
        (section(&markdown, "bert-tiny, training"), section(&markdown, "bert-tiny, training on texts"));
    assert!(random.contains("100 sequences/s") && random.contains("\n\nAll on random inputs.\n"), "{random}");
    assert!(!random.contains("waits for batches"), "{random}");
    assert!(
        of_texts.contains("| p99 ms | waits for batches | spread |") && of_texts.contains("| 12.5 % |"),
        "{of_texts}"
    );
    assert!(!of_texts.contains("100 sequences/s") && !of_texts.contains("random inputs"), "{of_texts}");
    let works: Vec<String> = headline::headlines(&report).into_iter().map(|headline| headline.work).collect();
    assert_eq!(works, ["training, batch 8, fp32", "training on texts, batch 8, bf16"]);
    let html = page(&report);
    assert!(html.contains("<th>waits for batches</th>") && html.contains(">All on random inputs.</p>"));
    benches[1].options.insert(measure::ERROR_OPTION.to_owned(), "no such data".into());
    let markdown = Report { benches, ..Report::default() }.to_markdown("A report", Path::new("")).unwrap();
    for table in markdown.split("\n\n").filter(|block| block.starts_with('|')) {
        let columns: Vec<usize> = table.trim().lines().map(|line| line.matches('|').count()).collect();
        assert!(columns.windows(2).all(|pair| pair[0] == pair[1]), "{table}");
    }
}

#[test]
fn speed_ups_over_ranks_are_a_chart_beside_the_ideal() {
    let ranks = |tokens: u64, devices: u64, speed_up: f64| BenchResult {
        devices,
        scaling: Some(Scaling { step_samples: 8 * devices, speed_up, efficiency: 1.0, ..Scaling::default() }),
        ..of_text(tokens, devices, "fp32", 10.0 * speed_up)
    };
    let benches = vec![ranks(32, 1, 1.0), ranks(64, 1, 1.0), ranks(32, 4, 3.0), ranks(32, 2, 1.75)];
    let html = page(&Report { benches, ..Report::default() });
    let drawn = charts(&html);
    assert_eq!(drawn.len(), 1, "64 tokens were measured on one rank alone");
    let [ideal, measured] = [0, 1].map(|index| &drawn[0]["curves"][index]);
    assert_eq!(ideal["points"], serde_json::json!([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]]));
    assert_eq!(measured["points"], serde_json::json!([[1.0, 1.0], [2.0, 1.75], [4.0, 3.0]]));
    assert!(html.contains("8 sequences of 32 a rank") && html.contains("8 sequences of 64 a rank"));
}

#[test]
fn accuracy_has_the_last_evaluation_and_the_best() {
    let folder = TempDir::new().unwrap();
    finished(folder.path(), "a", 1, 0.7);
    let mut report = read(&[folder.path().join("a")]).unwrap();
    let eval = |top1: f64| EvalInfo { metrics: [("top1".to_owned(), top1)].into(), ..EvalInfo::default() };
    report.runs[0].evals = vec![(10, eval(0.5)), (30, eval(0.75)), (50, eval(0.7))];
    report.runs[0].info.as_mut().unwrap().hosts = vec!["left".into(), "right".into()];
    let markdown = report.to_markdown("A report", Path::new("")).unwrap();
    let table = section(&markdown, "Accuracy");
    let row = "| a | resnet20-cifar | 2 | 64 | bf16 | top-1 70.00 % | top-1 75.00 %, step 30 | 42 s |";
    assert!(table.contains(row), "{table}");
}
