//! The files of `deploy/`, without a cluster.

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

/// What a script prints where `srun` and `bessemer` are such programs.
fn called(script: &str, arguments: &[&str], folder: &Path) -> (bool, String) {
    let bin = folder.join("bin");
    fs::create_dir_all(&bin).unwrap();
    fake(&bin, "srun", r#"echo "srun $*"; while [ "${1#--}" != "$1" ]; do shift; done; exec "$@""#);
    fake(&bin, "bessemer", r#"echo "bessemer $*""#);
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(deploy().join(script));
    let command = command.args(arguments).current_dir(folder).env("PATH", path);
    let output = command.env("SLURM_JOB_ID", "17").env("SLURM_JOB_NAME", "r50").output().unwrap();
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

/// Kubernetes' own check needs a cluster: the fields that the MPI Operator demands are there, and the launcher starts as many ranks as there are
/// workers.
#[test]
fn the_job_starts_as_many_ranks_as_workers() {
    let text = fs::read_to_string(deploy().join("kubernetes/mpijob.yaml")).unwrap();
    let values = |key: &str| -> Vec<&str> {
        let start = format!("{key}: ");
        text.lines().filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix(&start)).collect()
    };
    assert_eq!((values("apiVersion"), values("kind")), (vec!["kubeflow.org/v2beta1"], vec!["MPIJob"]));
    assert_eq!(values("replicas"), ["1", "4"]);
    let arguments: Vec<&str> = text.lines().filter_map(|line| line.trim().strip_prefix("- ")).collect();
    let ranks = arguments.iter().position(|argument| *argument == "-np").map(|at| arguments[at + 1]);
    assert_eq!(ranks, Some("\"4\""));
    assert!(arguments.contains(&"/usr/local/bin/train-or-resume"));
    let container = fs::read_to_string(deploy().join("Containerfile")).unwrap();
    assert!(container.contains("COPY deploy/train-or-resume /usr/local/bin/train-or-resume"));
}
