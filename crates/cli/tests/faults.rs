//! Faults in runs on several ranks, each a node of its own; `crates/cli/examples/faults` injects more of them, and of more kinds.

#[path = "../examples/faults/halt.rs"]
mod halt;
#[allow(dead_code, reason = "the command uses the rest")]
#[path = "../examples/faults/injection.rs"]
mod injection;
#[allow(dead_code, reason = "another command uses the rest")]
#[path = "../examples/shared/nodes.rs"]
mod nodes;

use injection::{Fault, Phase, Site};
use nodes::Trouble;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use tempfile::TempDir;

/// The test harness keeps what is printed by its macros.
fn tell(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Injects this many faults, each again and earlier where its run had ended before it came, at most twice. Ranks mostly wait for a rank that is
/// silent, so that several runs are made at once, each between other nodes.
fn inject(ranks: usize, runs: usize, count: usize, faults: impl IntoIterator<Item = Fault>) {
    let faults: Vec<Fault> = faults.into_iter().collect();
    let (next, injected, skipped) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        let folder = TempDir::new().unwrap();
        let mut site = match Site::new(Path::new(env!("CARGO_BIN_EXE_bessemer")), folder.path(), ranks) {
            Ok(site) => site,
            Err(reason) => return tell(&format!("skipped: faults between {ranks} nodes: {reason}")),
        };
        let take = || {
            let index = next.fetch_add(1, Relaxed);
            faults.get(index).map(|&fault| (index, fault))
        };
        while let Some((index, fault)) = take() {
            for attempt in 0..3 {
                match site.inject(index + attempt * faults.len(), fault, attempt) {
                    Ok(Some(outcome)) => {
                        assert!(outcome.problems.is_empty(), "{fault}: {outcome:#?}");
                        injected.fetch_add(1, Relaxed);
                        break;
                    }
                    Ok(None) => tell(&format!("missed: {fault}: the run had ended")),
                    Err(reason) => {
                        tell(&format!("skipped: faults between {ranks} nodes: {fault}: {reason}"));
                        skipped.fetch_add(1, Relaxed);
                        break;
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..runs {
            scope.spawn(work);
        }
    });
    let [injected, skipped] = [injected, skipped].map(AtomicUsize::into_inner);
    tell(&format!("{injected} faults injected between {ranks} nodes"));
    if next.into_inner() > 0 {
        assert_eq!(injected + skipped, count, "faults that were injected and, with a line for each, left out");
    }
}

#[test]
fn runs_end_with_a_message_and_go_on_behind_every_fault() {
    // Before ranks have met their launcher ends them; in the other kinds left out here it is the message layer that may not return.
    // Of some kinds one rank is enough: the test of three ranks has others.
    let is_left_out = |fault: &Fault| match fault {
        Fault::Kill(Phase::Start | Phase::Wait, _) | Fault::Network(Trouble::Mute(_) | Trouble::Deaf(_)) => true,
        Fault::Kill(Phase::Save, rank) | Fault::Stop(rank) => *rank == 1,
        _ => false,
    };
    inject(2, 3, 13, Fault::all(2).into_iter().filter(|fault| !is_left_out(fault)));
}

#[test]
fn survivors_agree_on_who_is_lost() {
    let kills = (0..3).map(|rank| Fault::Kill(Phase::Step, rank));
    let others = [Fault::Halt(2), Fault::Network(Trouble::Down(1)), Fault::Kill(Phase::Save, 1), Fault::Stop(0)];
    inject(3, 2, 7, kills.chain(others));
}
