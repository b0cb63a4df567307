//! Measures training on two ranks over links of known speeds, between network namespaces as nodes: beside one rank alone, beside two
//! that do not communicate, and beside what the simulator says from the step of one rank and the measured link. Writes a folder that
//! `bessemer report` takes. Needs root, `ip`, `tc` and an MPI.
//!
//!     cargo run --release -p bessemer --example links -- --program target/release/bessemer --out links
#![forbid(unsafe_code)]

mod measuring;
#[allow(dead_code, reason = "another command uses the rest")]
#[path = "../shared/nodes.rs"]
mod nodes;

use clap::Parser;
use measuring::{Setup, measure};
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure training on two ranks over links of known speeds
#[derive(Debug, Parser)]
struct Options {
    /// The program `bessemer`
    #[arg(long, value_name = "PATH")]
    program: PathBuf,
    /// Folder for the results, which must be new or empty
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Models, of bert-mini, resnet20-cifar and resnet50; the last one takes as long as the others together, and is not measured below
    /// 100 Mbit/s
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "bert-mini,resnet20-cifar,resnet50")]
    models: Vec<String>,
    /// Speeds of the link in Mbit/s
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1000,100,10",
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rates: Vec<u64>,
    /// Steps that count, behind one that does not [default: more where a step is shorter, 2 to 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// How often to measure; the median is the result
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    repeat: u64,
    /// MPI to use: openmpi or mpich [default: the first that is found]
    #[arg(long, value_name = "NAME", value_parser = ["openmpi", "mpich"])]
    mpi: Option<String>,
}

fn main() -> ExitCode {
    let Options { program, out, models, rates, steps, repeat, mpi } = Options::parse();
    let setup = Setup { program, out, models, rates, steps, repeat, mpi };
    match measure(&setup, |line| println!("{line}")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
