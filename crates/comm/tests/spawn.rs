//! Starting ranks: launchers of MPIs, children, what they write, and that none is left behind.

use bessemer_comm::mpi::Family;
use bessemer_comm::spawn::{Job, MpiLauncher, PrefixLines, die_with_parent};
use proptest::prelude::*;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Says what a process of this test is: absent in the test itself.
const ROLE: &str = "COMM_TEST_ROLE";
/// Folder in which processes write their numbers.
const FOLDER: &str = "COMM_TEST_FOLDER";

/// A log that is kept.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn shell(script: &str) -> [OsString; 2] {
    ["-c".into(), script.into()]
}

fn local(ranks: usize, script: &str, log: &Kept) -> Job {
    Job::start_local(ranks, OsStr::new("sh"), &shell(script), 4321, &[("BESSEMER_TEST", OsStr::new("given"))], || {
        log.clone()
    })
    .unwrap()
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what} did not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a process runs: it exists and has not ended.
fn runs(id: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", id.trim())).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

/// Numbers of processes that were written to files of a folder, once there are so many.
fn ids(folder: &Path, count: usize) -> Vec<String> {
    let read = || {
        let entries =
            std::fs::read_dir(folder).unwrap().map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap());
        entries.filter(|text| text.ends_with('\n')).collect::<Vec<String>>()
    };
    until("the start of all processes", || read().len() >= count);
    read()
}

/// Writes an executable file.
fn script(path: &Path, text: &str) {
    std::fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn launchers_are_found_by_what_they_say() {
    let folder = tempfile::tempdir().unwrap();
    let table = [
        ("mpirun.openmpi", "mpirun (Open MPI) 5.0.3", Family::OpenMpi, "mpirun (Open MPI) 5.0.3"),
        ("mpirun.openmpi", "mpirun.openmpi (OpenRTE) 4.1.4", Family::OpenMpi, "mpirun.openmpi (OpenRTE) 4.1.4"),
        ("mpiexec.mpich", "HYDRA build details:\n    Version:                 4.0.2", Family::Mpich, "Hydra 4.0.2"),
        (
            "mpiexec",
            "Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 1\nCopyright",
            Family::Mpich,
            "Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 1",
        ),
    ];
    for (name, text, family, version) in table {
        let path = folder.path().canonicalize().unwrap().join(name);
        script(&path, &format!("echo '{text}'"));
        let expected = MpiLauncher { path: path.clone(), family, version: version.to_owned() };
        assert_eq!(MpiLauncher::find(folder.path().as_os_str(), None), Ok(expected.clone()));
        assert_eq!(MpiLauncher::find(folder.path().as_os_str(), Some(family)), Ok(expected));
        let other = if family == Family::Mpich { Family::OpenMpi } else { Family::Mpich };
        let error = MpiLauncher::find(folder.path().as_os_str(), Some(other)).unwrap_err().to_string();
        let (name, package) = if other == Family::Mpich { ("MPICH", "mpich") } else { ("Open MPI", "openmpi-bin") };
        assert!(error.starts_with(&format!("no launcher of {name} is on the search path (names: mpirun, ")), "{error}");
        assert!(error.ends_with(&format!("install it (package {package} on Debian and Ubuntu)")), "{error}");
        std::fs::remove_file(path).unwrap();
    }
    script(&folder.path().join("mpirun"), "echo something else");
    assert!(MpiLauncher::find(folder.path().as_os_str(), None).is_err());
}

#[test]
fn commands_have_the_flags_of_their_launcher() {
    let command = |family, version: &str| {
        let launcher = MpiLauncher { path: "/opt/mpirun".into(), family, version: version.to_owned() };
        let command = launcher.command(4, OsStr::new("bessemer"), &["train".into(), "x y".into()]);
        command.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect::<Vec<_>>().join("|")
    };
    let root = if nix_root() { "--allow-run-as-root|" } else { "" };
    let open =
        format!("-n|4|--oversubscribe|--bind-to|none|--mca|odls_base_sigkill_timeout|5|{root}bessemer|train|x y");
    assert_eq!(command(Family::OpenMpi, "mpirun (Open MPI) 5.0.3"), open);
    assert_eq!(command(Family::Mpich, "Intel(R) MPI Library"), "-n|4|bessemer|train|x y");
    assert_eq!(command(Family::Mpich, "Hydra 4.0.2"), "-n|4|-disable-auto-cleanup|bessemer|train|x y");
}

/// Whether this process is root's.
fn nix_root() -> bool {
    let output = Command::new("id").arg("-u").output().unwrap();
    output.stdout == b"0\n"
}

#[test]
fn children_know_their_rank_and_their_errors_are_prefixed() {
    let log = Kept::default();
    let script = "echo \"$BESSEMER_RANK of $BESSEMER_SIZE, $BESSEMER_LOCAL_RANK of $BESSEMER_LOCAL_SIZE, $BESSEMER_TEST\" >&2; \
                  echo $BESSEMER_RENDEZVOUS >&2; printf 'end %s' \"$BESSEMER_COOKIE\" >&2";
    let mut job = local(3, script, &log);
    assert_eq!(job.wait(|_| ()), Ok(0));
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    let cookie = lines.iter().find_map(|line| line.strip_prefix("[rank 1] end ")).unwrap();
    assert!(!cookie.is_empty());
    let expected = [1, 2].map(|rank| {
        [
            format!("[rank {rank}] 127.0.0.1:4321"),
            format!("[rank {rank}] end {cookie}"),
            format!("[rank {rank}] {rank} of 3, {rank} of 3, given"),
        ]
    });
    let mut expected = expected.concat();
    expected.sort_unstable();
    assert_eq!(lines, expected);
}

#[test]
fn the_first_failure_is_the_exit_code_and_ends_the_others() {
    let log = Kept::default();
    let begun = Instant::now();
    let mut job = local(3, "if [ $BESSEMER_RANK = 1 ]; then exit 3; fi; sleep 1000", &log);
    assert_eq!(job.wait(|_| ()), Ok(3));
    assert!((4..20).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert_eq!(local(2, "if [ $BESSEMER_RANK = 0 ]; then kill -9 $$; fi", &log).wait(|_| ()), Ok(137));
    let error = Job::start_local(2, OsStr::new("/nowhere/x"), &[], 1, &[], || log.clone()).err().unwrap().to_string();
    assert!(error.starts_with("/nowhere/x cannot be started or watched: No such file"), "{error}");
}

#[test]
fn a_dropped_job_leaves_no_process_behind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display();
    let log = Kept::default();
    // Each rank starts a child in its process group; rank 1 ignores SIGTERM.
    let script = format!(
        "sleep 1000 & echo $! > {path}/child$BESSEMER_RANK; echo $$ > {path}/rank$BESSEMER_RANK; \
         if [ $BESSEMER_RANK = 1 ]; then trap '' TERM; fi; wait; sleep 1000"
    );
    let job = local(2, &script, &log);
    let ids = ids(folder.path(), 4);
    assert!(ids.iter().all(|id| runs(id)));
    drop(job);
    until("the end of all processes", || !ids.iter().any(|id| runs(id)));
}

/// What a process of this test does, when it is started as one.
#[test]
fn as_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let folder = std::env::var(FOLDER).unwrap();
    let write_id = || {
        let id = std::process::id();
        std::fs::write(Path::new(&folder).join(id.to_string()), format!("{id}\n")).unwrap();
    };
    let program = std::env::current_exe().unwrap();
    let arguments = ["as_process", "--exact", "--nocapture"].map(OsString::from);
    match role.as_str() {
        "local" => {
            let script = format!("echo $$ > {folder}/$$; exec sleep 1000");
            let mut job = local(2, &script, &Kept::default());
            let _ = job.wait(|_| ());
        }
        "rank" => {
            die_with_parent().unwrap();
            write_id();
            std::thread::sleep(Duration::from_secs(1000));
        }
        family => {
            let family = if family == "MPICH" { Family::Mpich } else { Family::OpenMpi };
            let launcher = MpiLauncher::find(&std::env::var_os("PATH").unwrap(), Some(family)).unwrap();
            // The ranks inherit their role through the launcher.
            let ranks: Vec<OsString> =
                [format!("{ROLE}=rank").into(), program.into()].into_iter().chain(arguments).collect();
            let mut job = Job::start(&mut launcher.command(2, OsStr::new("env"), &ranks)).unwrap();
            std::fs::write(Path::new(&folder).join("launcher"), format!("{}\n", job.group())).unwrap();
            let _ = job.wait(|_| ());
        }
    }
}

/// Starts this program in a role, kills it when `count` processes run, and sees that all of them end.
fn killed_parent(role: &str, count: usize) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["as_process", "--exact", "--nocapture"]).env(ROLE, role).env(FOLDER, folder.path());
    let mut parent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let ids = ids(folder.path(), count);
    assert!(ids.iter().all(|id| runs(id)));
    parent.kill().unwrap();
    parent.wait().unwrap();
    until("the end of all processes", || !ids.iter().any(|id| runs(id)));
}

#[test]
fn children_die_with_a_parent_that_is_killed() {
    killed_parent("local", 2);
}

#[test]
fn ranks_of_an_mpi_die_with_a_parent_that_is_killed() {
    for family in [Family::OpenMpi, Family::Mpich] {
        match launcher(family) {
            Some(_) => killed_parent(family.name(), 3),
            None => continue,
        }
    }
}

#[test]
fn exit_codes_come_through_mpi_launchers() {
    for family in [Family::OpenMpi, Family::Mpich] {
        let Some(launcher) = launcher(family) else { continue };
        let run =
            |script: &str| Job::start(&mut launcher.command(2, OsStr::new("sh"), &shell(script))).unwrap().wait(|_| ());
        assert_eq!(run("exit 0"), Ok(0), "{launcher:?}");
        assert_eq!(run("exit 3"), Ok(3), "{launcher:?}");
    }
}

#[test]
fn input_of_hydra_does_not_end() {
    let Some(launcher) = launcher(Family::Mpich) else { return };
    // Rank 0 alone gets the launcher's input. 124 is the code of `timeout` where the command had not ended.
    let script = shell("[ $PMI_RANK = 1 ] || timeout 0.5 cat; exit $?");
    let output = launcher.command(2, OsStr::new("sh"), &script).output().unwrap();
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    assert_eq!(Job::start(&mut launcher.command(2, OsStr::new("sh"), &script)).unwrap().wait(|_| ()), Ok(124));
}

/// The launcher of a family, or a line that says that it is missing.
fn launcher(family: Family) -> Option<MpiLauncher> {
    let found = MpiLauncher::find(&std::env::var_os("PATH").unwrap_or_default(), Some(family));
    if let Err(error) = &found {
        // Past the test harness, which keeps what tests print.
        std::io::stderr().write_all(format!("skipped: processes of {}: {error}\n", family.name()).as_bytes()).unwrap();
    }
    found.ok()
}

proptest! {
    #[test]
    fn lines_are_prefixed_wherever_they_are_cut(text in "[a\\n]{0,40}", cuts in prop::collection::vec(0_usize..40, 0..6)) {
        let log = Kept::default();
        let mut lines = PrefixLines::new(log.clone(), "> ".to_owned());
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).chain([0, text.len()]).collect();
        cuts.sort_unstable();
        for pair in cuts.windows(2) {
            lines.write_all(&text.as_bytes()[pair[0]..pair[1]]).unwrap();
        }
        lines.flush().unwrap();
        let expected: String = text.lines().map(|line| format!("> {line}\n")).collect();
        prop_assert_eq!(String::from_utf8(log.0.lock().unwrap().clone()).unwrap(), expected);
    }
}
