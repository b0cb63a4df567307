//! Faults in runs of `bessemer train` on several ranks, each a node of its own, and what must be true behind each fault.

use crate::halt::Halted;
use crate::nodes::{Nodes, Result, Trouble, signal};
use bessemer_comm::mpi::Family;
use bessemer_comm::spawn::MpiLauncher;
use bessemer_train::checkpoint::load_checkpoint;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Silence after which a rank is lost, `--peer-timeout`, in seconds.
pub(crate) const PEER_TIMEOUT: u64 = 3;
/// Seconds that a rank waits for a sum over all ranks, `--collective-timeout`, where another stands still.
pub(crate) const COLLECTIVE_TIMEOUT: u64 = 2;
/// Seconds within which ranks must have met, `--join-timeout`, where one is killed before.
pub(crate) const JOIN_TIMEOUT: u64 = 10;
/// Seconds that survivors have from the loss of a rank, once it can be known, to their end.
pub(crate) const DEADLINE: u64 = 10;
/// Seconds that a run has for all of its steps.
const RUN_LIMIT: u64 = 120;
/// Between looks at a run.
const TICK: Duration = Duration::from_millis(1);

const STEPS: u64 = 24;
const EVALUATE_EVERY: u64 = 8;
const SAVE_EVERY: u64 = 4;

/// What a rank does when it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Between its start and the first step: it starts MPI, joins, compiles, loads.
    Start,
    /// At some time of a step: it loads a batch, computes, or updates the weights.
    Step,
    /// It waits for another rank, which was stopped for the moment.
    Wait,
    /// Rank 0 writes a checkpoint.
    Save,
    /// All ranks evaluate.
    Evaluate,
}

/// What happens to a rank or its node, or to the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGKILL.
    Kill(Phase, usize),
    /// SIGSTOP, for good.
    Stop(usize),
    /// Its main thread stands still in a wait for another rank, for good; its heartbeats go on.
    Halt(usize),
    /// From some step on.
    Network(Trouble),
}

impl Fault {
    /// Every fault that there is for so many ranks.
    pub(crate) fn all(ranks: usize) -> Vec<Fault> {
        let phases = [Phase::Start, Phase::Step, Phase::Wait, Phase::Save, Phase::Evaluate];
        let of_rank = |rank: usize| {
            let kills = phases.map(|phase| Fault::Kill(phase, rank));
            let links = [Trouble::Down(rank), Trouble::Mute(rank), Trouble::Deaf(rank)].map(Fault::Network);
            kills.into_iter().chain([Fault::Stop(rank), Fault::Halt(rank)]).chain(links)
        };
        let of_all = [Trouble::Late, Trouble::Lossy, Trouble::Narrow].map(Fault::Network);
        (0..ranks).flat_map(of_rank).chain(of_all).collect()
    }

    /// The fault without the rank.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Fault::Kill(Phase::Start, _) => "kill -9 before the first step",
            Fault::Kill(Phase::Step, _) => "kill -9 in a step",
            Fault::Kill(Phase::Wait, _) => "kill -9 in a wait for another rank",
            Fault::Kill(Phase::Save, _) => "kill -9 while rank 0 saves",
            Fault::Kill(Phase::Evaluate, _) => "kill -9 in an evaluation",
            Fault::Stop(_) => "SIGSTOP",
            Fault::Halt(_) => "a rank stands still, its heartbeats go on",
            Fault::Network(Trouble::Down(_)) => "link down",
            Fault::Network(Trouble::Mute(_)) => "one-way loss: a node is not heard",
            Fault::Network(Trouble::Deaf(_)) => "one-way loss: a node does not hear",
            Fault::Network(Trouble::Late) => "delay 50 ms",
            Fault::Network(Trouble::Lossy) => "loss 1 %",
            Fault::Network(Trouble::Narrow) => "10 Mbit/s",
        }
    }

    fn rank(self) -> Option<usize> {
        match self {
            Fault::Kill(_, rank) | Fault::Stop(rank) | Fault::Halt(rank) => Some(rank),
            Fault::Network(Trouble::Down(node) | Trouble::Mute(node) | Trouble::Deaf(node)) => Some(node),
            Fault::Network(_) => None,
        }
    }

    /// Whether the run cannot go on.
    fn ends_the_run(self) -> bool {
        self.rank().is_some()
    }

    /// Whether the others lose a rank by its silence. In other runs none is lost so, however slow the machine.
    fn falls_silent(self) -> bool {
        matches!(self, Fault::Stop(_) | Fault::Network(_)) && self.ends_the_run()
    }

    /// Whether the rank itself is gone, so that nothing is asked of it.
    fn removes(self, rank: usize) -> bool {
        matches!(self, Fault::Kill(_, lost) | Fault::Stop(lost) | Fault::Halt(lost) if lost == rank)
    }

    /// Seconds within which all survivors must have ended. Before ranks have met their launcher ends them, and Open MPI's takes as long
    /// again; that of MPICH does not where a rank had not begun with MPI, and the others wait for it.
    fn deadline(self, had_met: bool) -> u64 {
        match self {
            Fault::Kill(..) if !had_met => JOIN_TIMEOUT + DEADLINE,
            Fault::Kill(..) => DEADLINE,
            Fault::Halt(_) => COLLECTIVE_TIMEOUT + DEADLINE,
            Fault::Stop(_) | Fault::Network(_) if self.falls_silent() => PEER_TIMEOUT + DEADLINE,
            Fault::Stop(_) | Fault::Network(_) => RUN_LIMIT / 2,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())?;
        self.rank().map_or(Ok(()), |rank| write!(f, ", rank {rank}"))
    }
}

/// What came of one fault.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) fault: &'static str,
    pub(crate) rank: Option<usize>,
    pub(crate) mpi: String,
    /// Steps that were logged when it was injected.
    pub(crate) step: u64,
    /// Whether rank 0 had made the run's folder, which it does when all ranks have met.
    pub(crate) had_met: bool,
    /// Seconds from the fault to the end of the last survivor; of the run, where a fault must not end it.
    pub(crate) ended_s: f64,
    pub(crate) deadline_s: u64,
    /// Exit codes by rank; 137 and more are 128 and a signal. A rank without one was ended by the launcher.
    pub(crate) codes: BTreeMap<usize, i32>,
    /// What ranks wrote to standard error.
    pub(crate) messages: BTreeMap<usize, Vec<String>>,
    /// Checkpoints that were found, all of them read.
    pub(crate) checkpoints: usize,
    /// What is not as it must be.
    pub(crate) problems: Vec<String>,
}

/// Where faults are injected: a program, nodes, and what a run without faults ends with.
pub(crate) struct Site {
    program: PathBuf,
    folder: PathBuf,
    nodes: Nodes,
    launchers: Vec<MpiLauncher>,
    ranks: usize,
    reference: Vec<Vec<u8>>,
    /// Seconds of the run without faults: from its start to the first step, of a step, and of an evaluation.
    start_s: f64,
    step_s: f64,
    eval_s: f64,
}

impl Site {
    /// A site in an empty folder.
    ///
    /// # Errors
    /// No MPI, no right to make network namespaces, or a run without faults that fails.
    pub(crate) fn new(program: &Path, folder: &Path, ranks: usize) -> Result<Self> {
        let search = std::env::var_os("PATH").unwrap_or_default();
        let families = [Family::OpenMpi, Family::Mpich];
        let launchers: Vec<MpiLauncher> =
            families.into_iter().filter_map(|family| MpiLauncher::find(&search, Some(family)).ok()).collect();
        if launchers.is_empty() {
            return Err("no launcher of an MPI: install openmpi-bin or mpich".to_owned());
        }
        let nodes = Nodes::new(ranks, folder)?;
        let mut site = Self {
            program: program.to_owned(),
            folder: folder.to_owned(),
            nodes,
            launchers,
            ranks,
            reference: Vec::new(),
            start_s: 0.0,
            step_s: 0.0,
            eval_s: 0.0,
        };
        site.write("rank", RANK)?;
        site.write("recipe.toml", &recipe(&folder.join("shapes"), ranks))?;
        site.data()?;
        site.measure()?;
        Ok(site)
    }

    /// Names of the MPIs.
    pub(crate) fn mpis(&self) -> Vec<&'static str> {
        self.launchers.iter().map(|launcher| launcher.family.name()).collect()
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.folder.join(name);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn data(&self) -> Result<()> {
        let mut command = Command::new(&self.program);
        command
            .args("data shapes --train 60 --val 40 --size 16 --png --out".split(' '))
            .arg(self.folder.join("shapes"));
        let output = command.output().map_err(|error| format!("{}: {error}", self.program.display()))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(said) }
    }

    /// Runs without faults.
    fn measure(&mut self) -> Result<()> {
        let begun = Instant::now();
        let mut run = self.start("reference", &self.launchers[0], &[])?;
        run.until(|run| run.steps() > 0);
        self.start_s = begun.elapsed().as_secs_f64();
        run.until(|_| false);
        let codes = run.codes();
        if (0..self.ranks).any(|rank| codes.get(&rank) != Some(&0)) {
            return Err(format!("a run without faults ended with {codes:?}: {:?}", run.messages()));
        }
        self.reference = run.tensors()?;
        self.step_s = run.seconds("step_s");
        self.eval_s = run.seconds("eval_s");
        Ok(())
    }

    /// Starts a run in a folder of this site, or goes on with it.
    fn start(&self, name: &str, launcher: &MpiLauncher, options: &[&str]) -> Result<Run> {
        let folder = self.folder.join(name);
        let run = folder.join("run");
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        fs::create_dir_all(&folder).map_err(failed)?;
        for rank in 0..self.ranks {
            for file in ["pid", "code", "err"] {
                let _ = fs::remove_file(folder.join(format!("{file}.{rank}")));
            }
        }
        let mut arguments: Vec<OsString> = vec![self.folder.join("rank").into(), folder.clone().into()];
        arguments.push(self.program.clone().into());
        arguments.extend(["train", "--quiet", "--threads", "1"].map(Into::into));
        arguments.extend(options.iter().map(Into::into));
        match run.join("recipe.toml").is_file() {
            true => arguments.extend(["--resume".into(), run.clone().into()]),
            false => arguments.extend([
                "--recipe".into(),
                self.folder.join("recipe.toml").into(),
                "--out".into(),
                run.clone().into(),
            ]),
        }
        let mut command = self.nodes.launch(launcher, "sh".as_ref(), &arguments)?;
        let log = File::create(folder.join("launcher")).map_err(failed)?;
        let launched = command.current_dir(&folder).stdout(log.try_clone().map_err(failed)?).stderr(log).spawn();
        Ok(Run { launcher: launched.map_err(failed)?, folder, ranks: self.ranks })
    }

    /// Injects a fault, and looks at all that must be true behind it. `None` where the run ended before. Its number chooses the MPI
    /// and the moment, which is the earlier the more often the fault was `missed`.
    ///
    /// # Errors
    /// This system cannot inject it.
    pub(crate) fn inject(&mut self, number: usize, mut fault: Fault, missed: usize) -> Result<Option<Outcome>> {
        // Times of faults are spread evenly.
        let chance = (number as f64 * 0.618_034).fract() / (1 + missed) as f64;
        let launcher = self.launchers[number % self.launchers.len()].clone();
        let name = format!("fault-{number}");
        let seconds = [COLLECTIVE_TIMEOUT, JOIN_TIMEOUT, PEER_TIMEOUT].map(|seconds| seconds.to_string());
        let options: &[&str] = match fault {
            Fault::Halt(_) => &["--collective-timeout", &seconds[0]],
            Fault::Kill(Phase::Start, _) => &["--join-timeout", &seconds[1]],
            _ if fault.falls_silent() => &["--peer-timeout", &seconds[2]],
            _ => &[],
        };
        let mut run = self.start(&name, &launcher, options)?;
        self.wait_for_moment(fault, &mut run, chance);
        if !run.is_running() {
            return Ok(None);
        }
        if let Fault::Kill(Phase::Start, rank) = fault
            && run.steps() > 0
        {
            fault = Fault::Kill(Phase::Step, rank);
        }
        let (step, had_met) = (run.steps(), run.path("run/recipe.toml").is_file());
        let begun = Instant::now();
        let halted = self.bring(fault, &run)?;
        if fault.ends_the_run() && run.steps() >= STEPS {
            // The moment was seen too late: behind the last step a rank may end well without another.
            drop(halted);
            run.end();
            self.nodes.clear();
            self.nodes.heal()?;
            return Ok(None);
        }
        let mut outcome = Outcome {
            fault: fault.kind(),
            rank: fault.rank(),
            mpi: launcher.family.name().to_owned(),
            step,
            had_met,
            ended_s: 0.0,
            deadline_s: fault.deadline(had_met),
            codes: BTreeMap::new(),
            messages: BTreeMap::new(),
            checkpoints: 0,
            problems: Vec::new(),
        };
        let survivors: Vec<usize> = (0..self.ranks).filter(|&rank| !fault.removes(rank)).collect();
        let limit = Duration::from_secs(fault.deadline(had_met));
        // Twice as long, so that what is late is told from what never ends.
        run.until_within(limit * 2, |run| !survivors.iter().any(|&rank| run.is_alive(rank)));
        outcome.ended_s = begun.elapsed().as_secs_f64();
        for &rank in survivors.iter().filter(|&&rank| run.is_alive(rank)) {
            outcome.problems.push(format!("rank {rank} has not ended"));
        }
        if begun.elapsed() > limit {
            outcome.problems.push("the deadline was missed".to_owned());
        }
        drop(halted);
        self.nodes.heal()?;
        if fault.ends_the_run() {
            run.until_within(Duration::from_secs(DEADLINE), |_| false);
            self.nodes.clear();
        }
        (outcome.codes, outcome.messages) = (run.codes(), run.messages());
        if fault.ends_the_run() {
            let found: Vec<String> = survivors.iter().filter_map(|&rank| outcome.problem_of(rank, fault)).collect();
            outcome.problems.extend(found);
            outcome.problems.extend(outcome.disagreement(fault));
        }
        run.end();
        self.check_checkpoints(&run, &mut outcome);
        if fault.ends_the_run() {
            run = self.start(&name, &launcher, &[])?;
            run.until(|_| false);
        }
        let codes = run.codes();
        if (0..self.ranks).any(|rank| codes.get(&rank) != Some(&0)) {
            let launcher = run.launcher_end();
            let started: Vec<usize> = (0..self.ranks).filter(|&rank| run.process(rank).is_some()).collect();
            let messages = run.messages();
            outcome.problems.push(format!(
                "the run ended with {codes:?}: {messages:?}; of its ranks {started:?} were started; {launcher}"
            ));
        } else if run.tensors()? != self.reference {
            outcome.problems.push("the weights are not those of a run without faults".to_owned());
        }
        if outcome.problems.is_empty() {
            let _ = fs::remove_dir_all(&run.folder);
        }
        Ok(Some(outcome))
    }

    fn wait_for_moment(&self, fault: Fault, run: &mut Run, chance: f64) {
        let pause = |seconds: f64| sleep(Duration::from_secs_f64(seconds * chance));
        let within = |first: u64, last: u64| first + (chance * (last + 1 - first) as f64) as u64;
        match fault {
            Fault::Kill(Phase::Start, rank) => {
                run.until(|run| run.process(rank).is_some());
                run.until_within(Duration::from_secs_f64(self.start_s * chance), |run| run.steps() > 0);
            }
            Fault::Kill(Phase::Save, _) => {
                let step = within(1, STEPS - SAVE_EVERY - 1);
                run.until(|run| run.steps() >= step);
                run.until(Run::is_saving);
            }
            Fault::Kill(Phase::Evaluate, _) => {
                let step = EVALUATE_EVERY * within(1, STEPS / EVALUATE_EVERY - 1);
                run.until(|run| run.steps() >= step);
                pause(self.eval_s);
            }
            _ => {
                let step = within(1, STEPS - 4);
                run.until(|run| run.steps() >= step);
                pause(self.step_s);
            }
        }
    }

    /// What is returned keeps a rank from going on.
    fn bring(&mut self, fault: Fault, run: &Run) -> Result<Option<Halted>> {
        let send = |rank: usize, name: &str| run.process(rank).map_or((), |process| signal(process, name));
        match fault {
            Fault::Kill(Phase::Wait, rank) | Fault::Halt(rank) => {
                let others = || (0..self.ranks).filter(|&other| other != rank);
                others().for_each(|other| send(other, "STOP"));
                sleep(Duration::from_secs_f64(self.step_s + 0.2));
                let halted = match (fault, run.process(rank)) {
                    (Fault::Halt(_), Some(process)) => Some(Halted::new(process)),
                    _ => {
                        send(rank, "KILL");
                        None
                    }
                };
                others().for_each(|other| send(other, "CONT"));
                return halted.transpose();
            }
            Fault::Kill(_, rank) => send(rank, "KILL"),
            Fault::Stop(rank) => send(rank, "STOP"),
            Fault::Network(trouble) => self.nodes.trouble(trouble)?,
        }
        Ok(None)
    }

    fn check_checkpoints(&self, run: &Run, outcome: &mut Outcome) {
        let Ok(entries) = fs::read_dir(run.path("run/checkpoints")) else { return };
        let names = entries.flatten().map(|entry| entry.path());
        for path in
            names.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step-")))
        {
            outcome.checkpoints += 1;
            if let Err(error) = load_checkpoint(&path) {
                outcome.problems.push(format!("a damaged checkpoint: {error}"));
            }
        }
    }
}

impl Outcome {
    /// The errors of a rank.
    fn errors(&self, rank: usize) -> Vec<&String> {
        let lines = self.messages.get(&rank).into_iter().flatten();
        lines.filter(|line| line.starts_with("error: ")).collect()
    }

    /// What a rank that survives must not have done. It names the rank that is gone; where the network fails, a rank on the other side.
    fn problem_of(&self, rank: usize, fault: Fault) -> Option<String> {
        let errors = self.errors(rank);
        let expected = match fault {
            Fault::Kill(_, lost) | Fault::Stop(lost) => format!("lost rank {lost} ("),
            Fault::Halt(halted) => format!(": not begun by rank {halted} ("),
            Fault::Network(_) => "lost rank ".to_owned(),
        };
        // Ranks that have not met know of each other by the launcher, or not at all.
        let expected = match self.had_met {
            false if errors.is_empty() => return None,
            false if !errors[0].contains(&expected) => "the ranks have not met".to_owned(),
            _ => expected,
        };
        match (self.codes.get(&rank), &errors[..]) {
            (Some(1), [error]) if error.contains(&expected) => None,
            (code, errors) => Some(format!("rank {rank} ended with code {code:?} and {errors:?}")),
        }
    }

    /// Ranks of one side of a network that name different ones as lost.
    fn disagreement(&self, fault: Fault) -> Option<String> {
        let lost = |error: &String| error.split("lost rank ").nth(1)?.split(' ').next()?.parse::<usize>().ok();
        let others = self.messages.keys().filter(|&&rank| Some(rank) != fault.rank());
        let named: BTreeSet<usize> = others.flat_map(|&rank| self.errors(rank)).filter_map(lost).collect();
        (named.len() > 1).then(|| format!("the others do not agree on who is lost: {named:?}"))
    }
}

/// A run and its launcher.
struct Run {
    launcher: Child,
    folder: PathBuf,
    ranks: usize,
}

impl Run {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.path(name)).unwrap_or_default()).into_owned()
    }

    fn is_running(&mut self) -> bool {
        matches!(self.launcher.try_wait(), Ok(None))
    }

    /// Waits for a condition or the end of the run.
    fn until(&mut self, condition: impl Fn(&Run) -> bool) {
        self.until_within(Duration::from_secs(RUN_LIMIT), condition);
    }

    fn until_within(&mut self, limit: Duration, condition: impl Fn(&Run) -> bool) {
        let begun = Instant::now();
        while begun.elapsed() < limit && self.is_running() && !condition(self) {
            sleep(TICK);
        }
    }

    fn end(&mut self) {
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }

    fn process(&self, rank: usize) -> Option<i32> {
        self.text(&format!("pid.{rank}")).trim().parse().ok()
    }

    /// Whether a rank has been started and has not ended.
    fn is_alive(&self, rank: usize) -> bool {
        self.process(rank).is_some_and(|process| {
            let state = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            state.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
        })
    }

    /// What is known of the launcher's end.
    fn launcher_end(&mut self) -> String {
        let end = match self.launcher.try_wait() {
            Ok(Some(status)) => status.to_string(),
            Ok(None) => "still running".to_owned(),
            Err(error) => error.to_string(),
        };
        format!("launcher: {end}, {:?}", self.text("launcher"))
    }

    fn codes(&self) -> BTreeMap<usize, i32> {
        (0..self.ranks)
            .filter_map(|rank| Some((rank, self.text(&format!("code.{rank}")).trim().parse().ok()?)))
            .collect()
    }

    fn messages(&self) -> BTreeMap<usize, Vec<String>> {
        let lines = |rank: usize| self.text(&format!("err.{rank}")).lines().map(str::to_owned).collect();
        (0..self.ranks).map(|rank| (rank, lines(rank))).collect()
    }

    fn events(&self) -> String {
        self.text("run/events.jsonl")
    }

    /// Steps that are logged.
    fn steps(&self) -> u64 {
        self.events().lines().filter(|line| line.contains("\"step_s\"")).count() as u64
    }

    /// Mean of a measurement over the events that have it.
    fn seconds(&self, name: &str) -> f64 {
        let value = |line: &str| serde_json::from_str::<serde_json::Value>(line).ok()?.get(name)?.as_f64();
        let all: Vec<f64> = self.events().lines().filter_map(value).collect();
        all.iter().sum::<f64>() / all.len().max(1) as f64
    }

    fn is_saving(&self) -> bool {
        let entries = fs::read_dir(self.path("run/checkpoints")).into_iter().flatten().flatten();
        entries.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with(".writing-"))
    }

    /// Files of the last checkpoint that hold tensors.
    fn tensors(&self) -> Result<Vec<Vec<u8>>> {
        let folder = self.path("run/checkpoints");
        let last = folder.join(self.text("run/checkpoints/latest").trim());
        let read = |name: &str| fs::read(last.join(name)).map_err(|error| format!("{}: {error}", last.display()));
        ["model.safetensors", "optimizer.safetensors"].into_iter().map(read).collect()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.end();
    }
}

fn recipe(data: &Path, ranks: usize) -> String {
    format!(
        r#"
name = "faults"
model = {{ name = "resnet20-cifar", num_classes = 10 }}
data = {{ source = "{}", image_size = 16, eval_resize = 16, eval_image_size = 16 }}
train = {{ batch_size = 2, accumulation = {}, steps = {STEPS}, seed = 3 }}
optimizer = {{ kind = "sgd", momentum = 0.9 }}
schedule = {{ kind = "constant", base_lr = 0.01 }}
eval = {{ batch_size = 4, every_steps = {EVALUATE_EVERY} }}
checkpoint = {{ every_steps = {SAVE_EVERY} }}
"#,
        data.display(),
        2 * ranks
    )
}

/// Runs a command as a rank: leaves its process, its standard error and its exit code in a folder, and ends as it ends. Signals to
/// the launcher's child reach the command too, which alone obeys them.
const RANK: &str = r#"
folder=$1
shift
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
trap : TERM INT USR1 USR2
"$@" >"$folder/out.$rank" 2>"$folder/err.$rank" &
child=$!
echo $child >"$folder/pid.$rank"
while :; do
    wait $child
    code=$?
    kill -0 $child 2>/dev/null || break
done
# A wait that a signal ends has the number of the signal, not what the command ended with.
wait $child
again=$?
[ $again -eq 127 ] || code=$again
echo $code >"$folder/code.$rank"
[ $code -lt 128 ] || kill -s $((code - 128)) $$
exit $code
"#;
