//! Injects faults into runs of `bessemer train` on several ranks, between network namespaces as nodes, and tells what came of each:
//! a line of JSON for each fault, and a table. Needs root, `ip`, `tc` and an MPI.
//!
//!     cargo run --release -p bessemer --example faults -- --program target/release/bessemer --faults 200 --out faults.jsonl
#![forbid(unsafe_code)]

mod halt;
mod injection;
#[path = "../shared/nodes.rs"]
mod nodes;

use clap::Parser;
use injection::{COLLECTIVE_TIMEOUT, DEADLINE, Fault, Outcome, PEER_TIMEOUT, Site};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Inject faults into runs on several ranks
#[derive(Debug, Parser)]
struct Options {
    /// The program `bessemer`
    #[arg(long, value_name = "PATH")]
    program: PathBuf,
    /// Number of faults; all kinds take turns
    #[arg(long, value_name = "N", default_value_t = 200)]
    faults: usize,
    /// Number of ranks, each on a node of its own
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=8))]
    ranks: u8,
    /// File for a line of JSON for each fault
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Faults of the same plan to leave out at its beginning
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip: usize,
}

fn main() -> ExitCode {
    match inject(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all is as it must be.
fn inject(options: &Options) -> Result<bool, Box<dyn std::error::Error>> {
    let folder = tempfile::Builder::new().disable_cleanup(true).tempdir()?;
    let mut out = File::create(&options.out)?;
    let mut site = Site::new(&options.program.canonicalize()?, folder.path(), options.ranks.into())?;
    println!(
        "{} ranks on as many nodes, {}; files in {}",
        options.ranks,
        site.mpis().join(" and "),
        folder.path().display()
    );
    println!(
        "survivors end within {DEADLINE} s; where a rank falls silent, {PEER_TIMEOUT} s later, where one stands still, \
         {COLLECTIVE_TIMEOUT} s later"
    );
    let all = Fault::all(options.ranks.into());
    let mut table: BTreeMap<&str, Row> = BTreeMap::new();
    let mut bad = 0;
    for number in options.skip..options.faults {
        let fault = all[number % all.len()];
        match site.inject(number, fault, 0) {
            Err(reason) => {
                table.entry(fault.kind()).or_default().skipped += 1;
                println!("skipped: {fault}: {reason}");
            }
            Ok(None) => {
                table.entry(fault.kind()).or_default().missed += 1;
                println!("missed: {fault}: the run had ended");
            }
            Ok(Some(outcome)) => {
                writeln!(out, "{}", serde_json::to_string(&outcome)?)?;
                println!("{:>4} {fault}, {}, step {}: {:.1} s", number + 1, outcome.mpi, outcome.step, outcome.ended_s);
                outcome.problems.iter().for_each(|problem| println!("     {problem}"));
                bad += usize::from(!outcome.problems.is_empty());
                table.entry(outcome.fault).or_default().add(&outcome);
            }
        }
    }
    println!("\n{:<44} {:>8} {:>5} {:>7} {:>7} {:>9}", "fault", "injected", "good", "skipped", "missed", "longest s");
    for (kind, Row { injected, good, skipped, missed, longest }) in table {
        println!("{kind:<44} {injected:>8} {good:>5} {skipped:>7} {missed:>7} {longest:>9.1}");
    }
    Ok(bad == 0)
}

#[derive(Default)]
struct Row {
    injected: usize,
    good: usize,
    skipped: usize,
    missed: usize,
    longest: f64,
}

impl Row {
    fn add(&mut self, outcome: &Outcome) {
        self.injected += 1;
        self.good += usize::from(outcome.problems.is_empty());
        self.longest = self.longest.max(outcome.ended_s);
    }
}
