//! The files of `deploy/`, without a cluster.

use crate::kubernetes;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// A program on a search path of its own that prints how it was called.
fn fake(folder: &Path, name: &str, script: &str) {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// What a script prints where the programs that it calls are such ones.
fn called(script: &str, arguments: &[&str], folder: &Path) -> (bool, String) {
    called_with(script, arguments, folder, &[("SLURM_JOB_ID", "17"), ("SLURM_JOB_NAME", "r50")])
}

/// The same with these variables.
fn called_with(script: &str, arguments: &[&str], folder: &Path, variables: &[(&str, &str)]) -> (bool, String) {
    let bin = folder.join("bin");
    fs::create_dir_all(&bin).unwrap();
    fake(&bin, "srun", r#"echo "srun $*"; while [ "${1#--}" != "$1" ]; do shift; done; exec "$@""#);
    fake(&bin, "bessemer", r#"echo "bessemer $*""#);
    fake(&bin, "mpirun", r#"echo "mpirun $*""#);
    // Unreachable when it is asked for the first time.
    fake(
        &bin,
        "ssh",
        r#"for host; do case $host in bessemer-*) echo "ssh $host"; [ -e "$host" ] || { : >"$host"; exit 255; } ;; esac; done"#,
    );
    fake(&bin, "sleep", "");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(deploy().join(script));
    let command = command.args(arguments).current_dir(folder).env("PATH", path);
    let output = command.envs(variables.iter().copied()).output().unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn the_batch_script_begins_and_resumes() {
    let folder = TempDir::new().unwrap();
    let run = || called("slurm/train.sbatch", &["resnet50", "--set", "a=b c"], folder.path());
    let (ok, said) = run();
    assert!(ok && said.contains("srun --mpi=pmix --kill-on-bad-exit=0 bessemer train"), "{said}");
    assert!(!said.contains("scontrol"), "{said}");
    assert!(said.ends_with("bessemer train resnet50 --set a=b c --out runs/r50-17\n"), "{said}");
    fs::create_dir_all(folder.path().join("runs/r50-17")).unwrap();
    fs::write(folder.path().join("runs/r50-17/recipe.toml"), "").unwrap();
    assert!(run().1.ends_with("bessemer train --resume runs/r50-17\n"));
}

#[test]
fn the_batch_script_takes_gpus_where_it_has_some() {
    let folder = TempDir::new().unwrap();
    let variables = [("SLURM_JOB_ID", "17"), ("SLURM_JOB_NAME", "r50"), ("SLURM_GPUS_PER_NODE", "8")];
    let run = || called_with("slurm/train.sbatch", &["resnet50"], folder.path(), &variables).1;
    let srun = "srun --mpi=none --kill-on-bad-exit=0 bessemer";
    let begun = "train resnet50 --out runs/r50-17 --device cuda";
    assert_eq!(run(), format!("{srun} {begun}\nbessemer {begun}\n"));
    fs::create_dir_all(folder.path().join("runs/r50-17")).unwrap();
    fs::write(folder.path().join("runs/r50-17/recipe.toml"), "").unwrap();
    assert!(run().ends_with("bessemer train --resume runs/r50-17 --device cuda\n"));
}

/// Slurm tells the script two minutes before its time is over; what it starts then ends with code 130, and the job is queued again. A job
/// that fails by itself is not.
#[test]
fn a_job_whose_time_is_over_is_queued_again() {
    for (srun, expected) in [
        (
            r#"trap 'echo saved; exit 130' TERM; /bin/sleep 0.3; kill -USR1 $PPID; while :; do /bin/sleep 0.02; done"#,
            (130, "saved\nscontrol requeue 17\n"),
        ),
        ("echo failed; exit 1", (1, "failed\n")),
        (
            r#"trap 'echo done; exit 0' TERM; /bin/sleep 0.3; kill -USR1 $PPID; while :; do /bin/sleep 0.02; done"#,
            (0, "done\n"),
        ),
    ] {
        let folder = TempDir::new().unwrap();
        let bin = folder.path().join("bin");
        fs::create_dir(&bin).unwrap();
        fake(&bin, "srun", srun);
        fake(&bin, "scontrol", r#"echo "scontrol $*""#);
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let mut command = Command::new(deploy().join("slurm/train.sbatch"));
        command.arg("resnet50").current_dir(folder.path()).env("PATH", path).env("SLURM_JOB_ID", "17");
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!((output.status.code(), &*said), (Some(expected.0), expected.1));
    }
}

#[test]
fn the_batch_script_asks_to_be_told_of_its_end() {
    let script = fs::read_to_string(deploy().join("slurm/train.sbatch")).unwrap();
    let options: Vec<&str> = script.lines().filter_map(|line| line.strip_prefix("#SBATCH ")).collect();
    assert!(options.contains(&"--requeue") && options.contains(&"--signal=B:USR1@120"), "{options:?}");
}

#[test]
fn the_command_of_a_container_begins_and_resumes() {
    let folder = TempDir::new().unwrap();
    let run = || called("train-or-resume", &["runs/a", "resnet50", "--data", "d"], folder.path()).1;
    assert_eq!(run(), "bessemer train resnet50 --data d --out runs/a\n");
    fs::create_dir_all(folder.path().join("runs/a")).unwrap();
    fs::write(folder.path().join("runs/a/recipe.toml"), "").unwrap();
    assert_eq!(run(), "bessemer train --resume runs/a\n");
    let each = ["runs/b", "--device", "cuda", "--", "resnet50", "--data", "d e"];
    let run = || called("train-or-resume", &each, folder.path()).1;
    assert_eq!(run(), "bessemer train resnet50 --data d e --device cuda --out runs/b\n");
    fs::create_dir_all(folder.path().join("runs/b")).unwrap();
    fs::write(folder.path().join("runs/b/recipe.toml"), "").unwrap();
    assert_eq!(run(), "bessemer train --resume runs/b --device cuda\n");
}

/// The documents of a file, each valid by the schema of its kind.
fn documents(name: &str) -> Vec<Value> {
    let text = fs::read_to_string(deploy().join("kubernetes").join(name)).unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    for document in &documents {
        assert_eq!(kubernetes::problems(document), [""; 0], "{name}");
    }
    documents
}

fn words(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect()
}

#[test]
fn the_operators_job_starts_as_many_ranks_as_workers() {
    for (file, image, ranks_of_each, gpus, options) in [
        ("mpijob.yaml", "bessemer:latest", 1, None, &["/runs/resnet50", "resnet50"][..]),
        (
            "mpijob-gpu.yaml",
            "bessemer-gpu:latest",
            8,
            Some(8),
            &["/runs/resnet50", "--device", "cuda", "--", "resnet50"],
        ),
    ] {
        let [job] = &documents(file)[..] else { panic!("one document") };
        let replicas = &job["spec"]["mpiReplicaSpecs"];
        let of = |role: &str| &replicas[role]["template"]["spec"]["containers"][0];
        let (launchers, workers) =
            (&replicas["Launcher"]["replicas"], replicas["Worker"]["replicas"].as_u64().unwrap());
        assert_eq!(
            (launchers.as_u64(), workers, job["spec"]["slotsPerWorker"].as_u64()),
            (Some(1), 4, Some(ranks_of_each))
        );
        let (arguments, ranks) = (words(&of("Launcher")["args"]), (workers * ranks_of_each).to_string());
        let behind = |name: &str| arguments.iter().position(|word| *word == name).map(|at| &arguments[at + 1..]);
        assert_eq!(behind("-np").map(|words| words[0]), Some(&*ranks));
        assert!(behind("/usr/local/bin/train-or-resume").unwrap().starts_with(options), "{arguments:?}");
        assert_eq!(arguments.last(), Some(&&*format!("train.accumulation={ranks}")));
        assert_eq!(of("Launcher")["volumeMounts"], of("Worker")["volumeMounts"]);
        assert_eq!(of("Worker")["resources"]["limits"]["nvidia.com/gpu"].as_u64(), gpus);
        assert!(["Launcher", "Worker"].iter().all(|role| of(role)["image"] == image));
        assert!(has_program("train-or-resume"));
    }
}

/// The instructions of the container file, with continued lines joined.
fn instructions(text: &str) -> Vec<(String, String)> {
    let joined = text.lines().filter(|line| !line.trim_start().starts_with('#')).collect::<Vec<_>>().join("\n");
    let joined = joined.replace("\\\n", " ");
    let split = |line: &str| line.split_once(' ').map(|(name, rest)| (name.to_owned(), rest.trim().to_owned()));
    joined.lines().filter(|line| !line.is_empty()).map(|line| split(line).unwrap_or_else(|| panic!("{line}"))).collect()
}

/// What is wrong with a container file: each instruction is one of those used here, in its form; stages and files are there; commands
/// are those of a shell.
fn problems_of_container(text: &str) -> Vec<String> {
    let mut stages: Vec<String> = Vec::new();
    let mut problems = Vec::new();
    for (name, rest) in instructions(text) {
        let words: Vec<&str> = rest.split_whitespace().collect();
        let is_well = match (&*name, &words[..]) {
            ("FROM", [image, alias @ ..]) => {
                let is_known = stages.iter().any(|stage| stage == image)
                    || image
                        .split_once(':')
                        .is_some_and(|(name, tag)| name.matches('/').count() == 2 && !tag.is_empty());
                let (is_named, alias) = match alias {
                    [] => (true, ""),
                    ["AS", alias] => (!stages.iter().any(|stage| stage == alias), *alias),
                    _ => (false, ""),
                };
                stages.push(alias.to_owned());
                is_known && is_named
            }
            (_, _) if stages.is_empty() => false,
            ("WORKDIR", [path]) => path.starts_with('/'),
            ("COPY", [from, source, to]) if from.starts_with("--from=") => {
                let stage = from.trim_start_matches("--from=");
                stages.iter().any(|known| known == stage) && source.starts_with('/') && to.starts_with('/')
            }
            ("COPY", [sources @ .., to]) if !sources.is_empty() => {
                let is_folder = to.ends_with('/') || *to == ".";
                sources.iter().all(|source| deploy().join("..").join(source).exists())
                    && (is_folder || sources.len() == 1)
            }
            ("RUN", [_, ..]) => Command::new("sh").args(["-n", "-c", &rest]).output().unwrap().status.success(),
            ("ENV", pairs) => pairs.iter().all(|pair| pair.split_once('=').is_some_and(|(name, _)| !name.is_empty())),
            ("CMD", _) => serde_json::from_str::<Vec<String>>(&rest).is_ok_and(|words| words[0].starts_with('/')),
            _ => false,
        };
        if !is_well {
            problems.push(format!("{name} {rest}"));
        }
    }
    problems
}

#[test]
fn instructions_of_the_container_are_well_formed() {
    let text = fs::read_to_string(deploy().join("Containerfile")).unwrap();
    assert_eq!(problems_of_container(&text), [""; 0]);
    let named: Vec<String> =
        instructions(&text).into_iter().filter(|(name, _)| name == "FROM").map(|(_, rest)| rest).collect();
    assert!(named.iter().any(|stage| stage == "cpu AS gpu") && named.last().unwrap() == "cpu", "{named:?}");
    for (from, to) in [
        ("--from=build", "--from=builder"),
        ("COPY deploy/train-or-resume", "COPY deploy/train"),
        ("RUN apt-get update \\\n", "RUN apt-get update (\\\n"),
        ("&& rm -rf /var/lib/apt/lists/* \\", "&& rm -rf /var/lib/apt/lists/*"),
        ("CMD [\"/usr/sbin/sshd\",", "CMD [\"/usr/sbin/sshd\""),
        ("WORKDIR", "WORKDIRECTORY"),
        ("docker.io/library/debian:bookworm-slim", "docker.io/library/debian"),
        ("FROM cpu AS gpu", "FROM cpus AS gpu"),
    ] {
        assert!(text.contains(from), "{from}");
        assert!(!problems_of_container(&text.replacen(from, to, 1)).is_empty(), "{to}");
    }
}

/// Whether the container has a script of `deploy/`.
fn has_program(name: &str) -> bool {
    let container = fs::read_to_string(deploy().join("Containerfile")).unwrap();
    let copied = container.lines().find(|line| line.starts_with("COPY deploy/")).expect("a line");
    copied.ends_with(" /usr/local/bin/") && copied.contains(&format!("deploy/{name} "))
}

#[test]
fn the_first_pod_of_the_indexed_job_starts_a_rank_in_each() {
    let [service, job] = &documents("job.yaml")[..] else { panic!("two documents") };
    let (spec, pod) = (&job["spec"], &job["spec"]["template"]["spec"]);
    let name = job["metadata"]["name"].as_str().unwrap();
    // The names of pods are those of the service, which selects them.
    assert_eq!(pod["subdomain"], service["metadata"]["name"]);
    assert_eq!(service["spec"]["selector"]["batch.kubernetes.io/job-name"], *name);
    assert_eq!(
        (service["metadata"]["name"].as_str(), service["spec"]["clusterIP"].as_str()),
        (Some(name), Some("None"))
    );
    assert_eq!((&spec["completions"], spec["completionMode"].as_str()), (&spec["parallelism"], Some("Indexed")));
    let container = &pod["containers"][0];
    assert_eq!(words(&container["command"]), ["/usr/local/bin/indexed-job"]);
    let arguments = words(&container["args"]);
    assert_eq!(arguments[..2], [name, &spec["completions"].as_u64().unwrap().to_string()]);
    assert!(has_program("indexed-job"));

    let folder = TempDir::new().unwrap();
    let (ok, said) = called("indexed-job", &arguments, folder.path());
    assert!(!ok, "it is no pod: {said}");
    let (ok, said) = called_with("indexed-job", &arguments, folder.path(), &[("JOB_COMPLETION_INDEX", "0")]);
    let asked = [1, 1, 2, 2, 3, 3].map(|index| format!("ssh bessemer-{index}.bessemer\n")).concat();
    let mpirun = "mpirun --allow-run-as-root --bind-to none -np 4 -H \
                  bessemer-0.bessemer:1,bessemer-1.bessemer:1,bessemer-2.bessemer:1,bessemer-3.bessemer:1 \
                  /usr/local/bin/train-or-resume /runs/resnet50 resnet50 --data /data/imagenet --set train.accumulation=4\n";
    assert!(ok && said == asked + mpirun, "{said}");
}

#[test]
fn what_the_api_does_not_have_is_found() {
    let valid = fs::read_to_string(deploy().join("kubernetes/job.yaml")).unwrap();
    for (from, to, problem) in [
        ("completions: 4", "completion: 4", "Job.spec: there is no field completion"),
        ("completions: 4", "completions: four", "Job.spec.completions: not a whole number"),
        ("completionMode: Indexed", "completionMode: Ordered", "Job.spec.completionMode: none of NonIndexed, Indexed"),
        ("          image: bessemer:latest\n", "", "Job.spec.template.spec.containers[0]: image is missing"),
        (
            "readOnly: true",
            "readOnly: 1",
            "Job.spec.template.spec.containers[0].volumeMounts[0].readOnly: neither true nor false",
        ),
        (
            "succeededIndexes: \"0\"",
            "succeededIndexes: 0",
            "Job.spec.successPolicy.rules[0].succeededIndexes: not a text",
        ),
        ("batch/v1\n", "batch/v2\n", "batch/v2 Job: not known here"),
    ] {
        assert!(valid.contains(from), "{from}");
        let text = valid.replacen(from, to, 1);
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        let found: Vec<String> = documents.iter().flat_map(kubernetes::problems).collect();
        assert_eq!(found, [problem]);
    }
}
