//! `bench train --scaling`: how training becomes faster with the number of ranks.

use super::bench::{Process, Results, STEP_PROFILE_STEPS, StepOptions, device_text, told};
use super::command_line;
use crate::args::{Common, SharedStep, StepArguments};
use crate::failure::Usage;
use crate::output::Table;
use crate::ranks::{Mpi, MpiArgument, prepare_libraries};
use anyhow::Result;
use bessemer_bench::machine::{Limits, Machine};
use bessemer_bench::measure::{MeasureError, Progress, Repeat, Request, failed};
use bessemer_bench::scaling::{NOTE, Point, alone, measure_ranks, put_simulated, shared, tables};
use bessemer_bench::simulator::{Cluster, ClusterError, Ranks, StepProfile, measured_step};
use bessemer_bench::workload::Mode;
use bessemer_comm::launch::{Placement, process_variables};
use bessemer_comm::mpi::Family;
use bessemer_comm::spawn::{MpiLauncher, die_with_parent};
use bessemer_train::events::{BenchResult, ScalingKind};
use bessemer_train::tasks::metric_schema;
use bessemer_train::{DeviceKind, Group, GroupOptions, StopSignal, TrainError};
use clap::Args;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Training on several ranks.
#[derive(Debug, Args)]
pub(crate) struct ScalingOptions {
    /// Train on each of these numbers of nodes and ranks a node, beside one rank alone and beside ranks that do not communicate; ranks of one
    /// node are started here by the launcher of an MPI, those of several by mpirun or srun
    #[arg(long, value_name = "NODESxRANKS,...", value_delimiter = ',', conflicts_with_all = ["profile", "step_profile", "data"],
          help_heading = "Several devices")]
    pub scaling: Vec<Ranks>,
    /// Divide the batch among ranks, so that a step has the same samples [default: each rank has a batch]
    #[arg(long, requires = "scaling", help_heading = "Several devices")]
    pub strong: bool,
    /// Put beside what the simulator says, from the step of one rank: h200x8, a100x8, v100x8, v100x8-ib100, v100x16, cpu-1g,
    /// or a TOML file
    #[arg(long, value_name = "NAME|FILE", requires = "scaling", help_heading = "Several devices")]
    pub simulate: Option<String>,
    #[command(flatten, next_help_heading = "Several devices")]
    pub mpi: MpiArgument,
}

/// Where the ranks are.
enum Source {
    /// Started for each repeat.
    Fresh { process: Process, mpi: Vec<String> },
    /// This process is one of them.
    Joined(Box<Group>),
}

impl Source {
    /// The ranks that a launcher has started with this one, or the means to start some.
    fn find(options: &ScalingOptions, common: &Common) -> Result<Source> {
        let variables = process_variables();
        let placement = Placement::from_variables(&variables)?;
        let several = options.scaling.iter().any(|ranks| ranks.count() > 1);
        let Some(launcher) = placement.launcher else {
            if let Some(ranks) = options.scaling.iter().find(|ranks| ranks.nodes > 1) {
                return Err(Usage(format!(
                    "--scaling {ranks} needs {} nodes: start this command on each of their ranks, as in `mpirun -H a:{},b:{}`, \
                     or by srun",
                    ranks.nodes, ranks.devices, ranks.devices
                ))
                .into());
            }
            if several && common.device_kind() == DeviceKind::Cpu {
                MpiLauncher::find(&std::env::var_os("PATH").unwrap_or_default(), options.mpi.family())?;
            }
            return Ok(Source::Fresh { process: Process::new(StopSignal::new())?, mpi: words(&options.mpi) });
        };
        if placement.size > 1 && launcher.starts_mpi() {
            die_with_parent()?;
        }
        let job = command_line()[1..].join(" ");
        let missing = |ranks: &[usize]| common.notify(&format!("waiting for the ranks {ranks:?}"));
        prepare_libraries(common.device_kind(), &placement, &variables, true, common);
        let via = (options.mpi.library(), common.device_kind());
        let group = Group::join(&placement, &variables, via, &job, GroupOptions::default(), missing)?;
        let nodes = group.hosts().iter().collect::<BTreeSet<_>>().len().max(1);
        let there = Ranks { nodes, devices: group.size() / nodes };
        let other = options.scaling.iter().find(|&&ranks| ranks != there && ranks != Ranks::ONE);
        match other {
            None if there.count() == group.size() => Ok(Source::Joined(Box::new(group))),
            _ => {
                let size = group.size();
                group.leave(None)?;
                let started = format!("{} started {size} ranks on {nodes} nodes", launcher.title());
                let problem = match other {
                    Some(other) => format!("--scaling {other}: {started}, which can be 1x1 and {there}"),
                    None => format!("--scaling: {started}; all nodes must have the same number"),
                };
                Err(Usage(problem).into())
            }
        }
    }

    /// A repeat on this number of ranks.
    fn repeat(&self, request: &Request, ranks: usize) -> Result<Repeat, MeasureError> {
        match self {
            Source::Fresh { process, mpi } => {
                let devices = ["--quiet", "--devices", &ranks.to_string()].map(str::to_owned);
                process.repeat(request, &[&devices, &mpi[..]].concat())
            }
            Source::Joined(_) if ranks == 1 => Repeat::here(request),
            Source::Joined(group) => {
                let text = serde_json::to_string(request).expect("requests have string keys");
                group.from_first(|| Ok(Some(text)))?;
                Ok(Repeat::of_rank(request, group)?)
            }
        }
    }
}

/// The same MPI on a command line.
fn words(mpi: &MpiArgument) -> Vec<String> {
    let name = mpi.mpi.as_ref().map(|mpi| match mpi {
        Mpi::Family(Family::Mpich) => "mpich".to_owned(),
        Mpi::Family(_) => "openmpi".to_owned(),
        Mpi::Library(path) => path.display().to_string(),
    });
    name.map_or_else(Vec::new, |name| vec!["--mpi".to_owned(), name])
}

/// Does what rank 0 asks for, until it asks for nothing more.
fn follow(group: &Group) -> Result<(), TrainError> {
    while let Some(text) = group.from_first(|| Ok(None::<String>))? {
        // Not every machine has the instructions of rank 0's.
        let request: Request = serde_json::from_str(&text).map_err(|error| {
            let (name, value) = ("the step of rank 0", "not possible on this rank".to_owned());
            TrainError::Setting { name, value, allowed: error.to_string() }
        })?;
        Repeat::of_rank(&request, group)?;
    }
    Ok(())
}

/// The steps of one batch size on all numbers of ranks, one rank first.
type Series = Vec<(Ranks, Request)>;

pub(super) fn run(
    options: &StepOptions,
    settings: &StepArguments,
    shared: &SharedStep,
    scaling: &ScalingOptions,
    common: &Common,
) -> Result<()> {
    if options.mode != Mode::Train {
        return Err(Usage("--scaling is for training".to_owned()).into());
    }
    let cluster = scaling.simulate.as_deref().map(|name| Ok::<_, ClusterError>((name, Cluster::find(name)?)));
    let cluster = cluster.transpose()?;
    if let Some((_, cluster)) = &cluster {
        scaling.scaling.iter().try_for_each(|&ranks| cluster.check(ranks))?;
    }
    let all = series(options, settings, shared, scaling, common)?;
    let kind = kind(scaling);
    let source = Source::find(scaling, common)?;
    let Source::Joined(group) = &source else { return measure_all(options, &all, kind, cluster, &source, common) };
    let result = match group.leads() {
        true => match measure_all(options, &all, kind, cluster, &source, common) {
            Err(error) if matches!(error.downcast_ref(), Some(MeasureError::Ranks(_))) => Err(error),
            measured => measured.and(group.from_first(|| Ok(None::<String>)).map(drop).map_err(Into::into)),
        },
        false => follow(group).map_err(Into::into),
    };
    let Source::Joined(group) = source else { unreachable!("it was joined") };
    let told = result.as_ref().err().and_then(|error| match error.downcast_ref() {
        Some(MeasureError::Ranks(error)) => Some(error),
        _ => error.downcast_ref(),
    });
    let left = group.leave(told);
    result.and_then(|()| Ok(left?))
}

fn kind(options: &ScalingOptions) -> ScalingKind {
    if options.strong { ScalingKind::Strong } else { ScalingKind::Weak }
}

/// All steps that are to be measured. A rank has the same threads however many there are, so that ranks are equal devices.
fn series(
    options: &StepOptions,
    settings: &StepArguments,
    shared_step: &SharedStep,
    scaling: &ScalingOptions,
    common: &Common,
) -> Result<Vec<Series>> {
    let mut points = vec![Ranks::ONE];
    points.extend(scaling.scaling.iter().filter(|&&ranks| ranks != Ranks::ONE));
    let most = points.iter().map(|ranks| ranks.devices).max().unwrap_or(1);
    let mut device = common.device();
    let launched = Placement::from_variables(&process_variables())?.launcher.is_some();
    if common.threads.is_none() && !launched {
        device.threads = (device.threads / most).max(1);
    }
    let settings = shared_step.settings(settings.settings(options.model)?);
    let of_batch = |&batch_size: &usize| {
        let one = super::bench::request(options, common, settings, device.clone(), batch_size, 1);
        let one = Request { overlap: shared_step.overlaps(), ..one };
        points.iter().map(|&ranks| Ok((ranks, shared(&one, ranks, kind(scaling))?))).collect::<Result<Series>>()
    };
    options.batch_size.iter().map(of_batch).collect()
}

/// Steps of the profile from which ranks are simulated: not more than are measured, where these are few.
fn profile_steps(request: &Request) -> usize {
    request.steps.min(STEP_PROFILE_STEPS)
}

fn measure_all(
    options: &StepOptions,
    all: &[Series],
    kind: ScalingKind,
    cluster: Option<(&str, Cluster)>,
    source: &Source,
    common: &Common,
) -> Result<()> {
    let started = Instant::now();
    let mut results = Results::open(options.json, options.out.as_deref())?;
    common.tell_emulation(common.precision().unwrap_or_default())?;
    let device = &all[0][0].1.device;
    let opened = device.open()?;
    let (machine, mut limits) = (Machine::look(&*opened), Limits::measure(&*opened));
    results.text(&format!("a rank: {}\n", device_text(&machine)))?;
    for series in all {
        let mut measured: Vec<BenchResult> = Vec::new();
        let mut profiles: BTreeMap<usize, StepProfile> = BTreeMap::new();
        for (ranks, request) in series {
            let one = measured.first().map(|one| one.throughput);
            let point = Point { ranks: *ranks, kind, one };
            let progress = |how: &str, progress: Progress<'_>| {
                common.notify(&told(progress, &format!("{ranks} {how}"), metric_schema(&request.model).unit));
            };
            let once = |request: &Request| source.repeat(request, ranks.count());
            let mut result = match measure_ranks(request, point, &machine, &mut limits, once, progress) {
                Err(error) if error.is_out_of_memory() && matches!(source, Source::Fresh { .. }) => {
                    let row = BenchResult {
                        nodes: ranks.nodes as u64,
                        devices: ranks.devices as u64,
                        ..failed(request, &machine, &error)
                    };
                    results.event(&row, started)?;
                    results.text(&format!("{ranks}, batch {}: {error}\n", request.batch_size))?;
                    if one.is_none() {
                        break;
                    }
                    continue;
                }
                result => result?,
            };
            if let Some((name, cluster)) = &cluster {
                let profile = match profiles.entry(request.batch_size) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(place) => place.insert(measured_step(&alone(request), profile_steps(request))?),
                };
                put_simulated(&mut result, profile, name, cluster)?;
            }
            results.event(&result, started)?;
            measured.push(result);
        }
        for measured in tables(&measured) {
            let header: Vec<&str> = measured.header.iter().map(String::as_str).collect();
            let mut table = Table::new(0, &header);
            measured.rows.into_iter().for_each(|row| table.row(row));
            results.text(&format!("\n{}\n{table}", measured.title))?;
        }
    }
    results.text(&format!("\n{NOTE}\n"))
}
