//! This process among the ranks of a job, and starting such jobs on this machine.

use crate::args::{Common, LogFormat, at_least_one, switch};
use crate::failure::{FAILED, Usage};
use anyhow::{Result, bail};
use bessemer_comm::environment::set_missing;
use bessemer_comm::launch::{ERRORS, Launcher, Placement, Rendezvous, Variables, process_variables};
use bessemer_comm::mpi::{Family, end_at_once, interface_variables};
use bessemer_comm::net::interface_towards;
use bessemer_comm::spawn::{Job, MpiLauncher, die_with_parent};
use bessemer_ir::ops::collective::Wire;
use bessemer_train::device::NcclSettings;
use bessemer_train::{DeviceKind, Group, GroupOptions, StopSignal};
use clap::{ArgAction, Args};
use nix::fcntl::OFlag;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::json;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant, UNIX_EPOCH};
use tempfile::TempDir;

/// Options of a command that runs on several devices.
#[derive(Debug, Args)]
#[command(next_help_heading = "Several devices")]
pub(crate) struct RankArguments {
    /// Share each step among this many ranks on this machine, which are started by the launcher of an MPI, or on GPUs here, a rank
    /// each; train.accumulation must be a multiple of it, or see --split-batch and --weak [default: the ranks that mpirun, mpiexec, srun or torchrun started, else 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one)]
    pub devices: Option<usize>,
    #[command(flatten)]
    pub mpi: MpiArgument,
    /// Let NCCL choose how GPUs add, which may change with the size of messages, instead of rings in one order (NCCL_ALGO=Ring,
    /// NCCL_PROTO=Simple)
    #[arg(long)]
    pub nccl_auto: bool,
    /// Precision of gradients on their way between ranks: fp32, or bf16 or fp16 for half of the bytes, rounded before and after the sum
    #[arg(long, value_name = "PRECISION", default_value = "fp32", value_parser = wire)]
    pub wire: Wire,
    /// Whether gradients travel while the rest of the step is computed: on, or off, which changes no result
    #[arg(long, value_name = "on|off", default_value = "on", action = ArgAction::Set, value_parser = switch)]
    pub overlap: bool,
    /// Seconds within which all ranks must have started
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0, value_parser = seconds)]
    pub join_timeout: f64,
    /// Seconds of silence after which a rank is lost
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    pub peer_timeout: f64,
    /// Seconds that a rank waits for a sum over all ranks, or in a step, an evaluation or a checkpoint for what others say, before it ends
    /// the job
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0, value_parser = seconds)]
    pub collective_timeout: f64,
    /// The same before the first step, where each rank opens data, reads weights and compiles
    #[arg(long, value_name = "SECONDS", default_value_t = 3600.0, value_parser = seconds)]
    pub start_timeout: f64,
    /// Steps between two comparisons of the weights of all ranks
    #[arg(long, value_name = "STEPS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    pub verify_state: u64,
}

/// Which MPI carries messages.
#[derive(Debug, Args)]
pub(crate) struct MpiArgument {
    /// MPI to use: openmpi, mpich, or the path of a library [default: the one of the launcher]
    #[arg(long, value_name = "NAME|PATH")]
    pub mpi: Option<Mpi>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mpi {
    Family(Family),
    Library(PathBuf),
}

impl FromStr for Mpi {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "openmpi" => Ok(Self::Family(Family::OpenMpi)),
            "mpich" => Ok(Self::Family(Family::Mpich)),
            path if Path::new(path).is_file() => Ok(Self::Library(path.into())),
            _ => Err("neither openmpi nor mpich nor the path of a library".to_owned()),
        }
    }
}

impl MpiArgument {
    pub(crate) fn family(&self) -> Option<Family> {
        match self.mpi {
            Some(Mpi::Family(family)) => Some(family),
            _ => None,
        }
    }

    pub(crate) fn library(&self) -> Option<&Path> {
        match &self.mpi {
            Some(Mpi::Library(path)) => Some(path),
            _ => None,
        }
    }
}

fn wire(text: &str) -> Result<Wire, String> {
    match text {
        "fp32" => Ok(Wire::F32),
        "bf16" => Ok(Wire::Bf16),
        "fp16" => Ok(Wire::F16),
        _ => Err("allowed: fp32, bf16, fp16".to_owned()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|seconds| (0.1..=1e6).contains(seconds));
    value.ok_or_else(|| "not a number of seconds between 0.1 and 1000000".to_owned())
}

impl RankArguments {
    /// Joins the job of which this process is a rank, if a launcher started it as one. Where ranks are asked for that nobody started,
    /// they are started here, and this process ends with them.
    ///
    /// `job` is what all ranks must be asked for alike, `device` where they compute.
    pub(crate) fn join(&self, job: &str, device: DeviceKind, common: &Common) -> Result<Group> {
        let variables = process_variables();
        let placement = Placement::from_variables(&variables)?;
        // PMI's variables are those by which other launchers of this list speak to their MPI.
        let others = placement.others.iter().filter(|other| **other != Launcher::Pmi);
        let others: Vec<&str> = others.map(|other| other.title()).collect();
        if let (Some(launcher), false) = (placement.launcher, others.is_empty()) {
            let (launcher, others) = (launcher.title(), others.join(" and of "));
            common.notify(&format!("ranks are those of {launcher}; there are variables of {others} as well"));
        }
        match self.devices {
            Some(devices) if placement.launcher.is_none() && devices > 1 => {
                let arguments = std::env::args_os().skip(1).collect::<Vec<_>>();
                let start = Start { ranks: devices, mpi: &self.mpi, device };
                std::process::exit(run_ranks(
                    &start,
                    &arguments,
                    &StopSignal::from_system(common.stop_notice(STOPS_AND_SAVES))?,
                    common,
                )?);
            }
            Some(devices) if placement.launcher.is_some() && devices != placement.size => {
                let launcher = placement.launcher.map_or("", |launcher| launcher.title());
                bail!(Usage(format!("--devices is {devices}, but {launcher} started {} ranks", placement.size)));
            }
            _ => {}
        }
        if placement.size > 1 && placement.launcher.is_some_and(|launcher| launcher.starts_mpi()) {
            die_with_parent()?;
        }
        let [join, peer, collective_timeout, start_timeout] =
            [self.join_timeout, self.peer_timeout, self.collective_timeout, self.start_timeout]
                .map(Duration::from_secs_f64);
        let mut options = GroupOptions {
            collective_timeout,
            start_timeout,
            verify_every: self.verify_state,
            wire: self.wire,
            give_up: |error| {
                tell_error(FAILED, error);
                end_at_once(FAILED);
            },
            ..GroupOptions::default()
        };
        (options.deadlines.join, options.deadlines.peer) = (join, peer);
        options.deadlines.beat = options.deadlines.beat.min(peer / 4);
        let missing = |ranks: &[usize]| {
            let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
            common.notify(&format!("waiting for the ranks {}", ranks.join(", ")));
        };
        if placement.size > 1 {
            prepare_libraries(device, &placement, &variables, !self.nccl_auto, common);
        }
        Ok(Group::join(&placement, &variables, (self.mpi.library(), device), job, options, missing)?)
    }
}

/// Lets MPI or NCCL send over the interface by which rank 0 is reached where ranks are on several machines, and GPUs add in one order;
/// must be called before there are other threads.
pub(crate) fn prepare_libraries(
    device: DeviceKind,
    placement: &Placement,
    variables: &Variables,
    one_order: bool,
    common: &Common,
) {
    let has_others = placement.local_size != Some(placement.size);
    let interface = match &placement.rendezvous {
        Some(Rendezvous::Address { host, port, .. }) if has_others => interface_towards(host, *port),
        _ => None,
    };
    let (wanted, warning) = match device {
        DeviceKind::Cpu => (
            interface.map_or_else(Vec::new, |interface| interface_variables(&interface, variables)),
            "warning: variables of MPI could not be set: sums may go over another network",
        ),
        DeviceKind::Cuda { .. } => (
            NcclSettings { one_order, interface }.variables(),
            "warning: variables of NCCL could not be set: sums may be added in another order in each run, and over another network",
        ),
    };
    if !set_missing(&wanted) {
        common.warn(warning);
    }
}

/// What is said where a training run is asked to stop.
pub(crate) const STOPS_AND_SAVES: &str =
    "stopping: the step that is under way is finished and saved; Ctrl-C again ends at once, without saving";

/// Whether another process reads the errors of this one, which is a rank that it has started.
pub(crate) fn is_started_here() -> bool {
    ERROR_PIPE.get().is_some_and(Option::is_some)
}

/// Refuses several ranks for a command that is done by one process.
pub(crate) fn require_one(command: &str) -> Result<()> {
    let Placement { size, launcher, .. } = Placement::from_variables(&process_variables())?;
    match launcher {
        Some(launcher) if size > 1 => {
            let launcher = launcher.title();
            bail!(Usage(format!(
                "{command} is done by one process, and {launcher} started {size}: each would do all of it"
            )))
        }
        _ => Ok(()),
    }
}

/// Whether this process is a rank other than 0, which leaves output to rank 0.
pub(crate) fn is_follower() -> bool {
    Placement::from_variables(&process_variables()).is_ok_and(|placement| placement.rank > 0)
}

/// The end of the pipe [`ERRORS`] to which this process writes; open until it ends.
static ERROR_PIPE: OnceLock<Option<File>> = OnceLock::new();

/// Opens the pipe for errors, if whoever started this process reads one.
pub(crate) fn open_error_pipe() {
    // Without a reader it is not opened, instead of waited for.
    let open = |path| OpenOptions::new().write(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path);
    ERROR_PIPE.get_or_init(|| open(std::env::var_os(ERRORS)?).ok());
}

/// Says why this process ends, and with which exit code.
pub(crate) fn tell_error(code: u8, error: &str) {
    let pipe = ERROR_PIPE.get().and_then(Option::as_ref);
    let told = pipe.is_some_and(|mut pipe| pipe.write_all(format!("{code} {error}\n").as_bytes()).is_ok());
    if !told {
        print_error(error);
    }
}

/// Whether errors are objects of JSON, as the progress is.
static ERRORS_ARE_JSON: OnceLock<bool> = OnceLock::new();

/// Lets errors from here on have the form of the progress.
pub(crate) fn choose_form_of_errors(format: LogFormat) {
    ERRORS_ARE_JSON.get_or_init(|| format == LogFormat::Json);
}

/// Writes an error to standard error, as one line.
fn print_error(error: &str) {
    match ERRORS_ARE_JSON.get() {
        Some(true) => {
            let time = UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64();
            eprintln!("{}", json!({"v": 1, "kind": "error", "time": time, "message": error}));
        }
        _ => eprintln!("error: {error}"),
    }
}

/// The reading end of a pipe for errors, in a folder that serves the launcher for its own files as well: one that is killed leaves them.
struct ErrorPipe {
    folder: TempDir,
    reader: File,
    bytes: Vec<u8>,
    /// Whether a rank has had it open.
    was_open: bool,
    /// Since when no rank has it open.
    closed: Option<Instant>,
}

impl ErrorPipe {
    fn new() -> Result<Self> {
        let folder = TempDir::with_prefix("bessemer-ranks-")?;
        let pipe = Self::path_in(folder.path());
        mkfifo(&pipe, Mode::S_IRUSR | Mode::S_IWUSR)?;
        let reader = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(pipe)?;
        Ok(Self { folder, reader, bytes: Vec::new(), was_open: false, closed: None })
    }

    fn path_in(folder: &Path) -> PathBuf {
        folder.join("errors")
    }

    /// Reads what has come.
    fn look(&mut self) -> std::io::Result<()> {
        match self.reader.read_to_end(&mut self.bytes) {
            Ok(_) => {
                self.was_open |= !self.bytes.is_empty();
                if self.was_open {
                    self.closed.get_or_insert_with(Instant::now);
                }
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                (self.was_open, self.closed) = (true, None);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Whether a rank has told an error, and all have ended for some time.
    fn job_has_failed(&self) -> bool {
        !self.bytes.is_empty() && self.closed.is_some_and(|closed| closed.elapsed() > LAUNCHER_GRACE)
    }

    /// Waits until all ranks have ended, some of which may outlive their launcher, but not for long; their exit codes and errors in the
    /// order in which they ended.
    fn read(&mut self) -> Result<Vec<(i32, String)>> {
        let begun = Instant::now();
        self.look()?;
        while self.was_open && self.closed.is_none() && begun.elapsed() < LAST_WORDS {
            sleep(Duration::from_millis(10));
            self.look()?;
        }
        let text = String::from_utf8_lossy(&self.bytes);
        let told = text.lines().filter_map(|line| {
            let (code, error) = line.split_once(' ')?;
            Some((code.parse().ok()?, error.to_owned()))
        });
        Ok(told.collect())
    }
}

/// How long a launcher has to end when all ranks have, one of them with an error: Open MPI's sleeps for ten seconds before it looks
/// whether those that it ends are still there.
const LAUNCHER_GRACE: Duration = Duration::from_millis(300);

/// How long ranks may take to end behind their launcher.
const LAST_WORDS: Duration = Duration::from_secs(6);

/// Ranks to be started.
pub(crate) struct Start<'a> {
    /// Their number.
    pub ranks: usize,
    pub mpi: &'a MpiArgument,
    /// Where they compute.
    pub device: DeviceKind,
}

/// Runs this program on several ranks of this machine, and returns the exit code of the job. When `stop` is raised, that is handed on to
/// the ranks, which save and end.
pub(crate) fn run_ranks(start: &Start<'_>, arguments: &[OsString], stop: &StopSignal, common: &Common) -> Result<i32> {
    let &Start { ranks, mpi, device } = start;
    let program = std::env::current_exe()?;
    let mut errors = ErrorPipe::new()?;
    let pipe = ErrorPipe::path_in(errors.folder.path());
    let mut job = match device {
        DeviceKind::Cpu => {
            let launcher = MpiLauncher::find(&std::env::var_os("PATH").unwrap_or_default(), mpi.family())?;
            common.notify(&format!("{ranks} ranks by {} ({})", launcher.path.display(), launcher.version));
            let mut command = launcher.command(ranks, program.as_os_str(), arguments);
            Job::start(command.env(ERRORS, &pipe).env("OMPI_MCA_orte_tmpdir_base", errors.folder.path()))?
        }
        DeviceKind::Cuda { .. } => {
            common.notify(&format!("{ranks} ranks, each with a GPU"));
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            let variables = [(ERRORS, pipe.as_os_str())];
            Job::start_local(ranks, program.as_os_str(), arguments, port, &variables, std::io::stderr)?
        }
    };
    let (mut asked, mut is_readable) = (false, true);
    let tick = |job: &Job| {
        if stop.is_raised() && !std::mem::replace(&mut asked, true) {
            job.signal_ranks(&program, Signal::SIGTERM);
        }
        is_readable = is_readable && errors.look().is_ok();
        if errors.job_has_failed() {
            job.signal(Signal::SIGKILL);
        }
    };
    let code = job.wait(tick)?;
    let told = distinct(errors.read()?);
    // That of a launcher which had to be killed says nothing.
    let code = told.first().map_or(code, |(code, _)| *code);
    for (_, error) in &told {
        print_error(error);
    }
    if code != 0 && told.is_empty() {
        print_error(&format!("the ranks ended with code {code}, and none said why: their launcher killed them"));
    }
    Ok(code)
}

/// The device that a command line asks for.
pub(crate) fn device_of(arguments: &[OsString]) -> DeviceKind {
    let words: Vec<_> = arguments.iter().map(|word| word.to_string_lossy()).collect();
    let behind =
        words.iter().zip(words.iter().skip(1)).find(|(name, _)| *name == "--device").map(|(_, value)| &**value);
    let given = behind.or_else(|| words.iter().find_map(|word| word.strip_prefix("--device=")));
    given.and_then(|name| name.parse().ok()).unwrap_or_default()
}

/// The errors of ranks, each once, with their exit codes: what one says of itself, and not what others repeat of it, whoever was first.
fn distinct(errors: Vec<(i32, String)>) -> Vec<(i32, String)> {
    let mut distinct: Vec<(i32, String)> = Vec::new();
    for (code, error) in errors {
        if !distinct.iter().any(|(_, known)| error.contains(known)) {
            distinct.retain(|(_, known)| !known.contains(&error));
            distinct.push((code, error));
        }
    }
    distinct
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_is_read_off_a_command_line() {
        for (line, device) in [
            ("train --device cuda --out x", "cuda"),
            ("train --device=cuda:1", "cuda:1"),
            ("train --devices 2", "cpu"),
            ("train --device", "cpu"),
            ("train --device tpu", "cpu"),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(device_of(&words).to_string(), device, "{line}");
        }
    }

    #[test]
    fn each_error_is_told_once() {
        let repeated = (1, "rank 2 (host a) failed: no picture".to_owned());
        let (own, lost) = ((2, "no picture".to_owned()), (1, "lost rank 1".to_owned()));
        for told in [[&repeated, &own, &repeated, &lost], [&own, &repeated, &repeated, &lost]] {
            assert_eq!(distinct(told.map(Clone::clone).to_vec()), [own.clone(), lost.clone()]);
        }
    }
}
