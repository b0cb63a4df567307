//! All that is to be known of a GPU, in parts that are done in the order of their importance and go on where they ended: its
//! libraries, steps beside those of the processors, speeds beside predicted ones and beside PyTorch's, the numbers of every kernel.

mod report;

use crate::peers::process::{Call, Runner};
use crate::peers::protocol::{Failure, FailureKind};
use crate::show;
use bessemer_train::DeviceKind;
use bessemer_train::clock::unix_seconds;
use bessemer_train::events::{BenchResult, Event, EventBody, read_events};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How the programme is done.
#[derive(Clone, Debug)]
pub struct Options {
    /// For results and logs; parts that are done there are not done again.
    pub folder: PathBuf,
    /// The GPU.
    pub device: DeviceKind,
    /// Folders of its libraries that come before all others.
    pub gpu_libraries: Vec<PathBuf>,
    /// The Python that has PyTorch.
    pub python: PathBuf,
    /// Time of this call; parts that take longer than what is left are left to the next one.
    pub budget: Duration,
    /// Models that are small enough for a stand-in of a GPU, in place of the reference models.
    pub small: bool,
    /// Names of the parts that are done; all where there are none.
    pub parts: Vec<String>,
}

/// Why the programme cannot be done. A part that fails is a result.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Debug, thiserror::Error)]
pub enum ProgrammeError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("the programme has no part `{name}`; it has {}", known.join(", "))]
    UnknownPart { name: String, known: Vec<String> },
    #[error("interrupted; the same command goes on from here")]
    Interrupted,
}

/// What came of the programme, in this call and those before it.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The report, in Markdown.
    pub report: PathBuf,
    /// Parts that were done, and how many of them failed.
    pub done: usize,
    /// Those of them that failed.
    pub failed: usize,
    /// Names of parts for which there was no time.
    pub left: Vec<String>,
}

/// What came of a part.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Outcome {
    name: String,
    /// Seconds of Unix time at which it ended.
    time: f64,
    seconds: f64,
    /// Why it failed.
    problem: Option<String>,
    found: Found,
}

/// Results of a part; nothing where it failed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Found {
    #[default]
    Nothing,
    /// The report of `doctor`.
    Machine(Value),
    /// That of `gpu-selftest`.
    SelfTest(Value),
    Steps(Vec<StepsBeside>),
    Speed(Box<BenchResult>, Predicted),
    Beside(Vec<BenchResult>),
}

/// A step by the GPU's sheet, in seconds; `None` where there is no sheet of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Predicted {
    sheet: String,
    seconds: Option<f64>,
}

/// Steps of a model on the GPU, beside the same on the processors.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct StepsBeside {
    model: String,
    precision: String,
    steps: usize,
    /// Largest difference of a loss, relative.
    difference: f64,
    /// Whether a second run on the GPU had the same losses to the bit; none if it measured algorithms that the first had no time for, and so has others.
    is_repeatable: Option<bool>,
}

struct Part {
    name: &'static str,
    /// What it takes at most, and without which it is not begun.
    limit: Duration,
    work: Work,
}

enum Work {
    Doctor,
    SelfTest,
    /// With more words of `train`.
    Steps(&'static [StepsOf], &'static str),
    /// Words of `bench`: the mode, the step, and how often it is measured.
    Speed(&'static str, String, &'static str),
    /// Words of `compare`.
    Beside(String),
}

/// Algorithms of a plan, by what they compute.
type Algorithms = BTreeMap<String, String>;

/// A model, its data and its precision.
type StepsOf = (&'static str, &'static str, &'static str);

const STEPS: &[StepsOf] = &[
    ("resnet20-cifar", "shapes", "fp32"),
    ("resnet20-cifar", "shapes", "fp16"),
    ("bert-mini", "synthetic", "fp32"),
    ("bert-mini", "synthetic", "bf16"),
    ("electra-tiny", "synthetic", "fp32"),
    ("efficientdet-tiny", "shapes", "fp32"),
    ("mask-rcnn-tiny", "shapes", "fp32"),
];
const STEP_COUNT: usize = 5;
/// Words of `train` for a processor that stands in for a GPU.
const FEW_PIXELS: &str = "--set data.image_size=16 --set data.eval_image_size=16 --set data.eval_resize=16 \
                          --set data.train_samples=20 --set data.eval_samples=4 --set eval.batch_size=4";
const COUNTS: &str = "--warmup 5 --steps 20 --repeat 3";
/// Beside PyTorch: every repeat of every variant starts a process, which takes longer than its steps.
const FEW_COUNTS: &str = "--warmup 5 --steps 20 --repeat 2";
const PARTS: &str = "parts";
const LOGS: &str = "logs";

fn parts(small: bool) -> Vec<Part> {
    let part = |name, seconds, work| Part { name, limit: Duration::from_secs(seconds), work };
    if small {
        let counts = "--warmup 0 --steps 1 --repeat 1";
        let bert = "bert-tiny --mode infer --sequence-length 8 --predictions 1 --precision bf16";
        return vec![
            part("machine", 60, Work::Doctor),
            part("resnet20", 200, Work::Speed("infer", "resnet20-cifar --batch-size 1".to_owned(), counts)),
            part("bert beside PyTorch", 200, Work::Beside(format!("{bert} --batch-size 1 {counts}"))),
            part("steps", 300, Work::Steps(&STEPS[..1], FEW_PIXELS)),
            part("self-test", 300, Work::SelfTest),
        ];
    }
    let speed = |mode, step: &str| Work::Speed(mode, step.to_owned(), COUNTS);
    let beside = |words: &str| Work::Beside(format!("{words} {FEW_COUNTS}"));
    let resnet = "resnet50 --batch-size 256 --precision fp16";
    let bert = "bert-base --batch-size 256 --sequence-length 128 --precision bf16";
    let squad = "electra-base-squad --batch-size 32 --sequence-length 384 --precision bf16";
    vec![
        part("machine", 20, Work::Doctor),
        part("steps", 120, Work::Steps(STEPS, "")),
        part("ResNet-50", 60, speed("train", resnet)),
        part("ResNet-50 beside PyTorch", 300, beside(&format!("{resnet} --mode train"))),
        part("BERT-base", 60, speed("train", bert)),
        part("BERT-base beside PyTorch", 300, beside(&format!("{bert} --mode train"))),
        part(
            "ELECTRA-base",
            60,
            speed("train", "electra-base --batch-size 128 --sequence-length 128 --precision bf16"),
        ),
        part("EfficientDet-D0", 120, speed("train", "efficientdet-d0 --batch-size 64 --precision fp16")),
        part("Mask R-CNN", 60, speed("train", "mask-rcnn --batch-size 8 --precision fp16")),
        part("self-test", 240, Work::SelfTest),
        part("ResNet-50 inference", 90, speed("infer", resnet)),
        part("ResNet-50 inference beside PyTorch", 200, beside(&format!("{resnet} --mode infer"))),
        part("ELECTRA-base on questions beside PyTorch", 200, beside(&format!("{squad} --mode train"))),
    ]
}

/// Does the parts that are not done yet, as far as the time goes, and writes the report of all. `notify` receives a line for each.
///
/// # Errors
/// A part that there is not; a folder that cannot be written; a stop on request.
pub fn run(options: &Options, runner: &Runner, notify: &mut dyn FnMut(&str)) -> Result<Summary, ProgrammeError> {
    let programme = Programme { options, runner, begun: Instant::now() };
    let parts = parts(options.small);
    let known = || parts.iter().map(|part| word(part.name)).collect::<Vec<_>>();
    if let Some(name) = options.parts.iter().find(|name| !known().contains(name)) {
        return Err(ProgrammeError::UnknownPart { name: name.clone(), known: known() });
    }
    for name in [PARTS, LOGS] {
        let folder = options.folder.join(name);
        fs::create_dir_all(&folder).map_err(at(&folder))?;
    }
    let report = options.folder.join("report.md");
    let save = |outcomes: &[Outcome]| fs::write(&report, report::markdown(outcomes)).map_err(at(&report));
    let (mut outcomes, mut left) = (Vec::new(), Vec::new());
    for part in parts {
        let name = word(part.name);
        let path = options.folder.join(PARTS).join(format!("{name}.json"));
        if let Some(known) = read(&path).filter(|known: &Outcome| known.problem.is_none()) {
            notify(&format!("{}: done already", part.name));
            outcomes.push(known);
            continue;
        }
        if !options.parts.is_empty() && !options.parts.contains(&name) {
            continue;
        }
        if programme.left() < part.limit {
            notify(&format!("{}: left, it may take {}", part.name, show::seconds(part.limit.as_secs_f64())));
            left.push(part.name.to_owned());
            continue;
        }
        let outcome = programme.part(&part)?;
        let seconds = show::seconds(outcome.seconds);
        match &outcome.problem {
            None => notify(&format!("{}: done in {seconds}", part.name)),
            Some(problem) => notify(&format!("{}: {problem} ({seconds})", part.name)),
        }
        let text = serde_json::to_string_pretty(&outcome).expect("an outcome has string keys");
        fs::write(&path, text).map_err(at(&path))?;
        outcomes.push(outcome);
        save(&outcomes)?;
    }
    save(&outcomes)?;
    let failed = outcomes.iter().filter(|outcome| outcome.problem.is_some()).count();
    Ok(Summary { report, done: outcomes.len(), failed, left })
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> ProgrammeError {
    let path = path.to_owned();
    move |source| ProgrammeError::Io { path, source }
}

fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// A name as that of a file.
fn word(name: &str) -> String {
    name.to_lowercase().replace(' ', "-")
}

struct Programme<'a> {
    options: &'a Options,
    runner: &'a Runner,
    begun: Instant,
}

impl Programme<'_> {
    fn left(&self) -> Duration {
        self.options.budget.saturating_sub(self.begun.elapsed())
    }

    fn part(&self, part: &Part) -> Result<Outcome, ProgrammeError> {
        let started = Instant::now();
        let deadline = started + part.limit;
        let (found, failure) = match &part.work {
            Work::Doctor => {
                whole(self.say(part.name, deadline, "doctor --json", true).and_then(json).map(Found::Machine))
            }
            Work::SelfTest => self.self_test(part.name, deadline),
            Work::Steps(models, more) => {
                let beside = |(number, of): (usize, &StepsOf)| self.steps(part.name, deadline, number, of, more);
                let (done, failed): (Vec<_>, Vec<_>) = models.iter().enumerate().map(beside).partition(Result::is_ok);
                (Found::Steps(done.into_iter().flatten().collect()), failed.into_iter().find_map(Result::err))
            }
            Work::Speed(mode, step, counts) => whole(self.speed(part.name, deadline, mode, step, counts)),
            Work::Beside(words) => whole(self.beside(part.name, deadline, words)),
        };
        if failure.as_ref().is_some_and(|failure| failure.kind == FailureKind::Interrupted) {
            return Err(ProgrammeError::Interrupted);
        }
        let problem = failure.map(|failure| failure.to_string());
        let seconds = started.elapsed().as_secs_f64();
        Ok(Outcome { name: part.name.to_owned(), time: unix_seconds(), seconds, problem, found })
    }

    /// What this program prints when it is called with these words.
    fn say(&self, part: &str, deadline: Instant, words: &str, on_gpu: bool) -> Result<String, Failure> {
        let Options { folder, device, gpu_libraries, .. } = self.options;
        let mut command = vec![self.runner.program.display().to_string()];
        command.extend(words.split_whitespace().map(str::to_owned));
        if on_gpu {
            command.extend(["--device".to_owned(), device.to_string()]);
            let libraries = gpu_libraries.iter().map(|folder| folder.display().to_string());
            command.extend(libraries.flat_map(|folder| ["--gpu-libraries".to_owned(), folder]));
        }
        let name = words.split_whitespace().take(2).collect::<Vec<_>>().join("-");
        let log = folder.join(LOGS).join(format!("{}-{name}", word(part)));
        let limit = deadline.saturating_duration_since(Instant::now());
        Ok(self.runner.run(&Call { command: &command, processors: None, limit, log: &log })?.answer)
    }

    /// What the self-test found, also where steps of it failed.
    fn self_test(&self, part: &str, deadline: Instant) -> (Found, Option<Failure>) {
        let test = self.options.folder.join("self-test.json");
        // That of a call before is none of this one.
        let _ = fs::remove_file(&test);
        let copies = if self.options.small { "--copy-bytes 65536" } else { "" };
        let cubins = self.options.folder.join("cubins");
        let words = format!("gpu-selftest --no-speed {copies} --cubins {} --out {}", cubins.display(), test.display());
        let said = self.say(part, deadline, &words, true);
        (read(&test).map_or(Found::Nothing, Found::SelfTest), said.err())
    }

    fn steps(
        &self,
        part: &str,
        deadline: Instant,
        number: usize,
        of: &StepsOf,
        more: &str,
    ) -> Result<StepsBeside, Failure> {
        let (model, data, precision) = of;
        let losses = |run: &str, on_gpu: bool| {
            let out = self.options.folder.join("runs").join(format!("{number}-{model}-{precision}-{run}"));
            // What a call left that was ended is in the way.
            let _ = fs::remove_dir_all(&out);
            let schedule = if *data == "shapes" { "--set schedule.warmup_epochs=0" } else { "" };
            let words = format!(
                "train {model} --data {data} --precision {precision} --steps {STEP_COUNT} --quiet --set train.batch_size=4 \
                 {schedule} {more} --out {}",
                out.display()
            );
            self.say(part, deadline, &words, on_gpu)?;
            let events = read_events(&out.join("events.jsonl")).map_err(|error| failed(&error))?;
            let algorithms = events.iter().filter_map(algorithms_of).cloned().collect();
            Ok::<(Vec<f64>, Vec<Algorithms>), Failure>((events.into_iter().filter_map(loss).collect(), algorithms))
        };
        let (first, algorithms) = losses("gpu", true)?;
        let (second, algorithms_again) = losses("gpu-again", true)?;
        let (expected, _) = losses("cpu", false)?;
        if first.len() != STEP_COUNT || expected.len() != STEP_COUNT {
            return Err(failed(&format!("{model} has {} and {} losses", first.len(), expected.len())));
        }
        let distance = |(x, y): (&f64, &f64)| (x - y).abs() / y.abs().max(f64::MIN_POSITIVE);
        Ok(StepsBeside {
            model: (*model).to_owned(),
            precision: (*precision).to_owned(),
            steps: STEP_COUNT,
            difference: first.iter().zip(&expected).map(distance).fold(0.0, f64::max),
            is_repeatable: (algorithms == algorithms_again).then_some(first == second),
        })
    }

    fn speed(&self, part: &str, deadline: Instant, mode: &str, step: &str, counts: &str) -> Result<Found, Failure> {
        let words = format!("bench {mode} {step} {counts} --profile --json --quiet");
        let said = self.say(part, deadline, &words, true)?;
        let line = said.lines().find(|line| line.starts_with('{')).unwrap_or_default();
        let event: Event = serde_json::from_str(line).map_err(|error| failed(&error))?;
        let EventBody::Bench(result) = event.body else { return Err(failed(&"`bench` gave no result")) };
        let sheet = ["H200", "H100", "A100"].into_iter().find(|name| result.device_name.contains(name));
        let mut predicted = Predicted { sheet: sheet.unwrap_or_default().to_lowercase(), seconds: None };
        if sheet.is_some() && mode == "train" {
            let words = format!("explain {step} --sheet {} --json", predicted.sheet);
            let explained = json(self.say(part, deadline, &words, true)?)?;
            predicted.seconds = explained["predicted"]["all"]["seconds"].as_f64();
        }
        Ok(Found::Speed(result, predicted))
    }

    fn beside(&self, part: &str, deadline: Instant, words: &str) -> Result<Found, Failure> {
        let Options { folder, python, .. } = self.options;
        let out = folder.join(word(part));
        let words = format!(
            "compare {words} --frameworks bessemer,pytorch --patience 0 --quiet --python {} --out {}",
            python.display(),
            out.display()
        );
        self.say(part, deadline, &words, true)?;
        let events = read_events(&out.join("results.jsonl")).map_err(|error| failed(&error))?;
        let results = events.into_iter().filter_map(|event| match event.body {
            EventBody::Bench(result) => Some(*result),
            _ => None,
        });
        Ok(Found::Beside(results.collect()))
    }
}

/// All of a part, or nothing of it.
fn whole(found: Result<Found, Failure>) -> (Found, Option<Failure>) {
    match found {
        Ok(found) => (found, None),
        Err(failure) => (Found::Nothing, Some(failure)),
    }
}

fn failed(reason: &impl ToString) -> Failure {
    Failure::new(FailureKind::Failed, reason.to_string())
}

fn json(said: String) -> Result<Value, Failure> {
    serde_json::from_str(&said).map_err(|error| failed(&error))
}

fn algorithms_of(event: &Event) -> Option<&Algorithms> {
    match &event.body {
        EventBody::Plan(plan) => Some(&plan.algorithms),
        _ => None,
    }
}

fn loss(event: Event) -> Option<f64> {
    match event.body {
        EventBody::Step(step) => Some(step.loss),
        _ => None,
    }
}
