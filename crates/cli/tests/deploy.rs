//! The files of `deploy/`, without a cluster.

#[path = "deploy/kubernetes.rs"]
mod kubernetes;

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
    assert!(said.ends_with("bessemer train resnet50 --set a=b c --out runs/r50-17\n"), "{said}");
    fs::create_dir_all(folder.path().join("runs/r50-17")).unwrap();
    fs::write(folder.path().join("runs/r50-17/recipe.toml"), "").unwrap();
    assert!(run().1.ends_with("bessemer train --resume runs/r50-17\n"));
}

#[test]
fn the_command_of_a_container_begins_and_resumes() {
    let folder = TempDir::new().unwrap();
    let run = || called("train-or-resume", &["runs/a", "resnet50", "--data", "d"], folder.path()).1;
    assert_eq!(run(), "bessemer train resnet50 --data d --out runs/a\n");
    fs::create_dir_all(folder.path().join("runs/a")).unwrap();
    fs::write(folder.path().join("runs/a/recipe.toml"), "").unwrap();
    assert_eq!(run(), "bessemer train --resume runs/a\n");
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
    let [job] = &documents("mpijob.yaml")[..] else { panic!("one document") };
    let replicas = &job["spec"]["mpiReplicaSpecs"];
    let of = |role: &str| &replicas[role]["template"]["spec"]["containers"][0];
    assert_eq!(
        (replicas["Launcher"]["replicas"].as_u64(), replicas["Worker"]["replicas"].as_u64()),
        (Some(1), Some(4))
    );
    let arguments = words(&of("Launcher")["args"]);
    let ranks = arguments.iter().position(|argument| *argument == "-np").map(|at| arguments[at + 1]);
    assert_eq!(ranks, Some("4"));
    assert!(arguments.contains(&"/usr/local/bin/train-or-resume"));
    assert_eq!(of("Launcher")["volumeMounts"], of("Worker")["volumeMounts"]);
    assert!(has_program("train-or-resume"));
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
