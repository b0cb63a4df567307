//! Looks at the machine and says what stands in the way of speed.

use crate::machine::{Limits, Machine, available_memory};
use bessemer_comm::launch::{Placement, Variables, is_of_a_job, process_variables};
use bessemer_comm::mpi::Family;
use bessemer_comm::net::interfaces;
use bessemer_comm::spawn::MpiLauncher;
use bessemer_cuda::probe::{GpuReport, probe};
use bessemer_train::{DeviceError, DeviceKind, DeviceOptions, InstructionSet};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// The machine, what it can do, and what could be better.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Examination {
    /// Version of this program.
    pub version: String,
    /// Processors, memory and operating system.
    pub machine: Machine,
    /// Measured limits of the device.
    pub limits: Limits,
    /// Memory that is free now; `None` if the system does not report it.
    pub available_memory_bytes: Option<u64>,
    /// The GPUs in one line, or why there is none.
    pub gpu: String,
    /// GPUs and CUDA's libraries.
    #[serde(default)]
    pub cuda: GpuReport,
    /// Whether models run on a GPU.
    #[serde(default)]
    pub gpu_use: GpuUse,
    /// What several ranks would use.
    #[serde(default)]
    pub ranks: RankReport,
    /// Problems that were found, with what to do about each.
    pub advice: Vec<Advice>,
}

/// Whether models run on a GPU of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuUse {
    /// As given to `--device`.
    pub device: String,
    /// Why it cannot be used, or `None` if it can.
    pub problem: Option<String>,
}

/// How ranks are started here, and what carries their messages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankReport {
    /// The launcher that started this process, and as which rank; "none" for one that was started alone.
    #[serde(default)]
    pub launcher: String,
    /// Launchers of MPI on the search path.
    pub launchers: Vec<RankLauncher>,
    /// Network interfaces that are up, with their addresses.
    pub interfaces: Vec<String>,
}

/// A launcher of MPI.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankLauncher {
    /// The program.
    pub path: PathBuf,
    /// What it says of itself.
    pub version: String,
    /// The link between two ranks that it started; `None` where they failed.
    pub link: Option<RankLink>,
    /// What they said when they failed.
    pub problem: Option<String>,
}

/// What a message between two ranks costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankLink {
    /// Seconds of a message without bytes.
    pub latency_s: f64,
    /// Bytes a second.
    pub bytes_per_s: f64,
}

/// A problem and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// What is wrong, in one line.
    pub problem: String,
    /// What the user can do about it, in one line.
    pub action: String,
}

/// ResNet-50 trains with a few pictures a step in as much.
const LITTLE_MEMORY: u64 = 4_000_000_000;

/// Looks and measures, which takes about a second: the processors, whichever device the options name, and that device if it is a
/// GPU, else the first one.
///
/// # Errors
/// [`DeviceError`], of the processors.
pub fn examine(options: &DeviceOptions) -> Result<Examination, DeviceError> {
    let device = DeviceOptions { kind: DeviceKind::Cpu, ..options.clone() }.open()?;
    let machine = Machine::look(&*device);
    let available_memory_bytes = available_memory();
    let mut advice = advise(&machine, available_memory_bytes);
    let cuda = probe(&options.gpu_libraries);
    advice.extend(
        cuda.problems.iter().map(|found| Advice { problem: found.problem.clone(), action: found.action.clone() }),
    );
    Ok(Examination {
        version: env!("CARGO_PKG_VERSION").to_string(),
        limits: Limits::measure(&*device),
        gpu: cuda.summary(),
        gpu_use: use_of_gpu(options),
        cuda,
        ranks: RankReport::default(),
        machine,
        available_memory_bytes,
        advice,
    })
}

fn use_of_gpu(options: &DeviceOptions) -> GpuUse {
    let kind = match options.kind {
        DeviceKind::Cpu => DeviceKind::Cuda { index: 0 },
        DeviceKind::Cuda { .. } => options.kind,
    };
    let problem = DeviceOptions { kind, ..options.clone() }.check().err().map(|error| match error {
        DeviceError::Gpu { source, .. } => source.to_string(),
        _ => error.to_string(),
    });
    GpuUse { device: kind.to_string(), problem }
}

impl Examination {
    /// Looks as well how several ranks would run, which takes a second or two: `program` is this program, of which two ranks are
    /// started with the argument `rank-probe`.
    #[must_use]
    pub fn with_ranks(mut self, program: &Path) -> Self {
        self.ranks = probe_ranks(program);
        self.advice.extend(self.ranks.launchers.iter().filter_map(|launcher| {
            let problem = launcher.problem.as_ref()?;
            Some(Advice {
                problem: format!("{} cannot run two ranks: {problem}", launcher.path.display()),
                action: format!("see what it says by itself: {} -n 2 hostname", launcher.path.display()),
            })
        }));
        self
    }
}

/// Who started the process that has these variables, and as which rank.
fn started_by(variables: &Variables) -> String {
    match Placement::from_variables(variables) {
        Ok(Placement { launcher: Some(launcher), rank, size, local_size, .. }) => {
            let here = local_size.map_or_else(String::new, |ranks| format!(", {ranks} on this node"));
            format!("{}, rank {rank} of {size}{here}", launcher.title())
        }
        Ok(_) => "none".to_owned(),
        Err(error) => format!("unknown: {error}"),
    }
}

/// Variables that two ranks must not inherit. A process that was started alone, as in a batch script, hands all on: a launcher finds
/// the nodes by them.
fn hidden_from_ranks(variables: &Variables) -> Vec<&str> {
    match Placement::from_variables(variables) {
        Ok(Placement { launcher: None, .. }) => Vec::new(),
        _ => variables.keys().map(String::as_str).filter(|name| is_of_a_job(name)).collect(),
    }
}

/// The first line in words of what a failed program said; launchers frame what they say with rows of stars or dashes.
fn first_words(said: &str) -> &str {
    let line = said.lines().map(str::trim).find(|line| line.contains(char::is_alphabetic));
    line.unwrap_or("nothing was said").trim_start_matches("error: ")
}

/// Runs two ranks under each MPI that is found, outside the job that this process may belong to.
fn probe_ranks(program: &Path) -> RankReport {
    let search = std::env::var_os("PATH").unwrap_or_default();
    let found = [Family::OpenMpi, Family::Mpich].map(|family| MpiLauncher::find(&search, Some(family)).ok());
    let variables = process_variables();
    let hidden = hidden_from_ranks(&variables);
    let launcher = |launcher: MpiLauncher| {
        let mut command = launcher.command(2, program.as_os_str(), &["rank-probe".into(), "--join-timeout=10".into()]);
        for name in &hidden {
            command.env_remove(name);
        }
        let ran = command.output();
        let link = ran.as_ref().ok().and_then(|ran| serde_json::from_slice(&ran.stdout).ok());
        let said = match ran {
            Ok(ran) => first_words(&String::from_utf8_lossy(&ran.stderr)).to_owned(),
            Err(error) => error.to_string(),
        };
        let problem = if link.is_none() { Some(said) } else { None };
        RankLauncher { path: launcher.path, version: launcher.version, link, problem }
    };
    let interface = |(name, address): (String, IpAddr)| format!("{name} {address}");
    RankReport {
        launcher: started_by(&variables),
        launchers: found.into_iter().flatten().map(launcher).collect(),
        interfaces: interfaces().into_iter().map(interface).collect(),
    }
}

/// What is wrong with a machine of which so much memory is free.
fn advise(machine: &Machine, available_memory_bytes: Option<u64>) -> Vec<Advice> {
    let mut advice = Vec::new();
    let mut add = |problem: String, action: &str| advice.push(Advice { problem, action: action.to_string() });
    let isa = machine.instruction_set.as_str();
    let best = machine.instruction_sets.first().map_or(isa, String::as_str);
    if best.parse().is_ok_and(InstructionSet::is_portable) {
        add(
            "the processor offers none of AVX-512, AVX2 with FMA, and NEON; kernels run several times slower"
                .to_string(),
            "use another machine, or let the virtual machine pass on the host's instructions (QEMU: -cpu host)",
        );
    } else if isa != best {
        add(format!("{isa} is in use although {best} is there"), "leave out --isa");
    }
    if machine.processors == 1 {
        add(
            "there is one processor".to_string(),
            "give the machine or container more processors; all kernels use them",
        );
    }
    if machine.threads != machine.processors {
        let problem = format!("{} threads are in use on {} processors", machine.threads, machine.processors);
        add(problem, "leave out --threads; one thread a processor is fastest");
    }
    if machine.huge_pages.as_deref() == Some("never") {
        add(
            "transparent huge pages are off, which costs a few percent in misses of the page table".to_string(),
            "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        );
    }
    if let Some(available) = available_memory_bytes.filter(|bytes| *bytes < LITTLE_MEMORY) {
        let problem = format!("only {} of memory are free", crate::show::bytes(available));
        add(problem, "end other programs; `bessemer explain MODEL` says what batch fits");
    }
    advice
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            cpu: "a processor".to_string(),
            processors: 8,
            memory_bytes: 64_000_000_000,
            os: "linux".to_string(),
            instruction_sets: vec!["avx512".to_string(), "avx2".to_string(), "portable".to_string()],
            instruction_set: "avx512".to_string(),
            bf16: None,
            threads: 8,
            gpu: None,
            huge_pages: Some("madvise".to_string()),
        }
    }

    #[test]
    fn a_good_machine_needs_no_advice() {
        assert_eq!(advise(&machine(), Some(32_000_000_000)), []);
        assert_eq!(advise(&machine(), None), []);
    }

    /// `A=1 B=2` as variables.
    fn variables(text: &str) -> Variables {
        text.split(' ').filter_map(|pair| pair.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
    }

    const OPEN_MPI: &str = "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=0 \
        OMPI_COMM_WORLD_LOCAL_SIZE=2";

    #[test]
    fn the_launcher_is_shown_with_the_rank() {
        let slurm = "SLURM_JOB_ID=7 SLURM_STEP_NODELIST=n1 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=3";
        for (text, expected) in [
            ("HOME=/root SLURM_JOB_ID=7", "none"),
            (OPEN_MPI, "mpirun of Open MPI, rank 0 of 8, 2 on this node"),
            (slurm, "srun, rank 3 of 4"),
            ("RANK=1", "unknown: "),
        ] {
            let said = started_by(&variables(text));
            assert!(said == expected || (expected.ends_with(' ') && said.starts_with(expected)), "{said}");
        }
    }

    #[test]
    fn ranks_of_a_probe_inherit_nothing_of_the_job() {
        let text = format!(
            "{OPEN_MPI} PMIX_RANK=0 OMPI_MCA_orte_hnp_uri=1 OMPI_UNIVERSE_SIZE=8 OMPI_MCA_btl=tcp,self PATH=/bin PMI_FD=7"
        );
        let hidden = [
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_MCA_orte_hnp_uri",
            "OMPI_UNIVERSE_SIZE",
            "PMIX_RANK",
            "PMI_FD",
        ];
        assert_eq!(hidden_from_ranks(&variables(&text)), hidden);
        let torchrun = variables("RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=a MASTER_PORT=1 HOME=/");
        assert_eq!(hidden_from_ranks(&torchrun), ["LOCAL_RANK", "RANK", "WORLD_SIZE"]);
        assert_eq!(hidden_from_ranks(&variables("SLURM_JOB_ID=7 PATH=/bin")), [""; 0]);
        let contradiction = variables(&format!("{OPEN_MPI} PMI_RANK=1 PMI_SIZE=3"));
        assert_eq!(hidden_from_ranks(&contradiction).len(), 6);
    }

    #[test]
    fn of_what_failed_the_first_words_are_told() {
        for (said, told) in [
            ("****\n\n---- \n  error: launchers disagree\nmore", "launchers disagree"),
            ("error: error: launchers disagree", "launchers disagree"),
            ("mpirun has detected an attempt to run as root.\n", "mpirun has detected an attempt to run as root."),
            ("---\n", "nothing was said"),
        ] {
            assert_eq!(first_words(said), told);
        }
    }

    #[test]
    fn every_problem_has_its_advice() {
        let portable = vec!["portable".to_string()];
        let cases = [
            (Machine { instruction_sets: portable, instruction_set: "portable".to_string(), ..machine() }, "AVX-512"),
            (Machine { instruction_set: "avx2".to_string(), ..machine() }, "avx2 is in use although avx512"),
            (Machine { processors: 1, threads: 1, ..machine() }, "one processor"),
            (Machine { threads: 4, ..machine() }, "4 threads are in use on 8"),
            (Machine { huge_pages: Some("never".to_string()), ..machine() }, "huge pages are off"),
        ];
        for (machine, problem) in cases {
            let advice = advise(&machine, None);
            assert!(advice.len() == 1 && advice[0].problem.contains(problem), "{advice:?}");
        }
        assert!(advise(&machine(), Some(1_000_000_000))[0].problem.contains("1.00 GB"));
    }
}
