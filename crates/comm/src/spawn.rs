//! Starting the ranks of a job on this machine: through the launcher of an MPI, or as children of this process. No rank outlives
//! who started it.

use crate::CommError;
use crate::launch::{COOKIE, RENDEZVOUS};
use crate::mpi::{Family, die_with_this_thread};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, geteuid};
use std::ffi::{OsStr, OsString};
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the others have to end by themselves when one rank failed, or was asked to end.
const GRACE: Duration = Duration::from_secs(5);
/// Between looks at children.
const TICK: Duration = Duration::from_millis(10);

/// The launcher of an MPI on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpiLauncher {
    /// The program.
    pub path: PathBuf,
    /// The libraries whose processes it starts.
    pub family: Family,
    /// What it says of itself, in one line.
    pub version: String,
}

impl MpiLauncher {
    /// Names of the program, the usual ones first; Debian has several MPIs side by side under the longer ones.
    const NAMES: [&str; 6] = ["mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.mpich", "mpiexec.hydra", "orterun"];

    /// The first launcher on a search path such as `PATH`, of this family if one is given.
    ///
    /// # Errors
    /// There is none.
    pub fn find(search: &OsStr, family: Option<Family>) -> Result<MpiLauncher, CommError> {
        // Open MPI takes its installation from the path by which it is called, and that of a link such as /bin is none.
        let folders: Vec<PathBuf> =
            std::env::split_paths(search).filter_map(|folder| folder.canonicalize().ok()).collect();
        let candidates = Self::NAMES.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
        let mut known = candidates.filter(|path| path.is_file()).filter_map(|path| MpiLauncher::at(&path));
        known.find(|launcher| family.is_none_or(|family| family == launcher.family)).ok_or_else(|| {
            let (name, package) = match family {
                Some(Family::Mpich) => ("MPICH", "mpich"),
                Some(Family::OpenMpi) => ("Open MPI", "openmpi-bin"),
                Some(Family::StandardAbi) | None => ("MPI", "openmpi-bin or mpich"),
            };
            let names = Self::NAMES.join(", ");
            let reason = format!(
                "no launcher of {name} is on the search path (names: {names}); install it (package {package} on Debian and Ubuntu)"
            );
            CommError::NoMpi { reason }
        })
    }

    /// The launcher at this path, if it says of which MPI it is.
    pub fn at(path: &Path) -> Option<MpiLauncher> {
        let output = Command::new(path).arg("--version").stdin(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let line = |start: &str| text.lines().map(str::trim).find(|line| line.starts_with(start));
        let (family, version) =
            if text.contains("Open MPI") || text.contains("OpenRTE") || text.contains("open-mpi.org") {
                (Family::OpenMpi, text.lines().next().unwrap_or_default().to_owned())
            } else if text.contains("HYDRA") {
                (
                    Family::Mpich,
                    format!(
                        "Hydra {}",
                        line("Version:").and_then(|line| line.split_whitespace().nth(1)).unwrap_or_default()
                    ),
                )
            } else if text.contains("Intel(R) MPI") {
                (Family::Mpich, line("Intel(R) MPI").unwrap_or_default().to_owned())
            } else {
                return None;
            };
        Some(MpiLauncher { path: path.to_owned(), family, version })
    }

    /// The standard input that it must be started with. Hydra hands on to rank 0 what it reads: where its input ends while it
    /// starts the ranks, one start of a thousand ends by SIGPIPE, or never (4.0.2), so that its input lasts as long as this process.
    pub fn stdin(&self) -> Stdio {
        static PIPE: OnceLock<Option<(PipeReader, PipeWriter)>> = OnceLock::new();
        let open = || PIPE.get_or_init(|| std::io::pipe().ok()).as_ref()?.0.try_clone().ok();
        let reader = if self.family == Family::Mpich { open() } else { None };
        reader.map_or_else(Stdio::null, Stdio::from)
    }

    /// The command that starts `ranks` processes on this machine: not bound to cores, on as few cores as there are, and by root
    /// where this process is root's.
    pub fn command(&self, ranks: usize, program: &OsStr, arguments: &[OsString]) -> Command {
        let mut command = Command::new(&self.path);
        command.arg("-n").arg(ranks.to_string());
        if self.family == Family::OpenMpi {
            command.args(["--oversubscribe", "--bind-to", "none"]);
            // Between the loss of a rank and the killing of the others twice this many seconds pass, in which they may save.
            command.args(["--mca", "odls_base_sigkill_timeout", "5"]);
            if geteuid().is_root() {
                command.arg("--allow-run-as-root");
            }
        }
        if self.version.starts_with("Hydra") {
            // Else the loss of one rank kills the others at once, before rank 0 has saved anything. With it they get
            // SIGUSR1, which MPICH handles.
            command.arg("-disable-auto-cleanup");
        }
        // Intel MPI binds to cores by this variable; Hydra itself does not bind.
        command.env("I_MPI_PIN", "off").arg(program).args(arguments).stdin(self.stdin());
        command
    }
}

/// Processes of one job, in a process group of their own. They are killed when it is dropped, and when the thread that started it
/// ends, even if by a signal.
pub struct Job {
    children: Vec<Child>,
    group: Pid,
    copies: Vec<JoinHandle<()>>,
}

impl Job {
    /// Runs a command that starts the ranks, such as that of an [`MpiLauncher`].
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(command: &mut Command) -> Result<Job, CommError> {
        Job::of(&mut [command])
    }

    /// Runs `program` on `ranks` children of this process, which find each other on this port of loopback, with these variables beside
    /// those of this process. What ranks other than 0 write to standard error goes to `log()`, each line with its rank.
    ///
    /// # Errors
    /// A child cannot be started.
    pub fn start_local<W: Write + Send + 'static>(
        ranks: usize,
        program: &OsStr,
        arguments: &[OsString],
        port: u16,
        variables: &[(&str, &OsStr)],
        log: impl Fn() -> W,
    ) -> Result<Job, CommError> {
        let unique = (std::process::id(), std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos());
        let command = |rank: usize| {
            let mut command = Command::new(program);
            command.args(arguments).env("BESSEMER_RANK", rank.to_string()).env("BESSEMER_SIZE", ranks.to_string());
            command.env("BESSEMER_LOCAL_RANK", rank.to_string()).env("BESSEMER_LOCAL_SIZE", ranks.to_string());
            command.env(RENDEZVOUS, format!("127.0.0.1:{port}")).env(COOKIE, format!("{} {}", unique.0, unique.1));
            command.envs(variables.iter().copied()).stdin(Stdio::null());
            if rank > 0 {
                command.stderr(Stdio::piped());
            }
            command
        };
        let mut commands: Vec<Command> = (0..ranks).map(command).collect();
        let mut job = Job::of(&mut commands.iter_mut().collect::<Vec<_>>())?;
        for (rank, child) in job.children.iter_mut().enumerate() {
            if let Some(mut from) = child.stderr.take() {
                let mut to = PrefixLines::new(log(), format!("[rank {rank}] "));
                job.copies.push(std::thread::spawn(move || copy(&mut from, &mut to)));
            }
        }
        Ok(job)
    }

    /// Starts all commands in one process group.
    fn of(commands: &mut [&mut Command]) -> Result<Job, CommError> {
        let mut job = Job { children: Vec::new(), group: Pid::from_raw(0), copies: Vec::new() };
        for command in commands {
            // The group is that of the first child, which exists at least until it is waited for.
            command.process_group(job.group.as_raw());
            let child = die_with_this_thread(command).spawn().map_err(|error| CommError::Spawn {
                program: command.get_program().to_string_lossy().into_owned(),
                reason: error.to_string(),
            })?;
            if job.children.is_empty() {
                job.group = Pid::from_raw(child.id() as i32);
            }
            job.children.push(child);
        }
        Ok(job)
    }

    /// Number of the process group, to which signals are passed on.
    pub fn group(&self) -> i32 {
        self.group.as_raw()
    }

    /// Sends a signal to all processes.
    pub fn signal(&self, signal: Signal) {
        // Processes that have ended need none.
        let _ = killpg(self.group, signal);
    }

    /// Sends a signal to the processes that run the program `ranks`, but not to a launcher between them and this process, which would
    /// end them. On Linux alone; elsewhere all processes get it.
    pub fn signal_ranks(&self, ranks: &Path, signal: Signal) {
        let found = descendants(&self.children.iter().map(Child::id).collect::<Vec<_>>());
        let is_rank = |process: &u32| std::fs::read_link(format!("/proc/{process}/exe")).is_ok_and(|exe| exe == ranks);
        let processes: Vec<u32> = found.into_iter().filter(is_rank).collect();
        if processes.is_empty() {
            return self.signal(signal);
        }
        // Processes that have ended meanwhile need none.
        for process in processes {
            let _ = kill(Pid::from_raw(process as i32), signal);
        }
    }

    /// Waits until all have ended; once one has failed, the others have 5 s. `tick` is called every 10 ms. Returns 0, or the exit
    /// code of the first that failed, which is 128 and its number for a signal.
    ///
    /// # Errors
    /// A child cannot be waited for.
    pub fn wait(&mut self, mut tick: impl FnMut(&Job)) -> Result<i32, CommError> {
        let failed =
            |error: std::io::Error| CommError::Spawn { program: "a rank".to_owned(), reason: error.to_string() };
        let mut first: Option<(i32, Instant)> = None;
        loop {
            let mut running = false;
            for child in &mut self.children {
                match child.try_wait().map_err(failed)? {
                    Some(status) if !status.success() => drop(first.get_or_insert((code(status), Instant::now()))),
                    Some(_) => {}
                    None => running = true,
                }
            }
            if !running {
                // What they wrote has been copied before the caller writes more.
                self.copies.drain(..).for_each(|copy| drop(copy.join()));
                return Ok(first.map_or(0, |(code, _)| code));
            }
            if first.is_some_and(|(_, at)| at.elapsed() > GRACE) {
                self.signal(Signal::SIGKILL);
            }
            tick(self);
            std::thread::sleep(TICK);
        }
    }

    /// Asks all processes to end, and kills those that have not after 5 s.
    pub fn kill(&mut self) {
        let ended = |children: &mut [Child]| children.iter_mut().all(|child| !matches!(child.try_wait(), Ok(None)));
        if ended(&mut self.children) {
            return;
        }
        self.signal(Signal::SIGTERM);
        let begun = Instant::now();
        while !ended(&mut self.children) {
            if begun.elapsed() > GRACE {
                self.signal(Signal::SIGKILL);
            }
            std::thread::sleep(TICK);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.kill();
    }
}

/// These processes and all that they have started, as far as the system tells.
fn descendants(of: &[u32]) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let parent = |entry: std::fs::DirEntry| {
        let process: u32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // Behind the name, which may hold anything, come the state and the parent.
        let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        Some((process, parent))
    };
    let parents: Vec<(u32, u32)> = processes.filter_map(parent).collect();
    let mut found = of.to_vec();
    let mut at = 0;
    while at < found.len() {
        let children: Vec<u32> =
            parents.iter().filter(|(_, parent)| *parent == found[at]).map(|(child, _)| *child).collect();
        found.extend(children);
        at += 1;
    }
    found
}

fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

/// Lets this process be killed when the one that started it ends: for ranks under the launcher of an MPI, which ask for it first
/// of all. On Linux alone.
///
/// # Errors
/// The system refuses.
pub fn die_with_parent() -> Result<(), CommError> {
    #[cfg(target_os = "linux")]
    let failed = |error: nix::Error| CommError::Spawn { program: "this rank".to_owned(), reason: error.to_string() };
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(failed)?;
    Ok(())
}

fn copy(from: &mut impl Read, to: &mut impl Write) {
    // A log that cannot be written must not stop the rank.
    let mut bytes = [0; 8192];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let _ = to.write_all(&bytes[..count]);
    }
    let _ = to.flush();
}

/// Writes each line behind a prefix, in one piece.
pub struct PrefixLines<W: Write> {
    to: W,
    prefix: String,
    line: Vec<u8>,
}

impl<W: Write> PrefixLines<W> {
    /// Lines to `to`.
    pub fn new(to: W, prefix: String) -> PrefixLines<W> {
        PrefixLines { to, line: prefix.clone().into_bytes(), prefix }
    }
}

impl<W: Write> Write for PrefixLines<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                self.to.write_all(&self.line)?;
                self.line.truncate(self.prefix.len());
            }
        }
        Ok(bytes.len())
    }

    /// Ends a line that was begun.
    fn flush(&mut self) -> std::io::Result<()> {
        if self.line.len() > self.prefix.len() {
            self.write_all(b"\n")?;
        }
        self.to.flush()
    }
}
