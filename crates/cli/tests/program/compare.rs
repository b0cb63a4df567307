//! Comparisons with peers that are made for it: good ones, and such as fail in every way.

use crate::common::{Ran, bessemer, ran};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const BERT: &str =
    "compare bert-tiny --sequence-length 16 --predictions 2 --batch-size 2 --warmup 1 --steps 3 --repeat 2";

/// A folder with a home for caches, in which the program is called with peers for tests.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { folder: TempDir::new().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bessemer"));
        command.current_dir(self.folder.path()).args(arguments.split_whitespace());
        if ["compare", "bench suite"].iter().any(|name| arguments.starts_with(name)) {
            command.args(["--python", "python3", "--patience", "0", "--threads", "1"]);
        }
        command
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env("XDG_DATA_HOME", self.path("data"))
            .env("BESSEMER_PEERS", Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fakes"))
            .env("BESSEMER", env!("CARGO_BIN_EXE_bessemer"))
            .env("FAKE_CALLS", self.path("calls"))
            .env("FAKE_PROCESSES", self.path("processes"));
        command
    }

    fn run(&self, arguments: &str) -> Ran {
        ran(&mut self.command(arguments))
    }

    /// Events of a comparison, by framework and variant.
    fn results(&self, out: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.path(out).join("results.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

fn row<'a>(results: &'a [Value], framework: &str) -> &'a Value {
    let mut rows = results.iter().filter(|result| result["framework"] == framework);
    let row = rows.next().unwrap_or_else(|| panic!("no row of {framework}"));
    assert!(rows.next().is_none(), "two rows of {framework}");
    row
}

fn error(row: &Value) -> &str {
    row["options"]["error"].as_str().unwrap_or("")
}

#[test]
fn a_peer_is_measured_beside_bessemer() {
    let place = Place::new();
    let said = place.run(&format!("{BERT} --mode train --frameworks bessemer,steady,perturbed --out out")).ok();
    let results = place.results("out");
    let (own, steady, off) = (row(&results, "bessemer"), row(&results, "steady"), row(&results, "perturbed"));
    assert_eq!(
        (own["comparison"]["variant"].as_str(), own["comparison"]["fused"].as_bool()),
        (Some("fused"), Some(true))
    );
    for result in [own, steady, off] {
        assert_eq!(result["runs"].as_array().unwrap().len(), 2);
        for (index, run) in result["runs"].as_array().unwrap().iter().enumerate() {
            assert_eq!((run["round"].as_u64(), run["step_ms"].as_array().unwrap().len()), (Some(index as u64 + 1), 3));
            assert!(run["wall_s"].as_f64().unwrap() > 0.0 && run["others_busy"].is_number(), "{run}");
        }
        assert!(result["throughput"].as_f64().unwrap() > 0.0 && result["peak_memory_bytes"].as_u64().unwrap() > 0);
        assert_eq!((result["v"].as_u64(), result["kind"].as_str()), (Some(1), Some("bench")));
        assert!(result["published_style"]["mean_fastest_95_but_two_ms"].is_number());
    }
    // Naps of 2 ms: 2 samples in no less.
    let rate = steady["throughput"].as_f64().unwrap();
    assert!(rate < 1000.0, "{rate}");
    assert_eq!(steady["comparison"]["work"]["verdict"], "same");
    assert_eq!(steady["comparison"]["work"]["first"].as_f64(), Some(0.0));
    let ratio = steady["comparison"]["ratio"]["median"].as_f64().unwrap();
    let of_round = |round: usize| {
        let rate = |result: &Value| result["runs"][round]["throughput"].as_f64().unwrap();
        rate(own) / rate(steady)
    };
    assert!((ratio - (of_round(0) + of_round(1)) / 2.0).abs() < 1e-9 * ratio);

    // The same answers but for 0.2 %.
    assert_eq!(off["comparison"]["work"]["verdict"], "different");
    assert!(off["comparison"]["ratio"].is_null());
    assert!(said.out.contains("not the same") && said.out.contains("2.0e-3, 1e-4 are allowed"), "{}", said.out);
    assert!(said.out.contains("bert-tiny, training, batch 2, fp32: sequences/s"), "{}", said.out);
    assert!(said.err.contains("perturbed+plain: not the same work"), "{}", said.err);
    // In turn: checks, then a run each, twice.
    let timed = place.calls().iter().filter(|call| call.starts_with("time")).count();
    assert_eq!(timed, 4, "{:?}", place.calls());

    let again = place.run(&format!("{BERT} --mode train --frameworks bessemer,steady,perturbed --out out")).ok();
    assert!(again.err.contains("measured already"), "{}", again.err);
    assert_eq!((again.out, place.results("out").len()), (said.out, 3));
}

#[test]
fn outputs_of_inference_are_compared() {
    let place = Place::new();
    place.run(&format!("{BERT} --mode infer --frameworks steady,perturbed,bessemer+unfused,bessemer --out out")).ok();
    let results = place.results("out");
    let verdict = |row: &Value| row["comparison"]["work"]["verdict"].as_str().unwrap().to_owned();
    assert_eq!(verdict(row(&results, "steady")), "same");
    assert_eq!(verdict(row(&results, "perturbed")), "different");
    let off = row(&results, "perturbed")["comparison"]["work"]["first"].as_f64().unwrap();
    assert!((off - 0.002).abs() < 1e-5, "{off}");
    let own: Vec<&Value> = results.iter().filter(|result| result["framework"] == "bessemer").collect();
    assert_eq!((own.len(), own[0]["comparison"]["variant"].as_str()), (2, Some("unfused")));
    assert!(own[0]["comparison"]["ratio"]["median"].is_number() && own[1]["comparison"]["ratio"].is_null());
    assert_eq!(verdict(own[0]), "same");
}

#[test]
fn detections_are_compared_with_those_who_suppress() {
    let place = Place::new();
    let compare = "compare efficientdet-tiny --mode infer --batch-size 2 --warmup 0 --steps 2 --repeat 1";
    let said = place.run(&format!("{compare} --frameworks bessemer,steady,perturbed --out out")).ok().out;
    let to_detections = |result: &Value| result["options"]["outputs"] == "detections";
    let (detections, network): (Vec<Value>, Vec<Value>) = place.results("out").into_iter().partition(to_detections);
    let work = |framework: &str| row(&detections, framework)["comparison"]["work"].clone();
    assert_eq!((work("steady")["verdict"].as_str(), work("steady")["later"].as_f64()), (Some("same"), Some(0.0)));
    assert!(row(&detections, "steady")["comparison"]["ratio"]["median"].is_number());
    // All numbers are off by 0.2 %, scores and classes as well.
    assert_eq!(work("perturbed")["verdict"], "different");
    assert!(work("perturbed")["note"].as_str().unwrap().contains("its scores are 2.0e-3 from Bessemer's"), "{said}");
    assert!(said.contains("efficientdet-tiny, inference to detections, batch 2, fp32"), "{said}");

    assert_eq!(network.len(), 3, "{said}");
    assert!(error(row(&network, "steady")).contains("does not end with the outputs of the network"), "{said}");
    assert!(row(&network, "bessemer")["throughput"].as_f64().unwrap() > 0.0);
    assert!(said.contains("inference to the outputs of the network, without suppression"), "{said}");

    let one = place.run(&format!("{compare} --frameworks bessemer --outputs network --out one")).ok();
    assert_eq!(place.results("one").len(), 1, "{}", one.out);
    let other = "compare bert-tiny --mode infer --frameworks bessemer --outputs network --out other";
    place.run(other).fails(2, &["--outputs", "bert-tiny has outputs of one kind"]);
}

#[test]
fn what_fails_is_a_row_and_the_rest_goes_on() {
    let place = Place::new();
    let frameworks = "bessemer,crashing,hanging,rubbish,hungry,absent,steady,steady+odd";
    place.run(&format!("{BERT} --mode train --frameworks {frameworks} --limit 5 --out out")).fails(2, &["absent"]);
    let frameworks = frameworks.replace(",absent", "");
    let six = BERT.replace("--batch-size 2", "--batch-size 6");
    let said = place.run(&format!("{six} --mode train --frameworks {frameworks} --limit 5 --out out")).ok();
    let results = place.results("out");
    for (framework, expected) in [
        ("crashing", "failed: ValueError: a tensor went missing"),
        ("hanging", "too slow: not done after 5.0 s"),
        ("rubbish", "no valid answer: no result on its standard output"),
        ("hungry", "out of memory: 6 samples"),
    ] {
        assert_eq!(error(row(&results, framework)), expected);
        assert!(said.out.contains(expected), "{}", said.out);
    }
    let steady: Vec<&Value> = results.iter().filter(|result| result["framework"] == "steady").collect();
    assert!(steady[0]["throughput"].as_f64().unwrap() > 0.0);
    assert_eq!(error(steady[1]), "not possible: no such variant; there are plain, merged");
    assert!(row(&results, "bessemer")["throughput"].as_f64().unwrap() > 0.0);
    for process in fs::read_to_string(place.path("processes")).unwrap().lines() {
        assert!(!is_alive(process), "{process} outlived the comparison");
    }
}

#[test]
fn the_largest_batch_is_searched_for() {
    let place = Place::new();
    let max = BERT.replace("--batch-size 2", "--batch-size 2,max").replace("--steps 3", "--steps 1");
    place.run(&format!("{max} --mode train --frameworks hungry --out out")).ok();
    let results = place.results("out");
    let batches: Vec<u64> = results.iter().map(|result| result["batch_size"].as_u64().unwrap()).collect();
    assert_eq!(batches, [2, 5]);
    assert_eq!(results[1]["comparison"]["largest_batch"], true);
    assert_eq!(results[1]["comparison"]["work"]["verdict"], "same", "Bessemer is asked though it is not measured");
    let tried: Vec<String> = place.calls().into_iter().filter(|call| call.contains("time")).collect();
    let tried: Vec<&str> = tried.iter().map(|call| call.split(' ').nth(2).unwrap()).collect();
    // Batch 2 twice; doubled, then halved; two rounds with the largest.
    assert_eq!(tried, ["b2", "b2", "b1", "b2", "b4", "b8", "b6", "b5", "b5", "b5"]);
}

#[test]
fn a_comparison_that_was_killed_goes_on() {
    let place = Place::new();
    let arguments =
        format!("{} --mode train --frameworks bessemer,steady --out out", BERT.replace("--repeat 2", "--repeat 6"));
    let count = || place.calls().iter().filter(|call| call.starts_with("time")).count();
    let mut child = spawn(&place, &arguments, "0.1");
    wait_for("three rounds", || count() >= 3);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(fs::read_to_string(place.path("out/results.jsonl")).unwrap_or_default().is_empty());
    let before = count();
    place.run(&arguments).ok();
    // What was cut short is measured once more.
    let after = count();
    assert!(before <= 4 && (6..=7).contains(&after), "{before} runs, then {after}");
    let results = place.results("out");
    assert_eq!(row(&results, "steady")["runs"].as_array().unwrap().len(), 6);
    assert_eq!(results.len(), 2);
}

#[test]
fn nothing_outlives_a_comparison_that_is_killed_or_stopped() {
    let place = Place::new();
    for signal in ["KILL", "INT"] {
        let _ = fs::remove_file(place.path("processes"));
        let arguments = format!("{BERT} --mode train --frameworks hanging --out {signal}");
        let mut child = spawn(&place, &arguments, "0.002");
        let processes = || fs::read_to_string(place.path("processes")).unwrap_or_default();
        wait_for("a run that hangs", || processes().lines().count() == 2);
        assert!(processes().lines().all(is_alive));
        place.run(&arguments).fails(1, &["another comparison is being made"]);
        let id = child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{signal}"), &id]).status().unwrap().success());
        let status = child.wait().unwrap();
        if signal == "INT" {
            assert_eq!(status.code(), Some(130));
        }
        wait_for("the end of all processes", || !processes().lines().any(is_alive));
    }
}

#[test]
fn a_plan_is_measured_and_told_beforehand() {
    let place = Place::new();
    let plan = "models = ['bert-tiny']\nframeworks = ['bessemer', 'steady']\nsequence_length = 16\npredictions = 2\nwarmup = 0\n\
                steps = 2\nrepeat = 1\nfusion = ['on', 'off']\n[[part]]\nmodes = ['train']\nbatch_sizes = [1, 2]\n\
                [[part]]\nmodes = ['infer']\nbatch_sizes = [2]\nprecisions = ['bf16']\n";
    fs::write(place.path("plan.toml"), plan).unwrap();
    let said = place.run("compare --plan plan.toml --out out --dry-run").ok();
    assert!(
        said.err.contains("bert-tiny train b2 fp32: bessemer+fused, bessemer+unfused, steady+plain, steady+merged"),
        "{}",
        said.err
    );
    assert!(said.err.contains("at a guess"), "{}", said.err);
    place.run("compare --plan plan.toml --out out").ok();
    let results = place.results("out");
    assert_eq!(results.len(), 12);
    let errors: Vec<&str> = results.iter().map(error).filter(|error| !error.is_empty()).collect();
    assert_eq!(errors, ["not possible: it has no infer of bert-tiny in bf16 on cpu"; 2]);
    let fused = results.iter().filter(|result| result["comparison"]["fused"] == true).count();
    assert_eq!(fused, 6);
    fs::write(place.path("plan.toml"), plan.replace("steps", "stairs")).unwrap();
    place.run("compare --plan plan.toml --out out").fails(2, &["plan.toml", "stairs"]);
}

const SUITE: &str = "bench suite --models bert-tiny --frameworks bessemer,steady --batch-size 2 --ranks 0 --warmup 1 --steps 3 \
                     --repeat 1 --precision fp32";

#[test]
fn a_suite_is_measured_goes_on_and_becomes_a_report() {
    let place = Place::new();
    let said = place.run(&format!("{SUITE} --out out --dry-run")).ok();
    let plan: Vec<&str> = said.out.lines().filter(|line| line.starts_with("bert-tiny")).collect();
    let names = |lines: &[&str]| -> Vec<String> {
        lines.iter().map(|line| line.split("  ").next().unwrap().to_owned()).collect()
    };
    let cells = [
        "bert-tiny train b2 fp32",
        "bert-tiny infer b2 fp32",
        "bert-tiny train b2 fp32 unfused",
        "bert-tiny infer b2 fp32 unfused",
        "bert-tiny train b2 fp32 unclipped",
    ];
    assert_eq!(names(&plan), cells, "{}", said.out);
    assert!(plan.iter().all(|line| line.contains("1 + 3")), "{}", said.out);
    assert!(
        said.out.contains("5 of 5 measured, at a guess") && !place.path("out/report.html").exists(),
        "{}",
        said.out
    );

    let said = place.run(&format!("{SUITE} --out out")).ok();
    let results = place.results("out");
    assert_eq!(results.len(), 10);
    assert!(results.iter().all(|result| error(result).is_empty()), "{results:?}");
    let unclipped: Vec<&Value> = results.iter().filter(|result| result["options"]["clip"] == false).collect();
    assert_eq!(unclipped.len(), 2);
    let fused = results.iter().filter(|result| result["comparison"]["fused"] == true).count();
    assert_eq!(fused, 3, "Bessemer's, where operations are merged");
    assert!(said.out.contains("bert-tiny, training, batch 2, fp32, without clipping: sequences/s"), "{}", said.out);
    assert!(said.out.contains("steady (plain)"), "{}", said.out);
    let report = fs::read_to_string(place.path("out/report.md")).unwrap();
    assert!(report.contains("bert-tiny, inference, batch 2, fp32, op by op"), "{report}");
    assert!(fs::metadata(place.path("out/report.html")).unwrap().len() > 10_000);

    // The folder knows what it is for; what is measured is not measured again.
    let calls = place.calls().len();
    let again = place.run("bench suite --out out").ok();
    assert_eq!((again.err.matches("measured already").count(), place.calls().len()), (5, calls), "{}", again.err);
    assert_eq!(place.results("out"), results);
    let other = "out: holds another suite (models, repeats); --out names another folder";
    place.run("bench suite --out out --models resnet18 --repeat 3").fails(2, &[other]);
    place.run("bench suite --out new --models bret").fails(2, &["bret"]);
    place.run("bench suite --out new --budget none").fails(2, &["expected hours, such as 8 or 0.5"]);
    fs::write(place.path("out/suite.json"), "{}").unwrap();
    place.run("bench suite --out out").fails(2, &["its suite.json is of another version, or damaged"]);
}

#[test]
fn what_a_suite_has_no_time_for_is_told() {
    let place = Place::new();
    let few = place.run(&format!("{SUITE} --out none --budget 0.00001 --dry-run")).ok();
    assert!(few.out.contains("0 of 5 measured") && few.out.contains("  bert-tiny train b2 fp32 ("), "{}", few.out);
    let suite = SUITE.replace("--steps 3", "--steps 20");
    place.run(&format!("{suite} --out out --budget 10 --modes train --dry-run")).ok();
    let said = place.run(&format!("{suite} --out out --budget 10 --modes infer")).ok();
    assert!(said.out.contains("2 of 2 measured") && !said.out.contains("left out"), "{}", said.out);
    // Time that was used before counts, and more can be given.
    let path = place.path("out/suite.json");
    let mut saved: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert!(saved["spent_s"].as_f64().unwrap() > 0.0);
    saved["spent_s"] = 36_000.0.into();
    fs::write(&path, saved.to_string()).unwrap();
    let rows = fs::read_to_string(place.path("out/results.jsonl")).unwrap();
    let kept: Vec<&str> = rows.lines().filter(|line| !line.contains("b2 fp32 unfused")).collect();
    assert_eq!(kept.len(), 2, "{rows}");
    fs::write(place.path("out/results.jsonl"), kept.join("\n") + "\n").unwrap();
    let said = place.run("bench suite --out out").ok();
    assert!(
        said.out.contains("left out (a larger --budget measures it): bert-tiny infer b2 fp32 unfused"),
        "{}",
        said.out
    );
    let said = place.run("bench suite --out out --budget 20").ok();
    assert!(!said.out.contains("left out") && place.results("out").len() == 4, "{}", said.out);
}

#[test]
fn the_window_agrees_with_another_clock() {
    let place = Place::new();
    let steps = BERT.replace("--steps 3", "--steps 60").replace("--repeat 2", "--repeat 1");
    let mut command = place.command(&format!("{steps} --mode train --frameworks steady --out out"));
    ran(command.env("FAKE_NAP_S", "0.05").env("FAKE_MARKS", place.path("mark"))).ok();
    let window = 2.0 * 60.0 / row(&place.results("out"), "steady")["throughput"].as_f64().unwrap();
    let written = |mark: &str| fs::metadata(place.path(mark)).unwrap().modified().unwrap();
    let between = |first: &str, last: &str| written(last).duration_since(written(first)).unwrap().as_secs_f64();
    let (inside, outside) =
        (between("mark.after_begin", "mark.before_end"), between("mark.before_begin", "mark.after_end"));
    // By that of the file system, whose times are those of its last tick.
    let tick = 0.02;
    assert!(inside - tick < window && window < outside + tick, "{window} s, between {inside} and {outside}");
    assert!(window > 3.0, "60 naps of 50 ms: {window}");
}

#[test]
fn peers_are_listed_and_installed() {
    let place = Place::new();
    let said = place.run("peers list").ok().out;
    let line = |text: &str, name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    assert!(line(&said, "bessemer").contains("fused*, unfused"), "{said}");
    assert!(line(&said, "steady").contains("not installed: `bessemer peers setup steady` installs it"), "{said}");
    let said = place.run("peers list --python python3").ok().out;
    assert!(line(&said, "steady").contains("1.2.3") && line(&said, "steady").contains("plain*, merged"), "{said}");
    assert!(line(&said, "steady").contains("electra-base-squad: train fp32, infer fp32"), "{said}");

    let measured = format!("{BERT} --mode train --frameworks steady --out out --patience 0");
    let compare = |place: &Place| ran(place.command("").args(measured.split_whitespace()));
    compare(&place).ok();
    assert!(error(row(&place.results("out"), "steady")).starts_with("not installed"));
    place.run("peers setup steady").ok();
    compare(&place).ok();
    assert_eq!(error(row(&place.results("out"), "steady")), "", "what is installed meanwhile is measured");

    let unfinished = place.path("data/bessemer/peers/steady/unfinished");
    assert!(!unfinished.exists());
    fs::write(&unfinished, "").unwrap();
    let said = place.run("peers list").ok().out;
    assert!(line(&said, "steady").contains("its installation was cut short"), "{said}");

    place.run("peers setup nothing").fails(2, &["nothing", "steady"]);
    let old = place.path("old");
    fs::create_dir_all(old.join("ancient")).unwrap();
    let toml = "name = 'ancient'\ntitle = 'Ancient'\nlanguage = 'python'\npython = '>=2.5,<2.8'\n";
    fs::write(old.join("ancient/peer.toml"), toml).unwrap();
    place.run("peers setup ancient --peers old").fails(2, &["Ancient cannot be installed on Python 3.", ">=2.5,<2.8"]);
}

#[test]
fn a_peer_in_rust_is_built_and_measured() {
    let place = Place::new();
    let setup = |peers: &str| {
        let mut command = place.command(&format!("peers setup built {peers}"));
        command.env("CARGO_NET_OFFLINE", "true");
        command
    };
    ran(setup("").env("PATH", place.folder.path())).fails(2, &["is built by `cargo`", "https://rustup.rs"]);
    ran(&mut setup("")).ok();
    let installed = place.path("data/bessemer/peers/built");
    assert!(installed.join("bin/adapter").is_file() && !installed.join("target").exists());

    place.run(&format!("{BERT} --mode infer --frameworks bessemer,built --out out")).ok();
    let results = place.results("out");
    let built = row(&results, "built");
    assert_eq!((error(built), built["comparison"]["work"]["verdict"].as_str()), ("", Some("same")));

    // A package that Cargo refuses, here without a lock, leaves what was installed before.
    fs::create_dir_all(place.path("other/built/src")).unwrap();
    let fake = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fakes/built");
    for file in ["Cargo.toml", "peer.toml", "src/main.rs"] {
        fs::copy(fake.join(file), place.path("other/built").join(file)).unwrap();
    }
    let refused = ran(&mut setup("--peers other"));
    assert!(
        refused.code == 1 && refused.err.contains("built was not built; what Cargo said is above"),
        "{}",
        refused.err
    );
    assert!(installed.join("bin/adapter").is_file());
}

#[test]
fn what_cannot_be_compared_is_told() {
    let folder = TempDir::new().unwrap();
    let run = |arguments: &str| bessemer(folder.path(), &format!("compare {arguments} --frameworks bessemer"));
    run("resnet20-cifar --mode train").fails(2, &["resnet20-cifar is not compared", "BERT"]);
    run("resnet50 --mode both").fails(2, &["`both` is no mode"]);
    run("resnet50 --mode train --batch-size 0").fails(2, &["no batch size", "max"]);
    run("resnet50 --mode train --python nowhere/python").fails(2, &["nowhere/python"]);
    run("resnet50 --mode train --accumulation 2").fails(2, &["--accumulation"]);
    bessemer(folder.path(), "bench kernels --precision fp32,bf16")
        .fails(2, &["several are for `bench train`, `bench infer`, `bench suite` and `compare`"]);
}

fn spawn(place: &Place, arguments: &str, nap_s: &str) -> Child {
    let mut command = place.command(arguments);
    command.env("FAKE_NAP_S", nap_s).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        sleep(Duration::from_millis(20));
    }
}

/// Whether a process runs; one that has ended and that nobody asked after does not.
fn is_alive(process: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
}
