//! Real MPIs: ranks under `mpirun` of Open MPI and `mpiexec` of MPICH get the bits that the transport through memory gives.
//!
//! Ranks are this test program again, which then plays the role that a variable names. Where an MPI is missing, a line that begins
//! with `skipped:` goes to standard error.

mod support;

use bessemer_comm::CommError;
use bessemer_comm::control::{Deadlines, Identity};
use bessemer_comm::engine::Engine;
use bessemer_comm::launch::{Placement, Rendezvous, Variables, process_variables};
use bessemer_comm::memory;
use bessemer_comm::mpi::{Family, MpiLibrary};
use bessemer_comm::rendezvous::{LateWatch, Membership, meet};
use bessemer_comm::spawn::MpiLauncher;
use bessemer_comm::transport::Transport;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::{BUCKETS, elements, hash};

/// Says what a process of this test is: absent in the test itself.
const ROLE: &str = "COMM_TEST_ROLE";
/// Folder in which each rank writes a file.
const FOLDER: &str = "COMM_TEST_FOLDER";

/// Library that ranks open, instead of the one that is found.
const LIBRARY: &str = "COMM_TEST_LIBRARY";

/// What a rank does, when this program is started as one.
#[test]
fn as_rank() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let variables = process_variables();
    let placement = Placement::from_variables(&variables).unwrap();
    let report = match role.as_str() {
        "collectives" => collectives(&placement, &variables),
        "loss" => loss(&placement, &variables),
        "start" => start(&placement, &variables, LateWatch::new(Deadlines::default().join))
            .map_or_else(|error| error.to_string(), |_| "started".to_owned()),
        "idle" => idle(&placement, &variables),
        "probe" => {
            let engine = start(&placement, &variables, LateWatch::new(Deadlines::default().join)).unwrap();
            format!("{:?}", engine.probe([0, 1]).unwrap())
        }
        "two libraries" => {
            MpiLibrary::find(Some(Path::new("libmpi.so.40")), &placement, &variables).unwrap();
            let same = MpiLibrary::find(None, &placement, &variables).unwrap();
            let other = MpiLibrary::find(Some(Path::new("libmpich.so.12")), &placement, &variables).err().unwrap();
            format!("{} {:?} {other}", same.path(), same.family())
        }
        role => panic!("{role}"),
    };
    let file = Path::new(&std::env::var(FOLDER).unwrap()).join(placement.rank.to_string());
    std::fs::write(file, report).unwrap();
}

fn start(placement: &Placement, variables: &Variables, watch: LateWatch) -> Result<Engine, CommError> {
    let path = std::env::var_os(LIBRARY);
    let library = MpiLibrary::find(path.as_deref().map(Path::new), placement, variables)?;
    let placement = placement.clone();
    Engine::start(Box::new(move || library.start(&placement)), Box::new(move || watch.check()))
}

/// The control channel, whose address comes through MPI.
fn join(placement: &Placement, engine: &Engine) -> Membership {
    meet(placement, Identity::default(), Deadlines::default(), Some(engine), |_| ()).unwrap()
}

/// Hashes of all buckets, which are under way together, and of gathered bytes.
fn reduce_all(engine: &Engine) -> String {
    let rank = engine.rank();
    let mut started = Vec::new();
    for (number, (length, wire, reduction)) in BUCKETS.into_iter().enumerate() {
        started.push(engine.all_reduce(&[&elements(number as u64, rank, length)], wire, reduction));
    }
    let parts = engine.all_gather(vec![rank as u8; 100_000 * rank]).unwrap();
    let sizes: Vec<usize> = parts.iter().map(Vec::len).collect();
    assert!(parts.iter().enumerate().all(|(rank, part)| part.iter().all(|&byte| byte == rank as u8)));
    let last = engine.size() - 1;
    let sent = engine.broadcast(last, (rank == last).then(|| b"from the last".to_vec())).unwrap();
    let mut report = format!("{sizes:?} {}\n", String::from_utf8(sent).unwrap());
    for (started, (length, ..)) in started.into_iter().zip(BUCKETS) {
        let mut values = vec![0.0; length];
        started.wait().unwrap().finish(&mut [&mut values]);
        report.push_str(&format!("{length} {:016x}\n", hash(&values)));
    }
    report
}

fn collectives(placement: &Placement, variables: &Variables) -> String {
    assert_eq!(placement.rendezvous, Some(Rendezvous::Mpi));
    let engine = start(placement, variables, LateWatch::new(Deadlines::default().join)).unwrap();
    assert_eq!((engine.rank(), engine.size()), (placement.rank, placement.size));
    let Membership { server, control } = join(placement, &engine);
    let report = reduce_all(&engine);
    assert_eq!(control.all_gather(report.as_bytes(), None).unwrap(), vec![report.as_bytes(); engine.size()]);
    control.leave();
    if let Some(server) = server {
        server.close(Duration::from_secs(10));
    }
    report
}

/// The last rank ends without a word while the others wait in an all-reduce.
fn loss(placement: &Placement, variables: &Variables) -> String {
    let watch = LateWatch::new(Deadlines::default().join);
    let engine = start(placement, variables, watch.clone()).unwrap();
    let Membership { server: _server, control } = join(placement, &engine);
    watch.set(&control);
    let lost = engine.size() - 1;
    if engine.rank() == lost {
        // It must not end the job by its exit code, which some launchers notice before the others do.
        std::thread::sleep(Duration::from_millis(300));
        drop(control);
        std::thread::sleep(Duration::from_secs(6));
        std::process::exit(0);
    }
    let values = vec![1.0; 100_000];
    let begun = Instant::now();
    let error = engine.all_reduce(&[&values], BUCKETS[7].1, BUCKETS[7].2).wait().err().expect("a rank is lost");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    // The engine, which does not end MPI now, ends at once.
    drop(engine);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    error.to_string()
}

/// Ranks wait for each other elsewhere than in MPI behind every sum, and rank 1 ends a second after rank 0.
fn idle(placement: &Placement, variables: &Variables) -> String {
    let watch = LateWatch::new(Deadlines::default().join);
    let engine = start(placement, variables, watch.clone()).unwrap();
    let Membership { server, control } = join(placement, &engine);
    watch.set(&control);
    let values = vec![1.0; 75_000];
    for round in 0..500 {
        let summed = engine.all_reduce(&[&values], BUCKETS[7].1, BUCKETS[7].2).wait();
        if let Err(error) = summed.and_then(|_| control.all_gather(&[], Some(Duration::from_secs(5)))) {
            return format!("round {round}: {error}");
        }
    }
    std::thread::sleep(Duration::from_secs(placement.rank as u64));
    drop(engine);
    control.leave();
    if let Some(server) = server {
        server.close(Duration::from_secs(10));
    }
    "ended".to_owned()
}

/// A line that the test harness does not keep for itself.
fn note(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// The launcher of a family, or a line that says that it is missing.
fn launcher(family: Family) -> Option<MpiLauncher> {
    let found = MpiLauncher::find(&std::env::var_os("PATH").unwrap_or_default(), Some(family));
    if let Err(error) = &found {
        note(&format!("skipped: ranks of {}: {error}", family.name()));
    }
    found.ok()
}

/// This program in a role, as a command or as arguments of a launcher.
fn this_program() -> (std::path::PathBuf, [std::ffi::OsString; 3]) {
    (std::env::current_exe().unwrap(), ["as_rank", "--exact", "--nocapture"].map(Into::into))
}

/// What a command says, which is killed where it does not end within so long.
fn within(limit: Duration, command: &mut Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() && begun.elapsed() < limit {
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    child.wait_with_output().unwrap()
}

/// Runs ranks in a role; what each has reported, and what all wrote.
fn ranks(launcher: &MpiLauncher, ranks: usize, role: &str, library: Option<&Path>) -> (Vec<Option<String>>, Output) {
    let folder = tempfile::tempdir().unwrap();
    let (program, arguments) = this_program();
    let mut command = launcher.command(ranks, program.as_os_str(), &arguments);
    if let Some(library) = library {
        command.env(LIBRARY, library);
    }
    if role == "idle" {
        // As between nodes, over connections that are full at once.
        let buffers = [("OMPI_MCA_btl_tcp_sndbuf", "65536"), ("OMPI_MCA_btl_tcp_rcvbuf", "65536")];
        command.envs([("OMPI_MCA_btl", "tcp,self"), ("UCX_TLS", "tcp,self")]).envs(buffers);
    }
    let output = within(Duration::from_secs(120), command.env(ROLE, role).env(FOLDER, folder.path()));
    let report = |rank: usize| std::fs::read_to_string(folder.path().join(rank.to_string())).ok();
    ((0..ranks).map(report).collect(), output)
}

/// What ranks with messages through memory report.
fn expected(size: usize) -> String {
    let mut reports: Vec<String> = std::thread::scope(|scope| {
        let run = |end| {
            let open = Box::new(move || Ok(Box::new(end) as Box<dyn Transport>));
            reduce_all(&Engine::start(open, Box::new(|| Ok(()))).unwrap())
        };
        let threads: Vec<_> = memory::ranks(size).into_iter().map(|end| scope.spawn(move || run(end))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let first = reports.remove(0);
    assert!(reports.iter().all(|report| *report == first));
    first
}

fn bits_equal_those_through_memory(family: Family) {
    if let Some(launcher) = launcher(family) {
        bits_equal(&launcher, None);
    }
}

fn bits_equal(launcher: &MpiLauncher, library: Option<&Path>) {
    for size in [2, 4] {
        let (reports, output) = ranks(launcher, size, "collectives", library);
        let expected = expected(size);
        for (rank, report) in reports.into_iter().enumerate() {
            assert_eq!(report.as_ref(), Some(&expected), "rank {rank} of {size}: {output:?}");
        }
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn bits_of_open_mpi_equal_those_through_memory() {
    bits_equal_those_through_memory(Family::OpenMpi);
}

#[test]
fn bits_of_mpich_equal_those_through_memory() {
    bits_equal_those_through_memory(Family::Mpich);
}

#[test]
fn bits_of_the_standard_abi_equal_those_through_memory() {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let beside =
        |folder: std::path::PathBuf| Some((folder.join("mpiexec"), folder.parent()?.join("lib/libmpi_abi.so.1")));
    let given = std::env::var_os("BESSEMER_TEST_MPI_ABI").map(|folder| Path::new(&folder).join("bin"));
    let folders = given.into_iter().chain(std::env::split_paths(&path));
    let found = folders.filter_map(beside).find(|(mpiexec, library)| mpiexec.exists() && library.exists());
    match found {
        Some((mpiexec, library)) => bits_equal(&MpiLauncher::at(&mpiexec).unwrap(), Some(&library)),
        None => note(
            "skipped: ranks of the standard ABI: there is no libmpi_abi.so.1 beside a launcher on the search path or in BESSEMER_TEST_MPI_ABI",
        ),
    }
}

#[test]
fn a_lost_rank_is_named_on_the_others() {
    for family in [Family::OpenMpi, Family::Mpich] {
        let Some(launcher) = launcher(family) else { continue };
        let (reports, output) = ranks(&launcher, 3, "loss", None);
        let host = bessemer_comm::net::host_name();
        for report in &reports[..2] {
            let report = report.as_ref().unwrap_or_else(|| panic!("{output:?}"));
            let expected =
                format!("lost rank 2 (host {host}) before the first step: the connection was closed; last seen ");
            assert!(report.starts_with(&expected), "{report}");
        }
        assert_eq!(reports[2], None);
    }
}

#[test]
fn ranks_with_nothing_to_do_send_what_they_owe_and_end_together() {
    for family in [Family::OpenMpi, Family::Mpich] {
        let Some(launcher) = launcher(family) else { continue };
        let (reports, output) = ranks(&launcher, 2, "idle", None);
        assert_eq!(reports, vec![Some("ended".to_owned()); 2], "{family:?}: {output:?}");
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn links_are_probed() {
    for family in [Family::OpenMpi, Family::Mpich] {
        let Some(launcher) = launcher(family) else { continue };
        let (reports, output) = ranks(&launcher, 2, "probe", None);
        let [Some(first), Some(second)] = &reports[..] else { panic!("{output:?}") };
        assert!(first.starts_with("Some(Link { latency: ") && second == "None", "{first} {second}");
        assert!(output.status.success(), "{output:?}");
        note(&format!("{}: {first}", launcher.version));
    }
}

/// One process that believes to be one of two: with `set` as its variables and without those of launchers.
fn alone(role: &str, set: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (program, arguments) = this_program();
    let mut command = Command::new(program);
    command.args(arguments).envs(set.iter().copied()).env(ROLE, role).env(FOLDER, folder.path());
    let output = command.stdin(Stdio::null()).output().unwrap();
    std::fs::read_to_string(folder.path().join("0")).unwrap_or_else(|_| panic!("{output:?}"))
}

const SRUN: [(&str, &str); 5] = [
    ("SLURM_PROCID", "0"),
    ("SLURM_STEP_NUM_TASKS", "2"),
    ("SLURM_JOB_ID", "7"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_STEP_NODELIST", "localhost"),
];

#[test]
fn an_mpi_that_does_not_see_the_ranks_of_srun_says_so() {
    if launcher(Family::OpenMpi).is_none() && launcher(Family::Mpich).is_none() {
        return;
    }
    let expected = "srun started 2 processes, this one as rank 0, but MPI sees 1, and this one as rank 0: the MPI library does not \
                    belong to the launcher; with Slurm use srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH)";
    assert_eq!(alone("start", &SRUN), expected);
}

#[test]
fn launchers_without_mpi_are_named() {
    if launcher(Family::OpenMpi).is_none() && launcher(Family::Mpich).is_none() {
        return;
    }
    let torchrun = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "1")];
    assert_eq!(
        alone("start", &torchrun),
        "torchrun starts no MPI, which ranks on CPUs need: use `mpirun -np 2 bessemer ...` or `bessemer launch -n 2 -- ...`"
    );
}

#[test]
fn a_second_library_is_refused() {
    if launcher(Family::OpenMpi).is_some() {
        let expected = "libmpi.so.40 OpenMpi libmpich.so.12 was asked for, but this process has opened libmpi.so.40";
        assert_eq!(alone("two libraries", &[]), expected);
    }
}

#[test]
fn a_library_of_another_launcher_is_refused() {
    let Some(_) = launcher(Family::Mpich) else { return };
    let mut variables = Variables::new();
    variables.insert("OMPI_COMM_WORLD_RANK".into(), "0".into());
    variables.insert("OMPI_COMM_WORLD_SIZE".into(), "2".into());
    let placement = Placement::from_variables(&variables).unwrap();
    let find = |path: &str| {
        MpiLibrary::find(Some(Path::new(path)), &placement, &variables).err().map(|error| error.to_string())
    };
    let refused = find("libmpich.so.12");
    assert_eq!(refused.as_deref(), Some("libmpich.so.12 is MPICH, but mpirun of Open MPI started this process"));
    let missing = find("/nowhere/libmpi.so").unwrap();
    assert!(missing.starts_with("/nowhere/libmpi.so: cannot open shared object file"), "{missing}");
    let foreign = find("libc.so.6").unwrap();
    assert_eq!(foreign, "libc.so.6 is no MPI that this program knows: \"\"");
}
