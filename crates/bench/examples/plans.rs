//! Writes the compiled plans of the zoo as text files, to show that a change of the compiler leaves them as they are.
//!
//! ```text
//! cargo run --release -p bessemer-bench --example plans -- before
//! cargo run --release -p bessemer-bench --example plans -- after
//! diff -r before after                      # kernel calls and memory
//! diff -r --exclude '*.memory' before after # kernel calls alone
//! ```
//!
//! Each plan is two files: `MODEL.STEP.PRECISION.calls` and, with offsets and sizes in bytes, `MODEL.STEP.PRECISION.memory`.
//! Instruction set and threads have fixed defaults, so that plans of different machines can be compared; nothing runs, so
//! that any instruction set will do.
#![forbid(unsafe_code)]

use bessemer_bench::plans::{PlanRequest, plan_requests};
use bessemer_ir::plan::Target;
use bessemer_train::{DeviceOptions, InstructionSet};
use clap::Parser;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Write the compiled plans of the zoo as text
#[derive(Debug, Parser)]
struct Options {
    /// Folder for the files; it must be new or empty
    folder: PathBuf,
    /// Only models with this in their name
    #[arg(long, value_name = "TEXT", default_value = "")]
    model: String,
    /// Instruction set to plan for: avx512, avx2, neon or portable
    #[arg(long, value_name = "NAME", default_value = "avx512", value_parser = isa)]
    isa: InstructionSet,
    /// Threads to plan for; scratch memory grows with them
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = threads)]
    threads: usize,
}

fn isa(name: &str) -> Result<InstructionSet, String> {
    let known = || InstructionSet::all().map(InstructionSet::name).collect::<Vec<_>>().join(", ");
    InstructionSet::all().find(|isa| isa.name() == name).ok_or_else(|| format!("allowed: {}", known()))
}

fn threads(text: &str) -> Result<usize, String> {
    let value = text.parse().ok().filter(|value| (1..=1024).contains(value));
    value.ok_or_else(|| "expected a whole number of 1 to 1024".to_owned())
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(count) => {
            println!("{count} plans in {}", options.folder.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// Writes the plans with as many workers as there are processors; returns their number.
fn run(options: &Options) -> Result<usize, String> {
    let requests: Vec<PlanRequest> =
        plan_requests().into_iter().filter(|request| request.model().contains(&options.model)).collect();
    if requests.is_empty() {
        return Err(format!("--model {}: no model of the zoo has this in its name", options.model));
    }
    let folder = &options.folder;
    let reported = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(folder).map_err(reported)?;
    if fs::read_dir(folder).map_err(reported)?.next().is_some() {
        return Err(format!("{} is not empty", folder.display()));
    }
    let device = DeviceOptions { instruction_set: options.isa, threads: options.threads, ..DeviceOptions::default() }
        .open()
        .expect("the processors can be used");
    let next = AtomicUsize::new(0);
    let work = || -> Result<(), String> {
        while let Some(request) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
            write(request, device.target(), folder)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..count).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;
    Ok(requests.len())
}

fn write(request: &PlanRequest, target: &dyn Target, folder: &Path) -> Result<(), String> {
    let name = request.name();
    let plan = request.compile(target).map_err(|error| format!("{name}: {error}"))?;
    for (extension, text) in [("calls", plan.calls), ("memory", plan.memory)] {
        let path = folder.join(format!("{name}.{extension}"));
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}
