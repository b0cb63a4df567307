//! Runs a program in a fresh process, with a limit of time and of memory. Nothing that it starts outlives it, or this program.

use super::load::Ticks;
use super::protocol::{Failure, FailureKind, MEMORY_STATUS, UNSUPPORTED_STATUS};
use crate::machine::{available_memory, total_memory};
use crate::show;
use bessemer_train::StopSignal;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// What calls programs.
#[derive(Clone, Debug)]
pub struct Runner {
    /// This program, whose command `peer guard` watches over every other.
    pub program: PathBuf,
    /// Ends running programs when the user interrupts.
    pub stop: StopSignal,
}

/// A call of a program.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    pub(crate) command: &'a [String],
    /// Processors it may use; all without a number.
    pub(crate) processors: Option<usize>,
    pub(crate) limit: Duration,
    /// Its output and its errors go to this path with `.out` and `.log` behind.
    pub(crate) log: &'a Path,
}

/// A program that ended well.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// Its output; of a [`Runner::call`] the last line of it that begins with `{`.
    pub(crate) answer: String,
    pub(crate) wall_s: f64,
    /// Share of the processors that others used meanwhile, if the system reports it.
    pub(crate) others_busy: Option<f64>,
}

const POLL: Duration = Duration::from_millis(25);
/// Share of all memory that must stay free.
const LEAST_FREE: f64 = 0.02;
/// Bytes that a program may print.
const MOST_OUTPUT: u64 = 64 << 20;
/// What shells add to the number of the signal that ended a program.
const SIGNALLED: i32 = 128;
/// Environment variables from which libraries read their number of threads.
const THREAD_VARIABLES: [&str; 5] =
    ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS", "NUMEXPR_NUM_THREADS"];

impl Runner {
    /// Runs a program to its end and gives its answer.
    ///
    /// # Errors
    /// The program cannot be started, fails, takes too long or too much memory, or has no answer.
    pub fn call(&self, call: &Call<'_>) -> Result<Ended, Failure> {
        let ended = self.run(call)?;
        let answer = ended.answer.lines().rfind(|line| line.starts_with('{')).map(str::to_owned);
        let answer = answer.ok_or_else(|| Failure::new(FailureKind::Invalid, "no result on its standard output"))?;
        Ok(Ended { answer, ..ended })
    }

    /// Runs a program to its end and gives all that it printed.
    ///
    /// # Errors
    /// The program cannot be started, fails, or takes too long or too much memory.
    pub(crate) fn run(&self, call: &Call<'_>) -> Result<Ended, Failure> {
        let io_failure = |error: io::Error| Failure::new(FailureKind::Failed, error.to_string());
        let [output, log] = ["out", "log"].map(|extension| with_extension(call.log, extension));
        let before = Ticks::now();
        let started = Instant::now();
        let mut child = self.start(call, &output, &log).map_err(io_failure)?;
        let ended = self.wait(&mut child, call.limit, &[&output, &log]);
        end(&mut child);
        let (wall_s, after) = (started.elapsed().as_secs_f64(), Ticks::now());
        let status = ended.map_err(io_failure)??;
        let said = fs::read(&output).map_err(io_failure)?;
        if !status.success() {
            return Err(failure(status, &fs::read(&log).map_err(io_failure)?));
        }
        let answer = String::from_utf8_lossy(&said).into_owned();
        let others_busy = before.zip(after).map(|(before, after)| after.busy_since(before));
        Ok(Ended { answer, wall_s, others_busy })
    }

    fn start(&self, call: &Call<'_>, output: &Path, log: &Path) -> io::Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(["peer", "guard"]);
        if let Some(processors) = call.processors {
            command.args(["--processors", &processors.to_string()]);
            command.envs(THREAD_VARIABLES.map(|name| (name, processors.to_string())));
        }
        command.arg("--").args(call.command);
        command.stdin(Stdio::piped()).stdout(File::create(output)?).stderr(File::create(log)?);
        command.process_group(0).spawn()
    }

    fn wait(&self, child: &mut Child, limit: Duration, files: &[&Path]) -> io::Result<Result<ExitStatus, Failure>> {
        let deadline = Instant::now() + limit;
        let least_free = total_memory().map(|all| (all as f64 * LEAST_FREE) as u64);
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Ok(status));
            }
            let printed = files.iter().map(|path| fs::metadata(path).map_or(0, |file| file.len())).max().unwrap_or(0);
            let free = available_memory().filter(|free| least_free.is_some_and(|least| *free < least));
            let failure = if self.stop.is_raised() {
                Failure::new(FailureKind::Interrupted, "")
            } else if Instant::now() >= deadline {
                Failure::new(FailureKind::TimeLimit, format!("not done after {}", show::seconds(limit.as_secs_f64())))
            } else if let Some(free) = free {
                Failure::new(FailureKind::Memory, format!("{} of the machine's memory were left", show::bytes(free)))
            } else if printed > MOST_OUTPUT {
                Failure::new(FailureKind::Invalid, format!("it printed more than {}", show::bytes(MOST_OUTPUT)))
            } else {
                thread::sleep(POLL);
                continue;
            };
            return Ok(Err(failure));
        }
    }
}

fn with_extension(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    PathBuf::from(name)
}

/// Kills a process and those that it started, if they still run.
fn end(child: &mut Child) {
    if let Ok(group) = i32::try_from(child.id()) {
        // There may be nothing left to end.
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    let _ = child.wait();
}

/// Why a program failed, by its status and its standard error.
fn failure(status: ExitStatus, log: &[u8]) -> Failure {
    let log = String::from_utf8_lossy(log);
    let lines = || log.lines().map(str::trim).filter(|line| !line.is_empty());
    let line = lines().find(|line| line.starts_with("error:")).or_else(|| lines().next_back());
    let reason = line.map_or("", |line| line.strip_prefix("error:").unwrap_or(line).trim());
    let code = status.code().unwrap_or_else(|| SIGNALLED + status.signal().unwrap_or(0));
    let killed = code == SIGNALLED + Signal::SIGKILL as i32;
    if killed {
        return Failure::new(FailureKind::Memory, "the system ended it");
    }
    match u8::try_from(code) {
        Ok(MEMORY_STATUS) => {
            Failure::new(FailureKind::Memory, reason.trim_start_matches("out of memory").trim_start_matches(':').trim())
        }
        Ok(UNSUPPORTED_STATUS) => Failure::new(FailureKind::Unsupported, reason),
        _ if reason.is_empty() => Failure::new(FailureKind::Failed, exit_text(code)),
        _ => Failure::new(FailureKind::Failed, reason),
    }
}

fn exit_text(code: i32) -> String {
    match Signal::try_from(code - SIGNALLED) {
        Ok(signal) => format!("ended by {signal}"),
        Err(_) => format!("exit status {code}"),
    }
}

/// Runs a program as a child and ends with its status. When standard input ends, because whoever started this has gone,
/// all processes of the group are killed. Where memory runs out, the system takes the program first.
///
/// # Errors
/// The program cannot be started; processors that cannot be had.
pub fn guard(command: &[String], processors: Option<usize>) -> io::Result<u8> {
    // Not every system has it, nor lets it be written.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    if let Some(processors) = processors {
        keep_to(processors)?;
    }
    let (program, arguments) = command.split_first().ok_or_else(|| io::Error::other("no command was given"))?;
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{program}: {error}"));
    let mut child = Command::new(program).args(arguments).stdin(Stdio::null()).spawn().map_err(named)?;
    thread::spawn(|| {
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
        let _ = kill(Pid::from_raw(0), Signal::SIGKILL);
    });
    let status = child.wait()?;
    let code = status.code().unwrap_or_else(|| SIGNALLED + status.signal().unwrap_or(0));
    Ok(u8::try_from(code).unwrap_or(1))
}

/// Restricts this process and those that it starts to its first `processors` processors.
#[cfg(target_os = "linux")]
fn keep_to(processors: usize) -> io::Result<()> {
    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this)?;
    let mut kept = CpuSet::new();
    let present = (0..CpuSet::count()).filter(|&index| allowed.is_set(index).unwrap_or(false));
    for index in present.take(processors) {
        kept.set(index)?;
    }
    Ok(sched_setaffinity(this, &kept)?)
}

#[cfg(not(target_os = "linux"))]
fn keep_to(_: usize) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_found() {
        let of = |code: i32, log: &str| failure(ExitStatus::from_raw(code << 8), log.as_bytes()).to_string();
        assert_eq!(of(1, "a\nerror: the disk is full\nb\n"), "failed: the disk is full");
        assert_eq!(of(1, "Traceback:\n  x\nValueError: no\n"), "failed: ValueError: no");
        assert_eq!(of(2, ""), "failed: exit status 2");
        assert_eq!(of(3, "error: no bf16 here"), "not possible: no bf16 here");
        assert_eq!(of(4, ""), "out of memory");
        assert_eq!(of(4, "error: out of memory: 3 GB"), "out of memory: 3 GB");
        assert_eq!(of(137, "Killed"), "out of memory: the system ended it");
        assert_eq!(of(139, ""), "failed: ended by SIGSEGV");
        assert_eq!(failure(ExitStatus::from_raw(11), b"").to_string(), "failed: ended by SIGSEGV");
    }
}
