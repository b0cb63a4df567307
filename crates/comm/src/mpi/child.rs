//! Children that do not outlive the launcher.

use std::process::Command;

/// Lets the command be killed when the thread that spawns it ends, however it ends. On Linux alone.
#[cfg(target_os = "linux")]
pub fn die_with_this_thread(command: &mut Command) -> &mut Command {
    use nix::unistd::{getpid, getppid};
    use std::os::unix::process::CommandExt;

    let parent = getpid();
    let ask = move || {
        nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
        match getppid() == parent {
            true => Ok(()),
            // The parent died before it was asked for.
            false => Err(nix::Error::ESRCH.into()),
        }
    };
    // SAFETY: between fork and exec the closure does two system calls, and neither allocates nor locks.
    unsafe { command.pre_exec(ask) }
}

/// Lets the command be killed when the thread that spawns it ends, however it ends. On Linux alone.
#[cfg(not(target_os = "linux"))]
pub fn die_with_this_thread(command: &mut Command) -> &mut Command {
    command
}
