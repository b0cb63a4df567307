//! How training becomes faster with the number of ranks, beside one rank alone and beside ranks that do not communicate.

use crate::machine::{Limits, Machine};
use crate::measure::{MeasureError, RankTimes, Repeat, Request, measure};
use crate::show;
use crate::simulator::{Cluster, ClusterError, Ranks, StepProfile};
use crate::stats::median;
use crate::workload::StepSettings;
use bessemer_train::events::{BenchResult, Scaling, ScalingKind, Simulated, SlowestRank, Together};

/// The step of ranks that share it. `request` is for one of them: with weak scaling each has the same micro-batches, with strong
/// scaling its batch is divided.
///
/// # Errors
/// [`MeasureError::Indivisible`].
pub fn shared(request: &Request, ranks: Ranks, kind: ScalingKind) -> Result<Request, MeasureError> {
    let ranks = ranks.count();
    let batch_size = match kind {
        ScalingKind::Weak => request.batch_size,
        ScalingKind::Strong if request.batch_size.is_multiple_of(ranks) => request.batch_size / ranks,
        ScalingKind::Strong => return Err(MeasureError::Indivisible { batch_size: request.batch_size, ranks }),
    };
    let settings =
        StepSettings { ranks, accumulation: request.settings.accumulation * ranks as u64, ..request.settings };
    Ok(Request { batch_size, settings, ..request.clone() })
}

/// The work of one of the ranks that share a step, without the others.
pub fn alone(request: &Request) -> Request {
    let StepSettings { ranks, accumulation, .. } = request.settings;
    let settings = StepSettings { ranks: 1, accumulation: accumulation / ranks as u64, ..request.settings };
    Request { settings, ..request.clone() }
}

/// Ranks to be measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// How many, and where.
    pub ranks: Ranks,
    /// What is the same for all numbers of ranks.
    pub kind: ScalingKind,
    /// Throughput of one rank alone; `None` for that rank itself.
    pub one: Option<f64>,
}

/// Measures a step of [`shared`], and as many ranks that do the same work and do not communicate. `once` makes a repeat on
/// the ranks of the point.
///
/// # Errors
/// [`MeasureError`].
pub fn measure_ranks(
    request: &Request,
    point: Point,
    machine: &Machine,
    limits: &mut Limits,
    mut once: impl FnMut(&Request) -> Result<Repeat, MeasureError>,
    mut progress: impl FnMut(&str, usize, f64),
) -> Result<BenchResult, MeasureError> {
    let mut repeats = Vec::new();
    let kept = |request: &Request| {
        let repeat = once(request)?;
        repeats.push(repeat.clone());
        Ok(repeat)
    };
    let mut result = measure(request, machine, limits, kept, |number, rate| progress("together", number, rate))?;
    let Point { ranks, kind, one } = point;
    (result.nodes, result.devices) = (ranks.nodes as u64, ranks.devices as u64);
    let speed_up = one.map_or(1.0, |one| result.throughput / one);
    let mut scaling = Scaling {
        kind,
        step_samples: (request.rank_samples() * ranks.count()) as u64,
        speed_up,
        efficiency: speed_up / ranks.count() as f64,
        ..Scaling::default()
    };
    if ranks.count() > 1 {
        let apart = measure(&alone(request), machine, limits, once, |number, rate| progress("apart", number, rate))?;
        scaling.together = Some(together(&repeats, request.steps, result.throughput, apart.throughput));
    }
    result.scaling = Some(scaling);
    Ok(result)
}

fn together(repeats: &[Repeat], steps: usize, throughput: f64, apart_throughput: f64) -> Together {
    let waited_ms = |repeat: &Repeat| {
        let ranks = repeat.ranks.iter().map(|rank| rank.waited_s * 1e3 / steps as f64);
        median(&ranks.collect::<Vec<_>>())
    };
    let last = repeats.last().expect("at least one repeat is made");
    Together {
        apart_throughput,
        apart_efficiency: throughput / apart_throughput,
        exposed_ms: median(&repeats.iter().map(waited_ms).collect::<Vec<_>>()),
        slowest: slowest(&last.ranks),
        transport: last.transport.clone().unwrap_or_default(),
    }
}

/// The rank that computes longest: all of them end a step at the same time, and the others wait.
fn slowest(ranks: &[RankTimes]) -> SlowestRank {
    let computed: Vec<f64> = ranks.iter().map(|rank| rank.window_s - rank.waited_s).collect();
    let (rank, longest) = computed.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).expect("there is a rank");
    SlowestRank { rank: rank as u64, host: ranks[rank].host.clone(), over_median: longest / median(&computed) }
}

/// Puts beside a result of [`measure_ranks`] what the simulator says of it, from the step of one rank.
///
/// # Errors
/// [`ClusterError`] for more ranks than the cluster has devices.
///
/// # Panics
/// For a result that is not one of [`measure_ranks`].
pub fn put_simulated(
    result: &mut BenchResult,
    profile: &StepProfile,
    name: &str,
    cluster: &Cluster,
) -> Result<(), ClusterError> {
    let ranks = Ranks { nodes: result.nodes as usize, devices: result.devices as usize };
    let outcome = profile.predict(cluster, ranks)?;
    result.scaling.as_mut().expect("a result of several ranks").simulated = Some(Simulated {
        cluster: name.to_owned(),
        throughput: outcome.throughput,
        exposed_ms: outcome.exposed_seconds * 1e3,
        error: outcome.throughput / result.throughput - 1.0,
    });
    Ok(())
}

/// The results of one model, precision and batch, by the number of ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// What was measured.
    pub title: String,
    /// Titles of the columns.
    pub header: Vec<String>,
    /// A row for each number of ranks.
    pub rows: Vec<Vec<String>>,
}

/// What the columns of a [`Table`] say, in a sentence or two.
pub const NOTE: &str = "Speed-up and efficiency are over one rank alone; beside ranks apart: over as many ranks that do the same \
                        work and do not communicate. Waits are exposed communication, of a step. The slowest rank computes longest, \
                        by so much over the median.";

/// A table for each model, precision, kind of scaling and step of one rank, in the order in which they were measured.
pub fn tables(results: &[BenchResult]) -> Vec<Table> {
    let mut groups: Vec<(String, Vec<(&BenchResult, &Scaling)>)> = Vec::new();
    for (result, scaling) in results.iter().filter_map(|result| Some((result, result.scaling.as_ref()?))) {
        let title = title(result, scaling);
        match groups.iter_mut().find(|(known, _)| *known == title) {
            Some((_, rows)) => rows.push((result, scaling)),
            None => groups.push((title, vec![(result, scaling)])),
        }
    }
    groups.into_iter().map(|(title, rows)| table(title, &rows)).collect()
}

fn title(result: &BenchResult, scaling: &Scaling) -> String {
    let ranks = result.nodes * result.devices;
    let (kind, samples) = match scaling.kind {
        ScalingKind::Weak => ("Weak scaling", format!("{} a rank in each step", scaling.step_samples / ranks)),
        ScalingKind::Strong => ("Strong scaling", format!("{} in each step", scaling.step_samples)),
    };
    let noun = result.unit.split('/').next().unwrap_or_default();
    let samples = samples.replacen(' ', &format!(" {noun} "), 1);
    format!("{kind} of {}, {}, {samples}, {} threads a rank", result.model, result.precision, result.threads)
}

fn table(title: String, rows: &[(&BenchResult, &Scaling)]) -> Table {
    let is_simulated = rows.iter().any(|(_, scaling)| scaling.simulated.is_some());
    let unit = &rows[0].0.unit;
    let mut header = vec!["nodes", "ranks a node", "batch a rank", unit, "speed-up", "efficiency"];
    header.extend(["beside ranks apart", "waits ms"]);
    header.extend(is_simulated.then_some(["simulated", "error"]).into_iter().flatten());
    header.extend(["slowest rank", "messages by"]);
    let header = header.into_iter().map(str::to_owned).collect();
    Table { title, header, rows: rows.iter().map(|(result, scaling)| row(result, scaling, is_simulated)).collect() }
}

fn row(result: &BenchResult, scaling: &Scaling, is_simulated: bool) -> Vec<String> {
    let mut cells = [result.nodes, result.devices, result.batch_size].map(|number| number.to_string()).to_vec();
    cells.push(show::significant(result.throughput, 4));
    cells.extend([format!("{:.2} x", scaling.speed_up), show::percent(scaling.efficiency)]);
    let together = scaling.together.as_ref();
    let of_several = |cell: &dyn Fn(&Together) -> String| together.map_or_else(|| "–".to_owned(), cell);
    cells.push(of_several(&|together| show::percent(together.apart_efficiency)));
    cells.push(of_several(&|together| show::significant(together.exposed_ms, 3)));
    if is_simulated {
        let simulated = |cell: &dyn Fn(&Simulated) -> String| scaling.simulated.as_ref().map_or_else(String::new, cell);
        cells.push(simulated(&|simulated| show::significant(simulated.throughput, 4)));
        cells.push(simulated(&|simulated| format!("{:+.1} %", simulated.error * 100.0)));
    }
    cells.push(of_several(&|Together { slowest: SlowestRank { rank, host, over_median }, .. }| {
        format!("{rank} ({host}), {:+.1} %", (over_median - 1.0) * 100.0)
    }));
    cells.push(of_several(&|together| together.transport.split(',').next().unwrap_or_default().to_owned()));
    cells
}
