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
use tempfile::TempDir;

/// The test harness keeps what is printed by its macros.
fn tell(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Injects this many faults, each again where its run had ended before it came, at most twice.
fn inject(ranks: usize, count: usize, faults: impl IntoIterator<Item = Fault>) {
    let folder = TempDir::new().unwrap();
    let mut site = match Site::new(Path::new(env!("CARGO_BIN_EXE_bessemer")), folder.path(), ranks) {
        Ok(site) => site,
        Err(reason) => return tell(&format!("skipped: faults between {ranks} nodes: {reason}")),
    };
    let (mut number, mut injected, mut skipped) = (0, 0, 0);
    for fault in faults {
        for _ in 0..3 {
            let outcome = site.inject(number, fault);
            number += 1;
            match outcome {
                Ok(Some(outcome)) => {
                    assert!(outcome.problems.is_empty(), "{fault}: {outcome:#?}");
                    injected += 1;
                    break;
                }
                Ok(None) => tell(&format!("missed: {fault}: the run had ended")),
                Err(reason) => {
                    tell(&format!("skipped: faults between {ranks} nodes: {fault}: {reason}"));
                    skipped += 1;
                    break;
                }
            }
        }
    }
    tell(&format!("{injected} faults injected between {ranks} nodes"));
    assert_eq!(injected + skipped, count, "faults that were injected and, with a line for each, left out");
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
    inject(2, 13, Fault::all(2).into_iter().filter(|fault| !is_left_out(fault)));
}

#[test]
fn survivors_agree_on_who_is_lost() {
    let kills = (0..3).map(|rank| Fault::Kill(Phase::Step, rank));
    let others = [Fault::Halt(2), Fault::Network(Trouble::Down(1)), Fault::Kill(Phase::Save, 1), Fault::Stop(0)];
    inject(3, 7, kills.chain(others));
}
