//! A rank whose main thread stands still while its other threads, and with them its heartbeats, go on: as under a debugger.

use crate::nodes::Result;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time that a thread has to stand still.
const LIMIT: Duration = Duration::from_secs(2);

/// A process whose main thread stands still until this is dropped, by the thread that made it.
pub(crate) struct Halted(i32);

impl Halted {
    /// # Errors
    /// The system does not let this process trace others, or has no such tracing.
    pub(crate) fn new(process: i32) -> Result<Self> {
        tracing::halt(process)?;
        let halted = Self(process);
        let begun = Instant::now();
        while !halted.stands_still() {
            if begun.elapsed() > LIMIT {
                return Err(format!("process {process} does not stand still"));
            }
            sleep(Duration::from_millis(1));
        }
        Ok(halted)
    }

    fn stands_still(&self) -> bool {
        let state = fs::read_to_string(format!("/proc/{0}/task/{0}/stat", self.0)).unwrap_or_default();
        state.rsplit(") ").next().is_some_and(|rest| rest.starts_with('t'))
    }
}

impl Drop for Halted {
    fn drop(&mut self) {
        tracing::release(self.0);
    }
}

#[cfg(target_os = "linux")]
mod tracing {
    use nix::sys::ptrace::{Options, detach, interrupt, seize};
    use nix::sys::wait::{WaitPidFlag, waitpid};
    use nix::unistd::Pid;

    pub(super) fn halt(process: i32) -> Result<(), String> {
        let thread = Pid::from_raw(process);
        let failed = |error: nix::Error| format!("process {process} cannot be traced: {error}");
        seize(thread, Options::empty()).and_then(|()| interrupt(thread)).map_err(failed)
    }

    /// A process that was killed meanwhile is known to its parent only when its tracer has seen it.
    pub(super) fn release(process: i32) {
        let thread = Pid::from_raw(process);
        if detach(thread, None).is_err() {
            let _ = waitpid(thread, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL));
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod tracing {
    pub(super) fn halt(_: i32) -> Result<(), String> {
        Err("threads are traced on Linux alone".to_owned())
    }

    pub(super) fn release(_: i32) {}
}
