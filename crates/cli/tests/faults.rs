//! A fault of each kind in runs on two ranks, each a node of its own; `crates/cli/examples/faults` injects more of them.

#[allow(dead_code, reason = "the command uses the rest")]
#[path = "../examples/faults/injection.rs"]
mod injection;
#[path = "../examples/faults/nodes.rs"]
mod nodes;

use injection::{Fault, Site};
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
    for (number, fault) in Fault::all(2).into_iter().enumerate() {
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
