//! Children that do not outlive the launcher.

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{getpid, getppid};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Lets the command be killed when the thread that spawns it ends, however it ends.
pub fn die_with_this_thread(command: &mut Command) -> &mut Command {
    let parent = getpid();
    let ask = move || {
        set_pdeathsig(Signal::SIGKILL)?;
        match getppid() == parent {
            true => Ok(()),
            // The parent died before it was asked for.
            false => Err(nix::Error::ESRCH.into()),
        }
    };
    // SAFETY: between fork and exec the closure does two system calls, and neither allocates nor locks.
    unsafe { command.pre_exec(ask) }
}
