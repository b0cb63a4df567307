//! Tells the program which commit it is built from, for the logs of its runs: `BESSEMER_COMMIT`, which packages that are built without a
//! repository may set, or what git says.

use std::path::Path;
use std::process::Command;

const COMMIT: &str = "BESSEMER_COMMIT";

/// A line that git answers; nothing where there is no git or no repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

fn main() {
    println!("cargo::rerun-if-env-changed={COMMIT}");
    println!("cargo::rerun-if-changed=build.rs");
    // Written by each commit, checkout and reset. Of a file that is not there cargo would say at each build that it has changed.
    if let Some(log) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"])
        && Path::new(&log).exists()
    {
        println!("cargo::rerun-if-changed={log}");
    }
    if std::env::var_os(COMMIT).is_none()
        && let Some(commit) = git(&["rev-parse", "HEAD"])
    {
        println!("cargo::rustc-env={COMMIT}={commit}");
    }
}
