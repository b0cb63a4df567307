//! How training becomes faster with the number of ranks, beside one rank alone and beside ranks that do not communicate.

use crate::machine::{Limits, Machine};
use crate::measure::{
    CLIP_OPTION, MEANS_OPTION, MeasureError, NORMS_OPTION, OVERLAP_OPTION, Progress, RankTimes, Repeat, Request,
    SYNTHETIC, measure,
};
use crate::show;
use crate::simulator::{Cluster, ClusterError, Ranks, StepProfile};
use crate::workload::StepSettings;
use bessemer_train::events::{BenchResult, Scaling, ScalingKind, Simulated, SlowestRank, Together};
use bessemer_train::stats::median;
use std::cmp::Ordering;
use std::path::Path;

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
    mut progress: impl FnMut(&str, Progress<'_>),
) -> Result<BenchResult, MeasureError> {
    let mut repeats = Vec::new();
    let kept = |request: &Request| {
        let repeat = once(request)?;
        repeats.push((request.steps as u64, repeat.clone()));
        Ok(repeat)
    };
    let mut result = measure(request, machine, limits, kept, |made| progress("together", made))?;
    // Those that count: a trial before them has fewer steps.
    repeats.retain(|(steps, _)| *steps == result.steps);
    let repeats: Vec<Repeat> = repeats.into_iter().map(|(_, repeat)| repeat).collect();
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
        let apart = measure(&alone(request), machine, limits, once, |made| progress("apart", made))?;
        scaling.together = Some(together(&repeats, result.steps as usize, result.throughput, apart.throughput));
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
    /// The speed-up of each number of ranks, the least first.
    pub speed_ups: Vec<(u64, f64)>,
}

/// What the columns of a [`Table`] say, in a sentence or two.
pub const NOTE: &str = "Speed-up and efficiency are over one rank alone; beside ranks apart: over as many ranks that do the same \
                        work and do not communicate. Waits are exposed communication, of a step. The slowest rank computes longest, \
                        by so much over the median. Errors are those of the throughput: the simulator's, and that of the null predictor, an efficiency of 100 %.";

/// A table for each model, precision, kind of scaling, device and step of one rank, in the order in which they were measured.
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
    let tokens = result.options.get("sequence_length").map_or_else(String::new, |tokens| format!(" of {tokens}"));
    let samples = samples.replacen(' ', &format!(" {noun}{tokens} "), 1);
    let threads = show::counted(result.threads, "thread");
    let device = match (result.device.as_str(), result.device_name.as_str()) {
        (kind, "") => kind.to_owned(),
        (_, name) => name.to_owned(),
    };
    let data =
        if ["", SYNTHETIC].contains(&result.data.as_str()) { String::new() } else { format!(", on {}", result.data) };
    let is_unclipped = result.options.get(CLIP_OPTION).is_some_and(|clip| *clip == false);
    let options = [
        (is_unclipped, "without clipping"),
        (result.options.contains_key(NORMS_OPTION), "norms over all ranks"),
        (result.options.contains_key(MEANS_OPTION), "means over all ranks"),
        (result.options.contains_key(OVERLAP_OPTION), "without overlap"),
    ];
    let options: String = options.iter().filter(|(is, _)| *is).map(|(_, words)| format!(", {words}")).collect();
    let cluster = scaling.simulated.as_ref().and_then(|simulated| Path::new(&simulated.cluster).file_stem());
    let cluster = cluster.map_or_else(String::new, |name| format!(", on {}", name.to_string_lossy()));
    let (model, precision) = (&result.model, &result.precision);
    format!("{kind} of {model}, {precision}, {samples}{data}, {device}, {threads} a rank{options}{cluster}")
}

fn table(title: String, rows: &[(&BenchResult, &Scaling)]) -> Table {
    let is_simulated = rows.iter().any(|(_, scaling)| scaling.simulated.is_some());
    let unit = &rows[0].0.unit;
    let mut header = vec!["nodes", "ranks a node", "batch a rank", unit, "step ms", "speed-up", "efficiency"];
    header.extend(["beside ranks apart", "waits ms"]);
    header.extend(is_simulated.then_some(["simulated", "error", "error of perfect scaling"]).into_iter().flatten());
    header.extend(["slowest rank", "messages by"]);
    let header = header.into_iter().map(str::to_owned).collect();
    let mut speed_ups: Vec<(u64, f64)> =
        rows.iter().map(|(result, scaling)| (result.nodes * result.devices, scaling.speed_up)).collect();
    speed_ups.sort_by(|a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal));
    let rows = rows.iter().map(|(result, scaling)| row(result, scaling, is_simulated)).collect();
    Table { title, header, rows, speed_ups }
}

fn row(result: &BenchResult, scaling: &Scaling, is_simulated: bool) -> Vec<String> {
    let mut cells = [result.nodes, result.devices, result.batch_size].map(|number| number.to_string()).to_vec();
    cells.push(show::significant(result.throughput, 4));
    cells.push(show::significant(scaling.step_samples as f64 / result.throughput * 1e3, 4));
    cells.extend([format!("{:.2} x", scaling.speed_up), show::percent(scaling.efficiency)]);
    let together = scaling.together.as_ref();
    let of_several = |cell: &dyn Fn(&Together) -> String| together.map_or_else(|| "–".to_owned(), cell);
    cells.push(of_several(&|together| show::percent(together.apart_efficiency)));
    cells.push(of_several(&|together| show::significant(together.exposed_ms, 3)));
    if is_simulated {
        let simulated = |cell: &dyn Fn(&Simulated) -> String| scaling.simulated.as_ref().map_or_else(String::new, cell);
        cells.push(simulated(&|simulated| show::significant(simulated.throughput, 4)));
        cells.push(simulated(&|simulated| format!("{:+.1} %", simulated.error * 100.0)));
        cells.push(format!("{:+.1} %", (1.0 / scaling.efficiency - 1.0) * 100.0));
    }
    cells.push(of_several(&|Together { slowest: SlowestRank { rank, host, over_median }, .. }| {
        format!("{rank} ({host}), {:+.1} %", (over_median - 1.0) * 100.0)
    }));
    // What it says behind a comma is about its making.
    let transport = |together: &Together| together.transport.split(',').next().unwrap_or_default().replace('\t', " ");
    cells.push(of_several(&transport));
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Mode;
    use bessemer_train::DeviceOptions;

    fn request() -> Request {
        Request {
            warmup: 0,
            steps: 4,
            repeat: 2,
            settings: StepSettings { accumulation: 2, ..StepSettings::default() },
            device: DeviceOptions { threads: 1, ..DeviceOptions::default() },
            ..Request::of("bert-tiny", Mode::Train, 6)
        }
    }

    /// A repeat whose ranks take these seconds for all steps, and wait for some of them.
    fn repeat(times: &[(f64, f64)]) -> Repeat {
        let rank = |(rank, &(window_s, waited_s)): (usize, &(f64, f64))| RankTimes {
            host: format!("node{rank}"),
            window_s,
            waited_s,
        };
        Repeat {
            ranks: times.iter().enumerate().map(rank).collect(),
            transport: (times.len() > 1).then(|| "Open MPI v9, of a test".to_owned()),
            ..Repeat::default()
        }
    }

    const TWO: Ranks = Ranks { nodes: 1, devices: 2 };

    #[test]
    fn ranks_are_nodes_by_ranks_of_each() {
        assert_eq!("2x8".parse(), Ok(Ranks { nodes: 2, devices: 8 }));
        assert_eq!(Ranks { nodes: 2, devices: 8 }.to_string(), "2x8");
        for text in ["2", "2x", "x2", "0x1", "1x0", "1x-2", "1x2x3", "99999999x1", ""] {
            assert!(text.parse::<Ranks>().unwrap_err().contains("such as 1x2 or 2x8"), "{text}");
        }
    }

    #[test]
    fn weak_scaling_keeps_the_batch_and_strong_scaling_the_step() {
        let size = |request: &Request| (request.batch_size, request.settings.accumulation, request.settings.ranks);
        let weak = shared(&request(), TWO, ScalingKind::Weak).unwrap();
        assert_eq!((size(&weak), weak.rank_samples()), ((6, 4, 2), 12));
        let strong = shared(&request(), TWO, ScalingKind::Strong).unwrap();
        assert_eq!((size(&strong), strong.rank_samples()), ((3, 4, 2), 6));
        assert_eq!((size(&alone(&weak)), size(&alone(&strong))), ((6, 2, 1), (3, 2, 1)));
        let four = Ranks { nodes: 2, devices: 2 };
        let error = shared(&request(), four, ScalingKind::Strong).unwrap_err().to_string();
        assert_eq!(error, "a batch of 6 cannot be divided among 4 ranks");
    }

    /// Two ranks of 12 samples in each of 4 steps: 96 in all. Repeats take 8 s and 10 s together, 6 s and 4 s apart.
    fn measured() -> BenchResult {
        let machine = Machine::look(&*request().device.open().unwrap());
        let mut limits =
            Limits { fp32_gflops: 1.0, tf32_gflops: None, bf16_gflops: None, f16_gflops: None, read_gbytes: 1.0 };
        let together = [repeat(&[(8.0, 4.0), (8.0, 2.0)]), repeat(&[(10.0, 6.0), (10.0, 4.0)])];
        let apart = [repeat(&[(6.0, 0.0), (6.0, 0.0)]), repeat(&[(4.0, 0.0), (4.0, 0.0)])];
        let mut made = together.into_iter().chain(apart);
        let mut asked = Vec::new();
        let once = |request: &Request| {
            asked.push(request.settings.ranks);
            Ok(made.next().expect("two repeats of each"))
        };
        let point = Point { ranks: TWO, kind: ScalingKind::Weak, one: Some(8.0) };
        let request = shared(&request(), TWO, ScalingKind::Weak).unwrap();
        let result = measure_ranks(&request, point, &machine, &mut limits, once, |_, _| {}).unwrap();
        assert_eq!(asked, [2, 2, 1, 1]);
        result
    }

    #[test]
    fn ranks_stand_beside_one_and_beside_ranks_apart() {
        let result = measured();
        let near = |value: f64, expected: f64| assert!((value / expected - 1.0).abs() < 1e-9, "{value}, {expected}");
        near(result.throughput, (12.0 + 9.6) / 2.0);
        let scaling = result.scaling.as_ref().unwrap();
        assert_eq!((result.devices, result.nodes, scaling.step_samples), (2, 1, 24));
        near(scaling.speed_up, 10.8 / 8.0);
        near(scaling.efficiency, 10.8 / 16.0);
        let together = scaling.together.as_ref().unwrap();
        near(together.apart_throughput, (16.0 + 24.0) / 2.0);
        near(together.apart_efficiency, 10.8 / 20.0);
        // Of a step: 0.75 s and 1.25 s, the medians over ranks.
        near(together.exposed_ms, 1000.0);
        // In the last repeat the second rank computes 6 s, the first 4 s.
        assert_eq!((together.slowest.rank, together.slowest.host.as_str()), (1, "node1"));
        near(together.slowest.over_median, 6.0 / 5.0);
        assert_eq!(together.transport, "Open MPI v9, of a test");
    }

    #[test]
    fn results_of_one_kind_are_a_table() {
        let mut result = measured();
        let mut one = BenchResult { devices: 1, throughput: 8.0, ..result.clone() };
        one.scaling = Some(Scaling { step_samples: 12, speed_up: 1.0, efficiency: 1.0, ..Scaling::default() });
        let mut strong = result.clone();
        strong.scaling.as_mut().unwrap().kind = ScalingKind::Strong;
        let weak = |results: &[BenchResult]| tables(results).remove(0);
        let cells = |table: &Table| table.rows.iter().map(|row| row.join(" | ")).collect::<Vec<_>>();
        let plain = weak(&[one.clone(), result.clone()]);
        let device = &result.device_name;
        assert_eq!(
            plain.title,
            format!(
                "Weak scaling of bert-tiny, fp32, 12 sequences of 128 a rank in each step, {device}, 1 thread a rank"
            )
        );
        assert_eq!(plain.speed_ups.iter().map(|(ranks, _)| *ranks).collect::<Vec<_>>(), [1, 2]);
        let mut short = result.clone();
        short.options.insert("sequence_length".to_owned(), 32.into());
        let mut unclipped = result.clone();
        unclipped.options.insert(CLIP_OPTION.to_owned(), false.into());
        let mut elsewhere = result.clone();
        elsewhere.device_name = "another".to_owned();
        let apart = tables(&[result.clone(), short, unclipped, elsewhere]);
        assert!(apart.len() == 4 && apart[2].title.ends_with("1 thread a rank, without clipping"), "{apart:?}");
        let rows = [
            "1 | 1 | 6 | 8.000 | 1500 | 1.00 x | 100.0 % | – | – | – | –",
            "1 | 2 | 6 | 10.80 | 2222 | 1.35 x | 67.5 % | 54.0 % | 1000 | 1 (node1), +20.0 % | Open MPI v9",
        ];
        assert_eq!(cells(&plain), rows);
        let simulated =
            Simulated { cluster: "links/x.toml".to_owned(), throughput: 11.34, exposed_ms: 3.0, error: 0.05 };
        for result in [&mut one, &mut result] {
            result.scaling.as_mut().unwrap().simulated = Some(simulated.clone());
        }
        let beside = weak(&[one.clone(), result.clone()]);
        assert_eq!(beside.title, format!("{}, on x", plain.title));
        assert!(beside.rows.iter().all(|row| row.len() == beside.header.len()) && beside.header.len() == 14);
        assert!(cells(&beside)[1].contains("| 1000 | 11.34 | +5.0 % | +48.1 % | 1 (node1)"), "{:?}", beside.rows);
        let mut apart = strong.clone();
        apart.options.insert(OVERLAP_OPTION.to_owned(), false.into());
        assert!(weak(&[apart]).title.ends_with("1 thread a rank, without overlap"), "an option is a table of its own");
        let titles: Vec<String> = tables(&[one, result, strong]).into_iter().map(|table| table.title).collect();
        assert_eq!(titles.len(), 2);
        assert!(titles[1].starts_with("Strong scaling of bert-tiny, fp32, 24 sequences of 128 in each step, "));
    }

    #[test]
    fn the_simulator_is_given_the_step_of_one_rank() {
        let text = r#"{"samples": 12, "earlier_seconds": 0, "calls": [1, 1], "backward_end": 1, "input_rate": null,
                       "collectives": [{"bytes": 2000000000, "ready": 0, "needed": 1}], "step_seconds": []}"#;
        let profile: StepProfile = serde_json::from_str(text).unwrap();
        let mut cluster = Cluster::find("cpu-1g").unwrap();
        let error = put_simulated(&mut measured(), &profile, "x", &cluster).unwrap_err().to_string();
        assert!(error.contains("has 8x1 devices (nodes x devices of each), not 1x2"), "{error}");
        cluster.devices = 2;
        (cluster.inside.gbytes, cluster.inside.latency_us) = (2.0, 0.0);
        let mut result = measured();
        put_simulated(&mut result, &profile, "x", &cluster).unwrap();
        // A step takes 2 s, and 2 GB at 2 GB/s.
        let simulated = result.scaling.unwrap().simulated.unwrap();
        assert_eq!((simulated.throughput, simulated.exposed_ms), (8.0, 1000.0));
        assert!((simulated.error - (8.0 / 10.8 - 1.0)).abs() < 1e-9);
    }
}
