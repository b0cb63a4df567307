use crate::args::Common;
use crate::output::{Table, print, print_json};
use bessemer_bench::doctor::{Examination, examine};
use bessemer_bench::show;
use clap::Args;

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer doctor
  bessemer doctor --json
  bessemer doctor --isa avx2 --threads 1        the limits of one core with AVX2";

/// Examine this machine: processor, instruction sets, measured limits, memory, and what to do about problems
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Print JSON instead of a table
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

pub fn run(options: &Options, common: &Common) -> anyhow::Result<()> {
    let examination = examine(common.cpu());
    if options.json { print_json(&examination) } else { print(&text(&examination)) }
}

fn text(examination: &Examination) -> String {
    let Examination { machine, limits, .. } = examination;
    let mut table = Table::new(2, &[]);
    let mut fact = |name: &str, value: String| table.row([name.to_owned(), value]);
    fact("version", examination.version.clone());
    fact("system", machine.os.clone());
    fact("processor", machine.cpu.clone());
    fact("processors", format!("{} ({} threads in use)", machine.processors, machine.threads));
    fact("instructions", format!("{} (available: {})", machine.instruction_set, machine.instruction_sets.join(", ")));
    fact("fp32 peak", format!("{} GFLOP/s, measured", show::significant(limits.fp32_gflops, 3)));
    let bf16 = limits.bf16_gflops.map(|gflops| format!("{} GFLOP/s, measured", show::significant(gflops, 3)));
    fact("bf16 peak", bf16.unwrap_or_else(|| "the processor has no bf16 arithmetic".to_owned()));
    fact("memory reads", format!("{} GB/s, measured", show::significant(limits.read_gbytes, 3)));
    let free = examination.available_memory_bytes.map_or_else(|| "unknown".to_owned(), show::bytes);
    fact("memory", format!("{}, of which {free} are free", show::bytes(machine.memory_bytes)));
    fact("huge pages", machine.huge_pages.clone().unwrap_or_else(|| "unknown".to_owned()));
    fact("GPU", examination.gpu.clone());
    if examination.advice.is_empty() {
        fact("advice", "none, all is well".to_owned());
    }
    for advice in &examination.advice {
        fact("advice", format!("{}: {}", advice.problem, advice.action));
    }
    table.to_string()
}
