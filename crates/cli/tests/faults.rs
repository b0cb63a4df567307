//! Faults in runs on two ranks, each a node of its own; `crates/cli/examples/faults` injects more of them, and of more kinds.

#[allow(dead_code, reason = "the command uses the rest")]
#[path = "../examples/faults/injection.rs"]
mod injection;
#[path = "../examples/faults/nodes.rs"]
mod nodes;

use injection::{Fault, Phase, Site};
use nodes::Trouble;
use std::io::Write;
use std::path::Path;
use tempfile::TempDir;

#[test]
fn runs_end_with_a_message_and_go_on_behind_every_fault() {
    // The test harness keeps what is printed by its macros.
    let tell = |line: String| writeln!(std::io::stderr(), "{line}").unwrap();
    let folder = TempDir::new().unwrap();
    let mut site = match Site::new(Path::new(env!("CARGO_BIN_EXE_bessemer")), folder.path(), 2) {
        Ok(site) => site,
        Err(reason) => return tell(format!("skipped: faults between nodes: {reason}")),
    };
    let mut injected = 0;
    // Before ranks have met their launcher ends them; in the other kinds left out here it is the message layer that may not return.
    let is_left_out = |fault: &Fault| {
        matches!(
            fault,
            Fault::Kill(Phase::Start | Phase::Wait, _) | Fault::Network(Trouble::Mute(_) | Trouble::Deaf(_))
        )
    };
    for (number, fault) in Fault::all(2).into_iter().filter(|fault| !is_left_out(fault)).enumerate() {
        match site.inject(number, fault) {
            Ok(Some(outcome)) => {
                assert!(outcome.problems.is_empty(), "{fault}: {outcome:#?}");
                injected += 1;
            }
            Ok(None) => tell(format!("missed: {fault}: the run had ended")),
            Err(reason) => tell(format!("skipped: {fault}: {reason}")),
        }
    }
    tell(format!("{injected} faults injected"));
}
