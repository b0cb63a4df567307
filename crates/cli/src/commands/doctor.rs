use crate::args::Common;
use crate::output::{Table, print, print_json};
use bessemer_bench::doctor::{Examination, RankLauncher, RankReport, examine};
use bessemer_bench::show;
use bessemer_cuda::loader::Wanted;
use bessemer_cuda::probe::GpuReport;
use bessemer_train::device::INSTALL_NCCL;
use clap::Args;

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer doctor
  bessemer doctor --json
  bessemer doctor --isa avx2 --threads 1        the limits of one core with AVX2
  bessemer doctor --device cuda:1               whether the second GPU can be used";

/// Examine this machine: processor, instruction sets, measured limits, memory, GPUs, and what to do about problems
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// Print JSON instead of a table
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

pub(crate) fn run(options: &Options, common: &Common) -> anyhow::Result<()> {
    let examination = examine(&common.device())?.with_ranks(&std::env::current_exe()?);
    if options.json { print_json(&examination) } else { print(&text(&examination)) }
}

fn text(examination: &Examination) -> String {
    let Examination { machine, limits, .. } = examination;
    let mut table = Table::new(2, &[]);
    let mut fact = |name: &str, value: String| table.row([name.to_owned(), value]);
    fact("version", examination.version.clone());
    fact("system", machine.os.clone());
    fact("processor", machine.cpu.clone());
    fact("processors", format!("{} ({} in use)", machine.processors, show::counted(machine.threads as u64, "thread")));
    fact("instructions", format!("{} (available: {})", machine.instruction_set, machine.instruction_sets.join(", ")));
    fact("fp32 peak", format!("{} GFLOP/s, measured", show::significant(limits.fp32_gflops, 3)));
    let bf16 = limits.bf16_gflops.zip(machine.bf16.as_ref());
    let bf16 = bf16.map(|(gflops, unit)| format!("{} GFLOP/s, measured, by {unit}", show::significant(gflops, 3)));
    fact("bf16 peak", bf16.unwrap_or_else(|| "these instructions have no bf16 arithmetic".to_owned()));
    fact("memory reads", format!("{} GB/s, measured", show::significant(limits.read_gbytes, 3)));
    let free = examination.available_memory_bytes.map_or_else(|| "unknown".to_owned(), show::bytes);
    fact("memory", format!("{}, of which {free} are free", show::bytes(machine.memory_bytes)));
    fact("huge pages", machine.huge_pages.clone().unwrap_or_else(|| "unknown".to_owned()));
    for (name, value) in gpu_facts(examination) {
        fact(name, value);
    }
    for (name, value) in rank_facts(&examination.ranks) {
        fact(name, value);
    }
    if examination.advice.is_empty() {
        fact("advice", "none, all is well".to_owned());
    }
    for advice in &examination.advice {
        fact("advice", format!("{}: {}", advice.problem, advice.action));
    }
    table.to_string()
}

/// How several ranks would be started, and what their messages cost.
fn rank_facts(RankReport { launcher: started_by, launchers, interfaces }: &RankReport) -> Vec<(&'static str, String)> {
    let launcher = |launcher: &RankLauncher| {
        let link = launcher.link.map_or_else(
            || "two ranks failed".to_owned(),
            |link| {
                let (latency, bandwidth) = (link.latency_s * 1e6, link.bytes_per_s / 1e9);
                let [latency, bandwidth] = [latency, bandwidth].map(|value| show::significant(value, 2));
                format!("between two ranks {latency} us and {bandwidth} GB/s, measured")
            },
        );
        ("ranks by MPI", format!("{}, {}; {link}", launcher.version, launcher.path.display()))
    };
    let mut facts = vec![("launcher", started_by.clone())];
    facts.extend(launchers.iter().map(launcher));
    if launchers.is_empty() {
        facts.push(("ranks by MPI", "none: several ranks need openmpi-bin or mpich".to_owned()));
    }
    facts.push(("interfaces", interfaces.join(", ")));
    facts
}

/// The GPUs, and what was found of CUDA.
fn gpu_facts(Examination { gpu, cuda, gpu_use, .. }: &Examination) -> Vec<(&'static str, String)> {
    let GpuReport { no_gpu, driver, libraries, problems, .. } = cuda;
    let mut facts: Vec<_> = match no_gpu {
        Some(_) => vec![("GPU", format!("{gpu}; models run on the CPU"))],
        None => gpu.split("; ").map(|gpu| ("GPU", gpu.to_owned())).collect(),
    };
    if let Some(driver) = driver {
        facts.push(("GPU driver", format!("runs CUDA up to {}, {}", driver.cuda, driver.path.display())));
    }
    for library in libraries {
        if let Some(path) = &library.path {
            let version = library.version.as_deref().unwrap_or("not opened");
            facts.push(("GPU library", format!("{version}, {} ({})", path.display(), library.purpose)));
        }
    }
    if no_gpu.is_none() {
        let missing = libraries.iter().filter(|library| library.path.is_none());
        let missing: Vec<String> = missing.map(|library| format!("{} ({})", library.name, library.purpose)).collect();
        if !missing.is_empty() {
            facts.push(("not found", missing.join(", ")));
        }
    }
    let said = match &gpu_use.problem {
        None => format!("--device {} works; `bessemer gpu-selftest` checks the numbers", gpu_use.device),
        Some(problem) => format!("--device {} does not work: {problem}", gpu_use.device),
    };
    if no_gpu.is_none() {
        let nccl = libraries.iter().find(|library| library.name == Wanted::Nccl.stem());
        let said = match nccl.and_then(|nccl| nccl.version.as_deref()) {
            Some(version) => format!("NCCL {version}"),
            None => format!("none: several GPUs need NCCL ({INSTALL_NCCL})"),
        };
        facts.push(("ranks by NCCL", said));
    }
    // Of a machine without a driver the first line says it all.
    if driver.is_some() || !problems.is_empty() {
        facts.push(("GPU use", said));
    }
    facts
}
