//! Training on several ranks from the command line, under both MPIs.

use crate::common::{Ran, bessemer, ran};
use crate::launchers::launchers;
use bessemer_comm::mpi::Family;
use bessemer_comm::spawn::MpiLauncher;
use bessemer_data::FileFormat;
use bessemer_data::shapes::ShapesFolder;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const RECIPE: &str = r#"
name = "tiny-text"
model = { name = "bert-tiny", vocab_multiple = 8 }
data = { source = "synthetic" }
text = { sequence_length = 16, max_predictions = 3 }
train = { batch_size = 2, accumulation = 4, steps = 6, seed = 3, clip_norm = 1.0 }
optimizer = { kind = "lamb", weight_decay = 0.01, decay_exclude = "layer_norm_and_bias" }
schedule = { kind = "constant", base_lr = 0.002 }
eval = { batch_size = 4, every_steps = 6 }
checkpoint = { every_steps = 2 }
"#;

/// A folder with a recipe.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("tiny.toml"), RECIPE).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bessemer"));
        command.current_dir(self.0.path()).args(arguments.split_whitespace());
        command
    }

    fn run(&self, arguments: &str) -> Ran {
        bessemer(self.0.path(), arguments)
    }

    /// The program started by hand, as a rank of a launcher.
    fn launched(&self, launcher: &MpiLauncher, ranks: usize, arguments: &str) -> Ran {
        let words: Vec<_> = arguments.split_whitespace().map(Into::into).collect();
        let command = launcher.command(ranks, env!("CARGO_BIN_EXE_bessemer").as_ref(), &words);
        // Behind a failure Open MPI sleeps for twice so many seconds, whether ranks are left or not.
        let grace = command.get_args().position(|word| word == "odls_base_sigkill_timeout").map(|at| at + 1);
        let words = command.get_args().enumerate();
        let words = words.map(|(at, word)| if Some(at) == grace { "1".as_ref() } else { word });
        let mut again = Command::new(&launcher.path);
        again.args(words).env("I_MPI_PIN", "off").stdin(launcher.stdin());
        ran(again.current_dir(self.0.path()))
    }

    /// Files of the last checkpoint that hold tensors.
    fn tensors(&self, run: &str) -> Vec<Vec<u8>> {
        let run = self.path(run).join("checkpoints");
        let last = fs::read_to_string(run.join("latest")).unwrap();
        let file = |name| fs::read(run.join(last.trim()).join(name)).unwrap();
        ["model.safetensors", "optimizer.safetensors"].map(file).to_vec()
    }

    /// The objects of a file of measurements.
    fn results(&self, file: &str) -> Vec<serde_json::Value> {
        let text = fs::read_to_string(self.path(file)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn steps(&self, run: &str) -> usize {
        let events = fs::read_to_string(self.path(run).join("events.jsonl")).unwrap_or_default();
        events.lines().filter(|line| line.contains("\"step_s\"")).count()
    }
}

#[test]
fn ranks_of_both_mpis_train_the_weights_of_one() {
    let place = Place::new();
    place.run("train --recipe tiny.toml --quiet --out one").ok();
    for (name, launcher) in launchers() {
        // Four ranks on fewer cores, with a micro-batch each.
        let said =
            place.launched(&launcher, 4, &format!("train --recipe tiny.toml --quiet --threads 1 --out {name}-4")).ok();
        assert_eq!(said.out.matches("steps       6").count(), 1, "rank 0 alone prints:\n{}", said.out);
        assert!(place.tensors("one") == place.tensors(&format!("{name}-4")));
        let said = place.run(&format!("train --recipe tiny.toml --devices 2 --mpi {name} --out {name}-2")).ok();
        assert!(said.err.contains("a step is 2 ranks x 2 micro-batches x 2 = 8 sequences"), "{}", said.err);
        assert_eq!(said.err.matches("step 6/6").count(), 1, "{}", said.err);
        let train = "train --recipe tiny.toml --quiet";
        place.run(&format!("launch -n 2 --mpi {name} -- {train} --overlap off --out {name}-launch")).ok();
        assert!(place.tensors(&format!("{name}-2")) == place.tensors(&format!("{name}-launch")));
        place.launched(&launcher, 2, &format!("{train} --wire bf16 --out {name}-bf16")).ok();
        assert!(place.tensors(&format!("{name}-2")) != place.tensors(&format!("{name}-bf16")));
    }
    if let [(first, _), (second, _)] = &launchers()[..] {
        for run in ["2", "bf16"] {
            assert!(place.tensors(&format!("{first}-{run}")) == place.tensors(&format!("{second}-{run}")), "{run}");
        }
    }
}

/// A step of one micro-batch on two ranks: cut, or one for each of them.
#[test]
fn steps_are_cut_or_multiplied_on_request() {
    let place = Place::new();
    let sizes = |batch: u32, accumulation: u32| {
        format!(
            "train --recipe tiny.toml --set train.batch_size={batch} --set train.accumulation={accumulation} --threads 1"
        )
    };
    for (name, _) in launchers() {
        let two = format!("--devices 2 --mpi {name}");
        place.run(&format!("{} --quiet {two} --out {name}-cut-by-hand", sizes(2, 2))).ok();
        let said = place.run(&format!("{} {two} --split-batch --out {name}-cut", sizes(4, 1))).ok();
        assert!(said.err.contains("a step is 2 ranks x 1 micro-batch x 2 = 4 sequences"), "{}", said.err);
        assert!(place.tensors(&format!("{name}-cut")) == place.tensors(&format!("{name}-cut-by-hand")));

        place.run(&format!("{} --quiet {two} --out {name}-weak-by-hand", sizes(4, 2))).ok();
        let said = place.run(&format!("{} {two} --weak --stop-after 3 --out {name}-weak", sizes(4, 1))).ok();
        assert!(said.err.contains("a step is 2 ranks x 1 micro-batch x 4 = 8 sequences"), "{}", said.err);
        // The same command again, as a launcher that restarts it gives it: the step is not multiplied again.
        let sizes_of_recipe = "--set train.batch_size=4 --set train.accumulation=1";
        place.run(&format!("train --resume {name}-weak {two} --weak {sizes_of_recipe} --quiet --threads 1")).ok();
        assert!(place.tensors(&format!("{name}-weak")) == place.tensors(&format!("{name}-weak-by-hand")));

        let refused = place.run(&format!("{} {two} --quiet --out none", sizes(4, 1)));
        refused.fails(2, &["must be a multiple of 2: --set train.accumulation=2, or --split-batch", "or --weak"]);
        let refused = place.run(&format!("{} {two} --quiet --split-batch --out none", sizes(3, 1)));
        refused.fails(2, &["3 samples of a micro-batch cannot be cut into 2 equal parts"]);
    }
}

#[test]
fn training_is_measured_on_several_ranks() {
    let place = Place::new();
    let bench = "bench train bert-tiny --sequence-length 16 --batch-size 2 --warmup 1 --steps 2 --repeat 1 --threads 1";
    let cluster = "description = 'one machine'\nsource = 'a guess'\nnodes = 1\ndevices = 2\ncollectives = 'messages'\n\
                   [inside]\nlatency_us = 50\ngbytes = 1\n[between]\nlatency_us = 50\ngbytes = 1\n";
    fs::write(place.path("own.toml"), cluster).unwrap();
    for (name, launcher) in launchers() {
        let weak =
            format!("{bench} --scaling 1x1,1x2 --mpi {name} --simulate own.toml --out {name}-weak.jsonl --quiet");
        let table = place.run(&weak).ok().out;
        assert!(table.contains("Weak scaling of bert-tiny, fp32, 2 sequences of 16 a rank in each step"), "{table}");
        assert_scaling(&place.results(&format!("{name}-weak.jsonl")), [2, 4], [2, 2]);

        // Ranks that the launcher starts itself measure what it has started.
        let strong = format!("{bench} --strong --scaling 1x2 --simulate own.toml --out {name}-strong.jsonl --quiet");
        let said = place.launched(&launcher, 2, &strong).ok();
        assert_eq!(said.out.matches("Strong scaling of bert-tiny").count(), 1, "rank 0 alone prints:\n{}", said.out);
        assert_scaling(&place.results(&format!("{name}-strong.jsonl")), [2, 2], [2, 1]);
        let report = place.run(&format!("report {name}-weak.jsonl {name}-strong.jsonl")).ok().out;
        for kind in ["Weak", "Strong"] {
            let table = report.split(&format!("## {kind} scaling of bert-tiny")).nth(1).expect("a section");
            assert!(table.contains("| 1 | 2 |") && table.contains("slowest rank"), "{report}");
        }

        let bench = bench.replace("bert-tiny --sequence-length 16", "resnet20-cifar");
        let shared = "--norms-over all --means-over all --overlap off --simulate own.toml";
        let table = place.run(&format!("{bench} --scaling 1x2 {shared} --out shared.jsonl --quiet")).ok().out;
        let words = "1 thread a rank, norms over all ranks, means over all ranks, without overlap";
        assert!(table.contains(words), "{table}");
        let results = place.results("shared.jsonl");
        assert_eq!(results[1]["options"]["norms_over"], "all");
        let waits = results[1]["scaling"]["simulated"]["exposed_ms"].as_f64().unwrap();
        // 19 norms with two sums forward and two back, of two messages of 50 us each.
        assert!(waits > 4.0 * 19.0 * 0.1, "{waits}");

        let other = place.launched(&launcher, 2, &format!("{bench} --scaling 2x2 --out other.jsonl"));
        assert!(other.code == 2 && other.err.contains("--scaling 2x2: mp"), "{}", other.err);
        assert!(other.err.contains("started 2 ranks on 1 nodes, which can be 1x1 and 1x2"), "{}", other.err);
        assert!(!place.path("other.jsonl").exists());
    }
}

/// Results of one rank and of two, by their samples a step and a batch.
fn assert_scaling(results: &[serde_json::Value], samples: [u64; 2], batches: [u64; 2]) {
    let of = |name: &str| results.iter().map(|result| result[name].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!((of("nodes"), of("devices"), of("batch_size")), (vec![1, 1], vec![1, 2], batches.to_vec()));
    let scaling: Vec<_> = results.iter().map(|result| &result["scaling"]).collect();
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    let steps: Vec<_> = scaling.iter().map(|scaling| scaling["step_samples"].as_u64().unwrap()).collect();
    assert_eq!(steps, samples);
    assert_eq!((number(&scaling[0]["speed_up"]), &scaling[0]["together"]), (1.0, &serde_json::Value::Null));
    let rates: Vec<f64> = results.iter().map(|result| number(&result["throughput"])).collect();
    let (two, together) = (scaling[1], &scaling[1]["together"]);
    let near = |value: &serde_json::Value, expected: f64| (number(value) / expected - 1.0).abs() < 1e-6;
    assert!(near(&two["speed_up"], rates[1] / rates[0]) && near(&two["efficiency"], rates[1] / rates[0] / 2.0));
    assert!(near(&together["apart_efficiency"], rates[1] / number(&together["apart_throughput"])), "{together}");
    assert!(number(&together["exposed_ms"]) > 0.0, "{together}");
    assert!(number(&together["slowest"]["over_median"]) >= 1.0 && together["slowest"]["host"] != "", "{together}");
    assert!(together["transport"].as_str().unwrap().contains("MPI"), "{together}");
    let simulated = &two["simulated"];
    assert!((number(&simulated["throughput"]) / rates[1] - 1.0 - number(&simulated["error"])).abs() < 1e-6);
}

#[test]
fn ranks_that_cannot_be_measured_are_refused() {
    let place = Place::new();
    let run = |arguments: &str| place.run(&format!("bench {arguments} --out none.jsonl"));
    run("train bert-tiny --scaling 2").fails(2, &["--scaling", "nodes x ranks of each, such as 1x2"]);
    run("train bert-tiny --scaling 1x0").fails(2, &["nodes x ranks of each"]);
    run("train bert-tiny --scaling 1x1,2x2").fails(2, &["--scaling 2x2 needs 2 nodes", "mpirun -H a:2,b:2", "srun"]);
    run("train bert-tiny --batch-size 3 --strong --scaling 1x2").fails(2, &["batch of 3", "2 ranks"]);
    run("infer bert-tiny --scaling 1x2").fails(2, &["--scaling", "training"]);
    run("train bert-tiny --strong").fails(2, &["--scaling"]);
    run("train bert-tiny --mpi mpich").fails(2, &["--mpi", "--scaling"]);
    run("train bert-tiny --scaling 1x2 --profile").fails(2, &["--profile", "--scaling"]);
    run("train bert-tiny --scaling 1x2 --simulate h300x8").fails(2, &["h300x8", "built in"]);
    run("train bert-tiny --scaling 1x2 --simulate cpu-1g").fails(2, &["8x1", "not 1x2"]);
    let bench = "bench train bert-tiny --scaling 1x2 --out none.jsonl";
    let without_mpi = ran(place.command(bench).env("PATH", place.path("empty")));
    without_mpi.fails(2, &["no launcher of MPI", "openmpi-bin or mpich"]);
    assert!(!place.path("none.jsonl").exists());
}

/// A run that a test ends.
struct Running(Child);

impl Running {
    fn of(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    fn end(self) -> Ran {
        let output = self.0.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ran { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
    }
}

fn until(mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(120), "it did not happen");
        sleep(Duration::from_millis(5));
    }
}

/// The process of a rank that runs this test's program in a folder.
fn process_of_rank(folder: &Path, rank: usize) -> Option<u32> {
    let names = ["OMPI_COMM_WORLD_RANK", "PMI_RANK"].map(|name| format!("{name}={rank}"));
    let is_rank = |process: &u32| {
        let read = |what: &str| fs::read(format!("/proc/{process}/{what}")).unwrap_or_default();
        let environment = String::from_utf8_lossy(&read("environ")).into_owned();
        let program = fs::read_link(format!("/proc/{process}/exe"));
        program.is_ok_and(|path| path == Path::new(env!("CARGO_BIN_EXE_bessemer")))
            && fs::read_link(format!("/proc/{process}/cwd")).is_ok_and(|path| path == folder.canonicalize().unwrap())
            && environment.split('\0').any(|variable| names.iter().any(|name| name == variable))
    };
    let processes =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    processes.into_iter().find(is_rank)
}

fn signal(process: u32, name: &str) {
    assert!(Command::new("kill").args([name, &process.to_string()]).status().unwrap().success());
}

const LONG: &str = "--set train.steps=4000 --set eval.every_steps= --set checkpoint.every_steps=3000";

/// The last of some ranks is killed, and the run resumed on one, two and four ranks: each has the bits of a run that went to the same
/// step undisturbed and goes on in the same way.
fn killed_and_resumed(name: &str, launcher: &MpiLauncher, ranks: usize) {
    let place = Place::new();
    let train = format!("train --recipe tiny.toml {} --quiet", LONG.replace("every_steps=3000", "every_steps=3"));
    let running = Running::of(&mut place.command(&format!("{train} --devices {ranks} --mpi {name} --out run")));
    until(|| place.steps("run") > 5);
    let lost = process_of_rank(place.0.path(), ranks - 1).expect("a last rank");
    signal(lost, "-KILL");
    let begun = Instant::now();
    let ran = running.end();
    assert!(ran.code != 0 && begun.elapsed() < Duration::from_secs(20), "{:?}, {}", begun.elapsed(), ran.err);
    assert_eq!(ran.err.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{}", ran.err);
    let latest = fs::read_to_string(place.path("run/checkpoints/latest")).expect("a checkpoint");
    let saved: usize = latest.trim().strip_prefix("step-").unwrap().parse().unwrap();
    let is_lost = ran.err.contains(&format!("lost rank {} (host ", ranks - 1));
    match launcher.family {
        // The launcher of MPICH kills all ranks when one was killed; rank 0 may be quicker.
        Family::Mpich => assert!((is_lost || ran.err.contains("none said why")) && saved > 0, "{}", ran.err),
        // Rank 0 saved the last whole step.
        _ => assert!(is_lost && saved == place.steps("run"), "{}", ran.err),
    }
    // Four ranks with a micro-batch each have the bits of one rank.
    let whole = format!("{train} --set train.steps={saved} --out whole");
    match ranks {
        4 => place.run(&whole).ok(),
        _ => place.launched(launcher, ranks, &whole).ok(),
    };
    let goes_on = |from: &str, count: usize| {
        let to = format!("{from}-{count}");
        copy_folder(&place.path(from), &place.path(&to));
        let on = if count == 1 { String::new() } else { format!("--devices {count} --mpi {name}") };
        place.run(&format!("train --resume {to} --quiet --set train.steps={} {on}", saved + 2)).ok();
        assert_eq!(place.steps(&to), saved + 2);
        place.tensors(&to)
    };
    let (one, two) = (goes_on("whole", 1), goes_on("whole", 2));
    for (count, expected) in [(1, &one), (2, &two), (4, &one)] {
        assert!(goes_on("run", count) == *expected, "{ranks} ranks of {name}, resumed on {count}");
    }
}

fn copy_folder(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-r").arg(from).arg(to).status().unwrap().success());
}

#[test]
fn a_lost_rank_ends_the_job_and_the_run_goes_on() {
    for (name, launcher) in launchers() {
        killed_and_resumed(name, &launcher, if launcher.family == Family::Mpich { 4 } else { 2 });
    }
}

/// `cargo test --profile checked -p bessemer --test program -- --ignored ranks::`
#[test]
#[ignore = "takes a minute: the numbers of ranks that the other test leaves to the other MPI"]
fn a_lost_rank_of_other_numbers_ends_the_job_and_the_run_goes_on() {
    for (name, launcher) in launchers() {
        killed_and_resumed(name, &launcher, if launcher.family == Family::Mpich { 2 } else { 4 });
    }
}

#[test]
fn a_request_to_stop_reaches_all_ranks() {
    for (name, _) in launchers() {
        let place = Place::new();
        let arguments = format!("train --recipe tiny.toml {LONG} --quiet --devices 2 --mpi {name} --out run");
        let running = Running::of(&mut place.command(&arguments));
        until(|| place.steps("run") > 3);
        // As `timeout` does, which signals a process and its group.
        let both = format!("kill -INT {0}; kill -TERM {0}", running.0.id());
        assert!(Command::new("sh").args(["-c", &both]).status().unwrap().success());
        let ran = running.end();
        assert_eq!(ran.code, 130, "{}", ran.err);
        let latest = fs::read_to_string(place.path("run/checkpoints/latest")).expect("a checkpoint");
        assert_eq!(latest.trim(), format!("step-{:06}", place.steps("run")));
        let lines: Vec<&str> = ran.err.lines().collect();
        assert!(matches!(lines[..], [line] if line.contains("interrupted after step")), "{}", ran.err);
    }
}

/// As Slurm does some time before a job's is over, here to the rank that does not keep the run's folder.
#[test]
fn the_signal_of_batch_systems_is_a_request_to_stop() {
    let Some((name, _)) = launchers().into_iter().next() else { return };
    let place = Place::new();
    let arguments = format!("train --recipe tiny.toml {LONG} --quiet --devices 2 --mpi {name} --out run");
    let running = Running::of(&mut place.command(&arguments));
    until(|| place.steps("run") > 3);
    signal(process_of_rank(place.0.path(), 1).expect("a second rank"), "-USR1");
    let ran = running.end();
    assert_eq!(ran.code, 130, "{}", ran.err);
    assert!(ran.err.contains("interrupted after step"), "{}", ran.err);
}

#[test]
fn failed_jobs_are_restarted() {
    for (name, launcher) in launchers() {
        let place = Place::new();
        let every = LONG.replace("train.steps=4000", "train.steps=60").replace("every_steps=3000", "every_steps=10");
        let train = format!("train --recipe tiny.toml {every} --quiet");
        let running =
            Running::of(&mut place.command(&format!("launch -n 2 --mpi {name} --restarts 1 -- {train} --out run")));
        until(|| place.steps("run") > 10);
        signal(process_of_rank(place.0.path(), 1).expect("a second rank"), "-KILL");
        let ran = running.end();
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(ran.err.contains("it is resumed, 0 more restarts are left"), "{}", ran.err);
        assert_eq!(place.steps("run"), 60);
        place.launched(&launcher, 2, &format!("{train} --out undisturbed")).ok();
        assert!(place.tensors("run") == place.tensors("undisturbed"));
    }
}

#[test]
fn what_is_wrong_with_ranks_is_told() {
    let place = Place::new();
    let train = "train --recipe tiny.toml --quiet --out run";
    let without_mpi = |arguments: &str| ran(place.command(arguments).env("PATH", place.path("empty")));
    without_mpi(&format!("{train} --devices 2")).fails(2, &["no launcher of MPI", "openmpi-bin or mpich"]);
    without_mpi("launch -n 2 --mpi mpich -- doctor").fails(2, &["package mpich"]);
    let with = |variables: &[(&str, &str)]| ran(place.command(train).envs(variables.iter().copied()));
    let torchrun = with(&[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "2000")]);
    match launchers().is_empty() {
        true => torchrun.fails(2, &["torchrun", "openmpi-bin or mpich"]),
        false => torchrun.fails(2, &["torchrun starts no MPI", "mpirun -np 2"]),
    };
    with(&[("RANK", "0")]).fails(2, &["RANK is set, but WORLD_SIZE is not"]);
    with(&[("OMPI_COMM_WORLD_RANK", "5"), ("OMPI_COMM_WORLD_SIZE", "2")]).fails(2, &["OMPI_COMM_WORLD_RANK", "0..=1"]);
    let both = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1"), ("RANK", "0"), ("WORLD_SIZE", "1")];
    let address = [("MASTER_ADDR", "localhost"), ("MASTER_PORT", "2000")];
    let said = ran(place.command("train --recipe tiny.toml --steps 1 --out both").envs(both).envs(address)).ok().err;
    let expected = "ranks are those of torchrun; there are variables of mpirun of Open MPI as well";
    assert_eq!(said.matches(expected).count(), 1, "{said}");
    place.run(&format!("{train} --mpi none")).fails(2, &["neither openmpi nor mpich"]);
    place.run("launch -n 2 --restarts 1 -- eval bert-tiny").fails(2, &["--out DIR or --resume DIR"]);
    // A job that fails before it has a run is started again as it was.
    let fails = "#!/bin/sh\ncase \"$*\" in *--version*) echo 'mpirun (Open MPI) 4.1.4';; *) exit 1;; esac\n";
    fs::create_dir(place.path("fails")).unwrap();
    fs::write(place.path("fails/mpirun"), fails).unwrap();
    fs::set_permissions(place.path("fails/mpirun"), Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", place.path("fails").display());
    let failed = ran(place.command(&format!("launch -n 2 --restarts 2 -- {train}")).env("PATH", path));
    assert!(
        failed.code == 1 && failed.err.matches("it starts over, as it has no run yet").count() == 2,
        "{}",
        failed.err
    );
    place.run("launch -n 0 -- doctor").fails(2, &["0"]);
    // Once, and before a rank is started.
    let wrong = place.run("launch -n 2 -- train bert-tiny --nothing").fails(2, &["unexpected argument '--nothing'"]);
    assert_eq!(wrong.err.lines().count(), 1, "{}", wrong.err);
    place.run("launch -n 2 -- bessemer train bert-tiny").fails(2, &["unrecognized subcommand 'bessemer'", "train"]);
    assert!(place.run("launch -n 2 -- train --help").ok().out.contains("bessemer train"));
    assert!(!place.path("run").exists());
    for (name, launcher) in launchers() {
        let odd = place.run(&format!("{train} --devices 3 --mpi {name}"));
        assert_eq!(odd.code, 2, "{}", odd.err);
        assert!(odd.err.contains("train.accumulation is 4; the 3 ranks share"), "{}", odd.err);
        let other = place.launched(&launcher, 2, &format!("{train} --devices 3"));
        assert!(other.code == 2 && other.err.contains("--devices is 3, but mp"), "{}", other.err);
        assert!(!place.path("run").exists());
    }
}

/// Another build of the same version is refused.
#[test]
fn ranks_of_two_programs_are_refused() {
    let launchers = launchers();
    let Some((_, launcher)) = launchers.last() else { return };
    let place = Place::new();
    let other = place.path("bessemer");
    fs::copy(env!("CARGO_BIN_EXE_bessemer"), &other).unwrap();
    fs::OpenOptions::new().append(true).open(&other).unwrap().write_all(b"another build").unwrap();
    let words = ["train", "--recipe", "tiny.toml", "--quiet", "--out", "run"].map(Into::into);
    let mut command = launcher.command(1, env!("CARGO_BIN_EXE_bessemer").as_ref(), &words);
    let ran = ran(command.args([":", "-n", "1"]).arg(other).args(words).current_dir(place.0.path()));
    assert!(ran.code != 0 && ran.err.contains("differs from rank 0 in its program: 0.1.0 (SHA-256 "), "{}", ran.err);
    assert!(!place.path("run").exists());
}

/// The program with empty files in place of all MPI libraries, and no launcher on its search path; `None` where this user may not do that.
fn hidden_mpi(place: &Place, arguments: &str, variables: &[(&str, &str)]) -> Option<Ran> {
    let script = r#"ldconfig -p | sed -n 's/^\s*libmpi.* => //p' | while read -r library; do
                        mount --bind /dev/null "$library" || exit 77
                    done || exit 77
                    PATH=/nowhere exec "$0" "$@""#;
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, env!("CARGO_BIN_EXE_bessemer")]).args(arguments.split_whitespace());
    let output = command.envs(variables.iter().copied()).current_dir(place.0.path()).output().ok()?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let ran = Ran { code: output.status.code()?, out: text(output.stdout), err: text(output.stderr) };
    let is_refused = ran.code == 77 || ran.err.starts_with("unshare: ");
    (!is_refused).then_some(ran)
}

#[test]
fn without_an_mpi_one_rank_trains_and_several_say_what_to_install() {
    let place = Place::new();
    let train = "train --recipe tiny.toml --quiet --steps 1";
    let Some(alone) = hidden_mpi(&place, &format!("{train} --out alone"), &[]) else {
        let line = "skipped: without an MPI: only root may hide its libraries\n";
        return std::io::stderr().write_all(line.as_bytes()).unwrap();
    };
    alone.ok();
    place.run(&format!("{train} --out beside")).ok();
    assert!(place.tensors("alone") == place.tensors("beside"));
    let several = format!("{train} --out several");
    let fails = |arguments: &str, variables: &[(&str, &str)], parts: &[&str]| {
        hidden_mpi(&place, arguments, variables).unwrap().fails(2, parts);
    };
    fails(&format!("{several} --devices 2"), &[], &["no launcher of MPI", "openmpi-bin or mpich"]);
    let open = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")];
    fails(&several, &open, &["no library of Open MPI can be opened", "package openmpi-bin on Debian"]);
    let hydra = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "0"), ("MPI_LOCALNRANKS", "2")];
    fails(&several, &hydra, &["no library of MPICH can be opened", "package mpich on Debian"]);
    assert!(!place.path("several").exists());
}

/// A picture that cannot be read, on whichever rank has it: all end with the exit code that one process ends with, and one message, which
/// names the file.
#[test]
fn an_error_of_one_rank_ends_all_with_its_message() {
    let place = Place::new();
    let pictures = place.path("pictures");
    ShapesFolder { seed: 1, train: 24, val: 12, size: 16, format: FileFormat::Png }.write(&pictures).unwrap();
    let last_of = |folder: &Path| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).max().unwrap();
    let damaged = last_of(&last_of(&pictures.join("train")));
    fs::write(&damaged, "no picture").unwrap();
    for (name, _) in launchers() {
        let train = "train resnet20-cifar --data pictures --set train.batch_size=2 --set train.accumulation=2 --steps 12 --threads 1 --quiet";
        let ran = place.run(&format!("{train} --devices 2 --mpi {name} --out {name}"));
        ran.fails(2, &[damaged.file_name().unwrap().to_str().unwrap(), "not an image"]);
    }
}

#[test]
fn doctor_measures_what_carries_ranks() {
    let place = Place::new();
    let said = place.run("doctor --threads 1").ok().out;
    for (name, launcher) in launchers() {
        let is_of = |line: &&str| line.starts_with("ranks by MPI") && line.contains(&launcher.version);
        let line = said.lines().find(is_of).unwrap_or_else(|| panic!("{name}: {said}"));
        let link = line.split("; between two ranks ").nth(1).unwrap_or_else(|| panic!("{line}"));
        let words: Vec<&str> = link.split(' ').collect();
        let [latency, "us", "and", bandwidth, "GB/s,", "measured"] = words[..] else { panic!("{link}") };
        assert!(latency.parse::<f64>().unwrap() >= 0.0 && bandwidth.parse::<f64>().unwrap() > 0.0, "{link}");
    }
    assert!(said.contains("\nlauncher      none\n"), "{said}");
    assert!(said.lines().any(|line| line.starts_with("interfaces") && line.contains("lo 127.0.0.1")), "{said}");
}

#[test]
fn doctor_in_a_job_names_the_launcher_and_measures_all_the_same() {
    let place = Place::new();
    let all = launchers();
    for (name, launcher) in &all {
        let words = ["doctor".into(), "--threads=1".into()];
        let ran = launcher
            .command(1, env!("CARGO_BIN_EXE_bessemer").as_ref(), &words)
            .current_dir(place.path(""))
            .output()
            .unwrap();
        let said = String::from_utf8(ran.stdout).unwrap();
        assert!(
            said.contains(", rank 0 of 1, 1 on this node\n") && !said.contains("\nlauncher      none"),
            "{name}: {said}"
        );
        assert_eq!(said.matches("; between two ranks ").count(), all.len(), "{name}: {said}");
    }
}

/// Slurm's batch script with an `srun` that starts two ranks as `srun --mpi=pmi2` does: they have Slurm's variables and those of PMI.
#[test]
fn the_batch_script_of_slurm_trains_on_two_ranks() {
    let Some((_, launcher)) = launchers().into_iter().find(|(name, _)| *name == "mpich") else { return };
    let place = Place::new();
    let script = |name: &str, text: &str| {
        let path = place.path(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    };
    fs::create_dir(place.path("bin")).unwrap();
    let variables = "SLURM_PROCID=$PMI_RANK SLURM_LOCALID=$PMI_RANK SLURM_STEP_NUM_TASKS=2 SLURM_NODEID=0 SLURM_STEP_ID=0 \
                     SLURM_STEP_NODELIST=localhost SLURM_STEP_TASKS_PER_NODE=2";
    script("rank", &format!("unset MPI_LOCALRANKID MPI_LOCALNRANKS\nexec env {variables} \"$@\""));
    let mpiexec = launcher.path.display();
    script("bin/srun", &format!(r#"while [ "${{1#--}}" != "$1" ]; do shift; done; exec {mpiexec} -n 2 ./rank "$@""#));
    let program = Path::new(env!("CARGO_BIN_EXE_bessemer")).parent().unwrap();
    let path = std::env::join_paths(
        [place.path("bin"), program.to_owned()]
            .into_iter()
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let job = std::process::id().to_string();
    let mut batch = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/slurm/train.sbatch"));
    batch.args(["--recipe", "tiny.toml", "--threads", "1"]).current_dir(place.0.path()).env("PATH", path.unwrap());
    let said = ran(batch.envs([("SLURM_JOB_ID", &*job), ("MPI", "pmi2"), ("RUN", "run")])).ok();
    assert!(said.err.contains("a step is 2 ranks x 2 micro-batches x 2 = 8 sequences"), "{}", said.err);
    place.launched(&launcher, 2, "train --recipe tiny.toml --quiet --out two").ok();
    assert!(place.tensors("run") == place.tensors("two"));
}
