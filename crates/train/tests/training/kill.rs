//! A run that is killed again and again, at random moments and while it writes checkpoints, ends like one that was not.
#![cfg(unix)]

use crate::common::{assert_same_tensors, last, new_run, resumed};
use bessemer_train::{RunDir, train};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Names the run folder for [`child`].
const RUN_FOLDER: &str = "BESSEMER_TEST_RUN_FOLDER";
const KILLS: usize = 20;
const OVERRIDES: [&str; 4] = ["train.epochs=8", "checkpoint.every_steps=2", "eval.every_epochs=4", "checkpoint.keep=1"];

#[test]
#[ignore = "the process that the test below starts and kills"]
fn child() {
    let Some(folder) = std::env::var_os(RUN_FOLDER).map(PathBuf::from) else { return };
    let options = if RunDir::open(&folder).is_ok() {
        resumed(&folder, &OVERRIDES)
    } else {
        // Killed before the run had its recipe.
        let _ = fs::remove_dir_all(&folder);
        new_run(&folder, &OVERRIDES)
    };
    train(&options).expect("the run ends well");
}

fn start(folder: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.args(["kill::child", "--exact", "--ignored", "--nocapture"]).env(RUN_FOLDER, folder);
    command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().expect("the process starts")
}

fn is_writing(folder: &Path) -> bool {
    let entries = fs::read_dir(folder.join("checkpoints")).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with('.'))
}

/// Kills the process after `delay`, in a checkpoint if `in_checkpoint`; `false` if it ended before.
fn kill(child: &mut Child, folder: &Path, delay: Duration, in_checkpoint: bool) -> bool {
    let started = Instant::now();
    while started.elapsed() < delay || (in_checkpoint && !is_writing(folder)) {
        if let Some(status) = child.try_wait().expect("the process can be asked") {
            assert!(status.success(), "the process failed: {status}");
            return false;
        }
        sleep(Duration::from_micros(200));
    }
    child.kill().expect("the process can be killed");
    let status = child.wait().expect("the process can be waited for");
    !status.success()
}

#[test]
fn killed_runs_end_like_runs_that_were_not() {
    let folder = TempDir::new().expect("a temporary folder");
    let whole = folder.path().join("whole");
    let started = Instant::now();
    assert!(start(&whole).wait().expect("the process runs").success());
    let duration = started.elapsed();
    let expected = last(&whole);

    let (mut kills, mut runs, mut random) = (0, 0, 1_u64);
    while kills < KILLS {
        let run = folder.path().join(format!("killed-{runs}"));
        runs += 1;
        loop {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let delay = duration.mul_f64((random >> 40) as f64 / (1_u64 << 24) as f64 * 0.4);
            if kills == KILLS || !kill(&mut start(&run), &run, delay, kills % 2 == 1) {
                break;
            }
            kills += 1;
        }
        assert!(start(&run).wait().expect("the process runs").success());
        let end = last(&run);
        assert_same_tensors(&expected, &end);
        assert_eq!(expected.state, end.state);
        assert!(!is_writing(&run), "nothing is left of what was being written");
    }
}
