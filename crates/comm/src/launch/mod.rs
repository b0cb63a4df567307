//! Who started this process, and as which rank: read from the variables that launchers set.
//!
//! Several launchers may have left variables, because one runs inside the other. The first of [`Launcher`]'s order counts: the
//! innermost, which knows each process.

mod nodelist;

pub use nodelist::expand as expand_node_list;

use crate::CommError;
use std::collections::BTreeMap;

/// Environment variables by name.
pub type Variables = BTreeMap<String, String>;

/// What starts the processes of a job, in the order in which their variables are believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Launcher {
    /// `bessemer launch`, or `--devices N`, for ranks that need no MPI.
    Bessemer,
    /// PyTorch's `torchrun`, and Kubernetes operators that set the same variables.
    Torchrun,
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// `mpirun_rsh` of MVAPICH.
    Mvapich,
    /// `mpiexec` of MPICH and Intel MPI.
    Hydra,
    /// `srun` of Slurm.
    Slurm,
    /// `mpiexec` of HPE Cray's PALS.
    Pals,
    /// Any other process manager with the interface PMI.
    Pmi,
}

/// Names of the variables of one launcher. Where several are listed, the first that is set counts.
struct Names {
    launcher: Launcher,
    title: &'static str,
    /// Their presence says that this launcher started the process.
    markers: &'static [&'static str],
    rank: &'static str,
    size: &'static str,
    local_rank: &'static [&'static str],
    local_size: &'static [&'static str],
}

/// In the order of [`Launcher`]. Slurm sets `SLURM_PROCID` and `SLURM_NTASKS` in batch scripts as well, which are one process:
/// `SLURM_STEP_NUM_TASKS` is set by `srun` alone. PALS sets no variable for the size; PMI's is read.
const NAMES: [Names; 8] = [
    Names {
        launcher: Launcher::Bessemer,
        title: "bessemer launch",
        markers: &["BESSEMER_RANK", "BESSEMER_SIZE"],
        rank: "BESSEMER_RANK",
        size: "BESSEMER_SIZE",
        local_rank: &["BESSEMER_LOCAL_RANK"],
        local_size: &["BESSEMER_LOCAL_SIZE"],
    },
    Names {
        launcher: Launcher::Torchrun,
        title: "torchrun",
        markers: &["RANK", "WORLD_SIZE"],
        rank: "RANK",
        size: "WORLD_SIZE",
        local_rank: &["LOCAL_RANK"],
        local_size: &["LOCAL_WORLD_SIZE"],
    },
    Names {
        launcher: Launcher::OpenMpi,
        title: "mpirun of Open MPI",
        markers: &["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
    },
    Names {
        launcher: Launcher::Mvapich,
        title: "mpirun of MVAPICH",
        markers: &["MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"],
        rank: "MV2_COMM_WORLD_RANK",
        size: "MV2_COMM_WORLD_SIZE",
        local_rank: &["MV2_COMM_WORLD_LOCAL_RANK"],
        local_size: &["MV2_COMM_WORLD_LOCAL_SIZE"],
    },
    Names {
        launcher: Launcher::Hydra,
        title: "mpiexec of MPICH",
        markers: &["MPI_LOCALRANKID"],
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        local_rank: &["MPI_LOCALRANKID"],
        local_size: &["MPI_LOCALNRANKS"],
    },
    Names {
        launcher: Launcher::Slurm,
        title: "srun",
        markers: &["SLURM_STEP_NUM_TASKS"],
        rank: "SLURM_PROCID",
        size: "SLURM_STEP_NUM_TASKS",
        local_rank: &["SLURM_LOCALID"],
        local_size: &[],
    },
    Names {
        launcher: Launcher::Pals,
        title: "mpiexec of PALS",
        markers: &["PALS_RANKID"],
        rank: "PALS_RANKID",
        size: "PMI_SIZE",
        local_rank: &["PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"],
        local_size: &["PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"],
    },
    Names {
        launcher: Launcher::Pmi,
        title: "a process manager with PMI",
        markers: &["PMI_RANK", "PMI_SIZE"],
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        local_rank: &["PMI_LOCAL_RANK"],
        local_size: &["PMI_LOCAL_SIZE"],
    },
];

/// `host:port` of rank 0, set by hand or by [`Launcher::Bessemer`]; it replaces what the launcher says.
pub const RENDEZVOUS: &str = "BESSEMER_RENDEZVOUS";
/// What ranks of one job know and others do not, beside [`RENDEZVOUS`].
pub const COOKIE: &str = "BESSEMER_COOKIE";
/// A named pipe to which ranks write their exit code and their last error, for whoever started them: launchers of MPI drop what ranks
/// say while they end a job of which a rank was killed.
pub const ERRORS: &str = "BESSEMER_ERRORS";
/// How names begin of the variables, beside those of [`NAMES`], by which launchers and their daemons tell processes of the job. What
/// users set to choose networks and the like, such as `OMPI_MCA_btl`, is not among them.
const OF_A_JOB: [&str; 12] = [
    "OMPI_COMM_WORLD_",
    "OMPI_UNIVERSE_SIZE",
    "OMPI_MCA_ess",
    "OMPI_MCA_orte_",
    "OMPI_MCA_pmix",
    "PMIX_",
    "PRTE_",
    "PMI_",
    "HYDI_",
    "PALS_",
    "SLURM_",
    "TORCHELASTIC_",
];
/// Ports that are computed from a Slurm job lie in `20000..30000`.
const SLURM_PORTS: (u64, u64) = (20_000, 10_000);

impl Launcher {
    fn names(self) -> &'static Names {
        &NAMES[self as usize]
    }

    /// For messages: `mpirun of Open MPI`.
    pub fn title(self) -> &'static str {
        self.names().title
    }

    /// Whether an MPI library in its processes may find the other ranks.
    pub fn starts_mpi(self) -> bool {
        !matches!(self, Launcher::Bessemer | Launcher::Torchrun)
    }

    /// Whether it may start daemons through `srun`, which leaves variables about the daemons.
    fn uses_srun(self) -> bool {
        matches!(self, Launcher::OpenMpi | Launcher::Mvapich | Launcher::Hydra)
    }
}

/// How ranks find rank 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rendezvous {
    /// Rank 0 sends its addresses through MPI.
    Mpi,
    /// Rank 0 listens here.
    Address {
        /// Host name or address of rank 0.
        host: String,
        /// TCP port.
        port: u16,
        /// A text that is the same for all ranks of the job, and different for other jobs.
        cookie: String,
    },
}

/// This process among those of its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// `None` for a process that was started alone.
    pub launcher: Option<Launcher>,
    /// Launchers that left variables as well and were not believed.
    pub others: Vec<Launcher>,
    /// Number of this process, from 0.
    pub rank: usize,
    /// Number of processes.
    pub size: usize,
    /// Number of this process among those on its node, where the launcher says so.
    pub local_rank: Option<usize>,
    /// Number of processes on this node, where the launcher says so.
    pub local_size: Option<usize>,
    /// `None` for a process that was started alone.
    pub rendezvous: Option<Rendezvous>,
}

impl Placement {
    /// The only process of its job.
    pub fn alone() -> Placement {
        Placement {
            launcher: None,
            others: Vec::new(),
            rank: 0,
            size: 1,
            local_rank: Some(0),
            local_size: Some(1),
            rendezvous: None,
        }
    }

    /// Reads the variables of a process.
    ///
    /// A launcher that started each process knows of at least as many as one that started the former, so its size is a multiple;
    /// anything else shows variables that were inherited by accident.
    ///
    /// # Errors
    /// A variable is not a number in its range, one of a pair is missing, two launchers contradict each other, or the launcher does
    /// not say where rank 0 is.
    pub fn from_variables(variables: &Variables) -> Result<Placement, CommError> {
        let found: Vec<Launcher> = NAMES
            .iter()
            .filter(|names| names.markers.iter().any(|marker| variables.contains_key(*marker)))
            .map(|names| names.launcher)
            .collect();
        let Some((&launcher, others)) = found.split_first() else {
            return Ok(Placement::alone());
        };
        let (rank, size) = rank_and_size(launcher, variables)?;
        for &other in others {
            if other == Launcher::Slurm && launcher.uses_srun() {
                continue;
            }
            let (other_rank, other_size) = rank_and_size(other, variables)?;
            let same_ranks = launcher.starts_mpi() && other.starts_mpi() && size == other_size;
            if !size.is_multiple_of(other_size) || (same_ranks && rank != other_rank) {
                let names = [launcher, other].map(Launcher::names);
                return Err(CommError::Contradiction {
                    chosen: launcher.title(),
                    rank,
                    size,
                    other: other.title(),
                    other_rank,
                    other_size,
                    variables: names.map(|names| format!("{}, {}", names.rank, names.size)).join(" or "),
                });
            }
        }
        let names = launcher.names();
        let local_size = match launcher {
            Launcher::Slurm => slurm_local_size(variables),
            _ => first_number(variables, names.local_size, 1, size)?,
        };
        let local_rank = first_number(variables, names.local_rank, 0, local_size.unwrap_or(size) - 1)?;
        let rendezvous = Some(rendezvous(launcher, variables)?);
        Ok(Placement {
            launcher: Some(launcher),
            others: others.to_vec(),
            rank,
            size,
            local_rank,
            local_size,
            rendezvous,
        })
    }
}

/// Processors that this process should use: those that the system allows it, shared with the other ranks of its node where their
/// launcher has not given each its own.
pub fn own_processors() -> usize {
    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    let placement = Placement::from_variables(&process_variables());
    let ranks = placement.ok().and_then(|placement| placement.local_size).unwrap_or(1);
    let online = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
    share_of_processors(allowed, online.map_or(allowed, |online| online as usize), ranks)
}

/// The share of one of `ranks` ranks in the processors that it may use, of those that there are.
fn share_of_processors(allowed: usize, online: usize, ranks: usize) -> usize {
    let is_bound = allowed < online && allowed * ranks <= online;
    if is_bound { allowed } else { (allowed / ranks).max(1) }
}

/// Whether a variable of this name tells a process of the job that it belongs to: a launcher inside that job, which starts another one,
/// must not see it.
pub fn is_of_a_job(name: &str) -> bool {
    let is_of = |names: &Names| {
        let lists = [names.markers, &[names.rank, names.size], names.local_rank, names.local_size];
        lists.iter().any(|list| list.contains(&name))
    };
    [RENDEZVOUS, COOKIE, ERRORS].contains(&name)
        || NAMES.iter().any(is_of)
        || OF_A_JOB.iter().any(|start| name.starts_with(start))
}

/// The variables of this process; those that are not UTF-8 are left out, as no launcher sets such.
pub fn process_variables() -> Variables {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

fn rank_and_size(launcher: Launcher, variables: &Variables) -> Result<(usize, usize), CommError> {
    let names = launcher.names();
    let required = |missing: &'static str, present: &'static str| {
        let absent = CommError::MissingVariable { launcher: names.title, present, missing };
        variables.contains_key(missing).then_some(()).ok_or(absent)
    };
    let marker = names.markers.iter().find(|marker| variables.contains_key(**marker)).expect("found by a marker");
    required(names.rank, marker)?;
    required(names.size, marker)?;
    let size = number(variables, names.size, 1, usize::MAX)?.expect("required above");
    let rank = number(variables, names.rank, 0, size - 1)?.expect("required above");
    Ok((rank, size))
}

/// A variable as a number in `low..=high`, if it is set.
fn number(variables: &Variables, name: &'static str, low: usize, high: usize) -> Result<Option<usize>, CommError> {
    let Some(text) = variables.get(name) else { return Ok(None) };
    let value = text.parse().ok().filter(|value| (low..=high).contains(value));
    let expected = match high {
        usize::MAX => format!("a whole number from {low} on"),
        _ => format!("a whole number in {low}..={high}"),
    };
    value.map(Some).ok_or_else(|| CommError::Variable { variable: name, value: text.clone(), expected })
}

fn first_number(
    variables: &Variables,
    names: &[&'static str],
    low: usize,
    high: usize,
) -> Result<Option<usize>, CommError> {
    names.iter().find(|name| variables.contains_key(**name)).map_or(Ok(None), |name| number(variables, name, low, high))
}

fn slurm_local_size(variables: &Variables) -> Option<usize> {
    let node = variables.get("SLURM_NODEID")?.parse().ok()?;
    nodelist::tasks_on_node(variables.get("SLURM_STEP_TASKS_PER_NODE")?, node).filter(|&tasks| tasks > 0)
}

fn rendezvous(launcher: Launcher, variables: &Variables) -> Result<Rendezvous, CommError> {
    let text = |name: &str| variables.get(name).cloned();
    let absent = |missing| {
        let present = launcher.names().rank;
        CommError::MissingVariable { launcher: launcher.title(), present, missing }
    };
    let needed = |name| text(name).ok_or_else(|| absent(name));
    if let Some(address) = text(RENDEZVOUS) {
        let (host, port) = host_and_port(&address)?;
        return Ok(Rendezvous::Address { host, port, cookie: text(COOKIE).unwrap_or(address) });
    }
    match launcher {
        Launcher::Bessemer => Err(absent(RENDEZVOUS)),
        Launcher::Torchrun => {
            let (host, _) = (needed("MASTER_ADDR")?, needed("MASTER_PORT")?);
            let port = number(variables, "MASTER_PORT", 1, usize::from(u16::MAX))?.unwrap_or_default() as u16;
            // The store of torchrun's agent listens on the port itself.
            let agent = text("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True");
            let ours = if agent { port.checked_add(1).unwrap_or(port - 1) } else { port };
            let [run, restart] =
                ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"].map(|name| text(name).unwrap_or_default());
            Ok(Rendezvous::Address { host, port: ours, cookie: format!("torchrun {port} {run} {restart}") })
        }
        Launcher::Slurm => {
            let job = needed("SLURM_JOB_ID")?;
            let step = text("SLURM_STEP_ID").unwrap_or_default();
            let nodes = expand_node_list(&needed("SLURM_STEP_NODELIST")?)?;
            let id = |text: &str| text.parse::<u64>().unwrap_or_default();
            let port = SLURM_PORTS.0 + id(&job).wrapping_mul(7).wrapping_add(id(&step)) % SLURM_PORTS.1;
            let restart = text("SLURM_RESTART_COUNT").unwrap_or_default();
            let host = nodes.into_iter().next().expect("a list has a name");
            Ok(Rendezvous::Address { host, port: port as u16, cookie: format!("slurm {job} {step} {restart}") })
        }
        Launcher::OpenMpi | Launcher::Mvapich | Launcher::Hydra | Launcher::Pals | Launcher::Pmi => Ok(Rendezvous::Mpi),
    }
}

/// `host:port`, with an IPv6 address in brackets.
fn host_and_port(address: &str) -> Result<(String, u16), CommError> {
    let split =
        address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok().filter(|&port| port > 0)?)));
    let bare = split.map(|(host, port)| (host.trim_start_matches('[').trim_end_matches(']'), port));
    match bare.filter(|(host, _)| !host.is_empty()) {
        Some((host, port)) => Ok((host.to_owned(), port)),
        None => Err(CommError::Variable {
            variable: RENDEZVOUS,
            value: address.to_owned(),
            expected: "host:port with a port in 1..=65535".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_share_processors_unless_they_are_bound() {
        for (allowed, online, ranks, share) in
            [(16, 16, 1, 16), (16, 16, 4, 4), (2, 16, 8, 2), (4, 16, 8, 1), (2, 2, 4, 1), (8, 16, 1, 8), (8, 16, 4, 2)]
        {
            assert_eq!(share_of_processors(allowed, online, ranks), share, "{allowed} of {online}, {ranks} ranks");
        }
    }
}
