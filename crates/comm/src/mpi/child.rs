//! What launchers and ranks need of the system: children that do not outlive their parent, and a signal of MPICH's launcher.

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::process::Command;

/// Lets the command be killed when the thread that spawns it ends, however it ends. On Linux alone.
#[cfg(target_os = "linux")]
pub fn die_with_this_thread(command: &mut Command) -> &mut Command {
    use nix::unistd::{getpid, getppid};
    use std::os::unix::process::CommandExt;

    let parent = getpid();
    let ask = move || {
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
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

/// Ignores `SIGUSR1`, which ends a process otherwise, unless it is handled already: Hydra sends it to all ranks when one is lost and
/// the others are to go on.
pub(super) fn survive_lost_ranks() {
    let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
    // SAFETY: nothing of this program runs in the signal's context; a handler that was there is put back unchanged.
    unsafe {
        if let Ok(before) = sigaction(Signal::SIGUSR1, &ignore)
            && !matches!(before.handler(), SigHandler::SigDfl)
        {
            let _ = sigaction(Signal::SIGUSR1, &before);
        }
    }
}
