//! This process among the ranks of a job, and starting such jobs on this machine.

use crate::args::{Common, at_least_one};
use crate::failure::Usage;
use anyhow::{Result, bail};
use bessemer_comm::launch::{Placement, process_variables};
use bessemer_comm::mpi::Family;
use bessemer_comm::spawn::{Job, MpiLauncher, die_with_parent};
use bessemer_train::{Group, GroupOptions, StopSignal};
use clap::Args;
use nix::sys::signal::Signal;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Options of a command that runs on several devices.
#[derive(Debug, Args)]
#[command(next_help_heading = "Several devices")]
pub(crate) struct RankArguments {
    /// Share each step among this many ranks on this machine, which are started by the launcher of an MPI; train.accumulation must
    /// be a multiple of it [default: the ranks that mpirun, mpiexec or srun started, else 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one)]
    pub devices: Option<usize>,
    #[command(flatten)]
    pub mpi: MpiArgument,
    /// Seconds within which all ranks must have started
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0, value_parser = seconds)]
    pub join_timeout: f64,
    /// Seconds of silence after which a rank is lost
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    pub peer_timeout: f64,
    /// Seconds that a rank waits for a sum over all ranks before it ends the job
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0, value_parser = seconds)]
    pub collective_timeout: f64,
    /// Compare the weights of all ranks each time that so many steps are done
    #[arg(long, value_name = "STEPS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    pub verify_state: u64,
}

/// Which MPI carries messages.
#[derive(Debug, Args)]
pub(crate) struct MpiArgument {
    /// MPI to use: openmpi, mpich, or the path of a library [default: the one of the launcher]
    #[arg(long, value_name = "NAME|PATH")]
    pub mpi: Option<Mpi>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mpi {
    Family(Family),
    Library(PathBuf),
}

impl FromStr for Mpi {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "openmpi" => Ok(Self::Family(Family::OpenMpi)),
            "mpich" => Ok(Self::Family(Family::Mpich)),
            path if Path::new(path).is_file() => Ok(Self::Library(path.into())),
            _ => Err("neither openmpi nor mpich nor the path of a library".to_owned()),
        }
    }
}

impl MpiArgument {
    pub(crate) fn family(&self) -> Option<Family> {
        match self.mpi {
            Some(Mpi::Family(family)) => Some(family),
            _ => None,
        }
    }

    pub(crate) fn library(&self) -> Option<&Path> {
        match &self.mpi {
            Some(Mpi::Library(path)) => Some(path),
            _ => None,
        }
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|seconds| (0.1..=1e6).contains(seconds));
    value.ok_or_else(|| "not a number of seconds between 0.1 and 1000000".to_owned())
}

impl RankArguments {
    /// Joins the job of which this process is a rank, if a launcher started it as one. Where ranks are asked for that nobody started,
    /// they are started here, and this process ends with them.
    ///
    /// `job` is what all ranks must be asked for alike.
    pub(crate) fn join(&self, job: &str, common: &Common) -> Result<Group> {
        let variables = process_variables();
        let placement = Placement::from_variables(&variables)?;
        match self.devices {
            Some(devices) if placement.launcher.is_none() && devices > 1 => {
                let arguments = std::env::args_os().skip(1).collect::<Vec<_>>();
                std::process::exit(run_ranks(devices, &self.mpi, &arguments, common)?);
            }
            Some(devices) if placement.launcher.is_some() && devices != placement.size => {
                let launcher = placement.launcher.map_or("", |launcher| launcher.title());
                bail!(Usage(format!("--devices is {devices}, but {launcher} started {} ranks", placement.size)));
            }
            _ => {}
        }
        if placement.size > 1 && placement.launcher.is_some_and(|launcher| launcher.starts_mpi()) {
            die_with_parent()?;
        }
        let [join, peer, collective_timeout] =
            [self.join_timeout, self.peer_timeout, self.collective_timeout].map(Duration::from_secs_f64);
        let mut options =
            GroupOptions { collective_timeout, verify_every: self.verify_state, ..GroupOptions::default() };
        (options.deadlines.join, options.deadlines.peer) = (join, peer);
        options.deadlines.beat = options.deadlines.beat.min(peer / 4);
        let missing = |ranks: &[usize]| {
            let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
            common.notify(&format!("waiting for the ranks {}", ranks.join(", ")));
        };
        Ok(Group::join(&placement, &variables, self.mpi.library(), job, options, missing)?)
    }
}

/// Whether this process is a rank other than 0, which leaves output to rank 0.
pub(crate) fn is_follower() -> bool {
    Placement::from_variables(&process_variables()).is_ok_and(|placement| placement.rank > 0)
}

/// Runs this program on several ranks of this machine, and returns the exit code of the job. A request to stop is handed on to the
/// ranks, which save and end.
pub(crate) fn run_ranks(ranks: usize, mpi: &MpiArgument, arguments: &[OsString], common: &Common) -> Result<i32> {
    let launcher = MpiLauncher::find(&std::env::var_os("PATH").unwrap_or_default(), mpi.family())?;
    common.notify(&format!("{ranks} ranks by {} ({})", launcher.path.display(), launcher.version));
    let program = std::env::current_exe()?;
    let stop = StopSignal::from_system()?;
    let mut job = Job::start_mpi(&launcher, ranks, program.as_os_str(), arguments)?;
    let mut asked = false;
    let hand_on = |job: &Job| {
        if stop.is_raised() && !std::mem::replace(&mut asked, true) {
            job.signal_ranks(&program, Signal::SIGTERM);
        }
    };
    Ok(job.wait(hand_on)?)
}
